//! Operations that librbd has not finished.

use pagetier_devio::Claim;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The operations in flight on one image.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    state: Mutex<State>,
    empty: Condvar,
    /// Ends when the cluster refuses an operation because another client owns the image.
    claim: Claim,
}

#[derive(Debug, Default)]
struct State {
    count: usize,
    /// When the last operation ended, or the first of those in flight began.
    progressed: Option<Instant>,
}

impl Flight {
    pub(crate) fn begin(&self) {
        let mut state = self.lock();
        if state.count == 0 {
            state.progressed = Some(Instant::now());
        }
        state.count += 1;
    }

    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.count -= 1;
        state.progressed = Some(Instant::now());
        if state.count == 0 {
            self.empty.notify_all();
        }
    }

    pub(crate) fn fence(&self) {
        self.claim.end();
    }

    pub(crate) fn is_fenced(&self) -> bool {
        !self.claim.holds()
    }

    /// The claim to the image.
    pub(crate) fn claim(&self) -> Claim {
        self.claim.clone()
    }

    /// How many operations wait, and for how long none has ended.
    pub(crate) fn waiting(&self) -> Option<(usize, Duration)> {
        let state = self.lock();
        let progressed = state.progressed.filter(|_| state.count > 0)?;
        Some((state.count, progressed.elapsed()))
    }

    /// Blocks until no operation is in flight.
    pub(crate) fn wait_empty(&self) {
        let mut state = self.lock();
        while state.count > 0 {
            state = self.empty.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
