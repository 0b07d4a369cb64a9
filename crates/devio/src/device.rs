//! The device interface: the operations of every device, and their results.
//!
//! Buffers travel with the operation and come back with its result. Dropping the future of an operation in
//! flight detaches it: the device keeps the buffers until the kernel is done with them, then drops them.

use crate::count::class::IoClass;
use crate::{Claim, DeviceStats, IoBuf, Occupancy, RecentCosts};
use smallvec::SmallVec;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// The buffers of one vectored operation, in file order.
pub type IoBufs = SmallVec<[IoBuf; 1]>;

/// An operation in flight.
pub type IoFuture = Pin<Box<dyn Future<Output = Completion> + Send>>;

/// An operation without buffers in flight.
pub type DoneFuture = Pin<Box<dyn Future<Output = Result<(), DeviceError>> + Send>>;

/// Reads all of a file except its holes, and blocks meanwhile. Returns whether a byte is not zero.
pub type DataSearch = Box<dyn FnOnce() -> std::io::Result<bool> + Send>;

/// The outcome of an operation, with its buffers. On an error, the contents of a read's buffers are
/// unspecified and a write's are unchanged; in either case the caller owns them again.
#[derive(Debug)]
pub struct Completion {
    /// The operation's buffers, in the same order.
    pub bufs: IoBufs,
    /// Whether every byte was transferred.
    pub result: Result<(), DeviceError>,
}

/// A block device or a file used as one: positioned vectored I/O of aligned buffers.
///
/// Offsets, and the address and length of every buffer, must be multiples of [`Device::alignment`]; the
/// device refuses others with [`DeviceErrorKind::Misaligned`] before they reach the kernel. A call that
/// starts an operation must not wait for another device's, which may not have reached the kernel yet.
pub trait Device: Send + Sync + std::fmt::Debug + 'static {
    /// Reads from `offset` on into `bufs`. The device continues short transfers; an end of file inside the
    /// range is [`DeviceErrorKind::UnexpectedEof`].
    fn read(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture;

    /// Writes `bufs` from `offset` on. A completed write is not durable: see [`Device::flush`].
    fn write(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture;

    /// Makes every write that completed before this call durable.
    fn flush(&self, class: IoClass) -> DoneFuture;

    /// The number of changes (writes, discards, changes of the size) that were begun so far, if none is in
    /// flight; `None`: one is, or the device does not count them. If it was the same number when an earlier
    /// flush began, which succeeded, then another flush has nothing to make durable. Default: not counted.
    fn settled(&self) -> Option<u64> {
        None
    }

    /// The size in bytes.
    fn size(&self) -> u64;

    /// Grows to at least `bytes`, and reserves the space where the file system can. A block device that is
    /// large enough already is left alone; a smaller one is [`DeviceErrorKind::NoSpace`]. Blocks briefly, for
    /// a metadata operation that is rare (one per extent).
    ///
    /// # Errors
    /// The space is not available: the size and the space in use are as before.
    fn grow(&self, bytes: u64) -> Result<(), DeviceError>;

    /// Gives back the space beyond `bytes` that [`Device::grow`] reserved. No operation on it may be in
    /// flight. A device that cannot shrink keeps its size. Default: it keeps its size.
    ///
    /// # Errors
    /// The system refused it; the size is as before.
    fn cut(&self, _bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Informs the device that the contents of a range are not needed (TRIM, hole punch). A hint; reads of
    /// the range return arbitrary bytes until it is written again.
    fn discard(&self, offset: u64, len: u64) -> DoneFuture;

    /// For a regular file: finds out whether any of its bytes is not zero. `None`: the device is another one.
    fn data_search(&self) -> Option<DataSearch> {
        None
    }

    /// Which store uses the device, and how many operations are in flight, including those whose futures were
    /// dropped.
    fn occupancy(&self) -> &Occupancy;

    /// The granularity of offsets, lengths and buffer addresses, in bytes: a power of two.
    fn alignment(&self) -> usize;

    /// Counts, bytes, service times and busy time so far.
    fn stats(&self) -> DeviceStats;

    /// Starts keeping moving averages of the times of the last `points` page reads and writes
    /// ([`COST_POINTS`](crate::COST_POINTS) in the paper that defines them), for [`Device::recent_costs`].
    /// Further calls have no effect. Each point takes 8 bytes of memory.
    fn track_costs(&self, _points: usize) {}

    /// The recent costs of pages; `None` before [`Device::track_costs`], or where nothing is measured.
    fn recent_costs(&self) -> Option<RecentCosts> {
        None
    }

    /// The claim to the volume, if others may take it over. A device that fails with
    /// [`DeviceErrorKind::Fenced`] has one, and ends it before: what its owner has read is outdated from then
    /// on.
    fn claim(&self) -> Option<Claim> {
        None
    }

    /// Whether the device can write each buffer of `bytes` (a power of two) at a multiple of `bytes` whole: a
    /// crash leaves the old contents there, or the new ones. Once [`Device::keep_whole`] has asked for it,
    /// such pages need no doublewrite ring. Default: no.
    fn writes_whole(&self, _bytes: usize) -> bool {
        false
    }

    /// From now on each such buffer is written whole, or its write fails with [`DeviceErrorKind::NotWhole`],
    /// except in writes of the classes [`IoClass::Meta`] and [`IoClass::Ring`]. With 0, any write may be torn
    /// again. Default: nothing changes, for a device that treats all writes alike.
    fn keep_whole(&self, _bytes: usize) {}

    /// The backend's name for reports: `uring`, `threads`, `emulated`, `sim`, `memory`.
    fn backend(&self) -> &'static str;

    /// The device's name in errors: usually its path.
    fn name(&self) -> &str;
}

/// A shared device.
pub type SharedDevice = Arc<dyn Device>;

/// The kind of an operation.
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
    /// Informing the device that a range is not needed.
    Discard,
    /// Opening the file or block device.
    Open,
}

/// What went wrong, grouped by the possible reaction.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceErrorKind {
    /// The medium or the path to it failed (EIO and similar errors).
    #[error("I/O error: {0}")]
    Io(Arc<std::io::Error>),
    /// The file system or device is full.
    #[error("no space left")]
    NoSpace,
    /// The device vanished (ENODEV, ENXIO, or the backend has stopped).
    #[error("the device is gone")]
    Gone,
    /// No thread can be started to carry out the operation: the limit of threads or memory is reached. A
    /// later operation tries again.
    #[error(
        "no thread can be started for its I/O ({0}); raise the limit of threads (ulimit -u, or TasksMax= in \
         the unit)"
    )]
    NoThread(Arc<std::io::Error>),
    /// This process may not have a file of that size (RLIMIT_FSIZE).
    #[error(
        "a file of this process may not exceed {max_bytes} bytes; raise the limit of file sizes (ulimit -f, or \
         LimitFSIZE= in the unit)"
    )]
    FileSizeLimit {
        /// The limit, in bytes.
        max_bytes: u64,
    },
    /// This process was forked from the one that opened the device, whose threads and locks it does not have.
    #[error("process {opened_by} opened it, from which this process was forked; open it after the fork")]
    Forked {
        /// The id of the process that opened the device.
        opened_by: u32,
    },
    /// The device refused to write a page whole, although the system said that it can.
    #[error("the device offers to write such a page whole, but refused it: {0}")]
    NotWhole(Arc<std::io::Error>),
    /// Another owner has taken the volume over: this process may neither read nor write it any more.
    #[error("another owner has taken the volume over")]
    Fenced,
    /// The store that the operation belongs to was closed or dropped before it started.
    #[error("the store was closed or dropped")]
    Closed,
    /// The range ends beyond the device.
    #[error("the range ends beyond the end of the device, at {size} bytes")]
    UnexpectedEof {
        /// The device's size.
        size: u64,
    },
    /// The offset, a length or an address is not a multiple of the alignment.
    #[error("not aligned to {required} bytes")]
    Misaligned {
        /// The alignment required.
        required: usize,
    },
    /// The path is missing, a directory, or not writable, or does not support the required O_DIRECT.
    #[error("{0}")]
    Unusable(String),
}

/// Where an operation failed. An error of an open names the path itself.
fn context(device: &str, op: IoOp, offset: u64, len: u64) -> String {
    match op {
        IoOp::Open => String::new(),
        _ => format!("{device}: {op:?} of {len} bytes at {offset}: "),
    }
}

/// A failed operation on a device. Names device, operation, offset and length; the layer above adds the page.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}{kind}", context(.device, *.op, *.offset, *.len))]
pub struct DeviceError {
    /// The device's name.
    pub device: Arc<str>,
    /// The operation that failed.
    pub op: IoOp,
    /// The offset, in bytes.
    pub offset: u64,
    /// The length, in bytes.
    pub len: u64,
    /// What went wrong.
    pub kind: DeviceErrorKind,
}
