//! Fuzzy checkpoints truncate the log while the engine runs.

use crate::error::WalError;
use crate::log::Wal;
use pagetier::{Loss, Lsn, PageStore};

/// The failure that the log must be able to repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// A crash: keep the changes that only memory has.
    ForCrash,
    /// A crash, or the loss of the SSD: also keep the changes that the HDD lacks. The log grows beyond its
    /// capacity by as much as the SSD is ahead of the HDD.
    ForSsdLoss,
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

/// One step of a fuzzy checkpoint: when the log is three quarters full, writes the pages with the oldest
/// changes; then truncates the log to what a recovery needs. Call it whenever [`Wal::grown`] returns.
///
/// # Errors
/// The store or the log failed; the next step retries.
pub async fn checkpoint(store: &PageStore, wal: &Wal, keep: Keep) -> Result<(), CheckpointError> {
    let capacity = wal.capacity_bytes();
    if wal.len_bytes() > capacity / 4 * 3 {
        store.flush_to(Lsn(wal.end().0.saturating_sub(capacity / 8 * 5))).await?;
    }
    truncate(store, wal, keep, false).await?;
    if wal.len_bytes() > capacity {
        // A few large segments hold what is needed: only if nothing is needed is the log sure to be short.
        store.flush_to(wal.end()).await?;
        truncate(store, wal, keep, true).await?;
    }
    Ok(())
}

async fn truncate(store: &PageStore, wal: &Wal, keep: Keep, force: bool) -> Result<(), CheckpointError> {
    // Read the end first: a change that is not yet in the store's minimum has a later LSN.
    let end = wal.end();
    let pages = store.min_recovery_lsn().unwrap_or(end);
    let commits = wal.oldest_unapplied().unwrap_or(end);
    let needed = end.min(pages).min(commits);
    if force || wal.can_truncate(needed) {
        // Pages written by this point are clean, but durable only after a flush, which this includes. For the
        // loss of the SSD the store remembers the position, and names it should the SSD be lost.
        let loss = if keep == Keep::ForSsdLoss { Loss::Ssd } else { Loss::Crash };
        let from = store.redo_from(end, loss).await?;
        wal.truncate(needed, from.min(needed)).await?;
    }
    Ok(())
}
