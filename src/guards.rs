//! Guards: pages in memory, latched and pinned until the guard is dropped.

use crate::error::Error;
use crate::store::PageStore;
use pagetier_page::{Lsn, PageId};
use pagetier_ssdcache::SsdTier;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A page latched in shared mode. Derefs to its payload. See [`PageStore::get`].
///
/// It is `Send` and may be held across `.await`; while it lives, writers of the page wait, and its frame
/// stays in memory.
pub struct PageRef<'a>(pub(crate) pagetier_bufpool::PageRef<'a, SsdTier>);

/// A page latched exclusively. Derefs to its payload; the first mutable access marks the page dirty. See
/// [`PageStore::get_mut`].
///
/// ```
/// # use pagetier::{Lsn, PageMut};
/// /// Changes a page by one log record.
/// fn put(page: &mut PageMut<'_>, at: usize, bytes: &[u8], lsn: Lsn) {
///     page[at..at + bytes.len()].copy_from_slice(bytes);
///     page.set_lsn(lsn);
/// }
/// ```
pub struct PageMut<'a>(pub(crate) pagetier_bufpool::PageMut<'a, SsdTier>);

/// A [`PageRef`] that keeps the store open instead of borrowing it. See [`PageStore::get_owned`].
pub struct OwnedPageRef {
    page: pagetier_bufpool::OwnedPageRef<SsdTier>,
    /// Dropped after the guard.
    store: Arc<PageStore>,
}

/// A [`PageMut`] that keeps the store open instead of borrowing it. See [`PageStore::get_mut_owned`].
pub struct OwnedPageMut {
    page: pagetier_bufpool::OwnedPageMut<SsdTier>,
    /// Dropped after the guard.
    store: Arc<PageStore>,
}

/// A sequential read of a space's pages, with read-ahead. See [`PageStore::scan`].
#[derive(Debug)]
pub struct Scan<'a>(pub(crate) pagetier_bufpool::Scan<'a, SsdTier>);

impl<'a> Scan<'a> {
    /// The next page, or `None` after the last. Skips pages that were never written. Cancel-safe: after a
    /// dropped call the next one returns the same page.
    ///
    /// # Errors
    /// The page cannot be read; the next call continues with the page after it.
    pub async fn next(&mut self) -> Option<Result<PageRef<'a>, Error>> {
        Some(self.0.next().await?.map(PageRef).map_err(Error::from))
    }
}

/// What all four guards have in common: `$guard` wraps a guard of the pool, reached by `$field`.
macro_rules! guard {
    ($guard:ty, $field:tt, $name:literal) => {
        impl $guard {
            /// The page's id.
            #[inline]
            #[must_use]
            pub fn id(&self) -> PageId {
                self.$field.id()
            }

            /// The embedder's log position of the last change; 0 for a page that was never logged.
            #[inline]
            #[must_use]
            pub fn lsn(&self) -> Lsn {
                self.$field.lsn()
            }
        }

        impl Deref for $guard {
            type Target = [u8];

            #[inline]
            fn deref(&self) -> &[u8] {
                &self.$field
            }
        }

        impl fmt::Debug for $guard {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($name, "({})"), self.id())
            }
        }
    };
}

guard!(PageRef<'_>, 0, "PageRef");
guard!(PageMut<'_>, 0, "PageMut");
guard!(OwnedPageRef, page, "OwnedPageRef");
guard!(OwnedPageMut, page, "OwnedPageMut");

impl<'a> PageMut<'a> {
    /// Records that the change made through this guard is logged at `lsn`: the page is not written before the
    /// log is durable up to there. The first LSN after the page was clean is its recovery LSN. Marks the page
    /// dirty.
    #[inline]
    pub fn set_lsn(&mut self, lsn: Lsn) {
        self.0.set_lsn(lsn);
    }

    /// Converts the exclusive latch into a shared one: other readers may enter.
    #[inline]
    #[must_use]
    pub fn downgrade(self) -> PageRef<'a> {
        PageRef(self.0.downgrade())
    }
}

impl DerefMut for PageMut<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl OwnedPageRef {
    /// The store that the page belongs to.
    #[must_use]
    pub fn store(&self) -> &Arc<PageStore> {
        &self.store
    }
}

impl OwnedPageMut {
    /// As [`PageMut::set_lsn`].
    #[inline]
    pub fn set_lsn(&mut self, lsn: Lsn) {
        self.page.set_lsn(lsn);
    }

    /// As [`PageMut::downgrade`].
    #[must_use]
    pub fn downgrade(self) -> OwnedPageRef {
        OwnedPageRef { page: self.page.downgrade(), store: self.store }
    }

    /// The store that the page belongs to.
    #[must_use]
    pub fn store(&self) -> &Arc<PageStore> {
        &self.store
    }
}

impl DerefMut for OwnedPageMut {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.page
    }
}

impl PageStore {
    /// As [`PageStore::get`]; the guard keeps the store open instead of borrowing it, for a guard in a
    /// `'static` task or in a structure beside the store. A store that such a guard holds cannot be closed by
    /// value: see [`PageStore::shutdown`]. Cancel-safe.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let temporary = tempfile::tempdir()?;
    /// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
    /// let store = std::sync::Arc::new(builder.open().await?);
    /// let space = store.spaces().create("t").await?;
    /// let id = store.allocate(space).await?.id();
    /// let page = store.get_owned(id).await?;
    /// let first = tokio::spawn(async move { page[0] }).await?;
    /// assert_eq!(first, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`PageStore::get`].
    pub async fn get_owned(self: &Arc<Self>, page: PageId) -> Result<OwnedPageRef, Error> {
        Ok(OwnedPageRef { page: self.pool.get_owned(page).await?, store: Arc::clone(self) })
    }

    /// As [`PageStore::get_mut`]; the guard keeps the store open instead of borrowing it, as with
    /// [`PageStore::get_owned`]. Cancel-safe.
    ///
    /// # Errors
    /// As [`PageStore::get`].
    pub async fn get_mut_owned(self: &Arc<Self>, page: PageId) -> Result<OwnedPageMut, Error> {
        Ok(OwnedPageMut { page: self.pool.get_mut_owned(page).await?, store: Arc::clone(self) })
    }

    /// The page, latched exclusively, if it is in memory and its latch is free; never waits.
    #[must_use]
    pub fn try_get_mut(&self, page: PageId) -> Option<PageMut<'_>> {
        self.pool.try_get_mut(page).map(PageMut)
    }
}
