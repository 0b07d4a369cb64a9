//! The pool's interface to the storage below: fetch a page, write dirty pages, take pages that leave memory.
//!
//! `ssdcache` implements it. Of a page's place below memory the pool knows only the [`Location`]; the tier
//! never sees a frame.

use pagetier_devio::task::Boxed;
use pagetier_devio::{Claim, DeviceError, IoBuf, IoClass};
use pagetier_page::{Defect, LogNeeds, Lsn, PageId};
use pagetier_policy::{Access, Location};
use std::sync::Arc;

/// The storage below the pool. Its futures are boxed, so that they are compiled with the tier, not with the
/// pool; each waits for I/O, beside which an allocation does not count.
pub trait Tier: Send + Sync + 'static {
    /// Reads the newest version of `page` into `buf` (one page long) and verifies it (checksum, id, and stamp
    /// where known). Cancel-safe: the device owns the buffer and keeps it alive until the kernel is done with
    /// it.
    fn fetch(&self, page: PageId, access: Access, buf: IoBuf) -> Boxed<'_, Fetched>;

    /// Reads the pages `first`, `first + 1`, … into `bufs` in as few operations as possible (read-ahead). The
    /// result has one entry per buffer, in order.
    fn fetch_run(&self, first: PageId, bufs: Vec<IoBuf>) -> Boxed<'_, Vec<Fetched>>;

    /// Writes staged copies of dirty pages, each to the SSD or to the HDD. The pool has made the embedder's
    /// log durable up to their LSNs. Calls `done` once per page, as soon as its write has completed, if not
    /// yet durably ([`Tier::flush`]): a page for the SSD does not wait for one that goes to the HDD. `class`
    /// is their urgency. Must be driven to completion (the pool runs it in its own task).
    fn write<'a>(
        &'a self,
        batch: Vec<DirtyPage>,
        class: IoClass,
        done: &'a (dyn Fn(WrittenPage) + Send + Sync),
    ) -> Boxed<'a, ()>;

    /// Whether a write of the dirty `page` is likely to wait for the HDD while writes of other pages need
    /// not. False for a tier without an SSD, where all wait.
    fn goes_home(&self, _page: PageId) -> bool {
        false
    }

    /// The claim to the pages: once it has ended, the pool serves none of them. Default: one that never ends.
    fn claim(&self) -> Claim {
        Claim::default()
    }

    /// The location of the newest version of `page` below memory. The pool asks only when it does not read
    /// the page.
    fn location(&self, _page: PageId) -> Location {
        Location::Hdd
    }

    /// Makes every write that completed before this call durable.
    fn flush(&self) -> Boxed<'_, Result<(), TierError>>;

    /// Informs the tier that the clean page `page` is leaving the pool after `logical` reads not yet
    /// reported; `image` is its frame. Called before the page leaves the page table, so no other task can
    /// load it yet. The tier copies the image if it wants it, and must not block beyond that.
    fn evicted(&self, page: PageId, logical: u32, image: &[u8]) -> Displaced;

    /// Waits until the tier can take a copy of a clean page that leaves the pool ([`Tier::evicted`]). Returns
    /// false if it takes none that it need not take: it has no SSD, does not fill it, or has filled it.
    /// Cancel-safe.
    fn fills_up(&self) -> Boxed<'_, bool> {
        Box::pin(std::future::ready(false))
    }

    /// Informs the tier of the first change of a buffered page since it was loaded or cleaned. Returns true
    /// when its SSD copy was invalidated.
    fn dirtied(&self, page: PageId, logical: u32) -> bool;

    /// Informs the tier that an allocation created `page` in memory (no physical read).
    fn allocated(&self, page: PageId);

    /// Discards the page: its copies below are of no value. Returns false, without effect, while the tier is
    /// writing it: ask again after [`Tier::settled`].
    fn discarded(&self, page: PageId) -> bool;

    /// Waits until no write of `page` that the tier itself initiated is in flight. Cancel-safe.
    fn settled(&self, _page: PageId) -> Boxed<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// The page whose SSD copy was displaced, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct Displaced(pub Option<PageId>);

/// The result of a fetch.
#[derive(Debug)]
pub struct Fetched {
    /// The buffer, filled on success.
    pub buf: IoBuf,
    /// Where the page was read from.
    pub result: Result<Location, TierError>,
}

/// A staged copy of a dirty page.
#[derive(Debug)]
pub struct DirtyPage {
    /// The page whose copy this is.
    pub page: PageId,
    /// The page's image. Id and LSN are in its header; the tier sets stamp and checksum.
    pub image: IoBuf,
    /// Logical reads of the page since they were last reported.
    pub logical: u32,
    /// The LSN of the oldest change that the image contains and the storage below may lack: 0 when unknown,
    /// [`Lsn::BLANK`] when the page was created and not changed since.
    pub recovery_lsn: Lsn,
}

/// The result of writing a [`DirtyPage`].
#[derive(Debug)]
pub struct WrittenPage {
    /// The page of the [`DirtyPage`].
    pub page: PageId,
    /// Its new location; on an error the page must stay dirty in memory.
    pub result: Result<Location, TierError>,
    /// The page whose SSD copy it displaced.
    pub displaced: Displaced,
    /// The staged copy, to be reused.
    pub image: IoBuf,
}

/// Why the storage below failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// The page was allocated but never written before the store was last closed or crashed, is free, or lies
    /// beyond the end of its space. A store's methods return this as `Error::NoSuchPage`.
    #[error("page {page} does not exist")]
    NoSuchPage {
        /// The page that was asked for.
        page: PageId,
    },
    /// A device failed.
    #[error("page {page} cannot be read or written")]
    Device {
        /// The page that was to be read or written.
        page: PageId,
        /// The device's error.
        source: DeviceError,
    },
    /// A device failed in an operation of no single page: a flush, a map checkpoint.
    #[error(transparent)]
    Flush {
        /// The device's error.
        #[from]
        source: DeviceError,
    },
    /// The newest durable copy of the page is damaged, and no other copy of that version exists.
    #[error("page {page} is corrupt on {device} at {offset}: {defect}")]
    Corrupt {
        /// The page of which no sound copy is left.
        page: PageId,
        /// The device that holds it.
        device: Arc<str>,
        /// The offset, in bytes.
        offset: u64,
        /// The expected and the found value.
        defect: Defect,
    },
    /// The store refuses writes after an error, because accepting them would lose data.
    #[error("the store refuses writes after an earlier error: {cause}")]
    Refusing {
        /// The first error.
        cause: Arc<str>,
    },
}

/// Why the embedder's log could not be made durable.
pub type GateError = Arc<dyn std::error::Error + Send + Sync>;

/// The completion of [`LogGate::make_durable`].
pub type GateFuture<'a> = std::pin::Pin<Box<dyn Future<Output = Result<(), GateError>> + Send + 'a>>;

/// The embedder's log: the store writes a page, to any device, only after the log is durable up to the page's
/// LSN.
///
/// # What the engine must do
///
/// In **one critical section** of the log, assign a record its LSN and set this LSN on every page that the
/// record changes (`set_lsn`), while you hold the exclusive guards of these pages. Read the log's end for a
/// checkpoint in the same critical section. Otherwise a checkpoint may find that a record has an LSN below
/// the log's end, but its pages do not have it yet, and removes log that redo needs.
///
/// # What the store does
///
/// - *Calls* are concurrent, from several tasks and threads, and not in order of LSN.
/// - *LSNs* are those that `set_lsn` put into pages, in this run or an earlier one; one call covers a batch
///   of pages. A call never has `Lsn(0)`. An LSN beyond the log's end means that the log is older than the
///   store, for example because a part of it was lost: return an error.
/// - *Runtime.* The store polls the future in its own tasks, on the tokio runtime on which it was opened. So
///   the future may use `spawn_blocking`, and must not block the thread.
/// - *Dropped futures.* The store awaits every call, even if the caller of `sync` is gone. Only the end of
///   the runtime drops a future midway: whatever it has begun must then be safe, as after a crash.
/// - *Errors.* The pages stay dirty in memory. A cleaner retries after 10 ms, later at intervals of up to 2
///   s, and as soon as a request needs a frame. `sync` and similar calls return the error as
///   [`PoolError::Log`]. If all frames are dirty, requests wait and then fail with [`PoolError::Exhausted`].
///   Nothing is lost when the gate works again. A panic of the call or of its future is such an error, with
///   the panic's message (`GatePanic`).
/// - *Changes that are not logged.* A page that has no LSN, and is created or changed without `set_lsn`, gets
///   the log's durable position as its LSN when its guard is dropped ([`LogGate::durable`]): redo then knows
///   that no earlier record concerns it. The recovery LSN of its change is 0, since no log could repeat it.
/// - *An open* does not call the gate: the first call follows the first change of a page, as by redo.
/// - *After a drop* or a shutdown no further call begins, apart from one that races with the drop. A call in
///   progress continues, although the store's directory may already be open again: see `Builder::log_gate`.
///
/// The gate must not wait for the store: a call of `get` or `sync` may wait for a write that waits for the
/// gate.
///
/// [`PoolError::Log`]: crate::PoolError::Log
/// [`PoolError::Exhausted`]: crate::PoolError::Exhausted
pub trait LogGate: Send + Sync + 'static {
    /// The LSN up to which the log is durable; by default `Lsn(0)`, which says nothing. A gate that says
    /// nothing when the store opens is not asked again. Called while a guard is dropped, perhaps under a lock
    /// of yours, so it must not wait: an atomic load.
    fn durable(&self) -> Lsn {
        Lsn(0)
    }

    /// Makes the log durable up to at least `lsn`, the record at `lsn` included. Often called with an LSN
    /// that is already durable, which must be cheap: an atomic load.
    ///
    /// # Errors
    /// The log is not durable up to `lsn`. The store keeps the pages and calls again.
    fn make_durable(&self, lsn: Lsn) -> GateFuture<'_>;

    /// Checks that this is the log that the store needs. Called once by each open, before it changes
    /// anything. It may block while it reads a log that an SSD's loss calls for. Default: any log is.
    ///
    /// # Errors
    /// It is not, and the open is refused with this error.
    fn check(&self, needs: &LogNeeds) -> Result<(), GateError> {
        let _ = needs;
        Ok(())
    }
}
