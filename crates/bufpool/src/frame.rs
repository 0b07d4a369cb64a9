//! A frame's metadata, and the set of all frames with its table, free list and waiters.
//!
//! Locking order: policy → bucket → the tier's own. Waiter shards and the free list are leaves.

use crate::arena::Arena;
use crate::sync::{ArrayQueue, AtomicU32, AtomicU64};
use crate::table::Table;
use crate::waiters::Waiters;
use crate::word::{Mode, Released, Word};
use pagetier_page::{Lsn, PageId};
use pagetier_policy::FrameId;
use std::sync::atomic::Ordering;
use tokio::sync::Notify;

/// Marks the absence of a page.
pub(crate) const NO_PAGE: u64 = u64::MAX;
/// Marks the absence of a recovery LSN: the page is clean.
pub(crate) const NO_LSN: u64 = u64::MAX;

/// A frame's metadata: 40 bytes.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) word: Word,
    pub(crate) page: AtomicU64,
    /// The LSN of the first change since the page was last clean.
    pub(crate) recovery_lsn: AtomicU64,
    /// The same for the version being written. Kept when the write fails: the storage below still lacks the
    /// changes.
    pub(crate) writing_lsn: AtomicU64,
    /// The next frame in the page table's chain.
    pub(crate) next: AtomicU32,
    /// Logical reads not yet reported to the tier.
    pub(crate) logical: AtomicU32,
}

impl Frame {
    pub(crate) fn page(&self) -> Option<PageId> {
        let word = self.page.load(Ordering::Acquire);
        (word != NO_PAGE).then(|| PageId::from_u64(word))
    }

    pub(crate) fn take_logical(&self) -> u32 {
        self.logical.swap(0, Ordering::Relaxed)
    }

    /// The smallest LSN that redo would need for this page. An LSN only moves from `recovery_lsn` to
    /// `writing_lsn`, and is in both in between; reading them in that order never misses it.
    pub(crate) fn redo_from(&self) -> Option<Lsn> {
        let lsn = self.recovery_lsn.load(Ordering::Acquire).min(self.writing_lsn.load(Ordering::Acquire));
        (lsn != NO_LSN).then_some(Lsn(lsn))
    }
}

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
        let frame = |_| Frame {
            word: Word::new(),
            page: AtomicU64::new(NO_PAGE),
            recovery_lsn: AtomicU64::new(NO_LSN),
            writing_lsn: AtomicU64::new(NO_LSN),
            next: AtomicU32::new(crate::table::NONE),
            logical: AtomicU32::new(0),
        };
        Ok(Self {
            arena: Arena::new(count, page_bytes)?,
            all: (0..count).map(frame).collect(),
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
        self.unlist(frame, page);
        self.release(frame, Mode::Exclusive);
    }

    /// Removes the page from `frame`, latched by the caller: lookups no longer find it. The release of the
    /// last latch frees the frame.
    pub(crate) fn unlist(&self, frame: FrameId, page: PageId) {
        let bucket = self.table.lock(page);
        bucket.remove(&self.all, frame);
        self.at(frame).word.orphan();
    }
}
