//! Every test of this crate that does not need a process of its own: linking one binary per file takes longer
//! than the tests.

mod faults;
mod model;
mod store;
mod world;
