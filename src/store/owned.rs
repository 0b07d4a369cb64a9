//! Guards and scans that keep the store open instead of borrowing it.

use super::guards::{PageMut, PageRef, Scan, exclusive_guard, guard};
use super::page_store::PageStore;
use crate::error::Error;
use futures_util::stream::{Stream, unfold};
use pagetier_bufpool::Cursor;
use pagetier_page::{Lsn, PageId};
use pagetier_ssdcache::SsdTier;
use std::sync::Arc;

/// A [`PageRef`](crate::PageRef) that keeps the store open instead of borrowing it. `S` is what it keeps: an
/// asynchronous or a [blocking](crate::blocking) store. See [`PageRef::into_owned`].
pub struct OwnedPageRef<S = PageStore> {
    page: pagetier_bufpool::OwnedPageRef<SsdTier>,
    /// Dropped after the guard.
    store: Arc<S>,
}

/// A [`PageMut`](crate::PageMut) that keeps the store open instead of borrowing it, as [`OwnedPageRef`] does.
/// See [`PageMut::into_owned`].
pub struct OwnedPageMut<S = PageStore> {
    page: pagetier_bufpool::OwnedPageMut<SsdTier>,
    /// Dropped after the guard.
    store: Arc<S>,
}

guard!(OwnedPageRef<S>, page, "OwnedPageRef", S);
guard!(OwnedPageMut<S>, page, "OwnedPageMut", S);
exclusive_guard!(OwnedPageMut<S>, page, S);

impl PageRef<'_> {
    /// The same guard, which keeps `store` open instead of borrowing it: for a guard in a `'static` task or
    /// in a structure beside the store. A store that such a guard holds cannot be closed by value: see
    /// [`PageStore::shutdown`]. [`PageMut`] and [`Scan`] have the same method.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let temporary = tempfile::tempdir()?;
    /// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
    /// let store = std::sync::Arc::new(builder.open().await?);
    /// let space = store.spaces().create("t").await?;
    /// let new = store.allocate(space).await?.into_owned(&store);
    /// let id = tokio::spawn(async move { new.id() }).await?;
    /// let page = store.get(id).await?.into_owned(&store);
    /// assert!(page.store().exists(id));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// The guard is of another store.
    #[inline]
    #[must_use]
    pub fn into_owned<S: AsRef<PageStore>>(self, store: &Arc<S>) -> OwnedPageRef<S> {
        OwnedPageRef { page: (**store).as_ref().pool.own(self.0), store: Arc::clone(store) }
    }
}

impl PageMut<'_> {
    /// The same guard, which keeps `store` open: see [`PageRef::into_owned`].
    ///
    /// # Panics
    /// The guard is of another store.
    #[inline]
    #[must_use]
    pub fn into_owned<S: AsRef<PageStore>>(self, store: &Arc<S>) -> OwnedPageMut<S> {
        OwnedPageMut { page: (**store).as_ref().pool.own(self.0), store: Arc::clone(store) }
    }
}

impl Scan<'_> {
    /// The same scan, which keeps `store` open, as its guards do: see [`PageRef::into_owned`].
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &std::sync::Arc<PageStore>, space: SpaceId)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use futures_util::TryStreamExt;
    ///
    /// let pages = store.scan(space, 0..u32::MAX).into_owned(store).into_stream();
    /// let sum = pages.try_fold(0, |sum, page| async move { Ok(sum + u64::from(page[0])) }).await?;
    /// # let _ = sum;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// The scan is of another store.
    #[must_use]
    pub fn into_owned<S: AsRef<PageStore>>(self, store: &Arc<S>) -> OwnedScan<S> {
        assert!(std::ptr::eq(self.store, (**store).as_ref()), "a scan of another store");
        OwnedScan { cursor: self.cursor, store: Arc::clone(store) }
    }
}

impl AsRef<PageStore> for PageStore {
    fn as_ref(&self) -> &PageStore {
        self
    }
}

impl<S> OwnedPageRef<S> {
    /// The store that the page belongs to.
    #[must_use]
    pub fn store(&self) -> &Arc<S> {
        &self.store
    }
}

impl<S> OwnedPageMut<S> {
    /// Converts the exclusive latch into a shared one: other readers may enter.
    #[must_use]
    pub fn downgrade(self) -> OwnedPageRef<S> {
        OwnedPageRef { page: self.page.downgrade(), store: self.store }
    }

    /// The store that the page belongs to.
    #[must_use]
    pub fn store(&self) -> &Arc<S> {
        &self.store
    }
}

/// A [`Scan`](crate::Scan) that keeps the store open instead of borrowing it, as its guards do. See
/// [`Scan::into_owned`].
#[derive(Debug)]
pub struct OwnedScan<S = PageStore> {
    pub(crate) cursor: Cursor,
    pub(crate) store: Arc<S>,
}

impl OwnedScan {
    /// As [`Scan::next`](crate::Scan::next).
    ///
    /// # Errors
    /// As there.
    pub async fn next(&mut self) -> Option<Result<OwnedPageRef, Error>> {
        let page = self.cursor.next(&self.store.pool).await?;
        Some(page.map(|page| PageRef(page).into_owned(&self.store)).map_err(Error::from))
    }

    /// As [`Scan::into_stream`](crate::Scan::into_stream).
    pub fn into_stream(self) -> impl Stream<Item = Result<OwnedPageRef, Error>> + Send + 'static {
        unfold(self, async |mut scan| Some((scan.next().await?, scan)))
    }
}
