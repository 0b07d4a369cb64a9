//! Executes the protocol on two devices. This file holds what the parts share.
//!
//! Locking: `state` is the only lock held for more than a few instructions, and never across an `.await`. The
//! group flushes' locks are leaves. A task that waits for a change of the state registers with `changed`
//! before it checks.
//!
//! Begin with `tier` (the handle), then `write::route` and `read::fetch`.

pub(crate) mod flush;
mod io;
pub(crate) mod life;
pub(crate) mod open;
#[cfg(feature = "probes")]
mod probes;
pub(crate) mod read;
pub(crate) mod stats;
#[cfg(test)]
mod tests;
pub(crate) mod tier;
pub(crate) mod upkeep;
mod write;

use crate::format::layout::Layout;
use crate::mode::{HomeWrites, SsdEvent};
use crate::protocol::Protocol;
use crate::protocol::flushes::{HddFlush, SsdFlush};
use crate::remember::Flushed;
use flush::cache_device::CacheDevice;
use flush::group::{Failures, GroupFlush};
use flush::unflushed::UnflushedHomes;
use pagetier_bufpool::TierError;
use pagetier_devio::listen;
use pagetier_devio::locks;
use pagetier_devio::{Claim, DeviceError, DeviceErrorKind, IoBuf, SharedDevice};
use pagetier_page::{Defect, Header, Lsn, PageId, PageSize, Stamp, StampSource, StoreSeed};
use pagetier_policy::Millis;
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::{Notify, broadcast};
use tokio::time::Instant;
use upkeep::budget::Budget;

/// Maps every page to its home on the HDD: the store's table of spaces.
pub trait Homes: Send + Sync + 'static {
    /// The byte offset of `page`, or `None` when its space or the page does not exist.
    fn offset(&self, page: PageId) -> Option<u64>;

    /// The byte offset to read `page` from, or `None` when the HDD has no version of it: the page does not
    /// exist, or its number was reused and it has not been written since. Default: [`Homes::offset`].
    fn source(&self, page: PageId) -> Option<u64> {
        self.offset(page)
    }

    /// The byte offset of the home of `page`, even if the page was freed: a recovery repairs such a home too,
    /// so that it is not torn when its number is reused. Default: [`Homes::offset`].
    fn place(&self, page: PageId) -> Option<u64> {
        self.offset(page)
    }

    /// Whether `page`, which has no offset, was given up: it was freed, or its space is being dropped. If it
    /// was not, it has lost its home by a fault, and a write of it fails. Default: no page was.
    fn is_given_up(&self, _page: PageId) -> bool {
        false
    }

    /// Whether the home of `page` holds zeroes until it is written for the first time, or lies beyond the
    /// HDD's end. Otherwise it was formatted ([`pagetier_page::format_homes`]), and zeroes there are damage.
    /// Default: yes.
    fn may_be_blank(&self, _page: PageId) -> bool {
        true
    }

    /// A version of `page` has been written, to the SSD or home. Default: nothing.
    fn written(&self, _page: PageId) {}

    /// The newest version of `page` has been discarded. Default: nothing.
    fn discarded(&self, _page: PageId) {}
}

/// What made the store refuse writes, in ascending precedence. Putting the SSD back into use clears `Map`
/// and `Ssd`, but not `Hdd`, and must see if the SSD failed once more while the journal was full.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum RefusedBy {
    /// The map could not be saved, and the journal is full.
    Map,
    Ssd,
    Hdd,
}

/// The reason why writes are refused, if they are, and where the fault lies.
#[derive(Debug, Default)]
pub(crate) struct Refusing(Mutex<Option<(Arc<str>, RefusedBy)>>);

impl Refusing {
    /// Sets the reason, unless the one before has at least its precedence; returns whether there was none.
    pub(crate) fn set(&self, cause: &str, by: RefusedBy) -> bool {
        let mut reason = self.0.lock();
        let first = reason.is_none();
        if reason.as_ref().is_none_or(|(_, earlier)| *earlier < by) {
            *reason = Some((Arc::from(cause), by));
        }
        first
    }

    pub(crate) fn cause(&self) -> Option<Arc<str>> {
        self.0.lock().as_ref().map(|(cause, _)| Arc::clone(cause))
    }

    pub(crate) fn by_hdd(&self) -> Option<Arc<str>> {
        self.0.lock().as_ref().filter(|(_, by)| *by == RefusedBy::Hdd).map(|(cause, _)| Arc::clone(cause))
    }

    /// Withdraws a cause that lay with the SSD.
    pub(crate) fn clear_ssd(&self) {
        let mut reason = self.0.lock();
        *reason = reason.take().filter(|(_, by)| *by == RefusedBy::Hdd);
    }
}

/// Wakes the duties of the maintenance task.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    pub(crate) slots: Notify,
    pub(crate) victims: Notify,
    /// The HDD has refused to write a page whole.
    pub(crate) ring: Notify,
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
    /// The seed of the store's checksums.
    pub(crate) seed: StoreSeed,
    pub(crate) page_size: PageSize,
    pub(crate) homes: Arc<dyn Homes>,
    pub(crate) hdd: SharedDevice,
    /// The HDD keeps pages whole, so the ring rests. Changes only in [`crate::exec::life::quiet::Quiet`].
    pub(crate) whole: AtomicBool,
    /// The HDD has refused to: the ring must be put into use.
    pub(crate) refused_whole: AtomicBool,
    /// The claim to it.
    pub(crate) claim: Claim,
    /// See `SsdTier::reversions`.
    pub(crate) reversions: AtomicU64,
    /// The SSD, or the ring's file in a store without one. Exchanged only under
    /// [`crate::exec::life::quiet::Quiet`].
    pub(crate) cache_device: RwLock<Arc<CacheDevice>>,
    /// Whether it has slots.
    pub(crate) slotted: AtomicBool,
    pub(crate) state: Mutex<Protocol>,
    pub(crate) stamps: StampSource,
    pub(crate) hdd_flush: GroupFlush<HddFlush>,
    /// Handles failed flushes.
    pub(crate) failures: Arc<Failures>,
    /// The home writes that are not durable.
    pub(crate) unflushed: Arc<UnflushedHomes>,
    /// Notified when the state changes in a way that a task may wait for.
    pub(crate) changed: Notify,
    /// Notified when the maintenance task has work.
    pub(crate) wake: Wake,
    pub(crate) opened: Instant,
    /// The first error after which writes can no longer be made safely.
    pub(crate) refusing: Refusing,
    /// Writers hold it shared. Taken before the locks that follow; see [`crate::exec::life::quiet`].
    pub(crate) writers: locks::RwLock<()>,
    /// Held while a batch of pages is written home from slots.
    pub(crate) home_duty: locks::Mutex<()>,
    /// Held by the maintenance task for a checkpoint or a flush.
    pub(crate) map_duty: locks::Mutex<()>,
    pub(crate) events: broadcast::Sender<SsdEvent>,
    /// Returns the oldest LSN that redo needs for pages dirty in memory; unknown while unset.
    pub(crate) redo_from: OnceLock<RedoFrom>,
    pub(crate) spare: Mutex<Vec<IoBuf>>,
    /// Makes the maintenance task end.
    pub(crate) stopping: AtomicBool,
    /// The maximum number of admissions in flight; further ones are skipped.
    pub(crate) admissions_max: usize,
    /// The runtime that the tier was opened on, where admissions run.
    pub(crate) runtime: tokio::runtime::Handle,
    /// The number of changes of the policy's choice that have been logged.
    pub(crate) choice_changes: AtomicU64,
    pub(crate) budget: Budget,
    /// The maximum number of slots whose entries a checkpoint captures at a time.
    pub(crate) map_piece: u32,
}

impl Core {
    pub(crate) fn now(&self) -> Millis {
        Millis(self.opened.elapsed().as_millis() as u64)
    }

    /// Whether pages go home through a ring (I48).
    pub(crate) fn doublewrite(&self) -> bool {
        self.layout().ring_pages > 0 && !self.whole.load(Ordering::Acquire)
    }

    pub(crate) fn home_writes(&self) -> HomeWrites {
        match (self.whole.load(Ordering::Acquire), self.layout().ring_pages) {
            (true, _) => HomeWrites::Whole,
            (false, 0) => HomeWrites::InPlace,
            (false, _) => HomeWrites::Ringed,
        }
    }

    /// Whether `error` says that the HDD refused to write a page whole, for which there is a ring.
    pub(crate) fn wants_ring(&self, error: &TierError) -> bool {
        let TierError::Device { source, .. } = error else { return false };
        matches!(source.kind, DeviceErrorKind::NotWhole(_)) && self.layout().ring_pages > 0
    }

    /// Has the ring put into use, if `error` wants it.
    pub(crate) fn note_home_error(&self, error: &TierError) {
        if self.wants_ring(error) && !self.refused_whole.swap(true, Ordering::AcqRel) {
            let causes = pagetier_devio::Causes(error);
            tracing::warn!(error = %causes, "pages go home through the doublewrite ring from now on");
            self.wake.ring.notify_one();
            // Those that wait for a slot would wait for write-backs, which are refused, too.
            self.changed.notify_waiters();
        }
    }

    pub(crate) fn has_slots(&self) -> bool {
        self.slotted.load(Ordering::Acquire)
    }

    pub(crate) fn cache_device(&self) -> Arc<CacheDevice> {
        Arc::clone(&self.cache_device.read())
    }

    /// Wraps `device` to take the place of the SSD.
    pub(crate) fn new_cache_device(
        &self,
        device: SharedDevice,
        layout: Layout,
        ring_on_hdd: bool,
    ) -> Arc<CacheDevice> {
        CacheDevice::new(device, layout, ring_on_hdd, &self.failures, &self.runtime)
    }

    pub(crate) fn layout(&self) -> Layout {
        self.cache_device.read().layout
    }

    /// The SSD, or the ring's file in a store without one.
    pub(crate) fn ssd(&self) -> SharedDevice {
        Arc::clone(&self.cache_device.read().device)
    }

    /// The first flush of the SSD that will cover every write completed so far.
    pub(crate) fn next_ssd_flush(&self) -> SsdFlush {
        self.cache_device.read().flush.next()
    }

    /// Waits until the state satisfies `so`. Cancel-safe.
    pub(crate) async fn when(&self, so: impl Fn(&Protocol) -> bool) {
        self.when_some(|state| so(state).then_some(())).await;
    }

    /// Waits until `from` yields a value from the state. Cancel-safe.
    pub(crate) async fn when_some<T>(&self, mut from: impl FnMut(&mut Protocol) -> Option<T>) -> T {
        // Nearly every call finds it at the first look, and need not register.
        let found = from(&mut self.state.lock());
        if let Some(found) = found {
            return found;
        }
        loop {
            listen!(changed = self.changed);
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

    /// Makes what was written to `devices` durable, one after the other: a flush that has nothing to make
    /// durable does not reach its device (I42).
    pub(crate) async fn flush(&self, devices: &[Flushed]) -> Result<(), DeviceError> {
        for device in devices {
            match device {
                Flushed::Ssd => {
                    let flush = &self.cache_device().flush;
                    self.ssd_flushed(flush.flush_if_needed(flush.next()).await)?;
                }
                Flushed::Hdd => {
                    let flush = &self.hdd_flush;
                    self.hdd_flushed(flush.flush_if_needed(flush.next()).await)?;
                }
            }
        }
        Ok(())
    }

    /// Flushes the SSD, by a flush that begins after this call, and frees slots accordingly.
    pub(crate) async fn flush_ssd(&self) -> Result<(), DeviceError> {
        self.cover_ssd(self.next_ssd_flush()).await
    }

    /// Waits for flush `number` of the SSD, and starts it if necessary.
    pub(crate) async fn cover_ssd(&self, number: SsdFlush) -> Result<(), DeviceError> {
        self.ssd_flushed(self.cache_device().flush.flush_always(number).await)
    }

    fn ssd_flushed(&self, flushed: Result<SsdFlush, DeviceError>) -> Result<(), DeviceError> {
        let over = match flushed {
            Ok(over) => over,
            Err(error) => {
                // Writes that the flush should have made durable may be lost, so no later promise could be
                // kept.
                self.ssd_failed(&error);
                self.refuse(&error.to_string(), RefusedBy::Ssd);
                return Err(error);
            }
        };
        self.state.lock().slots.flushed(over);
        self.changed.notify_waiters();
        Ok(())
    }

    /// Flushes the HDD, by a flush that begins after this call, and frees the ring entries whose pages are
    /// home.
    pub(crate) async fn flush_hdd(&self) -> Result<(), DeviceError> {
        self.hdd_flushed(self.hdd_flush.flush_always(self.hdd_flush.next()).await)
    }

    fn hdd_flushed(&self, flushed: Result<HddFlush, DeviceError>) -> Result<(), DeviceError> {
        match flushed {
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
                self.refuse(&error.to_string(), RefusedBy::Hdd);
                Err(error)
            }
        }
    }

    /// The oldest change that the HDD may lack of `page`, while its latest home write is not durable and
    /// nothing backs it.
    pub(crate) fn unbacked(&self, page: PageId) -> Option<Lsn> {
        if self.doublewrite() { None } else { self.unflushed.unflushed(page) }
    }

    /// Refuses writes from now on: continuing could lose data.
    pub(crate) fn refuse(&self, cause: &str, by: RefusedBy) {
        if self.refusing.set(cause, by) {
            tracing::error!(cause, "the store refuses writes from now on: they could lose data");
            self.event(SsdEvent::Refusing { cause: Arc::from(cause), by_ssd: by < RefusedBy::Hdd });
        }
        self.changed.notify_waiters();
    }

    pub(crate) fn refusal(&self) -> Option<TierError> {
        self.refusing.cause().map(|cause| TierError::Refusing { cause })
    }

    /// Notes that the SSD failed: it gets no new pages; what it holds stays readable.
    pub(crate) fn ssd_failed(&self, cause: &DeviceError) {
        let mut state = self.state.lock();
        let first = state.ssd_error.is_none().then(|| Arc::<str>::from(cause.to_string()));
        if let Some(cause) = &first {
            state.ssd_error = Some(Arc::clone(cause));
        }
        drop(state);
        if let Some(cause) = first.filter(|_| self.has_slots()) {
            tracing::error!(%cause, "the SSD failed: changed pages go to the HDD until it is readmitted");
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
