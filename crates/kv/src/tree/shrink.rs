//! Deletes that take more than one page: chains, and merges of nodes that became small.
//!
//! A node is merged with a neighbour below the same parent if one page can hold both. The right page of the
//! two becomes free, so the link of a leaf further left never changes. An attempt is made when a node falls
//! below a quarter, below an eighth, and when a leaf loses its last entry or an inner node all but one child.

use super::node::{CELL_BYTES, HEADER_BYTES, INNER, Node, SLOT_BYTES, Stored};
use super::{ROOT, Tree, edit};
use crate::error::KvError;
use pagetier::{Lsn, PageMut};
use pagetier_wal::MiniTx;

/// Whether removing `slot` is the moment to merge the node.
pub(super) fn calls_for_merge(node: Node<'_>, slot: usize) -> bool {
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
    #[cold]
    pub(super) async fn delete_structural(&self, key: &[u8]) -> Result<Option<Lsn>, KvError> {
        let _exclusive = self.structure.write().await;
        let Some((lsn, small)) = self.remove(key).await? else { return Ok(None) };
        // The entry is gone: a failure of what follows leaves a sound tree with small nodes.
        if small && let Err(error) = self.merge_path(key).await {
            tracing::warn!(%error, "nodes were not merged");
        }
        Ok(Some(lsn))
    }

    /// Removes the entry; also returns whether its leaf has become small.
    async fn remove(&self, key: &[u8]) -> Result<Option<(Lsn, bool)>, KvError> {
        let mut leaf = self.node_mut(ROOT, None).await?;
        while Node(&leaf).level() > 0 {
            let child = Node(&leaf).child(Node(&leaf).slot_for(key));
            leaf = self.node_mut(child, Some(Node(&leaf).level() - 1)).await?;
        }
        let node = Node(&leaf);
        let Ok(slot) = node.search(key) else { return Ok(None) };
        let small = leaf.id().no != ROOT && calls_for_merge(node, slot);
        let lsn = match node.value(slot) {
            Stored::Inline(_) => {
                let mut m = MiniTx::on(Some(&self.wal), leaf);
                edit::remove(&mut m, 0, slot);
                m.commit()
            }
            Stored::Chain(chain) => {
                let supply = self.supply(0, Some(chain)).await?;
                let mut m = MiniTx::on(Some(&self.wal), leaf);
                let supplied = supply.enter(&mut m, self.payload());
                edit::remove(&mut m, 0, slot);
                supplied.finish(&mut m);
                m.commit()
            }
        };
        Ok(Some((lsn, small)))
    }

    /// Merges the leaf that covers `key`, then the nodes above it that became small, as far as it goes.
    async fn merge_path(&self, key: &[u8]) -> Result<(), KvError> {
        for level in 0..u8::MAX {
            let Some(parent) = self.node_above(key, level).await? else { break };
            if !self.merge_below(parent, key).await? {
                break;
            }
        }
        while self.lower_root().await? {}
        Ok(())
    }

    /// The node on the path to `key` whose children are on `level`; `None` when the root is not above it.
    async fn node_above(&self, key: &[u8], level: u8) -> Result<Option<PageMut<'_>>, KvError> {
        let mut page = self.node_mut(ROOT, None).await?;
        if Node(&page).level() <= level {
            return Ok(None);
        }
        while Node(&page).level() > level + 1 {
            let child = Node(&page).child(Node(&page).slot_for(key));
            page = self.node_mut(child, Some(Node(&page).level() - 1)).await?;
        }
        Ok(Some(page))
    }

    /// Merges the child that covers `key` with a neighbour; true if the parent has become small by that.
    async fn merge_below<'s>(&'s self, parent: PageMut<'s>, key: &[u8]) -> Result<bool, KvError> {
        let (node, below) = (Node(&parent), Node(&parent).level() - 1);
        let slot = node.slot_for(key);
        let neighbours = [slot.checked_sub(1), Some(slot).filter(|slot| slot + 1 < node.count())];
        for left_slot in neighbours.into_iter().flatten() {
            let left = self.node_mut(node.child(left_slot), Some(below)).await?;
            let right = self.node_mut(node.child(left_slot + 1), Some(below)).await?;
            if Node(&left).used() + Node(&right).used() > self.payload() - HEADER_BYTES {
                continue;
            }
            let small = parent.id().no != ROOT && calls_for_merge(node, left_slot + 1);
            let supply = self.supply(0, None).await?;
            let mut m = MiniTx::new(Some(&self.wal));
            let [parent, left, right] = [parent, left, right].map(|page| m.add(page));
            let mut supplied = supply.enter(&mut m, self.payload());
            let mut cells = edit::owned_cells(Node(m.payload(left)));
            cells.extend(edit::owned_cells(Node(m.payload(right))));
            let next = Node(m.payload(right)).next();
            edit::build(&mut m, left, edit::kind_of(below), below, next, &cells);
            edit::remove(&mut m, parent, left_slot + 1);
            supplied.free(&mut m, right);
            supplied.finish(&mut m);
            m.commit();
            return Ok(small);
        }
        Ok(false)
    }

    /// Moves the contents of the root's only child into the root; false when there is none.
    async fn lower_root(&self) -> Result<bool, KvError> {
        let root = self.node_mut(ROOT, None).await?;
        let node = Node(&root);
        if node.kind() != INNER || node.count() > 1 {
            return Ok(false);
        }
        debug_assert_eq!(node.cell(0).len(), CELL_BYTES);
        let level = node.level() - 1;
        let child = self.node_mut(node.child(0), Some(level)).await?;
        let supply = self.supply(0, None).await?;
        let mut m = MiniTx::new(Some(&self.wal));
        let [root, child] = [root, child].map(|page| m.add(page));
        let mut supplied = supply.enter(&mut m, self.payload());
        let cells = edit::owned_cells(Node(m.payload(child)));
        let next = Node(m.payload(child)).next();
        edit::build(&mut m, root, edit::kind_of(level), level, next, &cells);
        supplied.free(&mut m, child);
        supplied.finish(&mut m);
        m.commit();
        Ok(true)
    }
}
