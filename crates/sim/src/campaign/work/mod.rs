//! What the tasks of a life do to a store: every operation, how often it is drawn, and its checks.
//!
//! Begin with `operations` (the table), then `worker`.

mod by_number;
mod directed;
mod drive;
mod dropped;
mod frees;
pub(crate) mod operations;
pub(crate) mod operator;
pub(crate) mod ssd_calls;
pub(crate) mod worker;
