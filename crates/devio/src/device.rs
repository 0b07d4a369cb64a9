//! The seam: what every device can do, and what comes back from it.
//!
//! Buffers travel with the operation and come back with its result. Dropping the future of an operation in
//! flight detaches it: the device keeps the buffers until the kernel is done with them, then drops them.

use crate::{DeviceStats, IoBuf, Occupancy, RecentCosts};
use smallvec::SmallVec;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;

/// The buffers of one vectored operation, in file order.
pub type IoBufs = SmallVec<[IoBuf; 1]>;

/// An operation in flight.
pub type IoFuture = Pin<Box<dyn Future<Output = Completion> + Send>>;

/// How an operation ended, with its buffers. On an error their contents are unspecified (reads) or
/// unchanged (writes); either way they are the caller's again.
#[derive(Debug)]
pub struct Completion {
    /// The buffers that went in, in the same order.
    pub bufs: IoBufs,
    /// Whether every byte was transferred.
    pub result: Result<(), DeviceError>,
}

/// What an operation is for: statistics are kept by class, and background work yields to demand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IoClass {
    /// A read that someone waits for.
    Demand,
    /// Read-ahead.
    Prefetch,
    /// A page written by a cleaner, or admitted to the SSD.
    Clean,
    /// A page written by a cleaner when replacement already waits for the disk: takes turns with reads.
    UrgentClean,
    /// The SSD's own write-back: reads of victims and their writes to the HDD.
    WriteBack,
    /// The SSD's own write-back when pages cannot be written to the SSD, or had to go to the disk, for want
    /// of it: takes turns with reads.
    UrgentWriteBack,
    /// The doublewrite ring.
    Ring,
    /// Superblock, map checkpoints, journal.
    Meta,
    /// Reads and repairs of a recovery, verification, scrubbing.
    Recovery,
}

impl IoClass {
    /// Every class, in the order of [`DeviceStats`].
    pub const ALL: [Self; 9] = [
        Self::Demand,
        Self::Prefetch,
        Self::Clean,
        Self::UrgentClean,
        Self::WriteBack,
        Self::UrgentWriteBack,
        Self::Ring,
        Self::Meta,
        Self::Recovery,
    ];
}

/// A block device or a file used as one: positioned vectored I/O of aligned buffers.
///
/// Offsets, and the address and length of every buffer, are multiples of [`Device::alignment`]; anything
/// else is refused with [`DeviceErrorKind::Misaligned`] before the kernel sees it.
pub trait Device: Send + Sync + std::fmt::Debug + 'static {
    /// Fills `bufs` from `offset` on. Short transfers are continued; an end of file inside the range is
    /// [`DeviceErrorKind::UnexpectedEof`].
    fn read(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture;

    /// Writes `bufs` from `offset` on. Completed is not durable: see [`Device::flush`].
    fn write(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture;

    /// Makes every write that completed before this call durable.
    fn flush(&self, class: IoClass) -> Pin<Box<dyn Future<Output = Result<(), DeviceError>> + Send>>;

    /// The size in bytes.
    fn size(&self) -> u64;

    /// Grows to at least `bytes`, with the space reserved where the file system can. A block device that is
    /// large enough already is left alone; a smaller one is [`DeviceErrorKind::NoSpace`]. Blocks briefly:
    /// a metadata operation, made rarely (by extent).
    ///
    /// # Errors
    /// When the space is not to be had.
    fn grow(&self, bytes: u64) -> Result<(), DeviceError>;

    /// Tells the device that a range holds nothing of value any more (TRIM, hole punch). A hint; reads of the
    /// range return anything until it is written again.
    fn discard(&self, offset: u64, len: u64)
    -> Pin<Box<dyn Future<Output = Result<(), DeviceError>> + Send>>;

    /// Offers memory that many operations will use (the pool's arena), as address and length of each region,
    /// so that the kernel need not look it up for each. The regions must stay mapped, unmoved, as long as
    /// operations on them are issued: the device does not touch them otherwise, but it would read into pages
    /// that are no longer there for anyone to see. Returns whether it was taken up, which takes support and a
    /// sufficient limit of locked memory; everything works the same without.
    fn register(&self, _regions: &[(NonNull<u8>, usize)]) -> bool {
        false
    }

    /// Which store uses the device, and how many operations are under way, those included whose futures were
    /// dropped.
    fn occupancy(&self) -> &Occupancy;

    /// The granularity of offsets, lengths and buffer addresses, in bytes: a power of two.
    fn alignment(&self) -> usize;

    /// Counts, bytes, service times and busy time so far.
    fn stats(&self) -> DeviceStats;

    /// From now on keeps a moving average of what the last `points` reads and writes of pages took
    /// ([`crate::COST_POINTS`] in the paper that it is from), for [`Device::recent_costs`]. Further calls
    /// change nothing. 8 bytes of memory for each point.
    fn track_costs(&self, _points: usize) {}

    /// What pages cost lately; `None` before [`Device::track_costs`], or where nothing is measured.
    fn recent_costs(&self) -> Option<RecentCosts> {
        None
    }

    /// The backend's name for reports: `uring`, `threads`, `emulated`, `sim`, `memory`.
    fn backend(&self) -> &'static str;

    /// What the device is called in errors: usually its path.
    fn name(&self) -> &str;
}

/// A device, shared.
pub type SharedDevice = Arc<dyn Device>;

/// Which operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IoOp {
    /// A positioned read.
    Read,
    /// A positioned write.
    Write,
    /// A flush of the write cache.
    Flush,
    /// Growing the file.
    Grow,
    /// A discard.
    Discard,
    /// Opening it.
    Open,
}

/// What went wrong, by what can be done about it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceErrorKind {
    /// The medium or the path to it failed (EIO and its kin).
    #[error("I/O error: {0}")]
    Io(Arc<std::io::Error>),
    /// The file system or device is full.
    #[error("no space left")]
    NoSpace,
    /// The device vanished (ENODEV, ENXIO, or the backend has stopped).
    #[error("the device is gone")]
    Gone,
    /// The store that the operation belongs to was closed or dropped before it started.
    #[error("the store was closed or dropped")]
    Closed,
    /// The range ends beyond the device.
    #[error("the range ends beyond the end of the device, at {size} bytes")]
    UnexpectedEof {
        /// The device's size.
        size: u64,
    },
    /// Offset, length or address not a multiple of the alignment.
    #[error("not aligned to {required} bytes")]
    Misaligned {
        /// The alignment required.
        required: usize,
    },
    /// The path is a directory, is missing, may not be written, or cannot do O_DIRECT though it is required.
    #[error("{0}")]
    Unusable(String),
}

/// An operation on a device failed. Names device, operation, offset and length; the page is added above.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{device}: {op:?} of {len} bytes at {offset}: {kind}")]
pub struct DeviceError {
    /// The device's name.
    pub device: Arc<str>,
    /// The operation.
    pub op: IoOp,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub len: u64,
    /// What went wrong.
    #[source]
    pub kind: DeviceErrorKind,
}
