//! Bulk loads: ascending keys, with the last leaf latched between them.

use super::node;
use super::tree::{Tree, TreeError};
use pagetier::PageMut;
use pagetier_wal::MiniTx;

/// Appends entries to a tree that has no other user. Fills pages completely.
pub(crate) struct Appender<'t> {
    tree: &'t Tree,
    leaf: Option<PageMut<'t>>,
}

impl<'t> Appender<'t> {
    /// An appender to `tree`.
    pub(crate) fn new(tree: &'t Tree) -> Self {
        Self { tree, leaf: None }
    }

    /// Appends an entry; `key` must be greater than every key in the tree.
    pub(crate) async fn push(&mut self, key: &[u8], val: &[u8]) -> Result<(), TreeError> {
        if let Some(leaf) = self.leaf.take() {
            let n = node::count(&leaf);
            if n < self.tree.leaf.capacity() {
                let mut m = MiniTx::on(self.tree.wal.as_ref(), leaf);
                self.tree.leaf.insert(&mut m, 0, n, key, val);
                self.leaf = Some(m.commit_keeping_first());
                return Ok(());
            }
        }
        self.tree.put(key, val).await?;
        self.leaf = Some(self.tree.level_exclusive(key, 0).await?);
        Ok(())
    }
}
