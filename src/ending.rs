//! Whether the store is shutting down: operations enter here, and a shutdown waits for them.

use crate::error::Error;
use pagetier_devio::locks::{Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};
use parking_lot::Mutex;
use std::future::Future;
use tokio::sync::watch;

/// The result of a shutdown; `None` while it runs.
pub(crate) type Outcome = Option<Result<(), Error>>;

/// Whether the store is shutting down, and the result.
#[derive(Debug)]
pub(crate) struct Ending {
    /// Held shared by every operation that changes the store other than through a guard.
    operations: RwLock<()>,
    begun: watch::Sender<bool>,
    outcome: Mutex<Option<watch::Receiver<Outcome>>>,
}

impl Default for Ending {
    fn default() -> Self {
        Self {
            operations: RwLock::new(Rank::Operations, ()),
            begun: watch::Sender::new(false),
            outcome: Mutex::default(),
        }
    }
}

impl Ending {
    /// Registers an operation until the result is dropped.
    pub(crate) fn enter(&self) -> Result<RwLockReadGuard<'_, ()>, Error> {
        if *self.begun.borrow() {
            return Err(Error::Closed);
        }
        self.operations.try_read().map_err(|_| Error::Closed)
    }

    /// Runs a long operation; drops it and returns `None` when the store is shut down.
    pub(crate) async fn unless_ended<T>(&self, operation: impl Future<Output = T>) -> Option<T> {
        let mut begun = self.begun.subscribe();
        tokio::select! {
            biased;
            done = operation => Some(done),
            _ = begun.wait_for(|begun| *begun) => None,
        }
    }

    /// Refuses further operations. Returns whether a shutdown had begun already.
    pub(crate) fn refuse(&self) -> bool {
        self.begun.send_replace(true)
    }

    /// Waits for the operations in progress.
    pub(crate) async fn operations_ended(&self) -> RwLockWriteGuard<'_, ()> {
        self.operations.write().await
    }

    /// Refuses further operations, and starts the shutdown by `start` unless it has been started. Returns the
    /// outcome to wait for.
    pub(crate) fn begin(&self, start: impl FnOnce(watch::Sender<Outcome>)) -> watch::Receiver<Outcome> {
        let mut outcome = self.outcome.lock();
        if let Some(outcome) = &*outcome {
            return outcome.clone();
        }
        self.refuse();
        let (done, receiver) = watch::channel(None);
        start(done);
        outcome.insert(receiver).clone()
    }
}
