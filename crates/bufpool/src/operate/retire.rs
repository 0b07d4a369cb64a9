//! Ends a pool: writes its pages, removes them from memory, and admits no further page.
//!
//! A hit checks nothing for this. Once [`Pool::retire`] has removed every page from the table, every request
//! is a miss, and misses are refused.
//!
//! 1. Refuse misses. A miss that was let through before has entered its page into the table by then: both
//!    the check and the entry happen under the page's bucket lock, and this step takes every such lock once.
//! 2. Write all dirty pages, in bulk.
//! 3. Latch each page in memory in shared mode, write it if it has changed since, and remove it. While the
//!    latch is held the page cannot be changed, so no change is lost. Other readers keep their guards: the
//!    frame becomes an orphan that the last of them frees.

use crate::state::guard::PageRef;
use crate::state::handle::Pool;
use crate::state::inner::PoolInner;
use crate::state::params::PoolError;
use crate::tier::Tier;
use crate::word::Mode;
use pagetier_devio::listen;
use pagetier_devio::task;
use pagetier_page::PageId;
use pagetier_policy::FramePolicy;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The number of pages removed between two yields to other tasks.
const PAGES_PER_TURN: usize = 256;

impl<T: Tier> Pool<T> {
    /// Ends the pool: writes every dirty page, makes everything written durable, and removes all pages from
    /// memory. Requests fail with [`PoolError::Closed`] once it returns; those for pages not in memory fail
    /// as soon as it begins. Waits for exclusive guards to be dropped, while shared ones may stay. A
    /// cancelled call leaves the pool partly retired: call it again.
    ///
    /// # Errors
    /// The first failure. The pages are removed even so, and what was not written is lost as in a crash.
    pub async fn retire(&self) -> Result<(), PoolError> {
        let inner = &self.inner;
        inner.refuse_misses();
        let mut result = self.flush_all().await;
        let mut unflushed = false;
        for (done, frame) in inner.frames.ids().enumerate() {
            while let Some(page) = inner.frames.at(frame).page() {
                unflushed |= inner.remove(page, &mut result).await;
            }
            if done % PAGES_PER_TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
        if unflushed && result.is_ok() {
            result = inner.tier.flush().await.map_err(PoolError::from);
        }
        self.shutdown().await;
        result
    }
}

impl<T: Tier> PoolInner<T> {
    /// Step 1: when this returns, no further page enters memory.
    pub(crate) fn refuse_misses(&self) {
        self.closing.store(true, Ordering::Release);
        self.frames.table.pass_locks();
        // Wakes the requests that wait for a frame, so that they fail.
        self.frames.freed.notify_waiters();
    }

    /// Step 3 for `page`. Returns whether it had to be written. After a failure, drops changes.
    async fn remove(self: &Arc<Self>, page: PageId, result: &mut Result<(), PoolError>) -> bool {
        let mut wrote = false;
        // The only error is a deadlock, and the shutdown's task holds no guards.
        let Ok(Some(frame)) = self.latch_resident(page, Mode::Shared).await else { return wrote };
        let latched = PageRef::new(&**self, frame);
        let word = &self.frames.at(frame).word;
        while word.is_unwritten() && (result.is_ok() || word.is_cleaning()) {
            listen!(cleaned = self.cleaned, unstaged = self.staged);
            if word.is_cleaning() {
                cleaned.await;
                continue;
            }
            match self.stage_latched(frame) {
                Some(staged) => {
                    wrote = true;
                    let inner = Arc::clone(self);
                    // Runs in its own task, so that a dropped caller leaves no write half done.
                    let write = async move { inner.write_batch(vec![staged]).await };
                    let written = task::outcome(&self.runtime, write).await;
                    let written = written.unwrap_or(Err(PoolError::Closed));
                    *result = std::mem::replace(result, Ok(())).and(written);
                }
                None if word.is_unwritten() => unstaged.await,
                None => {}
            }
        }
        // Only after a failure. The engine must not truncate its log beyond these changes:
        // `min_recovery_lsn` is 0 from here on, and before they are dropped.
        if word.is_unwritten() {
            self.lost.store(true, Ordering::Release);
        }
        // The latch keeps the page in this frame. From here on the policy ignores hits on it.
        self.policy.lock().remove(frame, false);
        self.frames.unlist(frame, page);
        drop(latched);
        wrote
    }
}
