//! The writes of `sync` and `flush_to`, and the end of the cleaner.

use crate::frames::frame::Frame;
use crate::state::flush_pace::{PATIENCE, Pace};
use crate::state::handle::Pool;
use crate::state::inner::PoolInner;
use crate::state::params::PoolError;
use crate::tier::Tier;
use crate::word::Mode;
use crate::write::clean::Staged;
use pagetier_devio::listen;
use pagetier_devio::locks::flow;
use pagetier_devio::task::Boxed;
use pagetier_page::{Lsn, PageId, SpaceId};
use pagetier_policy::{CleanReason, FrameId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The writes of a flush. They continue when this is dropped.
struct Flushes(JoinSet<Result<(), PoolError>>);

impl Drop for Flushes {
    fn drop(&mut self) {
        self.0.detach_all();
    }
}

impl<T: Tier> Pool<T> {
    /// Writes every page that is dirty at this moment and makes it durable: `sync`. If the future is dropped,
    /// writes in flight still finish.
    ///
    /// # Errors
    /// The first failure; pages that could not be written stay dirty.
    pub async fn flush_all(&self) -> Result<(), PoolError> {
        self.flush_where(Pace::Readers, |frame, _| frame.word.is_unwritten()).await
    }

    /// As [`Pool::flush_all`], for the pages of `space` alone.
    ///
    /// # Errors
    /// As [`Pool::flush_all`].
    pub async fn flush_space(&self, space: SpaceId) -> Result<(), PoolError> {
        let of_space = |frame: &Frame| frame.page().is_some_and(|page| page.space == space);
        self.flush_where(Pace::Readers, |frame, _| frame.word.is_unwritten() && of_space(frame)).await
    }

    /// Writes every page whose recovery LSN is at most `lsn`, and every page that was created and not changed
    /// since, and makes them durable. Redo then needs nothing up to `lsn`, as long as the embedder dirties no
    /// page with older LSNs. If the future is dropped, writes in flight still finish.
    ///
    /// # Errors
    /// As [`Pool::flush_all`].
    pub async fn flush_to(&self, lsn: Lsn) -> Result<(), PoolError> {
        // Includes pages that are not dirty yet because the guard that logged the change still lives.
        self.flush_where(Pace::Full, |_, from| from <= lsn || from == Lsn::BLANK).await
    }

    /// Whether a flush waits for an exclusive guard: a number that stays the same during one wait.
    pub fn flush_waits_for_guard(&self) -> Option<u64> {
        self.inner.guard_waits.current()
    }

    /// `wanted` gets a frame with unwritten changes, and the smallest LSN that redo would need for its page.
    async fn flush_where(&self, pace: Pace, wanted: impl Fn(&Frame, Lsn) -> bool) -> Result<(), PoolError> {
        // The cause of the cleaner's back-off may be gone.
        self.inner.need_cleaner();
        let frames = &self.inner.frames;
        let changed = frames.with_changes().into_iter().map(|(frame, from)| (frames.at(frame), from));
        let wanted = changed.filter(|&(frame, from)| wanted(frame, from));
        let mut pages: Vec<(Lsn, PageId)> =
            wanted.filter_map(|(frame, from)| Some((from, frame.page()?))).collect();
        // The oldest change first: redo's starting point moves on even if the flush ends half-way. Equal
        // LSNs go by page number, so that neighbours reach the tier together.
        pages.sort_unstable();
        let mut tasks = Flushes(JoinSet::new());
        let mut result = Ok(());
        let mut pages = pages.into_iter().map(|(_, page)| page).peekable();
        while pages.peek().is_some() {
            let mut batch = Vec::new();
            while let Some(page) =
                pages.peek().copied().filter(|_| batch.len() < self.inner.params().clean_batch)
            {
                // While it holds latches and staging buffers, a batch must not wait for resources of another
                // batch.
                match self.inner.stage_for_flush(page, batch.is_empty()).await? {
                    Turn::Staged(staged) => batch.push(staged),
                    Turn::Clean => {}
                    Turn::Later => break,
                }
                pages.next();
            }
            if !batch.is_empty() {
                let inner = Arc::clone(&self.inner);
                let write: Boxed<'_, _> = Box::pin(flow(async move { inner.write_batch(batch).await }));
                tasks.0.spawn_on(write, &self.inner.runtime);
            }
            let most = self.inner.params().clean_batches.max(1);
            // The last batch keeps none waiting.
            while pages.peek().is_some() && tasks.0.len() >= self.batches(pace, most) {
                let patience = if tasks.0.len() < most { PATIENCE } else { Duration::MAX };
                // The pool's timer: the caller may be on a thread without a runtime.
                let over = {
                    let _runtime = self.inner.runtime.enter();
                    sleep(patience)
                };
                let ended = tokio::select! {
                    biased;
                    ended = tasks.0.join_next() => ended,
                    () = over => break,
                };
                result = result.and(joined(ended));
                self.inner.flush_pace.batch_ended();
            }
        }
        while !tasks.0.is_empty() {
            result = result.and(joined(tasks.0.join_next().await));
            self.inner.flush_pace.batch_ended();
        }
        result?;
        // I24: the tier's flush begins after the last page write has ended.
        Ok(self.inner.tier.flush().await?)
    }

    /// The batches of a flush that may be in flight now, up to `most`.
    fn batches(&self, pace: Pace, most: usize) -> usize {
        match pace {
            Pace::Full => most,
            Pace::Readers => self.inner.flush_pace.batches(most, self.inner.hits.misses()),
        }
    }

    /// Waits until every exclusive guard that exists at this moment, of a page for which `of` returns true,
    /// has been dropped: a flush that begins afterwards covers their changes. Looks at every frame.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`PoolError::Deadlock`].
    pub async fn guards_dropped(&self, of: impl Fn(PageId) -> bool) -> Result<(), PoolError> {
        let frames = &self.inner.frames;
        let held = frames.all.iter().filter(|frame| frame.word.is_exclusive());
        let pages: Vec<PageId> = held.filter_map(Frame::page).filter(|page| of(*page)).collect();
        for page in pages {
            // One at a time: what this waits for may wait for another of them.
            if let Some(frame) = self.inner.latch_resident(page, Mode::Shared).await? {
                frames.release(frame, Mode::Shared);
            }
        }
        Ok(())
    }

    /// Stops the cleaner once its writes have ended. Dirty pages stay dirty: call [`Pool::flush_all`] before.
    pub async fn shutdown(&self) {
        self.inner.closed.store(true, Ordering::Release);
        self.inner.clean.notify_one();
        self.inner.needed.notify_one();
        loop {
            listen!(cleaned = self.inner.cleaned);
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
        // The task was aborted: its runtime ends.
        Some(Err(_)) => Err(PoolError::Closed),
    }
}

enum Turn<T: Tier> {
    Staged(Staged<T>),
    /// The page was written in the meantime, or is gone.
    Clean,
    /// The page must wait: submit what is staged first.
    Later,
}

impl<T: Tier> PoolInner<T> {
    /// Stages `page` for a flush. With `may_wait`, waits for its latch, for a write of it in flight, and for
    /// a staging buffer. While it waits it holds nothing else, so a dropped flush loses nothing and others
    /// can proceed.
    async fn stage_for_flush(self: &Arc<Self>, page: PageId, may_wait: bool) -> Result<Turn<T>, PoolError> {
        // Nearly every page is staged at the first look, and need not register.
        if let Some(frame) = self.try_share_resident(page) {
            let staged = self.stage_latched(frame).map(Turn::Staged);
            self.frames.release(frame, Mode::Shared);
            if let Some(staged) = staged {
                return Ok(staged);
            }
        }
        loop {
            listen!(cleaned = self.cleaned, unstaged = self.staged);
            let frame = match self.try_share_resident(page) {
                Some(frame) => frame,
                None if !may_wait => return Ok(Turn::Later),
                None => {
                    let _waits = self.guard_waits.begin();
                    match self.latch_resident(page, Mode::Shared).await? {
                        Some(frame) => frame,
                        None => return Ok(Turn::Clean),
                    }
                }
            };
            let staged = self.stage_latched(frame);
            let word = &self.frames.at(frame).word;
            // From one load. Between two of them a write could fail, "being written" become "dirty", and
            // the page pass for clean: `sync` would report success without it.
            let (dirty, writing) = word.unwritten();
            self.frames.release(frame, Mode::Shared);
            match staged {
                Some(staged) => return Ok(Turn::Staged(staged)),
                None if !dirty && !writing => return Ok(Turn::Clean),
                None if !may_wait => return Ok(Turn::Later),
                // If the write fails, or the page has changed since, the page is dirty afterwards.
                None if writing => cleaned.await,
                None => unstaged.await,
            }
        }
    }

    /// `None` if the page is clean or being written, or no staging buffer is free.
    pub(crate) fn stage_latched(self: &Arc<Self>, frame: FrameId) -> Option<Staged<T>> {
        let buf = self.staging.pop()?;
        self.stage(frame, buf, CleanReason::Recoverability).map_err(|buf| self.unstage(buf)).ok()
    }
}
