//! Deletes, and merges of nodes that have become small.
//!
//! A node is merged with a neighbour below the same parent if one page can hold both. The right page of the
//! two becomes free, so the link of a leaf further left never changes. An attempt is made when a leaf falls
//! below a quarter, below an eighth, and when it loses its last entry. One record removes the entry and
//! merges the leaf: neither a dropped future nor a crash leaves an empty leaf that has a neighbour.
//!
//! The nodes above follow, one record each, while they are below a quarter or have one child. Those that a
//! dropped future or a crash leaves are merged after the next leaf below them.

use crate::edit;
use crate::latch_budget::PATH_PAGES;
use crate::node::{HEADER_BYTES, INNER, Node, SLOT_BYTES};
use crate::pages::Supply;
use crate::tree::{ROOT, Tree, TreeError};
use pagetier::{Lsn, PageMut};
use pagetier_wal::MiniTx;

/// Whether the leaf should be merged when `slot` is removed.
fn calls_for_merge(leaf: Node<'_>, slot: usize) -> bool {
    let (before, after) = (leaf.used(), used_without(leaf, slot));
    let falls_below = |part: usize| {
        let bytes = (leaf.0.len() - HEADER_BYTES) / part;
        after < bytes && before >= bytes
    };
    leaf.count() <= 1 || falls_below(4) || falls_below(8)
}

/// The bytes that a node uses once `slot` is removed.
fn used_without(node: Node<'_>, slot: usize) -> usize {
    node.used().saturating_sub(node.cell(slot).len() + SLOT_BYTES)
}

/// Two children of one parent, latched exclusively, that fit one page.
struct Pair<'s> {
    left: PageMut<'s>,
    right: PageMut<'s>,
    /// The slot of the left one in their parent.
    left_slot: usize,
    /// Whether the right one covers the key in question.
    covers_right: bool,
}

impl Pair<'_> {
    fn covering(&self) -> Node<'_> {
        Node(if self.covers_right { &self.right } else { &self.left })
    }
}

impl Tree {
    /// Removes `key`; returns the position of the log record, or `None` when the key does not exist.
    ///
    /// # Errors
    /// A page cannot be read.
    pub async fn delete(&self, key: &[u8]) -> Result<Option<Lsn>, TreeError> {
        let leaf = self.level_exclusive(key, 0).await?;
        let found = Node(&leaf).search(key);
        let Ok(slot) = found else { return Ok(None) };
        let small = leaf.id().no != ROOT && calls_for_merge(Node(&leaf), slot);
        if !small && Node(&leaf).chain(found).is_none() {
            let mut m = MiniTx::on(self.wal.as_ref(), leaf);
            edit::remove(&mut m, 0, slot);
            return Ok(Some(m.commit()?));
        }
        drop(leaf);
        let _taken = self.latch_budget.take(&self.store, PATH_PAGES).await;
        let _structure = self.structure.read().await;
        if small {
            match self.delete_merging(key).await {
                // The merge needs pages that the removal does not.
                Err(error) => {
                    tracing::warn!(error = %pagetier::errors::Causes(&error), "a leaf was not merged")
                }
                done => return done,
            }
        }
        self.delete_from(self.level_exclusive(key, 0).await?, key).await
    }

    /// Removes `key` from `leaf`, which covers it.
    async fn delete_from(&self, leaf: PageMut<'_>, key: &[u8]) -> Result<Option<Lsn>, TreeError> {
        let found = Node(&leaf).search(key);
        let Ok(slot) = found else { return Ok(None) };
        let freed = Node(&leaf).chain(found);
        let supply = if freed.is_some() { Some(self.supply(0, freed).await?) } else { None };
        let mut m = MiniTx::on(self.wal.as_ref(), leaf);
        let supplied = supply.map(|supply| supply.enter(&mut m, self.payload()));
        edit::remove(&mut m, 0, slot);
        if let Some(supplied) = supplied {
            supplied.finish(&mut m);
        }
        Ok(Some(m.commit()?))
    }

    /// Removes `key`, and merges its leaf with a neighbour if one page can hold both.
    #[cold]
    async fn delete_merging(&self, key: &[u8]) -> Result<Option<Lsn>, TreeError> {
        let mut parent = self.level_exclusive(key, 1).await?;
        if Node(&parent).level() > 0 && Node(&parent).count() == 1 {
            // The leaf has no neighbour before its parent is merged.
            drop(parent);
            self.merge_from(1, key).await?;
            parent = self.level_exclusive(key, 1).await?;
        }
        // The leaf is the root, which has no neighbour.
        if Node(&parent).level() == 0 {
            return self.delete_from(parent, key).await;
        }
        let freed =
            |leaf: Node<'_>| leaf.search(key).map_or(0, |slot| leaf.used() - used_without(leaf, slot));
        // If no neighbour leaves space for both, the entry goes alone.
        let Some(pair) = self.pair(&parent, key, freed).await? else {
            let (leaf, _) = Node(&parent).below(key);
            return self.delete_from(self.node_mut(leaf, Some(0)).await?, key).await;
        };
        let found = pair.covering().search(key);
        let Ok(slot) = found else { return Ok(None) };
        if !calls_for_merge(pair.covering(), slot) {
            // It has grown since the first look.
            let leaf = if pair.covers_right { pair.right } else { pair.left };
            return self.delete_from(leaf, key).await;
        }
        let supply = self.supply(0, pair.covering().chain(found)).await?;
        let (lsn, small) = self.merge(parent, pair, Some(slot), supply)?;
        // The entry is gone: a failure of what follows leaves a sound tree with small nodes.
        if small && let Err(error) = self.merge_from(1, key).await {
            tracing::warn!(error = %pagetier::errors::Causes(&error), "nodes were not merged");
        }
        Ok(Some(lsn))
    }

    /// Merges the node of `level` that covers `key`, then each node above it that has become small.
    async fn merge_from(&self, level: u8, key: &[u8]) -> Result<(), TreeError> {
        for level in level..u8::MAX {
            let parent = self.level_exclusive(key, level + 1).await?;
            // The node is the root, which has no neighbour. If it has one child left, the tree has a level
            // too many.
            if Node(&parent).level() <= level {
                drop(parent);
                while self.lower_root().await? {}
                break;
            }
            let small = match self.pair(&parent, key, |_| 0).await? {
                Some(pair) => {
                    let supply = self.supply(0, None).await?;
                    self.merge(parent, pair, None, supply)?.1
                }
                // A single child has no neighbour below this parent, so the parent must be merged itself.
                None => Node(&parent).count() == 1,
            };
            if !small {
                break;
            }
        }
        Ok(())
    }

    /// Latches the child of `parent` that covers `key`, and a neighbour such that one page can hold both
    /// without the bytes of the child that will be `freed`.
    async fn pair<'s>(
        &'s self,
        parent: &PageMut<'s>,
        key: &[u8],
        freed: impl Fn(Node<'_>) -> usize,
    ) -> Result<Option<Pair<'s>>, TreeError> {
        let (node, level) = (Node(parent), Node(parent).level() - 1);
        let slot = node.slot_for(key);
        let neighbours = [slot.checked_sub(1), Some(slot).filter(|slot| slot + 1 < node.count())];
        for left_slot in neighbours.into_iter().flatten() {
            // A pair that does not fit is released before the next one is latched: from left to right,
            // as a scan does, or the two would wait for each other.
            let left = self.node_mut(node.child(left_slot), Some(level)).await?;
            let right = self.node_mut(node.child(left_slot + 1), Some(level)).await?;
            let pair = Pair { left, right, left_slot, covers_right: left_slot < slot };
            let used = Node(&pair.left).used() + Node(&pair.right).used() - freed(pair.covering());
            if used <= self.payload() - HEADER_BYTES {
                return Ok(Some(pair));
            }
        }
        Ok(None)
    }

    /// Merges a pair, without the cell in `removed` of the child that covers the key. Returns the record's
    /// position, and whether the parent is to be merged next.
    fn merge<'s>(
        &'s self,
        parent: PageMut<'s>,
        pair: Pair<'s>,
        removed: Option<usize>,
        supply: Supply<'s>,
    ) -> Result<(Lsn, bool), TreeError> {
        let Pair { left, right, left_slot, covers_right } = pair;
        // The root is never merged for its size: it becomes lower once a single child is left.
        let one_left = Node(&parent).count() <= 2;
        let below_quarter = used_without(Node(&parent), left_slot + 1) < (self.payload() - HEADER_BYTES) / 4;
        let small = one_left || below_quarter && parent.id().no != ROOT;
        let mut m = MiniTx::new(self.wal.as_ref());
        let [parent, left, right] = [parent, left, right].map(|page| m.add(page));
        let mut supplied = supply.enter(&mut m, self.payload());
        let copies = [left, right].map(|page| m.payload(page).to_vec());
        let [low, high] = [Node(&copies[0]), Node(&copies[1])];
        let mut cells: Vec<&[u8]> = low.cells().chain(high.cells()).collect();
        // The right node's slots, and its run with them, move behind those of the left one.
        let mut run = if high.run() > 0 { low.count() + high.run() } else { low.run() };
        if let Some(slot) = removed {
            let at = slot + if covers_right { low.count() } else { 0 };
            cells.remove(at);
            run -= usize::from(at < run);
        }
        edit::build(&mut m, left, low.level(), high.next(), run, &cells);
        edit::remove(&mut m, parent, left_slot + 1);
        supplied.free(&mut m, right);
        supplied.finish(&mut m);
        Ok((m.commit()?, small))
    }

    /// Moves the contents of the root's only child into the root. Returns false when the root is a leaf or
    /// has several children.
    async fn lower_root(&self) -> Result<bool, TreeError> {
        let root = self.node_mut(ROOT, None).await?;
        let node = Node(&root);
        if node.kind() != INNER || node.count() > 1 {
            return Ok(false);
        }
        // The root must stay page 1, so the child's contents move up, and the child's page is freed.
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
        m.commit()?;
        Ok(true)
    }
}
