//! How a page comes to be in memory and latched: lookups, misses, read-ahead, and the evictions that make
//! room. The writes that make pages clean for eviction are in `write`.
//!
//! Begin with `load`, whose header numbers the steps of a hit and of a miss; then `evict`.

pub(crate) mod ahead;
pub(crate) mod evict;
mod hints;
pub(crate) mod latch;
mod load;
mod many;
