//! Guards that keep the store open instead of borrowing it.

use super::guards::{exclusive_guard, guard};
use super::page_store::PageStore;
use pagetier_page::{Lsn, PageId};
use pagetier_ssdcache::SsdTier;
use std::sync::Arc;

/// A [`PageRef`](crate::PageRef) that keeps the store open instead of borrowing it. See
/// [`PageStore::get_owned`].
pub struct OwnedPageRef {
    pub(super) page: pagetier_bufpool::OwnedPageRef<SsdTier>,
    /// Dropped after the guard.
    pub(super) store: Arc<PageStore>,
}

/// A [`PageMut`](crate::PageMut) that keeps the store open instead of borrowing it. See
/// [`PageStore::get_mut_owned`].
pub struct OwnedPageMut {
    pub(super) page: pagetier_bufpool::OwnedPageMut<SsdTier>,
    /// Dropped after the guard.
    pub(super) store: Arc<PageStore>,
}

guard!(OwnedPageRef, page, "OwnedPageRef");
guard!(OwnedPageMut, page, "OwnedPageMut");
exclusive_guard!(OwnedPageMut, page);

impl OwnedPageRef {
    /// The store that the page belongs to.
    #[must_use]
    pub fn store(&self) -> &Arc<PageStore> {
        &self.store
    }
}

impl OwnedPageMut {
    /// Converts the exclusive latch into a shared one: other readers may enter.
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
