//! Errors of the key-value store.

use pagetier::PageId;
use pagetier_btree::TreeError;
use pagetier_wal::{CheckpointError, RecoverError, WalError};
use std::path::PathBuf;

/// Why an operation on a [`Kv`](crate::Kv) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// The page store did not open.
    #[error(transparent)]
    Open(#[from] pagetier::OpenError),
    /// The page store failed. The operation has changed nothing.
    #[error(transparent)]
    Store(#[from] pagetier::Error),
    /// The log failed. A change that returns this error may be visible. It becomes durable once the log works
    /// again; a crash before that loses it.
    #[error(transparent)]
    Log(WalError),
    /// Recovery failed, or log and pages do not belong together; opening again is always safe.
    #[error(transparent)]
    Recover(RecoverError),
    /// A checkpoint failed.
    #[error("a checkpoint failed")]
    Checkpoint(#[from] CheckpointError),
    /// A page does not have the contents that the tree expects: a bug of this crate, or another program's
    /// pages.
    #[error("page {page} is not what the tree expects: {what}; a check lists all such pages")]
    Damaged {
        page: PageId,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The key is empty or too long.
    #[error("a key of {bytes} bytes: keys have from 1 to {max} bytes with this page size")]
    BadKey { bytes: usize, max: usize },
    #[error("a value of {bytes} bytes: values have at most {max} bytes with this page size")]
    ValueTooLong { bytes: usize, max: usize },
    /// The log is full, and checkpoints could not shorten it in time.
    #[error("the log is full and could not be shortened")]
    LogFull {
        /// Why the last checkpoint failed.
        #[source]
        cause: Option<std::sync::Arc<CheckpointError>>,
    },
    /// The pages lack the meta page, and the log does not create it.
    #[error("the store holds no key-value data, and the log does not start from nothing: restore a backup")]
    NoMeta,
    /// A file or directory cannot be used.
    #[error("{path}: it cannot be read or written", path = .path.display())]
    Io {
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// Operators cannot reach the store.
    #[error(transparent)]
    Control(#[from] pagetier_control::ListenError),
    /// A backup's copy is not sound.
    #[error("the copy is not sound: {problem}")]
    BadCopy {
        /// The first problem.
        problem: String,
    },
}

impl From<TreeError> for KvError {
    fn from(error: TreeError) -> Self {
        match error {
            TreeError::Store(error) => Self::Store(error),
            TreeError::Log(error) => error.into(),
            TreeError::Damaged { page, what } => Self::Damaged { page, what },
        }
    }
}

impl From<WalError> for KvError {
    fn from(error: WalError) -> Self {
        match error {
            WalError::Full { cause } => Self::LogFull { cause },
            error => Self::Log(error),
        }
    }
}

impl From<RecoverError> for KvError {
    fn from(error: RecoverError) -> Self {
        match error {
            RecoverError::Open(error) => Self::Open(error),
            RecoverError::Store(error) => Self::Store(error),
            RecoverError::Log(error) => error.into(),
            error => Self::Recover(error),
        }
    }
}

impl KvError {
    pub(crate) fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}
