//! GreedyDual's queues under a ranking that may change: GD2L, GD2L with frequency and write-back cost (at the
//! devices' costs, or with a part of the HDD's extra cost), or LRU.
//!
//! The *facts* of a frame's page (home, dirty, uses) are kept under every ranking; the ranking selects those
//! that count. A change of ranking files every page again, relative to the value of L when the page was last
//! filed. If pages kept their H instead, those that the previous ranking valued highly would stay until L had
//! risen to it, and a ranking under which L rises slowly would be left with a part of the pool.

use crate::collections::links::QueueNo;
use crate::pool::FREQUENCY_MAX;
use crate::pool::h_queues::HQueues;
use crate::{Access, CleanReason, Costs, FrameId, Location};

/// A ranking of the pool's pages: what the default pool policy chooses among. By name: `weighted`,
/// `weighted-0.2`, `gd2l`, `lru`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ranking {
    /// By the cost of reading the page again and of writing it if dirty, times its uses.
    Weighted,
    /// By the cost of reading the page again, as in GD2L.
    Cost,
    /// By the last use.
    Recency,
    /// As [`Self::Weighted`], with a fifth of the HDD's extra cost over the SSD.
    Mild,
}

impl Ranking {
    /// Every ranking.
    pub const ALL: [Self; 4] = [Self::Weighted, Self::Cost, Self::Recency, Self::Mild];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weighted => "weighted",
            Self::Cost => "gd2l",
            Self::Recency => "lru",
            Self::Mild => "weighted-0.2",
        }
    }
}

/// The share of the HDD's extra cost over the SSD that [`Ranking::Mild`] counts.
const MILD: f64 = 0.2;

/// One queue per home, dirty state and number of uses; and one for pages ranked by recency.
const QUEUES: usize = 4 * FREQUENCY_MAX as usize + 1;
const RECENT: QueueNo = QueueNo(QUEUES as u8 - 1);

/// The facts of a frame's page in one byte, so that those of a large pool fit into the processor's caches.
///
/// | bits | meaning |
/// | --- | --- |
/// | 0 | the page's home is the HDD |
/// | 1 | the page is dirty |
/// | 2 to 5 | uses since loading, up to [`FREQUENCY_MAX`], minus one |
/// | 6 | the page belongs to the ghosts' sample: here, because a hit reads the facts anyway |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Facts(u8);

const ON_HDD: u8 = 1;
const DIRTY: u8 = 1 << 1;
const USE: u8 = 1 << 2;
const USES: u8 = 0b1111 * USE;
const SAMPLED: u8 = 1 << 6;

/// Every combination of home, dirty state and uses; those beyond [`FREQUENCY_MAX`] do not occur.
const CLASSES: usize = SAMPLED as usize;

/// A clean page with its home on the HDD, used once, which is not sampled.
const NEW: Facts = Facts(ON_HDD);

const _: () = assert!((FREQUENCY_MAX - 1) * USE <= USES && QUEUES <= CLASSES);

impl Facts {
    fn new(location: Location, sampled: bool) -> Self {
        Self(0).with(ON_HDD, location == Location::Hdd).with(SAMPLED, sampled)
    }

    fn with(self, bit: u8, set: bool) -> Self {
        Self(if set { self.0 | bit } else { self.0 & !bit })
    }

    pub(crate) fn location(self) -> Location {
        if self.0 & ON_HDD == 0 { Location::Ssd } else { Location::Hdd }
    }

    pub(crate) fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    pub(crate) fn is_sampled(self) -> bool {
        self.0 & SAMPLED != 0
    }

    fn uses(self) -> u8 {
        (self.0 & USES) / USE + 1
    }

    fn used(self) -> Self {
        if self.uses() < FREQUENCY_MAX { Self(self.0 + USE) } else { self }
    }

    /// The facts that a ranking may count.
    fn class(self) -> usize {
        usize::from(self.0 & (ON_HDD | DIRTY | USES))
    }
}

/// Frames in order of H; see the module's text.
#[derive(Debug)]
pub(crate) struct Ranked {
    queues: HQueues<QUEUES>,
    facts: Vec<Facts>,
    ranking: Ranking,
    costs: Costs,
    /// The queue of a class of pages, and H - L upon a use, in milliseconds.
    places: [(QueueNo, f64); CLASSES],
}

impl Ranked {
    pub(crate) fn new(frames: usize, costs: Costs, ranking: Ranking) -> Self {
        let places = places(ranking, costs);
        Self { queues: HQueues::new(frames), facts: vec![NEW; frames], ranking, costs, places }
    }

    pub(crate) fn costs(&self) -> Costs {
        self.costs
    }

    /// Sets the costs. They count for a page from its next use on.
    pub(crate) fn set_costs(&mut self, costs: Costs) {
        self.costs = costs;
        self.places = places(self.ranking, costs);
    }

    pub(crate) fn len(&self) -> usize {
        self.queues.len()
    }

    fn is_tracked(&self, frame: FrameId) -> bool {
        self.queues.queue_of(frame).is_some()
    }

    pub(crate) fn facts(&self, frame: FrameId) -> Option<Facts> {
        self.is_tracked(frame).then(|| self.facts[frame.at()])
    }

    /// H above L, in milliseconds; `None` for a frame that is not tracked, or when recency alone ranks.
    pub(crate) fn worth_ms(&self, frame: FrameId) -> Option<f64> {
        let h = self.queues.h(frame).filter(|_| self.ranking != Ranking::Recency)?;
        Some(h - self.queues.inflation())
    }

    fn queue(&self, facts: Facts) -> QueueNo {
        self.places[facts.class()].0
    }

    /// H - L of a page with these facts upon a use.
    fn worth(&self, facts: Facts) -> f64 {
        self.places[facts.class()].1
    }

    /// H of a page with these facts upon a use.
    fn fresh(&self, facts: Facts) -> f64 {
        self.queues.inflation() + self.worth(facts)
    }

    /// Changes the ranking, as if it had been in force when each page was last filed. O(n log n) in the
    /// frames.
    #[cold]
    pub(crate) fn follow(&mut self, ranking: Ranking) {
        let drained = self.queues.drain();
        let level = |(frame, h): (FrameId, f64)| (h - self.worth(self.facts[frame.at()]), frame);
        let mut filed: Vec<(f64, FrameId)> = drained.into_iter().map(level).collect();
        // Stable: pages filed at the same L keep their order.
        filed.sort_by(|a, b| a.0.total_cmp(&b.0));
        self.ranking = ranking;
        self.places = places(ranking, self.costs);
        for (level, frame) in filed {
            let facts = self.facts[frame.at()];
            self.queues.put_mru(frame, self.queue(facts), level + self.worth(facts));
        }
    }

    fn put_mru(&mut self, frame: FrameId) {
        let facts = self.facts[frame.at()];
        self.queues.put_mru(frame, self.queue(facts), self.fresh(facts));
    }

    fn put_midpoint(&mut self, frame: FrameId) {
        let facts = self.facts[frame.at()];
        self.queues.put_midpoint(frame, self.queue(facts), self.fresh(facts));
    }

    pub(crate) fn insert(&mut self, frame: FrameId, location: Location, access: Access, sampled: bool) {
        self.queues.admit(frame);
        if frame.at() >= self.facts.len() {
            self.facts.resize(frame.at() + 1, NEW);
        }
        self.facts[frame.at()] = Facts::new(location, sampled);
        match access {
            Access::Random => self.put_mru(frame),
            Access::Sequential => self.put_midpoint(frame),
        }
    }

    /// Records a use; returns the facts of the page, if it is tracked.
    pub(crate) fn hit(&mut self, frame: FrameId) -> Option<Facts> {
        let was = self.facts(frame)?;
        let facts = was.used();
        self.facts[frame.at()] = facts;
        self.queues.put_mru(frame, self.queue(facts), self.fresh(facts));
        Some(facts)
    }

    /// Marks the frames that hold sampled pages, and no others.
    pub(crate) fn sample(&mut self, sampled: impl Fn(FrameId) -> bool) {
        for (at, facts) in self.facts.iter_mut().enumerate() {
            *facts = facts.with(SAMPLED, sampled(FrameId(at as u32)));
        }
    }

    pub(crate) fn dirtied(&mut self, frame: FrameId) {
        if self.is_tracked(frame) {
            self.facts[frame.at()].0 |= DIRTY;
            if matches!(self.ranking, Ranking::Weighted | Ranking::Mild) {
                self.put_mru(frame);
            }
        }
    }

    pub(crate) fn cleaned(&mut self, frame: FrameId, location: Location, reason: CleanReason) {
        let Some(before) = self.facts(frame) else { return };
        let facts = before.with(ON_HDD, location == Location::Hdd).with(DIRTY, false);
        self.facts[frame.at()] = facts;
        if self.queue(facts) == self.queue(before) {
            return;
        }
        let back_home = (before.location(), location) == (Location::Ssd, Location::Hdd);
        match reason {
            CleanReason::Replacement if !back_home => {
                self.queues.put_lru(frame, self.queue(facts), self.fresh(facts));
            }
            _ => self.put_midpoint(frame),
        }
    }

    pub(crate) fn ssd_evicted(&mut self, frame: FrameId) {
        if self.leaves_ssd(frame) && self.ranking != Ranking::Recency {
            self.put_midpoint(frame);
        }
    }

    pub(crate) fn ssd_invalidated(&mut self, frame: FrameId) {
        if self.leaves_ssd(frame) {
            self.put_mru(frame);
        }
    }

    fn leaves_ssd(&mut self, frame: FrameId) -> bool {
        let was = self.facts(frame).is_some_and(|facts| facts.location() == Location::Ssd);
        if was {
            self.facts[frame.at()].0 |= ON_HDD;
        }
        was
    }

    /// All frames in the order of eviction: by H, and among equals by queue.
    pub(crate) fn eviction_order(&self) -> impl Iterator<Item = FrameId> + '_ {
        self.queues.eviction_order()
    }

    pub(crate) fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.queues.victim(evictable)
    }

    pub(crate) fn remove(&mut self, frame: FrameId, evicted: bool) {
        self.queues.remove(frame, evicted);
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.queues.memory_bytes() + self.facts.capacity() * size_of::<Facts>()
    }

    pub(crate) fn validate(&self) -> Result<(), String> {
        self.queues.validate()
    }
}

/// The queue of each class of pages under a ranking, and H - L upon a use.
fn places(ranking: Ranking, costs: Costs) -> [(QueueNo, f64); CLASSES] {
    let (ssd_read, ssd_write) = costs.of(Location::Ssd);
    std::array::from_fn(|class| {
        let facts = Facts(class as u8);
        let (mut read, mut write) = costs.of(facts.location());
        if ranking == Ranking::Mild {
            (read, write) = (ssd_read + MILD * (read - ssd_read), ssd_write + MILD * (write - ssd_write));
        }
        match ranking {
            Ranking::Weighted | Ranking::Mild => {
                let again = if facts.is_dirty() { read + write } else { read };
                (QueueNo(class as u8), again * f64::from(facts.uses()))
            }
            Ranking::Cost => (QueueNo(facts.0 & ON_HDD), read),
            Ranking::Recency => (RECENT, costs.hdd_read_ms),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_on_the_hdd_outlives_a_frequent_one_on_the_ssd_only_at_full_cost() {
        for (ranking, first) in [(Ranking::Weighted, 1), (Ranking::Mild, 0)] {
            let mut ranked = Ranked::new(2, Costs::PAPER, ranking);
            ranked.insert(FrameId(0), Location::Hdd, Access::Random, false);
            ranked.insert(FrameId(1), Location::Ssd, Access::Random, false);
            ranked.dirtied(FrameId(1));
            (0..9).for_each(|_| assert!(ranked.hit(FrameId(1)).is_some()));
            // 7.2 ms, or a fifth of the way from 0.11 to 7.2 ms; against ten times (0.11 + 0.27) ms.
            assert_eq!(ranked.victim(&mut |_| true), Some(FrameId(first)), "{ranking:?}");
            ranked.validate().unwrap();
        }
    }

    /// The ten frames to be evicted first.
    fn first_to_go(ranked: &Ranked) -> Vec<u32> {
        let mut frames: Vec<u32> = ranked.eviction_order().take(10).map(|frame| frame.0).collect();
        frames.sort_unstable();
        frames
    }

    #[test]
    fn what_another_ranking_valued_does_not_stay_for_that() {
        let mut ranked = Ranked::new(20, Costs::PAPER, Ranking::Weighted);
        let (hot, cold) = ((0..10).collect::<Vec<u32>>(), (10..20).collect::<Vec<u32>>());
        for &frame in &hot {
            ranked.insert(FrameId(frame), Location::Hdd, Access::Random, false);
            (0..9).for_each(|_| assert!(ranked.hit(FrameId(frame)).is_some()));
        }
        cold.iter().for_each(|&frame| ranked.insert(FrameId(frame), Location::Ssd, Access::Random, false));
        // Each turnover of the cold frames raises L by the cost of a read from the SSD: far less than the H
        // that their uses give the hot frames.
        for _ in 0..1000 {
            let victim = ranked.victim(&mut |_| true).unwrap();
            ranked.remove(victim, true);
            ranked.insert(victim, Location::Ssd, Access::Random, false);
        }
        assert_eq!(first_to_go(&ranked), cold);
        for (ranking, first) in [
            (Ranking::Recency, &hot),
            (Ranking::Weighted, &cold),
            (Ranking::Cost, &hot),
            (Ranking::Recency, &hot),
            (Ranking::Weighted, &cold),
        ] {
            ranked.follow(ranking);
            ranked.validate().unwrap();
            assert_eq!((ranked.len(), &first_to_go(&ranked)), (20, first), "{ranking:?}");
        }
    }
}
