//! Changes of a whole pool in use: its size, its policy, repairs after a loss below, its end. No request
//! for a page comes here.
//!
//! Begin with `resize`; `retire` is the end.

pub(crate) mod residents;
pub(crate) mod resize;
mod retire;
mod rewrite;
