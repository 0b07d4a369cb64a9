//! The store for code without an async runtime: every call blocks its thread until it completes.
//!
//! Callers that wait run the tokio runtime that [`pagetier::PageStore`](crate::PageStore) needs, and a thread
//! of the store does in between; any number of threads may use the store at the same time. Every asynchronous
//! method has a blocking form under its name; its owned guards keep this store open, its runtime included.
//! [`PageStore::store`] gives access to the methods that do not wait.
//!
//! The embedder's own code that the store calls (reports of progress, a [`LogGate`](crate::LogGate), a
//! subscriber of `tracing`) may run on any thread that is inside of a call. It must not block, wait for the
//! store, or take a lock that is held across a call.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let temporary = tempfile::tempdir()?;
//! # let dir = temporary.path().join("store");
//! use pagetier::blocking::PageStore;
//!
//! let store = PageStore::open(pagetier::PageStore::builder().directory(&dir).ssd_bytes(64 << 20))?;
//! let space = store.spaces().create("greetings")?;
//! let mut page = store.allocate(space)?;
//! page[..5].copy_from_slice(b"hello");
//! let id = page.id();
//! drop(page);
//! store.sync()?;
//! assert_eq!(&store.get(id)?[..5], b"hello");
//! store.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! A call may also be made on a thread that runs tasks of a tokio runtime. It stops that thread's other tasks
//! until it completes, so it must not wait for a guard that one of them holds: there,
//! [`pagetier::PageStore`](crate::PageStore) serves better.

mod backups;
mod driver;
mod handles;
mod owned;

use crate::backup::{BackupError, BackupOptions, BackupReport, RestoreProgress, RestoreReport};
use crate::device::SharedDevice;
use crate::errors::HotSetError;
use crate::inspect::Inspection;
use crate::log::LogMark;
use crate::stats::{StatsExport, StatsExportError};
use crate::{
    Builder, Costs, Error, HotSetReport, Loss, Lsn, OpenError, PageId, PageMut, PageRef, PageSize, SpaceId,
    SsdReplacement,
};
pub use backups::Backups;
pub use driver::Driver;
pub use handles::{Estimates, Policies, Scrub, Spaces, Ssd, SsdEvents, Trace};
use std::future::Future;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// An open store with blocking calls. Share it in an `Arc`, or by reference between scoped threads.
///
/// Dropping it without [`PageStore::close`] is equivalent to a crash: nothing that [`PageStore::sync`]
/// promised is lost.
#[derive(Debug)]
pub struct PageStore {
    /// Dropped before the runtime that it runs on.
    store: crate::PageStore,
    driver: Driver,
}

impl PageStore {
    /// Opens, or creates, the store that `builder` describes.
    ///
    /// # Errors
    /// As [`Builder::open`]; [`OpenError::Runtime`] when the runtime or its thread cannot be started.
    #[inline]
    pub fn open(builder: Builder) -> Result<Self, OpenError> {
        let driver = started()?;
        let store = driver.block_on(builder.open())?;
        Ok(Self { store, driver })
    }

    /// Opens the store that `builder` describes without changing anything.
    ///
    /// # Errors
    /// As [`Builder::open_read_only`]; [`OpenError::Runtime`].
    #[inline]
    pub fn open_read_only(builder: Builder) -> Result<Self, OpenError> {
        let driver = started()?;
        let store = driver.block_on(builder.open_read_only())?;
        Ok(Self { store, driver })
    }

    /// The asynchronous store, for calls that do not wait, such as
    /// [`pagetier::PageStore::stats`](crate::PageStore::stats) and
    /// [`pagetier::PageStore::prefetch`](crate::PageStore::prefetch).
    #[must_use]
    pub fn store(&self) -> &crate::PageStore {
        &self.store
    }

    /// Waits for `future` on this thread, for a combination of the asynchronous store's methods.
    #[inline]
    pub fn block_on<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        self.driver.block_on(future)
    }

    /// See [`pagetier::PageStore::get`](crate::PageStore::get).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn get(&self, page: PageId) -> Result<PageRef<'_>, Error> {
        match self.store.try_get(page) {
            Some(page) => Ok(page),
            None => self.block_on(self.store.get(page)),
        }
    }

    /// See [`pagetier::PageStore::get_many`](crate::PageStore::get_many).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn get_many(&self, pages: &[PageId]) -> Result<Vec<PageRef<'_>>, Error> {
        self.block_on(self.store.get_many(pages))
    }

    /// See [`pagetier::PageStore::get_mut`](crate::PageStore::get_mut).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn get_mut(&self, page: PageId) -> Result<PageMut<'_>, Error> {
        match self.store.try_get_mut(page) {
            Some(page) => Ok(page),
            None => self.block_on(self.store.get_mut(page)),
        }
    }

    /// See [`pagetier::PageStore::exists`](crate::PageStore::exists).
    #[must_use]
    #[inline]
    pub fn exists(&self, page: PageId) -> bool {
        self.store.exists(page)
    }

    /// See [`pagetier::PageStore::free_on_sync`](crate::PageStore::free_on_sync).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn free_on_sync(&self, pages: &[PageId]) -> Result<u32, Error> {
        self.store.free_on_sync(pages)
    }

    /// Reads the pages of `range` in order, with read-ahead. See
    /// [`pagetier::PageStore::scan`](crate::PageStore::scan).
    #[inline]
    pub fn scan(&self, space: SpaceId, range: Range<u32>) -> Scan<'_> {
        Scan { store: self, scan: self.store.scan(space, range) }
    }

    /// See [`pagetier::PageStore::close`](crate::PageStore::close).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn close(self) -> Result<(), Error> {
        let Self { store, driver } = self;
        driver.block_on(store.close())
    }
}

/// Defines blocking forms of the asynchronous store's methods, under their names. They are inlined, so that
/// the futures that they wait for are compiled only in crates that call them.
macro_rules! blocking {
    // A method whose first argument is a path.
    ($($name:ident(path $(, $arg:ident: $type:ty)*) -> Result<$ok:ty, $err:ty>;)+) => {
        $(
            #[doc = concat!("See [`crate::PageStore::", stringify!($name), "`].\n\n# Errors\nAs there.")]
            #[inline]
            pub fn $name(&self, path: impl AsRef<Path> $(, $arg: $type)*) -> Result<$ok, $err> {
                self.block_on(self.store.$name(path.as_ref() $(, $arg)*))
            }
        )*
    };
    ($($name:ident($($arg:ident: $type:ty),*) -> Result<$ok:ty, $err:ty>;)*) => {
        $(
            #[doc = concat!("See [`crate::PageStore::", stringify!($name), "`].\n\n# Errors\nAs there.")]
            #[inline]
            pub fn $name(&self, $($arg: $type),*) -> Result<$ok, $err> {
                self.block_on(self.store.$name($($arg),*))
            }
        )*
    };
}

impl PageStore {
    blocking! {
        allocate(space: SpaceId) -> Result<PageMut<'_>, Error>;
        overwrite(page: PageId) -> Result<PageMut<'_>, Error>;
        get_or_create(page: PageId) -> Result<PageMut<'_>, Error>;
        discard(page: PageId) -> Result<(), Error>;
        free(page: PageId) -> Result<(), Error>;
        free_pages(pages: &[PageId]) -> Result<u32, Error>;
        sync() -> Result<(), Error>;
        flush_to(lsn: Lsn) -> Result<(), Error>;
        flush() -> Result<(), Error>;
        redo_from(log_end: Lsn, loss: Loss) -> Result<Lsn, Error>;
        record_log(mark: LogMark) -> Result<(), Error>;
        resize_pool(bytes: u64) -> Result<u64, Error>;
        replace_ssd(new: SsdReplacement) -> Result<(), Error>;
        keep_hot_set(every: Duration) -> Result<(), Error>;
        shutdown() -> Result<(), Error>;
    }

    blocking! {
        backup(path, options: BackupOptions) -> Result<BackupReport, BackupError>;
        export_hot(path) -> Result<u64, HotSetError>;
        import_hot(path) -> Result<HotSetReport, HotSetError>;
        export_stats(path, every: Duration) -> Result<StatsExport, StatsExportError>;
    }
}

/// Creates a store from backups. See [`Builder::restore`].
///
/// # Errors
/// As there; [`BackupError::Open`] with [`OpenError::Runtime`].
#[inline]
pub fn restore(
    builder: Builder,
    from: impl AsRef<Path>,
    upto: Option<u32>,
    progress: impl Fn(RestoreProgress) + Send,
) -> Result<RestoreReport, BackupError> {
    started()?.block_on(builder.restore(from.as_ref(), upto, progress))
}

/// Describes a store that is not open. See [`Builder::inspect`].
///
/// # Errors
/// As there; [`OpenError::Runtime`].
#[inline]
pub fn inspect(builder: Builder) -> Result<Inspection, OpenError> {
    started()?.block_on(builder.inspect())
}

/// Measures the costs of two devices. See [`pagetier::calibrate`](crate::calibrate).
///
/// # Errors
/// [`OpenError::Device`], [`OpenError::Runtime`].
#[inline]
pub fn calibrate(
    hdd: &SharedDevice,
    hdd_from: u64,
    ssd: &SharedDevice,
    ssd_from: u64,
    page_size: PageSize,
    budget: Duration,
) -> Result<Costs, OpenError> {
    Ok(started()?.block_on(crate::calibrate(hdd, hdd_from, ssd, ssd_from, page_size, budget))?)
}

fn started() -> Result<Driver, OpenError> {
    Driver::start().map_err(|source| OpenError::Runtime { source })
}

/// The pages of a range, in order. See [`PageStore::scan`].
#[derive(Debug)]
pub struct Scan<'a> {
    store: &'a PageStore,
    scan: crate::Scan<'a>,
}

impl<'a> Iterator for Scan<'a> {
    type Item = Result<PageRef<'a>, Error>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.store.block_on(self.scan.next())
    }
}
