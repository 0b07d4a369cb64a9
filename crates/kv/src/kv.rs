//! An open store: changes, reads, checkpoints, closing.

use crate::error::KvError;
use pagetier::{Loss, Lsn, PageStore};
use pagetier_btree::{CheckReport, Scan, Tree};
use pagetier_wal::{Keep, Wal, checkpoint};
use parking_lot::Mutex;
use std::ops::RangeBounds;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// What an opening did to recover the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Recovered {
    /// Records read from the log.
    pub records: u64,
    /// Changes applied again: a record counts once per page that lacked it.
    pub applied: u64,
    /// Pages that were listed as lost with an SSD, and that redo restored.
    pub lost_pages: u64,
}

/// The pause after a failed checkpoint.
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(100);

/// An open key-value store. Share it in an `Arc`; every method but [`Kv::close`] takes `&self`.
///
/// A reader sees a change as soon as it is in the tree, which is shortly before it is durable. Dropping the
/// store without [`Kv::close`] is equivalent to a crash: nothing that [`Kv::put`], [`Kv::delete`] or
/// [`Kv::sync`] confirmed is lost.
#[derive(Debug)]
pub struct Kv {
    pub(crate) tree: Arc<Tree>,
    wal: Wal,
    stall_max: Duration,
    keep: Keep,
    recovered: Recovered,
    checkpoints: Checkpoints,
}

/// The task that keeps the log short; it ends with the store.
#[derive(Debug)]
struct Checkpoints {
    task: JoinHandle<()>,
    failure: Arc<Mutex<Option<String>>>,
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Kv {
    pub(crate) fn new(tree: Tree, wal: Wal, keep: Keep, stall_max: Duration, recovered: Recovered) -> Self {
        let tree = Arc::new(tree);
        let failure = Arc::default();
        let task =
            tokio::spawn(keep_log_short(Arc::downgrade(&tree), wal.growth(), keep, Arc::clone(&failure)));
        Self { tree, wal, stall_max, keep, recovered, checkpoints: Checkpoints { task, failure } }
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// A page cannot be read.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        Ok(self.tree.get(key, <[u8]>::to_vec).await?)
    }

    /// Inserts `key`, or replaces its value. Durable when it returns; concurrent calls share a sync of the
    /// log. If the future is dropped, the change happens completely or not at all.
    ///
    /// # Errors
    /// The key or value has a bad length, a page cannot be read, or no page can be allocated: nothing has
    /// changed. The log failed: see [`KvError::Log`].
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), KvError> {
        let lsn = self.put_unsynced(key, value).await?;
        Ok(self.wal().flush(lsn).await?)
    }

    /// As [`Kv::put`], but durable only after [`Kv::sync`], or once a later change is durable. A crash keeps
    /// all changes up to some moment, and none after it.
    ///
    /// # Errors
    /// As [`Kv::put`].
    pub async fn put_unsynced(&self, key: &[u8], value: &[u8]) -> Result<Lsn, KvError> {
        self.check_key(key)?;
        let max = self.value_bytes_max();
        if value.len() > max {
            return Err(KvError::ValueTooLong { bytes: value.len(), max });
        }
        self.admit_change().await?;
        Ok(self.tree.put(key, value).await?)
    }

    /// Removes `key`; returns false if there is no such key. Otherwise like [`Kv::put`].
    ///
    /// # Errors
    /// As [`Kv::put`].
    pub async fn delete(&self, key: &[u8]) -> Result<bool, KvError> {
        let Some(lsn) = self.delete_unsynced(key).await? else { return Ok(false) };
        self.wal().flush(lsn).await?;
        Ok(true)
    }

    /// As [`Kv::delete`], but durable only after [`Kv::sync`], or once a later change is durable.
    ///
    /// # Errors
    /// As [`Kv::put`].
    pub async fn delete_unsynced(&self, key: &[u8]) -> Result<Option<Lsn>, KvError> {
        self.check_key(key)?;
        self.admit_change().await?;
        Ok(self.tree.delete(key).await?)
    }

    /// Makes every change made before this call durable.
    ///
    /// # Errors
    /// The log failed.
    pub async fn sync(&self) -> Result<(), KvError> {
        Ok(self.wal().flush(self.wal().end()).await?)
    }

    /// Returns the entries of `range` in key order; [`Scan::backward`] reverses the order. The scan is no
    /// snapshot: it sees an entry that changes meanwhile before or after the change.
    #[must_use]
    pub fn scan<'k>(&self, range: impl RangeBounds<&'k [u8]>) -> Scan<'_> {
        self.tree.scan(range)
    }

    /// Reads every page of the store and verifies the tree: see [`Tree::check`].
    ///
    /// # Errors
    /// The meta page cannot be read. Other pages that cannot be read are problems of the report.
    pub async fn check(&self, progress: impl FnMut(u64, u64) + Send) -> Result<CheckReport, KvError> {
        Ok(self.tree.check(progress).await?)
    }

    /// The page store, for its statistics and its SSD. Do not change its pages: that damages the tree.
    #[must_use]
    pub fn store(&self) -> &PageStore {
        self.tree.store()
    }

    #[must_use]
    pub fn wal(&self) -> &Wal {
        &self.wal
    }

    /// What the opening did to recover.
    #[must_use]
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// The longest key, in bytes.
    #[must_use]
    pub fn key_bytes_max(&self) -> usize {
        self.tree.key_bytes_max()
    }

    /// The longest value, in bytes.
    #[must_use]
    pub fn value_bytes_max(&self) -> usize {
        self.tree.value_bytes_max()
    }

    /// Writes everything, so that the next opening has warm caches and nothing to redo.
    ///
    /// # Errors
    /// The first failure. The store is closed even then, as by a crash.
    pub async fn close(self) -> Result<(), KvError> {
        let Self { tree, wal, keep, checkpoints, .. } = self;
        checkpoints.task.abort();
        // Wait until the task has dropped the tree, however it ends.
        while !checkpoints.task.is_finished() {
            tokio::task::yield_now().await;
        }
        drop(checkpoints);
        let store = tree.store();
        // Once everything is written, the set of pages that only the SSD has can only shrink.
        store.sync().await?;
        let end = wal.end();
        let from = if keep == Keep::ForSsdLoss { store.redo_from(end, Loss::Ssd).await? } else { end };
        store.shutdown().await?;
        wal.truncate(end, from).await?;
        Ok(())
    }

    fn check_key(&self, key: &[u8]) -> Result<(), KvError> {
        let max = self.key_bytes_max();
        if key.is_empty() || key.len() > max {
            return Err(KvError::BadKey { bytes: key.len(), max });
        }
        Ok(())
    }

    /// Waits until the log can take a change. While the log fails, changes would accumulate in memory, so
    /// each one tries the log first.
    async fn admit_change(&self) -> Result<(), KvError> {
        let wal = self.wal();
        if wal.is_failing() {
            wal.flush(wal.end()).await?;
        }
        if wal.len_bytes() <= wal.capacity_bytes() {
            return Ok(());
        }
        let room = tokio::time::timeout(self.stall_max, wal.has_room()).await;
        room.map_err(|_| KvError::LogFull { cause: self.checkpoints.failure.lock().clone() })
    }
}

/// Holds the tree only during a checkpoint, so that a dropped store is free for the next opener.
async fn keep_log_short(
    tree: Weak<Tree>,
    growth: Arc<Notify>,
    keep: Keep,
    failure: Arc<Mutex<Option<String>>>,
) {
    loop {
        growth.notified().await;
        loop {
            let Some(tree) = tree.upgrade() else { return };
            let Some(wal) = tree.wal() else { return };
            let done = checkpoint(tree.store(), wal, keep).await;
            drop(tree);
            *failure.lock() = done.as_ref().err().map(ToString::to_string);
            let Err(error) = done else { break };
            tracing::warn!(error = %pagetier::errors::Causes(&error), "a checkpoint failed");
            tokio::time::sleep(CHECKPOINT_PAUSE).await;
        }
    }
}
