//! Every test of this crate that is not a unit test.

mod common;
mod emulated;
mod placement;
mod sim;
