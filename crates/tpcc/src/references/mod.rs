//! The page references of TPC-C, without rows: the pages that the five transactions touch, at 16 KiB per
//! page.
//!
//! Nine tables and two secondary indexes (customers by last name, orders by customer) are B+-trees in primary
//! key order. Row sizes are as specified plus InnoDB's per-row overhead; the mix is the standard one, with
//! NURand, and the database grows as it runs. A statement is a descent from the root; a row that is read and
//! then changed takes two statements. A warehouse has about 100 MB (6,000 pages), as in the 2013 paper.

mod tables;

use pagetier_ghost::{Reference, Source, Use};
use pagetier_policy::SpaceId;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;
use tables::{Dense, Parts, Splitting};

const DISTRICTS: u32 = 10;
const CUSTOMERS: u32 = 3000;
const ITEMS: u32 = 100_000;
const ORDERS: u32 = 3000;
const UNDELIVERED: u32 = 900;

/// The tables' names by space id, starting from 1.
pub const TABLES: [&str; 11] = [
    "warehouse",
    "district",
    "customer",
    "history",
    "new_order",
    "orders",
    "order_line",
    "item",
    "stock",
    "customer_by_name",
    "orders_by_customer",
];

/// The name of one of the generator's spaces.
#[must_use]
pub fn table_name(space: SpaceId) -> Option<&'static str> {
    TABLES.get((space.0 as usize).wrapping_sub(1)).copied()
}

#[derive(Debug)]
struct District {
    /// The first line of each order, and of the next order.
    first_line: Vec<u32>,
    customer_of: Vec<u16>,
    last_order_of: Vec<u32>,
    /// The oldest undelivered order.
    undelivered: u32,
    /// The items of the latest [`RECENT`] order lines, oldest first.
    recent_items: VecDeque<u32>,
}

/// The maximum number of lines that Stock-Level reads: 20 orders of 15.
const RECENT: usize = 300;

/// An endless stream of TPC-C transactions, one per batch.
#[derive(Debug)]
pub struct Tpcc {
    warehouses: u32,
    rng: SmallRng,
    nurand_c: [u32; 2],
    new_orders: u64,
    districts: Vec<District>,
    warehouse: Dense,
    district: Dense,
    customer: Dense,
    history: Parts,
    new_order: Parts,
    orders: Parts,
    order_line: Parts,
    item: Dense,
    stock: Dense,
    by_name: Dense,
    by_customer: Splitting,
}

impl Tpcc {
    /// A freshly loaded database of `warehouses` warehouses (at least one).
    #[must_use]
    pub fn new(warehouses: u32, seed: u64) -> Self {
        let warehouses = warehouses.max(1);
        let mut rng = SmallRng::seed_from_u64(seed);
        let parts = warehouses * DISTRICTS;
        let districts: Vec<District> = (0..parts).map(|_| District::loaded(&mut rng)).collect();
        let lines = |part: u32| districts[part as usize].lines();
        // Rows per leaf: 16 KiB at 15/16 full, with row sizes of 680, 75, 30, 50, 80, 100 and 330 bytes; 55
        // in the index.
        Self {
            warehouse: Dense::new(1, warehouses, 130),
            district: Dense::new(2, parts, 130),
            customer: Dense::new(3, parts * CUSTOMERS, 22),
            // History has no primary key: InnoDB appends the rows of all districts at one end.
            history: Parts::new(4, 1, |_| parts * CUSTOMERS, 200),
            new_order: Parts::new(5, parts, |_| UNDELIVERED, 500),
            orders: Parts::new(6, parts, |_| ORDERS, 300),
            order_line: Parts::new(7, parts, lines, 190),
            item: Dense::new(8, ITEMS, 150),
            stock: Dense::new(9, warehouses * ITEMS, 46),
            by_name: Dense::new(10, parts * CUSTOMERS, 210),
            by_customer: Splitting::new(11, parts, CUSTOMERS, 540),
            nurand_c: [rng.random_range(0..=1023), rng.random_range(0..=8191)],
            warehouses,
            districts,
            rng,
            new_orders: 0,
        }
    }

    /// The current number of leaves of all tables and indexes.
    pub fn pages(&self) -> u64 {
        let dense = [&self.warehouse, &self.district, &self.customer, &self.item, &self.stock, &self.by_name];
        let parts = [&self.history, &self.new_order, &self.orders, &self.order_line];
        let pages = dense.map(|t| t.pages).into_iter().chain(parts.map(|t| t.pages));
        pages.chain([self.by_customer.pages]).map(u64::from).sum()
    }

    /// Clause 2.1.6, counting from 0.
    fn nurand(&mut self, a: u32, c: u32, n: u32) -> u32 {
        ((self.rng.random_range(0..=a) | self.rng.random_range(0..n)) + c) % n
    }

    fn random_customer(&mut self) -> u32 {
        self.nurand(1023, self.nurand_c[0], CUSTOMERS)
    }

    fn random_item(&mut self) -> u32 {
        self.nurand(8191, self.nurand_c[1], ITEMS)
    }

    /// Finds a customer by number, or (60%) by name, which first reads the index and the three customers of
    /// that name.
    fn find_customer(&mut self, out: &mut Vec<Reference>, part: u32) -> u32 {
        if self.rng.random_bool(0.4) {
            return self.random_customer();
        }
        // Names are numbers from 0 to 999 by NURand(255); three customers, anywhere in the district, share
        // each.
        let name = (self.rng.random_range(0..=255u32) | self.rng.random_range(0..1000u32)) % 1000;
        self.by_name.read(out, part * CUSTOMERS + name * 3);
        let namesakes = [name, 1000 + scatter(name, part), 2000 + scatter(name, part + 7)];
        for customer in namesakes {
            self.customer.read(out, part * CUSTOMERS + customer);
        }
        namesakes[1]
    }

    fn run_new_order(&mut self, out: &mut Vec<Reference>, warehouse: u32) {
        let part = warehouse * DISTRICTS + self.rng.random_range(0..DISTRICTS);
        let customer = self.random_customer();
        self.warehouse.read(out, warehouse);
        self.district.update(out, part);
        self.customer.read(out, part * CUSTOMERS + customer);
        self.orders.append(out, part);
        self.by_customer.insert(out, part, customer, CUSTOMERS);
        self.new_order.append(out, part);
        // No order is rolled back (clause 2.4.1.4): the one in a hundred would read the same pages and
        // change none.
        let lines = self.rng.random_range(5..=15u32);
        for _ in 0..lines {
            let item = self.random_item();
            // Clause 2.4.1.5: one line in a hundred comes from another warehouse. Here that may be the home.
            let supplier = if self.rng.random_bool(0.01) {
                self.rng.random_range(0..self.warehouses)
            } else {
                warehouse
            };
            self.item.read(out, item);
            self.stock.update(out, supplier * ITEMS + item);
            self.order_line.append(out, part);
            self.districts[part as usize].remember(item);
        }
        self.districts[part as usize].order(customer, lines);
        self.new_orders += 1;
    }

    fn run_payment(&mut self, out: &mut Vec<Reference>, warehouse: u32) {
        let part = warehouse * DISTRICTS + self.rng.random_range(0..DISTRICTS);
        self.warehouse.update(out, warehouse);
        self.district.update(out, part);
        // Simpler than clause 2.5.1.2, which excludes the home warehouse: here it is drawn with the others.
        let paying = if self.rng.random_bool(0.15) {
            self.rng.random_range(0..self.warehouses * DISTRICTS)
        } else {
            part
        };
        let customer = self.find_customer(out, paying);
        self.customer.update(out, paying * CUSTOMERS + customer);
        self.history.append(out, 0);
    }

    fn run_order_status(&mut self, out: &mut Vec<Reference>, warehouse: u32) {
        let part = warehouse * DISTRICTS + self.rng.random_range(0..DISTRICTS);
        let customer = self.find_customer(out, part);
        self.customer.read(out, part * CUSTOMERS + customer);
        self.by_customer.read(out, part, customer);
        let d = &self.districts[part as usize];
        let order = d.last_order_of[customer as usize];
        self.orders.row(out, part, order, Use::Read);
        self.order_line.range(out, part, d.lines_of(order), Use::Read);
    }

    fn run_delivery(&mut self, out: &mut Vec<Reference>, warehouse: u32) {
        for part in warehouse * DISTRICTS..(warehouse + 1) * DISTRICTS {
            let d = &mut self.districts[part as usize];
            let order = d.undelivered;
            if order as usize >= d.customer_of.len() {
                continue;
            }
            d.undelivered += 1;
            // Rows keep their numbers although earlier ones are deleted: their pages stay in the table.
            let row = order - (ORDERS - UNDELIVERED);
            self.new_order.row(out, part, row, Use::Read);
            self.new_order.row(out, part, row, Use::Write);
            self.orders.row(out, part, order, Use::Read);
            self.orders.row(out, part, order, Use::Write);
            let d = &self.districts[part as usize];
            self.order_line.range(out, part, d.lines_of(order), Use::Read);
            self.order_line.range(out, part, d.lines_of(order), Use::Write);
            self.customer.update(out, part * CUSTOMERS + u32::from(d.customer_of[order as usize]));
        }
    }

    fn run_stock_level(&mut self, out: &mut Vec<Reference>, warehouse: u32) {
        // Clause 2.8.1.1 gives each terminal a district for Stock-Level. Here there are no terminals, so
        // it is drawn.
        let part = warehouse * DISTRICTS + self.rng.random_range(0..DISTRICTS);
        self.district.read(out, part);
        let d = &self.districts[part as usize];
        let orders = d.customer_of.len() as u32;
        let (first, _) = d.lines_of(orders - 20);
        let lines = (first, d.lines());
        self.order_line.range(out, part, lines, Use::Read);
        // As many of the remembered items as the last 20 orders have lines.
        let latest = d.recent_items.len() - ((lines.1 - lines.0) as usize).min(d.recent_items.len());
        for item in d.recent_items.range(latest..) {
            self.stock.read(out, warehouse * ITEMS + item);
        }
    }
}

impl Source for Tpcc {
    fn batch(&mut self, out: &mut Vec<Reference>) -> bool {
        let warehouse = self.rng.random_range(0..self.warehouses);
        // Drawn, not dealt from a deck (clause 5.2.4.2): no figure of a replay depends on exact shares.
        match self.rng.random_range(0..100) {
            0..45 => self.run_new_order(out, warehouse),
            45..88 => self.run_payment(out, warehouse),
            88..92 => self.run_order_status(out, warehouse),
            92..96 => self.run_delivery(out, warehouse),
            _ => self.run_stock_level(out, warehouse),
        }
        true
    }

    fn new_orders(&self) -> u64 {
        self.new_orders
    }

    fn db_pages(&self) -> Option<u64> {
        Some(self.pages())
    }
}

impl District {
    /// 3,000 orders of 5 to 15 lines, one per customer in random order; the last 900 are undelivered.
    fn loaded(rng: &mut SmallRng) -> Self {
        let mut customers: Vec<u16> = (0..CUSTOMERS as u16).collect();
        for at in (1..customers.len()).rev() {
            customers.swap(at, rng.random_range(0..=at));
        }
        let mut d = Self {
            first_line: vec![0],
            customer_of: Vec::new(),
            last_order_of: vec![0; CUSTOMERS as usize],
            undelivered: ORDERS - UNDELIVERED,
            // Uniform, as clause 4.3.3.1 has the items of loaded orders. Stock-Level reads them until the
            // district has 20 orders of the run.
            recent_items: (0..RECENT).map(|_| rng.random_range(0..ITEMS)).collect(),
        };
        for customer in customers {
            d.order(u32::from(customer), rng.random_range(5..=15));
        }
        d
    }

    fn remember(&mut self, item: u32) {
        self.recent_items.pop_front();
        self.recent_items.push_back(item);
    }

    fn order(&mut self, customer: u32, lines: u32) {
        self.last_order_of[customer as usize] = self.customer_of.len() as u32;
        self.customer_of.push(customer as u16);
        self.first_line.push(self.lines() + lines);
    }

    fn lines(&self) -> u32 {
        self.first_line[self.first_line.len() - 1]
    }

    fn lines_of(&self, order: u32) -> (u32, u32) {
        let order = order as usize;
        (self.first_line[order], self.first_line[order + 1])
    }
}

/// A fixed pseudo-random number below 1,000.
fn scatter(name: u32, salt: u32) -> u32 {
    let mixed = (u64::from(name) << 32 | u64::from(salt)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed ^ mixed >> 31).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40) as u32 % 1000
}
