//! The input of a replay: a stream of page references.

use pagetier_policy::PageId;

/// The use of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Reads the page.
    Read,
    /// Reads and changes the page.
    Write,
    /// Creates the page in memory, without a read from below.
    Create,
}

/// One use of one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reference {
    /// The page.
    pub page: PageId,
    /// Its use.
    pub used: Use,
    /// Made by a scan: a miss is read ahead, and counts as sequential.
    pub sequential: bool,
}

impl Reference {
    /// A page read on demand.
    #[must_use]
    pub const fn read(page: PageId) -> Self {
        Self { page, used: Use::Read, sequential: false }
    }

    /// A page changed on demand.
    #[must_use]
    pub const fn write(page: PageId) -> Self {
        Self { page, used: Use::Write, sequential: false }
    }
}

/// References in batches: one transaction per batch for TPC-C, any number for other sources.
pub trait Source {
    /// Appends the next batch to `out`; returns `false` at the end.
    fn batch(&mut self, out: &mut Vec<Reference>) -> bool;

    /// New-Order transactions so far, if the source has them.
    fn new_orders(&self) -> u64 {
        0
    }

    /// The current size of the database in pages, if known.
    fn db_pages(&self) -> Option<u64> {
        None
    }
}
