//! The tool's tests, in one binary: linking one per file would take longer than the tests.

mod commands;
mod faults;
mod full_disk;
#[path = "../../../tests/mounted/mod.rs"]
mod mounted;
mod running;
mod script;
mod stores;
mod tiers;
