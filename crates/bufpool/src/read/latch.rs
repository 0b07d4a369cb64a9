//! Latches the frame of a page in memory, with and without waiting.
//!
//! A hit has these steps in line (`load`); everything else that needs a page in memory comes here.

use crate::frames::set::Frames;
use crate::state::inner::PoolInner;
use crate::state::params::PoolError;
use crate::tier::Tier;
use crate::waits::queues::{LatchTicket, Refused};
use crate::word::{Attempt, Mode};
use pagetier_devio::locks::{self, Rank};
use pagetier_page::PageId;
use pagetier_policy::FrameId;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

impl<T: Tier> PoolInner<T> {
    /// Latches the frame of `page` if the page is in memory; waits as long as necessary.
    ///
    /// # Errors
    /// [`PoolError::Deadlock`].
    pub(crate) async fn latch_resident(
        &self,
        page: PageId,
        mode: Mode,
    ) -> Result<Option<FrameId>, PoolError> {
        loop {
            let found = self.frames.table.find(&self.frames.all, page);
            let frame = match found {
                Some(frame) => frame,
                // "Not there" is certain only under the lock. Believed without it, the page would be read
                // into a second frame beside the first, and the changes in one of them would be lost.
                None => match self.frames.table.lock(page).find(&self.frames.all) {
                    Some(frame) => frame,
                    None => return Ok(None),
                },
            };
            let word = &self.frames.at(frame).word;
            match word.try_latch(mode) {
                Attempt::Latched => {}
                // The pin keeps the page in the frame for the time of the wait, so the latch that is
                // granted is one of this page, unless its holder gives the page up.
                Attempt::Busy if word.pin() => Wait::new(&self.frames, frame, page, mode).await?,
                // The frame is being evicted under the bucket's lock: wait for that, then retry.
                Attempt::Busy | Attempt::Gone => {
                    drop(self.frames.table.lock(page));
                    continue;
                }
            }
            // The holder may have given the page up: its read failed, or it was discarded. The frame is
            // then an orphan that the last pin frees, perhaps this one.
            if !word.is_gone() && self.frames.at(frame).page.load(Ordering::Acquire) == page.to_u64() {
                return Ok(Some(frame));
            }
            self.frames.release(frame, mode);
        }
    }

    /// The same without waiting: `None` also while the latch is taken, or the chain is being changed. Neither
    /// the policy nor the counters see a hit.
    pub(crate) fn try_latch_resident(&self, page: PageId, mode: Mode) -> Option<FrameId> {
        self.frames.hit(self.frames.table.bucket(page), page, mode).map(|(frame, _)| frame)
    }

    /// The same for a flush, in shared mode: see [`Word::share_beside`].
    pub(crate) fn try_share_resident(&self, page: PageId) -> Option<FrameId> {
        let frame = self.frames.table.find(&self.frames.all, page)?;
        let f = self.frames.at(frame);
        let latched = f.word.try_latch(Mode::Shared) == Attempt::Latched || f.word.share_beside();
        if latched && f.page() != Some(page) {
            self.frames.release(frame, Mode::Shared);
            return None;
        }
        latched.then_some(frame)
    }
}

/// Waits for the latch of a pinned frame. Fails with [`PoolError::Deadlock`]. Cancel-safe: a dropped or
/// failed wait leaves neither latch nor pin.
pub(crate) struct Wait<'a> {
    frames: &'a Frames,
    frame: FrameId,
    page: PageId,
    mode: Mode,
    ticket: Option<LatchTicket>,
    done: bool,
}

impl<'a> Wait<'a> {
    /// Takes over the caller's pin of `frame`, where the caller found `page`.
    pub(crate) fn new(frames: &'a Frames, frame: FrameId, page: PageId, mode: Mode) -> Self {
        Self { frames, frame, page, mode, ticket: None, done: false }
    }
}

impl Future for Wait<'_> {
    type Output = Result<(), PoolError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { frames, frame, page, mode, ticket, .. } = *self;
        let turn = if let Some(ticket) = ticket {
            frames.waiters.poll(ticket, cx.waker())
        } else {
            locks::waits_for(Rank::Latch);
            let word = &frames.at(frame).word;
            self.ticket = frames.waiters.enqueue((frame, page, mode), word, cx.waker());
            if self.ticket.is_some() { Poll::Pending } else { Poll::Ready(Ok(())) }
        };
        self.done = turn == Poll::Ready(Ok(()));
        turn.map_err(|Refused| PoolError::Deadlock { page })
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        // In a forked process, the queue's lock may be held forever.
        if self.done || !self.frames.owner.is_here() {
            return;
        }
        let granted = self.ticket.is_some_and(|ticket| self.frames.waiters.cancel(ticket));
        if granted {
            self.frames.release(self.frame, self.mode);
        } else {
            // LatchQueues behind this one may be able to share the latch that it wanted exclusively.
            self.frames.waiters.grant(self.frame, &self.frames.at(self.frame).word);
            self.frames.unpin(self.frame);
        }
    }
}
