//! What a campaign counts, and how it tells of a violation.
//!
//! Begin with `totals`; `coverage` lists the protocol states in which crashes were taken.

pub(crate) mod coverage;
pub(crate) mod totals;
pub(crate) mod violation;
