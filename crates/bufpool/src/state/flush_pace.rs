//! How many batches of a flush may be in flight: one while others read pages.
//!
//! Otherwise the first batches of a flush take all staging buffers within microseconds: dozens of writes are
//! in flight. Reads wait behind them, on the devices and for the runtime's threads, which are busy with
//! starting these writes.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// After so many batches without a miss there are no readers. A single batch is no sign of that: it takes
/// less time than there is between two reads.
const QUIET_BATCHES: usize = 4;

/// How long a batch keeps the next one waiting. One that takes longer writes to a disk: the others may be for
/// the SSD, or for places that the disk passes on its way.
pub(crate) const PATIENCE: Duration = Duration::from_millis(5);

/// Whether a flush yields to reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    Readers,
    /// Never yields: log truncation waits for this flush, and writers wait for the log. Yielding cost TPC-C
    /// 3 to 12%.
    Full,
}

/// What is known of readers.
#[derive(Debug, Default)]
pub(crate) struct FlushPace {
    /// The pool's misses at the last look.
    misses: AtomicU64,
    /// The batches that have ended without a miss.
    quiet: AtomicUsize,
}

impl FlushPace {
    /// The batches that may be in flight, up to `most`, now that the pool counts so many `misses`.
    pub(crate) fn batches(&self, most: usize, misses: u64) -> usize {
        if self.misses.swap(misses, Ordering::Relaxed) != misses {
            self.quiet.store(0, Ordering::Relaxed);
        }
        let quiet = self.quiet.load(Ordering::Relaxed) >= QUIET_BATCHES;
        if quiet { most } else { 1 }
    }

    pub(crate) fn batch_ended(&self) {
        self.quiet.fetch_add(1, Ordering::Relaxed);
    }
}

/// The waits of flushes for exclusive guards.
#[derive(Debug, Default)]
pub(crate) struct GuardWaits {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl GuardWaits {
    pub(crate) fn begin(&self) -> impl Drop + '_ {
        struct Wait<'a>(&'a AtomicU64);
        impl Drop for Wait<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        Wait(&self.ended)
    }

    /// A number that stays the same for as long as no wait begins or ends; `None` if none is going on.
    pub(crate) fn current(&self) -> Option<u64> {
        let ended = self.ended.load(Ordering::Relaxed);
        let begun = self.begun.load(Ordering::Relaxed);
        (begun > ended).then_some(begun + ended)
    }
}
