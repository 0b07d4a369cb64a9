//! What a pool's requests and tasks share: parameters, errors, counters, guards. Who reads and writes pages
//! is in `read` and `write`.
//!
//! Begin with `inner` (`PoolInner`), then `guard`, whose drop marks a page dirty.

pub(crate) mod exhausted;
mod failing;
pub(crate) mod flush_pace;
pub(crate) mod guard;
pub(crate) mod handle;
pub(crate) mod inner;
pub(crate) mod params;
