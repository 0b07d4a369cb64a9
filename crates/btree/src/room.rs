//! Bounds the pages that structural changes latch at once. Each holds some of its pages while it waits for
//! others: without a bound, a few hundred of them could pin every frame of a small pool, and none would get
//! the frame that it waits for.

use pagetier::PageStore;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The most pages that a change latches beside those of a value: nodes on its path without room, their right
/// halves, the meta page, and one page of a chain to be freed. A taller path latches more.
pub(crate) const PATH_PAGES: usize = 12;

/// The share of the pool's frames that structural changes of one tree may pin.
#[derive(Debug)]
pub(crate) struct Room {
    pages: Semaphore,
    total: usize,
}

impl Room {
    /// Half of the frames that the pool of `store` has now.
    pub(crate) fn of(store: &PageStore) -> Self {
        let half = usize::try_from(store.stats().frames / 2).unwrap_or(usize::MAX);
        let total = half.clamp(1, u32::MAX as usize);
        Self { pages: Semaphore::new(total.min(Semaphore::MAX_PERMITS)), total }
    }

    /// Waits until the caller may latch that many pages; if that is more than there are, until no other
    /// change has any. First come, first served. The caller holds no latch and not `structure`.
    pub(crate) async fn take(&self, pages: usize) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.pages.acquire_many(pages.min(self.total) as u32).await.ok()
    }
}
