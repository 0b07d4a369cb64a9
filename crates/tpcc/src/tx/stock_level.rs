//! Stock-Level, clause 2.8.

use super::{Outcome, Terminal};
use crate::database::error::DbError;
use crate::database::locks::RowKey;
use crate::database::schema::{self, Table, district, order_line, stock};
use std::ops::ControlFlow;

/// The number of orders examined, the newest of the district.
const ORDERS: u32 = 20;

impl Terminal {
    pub(super) async fn stock_level(&mut self) -> Result<Outcome, DbError> {
        // Clause 2.8.1.1: a terminal's warehouse and district are constant.
        let (w, d) = (self.w, self.d);
        let threshold = i64::from(self.random.between(10, 20));
        let mut tx = self.database.begin(&mut self.operations).await?;
        tx.lock(RowKey::district(w, d)).await?;
        let mut row = [0; district::LEN];
        tx.read(Table::District, &schema::district_key(w, d), &mut row).await?;
        let next = district::NEXT_O_ID.int(&row) as u32;
        let from = schema::order_line_key(w, d, next.saturating_sub(ORDERS), 0);
        let mut items = Vec::with_capacity(320);
        tx.scan(Table::OrderLine, &from, |key, row| {
            if key[..3] != from[..3] {
                return ControlFlow::Break(());
            }
            items.push(order_line::I_ID.int(row) as u32);
            ControlFlow::Continue(())
        })
        .await?;
        // Stock is read at isolation level read committed, as clause 2.8.2.3 allows.
        tx.unlock();
        // Clause 2.8.2.2: an item counts once, however many of the orders have it.
        items.sort_unstable();
        items.dedup();
        let mut low = 0;
        for i in items {
            let mut row = [0; stock::LEN];
            tx.read(Table::Stock, &schema::stock_key(w, i), &mut row).await?;
            low += u32::from(stock::QUANTITY.int(&row) < threshold);
        }
        std::hint::black_box(low);
        tx.commit().await?;
        Ok(Outcome::Committed)
    }
}
