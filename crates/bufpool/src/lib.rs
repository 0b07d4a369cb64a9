//! The buffer pool: frames, page table, latches, page cleaners, read-ahead.
//!
//! The pool knows the storage below it only as a [`Tier`]. A [`PoolPolicy`](pagetier_policy::PoolPolicy)
//! decides what to replace; this crate ensures that nothing is lost.

mod ahead;
mod arena;
mod clean;
mod detector;
mod evict;
mod exhausted;
mod failing;
mod flush;
mod flush_pace;
#[cfg(all(test, not(loom)))]
mod forked;
mod frame;
mod frames;
mod free;
mod guard;
mod hinted_spaces;
mod hints;
mod hits;
mod inner;
mod latch;
mod load;
#[cfg(all(test, loom))]
mod loom_models;
mod many;
mod memory;
mod params;
mod pool;
mod record;
mod residents;
mod resize;
mod retire;
mod rewrite;
mod sample_channel;
mod sampler;
mod sync;
mod table;
mod tier;
mod unwritten;
mod uses;
mod waits;
mod word;
mod writing;

pub use ahead::{Cursor, Scan};
pub use exhausted::Exhausted;
pub use guard::{Guard, Held, OwnedPageMut, OwnedPageRef, PageMut, PageRef};
pub use params::{
    FENCED, FRAME_OVERHEAD_BYTES, FRAMES_MIN, POOL_OVERHEAD_BYTES, PoolError, PoolMemory, PoolParams,
    PoolStats,
};
pub use pool::Pool;
pub use record::Recorder;
pub use residents::{Passed, PoolResidency};
pub use sample_channel::TraceSummary;
pub use sampler::{SampleSink, Sampler};
pub use tier::{DirtyPage, Displaced, Fetched, GateError, GateFuture, LogGate, Tier, TierError, WrittenPage};
pub use waits::holders::Waiter;
