//! [`SsdTier`]: one handle for the storage below the pool.

use crate::exec::open::{OpenError, OpenParams, RecoveryReport, open};
use crate::exec::upkeep::maintenance;
use crate::exec::write::route;
use crate::exec::{Core, RefusedBy};
use crate::mode::{SsdEvent, SsdMode, SsdState};
use crate::protocol::Protocol;
use crate::protocol::slots::Slots;
use crate::remember::Flushed;
use pagetier_bufpool::{DirtyPage, Displaced, FENCED, Fetched, Tier, TierError, WrittenPage};
use pagetier_devio::task::{self, Boxed};
use pagetier_devio::{Claim, IoBuf, IoClass, OnChange, SharedDevice};
use pagetier_page::{Lsn, PageId, SpaceId, Stamp};
use pagetier_policy::{Access, Costs, Location};
use parking_lot::Mutex;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use tokio::runtime::Handle;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

/// The minimum write budget, in bytes per day: the overdraft is measured in parts of the budget, so it must
/// not be 0.
const BUDGET_MIN: u64 = 1 << 20;

/// The SSD cache and the HDD behind it. Dropping it without [`SsdTier::shutdown`] stops it at once, which is
/// as safe as a crash.
pub struct SsdTier {
    pub(crate) core: Arc<Core>,
    maintenance: Mutex<Option<JoinHandle<()>>>,
    recovery: RecoveryReport,
}

/// Restricts what the SSD is used for while it exists; see [`SsdTier::at_most`].
#[must_use]
pub struct ModeLimit {
    core: Arc<Core>,
    mode: SsdMode,
}

impl Drop for ModeLimit {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        let at = state.limits.iter().position(|limit| *limit == self.mode);
        at.map(|at| state.limits.swap_remove(at));
        drop(state);
        self.core.changed.notify_waiters();
    }
}

impl SsdTier {
    /// Recovers the SSD and starts its maintenance on the current tokio runtime.
    ///
    /// # Errors
    /// A device failed, or no sound map checkpoint is left.
    pub fn open(params: OpenParams) -> Boxed<'static, Result<Self, OpenError>> {
        Box::pin(async move {
            let (core, recovery) = open(params).await?;
            let core = Arc::new(core);
            let listener: Weak<dyn OnChange> = Arc::downgrade(&(Arc::clone(&core) as Arc<dyn OnChange>));
            core.claim.on_change(listener);
            let maintenance = task::spawn(&Handle::current(), maintenance::run(Arc::clone(&core)));
            Ok(Self { core, maintenance: Mutex::new(Some(maintenance)), recovery })
        })
    }

    /// How often a readmission took pages back, or lost them, and how often its report was returned:
    /// odd in between.
    pub fn reversions(&self) -> u64 {
        self.core.reversions.load(Ordering::Acquire)
    }

    /// The report of a readmission is about to be returned.
    pub fn reported(&self) {
        let even = |count: u64| (count % 2 == 1).then(|| count + 1);
        let _ = self.core.reversions.fetch_update(Ordering::AcqRel, Ordering::Acquire, even);
    }

    /// What recovery found when the SSD was opened.
    pub fn recovery(&self) -> RecoveryReport {
        self.recovery
    }

    /// Asks `question` about the slots and their policy. Their lock is held meanwhile, so the question must
    /// be quick, and must not call the tier.
    pub fn ask<T>(&self, question: impl FnOnce(&Slots) -> T) -> T {
        question(&self.core.state.lock().slots)
    }

    /// Passes new device costs to the policy.
    pub fn set_costs(&self, costs: Costs) {
        self.core.set_costs(costs);
    }

    /// Sets the budget for writes to the SSD, in bytes per day; `None` removes it. While the budget is
    /// overdrawn, writes to the SSD are priced higher: see [`pagetier_policy::WriteBudget`]. A copy of a
    /// version that the HDD has is then written only if its benefit exceeds the price. `costs` are the
    /// policy's.
    pub fn set_write_budget(&self, bytes_per_day: Option<u64>, costs: Costs) {
        self.core.set_budget(bytes_per_day.map(|bytes| bytes.max(BUDGET_MIN)), costs);
    }

    /// Discards every page of `space`, which is being dropped and has no page in the pool. Afterwards no home
    /// write of its pages is in flight, and a crash cannot tear one. Cancel-safe.
    ///
    /// # Errors
    /// The HDD cannot be flushed.
    pub fn discard_space(&self, space: SpaceId) -> Boxed<'_, Result<(), TierError>> {
        Box::pin(async move {
            let settles = |state: &mut Protocol| {
                let Protocol { slots, home, .. } = state;
                // A page being copied home keeps its slot: only from there could a recovery repair the home
                // if it is torn, and the extent may get another owner (I4).
                slots.discard_where(&mut |page| page.space == space && !home.must_keep_copy(page));
                if !home.has_pages_of(space) {
                    return Some(false);
                }
                (home.has_backed_pages_of(space) && home.flush_would_settle()).then_some(true)
            };
            while self.core.when_some(settles).await {
                self.core.flush_hdd().await?;
            }
            self.core.changed.notify_waiters();
            Ok(self.core.flush_hdd().await?)
        })
    }

    /// Ends cleanly: admissions in flight finish, and a last checkpoint names every page. Dropping the call
    /// leaves the tier as a crash would: no data is lost, but the next open has more to read.
    ///
    /// # Errors
    /// A device failed; nothing durable is lost.
    pub fn shutdown(&self) -> Boxed<'_, Result<(), TierError>> {
        Box::pin(async move {
            self.core.stopping.store(true, Ordering::Release);
            self.core.wake.notify_one();
            let task = self.maintenance.lock().take();
            if let Some(task) = task {
                // An error means that the task was aborted or panicked. The checkpoint below does not depend
                // on it.
                let _ = task.await;
            }
            self.core.when(|state| state.admissions == 0).await;
            // First let copies become clean, so that the last checkpoint names them as such.
            self.core.flush_hdd().await?;
            if self.core.has_slots() {
                // Exchanges and readmissions hold it: they must not come between two pieces (I44).
                let _duty = self.core.map_duty.lock().await;
                self.core.checkpoint().await?;
                // Makes the mark durable that puts the checkpoint in force.
                self.core.flush_ssd().await?;
            }
            Ok(())
        })
    }

    /// Subscribes to events from now on. A slow subscriber loses the oldest.
    pub fn subscribe(&self) -> broadcast::Receiver<SsdEvent> {
        self.core.events.subscribe()
    }

    /// The state of the SSD.
    pub fn ssd_state(&self) -> SsdState {
        let failed = self.core.state.lock().ssd_error.is_some();
        match (self.core.has_slots(), failed) {
            (false, _) => SsdState::Off,
            (true, true) => SsdState::Degraded,
            (true, false) => SsdState::Active,
        }
    }

    /// What the SSD is used for, as configured: a call under way may restrict it ([`SsdTier::at_most`]).
    pub fn mode(&self) -> SsdMode {
        if self.core.has_slots() { self.core.state.lock().mode } else { SsdMode::Off }
    }

    /// Restricts the SSD to `mode` until the result is dropped. The configured mode does not change, and may
    /// be changed meanwhile: of all that apply, the strictest is in force.
    pub fn at_most(&self, mode: SsdMode) -> ModeLimit {
        self.core.state.lock().limits.push(mode);
        self.core.changed.notify_waiters();
        ModeLimit { core: Arc::clone(&self.core), mode }
    }

    /// Changes what the SSD is used for, for pages written from now on. To change to or from
    /// [`SsdMode::Off`], use [`SsdTier::exchange`].
    pub fn set_mode(&self, mode: SsdMode) {
        let mut state = self.core.state.lock();
        let changed = std::mem::replace(&mut state.mode, mode) != mode;
        drop(state);
        if changed {
            tracing::info!(?mode, "the SSD's mode was changed");
            self.core.event(SsdEvent::Mode { mode });
        }
        self.core.changed.notify_waiters();
    }

    /// Sets the function from which checkpoints learn the oldest change that is dirty in memory. A second
    /// call has no effect.
    pub fn set_redo_from(&self, redo_from: Box<dyn Fn() -> Option<Lsn> + Send + Sync>) {
        let _ = self.core.redo_from.set(redo_from);
    }

    /// The oldest log position that redo would need if the SSD were lost now; `None`: no change is on it
    /// alone.
    pub fn oldest_lsn(&self) -> Option<Lsn> {
        self.core.state.lock().oldest_lsn()
    }

    /// Informs the policy of the pages in memory, none of which leaves memory meanwhile. A new SSD's policy
    /// knows no pages.
    pub fn note_buffered(&self, pages: &[PageId]) {
        let now = self.core.now();
        self.core.state.lock().slots.note_buffered(pages, now);
    }

    /// Why writes are refused for a cause that does not lie with the SSD; no exchange of the SSD succeeds
    /// then.
    pub fn refusing_for_good(&self) -> Option<Arc<str>> {
        self.core.refusing.by_hdd()
    }

    /// Why writes are refused at present.
    pub fn refusing(&self) -> Option<Arc<str>> {
        self.core.refused_now()
    }

    /// Flushes the HDD, which makes home writes and its size durable. Cancel-safe.
    ///
    /// # Errors
    /// This flush or an earlier one failed: writes are refused.
    pub fn flush_home(&self) -> Boxed<'_, Result<(), TierError>> {
        Box::pin(async move { Ok(self.core.flush_hdd().await?) })
    }

    /// A stamp larger than that of every write begun so far.
    pub fn fresh_stamp(&self) -> Stamp {
        self.core.stamps.fresh()
    }

    /// The device in use: the SSD, or the ring's file in a store without one.
    pub fn ssd_device(&self) -> SharedDevice {
        self.core.ssd()
    }

    /// The HDD, on which every page has its home.
    pub fn hdd_device(&self) -> &SharedDevice {
        &self.core.hdd
    }

    /// With `off`, keeps the pages of `space` off the SSD from now on; without, admits them again. Pages that
    /// are kept off get no copies there, and their existing copies are removed in the background: only copies
    /// are written home first. Images in the doublewrite ring are not copies. Holds until the tier is closed,
    /// also under another policy and on another SSD.
    pub fn keep_off(&self, space: SpaceId, off: bool) {
        self.core.state.lock().slots.keep_off(space, off);
        self.core.wake.notify_one();
    }

    /// Whether there is a doublewrite ring, in use or not.
    pub fn has_ring(&self) -> bool {
        self.core.layout().ring_pages > 0
    }

    /// The number of slots; 0 without an SSD.
    pub fn slots(&self) -> u32 {
        self.core.layout().slots
    }

    /// Recounts the slots and the home writes; for tests.
    ///
    /// # Errors
    /// What does not add up.
    pub fn validate(&self) -> Result<(), String> {
        let state = self.core.state.lock();
        state.slots.validate()?;
        state.home.validate()
    }
}

impl Drop for SsdTier {
    fn drop(&mut self) {
        if let Some(task) = self.maintenance.lock().take() {
            task.abort();
        }
    }
}

impl std::fmt::Debug for SsdTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SsdTier").field("layout", &self.core.layout()).finish_non_exhaustive()
    }
}

impl Tier for SsdTier {
    fn fetch(&self, page: PageId, access: Access, buf: IoBuf) -> Boxed<'_, Fetched> {
        Box::pin(self.core.read_page(page, access, buf))
    }

    fn fetch_run(&self, first: PageId, bufs: Vec<IoBuf>) -> Boxed<'_, Vec<Fetched>> {
        Box::pin(self.core.read_run(first, bufs))
    }

    fn write<'a>(
        &'a self,
        batch: Vec<DirtyPage>,
        class: IoClass,
        done: &'a (dyn Fn(WrittenPage) + Send + Sync),
    ) -> Boxed<'a, ()> {
        Box::pin(self.core.write_dirty(batch, class, done))
    }

    fn goes_home(&self, page: PageId) -> bool {
        if !self.core.has_slots() {
            return false;
        }
        let state = self.core.state.lock();
        // Under a policy that writes through, every page waits for the disk; under one that appends, hardly
        // any does, unless its space is kept off the SSD.
        let (through, circle) = (state.slots.writes_home_first(), state.slots.appends());
        let kept_off = !state.slots.admits(page);
        let by_home = !circle && state.slots.location(page) == Location::Hdd;
        state.writes_back() && !through && (kept_off || by_home)
    }

    fn claim(&self) -> Claim {
        self.core.claim.clone()
    }

    fn location(&self, page: PageId) -> Location {
        self.ask(|slots| slots.location(page))
    }

    fn flush(&self) -> Boxed<'_, Result<(), TierError>> {
        Box::pin(async move {
            let _inside = self.core.writers.read().await;
            if let Some(refusal) = self.core.refusal() {
                return Err(refusal);
            }
            // With a ring, an SSD flush covers everything: pages in slots, and the images and records of home
            // writes. Without one, home writes are durable only on the HDD (I24).
            let devices: &[Flushed] = match (self.core.doublewrite(), self.core.has_slots()) {
                (true, _) => &[Flushed::Ssd],
                (false, true) => &[Flushed::Ssd, Flushed::Hdd],
                (false, false) => &[Flushed::Hdd],
            };
            Ok(self.core.flush(devices).await?)
        })
    }

    fn evicted(&self, page: PageId, logical: u32, image: &[u8]) -> Displaced {
        route::evicted(&self.core, page, logical, image)
    }

    fn fills_up(&self) -> Boxed<'_, bool> {
        Box::pin(self.core.when_some(|state| {
            let fills = self.core.has_slots() && state.takes_copies() && state.slots.has_capacity();
            if fills { state.may_admit(self.core.admissions_max).then_some(true) } else { Some(false) }
        }))
    }

    fn dirtied(&self, page: PageId, logical: u32) -> bool {
        if !self.core.has_slots() {
            return false;
        }
        let now = self.core.now();
        self.core.state.lock().slots.dirtied(page, logical, now)
    }

    fn allocated(&self, page: PageId) {
        if self.core.has_slots() {
            let now = self.core.now();
            self.core.state.lock().slots.note_read(page, None, Access::Random, now);
        }
    }

    fn discarded(&self, page: PageId) -> bool {
        self.core.discarded(page)
    }

    fn settled(&self, page: PageId) -> Boxed<'_, ()> {
        Box::pin(async move {
            let settles = |state: &mut Protocol| {
                let home = &state.home;
                if !home.must_keep_copy(page) {
                    return Some(false);
                }
                (home.is_backed_by_slot(page) && home.flush_would_settle()).then_some(true)
            };
            while self.core.when_some(settles).await {
                // A failed flush also ends the slot's backing.
                let _ = self.core.flush_hdd().await;
            }
        })
    }
}

/// Why nothing is served while the claim has lapsed.
const UNCONFIRMED: &str = "its HDD does not confirm in time that no other owner has it";

impl OnChange for Core {
    fn ended(&self) {
        self.refuse(FENCED, RefusedBy::Hdd);
    }

    fn lapsed(&self, lapsed: bool) {
        match lapsed {
            true => tracing::warn!("the store serves no page: {UNCONFIRMED}"),
            false => tracing::info!("ownership of the HDD is confirmed; serving pages again"),
        }
        self.event(SsdEvent::OwnerUnconfirmed { unconfirmed: lapsed });
    }
}

impl Core {
    /// Why writes are refused, for good or at this moment.
    pub(crate) fn refused_now(&self) -> Option<Arc<str>> {
        let unconfirmed = || self.claim.has_lapsed().then(|| Arc::from(UNCONFIRMED));
        self.refusing.cause().or_else(unconfirmed)
    }

    /// See [`Tier::discarded`].
    pub(crate) fn discarded(&self, page: PageId) -> bool {
        let mut state = self.state.lock();
        // While the slot backs a home write it must stay, or a torn home could not be repaired (I4). The
        // caller waits for `settled` and asks again.
        let free = !state.home.must_keep_copy(page);
        if free {
            state.slots.discard(page);
            state.home.discard(page);
            self.homes.discarded(page);
            drop(state);
            // Writes may wait for this slot to be written home, which nothing does any more.
            self.changed.notify_waiters();
        }
        free
    }
}
