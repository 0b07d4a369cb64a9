//! Scans, forward and backward.
//!
//! A scan copies the entries of one leaf at a time, under the shared lock, and holds nothing in between. So
//! it sees each entry that is there all the while exactly once, and others as they are when it passes them.

use super::node::{NONE, Node, Stored};
use super::{ROOT, Tree};
use crate::error::KvError;
use pagetier::{PageId, PageRef};
use std::collections::VecDeque;
use std::ops::Bound;

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// The entries of a range in key order, or in descending order. See [`Kv::scan`](crate::Kv::scan).
#[derive(Debug)]
pub struct Scan<'k> {
    tree: &'k Tree,
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
    backward: bool,
    batch: VecDeque<Entry>,
    ended: bool,
}

/// The entries of a leaf that are in a range.
struct Found {
    entries: Vec<(Vec<u8>, Copied)>,
    /// Nothing of the range lies beyond this leaf.
    last: bool,
}

/// A value copied from a leaf, or where it is.
enum Copied {
    Value(Vec<u8>),
    Chain(super::node::Chain),
}

impl<'k> Scan<'k> {
    pub(crate) fn new(tree: &'k Tree, from: Bound<Vec<u8>>, to: Bound<Vec<u8>>) -> Self {
        Self { tree, from, to, backward: false, batch: VecDeque::new(), ended: false }
    }

    /// The same range in descending order. For a scan that has not begun.
    #[must_use]
    pub fn backward(mut self) -> Self {
        self.backward = true;
        self
    }

    /// The next entry, or `None` after the last. Cancel-safe.
    ///
    /// # Errors
    /// A page cannot be read; the next call tries again.
    pub async fn next(&mut self) -> Result<Option<Entry>, KvError> {
        while self.batch.is_empty() && !self.ended {
            if self.backward { self.fill_backward().await? } else { self.fill_forward().await? }
        }
        Ok(self.batch.pop_front())
    }

    async fn fill_forward(&mut self) -> Result<(), KvError> {
        let _shared = self.tree.structure.read().await;
        let start = match &self.from {
            Bound::Included(key) | Bound::Excluded(key) => &key[..],
            Bound::Unbounded => &[],
        };
        let mut leaf = self.tree.leaf(start).await?;
        let found = loop {
            let found = self.in_range(&leaf);
            let next = Node(&leaf).next();
            if found.last || next == NONE {
                break Found { last: true, ..found };
            }
            self.tree.store.prefetch(&[PageId::new(self.tree.space, next)]);
            if !found.entries.is_empty() {
                break found;
            }
            leaf = self.tree.node(next, Some(0)).await?;
        };
        drop(leaf);
        let last = found.last;
        let entries = self.resolve(found.entries).await?;
        if let Some((key, _)) = entries.last() {
            self.from = Bound::Excluded(key.clone());
        }
        self.ended = last;
        self.batch = entries.into();
        Ok(())
    }

    async fn fill_backward(&mut self) -> Result<(), KvError> {
        let _shared = self.tree.structure.read().await;
        let (leaf, fence) = self.leaf_below().await?;
        let mut found = self.in_range(&leaf);
        drop(leaf);
        found.entries.reverse();
        let last = fence.is_none() || self.starts_at(fence.as_deref().unwrap_or_default());
        let entries = self.resolve(found.entries).await?;
        // The next leaf to the left ends below the fence of this one.
        match (entries.last(), fence) {
            (_, Some(fence)) => self.to = Bound::Excluded(fence),
            (Some((key, _)), None) => self.to = Bound::Excluded(key.clone()),
            (None, None) => {}
        }
        self.ended = last;
        self.batch = entries.into();
        Ok(())
    }

    /// Whether the range has nothing below `fence`.
    fn starts_at(&self, fence: &[u8]) -> bool {
        match &self.from {
            Bound::Included(from) | Bound::Excluded(from) => &from[..] >= fence,
            Bound::Unbounded => false,
        }
    }

    /// The leaf that covers the greatest keys of the range, and the lowest key that it may hold; `None` for
    /// the leftmost leaf.
    async fn leaf_below(&self) -> Result<(PageRef<'k>, Option<Vec<u8>>), KvError> {
        let mut fence = None;
        let mut page = self.tree.node(ROOT, None).await?;
        while Node(&page).level() > 0 {
            let node = Node(&page);
            let slot = match &self.to {
                Bound::Unbounded => node.count() - 1,
                Bound::Included(key) => node.slot_for(key),
                Bound::Excluded(key) => match node.search(key) {
                    Ok(slot) | Err(slot) => slot.saturating_sub(1),
                },
            };
            if !node.key(slot).is_empty() {
                fence = Some(node.key(slot).to_vec());
            }
            page = self.tree.node(node.child(slot), Some(node.level() - 1)).await?;
        }
        Ok((page, fence))
    }

    fn in_range(&self, leaf: &[u8]) -> Found {
        let node = Node(leaf);
        let above = |bound: &[u8], inclusive: bool| match node.search(bound) {
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
            Bound::Unbounded => node.count(),
        };
        let entries = (first..end).map(|slot| {
            let value = match node.value(slot) {
                Stored::Inline(value) => Copied::Value(value.to_vec()),
                Stored::Chain(chain) => Copied::Chain(chain),
            };
            (node.key(slot).to_vec(), value)
        });
        Found { entries: entries.collect(), last: end < node.count() }
    }

    async fn resolve(&self, entries: Vec<(Vec<u8>, Copied)>) -> Result<Vec<Entry>, KvError> {
        let mut resolved = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let value = match value {
                Copied::Value(value) => value,
                Copied::Chain(chain) => self.tree.read_chain(chain).await?,
            };
            resolved.push((key, value));
        }
        Ok(resolved)
    }
}
