//! The default pool policy: follows whichever [`Ranking`] would have cost least recently. The rankings are
//! GD2L, GD2L with frequency and write-back cost (at the full or at a reduced cost of the HDD), and LRU.

mod below;
mod ghosts;
mod ranked;

use super::FramePolicy;
use crate::choosing::Chooser;
use crate::{Access, Choice, CleanReason, Costs, FrameId, Location, PageId, SsdSetting};
use ghosts::Ghosts;
use ranked::Ranked;
pub use ranked::Ranking;

#[derive(Clone, Copy, Debug, Default)]
struct Framed {
    page: PageId,
    /// The ghosts' clock at the last use that was reported to them.
    reported: u32,
}

/// The default pool policy; see the module's text.
#[derive(Debug)]
pub struct AdaptivePool {
    /// The sizes of pool and SSD that the ghosts were made for.
    pool_frames: usize,
    ssd_slots: usize,
    ssd_setting: SsdSetting,
    ranked: Ranked,
    frames: Vec<Framed>,
    ghosts: Ghosts,
    chooser: Chooser<{ Ranking::ALL.len() }>,
    pinned: bool,
}

impl AdaptivePool {
    /// For a pool of `frames` frames above an SSD of `slots` slots.
    #[must_use]
    pub fn new(frames: usize, slots: usize, costs: Costs, pin: Option<Ranking>) -> Self {
        let first = pin.unwrap_or(Ranking::Weighted);
        Self {
            pool_frames: frames,
            ssd_slots: slots,
            ssd_setting: SsdSetting::FIRST,
            ranked: Ranked::new(frames, costs, first),
            frames: vec![Framed::default(); frames],
            ghosts: Ghosts::new(frames, slots, costs),
            chooser: Chooser::new(first as usize),
            pinned: pin.is_some(),
        }
    }

    /// The page in `frame`, if it is tracked and sampled.
    fn sampled(&self, frame: FrameId) -> Option<PageId> {
        self.ranked.facts(frame).filter(|facts| facts.is_sampled())?;
        Some(self.frames.get(frame.at())?.page)
    }

    /// Compares the rankings at the end of a stretch, by their costs in it, and follows another if that pays.
    fn choose(&mut self, costs_ms: [f64; Ranking::ALL.len()]) {
        let Self { chooser, ghosts, ranked, frames, .. } = self;
        let mut change_ms = |other: usize| {
            let held = frames.iter().enumerate().filter_map(|(at, framed)| {
                let facts = ranked.facts(FrameId(at as u32)).filter(|facts| facts.is_sampled())?;
                Some((framed.page, facts.location()))
            });
            ghosts.change_ms(other, held)
        };
        if let Some(chosen) = chooser.compare(costs_ms, &mut change_ms) {
            ranked.follow(Ranking::ALL[chosen]);
        }
    }

    /// Replaces the ghosts by empty ones for the present sizes of pool and SSD. The chosen ranking stays
    /// until they favour another.
    #[cold]
    fn start_anew(&mut self) {
        self.ghosts = Ghosts::new(self.pool_frames, self.ssd_slots, self.ranked.costs());
        self.ghosts.follow_ssd(self.ssd_setting);
        let reported = self.ghosts.clock();
        self.frames.iter_mut().for_each(|framed| framed.reported = reported);
        let (pinned, ghosts, frames) = (self.pinned, &self.ghosts, &self.frames);
        self.ranked.sample(|frame| {
            let page = frames.get(frame.at()).map(|framed| framed.page);
            !pinned && page.is_some_and(|page| ghosts.take(page))
        });
    }
}

impl FramePolicy for AdaptivePool {
    fn insert(&mut self, frame: FrameId, page: PageId, location: Location, access: Access) {
        if frame.at() >= self.frames.len() {
            self.frames.resize(frame.at() + 1, Framed::default());
        }
        let sampled = !self.pinned && self.ghosts.take(page);
        self.frames[frame.at()] = Framed { page, reported: self.ghosts.clock() };
        self.ranked.insert(frame, location, access, sampled);
        if sampled {
            self.ghosts.missed(page, access);
            if let Some(costs) = self.ghosts.stretch() {
                self.choose(costs);
            }
        }
    }

    fn hit(&mut self, frame: FrameId, write: bool) {
        if !self.ranked.hit(frame).is_some_and(|facts| facts.is_sampled()) {
            return;
        }
        let Some(framed) = self.frames.get_mut(frame.at()) else { return };
        if self.ghosts.wants(framed.reported) {
            self.ghosts.used(framed.page, write);
            framed.reported = self.ghosts.clock();
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

    fn cleaned(&mut self, frame: FrameId, location: Location, reason: CleanReason) {
        self.ranked.cleaned(frame, location, reason);
    }

    fn ssd_evicted(&mut self, frame: FrameId) {
        self.ranked.ssd_evicted(frame);
    }

    fn ssd_invalidated(&mut self, frame: FrameId) {
        self.ranked.ssd_invalidated(frame);
    }

    fn worth_ms(&self, frame: FrameId) -> Option<f64> {
        self.ranked.worth_ms(frame)
    }

    fn set_costs(&mut self, costs: Costs) {
        self.ranked.set_costs(costs);
        self.ghosts.set_costs(costs);
    }

    fn set_frames(&mut self, frames: usize) {
        if frames != self.pool_frames {
            self.pool_frames = frames;
            self.start_anew();
        }
    }

    fn set_slots(&mut self, slots: usize) {
        if slots != self.ssd_slots {
            self.ssd_slots = slots;
            self.start_anew();
        }
    }

    fn set_ssd_setting(&mut self, setting: SsdSetting) {
        if setting != self.ssd_setting {
            self.ssd_setting = setting;
            self.ghosts.follow_ssd(setting);
        }
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
