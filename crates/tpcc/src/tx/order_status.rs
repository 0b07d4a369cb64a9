//! Order-Status, clause 2.6.

use super::{Outcome, Terminal};
use crate::database::error::DbError;
use crate::database::locks::RowKey;
use crate::database::schema::{self, Table, customer, order_line, orders};
use std::ops::ControlFlow;

impl Terminal {
    pub(super) async fn order_status(&mut self) -> Result<Outcome, DbError> {
        let (w, d) = (self.w, self.any_district());
        let chosen = self.chosen_customer();
        let mut tx = self.database.begin(&mut self.operations).await?;
        let c = chosen.find(&tx, w, d).await?;
        // The district's lock keeps the order and its lines from changing between the reads below.
        tx.lock(RowKey::district(w, d)).await?;
        // Payments and Deliveries change the balance under this lock: a Payment that another district
        // takes in holds no lock of this one.
        tx.lock(RowKey::customer(w, d, c)).await?;
        let mut row = [0; customer::LEN];
        tx.read(Table::Customer, &schema::customer_key(w, d, c), &mut row).await?;

        // The key has the order's number inverted, so a customer's newest order comes first.
        let newest = schema::customer_order_key(w, d, c, u32::MAX);
        let mut last = None;
        tx.scan(Table::OrdersByCustomer, &newest, |key, _| {
            if key[..7] == newest[..7] {
                last = Some(!u32::from_be_bytes([key[7], key[8], key[9], key[10]]));
            }
            ControlFlow::Break(())
        })
        .await?;
        if let Some(o) = last {
            let mut order = [0; orders::LEN];
            tx.read(Table::Orders, &schema::order_key(w, d, o), &mut order).await?;
            let (mut lines, mut amount) = (0, 0);
            tx.scan(Table::OrderLine, &schema::order_line_key(w, d, o, 0), |key, row| {
                if key[..7] != schema::order_key(w, d, o) {
                    return ControlFlow::Break(());
                }
                lines += 1;
                amount += order_line::AMOUNT.int(row);
                ControlFlow::Continue(())
            })
            .await?;
            debug_assert_eq!(lines, orders::OL_CNT.int(&order));
            std::hint::black_box(amount);
        }
        std::hint::black_box(customer::BALANCE.int(&row));
        tx.commit().await?;
        Ok(Outcome::Committed)
    }
}
