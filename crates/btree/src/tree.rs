//! A B+-tree in one space. Page 0 is the meta page; page 1 is always the root. Each leaf links to its right
//! neighbour.
//!
//! **Latches.** A child is latched before its parent is released. Readers, and writers of one leaf, latch
//! inner nodes in shared mode; writers latch only the leaf exclusively. A change that needs more than its
//! leaf descends again: a split latches exclusively and releases everything above a node with space; a merge
//! descends to the parent of the nodes that it merges. All latches are taken in this order, which rules out
//! deadlocks:
//!
//! 1. from the root downward;
//! 2. within a level from left to right (scans and merges);
//! 3. the meta page, then free pages and the last page of a freed chain, which no other task can reach: a
//!    chain is read only while its leaf is latched.
//!
//! **Structure.** Changes to several pages lock `structure` in shared mode; [`Tree::check`] locks it
//! exclusively, so that no page joins or leaves the tree during its walk. A task locks it before it latches a
//! page. Before that, it takes the pages that it may latch from `latch_budget`, so that such changes never
//! pin every frame.
//!
//! **Records.** Each change is one mini-transaction. It first waits for all of its pages and then changes
//! them without an await point, so an error or a dropped future leaves the tree unchanged. A delete that
//! merges nodes takes several mini-transactions, each of which leaves a sound tree.

use crate::edit;
use crate::latch_budget::LatchBudget;
use crate::node::{self, Meta, Node, Stored};
use pagetier::{Lsn, PageId, PageMut, PageRef, PageStore, SpaceId};
use pagetier_wal::{MiniTx, Wal, WalError};
use std::borrow::Cow;
use std::sync::Arc;
use tokio::sync::RwLock;

pub(crate) const META_PAGE: u32 = 0;
pub(crate) const ROOT: u32 = 1;

/// The longest value, in pages.
const VALUE_PAGES_MAX: usize = 64;

/// Why an operation on a tree failed. A failed operation has changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] pagetier::Error),
    /// The record does not fit into the log.
    #[error(transparent)]
    Log(#[from] WalError),
    /// A page is not the part of the tree that it should be.
    #[error("page {page} is not what the tree expects: {what}")]
    Damaged {
        page: PageId,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// A tree, shared between tasks by reference; every operation is atomic with respect to the others.
///
/// An operation whose future is dropped either takes full effect, in memory and in the log, or none. The
/// caller must not hold a guard of one of the tree's pages during a call.
#[derive(Debug)]
pub struct Tree {
    pub(crate) store: Arc<PageStore>,
    pub(crate) wal: Option<Wal>,
    pub(crate) space: SpaceId,
    pub(crate) structure: RwLock<()>,
    pub(crate) latch_budget: LatchBudget,
}

impl Tree {
    /// Creates a tree in the empty space `space`, and opens it as [`Tree::open`] does. `tag` belongs to the
    /// engine: see [`Meta`]. The record that creates the tree is not yet durable when this returns.
    ///
    /// # Errors
    /// The store failed.
    pub async fn create(
        store: Arc<PageStore>,
        wal: Option<Wal>,
        space: SpaceId,
        tag: u64,
    ) -> Result<Self, TreeError> {
        let tree = Self::open(store, wal, space);
        let meta = tree.store.overwrite(tree.id(META_PAGE)).await?;
        let root = tree.store.overwrite(tree.id(ROOT)).await?;
        let mut m = MiniTx::new(tree.wal.as_ref());
        // One record for both pages: after a crash the space has a tree or none, never half of one.
        let [meta, root] = [meta, root].map(|page| m.add(page));
        edit::build_first(&mut m, meta, root, tag);
        m.commit()?;
        Ok(tree)
    }

    /// Opens the tree in `space`, once redo has recovered it. Without a log (for bulk loads), changes are not
    /// logged. Splits, merges and changes of long values pin at most half of the frames that the pool has at
    /// the time ([`PageStore::resize_pool`] changes it): others wait.
    #[must_use]
    pub fn open(store: Arc<PageStore>, wal: Option<Wal>, space: SpaceId) -> Self {
        Self { store, wal, space, structure: RwLock::new(()), latch_budget: LatchBudget::default() }
    }

    /// The meta page of the tree in `space`; `None` when the page does not exist or holds no tree, which redo
    /// may still change.
    ///
    /// # Errors
    /// The page cannot be read.
    pub async fn meta(store: &PageStore, space: SpaceId) -> Result<Option<Meta>, TreeError> {
        match store.get(PageId::new(space, META_PAGE)).await {
            Ok(page) => Ok(Meta::read(&page)),
            Err(pagetier::Error::NoSuchPage { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    #[must_use]
    pub fn store(&self) -> &Arc<PageStore> {
        &self.store
    }

    /// The log; `None` without one.
    pub fn wal(&self) -> Option<&Wal> {
        self.wal.as_ref()
    }

    /// The tree's space.
    pub fn space(&self) -> SpaceId {
        self.space
    }

    pub(crate) fn payload(&self) -> usize {
        self.store.page_size().payload_bytes()
    }

    /// The longest key, in bytes.
    pub fn key_bytes_max(&self) -> usize {
        node::key_bytes_max(self.payload())
    }

    /// The longest value, in bytes.
    pub fn value_bytes_max(&self) -> usize {
        VALUE_PAGES_MAX * (self.payload() - node::HEADER_BYTES)
    }

    /// Looks up `key` and passes its value to `see`, which runs under the leaf's latch. Returns `None` when
    /// the key does not exist.
    ///
    /// # Errors
    /// A page cannot be read.
    pub async fn get<R>(&self, key: &[u8], see: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, TreeError> {
        let leaf = self.leaf(key).await?;
        let Ok(slot) = Node(&leaf).search(key) else { return Ok(None) };
        Ok(Some(see(&self.value(Node(&leaf), slot).await?)))
    }

    /// The value in `slot` of a leaf, which the caller has latched.
    pub(crate) async fn value<'p>(&self, leaf: Node<'p>, slot: usize) -> Result<Cow<'p, [u8]>, TreeError> {
        match leaf.value(slot) {
            Stored::Inline(value) => Ok(Cow::Borrowed(value)),
            Stored::Chain(chain) => Ok(Cow::Owned(self.read_chain(chain).await?)),
        }
    }

    /// Inserts `key` or replaces its value; returns the position of its log record. The key must not be
    /// empty; key and value must be no longer than [`Tree::key_bytes_max`] and [`Tree::value_bytes_max`].
    ///
    /// # Errors
    /// A page cannot be read, or no page can be allocated.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<Lsn, TreeError> {
        debug_assert!((1..=self.key_bytes_max()).contains(&key.len()));
        debug_assert!(value.len() <= self.value_bytes_max());
        if node::is_inline(key, value, self.payload()) {
            let leaf = self.level_exclusive(key, 0).await?;
            let found = Node(&leaf).search(key);
            // An old value in a chain would leave pages to free, which takes the meta page, too.
            if Node(&leaf).chain(found).is_none() && self.fits(Node(&leaf), key, value) {
                let mut m = MiniTx::on(self.wal.as_ref(), leaf);
                edit::put(&mut m, 0, found, &node::inline_cell(key, value));
                return Ok(m.commit()?);
            }
        }
        self.put_structural(key, value).await
    }

    /// Overwrites part of the value of `key`, which must be stored in its leaf: entries of up to about a
    /// quarter of a page are. Returns false when the key does not exist.
    ///
    /// # Errors
    /// A page cannot be read, the value is not stored in its leaf, or the range exceeds the value.
    pub async fn patch(&self, key: &[u8], offset: usize, bytes: &[u8]) -> Result<bool, TreeError> {
        let leaf = self.level_exclusive(key, 0).await?;
        let Ok(slot) = Node(&leaf).search(key) else { return Ok(false) };
        let Stored::Inline(value) = Node(&leaf).value(slot) else {
            return Err(TreeError::Damaged { page: leaf.id(), what: "a value to patch is not in its leaf" });
        };
        if offset + bytes.len() > value.len() {
            return Err(TreeError::Damaged { page: leaf.id(), what: "a value to patch is too short" });
        }
        // Write in place, so that a counter in a long row costs a log record of a few bytes, not of the
        // row.
        let at = Node(&leaf).value_at(slot) + offset;
        let mut m = MiniTx::on(self.wal.as_ref(), leaf);
        m.write(0, at, bytes);
        m.commit()?;
        Ok(true)
    }

    /// The leaf that covers `key`.
    pub(crate) async fn leaf(&self, key: &[u8]) -> Result<PageRef<'_>, TreeError> {
        let mut page = self.node(ROOT, None).await?;
        while Node(&page).level() > 0 {
            let (child, below) = Node(&page).below(key);
            page = self.node(child, Some(below)).await?;
        }
        Ok(page)
    }

    /// Exclusively latches the node at `level` on the path to `key`, or the root if the tree is lower.
    pub(crate) async fn level_exclusive(&self, key: &[u8], level: u8) -> Result<PageMut<'_>, TreeError> {
        loop {
            let mut page = self.node(ROOT, None).await?;
            while Node(&page).level() > level {
                let (child, below) = Node(&page).below(key);
                if below == level {
                    // The parent stays latched until the child is: in between, a split could move `key` to
                    // another node.
                    return self.node_mut(child, Some(level)).await;
                }
                page = self.node(child, Some(below)).await?;
            }
            // Release the root first. Two tasks that kept it shared and waited for it exclusively would
            // wait for each other.
            drop(page);
            // The root may gain a level before it is latched exclusively.
            let root = self.node_mut(ROOT, None).await?;
            if Node(&root).level() <= level {
                return Ok(root);
            }
        }
    }

    pub(crate) fn id(&self, no: u32) -> PageId {
        PageId::new(self.space, no)
    }

    /// Latches a node in shared mode and verifies its kind, and its level if given.
    pub(crate) async fn node(&self, no: u32, level: Option<u8>) -> Result<PageRef<'_>, TreeError> {
        let page = self.store.get(self.id(no)).await?;
        self.expect_node(no, &page, level)?;
        Ok(page)
    }

    pub(crate) async fn node_mut(&self, no: u32, level: Option<u8>) -> Result<PageMut<'_>, TreeError> {
        let page = self.store.get_mut(self.id(no)).await?;
        self.expect_node(no, &page, level)?;
        Ok(page)
    }

    fn expect_node(&self, no: u32, payload: &[u8], level: Option<u8>) -> Result<(), TreeError> {
        let node = Node(payload);
        // A damaged link may lead anywhere, even upward. A level that falls at each step bounds every
        // descent.
        let what = if node.kind() != node::kind_of(node.level()) {
            "its kind"
        } else if level.is_some_and(|level| level != node.level()) {
            "its level"
        } else if node.count() == 0 && node.level() > 0 {
            "an inner node without children"
        } else {
            return Ok(());
        };
        Err(TreeError::Damaged { page: self.id(no), what })
    }
}
