//! The page store with its log, for code without an async runtime: every call blocks its thread.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let temporary = tempfile::tempdir()?;
//! # let dir = temporary.path();
//! use pagetier::PageStore;
//! use pagetier_wal::{WalOptions, blocking::LoggedStore};
//!
//! let builder = PageStore::builder().directory(dir.join("pages")).ssd_bytes(64 << 20);
//! let db = LoggedStore::open(builder, dir.join("log"), WalOptions::new())?;
//! let space = db.block_on(db.store().spaces().create("t"))?;
//!
//! let mut change = db.begin()?;
//! let one = change.add(db.allocate(space)?);
//! let other = change.add(db.allocate(space)?);
//! change.write(one, 0, b"both or");
//! change.write(other, 0, b"neither");
//! db.commit(change)?; // durable
//! db.shutdown()?;
//! # Ok(())
//! # }
//! ```
//!
//! As with [`pagetier::blocking`], a call may also be made on a thread that runs tasks of a runtime; it then
//! stops that thread's other tasks, and must not wait for a guard that one of them holds.

use crate::error::{CheckpointError, Moment, WalError};
use crate::guard::Guard;
use crate::log::Wal;
use crate::log::minitx::MiniTx;
use crate::logged::{self, LoggedBackupError};
use crate::options::WalOptions;
use crate::recovery::recover::RecoverError;
use crate::recovery::redo::Recovered;
use crate::until::Until;
use pagetier::backup::{BackupError, BackupOptions, BackupReport};
use pagetier::blocking::Driver;
use pagetier::{Builder, Error, Lsn, OpenError, PageId, PageMut, PageRef, PageStore, SpaceId};
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A [`LoggedStore`](crate::LoggedStore) with blocking calls, under the same names and with the same errors.
/// Share it in an `Arc`, or by reference between scoped threads.
#[derive(Debug)]
pub struct LoggedStore {
    /// Dropped before the runtime that it runs on.
    pub(crate) logged: logged::LoggedStore,
    driver: Driver,
}

fn started() -> Result<Driver, OpenError> {
    Driver::start().map_err(|source| OpenError::Runtime { source })
}

impl LoggedStore {
    /// See [`LoggedStore::open`](crate::LoggedStore::open).
    ///
    /// # Errors
    /// As there; [`OpenError::Runtime`] when the runtime or its thread cannot be started.
    pub fn open(builder: Builder, log: impl AsRef<Path>, options: WalOptions) -> Result<Self, RecoverError> {
        let (driver, log) = (started()?, log.as_ref());
        let logged = driver.block_on(logged::LoggedStore::open(builder, log, options))?;
        Ok(Self { logged, driver })
    }

    /// See [`LoggedStore::on`](crate::LoggedStore::on).
    ///
    /// # Errors
    /// As [`LoggedStore::open`].
    pub fn on(builder: Builder, wal: Wal) -> Result<Self, RecoverError> {
        let driver = started()?;
        let logged = driver.block_on(logged::LoggedStore::on(builder, wal))?;
        Ok(Self { logged, driver })
    }

    /// The asynchronous store, for calls that do not wait, and for futures for [`LoggedStore::block_on`].
    #[must_use]
    pub fn store(&self) -> &Arc<PageStore> {
        self.logged.store()
    }

    /// The log.
    #[must_use]
    pub fn wal(&self) -> &Wal {
        self.logged.wal()
    }

    /// What the open did to recover.
    #[must_use]
    pub fn recovered(&self) -> &Recovered {
        self.logged.recovered()
    }

    /// Waits for `future` on this thread, for any call of store or log.
    pub fn block_on<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        self.driver.block_on(future)
    }

    /// See [`PageStore::get`].
    #[inline]
    pub fn get(&self, page: PageId) -> Result<PageRef<'_>, Error> {
        match self.store().try_get(page) {
            Some(page) => Ok(page),
            None => self.block_on(self.store().get(page)),
        }
    }

    /// See [`PageStore::get_mut`].
    #[inline]
    pub fn get_mut(&self, page: PageId) -> Result<PageMut<'_>, Error> {
        match self.store().try_get_mut(page) {
            Some(page) => Ok(page),
            None => self.block_on(self.store().get_mut(page)),
        }
    }

    /// See [`PageStore::get_or_create`].
    pub fn get_or_create(&self, page: PageId) -> Result<PageMut<'_>, Error> {
        self.block_on(self.store().get_or_create(page))
    }

    /// See [`PageStore::allocate`].
    pub fn allocate(&self, space: SpaceId) -> Result<PageMut<'_>, Error> {
        self.block_on(self.store().allocate(space))
    }

    /// See [`PageStore::overwrite`].
    pub fn overwrite(&self, page: PageId) -> Result<PageMut<'_>, Error> {
        self.block_on(self.store().overwrite(page))
    }

    /// See [`LoggedStore::begin`](crate::LoggedStore::begin).
    pub fn begin<G: Guard>(&self) -> Result<MiniTx<'_, G>, WalError> {
        self.admit(Duration::from_secs(30))?;
        Ok(MiniTx::new(Some(self.wal())))
    }

    /// See [`LoggedStore::admit`](crate::LoggedStore::admit).
    pub fn admit(&self, wait: Duration) -> Result<(), WalError> {
        self.block_on(self.logged.admit(wait))
    }

    /// See [`LoggedStore::commit`](crate::LoggedStore::commit). Threads that commit at the same time share a
    /// sync of the log.
    pub fn commit<G: Guard>(&self, change: MiniTx<'_, G>) -> Result<Lsn, WalError> {
        // Its guards need not be fit for another thread.
        let (lsn, frees_space) = change.record()?;
        self.block_on(self.logged.make_durable(lsn, frees_space))?;
        Ok(lsn)
    }

    /// See [`LoggedStore::drop_space`](crate::LoggedStore::drop_space).
    pub fn drop_space(&self, space: SpaceId) -> Result<(), CheckpointError> {
        self.block_on(self.logged.drop_space(space))
    }

    /// See [`LoggedStore::checkpoint`](crate::LoggedStore::checkpoint).
    pub fn checkpoint(&self) -> Result<(), CheckpointError> {
        self.block_on(self.logged.checkpoint())
    }

    /// See [`LoggedStore::backup`](crate::LoggedStore::backup).
    pub fn backup(&self, to: &Path, options: BackupOptions) -> Result<BackupReport, LoggedBackupError> {
        self.block_on(self.logged.backup(to, options))
    }

    /// See [`LoggedStore::restore`](crate::LoggedStore::restore).
    ///
    /// # Errors
    /// As there; [`OpenError::Runtime`].
    pub fn restore(builder: Builder, log: &Path, from: &Path, number: u32) -> Result<(), LoggedBackupError> {
        let driver = started().map_err(BackupError::Open)?;
        driver.block_on(logged::LoggedStore::restore(builder, log, from, number))
    }

    /// See [`LoggedStore::restore_until`](crate::LoggedStore::restore_until).
    ///
    /// # Errors
    /// As there; [`OpenError::Runtime`].
    pub fn restore_until(
        builder: Builder,
        log: &Path,
        from: (&Path, u32),
        archive: &Path,
        until: Until,
    ) -> Result<Lsn, LoggedBackupError> {
        let driver = started().map_err(BackupError::Open)?;
        driver.block_on(logged::LoggedStore::restore_until(builder, log, from, archive, until))
    }

    /// See [`LoggedStore::restorable`](crate::LoggedStore::restorable).
    pub fn restorable(from: &Path, number: u32, archive: &Path) -> Result<(Moment, Moment), WalError> {
        logged::LoggedStore::restorable(from, number, archive)
    }

    /// See [`LoggedStore::shutdown`](crate::LoggedStore::shutdown).
    pub fn shutdown(&self) -> Result<(), CheckpointError> {
        self.block_on(self.logged.shutdown())
    }
}
