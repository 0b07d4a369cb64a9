//! Home writes that are not durable. They determine what a failed flush of the HDD leaves unverified, and
//! which copies of homes are not yet copies of durable versions.

use crate::protocol::flushes::HddFlush;
use pagetier_devio::DeviceError;
use pagetier_page::{Lsn, PageId, Stamp};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A flush is due at this many home writes without one. This bounds their memory, and what the next open
/// rewrites after a failed flush.
const PAGES_MAX: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct HomeWrite {
    stamp: Stamp,
    /// Every change older than this is durable on the HDD.
    lsn: Lsn,
    /// The flush that makes it durable; `None` while the write is in flight.
    until_flush: Option<HddFlush>,
}

#[derive(Debug, Default)]
struct Inner {
    pages: FxHashMap<PageId, HomeWrite>,
    failed: Option<Arc<str>>,
}

/// See the module. A leaf in the locking order.
#[derive(Debug, Default)]
pub(crate) struct UnflushedHomes(Mutex<Inner>);

impl UnflushedHomes {
    /// Notes the start of home writes of these versions. After a failed flush none may start: they would be
    /// missing from the note of what it left unverified.
    pub(crate) fn begin(&self, writes: &[(PageId, Stamp, Lsn)]) -> Result<(), Arc<str>> {
        let mut inner = self.0.lock();
        if let Some(cause) = &inner.failed {
            return Err(Arc::clone(cause));
        }
        for (page, stamp, lsn) in writes {
            // If an earlier home write of the page is not durable either, the HDD may lack its changes, too.
            let older = inner.pages.get(page).map_or(*lsn, |write| write.lsn);
            let write = HomeWrite { stamp: *stamp, lsn: older.min(*lsn), until_flush: None };
            inner.pages.insert(*page, write);
        }
        Ok(())
    }

    /// Notes that the home write of `page` has ended, with or without an error. Flush number `flush` makes
    /// its result durable.
    pub(crate) fn ended(&self, page: PageId, flush: HddFlush) {
        if let Some(write) = self.0.lock().pages.get_mut(&page) {
            write.until_flush = Some(flush);
        }
    }

    /// Notes that flush number `over` has completed.
    pub(crate) fn flushed(&self, over: HddFlush) {
        self.0.lock().pages.retain(|_, write| write.until_flush.is_none_or(|flush| flush > over));
    }

    /// Notes that a flush failed. Returns the pages that it leaves unverified, sorted.
    pub(crate) fn fail(&self, error: &DeviceError) -> Vec<PageId> {
        let mut inner = self.0.lock();
        inner.failed.get_or_insert_with(|| Arc::from(error.to_string()));
        let mut pages: Vec<PageId> = inner.pages.keys().copied().collect();
        pages.sort_unstable();
        pages
    }

    /// The oldest change of `page` that the HDD may lack, while the latest home write is not durable.
    pub(crate) fn unflushed(&self, page: PageId) -> Option<Lsn> {
        self.0.lock().pages.get(&page).map(|write| write.lsn)
    }

    /// Whether a home write of `page` is in flight.
    pub(crate) fn in_flight(&self, page: PageId) -> bool {
        self.0.lock().pages.get(&page).is_some_and(|write| write.until_flush.is_none())
    }

    /// The version that the home of `page` must hold, if it was written since the last flush and no home
    /// write is in flight.
    pub(crate) fn expected(&self, page: PageId) -> Option<Stamp> {
        self.0.lock().pages.get(&page).filter(|write| write.until_flush.is_some()).map(|write| write.stamp)
    }

    /// Whether so many home writes have accumulated that a flush is due.
    pub(crate) fn wants_flush(&self) -> bool {
        let inner = self.0.lock();
        inner.failed.is_none() && inner.pages.len() >= PAGES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_devio::{DeviceErrorKind, IoOp};
    use pagetier_page::SpaceId;

    #[test]
    fn a_home_write_is_unverified_until_the_flush_that_began_after_it() {
        let page = |no| PageId::new(SpaceId(1), no);
        let write = |no, stamp| (page(no), Stamp::from_bits(stamp), Lsn(stamp));
        let writes = UnflushedHomes::default();
        writes.begin(&[write(1, 10), write(2, 11)]).expect("no flush failed");
        writes.flushed(HddFlush(7));
        assert_eq!((writes.unflushed(page(1)), writes.expected(page(1))), (Some(Lsn(10)), None));
        writes.ended(page(1), HddFlush(8));
        assert_eq!(writes.expected(page(1)), Some(Stamp::from_bits(10)));
        writes.begin(&[write(1, 12)]).expect("no flush failed");
        writes.flushed(HddFlush(8));
        assert_eq!(writes.unflushed(page(1)), Some(Lsn(10)), "a newer version is on its way");
        writes.ended(page(1), HddFlush(9));
        writes.ended(page(2), HddFlush(9));
        writes.flushed(HddFlush(9));
        assert_eq!((writes.unflushed(page(1)), writes.unflushed(page(2))), (None, None));
        writes.begin(&[write(3, 13)]).expect("no flush failed");
        let error = DeviceError {
            device: "hdd".into(),
            op: IoOp::Flush,
            offset: 0,
            len: 0,
            kind: DeviceErrorKind::Gone,
        };
        assert_eq!(writes.fail(&error), [page(3)], "in flight is unverified, too");
        assert!(writes.begin(&[write(4, 14)]).is_err());
    }
}
