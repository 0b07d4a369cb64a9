//! A map from page to record number, in one flat array of `u32`: the records hold the keys.
//!
//! It uses open addressing with linear probing and backward-shift deletion, so there are no tombstones. It is
//! sized once for the maximum number of tracked pages, and grows only if that bound was wrong. The bits of a
//! cell that a record number leaves free hold bits of the page's hash. A probe therefore reads a record,
//! usually a cache miss, only if it is likely to be the page's.

use crate::PageId;

/// The share of cells that may be full, as a fraction. Fuller, runs of full cells become long: at 3/4 a page
/// that is not in the index takes 8 probes, which are neighbours in memory, and at 7/8 it would take 32.
const LOAD: (usize, usize) = (3, 4);

/// A map from page to record number; the module's text says how it works.
///
/// A cell holds the record number + 1 in its low bits and bits of the hash above. `0` is an empty cell, so
/// that the allocator provides the array zeroed (and untouched).
#[derive(Debug)]
pub struct PageIndex {
    cells: Vec<u32>,
    len: usize,
    /// The mask of the record number in a cell.
    number: u32,
}

impl PageIndex {
    /// Creates an index for `pages` pages.
    #[must_use]
    pub fn with_capacity(pages: usize) -> Self {
        Self {
            cells: vec![0; ((pages + 1) * LOAD.1).div_ceil(LOAD.0)],
            len: 0,
            number: mask_for(pages as u32),
        }
    }

    /// The number of pages in the index.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether no page is in the index.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its memory in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.cells.capacity() * size_of::<u32>()
    }

    /// The record of `page`; `page_of` returns the page of a record.
    pub fn find(&self, page: PageId, page_of: impl Fn(u32) -> PageId) -> Option<u32> {
        self.cell_of(page, page_of).map(|cell| self.record(self.cells[cell]))
    }

    /// Adds a page that is not in the index.
    pub fn insert(&mut self, page: PageId, record: u32, page_of: impl Fn(u32) -> PageId) {
        if record >= self.number {
            // The bound on the records was wrong: numbers take one bit more of each cell, and the hash one
            // less.
            self.rebuild(self.cells.len(), mask_for(record), &page_of);
        }
        if (self.len + 1) * LOAD.1 > self.cells.len() * LOAD.0 {
            self.rebuild(self.cells.len() * 2, self.number, &page_of);
        }
        self.put(page, record);
        self.len += 1;
    }

    /// Removes a page.
    pub fn remove(&mut self, page: PageId, page_of: impl Fn(u32) -> PageId) {
        let Some(mut hole) = self.cell_of(page, &page_of) else { return };
        self.len -= 1;
        let mut at = hole;
        loop {
            at = self.after(at);
            // The run ends here: no record beyond it can have been pushed past the hole.
            if self.cells[at] == 0 {
                break;
            }
            // A record may move into the hole unless that would put it before its home cell.
            let location = self.location(mixed(page_of(self.record(self.cells[at]))));
            let moves = if hole <= at {
                location <= hole || location > at
            } else {
                location <= hole && location > at
            };
            if moves {
                self.cells[hole] = self.cells[at];
                hole = at;
            }
        }
        self.cells[hole] = 0;
    }

    fn cell_of(&self, page: PageId, page_of: impl Fn(u32) -> PageId) -> Option<usize> {
        let hash = mixed(page);
        let mut cell = self.location(hash);
        while self.cells[cell] != 0 {
            let held = self.cells[cell];
            // The tag first: it rules out most other pages without a look at their records.
            if held & !self.number == self.tag(hash) && page_of(self.record(held)) == page {
                return Some(cell);
            }
            cell = self.after(cell);
        }
        None
    }

    fn put(&mut self, page: PageId, record: u32) {
        let hash = mixed(page);
        let mut cell = self.location(hash);
        while self.cells[cell] != 0 {
            cell = self.after(cell);
        }
        self.cells[cell] = self.tag(hash) | (record + 1);
    }

    #[cold]
    fn rebuild(&mut self, cells: usize, number: u32, page_of: impl Fn(u32) -> PageId) {
        let before = std::mem::replace(&mut self.cells, vec![0; cells]);
        let mask = std::mem::replace(&mut self.number, number);
        for cell in before {
            if cell != 0 {
                let record = (cell & mask) - 1;
                self.put(page_of(record), record);
            }
        }
    }

    fn record(&self, cell: u32) -> u32 {
        (cell & self.number) - 1
    }

    /// The low bits of the hash, outside the record number's mask. The high bits of the hash determine the
    /// home cell.
    fn tag(&self, hash: u64) -> u32 {
        hash as u32 & !self.number
    }

    fn after(&self, cell: usize) -> usize {
        if cell + 1 == self.cells.len() { 0 } else { cell + 1 }
    }

    /// The page's home cell: its hash scaled to the array's length.
    fn location(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.cells.len() as u128) >> 64) as usize
    }
}

/// The mask of the bits that record numbers up to `record`, each + 1, take.
const fn mask_for(record: u32) -> u32 {
    u32::MAX >> record.saturating_add(1).leading_zeros()
}

/// The page, hashed to 64 bits.
pub(crate) fn mixed(page: PageId) -> u64 {
    let word = page.to_u64();
    let mixed = (word ^ word >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}
