//! Miniature simulations of the pool, one per ranking, over a sample of the pages.
//!
//! Each has an SSD of its own below it (`below`), because the actual homes depend on the ranking in force: a
//! page that this ranking keeps in memory gets no copy on the SSD, but would get one under a ranking that
//! misses it.

use super::below::Below;
use super::ranked::{Ranked, Ranking};
use crate::collections::page_index::mixed;
use crate::{Access, Costs, FrameId, Location, PageId, SsdSetting};
use rustc_hash::{FxBuildHasher, FxHashMap};

/// The minimum number of frames of a ghost, unless the pool has fewer.
const FRAMES_MIN: usize = 192;

/// The share of the pool's frames that a ghost has, above that minimum.
const SHARE: f64 = 1.0 / 32.0;

/// Costs are compared after this many misses of the sample per frame of a ghost.
const STRETCH: usize = 4;

/// A use is not reported if fewer references than the ghost's frames divided by this were reported since the
/// page's last one.
const NEAR: usize = 8;

/// The maximum number of uses reported to the ghosts per miss: it bounds their share of the cost of a hit.
const USES_PER_MISS: usize = 32;

/// The number of slots of a ghost's SSD that every pool can afford.
const SLOTS_ALWAYS: usize = 128;

/// The cost of a change, in reads from the HDD per page that the pool holds without an SSD copy and the new
/// ranking would not hold.
const LOST: f64 = 0.2;

#[derive(Debug)]
struct Ghost {
    ranked: Ranked,
    frame_of: FxHashMap<PageId, u32>,
    page_in: Vec<PageId>,
    cost_ms: f64,
}

impl Ghost {
    /// Evicts a page into the SSD below, and returns its frame.
    fn evict(&mut self, at: usize, below: &mut Below, costs: &Costs) -> Option<FrameId> {
        let victim = self.ranked.victim(&mut |_| true)?;
        let dirty = self.ranked.facts(victim).is_some_and(|facts| facts.is_dirty());
        let page = self.page_in[victim.at()];
        self.ranked.remove(victim, true);
        self.frame_of.remove(&page);
        let offered = below.evicted(at, page, dirty, costs);
        self.cost_ms += offered.cost_ms;
        if let Some(&frame) = offered.displaced.and_then(|page| self.frame_of.get(&page)) {
            self.ranked.ssd_evicted(FrameId(frame));
        }
        Some(victim)
    }
}

/// The ghosts, one per ranking.
#[derive(Debug)]
pub(crate) struct Ghosts {
    ghosts: Vec<Ghost>,
    below: Below,
    frames: usize,
    /// The sample: pages whose hash is not above this.
    hash_max: u64,
    costs: Costs,
    misses: usize,
    /// References reported to the ghosts.
    clock: u32,
    /// Uses that may still be reported before the next miss.
    credit: usize,
}

impl Ghosts {
    /// Empty ghosts of a pool of `frames` frames above an SSD of `slots` slots.
    pub(crate) fn new(frames: usize, slots: usize, costs: Costs) -> Self {
        let sampled = sampled_frames(frames, slots);
        let rate = sampled as f64 / frames.max(1) as f64;
        let ghost = |&ranking: &Ranking| Ghost {
            ranked: Ranked::new(sampled, costs, ranking),
            frame_of: FxHashMap::with_capacity_and_hasher(sampled, FxBuildHasher),
            page_in: Vec::with_capacity(sampled),
            cost_ms: 0.0,
        };
        Self {
            ghosts: Ranking::ALL.iter().map(ghost).collect(),
            below: Below::new(((rate * slots as f64) as usize).min(slots_max(frames))),
            frames: sampled,
            hash_max: if rate >= 1.0 { u64::MAX } else { (rate * u64::MAX as f64) as u64 },
            costs,
            misses: 0,
            clock: 0,
            credit: 0,
        }
    }

    /// Whether `page` belongs to the sample.
    pub(crate) fn take(&self, page: PageId) -> bool {
        mixed(page).wrapping_mul(0xA24B_AED4_963E_E407) <= self.hash_max
    }

    /// References reported to the ghosts, modulo 2^32.
    pub(crate) const fn clock(&self) -> u32 {
        self.clock
    }

    /// Whether to report a use of a page whose last reported use was at clock `reported`. A page used that
    /// recently is still among the last to be evicted; and without misses there is nothing to choose.
    pub(crate) fn wants(&self, reported: u32) -> bool {
        self.credit > 0 && self.clock.wrapping_sub(reported) as usize >= self.frames / NEAR
    }

    /// Records that the actual pool missed the page.
    pub(crate) fn missed(&mut self, page: PageId, access: Access) {
        self.misses += 1;
        self.clock = self.clock.wrapping_add(1);
        self.credit = (self.credit + USES_PER_MISS).min(4 * self.frames);
        self.below.tick();
        for at in 0..self.ghosts.len() {
            self.refer(at, page, access);
        }
    }

    /// Records a use of a page that the actual pool holds: a write if `write`.
    pub(crate) fn used(&mut self, page: PageId, write: bool) {
        self.clock = self.clock.wrapping_add(1);
        self.credit = self.credit.saturating_sub(1);
        for at in 0..self.ghosts.len() {
            self.refer(at, page, Access::Random);
        }
        if write {
            // The actual pool reports a change only of a clean page; a ghost may have cleaned it since.
            self.dirtied(page);
        }
    }

    fn refer(&mut self, at: usize, page: PageId, access: Access) {
        let ghost = &mut self.ghosts[at];
        if let Some(&frame) = ghost.frame_of.get(&page) {
            let _ = ghost.ranked.hit(FrameId(frame));
            return;
        }
        let location = self.below.read(at, page, &self.costs);
        ghost.cost_ms += self.costs.of(location).0;
        let frame = if ghost.page_in.len() < self.frames {
            ghost.page_in.push(page);
            FrameId(ghost.page_in.len() as u32 - 1)
        } else {
            let Some(frame) = ghost.evict(at, &mut self.below, &self.costs) else { return };
            ghost.page_in[frame.at()] = page;
            frame
        };
        ghost.frame_of.insert(page, frame.0);
        ghost.ranked.insert(frame, location, access, false);
    }

    /// Records that the page became dirty.
    pub(crate) fn dirtied(&mut self, page: PageId) {
        for (at, ghost) in self.ghosts.iter_mut().enumerate() {
            if let Some(&frame) = ghost.frame_of.get(&page) {
                ghost.ranked.dirtied(FrameId(frame));
                if self.below.changed(at, page) {
                    ghost.ranked.ssd_invalidated(FrameId(frame));
                }
            }
        }
    }

    /// The cost of a change to ranking number `other`: pages that it would not hold leave the pool, and those
    /// without an SSD copy are read from the HDD again. `held` yields the sampled pages of the actual pool,
    /// and their homes.
    #[cold]
    pub(crate) fn change_ms(&self, other: usize, held: impl Iterator<Item = (PageId, Location)>) -> f64 {
        let frame_of = &self.ghosts[other].frame_of;
        let lost = held
            .filter(|(page, location)| *location == Location::Hdd && !frame_of.contains_key(page))
            .count();
        LOST * lost as f64 * self.costs.read_saving_ms()
    }

    /// Lets the ghosts' SSDs follow `setting`, as the SSD below the actual pool does from now on.
    pub(crate) fn follow_ssd(&mut self, setting: SsdSetting) {
        self.below.set_half_life(setting.half_life());
    }

    pub(crate) fn set_costs(&mut self, costs: Costs) {
        self.costs = costs;
        self.ghosts.iter_mut().for_each(|ghost| ghost.ranked.set_costs(costs));
    }

    /// At the end of a stretch, returns the cost of each ranking in it.
    pub(crate) fn stretch(&mut self) -> Option<[f64; Ranking::ALL.len()]> {
        if self.misses < STRETCH * self.frames {
            return None;
        }
        self.misses = 0;
        let mut costs = [0.0; Ranking::ALL.len()];
        for (cost, ghost) in costs.iter_mut().zip(&mut self.ghosts) {
            *cost = std::mem::take(&mut ghost.cost_ms);
        }
        Some(costs)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let bytes = |ghost: &Ghost| {
            ghost.ranked.memory_bytes()
                + ghost.page_in.capacity() * size_of::<PageId>()
                + ghost.frame_of.capacity() * (size_of::<(PageId, u32)>() + 1)
        };
        self.ghosts.iter().map(bytes).sum::<usize>() + self.below.memory_bytes()
    }

    pub(crate) fn validate(&self) -> Result<(), String> {
        for ghost in &self.ghosts {
            ghost.ranked.validate()?;
            if ghost.ranked.len() != ghost.frame_of.len() || ghost.page_in.len() > self.frames {
                return Err(format!("ghost: {} pages, {} ranked", ghost.frame_of.len(), ghost.ranked.len()));
            }
        }
        self.below.validate()
    }
}

/// The number of frames of a ghost.
fn sampled_frames(frames: usize, slots: usize) -> usize {
    let wanted = ((frames as f64 * SHARE) as usize).max(FRAMES_MIN);
    let affordable = slots_max(frames) as f64 / slots.max(1) as f64;
    wanted.min((affordable * frames as f64) as usize).min(frames).max(1)
}

/// The maximum number of slots of a ghost's SSD. A slot takes 90 bytes in all ghosts together: with 1.4 slots
/// per frame of the pool, 0.8 % of its memory at 16 KiB a page.
fn slots_max(frames: usize) -> usize {
    (frames * 7 / 5).max(SLOTS_ALWAYS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SpaceId;

    fn page(no: u32) -> PageId {
        PageId::new(SpaceId(1), no)
    }

    /// The costs of a loop over `pages` pages, all of which fit the SSD. The actual pool holds those for
    /// which `holds` is true.
    fn loop_costs(pages: u32, holds: impl Fn(u32) -> bool) -> [f64; Ranking::ALL.len()] {
        let mut ghosts = Ghosts::new(64, pages as usize, Costs::PAPER);
        for at in 0..20 * pages {
            let page = page(at % pages);
            match at >= pages && holds(at % pages) {
                true => ghosts.used(page, at % 3 == 0),
                false => ghosts.missed(page, Access::Random),
            }
            if at % 3 == 0 {
                ghosts.dirtied(page);
            }
        }
        ghosts.validate().unwrap();
        let costs = ghosts.ghosts.iter().map(|ghost| ghost.cost_ms).collect::<Vec<f64>>();
        costs.try_into().unwrap()
    }

    #[test]
    fn costs_do_not_depend_on_which_pages_the_actual_pool_holds() {
        let without = loop_costs(90, |_| false);
        assert_eq!(loop_costs(90, |no| no < 64), without);
        assert_eq!(loop_costs(90, |no| no % 3 == 1), without);
        // The loop exceeds the pool: recency hits nothing.
        assert!(
            without[Ranking::Recency as usize] > 1.1 * without[Ranking::Weighted as usize],
            "{without:?}"
        );
    }

    #[test]
    fn the_ghosts_ssds_forget_as_fast_as_the_actual_one() {
        // Requests pass repeatedly over a window that moves: the pages of the last pass are worth their
        // slots.
        let cost_ms = |setting: &str| {
            let mut ghosts = Ghosts::new(16, 64, Costs::PAPER);
            ghosts.follow_ssd(SsdSetting::named(setting).unwrap());
            for at in 0..40_000 {
                ghosts.missed(page(at / 20 + at % 64), Access::Random);
            }
            ghosts.validate().unwrap();
            ghosts.ghosts[Ranking::Recency as usize].cost_ms
        };
        let [slow, fast] = ["plain", "half-life-4"].map(cost_ms);
        assert!(fast < 0.95 * slow, "{fast} {slow}");
        assert_eq!(cost_ms("half-life-16"), slow);
        assert_eq!(cost_ms("segmented-lru"), fast);
    }

    #[test]
    fn a_change_costs_a_share_of_a_read_for_each_page_that_it_loses() {
        let mut ghosts = Ghosts::new(4, 0, Costs::PAPER);
        (0..4).for_each(|no| ghosts.missed(page(no), Access::Random));
        let lost = |held: &[(u32, Location)]| {
            let held = held.iter().map(|&(no, location)| (page(no), location));
            ghosts.change_ms(2, held) / (LOST * Costs::PAPER.read_saving_ms())
        };
        assert_eq!(lost(&[(0, Location::Hdd), (3, Location::Hdd)]), 0.0);
        assert_eq!(lost(&[(0, Location::Hdd), (8, Location::Ssd), (9, Location::Hdd)]), 1.0);
    }

    #[test]
    fn a_ghosts_ssd_has_at_most_seven_slots_per_five_frames_of_the_pool() {
        for (frames, slots) in [(512, 5120), (1000, 10_000), (4000, 16_000), (50_000, 1_000_000), (8, 0)] {
            let sampled = sampled_frames(frames, slots);
            assert!(sampled >= 1 && sampled <= frames, "{sampled} of {frames}");
            assert!(5 * sampled * slots / frames <= 7 * frames, "{frames}, {slots}: {sampled}");
        }
        // Above the last one, a ghost of one frame would have more slots than the bound.
        for (frames, slots) in
            [(512, 5120), (1000, 10_000), (4000, 16_000), (50_000, 1_000_000), (512, 4_000_000)]
        {
            let share =
                Ghosts::new(frames, slots, Costs::PAPER).memory_bytes() as f64 / (frames * 16_384) as f64;
            assert!(share < 0.01, "{frames} frames, {slots} slots: {:.2} %", 100.0 * share);
        }
        assert_eq!((sampled_frames(64_000, 64_000), sampled_frames(1000, 0)), (2000, FRAMES_MIN));
    }
}
