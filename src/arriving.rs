//! Pages that exist and have no frame yet: [`PageStore::allocate`](crate::PageStore::allocate) and the like
//! take a page's number first, and then wait for a frame.
//!
//! Freeing such a page finds nothing in memory. If it ended there, the number could be used again, and two
//! callers would own the page; so it waits until the page has arrived, and then for the guard.

use pagetier_page::PageId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct Arriving {
    /// With the number of callers of each.
    pages: Mutex<FxHashMap<PageId, u32>>,
    arrived: Notify,
}

impl Arriving {
    /// `page` arrives until the mark is dropped. Called under the lock of the page's space, which orders it
    /// before or after a call that frees the page.
    pub(crate) fn begin(&self, page: PageId) -> Mark<'_> {
        *self.pages.lock().entry(page).or_default() += 1;
        Mark { arriving: self, page }
    }

    /// Waits until `page`, whose number cannot be taken meanwhile, does not arrive. Cancel-safe.
    pub(crate) async fn ended(&self, page: PageId) {
        loop {
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            if !self.pages.lock().contains_key(&page) {
                return;
            }
            arrived.await;
        }
    }
}

/// A page that arrives; dropped once its frame is latched, or if the caller gives up.
#[derive(Debug)]
#[must_use]
pub(crate) struct Mark<'a> {
    arriving: &'a Arriving,
    page: PageId,
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        let mut pages = self.arriving.pages.lock();
        if let Some(callers) = pages.get_mut(&self.page) {
            *callers -= 1;
            if *callers == 0 {
                pages.remove(&self.page);
                self.arriving.arrived.notify_waiters();
            }
        }
    }
}
