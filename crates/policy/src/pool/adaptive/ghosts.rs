//! Miniature simulations of the pool, one per ranking, over a sample of the pages.
//!
//! The page's actual home determines the cost of a ghost's miss. A page that the actual pool holds and that
//! has no SSD copy may not have been placed on a device yet: a ghost's miss of it costs the average of the
//! actual misses.

use super::ranked::{Ranked, Ranking};
use crate::collections::page_index::mixed;
use crate::{Access, Costs, FrameId, Home, PageId};
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

/// The weight of the past in a moving average.
const KEPT: f64 = 0.99;

#[derive(Debug)]
struct Ghost {
    ranked: Ranked,
    frame_of: FxHashMap<PageId, u32>,
    page_in: Vec<PageId>,
    cost_ms: f64,
}

/// The ghosts, one per ranking.
#[derive(Debug)]
pub(crate) struct Ghosts {
    ghosts: Vec<Ghost>,
    frames: usize,
    below: u64,
    costs: Costs,
    misses: usize,
    /// References reported to the ghosts.
    clock: u32,
    /// Uses that may still be reported before the next miss.
    credit: usize,
    /// The average cost of an actual miss.
    miss_ms: f64,
    /// The average cost of cleaning a page without an SSD copy.
    clean_ms: f64,
}

impl Ghosts {
    pub(crate) fn new(frames: usize, costs: Costs) -> Self {
        let sampled = ((frames as f64 * SHARE) as usize).max(FRAMES_MIN).min(frames).max(1);
        let rate = sampled as f64 / frames.max(1) as f64;
        let ghost = |&ranking: &Ranking| Ghost {
            ranked: Ranked::new(sampled, costs, ranking),
            frame_of: FxHashMap::with_capacity_and_hasher(sampled, FxBuildHasher),
            page_in: Vec::with_capacity(sampled),
            cost_ms: 0.0,
        };
        Self {
            ghosts: Ranking::ALL.iter().map(ghost).collect(),
            frames: sampled,
            below: if rate >= 1.0 { u64::MAX } else { (rate * u64::MAX as f64) as u64 },
            costs,
            misses: 0,
            clock: 0,
            credit: 0,
            miss_ms: costs.hdd_read_ms,
            clean_ms: costs.hdd_write_ms,
        }
    }

    /// Whether `page` belongs to the sample.
    pub(crate) fn take(&self, page: PageId) -> bool {
        mixed(page).wrapping_mul(0xA24B_AED4_963E_E407) <= self.below
    }

    /// References reported to the ghosts, modulo 2^32.
    pub(crate) const fn clock(&self) -> u32 {
        self.clock
    }

    /// Whether to report a use of a page whose last reported use was at clock `told`. A page used that
    /// recently is still among the last to be evicted; and without misses there is nothing to choose.
    pub(crate) fn wants(&self, told: u32) -> bool {
        self.credit > 0 && self.clock.wrapping_sub(told) as usize >= self.frames / NEAR
    }

    /// Records that the actual pool missed the page and read it from `home`.
    pub(crate) fn missed(&mut self, page: PageId, home: Home, access: Access) {
        self.misses += 1;
        self.clock = self.clock.wrapping_add(1);
        self.credit = (self.credit + USES_PER_MISS).min(4 * self.frames);
        let read_ms = self.read_ms(home);
        self.miss_ms = self.miss_ms * KEPT + read_ms * (1.0 - KEPT);
        for at in 0..self.ghosts.len() {
            self.refer(at, page, home, read_ms, access);
        }
    }

    /// Records a use of a page that the actual pool holds.
    pub(crate) fn used(&mut self, page: PageId, home: Home) {
        self.clock = self.clock.wrapping_add(1);
        self.credit = self.credit.saturating_sub(1);
        let read_ms = if home == Home::Ssd { self.costs.ssd_read_ms } else { self.miss_ms };
        for at in 0..self.ghosts.len() {
            self.refer(at, page, home, read_ms, Access::Random);
        }
    }

    fn read_ms(&self, home: Home) -> f64 {
        if home == Home::Ssd { self.costs.ssd_read_ms } else { self.costs.hdd_read_ms }
    }

    fn refer(&mut self, at: usize, page: PageId, home: Home, read_ms: f64, access: Access) {
        let (frames, clean_ms, write_ms) = (self.frames, self.clean_ms, self.costs.ssd_write_ms);
        let ghost = &mut self.ghosts[at];
        if let Some(&frame) = ghost.frame_of.get(&page) {
            ghost.ranked.correct_home(FrameId(frame), home);
            let _ = ghost.ranked.hit(FrameId(frame));
            return;
        }
        ghost.cost_ms += read_ms;
        let frame = if ghost.page_in.len() < frames {
            ghost.page_in.push(page);
            FrameId(ghost.page_in.len() as u32 - 1)
        } else {
            let Some(victim) = ghost.ranked.victim(&mut |_| true) else { return };
            if let Some(facts) = ghost.ranked.facts(victim).filter(|facts| facts.dirty) {
                ghost.cost_ms += if facts.home == Home::Ssd { write_ms } else { clean_ms };
            }
            ghost.ranked.remove(victim, true);
            ghost.frame_of.remove(&ghost.page_in[victim.at()]);
            ghost.page_in[victim.at()] = page;
            victim
        };
        ghost.frame_of.insert(page, frame.0);
        ghost.ranked.insert(frame, home, access, false);
    }

    /// Records that the page became dirty.
    pub(crate) fn dirtied(&mut self, page: PageId) {
        for ghost in &mut self.ghosts {
            if let Some(&frame) = ghost.frame_of.get(&page) {
                ghost.ranked.dirtied(FrameId(frame));
            }
        }
    }

    /// Records that a page without an SSD copy was written to `home`.
    pub(crate) fn cleaned(&mut self, home: Home) {
        let write_ms = if home == Home::Ssd { self.costs.ssd_write_ms } else { self.costs.hdd_write_ms };
        self.clean_ms = self.clean_ms * KEPT + write_ms * (1.0 - KEPT);
    }

    /// Records that a page that the actual pool holds lost its SSD copy: because the page was changed if
    /// `changed`, otherwise by eviction.
    pub(crate) fn left_ssd(&mut self, page: PageId, changed: bool) {
        for ghost in &mut self.ghosts {
            match ghost.frame_of.get(&page) {
                Some(&frame) if changed => ghost.ranked.ssd_invalidated(FrameId(frame)),
                Some(&frame) => ghost.ranked.ssd_evicted(FrameId(frame)),
                None => {}
            }
        }
    }

    pub(crate) fn set_costs(&mut self, costs: Costs) {
        self.costs = costs;
        self.ghosts.iter_mut().for_each(|ghost| ghost.ranked.costs = costs);
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
        self.ghosts.iter().map(bytes).sum()
    }

    pub(crate) fn validate(&self) -> Result<(), String> {
        for ghost in &self.ghosts {
            ghost.ranked.validate()?;
            if ghost.ranked.len() != ghost.frame_of.len() || ghost.page_in.len() > self.frames {
                return Err(format!("ghost: {} pages, {} ranked", ghost.frame_of.len(), ghost.ranked.len()));
            }
        }
        Ok(())
    }
}
