//! What the buffer pool needs from below: fetch a page, write dirty pages, take what leaves memory.
//!
//! `ssdcache` implements it. The pool never knows where a page lies beyond [`Home`]; the tier never sees a
//! frame.

use pagetier_devio::{DeviceError, IoBuf, IoClass};
use pagetier_page::{Defect, Lsn, PageId};
use pagetier_policy::{Access, Home};
use std::future::Future;
use std::sync::Arc;

/// The storage below the pool.
pub trait Tier: Send + Sync + 'static {
    /// Reads the newest version of `page` into `buf` (one page long), verified (checksum, id, stamp where
    /// known). Cancel-safe: the buffer stays alive, owned by the device, until the kernel is done with it.
    fn fetch(&self, page: PageId, access: Access, buf: IoBuf) -> impl Future<Output = Fetched> + Send;

    /// Reads the pages `first`, `first + 1`, … into `bufs` in as few operations as it can (read-ahead).
    /// The result has one entry per buffer, in order.
    fn fetch_run(&self, first: PageId, bufs: Vec<IoBuf>) -> impl Future<Output = Vec<Fetched>> + Send;

    /// Writes staged copies of dirty pages, each to the SSD or to the HDD. The pool has made the embedder's
    /// log durable up to their LSNs. Calls `done` once for each page, as soon as its write completed (not: is
    /// durable, see [`Tier::flush`]): a page for the SSD does not wait for one that goes to the HDD. `class`
    /// is how urgent they are. Must be driven to completion (the pool runs it in a task of its own).
    fn write(
        &self,
        batch: Vec<DirtyPage>,
        class: IoClass,
        done: &(dyn Fn(WrittenPage) + Send + Sync),
    ) -> impl Future<Output = ()> + Send;

    /// Whether a write of `page`, which is dirty, is likely to wait for the HDD while writes of other pages
    /// need not. False for a tier without an SSD, where all wait.
    fn goes_home(&self, _page: PageId) -> bool {
        false
    }

    /// Where the newest version of `page` lies below memory. The pool asks only where it does not read the
    /// page.
    fn home(&self, _page: PageId) -> Home {
        Home::Hdd
    }

    /// Makes every write that completed before this call durable.
    fn flush(&self) -> impl Future<Output = Result<(), TierError>> + Send;

    /// The clean page `page` is leaving the pool after `logical` reads not yet reported; `image` is its
    /// frame. Called before the page leaves the page table, so no other task can load it meanwhile. The tier
    /// copies the image if it wants it; it must not block beyond that.
    fn evicted(&self, page: PageId, logical: u32, image: &[u8]) -> Displaced;

    /// A buffered page was changed for the first time since it was loaded or cleaned. True when its SSD copy
    /// was invalidated, so that it has none any more.
    fn dirtied(&self, page: PageId, logical: u32) -> bool;

    /// `page` was created in memory by an allocation (no physical read).
    fn allocated(&self, page: PageId);

    /// The page is discarded: its copies below are of no value. False, and nothing is done, when the tier is
    /// writing it just now: ask again after [`Tier::settled`].
    fn discarded(&self, page: PageId) -> bool;

    /// Waits until the tier is not writing `page` of its own accord any more. Cancel-safe.
    fn settled(&self, _page: PageId) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// The page whose SSD copy had to make room, if one had to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct Displaced(pub Option<PageId>);

/// A page that came up, or did not.
#[derive(Debug)]
pub struct Fetched {
    /// The buffer, filled on success.
    pub buf: IoBuf,
    /// Where the page was read from.
    pub result: Result<Home, TierError>,
}

/// A staged copy of a dirty page.
#[derive(Debug)]
pub struct DirtyPage {
    /// Which.
    pub page: PageId,
    /// The page's image; id and LSN are in its header, stamp and checksum are the tier's to set.
    pub image: IoBuf,
    /// Logical reads of the page since they were last reported.
    pub logical: u32,
    /// The LSN of the oldest change that the image has and the storage below may not have (0 when unknown).
    pub recovery_lsn: Lsn,
}

/// What became of a [`DirtyPage`].
#[derive(Debug)]
pub struct WrittenPage {
    /// Which.
    pub page: PageId,
    /// Where it lies now; on an error it must stay dirty in memory.
    pub result: Result<Home, TierError>,
    /// The page whose SSD copy made room for it.
    pub displaced: Displaced,
    /// The staged copy, for the next page.
    pub image: IoBuf,
}

/// Why the storage below could not do it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// The page was allocated but never written before the store was last closed or crashed, or lies beyond
    /// the end of its space.
    #[error("page {page} does not exist")]
    NoSuchPage {
        /// The page.
        page: PageId,
    },
    /// A device failed.
    #[error("page {page}: {source}")]
    Device {
        /// The page.
        page: PageId,
        /// The device's error.
        #[source]
        source: DeviceError,
    },
    /// The newest durable copy of the page is not sound, and no other copy of that version exists.
    #[error("page {page} is corrupt on {device} at {offset}: {defect}")]
    Corrupt {
        /// The page.
        page: PageId,
        /// The device that holds it.
        device: Arc<str>,
        /// Where, in bytes.
        offset: u64,
        /// Expected and found.
        defect: Defect,
    },
    /// The store no longer accepts writes after an error that would otherwise lose data.
    #[error("the store refuses writes since: {cause}")]
    Refusing {
        /// The first error.
        cause: Arc<str>,
    },
}

/// Why the embedder's log could not be made durable.
pub type GateError = Arc<dyn std::error::Error + Send + Sync>;

/// The log on its way to the disk.
pub type GateFuture<'a> = std::pin::Pin<Box<dyn Future<Output = Result<(), GateError>> + Send + 'a>>;

/// The embedder's log, as far as the pool needs it: a page is written only after the log is durable up to its
/// LSN.
pub trait LogGate: Send + Sync + 'static {
    /// Makes the log durable up to `lsn` (at least). Called often with an LSN that is durable already: that
    /// must be cheap.
    fn make_durable(&self, lsn: Lsn) -> GateFuture<'_>;
}
