//! Changes of pages, each recorded in the mini-transaction that makes it.

use crate::node::{FREE, HEADER_BYTES, MAGIC, META, Meta, NONE, Node, OVERFLOW, SLOT_BYTES, kind_of};
use pagetier_wal::MiniTx;

/// Writes a cell to the slot or the insertion point that a search found. The caller has checked that the cell
/// fits.
pub(crate) fn put(m: &mut MiniTx<'_>, page: usize, found: Result<usize, usize>, cell: &[u8]) {
    let node = Node(m.payload(page));
    match found {
        Ok(slot) if node.cell(slot).len() == cell.len() => {
            let at = node.cell_at(slot);
            m.write(page, at, cell);
        }
        Ok(slot) => {
            // Remove first: the check for space counted on the old cell's bytes, which `insert` reclaims by
            // compacting.
            remove(m, page, slot);
            insert(m, page, slot, cell);
        }
        Err(slot) => insert(m, page, slot, cell),
    }
}

/// Inserts a cell before `slot`. The caller has checked that it fits.
pub(crate) fn insert(m: &mut MiniTx<'_>, page: usize, slot: usize, cell: &[u8]) {
    let node = Node(m.payload(page));
    if node.gap() < cell.len() + SLOT_BYTES {
        compact(m, page);
    }
    let node = Node(m.payload(page));
    let (count, heap, dead) = (node.count(), node.heap() - cell.len(), node.dead());
    m.write(page, heap, cell);
    let at = HEADER_BYTES + slot * SLOT_BYTES;
    m.shift(page, at, at + SLOT_BYTES, (count - slot) * SLOT_BYTES);
    m.write(page, at, &(heap as u16).to_le_bytes());
    set_counts(m, page, count + 1, heap, dead, slot + 1);
}

/// Moves the cells to the end of the payload, so that all free space lies between slots and cells. The log
/// records the moves, not the cells, which would take most of the record.
fn compact(m: &mut MiniTx<'_>, page: usize) {
    let node = Node(m.payload(page));
    let (count, run, payload) = (node.count(), node.run(), node.0.len());
    let mut cells: Vec<(usize, usize, usize)> =
        (0..count).map(|slot| (node.cell_at(slot), node.cell(slot).len(), slot)).collect();
    // From the last cell down, each moves up into space that is already free.
    cells.sort_unstable_by(|a, b| b.cmp(a));
    let (mut heap, mut slots) = (payload, vec![0; count * SLOT_BYTES]);
    let mut moves: Vec<Move> = Vec::new();
    for (from, len, slot) in cells {
        heap -= len;
        slots[slot * SLOT_BYTES..][..SLOT_BYTES].copy_from_slice(&(heap as u16).to_le_bytes());
        match moves.last_mut().filter(|last| last.from == from + len) {
            Some(last) => *last = Move { from, to: heap, len: last.len + len },
            None => moves.push(Move { from, to: heap, len }),
        }
    }
    for Move { from, to, len } in moves.into_iter().filter(|one| one.from != one.to) {
        m.shift(page, from, to, len);
    }
    m.write(page, HEADER_BYTES, &slots);
    set_counts(m, page, count, heap, 0, run);
}

/// Adjacent cells that move together.
struct Move {
    from: usize,
    to: usize,
    len: usize,
}

/// Removes the cell in `slot`.
pub(crate) fn remove(m: &mut MiniTx<'_>, page: usize, slot: usize) {
    let node = Node(m.payload(page));
    let (count, heap, dead, run) = (node.count(), node.heap(), node.dead(), node.run());
    let bytes = node.cell(slot).len();
    let at = HEADER_BYTES + slot * SLOT_BYTES;
    m.shift(page, at + SLOT_BYTES, at, (count - slot - 1) * SLOT_BYTES);
    set_counts(m, page, count - 1, heap, dead + bytes, run - usize::from(slot < run));
}

/// Removes the cells from `slot` on.
pub(crate) fn truncate(m: &mut MiniTx<'_>, page: usize, slot: usize) {
    let node = Node(m.payload(page));
    // The other cells stay in place: moving them would add them to the record. The next compaction closes
    // the gaps.
    let heap = (0..slot).map(|slot| node.cell_at(slot)).min().unwrap_or(node.0.len());
    let live: usize = node.cells().take(slot).map(<[u8]>::len).sum();
    let (dead, run) = (node.0.len() - heap - live, node.run());
    set_counts(m, page, slot, heap, dead, run);
}

/// Formats a page as a node with these cells. `run` is the slot where an ascending run would continue.
pub(crate) fn build(m: &mut MiniTx<'_>, page: usize, level: u8, next: u32, run: usize, cells: &[&[u8]]) {
    let payload = m.payload(page).len();
    let heap = payload - cells.iter().map(|cell| cell.len()).sum::<usize>();
    let mut front = vec![0; HEADER_BYTES];
    front[0] = kind_of(level);
    front[1] = level;
    front[2..4].copy_from_slice(&(cells.len() as u16).to_le_bytes());
    front[4..6].copy_from_slice(&(heap as u16).to_le_bytes());
    front[8..12].copy_from_slice(&next.to_le_bytes());
    front[12..14].copy_from_slice(&(run as u16).to_le_bytes());
    let mut at = payload;
    for cell in cells {
        at -= cell.len();
        front.extend_from_slice(&(at as u16).to_le_bytes());
    }
    let back = cells.iter().rev().copied().collect::<Vec<_>>().concat();
    // A page without a kind is new: the record of its mini-transaction begins with its zeroes.
    if m.payload(page)[0] != 0 {
        m.zero(page);
    }
    m.write(page, 0, &front);
    if !back.is_empty() {
        m.write(page, heap, &back);
    }
}

/// Formats a page as part of a long value.
pub(crate) fn build_overflow(m: &mut MiniTx<'_>, page: usize, next: u32, part: &[u8]) {
    let mut front = [0; HEADER_BYTES];
    front[0] = OVERFLOW;
    front[8..12].copy_from_slice(&next.to_le_bytes());
    front[12..16].copy_from_slice(&(part.len() as u32).to_le_bytes());
    // Redo then begins with this record, so a page that was part of another value or a node is not read for
    // it.
    m.zero(page);
    m.write(page, 0, &front);
    m.write(page, HEADER_BYTES, part);
}

/// Formats a page as free.
pub(crate) fn build_free(m: &mut MiniTx<'_>, page: usize, next: u32) {
    m.zero(page);
    m.write(page, 0, &[FREE]);
    set_next(m, page, next);
}

pub(crate) fn set_next(m: &mut MiniTx<'_>, page: usize, next: u32) {
    m.write(page, 8, &next.to_le_bytes());
}

pub(crate) fn set_meta(m: &mut MiniTx<'_>, page: usize, meta: Meta) {
    set_next(m, page, meta.head);
    m.write(page, 32, &(u64::from(meta.end) | u64::from(meta.free) << 32).to_le_bytes());
}

/// Formats the two pages that every tree has.
pub(crate) fn build_first(m: &mut MiniTx<'_>, meta: usize, root: usize, tag: u64) {
    m.zero(meta);
    m.write(meta, 0, &[META]);
    m.write(meta, 16, MAGIC);
    m.write(meta, 24, &tag.to_le_bytes());
    set_meta(m, meta, Meta { tag, end: 2, free: 0, head: NONE });
    build(m, root, 0, NONE, 0, &[]);
}

/// Writes all of the header that an entry changes, since one write takes less than two. `next` lies between.
fn set_counts(m: &mut MiniTx<'_>, page: usize, count: usize, heap: usize, dead: usize, run: usize) {
    let next = u128::from(Node(m.payload(page)).next());
    let [count, heap, dead, run] = [count, heap, dead, run].map(|n| u128::from(n as u16));
    let words = count | heap << 16 | dead << 32 | next << 48 | run << 80;
    m.write(page, 2, &words.to_le_bytes()[..12]);
}
