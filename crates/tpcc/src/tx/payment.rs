//! Payment, clause 2.5.

use super::{Outcome, Terminal};
use crate::database::engine::Tx;
use crate::database::error::DbError;
use crate::database::locks::RowKey;
use crate::database::schema::{self, Table, customer, district, history, warehouse};

/// The parameters of a payment.
struct Payment {
    w: u16,
    d: u8,
    c_w: u16,
    c_d: u8,
    c: u32,
    amount: i64,
}

impl Terminal {
    pub(super) async fn payment(&mut self) -> Result<Outcome, DbError> {
        let (w, d) = (self.w, self.any_district());
        // Clause 2.5.1.2: 15 of 100 customers pay at a warehouse other than their own.
        let remote = self.random.percent(15) && self.database.catalog.scale.warehouses > 1;
        let (c_w, c_d) = if remote { (self.other_warehouse(), self.any_district()) } else { (w, d) };
        let chosen = self.chosen_customer();
        let amount = self.random.between(100, 500_000).into();
        let mut tx = self.database.begin(&mut self.operations).await?;
        // Names never change, so the lookup by name needs no lock.
        let c = chosen.find(&tx, c_w, c_d).await?;
        pay(&mut tx, &Payment { w, d, c_w, c_d, c, amount }).await?;
        tx.commit().await?;
        Ok(Outcome::Committed)
    }
}

async fn pay(tx: &mut Tx<'_>, payment: &Payment) -> Result<(), DbError> {
    let &Payment { w, d, c_w, c_d, c, amount } = payment;
    // All transactions lock rows in the order of `RowKey`, so that no two wait for each other.
    tx.lock(RowKey::warehouse(w)).await?;
    tx.lock(RowKey::district(w, d)).await?;
    tx.lock(RowKey::customer(c_w, c_d, c)).await?;

    let key = schema::warehouse_key(w);
    let mut home = [0; warehouse::LEN];
    tx.read(Table::Warehouse, &key, &mut home).await?;
    let ytd = warehouse::YTD.int(&home) + amount;
    warehouse::YTD.set_int(&mut home, ytd);
    // The three columns are adjacent, so one patch covers them.
    tx.patch(Table::Warehouse, &key, warehouse::YTD.at, warehouse::YTD.of(&home));

    let key = schema::district_key(w, d);
    let mut place = [0; district::LEN];
    tx.read(Table::District, &key, &mut place).await?;
    let ytd = district::YTD.int(&place) + amount;
    district::YTD.set_int(&mut place, ytd);
    tx.patch(Table::District, &key, district::YTD.at, district::YTD.of(&place));

    debit_customer(tx, payment).await?;

    let mut row = [0; history::LEN];
    history::C_ID.set_int(&mut row, c.into());
    history::C_D_ID.set_count(&mut row, c_d.into());
    history::C_W_ID.set_count(&mut row, c_w.into());
    history::D_ID.set_count(&mut row, d.into());
    history::W_ID.set_count(&mut row, w.into());
    history::DATE.set_int(&mut row, tx.now_ms());
    history::AMOUNT.set_int(&mut row, amount);
    let (home, place) = (warehouse::NAME.text(&home), district::NAME.text(&place));
    let data = history::DATA.of_mut(&mut row);
    data[..home.len()].copy_from_slice(home);
    // Clause 2.5.2.2: the names of warehouse and district, with four spaces between.
    data[home.len()..][..4].fill(b' ');
    data[home.len() + 4..][..place.len()].copy_from_slice(place);
    let key = schema::history_key(tx.next_history());
    tx.put(Table::History, &key, &row);
    Ok(())
}

async fn debit_customer(tx: &mut Tx<'_>, payment: &Payment) -> Result<(), DbError> {
    let &Payment { w, d, c_w, c_d, c, amount } = payment;
    let key = schema::customer_key(c_w, c_d, c);
    let mut row = [0; customer::LEN];
    tx.read(Table::Customer, &key, &mut row).await?;
    let balance = customer::BALANCE.int(&row) - amount;
    customer::BALANCE.set_int(&mut row, balance);
    let paid = customer::YTD_PAYMENT.int(&row) + amount;
    customer::YTD_PAYMENT.set_int(&mut row, paid);
    let count = customer::PAYMENT_CNT.int(&row) + 1;
    customer::PAYMENT_CNT.set_count(&mut row, count);
    tx.patch(
        Table::Customer,
        &key,
        customer::BALANCE.at,
        &row[customer::BALANCE.at..customer::DELIVERY_CNT.at],
    );
    if customer::CREDIT.of(&row) == b"BC" {
        // The payment is prepended to the customer's data, which loses as many bytes at its end.
        let note = format!("{c} {c_d} {c_w} {d} {w} {}.{:02}|", amount / 100, amount % 100);
        let data = customer::DATA.of_mut(&mut row);
        data.copy_within(..data.len() - note.len(), note.len());
        data[..note.len()].copy_from_slice(note.as_bytes());
        tx.patch(Table::Customer, &key, customer::DATA.at, customer::DATA.of(&row));
    }
    Ok(())
}
