//! The SSD's life: what it is used for, what happened to it, and the quiet in which it can be exchanged.
//!
//! Quiet comes in four steps, each of which waits for what may still need the next: no writer is inside
//! ([`Core::gate`]), no admission is in flight, no write-back ([`Core::home_duty`]), no checkpoint
//! ([`Core::map_duty`]). Reads go on; [`Quiet::replace`] waits for those that hold a slot.

use crate::backed::Backed;
use crate::core::{Core, JournalPlace};
use crate::layout::Layout;
use crate::ring::Ring;
use crate::slots::{SlotParams, Slots};
use pagetier_devio::{DeviceError, SharedDevice};
use pagetier_page::{Lsn, PageId};
use pagetier_policy::SlotPolicy;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::{MutexGuard, RwLockWriteGuard};

/// What the SSD is used for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum SsdMode {
    /// Changed pages may go to the SSD alone, and reach the HDD later.
    #[default]
    WriteBack,
    /// Changed pages go to the HDD; the SSD takes copies of pages as they leave memory. It gets no only
    /// copies; those that it has stay until their pages are written again, or are drained.
    WriteThrough,
    /// Nothing new goes to the SSD but the doublewrite ring and the journal; what it holds is read from it.
    ReadOnly,
    /// The SSD is not used at all: nothing is on it that counts, and it may be taken away.
    Off,
}

/// How the SSD is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SsdState {
    /// In use, as its [`SsdMode`] says.
    Active,
    /// A write, a flush or the device itself failed: it takes no new pages until it is re-admitted. Pages
    /// that the HDD has too are read there when the SSD cannot give them. Writes are refused once they can no
    /// longer be made safely.
    Degraded,
    /// Not in use: the store works as one without an SSD.
    Off,
}

/// What happened to the SSD.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SsdEvent {
    /// It failed, and takes no new pages.
    Degraded {
        /// The first error.
        cause: Arc<str>,
    },
    /// Writes are refused from now on: going on would lose data.
    Refusing {
        /// The first error.
        cause: Arc<str>,
        /// Whether it was the SSD's, so that re-admitting it or going on without it ends the refusal.
        by_ssd: bool,
    },
    /// Its mode was changed.
    Mode {
        /// The mode now in force.
        mode: SsdMode,
    },
    /// It is out of use: the store works as one without an SSD.
    Off,
    /// It was admitted, or taken back.
    Active,
    /// The subscriber was slow: so many events before the next one were dropped.
    Missed {
        /// How many.
        events: u64,
    },
    /// The only copy of a page's newest version turned out to be lost or damaged.
    Lost {
        /// The page.
        page: PageId,
    },
}

/// Events kept for a slow subscriber; older ones are dropped for it.
pub(crate) const EVENTS_KEPT: usize = 64;

/// Why writes are refused, if they are.
#[derive(Debug, Default)]
pub(crate) struct Refusing(Mutex<Option<(Arc<str>, bool)>>);

impl Refusing {
    /// False when there was a reason already.
    pub(crate) fn set(&self, cause: &str, by_ssd: bool) -> bool {
        let mut reason = self.0.lock();
        let first = reason.is_none();
        // What the HDD did is not mended by exchanging the SSD.
        if first || (!by_ssd && reason.as_ref().is_some_and(|(_, by_ssd)| *by_ssd)) {
            *reason = Some((Arc::from(cause), by_ssd));
        }
        first
    }

    pub(crate) fn cause(&self) -> Option<Arc<str>> {
        self.0.lock().as_ref().map(|(cause, _)| Arc::clone(cause))
    }

    pub(crate) fn by_hdd(&self) -> Option<Arc<str>> {
        self.0.lock().as_ref().filter(|(_, by_ssd)| !by_ssd).map(|(cause, _)| Arc::clone(cause))
    }

    /// The SSD is no reason any more.
    fn clear_ssd(&self) {
        let mut reason = self.0.lock();
        *reason = reason.take().filter(|(_, by_ssd)| !by_ssd);
    }
}

/// Quiet: no write runs to either device. Ends when dropped.
pub(crate) struct Quiet<'a> {
    pub(crate) core: &'a Core,
    _gate: RwLockWriteGuard<'a, ()>,
    _home: MutexGuard<'a, ()>,
    _map: MutexGuard<'a, ()>,
}

impl std::fmt::Debug for Quiet<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Quiet").finish_non_exhaustive()
    }
}

/// No admissions while it lives.
struct Closing<'a>(&'a Core);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.reopen();
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        self.core.reopen();
    }
}

impl Core {
    fn reopen(&self) {
        self.state.lock().closing = false;
        self.changed.notify_waiters();
        self.wake.notify_one();
    }

    /// Waits for quiet. Cancel-safe.
    pub(crate) async fn quiesce(&self) -> Quiet<'_> {
        let gate = self.gate.write().await;
        self.state.lock().closing = true;
        let closing = Closing(self);
        self.when(|state| state.admissions == 0).await;
        let home = self.home_duty.lock().await;
        let map = self.map_duty.lock().await;
        std::mem::forget(closing);
        Quiet { core: self, _gate: gate, _home: home, _map: map }
    }

    pub(crate) fn event(&self, event: SsdEvent) {
        // There may be no listener.
        let _ = self.events.send(event);
    }

    pub(crate) fn ssd_state(&self) -> SsdState {
        let failed = self.state.lock().ssd_error.is_some();
        match (self.has_slots(), failed) {
            (false, _) => SsdState::Off,
            (true, true) => SsdState::Degraded,
            (true, false) => SsdState::Active,
        }
    }

    pub(crate) fn mode(&self) -> SsdMode {
        if self.has_slots() { self.state.lock().mode } else { SsdMode::Off }
    }

    /// From now on. To and from [`SsdMode::Off`] leads [`Quiet::replace`].
    pub(crate) fn set_mode(&self, mode: SsdMode) {
        let mut state = self.state.lock();
        let changed = std::mem::replace(&mut state.mode, mode) != mode;
        drop(state);
        if changed {
            tracing::info!(?mode, "the SSD's mode");
            self.event(SsdEvent::Mode { mode });
        }
        self.changed.notify_waiters();
    }
}

impl Quiet<'_> {
    /// Makes everything that was written home durable, so that the ring is not needed any more.
    pub(crate) async fn flush_hdd(&self) -> Result<(), DeviceError> {
        self.core.flush_hdd(self.core.hdd_flush.next()).await
    }

    /// Exchanges the device: what was on the old one does not count from here on. The pages that had copies
    /// there, and of those the ones whose newest version was nowhere else, with the log position from which
    /// redo would bring each back. Without waiting: `vacant` was awaited before.
    pub(crate) fn replace(
        &self,
        device: SharedDevice,
        layout: Layout,
        zone_percent: f64,
        policy: Box<dyn SlotPolicy>,
    ) -> Replaced {
        let core = self.core;
        let mut state = core.state.lock();
        let copies = state.slots.copies();
        let only = state.slots.only_copies();
        state.slots = Slots::new(SlotParams::new(layout.slots, zone_percent), policy, &[], 0);
        state.ring = Ring::new(layout.ring_pages, 0);
        state.backed = Backed::default();
        state.journal = JournalPlace::new(0, 0);
        state.lsn_floor = Lsn(0);
        state.map_doubtful = false;
        *core.side.write() = core.new_side(device, layout);
        core.forgive(&mut state);
        drop(state);
        core.event(if core.has_slots() { SsdEvent::Active } else { SsdEvent::Off });
        Replaced { copies, only }
    }

    /// Waits until no read holds a slot; from here on pages are read at home until the quiet ends or the
    /// device was replaced.
    pub(crate) async fn vacant(&self) -> Vacant<'_> {
        self.core.state.lock().slots.hide(true);
        let vacant = Vacant(self.core);
        self.core.when(|state| state.slots.readers() == 0).await;
        vacant
    }
}

/// The slots are hidden from reads while it lives.
pub(crate) struct Vacant<'a>(&'a Core);

impl Drop for Vacant<'_> {
    fn drop(&mut self) {
        self.0.state.lock().slots.hide(false);
        self.0.changed.notify_waiters();
    }
}

/// What was on a device that is not used any more.
#[derive(Debug, Default)]
pub(crate) struct Replaced {
    pub(crate) copies: Vec<PageId>,
    pub(crate) only: Vec<(PageId, Lsn)>,
}

impl Core {
    /// The SSD's failures are over.
    pub(crate) fn forgive(&self, state: &mut crate::core::State) {
        state.ssd_error = None;
        state.map_failed = false;
        self.refusing.clear_ssd();
    }
}
