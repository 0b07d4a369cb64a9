//! The nine tables and two indexes: keys and rows as bytes.
//!
//! Every table is a tree in its own space. Keys are big-endian, so that byte order is key order. Rows are
//! fields of fixed length, little-endian, with texts padded with zeroes. Sizes of a row with its key, in
//! bytes (TPC-C clause 4.2.2 in brackets): warehouse 91 (89), district 96 (95), customer 662 (655), history
//! 50 (46, no key), new-order 8 (8), order 24 (24), order-line 54 (54), stock 306 (306), item 86 (82).

use std::ops::Range;

/// The tables and indexes, in the order of their spaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Table {
    Warehouse,
    District,
    Customer,
    History,
    NewOrder,
    Orders,
    OrderLine,
    Item,
    Stock,
    /// Customers of a district by last and first name; no value.
    CustomerByName,
    /// A customer's orders, newest first; no value.
    OrdersByCustomer,
}

impl Table {
    pub(crate) const ALL: [Self; 11] = [
        Self::Warehouse,
        Self::District,
        Self::Customer,
        Self::History,
        Self::NewOrder,
        Self::Orders,
        Self::OrderLine,
        Self::Item,
        Self::Stock,
        Self::CustomerByName,
        Self::OrdersByCustomer,
    ];

    /// The table with this number.
    pub(crate) fn from_u8(n: u8) -> Option<Self> {
        Self::ALL.get(usize::from(n)).copied()
    }

    /// The name of its space.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Warehouse => "warehouse",
            Self::District => "district",
            Self::Customer => "customer",
            Self::History => "history",
            Self::NewOrder => "new_order",
            Self::Orders => "orders",
            Self::OrderLine => "order_line",
            Self::Item => "item",
            Self::Stock => "stock",
            Self::CustomerByName => "customer_by_name",
            Self::OrdersByCustomer => "orders_by_customer",
        }
    }

    /// The lengths of a key and a value, in bytes.
    pub(crate) const fn lens(self) -> (usize, usize) {
        match self {
            Self::Warehouse => (2, warehouse::LEN),
            Self::District => (3, district::LEN),
            Self::Customer => (7, customer::LEN),
            Self::History => (4, history::LEN),
            Self::NewOrder => (7, 1),
            Self::Orders => (7, orders::LEN),
            Self::OrderLine => (8, order_line::LEN),
            Self::Item => (4, item::LEN),
            Self::Stock => (6, stock::LEN),
            Self::CustomerByName => (NAME_KEY_BYTES, 0),
            Self::OrdersByCustomer => (11, 0),
        }
    }
}

/// A field of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl Field {
    const fn range(self) -> Range<usize> {
        self.at..self.at + self.len
    }

    /// The field's bytes.
    pub(crate) fn of(self, row: &[u8]) -> &[u8] {
        &row[self.range()]
    }

    /// The field's bytes, mutable.
    pub(crate) fn of_mut(self, row: &mut [u8]) -> &mut [u8] {
        &mut row[self.range()]
    }

    /// The field's text, without the padding.
    pub(crate) fn text(self, row: &[u8]) -> &[u8] {
        let bytes = self.of(row);
        &bytes[..bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len())]
    }

    /// Writes a text, padded.
    pub(crate) fn set_text(self, row: &mut [u8], text: &[u8]) {
        let field = self.of_mut(row);
        let len = text.len().min(field.len());
        field[..len].copy_from_slice(&text[..len]);
        field[len..].fill(0);
    }

    /// The field's value as a signed number of up to eight bytes.
    pub(crate) fn int(self, row: &[u8]) -> i64 {
        let mut word = [0; 8];
        word[8 - self.len..].copy_from_slice(self.of(row));
        // An arithmetic shift extends the sign: balances are negative.
        i64::from_le_bytes(word) >> (8 * (8 - self.len))
    }

    /// Writes a signed number, which must fit.
    pub(crate) fn set_int(self, row: &mut [u8], n: i64) {
        self.of_mut(row).copy_from_slice(&n.to_le_bytes()[..self.len]);
        debug_assert_eq!(self.int(row), n);
    }

    /// Writes the low bytes of a count that may overflow its field.
    pub(crate) fn set_count(self, row: &mut [u8], n: i64) {
        // Warehouse numbers are written here, too: they are unsigned, and those above 32,767 would fail
        // the check of `set_int`.
        self.of_mut(row).copy_from_slice(&n.to_le_bytes()[..self.len]);
    }
}

macro_rules! row {
    ($(#[$doc:meta])* $table:ident { $($fields:tt)* }) => {
        $(#[$doc])*
        #[allow(dead_code, reason = "some columns only fill their place")]
        pub(crate) mod $table {
            use super::Field;
            row!(@ 0usize; $($fields)*);
        }
    };
    (@ $at:expr; $name:ident $len:literal, $($rest:tt)*) => {
        pub(crate) const $name: Field = Field { at: $at, len: $len };
        row!(@ $at + $len; $($rest)*);
    };
    (@ $at:expr; pad $len:literal) => {
        pub(crate) const LEN: usize = $at + $len;
    };
}

row! {
    /// Money in cents (6 bytes for totals, 4 for amounts), taxes and discounts in 1/10,000.
    warehouse {
        NAME 10, STREET_1 20, STREET_2 20, CITY 20, STATE 2, ZIP 9, TAX 2, YTD 6, pad 0
    }
}
row! {
    district {
        NAME 10, STREET_1 20, STREET_2 20, CITY 20, STATE 2, ZIP 9, TAX 2, YTD 6, NEXT_O_ID 4, pad 0
    }
}
row! {
    customer {
        FIRST 16, MIDDLE 2, LAST 16, STREET_1 20, STREET_2 20, CITY 20, STATE 2, ZIP 9, PHONE 16, SINCE 8,
        CREDIT 2, CREDIT_LIM 6, DISCOUNT 2, BALANCE 6, YTD_PAYMENT 6, PAYMENT_CNT 2, DELIVERY_CNT 2,
        DATA 500, pad 0
    }
}
row! {
    history { C_ID 4, C_D_ID 1, C_W_ID 2, D_ID 1, W_ID 2, DATE 8, AMOUNT 4, DATA 24, pad 0 }
}
row! {
    /// A carrier of 0 means none yet.
    // The padding here and below brings a row and its key to the bytes of clause 4.2.2, where the columns
    // need fewer.
    orders { C_ID 4, ENTRY_D 8, CARRIER_ID 1, OL_CNT 1, ALL_LOCAL 1, pad 2 }
}
row! {
    /// A delivery date of 0 means none yet.
    order_line { I_ID 4, SUPPLY_W_ID 2, DELIVERY_D 8, QUANTITY 1, AMOUNT 4, DIST_INFO 24, pad 3 }
}
row! {
    item { IM_ID 4, NAME 24, PRICE 4, DATA 50, pad 0 }
}
row! {
    /// `DIST_01` to `DIST_10` are contiguous in `DIST`.
    stock { QUANTITY 2, DIST 240, YTD 4, ORDER_CNT 2, REMOTE_CNT 2, DATA 50, pad 0 }
}

/// A new-order row has only its key.
// A byte that nothing reads brings the key of 7 to the 8 bytes of clause 4.2.2.
pub(crate) const NEW_ORDER_ROW: [u8; 1] = [0];

/// The length of a key of [`Table::CustomerByName`].
pub(crate) const NAME_KEY_BYTES: usize = 39;

fn concat<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut key = [0; N];
    let mut at = 0;
    for part in parts {
        key[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    debug_assert_eq!(at, N);
    key
}

pub(crate) fn warehouse_key(w: u16) -> [u8; 2] {
    w.to_be_bytes()
}

pub(crate) fn district_key(w: u16, d: u8) -> [u8; 3] {
    concat(&[&w.to_be_bytes(), &[d]])
}

pub(crate) fn customer_key(w: u16, d: u8, c: u32) -> [u8; 7] {
    concat(&[&w.to_be_bytes(), &[d], &c.to_be_bytes()])
}

pub(crate) fn history_key(id: u32) -> [u8; 4] {
    id.to_be_bytes()
}

/// The key of an order, and of its new-order row.
pub(crate) fn order_key(w: u16, d: u8, o: u32) -> [u8; 7] {
    customer_key(w, d, o)
}

pub(crate) fn order_line_key(w: u16, d: u8, o: u32, number: u8) -> [u8; 8] {
    concat(&[&w.to_be_bytes(), &[d], &o.to_be_bytes(), &[number]])
}

pub(crate) fn item_key(i: u32) -> [u8; 4] {
    i.to_be_bytes()
}

pub(crate) fn stock_key(w: u16, i: u32) -> [u8; 6] {
    concat(&[&w.to_be_bytes(), &i.to_be_bytes()])
}

/// Sorts a district's customers by last name, then by first name.
pub(crate) fn name_key(w: u16, d: u8, last: &[u8], first: &[u8], c: u32) -> [u8; NAME_KEY_BYTES] {
    let mut names = [0; 32];
    names[..last.len()].copy_from_slice(last);
    names[16..16 + first.len()].copy_from_slice(first);
    // The customer's number makes the key unique: two customers may have both names in common.
    concat(&[&w.to_be_bytes(), &[d], &names, &c.to_be_bytes()])
}

/// Sorts a customer's orders from the newest to the oldest.
pub(crate) fn customer_order_key(w: u16, d: u8, c: u32, o: u32) -> [u8; 11] {
    concat(&[&w.to_be_bytes(), &[d], &c.to_be_bytes(), &(!o).to_be_bytes()])
}

/// The order's number in a key of [`Table::Orders`], [`Table::NewOrder`] or [`Table::OrderLine`].
pub(crate) fn order_in(key: &[u8]) -> u32 {
    u32::from_be_bytes([key[3], key[4], key[5], key[6]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_specified_size_or_little_more() {
        let specified = [89, 95, 655, 46, 8, 24, 54, 82, 306];
        for (table, bytes) in Table::ALL.into_iter().zip(specified) {
            let (key, val) = table.lens();
            assert!((bytes..=bytes + 8).contains(&(key + val)), "{}: {}", table.name(), key + val);
        }
    }

    #[test]
    fn tables_are_found_by_their_number() {
        for (n, table) in Table::ALL.into_iter().enumerate() {
            assert_eq!(table as usize, n);
            assert_eq!(Table::from_u8(n as u8), Some(table));
        }
        assert_eq!(Table::from_u8(11), None);
    }

    #[test]
    fn fields_keep_their_values_and_do_not_overlap() {
        let mut row = [0xEE; customer::LEN];
        for n in [-1_000, 0, 5, (1 << 47) - 1, -(1 << 47)] {
            customer::BALANCE.set_int(&mut row, n);
            assert_eq!(customer::BALANCE.int(&row), n);
        }
        customer::PAYMENT_CNT.set_count(&mut row, 70_000);
        assert_eq!(customer::PAYMENT_CNT.int(&row) & 0xFFFF, 70_000 & 0xFFFF);
        customer::LAST.set_text(&mut row, b"BARBARBAR");
        assert_eq!(customer::LAST.text(&row), b"BARBARBAR");
        assert_eq!(customer::LAST.of(&row)[9..], [0; 7]);
        assert!(customer::STREET_1.of(&row).iter().all(|&b| b == 0xEE));
        assert!(customer::DISCOUNT.of(&row).iter().all(|&b| b == 0xEE));
        assert_eq!(customer::DATA.range().end, customer::LEN);
    }

    #[test]
    fn keys_sort_as_their_numbers_do() {
        assert!(order_line_key(1, 2, 255, 15) < order_line_key(1, 2, 256, 1));
        assert!(customer_key(255, 10, 3_000) < customer_key(256, 1, 1));
        assert!(customer_order_key(1, 1, 7, 9) < customer_order_key(1, 1, 7, 8));
        assert!(name_key(1, 1, b"BAR", b"B", 1) < name_key(1, 1, b"BARR", b"A", 1));
        assert!(name_key(1, 1, b"BAR", b"A", 9) < name_key(1, 1, b"BAR", b"B", 1));
        assert_eq!(order_in(&order_key(3, 4, 77)), 77);
        assert_eq!(order_in(&order_line_key(3, 4, 78, 2)), 78);
    }
}
