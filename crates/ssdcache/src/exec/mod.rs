//! Carries the protocol out over two devices. This file: what its parts share.
//!
//! Locking: `state` is the only lock held across more than a few instructions, and never across an `.await`.
//! The group flushes' locks are leaves. A task that waits for the state to change registers with `changed`
//! before it looks.

pub(crate) mod budget;
pub(crate) mod cache_device;
pub(crate) mod checkpoint;
mod coalesce;
pub(crate) mod drain;
pub(crate) mod flush;
pub(crate) mod maintenance;
mod mend;
pub(crate) mod open;
pub(crate) mod quiet;
mod read;
pub(crate) mod readmit;
pub(crate) mod remember;
pub(crate) mod scrub;
mod seam;
mod second_chance;
#[cfg(test)]
mod tests;
mod unflushed;
mod version;
pub(crate) mod write;
mod write_back;
mod write_home;

use crate::format::layout::Layout;
use crate::mode::SsdEvent;
use crate::protocol::Protocol;
use crate::protocol::flushes::{HddFlush, SsdFlush};
use crate::rules::{Rules, State};
use budget::Budget;
use cache_device::CacheDevice;
use flush::{Failures, GroupFlush};
use pagetier_bufpool::TierError;
use pagetier_devio::{DeviceError, IoBuf, SharedDevice};
use pagetier_page::{Defect, Header, Lsn, PageId, PageSize, Stamp, StampSource, StoreSeed};
use pagetier_policy::Millis;
use parking_lot::{Mutex, RwLock};
use remember::Flushed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use tokio::sync::{Notify, broadcast};
use tokio::time::Instant;
use unflushed::UnflushedHomes;

/// Where every page has its home on the HDD: the store's table of spaces.
pub trait Homes: Send + Sync + 'static {
    /// The byte offset of `page`, or `None` when its space or the page does not exist.
    fn offset(&self, page: PageId) -> Option<u64>;
}

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

    /// Withdraws a cause that lay with the SSD.
    pub(crate) fn clear_ssd(&self) {
        let mut reason = self.0.lock();
        *reason = reason.take().filter(|(_, by_ssd)| !by_ssd);
    }
}

/// Wakes the duties of the maintenance task.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    pub(crate) slots: Notify,
    pub(crate) victims: Notify,
}

impl Wake {
    pub(crate) fn notify_one(&self) {
        self.slots.notify_one();
        self.victims.notify_one();
    }
}

/// Asks the pool for the oldest log position that redo would need; `None`: nothing is dirty.
pub(crate) type RedoFrom = Box<dyn Fn() -> Option<Lsn> + Send + Sync>;

pub(crate) struct Core {
    /// What the store's checksums start from.
    pub(crate) seed: StoreSeed,
    pub(crate) page_size: PageSize,
    pub(crate) homes: Arc<dyn Homes>,
    pub(crate) hdd: SharedDevice,
    /// The SSD, or the file that holds the ring of a store without one. Exchanged in
    /// [`crate::exec::quiet::Quiet`] only.
    pub(crate) cache_device: RwLock<Arc<CacheDevice>>,
    pub(crate) state: State,
    pub(crate) stamps: StampSource,
    pub(crate) hdd_flush: GroupFlush<HddFlush>,
    /// What failed flushes come to.
    pub(crate) failures: Arc<Failures>,
    /// Home writes that are not durable.
    pub(crate) unflushed: Arc<UnflushedHomes>,
    /// The state changed in a way that a task may wait for.
    pub(crate) changed: Notify,
    /// Work for the maintenance task.
    pub(crate) wake: Wake,
    pub(crate) opened: Instant,
    /// The first error after which writes can no longer be made safely.
    pub(crate) refusing: Refusing,
    /// Writers are inside with a shared lock. Taken before all that follows; see [`crate::exec::quiet`].
    pub(crate) gate: tokio::sync::RwLock<()>,
    /// Held while pages are written home from slots, for one batch.
    pub(crate) home_duty: tokio::sync::Mutex<()>,
    /// Held for a checkpoint or a flush of the maintenance.
    pub(crate) map_duty: tokio::sync::Mutex<()>,
    pub(crate) events: broadcast::Sender<SsdEvent>,
    /// The oldest LSN that redo needs for what is dirty in memory; without, nothing is known of it.
    pub(crate) redo_from: OnceLock<RedoFrom>,
    pub(crate) spare: Mutex<Vec<IoBuf>>,
    /// The maintenance task shall end.
    pub(crate) stopping: AtomicBool,
    /// The most admissions of evicted pages in flight; one more is skipped and counted.
    pub(crate) admissions_max: usize,
    /// Where admissions run: the runtime that the tier was opened on.
    pub(crate) runtime: tokio::runtime::Handle,
    /// The number of changes of the policy's choice that have been logged.
    pub(crate) choice_changes: AtomicU64,
    pub(crate) budget: Budget,
    pub(crate) rules: Rules,
}

impl Core {
    pub(crate) fn now(&self) -> Millis {
        Millis(self.opened.elapsed().as_millis() as u64)
    }

    pub(crate) fn doublewrite(&self) -> bool {
        self.layout().ring_pages > 0
    }

    pub(crate) fn has_slots(&self) -> bool {
        self.layout().slots > 0
    }

    pub(crate) fn cache_device(&self) -> Arc<CacheDevice> {
        Arc::clone(&self.cache_device.read())
    }

    /// What `device` becomes when it takes the place of the SSD.
    pub(crate) fn new_cache_device(&self, device: SharedDevice, layout: Layout) -> Arc<CacheDevice> {
        CacheDevice::new(device, layout, &self.failures, &self.runtime)
    }

    pub(crate) fn layout(&self) -> Layout {
        self.cache_device.read().layout
    }

    /// The SSD, or the ring's file.
    pub(crate) fn ssd(&self) -> SharedDevice {
        Arc::clone(&self.cache_device.read().device)
    }

    /// The number of the first flush of the SSD that will cover every write completed by now.
    pub(crate) fn next_ssd_flush(&self) -> SsdFlush {
        self.cache_device.read().flush.next()
    }

    /// Waits until the state is so. Cancel-safe.
    pub(crate) async fn when(&self, so: impl Fn(&Protocol) -> bool) {
        self.when_some(|state| so(state).then_some(())).await;
    }

    /// Waits until the state yields something. Cancel-safe.
    pub(crate) async fn when_some<T>(&self, mut from: impl FnMut(&mut Protocol) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let found = from(&mut self.state.lock());
            if let Some(found) = found {
                return found;
            }
            changed.await;
        }
    }

    /// A page-sized buffer with unspecified contents.
    pub(crate) fn buffer(&self) -> IoBuf {
        self.spare.lock().pop().unwrap_or_else(|| IoBuf::zeroed(self.page_size.bytes()))
    }

    pub(crate) fn give_back(&self, buf: IoBuf) {
        let mut spare = self.spare.lock();
        if spare.len() < self.admissions_max && buf.len() == self.page_size.bytes() {
            spare.push(buf);
        }
    }

    /// Flushes `devices`, one after the other.
    pub(crate) async fn flush(&self, devices: &[Flushed]) -> Result<(), DeviceError> {
        for device in devices {
            match device {
                Flushed::Ssd => self.flush_ssd().await?,
                Flushed::Hdd => self.flush_hdd().await?,
            }
        }
        Ok(())
    }

    /// Flushes the SSD at least once from now, and frees what that makes free.
    pub(crate) async fn flush_ssd(&self) -> Result<(), DeviceError> {
        self.cover_ssd(self.next_ssd_flush()).await
    }

    /// Waits for flush `number` of the SSD, and starts it if need be.
    pub(crate) async fn cover_ssd(&self, number: SsdFlush) -> Result<(), DeviceError> {
        let over = match self.cache_device().flush.cover(number).await {
            Ok(over) => over,
            Err(error) => {
                // What it should have made durable may be lost, and nothing after it can be promised.
                self.ssd_failed(&error);
                self.refuse(&error.to_string(), true);
                return Err(error);
            }
        };
        self.state.lock().slots.flushed(over);
        self.changed.notify_waiters();
        Ok(())
    }

    /// Flushes the HDD at least once from now, and frees the ring entries whose pages are home.
    pub(crate) async fn flush_hdd(&self) -> Result<(), DeviceError> {
        match self.hdd_flush.cover(self.hdd_flush.next()).await {
            Ok(over) => {
                self.unflushed.flushed(over);
                let mut state = self.state.lock();
                state.hdd_flushed(over);
                state.slots.homes_flushed(&|page| self.unflushed.unflushed(page).is_some());
                drop(state);
                self.changed.notify_waiters();
                Ok(())
            }
            Err(error) => {
                self.state.lock().home.flush_failed();
                self.refuse(&error.to_string(), false);
                Err(error)
            }
        }
    }

    /// Of a page whose home was written without anything to back it, until that is durable: the oldest change
    /// that the HDD may lack.
    pub(crate) fn unbacked(&self, page: PageId) -> Option<Lsn> {
        let lsn = if self.doublewrite() { None } else { self.unflushed.unflushed(page) };
        self.rules.unbacked(lsn)
    }

    /// From now on writes are refused: going on could lose data.
    pub(crate) fn refuse(&self, cause: &str, by_ssd: bool) {
        if self.refusing.set(cause, by_ssd) {
            tracing::error!(cause, "the store refuses writes from now on");
            self.event(SsdEvent::Refusing { cause: Arc::from(cause), by_ssd });
        }
        self.changed.notify_waiters();
    }

    pub(crate) fn refusal(&self) -> Option<TierError> {
        self.refusing.cause().map(|cause| TierError::Refusing { cause })
    }

    /// The SSD failed: no new pages go there; what it holds stays readable.
    pub(crate) fn ssd_failed(&self, cause: &DeviceError) {
        let mut state = self.state.lock();
        let first = state.ssd_error.is_none().then(|| Arc::<str>::from(cause.to_string()));
        if let Some(cause) = &first {
            state.ssd_error = Some(Arc::clone(cause));
        }
        drop(state);
        if let Some(cause) = first.filter(|_| self.has_slots()) {
            tracing::error!(%cause, "the SSD takes no new pages from now on");
            self.event(SsdEvent::Degraded { cause });
        }
        self.changed.notify_waiters();
    }

    /// Forgets the failures of the SSD.
    pub(crate) fn forgive(&self, state: &mut Protocol) {
        state.ssd_error = None;
        state.map_failed = false;
        self.refusing.clear_ssd();
    }

    pub(crate) fn event(&self, event: SsdEvent) {
        // There may be no listener.
        let _ = self.events.send(event);
    }

    /// Checks an image against the page and, where it is known, the version expected.
    pub(crate) fn check(&self, image: &[u8], page: PageId, stamp: Option<Stamp>) -> Result<Header, Defect> {
        check(self.seed, image, page, stamp)
    }

    pub(crate) fn corrupt(
        &self,
        page: PageId,
        device: &SharedDevice,
        offset: u64,
        defect: Defect,
    ) -> TierError {
        TierError::Corrupt { page, device: Arc::from(device.name()), offset, defect }
    }

    pub(crate) fn slot_at(&self, slot: pagetier_policy::SlotId) -> u64 {
        self.layout().slot_at(slot.0)
    }
}

/// Checks an image against the store, the page and, where it is known, the version expected.
pub(crate) fn check(
    seed: StoreSeed,
    image: &[u8],
    page: PageId,
    stamp: Option<Stamp>,
) -> Result<Header, Defect> {
    let header = pagetier_page::verify(seed, image, page)?;
    match stamp {
        Some(expected) if expected != header.stamp => {
            Err(Defect::WrongStamp { expected, found: header.stamp })
        }
        _ => Ok(header),
    }
}
