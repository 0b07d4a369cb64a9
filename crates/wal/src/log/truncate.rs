//! Shortens the log from its old end, down to what recoveries, frees and holds need.

use super::{LooksAgain, Shared, Wal};
use crate::error::WalError;
use pagetier::Lsn;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Retains the log from a position on until it is dropped. Retained log does not count towards the capacity.
#[derive(Debug)]
pub struct Hold {
    log: Arc<Shared>,
    number: u64,
}

impl Hold {
    /// Releases the log before `lsn`.
    pub fn advance(&self, lsn: Lsn) {
        self.log.state.lock().holds.insert(self.number, lsn.0);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.log.state.lock().holds.remove(&self.number);
    }
}

impl Wal {
    /// Retains what the log holds at this moment, and returns where that begins. For a backup: begin it
    /// afterwards, then [`Wal::copy_to`].
    #[must_use]
    pub fn hold(&self) -> (Hold, Lsn) {
        // Truncation decides under this lock what stays.
        let mut state = self.0.state.lock();
        let oldest = self.oldest();
        let number = state.next_hold;
        state.next_hold += 1;
        state.holds.insert(number, oldest.0);
        (Hold { log: Arc::clone(&self.0), number }, oldest)
    }

    /// Whether [`Wal::truncate`] would remove a segment, as of the last write of the log.
    #[must_use]
    pub fn can_truncate(&self, keep: Lsn) -> bool {
        let held = self.0.state.lock().holds.values().copied().min().unwrap_or(u64::MAX);
        self.0.second.load(Ordering::Acquire) < keep.0.min(held)
    }

    /// Whether a recovery after a crash that begins at `needed` is due: it is shorter by a segment,
    /// or the log has too many of them.
    pub(crate) fn is_shorter_from(&self, needed: Lsn) -> bool {
        let is_long =
            needed.0.saturating_sub(self.0.needed.load(Ordering::Acquire)) > self.0.options.segment_bytes();
        is_long || (1..needed.0).contains(&self.crowded())
    }

    /// Removes the segments whose records are all older than `needed` (the start of a recovery after a
    /// crash), `keep`, every free that the store has not made, and every [`Hold`].
    /// [`checkpoint`](crate::checkpoint) calls it with what the store needs. Cancel-safe: a removal that has
    /// begun continues.
    ///
    /// # Errors
    /// The medium failed; the log is intact, and longer than necessary.
    pub async fn truncate(&self, needed: Lsn, keep: Lsn) -> Result<(), WalError> {
        self.check_owner()?;
        // Before the log is shortened: one that begins later than this is not the pages' (I45). Nothing goes
        // that is not covered by the record, whatever is released meanwhile.
        let held = self.0.state.lock().holds.values().copied().min().unwrap_or(u64::MAX);
        let kept = keep.min(needed);
        let mut keep = kept.min(Lsn(held));
        // Also if the log stays as it is, for the loss of an SSD, a hold or an archive: the next open redoes
        // what follows, however long the log has become.
        let lags = self.0.from.load(Ordering::Acquire) + self.0.options.segment_bytes() < needed.0;
        if lags || self.0.second.load(Ordering::Acquire) < keep.0 {
            self.record(needed).await.map_err(|error| WalError::Unrecorded(Arc::new(error)))?;
            if self.0.is_owned() {
                // The record may ask for more than the caller does: for a commit that is not applied, or what
                // was not durable then. The next open refuses a log that begins later.
                keep = keep.min(Lsn(self.0.from.load(Ordering::Acquire).saturating_add(1)));
            }
        } else {
            keep = self.oldest();
        }
        self.0.kept.fetch_max(kept.0, Ordering::AcqRel);
        if !self.0.blocks {
            return self.0.truncate(needed.0, keep.0);
        }
        // A waiter that is dropped may have had the turn already: the others look again.
        let looks_again = LooksAgain(&self.0);
        let turn = self.turn(Arc::clone(&self.0.turn).lock_owned().await);
        std::mem::forget(looks_again);
        let cut = move || turn.log.truncate(needed.0, keep.0);
        tokio::task::spawn_blocking(cut).await.map_err(|_| WalError::Stopped)?
    }
}

impl Shared {
    fn truncate(&self, needed: u64, keep: u64) -> Result<(), WalError> {
        let mut output = self.output.lock();
        self.check_claim()?;
        self.ready(&mut output)?;
        let segments = &mut output.segments;
        let (needed, keep) = {
            let state = self.state.lock();
            let held = state.holds.values().copied().min().unwrap_or(u64::MAX);
            // Also for a caller that has asked the store alone.
            let free = state.frees.first().map_or(u64::MAX, |(lsn, _)| *lsn);
            let needed = needed.min(free);
            let keep = needed.min(keep).min(held);
            // Under the lock: a hold that comes later begins there.
            self.oldest.store(segments.holding(keep), Ordering::Release);
            (needed, keep)
        };
        let segment_bytes = segments.usual_bytes(self.options);
        self.needed.store(segments.recovery_start(needed, segment_bytes), Ordering::Release);
        let truncated = segments.truncate(keep);
        self.oldest.store(segments.oldest(), Ordering::Release);
        // Before any record takes the space that is free now.
        segments.reserve(self.options.segment_bytes());
        if truncated.is_ok() {
            self.tight.store(false, Ordering::Release);
        }
        self.note_space(segments);
        self.truncated.notify_waiters();
        truncated
    }
}
