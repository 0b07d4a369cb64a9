//! The buffer pool: frames, page table, latches, page cleaners, read-ahead.
//!
//! The pool knows the storage below it only as a [`Tier`]. A [`PoolPolicy`](pagetier_policy::PoolPolicy)
//! decides what to replace; this crate ensures that nothing is lost.

mod feed;
#[cfg(all(test, not(loom)))]
mod forked;
mod frames;
#[cfg(all(test, loom))]
mod loom_models;
mod operate;
mod pool;
mod read;
mod state;
mod sync;
mod tier;
mod waits;
mod word;
mod write;

pub use feed::record::Recorder;
pub use feed::sample_channel::TraceSummary;
pub use feed::sampler::{SampleSink, Sampler};
pub use operate::residents::{Passed, PoolResidency};
pub use pool::Latching;
pub use read::ahead::{Cursor, Scan};
pub use state::exhausted::Exhausted;
pub use state::guard::{Guard, Held, OwnedPageMut, OwnedPageRef, PageMut, PageRef};
pub use state::handle::Pool;
pub use state::params::{
    FENCED, FRAME_OVERHEAD_BYTES, FRAMES_MIN, PoolError, PoolMemory, PoolParams, PoolStats,
};
pub use tier::{DirtyPage, Displaced, Fetched, GateError, GateFuture, LogGate, Tier, TierError, WrittenPage};
pub use waits::holders::Waiter;
