//! Page → record number, in one flat array of `u32`: the key is in the record already.
//!
//! Open addressing with linear probing and deletion by shifting back, so no tombstones pile up. Sized once for the most pages
//! that can be tracked; it only grows if that bound was wrong.

use crate::PageId;

/// Positions hold record number + 1; `0` is empty, so that the array comes zeroed (and untouched) from the allocator.
#[derive(Debug)]
pub(crate) struct PageIndex {
    cells: Vec<u32>,
    len: usize,
}

impl PageIndex {
    /// Room for `pages` pages at a load of at most 1/2: every cell looked at on the way is a record touched.
    pub(crate) fn with_capacity(pages: usize) -> Self {
        Self { cells: vec![0; (pages + 1) * 2], len: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.cells.capacity() * size_of::<u32>()
    }

    /// The record of `page`; `page_of` tells the page of a record.
    pub(crate) fn find(&self, page: PageId, page_of: impl Fn(u32) -> PageId) -> Option<u32> {
        self.cell_of(page, page_of).map(|cell| self.cells[cell] - 1)
    }

    /// Adds a page that is not in the index.
    pub(crate) fn insert(&mut self, page: PageId, record: u32, page_of: impl Fn(u32) -> PageId) {
        if (self.len + 1) * 2 > self.cells.len() {
            self.grow(&page_of);
        }
        self.put(page, record);
        self.len += 1;
    }

    /// Removes a page.
    pub(crate) fn remove(&mut self, page: PageId, page_of: impl Fn(u32) -> PageId) {
        let Some(mut hole) = self.cell_of(page, &page_of) else { return };
        self.len -= 1;
        let mut at = hole;
        loop {
            at = self.after(at);
            if self.cells[at] == 0 {
                break;
            }
            // A record may move into the hole unless that would put it before its home cell.
            let home = self.home(page_of(self.cells[at] - 1));
            let moves = if hole <= at { home <= hole || home > at } else { home <= hole && home > at };
            if moves {
                self.cells[hole] = self.cells[at];
                hole = at;
            }
        }
        self.cells[hole] = 0;
    }

    fn cell_of(&self, page: PageId, page_of: impl Fn(u32) -> PageId) -> Option<usize> {
        let mut cell = self.home(page);
        while self.cells[cell] != 0 {
            if page_of(self.cells[cell] - 1) == page {
                return Some(cell);
            }
            cell = self.after(cell);
        }
        None
    }

    fn put(&mut self, page: PageId, record: u32) {
        let mut cell = self.home(page);
        while self.cells[cell] != 0 {
            cell = self.after(cell);
        }
        self.cells[cell] = record + 1;
    }

    #[cold]
    fn grow(&mut self, page_of: impl Fn(u32) -> PageId) {
        let larger = vec![0; self.cells.len() * 2];
        for cell in std::mem::replace(&mut self.cells, larger) {
            if cell != 0 {
                self.put(page_of(cell - 1), cell - 1);
            }
        }
    }

    fn after(&self, cell: usize) -> usize {
        if cell + 1 == self.cells.len() { 0 } else { cell + 1 }
    }

    /// Where a page would lie if no other were in the way: its hash scaled to the array's length.
    fn home(&self, page: PageId) -> usize {
        ((u128::from(mixed(page)) * self.cells.len() as u128) >> 64) as usize
    }
}

/// The page as 64 bits that look random.
pub(crate) fn mixed(page: PageId) -> u64 {
    let word = page.to_u64();
    let mixed = (word ^ word >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}
