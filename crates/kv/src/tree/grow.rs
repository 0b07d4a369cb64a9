//! Inserts that take more than one page: splits, and values in chains.
//!
//! The descent splits every node on its way that may be too full, while its parent is known to have room.
//! Each split is a record of its own; a crash between them leaves a tree with one more half-full node.

use super::node::{self, NONE, Node, Stored};
use super::{ROOT, Tree, edit};
use crate::error::KvError;
use pagetier::{Lsn, PageMut};
use pagetier_wal::MiniTx;

impl Tree {
    #[cold]
    pub(super) async fn put_structural(&self, key: &[u8], value: &[u8]) -> Result<Lsn, KvError> {
        let _exclusive = self.structure.write().await;
        loop {
            if let Some(leaf) = self.leaf_with_room(key, value).await? {
                return self.put_into(leaf, key, value).await;
            }
        }
    }

    /// The leaf for `key` if it has room; otherwise splits the first node on the way that lacks it.
    async fn leaf_with_room(&self, key: &[u8], value: &[u8]) -> Result<Option<PageMut<'_>>, KvError> {
        let mut page = self.node_mut(ROOT, None).await?;
        if !self.has_room(Node(&page), key, value) {
            self.raise_root(page).await?;
            return Ok(None);
        }
        while Node(&page).level() > 0 {
            let slot = Node(&page).slot_for(key);
            let child = self.node_mut(Node(&page).child(slot), Some(Node(&page).level() - 1)).await?;
            if !self.has_room(Node(&child), key, value) {
                self.split(page, slot, child, key).await?;
                return Ok(None);
            }
            page = child;
        }
        Ok(Some(page))
    }

    /// Whether a leaf has room for the entry, or an inner node for any other child.
    fn has_room(&self, node: Node<'_>, key: &[u8], value: &[u8]) -> bool {
        let wanted = if node.level() > 0 {
            node::CELL_BYTES + self.key_bytes_max()
        } else {
            node::cell_bytes(key, value, self.payload()).0
        };
        let freed = match node.search(key) {
            Ok(slot) if node.level() == 0 => node.cell(slot).len() + node::SLOT_BYTES,
            _ => 0,
        };
        node.room() + freed >= wanted + node::SLOT_BYTES
    }

    /// Puts the entry into a leaf with room, and frees the chain of the value that it replaces.
    async fn put_into<'s>(&'s self, leaf: PageMut<'s>, key: &[u8], value: &[u8]) -> Result<Lsn, KvError> {
        let found = Node(&leaf).search(key);
        let freed = match found.map(|slot| Node(&leaf).value(slot)) {
            Ok(Stored::Chain(chain)) => Some(chain),
            _ => None,
        };
        let inline = node::cell_bytes(key, value, self.payload()).1;
        let wanted = if inline { 0 } else { self.chain_pages(value.len()) };
        let supply = self.supply(wanted, freed).await?;

        let mut m = MiniTx::new(Some(&self.wal));
        let leaf = m.add(leaf);
        let supplied = supply.enter(&mut m, self.payload());
        let cell = if inline {
            node::inline_cell(key, value)
        } else {
            node::chain_cell(key, supplied.write_chain(&mut m, value))
        };
        match found {
            Ok(slot) => edit::replace(&mut m, leaf, slot, &cell),
            Err(slot) => edit::insert(&mut m, leaf, slot, &cell),
        }
        supplied.finish(&mut m);
        Ok(m.commit())
    }

    /// Moves the root's contents to a page below it: the root's number does not change.
    async fn raise_root<'s>(&'s self, root: PageMut<'s>) -> Result<(), KvError> {
        let supply = self.supply(1, None).await?;
        let mut m = MiniTx::new(Some(&self.wal));
        let root = m.add(root);
        let supplied = supply.enter(&mut m, self.payload());
        let below = supplied.pages[0];
        let level = Node(m.payload(root)).level();
        let cells = edit::owned_cells(Node(m.payload(root)));
        edit::build(&mut m, below, edit::kind_of(level), level, NONE, &cells);
        let only = node::child_cell(&[], m.id(below).no);
        edit::build(&mut m, root, node::INNER, level + 1, NONE, &[only]);
        supplied.finish(&mut m);
        m.commit();
        Ok(())
    }

    /// Moves the upper part of `child`, which is in `slot` of `parent`, to a new page: `key` is to come. The
    /// parent has room.
    async fn split<'s>(
        &'s self,
        parent: PageMut<'s>,
        slot: usize,
        child: PageMut<'s>,
        key: &[u8],
    ) -> Result<(), KvError> {
        let supply = self.supply(1, None).await?;
        let mut m = MiniTx::new(Some(&self.wal));
        let [parent, left] = [parent, child].map(|page| m.add(page));
        let supplied = supply.enter(&mut m, self.payload());
        let right = supplied.pages[0];
        let node = Node(m.payload(left));
        let (level, next, at) = (node.level(), node.next(), split_point(node, key));
        let upper: Vec<Vec<u8>> = node.cells().skip(at).map(<[u8]>::to_vec).collect();
        let first = node.key(at);
        let fence = if level == 0 { node::separator(node.key(at - 1), first) } else { first }.to_vec();
        edit::build(&mut m, right, edit::kind_of(level), level, next, &upper);
        edit::truncate(&mut m, left, at);
        let right_no = m.id(right).no;
        if level == 0 {
            edit::set_next(&mut m, left, right_no);
        }
        edit::insert(&mut m, parent, slot + 1, &node::child_cell(&fence, right_no));
        supplied.finish(&mut m);
        m.commit();
        Ok(())
    }
}

/// The first slot that moves: where half of the bytes are below, or the last entry of the last leaf, so that
/// ascending keys leave full leaves behind. A node that lacks room has two entries at least.
fn split_point(node: Node<'_>, key: &[u8]) -> usize {
    let last = node.count() - 1;
    if node.level() == 0 && node.next() == NONE && key > node.key(last) {
        return last.max(1);
    }
    let total: usize = node.cells().map(<[u8]>::len).sum();
    let mut below = 0;
    let half = node.cells().position(|cell| {
        below += cell.len();
        below * 2 >= total
    });
    half.map_or(1, |slot| slot + 1).clamp(1, last.max(1))
}
