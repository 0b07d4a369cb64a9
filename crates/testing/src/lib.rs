//! For tests on Pagetier: devices and files that fail, lose what was not flushed, or take the time of a disk,
//! and the contracts of devices and policies as tests.
//!
//! | for tests of | there is |
//! | --- | --- |
//! | a store or an engine under crashes and faults | [`SimDevice`]: memory with a volatile write cache, power cuts and faults, deterministic by seed |
//! | an engine in real processes | [`kills`]: a process that is killed while it works or recovers, and what must be there afterwards |
//! | code that writes files | [`SimFiles`]: a file system that loses what was not synced |
//! | speed, in real or virtual time | [`EmulatedDevice`]: another device with the timing of a [`DeviceModel`] |
//! | a device of your own | [`conformance::check_device`] |
//! | a policy of your own | [`conformance::check_pool`], [`conformance::check_ssd`], and [`placement`], a bound for what any policy can save |
//! | code that calls policies | [`hostile`]: policies that answer at random or maliciously |
//!
//! [`SimDevice`] and [`EmulatedClock::Tokio`] take their time from tokio: a test with a paused clock is
//! deterministic.

pub mod conformance;
mod emulated;
mod fail_call;
pub mod hostile;
pub mod kills;
mod manifest;
pub mod placement;
mod scratch;
mod sim;
mod skip;

pub use emulated::{DeviceModel, EmulatedClock, EmulatedDevice, VirtualClock};
#[doc(hidden)]
pub use fail_call::{fail_call, fail_call_from};
#[doc(hidden)]
pub use manifest::newest_area;
#[doc(hidden)]
pub use scratch::scratch;
pub use sim::{
    Fault, FaultEffect, FileFault, FlushFailure, SimDevice, SimFiles, SimMoment, SimPower, SimSeat,
};
#[doc(hidden)]
pub use skip::skipped;
