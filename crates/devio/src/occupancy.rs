//! Which store uses a device, and whether any of its operations is still under way.
//!
//! Every operation holds an [`InFlight`] from its start to the moment the device is done with it, whether or
//! not its future is still there. So a store that was dropped gives up its devices (and the locks that go
//! with them) when its last operation has ended.

use parking_lot::Mutex;
use std::any::Any;
use std::sync::Arc;
use tokio::sync::Notify;

/// What a leaving store gives up with its last operation: its locks. Dropped then.
pub type Kept = Arc<dyn Any + Send + Sync>;

/// The use of one device. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Occupancy(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    in_flight: usize,
    tenant: Tenant,
}

#[derive(Debug, Default)]
enum Tenant {
    #[default]
    Vacant,
    Running,
    Leaving(Kept),
}

/// Why a device cannot be occupied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Occupied {
    /// An open store uses it.
    Running,
    /// A dropped store's operations are still under way: [`Occupancy::vacated`] waits for their end.
    Leaving,
}

/// An operation under way, or what else a leaving store has to finish before another one gets the device.
#[derive(Debug)]
#[must_use]
pub struct InFlight(Arc<Shared>);

impl Occupancy {
    /// An operation starts; it ends when the result is dropped.
    pub fn enter(&self) -> InFlight {
        self.0.state.lock().in_flight += 1;
        InFlight(Arc::clone(&self.0))
    }

    /// Takes the device for a store.
    ///
    /// # Errors
    /// [`Occupied`]: another store has it, or had it and has operations under way.
    pub fn occupy(&self) -> Result<(), Occupied> {
        let mut state = self.0.state.lock();
        match state.tenant {
            Tenant::Vacant => {
                state.tenant = Tenant::Running;
                Ok(())
            }
            Tenant::Running => Err(Occupied::Running),
            Tenant::Leaving(_) => Err(Occupied::Leaving),
        }
    }

    /// The store that has the device starts no more operations. When the last one under way has ended, `kept`
    /// is dropped and the device is free: at once if there is none.
    pub fn leave(&self, kept: Kept) {
        let mut state = self.0.state.lock();
        if state.in_flight == 0 {
            state.tenant = Tenant::Vacant;
            drop(state);
            drop(kept);
            self.0.changed.notify_waiters();
        } else {
            state.tenant = Tenant::Leaving(kept);
        }
    }

    /// Waits until no dropped store's operations are under way. Cancel-safe.
    pub async fn vacated(&self) {
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !matches!(self.0.state.lock().tenant, Tenant::Leaving(_)) {
                return;
            }
            changed.await;
        }
    }

    /// Operations under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.state.lock().in_flight
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.in_flight -= 1;
        if state.in_flight > 0 {
            return;
        }
        match std::mem::take(&mut state.tenant) {
            Tenant::Leaving(kept) => {
                drop(state);
                drop(kept);
                self.0.changed.notify_waiters();
            }
            other => state.tenant = other,
        }
    }
}
