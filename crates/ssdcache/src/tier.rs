//! [`SsdTier`]: the storage below the pool, in one handle.

use crate::exec::Core;
use crate::exec::budget::BudgetStats;
use crate::exec::drain::{DrainProgress, DrainReport};
use crate::exec::open::{OpenError, OpenParams, RecoveryReport, mark, open};
use crate::exec::quiet::{ExchangeError, Exchanged, NewCacheDevice};
use crate::exec::readmit::{ReadmitError, ReadmitReport};
use crate::exec::remember::Flushed;
use crate::exec::scrub::Checked;
use crate::exec::{maintenance, write};
use crate::format::superblock::{Marks, Superblock};
use crate::mode::{SsdEvent, SsdMode, SsdState};
use crate::protocol::Protocol;
use crate::protocol::slots::{FreeSlots, SlotCounts};
use pagetier_bufpool::{DirtyPage, Displaced, Fetched, Tier, TierError, WrittenPage};
use pagetier_devio::{DeviceError, IoBuf, IoClass, SharedDevice};
use pagetier_page::{Lsn, PageId, SpaceId, Stamp};
use pagetier_policy::{Access, Choice, Costs, GroupStats, Home, PageCounts, SlotId, SlotPolicy};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

/// The SSD cache and the HDD behind it. Dropped without [`SsdTier::shutdown`], it stops at once, like a
/// crash: safe.
pub struct SsdTier {
    pub(crate) core: Arc<Core>,
    maintenance: Mutex<Option<JoinHandle<()>>>,
    recovery: RecoveryReport,
}

/// A snapshot of the tier's counters.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TierStats {
    /// Slots of the SSD cache.
    pub slots: u64,
    /// Pages that have a copy there.
    pub pages: u64,
    /// Copies that are newer than the HDD's version.
    pub dirty_pages: u64,
    /// Slots without a page: writable now, writable after the next checkpoint, and waiting for a flush of the
    /// SSD.
    pub free: FreeSlots,
    /// Blocks of the journal that the next checkpoint will free.
    pub journal_used: u64,
    /// What happened to pages and slots.
    pub counts: SlotCounts,
    /// Memory of slot table, page map and policy, in bytes.
    pub memory_bytes: u64,
    /// What the SSD is used for.
    pub mode: SsdMode,
    /// The oldest log position that redo would need if the SSD were lost now; `None`: nothing is on it alone.
    pub oldest_lsn: Option<Lsn>,
    /// The write budget, if there is one.
    pub write_budget: Option<BudgetStats>,
    /// Why the SSD takes no new pages, if it does not.
    pub ssd_error: Option<Arc<str>>,
    /// Why writes are refused, if they are.
    pub refusing: Option<Arc<str>>,
}

impl SsdTier {
    /// Recovers the SSD and starts its maintenance on the current tokio runtime.
    ///
    /// # Errors
    /// A device failed, or no sound map checkpoint is left.
    pub async fn open(params: OpenParams) -> Result<Self, OpenError> {
        let (core, recovery) = open(params).await?;
        let core = Arc::new(core);
        let maintenance = tokio::spawn(maintenance::run(Arc::clone(&core)));
        Ok(Self { core, maintenance: Mutex::new(Some(maintenance)), recovery })
    }

    #[cfg(feature = "mutations")]
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// What recovery found when the SSD was opened.
    #[must_use]
    pub fn recovery(&self) -> RecoveryReport {
        self.recovery
    }

    /// Counters and sizes.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        let (mode, all) = (self.mode(), u64::from(self.core.layout().slots));
        let state = self.core.state.lock();
        let Protocol { slots, ssd_error, home, .. } = &*state;
        TierStats {
            slots: all,
            mode,
            oldest_lsn: state.oldest_lsn(),
            pages: slots.pages() as u64,
            dirty_pages: slots.dirty_pages() as u64,
            free: slots.free_slots(),
            journal_used: home.journal_held(),
            counts: slots.counts(),
            memory_bytes: slots.memory_bytes() as u64,
            write_budget: self.core.budget_stats(),
            ssd_error: ssd_error.clone(),
            refusing: self.core.refusing.cause(),
        }
    }

    /// α and the counts behind it, by group.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupStats> {
        self.core.state.lock().slots.policy().groups()
    }

    /// What the policy follows, if it adapts.
    #[must_use]
    pub fn choice(&self) -> Option<Choice> {
        self.core.state.lock().slots.policy().choice()
    }

    /// The anticipated benefit of having `page` on the SSD, in milliseconds, if the policy tracks it.
    #[must_use]
    pub fn benefit(&self, page: PageId) -> Option<f64> {
        self.core.state.lock().slots.policy().benefit(page)
    }

    /// What the policy has counted of `page`, if it tracks it.
    #[must_use]
    pub fn counts(&self, page: PageId) -> Option<PageCounts> {
        self.core.state.lock().slots.policy().counts(page)
    }

    /// Whether `page` has a copy on the SSD.
    #[must_use]
    pub fn home(&self, page: PageId) -> Home {
        self.core.state.lock().slots.home(page)
    }

    /// The highest page of `space` that has a copy on the SSD: what a crash may have left beyond the HDD's
    /// end.
    #[must_use]
    pub fn highest_page(&self, space: SpaceId) -> Option<u32> {
        self.core.state.lock().slots.highest_page(space)
    }

    /// New device costs for the policy.
    pub fn set_costs(&self, costs: Costs) {
        self.core.set_costs(costs);
    }

    /// Sets how many bytes may be written to the SSD per day; `None`: any number. While the budget is
    /// overdrawn, a write to the SSD costs more: see [`pagetier_policy::WriteBudget`]. A copy of a page that
    /// the HDD has is then written only if its benefit exceeds that cost.
    /// `costs`: those of the policy.
    pub fn set_write_budget(&self, bytes_per_day: Option<u64>, costs: Costs) {
        self.core.set_budget(bytes_per_day, costs);
    }

    /// Forgets every page of `space`, which is being dropped and of which the pool holds none. Afterwards no
    /// home write of them is in flight, or could be torn by a crash. Cancel-safe.
    ///
    /// # Errors
    /// The HDD cannot be flushed.
    pub async fn forget_space(&self, space: SpaceId) -> Result<(), TierError> {
        loop {
            let changed = self.core.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.try_forget_space(space) {
                break;
            }
            let waits = {
                let state = self.core.state.lock();
                state.home.backs_pages_of(space) && state.home.can_settle()
            };
            if waits {
                self.core.flush_hdd().await?;
                continue;
            }
            changed.await;
        }
        self.core.changed.notify_waiters();
        Ok(self.core.flush_hdd().await?)
    }

    /// False when a page of it is on its way to the HDD.
    fn try_forget_space(&self, space: SpaceId) -> bool {
        let mut state = self.core.state.lock();
        let Protocol { slots, home, .. } = &mut *state;
        slots.discard_where(&mut |page| page.space == space && !home.keeps_copy(page));
        !home.has_pages_of(space)
    }

    /// Ends in order: admissions in flight finish, a last checkpoint names every page. Not cancel-safe in the
    /// sense that a dropped call leaves the tier as a crash would: safe, less warm.
    ///
    /// # Errors
    /// A device failed; nothing durable is lost.
    pub async fn shutdown(&self) -> Result<(), TierError> {
        self.core.stopping.store(true, Ordering::Release);
        self.core.wake.notify_one();
        let task = self.maintenance.lock().take();
        if let Some(task) = task {
            // An error means that it was aborted or panicked, which the checkpoint below does not depend on.
            let _ = task.await;
        }
        self.core.when(|state| state.admissions == 0).await;
        self.core.flush_hdd().await?;
        if self.core.has_slots() {
            self.core.checkpoint().await?;
            // The mark that it is in force.
            self.core.flush_ssd().await?;
        }
        Ok(())
    }

    /// Events from now on. A subscriber that is slow loses the oldest.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<SsdEvent> {
        self.core.events.subscribe()
    }

    /// How the SSD is.
    #[must_use]
    pub fn ssd_state(&self) -> SsdState {
        let failed = self.core.state.lock().ssd_error.is_some();
        match (self.core.has_slots(), failed) {
            (false, _) => SsdState::Off,
            (true, true) => SsdState::Degraded,
            (true, false) => SsdState::Active,
        }
    }

    /// What the SSD is used for.
    #[must_use]
    pub fn mode(&self) -> SsdMode {
        if self.core.has_slots() { self.core.state.lock().mode } else { SsdMode::Off }
    }

    /// The mode in force, or while there is no SSD the one that comes back with it.
    #[must_use]
    pub fn kept_mode(&self) -> SsdMode {
        self.core.state.lock().mode
    }

    /// Changes what the SSD is used for, for pages written from now on. To and from [`SsdMode::Off`] leads
    /// [`SsdTier::exchange`].
    pub fn set_mode(&self, mode: SsdMode) {
        let mut state = self.core.state.lock();
        let changed = std::mem::replace(&mut state.mode, mode) != mode;
        drop(state);
        if changed {
            tracing::info!(?mode, "the SSD's mode");
            self.core.event(SsdEvent::Mode { mode });
        }
        self.core.changed.notify_waiters();
    }

    /// Sets where checkpoints ask for the oldest change that is dirty in memory. A second call does nothing.
    pub fn set_redo_from(&self, redo_from: Box<dyn Fn() -> Option<Lsn> + Send + Sync>) {
        let _ = self.core.redo_from.set(redo_from);
    }

    /// The oldest log position that redo would need if the SSD were lost now; `None`: nothing is on it alone.
    #[must_use]
    pub fn oldest_lsn(&self) -> Option<Lsn> {
        self.core.state.lock().oldest_lsn()
    }

    /// The pages whose newest version is on the SSD alone, in order, each with the log position from which
    /// redo would bring it back.
    #[must_use]
    pub fn only_copies(&self) -> Vec<(PageId, Lsn)> {
        self.core.state.lock().slots.only_copies()
    }

    /// Whether the newest version of each of `pages` is on the SSD alone for certain. What a recovery found
    /// counts as such until it is written home or anew, though the HDD may have it.
    #[must_use]
    pub fn are_only_copies(&self, pages: &[(PageId, Lsn)]) -> bool {
        self.core.state.lock().slots.are_only_copies(pages)
    }

    /// Waits until every write that has begun has ended. Cancel-safe.
    pub async fn writes_settled(&self) {
        self.core.writes_settled().await;
    }

    /// Writes every page home whose newest version is on the SSD alone, for at most `deadline`. While it runs
    /// the SSD gets no new ones. Cancel-safe: dropped, it ends after the pages in hand.
    pub async fn drain(
        &self,
        deadline: Option<Duration>,
        progress: Option<Box<dyn Fn(DrainProgress) + Send + Sync>>,
    ) -> DrainReport {
        self.core.drain(deadline, progress).await
    }

    /// Takes the SSD back into use after a failure: it must be the one that `ours` accepts. Reads every copy
    /// on it. `record` gets the pages that were lost, each with the log position from which redo would bring
    /// it back, and makes that durable before writes are accepted again. Must be driven to completion.
    ///
    /// # Errors
    /// [`ReadmitError`]; the SSD stays degraded.
    pub async fn readmit(
        &self,
        ours: impl Fn(&Superblock) -> bool + Send,
        record: impl FnOnce(&[(PageId, Lsn)]) -> Result<(), String> + Send,
    ) -> Result<ReadmitReport, ReadmitError> {
        self.core.readmit(ours, record, None).await
    }

    /// Exchanges the SSD (or the ring's file) for `new`: waits until nothing is under way, makes durable what
    /// was written home, calls `commit`, which records durably that `new` is the one that counts, and that
    /// the pages it is told are lost with the old one, and goes on with it. With `accept_loss`, also when the
    /// old one holds only copies. Cancel-safe: it happened or it did not.
    ///
    /// # Errors
    /// [`ExchangeError`]; the old one stays in use.
    pub async fn exchange<E>(
        &self,
        new: NewCacheDevice,
        accept_loss: bool,
        commit: impl FnOnce(&[(PageId, Lsn)]) -> Result<(), E>,
    ) -> Result<Exchanged, ExchangeError<E>> {
        let NewCacheDevice { device, layout, policy, zone_percent } = new;
        let quiet = self.core.quiesce().await;
        if let Some(cause) = self.core.refusing.by_hdd() {
            return Err(ExchangeError::Refusing { cause });
        }
        // Before the copies are counted: some are dirty only until the HDD was flushed.
        self.core.flush_hdd().await?;
        let only = self.only_copies().len() as u64;
        if only > 0 && !accept_loss {
            return Err(ExchangeError::OnlyCopies { pages: only });
        }
        let mends = self.core.state.lock().home.mends_homes();
        if mends && self.core.mend_homes().await.is_ok() {
            self.core.flush_hdd().await?;
        }
        if self.core.state.lock().home.mends_homes() && !accept_loss {
            let cause = "writes of pages to their homes failed; what they may have left torn can be mended \
                from the present ring alone";
            return Err(ExchangeError::Refusing { cause: Arc::from(cause) });
        }
        let vacant = quiet.vacant().await;
        // No `.await` between recording the exchange and performing it.
        if let Err(error) = commit(&self.only_copies()) {
            self.core.refuse("the exchange of the SSD could not be recorded", false);
            return Err(ExchangeError::Commit(error));
        }
        let exchanged = quiet.replace(device, layout, zone_percent, policy);
        drop(vacant);
        if self.core.has_slots()
            && let Err(error) = self.core.checkpoint().await
        {
            self.core.ssd_failed(&error);
        }
        Ok(exchanged)
    }

    /// Replaces the policy by `policy`, which is empty. The copies keep their slots, and those that are newer
    /// than the HDD's versions stay so: the SSD is neither drained nor formatted. Waits until nothing is under
    /// way, and names the zone in which the policy works by a checkpoint; reads go on, writes wait.
    /// `buffered`: the pages in memory. Cancel-safe: it happened or it did not.
    ///
    /// # Errors
    /// The HDD cannot be flushed, or writes are refused; the policy in use is kept.
    pub async fn set_policy(
        &self,
        policy: Box<dyn SlotPolicy>,
        buffered: impl FnOnce() -> Vec<PageId>,
    ) -> Result<(), TierError> {
        let _quiet = self.core.quiesce().await;
        if let Some(refusal) = self.core.refusal() {
            return Err(refusal);
        }
        // What slots back (doublewrite), and copies that wait for their homes: clean from here on.
        self.core.flush_hdd().await?;
        let now = self.core.now();
        let usable = {
            let mut state = self.core.state.lock();
            // Under the lock: a page that leaves memory after this is reported to the new policy.
            state.slots.switch_policy(policy, &buffered(), now);
            self.core.choice_changes.store(0, Ordering::Relaxed);
            self.core.budget_starts_anew();
            state.ssd_error.is_none()
        };
        if usable
            && self.core.has_slots()
            && let Err(error) = self.core.checkpoint().await
        {
            self.core.ssd_failed(&error);
        }
        Ok(())
    }

    /// Why writes are refused, if the SSD is not to blame: no exchange of it succeeds then.
    #[must_use]
    pub fn refusing_for_good(&self) -> Option<Arc<str>> {
        self.core.refusing.by_hdd()
    }

    /// Flushes the HDD: what was written home, and its size, are durable then. Cancel-safe.
    ///
    /// # Errors
    /// The flush failed, now or before: writes are refused from then on.
    pub async fn flush_home(&self) -> Result<(), TierError> {
        Ok(self.core.flush_hdd().await?)
    }

    /// Notes on the SSD (or the ring's file) the openings that it took part in. Flushes it.
    ///
    /// # Errors
    /// It cannot be read, written or flushed.
    pub async fn mark(&self, marks: Marks) -> Result<(), DeviceError> {
        mark(&self.core.ssd(), marks).await
    }

    /// Verifies the copy in slot number `slot`; see [`Checked`]. `None`: there is none. Cancel-safe.
    pub async fn scrub_slot(&self, slot: u32, heal: bool) -> Option<Checked> {
        self.core.scrub_slot(SlotId(slot), heal).await
    }

    /// Verifies the home of `page`, and its clean copy against it. Must be driven to completion when `heal`
    /// is on.
    pub async fn scrub_home(&self, page: PageId, heal: bool) -> Checked {
        self.core.scrub_home(page, heal).await
    }

    /// Reads the newest version of `page` below memory, or a later one, whole and verified, with its header.
    /// Neither pool nor policy learns of it. `None`: it was never written. Cancel-safe.
    ///
    /// # Errors
    /// The page does not exist or cannot be read, or its only copy is corrupt.
    pub async fn read_version(&self, page: PageId) -> Result<Option<IoBuf>, TierError> {
        self.core.read_version(page).await
    }

    /// A stamp larger than that of every write that has begun.
    #[must_use]
    pub fn fresh_stamp(&self) -> Stamp {
        self.core.stamps.fresh()
    }

    /// The device in use: the SSD, or the file of the ring of a store without one.
    #[must_use]
    pub fn ssd_device(&self) -> SharedDevice {
        self.core.ssd()
    }

    /// The HDD.
    #[must_use]
    pub fn hdd_device(&self) -> &SharedDevice {
        &self.core.hdd
    }

    /// Whether the newest version of `page` below memory is on the SSD alone, as far as is known.
    #[must_use]
    pub fn is_only_copy(&self, page: PageId) -> bool {
        self.core.state.lock().slots.is_only_copy(page)
    }

    /// The group whose α applies to `page`, if the policy groups pages and tracks this one.
    #[must_use]
    pub fn group_of(&self, page: PageId) -> Option<GroupStats> {
        self.core.state.lock().slots.policy().group_of(page)
    }

    /// Whether pages go home through a doublewrite ring.
    #[must_use]
    pub fn has_ring(&self) -> bool {
        self.core.doublewrite()
    }

    /// Slots of the SSD; 0 without one.
    #[must_use]
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
    async fn fetch(&self, page: PageId, access: Access, buf: IoBuf) -> Fetched {
        self.core.read_page(page, access, buf).await
    }

    async fn fetch_run(&self, first: PageId, bufs: Vec<IoBuf>) -> Vec<Fetched> {
        self.core.read_run(first, bufs).await
    }

    async fn write(&self, batch: Vec<DirtyPage>, class: IoClass, done: &(dyn Fn(WrittenPage) + Send + Sync)) {
        self.core.write_dirty(batch, class, done).await;
    }

    fn goes_home(&self, page: PageId) -> bool {
        if !self.core.has_slots() {
            return false;
        }
        let state = self.core.state.lock();
        // Under a policy that writes through all wait, under one that appends hardly any.
        let by_policy = state.slots.writes_home_first() || state.slots.appends();
        state.writes_back() && !by_policy && state.slots.home(page) == Home::Hdd
    }

    fn home(&self, page: PageId) -> Home {
        SsdTier::home(self, page)
    }

    async fn flush(&self) -> Result<(), TierError> {
        let _inside = self.core.gate.read().await;
        if let Some(refusal) = self.core.refusal() {
            return Err(refusal);
        }
        let devices: &[Flushed] = match (self.core.doublewrite(), self.core.has_slots()) {
            (true, _) => &[Flushed::Ssd],
            (false, true) => &[Flushed::Ssd, Flushed::Hdd],
            (false, false) => &[Flushed::Hdd],
        };
        Ok(self.core.flush(self.core.rules.flushed_by_sync(devices)).await?)
    }

    fn evicted(&self, page: PageId, logical: u32, image: &[u8]) -> Displaced {
        write::evicted(&self.core, page, logical, image)
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
        let mut state = self.core.state.lock();
        let free = !state.home.keeps_copy(page);
        if free {
            state.slots.discard(page);
            state.home.discard(page);
        }
        free
    }

    async fn settled(&self, page: PageId) {
        loop {
            let changed = self.core.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (kept, waits) = {
                let home = &self.core.state.lock().home;
                (home.keeps_copy(page), home.is_backed(page) && home.can_settle())
            };
            if !kept {
                return;
            }
            if waits {
                // A failure ends the slot's backing, too.
                let _ = self.core.flush_hdd().await;
                continue;
            }
            changed.await;
        }
    }
}
