//! The default pool policy: GD2L, GD2L with frequency and write-back cost, or LRU, whichever would have cost
//! least recently.

mod ghosts;
mod ranked;

use super::FramePolicy;
use crate::choosing::Chooser;
use crate::{Access, Choice, CleanReason, Costs, FrameId, Home, PageId};
use ghosts::Ghosts;
use ranked::Ranked;
pub use ranked::Ranking;

#[derive(Clone, Copy, Debug, Default)]
struct Framed {
    page: PageId,
    /// The ghosts' clock at the last use that was reported to them.
    told: u32,
}

/// The default pool policy; see the module's text.
#[derive(Debug)]
pub struct AdaptivePool {
    /// The size of the pool that the ghosts were made for.
    pool_frames: usize,
    ranked: Ranked,
    frames: Vec<Framed>,
    ghosts: Ghosts,
    chooser: Chooser<{ Ranking::ALL.len() }>,
    pinned: bool,
}

impl AdaptivePool {
    /// For a pool of `frames` frames.
    #[must_use]
    pub fn new(frames: usize, costs: Costs, pin: Option<Ranking>) -> Self {
        let first = pin.unwrap_or(Ranking::Weighted);
        Self {
            pool_frames: frames,
            ranked: Ranked::new(frames, costs, first),
            frames: vec![Framed::default(); frames],
            ghosts: Ghosts::new(frames, costs),
            chooser: Chooser::new(first as usize),
            pinned: pin.is_some(),
        }
    }

    /// The page in `frame`, if it is tracked and sampled.
    fn sampled(&self, frame: FrameId) -> Option<PageId> {
        self.ranked.facts(frame).filter(|facts| facts.sampled)?;
        Some(self.frames.get(frame.at())?.page)
    }
}

impl FramePolicy for AdaptivePool {
    fn insert(&mut self, frame: FrameId, page: PageId, home: Home, access: Access) {
        if frame.at() >= self.frames.len() {
            self.frames.resize(frame.at() + 1, Framed::default());
        }
        let sampled = !self.pinned && self.ghosts.take(page);
        self.frames[frame.at()] = Framed { page, told: self.ghosts.clock() };
        self.ranked.insert(frame, home, access, sampled);
        if sampled {
            self.ghosts.missed(page, home, access);
            if let Some(costs) = self.ghosts.stretch()
                && let Some(chosen) = self.chooser.compare(costs, &mut |_| 0.0)
            {
                self.ranked.follow(Ranking::ALL[chosen]);
            }
        }
    }

    fn hit(&mut self, frame: FrameId, _write: bool) {
        let Some(facts) = self.ranked.hit(frame).filter(|facts| facts.sampled) else { return };
        let Some(framed) = self.frames.get_mut(frame.at()) else { return };
        if self.ghosts.wants(framed.told) {
            self.ghosts.used(framed.page, facts.home);
            framed.told = self.ghosts.clock();
        }
    }

    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.ranked.eviction_order().find(|&frame| accept(frame))
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.ranked.victim(evictable)
    }

    fn remove(&mut self, frame: FrameId, evicted: bool) {
        self.ranked.remove(frame, evicted);
    }

    fn dirtied(&mut self, frame: FrameId) {
        self.ranked.dirtied(frame);
        if let Some(page) = self.sampled(frame) {
            self.ghosts.dirtied(page);
        }
    }

    fn cleaned(&mut self, frame: FrameId, home: Home, reason: CleanReason) {
        let before = self.ranked.facts(frame).map(|facts| facts.home);
        self.ranked.cleaned(frame, home, reason);
        if before == Some(Home::Hdd) {
            self.ghosts.cleaned(home);
        }
    }

    fn ssd_evicted(&mut self, frame: FrameId) {
        self.ranked.ssd_evicted(frame);
        if let Some(page) = self.sampled(frame) {
            self.ghosts.left_ssd(page, false);
        }
    }

    fn ssd_invalidated(&mut self, frame: FrameId) {
        self.ranked.ssd_invalidated(frame);
        if let Some(page) = self.sampled(frame) {
            self.ghosts.left_ssd(page, true);
        }
    }

    fn worth_ms(&self, frame: FrameId) -> Option<f64> {
        self.ranked.worth_ms(frame)
    }

    fn set_costs(&mut self, costs: Costs) {
        self.ranked.costs = costs;
        self.ghosts.set_costs(costs);
    }

    /// The ghosts start anew at their sizes for this pool; the ranking that was chosen stays until they say
    /// otherwise.
    fn set_frames(&mut self, frames: usize) {
        if frames == self.pool_frames {
            return;
        }
        self.pool_frames = frames;
        self.ghosts = Ghosts::new(frames, self.ranked.costs);
        let told = self.ghosts.clock();
        self.frames.iter_mut().for_each(|framed| framed.told = told);
        let (pinned, ghosts, frames) = (self.pinned, &self.ghosts, &self.frames);
        self.ranked.sample(|frame| {
            let page = frames.get(frame.at()).map(|framed| framed.page);
            !pinned && page.is_some_and(|page| ghosts.take(page))
        });
    }

    fn choice_changes(&self) -> u64 {
        self.chooser.changes()
    }

    fn choice(&self) -> Option<Choice> {
        Some(self.chooser.choice(Ranking::ALL.map(Ranking::name)))
    }

    fn extra_memory_bytes(&self) -> usize {
        self.ghosts.memory_bytes() + self.frames.capacity() * size_of::<Framed>()
    }

    fn len(&self) -> usize {
        self.ranked.len()
    }

    fn validate(&self) -> Result<(), String> {
        self.ranked.validate()?;
        self.ghosts.validate()
    }
}
