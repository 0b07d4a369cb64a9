//! What drives a replay: a stream of page references.

use pagetier_policy::PageId;

/// How a page is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// It is read.
    Read,
    /// It is read and changed.
    Write,
    /// It is created in memory: nothing to read below.
    Create,
}

/// One use of one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reference {
    /// Which page.
    pub page: PageId,
    /// How.
    pub used: Use,
    /// By a scan: a miss is read ahead, and counts as sequential.
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

/// References in batches: a transaction each for TPC-C, any number for the others.
pub trait Source {
    /// Appends the next batch to `out`; `false` when there is none left.
    fn batch(&mut self, out: &mut Vec<Reference>) -> bool;

    /// New-Order transactions so far, where that means something.
    fn new_orders(&self) -> u64 {
        0
    }

    /// Pages of the database now, where it is known.
    fn db_pages(&self) -> Option<u64> {
        None
    }
}
