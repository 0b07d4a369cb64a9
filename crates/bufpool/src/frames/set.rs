//! The set of all frames with its table, free list and waiters.
//!
//! Locking order: policy → bucket → the tier's own. Waiter shards, the free list and the spaces' hints are
//! leaves.

use crate::frames::arena::Arena;
use crate::frames::frame::{Frame, NO_LSN};
use crate::frames::free_stack::FreeStack;
use crate::frames::hinted_spaces::Hints;
use crate::frames::memory::Growable;
use crate::frames::page_table::Table;
use crate::frames::unwritten::Unwritten;
use crate::frames::writing::Writing;
use crate::waits::queues::LatchQueues;
use crate::word::{Mode, Released};
use pagetier_devio::Owner;
use pagetier_page::{Lsn, PageId};
use pagetier_policy::FrameId;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

/// The frames. Leases of frames under I/O keep them alive.
#[derive(Debug)]
pub(crate) struct Frames {
    pub(crate) arena: Arena,
    /// Every frame that the pool ever had.
    pub(crate) all: Growable<Frame>,
    pub(crate) table: Table,
    /// The frames that `sync` has to look at.
    pub(crate) unwritten: Unwritten,
    pub(crate) writing: Writing,
    pub(crate) waiters: Arc<LatchQueues>,
    pub(crate) hints: Hints,
    pub(crate) free: FreeStack,
    /// The frames that the pool has given up: neither free nor in use, and without memory.
    given_up: Mutex<Vec<FrameId>>,
    /// The number of all other frames: `all.len() == count + given_up.len()` while the size does not change,
    /// and at rest, without loads or guards, `count == free.len() + frames with a page`.
    count: AtomicUsize,
    /// Signals that a frame became free or evictable, or that a write ended.
    pub(crate) freed: Notify,
    /// The process whose pool this is. A forked process has copies of the latches and of locks that a thread
    /// may hold which does not exist there, and no pages.
    pub(crate) owner: Owner,
}

impl Frames {
    /// `count` free frames and address space for `max`. If that much cannot be reserved, the pool cannot
    /// grow.
    pub(crate) fn new(count: usize, max: usize, page_bytes: usize) -> std::io::Result<Self> {
        Self::with_max(count, max.max(count), page_bytes)
            .or_else(|_| Self::with_max(count, count, page_bytes))
    }

    fn with_max(count: usize, max: usize, page_bytes: usize) -> std::io::Result<Self> {
        let this = Self {
            arena: Arena::new(max, page_bytes)?,
            all: Growable::new(max, || Frame::new(crate::frames::page_table::NONE))?,
            table: Table::new(count, max)?,
            unwritten: Unwritten::new(max)?,
            writing: Writing::new(),
            waiters: Arc::new(LatchQueues::new()),
            hints: Hints::default(),
            free: FreeStack::new(),
            given_up: Mutex::new(Vec::new()),
            count: AtomicUsize::new(0),
            freed: Notify::new(),
            owner: Owner::here(),
        };
        this.add(count)?;
        Ok(this)
    }

    /// The number of frames that are free or in use.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Adds `more` free frames: first those that were given up, then new ones. Adds none on an error. Only
    /// one caller at a time.
    pub(crate) fn add(&self, more: usize) -> std::io::Result<()> {
        let again = self.given_up.lock().len().min(more);
        let (from, to) = (self.all.len(), self.all.len() + more - again);
        // Each of these can be repeated: what has grown before one fails is used by the next attempt.
        // `all` comes last: a frame that can be found there has its place in the arena and in `unwritten`.
        self.arena.grow(to)?;
        self.table.grow(&self.all, to)?;
        self.unwritten.grow(to)?;
        self.all.grow(to)?;
        let mut added = {
            let mut given_up = self.given_up.lock();
            let left = given_up.len() - again;
            given_up.split_off(left)
        };
        added.extend((from as u32..to as u32).map(FrameId));
        // Counted before they are free: there are never more free frames than `count` says.
        self.count.fetch_add(more, Ordering::AcqRel);
        // The first will be on top.
        added.into_iter().rev().for_each(|frame| self.free.push(&self.all, frame));
        self.freed.notify_waiters();
        Ok(())
    }

    /// Returns the memory of `frames` to the system. They hold no pages, no other task can reach them, and
    /// [`Frames::count_given_up`] has counted them.
    pub(crate) fn release_memory(&self, mut frames: Vec<FrameId>) {
        frames.sort_unstable();
        for run in frames.chunk_by(|a, b| a.0 + 1 == b.0) {
            if let Some(first) = run.first() {
                // SAFETY: the caller owns these frames.
                unsafe { self.arena.give_back(first.at()..first.at() + run.len()) };
            }
        }
        self.given_up.lock().append(&mut frames);
    }

    /// Counts one frame less, which the caller has taken.
    pub(crate) fn count_given_up(&self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }

    /// The ids of all frames, those given up included.
    pub(crate) fn ids(&self) -> impl Iterator<Item = FrameId> + use<> {
        (0..self.all.len() as u32).map(FrameId)
    }

    #[inline]
    pub(crate) fn at(&self, frame: FrameId) -> &Frame {
        &self.all[frame.at()]
    }

    /// Notes that the page in `frame`, latched exclusively by the caller, is dirty from `lsn` on, unless an
    /// earlier change is noted.
    pub(crate) fn note_lsn(&self, frame: FrameId, lsn: Lsn) {
        let f = self.at(frame);
        f.note_lsn(lsn);
        // A dirty frame is in the set, and stays dirty while it is latched exclusively.
        if !f.word.is_dirty() {
            self.unwritten.add(frame);
        }
    }

    /// The frames with changes that the storage below lacks, each with the smallest LSN that redo would need
    /// for its page, be it [`Lsn::BLANK`]. Finds each change that was noted before the call.
    pub(crate) fn with_changes(&self) -> Vec<(FrameId, Lsn)> {
        let mut found = Vec::new();
        let noted = |f: &Frame| Lsn(f.recovery_lsn.load(Ordering::Acquire));
        self.unwritten.walk(&self.all, |frame, f| {
            found.push((frame, noted(f)));
            true
        });
        // Afterwards, as `writing` requires: an LSN may have moved there meanwhile.
        self.writing.lower(&mut found);
        found
    }

    /// The smallest LSN that redo would need for any page; [`Lsn::BLANK`] or above if for none.
    pub(crate) fn redo_from(&self) -> Lsn {
        let mut oldest = NO_LSN;
        self.unwritten.walk(&self.all, |_, f| {
            oldest = oldest.min(f.recovery_lsn.load(Ordering::Acquire));
            true
        });
        // Afterwards, as above.
        Lsn(oldest.min(self.writing.oldest()))
    }

    /// Releases latch and pin; then frees the frame or grants its latch to waiters if necessary.
    #[inline]
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
        // A fork has copied the queues of waiters, whose tasks do not run here, and perhaps their locks
        // while they were held.
        if !self.owner.is_here() {
            return;
        }
        if after.free {
            self.recycle(frame);
        } else if after.wake {
            self.waiters.grant(frame, &self.at(frame).word);
        }
    }

    /// Frees a frame without a page or pins.
    pub(crate) fn recycle(&self, frame: FrameId) {
        let f = self.at(frame);
        f.recovery_lsn.store(NO_LSN, Ordering::Release);
        self.writing.forget(frame);
        f.uses.reset();
        f.word.reset();
        // All of the above first: from here on another task may fill the frame.
        self.give_back(frame);
    }

    /// Takes a frame off the free list.
    pub(crate) fn take_free(&self) -> Option<FrameId> {
        self.free.pop(&self.all)
    }

    /// Returns a frame without a page to the free list.
    pub(crate) fn give_back(&self, frame: FrameId) {
        self.free.push(&self.all, frame);
        self.freed.notify_one();
    }

    /// Removes the page from `frame`, latched exclusively by the caller, and releases it: waiters find the
    /// frame gone.
    pub(crate) fn abandon(&self, frame: FrameId, page: PageId) {
        self.unlist(frame, page);
        self.release(frame, Mode::Exclusive);
    }

    /// What abandons the frame of a number, which a read should have filled.
    pub(crate) fn abandons(self: &Arc<Self>) -> Arc<dyn Fn(u32) + Send + Sync> {
        let frames = Arc::clone(self);
        Arc::new(move |number| {
            let frame = FrameId(number);
            // In a forked process, the bucket's lock may be held forever.
            if frames.owner.is_here() {
                let page = frames.at(frame).page();
                debug_assert!(page.is_some(), "a frame that is lent keeps its page");
                page.into_iter().for_each(|page| frames.abandon(frame, page));
            }
        })
    }

    /// Removes the page from `frame`, latched by the caller: lookups cease to find it. The release of the
    /// last latch frees the frame.
    pub(crate) fn unlist(&self, frame: FrameId, page: PageId) {
        let bucket = self.table.lock(page);
        bucket.remove(&self.all, frame);
        self.at(frame).word.orphan();
    }
}
