//! Waiting for a latch.

use crate::frames::Frames;
use crate::word::Mode;
use pagetier_policy::FrameId;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Waits for the latch of a pinned frame. Cancel-safe: a dropped wait leaves neither latch nor pin.
pub(crate) struct Wait<'a> {
    frames: &'a Frames,
    frame: FrameId,
    mode: Mode,
    id: Option<u64>,
    done: bool,
}

impl<'a> Wait<'a> {
    /// Takes over the caller's pin of `frame`.
    pub(crate) fn new(frames: &'a Frames, frame: FrameId, mode: Mode) -> Self {
        Self { frames, frame, mode, id: None, done: false }
    }
}

impl Future for Wait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let word = &self.frames.at(self.frame).word;
        let id = match self.id {
            Some(id) => id,
            None => match self.frames.waiters.enqueue(self.frame, self.mode, word) {
                Some(id) => id,
                None => {
                    self.done = true;
                    return Poll::Ready(());
                }
            },
        };
        self.id = Some(id);
        if self.frames.waiters.poll(self.frame, id, cx.waker()) {
            self.done = true;
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let granted = self.id.is_some_and(|id| self.frames.waiters.cancel(self.frame, id));
        if granted {
            self.frames.release(self.frame, self.mode);
        } else {
            // Waiters behind this one may be able to share the latch that it wanted exclusively.
            self.frames.waiters.grant(self.frame, &self.frames.at(self.frame).word);
            self.frames.unpin(self.frame);
        }
    }
}
