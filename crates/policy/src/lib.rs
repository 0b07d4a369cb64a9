//! Every decision of the page store: which frame the buffer pool replaces, which page is worth an SSD slot.
//!
//! Pure but for the list of registered names ([`custom`]): no locks, clocks, I/O or async; time, costs and
//! randomness are arguments. The same code runs in the
//! store, in the trace replay and in the property tests.

#![forbid(unsafe_code)]

mod choice;
mod choosing;
#[doc(hidden)]
pub mod collections;
pub mod custom;
mod numbers;
pub mod pool;
pub mod ssd;
mod types;
mod write_budget;

pub use choice::{PoolPolicy, SsdPolicy, UnknownPolicy};
pub use choosing::PolicyChoice;
pub use collections::page_index::PageIndex;
pub use collections::slot_pages::SlotPages;
pub use custom::{Catalogue, PoolPolicyFactory, SsdPolicyFactory, register};
pub use numbers::{GroupWidth, NotANumber, ZonePercent};
pub use pool::{CLUSTER_PAGES, CLUSTER_PAGES_MAX, FramePolicy, FramePolicyParams, FrameState, StateOf};
pub use ssd::{
    Cause, GroupStats, PageCounts, SlotPolicy, SlotPolicyParams, SlotReport, SsdSetting, Usable, Verdict,
};
pub use types::{Access, CleanReason, Costs, FrameId, Location, Millis, PageId, SlotId, SpaceId};
pub use write_budget::WriteBudget;
