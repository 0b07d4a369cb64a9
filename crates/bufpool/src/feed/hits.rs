//! Hit buffers: count hits, and pass those that the policy wants to it in batches, through small lossy
//! buffers, one per thread.
//!
//! A thread is the only one that writes its buffer, so a hit costs plain loads and stores: no locked
//! instruction, and no cache line that another thread writes. Every [`BATCH`] wanted hits the thread tries
//! the policy's lock; if the lock is taken, the policy misses the batch (the counters never do). A single
//! thread loses nothing.
//!
//! A thread owns the buffer of its number, in every pool, from its first hit to its end. Threads for which no
//! number is left share one buffer, by atomic additions and exchanges.

use crate::sync::{AtomicU32, AtomicU64};
use pagetier_policy::FrameId;
use std::cell::Cell;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;

/// The number of hits applied at once. At 32 the lock costs well below a nanosecond per hit, and the policy
/// lags by at most the hits of a few microseconds.
pub(crate) const BATCH: usize = if cfg!(loom) { 2 } else { 32 };

/// The number of the buffer of all threads without one of their own.
pub(crate) const SHARED: usize = usize::MAX - 1;
const EMPTY: u32 = u32::MAX;
const WRITE: u32 = 1 << 31;

/// Aligned, so that no cache line belongs to two threads.
#[derive(Debug)]
#[repr(align(64))]
struct Buffer {
    hits: AtomicU64,
    misses: AtomicU64,
    /// Those noted in `recent`, and how many of them have been passed on.
    noted: AtomicU64,
    drained: AtomicU64,
    lost: AtomicU64,
    recent: [AtomicU32; BATCH],
}

impl Buffer {
    fn new() -> Self {
        Self {
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            noted: AtomicU64::new(0),
            drained: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            recent: std::array::from_fn(|_| AtomicU32::new(EMPTY)),
        }
    }
}

/// The number of buffers that threads own: two for each CPU, as an engine may have threads beside the
/// runtime's, but no more than [`ThreadNumbers`] has bits.
fn owned() -> usize {
    static OWNED: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(0, |cpus| 2 * cpus.get()).clamp(20, 64));
    if cfg!(loom) { 1 } else { *OWNED }
}

#[derive(Debug)]
pub(crate) struct HitBuffers {
    owned: Box<[Buffer]>,
    shared: Box<Buffer>,
}

impl HitBuffers {
    pub(crate) fn new() -> Self {
        Self { owned: (0..owned()).map(|_| Buffer::new()).collect(), shared: Box::new(Buffer::new()) }
    }

    /// The memory of each pool's buffers, in bytes.
    pub(crate) fn memory_bytes() -> usize {
        (owned() + 1) * size_of::<Buffer>()
    }

    fn of(&self, own: usize) -> &Buffer {
        self.owned.get(own).unwrap_or(&self.shared)
    }

    fn all(&self) -> impl Iterator<Item = &Buffer> {
        self.owned.iter().chain([&*self.shared])
    }

    /// Counts hits of this thread.
    #[inline]
    pub(crate) fn count(&self, hits: u64) {
        // One comparison tells an owned buffer from the shared one, and from a thread without a number.
        match self.owned.get(BUFFER.get()) {
            Some(buffer) => buffer.hits.store(buffer.hits.load(Ordering::Relaxed) + hits, Ordering::Relaxed),
            None if hits == 0 => {}
            None => self.count_apart(hits),
        }
    }

    #[cold]
    fn count_apart(&self, hits: u64) {
        self.of(buffer_of_thread()).hits.fetch_add(hits, Ordering::Relaxed);
    }

    /// Counts a miss of this thread.
    pub(crate) fn count_miss(&self) {
        let own = buffer_of_thread();
        count_one(&self.of(own).misses, own);
    }

    /// Counts a hit and notes it for the policy, by the owner of buffer `own`, or for [`SHARED`]. True when
    /// the buffer is full: apply it.
    #[inline(never)]
    pub(crate) fn note(&self, own: usize, frame: FrameId, write: bool) -> bool {
        let buffer = self.of(own);
        count_one(&buffer.hits, own);
        let at = count_one(&buffer.noted, own) as usize % BATCH;
        buffer.recent[at].store(frame.0 | if write { WRITE } else { 0 }, Ordering::Relaxed);
        at == BATCH - 1
    }

    /// Passes the hits in buffer `own` to `apply`, oldest first, as [`HitBuffers::note`].
    pub(crate) fn drain(&self, own: usize, mut apply: impl FnMut(FrameId, bool)) {
        let buffer = self.of(own);
        let noted = buffer.noted.load(Ordering::Relaxed);
        // In the shared buffer a hit may be counted before it is in its place: look at every place.
        let left = if own == SHARED { u64::MAX } else { noted - buffer.drained.load(Ordering::Relaxed) };
        buffer.drained.store(noted, Ordering::Relaxed);
        for ago in (1..=left.min(BATCH as u64)).rev() {
            let place = &buffer.recent[noted.wrapping_sub(ago) as usize % BATCH];
            let hit = if own == SHARED {
                // Swapped out, not read: another thread may drain at the same time, and no hit may count
                // twice.
                place.swap(EMPTY, Ordering::Relaxed)
            } else {
                place.load(Ordering::Relaxed)
            };
            if hit != EMPTY {
                apply(FrameId(hit & !WRITE), hit & WRITE != 0);
            }
        }
    }

    /// Counts hits that are lost to the policy, whose lock was taken.
    pub(crate) fn note_lost(&self, count: usize) {
        self.of(buffer_of_thread()).lost.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn hits(&self) -> u64 {
        self.all().map(|b| b.hits.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn misses(&self) -> u64 {
        self.all().map(|b| b.misses.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.all().map(|b| b.lost.load(Ordering::Relaxed)).sum()
    }
}

/// Adds one to a counter of buffer `own`; returns what it was before.
#[inline]
fn count_one(counter: &AtomicU64, own: usize) -> u64 {
    // `Relaxed`: other threads only read the sum. In the shared buffer they may overwrite each other's hits.
    // The policy then misses one; a hit is never invented.
    if own == SHARED {
        return counter.fetch_add(1, Ordering::Relaxed);
    }
    let before = counter.load(Ordering::Relaxed);
    counter.store(before + 1, Ordering::Relaxed);
    before
}

/// The numbers of threads, which are those of their buffers: a bit for each that is taken.
#[derive(Debug)]
pub(crate) struct ThreadNumbers(AtomicU64);

impl ThreadNumbers {
    #[cfg(not(loom))]
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Takes the smallest number that is free, so that few cache lines are in use.
    pub(crate) fn claim(&self) -> Option<usize> {
        let mut taken = self.0.load(Ordering::Relaxed);
        loop {
            let free = taken.trailing_ones() as usize;
            if free >= owned() {
                return None;
            }
            // `Acquire`: the buffers of this number are as the thread left them that had it before. Without,
            // the first hits might start from an older count.
            let claimed = taken | 1 << free;
            match self.0.compare_exchange(taken, claimed, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(free),
                Err(now) => taken = now,
            }
        }
    }

    pub(crate) fn release(&self, number: usize) {
        self.0.fetch_and(!(1 << number), Ordering::Release);
    }
}

#[cfg(not(loom))]
static NUMBERS: ThreadNumbers = ThreadNumbers::new();

/// Gives the thread's number back when the thread ends.
#[cfg(not(loom))]
struct Ends(Cell<usize>);

#[cfg(not(loom))]
impl Drop for Ends {
    fn drop(&mut self) {
        // First: a destructor of the thread that runs later may read a page, too.
        BUFFER.set(SHARED);
        if self.0.get() != SHARED {
            NUMBERS.release(self.0.get());
        }
    }
}

/// Before a thread's first hit.
const UNKNOWN: usize = usize::MAX;

thread_local! {
    /// Without a destructor, so that reading it is one load.
    static BUFFER: Cell<usize> = const { Cell::new(UNKNOWN) };
}

#[cfg(not(loom))]
thread_local! {
    static ENDS: Ends = const { Ends(Cell::new(SHARED)) };
}

#[inline]
pub(crate) fn buffer_of_thread() -> usize {
    match BUFFER.get() {
        UNKNOWN => number_thread(),
        buffer => buffer,
    }
}

/// Numbers this thread, before its first hit.
#[cfg(not(loom))]
#[cold]
fn number_thread() -> usize {
    // Not while the thread ends: nothing would give the number back.
    let claimed = ENDS.try_with(|ends| NUMBERS.claim().inspect(|number| ends.0.set(*number))).ok().flatten();
    let buffer = claimed.unwrap_or(SHARED);
    BUFFER.set(buffer);
    buffer
}

/// A model's threads are one thread to the operating system. Those that need a number claim it.
#[cfg(loom)]
fn number_thread() -> usize {
    SHARED
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::{Arc, Barrier};

    #[test]
    fn every_hit_is_counted_whatever_the_number_of_threads() {
        const HITS: u64 = 1000;
        let threads = owned() + 9;
        let hits = Arc::new(HitBuffers::new());
        for round in 1..=3 {
            let all_run = Arc::new(Barrier::new(threads));
            let running: Vec<_> = (0..threads)
                .map(|_| {
                    let (hits, all_run) = (Arc::clone(&hits), Arc::clone(&all_run));
                    std::thread::spawn(move || {
                        let own = buffer_of_thread();
                        all_run.wait();
                        let mut applied = 0;
                        for _ in 0..HITS {
                            hits.count(1);
                            if hits.note(own, FrameId(7), false) {
                                hits.drain(own, |frame, _| applied += u64::from(frame.0 == 7));
                            }
                        }
                        hits.drain(own, |_, _| applied += 1);
                        // Of its own buffer a thread gets every hit back; of a shared one, at most.
                        assert!(own == SHARED || applied == HITS, "{applied} hits of buffer {own}");
                    })
                })
                .collect();
            for thread in running {
                thread.join().unwrap();
            }
            assert_eq!(hits.hits(), round * threads as u64 * HITS * 2);
        }
    }
}
