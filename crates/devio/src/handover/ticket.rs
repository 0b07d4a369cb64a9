//! Delivers a completion to the waiting task through a shared slot that holds the waker: no channel, one
//! allocation.
//!
//! Dropping the [`Ticket`] detaches the operation: its result is dropped on arrival.

use crate::handover::sync::{Arc, Mutex};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

enum State<T> {
    Waiting(Option<Waker>),
    Done(T),
    Taken,
}

/// The device's half.
pub struct Promise<T>(Arc<Mutex<State<T>>>);

/// The waiting task's half.
pub struct Ticket<T>(Arc<Mutex<State<T>>>);

/// The two halves of one completion.
#[must_use]
pub fn ticket<T>() -> (Promise<T>, Ticket<T>) {
    let slot = Arc::new(Mutex::new(State::Waiting(None)));
    (Promise(Arc::clone(&slot)), Ticket(slot))
}

impl<T> Promise<T> {
    /// Delivers the result and wakes the waiting task. Catches a panic of its waker, or of the owner of a
    /// leased buffer whose task is gone: the panic is not the device's fault, and the device's thread must go
    /// on.
    pub fn complete(self, value: T) {
        let caught = catch_unwind(AssertUnwindSafe(|| {
            // The waker is taken out under the lock and woken after it: it may poll at once, which takes
            // the lock.
            let before = std::mem::replace(&mut *self.0.lock(), State::Done(value));
            if let State::Waiting(Some(waker)) = before {
                waker.wake();
            }
            drop(self);
        }));
        if caught.is_err() {
            tracing::error!(
                "a task or the owner of a buffer panicked when its I/O completed; the device keeps running"
            );
        }
    }

    /// Whether the waiting task has dropped its half.
    pub(crate) fn is_abandoned(&self) -> bool {
        // Only the two halves exist, and none can be made anew: once it is 1, it stays so.
        Arc::strong_count(&self.0) == 1
    }
}

impl<T> Future for Ticket<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Done(value) => Poll::Ready(value),
            State::Waiting(old) => {
                let waker = match old {
                    Some(waker) if waker.will_wake(cx.waker()) => waker,
                    _ => cx.waker().clone(),
                };
                *state = State::Waiting(Some(waker));
                Poll::Pending
            }
            State::Taken => panic!("polled after it was ready"),
        }
    }
}
