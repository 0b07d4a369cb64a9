//! Every test of this crate that shares a process: linking one binary per file takes longer than the tests.

mod buffer;
mod clustered;
mod obligations;
mod ssd_rivals;
mod write_aware;
