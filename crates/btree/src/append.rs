//! Bulk loads in ascending key order. The last leaf stays latched between entries.

use crate::edit;
use crate::node::{self, ENTRY_BYTES, HEADER_BYTES, Node};
use crate::tree::{Tree, TreeError};
use pagetier::{PageMut, PageSize};
use pagetier_wal::MiniTx;

/// The number of pages of a tree with `rows` entries in full pages, as [`Appender`] leaves it. Each key has
/// `key_bytes`, and each value `value_bytes`, stored in its leaf.
#[must_use]
pub fn full_pages(rows: u64, key_bytes: usize, value_bytes: usize, page_size: PageSize) -> u64 {
    let space = page_size.payload_bytes() - HEADER_BYTES;
    let per_page = |bytes: usize| (space / (bytes + ENTRY_BYTES)) as u64;
    let mut level = rows.div_ceil(per_page(key_bytes + value_bytes)).max(1);
    // The meta page and the leaves. The loop adds the levels above, the last of which is the root.
    let mut pages = 1 + level;
    while level > 1 {
        level = level.div_ceil(per_page(key_bytes));
        pages += level;
    }
    pages
}

/// Appends entries to a tree that no other task uses. Fills pages completely.
#[derive(Debug)]
pub struct Appender<'t> {
    tree: &'t Tree,
    leaf: Option<PageMut<'t>>,
}

impl<'t> Appender<'t> {
    /// An appender to `tree`.
    #[must_use]
    pub fn new(tree: &'t Tree) -> Self {
        Self { tree, leaf: None }
    }

    /// Appends an entry; `key` must be greater than every key in the tree.
    ///
    /// # Errors
    /// As [`Tree::put`].
    pub async fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), TreeError> {
        if let Some(leaf) = self.leaf.take()
            && node::is_inline(key, value, self.tree.payload())
            && self.tree.fits(Node(&leaf), key, value)
        {
            let end = Node(&leaf).count();
            let mut m = MiniTx::on(self.tree.wal.as_ref(), leaf);
            edit::insert(&mut m, 0, end, &node::inline_cell(key, value));
            self.leaf = m.commit_keeping()?.1.pop();
            return Ok(());
        }
        // The leaf is released: `put` latches from the root downward, and would wait for this task's own
        // latch.
        self.tree.put(key, value).await?;
        self.leaf = Some(self.tree.level_exclusive(key, 0).await?);
        Ok(())
    }
}
