//! Scans, forward and backward.
//!
//! A [`Scan`] copies the entries of one leaf at a time under its latch, and holds no latch in between. It
//! returns every entry that exists throughout the scan exactly once. An entry that changes during the scan is
//! returned as it was when the scan passed it.

use crate::node::{NONE, Node};
use crate::tree::{ROOT, Tree, TreeError};
use pagetier::{PageId, PageRef};
use std::collections::VecDeque;
use std::ops::{Bound, ControlFlow, Range, RangeBounds};

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// The entries of a range in key order, or in descending order. See [`Tree::scan`].
#[derive(Debug)]
pub struct Scan<'k> {
    tree: &'k Tree,
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
    backward: bool,
    batch: VecDeque<Entry>,
    ended: bool,
}

impl Tree {
    /// The entries of `range` in key order; [`Scan::backward`] reverses it. Not a snapshot: an entry that
    /// changes while the scan runs is seen either before or after the change.
    #[must_use]
    pub fn scan<'r>(&self, range: impl RangeBounds<&'r [u8]>) -> Scan<'_> {
        let [from, to] = [range.start_bound(), range.end_bound()].map(|bound| bound.map(|key| key.to_vec()));
        Scan { tree: self, from, to, backward: false, batch: VecDeque::new(), ended: false }
    }

    /// Calls `see` with the entries from `from` on, in key order, until it breaks. `see` runs under the
    /// leaf's latch. Not a snapshot: the visit proceeds leaf by leaf.
    ///
    /// # Errors
    /// A page cannot be read.
    pub async fn visit(
        &self,
        from: &[u8],
        mut see: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), TreeError> {
        let mut leaf = self.leaf(from).await?;
        let mut first = Node(&leaf).search(from).unwrap_or_else(|slot| slot);
        loop {
            let node = Node(&leaf);
            for slot in first..node.count() {
                if see(node.key(slot), &self.value(node, slot).await?).is_break() {
                    return Ok(());
                }
            }
            if node.next() == NONE {
                return Ok(());
            }
            // The next leaf is latched before this one is released: a merge could free it in between.
            leaf = self.node(node.next(), Some(0)).await?;
            first = 0;
        }
    }
}

impl<'k> Scan<'k> {
    /// Reverses the order. Call it before the first [`Scan::next`].
    #[must_use]
    pub fn backward(mut self) -> Self {
        self.backward = true;
        self
    }

    /// The next entry, or `None` after the last. Cancel-safe.
    ///
    /// # Errors
    /// A page cannot be read; the next call tries again.
    pub async fn next(&mut self) -> Result<Option<Entry>, TreeError> {
        while self.batch.is_empty() && !self.ended {
            if self.backward { self.fill_backward().await? } else { self.fill_forward().await? }
        }
        Ok(self.batch.pop_front())
    }

    async fn fill_forward(&mut self) -> Result<(), TreeError> {
        let start = match &self.from {
            Bound::Included(key) | Bound::Excluded(key) => &key[..],
            Bound::Unbounded => &[],
        };
        let mut leaf = self.tree.leaf(start).await?;
        loop {
            let (slots, next) = (self.in_range(Node(&leaf)), Node(&leaf).next());
            let last = slots.end < Node(&leaf).count() || next == NONE;
            if !last {
                self.tree.store.prefetch(&[PageId::new(self.tree.space, next)]);
            }
            // A leaf without an entry of the range does not move `from`, so the next one is read at once.
            if last || !slots.is_empty() {
                let entries = self.copy(&leaf, slots).await?;
                if let Some((key, _)) = entries.last() {
                    // The next batch descends again: this leaf may be split or merged by then.
                    self.from = Bound::Excluded(key.clone());
                }
                (self.ended, self.batch) = (last, entries.into());
                return Ok(());
            }
            leaf = self.tree.node(next, Some(0)).await?;
        }
    }

    async fn fill_backward(&mut self) -> Result<(), TreeError> {
        let (leaf, fence) = self.leaf_below().await?;
        let mut entries = self.copy(&leaf, self.in_range(Node(&leaf))).await?;
        entries.reverse();
        self.ended = fence.as_deref().is_none_or(|fence| self.starts_at(fence));
        // All keys of the next leaf to the left are below this leaf's fence.
        match (entries.last(), fence) {
            (_, Some(fence)) => self.to = Bound::Excluded(fence),
            (Some((key, _)), None) => self.to = Bound::Excluded(key.clone()),
            (None, None) => {}
        }
        self.batch = entries.into();
        Ok(())
    }

    /// Whether the range contains nothing below `fence`.
    fn starts_at(&self, fence: &[u8]) -> bool {
        match &self.from {
            Bound::Included(from) | Bound::Excluded(from) => &from[..] >= fence,
            Bound::Unbounded => false,
        }
    }

    /// The leaf that covers the greatest keys of the range, and the lowest key that it may hold (`None` for
    /// the leftmost leaf).
    async fn leaf_below(&self) -> Result<(PageRef<'k>, Option<Vec<u8>>), TreeError> {
        let mut fence = None;
        let mut page = self.tree.node(ROOT, None).await?;
        while Node(&page).level() > 0 {
            let node = Node(&page);
            let slot = match &self.to {
                Bound::Unbounded => node.count() - 1,
                Bound::Included(key) => node.slot_for(key),
                // What is below a fence lies one child further left.
                Bound::Excluded(key) => match node.search(key) {
                    Ok(slot) | Err(slot) => slot.saturating_sub(1),
                },
            };
            if slot > 0 {
                // The fence of a lower level is at least as high as that of a level above, so the last one
                // counts.
                fence = Some(node.key(slot).to_vec());
            }
            page = self.tree.node(node.child(slot), Some(node.level() - 1)).await?;
        }
        Ok((page, fence))
    }

    /// The slots of the leaf's entries within the range.
    fn in_range(&self, leaf: Node<'_>) -> Range<usize> {
        let above = |bound: &[u8], inclusive: bool| match leaf.search(bound) {
            Ok(slot) => slot + usize::from(!inclusive),
            Err(slot) => slot,
        };
        let first = match &self.from {
            Bound::Included(key) => above(key, true),
            Bound::Excluded(key) => above(key, false),
            Bound::Unbounded => 0,
        };
        let end = match &self.to {
            Bound::Included(key) => above(key, false),
            Bound::Excluded(key) => above(key, true),
            Bound::Unbounded => leaf.count(),
        };
        first..end
    }

    async fn copy(&self, leaf: &[u8], slots: Range<usize>) -> Result<Vec<Entry>, TreeError> {
        let leaf = Node(leaf);
        let mut entries = Vec::with_capacity(slots.len());
        for slot in slots {
            entries.push((leaf.key(slot).to_vec(), self.tree.value(leaf, slot).await?.into_owned()));
        }
        Ok(entries)
    }
}
