//! What a backup takes and reports.

use crate::error::BackupError;
use pagetier_page::Lsn;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;

/// The maximum number of backups that the manifest lists.
pub(crate) const BACKUPS_LISTED: usize = 8;

/// Copies the embedder's log to a directory that does not exist.
pub(super) type CopyLog =
    Box<dyn FnOnce(PathBuf) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>> + Send + Sync>;

/// The same, up to a position.
type CopyLogUpTo =
    Box<dyn FnOnce(PathBuf, Lsn) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>> + Send + Sync>;

/// Options of a backup; see [`PageStore::backup`](crate::PageStore::backup).
#[derive(Default)]
#[must_use]
pub struct BackupOptions {
    pub(super) full: bool,
    pub(super) bytes_per_second: Option<u64>,
    pub(super) progress: Option<Box<dyn Fn(BackupProgress) + Send + Sync>>,
    pub(super) copy_log: Option<CopyLogUpTo>,
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

    /// The maximum number of bytes read from the store per second, so that a backup leaves the devices to the
    /// engine; `None` or 0: unlimited. Incremental backups read every page, too. Default: unlimited.
    pub fn bytes_per_second(mut self, bytes: Option<u64>) -> Self {
        self.bytes_per_second = bytes.filter(|bytes| *bytes > 0);
        self
    }

    /// Calls `report` about every 256 pages.
    pub fn on_progress(mut self, report: impl Fn(BackupProgress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(report));
        self
    }

    /// Calls `copy` with the path `log-NNNNNN` once all pages are copied, and with the position up to which
    /// the log was durable when the backup listed the spaces and the free pages: no record up to there is of
    /// a space that was created later. The backup gets its name only after the copy is durable, so that there
    /// is none without its log. Used by `pagetier-wal`.
    #[doc(hidden)]
    pub fn copy_log(
        mut self,
        copy: impl FnOnce(PathBuf, Lsn) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.copy_log = Some(Box::new(copy));
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
    /// Whether the store has recorded that its pages need an engine's log, of which this backup has no copy.
    pub lacks_log: bool,
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
    /// Whether the pages need an engine's log: open the store with a copy from the time of the backup, or
    /// with a later one.
    #[serde(default)]
    pub needs_log: bool,
}

fn as_text<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// Runs blocking work on the runtime's blocking threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BackupError> + Send + 'static,
) -> Result<T, BackupError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(BackupError::Runtime))
}
