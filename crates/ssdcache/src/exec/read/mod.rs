//! Reads of pages: for the pool, for a backup, and to verify and repair copies. The reads of a recovery are
//! in `open`.
//!
//! Begin with `fetch`.

pub(crate) mod fetch;
pub(crate) mod scrub;
mod version;
