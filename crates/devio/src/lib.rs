//! Device I/O: the [`Device`] trait under Pagetier's tiers, and its implementations.
//!
//! | device | what it is |
//! | --- | --- |
//! | [`open_file`] | a regular file or block device, over io_uring with direct I/O, or over a pool of threads |
//! | [`MemoryDevice`] | bytes in memory |
//! | [`OverlayDevice`] | another device that is never written to: writes stay in memory |
//!
//! [`files`] has the same for files. The package `pagetier-testing` has devices and files that fail, lose
//! what was not flushed, or take the time of a disk, and the contract of [`Device`] as a test.
//!
//! The crate needs no particular executor, except for [`Reap::Reactor`].

#[macro_use]
mod delegate;

mod causes;
mod count;
mod device;
mod duties;
pub mod files;
mod handover;
mod kernel;
pub mod locks;
#[doc(hidden)]
pub mod parts;
mod process;
mod ram;
pub mod spans;
pub mod task;
mod users;
mod wrap;

pub use causes::Causes;
pub use count::class::IoClass;
pub use count::histogram::TimeHistogram;
pub use count::recent::{COST_POINTS, RecentCost, RecentCosts};
pub use count::stats::{ClassStats, DeviceStats, DirStats, ErrorCounts, RetryCounts};
pub use device::{
    Completion, DataSearch, Device, DeviceError, DeviceErrorKind, DoneFuture, IoBufs, IoFuture, IoOp,
    SharedDevice,
};
pub use duties::metered::{Metered, RawDevice, RawDone, RawTransfer};
pub use handover::buf::{BUF_ALIGN, IoBuf};
pub use kernel::open::{Opened, open_file, open_file_at, overwrite_in_place};
pub use kernel::options::{Backend, DirectIo, OpenOptions, Reap};
pub use kernel::uring::together;
pub use process::limits::{check_file_bytes, file_bytes_max};
pub use process::owner::Owner;
pub use ram::memory::{Memory, MemoryDevice};
pub use ram::overlay::{Overlay, OverlayDevice};
pub use users::claim::{Claim, OnChange};
pub use users::occupancy::{InFlight, Kept, Occupancy, Occupied};
pub use wrap::fence::Fence;
pub use wrap::joint::{Failures, Joint};
pub use wrap::spliced::{Spliced, Window};
