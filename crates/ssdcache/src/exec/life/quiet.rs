//! The quiet state in which the cache device can be exchanged or verified.
//!
//! It is reached in four steps, each of which waits for work that may need the next: no writer is inside
//! ([`Core::writers`]), no admission is in flight, no write-back runs ([`Core::home_duty`]), no checkpoint
//! runs ([`Core::map_duty`]). Reads continue; [`Quiet::vacant`] waits for those that hold a slot.

use crate::exec::tier::SsdTier;
use crate::exec::{Core, RefusedBy};
use crate::format::layout::Layout;
use crate::mode::SsdEvent;
use crate::protocol::home_batches::HomeBatches;
use crate::protocol::slots::{SlotParams, Slots};
use pagetier_bufpool::TierError;
use pagetier_devio::locks::{MutexGuard, RwLockWriteGuard};
use pagetier_devio::task::Boxed;
use pagetier_devio::{DeviceError, SharedDevice};
use pagetier_page::{Lsn, PageId};
use pagetier_policy::SlotPolicy;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The device that replaces the one in use: a newly formatted SSD, or a file for the ring alone.
pub struct NewCacheDevice {
    /// The device, formatted by [`format`](crate::format).
    pub device: SharedDevice,
    /// The layout that its superblock states.
    pub layout: Layout,
    /// Whether its ring is on the HDD, and the same as the old one's.
    pub ring_on_hdd: bool,
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
    #[error("the newest versions of {pages} pages are on the SSD alone: drain it first, or accept the loss")]
    OnlyCopies {
        /// The number of pages with an only copy.
        pages: u64,
    },
    /// Writes are refused because of the HDD.
    #[error("the store refuses writes after an earlier error: {cause}")]
    Refusing {
        /// The error after which the store refuses writes.
        cause: Arc<str>,
    },
    /// A device failed while the exchange was prepared: nothing has changed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The exchange could not be recorded. It is uncertain which device a restart would find, so writes are
    /// refused.
    #[error(
        "the exchange of the SSD could not be recorded: the next open may find the old SSD or the new one"
    )]
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

/// The record of an exchange has begun and may have taken effect. Dropped: writes are refused.
struct Unfinished<'a>(&'a Core);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.refuse("the exchange of the SSD could not be recorded in the manifest", RefusedBy::Hdd);
    }
}

impl SsdTier {
    /// Exchanges the SSD (or the ring's file) for `new`: waits until nothing is under way, makes home writes
    /// durable, calls `commit`, and switches to `new`. `commit` durably records that `new` is the device in
    /// use and that the pages passed to it are lost with the old one. With `accepts_loss` the exchange takes
    /// place even if the old device holds only copies, if it accepts the loss of each. Cancel-safe: a dropped
    /// call has either exchanged the device or changed nothing; if it is dropped during `commit`, writes are
    /// refused as after its failure.
    ///
    /// # Errors
    /// [`ExchangeError`]; the old one stays in use.
    pub async fn exchange<E, F: Future<Output = Result<(), E>>>(
        &self,
        new: NewCacheDevice,
        accepts_loss: Option<&(dyn Fn(PageId, Lsn) -> bool + Sync)>,
        commit: impl FnOnce(Vec<(PageId, Lsn)>) -> F,
    ) -> Result<Exchanged, ExchangeError<E>> {
        let quiet = self.core.quiesce().await;
        if let Some(cause) = self.core.refusing.by_hdd() {
            return Err(ExchangeError::Refusing { cause });
        }
        // Flush before counting: some copies are dirty only until the HDD is flushed.
        self.core.flush_hdd().await?;
        let is_kept = |(page, lsn): &(PageId, Lsn)| accepts_loss.is_none_or(|accepts| !accepts(*page, *lsn));
        let kept = self.ask(Slots::only_copies).iter().filter(|one| is_kept(one)).count() as u64;
        if kept > 0 {
            return Err(ExchangeError::OnlyCopies { pages: kept });
        }
        let torn = self.core.state.lock().home.needs_ring_repair();
        if torn && self.core.repair_from_ring().await.is_ok() {
            self.core.flush_hdd().await?;
        }
        if self.core.state.lock().home.needs_ring_repair() && accepts_loss.is_none() {
            let cause = "writes to the HDD failed and may have torn pages there, which only the doublewrite \
                         ring on the present device can repair";
            return Err(ExchangeError::Refusing { cause: Arc::from(cause) });
        }
        let vacant = quiet.vacant().await;
        // Once the record has begun, a restart may find either device. No `.await` between its success and
        // the exchange: a call that is dropped in between would go on with the device that is not recorded.
        let unfinished = Unfinished(&self.core);
        commit(self.ask(Slots::only_copies)).await.map_err(ExchangeError::Commit)?;
        std::mem::forget(unfinished);
        let exchanged = quiet.replace(new);
        drop(vacant);
        if self.core.has_slots()
            && let Err(error) = self.core.checkpoint().await
        {
            self.core.ssd_failed(&error);
        }
        Ok(exchanged)
    }

    /// Replaces the policy by `policy`, which is empty. The copies keep their slots, and those that are newer
    /// than the HDD's versions stay so: the SSD is neither drained nor formatted. Waits until nothing is
    /// under way, and names the zone in which the policy works by a checkpoint; reads continue, writes wait.
    /// `with_buffered` passes on the pages in memory, of which none leaves memory meanwhile. Must be driven
    /// to completion.
    ///
    /// # Errors
    /// The HDD cannot be flushed, or writes are refused; the policy in use is kept.
    pub async fn set_policy(
        &self,
        policy: Box<dyn SlotPolicy>,
        zone_percent: f64,
        with_buffered: impl FnOnce(&mut dyn FnMut(&[PageId])),
    ) -> Result<(), TierError> {
        let _quiet = self.core.quiesce().await;
        if let Some(refusal) = self.core.refusal() {
            return Err(refusal);
        }
        // After this flush, slots that back a home write and copies that wait for one are clean.
        self.core.flush_hdd().await?;
        let now = self.core.now();
        let (mut policy, mut usable) = (Some(policy), false);
        with_buffered(&mut |pages| {
            let Some(policy) = policy.take() else { return };
            let mut state = self.core.state.lock();
            state.slots.switch_policy(policy, zone_percent, pages, now);
            self.core.choice_changes.store(0, Ordering::Relaxed);
            self.core.resend_price();
            usable = state.ssd_error.is_none();
        });
        if usable
            && self.core.has_slots()
            && let Err(error) = self.core.checkpoint().await
        {
            self.core.ssd_failed(&error);
        }
        Ok(())
    }

    /// Waits until every write that has begun has ended; later ones obey a mode set before. Cancel-safe.
    pub fn writes_ended(&self) -> Boxed<'_, ()> {
        Box::pin(async { drop(self.core.writers.write().await) })
    }
}

impl Core {
    /// Puts the ring into use if the HDD has refused to keep a page whole: waits until nothing is under way,
    /// and makes the homes durable that have no image (I48). If that fails, writes are refused. Cancel-safe.
    pub(crate) async fn use_ring(&self) {
        let _quiet = self.quiesce().await;
        if !self.refused_whole.load(Ordering::Acquire) || self.flush_hdd().await.is_err() {
            return;
        }
        self.state.lock().home.use_ring();
        self.hdd.keep_whole(0);
        self.whole.store(false, Ordering::Release);
        self.refused_whole.store(false, Ordering::Release);
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
        let NewCacheDevice { device, layout, ring_on_hdd, policy, zone_percent } = new;
        let core = self.core;
        let mut state = core.state.lock();
        let copies = state.slots.copies();
        let lost = state.slots.only_copies();
        // Which spaces stay off the SSD is the store's decision and outlives the device.
        let kept_off = state.slots.spaces_kept_off();
        state.slots = Slots::new(SlotParams::new(layout.slots, zone_percent), policy, &[], 0);
        kept_off.into_iter().for_each(|space| state.slots.keep_off(space, true));
        // Where the old ring stays, its images are overwritten in their order: none may outlive a newer one
        // of its page.
        let ring_from = if ring_on_hdd { state.home.ring_next() } else { 0 };
        state.home =
            HomeBatches::new(layout.ring_pages, ring_from, layout.journal_blocks, Default::default())
                .ring_takes_all(ring_on_hdd)
                .ring_rests(core.whole.load(Ordering::Acquire));
        state.lsn_floor = Lsn(0);
        state.map_unverified = false;
        // Still under the state's lock, so that no plan made for a slot of the old device is carried out on
        // the new one (I29).
        *core.cache_device.write() = core.new_cache_device(device, layout, ring_on_hdd);
        core.slotted.store(layout.slots > 0, Ordering::Release);
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
