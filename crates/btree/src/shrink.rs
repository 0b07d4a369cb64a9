//! Deletes, and merges of nodes that have become small.
//!
//! A node is merged with a neighbour under the same parent if one page can hold both. The right page of the
//! two becomes free, so no other leaf's link changes. A merge is attempted when a node falls below a quarter
//! full, when it falls below an eighth, and when a leaf loses its last entry or an inner node all but one
//! child.

use crate::edit;
use crate::node::{HEADER_BYTES, INNER, Node, SLOT_BYTES};
use crate::tree::{ROOT, Tree, TreeError};
use pagetier::{Lsn, PageMut};
use pagetier_wal::MiniTx;

/// Whether removing `slot` calls for an attempt to merge the node.
fn calls_for_merge(node: Node<'_>, slot: usize) -> bool {
    let (before, freed) = (node.used(), node.cell(slot).len() + SLOT_BYTES);
    let after = before.saturating_sub(freed);
    let falls_below = |part: usize| {
        let bytes = (node.0.len() - HEADER_BYTES) / part;
        after < bytes && before >= bytes
    };
    let one_left = if node.level() == 0 { 1 } else { 2 };
    node.count() <= one_left || falls_below(4) || falls_below(8)
}

impl Tree {
    /// Removes `key`; returns the position of the log record, or `None` when the key does not exist.
    ///
    /// # Errors
    /// A page cannot be read.
    pub async fn delete(&self, key: &[u8]) -> Result<Option<Lsn>, TreeError> {
        let mut structure = None;
        loop {
            let leaf = self.level_exclusive(key, 0).await?;
            let found = Node(&leaf).search(key);
            let Ok(slot) = found else { return Ok(None) };
            let freed = Node(&leaf).chain(found);
            if freed.is_some() && structure.is_none() {
                drop(leaf);
                structure = Some(self.structure.read().await);
                continue;
            }
            let small = leaf.id().no != ROOT && calls_for_merge(Node(&leaf), slot);
            let supply = if freed.is_some() { Some(self.supply(0, freed).await?) } else { None };
            let mut m = MiniTx::on(self.wal.as_ref(), leaf);
            let supplied = supply.map(|supply| supply.enter(&mut m, self.payload()));
            edit::remove(&mut m, 0, slot);
            if let Some(supplied) = supplied {
                supplied.finish(&mut m);
            }
            let lsn = m.commit();
            drop(structure);
            // The entry is gone. If a merge fails, the tree is sound but keeps small nodes.
            if small && let Err(error) = self.merge_path(key).await {
                tracing::warn!(%error, "nodes were not merged");
            }
            return Ok(Some(lsn));
        }
    }

    /// Merges the leaf that covers `key`, then the nodes above it that become small in turn.
    #[cold]
    async fn merge_path(&self, key: &[u8]) -> Result<(), TreeError> {
        let _structure = self.structure.read().await;
        for level in 0..u8::MAX {
            let parent = self.level_exclusive(key, level + 1).await?;
            if Node(&parent).level() <= level {
                drop(parent);
                while self.lower_root().await? {}
                break;
            }
            if !self.merge_below(parent, key).await? {
                break;
            }
        }
        Ok(())
    }

    /// Merges the child that covers `key` with a neighbour. Returns whether the parent should be merged next:
    /// it became small, or has only one child.
    async fn merge_below<'s>(&'s self, parent: PageMut<'s>, key: &[u8]) -> Result<bool, TreeError> {
        let (node, level) = (Node(&parent), Node(&parent).level() - 1);
        let slot = node.slot_for(key);
        let neighbours = [slot.checked_sub(1), Some(slot).filter(|slot| slot + 1 < node.count())];
        for left_slot in neighbours.into_iter().flatten() {
            let left = self.node_mut(node.child(left_slot), Some(level)).await?;
            let right = self.node_mut(node.child(left_slot + 1), Some(level)).await?;
            if Node(&left).used() + Node(&right).used() > self.payload() - HEADER_BYTES {
                continue;
            }
            let small = calls_for_merge(node, left_slot + 1);
            let supply = self.supply(0, None).await?;
            let mut m = MiniTx::new(self.wal.as_ref());
            let [parent, left, right] = [parent, left, right].map(|page| m.add(page));
            let mut supplied = supply.enter(&mut m, self.payload());
            let copies = [left, right].map(|page| m.payload(page).to_vec());
            let [low, high] = [Node(&copies[0]), Node(&copies[1])];
            let cells: Vec<&[u8]> = low.cells().chain(high.cells()).collect();
            let run = if high.run() > 0 { low.count() + high.run() } else { low.run() };
            edit::build(&mut m, left, level, high.next(), run, &cells);
            edit::remove(&mut m, parent, left_slot + 1);
            supplied.free(&mut m, right);
            supplied.finish(&mut m);
            m.commit();
            return Ok(small);
        }
        Ok(node.count() == 1)
    }

    /// Moves the contents of the root's only child into the root. Returns false when the root is a leaf or
    /// has several children.
    async fn lower_root(&self) -> Result<bool, TreeError> {
        let root = self.node_mut(ROOT, None).await?;
        let node = Node(&root);
        if node.kind() != INNER || node.count() > 1 {
            return Ok(false);
        }
        let child = self.node_mut(node.child(0), Some(node.level() - 1)).await?;
        let supply = self.supply(0, None).await?;
        let mut m = MiniTx::new(self.wal.as_ref());
        let [root, child] = [root, child].map(|page| m.add(page));
        let mut supplied = supply.enter(&mut m, self.payload());
        let copy = m.payload(child).to_vec();
        let below = Node(&copy);
        let cells: Vec<&[u8]> = below.cells().collect();
        edit::build(&mut m, root, below.level(), below.next(), below.run(), &cells);
        supplied.free(&mut m, child);
        supplied.finish(&mut m);
        m.commit();
        Ok(true)
    }
}
