//! The initial population of TPC-C clause 4.3.3: loaded through the store, in key order, without the log.

use crate::database::catalog::{Catalog, Scale};
use crate::database::error::DbError;
use crate::database::random::{Random, last_name};
use crate::database::schema::{self, NEW_ORDER_ROW, Table};
use crate::database::schema::{customer, district, history, item, order_line, orders, stock, warehouse};
use pagetier::{PageSize, PageStore};
use pagetier_btree::{Appender, Tree, full_pages};
use std::sync::Arc;

/// Districts per warehouse.
pub(crate) const DISTRICTS: u8 = 10;

/// The number of steps that [`load`] reports to its `progress` for `warehouses`.
pub(crate) fn steps(warehouses: u16) -> u64 {
    1 + u64::from(warehouses) * (1 + u64::from(DISTRICTS))
}

/// The size of a loaded database, to within a thousandth.
pub(crate) fn estimate_bytes(scale: Scale, page_size: PageSize) -> u64 {
    let districts = u64::from(scale.warehouses) * u64::from(DISTRICTS);
    let customers = districts * u64::from(scale.customers);
    let pages = Table::ALL.map(|table| {
        let rows = match table {
            Table::Warehouse => scale.warehouses.into(),
            Table::District => districts,
            Table::NewOrder => customers / 10 * 3,
            Table::OrderLine => customers * 10,
            Table::Item => scale.items.into(),
            Table::Stock => u64::from(scale.warehouses) * u64::from(scale.items),
            // Clause 4.3.3.1: each customer has one row of history, one order, an entry in each index.
            _ => customers,
        };
        let (key, val) = table.lens();
        full_pages(rows, key, val + scale.unused_bytes(), page_size)
    });
    (pages.iter().sum::<u64>() + 1) * page_size.bytes() as u64
}

/// Loads the database into an empty store and marks it complete.
pub(crate) async fn load(
    store: &Arc<PageStore>,
    scale: Scale,
    seed: u64,
    now_ms: i64,
    mut progress: impl FnMut(),
) -> Result<Catalog, DbError> {
    if let Some(space) = store.spaces().list().first() {
        return Err(DbError::NotOurs(format!("it has a space called {:?}", space.name)));
    }
    let mut trees = Vec::new();
    for table in Table::ALL {
        let space = store.spaces().create(table.name()).await?;
        // Without a log: an interrupted load is repeated, not recovered.
        trees.push(Tree::create(Arc::clone(store), None, space, 0).await?);
    }
    // The terminals have the streams from 1 on.
    let mut random = Random::new(seed, 0);
    let catalog = Catalog { scale, seed, constants: random.load_constants() };
    // The block ends before the sync: an appender keeps its last leaf latched, and a sync does not cover
    // a change whose guard still lives.
    {
        let appenders = trees.iter().map(Appender::new).collect();
        let mut loader =
            Loader { appenders, random, scale, c_last: catalog.constants.last, now_ms, history: 0 };
        loader.items().await?;
        progress();
        for w in 1..=scale.warehouses {
            loader.warehouse(w).await?;
            progress();
            for d in 1..=DISTRICTS {
                loader.district(w, d).await?;
                progress();
            }
        }
    }
    drop(trees);
    // The rows are durable before the catalog: after a crash it must not vouch for rows that were lost.
    store.sync().await?;
    // An interrupted load has no catalogue, and is not opened.
    catalog.write(store).await?;
    Ok(catalog)
}

struct Loader<'t> {
    appenders: Vec<Appender<'t>>,
    random: Random,
    scale: Scale,
    c_last: u32,
    now_ms: i64,
    history: u32,
}

impl Loader<'_> {
    async fn push(&mut self, table: Table, key: &[u8], row: &[u8]) -> Result<(), DbError> {
        Ok(self.appenders[table as usize].push(key, &self.scale.stored(row)).await?)
    }

    async fn items(&mut self) -> Result<(), DbError> {
        for i in 1..=self.scale.items {
            let mut row = [0; item::LEN];
            item::IM_ID.set_int(&mut row, self.random.between(1, 10_000).into());
            self.random.some_letters(item::NAME.of_mut(&mut row), 14, 24);
            item::PRICE.set_int(&mut row, self.random.between(100, 10_000).into());
            self.data(item::DATA.of_mut(&mut row));
            self.push(Table::Item, &schema::item_key(i), &row).await?;
        }
        Ok(())
    }

    /// Loads a warehouse and its stock.
    async fn warehouse(&mut self, w: u16) -> Result<(), DbError> {
        let mut row = [0; warehouse::LEN];
        self.random.some_letters(warehouse::NAME.of_mut(&mut row), 6, 10);
        let address = warehouse::STREET_1.at..warehouse::TAX.at;
        self.address(&mut row[address]);
        warehouse::TAX.set_int(&mut row, self.random.between(0, 2_000).into());
        // In cents: the sum of ten districts, as consistency condition 1 wants it.
        warehouse::YTD.set_int(&mut row, 30_000_000);
        self.push(Table::Warehouse, &schema::warehouse_key(w), &row).await?;
        for i in 1..=self.scale.items {
            let mut row = [0; stock::LEN];
            stock::QUANTITY.set_int(&mut row, self.random.between(10, 100).into());
            self.random.letters(stock::DIST.of_mut(&mut row));
            self.data(stock::DATA.of_mut(&mut row));
            self.push(Table::Stock, &schema::stock_key(w, i), &row).await?;
        }
        Ok(())
    }

    /// Loads a district, its customers, their history, and its orders.
    async fn district(&mut self, w: u16, d: u8) -> Result<(), DbError> {
        let mut row = [0; district::LEN];
        self.random.some_letters(district::NAME.of_mut(&mut row), 6, 10);
        let address = district::STREET_1.at..district::TAX.at;
        self.address(&mut row[address]);
        district::TAX.set_int(&mut row, self.random.between(0, 2_000).into());
        district::YTD.set_int(&mut row, 3_000_000);
        // Clause 4.3.3.1 loads one order per customer, so orders have the customers' numbers.
        district::NEXT_O_ID.set_int(&mut row, (self.scale.customers + 1).into());
        self.push(Table::District, &schema::district_key(w, d), &row).await?;
        self.customers(w, d).await?;
        self.orders(w, d).await
    }

    async fn customers(&mut self, w: u16, d: u8) -> Result<(), DbError> {
        let mut names = Vec::with_capacity(self.scale.customers as usize);
        for c in 1..=self.scale.customers {
            let row = self.customer(c);
            let (last, first) = (customer::LAST.text(&row), customer::FIRST.text(&row));
            names.push(schema::name_key(w, d, last, first, c));
            self.push(Table::Customer, &schema::customer_key(w, d, c), &row).await?;
            self.history_of(w, d, c).await?;
        }
        // An appender takes ascending keys. Those of this index begin with the district, so sorting one
        // district's is enough.
        names.sort_unstable();
        for key in &names {
            self.push(Table::CustomerByName, key, &[]).await?;
        }
        Ok(())
    }

    fn customer(&mut self, c: u32) -> [u8; customer::LEN] {
        let mut row = [0; customer::LEN];
        let random = &mut self.random;
        let names = self.scale.names();
        // The first customers have each name once, so that a lookup by name always finds a customer.
        let name = if c <= names { c - 1 } else { random.nurand(255, self.c_last, 0, 999) % names };
        customer::LAST.set_text(&mut row, &last_name(name));
        customer::MIDDLE.set_text(&mut row, b"OE");
        random.some_letters(customer::FIRST.of_mut(&mut row), 8, 16);
        random.digits(customer::PHONE.of_mut(&mut row));
        customer::SINCE.set_int(&mut row, self.now_ms);
        customer::CREDIT.set_text(&mut row, if random.percent(10) { b"BC" } else { b"GC" });
        customer::CREDIT_LIM.set_int(&mut row, 5_000_000);
        customer::DISCOUNT.set_int(&mut row, random.between(0, 5_000).into());
        customer::BALANCE.set_int(&mut row, -1_000);
        customer::YTD_PAYMENT.set_int(&mut row, 1_000);
        customer::PAYMENT_CNT.set_int(&mut row, 1);
        random.some_letters(customer::DATA.of_mut(&mut row), 300, 500);
        let address = customer::STREET_1.at..customer::PHONE.at;
        self.address(&mut row[address]);
        row
    }

    async fn history_of(&mut self, w: u16, d: u8, c: u32) -> Result<(), DbError> {
        let mut row = [0; history::LEN];
        history::C_ID.set_int(&mut row, c.into());
        history::C_D_ID.set_count(&mut row, d.into());
        history::C_W_ID.set_count(&mut row, w.into());
        history::D_ID.set_count(&mut row, d.into());
        history::W_ID.set_count(&mut row, w.into());
        history::DATE.set_int(&mut row, self.now_ms);
        history::AMOUNT.set_int(&mut row, 1_000);
        self.random.some_letters(history::DATA.of_mut(&mut row), 12, 24);
        self.history += 1;
        self.push(Table::History, &schema::history_key(self.history), &row).await
    }

    async fn orders(&mut self, w: u16, d: u8) -> Result<(), DbError> {
        let mut customers: Vec<u32> = (1..=self.scale.customers).collect();
        // A permutation: each customer has one initial order.
        self.random.shuffle(&mut customers);
        let mut by_customer = Vec::with_capacity(customers.len());
        for (o, c) in (1..).zip(customers) {
            // 2,100 of 3,000 are delivered.
            let delivered = o <= self.scale.customers / 10 * 7;
            let lines = self.random.between(5, 15) as u8;
            let mut row = [0; orders::LEN];
            orders::C_ID.set_int(&mut row, c.into());
            orders::ENTRY_D.set_int(&mut row, self.now_ms);
            let carrier = if delivered { self.random.between(1, 10) } else { 0 };
            orders::CARRIER_ID.set_int(&mut row, carrier.into());
            orders::OL_CNT.set_int(&mut row, lines.into());
            orders::ALL_LOCAL.set_int(&mut row, 1);
            self.push(Table::Orders, &schema::order_key(w, d, o), &row).await?;
            by_customer.push(schema::customer_order_key(w, d, c, o));
            for number in 1..=lines {
                self.order_line(w, d, o, number, delivered).await?;
            }
            if !delivered {
                self.push(Table::NewOrder, &schema::order_key(w, d, o), &NEW_ORDER_ROW).await?;
            }
        }
        by_customer.sort_unstable();
        for key in &by_customer {
            self.push(Table::OrdersByCustomer, key, &[]).await?;
        }
        Ok(())
    }

    async fn order_line(
        &mut self,
        w: u16,
        d: u8,
        o: u32,
        number: u8,
        delivered: bool,
    ) -> Result<(), DbError> {
        let mut row = [0; order_line::LEN];
        order_line::I_ID.set_int(&mut row, self.random.between(1, self.scale.items).into());
        order_line::SUPPLY_W_ID.set_count(&mut row, w.into());
        order_line::DELIVERY_D.set_int(&mut row, if delivered { self.now_ms } else { 0 });
        order_line::QUANTITY.set_int(&mut row, 5);
        // A delivered line costs nothing, because the loaded balance of -10.00 counts the first payment
        // alone.
        let amount = if delivered { 0 } else { self.random.between(1, 999_999) };
        order_line::AMOUNT.set_int(&mut row, amount.into());
        self.random.letters(order_line::DIST_INFO.of_mut(&mut row));
        self.push(Table::OrderLine, &schema::order_line_key(w, d, o, number), &row).await
    }

    /// 26 to 50 letters, with "ORIGINAL" among them in one of ten cases.
    fn data(&mut self, data: &mut [u8]) {
        let len = self.random.between(26, 50) as usize;
        self.random.letters(&mut data[..len]);
        if self.random.percent(10) {
            let at = self.random.between(0, len as u32 - 8) as usize;
            data[at..at + 8].copy_from_slice(b"ORIGINAL");
        }
    }

    /// Streets, city, state and zip, in the order in which three tables have them.
    fn address(&mut self, fields: &mut [u8]) {
        let (streets, rest) = fields.split_at_mut(40);
        let (city, rest) = rest.split_at_mut(20);
        let (state, zip) = rest.split_at_mut(2);
        for text in streets.chunks_mut(20).chain([city]) {
            self.random.some_letters(text, 10, 20);
        }
        self.random.letters(state);
        self.random.digits(&mut zip[..4]);
        // Clause 4.3.2.7: four random digits, then this constant.
        zip[4..9].copy_from_slice(b"11111");
    }
}
