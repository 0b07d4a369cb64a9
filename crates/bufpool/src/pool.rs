//! The pool: lookup, load, creation, eviction.
//!
//! A lookup (1) finds the frame without a lock, (2) pins and latches it in one step, (3) checks that it still
//! holds the page, (4) records the hit. Everything else is cold: waiting for a latch, or a miss.
//!
//! A miss (1) takes a free frame or a victim's; (2) enters the page into the table, latched exclusively, so
//! that other tasks wait for the latch and the page is read once; (3) reads straight into the frame through a
//! lease; (4) informs the policy. A load that fails or is dropped frees its frame once the device is done
//! with it.

use crate::ahead::Detector;
use crate::frame::Frames;
use crate::guard::{PageMut, PageRef};
use crate::hits::HitBuffers;
use crate::params::{PoolError, PoolMemory, PoolParams, PoolStats};
use crate::record::Recorder;
use crate::sample_channel::Recorded;
use crate::sampler::{SampleSink, Sampler};
use crate::sync::{ArrayQueue, Mutex, MutexGuard};
use crate::tier::{Displaced, LogGate, Tier, TierError};
use crate::waiters::Wait;
use crate::word::{Attempt, Mode};
use pagetier_devio::IoBuf;
use pagetier_page::{Flags, Header, Lsn, PageId, Sampling, Stamp};
use pagetier_policy::{Access, FrameId, FramePolicy, Home};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The interval at which a request that waits for a frame asks the cleaner to retry failed writes at once.
const NEEDED_AGAIN: Duration = Duration::from_millis(50);

/// The policy with its lock.
pub(crate) struct Policy(Mutex<Box<dyn FramePolicy>>);

pub(crate) struct PolicyGuard<'a>(MutexGuard<'a, Box<dyn FramePolicy>>);

impl Policy {
    pub(crate) fn lock(&self) -> PolicyGuard<'_> {
        PolicyGuard(self.0.lock())
    }

    pub(crate) fn try_lock(&self) -> Option<PolicyGuard<'_>> {
        self.0.try_lock().map(PolicyGuard)
    }
}

impl PolicyGuard<'_> {
    pub(crate) fn remove(&mut self, frame: u32) {
        self.0.remove(FrameId(frame), false);
    }
}

impl std::ops::Deref for PolicyGuard<'_> {
    type Target = Box<dyn FramePolicy>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl std::ops::DerefMut for PolicyGuard<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) misses: AtomicU64,
    pub(crate) scan_hits: AtomicU64,
    pub(crate) loads_ssd: AtomicU64,
    pub(crate) loads_hdd: AtomicU64,
    pub(crate) prefetched: AtomicU64,
    pub(crate) created: AtomicU64,
    pub(crate) evictions: AtomicU64,
    pub(crate) written_replacement: AtomicU64,
    pub(crate) written_recoverability: AtomicU64,
    pub(crate) written_ssd: AtomicU64,
    pub(crate) write_errors: AtomicU64,
    pub(crate) waited_for_frame: AtomicU64,
}

pub(crate) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The state that a pool shares with its tasks.
pub(crate) struct Inner<T: Tier> {
    pub(crate) params: PoolParams,
    pub(crate) frames: Arc<Frames>,
    pub(crate) tier: Arc<T>,
    pub(crate) policy: Policy,
    pub(crate) hits: HitBuffers,
    pub(crate) gate: Option<Arc<dyn LogGate>>,
    pub(crate) counters: Counters,
    pub(crate) recorder: Recorder,
    pub(crate) sampler: Sampler,
    pub(crate) detector: Detector,
    /// The number of staging buffers whose page is likely to wait for the HDD.
    pub(crate) writing_home: AtomicUsize,
    pub(crate) staging: ArrayQueue<IoBuf>,
    pub(crate) staged: Notify,
    /// Wakes the cleaner to look for work.
    pub(crate) clean: Arc<Notify>,
    /// Wakes the cleaner even during its back-off after a failed write.
    pub(crate) needed: Arc<Notify>,
    /// Signals the end of a write.
    pub(crate) cleaned: Notify,
    pub(crate) evicted_since_clean: AtomicU64,
    pub(crate) lsn_max: AtomicU64,
    pub(crate) lsn_checked: AtomicU64,
    pub(crate) closed: AtomicBool,
    /// A request waits for a frame: the likely victims were not sufficient.
    pub(crate) starved: AtomicBool,
    /// The number of pages that read-ahead is reading.
    pub(crate) ahead_in_flight: AtomicUsize,
    pub(crate) runtime: tokio::runtime::Handle,
}

/// A buffer pool over a [`Tier`]. Cheap to clone; all clones share one pool.
pub struct Pool<T: Tier> {
    pub(crate) inner: Arc<Inner<T>>,
}

impl<T: Tier> Clone for Pool<T> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
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
        let runtime = tokio::runtime::Handle::current();
        let inner = Arc::new(Inner::new(params, policy, tier, gate, runtime)?);
        let (clean, needed) = (Arc::clone(&inner.clean), Arc::clone(&inner.needed));
        tokio::spawn(crate::clean::run(Arc::downgrade(&inner), clean, needed));
        Ok(Self { inner })
    }

    /// Latches `page` in shared mode. A hit neither allocates nor yields. Cancel-safe.
    ///
    /// # Errors
    /// The page does not exist or cannot be read, or no frame becomes available.
    #[inline]
    pub async fn get(&self, page: PageId) -> Result<PageRef<'_, T>, PoolError> {
        self.inner.note(page, false, false);
        if let Some(frame) = self.inner.hit(page, Mode::Shared) {
            return Ok(PageRef::new(&self.inner, frame));
        }
        let frame = self.inner.get_cold(page, Mode::Shared).await?;
        Ok(PageRef::new(&self.inner, frame))
    }

    /// Latches `page` exclusively. Cancel-safe.
    ///
    /// # Errors
    /// As [`Pool::get`].
    #[inline]
    pub async fn get_mut(&self, page: PageId) -> Result<PageMut<'_, T>, PoolError> {
        self.inner.note(page, true, false);
        if let Some(frame) = self.inner.hit(page, Mode::Exclusive) {
            return Ok(PageMut::new(&self.inner, frame, false));
        }
        let frame = self.inner.get_cold(page, Mode::Exclusive).await?;
        Ok(PageMut::new(&self.inner, frame, false))
    }

    /// The page if it is in memory and its latch is free.
    #[must_use]
    pub fn try_get(&self, page: PageId) -> Option<PageRef<'_, T>> {
        self.inner.hit(page, Mode::Shared).map(|frame| PageRef::new(&self.inner, frame))
    }

    /// Creates a page, all zeroes and dirty. `page` must not exist, or its contents must be of no value:
    /// whatever read-ahead may have found under its id is overwritten. Cancel-safe.
    ///
    /// # Errors
    /// No frame becomes available.
    pub async fn create(&self, page: PageId) -> Result<PageMut<'_, T>, PoolError> {
        let inner = &self.inner;
        inner.note(page, true, false);
        loop {
            // Read-ahead may have loaded the page, or may be about to learn that it does not exist.
            if let Some(frame) = inner.latch_resident(page, Mode::Exclusive).await {
                inner.blank(frame, page);
                return Ok(PageMut::new(inner, frame, true));
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

    /// Returns `page`, all zeroes and dirty, whether or not it exists, without reading it from the storage
    /// below, where it may be damaged. Overwrites its contents in memory, too. Cancel-safe: a dropped call
    /// changes nothing.
    ///
    /// # Errors
    /// No frame becomes available.
    pub async fn overwrite(&self, page: PageId) -> Result<PageMut<'_, T>, PoolError> {
        self.create(page).await
    }

    /// Creates the page; `None` when another task entered it into the table first.
    async fn try_create(&self, page: PageId) -> Result<Option<PageMut<'_, T>>, PoolError> {
        let inner = &self.inner;
        let frame = inner.free_frame(page).await?;
        if !inner.name(frame, page) {
            inner.frames.give_back(frame);
            return Ok(None);
        }
        inner.blank(frame, page);
        let home = inner.tier.home(page);
        inner.policy.lock().insert(FrameId(frame), page, home, Access::Random);
        Ok(Some(PageMut::new(inner, frame, true)))
    }

    /// Drops the page from memory without writing it, and drops its cached copies below. Waits for a write of
    /// it in flight. A later `get` finds an earlier version of the page, or none. Cancel-safe.
    ///
    /// # Errors
    /// None; reserved.
    pub async fn discard(&self, page: PageId) -> Result<(), PoolError> {
        let inner = &self.inner;
        loop {
            let cleaned = inner.cleaned.notified();
            tokio::pin!(cleaned);
            cleaned.as_mut().enable();
            let Some(frame) = inner.latch_resident(page, Mode::Exclusive).await else {
                match self.discard_below(page) {
                    Some(true) => return Ok(()),
                    Some(false) => inner.tier.settled(page).await,
                    None => {}
                }
                continue;
            };
            let guard = PageMut::new(inner, frame, false);
            if inner.frames.at(guard.frame()).word.is_cleaning() {
                drop(guard);
                cleaned.await;
                continue;
            }
            if !inner.tier.discarded(page) {
                drop(guard);
                inner.tier.settled(page).await;
                continue;
            }
            guard.discard();
            return Ok(());
        }
    }

    /// Discards a page that is not in memory. Returns whether the tier did; `None` when the page is in
    /// memory.
    fn discard_below(&self, page: PageId) -> Option<bool> {
        // Under the lock, so that no load of the page starts meanwhile.
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
            if let Some(page) = frame.page().filter(|p| gone(*p)) {
                self.discard(page).await?;
            }
        }
        Ok(())
    }

    /// Starts recording every page request as a page trace to `out`, until [`Pool::stop_recording`]. Returns
    /// false, without effect, when a recording is already in progress.
    ///
    /// # Errors
    /// The system cannot start a thread for the writer.
    pub fn start_recording(&self, out: Box<dyn std::io::Write + Send>) -> std::io::Result<bool> {
        self.inner.recorder.start(out)
    }

    /// The state of the recording in progress.
    #[must_use]
    pub fn recorded(&self) -> Option<Recorded> {
        self.inner.recorder.recorded()
    }

    /// Stops the recording. Blocks until its writer has written everything; no effect without a recording.
    ///
    /// # Errors
    /// The writer failed: the trace ends early.
    pub fn stop_recording(&self) -> std::io::Result<Recorded> {
        self.inner.recorder.stop()
    }

    /// Passes the requests for a sample of the pages to `sink`, on a dedicated thread, until
    /// [`Pool::stop_sampling`] or the pool's end. Returns false, without effect, when sampling is already in
    /// progress.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start_sampling(&self, sampling: Sampling, sink: SampleSink) -> std::io::Result<bool> {
        self.inner.sampler.start(sampling, sink)
    }

    /// Stops the sampling. Blocks until the sink has seen everything; no effect without sampling.
    pub fn stop_sampling(&self) {
        self.inner.sampler.stop(self.requests());
    }

    /// The number of page requests so far: hits, misses and new pages.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.inner.requests()
    }

    /// The counters so far.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let c = &self.inner.counters;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PoolStats {
            hits: self.inner.hits.hits() + of(&c.scan_hits),
            misses: of(&c.misses),
            loads_ssd: of(&c.loads_ssd),
            loads_hdd: of(&c.loads_hdd),
            prefetched: of(&c.prefetched),
            created: of(&c.created),
            evictions: of(&c.evictions),
            written_replacement: of(&c.written_replacement),
            written_recoverability: of(&c.written_recoverability),
            written_ssd: of(&c.written_ssd),
            write_errors: of(&c.write_errors),
            hits_lost: self.inner.hits.lost(),
            waited_for_frame: of(&c.waited_for_frame),
        }
    }

    /// The memory by part.
    #[must_use]
    pub fn memory(&self) -> PoolMemory {
        let inner = &self.inner;
        let frames = inner.params.frames;
        let page = inner.params.page_size.bytes();
        let metadata = frames * (size_of::<crate::frame::Frame>() + 4)
            + inner.frames.table.memory_bytes()
            + inner.hits.memory_bytes();
        PoolMemory {
            frames: (frames * page) as u64,
            metadata: metadata as u64,
            staging: (inner.params.staging * page) as u64,
        }
    }

    /// The pool's parameters.
    #[must_use]
    pub fn params(&self) -> &PoolParams {
        &self.inner.params
    }

    /// Sets the policy's costs.
    pub fn set_costs(&self, costs: pagetier_policy::Costs) {
        self.inner.policy.lock().set_costs(costs);
    }

    /// The oldest log position that redo needs for dirty pages in memory; `None` when nothing is dirty.
    /// Written pages are clean, but safe only after a flush ([`Pool::flush_to`] any LSN): read this value,
    /// flush, then truncate the log.
    #[must_use]
    pub fn min_recovery_lsn(&self) -> Option<Lsn> {
        self.inner.frames.all.iter().filter_map(crate::frame::Frame::redo_from).min()
    }

    /// Recounts the policy; for tests.
    ///
    /// # Errors
    /// A description of the first inconsistency.
    pub fn validate(&self) -> Result<(), String> {
        let frames = &self.inner.frames;
        let held = frames.all.iter().filter(|f| f.page().is_some()).count();
        let policy = self.inner.policy.lock();
        if policy.len() > held {
            return Err(format!("the policy tracks {} frames, {held} hold pages", policy.len()));
        }
        let pinned = frames.all.iter().filter(|f| f.word.pins() > 0).count();
        if held + frames.free.len() > frames.all.len() + pinned {
            return Err(format!("{held} pages and {} free frames", frames.free.len()));
        }
        policy.validate()
    }
}

impl<T: Tier> std::fmt::Debug for Pool<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("params", &self.inner.params).finish_non_exhaustive()
    }
}

impl<T: Tier> Inner<T> {
    /// Reports a page request to the recorder and the sampler.
    #[inline]
    pub(crate) fn note(&self, page: PageId, write: bool, sequential: bool) {
        self.recorder.note(page, write, sequential);
        self.sampler.note(page, write, sequential, || self.requests());
    }

    #[cold]
    fn requests(&self) -> u64 {
        let c = &self.counters;
        let cold = [&c.scan_hits, &c.misses, &c.created].map(|counter| counter.load(Ordering::Relaxed));
        self.hits.hits() + cold.iter().sum::<u64>()
    }

    /// A pool with all frames free and no running cleaner.
    pub(crate) fn new(
        params: PoolParams,
        policy: Box<dyn FramePolicy>,
        tier: Arc<T>,
        gate: Option<Arc<dyn LogGate>>,
        runtime: tokio::runtime::Handle,
    ) -> Result<Self, PoolError> {
        let page_bytes = params.page_size.bytes();
        let frames = Frames::new(params.frames, page_bytes).map_err(|e| PoolError::Memory(Arc::new(e)))?;
        let staging = ArrayQueue::new(params.staging.max(1));
        for _ in 0..params.staging.max(1) {
            let _ = staging.push(IoBuf::zeroed(page_bytes));
        }
        Ok(Self {
            params,
            frames: Arc::new(frames),
            tier,
            policy: Policy(Mutex::new(policy)),
            hits: HitBuffers::new(),
            gate,
            counters: Counters::default(),
            recorder: Recorder::default(),
            sampler: Sampler::default(),
            detector: Detector::new(params.read_ahead_pages),
            staging,
            writing_home: AtomicUsize::new(0),
            staged: Notify::new(),
            clean: Arc::new(Notify::new()),
            ahead_in_flight: AtomicUsize::new(0),
            needed: Arc::new(Notify::new()),
            cleaned: Notify::new(),
            evicted_since_clean: AtomicU64::new(0),
            lsn_max: AtomicU64::new(0),
            lsn_checked: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            starved: AtomicBool::new(false),
            runtime,
        })
    }

    /// Steps 1-4 of a lookup. `None`: the page is absent, or its latch is not free.
    #[inline]
    pub(crate) fn hit(&self, page: PageId, mode: Mode) -> Option<u32> {
        let frame = self.frames.table.find(&self.frames.all, page)?;
        if self.frames.at(frame).word.try_latch(mode) != Attempt::Latched {
            return None;
        }
        if self.frames.at(frame).page.load(Ordering::Acquire) != page.to_u64() {
            self.frames.release(frame, mode);
            return None;
        }
        if self.hits.note(frame, mode == Mode::Exclusive) {
            self.apply_hits();
        }
        Some(frame)
    }

    #[cold]
    fn apply_hits(&self) {
        match self.policy.try_lock() {
            Some(mut policy) => self.drain_hits(&mut policy),
            None => self.hits.note_lost(),
        }
    }

    fn drain_hits(&self, policy: &mut PolicyGuard<'_>) {
        self.hits.drain(|frame, write| {
            self.frames.at(frame).logical.fetch_add(1, Ordering::Relaxed);
            policy.hit(FrameId(frame), write);
        });
    }

    /// Waits for the latch, or loads the page.
    #[cold]
    async fn get_cold(self: &Arc<Self>, page: PageId, mode: Mode) -> Result<u32, PoolError> {
        loop {
            if let Some(frame) = self.latch_resident(page, mode).await {
                if self.hits.note(frame, mode == Mode::Exclusive) {
                    self.apply_hits();
                }
                return Ok(frame);
            }
            let frame = self.free_frame(page).await?;
            if !self.name(frame, page) {
                self.frames.give_back(frame);
                continue;
            }
            self.load(frame, page, Access::Random).await?;
            if let Some((from, count)) = self.detector.missed(page) {
                self.read_ahead(from, count);
            }
            if mode == Mode::Shared && self.frames.at(frame).word.downgrade() {
                self.frames.waiters.grant(frame, &self.frames.at(frame).word);
            }
            return Ok(frame);
        }
    }

    /// Latches the frame of `page` if the page is in memory, however long that takes.
    pub(crate) async fn latch_resident(&self, page: PageId, mode: Mode) -> Option<u32> {
        loop {
            let found = self.frames.table.find(&self.frames.all, page);
            let frame = match found {
                Some(frame) => frame,
                None => self.frames.table.lock(page).find(&self.frames.all)?,
            };
            let word = &self.frames.at(frame).word;
            match word.try_latch(mode) {
                Attempt::Latched => {}
                Attempt::Busy if word.pin() => Wait::new(&self.frames, frame, mode).await,
                // The frame is being evicted under the bucket's lock: wait for that, then retry.
                Attempt::Busy | Attempt::Gone => {
                    drop(self.frames.table.lock(page));
                    continue;
                }
            }
            if !word.is_gone() && self.frames.at(frame).page.load(Ordering::Acquire) == page.to_u64() {
                return Some(frame);
            }
            self.frames.release(frame, mode);
        }
    }

    /// Makes the page in `frame`, latched exclusively by the caller, a new one.
    fn blank(&self, frame: u32, page: PageId) {
        // SAFETY: the caller holds the frame's exclusive latch.
        let image = unsafe { self.frames.arena.bytes_mut(frame as usize) };
        image.fill(0);
        Header { page, lsn: Lsn(0), stamp: Stamp::ZERO, flags: Flags::NONE }.put(image);
        self.tier.allocated(page);
        bump(&self.counters.created);
    }

    /// Enters `page` into the table for the free frame `frame`, which becomes latched exclusively. Returns
    /// false when another task was faster.
    pub(crate) fn name(&self, frame: u32, page: PageId) -> bool {
        let bucket = self.frames.table.lock(page);
        if bucket.find(&self.frames.all).is_some() {
            return false;
        }
        self.frames.at(frame).word.begin_fill();
        bucket.insert(&self.frames.all, frame);
        true
    }

    /// Leases `frame`, latched exclusively by the caller, for a read into it.
    pub(crate) fn lease(&self, frame: u32, page: PageId) -> IoBuf {
        let owner = Box::new(Lease { frames: Arc::clone(&self.frames), frame, page, kept: false });
        let at = self.frames.arena.frame_mut(frame as usize);
        // SAFETY: the owner keeps the arena alive and the frame exclusively latched as long as the buffer
        // lives.
        unsafe { IoBuf::lease(at, self.frames.arena.page_bytes(), owner) }
    }

    /// Reads `page` into the frame entered for it, which stays latched exclusively.
    pub(crate) async fn load(&self, frame: u32, page: PageId, access: Access) -> Result<(), PoolError> {
        bump(&self.counters.misses);
        let fetched = self.tier.fetch(page, access, self.lease(frame, page)).await;
        let home = fetched.result?;
        keep(fetched.buf);
        bump(if home == Home::Ssd { &self.counters.loads_ssd } else { &self.counters.loads_hdd });
        // The tier counts the read itself.
        self.frames.at(frame).logical.store(0, Ordering::Relaxed);
        self.policy.lock().insert(FrameId(frame), page, home, access);
        Ok(())
    }

    /// A frame without a page: a free one, or a victim's. Waits for the cleaner if necessary.
    pub(crate) async fn free_frame(&self, page: PageId) -> Result<u32, PoolError> {
        if let Some(frame) = self.frames.free.pop().or_else(|| self.evict()) {
            return Ok(frame);
        }
        self.wait_for_frame(page).await
    }

    #[cold]
    async fn wait_for_frame(&self, page: PageId) -> Result<u32, PoolError> {
        bump(&self.counters.waited_for_frame);
        let since = Instant::now();
        let mut asked = None::<Instant>;
        let wait = async {
            loop {
                let (freed, cleaned) = (self.frames.freed.notified(), self.cleaned.notified());
                tokio::pin!(freed, cleaned);
                freed.as_mut().enable();
                cleaned.as_mut().enable();
                let frame = self.frames.free.pop().or_else(|| self.evict());
                if let Some(frame) = frame.or_else(|| self.evict_any()) {
                    return frame;
                }
                self.starved.store(true, Ordering::Relaxed);
                self.clean.notify_one();
                // Only periodically, so that failed writes are not retried without a pause.
                if asked.is_none_or(|at| at.elapsed() >= NEEDED_AGAIN) {
                    asked = Some(Instant::now());
                    self.need_cleaner();
                }
                // Dropping a pin wakes no waiter: retry periodically.
                let again = tokio::time::sleep(Duration::from_millis(5));
                tokio::select! { biased; () = freed => {}, () = cleaned => {}, () = again => {} }
            }
        };
        tokio::time::timeout(self.params.exhausted_after, wait).await.map_err(|_| PoolError::Exhausted {
            page,
            frames: self.params.frames,
            waited: since.elapsed(),
        })
    }

    /// Takes the frame of the page that the policy values least.
    pub(crate) fn evict(&self) -> Option<u32> {
        let mut policy = self.policy.lock();
        self.drain_hits(&mut policy);
        let frames = &self.frames.all;
        for _ in 0..8 {
            let victim = policy.victim(&mut |f| frames.get(f.at()).is_some_and(|f| f.word.is_evictable()))?;
            // A policy may return any index, including one that does not exist.
            if frames.get(victim.at()).is_some() && self.evict_from(victim.0, &mut policy) {
                return Some(victim.0);
            }
        }
        None
    }

    /// Takes any frame that is available: the policy returned none although there may be one.
    #[cold]
    fn evict_any(&self) -> Option<u32> {
        let mut policy = self.policy.lock();
        (0..self.frames.all.len() as u32)
            .find(|frame| self.frames.at(*frame).word.is_evictable() && self.evict_from(*frame, &mut policy))
    }

    /// Evicts the page of frame `victim`. Returns false when the frame has no page, or its page cannot leave.
    fn evict_from(&self, victim: u32, policy: &mut PolicyGuard<'_>) -> bool {
        let Some(page) = self.frames.at(victim).page() else { return false };
        let bucket = self.frames.table.lock(page);
        if !self.frames.at(victim).word.try_evict() {
            return false;
        }
        // SAFETY: no other task can reach the frame, and none had it pinned.
        let image = unsafe { self.frames.arena.bytes(victim as usize) };
        let logical = self.frames.at(victim).take_logical();
        let displaced = self.tier.evicted(page, logical, image);
        bucket.remove(&self.frames.all, victim);
        drop(bucket);
        policy.0.remove(FrameId(victim), true);
        self.displaced(policy, displaced);
        bump(&self.counters.evictions);
        self.wake_cleaner();
        true
    }

    /// Informs the policy that a page lost its SSD copy to another one, if the page is buffered.
    pub(crate) fn displaced(&self, policy: &mut PolicyGuard<'_>, displaced: Displaced) {
        let Some(page) = displaced.0 else { return };
        if let Some(frame) = self.frames.table.find(&self.frames.all, page) {
            policy.ssd_evicted(FrameId(frame));
        }
    }

    fn wake_cleaner(&self) {
        let every = (self.params.clean_depth as u64 / 4).max(1);
        if self.evicted_since_clean.fetch_add(1, Ordering::Relaxed) + 1 >= every {
            self.clean.notify_one();
        }
    }

    /// Marks the page in `frame` dirty, after a change through a guard that is about to release it.
    pub(crate) fn became_dirty(&self, frame: u32, page: PageId, lsn: Lsn) {
        let f = self.frames.at(frame);
        let none = crate::frame::NO_LSN;
        let _ = f.recovery_lsn.compare_exchange(none, lsn.0, Ordering::AcqRel, Ordering::Relaxed);
        let (was_dirty, being_written) = f.word.dirty();
        if was_dirty {
            return;
        }
        let mut policy = self.policy.lock();
        // The buffered requests preceded the change: reported after it, they would count for a page that was
        // already dirty, and on another home.
        self.drain_hits(&mut policy);
        let invalidated = !being_written && self.tier.dirtied(page, f.take_logical());
        policy.dirtied(FrameId(frame));
        if invalidated {
            policy.ssd_invalidated(FrameId(frame));
        }
    }

    pub(crate) fn note_lsn(&self, lsn: Lsn) {
        let Some(span) = self.params.redo_span_max else { return };
        let newest = self.lsn_max.fetch_max(lsn.0, Ordering::Relaxed).max(lsn.0);
        if newest - self.lsn_checked.load(Ordering::Relaxed).min(newest) > span / 8 {
            self.clean.notify_one();
        }
    }
}

impl<T: Tier> Drop for Inner<T> {
    fn drop(&mut self) {
        // The cleaner waits for this; it finds the pool gone and ends.
        self.clean.notify_one();
        self.needed.notify_one();
    }
}

/// The exclusively latched frame that a read fills.
struct Lease {
    frames: Arc<Frames>,
    frame: u32,
    page: PageId,
    kept: bool,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.kept {
            self.frames.abandon(self.frame, self.page);
        }
    }
}

/// Keeps the frame of a successful read, latched.
pub(crate) fn keep(buf: IoBuf) {
    if let Some(mut lease) = buf.into_owner().and_then(|owner| owner.downcast::<Lease>().ok()) {
        lease.kept = true;
    }
}
