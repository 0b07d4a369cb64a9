//! GD2L: GreedyDual restricted to two retrieval costs (Liu & Salem 2013, section 3).
//!
//! Two LRU queues: Q_S for buffered pages that have an SSD copy, Q_D for those that have not. Every page carries H; the page of
//! smallest H is at one of the two LRU ends, because each queue is sorted by H. Instead of lowering all H at an eviction,
//! the inflation value L rises to the victim's H and is added to whatever is set later (Figure 2).
//!
//! Where the paper is silent:
//!
//! - *Replacement write admitted to the SSD* (LRU end of Q_S): the page keeps its H, lowered to that of the page it
//!   is put behind, so that Q_S stays sorted.
//! - *Midpoint of a queue of fewer than three*: its LRU end, with that page's H. An empty queue has no page to take H from: the page's own cost, L + R.
//! - *SSD copy invalidated*: that is a reference by a writer, and the page is now one that Figure 2 (lines 9-11) would
//!   load from the HDD: MRU end of Q_D, H = L + R_D. The midpoint of 3.1 is for pages that change tier without being used.
//! - *The LRU page cannot be evicted* (pinned or dirty): the next in order of H goes in its stead, and L rises to the H of the last page
//!   passed over, not of the one that goes. R_D is some sixty times R_S: when all of a short Q_S is on its way to the SSD, one page of Q_D goes;
//!   had L jumped to its H, every page of Q_D below it would have gone before the next page of Q_S. L never falls, or the queues would lose their order.
//! - *Equal H*: the page of Q_S goes, being cheaper to get back.
//! - *Costs that fall while running*: a page put at the MRU end gets at least the H of the page it is put before.
//!
//! Precision. L grows by at most R_D per turnover of the whole pool. At L = 2^40 · R_D an `f64` still resolves R_D / 4096, 60 times
//! finer than the R_S of a flash device; a pool that turns over ten times a second gets there after 3,000 years.
//! H and L are therefore never renormalised.

use crate::links::{Links, NIL, Queue, QueueNo};
use crate::pool::clean_in_order;
use crate::{Access, CleanReason, Costs, FrameId, FrameState, Home, PageId, PoolPolicy};

const Q_S: QueueNo = 1;
const Q_D: QueueNo = 2;

/// The two-level GreedyDual policy of the 2013 paper; see the module's text for what it leaves open.
#[derive(Debug)]
pub struct Gd2l {
    /// H per frame.
    links: Links<f64>,
    on_ssd: Queue,
    on_hdd: Queue,
    inflation: f64,
    /// The last answer to [`PoolPolicy::victim`], and what L becomes if that frame goes.
    chosen: Option<(FrameId, f64)>,
    costs: Costs,
}

impl Gd2l {
    /// For a pool of `frames` frames.
    #[must_use]
    pub fn new(frames: usize, costs: Costs) -> Self {
        Self {
            links: Links::new(frames),
            on_ssd: Queue::new(Q_S),
            on_hdd: Queue::new(Q_D),
            inflation: 0.0,
            chosen: None,
            costs,
        }
    }

    /// L, in milliseconds.
    #[must_use]
    pub fn inflation(&self) -> f64 {
        self.inflation
    }

    /// H of the page in `frame` in milliseconds, not yet reduced by L.
    #[must_use]
    pub fn h(&self, frame: FrameId) -> Option<f64> {
        (self.links.queue_of(frame.0) != 0).then(|| self.links.value(frame.0))
    }

    /// How many frames are in Q_S and in Q_D.
    #[must_use]
    pub fn queue_lens(&self) -> (usize, usize) {
        (self.on_ssd.len(), self.on_hdd.len())
    }

    fn queue(&mut self, home: Home) -> (&mut Queue, &mut Links<f64>) {
        match home {
            Home::Ssd => (&mut self.on_ssd, &mut self.links),
            Home::Hdd => (&mut self.on_hdd, &mut self.links),
        }
    }

    fn home_of(&self, frame: FrameId) -> Option<Home> {
        match self.links.queue_of(frame.0) {
            Q_S => Some(Home::Ssd),
            Q_D => Some(Home::Hdd),
            _ => None,
        }
    }

    /// L + R: what a page referenced now is worth.
    fn fresh(&self, home: Home) -> f64 {
        self.inflation
            + match home {
                Home::Ssd => self.costs.ssd_read_ms,
                Home::Hdd => self.costs.hdd_read_ms,
            }
    }

    fn take_out(&mut self, frame: FrameId, home: Home) {
        let (queue, links) = self.queue(home);
        queue.unlink(links, frame.0);
    }

    fn put_mru(&mut self, frame: FrameId, home: Home) {
        let fresh = self.fresh(home);
        let (queue, links) = self.queue(home);
        let h = value_or(links, queue.mru(), fresh).max(fresh);
        links.set_value(frame.0, h);
        queue.push_mru(links, frame.0);
    }

    fn put_midpoint(&mut self, frame: FrameId, home: Home) {
        let fresh = self.fresh(home);
        let (queue, links) = self.queue(home);
        let h = value_or(links, queue.midpoint(), fresh);
        links.set_value(frame.0, h);
        queue.push_midpoint(links, frame.0);
    }

    fn put_lru(&mut self, frame: FrameId, home: Home) {
        let fresh = self.fresh(home);
        let (queue, links) = self.queue(home);
        let h = links.value(frame.0).min(value_or(links, queue.lru(), fresh));
        links.set_value(frame.0, h);
        queue.push_lru(links, frame.0);
    }

    /// Every frame in the order in which they would go: by H, Q_S first when equal.
    fn eviction_order(&self) -> impl Iterator<Item = FrameId> + '_ {
        let (mut s, mut d) = (self.on_ssd.lru(), self.on_hdd.lru());
        std::iter::from_fn(move || {
            let ssd_goes = s != NIL && (d == NIL || self.links.value(s) <= self.links.value(d));
            let at = if ssd_goes { &mut s } else { &mut d };
            let frame = *at;
            (frame != NIL).then(|| {
                *at = self.links.newer(frame);
                FrameId(frame)
            })
        })
    }
}

fn value_or(links: &Links<f64>, frame: u32, otherwise: f64) -> f64 {
    if frame == NIL { otherwise } else { links.value(frame) }
}

impl PoolPolicy for Gd2l {
    fn name(&self) -> &'static str {
        "gd2l"
    }

    fn insert(&mut self, frame: FrameId, _page: PageId, home: Home, access: Access) {
        self.links.cover(frame.0);
        if let Some(before) = self.home_of(frame) {
            self.take_out(frame, before);
        }
        match access {
            Access::Random => self.put_mru(frame, home),
            Access::Sequential => self.put_midpoint(frame, home),
        }
    }

    fn hit(&mut self, frame: FrameId, _write: bool) {
        let Some(home) = self.home_of(frame) else { return };
        let fresh = self.fresh(home);
        let (queue, links) = self.queue(home);
        let h = links.value(queue.mru()).max(fresh);
        links.set_value(frame.0, h);
        queue.move_to_mru(links, frame.0);
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        let mut passed = None;
        let found = self.eviction_order().find(|&frame| {
            let takes = evictable(frame);
            if !takes {
                passed = Some(frame);
            }
            takes
        });
        self.chosen = found.map(|frame| (frame, self.links.value(passed.unwrap_or(frame).0)));
        found
    }

    fn remove(&mut self, frame: FrameId, evicted: bool) {
        let Some(home) = self.home_of(frame) else { return };
        if evicted {
            let chosen = self.chosen.take().filter(|(chosen, _)| *chosen == frame);
            let level = chosen.map_or(self.links.value(frame.0), |(_, level)| level);
            self.inflation = self.inflation.max(level);
        }
        self.take_out(frame, home);
    }

    fn dirtied(&mut self, _frame: FrameId) {}

    fn cleaned(&mut self, frame: FrameId, home: Home, reason: CleanReason) {
        let Some(before) = self.home_of(frame) else { return };
        if before == home {
            return;
        }
        self.take_out(frame, before);
        match (home, reason) {
            (Home::Ssd, CleanReason::Replacement) => self.put_lru(frame, home),
            (Home::Ssd, CleanReason::Recoverability) | (Home::Hdd, _) => self.put_midpoint(frame, home),
        }
    }

    fn ssd_evicted(&mut self, frame: FrameId) {
        if self.home_of(frame) == Some(Home::Ssd) {
            self.take_out(frame, Home::Ssd);
            self.put_midpoint(frame, Home::Hdd);
        }
    }

    fn ssd_invalidated(&mut self, frame: FrameId) {
        if self.home_of(frame) == Some(Home::Ssd) {
            self.take_out(frame, Home::Ssd);
            self.put_mru(frame, Home::Hdd);
        }
    }

    fn clean_set(
        &mut self,
        depth: usize,
        max: usize,
        state: &mut dyn FnMut(FrameId) -> FrameState,
        out: &mut Vec<FrameId>,
    ) {
        clean_in_order(self.eviction_order(), depth, max, state, out);
    }

    fn set_costs(&mut self, costs: Costs) {
        self.costs = costs;
    }

    fn len(&self) -> usize {
        self.on_ssd.len() + self.on_hdd.len()
    }

    fn validate(&self) -> Result<(), String> {
        for queue in [&self.on_ssd, &self.on_hdd] {
            queue.validate(&self.links)?;
            let mut behind = f64::NEG_INFINITY;
            for frame in queue.oldest_first(&self.links) {
                let h = self.links.value(frame);
                if !h.is_finite() || h < behind {
                    return Err(format!("frame {frame}: H {h} after {behind}"));
                }
                behind = h;
            }
        }
        Ok(())
    }
}
