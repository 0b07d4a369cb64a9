//! The buffer pool: frames, page table, latches, page cleaners, read-ahead.
//!
//! It knows nothing of SSDs and HDDs beyond the [`Tier`] below it. What is replaced is a
//! [`PoolPolicy`](pagetier_policy::PoolPolicy)'s decision; that nothing is lost is this crate's.

mod ahead;
mod arena;
mod clean;
mod courier;
mod frame;
mod guard;
mod hits;
#[cfg(all(test, loom))]
mod loom_models;
mod mend;
mod params;
mod pool;
mod record;
mod sampler;
mod sync;
mod table;
mod tier;
mod waiters;
mod word;

pub use ahead::Scan;
pub use courier::Recorded;
pub use guard::{PageMut, PageRef};
pub use params::{FRAME_OVERHEAD_BYTES, FRAMES_MIN, PoolError, PoolMemory, PoolParams, PoolStats};
pub use pool::Pool;
pub use sampler::SampleSink;
pub use tier::{DirtyPage, Displaced, Fetched, GateError, GateFuture, LogGate, Tier, TierError, WrittenPage};
