//! A frequency sketch: approximate counts of pages' occurrences in a fixed number of four-bit counters (a
//! count-min sketch as in TinyLFU; Einziger, Friedman & Manes 2017).
//!
//! Each page has four counters, which it shares with other pages. The smallest of them is the estimate: too
//! high if other pages raised all four, and too low only beyond the limit of 15. The sketch stores no pages,
//! so its memory does not depend on their number.

use crate::PageId;
use crate::collections::page_index::mixed;

/// The highest count.
const COUNT_MAX: u8 = 15;

const ROWS: u64 = 4;

/// Counters of pages, four bits each, two per byte.
#[derive(Debug)]
pub(crate) struct Sketch {
    cells: Vec<u8>,
}

impl Sketch {
    /// Creates a sketch of `bytes` bytes of counters, at least one.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { cells: vec![0; bytes.max(1)] }
    }

    /// Creates a sketch with as many counters as this many pages have together.
    pub(crate) fn of_pages(pages: usize) -> Self {
        Self::new(pages * ROWS as usize / 2)
    }

    /// Estimates how often `page` occurred, up to [`COUNT_MAX`].
    pub(crate) fn estimate(&self, page: PageId) -> u8 {
        self.counters(page).map(|at| self.counter(at)).min().unwrap_or(0)
    }

    /// Records that `page` occurred `count` times in total: raises its lower counters to `count`.
    pub(crate) fn raise(&mut self, page: PageId, count: u32) {
        let count = count.min(u32::from(COUNT_MAX)) as u8;
        for at in self.counters(page) {
            // Conservative: raising only the counters below keeps what other pages share from growing.
            if self.counter(at) < count {
                let shift = 4 * (at & 1);
                let cell = &mut self.cells[at / 2];
                *cell = *cell & !(COUNT_MAX << shift) | count << shift;
            }
        }
    }

    /// Halves every counter.
    pub(crate) fn halve(&mut self) {
        for cell in &mut self.cells {
            // The mask drops the bit that the upper counter shifts into the lower one.
            *cell = *cell >> 1 & 0x77;
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.cells.capacity()
    }

    fn counter(&self, at: usize) -> u8 {
        self.cells[at / 2] >> (4 * (at & 1)) & COUNT_MAX
    }

    /// The positions of the page's counters, by double hashing.
    fn counters(&self, page: PageId) -> impl Iterator<Item = usize> + use<> {
        let counters = self.cells.len() as u64 * 2;
        let hash = mixed(page);
        let (first, step) = (hash, hash.rotate_left(32) | 1);
        (0..ROWS).map(move |row| {
            let hash = first.wrapping_add(row.wrapping_mul(step)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            ((u128::from(hash) * u128::from(counters)) >> 64) as usize
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SpaceId;

    fn p(no: u32) -> PageId {
        PageId::new(SpaceId(1 + no % 3), no)
    }

    #[test]
    fn a_count_is_raised_and_never_lowered() {
        let mut sketch = Sketch::new(1 << 10);
        for (count, estimate) in [(0, 0), (3, 3), (2, 3), (15, 15), (16, 15), (u32::MAX, 15)] {
            sketch.raise(p(1), count);
            assert_eq!(sketch.estimate(p(1)), estimate);
        }
        assert_eq!(sketch.estimate(p(2)), 0);
    }

    #[test]
    fn halves_are_rounded_down() {
        let mut sketch = Sketch::new(1 << 10);
        (0..=15).for_each(|no| sketch.raise(p(no), no));
        sketch.halve();
        let estimates: Vec<u8> = (0..=15).map(|no| sketch.estimate(p(no))).collect();
        assert_eq!(estimates, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]);
    }

    #[test]
    fn estimates_are_never_too_low_and_seldom_too_high() {
        // Two counters for each page.
        let pages = 4000;
        let mut sketch = Sketch::new(pages as usize);
        (0..pages).for_each(|no| sketch.raise(p(no), 1 + no % 4));
        let above = (0..pages).filter(|&no| u32::from(sketch.estimate(p(no))) > 1 + no % 4).count();
        assert!((0..pages).all(|no| u32::from(sketch.estimate(p(no))) > no % 4));
        // Another page writes a given counter with probability 1 - e^-2, and all four with 56%; most of
        // these pages do not have a higher count.
        assert!(above < pages as usize / 3, "{above}");
        let unknown = (pages..2 * pages).filter(|&no| sketch.estimate(p(no)) > 0).count();
        assert!((pages as usize / 2..pages as usize * 2 / 3).contains(&unknown), "{unknown}");
    }

    #[test]
    fn one_byte_is_enough_to_be_wrong_in() {
        let mut sketch = Sketch::new(0);
        sketch.raise(p(1), 5);
        sketch.raise(p(2), 7);
        assert!(sketch.estimate(p(1)) >= 5 && sketch.estimate(p(2)) >= 7);
        assert_eq!(sketch.memory_bytes(), 1);
    }
}
