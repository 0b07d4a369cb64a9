//! Device I/O: the [`Device`] trait under Pagetier's tiers, and its implementations.
//!
//! | device | what it is |
//! | --- | --- |
//! | [`open_file`] | a regular file or block device, over io_uring with direct I/O, or over a pool of threads |
//! | [`MemoryDevice`] | bytes in memory |
//! | [`OverlayDevice`] | another device that is never written to: writes stay in memory |
//! | [`EmulatedDevice`] | another device slowed down by a timing [`DeviceModel`], in real or virtual time |
//! | [`SimDevice`] | memory with a volatile write cache, power cuts and faults, deterministic by seed |
//!
//! [`files`] has the same for files: real ones, and `SimFiles`, which loses what was not synced.
//!
//! The crate needs no particular executor, except for [`EmulatedClock::Tokio`] and delays of [`SimDevice`],
//! which take their time from tokio, and for [`Reap::Reactor`].

#[macro_use]
mod delegate;

mod buf;
mod causes;
mod changes;
mod check;
mod claim;
mod class;
pub mod conformance;
mod device;
mod emulated;
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
#[cfg(feature = "sim")]
mod sim;
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
pub use emulated::{DeviceModel, EmulatedClock, EmulatedDevice, VirtualClock};
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
#[cfg(feature = "sim")]
pub use sim::{
    Fault, FaultEffect, FileFault, FlushFailure, SimDevice, SimFiles, SimMoment, SimPower, SimSeat,
};
pub use spliced::{Spliced, Window};
pub use stats::{ClassStats, DeviceStats, DirStats, ErrorCounts, RetryCounts};
pub use uring_reap::Reap;
