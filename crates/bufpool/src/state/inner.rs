//! The state that a pool shares with its tasks, and the parts of it that every request changes.

use crate::feed::detector::Detector;
use crate::feed::hits::HitBuffers;
use crate::feed::record::Recorder;
use crate::feed::sampler::Sampler;
use crate::frames::set::Frames;
use crate::frames::uses::Periods;
use crate::state::failing::Failing;
use crate::state::flush_pace::{FlushPace, GuardWaits};
use crate::state::params::{Counters, PoolError, PoolParams, STAGING_MAX};
use crate::sync::{ArrayQueue, Mutex, MutexGuard};
use crate::tier::{LogGate, Tier};
use crate::waits::stalls::Stalls;
use pagetier_devio::locks::{self, Rank};
use pagetier_devio::{Claim, IoBuf};
use pagetier_page::{Flags, Header, Lsn, PageId, Stamp};
use pagetier_policy::pool::HintedPool;
use pagetier_policy::{FrameId, FramePolicy};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use tokio::sync::Notify;

/// The policy, locked.
pub(crate) type PolicyGuard<'a> = MutexGuard<'a, HintedPool>;

/// The value of [`PoolInner::barren_at`] when no search of all frames has failed, or one has succeeded since
/// without a write.
pub(crate) const NOT_BARREN: u64 = u64::MAX / 2;

pub(crate) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Counts what is counted under the policy's lock alone, which saves a locked instruction; returns the count.
pub(crate) fn bump_under(_: &PolicyGuard<'_>, counter: &AtomicU64) -> u64 {
    let count = counter.load(Ordering::Relaxed) + 1;
    counter.store(count, Ordering::Relaxed);
    count
}

/// The state that a pool shares with its tasks and guards. Other crates cannot name it.
pub struct PoolInner<T: Tier> {
    /// The parameters at the open. The sizes may have changed since: see [`PoolInner::params`].
    pub(crate) opened: PoolParams,
    pub(crate) sized: parking_lot::RwLock<PoolParams>,
    /// Held while the pool's size changes.
    pub(crate) resizing: locks::Mutex<()>,
    pub(crate) frames: Arc<Frames>,
    /// See [`Frames::abandons`].
    pub(crate) abandons: Arc<dyn Fn(u32) + Send + Sync>,
    pub(crate) claim: Claim,
    pub(crate) tier: Arc<T>,
    /// Tracks the frames with a page, except those that are being read: `policy.len()` is at most their
    /// number.
    pub(crate) policy: Mutex<HintedPool>,
    pub(crate) hits: HitBuffers,
    pub(crate) periods: Periods,
    pub(crate) gate: Option<Arc<dyn LogGate>>,
    /// Whether changes that no record describes get the log's end as their page's LSN.
    pub(crate) gate_tells: bool,
    pub(crate) counters: Counters,
    pub(crate) recorder: Recorder,
    pub(crate) sampler: Sampler,
    pub(crate) detector: Detector,
    /// The number of staging buffers whose page is likely to wait for the HDD: at most half of
    /// [`PoolParams::staging`] are begun by the cleaner, and any number by flushes.
    pub(crate) writing_home: AtomicUsize,
    pub(crate) staging: ArrayQueue<IoBuf>,
    /// The number of staging buffers: those in `staging`, and one per page being written. Once the writes
    /// that a shrink overtook have ended, it is [`PoolParams::staging`], or 1 if that is 0.
    pub(crate) staging_made: AtomicUsize,
    pub(crate) staged: Notify,
    /// Wakes the cleaner to look for work.
    pub(crate) clean: Arc<Notify>,
    /// Wakes the cleaner even during its back-off after a failed write.
    pub(crate) needed: Arc<Notify>,
    /// Signals the end of a write.
    pub(crate) cleaned: Notify,
    pub(crate) evicted_since_clean: AtomicU64,
    /// See [`PoolParams::evictions_per_look`]; here, since every eviction asks, which would lock `sized`.
    pub(crate) evictions_per_look: AtomicU64,
    pub(crate) lsn_max: AtomicU64,
    pub(crate) lsn_checked: AtomicU64,
    /// Makes the cleaner end.
    pub(crate) closed: AtomicBool,
    /// No further page may enter memory: see `retire`.
    pub(crate) closing: AtomicBool,
    /// Changes were dropped unwritten when the pool ended: redo must restore them.
    pub(crate) lost: AtomicBool,
    pub(crate) stalls: Arc<Stalls>,
    /// The error of the last batch; `None` if it was written.
    pub(crate) last_failure: parking_lot::Mutex<Option<PoolError>>,
    pub(crate) failing: Failing,
    /// The number of times the cleaner has looked for work.
    pub(crate) rounds: AtomicU64,
    /// A request waits for a frame: the likely victims did not suffice.
    pub(crate) starved: AtomicBool,
    /// How many batches of flushes may be in flight.
    pub(crate) flush_pace: FlushPace,
    pub(crate) guard_waits: GuardWaits,
    /// The number of requests that wait for a frame, and of page writes that have ended: now, and when the
    /// last search of all frames failed.
    pub(crate) frame_waiters: AtomicU64,
    pub(crate) writes_ended: AtomicU64,
    pub(crate) barren_at: AtomicU64,
    /// The number of pages that read-ahead is reading: at most an eighth of the frames, exceeded by at most
    /// one page per thread.
    pub(crate) ahead_in_flight: AtomicUsize,
    pub(crate) runtime: tokio::runtime::Handle,
}

impl<T: Tier> PoolInner<T> {
    /// Reports a page request to the recorder and the sampler.
    #[inline]
    pub(crate) fn note(&self, page: PageId, write: bool, sequential: bool) {
        self.recorder.note(page, write, sequential);
        self.sampler.note(page, write, sequential, || self.requests());
    }

    #[cold]
    pub(crate) fn requests(&self) -> u64 {
        let c = &self.counters;
        let cold = [&c.hits, &c.created].map(|counter| counter.load(Ordering::Relaxed));
        self.hits.hits() + self.hits.misses() + cold.iter().sum::<u64>()
    }

    /// Refuses a forked process, and an owner that has lost the pages to another one.
    #[inline]
    pub(crate) fn here(&self) -> Result<(), PoolError> {
        let owner = &self.frames.owner;
        if !owner.is_here() {
            return Err(PoolError::Forked { opened_by: owner.pid() });
        }
        if self.claim.holds() { Ok(()) } else { Err(PoolError::Fenced) }
    }

    /// The parameters for the pool's present size.
    pub(crate) fn params(&self) -> PoolParams {
        *self.sized.read()
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
        let frames = Frames::new(params.frames, params.frames_max, page_bytes);
        let frames = Arc::new(frames.map_err(|e| PoolError::Memory(Arc::new(e)))?);
        // The queue cannot grow with the pool later, so it has room for the largest default at once. At
        // least one buffer exists: without any, no page could be written, nor evicted once dirty.
        let staging = ArrayQueue::new(params.staging.max(STAGING_MAX));
        for _ in 0..params.staging.max(1) {
            let _ = staging.push(IoBuf::zeroed(page_bytes));
        }
        Ok(Self {
            opened: params,
            sized: parking_lot::RwLock::new(params),
            resizing: locks::Mutex::new(Rank::Resizing, ()),
            staging_made: AtomicUsize::new(params.staging.max(1)),
            stalls: Arc::new(Stalls::new(Arc::clone(&frames.waiters))),
            abandons: frames.abandons(),
            frames,
            claim: tier.claim(),
            tier,
            periods: Periods::new(policy.uses_seen()),
            policy: Mutex::new(HintedPool::new(policy, params.frames)),
            hits: HitBuffers::new(),
            gate_tells: gate.as_ref().is_some_and(|gate| gate.durable() > Lsn(0)),
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
            evictions_per_look: AtomicU64::new(params.evictions_per_look()),
            lsn_max: AtomicU64::new(0),
            lsn_checked: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            last_failure: parking_lot::Mutex::new(None),
            failing: Failing::default(),
            rounds: AtomicU64::new(0),
            starved: AtomicBool::new(false),
            flush_pace: FlushPace::default(),
            guard_waits: GuardWaits::default(),
            frame_waiters: AtomicU64::new(0),
            writes_ended: AtomicU64::new(0),
            barren_at: AtomicU64::new(NOT_BARREN),
            runtime,
        })
    }

    /// Makes `frame`, latched exclusively by the caller, hold a new page `page`, all zeroes.
    pub(crate) fn blank(&self, frame: FrameId, page: PageId) {
        // SAFETY: the caller holds the frame's exclusive latch.
        let image = unsafe { self.frames.arena.bytes_mut(frame.at()) };
        // Also for a page that was in memory: `create` promises zeroes, whatever the frame held.
        image.fill(0);
        Header { page, lsn: Lsn(0), stamp: Stamp::ZERO, flags: Flags::NONE }.put(image);
        self.tier.allocated(page);
        bump(&self.counters.created);
    }

    /// Marks the page in `frame` dirty, after a change through a guard that is about to release it.
    pub(crate) fn became_dirty(&self, frame: FrameId, page: PageId, lsn: Lsn) {
        let f = self.frames.at(frame);
        f.note_lsn(lsn);
        // The LSN first, then the flag: `min_recovery_lsn` must never see a dirty page without its LSN, or
        // the log would be truncated beyond a change that redo needs.
        let (was_dirty, being_written) = f.word.dirty();
        if was_dirty {
            return;
        }
        // Before the latch is released: a `sync` of the same task comes next, and must find the page.
        self.frames.unwritten.add(frame);
        let mut policy = self.policy.lock();
        // The buffered requests preceded the change: if they were reported after it, they would count for a
        // page that is already dirty and has another home.
        self.drain_hits(&mut policy);
        // While a copy is being written, the tier counts the page as changed already: this change is no
        // news.
        let invalidated = !being_written && self.tier.dirtied(page, f.uses.take_logical());
        policy.dirtied(frame);
        if invalidated {
            policy.ssd_invalidated(frame);
        }
    }

    pub(crate) fn note_lsn(&self, lsn: Lsn) {
        let Some(span) = self.opened.redo_span_max else { return };
        let newest = self.lsn_max.fetch_max(lsn.0, Ordering::Relaxed).max(lsn.0);
        // Asks once per eighth of the span, since a look walks all dirty frames. `min`: another task may
        // have noted a newer LSN in between, and the difference must not wrap.
        if newest - self.lsn_checked.load(Ordering::Relaxed).min(newest) > span / 8 {
            self.clean.notify_one();
        }
    }
}

impl<T: Tier> Drop for PoolInner<T> {
    fn drop(&mut self) {
        // Wake the tasks: they find the pool gone and end.
        self.clean.notify_one();
        self.needed.notify_one();
    }
}
