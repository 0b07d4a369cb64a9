//! Ends a store cleanly (`close`, `shutdown`), and waits for what a dropped one leaves behind.
//!
//! A shutdown (1) refuses new operations and waits for those in progress, (2) retires the pool: everything is
//! written, every page leaves memory, and a request finds none, (3) checkpoints the SSD's map and records the
//! close, (4) ends the ownership, so that nothing is written afterwards, and waits until the locks are free.
//! The shutdown of a shared store runs in a task of its own, for which all callers wait.

use super::shared::Shared;
use crate::error::Error;
use crate::ownership::lock::Ownership;
use pagetier_devio::task::Boxed;
use std::sync::Arc;
use std::time::Duration;

/// How long a close waits for the descriptors to be closed. A runtime that does not run would never close
/// them.
pub(super) const CLOSED_MAX: Duration = Duration::from_secs(3);

pub(super) fn end(shared: Arc<Shared>, ownership: Arc<Ownership>) -> Boxed<'static, Result<(), Error>> {
    Box::pin(async move {
        // Held to the end: nothing may begin between the last write and the record of the close.
        let operations = shared.ending.operations_ended().await;
        // An exchange of the SSD runs in its own task, which may have outlived its caller.
        let change = shared.ssd_change.lock().await;
        let result = shared.write_everything().await;
        shared.gate.release();
        // Even after a failure: the store is closed then as by a crash, and its locks must not stay.
        let vacated = ownership.leave();
        // But the claim stays as it is then. Were it unlimited, one that has lapsed would hold again, and the
        // engine's log would write what it could not, although another owner may have taken it over.
        if let Some(lease) = shared.lease.lock().take()
            && result.is_ok()
        {
            lease.end();
        }
        drop(change);
        drop(operations);
        drop(shared);
        vacated.await;
        result
    })
}

impl Shared {
    async fn write_everything(self: &Arc<Self>) -> Result<(), Error> {
        // In this order: what leaves memory may make the SSD's map change, and the close is recorded only
        // once the map is durable (I20).
        self.free_pending_at_end().await?;
        self.list_hot_at_end().await;
        self.pool.retire().await?;
        self.tier.shutdown().await?;
        self.note_close().await
    }
}
