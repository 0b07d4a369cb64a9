//! Delivery, clause 2.7: delivers the oldest open order of each district, each in its own transaction (clause
//! 2.7 leaves the grouping to the implementation).

use super::{Outcome, Terminal};
use crate::database::engine::Tx;
use crate::database::error::DbError;
use crate::database::load::DISTRICTS;
use crate::database::locks::RowKey;
use crate::database::schema::{self, Table, customer, order_line, orders};
use std::ops::ControlFlow;

impl Terminal {
    pub(super) async fn delivery(&mut self) -> Result<Outcome, DbError> {
        let w = self.w;
        // Clause 2.7.2 queues a Delivery and executes it later. Here the terminal executes it, because
        // the report has no response time of a Delivery that deferral could improve.
        let carrier = self.random.between(1, 10);
        for d in 1..=DISTRICTS {
            let mut tx = self.database.begin(&mut self.operations).await?;
            // The district's lock covers its new-orders: two deliveries must not take the same order.
            tx.lock(RowKey::district(w, d)).await?;
            // Clause 2.7.4.2: a district without an open order is skipped.
            if let Some(o) = oldest_open_order(&tx, w, d).await? {
                deliver(&mut tx, w, d, o, carrier).await?;
            }
            tx.commit().await?;
        }
        Ok(Outcome::Committed)
    }
}

async fn oldest_open_order(tx: &Tx<'_>, w: u16, d: u8) -> Result<Option<u32>, DbError> {
    let from = schema::order_key(w, d, 0);
    let mut oldest = None;
    tx.scan(Table::NewOrder, &from, |key, _| {
        if key[..3] == from[..3] {
            oldest = Some(schema::order_in(key));
        }
        ControlFlow::Break(())
    })
    .await?;
    Ok(oldest)
}

async fn deliver(tx: &mut Tx<'_>, w: u16, d: u8, o: u32, carrier: u32) -> Result<(), DbError> {
    let key = schema::order_key(w, d, o);
    tx.delete(Table::NewOrder, &key);
    let mut order = [0; orders::LEN];
    tx.read(Table::Orders, &key, &mut order).await?;
    tx.patch(Table::Orders, &key, orders::CARRIER_ID.at, &[carrier as u8]);

    let mut total = 0;
    let mut lines = 0;
    tx.scan(Table::OrderLine, &schema::order_line_key(w, d, o, 0), |line, row| {
        if line[..7] != key {
            return ControlFlow::Break(());
        }
        lines += 1;
        total += order_line::AMOUNT.int(row);
        ControlFlow::Continue(())
    })
    .await?;
    let now = tx.now_ms();
    // A New-Order numbers its lines from 1 without a gap, so their count gives the keys, and the scan has
    // none to collect.
    for number in 1..=lines {
        let line = schema::order_line_key(w, d, o, number);
        tx.patch(Table::OrderLine, &line, order_line::DELIVERY_D.at, &now.to_le_bytes());
    }

    let c = orders::C_ID.int(&order) as u32;
    // The order says which customer; in the order of locks customers come after districts.
    tx.lock(RowKey::customer(w, d, c)).await?;
    let key = schema::customer_key(w, d, c);
    let mut row = [0; customer::LEN];
    tx.read(Table::Customer, &key, &mut row).await?;
    let balance = customer::BALANCE.int(&row) + total;
    customer::BALANCE.set_int(&mut row, balance);
    tx.patch(Table::Customer, &key, customer::BALANCE.at, customer::BALANCE.of(&row));
    let count = customer::DELIVERY_CNT.int(&row) + 1;
    customer::DELIVERY_CNT.set_count(&mut row, count);
    tx.patch(Table::Customer, &key, customer::DELIVERY_CNT.at, customer::DELIVERY_CNT.of(&row));
    Ok(())
}
