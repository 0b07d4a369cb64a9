//! The quiet state in which the cache device can be exchanged or verified.
//!
//! It is reached in four steps, each of which waits for work that may need the next: no writer is inside
//! ([`Core::writers`]), no admission is in flight, no write-back runs ([`Core::home_duty`]), no checkpoint
//! runs ([`Core::map_duty`]). Reads continue; [`Quiet::vacant`] waits for those that hold a slot.

use super::Core;
use crate::format::layout::Layout;
use crate::mode::SsdEvent;
use crate::protocol::home_batches::HomeBatches;
use crate::protocol::slots::{SlotParams, Slots};
use pagetier_devio::locks::{MutexGuard, RwLockWriteGuard};
use pagetier_devio::{DeviceError, SharedDevice};
use pagetier_page::{Lsn, PageId};
use pagetier_policy::SlotPolicy;
use std::sync::Arc;

/// The device that replaces the one in use: a newly formatted SSD, or a file for the ring alone.
pub struct NewCacheDevice {
    /// The device, formatted by [`format`](crate::format).
    pub device: SharedDevice,
    /// The layout that its superblock states.
    pub layout: Layout,
    /// The SSD policy, empty.
    pub policy: Box<dyn SlotPolicy>,
    /// The eviction zone, in per cent of the slots.
    pub zone_percent: f64,
}

impl std::fmt::Debug for NewCacheDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewCacheDevice")
            .field("device", &self.device)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

/// What the old device held.
#[derive(Clone, Debug, Default)]
pub struct Exchanged {
    /// Pages that had a copy there.
    pub copies: Vec<PageId>,
    /// Those whose newest version was nowhere else, each with the log position from which redo would bring it
    /// back.
    pub lost: Vec<(PageId, Lsn)>,
}

/// Why the device was not exchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError<E> {
    /// The old device holds only copies.
    #[error("the SSD holds the only copies of {pages} pages")]
    OnlyCopies {
        /// The number of pages with an only copy.
        pages: u64,
    },
    /// Writes are refused because of the HDD.
    #[error("the store refuses writes since: {cause}")]
    Refusing {
        /// The error after which the store became read-only.
        cause: Arc<str>,
    },
    /// A device failed while the exchange was prepared: nothing has changed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The exchange could not be recorded. It is uncertain which device a restart would find, so writes are
    /// refused.
    #[error("the exchange could not be recorded")]
    Commit(E),
}

/// The quiet state: no write to either device is under way. Ends when dropped.
pub(crate) struct Quiet<'a> {
    pub(crate) core: &'a Core,
    _closing: Closing<'a>,
    _writers: RwLockWriteGuard<'a, ()>,
    _home: MutexGuard<'a, ()>,
    _map: MutexGuard<'a, ()>,
}

/// Suspends admissions while it exists.
struct Closing<'a>(&'a Core);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.state.lock().closing = false;
        self.0.changed.notify_waiters();
        self.0.wake.notify_one();
    }
}

impl Core {
    /// Waits until every write that has begun has ended; later ones obey a mode set before. Cancel-safe.
    pub(crate) async fn writes_ended(&self) {
        drop(self.writers.write().await);
    }

    /// Waits for quiet. Cancel-safe.
    pub(crate) async fn quiesce(&self) -> Quiet<'_> {
        // From the outside in. A writer may need an admission, a write-back or a checkpoint to get on, so
        // each of these must still run while we wait for the one before.
        let writers = self.writers.write().await;
        // Under a steady load the number of admissions in flight would never be 0.
        self.state.lock().closing = true;
        let closing = Closing(self);
        self.when(|state| state.admissions == 0).await;
        let home = self.home_duty.lock().await;
        let map = self.map_duty.lock().await;
        Quiet { core: self, _closing: closing, _writers: writers, _home: home, _map: map }
    }
}

impl Quiet<'_> {
    /// Exchanges the device: from here on the old one's contents do not count. Returns the pages that had
    /// copies there, and those that are lost. Does not wait: the caller has awaited `vacant`.
    pub(crate) fn replace(&self, new: NewCacheDevice) -> Exchanged {
        let NewCacheDevice { device, layout, policy, zone_percent } = new;
        let core = self.core;
        let mut state = core.state.lock();
        let copies = state.slots.copies();
        let lost = state.slots.only_copies();
        // Which spaces stay off the SSD is the store's decision and outlives the device.
        let kept_off = state.slots.spaces_kept_off();
        state.slots = Slots::new(SlotParams::new(layout.slots, zone_percent), policy, &[], 0);
        kept_off.into_iter().for_each(|space| state.slots.keep_off(space, true));
        state.home = HomeBatches::new(layout.ring_pages, 0, layout.journal_blocks, Default::default());
        state.lsn_floor = Lsn(0);
        state.map_doubtful = false;
        // Still under the state's lock, so that no plan made for a slot of the old device is carried out on
        // the new one (I29).
        *core.cache_device.write() = core.new_cache_device(device, layout);
        core.forgive(&mut state);
        core.resend_price();
        drop(state);
        core.event(if core.has_slots() { SsdEvent::Active } else { SsdEvent::Off });
        Exchanged { copies, lost }
    }

    /// Waits until no read holds a slot. Pages are read from their homes until the result is dropped.
    pub(crate) async fn vacant(&self) -> Vacant<'_> {
        self.core.state.lock().slots.hide(true);
        let vacant = Vacant(self.core);
        self.core.when(|state| state.slots.readers() == 0).await;
        vacant
    }
}

/// Hides the slots from reads while it exists.
pub(crate) struct Vacant<'a>(&'a Core);

impl Drop for Vacant<'_> {
    fn drop(&mut self) {
        self.0.state.lock().slots.hide(false);
        self.0.changed.notify_waiters();
    }
}
