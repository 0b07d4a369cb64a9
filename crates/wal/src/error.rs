//! Errors of the log.

use pagetier::Lsn;
use pagetier::errors::Advice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fmt, io};

/// What went wrong with the log.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WalError {
    /// A file operation failed. Records that are not durable stay in memory; the next flush retries.
    #[error(fmt = failed)]
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
    /// A page has an LSN that the log has not reached: the log is older than the pages. Nothing that follows
    /// becomes durable. Put the newest log back, or restore a backup.
    #[error("the log ends at {log}, and a page has a change at {page}: the log is older than the pages")]
    Behind {
        /// The page's LSN.
        page: Lsn,
        /// The log's end.
        log: Lsn,
    },
    /// The store could not record what its pages need of the log, which was therefore not shortened.
    #[error("the store cannot record which part of the log it needs")]
    Unrecorded(#[source] Arc<pagetier::Error>),
    /// The log is full, and checkpoints could not shorten it in time. Nothing has changed.
    #[error("the log is full, and checkpoints could not shorten it in time")]
    Full {
        /// Why the last checkpoint failed; `None` if it did not, and is slow.
        #[source]
        cause: Option<Arc<CheckpointError>>,
    },
    /// The record does not fit into the log, however empty that is: see
    /// [`Wal::record_bytes_max`](crate::Wal::record_bytes_max). Nothing has changed: the pages of a
    /// mini-transaction have the contents again that they had before it.
    #[error(
        "a record of {bytes} bytes does not fit into the log, which takes {bytes_max}: make smaller \
         changes, or give the log a larger capacity (on a device, a new log)"
    )]
    TooLong {
        /// The record's size, in bytes.
        bytes: u64,
        /// The size that fits, in bytes.
        bytes_max: u64,
    },
    /// The log belongs to the process that opened it, from which this process was forked. Nothing has
    /// changed: the parent goes on. Open the log after the fork.
    #[error("process {opened_by} opened the log, from which this process was forked; open it after the fork")]
    Forked {
        /// The id of the process that opened the log.
        opened_by: u32,
    },
    /// Another machine has taken over the store that the log belongs to, or may have
    /// ([`pagetier::options::OnHdd::lease`]): nothing was acknowledged. Without another owner a later call
    /// may succeed.
    #[error("another owner has the store, or may have it")]
    Fenced,
    /// A store was opened with the log's gate, and [`recover`](crate::recover) has not completed: the record
    /// would follow what redo has yet to read, in a log that the store has not recorded.
    #[error("the store was opened with this log, and is to be recovered before anything changes")]
    NotRecovered,
    /// The store was opened for reading only, and so is its log.
    #[error("the log was opened for reading only")]
    ReadOnly,
    /// The log's archive.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The log was closed ([`LoggedStore::shutdown`](crate::LoggedStore::shutdown)), or is being closed,
    /// or the runtime ended during a background write.
    #[error("the log was closed, or its runtime has ended")]
    Stopped,
}

/// Why a checkpoint failed. The log still has everything that a recovery needs.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] pagetier::Error),
    /// The log failed.
    #[error(transparent)]
    Log(#[from] WalError),
}

/// What is wrong with a log's archive, or with a moment that was asked of it. Nothing was changed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// A file operation failed.
    #[error("archive {path}: it cannot be read or written", path = .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// [`Wal::archive_to`](crate::Wal::archive_to) was not called.
    #[error("the log has no archive")]
    NotSet,
    /// The log is in memory, in use, or has an archive already: an archive begins when the log is opened.
    #[error(
        "a log that is in memory, in use, or archived already cannot be archived: do so when it is opened"
    )]
    CannotBegin,
    /// The directory has the archive of another log.
    #[error("archive {path}: it is of log {archive:x}, and not of log {log:x}", path = .path.display())]
    OtherLog {
        /// The archive's directory.
        path: PathBuf,
        /// The identity of the archive's log.
        archive: u64,
        /// The identity of the log, or of the backup's.
        log: u64,
    },
    /// The archive has other records in this place than the log or the backup: those of a copy of the store,
    /// or of the store before it was restored.
    #[error(
        "archive {path}: it has other records here, of a copy of this store or of the time before it was \
         restored; use another directory",
        path = .path.display()
    )]
    OtherTimeline {
        /// The segment's file.
        path: PathBuf,
    },
    /// A part of the log is missing.
    #[error(
        "archive {path}: the log from {ends} to {begins} is missing; put its segments back, or archive to a new \
         directory and take a backup",
        path = .path.display()
    )]
    Gap {
        /// The archive's directory.
        path: PathBuf,
        /// Where the part before the gap ends.
        ends: Lsn,
        /// Where the part after it begins.
        begins: Lsn,
    },
    /// A segment is damaged.
    #[error("archive {path}: the segment is damaged", path = .path.display())]
    Damaged {
        /// The segment's file.
        path: PathBuf,
    },
    /// The moment is before the one at which the backup ended, which is the earliest.
    #[error("the earliest moment of this backup is {earliest}: choose an earlier backup")]
    TooEarly {
        /// The earliest moment.
        earliest: Moment,
    },
    /// The archive ends before the moment.
    #[error("the archive ends at {latest}: restore to its end, or archive what the log has since")]
    TooLate {
        /// The latest moment.
        latest: Moment,
    },
}

/// A moment of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// The position.
    pub lsn: Lsn,
    /// The time of the write that it belongs to, to the millisecond; `None` if none was recorded.
    pub time: Option<SystemTime>,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "position {}", self.lsn)?;
        let since = self.time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        since.map_or(Ok(()), |since| {
            write!(f, ", {}.{:03} s of Unix time", since.as_secs(), since.subsec_millis())
        })
    }
}

impl ArchiveError {
    /// What to do about this error.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            Self::Io { source, .. } if is_full(source) => Advice::FreeSpace,
            Self::Io { .. } => Advice::FixDevice,
            Self::Damaged { .. } => Advice::Restore,
            Self::NotSet
            | Self::CannotBegin
            | Self::OtherLog { .. }
            | Self::OtherTimeline { .. }
            | Self::Gap { .. }
            | Self::TooEarly { .. }
            | Self::TooLate { .. } => Advice::FixConfiguration,
        }
    }
}

pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// What an operation failed for. A full disk is named, since the operator can end that; the rest is the
/// source's to tell.
fn failed(path: &Path, source: &Arc<io::Error>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let what = if is_full(source) { "there is no space left for it" } else { "it cannot be read or written" };
    write!(f, "log {}: {what}", path.display())
}

impl WalError {
    /// What to do about this error.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            Self::Io { source, .. } if is_full(source) => Advice::FreeSpace,
            Self::Io { .. } => Advice::FixDevice,
            Self::InUse { .. } => Advice::Retry,
            Self::Damaged { .. } | Self::Behind { .. } => Advice::Restore,
            Self::Full { cause } => cause.as_ref().map_or(Advice::Retry, |error| error.advice()),
            Self::TooLong { .. } => Advice::FixConfiguration,
            Self::Unrecorded(error) => error.advice(),
            Self::Archive(error) => error.advice(),
            Self::NotRecovered | Self::ReadOnly | Self::Stopped | Self::Fenced => Advice::Reopen,
            Self::Forked { .. } => Advice::Bug,
        }
    }
}

impl CheckpointError {
    /// What to do about this error.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            Self::Store(error) => error.advice(),
            Self::Log(error) => error.advice(),
        }
    }
}
