//! The page cleaners: replacement writes for the pages that will be evicted next, recoverability writes for the oldest changes, and
//! the writes of `sync` and `flush_to`.
//!
//! A page being written is copied first: its latch is held for a memcpy. Dirty becomes being-written; a change meanwhile makes it dirty
//! again, a failure too. At most one write of a page is in flight. Writes run in tasks of their own, so that a caller who is dropped leaves
//! nothing half done.

use crate::frame::{Frame, NO_LSN};
use crate::params::PoolError;
use crate::pool::{Inner, Pool, bump};
use crate::tier::{DirtyPage, Tier, WrittenPage};
use crate::word::{Attempt, Mode};
use pagetier_devio::IoBuf;
use pagetier_page::{Header, Lsn, PageId};
use pagetier_policy::{CleanReason, FrameId};
use parking_lot::Mutex;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// After a failed write the cleaner waits this long, twice as long each time, up to the second number.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(2));

/// A staged copy, and the frame it came from.
struct Staged {
    frame: u32,
    page: PageId,
    lsn: Lsn,
    image: IoBuf,
    logical: u32,
}

/// The cleaner task: ends when the pool does.
pub(crate) async fn run<T: Tier>(pool: Weak<Inner<T>>, woken: Arc<Notify>) {
    let mut writes: JoinSet<bool> = JoinSet::new();
    let mut back_off = BACK_OFF.0;
    loop {
        let Some(inner) = pool.upgrade() else { return };
        if inner.closed.load(Ordering::Acquire) {
            while writes.join_next().await.is_some() {}
            return;
        }
        let staged = if writes.len() < inner.params.clean_batches { inner.next_batch() } else { None };
        if let Some((batch, reason)) = staged {
            let task = Arc::clone(&inner);
            writes.spawn_on(async move { task.write_batch(batch, reason).await.is_ok() }, &inner.runtime);
            continue;
        }
        // Nobody but the users and their writes keep the pool alive.
        drop(inner);
        if wait_for_work(&woken, &mut writes).await {
            back_off = BACK_OFF.0;
        } else {
            tokio::time::sleep(back_off).await;
            back_off = (back_off * 2).min(BACK_OFF.1);
        }
    }
}

/// Waits for a wake-up or the end of a write. False after a failed write.
async fn wait_for_work(woken: &Notify, writes: &mut JoinSet<bool>) -> bool {
    tokio::select! {
        biased;
        Some(done) = writes.join_next(), if !writes.is_empty() => done.unwrap_or(false),
        () = woken.notified() => true,
    }
}

impl<T: Tier> Inner<T> {
    /// The next pages to write, staged: likely victims first, then changes older than the redo bound.
    fn next_batch(&self) -> Option<(Vec<Staged>, CleanReason)> {
        self.evicted_since_clean.store(0, Ordering::Relaxed);
        let mut set = Vec::new();
        let max = self.params.clean_batch;
        let frames = &self.frames;
        self.policy.lock().clean_set(
            self.params.clean_depth,
            max,
            &mut |f: FrameId| frames.at(f.0).word.is_cleanable(),
            &mut set,
        );
        let batch = self.stage_all(set.iter().map(|f| f.0));
        if !batch.is_empty() {
            return Some((batch, CleanReason::Replacement));
        }
        let batch = self.stage_all(self.too_old().into_iter());
        (!batch.is_empty()).then_some((batch, CleanReason::Recoverability))
    }

    fn stage_all(&self, frames: impl Iterator<Item = u32>) -> Vec<Staged> {
        let mut batch = Vec::new();
        for frame in frames.take(self.params.clean_batch) {
            let Some(buf) = self.staging.pop() else { break };
            match self.try_stage(frame, buf) {
                Ok(staged) => batch.push(staged),
                Err(buf) => self.unstage(buf),
            }
        }
        batch
    }

    /// Dirty frames whose oldest change is beyond the redo bound, oldest first.
    fn too_old(&self) -> Vec<u32> {
        let Some(span) = self.params.redo_span_max else { return Vec::new() };
        let newest = self.lsn_max.load(Ordering::Relaxed);
        if newest - self.lsn_checked.load(Ordering::Relaxed).min(newest) <= span / 8 {
            return Vec::new();
        }
        let bound = newest.saturating_sub(span);
        let mut old: Vec<(u64, u32)> = (0..self.frames.all.len() as u32)
            .map(|i| (self.frames.at(i).recovery_lsn.load(Ordering::Acquire), i))
            .filter(|(lsn, i)| *lsn < bound && self.frames.at(*i).word.is_cleanable())
            .collect();
        if old.len() <= self.params.clean_batch {
            self.lsn_checked.store(newest, Ordering::Relaxed);
        }
        old.sort_unstable();
        old.into_iter().map(|(_, i)| i).collect()
    }

    fn try_stage(&self, frame: u32, buf: IoBuf) -> Result<Staged, IoBuf> {
        if self.frames.at(frame).word.try_latch(Mode::Shared) != Attempt::Latched {
            return Err(buf);
        }
        let staged = self.stage(frame, buf);
        self.frames.release(frame, Mode::Shared);
        staged
    }

    /// Copies the page in `frame`, which is latched shared, if it is dirty and not being written.
    fn stage(&self, frame: u32, mut buf: IoBuf) -> Result<Staged, IoBuf> {
        let f = self.frames.at(frame);
        if !f.word.begin_clean() {
            return Err(buf);
        }
        // SAFETY: the shared latch is held by the caller for the whole call.
        let image = unsafe { self.frames.arena.bytes(frame as usize) };
        buf.as_mut_slice().copy_from_slice(image);
        f.writing_lsn.store(f.recovery_lsn.swap(NO_LSN, Ordering::AcqRel), Ordering::Release);
        let header = Header::peek(buf.as_slice());
        let logical = f.take_logical();
        Ok(Staged { frame, page: header.page, lsn: header.lsn, image: buf, logical })
    }

    fn unstage(&self, buf: IoBuf) {
        let _ = self.staging.push(buf);
        self.staged.notify_one();
    }

    /// Writes the batch: the log first, then the pages. Every page comes out clean or dirty again.
    async fn write_batch(&self, batch: Vec<Staged>, reason: CleanReason) -> Result<(), PoolError> {
        let newest = batch.iter().map(|s| s.lsn).max().unwrap_or_default();
        if let Err(source) = self.log_durable(newest).await {
            let page = batch.first().map_or(PageId::default(), |s| s.page);
            for staged in batch {
                self.end_write(staged.frame, Err(()), reason);
                self.unstage(staged.image);
            }
            return Err(PoolError::Log { page, source });
        }
        let mut frames: Vec<(PageId, u32)> = Vec::with_capacity(batch.len());
        let mut pages = Vec::with_capacity(batch.len());
        for Staged { frame, page, image, logical, .. } in batch {
            frames.push((page, frame));
            pages.push(DirtyPage { page, image, logical });
        }
        let result = Mutex::new(Ok(()));
        let done = |written: WrittenPage| {
            let Some(&(_, frame)) = frames.iter().find(|(page, _)| *page == written.page) else { return };
            self.displaced(&mut self.policy.lock(), written.displaced);
            match written.result {
                Ok(home) => self.end_write(frame, Ok(home), reason),
                Err(error) => {
                    tracing::warn!(page = %written.page, %error, "a page could not be written and stays dirty");
                    self.end_write(frame, Err(()), reason);
                    let mut first = result.lock();
                    if first.is_ok() {
                        *first = Err(PoolError::Tier(error));
                    }
                }
            }
            self.unstage(written.image);
        };
        self.tier.write(pages, reason, &done).await;
        result.into_inner()
    }

    async fn log_durable(&self, lsn: Lsn) -> Result<(), Arc<dyn std::error::Error + Send + Sync>> {
        match &self.gate {
            Some(gate) if lsn > Lsn(0) => gate.make_durable(lsn).await,
            _ => Ok(()),
        }
    }

    fn end_write(&self, frame: u32, result: Result<pagetier_policy::Home, ()>, reason: CleanReason) {
        let f = self.frames.at(frame);
        let lsn = f.writing_lsn.load(Ordering::Acquire);
        if result.is_err() {
            bump(&self.counters.write_errors);
            f.recovery_lsn.fetch_min(lsn, Ordering::AcqRel);
        }
        f.writing_lsn.store(NO_LSN, Ordering::Release);
        let mut policy = self.policy.lock();
        let clean = f.word.end_clean(result.is_ok());
        if let Ok(home) = result {
            policy.cleaned(FrameId(frame), home, reason);
            if !clean {
                policy.dirtied(FrameId(frame));
            }
            let by_reason = match reason {
                CleanReason::Replacement => &self.counters.written_replacement,
                CleanReason::Recoverability => &self.counters.written_recoverability,
            };
            bump(by_reason);
            if home == pagetier_policy::Home::Ssd {
                bump(&self.counters.written_ssd);
            }
        }
        drop(policy);
        self.cleaned.notify_waiters();
        self.frames.freed.notify_one();
    }
}

impl<T: Tier> Pool<T> {
    /// Writes every page that is dirty now and makes it durable: `sync`. Dropped, the writes under way still finish.
    ///
    /// # Errors
    /// The first failure; pages that could not be written stay dirty.
    pub async fn flush_all(&self) -> Result<(), PoolError> {
        self.flush_where(|_| true).await
    }

    /// Writes every page whose recovery LSN is at most `lsn`, and makes it durable. Afterwards redo needs nothing up to `lsn`, as long as
    /// the embedder dirties no page with older LSNs. Dropped, the writes under way still finish.
    ///
    /// # Errors
    /// As [`Pool::flush_all`].
    pub async fn flush_to(&self, lsn: Lsn) -> Result<(), PoolError> {
        self.flush_where(|frame| frame.redo_from().is_some_and(|from| from <= lsn)).await
    }

    async fn flush_where(&self, wanted: impl Fn(&Frame) -> bool) -> Result<(), PoolError> {
        let dirty = |f: &Frame| f.word.is_dirty() || f.word.is_cleaning();
        let mut pages: Vec<(Option<Lsn>, PageId)> = self
            .inner
            .frames
            .all
            .iter()
            .filter(|f| dirty(f) && wanted(f))
            .filter_map(|f| Some((f.redo_from(), f.page()?)))
            .collect();
        pages.sort_unstable();
        let mut tasks: JoinSet<Result<(), PoolError>> = JoinSet::new();
        let mut result = Ok(());
        let mut pages = pages.into_iter().map(|(_, page)| page).peekable();
        while pages.peek().is_some() {
            let mut batch = Vec::new();
            while let Some(page) =
                pages.peek().copied().filter(|_| batch.len() < self.inner.params.clean_batch)
            {
                // A batch must not wait, latches and staging buffers in hand, for what another batch has.
                match self.inner.stage_for_flush(page, batch.is_empty()).await {
                    Turn::Staged(staged) => batch.push(staged),
                    Turn::Clean => {}
                    Turn::Later => break,
                }
                pages.next();
            }
            if !batch.is_empty() {
                let inner = Arc::clone(&self.inner);
                tasks.spawn(async move { inner.write_batch(batch, CleanReason::Recoverability).await });
            }
            while tasks.len() >= self.inner.params.clean_batches {
                result = result.and(joined(tasks.join_next().await));
            }
        }
        while !tasks.is_empty() {
            result = result.and(joined(tasks.join_next().await));
        }
        result?;
        Ok(self.inner.tier.flush().await?)
    }

    /// Stops the cleaner once its writes are over. Dirty pages stay dirty: call [`Pool::flush_all`] before.
    pub async fn shutdown(&self) {
        self.inner.closed.store(true, Ordering::Release);
        self.inner.clean.notify_one();
        loop {
            let cleaned = self.inner.cleaned.notified();
            tokio::pin!(cleaned);
            cleaned.as_mut().enable();
            if !self.inner.frames.all.iter().any(|f| f.word.is_cleaning()) {
                return;
            }
            cleaned.await;
        }
    }
}

fn joined(done: Option<Result<Result<(), PoolError>, tokio::task::JoinError>>) -> Result<(), PoolError> {
    match done {
        None => Ok(()),
        Some(Ok(result)) => result,
        Some(Err(_)) => Err(PoolError::Closed),
    }
}

enum Turn {
    Staged(Staged),
    /// Written meanwhile, or gone.
    Clean,
    /// Has to wait: hand in what is staged first.
    Later,
}

impl<T: Tier> Inner<T> {
    /// Stages `page` for a flush. When `may_wait`, waits for its latch, for a write of it under way, and for a staging buffer.
    async fn stage_for_flush(&self, page: PageId, may_wait: bool) -> Turn {
        loop {
            let (cleaned, staged) = (self.cleaned.notified(), self.staged.notified());
            tokio::pin!(cleaned, staged);
            cleaned.as_mut().enable();
            staged.as_mut().enable();
            let Some(buf) = self.staging.pop() else {
                if !may_wait {
                    return Turn::Later;
                }
                staged.await;
                continue;
            };
            let frame = match self.hit_quietly(page) {
                Some(frame) => frame,
                None if !may_wait => {
                    self.unstage(buf);
                    return Turn::Later;
                }
                None => match self.latch_resident(page, Mode::Shared).await {
                    Some(frame) => frame,
                    None => {
                        self.unstage(buf);
                        return Turn::Clean;
                    }
                },
            };
            let outcome = self.stage(frame, buf);
            let word = &self.frames.at(frame).word;
            let (dirty, writing) = (word.is_dirty(), word.is_cleaning());
            self.frames.release(frame, Mode::Shared);
            match outcome {
                Ok(staged) => return Turn::Staged(staged),
                Err(buf) => self.unstage(buf),
            }
            match (dirty || writing, may_wait) {
                (false, _) => return Turn::Clean,
                (true, false) => return Turn::Later,
                // Being written: if that fails, or the page was changed since, it is dirty afterwards.
                (true, true) => cleaned.await,
            }
        }
    }

    fn hit_quietly(&self, page: PageId) -> Option<u32> {
        let frame = self.frames.table.find(&self.frames.all, page)?;
        let latched = self.frames.at(frame).word.try_latch(Mode::Shared) == Attempt::Latched;
        if latched && self.frames.at(frame).page() != Some(page) {
            self.frames.release(frame, Mode::Shared);
            return None;
        }
        latched.then_some(frame)
    }
}

impl<T: Tier> std::fmt::Debug for Inner<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").finish_non_exhaustive()
    }
}
