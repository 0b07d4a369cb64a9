//! The tests of this crate that need no process of their own. They share one binary, since linking one per
//! file would take longer than the tests.

mod faults;
mod full_disk;
mod model;
#[path = "../../../tests/mounted/mod.rs"]
mod mounted;
mod program;
mod store;
mod world;
