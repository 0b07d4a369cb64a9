//! Hit buffers: pass hits to the policy in batches through small lossy buffers, each used by one or a few
//! threads.
//!
//! A hit costs one counter increment and one store. Every [`BATCH`] hits the thread tries the policy's lock;
//! if the lock is taken, the policy misses the batch (the counters never do). A single thread loses nothing.

use crate::sync::{AtomicU32, AtomicU64};
use crossbeam_utils::CachePadded;
use pagetier_policy::FrameId;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of hits applied at once. At 32 the lock costs well below a nanosecond per hit, and the policy
/// lags by at most the hits of a few microseconds.
pub(crate) const BATCH: usize = if cfg!(loom) { 2 } else { 32 };

const STRIPES: usize = if cfg!(loom) { 1 } else { 16 };
const EMPTY: u32 = u32::MAX;
const WRITE: u32 = 1 << 31;

#[derive(Debug)]
struct Stripe {
    hits: AtomicU64,
    lost: AtomicU64,
    recent: [AtomicU32; BATCH],
}

#[derive(Debug)]
pub(crate) struct HitBuffers {
    stripes: Box<[CachePadded<Stripe>]>,
}

thread_local! {
    static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
}

static THREADS: AtomicUsize = AtomicUsize::new(0);

#[inline]
fn stripe_of_thread() -> usize {
    STRIPE.with(|cell| {
        if cell.get() == usize::MAX {
            cell.set(THREADS.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        cell.get()
    })
}

impl HitBuffers {
    pub(crate) fn new() -> Self {
        let stripe = |_| {
            CachePadded::new(Stripe {
                hits: AtomicU64::new(0),
                lost: AtomicU64::new(0),
                recent: std::array::from_fn(|_| AtomicU32::new(EMPTY)),
            })
        };
        Self { stripes: (0..STRIPES).map(stripe).collect() }
    }

    /// Records a hit. True when this thread's buffer is full and should be applied.
    #[inline]
    pub(crate) fn note(&self, frame: FrameId, write: bool) -> bool {
        let stripe = &self.stripes[stripe_of_thread()];
        // `Relaxed`: threads that share a stripe may overwrite each other's hits. The policy then misses
        // one; a hit is never invented.
        let at = stripe.hits.fetch_add(1, Ordering::Relaxed) as usize % BATCH;
        stripe.recent[at].store(frame.0 | if write { WRITE } else { 0 }, Ordering::Relaxed);
        at == BATCH - 1
    }

    /// Passes this thread's hits to `apply`, oldest first.
    pub(crate) fn drain(&self, mut apply: impl FnMut(FrameId, bool)) {
        let stripe = &self.stripes[stripe_of_thread()];
        // The next hit goes to `first`, so that slot holds the oldest.
        let first = stripe.hits.load(Ordering::Relaxed) as usize % BATCH;
        for step in 0..BATCH {
            // Swapped out, not read: another thread of the stripe may drain at the same time, and no hit
            // may count twice.
            let hit = stripe.recent[(first + step) % BATCH].swap(EMPTY, Ordering::Relaxed);
            if hit != EMPTY {
                apply(FrameId(hit & !WRITE), hit & WRITE != 0);
            }
        }
    }

    /// Counts a lost batch: the policy's lock was taken, and later hits will overwrite this thread's batch.
    pub(crate) fn note_lost(&self) {
        self.stripes[stripe_of_thread()].lost.fetch_add(BATCH as u64, Ordering::Relaxed);
    }

    pub(crate) fn hits(&self) -> u64 {
        self.stripes.iter().map(|s| s.hits.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.stripes.iter().map(|s| s.lost.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        STRIPES * size_of::<CachePadded<Stripe>>()
    }
}
