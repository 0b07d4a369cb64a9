//! Errors of the log.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// What went wrong with the log.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WalError {
    /// A file operation failed. Records that are not durable stay in memory; the next flush retries.
    #[error("log {path}: it cannot be read or written")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// Another opener, in this process or another one, has the log.
    #[error("log {path}: it is in use, here or in another process")]
    InUse { path: PathBuf },
    /// A segment that has a successor ends in the middle of a record.
    #[error("log {path}: damaged at position {at}, though later segments exist")]
    Damaged {
        path: PathBuf,
        /// The position of the first unreadable record.
        at: u64,
    },
    /// The background write did not complete.
    #[error("the log writer was stopped")]
    Stopped,
}
