//! Every test of this crate that shares a process: linking one binary per file takes longer than the tests.

mod common;
mod hints;
mod many;
mod mending;
mod notifications;
mod pool;
mod resize;
mod stress;
