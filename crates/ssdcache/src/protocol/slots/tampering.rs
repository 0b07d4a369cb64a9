//! Slots under a broken protocol (feature `mutations`): changes their state behind the protocol's back.

use super::alloc::Alloc;
use super::slot::{Phase, Slot, Standing};
use super::{Plan, Slots, SsdFlush};
use crate::format::map::MapPiece;
use crate::mutation::Mutation;
use pagetier_page::{PageId, Stamp};
use pagetier_policy::{Millis, SlotId};

/// What a broken protocol remembers between two steps.
#[derive(Debug, Default)]
#[doc(hidden)]
pub struct Tampered {
    /// The zone of the checkpoint being written, as the protocol named it.
    next_zone: Option<Vec<u64>>,
    /// The second chances under way: page, new slot and stamp.
    moves: Vec<(PageId, SlotId, Stamp)>,
}

impl Slots {
    /// Brings the slots into the state that they would have without `rule`. Called before each step of the
    /// protocol.
    #[doc(hidden)]
    pub fn tamper(&mut self, rule: Mutation, kept: &mut Tampered) {
        match rule {
            Mutation::ZoneIgnored => self.put_all_in_zone(),
            Mutation::NextZoneIgnored => self.put_zone_in_next(kept),
            Mutation::SlotReusedEarly => self.free_retired(SsdFlush(u64::MAX)),
            Mutation::MoveUnderNewer => {
                (0..self.params.slots).for_each(|slot| self.set_being_replaced(SlotId(slot), false));
            }
            Mutation::MovedOverNewer => self.revive_moves(kept, &|_, _, _| true),
            Mutation::MoveSurvives => self.revive_moves(kept, &Self::is_newest_on_its_way),
            _ => {}
        }
    }

    fn put_all_in_zone(&mut self) {
        let slots = self.params.slots as usize;
        let outside = self.slots.zone().count() < slots || self.slots.next_zone().count() < slots;
        self.slots.put_all_in_zones();
        if let Alloc::Circle(circle) = &mut self.alloc {
            circle.put_all_in_zone();
        }
        if outside {
            self.zones_changed();
        }
    }

    fn put_zone_in_next(&mut self, kept: &mut Tampered) {
        match (self.capturing, kept.next_zone.take()) {
            (true, None) => {
                let (zone, next) = self.zones();
                let either: Vec<u64> = zone.iter().zip(&next).map(|(zone, next)| zone | next).collect();
                self.slots.set_zones(&zone, &either);
                kept.next_zone = Some(next);
                self.zones_changed();
            }
            (true, named) => kept.next_zone = named,
            (false, Some(named)) => {
                let (zone, next) = self.zones();
                let both: Vec<u64> = zone.iter().zip(&named).map(|(zone, named)| zone & named).collect();
                self.slots.set_zones(&both, &next);
                self.zones_changed();
            }
            (false, None) => {}
        }
    }

    fn zones(&self) -> (Vec<u64>, Vec<u64>) {
        (self.slots.zone().words().to_vec(), self.slots.next_zone().words().to_vec())
    }

    /// Makes the cancelled second chances count that `which` selects.
    fn revive_moves(&mut self, kept: &mut Tampered, which: &dyn Fn(&Self, PageId, Stamp) -> bool) {
        for (page, slot, stamp) in std::mem::take(&mut kept.moves) {
            let revived = which(self, page, stamp);
            let Some(Slot { stamp: written, phase: Phase::Writing { abandoned: true, renews }, .. }) =
                self.slots.find(slot)
            else {
                continue;
            };
            if written == stamp && revived {
                self.slots.edit(slot).phase = Phase::Writing { abandoned: false, renews };
                self.moving.insert(page, slot);
            }
        }
        let stamp = |slot: &SlotId| self.slots.get(*slot).version().map(|version| version.stamp);
        let moves = self.moving.iter().filter_map(|(page, slot)| Some((*page, *slot, stamp(slot)?)));
        kept.moves = moves.collect();
    }

    fn is_newest_on_its_way(&self, page: PageId, stamp: Stamp) -> bool {
        let writing = self.slots.iter().filter(|s| s.is_writing()).filter_map(|s| s.version());
        writing.filter(|version| version.page == page).all(|version| version.stamp <= stamp)
    }

    /// Removes the marks of a part of a checkpoint, except those of slots whose images are on their way.
    pub(crate) fn mark_images_in_flight_alone(&self, piece: &mut MapPiece) {
        for slot in piece.slots().filter(|slot| !self.slots.get(SlotId(*slot)).is_writing()) {
            if let Some(entry) = piece.entry(slot) {
                piece.set_entry(slot, entry, false);
            }
        }
    }

    /// Makes the slot of `page` the next to be given out.
    pub(crate) fn give_up_in_place(&mut self, page: PageId) {
        let Some(slot) = self.slot_of(page).filter(|_| !self.appends()) else { return };
        if self.slots.get(slot).readers() == 0 && self.is_writable(slot) {
            self.by_page.remove(&self.slots, page);
            self.release(slot);
        }
    }

    /// Whether a rewrite of `page` would find no free slot, and none will become free.
    pub(crate) fn has_no_reserve(&self, page: PageId) -> bool {
        let none = self.count_free() == (0, 0) && self.retired.is_empty();
        none && !self.appends() && self.slot_of(page).is_some()
    }

    /// [`Slots::plan_dirty`]; if it gives out no slot, once more with the dirty page at the front treated as
    /// clean.
    pub(crate) fn plan_dirty_too_soon(
        &mut self,
        page: PageId,
        now: Millis,
        fresh: &mut dyn FnMut() -> Stamp,
    ) -> Plan {
        let plan = self.plan_dirty(page, now, fresh);
        let Some((front, before)) = self.front_is_dirty().filter(|_| !matches!(plan, Plan::Ssd(_))) else {
            return plan;
        };
        let set = |slots: &mut Self, standing| {
            let mut slot = slots.slots.edit(front);
            if let Some(stored) = slot.live_mut().filter(|s| s.stamp == before.stamp) {
                stored.standing = standing;
            }
        };
        set(self, Standing::Clean);
        let plan = self.plan_dirty(page, now, fresh);
        // Restore the standing if the slot was not given out for another reason.
        set(self, before.standing);
        plan
    }

    /// The slot at the front and its dirty version, if only that version keeps it from being given out.
    fn front_is_dirty(&self) -> Option<(SlotId, Slot)> {
        let Alloc::Circle(circle) = &self.alloc else { return None };
        let front = circle.front();
        let may = self.is_writable(front) && self.slots.get(front).is_idle_dirty();
        let stored = self.slots.get(front).live().filter(|stored| may && !stored.moving)?;
        Some((front, stored))
    }
}
