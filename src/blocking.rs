//! The store for code without an async runtime: every call blocks its thread until it completes.
//!
//! A thread of the store runs the tokio runtime that [`crate::PageStore`] needs; any number of threads may
//! use the store at the same time. [`PageStore::store`] and [`PageStore::block_on`] give access to all other
//! methods.
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
//! # Panics
//! Every blocking call panics on a thread that runs tasks of a tokio runtime, where blocking would stop the
//! other tasks: use [`crate::PageStore`] there.

use crate::{Builder, Error, Loss, Lsn, OpenError, PageId, PageMut, PageRef, SpaceHints, SpaceId, SpaceInfo};
use std::future::Future;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Notify;

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
    pub fn open(builder: Builder) -> Result<Self, OpenError> {
        let driver = Driver::start().map_err(|source| OpenError::Runtime { source })?;
        let store = driver.handle.block_on(builder.open())?;
        Ok(Self { store, driver })
    }

    /// The asynchronous store, for calls that do not wait, such as [`crate::PageStore::stats`] and
    /// [`crate::PageStore::prefetch`].
    #[must_use]
    pub fn store(&self) -> &crate::PageStore {
        &self.store
    }

    /// Waits for `future` on this thread; for methods of [`PageStore::store`] that have no blocking form.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.driver.handle.block_on(future)
    }

    /// See [`crate::PageStore::spaces`].
    #[must_use]
    pub fn spaces(&self) -> Spaces<'_> {
        Spaces(self)
    }

    /// See [`crate::PageStore::get`].
    ///
    /// # Errors
    /// As there.
    pub fn get(&self, page: PageId) -> Result<PageRef<'_>, Error> {
        match self.store.try_get(page) {
            Some(page) => Ok(page),
            None => self.block_on(self.store.get(page)),
        }
    }

    /// Reads the pages of `range` in order, with read-ahead. See [`crate::PageStore::scan`].
    pub fn scan(&self, space: SpaceId, range: Range<u32>) -> Scan<'_> {
        Scan { store: self, scan: self.store.scan(space, range) }
    }

    /// See [`crate::PageStore::close`].
    ///
    /// # Errors
    /// As there.
    pub fn close(self) -> Result<(), Error> {
        let Self { store, driver } = self;
        driver.handle.block_on(store.close())
    }
}

/// Defines blocking forms of the asynchronous store's methods, under their names.
macro_rules! blocking {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            #[doc = concat!("See [`crate::PageStore::", stringify!($name), "`].\n\n# Errors\nAs there.")]
            pub fn $name(&self, $($arg: $type),*) -> Result<$result, Error> {
                self.block_on(self.store.$name($($arg),*))
            }
        )*
    };
}

impl PageStore {
    blocking! {
        allocate(space: SpaceId) -> PageMut<'_>;
        get_mut(page: PageId) -> PageMut<'_>;
        overwrite(page: PageId) -> PageMut<'_>;
        create(page: PageId) -> PageMut<'_>;
        recreate(page: PageId) -> PageMut<'_>;
        discard(page: PageId) -> ();
        free(page: PageId) -> ();
        free_pages(pages: &[PageId]) -> u32;
        sync() -> ();
        flush_to(lsn: Lsn) -> ();
        redo_from(log_end: Lsn, loss: Loss) -> Lsn;
        shutdown() -> ();
    }
}

/// The spaces of a store. See [`PageStore::spaces`].
#[derive(Clone, Copy, Debug)]
pub struct Spaces<'a>(&'a PageStore);

impl Spaces<'_> {
    /// See [`crate::Spaces::find`].
    #[must_use]
    pub fn find(self, name: &str) -> Option<SpaceId> {
        self.0.store.spaces().find(name)
    }

    /// See [`crate::Spaces::list`].
    #[must_use]
    pub fn list(self) -> Vec<SpaceInfo> {
        self.0.store.spaces().list()
    }

    /// See [`crate::Spaces::pages`].
    ///
    /// # Errors
    /// As there.
    pub fn pages(self, space: SpaceId) -> Result<u32, Error> {
        self.0.store.spaces().pages(space)
    }

    /// See [`crate::Spaces::set_hints`].
    ///
    /// # Errors
    /// As there.
    pub fn set_hints(self, space: SpaceId, hints: SpaceHints) -> Result<(), Error> {
        self.0.store.spaces().set_hints(space, hints)
    }

    /// See [`crate::Spaces::hints`].
    ///
    /// # Errors
    /// As there.
    pub fn hints(self, space: SpaceId) -> Result<SpaceHints, Error> {
        self.0.store.spaces().hints(space)
    }

    /// See [`crate::Spaces::free`].
    ///
    /// # Errors
    /// As there.
    pub fn free(self, space: SpaceId, range: Range<u32>) -> Result<u32, Error> {
        self.0.block_on(self.0.store.spaces().free(space, range))
    }

    /// See [`crate::Spaces::shrink`].
    ///
    /// # Errors
    /// As there.
    pub fn shrink(self, space: SpaceId) -> Result<u64, Error> {
        self.0.block_on(self.0.store.spaces().shrink(space))
    }

    /// See [`crate::Spaces::create`].
    ///
    /// # Errors
    /// As there.
    pub fn create(self, name: &str) -> Result<SpaceId, Error> {
        self.0.block_on(self.0.store.spaces().create(name))
    }

    /// See [`crate::Spaces::create_as`].
    ///
    /// # Errors
    /// As there.
    pub fn create_as(self, id: SpaceId, name: &str) -> Result<(), Error> {
        self.0.block_on(self.0.store.spaces().create_as(id, name))
    }

    /// See [`crate::Spaces::remove`].
    ///
    /// # Errors
    /// As there.
    pub fn remove(self, space: SpaceId) -> Result<(), Error> {
        self.0.block_on(self.0.store.spaces().remove(space))
    }
}

/// The pages of a range, in order. See [`PageStore::scan`].
#[derive(Debug)]
pub struct Scan<'a> {
    store: &'a PageStore,
    scan: crate::Scan<'a>,
}

impl<'a> Iterator for Scan<'a> {
    type Item = Result<PageRef<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.store.block_on(self.scan.next())
    }
}

/// The runtime of one store, and the thread that drives it.
#[derive(Debug)]
struct Driver {
    handle: Handle,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    fn start() -> io::Result<Self> {
        let runtime: Runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (handle, stop) = (runtime.handle().clone(), Arc::new(Notify::new()));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("pagetier-blocking".into())
            .spawn(move || runtime.block_on(stopped.notified()))?;
        Ok(Self { handle, stop, thread: Some(thread) })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the runtime's thread panicked");
        }
    }
}
