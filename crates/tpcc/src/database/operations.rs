//! A transaction's changes as bytes: the body of its commit record.
//!
//! Each operation has a table (1), a tag (1: put, 2: patch, 3: delete) and a key; a put adds the value, a
//! patch adds offset (2), length (2) and bytes. The table determines the lengths of keys and values.

use crate::database::schema::Table;

const PUT: u8 = 1;
const PATCH: u8 = 2;
const DELETE: u8 = 3;

/// Changes in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct Operations(Vec<u8>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation<'b> {
    Put { table: Table, key: &'b [u8], val: &'b [u8] },
    Patch { table: Table, key: &'b [u8], at: usize, bytes: &'b [u8] },
    Delete { table: Table, key: &'b [u8] },
}

impl Operations {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn put(&mut self, table: Table, key: &[u8], val: &[u8]) {
        debug_assert_eq!((key.len(), val.len()), table.lens());
        self.begin(table, PUT, key);
        self.0.extend_from_slice(val);
    }

    pub(crate) fn patch(&mut self, table: Table, key: &[u8], at: usize, bytes: &[u8]) {
        debug_assert!(at + bytes.len() <= table.lens().1);
        self.begin(table, PATCH, key);
        self.0.extend_from_slice(&(at as u16).to_le_bytes());
        self.0.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn delete(&mut self, table: Table, key: &[u8]) {
        self.begin(table, DELETE, key);
    }

    fn begin(&mut self, table: Table, tag: u8, key: &[u8]) {
        self.0.extend_from_slice(&[table as u8, tag]);
        self.0.extend_from_slice(key);
    }

    /// Applies the changes of one row to the table's version (`found` says whether the table holds it).
    /// Returns whether the row exists.
    pub(crate) fn overlay(&self, table: Table, key: &[u8], row: &mut [u8], found: bool) -> bool {
        // The scan is short: a New-Order, the longest transaction, has at most some fifty operations.
        let mut exists = found;
        for operation in Self::read(&self.0).flatten() {
            match operation {
                Operation::Put { table: t, key: k, val } if t == table && k == key => {
                    row.copy_from_slice(val);
                    exists = true;
                }
                Operation::Patch { table: t, key: k, at, bytes } if t == table && k == key => {
                    row[at..at + bytes.len()].copy_from_slice(bytes);
                }
                Operation::Delete { table: t, key: k } if t == table && k == key => exists = false,
                _ => {}
            }
        }
        exists
    }

    /// The operations in `bytes`; ends with a `None` where they are malformed.
    pub(crate) fn read(bytes: &[u8]) -> impl Iterator<Item = Option<Operation<'_>>> {
        let mut rest = Some(bytes);
        std::iter::from_fn(move || {
            let bytes = rest.filter(|bytes| !bytes.is_empty())?;
            let parsed = parse(bytes);
            // Lengths follow from an operation's head: behind a malformed one no boundary is known.
            rest = parsed.map(|(_, rest)| rest);
            Some(parsed.map(|(operation, _)| operation))
        })
    }
}

fn parse(bytes: &[u8]) -> Option<(Operation<'_>, &[u8])> {
    let (head, rest) = bytes.split_at_checked(2)?;
    let table = Table::from_u8(head[0])?;
    let (key_len, val_len) = table.lens();
    let (key, rest) = rest.split_at_checked(key_len)?;
    match head[1] {
        PUT => {
            let (val, rest) = rest.split_at_checked(val_len)?;
            Some((Operation::Put { table, key, val }, rest))
        }
        PATCH => {
            let (args, rest) = rest.split_at_checked(4)?;
            let at = usize::from(u16::from_le_bytes([args[0], args[1]]));
            let len = usize::from(u16::from_le_bytes([args[2], args[3]]));
            // The tree would accept a patch behind the columns, where a row has its unused bytes.
            let (bytes, rest) = rest.split_at_checked(len).filter(|_| at + len <= val_len)?;
            Some((Operation::Patch { table, key, at, bytes }, rest))
        }
        DELETE => Some((Operation::Delete { table, key }, rest)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::schema::{NEW_ORDER_ROW, district, district_key, order_key};

    #[test]
    fn operations_read_back_and_every_cut_is_noticed() {
        let mut operations = Operations::default();
        operations.put(Table::NewOrder, &order_key(1, 2, 3), &NEW_ORDER_ROW);
        operations.patch(Table::District, &district_key(1, 2), district::NEXT_O_ID.at, &[4, 0, 0, 0]);
        operations.delete(Table::NewOrder, &order_key(1, 2, 1));
        let all: Vec<_> = Operations::read(operations.bytes()).collect();
        assert_eq!(all.len(), 3);
        assert_eq!(all[2], Some(Operation::Delete { table: Table::NewOrder, key: &order_key(1, 2, 1) }));
        assert_eq!(operations.bytes().len(), 2 + 7 + 1 + 2 + 3 + 4 + 4 + 2 + 7);
        for cut in 0..operations.bytes().len() {
            let sound = Operations::read(&operations.bytes()[..cut]).all(|op| op.is_some());
            assert_eq!(sound, cut == 0 || cut == 10 || cut == 23, "cut at {cut}");
        }
    }

    #[test]
    fn a_transaction_sees_its_own_changes() {
        let key = district_key(1, 1);
        let mut operations = Operations::default();
        let mut row = [0; district::LEN];
        assert!(!operations.overlay(Table::District, &key, &mut row, false));
        operations.patch(Table::District, &key, 0, b"abc");
        operations.patch(Table::District, &district_key(1, 2), 0, b"xyz");
        assert!(operations.overlay(Table::District, &key, &mut row, true));
        assert_eq!(&row[..3], b"abc");
        operations.delete(Table::District, &key);
        assert!(!operations.overlay(Table::District, &key, &mut row, true));
        operations.put(Table::District, &key, &[7; district::LEN]);
        assert!(operations.overlay(Table::District, &key, &mut row, false));
        assert_eq!(row, [7; district::LEN]);
    }
}
