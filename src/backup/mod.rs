//! Backups of a running store, full or incremental, and their restoration. What the store itself records of
//! them is in `manifest`; the embedder's log is not backed up here.
//!
//! Begin with `write`, which says what a backup contains and why its steps have their order.

mod file;
mod locked;
mod report;
mod restore;
mod site;
mod write;

pub use crate::error::BackupError;
pub use report::{BackupOptions, BackupProgress, BackupReport, RestoreProgress, RestoreReport};
