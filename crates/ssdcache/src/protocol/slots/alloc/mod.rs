//! Which slot is given out next, and which pages are written home in advance: either free slots of the zone
//! and those of its pages of lowest benefit, or (under a policy that appends) slots in strict circular order.
//!
//! Other code distinguishes the two only by [`Slots::appends`].

mod circle;
mod zone;

use super::types::{MapWork, NoSlot, SlotParams};
use super::{Slot, Slots};
use circle::Circle;
use pagetier_page::PageId;
use pagetier_policy::{Cause, Millis, SlotId};
use zone::FreeSlots;

/// A free slot to be written, and the page displaced for it.
pub(super) type Grant = (SlotId, Option<PageId>);

#[derive(Debug)]
pub(super) enum Alloc {
    Zone(FreeSlots),
    Circle(Circle),
}

impl Alloc {
    /// `group`: the number of slots that a policy that appends judges at a time.
    pub(super) fn new(group: Option<usize>, params: &SlotParams) -> Self {
        match group.filter(|_| params.slots > 0) {
            Some(group) => Self::Circle(Circle::new(group, params.zone, params.slots)),
            None => Self::Zone(FreeSlots::default()),
        }
    }
}

impl Slots {
    /// Whether slots are given out in circular order.
    pub fn appends(&self) -> bool {
        matches!(self.alloc, Alloc::Circle(_))
    }

    /// A place for a changed page.
    pub(super) fn place_dirty(&mut self, page: PageId, now: Millis) -> Result<Grant, NoSlot> {
        match self.alloc {
            Alloc::Zone(_) => self.rewrite_or_admit(page, now),
            Alloc::Circle(_) => self.append(page, Cause::Cleaned, now),
        }
    }

    /// A place for a copy of a page that has none.
    pub(super) fn place_copy(&mut self, page: PageId, cause: Cause, now: Millis) -> Result<Grant, NoSlot> {
        match self.alloc {
            Alloc::Zone(_) => self.admit(page, cause, now),
            Alloc::Circle(_) => self.append(page, cause, now),
        }
    }

    /// Counts `slot`, which has become free.
    pub(super) fn note_free(&mut self, slot: SlotId) {
        let writable = self.is_writable(slot);
        if let Alloc::Zone(free) = &mut self.alloc
            && writable
        {
            free.writable += 1;
        }
    }

    /// The number of free slots that may be written at present, and of those that may not.
    pub(super) fn count_free(&self) -> (usize, usize) {
        match &self.alloc {
            Alloc::Zone(free) => free.count(&self.slots),
            Alloc::Circle(_) => {
                let now = self.slots.free_writable(self.capturing).count();
                (now, self.slots.count_free() - now)
            }
        }
    }

    /// The dirty copies to be written home next. A circle leaves out `kept` pages.
    pub(super) fn next_to_go_home(&mut self, kept: &dyn Fn(PageId) -> bool, now: Millis) -> Vec<SlotId> {
        match self.alloc {
            Alloc::Zone(_) => self.dirty_victims(now),
            Alloc::Circle(_) => self.front_dirty(kept),
        }
    }

    /// Whether a write-back is due: fewer than half of the next slots could be given up at once. `kept` pages
    /// are already on their way home.
    pub fn next_victims_are_dirty(&mut self, kept: &dyn Fn(PageId) -> bool, now: Millis) -> bool {
        match self.alloc {
            Alloc::Zone(_) => self.victims_are_dirty(now),
            Alloc::Circle(_) => self.front_wants_write_back(kept),
        }
    }

    /// Whether the next write-back is urgent. It always is for a circle, which cannot advance without it. For
    /// a zone it is urgent if, since the last call, a dirty page went to the disk because its victim was
    /// still dirty, which cost the disk as much as an earlier write-back would have.
    pub fn take_urgency(&mut self) -> bool {
        match &mut self.alloc {
            Alloc::Zone(free) => free.take_urgency(),
            Alloc::Circle(_) => true,
        }
    }

    /// The most urgent work that is due. `journal_high`: a checkpoint is needed to make room in the journal.
    pub fn map_work(&mut self, journal_high: bool, now: Millis) -> Option<MapWork> {
        match self.alloc {
            Alloc::Zone(_) => self.zone_map_work(journal_high, now),
            Alloc::Circle(_) => self.front_map_work(journal_high),
        }
    }

    /// Whether the policy rejected a page because the zone had no candidate left.
    pub(super) fn zone_is_spent(&self) -> bool {
        matches!(&self.alloc, Alloc::Zone(free) if free.is_spent())
    }

    /// Names the zone of the checkpoint being captured.
    pub(super) fn name_next_zone(&mut self, now: Millis) {
        match self.alloc {
            Alloc::Zone(_) => self.name_zone(now),
            Alloc::Circle(_) => self.name_front_zone(),
        }
    }

    /// Counts the free slots again after a change of the zones.
    pub(super) fn zones_changed(&mut self) {
        if let Alloc::Zone(free) = &mut self.alloc {
            free.writable = self.slots.free_writable(self.capturing).count();
        }
    }

    /// Notes that the checkpoint that named the next zone is durable (`ok`) or failed.
    pub(super) fn zone_is_in_force(&mut self, ok: bool) {
        if let Alloc::Circle(circle) = &mut self.alloc {
            circle.end_checkpoint(ok);
        }
    }

    /// Starts after a recovery: free slots may not be written before a checkpoint, and `newest` was written
    /// last.
    pub(super) fn start_after_recovery(&mut self, newest: Option<SlotId>) {
        match &mut self.alloc {
            // No slot may be written yet.
            Alloc::Zone(free) => *free = FreeSlots::default(),
            Alloc::Circle(circle) => circle.continue_after(newest),
        }
    }

    /// Notes whether the HDD accepts writes. While it does not, no write waits for slots whose pages must be
    /// written home first.
    pub(crate) fn note_home(&mut self, ok: bool) {
        if let Alloc::Circle(circle) = &mut self.alloc {
            circle.home_fails = !ok;
        }
    }

    pub(super) fn validate_free(&self) -> Result<(), String> {
        let free = self.slots.iter().filter(|s| s.is_free()).count();
        if free != self.slots.count_free() {
            return Err(format!("{free} free slots, {} counted", self.slots.count_free()));
        }
        let unsettled = self.slots.iter().filter(|s| s.is_writing() || s.is_retired()).count();
        if unsettled != self.slots.unsettled().count() {
            return Err(format!("{unsettled} slots are being written or retired, others are noted"));
        }
        let writable = self.slots.free_writable(self.capturing).count();
        match &self.alloc {
            Alloc::Zone(counted) if counted.writable != writable => {
                Err(format!("{writable} free slots may be written, counted are {counted:?}"))
            }
            _ => Ok(()),
        }
    }

    #[cfg(feature = "probes")]
    pub(super) fn laps(&self) -> u64 {
        if let Alloc::Circle(circle) = &self.alloc { circle.laps } else { 0 }
    }

    fn slot(&self, slot: SlotId) -> Slot {
        self.slots.get(slot)
    }
}
