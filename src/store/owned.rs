//! Guards and scans that keep the store open instead of borrowing it.

use super::guards::{PageMut, PageRef, exclusive_guard, guard};
use super::page_store::PageStore;
use crate::error::Error;
use futures_util::stream::{Stream, unfold};
use pagetier_bufpool::Cursor;
use pagetier_page::{Lsn, PageId};
use pagetier_ssdcache::SsdTier;
use std::sync::Arc;

/// A [`PageRef`](crate::PageRef) that keeps the store open instead of borrowing it. `S` is what it keeps: an
/// asynchronous or a [blocking](crate::blocking) store. See [`PageStore::get_owned`].
pub struct OwnedPageRef<S = PageStore> {
    page: pagetier_bufpool::OwnedPageRef<SsdTier>,
    /// Dropped after the guard.
    store: Arc<S>,
}

/// A [`PageMut`](crate::PageMut) that keeps the store open instead of borrowing it, as [`OwnedPageRef`] does.
/// See [`PageStore::get_mut_owned`].
pub struct OwnedPageMut<S = PageStore> {
    page: pagetier_bufpool::OwnedPageMut<SsdTier>,
    /// Dropped after the guard.
    store: Arc<S>,
}

guard!(OwnedPageRef<S>, page, "OwnedPageRef", S);
guard!(OwnedPageMut<S>, page, "OwnedPageMut", S);
exclusive_guard!(OwnedPageMut<S>, page, S);

impl<S> OwnedPageRef<S> {
    /// The guard `page` of a page of `of`, which keeps `store` open.
    #[inline]
    pub(crate) fn new(page: PageRef<'_>, of: &PageStore, store: &Arc<S>) -> Self {
        Self { page: of.pool.own(page.0), store: Arc::clone(store) }
    }

    /// The store that the page belongs to.
    #[must_use]
    pub fn store(&self) -> &Arc<S> {
        &self.store
    }
}

impl<S> OwnedPageMut<S> {
    /// The guard `page` of a page of `of`, which keeps `store` open.
    #[inline]
    pub(crate) fn new(page: PageMut<'_>, of: &PageStore, store: &Arc<S>) -> Self {
        Self { page: of.pool.own(page.0), store: Arc::clone(store) }
    }

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
/// [`PageStore::scan_owned`].
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
        Some(page.map(|page| OwnedPageRef::new(PageRef(page), &self.store, &self.store)).map_err(Error::from))
    }

    /// As [`Scan::into_stream`](crate::Scan::into_stream).
    pub fn into_stream(self) -> impl Stream<Item = Result<OwnedPageRef, Error>> + Send + 'static {
        unfold(self, async |mut scan| Some((scan.next().await?, scan)))
    }
}
