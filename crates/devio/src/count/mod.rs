//! What is counted, and in what: classes of operations, times, costs, errors. Who counts is in `duties`.
//!
//! Begin with `class`, then `stats`.

pub(crate) mod class;
pub(crate) mod histogram;
pub(crate) mod recent;
pub(crate) mod stats;
