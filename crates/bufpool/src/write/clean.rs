//! The page cleaners: replacement writes for the next victims, recoverability writes for the oldest changes,
//! and the writes of `sync` and `flush_to`.
//!
//! A page is copied before it is written, so its latch is held only for a memcpy. Its state changes from
//! dirty to being-written; a change during the write, or a failed write, makes it dirty again. At most one
//! write of a page is in flight. Writes run in their own tasks, so a dropped caller leaves none half done.

use crate::frames::frame::NO_LSN;
use crate::state::inner::{PoolInner, bump};
use crate::state::params::PoolError;
use crate::tier::{DirtyPage, Tier, WrittenPage};
use crate::waits::stalls::On;
use crate::word::{Attempt, Mode};
use pagetier_devio::locks::apart;
use pagetier_devio::{IoBuf, IoClass};
use pagetier_page::{Header, Lsn, PageId};
use pagetier_policy::{CleanReason, FrameId, FramePolicy, FrameState, Location};
use parking_lot::Mutex;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// The cleaner's first and longest pause after a failed write; each further failure doubles the pause. A
/// request that needs a frame cuts it short.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(2));

/// A staged copy of a page, about to be written.
pub(crate) struct Staged<T: Tier> {
    write: Write<T>,
    lsn: Lsn,
    image: IoBuf,
    logical: u32,
    recovery_lsn: Lsn,
}

/// The write of a page. If this is dropped before the write ends (its task was aborted, the tier panicked),
/// the write has failed: the page becomes dirty again, and a new staging buffer replaces the lost one.
struct Write<T: Tier> {
    pool: Arc<PoolInner<T>>,
    frame: FrameId,
    page: PageId,
    reason: CleanReason,
    writing_home: bool,
    ended: bool,
}

impl<T: Tier> Write<T> {
    fn end(mut self, result: Result<Location, ()>, image: IoBuf) {
        self.ended = true;
        self.finish(result, image);
    }

    fn finish(&self, result: Result<Location, ()>, image: IoBuf) {
        self.pool.writing_home.fetch_sub(usize::from(self.writing_home), Ordering::Relaxed);
        self.pool.end_write(self.frame, result, self.reason);
        self.pool.unstage(image);
    }
}

impl<T: Tier> Drop for Write<T> {
    fn drop(&mut self) {
        // In a forked process, the policy's lock may be held forever.
        if !self.ended && self.pool.frames.owner.is_here() {
            self.finish(Err(()), IoBuf::zeroed(self.pool.opened.page_size.bytes()));
        }
    }
}

/// The cleaner's task. Ends with the pool.
pub(crate) async fn run<T: Tier>(pool: Weak<PoolInner<T>>, woken: Arc<Notify>, needed: Arc<Notify>) {
    let mut writes: JoinSet<bool> = JoinSet::new();
    let mut back_off = BACK_OFF.0;
    loop {
        let Some(inner) = pool.upgrade() else { return };
        bump(&inner.rounds);
        if inner.closed.load(Ordering::Acquire) {
            // To drop the set would abort its writes half-way.
            while writes.join_next().await.is_some() {}
            return;
        }
        let staged = if inner.may_start(writes.len()) { inner.next_batch() } else { None };
        if let Some(batch) = staged {
            let task = Arc::clone(&inner);
            writes.spawn_on(apart(async move { task.write_batch(batch).await.is_ok() }), &inner.runtime);
            continue;
        }
        // Those of the last `sync`, which looked before it wrote, would make evictions wake this task in
        // vain.
        inner.frames.unwritten.forget(&inner.frames.all);
        // Hold no strong reference while idle: only handles and writes keep the pool alive.
        drop(inner);
        if wait_for_work(&woken, &mut writes).await {
            back_off = BACK_OFF.0;
        } else {
            tokio::select! {
                biased;
                () = needed.notified() => back_off = BACK_OFF.0,
                () = tokio::time::sleep(back_off) => back_off = (back_off * 2).min(BACK_OFF.1),
            }
        }
    }
}

/// Waits for a wake-up or the end of a write. Returns false after a failed write.
async fn wait_for_work(woken: &Notify, writes: &mut JoinSet<bool>) -> bool {
    tokio::select! {
        biased;
        Some(done) = writes.join_next(), if !writes.is_empty() => done.unwrap_or(false),
        () = woken.notified() => true,
    }
}

impl<T: Tier> PoolInner<T> {
    /// Wakes the cleaner, even from the pause after a failed write.
    pub(crate) fn need_cleaner(&self) {
        self.needed.notify_one();
    }

    /// Whether another batch may start beside `batches`. Where staging buffers are scarce it waits for the
    /// end of a batch, which returns several: batches of single pages would each take a write to the ring and
    /// a share of a flush of their own.
    fn may_start(&self, batches: usize) -> bool {
        let params = self.params();
        let worth_while = params.clean_batch.min(params.staging / 4);
        batches < params.clean_batches && (batches == 0 || self.staging.len() >= worth_while)
    }

    /// Stages the next pages to write: first likely victims, then pages with changes older than the redo
    /// bound.
    fn next_batch(self: &Arc<Self>) -> Option<Vec<Staged<T>>> {
        // Before the look, not after it: evictions during the look then count towards the next one.
        self.evicted_since_clean.store(0, Ordering::Relaxed);
        let frames = &self.frames;
        // If the next victims are all pinned, write those behind them.
        let starved = self.starved.swap(false, Ordering::Relaxed);
        // Limit the pages bound for the disk: otherwise they would soon occupy all staging buffers and leave
        // none for the SSD, which is a hundred times as fast.
        let params = self.params();
        let home_max = (params.staging / 2).max(1);
        let mut home_left = home_max.saturating_sub(self.writing_home.load(Ordering::Relaxed));
        // While the disk is busy, a deep search finds little and delays every other task.
        let any = starved && home_left > 0;
        if starved && !any {
            // The request still waits: look once the disk has taken something.
            self.starved.store(true, Ordering::Relaxed);
        }
        let depth = if any { frames.all.len() } else { params.clean_depth };
        let mut state = |f: FrameId| {
            let Some(frame) = frames.all.get(f.at()) else { return FrameState::Busy };
            if !frame.word.is_cleanable() {
                return if frame.word.is_evictable() { FrameState::Clean } else { FrameState::Busy };
            }
            if frame.page().is_some_and(|page| self.tier.goes_home(page)) {
                let Some(left) = home_left.checked_sub(1) else { return FrameState::Busy };
                home_left = left;
            }
            FrameState::Dirty
        };
        let mut set = Vec::new();
        self.policy.lock().clean_set(depth, params.clean_batch, &mut state, &mut set);
        // A policy of the embedder's own may name frames that do not exist.
        let known = set.into_iter().filter(|frame| frame.at() < frames.all.len());
        let mut batch = self.stage_all(known, CleanReason::Replacement);
        if batch.is_empty() && any {
            // Whatever the policy returns, a request must not wait while there is a page to write.
            let dirty = frames.ids().filter(|frame| state(*frame) == FrameState::Dirty);
            batch = self.stage_all(dirty, CleanReason::Replacement);
        }
        if !batch.is_empty() {
            return Some(batch);
        }
        let batch = self.stage_all(self.too_old().into_iter(), CleanReason::Recoverability);
        (!batch.is_empty()).then_some(batch)
    }

    fn stage_all(
        self: &Arc<Self>,
        frames: impl Iterator<Item = FrameId>,
        reason: CleanReason,
    ) -> Vec<Staged<T>> {
        let mut batch = Vec::new();
        for frame in frames.take(self.params().clean_batch) {
            // Takes what there is: a smaller batch now beats waiting, and the end of a write brings the
            // cleaner back.
            let Some(buf) = self.staging.pop() else { break };
            match self.try_stage(frame, buf, reason) {
                Ok(staged) => batch.push(staged),
                Err(buf) => self.unstage(buf),
            }
        }
        batch
    }

    /// The dirty frames whose oldest change is beyond the redo bound, oldest first.
    fn too_old(&self) -> Vec<FrameId> {
        let Some(span) = self.opened.redo_span_max else { return Vec::new() };
        let newest = self.lsn_max.load(Ordering::Relaxed);
        if newest - self.lsn_checked.load(Ordering::Relaxed).min(newest) <= span / 8 {
            return Vec::new();
        }
        let bound = newest.saturating_sub(span);
        let mut old: Vec<(u64, FrameId)> = Vec::new();
        self.frames.unwritten.walk(&self.frames.all, |frame, f| {
            let lsn = f.recovery_lsn.load(Ordering::Acquire);
            if lsn < bound && f.word.is_cleanable() {
                old.push((lsn, frame));
            }
            true
        });
        // The next look can wait for an eighth of the span only if this batch takes all that is due.
        if old.len() <= self.params().clean_batch {
            self.lsn_checked.store(newest, Ordering::Relaxed);
        }
        old.sort_unstable();
        old.into_iter().map(|(_, i)| i).collect()
    }

    fn try_stage(
        self: &Arc<Self>,
        frame: FrameId,
        buf: IoBuf,
        reason: CleanReason,
    ) -> Result<Staged<T>, IoBuf> {
        // The cleaner never queues for a latch: as a waiter it would keep later readers out of a hot page.
        if self.frames.at(frame).word.try_latch(Mode::Shared) != Attempt::Latched {
            return Err(buf);
        }
        let staged = self.stage(frame, buf, reason);
        self.frames.release(frame, Mode::Shared);
        staged
    }

    /// Copies the page in `frame`, whose shared latch the caller holds, if it is dirty and not being written.
    pub(crate) fn stage(
        self: &Arc<Self>,
        frame: FrameId,
        mut buf: IoBuf,
        reason: CleanReason,
    ) -> Result<Staged<T>, IoBuf> {
        let f = self.frames.at(frame);
        if !f.word.begin_clean() {
            return Err(buf);
        }
        // SAFETY: the caller holds the shared latch for the whole call.
        let image = unsafe { self.frames.arena.bytes(frame.at()) };
        buf.as_mut_slice().copy_from_slice(image);
        // The order matters: `Frames::redo_from` must find the LSN in one of the two at every moment.
        let redo_from = f.recovery_lsn.load(Ordering::Acquire);
        self.frames.writing.begin(frame, redo_from);
        f.recovery_lsn.store(NO_LSN, Ordering::Release);
        let Header { page, lsn, .. } = Header::peek(buf.as_slice());
        let writing_home = self.tier.goes_home(page);
        self.writing_home.fetch_add(usize::from(writing_home), Ordering::Relaxed);
        let write = Write { pool: Arc::clone(self), frame, page, reason, writing_home, ended: false };
        let recovery_lsn = Lsn(if redo_from == NO_LSN { 0 } else { redo_from });
        Ok(Staged { write, lsn, image: buf, logical: f.uses.take_logical(), recovery_lsn })
    }

    pub(crate) fn unstage(&self, buf: IoBuf) {
        if !self.drop_staging_buffer() {
            let _ = self.staging.push(buf);
        }
        self.staged.notify_one();
    }

    /// Returns whether there are more staging buffers than the pool's size calls for; if so, counts one less.
    pub(crate) fn drop_staging_buffer(&self) -> bool {
        let needed = self.params().staging.max(1);
        let less = |made: usize| (made > needed).then(|| made - 1);
        self.staging_made.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Makes the log durable, then writes the batch. Every page ends up clean or dirty.
    pub(crate) async fn write_batch(&self, batch: Vec<Staged<T>>) -> Result<(), PoolError> {
        let written = self.try_write_batch(batch).await;
        *self.last_failure.lock() = written.as_ref().err().cloned();
        written
    }

    async fn try_write_batch(&self, batch: Vec<Staged<T>>) -> Result<(), PoolError> {
        let Some(page) = batch.first().map(|s| s.write.page) else { return Ok(()) };
        let newest = batch.iter().map(|s| s.lsn).max().unwrap_or_default();
        let waiting = self.stalls.wait(On::Log, page);
        // Write-ahead: none of the batch may reach a device before the log has its newest change, or a
        // crash could leave a change on disk that the log does not know.
        if let Err(source) = self.log_durable(newest).await {
            batch.into_iter().for_each(|staged| staged.write.end(Err(()), staged.image));
            return Err(PoolError::Log { page, source });
        }
        drop(waiting);
        let mut open = Vec::with_capacity(batch.len());
        let mut pages = Vec::with_capacity(batch.len());
        for Staged { write, image, logical, recovery_lsn, .. } in batch {
            pages.push(DirtyPage { page: write.page, image, logical, recovery_lsn });
            open.push(write);
        }
        let open = Mutex::new(open);
        let result = Mutex::new(Ok(()));
        let done = |written: WrittenPage| {
            let mut writes = open.lock();
            // A tier that reports a page twice is ignored the second time; one that it forgets becomes
            // dirty again when `open` is dropped.
            let Some(at) = writes.iter().position(|w| w.page == written.page) else { return };
            let write = writes.swap_remove(at);
            drop(writes);
            // Outside the lock on `open`: the policy's lock comes first in the order.
            self.displaced(&mut self.policy.lock(), written.displaced);
            match &written.result {
                Ok(_) => self.failing.written(write.frame),
                Err(error) => self.failing.failed(write.frame, written.page, error),
            }
            write.end(written.result.as_ref().copied().map_err(|_| ()), written.image);
            if let Err(error) = written.result {
                // The first error is the caller's.
                let mut first = result.lock();
                if first.is_ok() {
                    *first = Err(PoolError::Tier(error));
                }
            }
        };
        // With this many staging buffers in use, frames wait for a device, and requests will soon wait for
        // frames.
        let staging = self.params().staging;
        let writing_home = self.writing_home.load(Ordering::Relaxed);
        let urgent = writing_home * 4 >= staging || self.staging.len() * 2 <= staging;
        let class = if urgent { IoClass::UrgentClean } else { IoClass::Clean };
        let _waiting = self.stalls.wait(On::Write, page);
        self.tier.write(pages, class, &done).await;
        debug_assert!(open.lock().is_empty(), "the tier reports every page");
        result.into_inner()
    }

    async fn log_durable(&self, lsn: Lsn) -> Result<(), Arc<dyn std::error::Error + Send + Sync>> {
        match &self.gate {
            Some(gate) if lsn > Lsn(0) => gate.make_durable(lsn).await,
            _ => Ok(()),
        }
    }

    fn end_write(&self, frame: FrameId, result: Result<Location, ()>, reason: CleanReason) {
        let f = self.frames.at(frame);
        // What redo needs is settled before the page can count as clean or dirty: `Frames::redo_from` looks
        // at the LSNs alone, at any moment.
        if result.is_err() {
            bump(&self.counters.write_errors);
            // It stays among those being written, too: see `writing`.
            f.recovery_lsn.fetch_min(self.frames.writing.lsn(frame), Ordering::AcqRel);
        } else {
            self.frames.writing.forget(frame);
        }
        let mut policy = self.policy.lock();
        // Under the policy's lock. Otherwise a change could come between the new state and its report: the
        // policy would hear "dirty", then "clean", and take a dirty page for a victim.
        let clean = f.word.end_clean(result.is_ok());
        if let Ok(location) = result {
            policy.cleaned(frame, location, reason);
            f.uses.moved();
            if !clean {
                policy.dirtied(frame);
            }
            let by_reason = match reason {
                CleanReason::Replacement => &self.counters.written_replacement,
                CleanReason::Recoverability => &self.counters.written_recoverability,
            };
            bump(by_reason);
            if location == Location::Ssd {
                bump(&self.counters.written_ssd);
            }
        }
        drop(policy);
        bump(&self.writes_ended);
        // A page that has become clean may be what a flush, a discard or a request for a frame waits for.
        self.cleaned.notify_waiters();
        self.frames.freed.notify_one();
    }
}

impl<T: Tier> std::fmt::Debug for PoolInner<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolInner").finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
impl<T: Tier> PoolInner<T> {
    /// For the models: one write of the page in `frame`, latched by the caller, if it is dirty.
    pub(crate) fn clean_latched(self: &Arc<Self>, frame: FrameId, write: impl FnOnce(&[u8])) {
        if let Some(staged) = self.stage_latched(frame) {
            write(staged.image.as_slice());
            staged.write.end(Ok(Location::Ssd), staged.image);
        }
    }

    /// For the models: one write of the page in `frame`, from staging to its end with result `ok`. `write`
    /// gets the staged copy if the page was dirty.
    pub(crate) fn clean_one(self: &Arc<Self>, frame: FrameId, ok: bool, write: impl FnOnce(&[u8])) -> bool {
        let Some(buf) = self.staging.pop() else { return false };
        match self.try_stage(frame, buf, CleanReason::Replacement) {
            Ok(staged) => {
                write(staged.image.as_slice());
                staged.write.end(if ok { Ok(Location::Ssd) } else { Err(()) }, staged.image);
                true
            }
            Err(buf) => {
                self.unstage(buf);
                false
            }
        }
    }
}
