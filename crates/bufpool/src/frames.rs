//! The set of all frames with its table, free list and waiters.
//!
//! Locking order: policy → bucket → the tier's own. Waiter shards and the free list are leaves.

use crate::arena::Arena;
use crate::frame::{Frame, NO_LSN};
use crate::sync::ArrayQueue;
use crate::table::Table;
use crate::waiters::Waiters;
use crate::word::{Mode, Released};
use pagetier_page::PageId;
use pagetier_policy::FrameId;
use std::sync::atomic::Ordering;
use tokio::sync::Notify;

/// The frames. Leases of frames under I/O keep them alive.
#[derive(Debug)]
pub(crate) struct Frames {
    pub(crate) arena: Arena,
    pub(crate) all: Box<[Frame]>,
    pub(crate) table: Table,
    pub(crate) waiters: Waiters,
    pub(crate) free: ArrayQueue<FrameId>,
    /// A frame became free or evictable, or a write ended.
    pub(crate) freed: Notify,
}

impl Frames {
    pub(crate) fn new(count: usize, page_bytes: usize) -> std::io::Result<Self> {
        let free = ArrayQueue::new(count.max(1));
        for index in 0..count as u32 {
            let _ = free.push(FrameId(index));
        }
        Ok(Self {
            arena: Arena::new(count, page_bytes)?,
            all: (0..count).map(|_| Frame::new(crate::table::NONE)).collect(),
            table: Table::new(count),
            waiters: Waiters::new(),
            free,
            freed: Notify::new(),
        })
    }

    /// Every frame's id.
    pub(crate) fn ids(&self) -> impl Iterator<Item = FrameId> + use<> {
        (0..self.all.len() as u32).map(FrameId)
    }

    pub(crate) fn at(&self, frame: FrameId) -> &Frame {
        &self.all[frame.at()]
    }

    /// Releases latch and pin, and performs the consequences.
    pub(crate) fn release(&self, frame: FrameId, mode: Mode) {
        let after = self.at(frame).word.release(mode);
        if after.wake || after.free {
            self.after_release(frame, after);
        }
    }

    pub(crate) fn unpin(&self, frame: FrameId) {
        let after = self.at(frame).word.unpin();
        self.after_release(frame, after);
    }

    #[cold]
    fn after_release(&self, frame: FrameId, after: Released) {
        if after.free {
            self.recycle(frame);
        } else if after.wake {
            self.waiters.grant(frame, &self.at(frame).word);
        }
    }

    /// Frees a frame without page and pins.
    pub(crate) fn recycle(&self, frame: FrameId) {
        let f = self.at(frame);
        f.recovery_lsn.store(NO_LSN, Ordering::Release);
        f.writing_lsn.store(NO_LSN, Ordering::Release);
        f.logical.store(0, Ordering::Relaxed);
        f.word.reset();
        self.give_back(frame);
    }

    /// Returns a frame without a page to the free list.
    pub(crate) fn give_back(&self, frame: FrameId) {
        let _ = self.free.push(frame);
        self.freed.notify_one();
    }

    /// Removes the page from `frame`, latched exclusively by the caller, and releases it: waiters find the
    /// frame gone.
    pub(crate) fn abandon(&self, frame: FrameId, page: PageId) {
        let bucket = self.table.lock(page);
        bucket.remove(&self.all, frame);
        self.at(frame).word.orphan();
        drop(bucket);
        self.release(frame, Mode::Exclusive);
    }
}
