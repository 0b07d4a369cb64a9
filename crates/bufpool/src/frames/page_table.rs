//! The page table: which frame holds a page. Bucket heads, and chains through the frames themselves.
//!
//! Lookups take no lock. A lookup concurrent with a change of the chain may miss a page that is present, or
//! find a frame whose page has just changed. Callers therefore pin the frame and check its page again, and
//! confirm a page's absence under the bucket's lock. Changes hold that lock.
//!
//! The table grows in place with the pool, under all locks. A lookup during the growth may follow a chain of
//! either size, or a mixture; like any lookup during a change, it may miss a page that is present.

use crate::frames::frame::Frame;
use crate::frames::memory::{Growable, prefetch};
use crate::sync::{AtomicU32, Mutex, MutexGuard};
use pagetier_page::PageId;
use pagetier_policy::FrameId;
use std::sync::atomic::Ordering;

/// Marks the absence of a frame.
pub(crate) const NONE: u32 = u32::MAX;

/// The minimum number of bucket heads, and of locks for them. A model has a single chain, on which all
/// threads meet.
const BUCKETS_MIN: usize = if cfg!(loom) { 2 } else { 64 };
const LOCKS_MIN: usize = if cfg!(loom) { 1 } else { 16 };

/// Longer chains are searched to the end only under the lock.
pub(crate) const HOPS_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct Table {
    heads: Growable<AtomicU32>,
    /// Shifts a hash right, so that its highest bits number the bucket.
    shift: std::sync::atomic::AtomicU32,
    /// One for each run of consecutive buckets.
    locks: Box<[Mutex<()>]>,
    /// Shifts a hash right, so that its highest bits number the lock: the same for all sizes of the table.
    lock_shift: u32,
}

/// The number of buckets of a table for `frames` frames.
fn buckets_for(frames: usize) -> usize {
    (frames * 2).next_power_of_two().max(BUCKETS_MIN)
}

/// A hash of `page`. Its highest bits number the page's bucket and lock.
#[inline]
fn hash(page: PageId) -> u64 {
    let mixed = page.to_u64().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The shift that leaves as many of the highest bits as number one of `count`, a power of two.
fn shift_for(count: usize) -> u32 {
    64 - count.trailing_zeros()
}

impl Table {
    /// A table for `frames` frames that can grow for `max`.
    pub(crate) fn new(frames: usize, max: usize) -> std::io::Result<Self> {
        // At most half full, so that chains are short: a hit mostly reads one head and one frame.
        let buckets = buckets_for(frames);
        let locks = (buckets / 16).clamp(LOCKS_MIN, 1024);
        let heads = Growable::new(buckets_for(max), || AtomicU32::new(NONE))?;
        heads.grow(buckets)?;
        Ok(Self {
            heads,
            shift: shift_for(buckets).into(),
            locks: (0..locks).map(|_| Mutex::new(())).collect(),
            lock_shift: shift_for(locks),
        })
    }

    /// Grows the table for `count` frames. No page enters or leaves it meanwhile.
    pub(crate) fn grow(&self, frames: &[Frame], count: usize) -> std::io::Result<()> {
        let buckets = buckets_for(count);
        if buckets <= self.heads.len() {
            return Ok(());
        }
        let _locked: Vec<_> = self.locks.iter().map(Mutex::lock).collect();
        self.heads.grow(buckets)?;
        // Lookups meanwhile find nothing, confirm that under a lock, and so wait for the end of the
        // growth.
        self.heads.iter().for_each(|head| head.store(NONE, Ordering::Release));
        self.shift.store(shift_for(buckets), Ordering::Release);
        // Under the locks, a frame has a page if and only if it is in a chain.
        for (index, frame) in frames.iter().enumerate() {
            if let Some(page) = frame.page() {
                self.link(self.bucket(page), frames, FrameId(index as u32));
            }
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn bucket(&self, page: PageId) -> usize {
        (hash(page) >> self.shift.load(Ordering::Relaxed)) as usize
    }

    /// Puts `frame` at the head of the chain.
    fn link(&self, bucket: usize, frames: &[Frame], frame: FrameId) {
        let head = &self.heads[bucket];
        // The link before the head: a lookup that sees the new head (`Acquire`) also sees where its chain
        // goes on (`Release`).
        frames[frame.at()].next.store(head.load(Ordering::Relaxed), Ordering::Release);
        head.store(frame.0, Ordering::Release);
    }

    /// A frame that held `page` at some moment during the call.
    pub(crate) fn find(&self, frames: &[Frame], page: PageId) -> Option<FrameId> {
        self.walk(frames, self.bucket(page), page, HOPS_MAX).map(|(frame, _)| frame)
    }

    /// Asks the CPU to fetch the head of a bucket.
    #[inline]
    pub(crate) fn prefetch(&self, bucket: usize) {
        if let Some(head) = self.heads.get(bucket) {
            prefetch(head);
        }
    }

    /// The frame at the head of a bucket: of a page in memory, usually its own.
    #[inline]
    pub(crate) fn likely(&self, bucket: usize) -> Option<usize> {
        let head = self.heads.get(bucket)?.load(Ordering::Relaxed);
        (head != NONE).then_some(head as usize)
    }

    /// As [`Table::find`], in the page's `bucket`; also returns the frame's metadata. May miss the page if
    /// the bucket was computed before the table grew.
    #[inline]
    pub(crate) fn walk<'f>(
        &self,
        frames: &'f [Frame],
        bucket: usize,
        page: PageId,
        hops_max: usize,
    ) -> Option<(FrameId, &'f Frame)> {
        let wanted = page.to_u64();
        // This thread may see the new shift before the new heads: treat a bucket beyond them as empty.
        let mut at = self.heads.get(bucket)?.load(Ordering::Acquire);
        // A frame under this lookup may move to another chain, so the walk may never meet an end: the
        // bound is what ends it.
        for _ in 0..hops_max {
            let frame = frames.get(at as usize)?;
            if frame.page.load(Ordering::Acquire) == wanted {
                return Some((FrameId(at), frame));
            }
            at = frame.next.load(Ordering::Acquire);
        }
        None
    }

    /// Locks the bucket of `page`.
    pub(crate) fn lock(&self, page: PageId) -> Bucket<'_> {
        let lock = hash(page).checked_shr(self.lock_shift).unwrap_or(0) as usize;
        let guard = self.locks[lock].lock();
        // Under the lock the table does not grow.
        Bucket { table: self, bucket: self.bucket(page), page, _guard: guard }
    }

    /// Takes each lock once: everything done under one of them before is visible afterwards.
    pub(crate) fn pass_locks(&self) {
        self.locks.iter().for_each(|lock| drop(lock.lock()));
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.heads.len() * size_of::<AtomicU32>() + self.locks.len() * size_of::<Mutex<()>>()
    }
}

/// A locked bucket, on behalf of one page.
pub(crate) struct Bucket<'a> {
    table: &'a Table,
    bucket: usize,
    page: PageId,
    _guard: MutexGuard<'a, ()>,
}

impl Bucket<'_> {
    /// The page's frame, reliably.
    pub(crate) fn find(&self, frames: &[Frame]) -> Option<FrameId> {
        self.table.walk(frames, self.bucket, self.page, frames.len()).map(|(frame, _)| frame)
    }

    /// Inserts `frame` at the head of the chain and sets its page.
    pub(crate) fn insert(&self, frames: &[Frame], frame: FrameId) {
        frames[frame.at()].page.store(self.page.to_u64(), Ordering::Release);
        self.table.link(self.bucket, frames, frame);
    }

    /// Removes `frame` from the chain and clears its page.
    pub(crate) fn remove(&self, frames: &[Frame], frame: FrameId) {
        let mut link = &self.table.heads[self.bucket];
        loop {
            let at = link.load(Ordering::Relaxed);
            if at == NONE {
                break;
            }
            let f = &frames[at as usize];
            if at == frame.0 {
                // `f.next` stays as it is, so that a lookup that stands on this frame still finds the rest
                // of the chain.
                link.store(f.next.load(Ordering::Relaxed), Ordering::Release);
                break;
            }
            link = &f.next;
        }
        // Last, though its place does not matter to lookups: they compare the page again once they hold
        // the latch.
        frames[frame.at()].page.store(crate::frames::frame::NO_PAGE, Ordering::Release);
    }
}
