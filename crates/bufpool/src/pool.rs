//! The pool's methods for single pages, and its counters. Lookups, misses and evictions are in `read`, writes
//! in `write`, changes of the whole pool in `operate`.

use crate::feed::hits::HitBuffers;
use crate::feed::record::Recorder;
use crate::feed::sampler::Sampler;
use crate::state::guard::{Guard, PageMut, PageRef};
use crate::state::handle::Pool;
use crate::state::inner::PoolInner;
use crate::state::params::{PoolError, PoolMemory, PoolParams, PoolStats};
use crate::tier::{LogGate, Tier, TierError};
use crate::word::Mode;
use pagetier_devio::listen;
use pagetier_devio::task::{self, Boxed};
use pagetier_page::{Lsn, PageId, PageSize, SpaceId};
use pagetier_policy::{FrameId, FramePolicy};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

/// Latches a page: the future of [`Pool::get`] and [`Pool::get_mut`]. Its poll is inlined, while that of
/// an asynchronous function would be called; the future is small, because the part that waits is boxed.
#[must_use = "futures do nothing unless they are awaited"]
pub struct Latching<'a, T: Tier, const EXCLUSIVE: bool> {
    inner: &'a Arc<PoolInner<T>>,
    page: PageId,
    slow: Option<Boxed<'a, Result<FrameId, PoolError>>>,
}

impl<'a, T: Tier, const EXCLUSIVE: bool> Future for Latching<'a, T, EXCLUSIVE> {
    type Output = Result<Guard<&'a PoolInner<T>, EXCLUSIVE>, PoolError>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (inner, mode) = (self.inner, if EXCLUSIVE { Mode::Exclusive } else { Mode::Shared });
        if self.slow.is_none() {
            inner.note(self.page, EXCLUSIVE, false);
            if let Some(frame) = inner.hit(self.page, mode) {
                return Poll::Ready(Ok(Guard::new(&**inner, frame)));
            }
        }
        self.poll_slow(mode, context).map_ok(|frame| Guard::new(&**inner, frame))
    }
}

impl<T: Tier, const EXCLUSIVE: bool> Latching<'_, T, EXCLUSIVE> {
    #[cold]
    fn poll_slow(&mut self, mode: Mode, context: &mut Context<'_>) -> Poll<Result<FrameId, PoolError>> {
        let slow = self.slow.get_or_insert_with(|| Box::pin(self.inner.get_cold(self.page, mode)));
        slow.as_mut().poll(context)
    }
}

impl<T: Tier> Pool<T> {
    /// Starts a pool whose cleaner runs on the current tokio runtime.
    ///
    /// # Errors
    /// [`PoolError::Memory`] when the system does not provide the frames' memory.
    pub fn start(
        params: PoolParams,
        policy: Box<dyn FramePolicy>,
        tier: Arc<T>,
        gate: Option<Arc<dyn LogGate>>,
    ) -> Result<Self, PoolError> {
        // Its tasks stay on this runtime, whichever one a request runs on later.
        let runtime = tokio::runtime::Handle::current();
        let inner = Arc::new(PoolInner::new(params, policy, tier, gate, runtime)?);
        let (clean, needed) = (Arc::clone(&inner.clean), Arc::clone(&inner.needed));
        // Both tasks hold the pool weakly: a pool that nothing else refers to must end, not wait for its
        // own tasks.
        task::spawn(&inner.runtime, crate::write::clean::run(Arc::downgrade(&inner), clean, needed));
        let stalls =
            crate::waits::stalls::run(Arc::downgrade(&inner.stalls), Arc::clone(inner.stalls.watch()));
        task::spawn(&inner.runtime, stalls);
        Ok(Self { inner })
    }

    /// Latches `page` in shared mode. A hit neither allocates nor yields. Cancel-safe.
    ///
    /// # Errors
    /// The page does not exist or cannot be read, or no frame becomes available.
    pub fn get(&self, page: PageId) -> Latching<'_, T, false> {
        Latching { inner: &self.inner, page, slow: None }
    }

    /// Latches `page` exclusively. Cancel-safe.
    ///
    /// # Errors
    /// As [`Pool::get`].
    pub fn get_mut(&self, page: PageId) -> Latching<'_, T, true> {
        Latching { inner: &self.inner, page, slow: None }
    }

    /// The page if it is in memory and its latch is free.
    pub fn try_get(&self, page: PageId) -> Option<PageRef<'_, T>> {
        self.inner.hit(page, Mode::Shared).map(|frame| PageRef::new(&*self.inner, frame))
    }

    /// As [`Pool::try_get`], latched exclusively.
    pub fn try_get_mut(&self, page: PageId) -> Option<PageMut<'_, T>> {
        let frame = self.inner.hit(page, Mode::Exclusive)?;
        Some(PageMut::new(&*self.inner, frame))
    }

    /// The same guard, of a page of this pool, which keeps the pool alive.
    ///
    /// # Panics
    /// The guard is another pool's.
    #[must_use]
    pub fn own<const EXCLUSIVE: bool>(
        &self,
        guard: Guard<&PoolInner<T>, EXCLUSIVE>,
    ) -> Guard<Arc<PoolInner<T>>, EXCLUSIVE> {
        // Elsewhere the frame's number would mean another page's bytes.
        assert!(std::ptr::eq(guard.pool(), &raw const *self.inner), "a guard of another pool");
        guard.with_pool(Arc::clone(&self.inner))
    }

    /// Returns `page`, all zeroes and dirty, whether or not it exists, without reading it from the storage
    /// below, where it may be damaged. Overwrites its contents in memory, too. Cancel-safe: a dropped call
    /// changes nothing.
    ///
    /// # Errors
    /// No frame becomes available.
    pub async fn create(&self, page: PageId) -> Result<PageMut<'_, T>, PoolError> {
        let inner = &self.inner;
        inner.here()?;
        inner.note(page, true, false);
        loop {
            // Read-ahead may have loaded the page, or may be about to learn that it does not exist.
            if let Some(frame) = inner.latch_resident(page, Mode::Exclusive).await? {
                inner.blank(frame, page);
                return Ok(PageMut::dirty(&**inner, frame));
            }
            if let Some(guard) = self.try_create(page).await? {
                return Ok(guard);
            }
        }
    }

    /// Latches `page` exclusively; creates it as [`Pool::create`] does when it does not exist below. Two
    /// concurrent callers get the same page, one after the other. Cancel-safe.
    ///
    /// # Errors
    /// As [`Pool::get`], except for a page that does not exist.
    pub async fn get_or_create(&self, page: PageId) -> Result<PageMut<'_, T>, PoolError> {
        loop {
            match self.get_mut(page).await {
                Err(PoolError::Tier(TierError::NoSuchPage { .. })) => {}
                found => return found,
            }
            if let Some(guard) = self.try_create(page).await? {
                return Ok(guard);
            }
        }
    }

    /// Creates the page; `None` when another task entered it into the table first.
    async fn try_create(&self, page: PageId) -> Result<Option<PageMut<'_, T>>, PoolError> {
        let inner = &self.inner;
        let frame = inner.free_frame(page).await?;
        // Entered latched: a request for the page that comes meanwhile waits and gets the blank page,
        // instead of reading what may be damaged below.
        if !inner.enter(frame, page) {
            inner.frames.give_back(frame);
            return Ok(None);
        }
        inner.blank(frame, page);
        let location = inner.tier.location(page);
        drop(inner.arrived(frame, page, location, inner.frames.hints.access(page.space)));
        Ok(Some(PageMut::dirty(&**inner, frame)))
    }

    /// Drops the page from memory without writing it, and drops its cached copies below. Waits for a write of
    /// it in flight. A later `get` finds an earlier version of the page, or none. Cancel-safe.
    ///
    /// # Errors
    /// The pool is closing.
    pub async fn discard(&self, page: PageId) -> Result<(), PoolError> {
        let inner = &self.inner;
        inner.here()?;
        loop {
            if inner.closing.load(Ordering::Acquire) {
                return Err(PoolError::Closed);
            }
            // Enabled before the look at the frame: a write that ends in between would otherwise go
            // unnoticed.
            listen!(cleaned = inner.cleaned);
            let Some(frame) = inner.latch_resident(page, Mode::Exclusive).await? else {
                match self.discard_below(page) {
                    Some(true) => return Ok(()),
                    Some(false) => inner.tier.settled(page).await,
                    None => {}
                }
                continue;
            };
            let guard = PageMut::new(&**inner, frame);
            // A write in flight holds a copy of the page. If the page were discarded under it, the write
            // would bring the page back below.
            if inner.frames.at(guard.frame()).word.is_cleaning() {
                drop(guard);
                cleaned.await;
                continue;
            }
            match guard.discard().map_err(drop) {
                Ok(()) => return Ok(()),
                Err(()) => inner.tier.settled(page).await,
            }
        }
    }

    /// Discards the page if it is in memory, no guard of it exists, and no write of it is in flight. Returns
    /// at once.
    pub fn try_discard(&self, page: PageId) {
        let inner = &self.inner;
        let Some(frame) = inner.try_latch_resident(page, Mode::Exclusive) else { return };
        let guard = PageMut::new(&**inner, frame);
        // As in `discard`.
        if !inner.frames.at(frame).word.is_cleaning() {
            let _ = guard.discard();
        }
    }

    /// Discards a page that is not in memory. Returns whether the tier did; `None` when the page is in
    /// memory.
    fn discard_below(&self, page: PageId) -> Option<bool> {
        // Hold the bucket's lock, so that no load of the page starts.
        let bucket = self.inner.frames.table.lock(page);
        let absent = bucket.find(&self.inner.frames.all).is_none();
        absent.then(|| self.inner.tier.discarded(page))
    }

    /// Discards every page for which `gone` returns true, as [`Pool::discard`] does.
    ///
    /// # Errors
    /// As [`Pool::discard`].
    pub async fn discard_where(&self, gone: impl Fn(PageId) -> bool) -> Result<(), PoolError> {
        for frame in self.inner.frames.all.iter() {
            // Without a lock: a page that enters memory meanwhile is the caller's to prevent, as for any
            // discard.
            if let Some(page) = frame.page().filter(|p| gone(*p)) {
                self.discard(page).await?;
            }
        }
        Ok(())
    }

    /// Discards the pages of `space` with changes that no completed write covers, as [`Pool::discard`] does.
    ///
    /// # Errors
    /// As [`Pool::discard`].
    pub async fn discard_unwritten(&self, space: SpaceId) -> Result<(), PoolError> {
        for frame in self.inner.frames.all.iter() {
            let page = frame.page().filter(|page| page.space == space && frame.word.is_unwritten());
            if let Some(page) = page {
                self.discard(page).await?;
            }
        }
        Ok(())
    }

    /// Records page requests on demand.
    pub fn recorder(&self) -> &Recorder {
        &self.inner.recorder
    }

    /// Passes on the requests for a sample of the pages on demand.
    pub fn sampler(&self) -> &Sampler {
        &self.inner.sampler
    }

    /// The number of page requests so far: hits, misses and new pages.
    pub fn requests(&self) -> u64 {
        self.inner.requests()
    }

    /// The counters so far.
    pub fn stats(&self) -> PoolStats {
        let mut stats = self.inner.counters.snapshot();
        stats.hits += self.inner.hits.hits();
        stats.misses += self.inner.hits.misses();
        stats.hits_lost += self.inner.hits.lost();
        stats
    }

    /// The memory by part.
    pub fn memory(&self) -> PoolMemory {
        let inner = &self.inner;
        let params = inner.params();
        let page = params.page_size.bytes();
        // Of the largest size ever: a shrunken pool gives up pages, not metadata (`operate::resize`).
        let metadata = inner.frames.all.len() * size_of::<crate::frames::frame::Frame>()
            + inner.frames.table.memory_bytes()
            + crate::frames::unwritten::bytes_for(inner.frames.all.len())
            + HitBuffers::memory_bytes();
        PoolMemory {
            frames: (inner.frames.count() * page) as u64,
            metadata: metadata as u64,
            staging: (params.staging * page) as u64,
            policy: 0,
        }
    }

    /// The size of a page.
    pub fn page_size(&self) -> PageSize {
        self.inner.opened.page_size
    }

    /// The pool's parameters, for its present size.
    pub fn params(&self) -> PoolParams {
        self.inner.params()
    }

    /// The setting that the policy follows, if it adapts.
    pub fn choice(&self) -> Option<pagetier_policy::PolicyChoice> {
        self.inner.policy.lock().choice()
    }

    /// Sets the policy's costs.
    pub fn set_costs(&self, costs: pagetier_policy::Costs) {
        self.inner.policy.lock().set_costs(costs);
    }

    /// The oldest log position that redo needs for dirty pages in memory; `None` when no change is dirty. A
    /// page that was created and not changed since needs none.
    ///
    /// Written pages are clean, but safe only after a flush ([`Pool::flush_to`] any LSN): read this value,
    /// flush, then truncate the log.
    ///
    /// A pool that ended without having written everything returns 0.
    pub fn min_recovery_lsn(&self) -> Option<Lsn> {
        let oldest = Some(self.inner.frames.redo_from()).filter(|oldest| *oldest < Lsn::BLANK);
        // Check this last: it is set before a change is dropped.
        if self.inner.lost.load(Ordering::Acquire) { Some(Lsn(0)) } else { oldest }
    }

    /// Recounts frames and policy, and compares; for tests.
    ///
    /// # Errors
    /// A description of the first inconsistency.
    pub fn validate(&self) -> Result<(), String> {
        let frames = &self.inner.frames;
        let held = frames.all.iter().filter(|f| f.page().is_some()).count();
        let policy = self.inner.policy.lock();
        // Pages enter the table before the policy, which does not know those that are being read: hence no
        // equality.
        if policy.len() > held {
            return Err(format!("the policy tracks {} frames, {held} hold pages", policy.len()));
        }
        // Frames that change hands during a count may count twice, but not every time.
        let adds_up = || {
            let held = frames.all.iter().filter(|f| f.page().is_some()).count();
            let pinned = frames.all.iter().filter(|f| f.word.pins() > 0).count();
            held + frames.free.len() <= frames.count() + pinned
        };
        if !(0..100).any(|_| adds_up()) {
            return Err(format!("{held} pages and {} free frames", frames.free.len()));
        }
        policy.validate()
    }
}
