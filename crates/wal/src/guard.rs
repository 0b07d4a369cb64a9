//! What a mini-transaction needs of a page that it changes.

use pagetier::{Lsn, OwnedPageMut, PageId, PageMut};
use std::ops::DerefMut;

/// A page latched exclusively; derefs to its payload. Guards of both kinds, borrowed and owned, implement it.
pub trait Guard: DerefMut<Target = [u8]> {
    /// The page's id.
    fn id(&self) -> PageId;

    /// The LSN of the page's last change; 0 for a page that was never logged.
    fn lsn(&self) -> Lsn;

    /// Records that the change made through this guard is logged at `lsn`, as [`PageMut::set_lsn`] does.
    fn set_lsn(&mut self, lsn: Lsn);
}

impl Guard for PageMut<'_> {
    fn id(&self) -> PageId {
        PageMut::id(self)
    }

    fn lsn(&self) -> Lsn {
        PageMut::lsn(self)
    }

    fn set_lsn(&mut self, lsn: Lsn) {
        PageMut::set_lsn(self, lsn);
    }
}

impl Guard for OwnedPageMut {
    fn id(&self) -> PageId {
        OwnedPageMut::id(self)
    }

    fn lsn(&self) -> Lsn {
        OwnedPageMut::lsn(self)
    }

    fn set_lsn(&mut self, lsn: Lsn) {
        OwnedPageMut::set_lsn(self, lsn);
    }
}
