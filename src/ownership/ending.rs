//! Whether the store is shutting down: operations enter here, and a shutdown waits for them.

use crate::error::Error;
use pagetier_devio::Owner;
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
    owner: Owner,
}

impl Default for Ending {
    fn default() -> Self {
        let (begun, owner) = (watch::Sender::new(false), Owner::here());
        Self { operations: RwLock::new(Rank::Operations, ()), begun, outcome: Mutex::default(), owner }
    }
}

impl Ending {
    /// Refuses a process that was forked from the one that opened the store, before any lock is taken: a
    /// thread that does not exist there may hold it.
    pub(crate) fn here(&self) -> Result<(), Error> {
        if self.is_here() { Ok(()) } else { Err(Error::Forked { opened_by: self.owner.pid() }) }
    }

    /// Whether this process opened the store.
    pub(crate) fn is_here(&self) -> bool {
        self.owner.is_here()
    }

    /// Registers an operation until the result is dropped.
    pub(crate) fn enter(&self) -> Result<RwLockReadGuard<'_, ()>, Error> {
        self.here()?;
        // Checked first: a shutdown that has begun may not have the lock yet, and must get it although
        // operations keep coming.
        if *self.begun.borrow() {
            return Err(Error::Closed);
        }
        self.operations.try_read().map_err(|_| Error::Closed)
    }

    pub(crate) fn has_begun(&self) -> bool {
        *self.begun.borrow()
    }

    /// A future that completes once the store is being shut down, or is gone. It does not borrow the store.
    pub(crate) fn shutdown_begun(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let mut begun = self.begun.subscribe();
        // An error: the sender has ended with the store.
        async move { drop(begun.wait_for(|begun| *begun).await) }
    }

    /// Runs a long operation; drops it and returns `None` when the store is shut down.
    pub(crate) async fn or_shutdown<T>(&self, operation: impl Future<Output = T>) -> Option<T> {
        let mut begun = self.begun.subscribe();
        tokio::select! {
            // An operation that has its result returns it, even if a shutdown begins at the same moment.
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
        // Held over the start: of two calls at once, only one starts it, and both get its outcome.
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
