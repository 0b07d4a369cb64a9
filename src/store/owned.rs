//! Guards that keep the store open instead of borrowing it.

use super::guards::{exclusive_guard, guard};
use super::page_store::PageStore;
use crate::error::Error;
use pagetier_page::{Lsn, PageId};
use pagetier_ssdcache::SsdTier;
use std::sync::Arc;

/// A [`PageRef`](crate::PageRef) that keeps the store open instead of borrowing it. See
/// [`PageStore::get_owned`].
pub struct OwnedPageRef {
    page: pagetier_bufpool::OwnedPageRef<SsdTier>,
    /// Dropped after the guard.
    store: Arc<PageStore>,
}

/// A [`PageMut`](crate::PageMut) that keeps the store open instead of borrowing it. See
/// [`PageStore::get_mut_owned`].
pub struct OwnedPageMut {
    page: pagetier_bufpool::OwnedPageMut<SsdTier>,
    /// Dropped after the guard.
    store: Arc<PageStore>,
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
    /// store.get_mut_owned(id).await?[0] = 1;
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
}
