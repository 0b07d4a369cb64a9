//! Backups of a running store, full or incremental, and their restoration.
//!
//! **What a backup contains.** Every page is whole, and at least as new as the `sync` that begins the
//! backup. Pages may date from different moments. The embedder's log, from the call to its return, turns the
//! backup into a point in time: redo brings every page to the end of the log, as after a crash. Without
//! concurrent writes the backup is an exact copy.
//!
//! **Incremental.** Every physical write of a page gets a fresh, larger stamp. A backup records the stamp
//! `upto` that it drew first, and the next one copies the pages whose stamps are larger. The order matters:
//! `sync`; draw `upto`; wait for every write in flight; read the pages; `sync` again. A write in flight when
//! `upto` is drawn has a smaller stamp: if its page were read before the write ended, this backup would have
//! the previous version, and the next one would skip the page. The last `sync` makes durable what was read:
//! otherwise a crash could revert a page to a version older than the chain's. Nor must a crash
//! bring back a version that was discarded before its page was read, and that the next backup would skip: if
//! a page was discarded since the last map checkpoint, the backup has one written before it is listed.
//!
//! **Freed meanwhile.** A page may be freed and created again while a backup reads other pages, and have no
//! version when its turn comes. The chain may have the page from before: it counts as free in this backup.
//!
//! **A chain** is a full backup and the incremental ones after it, each in a file of its own, in one
//! directory, which belongs to one store. A file gets its name once it is complete and durable. The store's
//! manifest lists the most recent backups by id, so that a store reset to an earlier state does not continue
//! a chain that is ahead of it: its next backup is full. So is the first one after the SSD is exchanged.
//!
//! **Losses.** A loss with the SSD or the ring takes pages back to versions that a chain may be ahead of,
//! with stamps that the next backup would skip. The manifest counts losses, and a backup records the count:
//! it continues only one with the present count. While an SSD is given up, pages that memory saves are on no
//! device, and reads find older versions. A backup during which the count changed therefore begins again.

mod file;
mod locked;
mod restore;
mod site;
mod write;

pub use crate::error::BackupError;
use std::path::{Path, PathBuf};

/// The maximum number of backups that the manifest lists.
pub(crate) const BACKUPS_LISTED: usize = 8;

/// Options of a backup; see [`PageStore::backup`](crate::PageStore::backup).
#[derive(Default)]
#[must_use]
pub struct BackupOptions {
    full: bool,
    progress: Option<Box<dyn Fn(BackupProgress) + Send + Sync>>,
}

impl BackupOptions {
    /// An incremental backup where the directory has a chain to continue, otherwise a full one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether to begin a new chain even if there is one to continue. Default: no.
    pub fn full(mut self, full: bool) -> Self {
        self.full = full;
        self
    }

    /// Calls `report` about every 256 pages.
    pub fn on_progress(mut self, report: impl Fn(BackupProgress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(report));
        self
    }
}

impl std::fmt::Debug for BackupOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackupOptions").field("full", &self.full).finish_non_exhaustive()
    }
}

/// The progress of a backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BackupProgress {
    /// Pages examined so far.
    pub done: u64,
    /// Pages to examine, as counted at the start.
    pub total: u64,
    /// Pages copied so far.
    pub copied: u64,
}

/// The result of a backup.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct BackupReport {
    /// The file. In JSON, bytes of the path that are not UTF-8 are replaced.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// The file's number in its directory, from 1.
    pub number: u32,
    /// Why the backup is full; `None` if it is incremental.
    pub full_because: Option<&'static str>,
    /// Pages read to find out whether they have to be copied.
    pub looked_at: u64,
    /// Pages that the file has.
    pub pages: u64,
    /// The file's size in bytes.
    pub bytes: u64,
}

/// The progress of a restoration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RestoreProgress {
    /// The number of the file being read, from 1.
    pub file: usize,
    /// The number of files in the chain.
    pub files: usize,
    /// Pages restored from all files so far.
    pub pages: u64,
}

/// The result of a restoration.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct RestoreReport {
    /// The number of files in the chain.
    pub files: usize,
    /// The number of the last file.
    pub number: u32,
    /// Pages restored; a page counts once for every file that has it.
    pub pages: u64,
    /// The number of spaces in the store.
    pub spaces: usize,
}

fn as_text<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// Runs blocking work on the runtime's blocking threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BackupError> + Send + 'static,
) -> Result<T, BackupError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(BackupError::Runtime))
}
