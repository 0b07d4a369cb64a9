//! Miniature simulations of the pool, one for each ranking, over a sample of the pages.
//!
//! What a miss costs a ghost is told by where the store keeps the page. A page that the store's own pool
//! holds has never had to be placed below: for it a miss costs what the store's misses cost on average.

use super::ranked::{Ranked, Ranking};
use crate::collections::page_index::mixed;
use crate::{Access, Costs, FrameId, Home, PageId};
use rustc_hash::{FxBuildHasher, FxHashMap};

/// The frames of a ghost, at least, unless the pool has fewer.
const FRAMES_MIN: usize = 192;

/// The share of the frames that a ghost has beyond that.
const SHARE: f64 = 1.0 / 32.0;

/// Misses of the sample, for each frame of a ghost, after which costs are compared.
const STRETCH: usize = 4;

/// A ghost is not told of a use that follows the last one within this part of its frames.
const NEAR: usize = 8;

/// Uses that ghosts are told of for each miss, at most: what bounds their part of a hit.
const USES_PER_MISS: usize = 32;

/// What of an average is kept at each new value.
const KEPT: f64 = 0.99;

#[derive(Debug)]
struct Ghost {
    ranked: Ranked,
    frame_of: FxHashMap<PageId, u32>,
    page_in: Vec<PageId>,
    cost_ms: f64,
}

/// All ghosts.
#[derive(Debug)]
pub(crate) struct Ghosts {
    ghosts: Vec<Ghost>,
    frames: usize,
    below: u64,
    costs: Costs,
    misses: usize,
    /// References that the ghosts were told of.
    clock: u32,
    /// Uses that they may still be told of before the next miss.
    credit: usize,
    /// What a miss of the store costs, on average.
    miss_ms: f64,
    /// What the cleaning of a page without a copy on the SSD costs, on average.
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

    /// References that the ghosts were told of, modulo 2^32.
    pub(crate) const fn clock(&self) -> u32 {
        self.clock
    }

    /// Whether the ghosts are to be told of a use of a page that they were told of when the clock said
    /// `told`. A page used that lately is still among the last to go, and where nothing is missed nothing is
    /// to choose.
    pub(crate) fn wants(&self, told: u32) -> bool {
        self.credit > 0 && self.clock.wrapping_sub(told) as usize >= self.frames / NEAR
    }

    /// The store's pool missed the page, which was read from `home`.
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

    /// The store's pool holds the page, and it was used.
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
            ghost.ranked.hit(FrameId(frame));
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
        ghost.ranked.insert(frame, home, access);
    }

    /// The page became dirty.
    pub(crate) fn dirtied(&mut self, page: PageId) {
        for ghost in &mut self.ghosts {
            if let Some(&frame) = ghost.frame_of.get(&page) {
                ghost.ranked.dirtied(FrameId(frame));
            }
        }
    }

    /// The store wrote a page that had no copy on the SSD to `home`.
    pub(crate) fn cleaned(&mut self, home: Home) {
        let write_ms = if home == Home::Ssd { self.costs.ssd_write_ms } else { self.costs.hdd_write_ms };
        self.clean_ms = self.clean_ms * KEPT + write_ms * (1.0 - KEPT);
    }

    /// The SSD copy of a page that the store's pool holds is gone: by a change of the page if `changed`.
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

    /// The costs of the rankings since the last stretch, once a stretch is over.
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
