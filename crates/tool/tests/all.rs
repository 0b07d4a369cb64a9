//! The tool's tests, in one binary: linking one per file would take longer than the tests.

mod commands;
mod faults;
mod stores;
