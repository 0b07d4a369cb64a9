//! Pages that exist but have no frame yet: [`PageStore::allocate`](crate::PageStore::allocate) and similar
//! calls take a page's number first and then wait for a frame.
//!
//! Freeing such a page finds nothing in memory. If the free returned at once, the number could be reused
//! while the allocation still waits, and two callers would own the page. The free therefore waits until the
//! page has arrived, and then for its guard.

use pagetier_devio::listen;
use pagetier_devio::locks::{self, Rank};
use pagetier_page::{PageId, SpaceId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct Arriving {
    /// The number of callers that each page is arriving for.
    pages: Mutex<FxHashMap<PageId, u32>>,
    arrived: Notify,
}

impl Arriving {
    /// Marks `page` as arriving until the mark is dropped. Call it under the lock of the page's space, which
    /// orders it against calls that free the page.
    pub(crate) fn begin(&self, page: PageId) -> Mark<'_> {
        // Counted: redo may create one page from several tasks at once, and each has a claim on it until its
        // own ends.
        *self.pages.lock().entry(page).or_default() += 1;
        Mark { arriving: self, page }
    }

    /// Waits until no caller has `page` marked as arriving. Its number must not be available for allocation
    /// meanwhile. Cancel-safe.
    pub(crate) async fn ended(&self, page: PageId) {
        self.none(|pages| pages.contains_key(&page)).await;
    }

    /// Waits until no caller has a page of `space` marked as arriving; none may take another one meanwhile.
    /// Cancel-safe.
    pub(crate) async fn ended_in(&self, space: SpaceId) {
        self.none(|pages| pages.keys().any(|page| page.space == space)).await;
    }

    async fn none(&self, arrives: impl Fn(&FxHashMap<PageId, u32>) -> bool) {
        loop {
            // Registered before the look: a page that arrives between look and wait would otherwise never
            // wake us.
            listen!(arrived = self.arrived);
            if !arrives(&self.pages.lock()) {
                return;
            }
            // A caller that a page arrives for may hold guards.
            locks::waits_for(Rank::Latch);
            arrived.await;
        }
    }
}

/// Marks a page as arriving; dropped once its frame is latched, or when the caller gives up.
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
