//! What changes the speed of a running store: policies, costs, the pool's size, and the
//! traces and estimates by which they are chosen. Nothing here can change what a page holds.
//!
//! Begin with `policies`, or with `what_if`.

mod online_costs;
pub(crate) mod policies;
mod resize;
pub(crate) mod trace;
pub(crate) mod what_if;
