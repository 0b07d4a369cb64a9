//! Directed work: the order of operations, and the faults of the devices, that lead to a hazard which random
//! work seldom meets. The details are drawn from the seed as usual.

use super::worker::Worker;
use crate::campaign::draw::hazard::Hazard;
use crate::campaign::draw::plan::Plan;
use crate::campaign::world::planned::Planned;
use pagetier::{DrainOptions, Location, PageId, SsdMode};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect};
use rand::Rng;
use rand::rngs::SmallRng;
use std::time::Duration;

impl Hazard {
    /// The device faults of a life.
    pub(crate) fn faults(self, plan: &Plan, rng: &mut SmallRng) -> Vec<Planned> {
        let layout = plan.layout();
        let slot_fails = |after| {
            let slots = layout.slot_at(0)..layout.end();
            let fault = Fault::new(FaultEffect::Eio).on(IoOp::Write).within(slots).times(1);
            Planned::device(true, "EIO on a slot", fault.from_op(after))
        };
        match self {
            Self::SlowMap => {
                let slow = FaultEffect::Slow(Duration::from_millis(rng.random_range(50..=400)));
                let header = |(area, copy)| {
                    let at = layout.map_header_at(area, copy);
                    Planned::device(true, "slow header", Fault::new(slow).on(IoOp::Write).within(at..at + 1))
                };
                [(0, 0), (0, 1), (1, 0), (1, 1)].map(header).to_vec()
            }
            Self::SlotFails => vec![slot_fails(rng.random_range(1..1500))],
            // After a failed slot write, changed pages go home past their SSD copies.
            Self::NoRing if plan.slots > 0 && rng.random_bool(0.5) => {
                vec![slot_fails(rng.random_range(1..300))]
            }
            Self::FailedHomes => vec![Planned::home(plan, rng.random_range(1..200))],
            _ => Vec::new(),
        }
    }
}

type Outcome = Result<(), String>;

impl Worker {
    /// Does about `ops` directed operations.
    pub(crate) async fn directed(&mut self, ops: u32) -> Outcome {
        self.fill_space().await?;
        let mut left = i64::from(ops);
        while left > 0 {
            left -= i64::from(self.sequence(self.plan.hazard).await?);
        }
        Ok(())
    }

    /// The work of one hazard, in other lives.
    pub(super) async fn script(&mut self, hazard: Hazard) -> Outcome {
        if self.model.lock().live_pages().is_empty() {
            return Ok(());
        }
        self.sequence(hazard).await.map(drop)
    }

    async fn sequence(&mut self, hazard: Hazard) -> Result<u32, String> {
        match hazard {
            Hazard::ColdCopies | Hazard::SlowMap | Hazard::SlotFails => self.cool_copies().await,
            Hazard::TwoWaysHome => self.two_ways_home().await,
            Hazard::FreshVictims => self.fresh_victims().await,
            Hazard::JustEvicted => self.just_evicted().await,
            Hazard::TornHomes => self.torn_homes().await,
            Hazard::DrainedDiscards => self.drained_discards().await,
            Hazard::FailedHomes => self.failed_homes().await,
            // The others have no work of their own.
            _ => Ok(u32::MAX),
        }
    }

    /// Fills the space as far as the store allocates pages; after a fault it may refuse to.
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
        let mut pages = self.model.lock().live_pages();
        for at in (1..pages.len()).rev() {
            pages.swap(at, self.rng.random_range(0..=at));
        }
        pages
    }

    async fn write_pages(&mut self, pages: impl Iterator<Item = &PageId>) -> Outcome {
        for page in pages {
            self.write_page(*page, false).await?;
        }
        Ok(())
    }

    /// Makes the SSD hold the only copies of 24 pages; returns these, then all others.
    async fn only_copies(&mut self) -> Result<Vec<PageId>, String> {
        self.mode(SsdMode::WriteBack).await?;
        let pages = self.shuffled();
        // More pages than a directed plan has frames, so that they leave memory.
        self.write_pages(pages.iter().take(24)).await?;
        self.sync().await?;
        Ok(pages)
    }

    pub(crate) async fn mode(&self, mode: SsdMode) -> Outcome {
        self.store.ssd().set_mode(mode).await.or_else(|error| self.judge("set_ssd_mode", None, &error))
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
            // Half of the time the copies are complete before the pages change.
            tokio::time::sleep(Duration::from_micros(10 * self.plan.ssd_us)).await;
        }
        let mode =
            [SsdMode::ReadOnly, SsdMode::WriteThrough, SsdMode::WriteBack][self.rng.random_range(0..3)];
        self.mode(mode).await?;
        let copies: Vec<PageId> =
            pages.iter().copied().filter(|page| self.store.location(*page) == Location::Ssd).collect();
        let burst = self.rng.random_range(2..=10);
        let others: Vec<PageId> =
            pages.iter().copied().filter(|page| self.store.location(*page) == Location::Hdd).collect();
        let mut others = others.into_iter().cycle();
        let mut done = some as u32;
        for changed in copies.chunks(burst) {
            self.write_pages(changed.iter()).await?;
            // Other pages take over their slots before the changes are written.
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
        let pages = self.only_copies().await?;
        let store = std::sync::Arc::clone(&self.store);
        let patience = Duration::from_micros(self.rng.random_range(1..=20 * self.plan.hdd_us));
        let drains = self.rng.random_bool(0.7);
        let going = async {
            if drains {
                store.ssd().drain(DrainOptions::new().deadline(patience)).await;
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
        // Evict and reload them: the tiers must hold the result of the last change.
        for page in pages.iter().rev() {
            self.read_page(*page).await?;
        }
        Ok(50 + pages.len() as u32)
    }

    /// Drains only copies on the SSD; meanwhile discards their pages, and rewrites some.
    async fn drained_discards(&mut self) -> Result<u32, String> {
        let pages = self.only_copies().await?;
        let store = std::sync::Arc::clone(&self.store);
        // Leave time for a checkpoint, which omits discarded pages.
        Planned::slow_home(
            &self.plan,
            Duration::from_micros(self.rng.random_range(20..=80) * self.plan.hdd_us),
        )
        .inject_now(&self.probe);
        let meanwhile = async {
            for page in pages.iter().take(24) {
                let pause = self.rng.random_range(1..=self.plan.hdd_us / 8);
                tokio::time::sleep(Duration::from_micros(pause)).await;
                if self.store.location(*page) == Location::Ssd {
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
        let (_, ended) = tokio::join!(store.ssd().drain(DrainOptions::new()), meanwhile);
        ended?;
        self.write_pages(pages.iter().take(12)).await?;
        Ok(60)
    }

    /// Changes pages; one of their home writes fails while `sync` waits for it, and then some of them are
    /// discarded.
    async fn failed_homes(&mut self) -> Result<u32, String> {
        // No slot may take the changes, so that each becomes a home write.
        if self.plan.slots > 0 {
            self.mode(SsdMode::ReadOnly).await?;
        }
        let pages = self.shuffled();
        self.write_pages(pages.iter().take(6)).await?;
        if self.errors_allowed {
            Planned::home(&self.plan, 0).inject_now(&self.probe);
        }
        let patience = Duration::from_micros(self.rng.random_range(1..=10 * self.plan.hdd_us));
        let _ = tokio::time::timeout(patience, self.store.sync()).await;
        for page in pages.iter().take(6) {
            if self.rng.random_bool(0.7) {
                self.discard_page(*page).await?;
            }
        }
        self.write_pages(pages.iter().skip(6).take(12)).await?;
        self.sync().await?;
        Ok(30)
    }

    /// Discards pages that are on the SSD and reads what remains at home; then changes many pages, which all
    /// go home.
    async fn torn_homes(&mut self) -> Result<u32, String> {
        let pages = self.shuffled();
        for page in &pages {
            // The discard gives up the slot that backed the home, so a home that the recovery left torn
            // shows (I22).
            if self.store.location(*page) == Location::Ssd && self.rng.random_bool(0.5) {
                self.discard_page(*page).await?;
                self.read_page(*page).await?;
            }
        }
        self.write_pages(pages.iter().take(60)).await?;
        self.sync().await?;
        Ok(60 + pages.len() as u32)
    }

    /// Changes every page, with few syncs.
    async fn fresh_victims(&mut self) -> Result<u32, String> {
        let pages = self.shuffled();
        for page in &pages {
            self.write_page(*page, false).await?;
            // A `sync` flushes the slots. Between two of them the store itself has to flush a victim
            // before it goes home.
            if self.rng.random_ratio(1, 30) {
                self.sync().await?;
            }
        }
        Ok(pages.len() as u32)
    }

    /// Reads pages, so that others leave memory for the SSD, and immediately changes or discards the latter.
    async fn just_evicted(&mut self) -> Result<u32, String> {
        let pages = self.shuffled();
        let at_home: Vec<PageId> =
            pages.iter().copied().filter(|page| self.store.location(*page) == Location::Hdd).collect();
        for (at, page) in at_home.iter().enumerate() {
            self.read_page(*page).await?;
            let moved = at_home[..=at].iter().rev().find(|page| self.store.location(**page) == Location::Ssd);
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
        self.write_pages(pages.iter().take(8)).await?;
        Ok(at_home.len() as u32 + 8)
    }
}
