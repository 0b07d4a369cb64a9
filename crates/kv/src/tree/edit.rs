//! Changes of pages, each recorded in the mini-transaction that makes it.

use super::node::{FREE, HEADER_BYTES, INNER, LEAF, MAGIC, META, Meta, NONE, Node, OVERFLOW, SLOT_BYTES};
use pagetier_wal::MiniTx;

/// Inserts a cell before `slot`. The caller has checked that the node has room.
pub(crate) fn insert(m: &mut MiniTx<'_>, page: usize, slot: usize, cell: &[u8]) {
    if Node(m.payload(page)).gap() < cell.len() + SLOT_BYTES {
        let mut cells = owned_cells(Node(m.payload(page)));
        cells.insert(slot, cell.to_vec());
        return rebuild(m, page, &cells);
    }
    let (count, heap) = (Node(m.payload(page)).count(), Node(m.payload(page)).heap() - cell.len());
    m.write(page, heap, cell);
    let at = HEADER_BYTES + slot * SLOT_BYTES;
    m.shift(page, at, at + SLOT_BYTES, (count - slot) * SLOT_BYTES);
    m.write(page, at, &(heap as u16).to_le_bytes());
    set_counts(m, page, count + 1, heap, Node(m.payload(page)).dead());
}

/// Removes the cell in `slot`.
pub(crate) fn remove(m: &mut MiniTx<'_>, page: usize, slot: usize) {
    let node = Node(m.payload(page));
    let (count, heap, dead, bytes) = (node.count(), node.heap(), node.dead(), node.cell(slot).len());
    let at = HEADER_BYTES + slot * SLOT_BYTES;
    m.shift(page, at + SLOT_BYTES, at, (count - slot - 1) * SLOT_BYTES);
    set_counts(m, page, count - 1, heap, dead + bytes);
}

/// Replaces the cell in `slot`, which has the same key. The caller has checked that the node has room.
pub(crate) fn replace(m: &mut MiniTx<'_>, page: usize, slot: usize, cell: &[u8]) {
    let node = Node(m.payload(page));
    if node.cell(slot).len() == cell.len() {
        let at = node.cell_at(slot);
        return m.write(page, at, cell);
    }
    remove(m, page, slot);
    insert(m, page, slot, cell);
}

/// Removes the cells from `slot` on.
pub(crate) fn truncate(m: &mut MiniTx<'_>, page: usize, slot: usize) {
    let node = Node(m.payload(page));
    let bytes: usize = (slot..node.count()).map(|slot| node.cell(slot).len()).sum();
    let (heap, dead) = (node.heap(), node.dead() + bytes);
    set_counts(m, page, slot, heap, dead);
}

/// The cells of a node, to be rearranged.
pub(crate) fn owned_cells(node: Node<'_>) -> Vec<Vec<u8>> {
    node.cells().map(<[u8]>::to_vec).collect()
}

/// Gives a node these cells, compact. Kind, level and link stay.
pub(crate) fn rebuild(m: &mut MiniTx<'_>, page: usize, cells: &[Vec<u8>]) {
    let node = Node(m.payload(page));
    let (kind, level, next) = (node.kind(), node.level(), node.next());
    build(m, page, kind, level, next, cells);
}

/// Formats a page as a node with these cells.
pub(crate) fn build(m: &mut MiniTx<'_>, page: usize, kind: u8, level: u8, next: u32, cells: &[Vec<u8>]) {
    let payload = m.payload(page).len();
    let heap = payload - cells.iter().map(Vec::len).sum::<usize>();
    let mut front = vec![0; HEADER_BYTES];
    front[0] = kind;
    front[1] = level;
    front[2..4].copy_from_slice(&(cells.len() as u16).to_le_bytes());
    front[4..6].copy_from_slice(&(heap as u16).to_le_bytes());
    front[8..12].copy_from_slice(&next.to_le_bytes());
    let mut at = payload;
    let mut back = Vec::with_capacity(payload - heap);
    for cell in cells {
        at -= cell.len();
        front.extend_from_slice(&(at as u16).to_le_bytes());
    }
    cells.iter().rev().for_each(|cell| back.extend_from_slice(cell));
    m.zero(page);
    m.write(page, 0, &front);
    if !back.is_empty() {
        m.write(page, heap, &back);
    }
}

/// Formats a page as a part of a long value.
pub(crate) fn build_overflow(m: &mut MiniTx<'_>, page: usize, next: u32, part: &[u8]) {
    let mut front = [0; HEADER_BYTES];
    front[0] = OVERFLOW;
    front[8..12].copy_from_slice(&next.to_le_bytes());
    front[12..16].copy_from_slice(&(part.len() as u32).to_le_bytes());
    m.zero(page);
    m.write(page, 0, &front);
    m.write(page, HEADER_BYTES, part);
}

/// Formats a page that holds nothing.
pub(crate) fn build_free(m: &mut MiniTx<'_>, page: usize, next: u32) {
    m.zero(page);
    m.write(page, 0, &[FREE]);
    set_next(m, page, next);
}

pub(crate) fn set_next(m: &mut MiniTx<'_>, page: usize, next: u32) {
    m.write(page, 8, &next.to_le_bytes());
}

pub(crate) fn set_meta(m: &mut MiniTx<'_>, page: usize, meta: Meta) {
    let [end, free] = [meta.end, meta.free].map(u32::to_le_bytes);
    set_next(m, page, meta.head);
    m.write(page, 32, &[end, free].concat());
}

/// Formats the two pages that every store has.
pub(crate) fn build_first(m: &mut MiniTx<'_>, meta: usize, root: usize, log_id: u64) {
    m.zero(meta);
    m.write(meta, 0, &[META]);
    m.write(meta, 16, MAGIC);
    m.write(meta, 24, &log_id.to_le_bytes());
    set_meta(m, meta, Meta { log_id, end: 2, free: 0, head: NONE });
    build(m, root, LEAF, 0, NONE, &[]);
}

/// The kind of a node on `level`.
pub(crate) fn kind_of(level: u8) -> u8 {
    if level == 0 { LEAF } else { INNER }
}

fn set_counts(m: &mut MiniTx<'_>, page: usize, count: usize, heap: usize, dead: usize) {
    let words = [count, heap, dead].map(|word| (word as u16).to_le_bytes());
    m.write(page, 2, &words.concat());
}
