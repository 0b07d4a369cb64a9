//! The byte layout of a page's payload.
//!
//! ```text
//! 0   1  kind: 1 leaf, 2 inner, 3 overflow, 4 meta, 5 free
//! 1   1  level: 0 for leaves
//! 2   2  number of entries
//! 4   2  offset of the lowest cell; the payload's length if there are no cells
//! 6   2  bytes of removed cells in the cell area
//! 8   4  leaf: its right neighbour; overflow and free: the next page; meta: the first free page; u32::MAX: none
//! 12  4  overflow: bytes of the value in this page
//! 12  2  leaf, inner: one past the slot of the last insert; an insert there continues an ascending run
//! 16     slots (2 each): the cells' offsets in key order; cells grow down from the end of the payload
//! ```
//! A cell consists of the key's length (2), a word (4), the key, and the rest. In an inner node the word is
//! the child, whose keys are at or above the cell's; the first key of the leftmost node of a level is empty.
//! In a leaf the word is the value's length and the rest is the value; with bit 31 set, the rest is the first
//! and the last page of the value's chain. Integers are little-endian.
//!
//! The meta page holds the magic (8, at 16), the engine's tag (8), the number of pages ever allocated (4),
//! and the number of free pages (4).

use std::cmp::Ordering;

pub(crate) const LEAF: u8 = 1;
pub(crate) const INNER: u8 = 2;
pub(crate) const OVERFLOW: u8 = 3;
pub(crate) const META: u8 = 4;
pub(crate) const FREE: u8 = 5;

/// "No page" in a link.
pub(crate) const NONE: u32 = u32::MAX;
/// "PTKV" and the version, 1.
pub(crate) const MAGIC: &[u8; 8] = b"PTKV\0\0\0\x01";

pub(crate) const HEADER_BYTES: usize = 16;
pub(crate) const SLOT_BYTES: usize = 2;
/// Bytes of a cell without its key and rest.
pub(crate) const CELL_BYTES: usize = 6;
/// The space an entry takes in its node in addition to key and value, in bytes.
pub const ENTRY_BYTES: usize = CELL_BYTES + SLOT_BYTES;
const CHAINED: u32 = 1 << 31;
const CHAIN_BYTES: usize = 8;

/// The longest key, in bytes: a page holds at least four cells of any kind.
pub(crate) fn key_bytes_max(payload: usize) -> usize {
    payload / 8
}

/// The longest cell, in bytes: longer values are stored in a chain of pages.
pub(crate) fn cell_bytes_max(payload: usize) -> usize {
    (payload - HEADER_BYTES) / 4 - SLOT_BYTES
}

/// The kind of a node on `level`.
pub(crate) fn kind_of(level: u8) -> u8 {
    if level == 0 { LEAF } else { INNER }
}

/// A value as stored in a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stored<'p> {
    Inline(&'p [u8]),
    Chain(Chain),
}

/// The pages of a long value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chain {
    /// The value's length.
    pub(crate) bytes: usize,
    pub(crate) first: u32,
    pub(crate) last: u32,
}

impl Chain {
    /// The number of its pages.
    pub(crate) fn pages(&self, payload: usize) -> usize {
        self.bytes.div_ceil(payload - HEADER_BYTES)
    }
}

/// Reads a payload. Never panics: anything outside the payload reads as empty or zero, and [`Node::validate`]
/// reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'p>(pub(crate) &'p [u8]);

impl<'p> Node<'p> {
    pub(crate) fn kind(self) -> u8 {
        self.0[0]
    }

    pub(crate) fn level(self) -> u8 {
        self.0[1]
    }

    pub(crate) fn count(self) -> usize {
        u16_at(self.0, 2)
    }

    pub(crate) fn heap(self) -> usize {
        u16_at(self.0, 4)
    }

    pub(crate) fn dead(self) -> usize {
        u16_at(self.0, 6)
    }

    pub(crate) fn next(self) -> u32 {
        u32_at(self.0, 8)
    }

    /// The slot whose insert would continue an ascending run.
    pub(crate) fn run(self) -> usize {
        u16_at(self.0, 12)
    }

    /// Overflow: the bytes of the value in this page.
    pub(crate) fn part(self) -> &'p [u8] {
        let bytes = u32_at(self.0, 12) as usize;
        self.0.get(HEADER_BYTES..HEADER_BYTES + bytes).unwrap_or_default()
    }

    /// The bytes available to further cells and slots once the page is compacted.
    pub(crate) fn free_bytes(self) -> usize {
        self.gap() + self.dead()
    }

    /// The bytes between slots and cells.
    pub(crate) fn gap(self) -> usize {
        self.heap().saturating_sub(HEADER_BYTES + self.count() * SLOT_BYTES)
    }

    /// The bytes of cells and slots.
    pub(crate) fn used(self) -> usize {
        (self.0.len() - HEADER_BYTES).saturating_sub(self.free_bytes())
    }

    /// The offset of the cell in `slot`.
    pub(crate) fn cell_at(self, slot: usize) -> usize {
        u16_at(self.0, HEADER_BYTES + slot * SLOT_BYTES)
    }

    /// The payload from the cell in `slot` on.
    fn tail(self, slot: usize) -> &'p [u8] {
        let at = self.cell_at(slot);
        self.0.get(at..).filter(|tail| tail.len() >= CELL_BYTES).unwrap_or(&[0; CELL_BYTES])
    }

    pub(crate) fn key(self, slot: usize) -> &'p [u8] {
        self.key_at(self.cell_at(slot))
    }

    /// The key of the cell at this offset.
    #[inline]
    fn key_at(self, at: usize) -> &'p [u8] {
        let tail = self.0.get(at..).unwrap_or_default();
        let Some(([low, high, ..], rest)) = tail.split_first_chunk::<CELL_BYTES>() else { return &[] };
        rest.get(..usize::from(u16::from_le_bytes([*low, *high]))).unwrap_or_default()
    }

    /// The child in `slot` of an inner node.
    pub(crate) fn child(self, slot: usize) -> u32 {
        u32_at(self.tail(slot), 2)
    }

    /// The number of bytes after the key in `slot`.
    fn rest_bytes(self, slot: usize) -> usize {
        let word = u32_at(self.tail(slot), 2);
        match self.kind() {
            INNER => 0,
            _ if word & CHAINED != 0 => CHAIN_BYTES,
            _ => word as usize,
        }
    }

    pub(crate) fn cell(self, slot: usize) -> &'p [u8] {
        let tail = self.tail(slot);
        let bytes = CELL_BYTES + u16_at(tail, 0) + self.rest_bytes(slot);
        tail.get(..bytes).unwrap_or_default()
    }

    /// The value in `slot` of a leaf.
    pub(crate) fn value(self, slot: usize) -> Stored<'p> {
        let tail = self.tail(slot);
        let (word, from) = (u32_at(tail, 2), CELL_BYTES + u16_at(tail, 0));
        let rest = tail.get(from..from + self.rest_bytes(slot)).unwrap_or_default();
        match rest.len() {
            CHAIN_BYTES if word & CHAINED != 0 => Stored::Chain(Chain {
                bytes: (word & !CHAINED) as usize,
                first: u32_at(rest, 0),
                last: u32_at(rest, 4),
            }),
            _ => Stored::Inline(rest),
        }
    }

    /// The offset of the value in `slot`.
    pub(crate) fn value_at(self, slot: usize) -> usize {
        self.cell_at(slot) + CELL_BYTES + u16_at(self.tail(slot), 0)
    }

    /// The chain of the value that a search found, if it has one.
    pub(crate) fn chain(self, found: Result<usize, usize>) -> Option<Chain> {
        match found.map(|slot| self.value(slot)) {
            Ok(Stored::Chain(chain)) => Some(chain),
            _ => None,
        }
    }

    /// The slot of `key`, or its insertion point.
    pub(crate) fn search(self, key: &[u8]) -> Result<usize, usize> {
        let slots = self.0.get(HEADER_BYTES..).unwrap_or_default().as_chunks::<SLOT_BYTES>().0;
        // A damaged count may exceed the page; `validate` reports that, a search only must not panic.
        let slots = &slots[..self.count().min(slots.len())];
        let (mut low, mut high) = (0, slots.len());
        while low < high {
            let middle = (low + high) / 2;
            match self.key_at(usize::from(u16::from_le_bytes(slots[middle]))).cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// The slot of the child that covers `key`.
    pub(crate) fn slot_for(self, key: &[u8]) -> usize {
        // The first separator bounds the node's range: only in a damaged node is `key` below it.
        self.search(key).unwrap_or_else(|slot| slot.saturating_sub(1))
    }

    /// The child of an inner node that covers `key`, and its level.
    pub(crate) fn below(self, key: &[u8]) -> (u32, u8) {
        (self.child(self.slot_for(key)), self.level() - 1)
    }

    pub(crate) fn cells(self) -> impl Iterator<Item = &'p [u8]> {
        (0..self.count()).map(move |slot| self.cell(slot))
    }

    /// Verifies that a node's slots and cells lie within it, take the space that its header says, and are in
    /// order.
    pub(crate) fn validate(self) -> Result<(), &'static str> {
        let slots_end = HEADER_BYTES + self.count() * SLOT_BYTES;
        if self.heap() > self.0.len() || slots_end > self.heap() {
            return Err("its slots run into its cells");
        }
        let mut bytes = 0;
        for slot in 0..self.count() {
            if self.cell_at(slot) < self.heap() || self.cell(slot).is_empty() {
                return Err("a cell lies outside of it");
            }
            bytes += self.cell(slot).len();
            if slot > 0 && self.key(slot - 1) >= self.key(slot) {
                return Err("its keys are out of order");
            }
        }
        // If dead bytes are counted wrongly, an insert finds space that is not there.
        if self.heap() + bytes + self.dead() != self.0.len() {
            return Err("its cells do not add up");
        }
        Ok(())
    }
}

/// The contents of a tree's meta page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Meta {
    /// A number of the engine's choice, such as its log's identity. 0: the tree was loaded without a log.
    pub tag: u64,
    /// The number of pages ever allocated, which is also the number of the next new page.
    pub end: u32,
    /// The number of free pages.
    pub free: u32,
    /// The first free page.
    pub(crate) head: u32,
}

impl Meta {
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        if payload[0] != META || payload[16..24] != *MAGIC {
            return None;
        }
        let tag = u64::from(u32_at(payload, 24)) | u64::from(u32_at(payload, 28)) << 32;
        let (end, free, head) = (u32_at(payload, 32), u32_at(payload, 36), u32_at(payload, 8));
        Some(Self { tag, end, free, head })
    }
}

/// A leaf cell that contains its value.
pub(crate) fn inline_cell(key: &[u8], value: &[u8]) -> Vec<u8> {
    cell(key, value.len() as u32, value)
}

/// A leaf cell whose value is in a chain.
pub(crate) fn chain_cell(key: &[u8], chain: Chain) -> Vec<u8> {
    let pages = u64::from(chain.first) | u64::from(chain.last) << 32;
    cell(key, chain.bytes as u32 | CHAINED, &pages.to_le_bytes())
}

/// Whether a value is stored in its leaf.
pub(crate) fn is_inline(key: &[u8], value: &[u8], payload: usize) -> bool {
    CELL_BYTES + key.len() + value.len() <= cell_bytes_max(payload)
}

/// The length of a leaf cell.
pub(crate) fn cell_bytes(key: &[u8], value: &[u8], payload: usize) -> usize {
    CELL_BYTES + key.len() + if is_inline(key, value, payload) { value.len() } else { CHAIN_BYTES }
}

/// An inner node's cell.
pub(crate) fn child_cell(key: &[u8], child: u32) -> Vec<u8> {
    cell(key, child, &[])
}

fn cell(key: &[u8], word: u32, rest: &[u8]) -> Vec<u8> {
    [&(key.len() as u16).to_le_bytes(), &word.to_le_bytes()[..], key, rest].concat()
}

/// The shortest key above `left` that is at most `right`. `right` must be above `left`.
pub(crate) fn separator<'k>(left: &[u8], right: &'k [u8]) -> &'k [u8] {
    let common = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    // `right` is longer than the common prefix, because it is above `left`, unless the leaf is damaged.
    &right[..(common + 1).min(right.len())]
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> usize {
    match bytes.get(at..at + 2) {
        Some(two) => usize::from(u16::from_le_bytes([two[0], two[1]])),
        None => 0,
    }
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    match bytes.get(at..at + 4) {
        Some(four) => u32::from_le_bytes([four[0], four[1], four[2], four[3]]),
        None => 0,
    }
}
