//! An open store: changes, reads, checkpoints, closing.

use crate::error::KvError;
use pagetier::{Lsn, PageStore};
use pagetier_btree::{CheckReport, Scan, Tree};
use pagetier_control::Control;
use pagetier_wal::{LoggedStore, Recovered, Wal};
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// An open key-value store. Share it in an `Arc`.
///
/// A reader sees a change as soon as it is in the tree, which is shortly before it is durable. Dropping the
/// store without [`Kv::shutdown`] is equivalent to a crash: nothing that [`Kv::put`], [`Kv::delete`] or
/// [`Kv::sync`] confirmed is lost.
#[derive(Debug)]
pub struct Kv {
    /// Dropped first: the next open may listen there.
    pub(crate) control: Mutex<Option<Control>>,
    pub(crate) tree: Tree,
    pub(crate) logged: Arc<LoggedStore>,
    pub(crate) stall_max: Duration,
}

impl Kv {
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
        // Wait for space in the log before latching any page: the checkpoint that makes space writes pages,
        // and would wait for the latch.
        self.logged.admit(self.stall_max).await?;
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
        self.logged.admit(self.stall_max).await?;
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
    pub fn store(&self) -> &PageStore {
        &self.logged
    }

    pub fn wal(&self) -> &Wal {
        self.logged.wal()
    }

    /// What the open did to recover.
    pub fn recovered(&self) -> &Recovered {
        self.logged.recovered()
    }

    /// The longest key, in bytes.
    pub fn key_bytes_max(&self) -> usize {
        self.tree.key_bytes_max()
    }

    /// The longest value, in bytes.
    pub fn value_bytes_max(&self) -> usize {
        self.tree.value_bytes_max()
    }

    /// Writes everything, so that the next open has warm caches and nothing to redo. From the call on,
    /// changes are refused; once it returns, the store can be opened again, even if others share this
    /// one.
    ///
    /// # Errors
    /// The first failure. The store is closed even then, as by a crash.
    pub async fn shutdown(&self) -> Result<(), KvError> {
        // Operators' requests use the open store, so end them before it closes.
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(control) = control {
            control.end().await;
        }
        Ok(self.logged.shutdown().await?)
    }

    fn check_key(&self, key: &[u8]) -> Result<(), KvError> {
        let max = self.key_bytes_max();
        if key.is_empty() || key.len() > max {
            return Err(KvError::BadKey { bytes: key.len(), max });
        }
        Ok(())
    }
}
