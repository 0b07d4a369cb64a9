//! New-Order, clause 2.4.

use super::{Outcome, Terminal};
use crate::database::engine::Tx;
use crate::database::error::DbError;
use crate::database::locks::RowKey;
use crate::database::schema::{self, NEW_ORDER_ROW, Table};
use crate::database::schema::{customer, district, item, order_line, orders, stock, warehouse};

/// An order-line as ordered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Line {
    supply_w: u16,
    item: u32,
    number: u8,
    quantity: u8,
}

/// An order as entered.
struct Order {
    w: u16,
    d: u8,
    c: u32,
    lines: Vec<Line>,
}

impl Terminal {
    pub(super) async fn new_order(&mut self) -> Result<Outcome, DbError> {
        let order = self.enter_order();
        let mut tx = self.database.begin(&mut self.operations).await?;
        if fill(&mut tx, &order).await? {
            tx.commit().await?;
            Ok(Outcome::Committed)
        } else {
            Ok(Outcome::RolledBack)
        }
    }

    fn enter_order(&mut self) -> Order {
        let (w, d, c) = (self.w, self.any_district(), self.any_customer());
        let count = self.random.between(5, 15) as u8;
        // Clause 2.4.1.4: one order in a hundred is rolled back for an item that does not exist.
        let unused_item = self.random.percent(1);
        let items = self.database.catalog.scale.items;
        let mut lines: Vec<Line> = (1..=count)
            .map(|number| Line {
                supply_w: if self.random.percent(1) { self.other_warehouse() } else { w },
                item: self.random.nurand(8_191, self.constants.item, 1, items),
                number,
                quantity: self.random.between(1, 10) as u8,
            })
            .collect();
        // In the order in which stock rows are locked; the item that does not exist is found last.
        lines.sort_unstable();
        if let Some(last) = lines.last_mut().filter(|_| unused_item) {
            last.item = items + 1;
        }
        Order { w, d, c, lines }
    }
}

/// Collects the changes; false when an item does not exist.
async fn fill(tx: &mut Tx<'_>, order: &Order) -> Result<bool, DbError> {
    let &Order { w, d, c, ref lines } = order;
    let mut home = [0; warehouse::LEN];
    tx.read(Table::Warehouse, &schema::warehouse_key(w), &mut home).await?;
    let mut buyer = [0; customer::LEN];
    tx.read(Table::Customer, &schema::customer_key(w, d, c), &mut buyer).await?;

    // Only the district's next number changes: taxes and the discount are read without a lock.
    tx.lock(RowKey::district(w, d)).await?;
    let key = schema::district_key(w, d);
    let mut place = [0; district::LEN];
    tx.read(Table::District, &key, &mut place).await?;
    let o = district::NEXT_O_ID.int(&place) as u32;

    let mut total = 0;
    for line in lines {
        match order_one(tx, order, o, line).await? {
            Some(amount) => total += amount,
            // Nothing has to be undone: the changes so far are only collected.
            None => return Ok(false),
        }
    }
    let taxed = 10_000 + warehouse::TAX.int(&home) + district::TAX.int(&place);
    let discounted = 10_000 - customer::DISCOUNT.int(&buyer);
    // A terminal would display the total (clause 2.4.2.2). There is none, but its computation is part of the
    // work.
    std::hint::black_box(total * discounted / 10_000 * taxed / 10_000);

    let mut row = [0; orders::LEN];
    orders::C_ID.set_int(&mut row, c.into());
    orders::ENTRY_D.set_int(&mut row, tx.now_ms());
    orders::OL_CNT.set_int(&mut row, lines.len() as i64);
    orders::ALL_LOCAL.set_int(&mut row, i64::from(lines.iter().all(|line| line.supply_w == w)));
    tx.put(Table::Orders, &schema::order_key(w, d, o), &row);
    tx.put(Table::NewOrder, &schema::order_key(w, d, o), &NEW_ORDER_ROW);
    tx.put(Table::OrdersByCustomer, &schema::customer_order_key(w, d, c, o), &[]);
    district::NEXT_O_ID.set_int(&mut place, i64::from(o) + 1);
    tx.patch(Table::District, &key, district::NEXT_O_ID.at, district::NEXT_O_ID.of(&place));
    Ok(true)
}

/// Processes an order-line: reads the item, takes it from stock, writes the line; returns its amount.
async fn order_one(tx: &mut Tx<'_>, order: &Order, o: u32, line: &Line) -> Result<Option<i64>, DbError> {
    let mut thing = [0; item::LEN];
    if !tx.find(Table::Item, &schema::item_key(line.item), &mut thing).await? {
        return Ok(None);
    }
    tx.lock(RowKey::stock(line.supply_w, line.item)).await?;
    let key = schema::stock_key(line.supply_w, line.item);
    let mut row = [0; stock::LEN];
    tx.read(Table::Stock, &key, &mut row).await?;

    let quantity = i64::from(line.quantity);
    let left = stock::QUANTITY.int(&row) - quantity;
    // Clause 2.4.2.2: stock that would fall below ten is replenished by 91.
    stock::QUANTITY.set_int(&mut row, if left >= 10 { left } else { left + 91 });
    let ytd = stock::YTD.int(&row) + quantity;
    stock::YTD.set_count(&mut row, ytd);
    let orders = stock::ORDER_CNT.int(&row) + 1;
    stock::ORDER_CNT.set_count(&mut row, orders);
    let remote = stock::REMOTE_CNT.int(&row) + i64::from(line.supply_w != order.w);
    stock::REMOTE_CNT.set_count(&mut row, remote);
    // Two patches: the district texts between these columns are 240 bytes that never change and need no
    // log.
    tx.patch(Table::Stock, &key, stock::QUANTITY.at, stock::QUANTITY.of(&row));
    tx.patch(Table::Stock, &key, stock::YTD.at, &row[stock::YTD.at..stock::DATA.at]);

    let amount = quantity * item::PRICE.int(&thing);
    let mut entry = [0; order_line::LEN];
    order_line::I_ID.set_int(&mut entry, line.item.into());
    order_line::SUPPLY_W_ID.set_count(&mut entry, line.supply_w.into());
    order_line::QUANTITY.set_int(&mut entry, quantity);
    order_line::AMOUNT.set_int(&mut entry, amount);
    let dist = &stock::DIST.of(&row)[usize::from(order.d - 1) * 24..][..24];
    order_line::DIST_INFO.set_text(&mut entry, dist);
    tx.put(Table::OrderLine, &schema::order_line_key(order.w, order.d, o, line.number), &entry);
    Ok(Some(amount))
}
