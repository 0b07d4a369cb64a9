//! Why a backup or a restoration failed.

use super::{Error, OpenError};
use pagetier_page::PageId;
use std::path::{Path, PathBuf};

/// Why a backup or a restoration failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// A file or directory of the backup cannot be read or written.
    #[error("{path}: it cannot be read or written", path = .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file is damaged, or is not a backup.
    #[error("{path}: {why}", path = .path.display())]
    Damaged {
        /// The backup's file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The directory has no backup, its chain has a gap, or a backup and its log are not both there.
    #[error("{path}: {why}", path = .path.display())]
    NoChain {
        /// The directory with the backups, or that of the missing log.
        path: PathBuf,
        /// What is missing.
        why: String,
    },
    /// The directory has a chain of another store: the next backup would be taken for that store's newest.
    #[error(
        "{path}: its backups are of store {found}, not of this one, {expected}; choose another directory",
        path = .path.display()
    )]
    OtherStore {
        /// The directory with the other store's backups.
        path: PathBuf,
        /// The id of the store that was backed up there.
        found: String,
        /// The id of this store.
        expected: String,
    },
    /// A store does not keep its backups among its own files: what takes those away takes the backups along.
    #[error("{path}: it is the store's own directory; choose another for its backups", path = .path.display())]
    OwnDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// The directory has backups of two stores, so the newest may be the wrong store's.
    #[error(
        "{path}: it has backups of two stores, {} and {}; move those of one to another directory",
        stores[0], stores[1],
        path = .path.display()
    )]
    TwoStores {
        /// The directory with the backups.
        path: PathBuf,
        /// The stores' ids.
        stores: [String; 2],
    },
    /// A backup into the directory runs.
    #[error("{path}: a backup into it is running; repeat the call when it has ended", path = .path.display())]
    Busy {
        /// The directory with the backups.
        path: PathBuf,
    },
    /// The backup has no space of this name.
    #[error("{path}: there is no space called {name:?} in this backup", path = .path.display())]
    NoSuchSpace {
        /// The file of the backup.
        path: PathBuf,
        /// The name that was asked for.
        name: String,
    },
    /// The backup does not have this page: it did not exist, or was never written.
    #[error("{path}: page {page} does not exist in this backup", path = .path.display())]
    NoSuchPage {
        /// The file of the backup.
        path: PathBuf,
        /// The page that was asked for.
        page: PageId,
    },
    /// The destination of a restoration already exists.
    #[error("{path}: it already exists; restore to a path that does not exist", path = .path.display())]
    Exists {
        /// The directory or file that the restoration was to make.
        path: PathBuf,
    },
    /// A restoration builds its store in this directory, which holds something else.
    #[error("{path}: the store would be built here, but other files are in the way; rename or remove it", path = .path.display())]
    InTheWay {
        /// The directory in the way, whose name ends in `.partial`.
        path: PathBuf,
    },
    /// The builder of a restoration has another page size than the backup.
    #[error("the backup has pages of {backup} bytes, not of {asked}; omit the page size or pass {backup}")]
    OtherPageSize {
        /// The backup's page size, in bytes.
        backup: u64,
        /// The requested page size, in bytes.
        asked: u64,
    },
    /// A restoration needs a store in a directory, not in memory.
    #[error("a backup is restored into a directory, and no directory is given, or the store is in memory")]
    NoDirectory,
    /// A page of the store cannot be read, and a backup must not omit it.
    #[error("page {page} cannot be copied")]
    Page {
        /// The page that cannot be read.
        page: PageId,
        /// Why it cannot be read.
        #[source]
        source: Error,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] Error),
    /// The restored store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The runtime is shutting down.
    #[error("the runtime is shutting down")]
    Runtime,
}

impl BackupError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }

    pub(crate) fn damaged(path: &Path, why: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), why: why.into() }
    }
}
