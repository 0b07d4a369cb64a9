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
use crate::{Access, CleanReason, Costs, FrameId, Home};

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

/// The facts of a frame's page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Facts {
    pub(crate) home: Home,
    pub(crate) dirty: bool,
    /// Whether the page belongs to the ghosts' sample: here, because a hit reads the facts anyway.
    pub(crate) sampled: bool,
    /// Uses since loading, up to [`FREQUENCY_MAX`].
    uses: u8,
}

const NEW: Facts = Facts { home: Home::Hdd, dirty: false, sampled: false, uses: 1 };

/// Frames in order of H; see the module's text.
#[derive(Debug)]
pub(crate) struct Ranked {
    queues: HQueues<QUEUES>,
    facts: Vec<Facts>,
    ranking: Ranking,
    pub(crate) costs: Costs,
}

impl Ranked {
    pub(crate) fn new(frames: usize, costs: Costs, ranking: Ranking) -> Self {
        Self { queues: HQueues::new(frames), facts: vec![NEW; frames], ranking, costs }
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
        let home = matches!(facts.home, Home::Hdd) as u8;
        match self.ranking {
            Ranking::Weighted | Ranking::Mild => {
                QueueNo(home | (facts.dirty as u8) << 1 | (facts.uses - 1) << 2)
            }
            Ranking::Cost => QueueNo(home),
            Ranking::Recency => RECENT,
        }
    }

    /// The costs of reading and writing a page of this home, as the ranking sees them.
    fn price(&self, home: Home) -> (f64, f64) {
        let (read, write) = self.costs.of(home);
        if self.ranking != Ranking::Mild {
            return (read, write);
        }
        let (ssd_read, ssd_write) = self.costs.of(Home::Ssd);
        (ssd_read + MILD * (read - ssd_read), ssd_write + MILD * (write - ssd_write))
    }

    /// H - L of a page with these facts upon a use.
    fn worth(&self, facts: Facts) -> f64 {
        let (read, write) = self.price(facts.home);
        match self.ranking {
            Ranking::Weighted | Ranking::Mild => {
                (if facts.dirty { read + write } else { read }) * f64::from(facts.uses)
            }
            Ranking::Cost => read,
            Ranking::Recency => self.costs.hdd_read_ms,
        }
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

    pub(crate) fn insert(&mut self, frame: FrameId, home: Home, access: Access, sampled: bool) {
        self.queues.admit(frame);
        if frame.at() >= self.facts.len() {
            self.facts.resize(frame.at() + 1, NEW);
        }
        self.facts[frame.at()] = Facts { home, sampled, ..NEW };
        match access {
            Access::Random => self.put_mru(frame),
            Access::Sequential => self.put_midpoint(frame),
        }
    }

    /// Records a use; returns the facts of the page, if it is tracked.
    pub(crate) fn hit(&mut self, frame: FrameId) -> Option<Facts> {
        let was = self.facts(frame)?;
        let facts = Facts { uses: (was.uses + 1).min(FREQUENCY_MAX), ..was };
        self.facts[frame.at()] = facts;
        self.queues.put_mru(frame, self.queue(facts), self.fresh(facts));
        Some(facts)
    }

    /// Marks the frames that hold sampled pages, and no others.
    pub(crate) fn sample(&mut self, sampled: impl Fn(FrameId) -> bool) {
        for (at, facts) in self.facts.iter_mut().enumerate() {
            facts.sampled = sampled(FrameId(at as u32));
        }
    }

    pub(crate) fn dirtied(&mut self, frame: FrameId) {
        if self.is_tracked(frame) {
            self.facts[frame.at()].dirty = true;
            if matches!(self.ranking, Ranking::Weighted | Ranking::Mild) {
                self.put_mru(frame);
            }
        }
    }

    pub(crate) fn cleaned(&mut self, frame: FrameId, home: Home, reason: CleanReason) {
        let Some(before) = self.facts(frame) else { return };
        let facts = Facts { home, dirty: false, ..before };
        self.facts[frame.at()] = facts;
        if self.queue(facts) == self.queue(before) {
            return;
        }
        let back_home = (before.home, home) == (Home::Ssd, Home::Hdd);
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
        let was = self.facts(frame).is_some_and(|facts| facts.home == Home::Ssd);
        if was {
            self.facts[frame.at()].home = Home::Hdd;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_on_the_hdd_outlives_a_frequent_one_on_the_ssd_only_at_full_cost() {
        for (ranking, first) in [(Ranking::Weighted, 1), (Ranking::Mild, 0)] {
            let mut ranked = Ranked::new(2, Costs::PAPER, ranking);
            ranked.insert(FrameId(0), Home::Hdd, Access::Random, false);
            ranked.insert(FrameId(1), Home::Ssd, Access::Random, false);
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
            ranked.insert(FrameId(frame), Home::Hdd, Access::Random, false);
            (0..9).for_each(|_| assert!(ranked.hit(FrameId(frame)).is_some()));
        }
        cold.iter().for_each(|&frame| ranked.insert(FrameId(frame), Home::Ssd, Access::Random, false));
        // Each turnover of the cold frames raises L by the cost of a read from the SSD: far less than the H
        // that their uses give the hot frames.
        for _ in 0..1000 {
            let victim = ranked.victim(&mut |_| true).unwrap();
            ranked.remove(victim, true);
            ranked.insert(victim, Home::Ssd, Access::Random, false);
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
