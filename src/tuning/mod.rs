//! What changes the speed of a running store: policies, costs, the pool's size and its hot set, and the
//! traces and estimates by which they are chosen. Nothing here can change what a page holds.
//!
//! Begin with `policies` and `switch`, or with `what_if`.

pub(crate) mod hot_set;
mod online_costs;
pub(crate) mod policies;
mod resize;
mod switch;
pub(crate) mod trace;
pub(crate) mod what_if;
