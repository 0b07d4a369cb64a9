//! The store for code without an async runtime: every call blocks its thread until it completes.
//!
//! Callers that wait run the tokio runtime that [`pagetier::PageStore`](crate::PageStore) needs, and a thread
//! of the store does in between; any number of threads may use the store at the same time. The calls of a
//! page's life have blocking forms under their names; the store derefs to the asynchronous one, which has the
//! methods that do not wait, and [`PageStore::block_on`] waits for any other one. Without a store (to restore
//! one, to inspect it, to list backups), a [`Driver`] does.
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
//! let space = store.block_on(store.spaces().create("greetings"))?;
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

mod driver;

use crate::{Builder, Error, OpenError, OwnedPageRef, OwnedScan, PageId, PageMut, PageRef, Pages, SpaceId};
pub use driver::Driver;
use std::future::Future;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// An open store with blocking calls, under the names and with the errors of the asynchronous ones. Share it
/// in an `Arc`, or by reference between scoped threads.
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

    /// Waits for `future` on this thread: for a call of the asynchronous store, or several. What starts a
    /// task there, such as a scrub, needs a future around it.
    ///
    /// ```
    /// # use pagetier::{Error, blocking::PageStore, scrub::ScrubOptions};
    /// # fn example(store: &PageStore) -> Result<(), Error> {
    /// store.block_on(store.flush())?;
    /// let scrub = store.block_on(async { store.scrub(ScrubOptions::default()) });
    /// println!("{:?}", store.block_on(scrub.finished()));
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn block_on<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        self.driver.block_on(future)
    }

    /// See [`pagetier::PageStore::get`](crate::PageStore::get).
    #[inline]
    pub fn get(&self, page: PageId) -> Result<PageRef<'_>, Error> {
        match self.store.try_get(page) {
            Some(page) => Ok(page),
            None => self.block_on(self.store.get(page)),
        }
    }

    /// See [`pagetier::PageStore::get_mut`](crate::PageStore::get_mut).
    #[inline]
    pub fn get_mut(&self, page: PageId) -> Result<PageMut<'_>, Error> {
        match self.store.try_get_mut(page) {
            Some(page) => Ok(page),
            None => self.block_on(self.store.get_mut(page)),
        }
    }

    /// See [`pagetier::PageStore::allocate`](crate::PageStore::allocate).
    #[inline]
    pub fn allocate(&self, space: SpaceId) -> Result<PageMut<'_>, Error> {
        self.block_on(self.store.allocate(space))
    }

    /// See [`pagetier::PageStore::overwrite`](crate::PageStore::overwrite).
    #[inline]
    pub fn overwrite(&self, page: PageId) -> Result<PageMut<'_>, Error> {
        self.block_on(self.store.overwrite(page))
    }

    /// See [`pagetier::PageStore::get_or_create`](crate::PageStore::get_or_create).
    #[inline]
    pub fn get_or_create(&self, page: PageId) -> Result<PageMut<'_>, Error> {
        self.block_on(self.store.get_or_create(page))
    }

    /// Frees those of `pages` that exist. See [`pagetier::PageStore::free`](crate::PageStore::free).
    #[inline]
    pub fn free(&self, pages: impl Into<Pages>) -> Result<u32, Error> {
        self.block_on(self.store.free(pages.into()))
    }

    /// Reads the pages of `range` in order, with read-ahead. See
    /// [`pagetier::PageStore::scan`](crate::PageStore::scan).
    #[inline]
    pub fn scan(&self, space: SpaceId, range: Range<u32>) -> Scan<'_> {
        Scan { store: self, scan: self.store.scan(space, range) }
    }

    /// See [`pagetier::PageStore::sync`](crate::PageStore::sync).
    #[inline]
    pub fn sync(&self) -> Result<(), Error> {
        self.block_on(self.store.sync())
    }

    /// See [`pagetier::PageStore::close`](crate::PageStore::close).
    #[inline]
    pub fn close(self) -> Result<(), Error> {
        let Self { store, driver } = self;
        driver.block_on(store.close())
    }
}

impl Deref for PageStore {
    type Target = crate::PageStore;

    fn deref(&self) -> &crate::PageStore {
        &self.store
    }
}

impl AsRef<crate::PageStore> for PageStore {
    fn as_ref(&self) -> &crate::PageStore {
        &self.store
    }
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

impl Scan<'_> {
    /// The same scan, which keeps `store` open, its runtime included. See
    /// [`pagetier::PageRef::into_owned`](PageRef::into_owned).
    ///
    /// # Panics
    /// The scan is of another store.
    #[must_use]
    pub fn into_owned(self, store: &Arc<PageStore>) -> OwnedScan<PageStore> {
        self.scan.into_owned(store)
    }
}

impl Iterator for OwnedScan<PageStore> {
    type Item = Result<OwnedPageRef<PageStore>, Error>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let page = self.store.block_on(self.cursor.next(&self.store.store.pool))?;
        Some(page.map(|page| PageRef(page).into_owned(&self.store)).map_err(Error::from))
    }
}
