//! Errors of the log.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// What went wrong with the log.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WalError {
    /// A file operation failed. Records that are not durable stay in memory; the next flush retries.
    #[error("log {path}: it cannot be read or written", path = .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// Another opener, in this process or another one, has the log.
    #[error("log {path}: it is in use, here or in another process", path = .path.display())]
    InUse {
        /// The log's directory.
        path: PathBuf,
    },
    /// A segment that has a successor ends in the middle of a record. Restore a backup.
    #[error("log {path}: damaged at position {at}, though later segments exist", path = .path.display())]
    Damaged {
        /// The segment's file.
        path: PathBuf,
        /// The position of the first unreadable record.
        at: u64,
    },
    /// The log is full, and checkpoints could not shorten it in time. Nothing has changed.
    #[error("the log is full, and checkpoints could not shorten it in time")]
    Full {
        /// Why the last checkpoint failed; `None` if it did not, and is slow.
        #[source]
        cause: Option<Arc<CheckpointError>>,
    },
    /// The log was closed, or the runtime ended during a background write.
    #[error("the log was closed, or its runtime has ended")]
    Stopped,
}

/// Why a checkpoint failed. The log still has everything that a recovery needs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] pagetier::Error),
    /// The log failed.
    #[error(transparent)]
    Log(#[from] WalError),
}
