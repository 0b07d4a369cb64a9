//! An archive's own state, and the copies in it: see `log/archive.rs`.

use crate::error::{ArchiveError, WalError};
use crate::media::Media;
use crate::record;
use pagetier::Lsn;
use parking_lot::Mutex;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

/// Begins the seal of a copy; its end position and the crc of all before that follow.
const SEAL: &[u8; 8] = b"PTLOGEND";
const SEAL_BYTES: usize = 20;

type Opens = dyn Fn() -> io::Result<Box<dyn Media>> + Send + Sync;
type Clock = dyn Fn() -> SystemTime + Send + Sync;

pub(crate) struct Archive {
    pub(crate) path: PathBuf,
    pub(crate) opens: Box<Opens>,
    pub(crate) clock: Box<Clock>,
    /// `None`: it could not be opened, or used, and is opened anew.
    pub(crate) media: Arc<tokio::sync::Mutex<Option<Box<dyn Media>>>>,
    /// It durably has the log up to here; 0: nothing of it.
    pub(crate) up_to: AtomicU64,
    /// The number of its hold in `State::holds`.
    pub(crate) hold: u64,
    pub(crate) last_mark_ms: AtomicU64,
    pub(crate) failure: Mutex<Option<WalError>>,
    /// A segment has a successor.
    pub(crate) closed: Notify,
}

/// How far a log's archive reaches.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Archived {
    /// The archive durably has the log up to this position; 0 if it has nothing yet.
    pub up_to: Lsn,
    /// Why the last copy failed: the log keeps what the archive lacks, and copies are tried again. With
    /// [`WalError::Fenced`] another owner may have the log, and its archive: nothing is copied until this
    /// owner is confirmed again, if it is.
    pub failure: Option<WalError>,
}

impl fmt::Debug for Archive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Archive")
            .field("path", &self.path)
            .field("up_to", &self.up_to)
            .finish_non_exhaustive()
    }
}

impl Archive {
    pub(crate) fn failure(&self) -> Option<WalError> {
        self.failure.lock().clone()
    }

    pub(crate) fn failed(&self, error: io::Error) -> WalError {
        ArchiveError::Io { path: self.path.clone(), source: Arc::new(error) }.into()
    }

    pub(crate) fn note<T>(&self, done: &Result<T, WalError>) {
        let before = std::mem::replace(&mut *self.failure.lock(), done.as_ref().err().cloned());
        let was_fenced = matches!(before, Some(WalError::Fenced));
        // Once: it may fail for days.
        match done.as_ref().err() {
            Some(error @ WalError::Fenced) if !was_fenced => tracing::warn!(
                archive = %self.path.display(),
                %error,
                "the log is not archived here, unless this owner is confirmed again"
            ),
            Some(error) if before.is_none() => tracing::warn!(
                archive = %self.path.display(),
                error = %pagetier::errors::Causes(error),
                "the log cannot be archived, and grows until it can; it is tried again"
            ),
            _ => {}
        }
    }
}

pub(crate) fn ms_since_epoch(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A segment as an archive has it.
pub(crate) fn sealed(mut bytes: Vec<u8>, end: u64) -> Vec<u8> {
    bytes.extend_from_slice(SEAL);
    bytes.extend_from_slice(&end.to_le_bytes());
    let sum = pagetier_page::crc32c(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// An archived segment without its seal, and where it ends.
pub(crate) fn read(media: &mut dyn Media, start: u64) -> Result<(Vec<u8>, u64), ArchiveError> {
    let path = media.path(start);
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::InvalidData => ArchiveError::Damaged { path: path.clone() },
        _ => ArchiveError::Io { path: path.clone(), source: Arc::new(error) },
    };
    let mut bytes = media.read(start).map_err(failed)?;
    let at = bytes.len().checked_sub(SEAL_BYTES).ok_or(ArchiveError::Damaged { path: path.clone() })?;
    let (covered, sum) = bytes.split_at(at + 16);
    if !covered[at..].starts_with(SEAL) || *sum != pagetier_page::crc32c(covered).to_le_bytes() {
        return Err(ArchiveError::Damaged { path });
    }
    let end = record::u64_at(&bytes, at + 8);
    bytes.truncate(at);
    Ok((bytes, end))
}
