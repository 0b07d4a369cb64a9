//! Recovery: checks that log and pages belong together, then redoes the log.

use crate::error::WalError;
use crate::log::Wal;
use crate::redo::{RedoError, Redone, redo};
use pagetier::errors::Advice;
use pagetier::{Error, Lsn, PageStore};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a recovery did.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Recovered {
    /// Page records read from the log.
    pub records: u64,
    /// Changes applied again: a page record counts once per page that lacked it.
    pub applied: u64,
    /// Commits without an `Applied`, oldest first, for an engine that uses [`Wal::append_commit`]: execute
    /// their operations again, then call [`Wal::append_applied`].
    pub commits: BTreeMap<Lsn, Vec<u8>>,
    /// Pages whose records say that they are free, and that the store frees again.
    pub freed: u64,
    /// Pages that were listed as lost with an SSD, and that redo restored.
    pub lost_pages: u64,
}

/// Why a recovery failed. Recovering again is always safe.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// The store did not open.
    #[error(transparent)]
    Open(#[from] pagetier::OpenError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] Error),
    /// The log failed.
    #[error(transparent)]
    Log(#[from] WalError),
    /// Redo failed.
    #[error("the log cannot be redone")]
    Redo(#[from] RedoError),
    /// The log belongs to other pages. Nothing has changed.
    #[error("the log is not the one of these pages: put the right one back")]
    OtherLog {
        /// The log's identity.
        log: u64,
        /// The identity that the pages name.
        pages: u64,
    },
    /// The pages have a log, and it is not there: the one that was opened is empty. Nothing has changed.
    #[error("the log of these pages is missing: put it back in place of the empty one")]
    NoLog,
    /// The log has pages, and they are not there: the devices are blank, or another store's. Nothing has
    /// changed.
    #[error("the pages of this log are missing: put them back, or restore a backup")]
    NoPages,
    /// The SSD was given up, and the log does not reach back to the changes that only the SSD had: it was
    /// not kept for that ([`Keep::ForSsdLoss`](crate::Keep::ForSsdLoss)). No page has changed, but this
    /// opening has put a blank SSD in the lost one's place: the old one is refused from now on.
    /// `open_read_only` with `accept_ssd_loss(true)` tells beforehand, without changing anything, whether
    /// the log suffices.
    #[error(
        "{pages} pages lost changes with the SSD, and the log does not go back far enough: restore a backup"
    )]
    SsdLost {
        /// How many pages.
        pages: u64,
    },
}

impl RecoverError {
    /// What to do about this error.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            Self::Open(error) => error.advice(),
            Self::Store(error) | Self::Redo(RedoError::Store(error)) => error.advice(),
            Self::Log(error) | Self::Redo(RedoError::Log(error)) => error.advice(),
            // The medium with the other half: attach it.
            Self::OtherLog { .. } | Self::NoLog | Self::NoPages => Advice::FixDevice,
            Self::Redo(RedoError::Record(_)) | Self::SsdLost { .. } => Advice::Restore,
        }
    }
}

/// Recovers the pages of `store` from `wal`, whose gate the store has, before anything else uses a page.
/// `identity` is what the pages say of their log: [`Wal::id`], which an engine writes to a page in the log's
/// first record; `None` if that page does not exist. ([`LoggedStore::on`](crate::LoggedStore::on) keeps the
/// identity in a page of its own.)
///
/// 1. Compares the identities of log and pages: the log of another store would overwrite this one's pages.
/// 2. If an SSD was given up ([`Ssd::loss`](pagetier::Ssd::loss)), checks by the store's record that the log
///    reaches back far enough. The engine need not remember how the log was kept.
/// 3. Redoes the log, and frees the pages whose records say so. If the store cannot free them at present, as
///    on a full disk, the next checkpoint retries.
/// 4. Makes the restored pages durable and acknowledges the loss of the SSD, if there was one.
///
/// Needs no free space on the file systems if they overwrite in place. A dropped future is like a crash.
///
/// # Errors
/// [`RecoverError`] tells which of the two to put back, or that a backup has to be restored.
pub async fn recover(
    store: &Arc<PageStore>,
    wal: &Wal,
    identity: Option<u64>,
) -> Result<Recovered, RecoverError> {
    let lost_pages = lost_pages(store, wal);
    match identity {
        // Its first record names it in the pages, so the log of these pages has one.
        Some(_) if wal.is_new() => return Err(RecoverError::NoLog),
        Some(id) if id == wal.id() => {}
        Some(pages) => return Err(RecoverError::OtherLog { log: wal.id(), pages }),
        // A crash before the page with the identity was written: the log has its record. Or the page was lost
        // with the SSD, which the log makes up for, or not.
        None if wal.is_whole() || lost_pages != Ok(0) => {}
        None => return Err(RecoverError::NoPages),
    }
    let lost_pages = lost_pages.map_err(|pages| RecoverError::SsdLost { pages })?;
    let Redone { records, applied, commits, freed } = match redo(store, wal).await {
        // The pages' spaces are durable before the first record of one of their pages.
        Err(RedoError::Store(Error::NoSuchSpace { .. })) if identity.is_none() => {
            return Err(RecoverError::NoPages);
        }
        redone => redone?,
    };
    // A failure is no reason to refuse the pages: the frees stay pending, and so do their records.
    let _ = wal.free_pending(store).await;
    if store.ssd().loss().is_some() {
        store.sync().await?;
        store.ssd().acknowledge_loss().await?;
    }
    Ok(Recovered { records, applied, commits, freed, lost_pages })
}

/// The number of pages listed as lost with an SSD; as an error if redo cannot restore them.
fn lost_pages(store: &PageStore, wal: &Wal) -> Result<u64, u64> {
    let Some(loss) = store.ssd().loss() else { return Ok(0) };
    let pages = loss.pages();
    // The record that *ends* at the position is needed, so the log must begin before it.
    let reaches = wal.is_whole() || loss.redo_from.is_some_and(|from| wal.oldest() < from);
    if pages == 0 || reaches { Ok(pages) } else { Err(pages) }
}
