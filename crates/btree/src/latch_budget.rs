//! Bounds the pages that structural changes latch at once. Each holds some of its pages while it waits for
//! others: without a bound, a few hundred of them could pin every frame of a small pool, and none would get
//! the frame that it waits for.

use pagetier::PageStore;
use std::sync::{Mutex as SyncMutex, MutexGuard, PoisonError};
use tokio::sync::{Mutex, Notify};

/// The maximum number of pages that a change latches beside those of a value: nodes on its path that must be
/// split, their right halves, the meta page, and one page of a chain to be freed. A taller path latches more.
pub(crate) const PATH_PAGES: usize = 12;

/// The share of the pool's frames that structural changes of one tree may pin: half of those that the pool
/// has at the time.
#[derive(Debug, Default)]
pub(crate) struct LatchBudget {
    /// Held by the change that is next: first come, first served.
    turn: Mutex<()>,
    taken: SyncMutex<usize>,
    given_back: Notify,
}

/// The pages that a change may latch until this is dropped.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    budget: &'a LatchBudget,
    pages: usize,
}

impl LatchBudget {
    /// Waits until the caller may latch that many pages; if that is more than there are, until no other
    /// change has any. First come, first served. The caller holds no latch and not `structure`. Cancel-safe.
    pub(crate) async fn take(&self, store: &PageStore, pages: usize) -> Taken<'_> {
        // Keep the turn while waiting: otherwise a stream of small changes could overtake a large one for
        // ever.
        let _turn = self.turn.lock().await;
        while !self.try_take(half_of(store), pages) {
            self.given_back.notified().await;
        }
        Taken { budget: self, pages }
    }

    fn try_take(&self, total: usize, pages: usize) -> bool {
        let mut taken = self.taken();
        // A change that needs more than the whole share runs alone, as it would otherwise wait for ever.
        let fits = *taken == 0 || taken.saturating_add(pages) <= total;
        if fits {
            *taken += pages;
        }
        fits
    }

    fn taken(&self) -> MutexGuard<'_, usize> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.budget.taken() -= self.pages;
        // Only the change whose turn it is waits for this; the next one looks before it waits.
        self.budget.given_back.notify_one();
    }
}

/// Half of the frames that the pool of `store` has now.
fn half_of(store: &PageStore) -> usize {
    usize::try_from(store.frames() / 2).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_waits_for_its_share_of_the_frames_that_there_are_now() {
        let budget = LatchBudget::default();
        let take = |total, pages| budget.try_take(total, pages).then(|| Taken { budget: &budget, pages });
        let first = take(10, 6).unwrap();
        assert!(take(10, 5).is_none());
        // The pool has grown.
        let second = take(20, 5).unwrap();
        // It has shrunk below what is taken.
        drop(second);
        assert!(take(5, 1).is_none());
        drop(first);
        // More than there is: alone.
        let alone = take(5, 12).unwrap();
        assert!(take(20, 12).is_none() && take(24, 12).is_some());
        drop(alone);
        assert_eq!(*budget.taken(), 0);
    }
}
