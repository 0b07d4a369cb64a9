//! Which store uses a device, and whether any of its operations is still in flight.
//!
//! Every operation holds an [`InFlight`] from its start until the device is done with it, even if its future
//! was dropped. A dropped store therefore releases its devices (and the locks on them) when its last
//! operation has ended.

use crate::users::changes::Changes;
use parking_lot::Mutex;
use std::any::Any;
use std::sync::Arc;
use tokio::sync::Notify;

/// What a leaving store keeps until its last operation ends: its locks.
pub type Kept = Arc<dyn Any + Send + Sync>;

/// The occupancy of one device. Clones share it.
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
    changes: Changes,
}

#[derive(Debug, Default)]
enum Tenant {
    #[default]
    Vacant,
    Running,
    Leaving(Kept),
    /// The last operation has ended, and what was kept is being dropped.
    Releasing,
}

/// Why a device cannot be occupied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Occupied {
    /// An open store uses it.
    Running,
    /// A dropped store's operations are still in flight: [`Occupancy::vacated`] waits for their end.
    Leaving,
}

/// An operation in flight, or other work that a leaving store must finish before another store gets the
/// device.
#[derive(Debug)]
#[must_use]
pub struct InFlight(Arc<Shared>);

impl Occupancy {
    /// Registers an operation, which ends when the result is dropped.
    pub fn enter(&self) -> InFlight {
        self.0.state.lock().in_flight += 1;
        InFlight(Arc::clone(&self.0))
    }

    /// Registers a change of the device's contents or size, before it starts.
    pub(crate) fn change(&self) -> Change {
        self.0.state.lock().changes.begin();
        Change { shared: Arc::clone(&self.0), seen: false }
    }

    /// See [`Device::settled`](crate::Device::settled).
    pub(crate) fn settled(&self) -> Option<u64> {
        let State { in_flight, changes, .. } = &mut *self.0.state.lock();
        changes.settled(*in_flight)
    }

    /// Takes the device for a store.
    ///
    /// # Errors
    /// [`Occupied`]: another store has the device, or had it and still has operations in flight.
    pub fn occupy(&self) -> Result<(), Occupied> {
        let mut state = self.0.state.lock();
        match state.tenant {
            Tenant::Vacant => {
                state.tenant = Tenant::Running;
                Ok(())
            }
            Tenant::Running => Err(Occupied::Running),
            Tenant::Leaving(_) | Tenant::Releasing => Err(Occupied::Leaving),
        }
    }

    /// Ends the current store's use: it starts no more operations. Once the last one in flight has ended (at
    /// once if there is none), `kept` is dropped and the device is free.
    pub fn leave(&self, kept: Kept) {
        let mut state = self.0.state.lock();
        if state.in_flight > 0 {
            state.tenant = Tenant::Leaving(kept);
            return;
        }
        // A state of its own for the time of the drop, which runs outside the lock: "vacant" would let the
        // next store in while the locks of this one are still held.
        state.tenant = Tenant::Releasing;
        drop(state);
        self.0.release(kept);
    }

    /// Waits until no dropped store has operations in flight, and what it kept is dropped. Cancel-safe.
    pub async fn vacated(&self) {
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            // Before the look at the tenant, or a release in between would not be noticed.
            changed.as_mut().enable();
            if !matches!(self.0.state.lock().tenant, Tenant::Leaving(_) | Tenant::Releasing) {
                return;
            }
            changed.await;
        }
    }

    /// The number of operations in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.state.lock().in_flight
    }
}

impl Shared {
    /// Drops what the store that left had kept; only then is the device free. The tenant is `Releasing`, so
    /// nothing else releases it.
    fn release(&self, kept: Kept) {
        drop(kept);
        self.state.lock().tenant = Tenant::Vacant;
        self.changed.notify_waiters();
    }
}

/// A change under way, or one whose future was dropped: [`Change::end`] tells them apart.
#[derive(Debug)]
#[must_use]
pub(crate) struct Change {
    shared: Arc<Shared>,
    seen: bool,
}

impl Change {
    /// The change has ended, well or not. Called before its caller sees the result.
    pub(crate) fn end(mut self) {
        self.seen = true;
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.shared.state.lock().changes.end(self.seen);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.in_flight -= 1;
        // Only the last operation releases.
        if state.in_flight > 0 {
            return;
        }
        match std::mem::replace(&mut state.tenant, Tenant::Releasing) {
            Tenant::Leaving(kept) => {
                drop(state);
                self.0.release(kept);
            }
            // Running, vacant, or being released by another thread.
            other => state.tenant = other,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Mutex as StdMutex;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Says that its drop has begun, and waits for the permission to end it.
    struct Slow {
        begun: Sender<()>,
        end: StdMutex<Receiver<()>>,
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            self.begun.send(()).unwrap();
            self.end.lock().unwrap().recv().unwrap();
        }
    }

    #[tokio::test]
    async fn a_device_is_free_only_once_what_its_store_kept_is_dropped() {
        for operations in 0..2 {
            let occupancy = Occupancy::default();
            occupancy.occupy().unwrap();
            let in_flight: Vec<_> = (0..operations).map(|_| occupancy.enter()).collect();
            let ((begun, begins), (ends, end)) = (channel(), channel());
            let (leaving, kept) = (occupancy.clone(), Slow { begun, end: StdMutex::new(end) });
            let leaver = std::thread::spawn(move || {
                leaving.leave(Arc::new(kept));
                drop(in_flight);
            });
            begins.recv().unwrap();
            assert_eq!(occupancy.occupy(), Err(Occupied::Leaving));
            tokio::select! { biased;
                () = occupancy.vacated() => panic!("what the store kept is not dropped yet"),
                () = tokio::task::yield_now() => {}
            }
            ends.send(()).unwrap();
            occupancy.vacated().await;
            assert_eq!(occupancy.occupy(), Ok(()));
            leaver.join().unwrap();
        }
    }
}
