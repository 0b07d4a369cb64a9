//! The tree: a B+-tree in one space. Page 0 is the meta page, page 1 always the root.
//!
//! **Locks.** `structure` is shared by everything that reads the tree or changes one leaf in place. It is
//! exclusive for changes of several pages: splits, merges, chains, the free list. Under the shared lock inner
//! nodes and chains do not change, so a task latches one leaf and waits for nothing while it holds a leaf
//! exclusively. Under the exclusive lock no other task of the tree holds a page. A task never takes the lock
//! twice, and no page guard outlives the lock it was taken under.
//!
//! **Records.** Each change is one mini-transaction. It waits for all of its pages first, and then changes
//! them without an await point: an error or a dropped future leaves the tree as it was. A split or a merge
//! takes several mini-transactions, each of which leaves a sound tree.

pub(crate) mod edit;
mod grow;
pub(crate) mod node;
mod pages;
mod scan;
mod shrink;

pub use scan::{Entry, Scan};

use crate::error::KvError;
use node::{Node, Stored};
use pagetier::{Lsn, PageId, PageMut, PageRef, PageStore, SpaceId};
use pagetier_wal::{MiniTx, Wal};
use tokio::sync::RwLock;

pub(crate) const META_PAGE: u32 = 0;
pub(crate) const ROOT: u32 = 1;

/// The longest value, in pages.
const VALUE_PAGES_MAX: usize = 64;

/// What a change in place found.
enum InPlace {
    /// It is done, at this position.
    Done(Lsn),
    /// There is nothing to change.
    Absent,
    /// It takes more than one page.
    Structural,
}

#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) store: PageStore,
    pub(crate) wal: Wal,
    pub(crate) space: SpaceId,
    pub(crate) structure: RwLock<()>,
}

impl Tree {
    pub(crate) fn payload(&self) -> usize {
        self.store.page_size().payload_bytes()
    }

    pub(crate) fn key_bytes_max(&self) -> usize {
        node::key_bytes_max(self.payload())
    }

    pub(crate) fn value_bytes_max(&self) -> usize {
        VALUE_PAGES_MAX * (self.payload() - node::HEADER_BYTES)
    }

    /// The value of `key`.
    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        let _shared = self.structure.read().await;
        let leaf = self.leaf(key).await?;
        let node = Node(&leaf);
        let Ok(slot) = node.search(key) else { return Ok(None) };
        match node.value(slot) {
            Stored::Inline(value) => Ok(Some(value.to_vec())),
            Stored::Chain(chain) => {
                drop(leaf);
                Ok(Some(self.read_chain(chain).await?))
            }
        }
    }

    /// Inserts `key` or replaces its value; returns the position of its record.
    pub(crate) async fn put(&self, key: &[u8], value: &[u8]) -> Result<Lsn, KvError> {
        match self.put_in_place(key, value).await? {
            InPlace::Done(lsn) => Ok(lsn),
            InPlace::Absent | InPlace::Structural => self.put_structural(key, value).await,
        }
    }

    async fn put_in_place(&self, key: &[u8], value: &[u8]) -> Result<InPlace, KvError> {
        let (bytes, inline) = node::cell_bytes(key, value, self.payload());
        if !inline {
            return Ok(InPlace::Structural);
        }
        let _shared = self.structure.read().await;
        let leaf = self.leaf_exclusive(key).await?;
        let node = Node(&leaf);
        let found = node.search(key);
        let freed = match found {
            Ok(slot) if matches!(node.value(slot), Stored::Chain(_)) => return Ok(InPlace::Structural),
            Ok(slot) => node.cell(slot).len() + node::SLOT_BYTES,
            Err(_) => 0,
        };
        if node.room() + freed < bytes + node::SLOT_BYTES {
            return Ok(InPlace::Structural);
        }
        let cell = node::inline_cell(key, value);
        let mut m = MiniTx::on(Some(&self.wal), leaf);
        match found {
            Ok(slot) => edit::replace(&mut m, 0, slot, &cell),
            Err(slot) => edit::insert(&mut m, 0, slot, &cell),
        }
        Ok(InPlace::Done(m.commit()))
    }

    /// Removes `key`; returns the position of the record, or `None` when there is no such key.
    pub(crate) async fn delete(&self, key: &[u8]) -> Result<Option<Lsn>, KvError> {
        match self.delete_in_place(key).await? {
            InPlace::Done(lsn) => Ok(Some(lsn)),
            InPlace::Absent => Ok(None),
            InPlace::Structural => self.delete_structural(key).await,
        }
    }

    async fn delete_in_place(&self, key: &[u8]) -> Result<InPlace, KvError> {
        let _shared = self.structure.read().await;
        let leaf = self.leaf_exclusive(key).await?;
        let node = Node(&leaf);
        let Ok(slot) = node.search(key) else { return Ok(InPlace::Absent) };
        let in_chain = matches!(node.value(slot), Stored::Chain(_));
        if in_chain || leaf.id().no != ROOT && shrink::calls_for_merge(node, slot) {
            return Ok(InPlace::Structural);
        }
        let mut m = MiniTx::on(Some(&self.wal), leaf);
        edit::remove(&mut m, 0, slot);
        Ok(InPlace::Done(m.commit()))
    }

    /// The leaf that covers `key`. The caller holds `structure`.
    pub(crate) async fn leaf(&self, key: &[u8]) -> Result<PageRef<'_>, KvError> {
        let mut page = self.node(ROOT, None).await?;
        while Node(&page).level() > 0 {
            let child = Node(&page).child(Node(&page).slot_for(key));
            page = self.node(child, Some(Node(&page).level() - 1)).await?;
        }
        Ok(page)
    }

    /// The number of the leaf that covers `key`, latched exclusively. The caller holds `structure`, so that
    /// the leaf covers the key still when its latch is exchanged.
    async fn leaf_exclusive(&self, key: &[u8]) -> Result<PageMut<'_>, KvError> {
        let mut no = ROOT;
        let mut level = None;
        loop {
            let page = self.node(no, level).await?;
            let node = Node(&page);
            if node.level() == 0 {
                drop(page);
                return self.node_mut(no, Some(0)).await;
            }
            let below = node.level() - 1;
            no = node.child(node.slot_for(key));
            level = Some(below);
            if below == 0 {
                return self.node_mut(no, level).await;
            }
        }
    }

    fn id(&self, no: u32) -> PageId {
        PageId::new(self.space, no)
    }

    /// A node, of `level` if given.
    pub(crate) async fn node(&self, no: u32, level: Option<u8>) -> Result<PageRef<'_>, KvError> {
        let page = self.store.get(self.id(no)).await?;
        self.expect_node(no, &page, level)?;
        Ok(page)
    }

    pub(crate) async fn node_mut(&self, no: u32, level: Option<u8>) -> Result<PageMut<'_>, KvError> {
        let page = self.store.get_mut(self.id(no)).await?;
        self.expect_node(no, &page, level)?;
        Ok(page)
    }

    fn expect_node(&self, no: u32, payload: &[u8], level: Option<u8>) -> Result<(), KvError> {
        let node = Node(payload);
        let what = if node.kind() != edit::kind_of(node.level()) {
            "its kind"
        } else if level.is_some_and(|level| level != node.level()) {
            "its level"
        } else if node.count() == 0 && node.level() > 0 {
            "an inner node without children"
        } else {
            return Ok(());
        };
        Err(KvError::Damaged { page: self.id(no), what })
    }
}
