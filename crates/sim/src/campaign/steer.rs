//! Directed scenarios: work directed at a hazard which random work seldom meets.
//!
//! A fixed share of all seeds is directed. The hazard determines geometry, latencies and faults
//! ([`Steer::shape`], [`Steer::faults`]) and the order of the work ([`Worker::steered`]); the details are
//! drawn from the seed as usual.

use super::faults::Planned;
use super::plan::Plan;
use super::work::Worker;
use pagetier::{Drain, Home, Mutation, PageId, SpaceId, SsdMode};
use pagetier_devio::{Fault, FaultEffect, FlushFailure, IoOp};
use rand::Rng;
use rand::rngs::SmallRng;
use std::time::Duration;

/// The hazard that a seed is directed at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Steer {
    /// None: random work.
    Free,
    /// Clean copies on the SSD become obsolete: their pages are changed and go home, through the ring many
    /// times over, before the next checkpoint. Only the journal records that.
    ColdCopies,
    /// `ColdCopies` while every checkpoint's header write takes very long: more goes home than the journal
    /// holds.
    SlowMap,
    /// `ColdCopies` after a failed slot write: nothing more goes to the SSD.
    SlotFails,
    /// Pages go home from the pool while the SSD is writing older versions of them back: drains and mode
    /// changes.
    TwoWaysHome,
    /// Versions that were just written to the SSD are the next victims.
    FreshVictims,
    /// Pages are discarded or changed while the copy made at their eviction is being written to the SSD.
    JustEvicted,
    /// Pages are discarded right after a recovery whose slots backed home writes that the crash tore.
    TornHomes,
    /// The process is killed repeatedly, recoveries included, before the power is cut.
    Killed,
    /// Flushes fail; the store is closed, dropped or killed, and opened again without a reboot.
    FlushFails,
    /// Calls are dropped while the flush that they wait for fails.
    DroppedFlush,
    /// The store is dropped with slow writes in flight and opened again at once.
    Reopened,
    /// Openings are dropped at an await.
    DroppedOpen,
    /// The HDD cannot grow.
    FullDisk,
    /// The medium rots between lives.
    Rot,
    /// Devices with a past: another store's, older copies, truncated ones.
    Past,
    /// Home writes without a doublewrite ring.
    NoRing,
    /// Pages are written during their second chance.
    SecondChances,
    /// Pages are discarded while a drain writes them home.
    DrainedDiscards,
    /// Home writes fail once, and their pages are discarded.
    FailedHomes,
    /// Spaces are continually created, filled and dropped.
    DroppedSpaces,
    /// Homes rot for which the ring holds images of several versions.
    RottenHomes,
    /// Saves of the manifest, superblock writes and growth fail.
    Records,
    /// Others open the store while it is open, or at the same time.
    Openers,
    /// The SSD is given up, readmitted, switched off; its loss is accepted and acknowledged.
    SsdLife,
}

impl Steer {
    /// Every hazard that seeds are directed at.
    pub const HAZARDS: [Self; 24] = [
        Self::ColdCopies,
        Self::TwoWaysHome,
        Self::SlowMap,
        Self::FreshVictims,
        Self::JustEvicted,
        Self::SlotFails,
        Self::TornHomes,
        Self::Killed,
        Self::FlushFails,
        Self::DroppedFlush,
        Self::Reopened,
        Self::DroppedOpen,
        Self::FullDisk,
        Self::Rot,
        Self::Past,
        Self::NoRing,
        Self::SecondChances,
        Self::DrainedDiscards,
        Self::FailedHomes,
        Self::DroppedSpaces,
        Self::RottenHomes,
        Self::Records,
        Self::Openers,
        Self::SsdLife,
    ];

    /// The hazard of seed `seed`: every third seed has one, in rotation.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let hazards = Self::HAZARDS.len() as u64;
        if seed % 3 == 1 { Self::HAZARDS[(seed / 3 % hazards) as usize] } else { Self::Free }
    }

    /// The hazard in which the rule that a mutation disables matters.
    pub(super) fn against(mutation: Mutation) -> Option<Self> {
        Some(match format!("{mutation:?}").as_str() {
            "HomeUnrecorded" | "NoJournal" | "ChangedCopyKept" => Self::ColdCopies,
            "JournalFreedEarly" => Self::SlowMap,
            "StaleWriteBack" | "TwoInFlight" => Self::TwoWaysHome,
            "WriteBackBeforeFlush" | "HomingForgotten" => Self::FreshVictims,
            "DoublewriteBeforeFlush" | "DoublewriteFreedEarly" | "DoublewriteNotMended" => Self::TornHomes,
            "RecordBeforeImage" => Self::SlotFails,
            "MoveSurvives" | "MoveUnderNewer" | "MovedOverNewer" => Self::SecondChances,
            "ChecksumsUnseeded" | "EpochUnchecked" | "LossUnrecorded" | "LossForgotten" => Self::Past,
            "MapUnproved" => Self::Rot,
            "FlushInCaller" => Self::DroppedFlush,
            "FailureNotRemembered" | "HomesTrusted" => Self::FlushFails,
            "RecoveryUnflushed" => Self::Killed,
            "AttachInDoubt" => Self::SsdLife,
            "FenceOpen" | "DrainNotAwaited" => Self::Reopened,
            "GrowthInMemoryFirst" => Self::FullDisk,
            "FirstOpeningUnnamed" => Self::DroppedOpen,
            "CleanUnflushedRingOff" | "OnlyCopyVoided" => Self::NoRing,
            "DrainedPageDiscarded" => Self::DrainedDiscards,
            "FailedHomeKept" => Self::FailedHomes,
            "DropUnmarked" | "ExtentsNotBlanked" => Self::DroppedSpaces,
            "RingFromZero" => Self::RottenHomes,
            _ => return None,
        })
    }

    /// Looks a hazard up by name.
    pub(super) fn named(name: &str) -> Option<Self> {
        let mut all = Self::HAZARDS.into_iter().chain([Self::Free]);
        all.find(|steer| format!("{steer:?}").eq_ignore_ascii_case(name))
    }

    /// Whether the hazard determines the order of the work.
    pub(super) fn has_work(self) -> bool {
        matches!(
            self,
            Self::ColdCopies
                | Self::SlowMap
                | Self::SlotFails
                | Self::TwoWaysHome
                | Self::FreshVictims
                | Self::JustEvicted
                | Self::TornHomes
                | Self::DrainedDiscards
                | Self::FailedHomes
        )
    }

    /// The kind of work ([`Plan::KINDS`]) that the hazard belongs to.
    pub(super) fn kind(self) -> Option<&'static str> {
        match self {
            Self::Killed => Some("kill"),
            Self::FlushFails => Some("flush-fails"),
            Self::DroppedFlush => Some("drop-future"),
            Self::Reopened => Some("reopen"),
            Self::DroppedOpen => Some("drop-open"),
            Self::FullDisk => Some("growth-fails"),
            Self::Rot | Self::RottenHomes => Some("rot"),
            Self::DroppedSpaces => Some("drop-space"),
            Self::Past => Some("past"),
            Self::Records => Some("records-fail"),
            Self::Openers => Some("openers"),
            Self::SsdLife => Some("ssd-life"),
            _ => None,
        }
    }

    /// Changes `plan` so that the hazard is likely.
    pub(super) fn shape(self, plan: &mut Plan, rng: &mut SmallRng) {
        plan.steer = self;
        if self == Self::Free {
            return;
        }
        (plan.lives, plan.ops, plan.tasks) = (rng.random_range(1..=3), 240, rng.random_range(1..=2));
        (plan.frames, plan.slots, plan.pages) = (20, rng.random_range(34..=44), rng.random_range(60..=90));
        (plan.faults, plan.zone_percent) = (false, [25, 40, 100][rng.random_range(0..3)]);
        if plan.ssd_policy == "none" {
            plan.ssd_policy = "cac";
        }
        match self {
            Self::Free => {}
            Self::ColdCopies | Self::SlotFails => {
                (plan.ring, plan.hdd_us, plan.ssd_us) = (rng.random_range(4..=8), 1000, 300);
            }
            Self::SlowMap => (plan.ring, plan.hdd_us, plan.ssd_us) = (rng.random_range(2..=4), 500, 200),
            Self::TwoWaysHome => {
                (plan.tasks, plan.ring) = (rng.random_range(2..=4), rng.random_range(2..=8));
                (plan.hdd_us, plan.ssd_us) = (12_000, [300, 3000][rng.random_range(0..2)]);
            }
            Self::FreshVictims => {
                (plan.slots, plan.zone_percent, plan.ssd_policy) = (rng.random_range(32..=36), 100, "lru2");
                (plan.hdd_us, plan.ssd_us) = (500, [50, 500][rng.random_range(0..2)]);
            }
            Self::JustEvicted => {
                (plan.zone_percent, plan.hdd_us, plan.ssd_us) = (100, 300, 12_000);
            }
            Self::Killed | Self::FlushFails | Self::DroppedFlush | Self::Reopened | Self::NoRing => {
                (plan.lives, plan.ops) = (rng.random_range(3..=6), rng.random_range(60..=200));
                (plan.ring, plan.hdd_us, plan.ssd_us) =
                    (rng.random_range(2..=8), 12_000, [300, 3000][rng.random_range(0..2)]);
                (plan.without, plan.images) = (0, 15);
                if self == Self::NoRing {
                    plan.ring = 0;
                }
                if self == Self::Reopened && rng.random_bool(0.5) {
                    // Every write goes home.
                    plan.slots = 0;
                }
                if matches!(self, Self::FlushFails | Self::DroppedFlush) {
                    let harmful = [FlushFailure::NeverDurable, FlushFailure::Reverted];
                    plan.flush_failures = [(); 2].map(|()| harmful[rng.random_range(0..2)]);
                }
            }
            Self::DroppedOpen | Self::Rot | Self::Past => {
                (plan.lives, plan.ops, plan.without) =
                    (rng.random_range(3..=6), rng.random_range(30..=120), 0);
                plan.ring = rng.random_range(2..=8);
            }
            Self::FullDisk => {
                (plan.lives, plan.ops, plan.without) =
                    (rng.random_range(3..=6), rng.random_range(60..=200), 0);
                (plan.pages, plan.ring) = (600, rng.random_range(2..=8));
            }
            Self::SecondChances => {
                (plan.ssd_policy, plan.ring, plan.without) = ("mv-fifo-gsc", rng.random_range(2..=8), 0);
                (plan.tasks, plan.ops, plan.ssd_us) = (rng.random_range(2..=4), 400, 3000);
            }
            Self::DrainedDiscards => {
                (plan.ring, plan.zone_percent, plan.without) = (rng.random_range(2..=8), 25, 0);
                (plan.hdd_us, plan.ssd_us) = (3000, 300);
            }
            Self::FailedHomes => {
                (plan.ring, plan.hdd_us, plan.ssd_us) = (rng.random_range(2..=8), 1000, 300);
                (plan.slots, plan.without) = (if rng.random_bool(0.5) { 0 } else { plan.slots }, 0);
            }
            Self::DroppedSpaces => {
                (plan.lives, plan.ops, plan.ring) = (rng.random_range(2..=4), 200, rng.random_range(2..=8));
                plan.without = 0;
            }
            Self::Records => {
                (plan.lives, plan.ops, plan.ring) = (rng.random_range(3..=6), 120, rng.random_range(2..=8));
                (plan.pages, plan.without, plan.images) = (500, 0, 20);
            }
            Self::Openers | Self::SsdLife => {
                (plan.lives, plan.ops, plan.ring) =
                    (rng.random_range(2..=5), rng.random_range(60..=200), rng.random_range(1..=8));
                (plan.hdd_us, plan.ssd_us) = (3000, [300, 3000][rng.random_range(0..2)]);
                plan.without = 0;
            }
            Self::RottenHomes => {
                (plan.lives, plan.ops, plan.ring) = (6, rng.random_range(15..=60), rng.random_range(4..=8));
                (plan.slots, plan.pages, plan.without) = (0, rng.random_range(24..=30), 0);
                (plan.hdd_us, plan.ssd_us) = (1000, 300);
            }
            Self::TornHomes => {
                (plan.lives, plan.ssd_policy, plan.zone_percent) = (4, "doublewrite", 100);
                (plan.ring, plan.hdd_us, plan.ssd_us) = (rng.random_range(2..=8), 12_000, 50);
            }
        }
    }

    /// The faults of its devices.
    pub(super) fn faults(self, plan: &Plan, rng: &mut SmallRng) -> Vec<Planned> {
        let layout = super::probe::layout_of(plan);
        match self {
            Self::SlowMap => {
                let slow = FaultEffect::Slow(Duration::from_millis(rng.random_range(50..=400)));
                let header = |(area, copy)| {
                    let at = layout.map_header_at(area, copy);
                    Planned::ssd("slow header", Fault::new(slow).on(IoOp::Write).within(at..at + 1))
                };
                [(0, 0), (0, 1), (1, 0), (1, 1)].map(header).to_vec()
            }
            Self::SlotFails => {
                let slots = layout.slot_at(0)..layout.end();
                let fault = Fault::new(FaultEffect::Eio).on(IoOp::Write).within(slots).times(1);
                vec![Planned::ssd("EIO on a slot", fault.from_op(rng.random_range(1..1500)))]
            }
            // A slot write fails: changed pages then go home and bypass their copies.
            Self::NoRing if plan.slots > 0 && rng.random_bool(0.5) => {
                let slots = layout.slot_at(0)..layout.end();
                let fault = Fault::new(FaultEffect::Eio).on(IoOp::Write).within(slots).times(1);
                vec![Planned::ssd("EIO on a slot", fault.from_op(rng.random_range(1..300)))]
            }
            Self::FailedHomes => vec![Planned::home(rng.random_range(1..200))],
            _ => Vec::new(),
        }
    }
}

type Outcome = Result<(), String>;

impl Worker {
    /// Does about `ops` directed operations.
    pub(super) async fn steered(&mut self, ops: u32) -> Outcome {
        self.fill_space().await?;
        let mut left = i64::from(ops);
        while left > 0 {
            left -= i64::from(match self.plan.steer {
                Steer::ColdCopies | Steer::SlowMap | Steer::SlotFails => self.cool_copies().await?,
                Steer::TwoWaysHome => self.two_ways_home().await?,
                Steer::FreshVictims => self.fresh_victims().await?,
                Steer::JustEvicted => self.just_evicted().await?,
                Steer::TornHomes => self.torn_homes().await?,
                Steer::DrainedDiscards => self.drained_discards().await?,
                Steer::FailedHomes => self.failed_homes().await?,
                _ => return Ok(()),
            });
        }
        Ok(())
    }

    /// Fills the space as far as the store allocates pages: one that refuses writes after a fault allocates
    /// none.
    async fn fill_space(&mut self) -> Outcome {
        while self.model.lock().pages() < self.plan.pages as usize {
            if !self.allocated().await? {
                break;
            }
        }
        self.sync().await
    }

    /// The space's pages, in a new random order on each call.
    fn shuffled(&mut self) -> Vec<PageId> {
        let model = self.model.lock();
        let live = model.live();
        let of = |id: u32| {
            model.spaces.get(&id).into_iter().flat_map(move |s| s.pages.keys().map(move |no| (id, *no)))
        };
        let mut pages: Vec<PageId> =
            live.into_iter().flat_map(of).map(|(id, no)| PageId::new(SpaceId(id), no)).collect();
        drop(model);
        for at in (1..pages.len()).rev() {
            pages.swap(at, self.rng.random_range(0..=at));
        }
        pages
    }

    async fn mode(&self, mode: SsdMode) -> Outcome {
        match self.store.ssd().set_mode(mode).await {
            Ok(()) => Ok(()),
            Err(error) => self.judge("set_ssd_mode", None, &error),
        }
    }

    /// Puts clean copies of pages on the SSD; then changes these pages, which go home, with syncs.
    async fn cool_copies(&mut self) -> Result<u32, String> {
        self.mode(SsdMode::WriteThrough).await?;
        let pages = self.shuffled();
        let some = self.rng.random_range(30..=pages.len().max(31));
        for page in pages.iter().take(some).copied() {
            self.read_page(page).await?;
        }
        if self.rng.random_bool(0.5) {
            tokio::time::sleep(Duration::from_micros(10 * self.plan.ssd_us)).await;
        }
        let mode =
            [SsdMode::ReadOnly, SsdMode::WriteThrough, SsdMode::WriteBack][self.rng.random_range(0..3)];
        self.mode(mode).await?;
        let copies: Vec<PageId> =
            pages.iter().copied().filter(|page| self.store.home(*page) == Home::Ssd).collect();
        let burst = self.rng.random_range(2..=10);
        let others: Vec<PageId> =
            pages.iter().copied().filter(|page| self.store.home(*page) == Home::Hdd).collect();
        let mut others = others.into_iter().cycle();
        let mut done = some as u32;
        for changed in copies.chunks(burst) {
            for page in changed {
                self.write_page(*page, false).await?;
            }
            // Their slots are reused before they are written.
            let crowd = if mode == SsdMode::WriteBack { 2 * burst } else { 0 };
            let crowd: Vec<PageId> = others.by_ref().take(crowd).collect();
            for page in &crowd {
                self.read_page(*page).await?;
            }
            self.sync().await?;
            done += (changed.len() + crowd.len() + 1) as u32;
        }
        Ok(done)
    }

    /// Creates only copies on the SSD; then drains it, or stops admission, while the same pages are changed
    /// again.
    async fn two_ways_home(&mut self) -> Result<u32, String> {
        self.mode(SsdMode::WriteBack).await?;
        let pages = self.shuffled();
        for page in pages.iter().take(24) {
            self.write_page(*page, false).await?;
        }
        self.sync().await?;
        let store = std::sync::Arc::clone(&self.store);
        let patience = Duration::from_micros(self.rng.random_range(1..=20 * self.plan.hdd_us));
        let drains = self.rng.random_bool(0.7);
        let going = async {
            if drains {
                store.ssd().drain(Drain::new().deadline(patience)).await;
            } else {
                let _ = store.ssd().set_mode(SsdMode::WriteThrough).await;
                tokio::time::sleep(patience).await;
            }
        };
        let meanwhile = async {
            for page in pages.iter().take(24) {
                self.write_page(*page, false).await?;
                if self.rng.random_ratio(1, 4) {
                    self.sync().await?;
                }
            }
            self.sync().await
        };
        let ((), ended) = tokio::join!(going, meanwhile);
        ended?;
        // Evict and reload them: the storage below holds the result of the last change.
        for page in pages.iter().rev() {
            self.read_page(*page).await?;
        }
        Ok(50 + pages.len() as u32)
    }

    /// Drains only copies on the SSD; meanwhile discards their pages, and rewrites some.
    async fn drained_discards(&mut self) -> Result<u32, String> {
        self.mode(SsdMode::WriteBack).await?;
        let pages = self.shuffled();
        for page in pages.iter().take(24) {
            self.write_page(*page, false).await?;
        }
        self.sync().await?;
        let store = std::sync::Arc::clone(&self.store);
        // Leave time for a checkpoint, which does not name discarded pages.
        Planned::slow_home(Duration::from_micros(self.rng.random_range(20..=80) * self.plan.hdd_us))
            .inject_now(&self.probe);
        let meanwhile = async {
            for page in pages.iter().take(24) {
                let pause = self.rng.random_range(1..=self.plan.hdd_us / 8);
                tokio::time::sleep(Duration::from_micros(pause)).await;
                if self.store.home(*page) == Home::Ssd {
                    self.discard_page(*page).await?;
                }
            }
            for page in pages.iter().skip(24) {
                match self.rng.random_range(0..3) {
                    0 => self.write_page(*page, false).await?,
                    _ => self.read_page(*page).await?,
                }
            }
            Ok::<(), String>(())
        };
        let (_, ended) = tokio::join!(store.ssd().drain(Drain::new()), meanwhile);
        ended?;
        for page in pages.iter().take(12) {
            self.write_page(*page, false).await?;
        }
        Ok(60)
    }

    /// Changes pages; one of their home writes fails while `sync` waits for it, and then some of them are
    /// discarded.
    async fn failed_homes(&mut self) -> Result<u32, String> {
        if self.plan.slots > 0 {
            self.mode(SsdMode::ReadOnly).await?;
        }
        let pages = self.shuffled();
        for page in pages.iter().take(6) {
            self.write_page(*page, false).await?;
        }
        if self.errors_allowed {
            Planned::home(0).inject_now(&self.probe);
        }
        let patience = Duration::from_micros(self.rng.random_range(1..=10 * self.plan.hdd_us));
        let _ = tokio::time::timeout(patience, self.store.sync()).await;
        for page in pages.iter().take(6) {
            if self.rng.random_bool(0.7) {
                self.discard_page(*page).await?;
            }
        }
        for page in pages.iter().skip(6).take(12) {
            self.write_page(*page, false).await?;
        }
        self.sync().await?;
        Ok(30)
    }

    /// Discards pages that are on the SSD and reads what is left of them at home; then changes many pages,
    /// which all go home.
    async fn torn_homes(&mut self) -> Result<u32, String> {
        let pages = self.shuffled();
        for page in &pages {
            if self.store.home(*page) == Home::Ssd && self.rng.random_bool(0.5) {
                self.discard_page(*page).await?;
                self.read_page(*page).await?;
            }
        }
        for page in pages.iter().take(60) {
            self.write_page(*page, false).await?;
        }
        self.sync().await?;
        Ok(60 + pages.len() as u32)
    }

    /// Changes one page after the other, with hardly any syncs.
    async fn fresh_victims(&mut self) -> Result<u32, String> {
        let pages = self.shuffled();
        for page in &pages {
            self.write_page(*page, false).await?;
            if self.rng.random_ratio(1, 30) {
                self.sync().await?;
            }
        }
        Ok(pages.len() as u32)
    }

    /// Reads pages, so that others leave memory for the SSD, and right after that changes or discards those.
    async fn just_evicted(&mut self) -> Result<u32, String> {
        let pages = self.shuffled();
        let at_home: Vec<PageId> =
            pages.iter().copied().filter(|page| self.store.home(*page) == Home::Hdd).collect();
        for (at, page) in at_home.iter().enumerate() {
            self.read_page(*page).await?;
            let moved = at_home[..=at].iter().rev().find(|page| self.store.home(**page) == Home::Ssd);
            if let Some(moved) = moved.filter(|_| self.rng.random_bool(0.4)) {
                match self.rng.random_range(0..3) {
                    0 => self.recreate_page(*moved).await?,
                    _ => self.discard_page(*moved).await?,
                }
            }
            if self.rng.random_ratio(1, 25) {
                self.sync().await?;
            }
        }
        // Discarded pages that are rewritten have their home on the HDD again.
        for page in pages.iter().take(8) {
            self.write_page(*page, false).await?;
        }
        Ok(at_home.len() as u32 + 8)
    }
}
