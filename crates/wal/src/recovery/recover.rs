//! Recovery: redoes the log over the pages.

use crate::error::WalError;
use crate::log::Wal;
use crate::log::unfit::UnfitLog;
use crate::recovery::identity;
use crate::recovery::redo::{Recovered, RedoError, redo};
use pagetier::errors::{Advice, PoolError, TierError};
use pagetier::{Error, OpenError, PageStore};
use std::sync::Arc;

/// Why a recovery failed. Recovering again is always safe.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// The store did not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] Error),
    /// The log failed.
    #[error(transparent)]
    Log(#[from] WalError),
    /// Redo failed.
    #[error("the log cannot be redone")]
    Redo(#[from] RedoError),
    /// The log is not the one that the pages need. Nothing has changed.
    #[error(transparent)]
    Unfit(#[from] UnfitLog),
}

impl RecoverError {
    /// What to do about this error.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            Self::Open(error) => error.advice(),
            Self::Store(error) | Self::Redo(RedoError::Store(error)) => error.advice(),
            Self::Log(error) | Self::Redo(RedoError::Log(error)) => error.advice(),
            Self::Unfit(unfit) => unfit.advice(),
            Self::Redo(RedoError::Record(_)) => Advice::Restore,
        }
    }
}

/// Recovers the pages of `store` from `wal`, before anything else uses a page. The store was opened with the
/// log's gate ([`Wal::gate`]), which has checked that the log is the one that the pages need.
///
/// 1. Redoes the log: from the last position that the store recorded for a crash, or all of it if an SSD was
///    lost.
/// 2. Begins a generation of the log for this open, and lets the store record that.
/// 3. Frees the pages whose records say so. If the store cannot free them at present, as on a full disk, the
///    next checkpoint retries.
/// 4. Makes the restored pages durable and acknowledges the loss of the SSD, if there was one.
///
/// Needs no free space on the file systems if they overwrite in place. A dropped future is like a crash.
///
/// # Errors
/// The store or the log failed, or they do not belong together: [`UnfitLog`].
pub async fn recover(store: &Arc<PageStore>, wal: &Wal) -> Result<Recovered, RecoverError> {
    let needs = wal.needs();
    if needs.recorded.is_none() && needs.named_in_pages && !(needs.gives_up_log && wal.is_new()) {
        match identity::read(store).await? {
            // Its first record names it in the pages, so the log of these pages has one.
            Some(_) if wal.is_new() => return Err(UnfitLog::Missing.into()),
            Some(pages) if pages != wal.id() => {
                return Err(UnfitLog::Other { log: wal.id(), pages }.into());
            }
            // A crash came before the page was written: the log has its record.
            None if !wal.is_whole() => return Err(UnfitLog::NoPages.into()),
            _ => {}
        }
    }
    wal.attach(store);
    // Of a log that is given up, no record restores what was lost: the loss stays listed.
    let loss = store.ssd().loss().filter(|_| !needs.gives_up_log);
    let lost_pages = loss.as_ref().map_or(0, |loss| loss.pages());
    wal.make_found_durable().await?;
    let recovered = match redo(store, wal).await {
        // A copy that was written before the position from which a crash needs the log. If the log is kept
        // for the loss of the SSD, it has the page nevertheless.
        Err(RedoError::Store(Error::Pool(PoolError::Tier(TierError::Corrupt { .. }))))
            if wal.0.needs_all() =>
        {
            redo(store, wal).await?
        }
        redone => redone?,
    };
    // After redo: should it find that the log has lost its end, the pages still take the one that has not.
    // The log before the manifest, so that a generation that the manifest names is in the log. One that the
    // manifest does not name has no record in the log, and the next open ignores it (I45).
    if let Some(mark) = wal.begin().await? {
        store.record_log(mark).await?;
        // Only now: a record of a generation that the manifest does not name would be another copy's.
        wal.recovered();
    }
    // A failure is no reason to refuse the pages: the frees stay pending, and so do their records.
    let _ = wal.free_pending(store).await;
    if loss.is_some() {
        store.sync().await?;
        store.ssd().acknowledge_loss().await?;
    }
    Ok(Recovered { lost_pages, ..recovered })
}

/// An open of the store that the log refused says why.
pub(crate) fn opened<T>(store: Result<T, OpenError>) -> Result<T, RecoverError> {
    store.map_err(|error| match &error {
        OpenError::Log { source } => match (source.downcast_ref(), source.downcast_ref::<WalError>()) {
            (Some(unfit), _) => RecoverError::Unfit(*unfit),
            (_, Some(of_log)) => RecoverError::Log(of_log.clone()),
            _ => RecoverError::Open(error),
        },
        _ => RecoverError::Open(error),
    })
}
