//! A directory of backups, whose calls need no open store.

use super::driver::Driver;
use crate::PageId;
use crate::backup::{BackedUpPages, BackupError, BackupFile, ExtractReport, PurgeReport, RestoreProgress};
use crate::error::OpenError;
use std::path::Path;

/// A directory of backups with blocking calls. See [`pagetier::backup::Backups`](crate::backup::Backups).
#[derive(Debug)]
pub struct Backups {
    backups: crate::backup::Backups,
    driver: Driver,
}

impl Backups {
    /// The backups in the directory `dir`.
    ///
    /// # Errors
    /// [`OpenError::Runtime`], within [`BackupError::Open`], when a thread cannot be started.
    pub fn at(dir: impl AsRef<Path>) -> Result<Self, BackupError> {
        let driver = Driver::start().map_err(|source| OpenError::Runtime { source })?;
        Ok(Self { backups: crate::backup::Backups::at(dir), driver })
    }

    /// See [`pagetier::backup::Backups::list`](crate::backup::Backups::list).
    ///
    /// # Errors
    /// As there.
    pub fn list(&self) -> Result<Vec<BackupFile>, BackupError> {
        self.driver.block_on(self.backups.list())
    }

    /// See [`pagetier::backup::Backups::verify`](crate::backup::Backups::verify).
    ///
    /// # Errors
    /// As there.
    pub fn verify(&self, progress: impl Fn(RestoreProgress) + Send) -> Result<Vec<BackupFile>, BackupError> {
        self.driver.block_on(self.backups.verify(progress))
    }

    /// See [`pagetier::backup::Backups::purge`](crate::backup::Backups::purge).
    ///
    /// # Errors
    /// As there.
    pub fn purge(&self, keep: u32, removed: impl Fn(u32) + Send) -> Result<PurgeReport, BackupError> {
        self.driver.block_on(self.backups.purge(keep, removed))
    }

    /// See [`pagetier::backup::Backups::pages`](crate::backup::Backups::pages).
    ///
    /// # Errors
    /// As there.
    pub fn pages(&self, wanted: &[PageId], upto: Option<u32>) -> Result<BackedUpPages, BackupError> {
        self.driver.block_on(self.backups.pages(wanted, upto))
    }

    /// See [`pagetier::backup::Backups::extract`](crate::backup::Backups::extract).
    ///
    /// # Errors
    /// As there.
    pub fn extract(
        &self,
        space: &str,
        page: Option<u32>,
        upto: Option<u32>,
        to: impl AsRef<Path> + Send,
        progress: impl Fn(RestoreProgress) + Send,
    ) -> Result<ExtractReport, BackupError> {
        self.driver.block_on(self.backups.extract(space, page, upto, to, progress))
    }
}
