//! The tests of this crate that use its public interface alone, in one binary.

mod backups;
mod calls;
mod direct;
mod frozen;
mod full_disk;
mod readmission;
mod right_log;
mod ssd_log;
mod taken_over;
