//! The embedder's log gate as the pool sees it. It is released when the store ends, even if tasks still run.

use super::lock::Present;
use pagetier_bufpool::{GateError, GateFuture, LogGate};
use pagetier_devio::Owner;
use pagetier_page::Lsn;
use parking_lot::Mutex;
use std::any::Any;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;

enum State {
    /// The embedder has no log.
    Open,
    Log(Arc<dyn LogGate>),
    Released,
}

/// The embedder's log as one open sees it, and no longer: see [`Gate::release`].
pub(crate) struct Gate {
    state: Mutex<State>,
    owner: Owner,
    /// Lives as long as the pool, which holds the gate.
    _present: Present,
}

impl Gate {
    pub(crate) fn new(gate: Option<Arc<dyn LogGate>>, present: Present) -> Arc<Self> {
        let state = Mutex::new(gate.map_or(State::Open, State::Log));
        Arc::new(Self { state, owner: Owner::here(), _present: present })
    }

    /// Whether the embedder has a log.
    pub(crate) fn has_log(&self) -> bool {
        !matches!(*self.state.lock(), State::Open)
    }

    /// Drops the embedder's gate; no page is written afterwards.
    pub(crate) fn release(&self) {
        let released = std::mem::replace(&mut *self.state.lock(), State::Released);
        // Drop it outside the lock: this may run the embedder's code.
        drop(released);
    }
}

impl LogGate for Gate {
    fn durable(&self) -> Lsn {
        let gate = match &*self.state.lock() {
            State::Log(gate) => Arc::clone(gate),
            State::Open | State::Released => return Lsn(0),
        };
        // A panic would leave a guard half dropped. Without an answer the page keeps its LSN.
        catch_unwind(AssertUnwindSafe(|| gate.durable())).unwrap_or(Lsn(0))
    }

    fn make_durable(&self, lsn: Lsn) -> GateFuture<'_> {
        // Cloned out of the lock: the embedder's code may take long, or release the gate itself.
        let gate = match &*self.state.lock() {
            State::Open => None,
            State::Log(gate) => Some(Arc::clone(gate)),
            State::Released => return Box::pin(std::future::ready(Err(released()))),
        };
        Box::pin(async move {
            match gate {
                Some(gate) => unless_panics(&*gate, lsn).await,
                None => Ok(()),
            }
        })
    }
}

/// The embedder's log gate panicked: the source of [`PoolError::Log`](crate::errors::PoolError::Log). The
/// pages stay dirty in memory, and their next write calls the gate again.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the log gate panicked: {message}")]
#[non_exhaustive]
pub struct GatePanic {
    /// The panic's message.
    pub message: String,
}

/// Calls the embedder's code, and makes its panic an error: unwinding through the task that writes the pages
/// would end that task, and the store would not know why.
async fn unless_panics(gate: &dyn LogGate, lsn: Lsn) -> Result<(), GateError> {
    // After a panic neither gate nor future is used again within this call; the store shares nothing else
    // with them.
    let caught = |panic: Box<dyn Any + Send>| Err(Arc::new(GatePanic { message: message_of(&*panic) }) as _);
    let mut durable = match catch_unwind(AssertUnwindSafe(|| gate.make_durable(lsn))) {
        Ok(durable) => durable,
        Err(panic) => return caught(panic),
    };
    poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| durable.as_mut().poll(cx)));
        polled.unwrap_or_else(|panic| Poll::Ready(caught(panic)))
    })
    .await
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".into())
}

fn released() -> GateError {
    Arc::new(std::io::Error::other("the store was closed or dropped"))
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

/// Releases the gate when dropped: with the store.
#[derive(Debug)]
pub(crate) struct ReleaseGate(pub(crate) Arc<Gate>);

impl Drop for ReleaseGate {
    fn drop(&mut self) {
        // Not in a forked process: the gate is the parent's, and a thread that does not exist here may hold
        // its lock.
        if self.0.owner.is_here() {
            self.0.release();
        }
    }
}
