//! The tree: lookups, scans, and changes confined to one leaf.

use super::node::{self, INNER, LEAF, Layout, META, RowLens};
use pagetier::{PageId, PageMut, PageRef, PageSize, PageStore, SpaceId};
use pagetier_wal::{MiniTx, Wal};
use std::ops::ControlFlow;
use std::sync::Arc;

const ROOT: u32 = 0;
pub(super) const META_PAGE: u32 = 1;

/// Why an operation on a tree failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TreeError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] pagetier::Error),
    /// A page is not the expected node.
    #[error("page {page} is not the tree node expected there: {what}")]
    Damaged {
        /// The page.
        page: PageId,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// A tree, shared between tasks by reference; every operation is atomic with respect to the others.
///
/// An operation whose future is dropped has changed the tree completely or not at all, in memory and in the
/// log.
pub(crate) struct Tree {
    pub(super) store: Arc<PageStore>,
    pub(super) wal: Option<Wal>,
    pub(super) space: SpaceId,
    pub(super) leaf: Layout,
    pub(super) inner: Layout,
    pub(super) row: RowLens,
}

impl Tree {
    /// Creates an empty tree in the empty space `space`, and opens it as [`Tree::open`] does.
    pub(crate) async fn create(
        store: Arc<PageStore>,
        wal: Option<Wal>,
        space: SpaceId,
        row: RowLens,
    ) -> Result<Self, TreeError> {
        let tree = Self::open(store, wal, space, row);
        let mut m = MiniTx::new(tree.wal.as_ref());
        for (no, kind) in [(ROOT, LEAF), (META_PAGE, META)] {
            let page = tree.store.allocate(space).await?;
            if page.id().no != no {
                return Err(TreeError::Damaged { page: page.id(), what: "the space was not empty" });
            }
            let page = m.add(page);
            node::format(&mut m, page, kind, 0);
        }
        m.commit();
        Ok(tree)
    }

    /// Opens the tree in `space`, with rows of these lengths. Without a log (for bulk loads), changes are not
    /// recorded.
    pub(crate) fn open(store: Arc<PageStore>, wal: Option<Wal>, space: SpaceId, row: RowLens) -> Self {
        let payload = store.page_size().payload_bytes();
        let (leaf, inner) = (Layout::leaf(row, payload), Layout::inner(row.key, payload));
        Self { store, wal, space, leaf, inner, row }
    }

    /// The number of pages of a tree with `rows` entries in full pages, as after a load.
    pub(crate) fn full_pages(rows: u64, row: RowLens, page_size: PageSize) -> u64 {
        let payload = page_size.payload_bytes();
        let inner = Layout::inner(row.key, payload).capacity() as u64;
        let mut level = rows.div_ceil(Layout::leaf(row, payload).capacity() as u64).max(1);
        let mut pages = 1 + level;
        while level > 1 {
            level = level.div_ceil(inner);
            pages += level;
        }
        pages
    }

    /// Looks up `key` and passes its value to `see`, under the leaf's latch.
    pub(crate) async fn get<R>(
        &self,
        key: &[u8],
        see: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, TreeError> {
        let leaf = self.leaf_shared(key).await?;
        Ok(self.leaf.search(&leaf, key).ok().map(|slot| see(self.leaf.val(&leaf, slot))))
    }

    /// Passes the entries from `from` on, in order, to `see` until it breaks. Not a snapshot: it proceeds
    /// leaf by leaf.
    pub(crate) async fn scan(
        &self,
        from: &[u8],
        mut see: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), TreeError> {
        let mut leaf = self.leaf_shared(from).await?;
        let mut slot = self.leaf.search(&leaf, from).unwrap_or_else(|slot| slot);
        loop {
            for slot in slot..node::count(&leaf) {
                if see(self.leaf.key(&leaf, slot), self.leaf.val(&leaf, slot)).is_break() {
                    return Ok(());
                }
            }
            let next = node::next(&leaf);
            if next == node::NONE {
                return Ok(());
            }
            leaf = self.node_shared(next, Some(0)).await?;
            slot = 0;
        }
    }

    /// The greatest key.
    pub(crate) async fn last_key(&self) -> Result<Option<Vec<u8>>, TreeError> {
        let highest = vec![u8::MAX; self.row.key];
        let leaf = self.leaf_shared(&highest).await?;
        Ok(node::count(&leaf).checked_sub(1).map(|slot| self.leaf.key(&leaf, slot).to_vec()))
    }

    /// Inserts `key` or replaces its value.
    pub(crate) async fn put(&self, key: &[u8], val: &[u8]) -> Result<(), TreeError> {
        debug_assert_eq!(val.len(), self.row.val);
        let leaf = self.level_exclusive(key, 0).await?;
        match self.leaf.search(&leaf, key) {
            Ok(slot) => {
                let mut m = MiniTx::on(self.wal.as_ref(), leaf);
                self.leaf.patch(&mut m, 0, slot, 0, val);
                m.commit();
            }
            Err(slot) if node::count(&leaf) < self.leaf.capacity() => {
                let mut m = MiniTx::on(self.wal.as_ref(), leaf);
                self.leaf.insert(&mut m, 0, slot, key, val);
                m.commit();
            }
            Err(_) => {
                drop(leaf);
                self.put_splitting(key, val).await?;
            }
        }
        Ok(())
    }

    /// Overwrites a part of the value of `key`; false when the key does not exist.
    pub(crate) async fn patch(&self, key: &[u8], offset: usize, bytes: &[u8]) -> Result<bool, TreeError> {
        debug_assert!(offset + bytes.len() <= self.row.val);
        let leaf = self.level_exclusive(key, 0).await?;
        let Ok(slot) = self.leaf.search(&leaf, key) else {
            return Ok(false);
        };
        let mut m = MiniTx::on(self.wal.as_ref(), leaf);
        self.leaf.patch(&mut m, 0, slot, offset, bytes);
        m.commit();
        Ok(true)
    }

    /// Removes `key`; false when the key does not exist.
    pub(crate) async fn delete(&self, key: &[u8]) -> Result<bool, TreeError> {
        let leaf = self.level_exclusive(key, 0).await?;
        let Ok(slot) = self.leaf.search(&leaf, key) else {
            return Ok(false);
        };
        if node::count(&leaf) == 1 && leaf.id().no != ROOT {
            drop(leaf);
            return self.delete_last(key).await;
        }
        let mut m = MiniTx::on(self.wal.as_ref(), leaf);
        self.leaf.remove(&mut m, 0, slot);
        m.commit();
        Ok(true)
    }

    async fn leaf_shared(&self, key: &[u8]) -> Result<PageRef<'_>, TreeError> {
        let mut page = self.root_shared().await?;
        while node::level(&page) > 0 {
            let slot = self.inner.slot_for(&page, key);
            page = self.node_shared(self.inner.child(&page, slot), Some(node::level(&page) - 1)).await?;
        }
        Ok(page)
    }

    /// Latches the node of `level` on the path to `key` exclusively; the root if the tree is lower.
    pub(super) async fn level_exclusive(&self, key: &[u8], level: u8) -> Result<PageMut<'_>, TreeError> {
        loop {
            let mut page = self.root_shared().await?;
            if node::level(&page) <= level {
                drop(page);
                let root = self.root_exclusive().await?;
                if node::level(&root) <= level {
                    return Ok(root);
                }
                continue;
            }
            loop {
                let child = self.inner.child(&page, self.inner.slot_for(&page, key));
                let below = node::level(&page) - 1;
                if below == level {
                    return self.node_exclusive(child, Some(level)).await;
                }
                page = self.node_shared(child, Some(below)).await?;
            }
        }
    }

    async fn root_shared(&self) -> Result<PageRef<'_>, TreeError> {
        self.node_shared(ROOT, None).await
    }

    pub(super) async fn root_exclusive(&self) -> Result<PageMut<'_>, TreeError> {
        self.node_exclusive(ROOT, None).await
    }

    async fn node_shared(&self, no: u32, level: Option<u8>) -> Result<PageRef<'_>, TreeError> {
        let id = PageId::new(self.space, no);
        let page = self.store.get(id).await?;
        check(&page, level).map_err(|what| TreeError::Damaged { page: id, what })?;
        Ok(page)
    }

    pub(super) async fn node_exclusive(&self, no: u32, level: Option<u8>) -> Result<PageMut<'_>, TreeError> {
        let id = PageId::new(self.space, no);
        let page = self.store.get_mut(id).await?;
        check(&page, level).map_err(|what| TreeError::Damaged { page: id, what })?;
        Ok(page)
    }
}

/// Checks that a page is a node, of the expected level if given; says what is wrong with it.
fn check(node: &[u8], level: Option<u8>) -> Result<(), &'static str> {
    let expected = if node::level(node) == 0 { LEAF } else { INNER };
    if node::kind(node) != expected {
        return Err("its kind");
    }
    if level.is_some_and(|level| level != node::level(node)) {
        return Err("its level");
    }
    Ok(())
}
