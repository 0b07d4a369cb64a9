//! Waiting for a latch.

use crate::frames::Frames;
use crate::params::PoolError;
use crate::waiters::{Refused, Ticket};
use crate::word::Mode;
use pagetier_devio::locks::{self, Rank};
use pagetier_page::PageId;
use pagetier_policy::FrameId;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Waits for the latch of a pinned frame. Fails with [`PoolError::Deadlock`]. Cancel-safe: a dropped or
/// failed wait leaves neither latch nor pin.
pub(crate) struct Wait<'a> {
    frames: &'a Frames,
    frame: FrameId,
    page: PageId,
    mode: Mode,
    ticket: Option<Ticket>,
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
        // In a forked process, the queue's lock may be held for ever.
        if self.done || !self.frames.owner.is_here() {
            return;
        }
        let granted = self.ticket.is_some_and(|ticket| self.frames.waiters.cancel(ticket));
        if granted {
            self.frames.release(self.frame, self.mode);
        } else {
            // Waiters behind this one may be able to share the latch that it wanted exclusively.
            self.frames.waiters.grant(self.frame, &self.frames.at(self.frame).word);
            self.frames.unpin(self.frame);
        }
    }
}
