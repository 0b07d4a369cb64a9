//! Lookups and misses.
//!
//! A lookup (1) finds the frame without a lock, (2) pins and latches it in one step, (3) checks that it still
//! holds the page, (4) records the hit. Everything else is cold: waiting for a latch, or a miss.
//!
//! A miss (1) takes a free frame or a victim's; (2) enters the page into the table, latched exclusively, so
//! that other tasks wait for the latch and the page is read once; (3) reads straight into the frame through a
//! lease; (4) informs the policy. A load that fails or is dropped frees its frame once the device is done
//! with it.

use crate::feed::hits::{BATCH, buffer_of_thread};
use crate::frames::frame::Frame;
use crate::frames::page_table::HOPS_MAX;
use crate::frames::set::Frames;
use crate::state::inner::{PolicyGuard, PoolInner, bump_under};
use crate::state::params::PoolError;
use crate::tier::Tier;
use crate::waits::stalls::On;
use crate::word::{Attempt, Mode};
use pagetier_devio::IoBuf;
use pagetier_devio::spans::Work;
use pagetier_page::PageId;
use pagetier_policy::{Access, FrameId, FramePolicy, Location};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::field;

impl Frames {
    /// Steps 1-3 of a lookup in the bucket of `page`. `None`: the page is absent, or its latch is not free.
    #[inline(always)]
    pub(crate) fn hit(&self, bucket: usize, page: PageId, mode: Mode) -> Option<(FrameId, &Frame)> {
        // (1) Without a lock, so it may miss a page that is there (then `get_cold` looks under the lock)
        // or find a frame whose page is just leaving (then the next steps notice).
        let (frame, f) = self.table.walk(&self.all, bucket, page, HOPS_MAX)?;
        // (2) One compare-and-swap. It acquires what the last holder of the latch released: the frame's
        // page id and its bytes.
        if f.word.try_latch(mode) != Attempt::Latched {
            return None;
        }
        // (3) Between (1) and (2) the frame may have been evicted and filled with another page. Checked
        // under the latch, the answer is final: a pinned frame is given no other page.
        if f.page.load(Ordering::Acquire) != page.to_u64() {
            self.release(frame, mode);
            return None;
        }
        Some((frame, f))
    }
}

impl<T: Tier> PoolInner<T> {
    /// Steps 1-4 of a lookup. In line: to save and restore registers would take a sixth of it.
    #[inline(always)]
    pub(crate) fn hit(&self, page: PageId, mode: Mode) -> Option<FrameId> {
        // In a forked process the frames read as zeroes, and a hit would return them as the page.
        // (`get_cold` returns the error.)
        let frames = &*self.frames;
        if !frames.owner.is_here() {
            return None;
        }
        let (frame, f) = frames.hit(frames.table.bucket(page), page, mode)?;
        // Last, whether the pages are still this owner's.
        if !self.claim.holds() {
            frames.release(frame, mode);
            return None;
        }
        // (4) Into a buffer, not to the policy: its lock would be one that every hit of every thread
        // meets.
        self.hits.count(self.note_use(frame, f, mode));
        Some(frame)
    }

    /// Notes a hit for the policy if that wants to hear of it. Returns the number of hits left to count.
    #[inline]
    pub(crate) fn note_use(&self, frame: FrameId, f: &Frame, mode: Mode) -> u64 {
        // While the frame's cache line is at hand. Which pages are hinted to be used once is known under the
        // policy's lock alone: where there are hints, the use is counted there.
        if !self.frames.hints.any() && !f.uses.add(&self.periods) {
            return 1;
        }
        if self.hits.note(buffer_of_thread(), frame, mode == Mode::Exclusive) {
            self.apply_hits();
        }
        0
    }

    #[cold]
    fn apply_hits(&self) {
        match self.policy.try_lock() {
            Some(mut policy) => self.drain_hits(&mut policy),
            // A hit must not wait. If the policy is busy, it misses these hits, which costs it some
            // accuracy at most.
            None => self.hits.note_lost(BATCH),
        }
    }

    /// Passes on this thread's hits.
    pub(crate) fn drain_hits(&self, policy: &mut PolicyGuard<'_>) {
        let hinted = policy.has_hints();
        self.hits.drain(buffer_of_thread(), |frame, write| {
            // The frame may hold another page by now. The hit then counts for that one: rare, and no more
            // than a wrong guess at what is hot.
            let uses = &self.frames.at(frame).uses;
            let wanted = match hinted {
                true => !policy.ignores_uses_of(frame) && uses.add(&self.periods),
                false => uses.is_wanted(&self.periods),
            };
            if wanted {
                policy.hit(frame, write);
                uses.saw(&self.periods);
            }
        });
    }

    /// Waits for the latch, or loads the page.
    #[cold]
    pub(crate) async fn get_cold(self: &Arc<Self>, page: PageId, mode: Mode) -> Result<FrameId, PoolError> {
        self.here()?;
        let frame = self.wait_or_load(page, mode).await?;
        // The wait may have been long.
        self.here().inspect_err(|_| self.frames.release(frame, mode))?;
        Ok(frame)
    }

    async fn wait_or_load(self: &Arc<Self>, page: PageId, mode: Mode) -> Result<FrameId, PoolError> {
        loop {
            if let Some(frame) = self.latch_resident(page, mode).await? {
                self.hits.count(self.note_use(frame, self.frames.at(frame), mode));
                return Ok(frame);
            }
            // Another task entered the page first: wait for its latch like for any page in memory.
            let Some(frame) = self.demand(page).await? else { continue };
            // Requests for the same page queued up during the read: let the readers among them in at once.
            if mode == Mode::Shared && self.frames.at(frame).word.downgrade() {
                self.frames.waiters.grant(frame, &self.frames.at(frame).word);
            }
            return Ok(frame);
        }
    }

    /// A miss of a page that is wanted now, which may continue a sequential access. Returns as
    /// [`PoolInner::miss`].
    pub(crate) async fn demand(self: &Arc<Self>, page: PageId) -> Result<Option<FrameId>, PoolError> {
        let missed = self.miss(page, None).await?;
        if missed.is_some()
            && let Some((from, count)) = self.detector.missed(page)
        {
            self.read_ahead(from, count);
        }
        Ok(missed)
    }

    /// Enters `page` into the table for the free frame `frame`, which becomes latched exclusively. Returns
    /// false when another task was faster, or the pool is closing.
    pub(crate) fn enter(&self, frame: FrameId, page: PageId) -> bool {
        let bucket = self.frames.table.lock(page);
        // Both under the bucket's lock: of two tasks that miss the same page one enters it, and none does
        // once `retire` has passed this lock. So `Relaxed` suffices: the lock orders the flag.
        if bucket.find(&self.frames.all).is_some() || self.closing.load(Ordering::Relaxed) {
            return false;
        }
        // Latched before it can be found: otherwise a lookup would see the bytes of the page before.
        self.frames.at(frame).word.begin_fill();
        bucket.insert(&self.frames.all, frame);
        true
    }

    /// Steps 1 to 4 of a miss. Returns the frame latched exclusively, or `None` when another task was faster.
    /// `access` is the reader's, by default that of the space's hints.
    pub(crate) async fn miss(
        &self,
        page: PageId,
        access: Option<Access>,
    ) -> Result<Option<FrameId>, PoolError> {
        let work = Work::of(|| {
            let (access, tier, error) = (field::Empty, field::Empty, field::Empty);
            tracing::debug_span!(target: "pagetier::miss", "miss", %page, access, tier, error)
        });
        let missed = work.run(async {
            let frame = self.free_frame(page).await?;
            // To find a frame may have taken long. If another task has entered the page meanwhile, that
            // one reads it.
            if !self.enter(frame, page) {
                self.frames.give_back(frame);
                return Ok(None);
            }
            let access = access.unwrap_or_else(|| self.frames.hints.access(page.space));
            work.note("access", field::debug(access));
            let location = self.load(frame, page, access).await?;
            work.note("tier", field::debug(location));
            Ok(Some(frame))
        });
        let missed = missed.await;
        work.note_error(&missed);
        missed
    }

    /// Leases `frame`, latched exclusively by the caller, for a read into it.
    pub(crate) fn lease(&self, frame: FrameId) -> IoBuf {
        let at = self.frames.arena.frame_mut(frame.at());
        let abandons = Arc::clone(&self.abandons);
        // SAFETY: `abandons` keeps the arena alive, and only it or the caller, who keeps the buffer first,
        // releases the frame's exclusive latch.
        unsafe { IoBuf::lease(at, self.frames.arena.page_bytes(), abandons, frame.0) }
    }

    /// Reads `page` into the frame entered for it, which stays latched exclusively. Returns where it was.
    pub(crate) async fn load(
        &self,
        frame: FrameId,
        page: PageId,
        access: Access,
    ) -> Result<Location, PoolError> {
        self.hits.count_miss();
        let waiting = self.stalls.wait(On::Read, page);
        let fetched = self.tier.fetch(page, access, self.lease(frame)).await;
        drop(waiting);
        // On an error the buffer is dropped here, and its lease with it: the frame leaves the table, and
        // the tasks that wait for its latch look again and read the page themselves.
        let location = fetched.result?;
        fetched.buf.keep();
        // The tier counts this read itself.
        self.frames.at(frame).uses.reset();
        let policy = self.arrived(frame, page, location, access);
        let c = &self.counters;
        bump_under(&policy, if location == Location::Ssd { &c.loads_ssd } else { &c.loads_hdd });
        Ok(location)
    }

    /// Informs the policy of a page in memory, and returns it, still locked.
    pub(crate) fn arrived(
        &self,
        frame: FrameId,
        page: PageId,
        location: Location,
        access: Access,
    ) -> PolicyGuard<'_> {
        let mut policy = self.policy.lock();
        policy.insert(frame, page, location, access);
        policy
    }
}
