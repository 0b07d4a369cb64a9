//! The tests of this crate that need no process of their own. They share one binary, since linking one per
//! file would take longer than the tests.

mod faults;
mod model;
mod program;
mod store;
mod world;
