//! Changes the number of frames while the pool is in use.
//!
//! Frames never move, and keep their ids. A growing pool first takes back frames that it gave up earlier, and
//! then adds new ones after the last. A shrinking pool gives up frames anywhere: first free ones, then those
//! of the pages that the policy evicts next. The coldest pages therefore leave, and a pinned page blocks the
//! shrink only when too few others are left.

use crate::read::evict::RETRY;
use crate::state::handle::Pool;
use crate::state::inner::PoolInner;
use crate::state::params::PoolError;
use crate::tier::Tier;
use crate::waits::patience::Patience;
use pagetier_devio::IoBuf;
use pagetier_devio::listen;
use pagetier_policy::{FrameId, FramePolicy};
use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::Instant;

/// The number of frames taken between two yields to other tasks.
const FRAMES_PER_TURN: usize = 64;

/// The number of frames whose memory is given back at a time: one system call per run of neighbours.
const FRAMES_PER_RELEASE: usize = 4096;

impl<T: Tier> Pool<T> {
    /// Changes the number of frames to `frames`, or to 1 if that is 0. Hits continue undisturbed and guards
    /// stay valid.
    ///
    /// A growing pool has its memory when this returns. When the page table doubles, misses wait for it: some
    /// milliseconds per hundred thousand frames. A shrinking pool evicts: it writes dirty pages, and waits
    /// for pinned ones when too few others are left. The pages' memory returns to the system; the frames'
    /// metadata does not. Parameters whose defaults depend on the number of frames are adjusted, unless they
    /// were set.
    ///
    /// Cancel-safe: a pool that was shrinking keeps the size that it has reached. Concurrent calls run one
    /// after the other.
    ///
    /// # Errors
    /// [`PoolError::Memory`] when the system has no memory for more frames, or `frames` exceeds
    /// [`PoolParams::frames_max`](crate::PoolParams::frames_max); the size is unchanged.
    /// [`PoolError::Shrink`] when no frame becomes available for
    /// [`PoolParams::exhausted_after`](crate::PoolParams::exhausted_after). [`PoolError::Closed`].
    pub async fn resize(&self, frames: usize) -> Result<(), PoolError> {
        let inner = &self.inner;
        let _resizing = inner.resizing.lock().await;
        if inner.closing.load(Ordering::Acquire) {
            return Err(PoolError::Closed);
        }
        let (frames, has) = (frames.max(1), inner.frames.count());
        if frames >= has {
            return inner.grow(frames - has).map_err(|e| PoolError::Memory(Arc::new(e)));
        }
        inner.shrink(frames).await
    }
}

impl<T: Tier> PoolInner<T> {
    pub(crate) fn grow(&self, more: usize) -> Result<(), Error> {
        if self.frames.count() + more > self.opened.frames_max.max(self.opened.frames) {
            let why = "the pool reserved no address space for so many frames when it was opened";
            return Err(Error::new(ErrorKind::OutOfMemory, why));
        }
        self.frames.add(more)?;
        self.follow_count();
        Ok(())
    }

    async fn shrink(&self, wanted: usize) -> Result<(), PoolError> {
        let mut shrinking = Shrinking { pool: self, taken: Vec::new() };
        let (mut since, mut asked) = (Instant::now(), None::<Instant>);
        let mut patience = Patience::new(self.opened.exhausted_after);
        let mut rounds = self.rounds.load(Ordering::Relaxed);
        for turn in 1_usize.. {
            // Not for `freed`, which wakes one task: that is a request's turn.
            listen!(cleaned = self.cleaned);
            if self.frames.count() <= wanted {
                break;
            }
            if self.closing.load(Ordering::Acquire) {
                return Err(PoolError::Closed);
            }
            if shrinking.take() {
                // Progress: the limit is on the wait for one frame, not on the whole shrink.
                (since, asked) = (Instant::now(), None);
                patience = Patience::new(self.opened.exhausted_after);
                rounds = self.rounds.load(Ordering::Relaxed);
                if turn % FRAMES_PER_TURN == 0 {
                    tokio::task::yield_now().await;
                }
                continue;
            }
            if patience.is_over() {
                let why = Box::new(self.why_exhausted(rounds));
                let (frames, waited) = (self.frames.count(), since.elapsed());
                return Err(PoolError::Shrink { frames, wanted, waited, why });
            }
            self.ask_for_clean(&mut asked);
            // Dropping a pin wakes no waiter: retry periodically.
            let again = tokio::time::sleep(RETRY);
            tokio::select! { biased; () = cleaned => {}, () = again => {} }
            // Let requests that the same event woke take a frame first.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Adjusts everything that depends on the number of frames.
    fn follow_count(&self) {
        let params = self.opened.resized(self.frames.count());
        *self.sized.write() = params;
        self.evictions_per_look.store(params.evictions_per_look(), Ordering::Relaxed);
        self.policy.lock().set_frames(params.frames);
        self.detector.set_window(params.read_ahead_pages);
        // One caller at a time (`resizing`), so the count cannot change between the test and the addition.
        while self.staging_made.load(Ordering::Relaxed) < params.staging {
            self.staging_made.fetch_add(1, Ordering::Relaxed);
            self.unstage(IoBuf::zeroed(params.page_size.bytes()));
        }
        // Drop surplus staging buffers; those in use are dropped when their writes end.
        while let Some(buf) = self.staging.pop() {
            if !self.drop_staging_buffer() {
                self.unstage(buf);
                break;
            }
        }
    }
}

/// A shrink in progress. When this is dropped, the pool is consistent at the size that it has reached.
pub(crate) struct Shrinking<'a, T: Tier> {
    pub(crate) pool: &'a PoolInner<T>,
    /// Frames whose memory has not been given back yet.
    pub(crate) taken: Vec<FrameId>,
}

impl<T: Tier> Shrinking<'_, T> {
    /// Takes a free frame, or one whose page can be evicted. Returns false when there is none.
    pub(crate) fn take(&mut self) -> bool {
        let pool = self.pool;
        // Free frames cost nothing; then the pages that the policy values least; then any that can leave.
        let frame = pool.frames.take_free().or_else(|| pool.evict()).or_else(|| pool.evict_any());
        let Some(frame) = frame else { return false };
        pool.frames.count_given_up();
        self.taken.push(frame);
        if self.taken.len() == FRAMES_PER_RELEASE {
            self.release();
        }
        true
    }

    fn release(&mut self) {
        self.pool.frames.release_memory(std::mem::take(&mut self.taken));
    }
}

impl<T: Tier> Drop for Shrinking<'_, T> {
    fn drop(&mut self) {
        self.release();
        self.pool.follow_count();
    }
}
