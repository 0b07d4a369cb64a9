//! Files and block devices, over io_uring (`uring/`) or a pool of threads. Files that are not devices, such
//! as a manifest, are in `files`.
//!
//! Begin with `open`; then `transfer`, what remains of an operation after each answer of the kernel.

mod file;
pub(crate) mod open;
pub(crate) mod options;
pub(crate) mod queue;
mod threads;
mod transfer;
pub(crate) mod uring;
