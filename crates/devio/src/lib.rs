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

mod buf;
mod causes;
mod changes;
mod check;
mod claim;
mod class;
mod device;
mod fence;
mod file;
pub mod files;
mod histogram;
mod image;
mod joint;
mod limits;
pub mod locks;
mod memory;
mod meter;
mod metered;
mod occupancy;
mod open;
mod overlay;
mod owner;
mod queue;
mod recent;
mod recorder;
pub mod spans;
mod spliced;
mod stats;
mod sync;
pub mod task;
mod threads;
mod ticket;
#[cfg(all(test, loom))]
mod ticket_models;
mod transfer;
mod uring;
mod uring_core;
mod uring_reap;
mod uring_ring;

pub use buf::{BUF_ALIGN, IoBuf};
pub use causes::Causes;
pub use claim::{Claim, OnChange};
pub use class::IoClass;
pub use device::{
    Completion, DataSearch, Device, DeviceError, DeviceErrorKind, DoneFuture, IoBufs, IoFuture, IoOp,
    SharedDevice,
};
pub use fence::Fence;
pub use histogram::TimeHistogram;
pub use joint::{Failures, Joint};
pub use limits::{check_file_bytes, file_bytes_max};
pub use memory::{Memory, MemoryDevice};
pub use metered::{Metered, RawDevice, RawDone, RawTransfer};
pub use occupancy::{InFlight, Kept, Occupancy, Occupied};
pub use open::{Backend, DirectIo, OpenOptions, Opened, open_file, open_file_at, overwrite_in_place};
pub use overlay::{Overlay, OverlayDevice};
pub use owner::Owner;
pub use recent::{COST_POINTS, RecentCost, RecentCosts};
pub use spliced::{Spliced, Window};
pub use stats::{ClassStats, DeviceStats, DirStats, ErrorCounts, RetryCounts};
pub use uring_reap::Reap;

/// What the devices of `pagetier-testing` are made of. No part of the interface: it may change in any
/// version.
#[doc(hidden)]
pub mod parts {
    pub use crate::check::{Spot, check, check_range, refused, total_len};
    pub use crate::class::Counter;
    pub use crate::image::Image;
    pub use crate::meter::Meter;
    pub use crate::queue::rank;
    pub use crate::recorder::{Recorder, RetryReason};
    pub use crate::ticket::{Promise, Ticket, ticket};
}
