//! A mini-transaction: pages changed together by one log record, or not at all.

use crate::log::Wal;
use crate::record;
use pagetier::{Lsn, PageId, PageMut};

/// The pages latched for one change, and the operations on them so far.
///
/// [`MiniTx::commit`] sets the record's LSN on the pages, then releases their latches. Dropping a
/// mini-transaction after a change leaves changed pages without a record, so callers check before they write.
pub struct MiniTx<'s> {
    wal: Option<&'s Wal>,
    pages: Vec<PageMut<'s>>,
    ops: Vec<u8>,
}

/// The maximum number of pages of a mini-transaction.
const PAGES_MAX: usize = 255;

impl std::fmt::Debug for MiniTx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MiniTx({:?})", self.pages)
    }
}

impl<'s> MiniTx<'s> {
    /// Creates an empty mini-transaction. Without a log (`None`), as in a bulk load, it records no change and
    /// sets no LSN.
    #[must_use]
    pub fn new(wal: Option<&'s Wal>) -> Self {
        Self { wal, pages: Vec::new(), ops: Vec::new() }
    }

    /// Creates a mini-transaction on one page.
    #[must_use]
    pub fn on(wal: Option<&'s Wal>, page: PageMut<'s>) -> Self {
        Self { wal, pages: vec![page], ops: Vec::with_capacity(if wal.is_some() { 256 } else { 0 }) }
    }

    /// Adds a latched page; returns its index.
    ///
    /// # Panics
    /// If it already has 255 pages: a record has one byte for the index.
    pub fn add(&mut self, page: PageMut<'s>) -> usize {
        assert!(self.pages.len() < PAGES_MAX, "a mini-transaction of more than {PAGES_MAX} pages");
        self.pages.push(page);
        self.pages.len() - 1
    }

    #[must_use]
    pub fn payload(&self, page: usize) -> &[u8] {
        &self.pages[page]
    }

    #[must_use]
    pub fn id(&self, page: usize) -> PageId {
        self.pages[page].id()
    }

    /// Zeroes a page. Redo of the page starts here and needs none of its earlier contents.
    pub fn zero(&mut self, page: usize) {
        self.pages[page].fill(0);
        if self.wal.is_some() {
            record::put_zero(&mut self.ops, page as u8);
        }
    }

    /// Overwrites a range of a page's payload.
    pub fn write(&mut self, page: usize, offset: usize, bytes: &[u8]) {
        self.pages[page][offset..offset + bytes.len()].copy_from_slice(bytes);
        if self.wal.is_some() {
            record::put_write(&mut self.ops, page as u8, offset, bytes);
        }
    }

    /// Moves a range within a page, as `memmove` does.
    pub fn shift(&mut self, page: usize, from: usize, to: usize, len: usize) {
        if len > 0 {
            self.pages[page].copy_within(from..from + len, to);
            if self.wal.is_some() {
                record::put_move(&mut self.ops, page as u8, from, to, len);
            }
        }
    }

    /// Copies a range of one page to another one.
    pub fn copy(&mut self, source: usize, from: usize, target: usize, to: usize, len: usize) {
        if len > 0 {
            let bytes = self.pages[source][from..from + len].to_vec();
            self.write(target, to, &bytes);
        }
    }

    /// Records the change, releases the pages, and returns the record's LSN; zero without a log or a change.
    pub fn commit(mut self) -> Lsn {
        match self.wal {
            Some(wal) if !self.ops.is_empty() => wal.append_pages(&mut self.pages, &self.ops),
            _ => Lsn(0),
        }
    }

    /// Records the change and keeps the latch of the first page added.
    ///
    /// # Panics
    /// If it has no page.
    #[must_use]
    pub fn commit_keeping_first(mut self) -> PageMut<'s> {
        if let Some(wal) = self.wal.filter(|_| !self.ops.is_empty()) {
            wal.append_pages(&mut self.pages, &self.ops);
        }
        self.pages.swap_remove(0)
    }
}
