//! Every test of this crate that shares a process: linking one binary per file takes longer than the tests.

mod append;
mod common;
mod failed_flush;
mod home_end;
mod home_order;
mod hostile;
mod map_marks;
mod policy_calls;
mod read_ahead;
mod write_back;
