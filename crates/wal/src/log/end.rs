//! The log's end: first nothing is appended any more, then the medium is given back.

use super::{Shared, State, Wal};
use crate::error::WalError;
use crate::media::MemoryMedia;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::timeout;

/// How long the end waits for a copy to the archive.
const COPY_MAX: Duration = Duration::from_secs(5);

impl Wal {
    /// Refuses every record from now on, and lets no change wait for space any longer. What was appended
    /// before is all that the log will have.
    pub(crate) fn refuse_changes(&self) {
        let state = self.0.state.lock();
        self.0.ending.store(true, Ordering::Release);
        drop(state);
        self.abandon();
    }

    /// Refuses what begins while the log is being closed, or was closed.
    pub(crate) fn check_changes(&self) -> Result<(), WalError> {
        if self.0.ending.load(Ordering::Acquire) { Err(WalError::Stopped) } else { Ok(()) }
    }

    /// Gives the media of log and archive back, so that both can be opened again, even if handles of this log
    /// remain. Waits for the operation that uses the log's medium.
    pub(crate) async fn close(&self) {
        // Only a runtime that ends keeps it from running, and drops what has the media.
        let _ = self.0.run(Shared::close).await;
        let Some(archive) = self.0.archive.get() else { return };
        let media = Arc::clone(&archive.media);
        // A copy that is being made ends soon, and an opener that met it would go on without an archive. One
        // that hangs must not keep the log from its end.
        match timeout(COPY_MAX, Arc::clone(&media).lock_owned()).await {
            Ok(mut slot) => *slot = None,
            Err(_) => drop(tokio::spawn(async move { *media.lock_owned().await = None })),
        }
    }
}

impl Shared {
    /// The state, to append a record.
    pub(super) fn to_append(&self) -> Result<MutexGuard<'_, State>, WalError> {
        let state = self.state.lock();
        // Under the lock: the last record is known once `ending` is set.
        if self.ending.load(Ordering::Acquire) { Err(WalError::Stopped) } else { Ok(state) }
    }

    /// Refuses to use the medium once it was given back.
    pub(super) fn check_open(&self) -> Result<(), WalError> {
        if self.closed.load(Ordering::Acquire) { Err(WalError::Stopped) } else { Ok(()) }
    }

    fn close(&self) -> Result<(), WalError> {
        let mut output = self.output.lock();
        self.closed.store(true, Ordering::Release);
        output.segments.replace_media(Box::<MemoryMedia>::default());
        Ok(())
    }
}
