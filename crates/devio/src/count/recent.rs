//! Moving averages of the times of the last n page reads and writes, which Ou et al. use to detect cost
//! ratios (section 3.2.2).
//!
//! A sample is the busy time charged to one operation (see [`DeviceStats`](crate::DeviceStats)) in whole
//! microseconds, two bytes as in the paper, and the operation's length: a merged write of many pages is one
//! sample, and its pages share its time. Recording a sample takes one array element and a few additions,
//! without a lock. Samples of more than 65,535 µs are ignored.

use crate::count::class::{Counter, IoClass};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The paper's n.
pub const COST_POINTS: usize = 32_768;

const SECTOR: u64 = 512;

/// The moving average of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RecentCost {
    /// The number of operations in the average.
    pub ops: u64,
    /// The busy time charged to them.
    pub busy: Duration,
    /// The bytes that they moved.
    pub bytes: u64,
}

impl RecentCost {
    /// The busy time per `bytes` moved, in milliseconds; `None` before the first operation.
    #[must_use]
    pub fn ms_per(&self, bytes: usize) -> Option<f64> {
        let ms = self.busy.as_secs_f64() * 1e3;
        (self.bytes > 0).then(|| ms * bytes as f64 / self.bytes as f64)
    }
}

/// The moving averages of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecentCosts {
    /// Reads of pages.
    pub read: RecentCost,
    /// Writes of pages.
    pub write: RecentCost,
}

/// Whether an operation moves pages for a user, as opposed to the store's metadata and rare passes over
/// everything.
const fn counts(class: IoClass) -> bool {
    !matches!(class, IoClass::Ring | IoClass::Meta | IoClass::Recovery)
}

/// The samples of both directions.
#[derive(Debug)]
pub(crate) struct Recent {
    read: Window,
    write: Window,
}

impl Recent {
    pub(crate) fn new(points: usize) -> Self {
        Self { read: Window::new(points), write: Window::new(points) }
    }

    pub(crate) fn note(&self, counter: Counter, bytes: u64, busy_ns: u64) {
        match counter {
            Counter::Read(class) if counts(class) => self.read.note(bytes, busy_ns),
            Counter::Write(class) if counts(class) => self.write.note(bytes, busy_ns),
            _ => {}
        }
    }

    pub(crate) fn costs(&self) -> RecentCosts {
        RecentCosts { read: self.read.cost(), write: self.write.cost() }
    }
}

/// The last n samples and their sums.
#[derive(Debug, Default)]
struct Window {
    /// Microseconds in the upper half, sectors in the lower; 0 before the first sample.
    cells: Box<[AtomicU32]>,
    next: AtomicU64,
    busy_us: AtomicU64,
    sectors: AtomicU64,
}

impl Window {
    fn new(points: usize) -> Self {
        Self { cells: (0..points.max(1)).map(|_| AtomicU32::new(0)).collect(), ..Self::default() }
    }

    fn note(&self, bytes: u64, busy_ns: u64) {
        // Rounded to the nearest: truncation would make a flash read of 80.9 µs one of 80.
        let us = (busy_ns + 500) / 1000;
        let sectors = bytes / SECTOR;
        // An outlier of 65 ms, a spun-down disk for example, would dominate the average; so would a merged
        // transfer of 32 MiB.
        let (Ok(us), Ok(sectors)) = (u16::try_from(us), u16::try_from(sectors)) else { return };
        let at = self.next.fetch_add(1, Relaxed) % self.cells.len() as u64;
        let sample = u32::from(us) << 16 | u32::from(sectors);
        let before = self.cells[at as usize].swap(sample, Relaxed);
        // The thread that stored the replaced sample has added it to the sums or is about to. The sums may
        // therefore wrap temporarily.
        self.busy_us.fetch_add(u64::from(us), Relaxed);
        self.busy_us.fetch_sub(u64::from(before >> 16), Relaxed);
        self.sectors.fetch_add(u64::from(sectors), Relaxed);
        self.sectors.fetch_sub(u64::from(before & 0xffff), Relaxed);
    }

    fn cost(&self) -> RecentCost {
        // A sum that is temporarily negative, because an addition is pending, reads as zero.
        let sum = |sum: &AtomicU64| u64::try_from(sum.load(Relaxed).cast_signed()).unwrap_or(0);
        RecentCost {
            ops: self.next.load(Relaxed).min(self.cells.len() as u64),
            busy: Duration::from_micros(sum(&self.busy_us)),
            bytes: sum(&self.sectors) * SECTOR,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const READ: Counter = Counter::Read(IoClass::Demand);

    #[test]
    fn bursts_and_the_stores_own_metadata_are_ignored() {
        let recent = Recent::new(4);
        recent.note(READ, 4096, 100_000);
        recent.note(READ, 4096, 65_536_000);
        recent.note(Counter::Read(IoClass::Meta), 4096, 900_000);
        recent.note(Counter::Write(IoClass::Ring), 4096, 900_000);
        recent.note(Counter::Flush, 0, 900_000);
        let RecentCosts { read, write } = recent.costs();
        assert_eq!((read.ops, read.busy, read.bytes), (1, Duration::from_micros(100), 4096));
        assert_eq!((write, write.ms_per(4096)), (RecentCost::default(), None));
    }

    #[test]
    fn the_pages_of_a_merged_write_share_its_time() {
        let recent = Recent::new(4);
        recent.note(Counter::Write(IoClass::Clean), 16 * 4096, 8_000_000);
        assert!((recent.costs().write.ms_per(4096).unwrap() - 0.5).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn it_is_the_average_of_the_last_n(
            points in 1usize..9,
            samples in prop::collection::vec((1u64..200, 0u64..70_000), 1..40),
        ) {
            let window = Window::new(points);
            samples.iter().for_each(|(sectors, us)| window.note(sectors * SECTOR, us * 1000));
            let taken: Vec<_> = samples.iter().filter(|(_, us)| *us <= 65_535).collect();
            let last = &taken[taken.len().saturating_sub(points)..];
            let cost = window.cost();
            prop_assert_eq!(cost.ops as usize, last.len());
            prop_assert_eq!(cost.busy.as_micros() as u64, last.iter().map(|(_, us)| us).sum::<u64>());
            prop_assert_eq!(cost.bytes, last.iter().map(|(sectors, _)| sectors * SECTOR).sum::<u64>());
        }
    }
}
