//! SAWC: self-adaptive with write clustering (Ou, Jin & Härder, section 3.2.3): CASA with clustered writes.
//!
//! A table T holds the dirty pages by cluster. When the victim p is dirty, the dirty pages of its cluster
//! that are updated no more often than p are written with it (Function ClusteredWrite). The others will
//! likely be updated soon and would have to be written again. Every event is O(1); building a write set is
//! linear in the clusters it touches.
//!
//! Where the paper is silent, beyond CASA's points:
//!
//! - *Freq*, "the number of logical write requests for p while p is in the buffer": the writing hits, and the
//!   first change of a page that was loaded to be changed. Cleaning does not reset it.
//! - *The pages written along* are clean from then on, but their frames are not needed yet: they go to the
//!   midpoint of C, not to its LRU end.
//! - *The cleaner's look-ahead* applies ClusteredWrite to every dirty page among the next victims.
//! - *Recoverability writes* are not clustered: the caller names the pages.

use super::Casa;
use super::clusters::Clusters;
use pagetier_policy::pool::LookAhead;
use pagetier_policy::{
    Access, CleanReason, Costs, FrameId, FramePolicy, FrameState, Location, PageId, StateOf,
};

/// The state that ClusteredWrite keeps per frame.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    /// Freq of the paper.
    updates: u32,
    /// The number of the write set that last included the frame.
    set: u32,
    /// Whether it was included as a cluster neighbour, not as a victim.
    along: bool,
}

/// CASA with clustered writes; see the module's text.
#[derive(Debug)]
pub struct Sawc {
    casa: Casa,
    /// T of the paper.
    table: Clusters,
    marks: Vec<Marks>,
    /// The number of the last write set.
    set: u32,
}

impl Sawc {
    /// For a pool of `frames` frames, with clusters of `pages_per_cluster`.
    #[must_use]
    pub fn new(frames: usize, costs: Costs, pages_per_cluster: u32) -> Self {
        Self {
            casa: Casa::new(frames, costs),
            table: Clusters::new(frames, pages_per_cluster),
            marks: vec![Marks::default(); frames],
            set: 0,
        }
    }

    /// The underlying CASA.
    pub fn casa(&self) -> &Casa {
        &self.casa
    }
}

impl FramePolicy for Sawc {
    fn insert(&mut self, frame: FrameId, page: PageId, location: Location, access: Access) {
        if frame.at() >= self.marks.len() {
            self.marks.resize(frame.at() + 1, Marks::default());
        }
        // The frame may still be tracked with its former page, whose cluster must not keep it.
        self.remove(frame, false);
        self.marks[frame.at()] = Marks::default();
        self.table.holds(frame, page);
        self.casa.insert(frame, page, location, access);
    }

    fn hit(&mut self, frame: FrameId, write: bool) {
        if self.casa.tracked(frame) {
            let marks = &mut self.marks[frame.at()];
            marks.updates = marks.updates.saturating_add(u32::from(write));
            self.casa.hit(frame, write);
        }
    }

    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.casa.first_to_go(accept)
    }

    fn remove(&mut self, frame: FrameId, evicted: bool) {
        if self.casa.is_dirty(frame) {
            self.table.leave(frame);
        }
        self.casa.remove(frame, evicted);
    }

    fn dirtied(&mut self, frame: FrameId) {
        if !self.casa.tracked(frame) {
            return;
        }
        let marks = &mut self.marks[frame.at()];
        // A page that was loaded to be changed has no writing hit, but was updated once.
        marks.updates = marks.updates.max(1);
        if !self.casa.is_dirty(frame) {
            self.table.enter(frame);
        }
        self.casa.dirtied(frame);
    }

    fn cleaned(&mut self, frame: FrameId, _location: Location, reason: CleanReason) {
        if self.casa.is_dirty(frame) {
            // Written as a neighbour: its frame is not needed yet, so it is no victim.
            let along = std::mem::take(&mut self.marks[frame.at()].along);
            self.table.leave(frame);
            self.casa.move_to_clean(frame, if along { CleanReason::Recoverability } else { reason });
        }
    }

    fn clean_set(&mut self, depth: usize, max: usize, state: StateOf<'_>, out: &mut Vec<FrameId>) {
        let Self { casa, table, marks, set } = self;
        // A new number for each write set: no flag has to be cleared in frames that were not written in the
        // end.
        *set = set.wrapping_add(1);
        let mut ahead = LookAhead::new(depth);
        let full = out.len().saturating_add(max);
        for frame in casa.eviction_order() {
            if ahead.is_over() || out.len() >= full {
                break;
            }
            let state_now = state(frame);
            ahead.note(state_now);
            let Some(cluster) = table.of(frame).filter(|_| state_now == FrameState::Dirty) else { continue };
            // A victim itself, even if a neighbour has already included it.
            if marks[frame.at()].set != *set {
                out.push(frame);
            }
            let updates = marks[frame.at()].updates;
            marks[frame.at()] = Marks { updates, set: *set, along: false };
            for other in table.members(cluster) {
                let mark = &mut marks[other.at()];
                if out.len() < full
                    && mark.set != *set
                    // Function ClusteredWrite: a page updated more often than the victim will soon be dirty
                    // again.
                    && mark.updates <= updates
                    && state(other) == FrameState::Dirty
                {
                    out.push(other);
                    *mark = Marks { set: *set, along: true, ..*mark };
                }
            }
        }
    }

    fn set_costs(&mut self, costs: Costs) {
        self.casa.set_costs(costs);
    }

    fn set_frames(&mut self, frames: usize) {
        self.casa.set_frames(frames);
    }

    fn len(&self) -> usize {
        self.casa.len()
    }

    fn validate(&self) -> Result<(), String> {
        self.casa.validate()?;
        self.table.validate()?;
        let astray = (0..self.marks.len() as u32)
            .map(FrameId)
            .find(|&frame| self.casa.is_dirty(frame) != self.table.of(frame).is_some());
        match astray {
            Some(frame) => Err(format!("{frame:?} is dirty for the lists or the table, not for both")),
            None => Ok(()),
        }
    }
}
