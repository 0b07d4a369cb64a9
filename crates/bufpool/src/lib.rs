//! The buffer pool: frames, page table, latches, page cleaners, read-ahead.

mod tier;

pub use tier::{DirtyPage, Displaced, Fetched, LogGate, Tier, TierError, WrittenPage};
