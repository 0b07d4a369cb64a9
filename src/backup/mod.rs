//! Backups of a running store, full or incremental, and their restoration:
//! [`PageStore::backup`](crate::PageStore::backup), [`Builder::restore`](crate::Builder::restore).
//! [`Backups`] lists, verifies and purges them, and takes out single pages. The embedder's log is not part of
//! them.

// Begin with `write`, which says what a backup contains and why its steps have their order. What the store
// itself records of its backups is in `manifest`.

mod backups;
mod extract;
mod file;
mod locked;
mod pages;
#[cfg(test)]
mod power_cuts;
mod report;
mod restore;
mod site;
mod write;

pub use crate::error::BackupError;
pub use backups::{BackupFile, Backups, PurgeReport};
pub use extract::ExtractReport;
pub use pages::{BackedUpPage, BackedUpPages};
pub use report::{BackupOptions, BackupProgress, BackupReport, RestoreProgress, RestoreReport};
