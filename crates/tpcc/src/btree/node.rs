//! The byte layout of a node.
//!
//! ```text
//! 0   1  kind: 1 leaf, 2 inner, 3 meta, 4 free
//! 1   1  level: 0 for leaves
//! 2   2  number of entries
//! 4   2  one past the slot of the last insert: the next one here continues an ascending run
//! 6   2  zero
//! 8   4  leaf: its right neighbour's page; meta, free: the next free page; u32::MAX for none
//! 12  4  zero
//! 16     keys, back to back, room for the capacity; then values with their overhead, or children's page numbers (4 each)
//! ```
//! An entry of an inner node is a child and the lowest key that it may contain; the lowest key of the
//! leftmost node of a level is all zeroes. Integers are little-endian.

use pagetier_wal::MiniTx;
use std::cmp::Ordering;

pub(super) const LEAF: u8 = 1;
pub(super) const INNER: u8 = 2;
pub(super) const META: u8 = 3;
pub(super) const FREE: u8 = 4;

/// "No page" in a link.
pub(super) const NONE: u32 = u32::MAX;

const HEADER_BYTES: usize = 16;
const CHILD_BYTES: usize = 4;

/// The lengths of a table's rows, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RowLens {
    pub(crate) key: usize,
    pub(crate) val: usize,
    /// Bytes left unused behind each value, where an engine with row versions would keep its own fields.
    pub(crate) overhead: usize,
}

/// The positions of entries in one kind of node of one tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    key_len: usize,
    val_len: usize,
    /// The distance between values.
    val_step: usize,
    capacity: usize,
}

impl Layout {
    /// The layout of leaves with such rows, in pages with `payload` bytes.
    pub(super) fn leaf(row: RowLens, payload: usize) -> Self {
        let RowLens { key: key_len, val: val_len, overhead } = row;
        let val_step = val_len + overhead;
        Self { key_len, val_len, val_step, capacity: (payload - HEADER_BYTES) / (key_len + val_step) }
    }

    /// The layout of inner nodes.
    pub(super) fn inner(key_len: usize, payload: usize) -> Self {
        Self::leaf(RowLens { key: key_len, val: CHILD_BYTES, overhead: 0 }, payload)
    }

    /// The maximum number of entries in a node.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    fn key_at(&self, slot: usize) -> usize {
        HEADER_BYTES + slot * self.key_len
    }

    fn val_at(&self, slot: usize) -> usize {
        HEADER_BYTES + self.capacity * self.key_len + slot * self.val_step
    }

    /// The key in `slot`.
    pub(super) fn key<'n>(&self, node: &'n [u8], slot: usize) -> &'n [u8] {
        &node[self.key_at(slot)..][..self.key_len]
    }

    /// The value in `slot`.
    pub(super) fn val<'n>(&self, node: &'n [u8], slot: usize) -> &'n [u8] {
        &node[self.val_at(slot)..][..self.val_len]
    }

    /// The child in `slot` of an inner node.
    pub(super) fn child(&self, node: &[u8], slot: usize) -> u32 {
        u32_at(node, self.val_at(slot))
    }

    /// The slot of `key`, or its insertion point.
    pub(super) fn search(&self, node: &[u8], key: &[u8]) -> Result<usize, usize> {
        let (mut low, mut high) = (0, count(node));
        while low < high {
            let middle = (low + high) / 2;
            match self.key(node, middle).cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// The slot of the child that covers `key`.
    pub(super) fn slot_for(&self, node: &[u8], key: &[u8]) -> usize {
        match self.search(node, key) {
            Ok(slot) => slot,
            Err(slot) => slot.saturating_sub(1),
        }
    }

    /// Inserts an entry before `slot`. The node must have room.
    pub(super) fn insert(&self, m: &mut MiniTx<'_>, page: usize, slot: usize, key: &[u8], val: &[u8]) {
        let n = count(m.payload(page));
        m.shift(page, self.key_at(slot), self.key_at(slot + 1), (n - slot) * self.key_len);
        m.write(page, self.key_at(slot), key);
        m.shift(page, self.val_at(slot), self.val_at(slot + 1), (n - slot) * self.val_step);
        m.write(page, self.val_at(slot), val);
        set_counts(m, page, n + 1, slot + 1);
    }

    /// Removes the entry in `slot`.
    pub(super) fn remove(&self, m: &mut MiniTx<'_>, page: usize, slot: usize) {
        let n = count(m.payload(page));
        m.shift(page, self.key_at(slot + 1), self.key_at(slot), (n - slot - 1) * self.key_len);
        m.shift(page, self.val_at(slot + 1), self.val_at(slot), (n - slot - 1) * self.val_step);
        set_counts(m, page, n - 1, 0);
    }

    /// Overwrites a part of the value in `slot`.
    pub(super) fn patch(&self, m: &mut MiniTx<'_>, page: usize, slot: usize, offset: usize, bytes: &[u8]) {
        m.write(page, self.val_at(slot) + offset, bytes);
    }

    /// Moves the entries from `slot` on into the empty node `target`.
    pub(super) fn move_tail(&self, m: &mut MiniTx<'_>, source: usize, slot: usize, target: usize) {
        let moved = count(m.payload(source)) - slot;
        m.copy(source, self.key_at(slot), target, self.key_at(0), moved * self.key_len);
        m.copy(source, self.val_at(slot), target, self.val_at(0), moved * self.val_step);
        let run = run_slot(m.payload(source));
        set_counts(m, target, moved, run.saturating_sub(slot));
        set_counts(m, source, slot, run.min(slot));
    }
}

/// Formats a page as an empty node.
pub(super) fn format(m: &mut MiniTx<'_>, page: usize, kind: u8, level: u8) {
    m.zero(page);
    m.write(page, 0, &[kind, level]);
    set_next(m, page, NONE);
}

pub(super) fn kind(node: &[u8]) -> u8 {
    node[0]
}

pub(super) fn level(node: &[u8]) -> u8 {
    node[1]
}

pub(super) fn count(node: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([node[2], node[3]]))
}

pub(super) fn next(node: &[u8]) -> u32 {
    u32_at(node, 8)
}

/// The slot of the next insert in an ascending run.
pub(super) fn run_slot(node: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([node[4], node[5]]))
}

pub(super) fn set_next(m: &mut MiniTx<'_>, page: usize, to: u32) {
    m.write(page, 8, &to.to_le_bytes());
}

fn set_counts(m: &mut MiniTx<'_>, page: usize, n: usize, run: usize) {
    let [n, run] = [n as u16, run as u16].map(u16::to_le_bytes);
    m.write(page, 2, &[n[0], n[1], run[0], run[1]]);
}

fn u32_at(node: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([node[at], node[at + 1], node[at + 2], node[at + 3]])
}
