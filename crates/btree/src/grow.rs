//! Inserts that change more than one page: splits, and values in chains.

use crate::edit;
use crate::latch_budget::PATH_PAGES;
use crate::node::{self, HEADER_BYTES, NONE, Node, SLOT_BYTES};
use crate::pages::Supply;
use crate::tree::{ROOT, Tree, TreeError};
use pagetier::{Lsn, PageMut};
use pagetier_wal::MiniTx;

impl Tree {
    /// Puts an entry whose leaf seemed to lack space, or whose old or new value is in a chain.
    #[cold]
    pub(crate) async fn put_structural(&self, key: &[u8], value: &[u8]) -> Result<Lsn, TreeError> {
        let in_chain = !node::is_inline(key, value, self.payload());
        let chain_pages = if in_chain { self.chain_pages(value.len()) } else { 0 };
        let _taken = self.latch_budget.take(&self.store, PATH_PAGES + chain_pages).await;
        let _structure = self.structure.read().await;
        // 1. Descend with exclusive latches; release those above each node with space.
        let mut held: Vec<PageMut<'_>> = Vec::new();
        let mut page = self.node_mut(ROOT, None).await?;
        while Node(&page).level() > 0 {
            let (child, below) = Node(&page).below(key);
            let child = self.node_mut(child, Some(below)).await?;
            held.push(page);
            if self.fits(Node(&child), key, value) {
                held.clear();
            }
            page = child;
        }
        // 2. Acquire pages: for the value, for the right halves, and one more if the root must be split.
        let lacks_space = |page: &&PageMut<'_>| !self.fits(Node(page), key, value);
        let mut wanted = [&page].into_iter().chain(held.iter().rev()).take_while(lacks_space).count();
        // The root lacks space, too. It keeps its page number, so both of its halves need a new page.
        wanted += usize::from(wanted > held.len());
        wanted += chain_pages;
        let freed = Node(&page).chain(Node(&page).search(key));
        let supply = self.supply(wanted, freed).await?;
        // 3. Ascend, splitting nodes without space, in a single record.
        self.put_upward(page, held, supply, key, value)
    }

    /// Whether a leaf has space for the entry, or an inner node for one more child with any key.
    pub(crate) fn fits(&self, node: Node<'_>, key: &[u8], value: &[u8]) -> bool {
        if node.level() > 0 {
            return node.free_bytes() >= node::CELL_BYTES + self.key_bytes_max() + SLOT_BYTES;
        }
        let wanted = node::cell_bytes(key, value, self.payload()) + SLOT_BYTES;
        // Look for a cell that the entry replaces only if it does not fit beside it.
        node.free_bytes() >= wanted
            || node
                .search(key)
                .is_ok_and(|slot| node.free_bytes() + node.cell(slot).len() + SLOT_BYTES >= wanted)
    }

    fn put_upward<'s>(
        &'s self,
        leaf: PageMut<'s>,
        held: Vec<PageMut<'s>>,
        supply: Supply<'s>,
        key: &[u8],
        value: &[u8],
    ) -> Result<Lsn, TreeError> {
        let mut m = MiniTx::new(self.wal.as_ref());
        let mut supplied = supply.enter(&mut m, self.payload());
        let mut cell = if node::is_inline(key, value, self.payload()) {
            node::inline_cell(key, value)
        } else {
            let pages = self.chain_pages(value.len());
            node::chain_cell(key, supplied.write_chain(&mut m, pages, value))
        };
        let mut key = key.to_vec();
        let mut path: Vec<usize> = held.into_iter().chain([leaf]).map(|page| m.add(page)).collect();
        let mut rights = std::mem::take(&mut supplied.pages);
        // One page more than nodes to split: it takes the root's contents, and is split in its place.
        if rights.len() > path.len()
            && let Some(below) = rights.pop()
        {
            raise_root(&mut m, path[0], below);
            path.insert(1, below);
        }
        let mut at = path.len() - 1;
        for right in rights {
            // What the parent has to take for the right half is the next entry to put.
            (key, cell) = split(&mut m, path[at], right, &key, &cell);
            at -= 1;
        }
        let found = Node(m.payload(path[at])).search(&key);
        edit::put(&mut m, path[at], found, &cell);
        supplied.finish(&mut m);
        Ok(m.commit()?)
    }
}

/// Moves the root's contents to a new page below it, since the root's page number must not change.
fn raise_root(m: &mut MiniTx<'_>, root: usize, below: usize) {
    let copy = m.payload(root).to_vec();
    let node = Node(&copy);
    let cells: Vec<&[u8]> = node.cells().collect();
    edit::build(m, below, node.level(), NONE, node.run(), &cells);
    let only = node::child_cell(&[], m.id(below).no);
    edit::build(m, root, node.level() + 1, NONE, 0, &[&only]);
}

/// Moves the upper part of `left` to the new page `right`, and puts the cell of `key` into the half it
/// belongs to. Returns the key and the cell that the parent needs for `right`.
fn split(m: &mut MiniTx<'_>, left: usize, right: usize, key: &[u8], cell: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let copy = m.payload(left).to_vec();
    let node = Node(&copy);
    let found = node.search(key);
    let (slot, replaced) = found.map_or_else(|slot| (slot, 0), |slot| (slot, 1));
    let mut cells: Vec<&[u8]> = node.cells().collect();
    cells.splice(slot..slot + replaced, [cell]);
    let at = split_point(&cells, slot, node);
    // An ascending run goes on in the right half only if its newest entry lies there.
    let run = (slot + 1).saturating_sub(at);
    edit::build(m, right, node.level(), node.next(), run, &cells[at..]);
    if slot < at {
        // `at` counts the new cell, which the left half has only if it replaces one of its own.
        edit::truncate(m, left, at - 1 + replaced);
        edit::put(m, left, found, cell);
    } else {
        edit::truncate(m, left, at);
    }
    let right_no = m.id(right).no;
    if node.level() == 0 {
        edit::set_next(m, left, right_no);
    }
    let [below, above] = [left, right].map(|page| Node(m.payload(page)));
    let first = above.key(0);
    // Any key between two leaves separates them: the shortest one leaves the parent the most space.
    let fence = if node.level() == 0 { node::separator(below.key(at - 1), first) } else { first }.to_vec();
    let cell = node::child_cell(&fence, right_no);
    (fence, cell)
}

/// The index of the first cell to move right; `slot` is that of the new cell. An ascending run is split at
/// its end, so that it leaves full nodes behind; other nodes are split at half of their bytes.
fn split_point(cells: &[&[u8]], slot: usize, node: Node<'_>) -> usize {
    let bytes = |cells: &[&[u8]]| cells.iter().map(|cell| cell.len() + SLOT_BYTES).sum::<usize>();
    if slot > 0 && slot == node.run() {
        // A run in the middle of the node first fills the left half.
        let fits = bytes(&cells[..=slot]) <= node.0.len() - HEADER_BYTES;
        return slot + usize::from(fits && slot + 1 < cells.len());
    }
    let (total, mut below) = (bytes(cells), 0);
    let half = cells.iter().position(|cell| {
        below += cell.len() + SLOT_BYTES;
        below * 2 >= total
    });
    half.map_or(1, |last| last + 1).min(cells.len() - 1).max(1)
}
