//! The page table: which frame holds a page. Built for a fixed number of frames: bucket heads, and chains
//! through the frames themselves.
//!
//! Lookups take no lock. A lookup concurrent with a change of the chain may miss a page that is present, or
//! find a frame whose page has just changed. Callers therefore pin the frame and check its page again, and
//! confirm a page's absence under the bucket's lock. Changes hold that lock.

use crate::frame::Frame;
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
const HOPS_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct Table {
    heads: Box<[AtomicU32]>,
    shift: u32,
    locks: Box<[Mutex<()>]>,
}

impl Table {
    pub(crate) fn new(frames: usize) -> Self {
        let buckets = (frames * 2).next_power_of_two().max(BUCKETS_MIN);
        Self {
            heads: (0..buckets).map(|_| AtomicU32::new(NONE)).collect(),
            shift: 64 - buckets.trailing_zeros(),
            locks: (0..(buckets / 16).clamp(LOCKS_MIN, 1024)).map(|_| Mutex::new(())).collect(),
        }
    }

    fn bucket(&self, page: PageId) -> usize {
        let mixed = page.to_u64().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ mixed >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// A frame that held `page` at some moment during the call.
    pub(crate) fn find(&self, frames: &[Frame], page: PageId) -> Option<FrameId> {
        self.walk(frames, self.bucket(page), page, HOPS_MAX)
    }

    fn walk(&self, frames: &[Frame], bucket: usize, page: PageId, hops_max: usize) -> Option<FrameId> {
        let wanted = page.to_u64();
        let mut at = self.heads[bucket].load(Ordering::Acquire);
        for _ in 0..hops_max {
            let frame = frames.get(at as usize)?;
            if frame.page.load(Ordering::Acquire) == wanted {
                return Some(FrameId(at));
            }
            at = frame.next.load(Ordering::Acquire);
        }
        None
    }

    /// Locks the bucket of `page`.
    pub(crate) fn lock(&self, page: PageId) -> Bucket<'_> {
        let bucket = self.bucket(page);
        let guard = self.locks[bucket % self.locks.len()].lock();
        Bucket { table: self, bucket, page, _guard: guard }
    }

    /// Takes every bucket's lock once: whatever was done under one of them before is visible afterwards.
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
        self.table.walk(frames, self.bucket, self.page, frames.len())
    }

    /// Inserts `frame` at the head of the chain and sets its page.
    pub(crate) fn insert(&self, frames: &[Frame], frame: FrameId) {
        let head = &self.table.heads[self.bucket];
        let f = &frames[frame.at()];
        f.page.store(self.page.to_u64(), Ordering::Release);
        f.next.store(head.load(Ordering::Relaxed), Ordering::Release);
        head.store(frame.0, Ordering::Release);
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
                link.store(f.next.load(Ordering::Relaxed), Ordering::Release);
                break;
            }
            link = &f.next;
        }
        frames[frame.at()].page.store(crate::frame::NO_PAGE, Ordering::Release);
    }
}
