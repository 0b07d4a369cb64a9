//! [`SsdTier`]: the storage below the pool, in one handle.

use crate::core::{Core, State};
use crate::life::SsdMode;
use crate::open::{OpenError, OpenParams, RecoveryReport, open};
use crate::slots::{FreeSlots, SlotCounts};
use crate::{maintain, write};
use pagetier_bufpool::{DirtyPage, Displaced, Fetched, Tier, TierError, WrittenPage};
use pagetier_devio::{IoBuf, IoClass};
use pagetier_page::{Lsn, PageId, SpaceId};
use pagetier_policy::{Access, Choice, Costs, GroupStats, Home, PageCounts};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
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
        let maintenance = tokio::spawn(maintain::run(Arc::clone(&core)));
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
        let (mode, all) = (self.core.mode(), u64::from(self.core.layout().slots));
        let state = self.core.state.lock();
        let State { slots, ssd_error, journal, .. } = &*state;
        TierStats {
            slots: all,
            mode,
            oldest_lsn: state.oldest_lsn(),
            pages: slots.pages() as u64,
            dirty_pages: slots.dirty_pages() as u64,
            free: slots.free_slots(),
            journal_used: journal.next - journal.tail,
            counts: slots.counts(),
            memory_bytes: slots.memory_bytes() as u64,
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
        self.core.state.lock().slots.policy().set_costs(costs);
    }

    /// Forgets every page of `space`, which is being dropped. The pool has let go of them. Afterwards nothing
    /// of them is on its way to the HDD, or could be torn there by a crash. Cancel-safe.
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
                state.slots.is_backing_in(space) && state.backed.can_settle()
            };
            if waits {
                let flushed = self.core.flush_hdd(self.core.hdd_flush.next()).await;
                flushed.map_err(|source| TierError::Device { page: PageId::new(space, 0), source })?;
                continue;
            }
            changed.await;
        }
        self.core.changed.notify_waiters();
        let flushed = self.core.flush_hdd(self.core.hdd_flush.next()).await;
        flushed.map_err(|source| TierError::Device { page: PageId::new(space, 0), source })
    }

    /// False when a page of it is on its way to the HDD.
    fn try_forget_space(&self, space: SpaceId) -> bool {
        let mut state = self.core.state.lock();
        let State { slots, homeward, .. } = &mut *state;
        let mut busy = homeward.iter().any(|page| page.space == space);
        let held = slots.going_home_of(space);
        busy |= !held.is_empty();
        let backing: Vec<PageId> =
            slots.copies().into_iter().filter(|page| slots.is_backing(*page)).collect();
        busy |= backing.iter().any(|page| page.space == space);
        slots.discard_where(&mut |page| {
            page.space == space && !held.contains(&page) && !backing.contains(&page)
        });
        !busy
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
            // An error means that it was aborted or panicked; the checkpoint below is written all the same.
            let _ = task.await;
        }
        loop {
            let changed = self.core.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.core.state.lock().admissions == 0 {
                break;
            }
            changed.await;
        }
        let device = |source| TierError::Device { page: PageId::default(), source };
        self.core.flush_hdd(self.core.hdd_flush.next()).await.map_err(device)?;
        if self.core.has_slots() {
            self.core.checkpoint().await.map_err(device)?;
            // The mark that it is in force.
            self.core.flush_ssd(self.core.next_ssd_flush()).await.map_err(device)?;
        }
        Ok(())
    }

    /// Recounts the slots; for tests.
    ///
    /// # Errors
    /// What does not add up.
    pub fn validate(&self) -> Result<(), String> {
        self.core.state.lock().slots.validate()
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
        let device = |source| TierError::Device { page: PageId::default(), source };
        if self.core.broken.is(crate::mutation::Mutation::SyncNotFlushed) {
            return Ok(());
        }
        if self.core.has_slots() || self.core.doublewrite() {
            self.core.flush_ssd(self.core.next_ssd_flush()).await.map_err(device)?;
        }
        if !self.core.doublewrite() {
            self.core.flush_hdd(self.core.hdd_flush.next()).await.map_err(device)?;
        }
        Ok(())
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
        let free = !state.slots.is_going_home(page) && !state.slots.is_backing(page);
        if free {
            state.slots.discard(page);
            state.ring.discard(page);
        }
        free
    }

    async fn settled(&self, page: PageId) {
        loop {
            let changed = self.core.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (going_home, backing, can_settle) = {
                let state = self.core.state.lock();
                let slots = &state.slots;
                (slots.is_going_home(page), slots.is_backing(page), state.backed.can_settle())
            };
            if !going_home && !backing {
                return;
            }
            if backing && can_settle {
                // If it fails, the slot backs nothing any more either.
                let _ = self.core.flush_hdd(self.core.hdd_flush.next()).await;
                continue;
            }
            changed.await;
        }
    }
}
