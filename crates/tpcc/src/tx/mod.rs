//! The five transactions of TPC-C, clauses 2.4 to 2.8, and the terminal that runs them in the standard mix.
//!
//! Row locks: New-Order locks its district and its stock rows; Payment warehouse, district, customer;
//! Order-Status and each tenth of a Delivery district and customer; Stock-Level its district while it reads
//! order-lines. Columns that never change (taxes, names, discounts, items) are read without a lock.

mod delivery;
mod new_order;
mod order_status;
mod payment;
mod stock_level;
#[cfg(test)]
mod tests;

use crate::database::engine::{Database, Tx};
use crate::database::error::DbError;
use crate::database::load::DISTRICTS;
use crate::database::operations::Operations;
use crate::database::random::{Constants, Random, last_name};
use crate::database::schema::{self, Table, customer};
use std::ops::ControlFlow;
use std::sync::Arc;

/// A transaction's type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    NewOrder,
    Payment,
    OrderStatus,
    Delivery,
    StockLevel,
}

impl Kind {
    /// The number of each kind in a deck of 100 (clause 5.2.4.2).
    const DECK: [(Self, usize); 5] = [
        (Self::NewOrder, 45),
        (Self::Payment, 43),
        (Self::OrderStatus, 4),
        (Self::Delivery, 4),
        (Self::StockLevel, 4),
    ];
}

/// How a transaction ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// It took effect.
    Committed,
    /// A New-Order with an item that does not exist: one in a hundred, as specified.
    RolledBack,
}

/// A terminal: belongs to a warehouse (and, for Stock-Level, to a district of it).
pub(crate) struct Terminal {
    database: Arc<Database>,
    random: Random,
    constants: Constants,
    w: u16,
    d: u8,
    deck: Vec<Kind>,
    operations: Operations,
}

impl Terminal {
    /// Creates terminal `number` (from 0), whose input depends on it and on `seed`.
    pub(crate) fn new(database: Arc<Database>, number: u32, seed: u64) -> Self {
        let warehouses = u32::from(database.catalog.scale.warehouses);
        // Clause 2.1.6: all terminals use the same constants. No terminal has this stream.
        let constants = Random::new(seed, u64::MAX).run_constants(database.catalog.constants);
        Self {
            database,
            random: Random::new(seed, u64::from(number) + 1),
            constants,
            // Warehouses first, then districts: Stock-Level wants a pair of its own for each terminal
            // (clause 2.8.1.1).
            w: (number % warehouses + 1) as u16,
            d: (number / warehouses % u32::from(DISTRICTS) + 1) as u8,
            deck: Vec::new(),
            operations: Operations::default(),
        }
    }

    /// Runs the next transaction of the mix. Must be driven to completion (see [`Tx::commit`]).
    pub(crate) async fn next(&mut self) -> Result<(Kind, Outcome), DbError> {
        let kind = self.draw();
        let outcome = match kind {
            Kind::NewOrder => self.new_order().await?,
            Kind::Payment => self.payment().await?,
            Kind::OrderStatus => self.order_status().await?,
            Kind::Delivery => self.delivery().await?,
            Kind::StockLevel => self.stock_level().await?,
        };
        Ok((kind, outcome))
    }

    fn draw(&mut self) -> Kind {
        loop {
            if let Some(kind) = self.deck.pop() {
                return kind;
            }
            // A deck for each terminal keeps the mix exact without state that terminals share.
            self.deck = Kind::DECK.iter().flat_map(|&(kind, n)| std::iter::repeat_n(kind, n)).collect();
            self.random.shuffle(&mut self.deck);
        }
    }

    fn any_district(&mut self) -> u8 {
        self.random.between(1, DISTRICTS.into()) as u8
    }

    fn any_customer(&mut self) -> u32 {
        self.random.nurand(1_023, self.constants.customer, 1, self.database.catalog.scale.customers)
    }

    /// A warehouse other than the terminal's, if any.
    fn other_warehouse(&mut self) -> u16 {
        let others = u32::from(self.database.catalog.scale.warehouses) - 1;
        if others == 0 {
            return self.w;
        }
        let w = self.random.between(1, others) as u16;
        // Numbers from its own on move up by one, so that all others are equally likely.
        if w < self.w { w } else { w + 1 }
    }

    /// A customer as Payment and Order-Status select one: by last name in 60 of 100 cases.
    fn chosen_customer(&mut self) -> Chosen {
        if self.random.percent(60) {
            let n = self.random.nurand(255, self.constants.last, 0, 999);
            // The small databases of tests have fewer names.
            Chosen::ByName(last_name(n % self.database.catalog.scale.names()))
        } else {
            Chosen::ById(self.any_customer())
        }
    }
}

/// How a customer is selected.
enum Chosen {
    ById(u32),
    ByName([u8; 16]),
}

impl Chosen {
    /// Finds the customer's number: of those with the name, the middle one by first name, rounded up (clause
    /// 2.5.2.2).
    async fn find(&self, tx: &Tx<'_>, w: u16, d: u8) -> Result<u32, DbError> {
        let name = match self {
            Self::ById(c) => return Ok(*c),
            Self::ByName(name) => name,
        };
        let from = schema::name_key(w, d, name, &[], 0);
        let same_name = ..customer_name_end();
        let mut found = Vec::with_capacity(16);
        tx.scan(Table::CustomerByName, &from, |key, _| {
            if key[same_name] != from[same_name] {
                return ControlFlow::Break(());
            }
            found.push(u32::from_be_bytes([key[35], key[36], key[37], key[38]]));
            ControlFlow::Continue(())
        })
        .await?;
        let middle = found.len().div_ceil(2).saturating_sub(1);
        found
            .get(middle)
            .copied()
            .ok_or(DbError::MissingRow { table: Table::CustomerByName, key: from.to_vec() })
    }
}

/// The end of the last name in a key by name.
const fn customer_name_end() -> usize {
    3 + customer::LAST.len
}
