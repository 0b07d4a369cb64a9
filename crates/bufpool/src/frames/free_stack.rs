//! The free frames: a stack through the frames themselves, without a lock.
//!
//! A free frame is in no chain of the page table, so its link is free for this. A lookup that stands on a
//! frame which has just left its chain may follow the link into the stack; it then misses its page, as any
//! lookup may during a change of the chain.

use crate::frames::frame::Frame;
use crate::frames::page_table::NONE;
use crate::sync::AtomicU64;
use pagetier_policy::FrameId;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};

/// See the module.
#[derive(Debug)]
pub(crate) struct FreeStack {
    /// The frame on top in the low half; the number of changes so far in the high half. Without it, a thread
    /// could read a frame's link, others take that frame and the next one and return only the first, and the
    /// thread put a frame in use on top.
    top: AtomicU64,
    /// Read by checks only.
    len: AtomicUsize,
}

/// The next state, with `frame` on top.
fn after(top: u64, frame: u32) -> u64 {
    (top >> 32).wrapping_add(1) << 32 | u64::from(frame)
}

impl FreeStack {
    pub(crate) fn new() -> Self {
        Self { top: AtomicU64::new(u64::from(NONE)), len: AtomicUsize::new(0) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Puts `frame`, which the caller owns, on top.
    pub(crate) fn push(&self, frames: &[Frame], frame: FrameId) {
        self.len.fetch_add(1, Ordering::Relaxed);
        let put = |top: u64| {
            frames[frame.at()].next.store(top as u32, Ordering::Relaxed);
            Some(after(top, frame.0))
        };
        // `Release` hands over the link, and what the caller did to the frame.
        let _ = self.top.fetch_update(Ordering::AcqRel, Ordering::Relaxed, put);
    }

    /// Takes the frame on top, if any. Asks `frames` how many there are after it has seen the top: of a pool
    /// that grows meanwhile, the top may be a new one, and the stack would seem empty.
    pub(crate) fn pop(&self, frames: &impl Deref<Target = [Frame]>) -> Option<FrameId> {
        let take = |top: u64| {
            // The link may be that of a frame that another thread has just taken: then the number of changes
            // differs, and this fails.
            let next = frames.get(top as u32 as usize)?.next.load(Ordering::Relaxed);
            Some(after(top, next))
        };
        let top = self.top.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok()?;
        self.len.fetch_sub(1, Ordering::Relaxed);
        Some(FrameId(top as u32))
    }
}
