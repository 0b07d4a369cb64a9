//! Ends a store cleanly (`close`, `shutdown`), and waits for what a dropped one leaves behind.
//!
//! A shutdown (1) refuses new operations and waits for those in progress, (2) retires the pool: everything is
//! written, every page leaves memory, and a request finds none, (3) checkpoints the SSD's map and records the
//! close, (4) ends the tenure, so that nothing is written afterwards, and waits until the locks are free. The
//! shutdown of a shared store runs in a task of its own, for which all callers wait.

use super::page_store::PageStore;
use super::shared::Shared;
use crate::error::Error;
use crate::tenure::lock::Tenure;
use pagetier_devio::task::{self, Boxed};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// How long a close waits for the descriptors to be closed. A runtime that does not run would never close
/// them.
const CLOSED_MAX: Duration = Duration::from_secs(3);

fn end(shared: Arc<Shared>, tenure: Arc<Tenure>) -> Boxed<'static, Result<(), Error>> {
    Box::pin(async move {
        // Held to the end: nothing may begin between the last write and the record of the close.
        let operations = shared.ending.operations_ended().await;
        // An exchange of the SSD runs in its own task, which may have outlived its caller.
        let change = shared.ssd_change.lock().await;
        let result = shared.write_everything().await;
        shared.gate.release();
        // Even after a failure: the store is closed then as by a crash, and its locks must not stay.
        let vacated = tenure.leave();
        drop(change);
        drop(operations);
        drop(shared);
        vacated.await;
        result
    })
}

impl Shared {
    async fn write_everything(&self) -> Result<(), Error> {
        // In this order: what leaves memory may make the SSD's map change, and the close is recorded only
        // once the map is durable (I20).
        self.pool.retire().await?;
        self.tier.shutdown().await?;
        self.note_close().await
    }
}

impl PageStore {
    /// Closes the store as [`PageStore::close`] does, for a store that is shared: writes everything, makes it
    /// durable, checkpoints the SSD's map exactly, and releases devices, locks and log gate. The directory
    /// can be opened again once this returns, even while the store still exists.
    ///
    /// From the call on, operations that need more than memory fail with [`Error::Closed`]; once it returns,
    /// every operation does. It waits for operations in progress, except drains and scrubs, which end early,
    /// and for [`PageMut`](crate::PageMut) guards to be dropped; hold none. A [`PageRef`](crate::PageRef) may
    /// stay, and its page remains readable, unless an operation in progress waits for it to be dropped: a
    /// removal of its space, or a `free` or `discard` of its page.
    ///
    /// Every call returns the result of the first one. The shutdown continues if the future is dropped.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let temporary = tempfile::tempdir()?;
    /// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
    /// let store = std::sync::Arc::new(builder.open().await?);
    /// store.shutdown().await?;
    /// assert!(matches!(store.sync().await, Err(pagetier::Error::Closed)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first failure. The store is closed even so, as by a crash.
    pub async fn shutdown(&self) -> Result<(), Error> {
        self.shared.ending.here()?;
        let mut outcome = self.shared.ending.begin(|done| {
            let (tenure, shared) = (self.leave.tenure(), Arc::clone(&self.shared));
            task::spawn(&self.shared.runtime, async move {
                let ended = end(shared, tenure).await;
                let _ = done.send(Some(ended));
            });
        });
        let ended = outcome.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        ended.ok().flatten().unwrap_or_else(|| Err(Error::runtime_ended()))
    }

    /// Shuts down a store that is not shared: runs in the caller's task, and stops when the future is
    /// dropped.
    pub(crate) async fn close_owned(self) -> Result<(), Error> {
        self.shared.ending.here()?;
        let left = self.wait_closed();
        // A shutdown has begun, through a clone of the `Arc` that is gone by now: wait for it instead of a
        // second one.
        let ended = if self.shared.ending.refuse() {
            self.shutdown().await
        } else {
            end(Arc::clone(&self.shared), self.leave.tenure()).await
        };
        drop(self);
        // The store's tasks close its last descriptors, once their runtime has run them.
        let _ = tokio::time::timeout(CLOSED_MAX, left).await;
        ended
    }

    /// A future that completes once nothing of this store is left: it was dropped (or closed), its last
    /// operation has ended, its tasks are gone, and its directory, devices and log gate are free. It does not
    /// borrow the store and may be awaited anywhere; the runtime that the store was opened on must run or
    /// shut down meanwhile.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let temporary = tempfile::tempdir()?;
    /// # let open = || pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20).open();
    /// let store = open().await?;
    /// let closed = store.wait_closed();
    /// drop(store); // as a crash does
    /// closed.await;
    /// open().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_closed(&self) -> impl Future<Output = ()> + Send + Sync + 'static + use<> {
        self.leave.tenure().left()
    }
}
