//! Finds free frames: takes the policy's victims, or waits.

use crate::state::exhausted::Exhausted;
use crate::state::inner::{NOT_BARREN, PolicyGuard, PoolInner, bump, bump_under};
use crate::state::params::PoolError;
use crate::tier::{Displaced, Tier};
use crate::waits::patience::Patience;
use crate::waits::stalls::On;
use pagetier_devio::listen;
use pagetier_devio::locks::{self, Rank};
use pagetier_page::PageId;
use pagetier_policy::{FrameId, FramePolicy};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// The interval at which a request that waits for a frame asks the cleaner to retry failed writes at once.
const NEEDED_AGAIN: Duration = Duration::from_millis(50);
/// The maximum time that a task waiting for a frame sleeps before it looks again.
pub(crate) const RETRY: Duration = Duration::from_millis(5);
/// The maximum number of pages that [`Exhausted::Pinned`] names.
const PAGES_MAX: usize = 8;

/// Counts a request that waits for a frame.
struct FrameWaiter<'a>(&'a AtomicU64);

impl<'a> FrameWaiter<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for FrameWaiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<T: Tier> PoolInner<T> {
    /// A frame without a page, for `page`: a free one, or a victim's. Waits for the cleaner if necessary.
    pub(crate) async fn free_frame(&self, page: PageId) -> Result<FrameId, PoolError> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(PoolError::Closed);
        }
        let evicted = || if self.is_barren() { None } else { self.evict() };
        if let Some(frame) = self.frames.take_free().or_else(evicted) {
            return Ok(frame);
        }
        self.wait_for_frame(page).await
    }

    /// Whether a search for a frame is pointless: one of the whole pool has failed, the writes that have
    /// ended since leave no more frames than requests wait for, and another write is under way, whose end
    /// wakes one of them. Where all pages are dirty, each request would otherwise look at every frame, under
    /// the policy's lock.
    pub(crate) fn is_barren(&self) -> bool {
        let waiting = self.frame_waiters.load(Ordering::Relaxed);
        let ended = self.writes_ended.load(Ordering::Relaxed);
        waiting > 0
            && ended.wrapping_sub(self.barren_at.load(Ordering::Relaxed)) <= waiting
            && self.staging.len() < self.staging_made.load(Ordering::Relaxed)
    }

    #[cold]
    async fn wait_for_frame(&self, page: PageId) -> Result<FrameId, PoolError> {
        // Guards may pin every frame.
        locks::waits_for(Rank::Latch);
        bump(&self.counters.waited_for_frame);
        let since = Instant::now();
        let mut asked = None::<Instant>;
        let _waiting = self.stalls.wait(On::Frame, page);
        let (mut barren, mut unasked) = (self.is_barren(), false);
        let _counted = FrameWaiter::new(&self.frame_waiters);
        let rounds = self.rounds.load(Ordering::Relaxed);
        let mut patience = Patience::new(self.opened.exhausted_after);
        loop {
            // A freed frame wakes one waiter, not all of them: otherwise every page write would wake every
            // waiting task, and all but one would search the pool for nothing.
            listen!(freed = self.frames.freed);
            if self.closing.load(Ordering::Acquire) {
                return Err(PoolError::Closed);
            }
            // The policy's choice first. Only a request that would wait otherwise takes a page that
            // the policy did not name, for example because the policy is wrong about which frames are
            // pinned.
            let ended = self.writes_ended.load(Ordering::Relaxed);
            if !barren {
                let frame = self.frames.take_free().or_else(|| self.evict());
                if let Some(frame) = frame.or_else(|| self.evict_any()) {
                    // Found without a wake-up: guards were dropped, perhaps many. Requests that come now
                    // would otherwise wait here in turn, each for a frame that it could have at once.
                    if unasked {
                        self.barren_at.store(NOT_BARREN, Ordering::Relaxed);
                    }
                    return Ok(frame);
                }
                self.barren_at.store(ended, Ordering::Relaxed);
            }
            barren = false;
            // All frames may be pinned by guards of tasks that wait for this very request. An error after
            // a while is the way out; a wait forever would hang the engine.
            if patience.is_over() {
                let (frames, waited) = (self.params().frames, since.elapsed());
                let why = Box::new(self.why_exhausted(rounds));
                return Err(PoolError::Exhausted { page, frames, waited, why });
            }
            self.ask_for_clean(&mut asked);
            // Dropping a pin wakes no waiter: retry periodically.
            let again = tokio::time::sleep(RETRY);
            unasked = tokio::select! { biased; () = freed => false, () = again => true };
        }
    }

    /// Wakes the cleaner on behalf of a task that needs a frame and found none. `asked` is the time of its
    /// last request to retry failed writes at once.
    pub(crate) fn ask_for_clean(&self, asked: &mut Option<Instant>) {
        self.starved.store(true, Ordering::Relaxed);
        self.clean.notify_one();
        // Only periodically, so that failed writes are not retried without a pause.
        if asked.is_none_or(|at| at.elapsed() >= NEEDED_AGAIN) {
            *asked = Some(Instant::now());
            self.need_cleaner();
        }
    }

    /// Takes the frame of the page that the policy values least.
    pub(crate) fn evict(&self) -> Option<FrameId> {
        let mut policy = self.policy.lock();
        self.drain_hits(&mut policy);
        let frames = &self.frames.all;
        // Between the choice and the eviction a hit may pin the victim. A handful of attempts, not a loop
        // without end: the policy's lock is held.
        for _ in 0..8 {
            let victim = policy.victim(&mut |f| frames.get(f.at()).is_some_and(|f| f.word.is_evictable()))?;
            // A policy may return any index, including one that does not exist.
            if frames.get(victim.at()).is_some() && self.evict_from(victim, &mut policy) {
                return Some(victim);
            }
        }
        None
    }

    /// Takes any evictable frame: the policy returned none although there may be one.
    #[cold]
    pub(crate) fn evict_any(&self) -> Option<FrameId> {
        let mut policy = self.policy.lock();
        self.frames
            .ids()
            .find(|frame| self.frames.at(*frame).word.is_evictable() && self.evict_from(*frame, &mut policy))
    }

    /// Evicts `page`, which was in `frame`, if it can leave.
    pub(crate) fn evict_page(&self, page: PageId, frame: FrameId) {
        let mut policy = self.policy.lock();
        // The frame may have changed hands. No eviction does that while the policy is locked.
        let here = self.frames.at(frame).page() == Some(page);
        if here && self.frames.at(frame).word.is_evictable() && self.evict_from(frame, &mut policy) {
            self.frames.give_back(frame);
        }
    }

    /// Evicts the page of frame `victim`. Returns false when the frame has no page, or its page cannot leave.
    pub(crate) fn evict_from(&self, victim: FrameId, policy: &mut PolicyGuard<'_>) -> bool {
        let Some(page) = self.frames.at(victim).page() else { return false };
        let bucket = self.frames.table.lock(page);
        // From here on no lookup can pin the frame. Those that find it in the chain wait for the bucket's
        // lock and then miss.
        if !self.frames.at(victim).word.try_evict() {
            return false;
        }
        // SAFETY: no other task can reach the frame, and none had it pinned.
        let image = unsafe { self.frames.arena.bytes(victim.at()) };
        let logical = self.frames.at(victim).uses.take_logical();
        // Still under the bucket's lock, so before the page can be loaded again. Otherwise it could be
        // loaded, changed and written, and the tier would then take this older image for the newest.
        let displaced = self.tier.evicted(page, logical, image);
        bucket.remove(&self.frames.all, victim);
        drop(bucket);
        // The bucket is free again, the policy is not: a load of the same page into another frame cannot
        // insert it before this removal, or the policy would hold the page twice.
        policy.evicted(victim, page);
        self.displaced(policy, displaced);
        let evicted = bump_under(policy, &self.counters.evictions);
        self.periods.evicted(evicted, self.frames.count());
        self.wake_cleaner();
        true
    }

    /// Informs the policy that a page, if it is in memory, lost its SSD copy to another page.
    pub(crate) fn displaced(&self, policy: &mut PolicyGuard<'_>, displaced: Displaced) {
        let Some(page) = displaced.0 else { return };
        if let Some(frame) = self.frames.table.find(&self.frames.all, page) {
            policy.ssd_evicted(frame);
            self.frames.at(frame).uses.moved();
        }
    }

    /// Counts an eviction, of a caller that has locked the policy, and wakes the cleaner if it is due.
    fn wake_cleaner(&self) {
        let every = self.evictions_per_look.load(Ordering::Relaxed);
        let evicted = self.evicted_since_clean.load(Ordering::Relaxed) + 1;
        // Looked at once: with many frames it is not cheap. Loom would try every outcome of it.
        let rests = evicted == every && !cfg!(loom) && self.frames.unwritten.is_empty();
        // Zero as after a look that found nothing. The cleaner's zero may be overwritten here: then it looks
        // once too often.
        self.evicted_since_clean.store(if rests { 0 } else { evicted }, Ordering::Relaxed);
        if evicted >= every && !rests {
            self.clean.notify_one();
        }
    }

    /// Diagnoses a wait for a frame that began when the cleaner had done `rounds` rounds.
    pub(crate) fn why_exhausted(&self, rounds: u64) -> Exhausted {
        let frames = &self.frames;
        let (mut dirty, mut writing, mut pages) = (0, 0, Vec::new());
        let mut pinned = 0;
        for frame in frames.all.iter() {
            dirty += usize::from(frame.word.is_dirty());
            writing += usize::from(frame.word.is_cleaning());
            if frame.word.pins() > 0 {
                pinned += 1;
                pages.extend(frame.page().filter(|_| pages.len() < PAGES_MAX));
            }
        }
        // The frames change while they are counted; a majority is clear even so.
        if pinned * 2 > frames.count() || dirty + writing == 0 {
            return Exhausted::Pinned { pinned, pages };
        }
        match self.last_failure.lock().clone() {
            Some(PoolError::Log { source, .. }) => Exhausted::Log { dirty, source },
            Some(PoolError::Tier(source)) => Exhausted::Storage { dirty, source },
            // No error, yet the cleaner has not even looked since the wait began: nothing polls its task.
            _ if self.rounds.load(Ordering::Relaxed) == rounds => Exhausted::NotDriven { dirty },
            _ => Exhausted::Slow { dirty, writing, pinned },
        }
    }
}
