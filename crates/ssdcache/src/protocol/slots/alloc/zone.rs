//! Slots given out by zone: free slots that may be written, and those of the pages of lowest benefit.

use super::{Alloc, Grant};
use crate::protocol::slots::Slots;
use crate::protocol::slots::table::SlotTable;
use crate::protocol::slots::types::{MapWork, NoSlot};
use pagetier_page::PageId;
use pagetier_policy::{Cause, Millis, SlotId, Verdict};

/// The free slots that may be written, which the table knows. The others wait for the next checkpoint.
#[derive(Debug, Default)]
pub(in crate::protocol::slots) struct FreeSlots {
    pub(super) writable: usize,
    /// The slot given out last. The next one is looked for behind it, so that the slots of a batch are
    /// neighbours where there are some, and one write takes several.
    last: Option<SlotId>,
    /// Whether the policy rejected a page because its zone had no candidate left.
    spent: bool,
    /// Whether, since the last write-back, a dirty page was written home only because the victim that it
    /// would have replaced was still dirty.
    held_up: bool,
}

impl FreeSlots {
    /// The number of free slots that may be written, and of those that wait.
    pub(super) fn count(&self, slots: &SlotTable) -> (usize, usize) {
        (self.writable, slots.count_free() - self.writable)
    }

    pub(super) fn is_spent(&self) -> bool {
        self.spent
    }

    pub(super) fn take_urgency(&mut self) -> bool {
        std::mem::take(&mut self.held_up)
    }
}

impl Slots {
    fn free_in_zone(&mut self) -> Option<&mut FreeSlots> {
        if let Alloc::Zone(free) = &mut self.alloc { Some(free) } else { None }
    }

    /// Takes a free slot that may be written.
    pub(in crate::protocol::slots) fn take_writable(&mut self) -> Option<SlotId> {
        let slot = match &mut self.alloc {
            Alloc::Zone(free) => {
                let from = free.last.map_or(SlotId(0), |last| SlotId(last.0 + 1));
                let any = (free.writable > 0).then_some(from);
                let slot = any.and_then(|from| self.slots.next_free_writable(from, self.capturing));
                free.writable -= usize::from(slot.is_some());
                free.last = slot.or(free.last);
                slot
            }
            Alloc::Circle(_) => None,
        };
        self.starved |= slot.is_none();
        slot
    }

    pub(super) fn rewrite_or_admit(&mut self, page: PageId, now: Millis) -> Result<Grant, NoSlot> {
        if self.slot_of(page).is_none() {
            return self.admit(page, Cause::Cleaned, now);
        }
        if let Some(slot) = self.take_writable() {
            self.counts.rewritten += 1;
            return Ok((slot, None));
        }
        // A checkpoint or a flush will make a slot writable: waiting is cheaper than a home write. Cheaper
        // still is the place of a page of little benefit, but each burst may cost only so many of them.
        let soon = self.count_free().1 > 0 || !self.retired.is_empty();
        if soon {
            // Bursts come in rows, so the slots that they need are kept from new pages for a while.
            self.keep_empty = self.params.burst;
            if self.empty() >= self.params.burst as usize {
                return Err(NoSlot::Soon);
            }
        }
        let mut next = Vec::new();
        self.policy.next_victims(self.params.clean_ahead as usize, now, &mut next);
        if !soon {
            // A recovery may leave a page in every slot, and then none becomes free by itself.
            next.extend((0..self.params.slots).map(SlotId));
        }
        let usable = |slot: &SlotId| {
            let other = |s: &super::Slot| s.version().is_some_and(|version| version.page != page);
            let s = self.slots.find(*slot).filter(other);
            s.is_some_and(|s| s.is_idle_clean()) && self.is_writable(*slot)
        };
        let none = if soon { NoSlot::Soon } else { NoSlot::Never };
        let victim = next.into_iter().find(usable).ok_or(none)?;
        let displaced = self.evict(victim, now);
        if let Some(free) = self.free_in_zone() {
            // No other slot may be written: the search begins with this one.
            free.last = victim.0.checked_sub(1).map(SlotId);
        }
        self.counts.rewritten += 1;
        self.take_writable().map(|slot| (slot, displaced)).ok_or(NoSlot::Soon)
    }

    /// Asks the policy whether `page` gets a place on the SSD.
    pub(super) fn admit(&mut self, page: PageId, cause: Cause, now: Millis) -> Result<Grant, NoSlot> {
        let (has_capacity, writable) = (self.has_capacity(), self.count_free().0);
        if has_capacity && writable == 0 {
            self.starved = true;
            return Err(NoSlot::Soon);
        }
        // The last free slots are for rewrites. If new pages took them, a page on the SSD could change only
        // by a home write.
        let free = if has_capacity { writable } else { 0 };
        let (slots, capturing) = (&self.slots, self.capturing);
        // A policy may name any slot, even one that does not exist.
        let usable = |slot: SlotId| {
            slots.find(slot).is_some_and(|s| s.is_idle_clean()) && slots.writable(slot, capturing)
        };
        let (mut refused_dirty, mut has_candidates) = (false, false);
        let mut asked = |slot: SlotId| {
            has_candidates = true;
            let version = slots.find(slot).and_then(|s| s.version());
            refused_dirty |= version.is_some_and(|version| version.is_dirty());
            usable(slot)
        };
        match self.policy.consider(page, cause, free, &mut asked, now) {
            Verdict::AdmitFree if free > 0 => {
                self.counts.admitted_free += 1;
                self.take_writable().map(|slot| (slot, None)).ok_or(NoSlot::Never)
            }
            Verdict::AdmitOver(victim) if usable(victim) => {
                let displaced = self.evict(victim, now);
                self.counts.admitted_over += 1;
                self.take_writable().map(|slot| (slot, displaced)).ok_or(NoSlot::Never)
            }
            _ => {
                self.counts.rejected += 1;
                // The page goes to the disk only because its victim is dirty: write the next victims back
                // sooner.
                let held_up = refused_dirty && cause == Cause::Cleaned && !self.through;
                let spent = free == 0 && !has_candidates && self.victims(1, now).is_empty();
                if let Some(free) = self.free_in_zone() {
                    free.held_up |= held_up;
                    free.spent |= spent;
                }
                Err(NoSlot::Never)
            }
        }
    }

    // ---- keeping slots writable

    pub(super) fn dirty_victims(&mut self, now: Millis) -> Vec<SlotId> {
        let mut next = self.victims(self.params.clean_ahead as usize, now);
        next.retain(|slot| self.slots.get(*slot).is_idle_dirty());
        next
    }

    /// The policy's next victims, at most `n`, without slots that do not exist.
    fn victims(&mut self, n: usize, now: Millis) -> Vec<SlotId> {
        let mut next = Vec::new();
        self.policy.next_victims(n, now, &mut next);
        next.retain(|slot| slot.0 < self.params.slots);
        next.truncate(n);
        next
    }

    pub(super) fn victims_are_dirty(&mut self, now: Millis) -> bool {
        if self.has_capacity() {
            return false;
        }
        let next = self.victims(self.params.clean_ahead as usize, now);
        let is_dirty = |slot: &SlotId| self.slot(*slot).version().is_some_and(|version| version.is_dirty());
        let ready = next.iter().filter(|slot| !is_dirty(slot)).count();
        ready * 2 < next.len() && next.iter().any(|slot| self.slot(*slot).is_idle_dirty())
    }

    pub(super) fn zone_map_work(&mut self, journal_high: bool, now: Millis) -> Option<MapWork> {
        // Early enough that writers do not run out of slots while the checkpoint is written.
        let low = self.params.reserve as usize / 2 + 1;
        let (writable, waiting) = self.count_free();
        let short = writable < low || self.starved;
        if !self.capturing && self.params.slots > 0 {
            let freed = waiting * 2 >= low || (self.starved && waiting > 0);
            let used_up = self.is_stale() && self.zone_is_used_up(now);
            if journal_high || (short && freed) || used_up {
                return Some(MapWork::Checkpoint);
            }
        }
        if short && !self.retired.is_empty() {
            return Some(MapWork::Flush);
        }
        self.starved = false;
        None
    }

    fn zone_is_used_up(&mut self, now: Millis) -> bool {
        if self.has_capacity() {
            return false;
        }
        let few = self.params.clean_ahead as usize / 2 + 1;
        self.victims(few, now).len() < few
    }

    /// Names the zone: all slots being written or retired, then, up to the zone's size, free slots and those
    /// of the pages of lowest benefit.
    pub(super) fn name_zone(&mut self, now: Millis) {
        // These will soon hold something else than the map says. A recovery reads slots of the zone, and
        // trusts the map for all others (I2).
        let mut named: Vec<SlotId> = self.slots.unsettled().collect();
        let left = (self.params.zone as usize).saturating_sub(named.len());
        if let Some(free) = self.free_in_zone() {
            free.spent = false;
        }
        // As many as writers may need while the checkpoint is written. The others are chosen anew: otherwise
        // those of each zone would lie further apart than those of the one before.
        let enough = (self.params.reserve as usize).max(left / 2).min(left);
        let kept = self.slots.free_writable(self.capturing).take(enough);
        named.extend(kept);
        self.slots.begin_next_zone(&named);
        let wanted = (self.params.zone as usize).saturating_sub(named.len());
        let is_new = |slot: &SlotId| !self.slots.next_zone().has(*slot);
        let free: Vec<SlotId> = self.slots.free_in_runs().filter(is_new).take(wanted).collect();
        free.iter().for_each(|slot| self.slots.put_in_next_zone(*slot));
        let mut left = wanted - free.len();
        let mut candidates = Vec::new();
        let slots = &self.slots;
        let mut eligible = |slot: SlotId| slots.is_live(slot);
        self.policy.start_zone(left, &mut eligible, now, &mut candidates);
        // A larger zone, or one with other slots, would make a recovery read more than configured.
        for slot in candidates {
            if left > 0 && self.slots.is_live(slot) {
                self.slots.put_in_next_zone(slot);
                left -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::map::Entry;
    use crate::protocol::flushes::SsdFlush;
    use crate::protocol::slots::{Located, Plan, SlotParams};
    use pagetier_page::{SpaceId, Stamp};
    use pagetier_policy::{Costs, SlotPolicyParams, SsdPolicy, ZonePercent};
    use pagetier_rivals::RivalSsd;

    const NOW: Millis = Millis(0);
    const SLOTS: u32 = 16;

    fn page(no: u32) -> PageId {
        PageId::new(SpaceId(1), no)
    }

    /// Slots whose first `pages` hold clean copies, with a zone of half the slots.
    fn slots(pages: u32) -> Slots {
        slots_with(pages, 4)
    }

    fn slots_with(pages: u32, burst: u32) -> Slots {
        let entry = |no| Entry { page: page(no), stamp: Stamp::from_bits(u64::from(no) + 1), clean: true };
        let map: Vec<_> = (0..SLOTS).map(|no| (no < pages).then(|| entry(no))).collect();
        let params = SlotParams { slots: SLOTS, zone: SLOTS / 2, reserve: 4, burst, clean_ahead: 2 };
        let policy = SsdPolicy::Custom(&RivalSsd::Lru2, ZonePercent::DEFAULT);
        let policy = policy.build(&SlotPolicyParams::new(Costs::PAPER, SLOTS as usize, 8));
        let mut slots = Slots::new(params, policy, &map, 0);
        slots.begin_checkpoint(NOW);
        slots.end_checkpoint(true);
        slots
    }

    fn rewritten(slots: &mut Slots, no: u32) -> Plan {
        slots.plan_dirty(page(no), NOW, &mut || Stamp::from_bits(100))
    }

    /// The first page with a copy in the zone (`inside`) or outside.
    fn page_of(slots: &Slots, inside: bool) -> u32 {
        let mut copies = slots.copies_by_slot().filter(|(slot, _)| slots.slots.in_zone(*slot) == inside);
        copies.next().expect("there is one").1.page.no
    }

    #[test]
    fn no_copy_outside_the_zone_is_given_up_for_a_rewrite() {
        let mut slots = slots(SLOTS);
        // Without a reserve a rewrite takes the place of a copy of the zone, but these are all being read.
        for no in 0..SLOTS {
            if slots.slots.in_zone(SlotId(no)) {
                assert!(matches!(slots.begin_read(page(no)), Located::Slot { .. }));
            }
        }
        let no = page_of(&slots, false);
        assert_eq!(rewritten(&mut slots, no), Plan::Hdd, "no slot can be written before the next zone");
        assert_eq!(slots.pages(), SLOTS as usize, "no copy was given up for nothing");
    }

    #[test]
    fn the_slots_of_a_batch_are_neighbours_and_none_is_of_one_zone_alone() {
        let mut slots = slots_with(0, 6);
        let batch = |slots: &mut Slots| -> Vec<u32> {
            let slot_of = |no| match rewritten(slots, no) {
                Plan::Ssd(ticket) => {
                    slots.end_write(ticket, true, SsdFlush(1), NOW);
                    ticket.slot.0
                }
                plan => panic!("{plan:?}"),
            };
            let written = (0..3).map(slot_of).collect();
            slots.flushed(SsdFlush(1));
            written
        };
        assert_eq!([batch(&mut slots), batch(&mut slots)], [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(batch(&mut slots), [6, 7, 0]);
        slots.begin_checkpoint(NOW);
        for slot in batch(&mut slots) {
            assert!(slots.slots.in_zone(SlotId(slot)) && slots.slots.next_zone().has(SlotId(slot)), "{slot}");
        }
        slots.validate().expect("sound slots");
    }

    #[test]
    fn a_single_free_slot_is_worth_a_checkpoint_only_to_a_writer_that_waits() {
        let mut slots = slots_with(SLOTS - 2, 3);
        let no = page_of(&slots, false);
        let Located::Slot { slot, .. } = slots.begin_read(page(no)) else { panic!("it has a copy") };
        slots.end_read(slot);
        assert!(slots.drop_bad_copy(page(no), slot, NOW));
        assert_eq!(slots.count_free(), (2, 1));
        assert_eq!(slots.map_work(false, NOW), None, "it can wait for more");
        for no in 0..2 {
            assert!(matches!(rewritten(&mut slots, no), Plan::Ssd(_)));
        }
        assert_eq!(slots.map_work(false, NOW), None, "it can wait for more");
        assert_eq!(rewritten(&mut slots, 2), Plan::Wait);
        assert_eq!(slots.map_work(false, NOW), Some(MapWork::Checkpoint));
    }

    #[test]
    fn a_burst_of_rewrites_takes_some_copies_places_and_new_pages_get_them_once_it_is_over() {
        let mut slots = slots_with(SLOTS - 4, 6);
        let no = page_of(&slots, false);
        let Located::Slot { slot, .. } = slots.begin_read(page(no)) else { panic!("it has a copy") };
        slots.end_read(slot);
        assert!(slots.drop_bad_copy(page(no), slot, NOW));
        assert_eq!(slots.count_free(), (4, 1), "one waits for a checkpoint");
        // The zone's own pages are the ones that may be given up.
        let outside = slots.copies_by_slot().filter(|(slot, _)| !slots.slots.in_zone(*slot));
        let mut rewrites = outside.map(|(_, stored)| stored.page.no).collect::<Vec<_>>().into_iter();
        let mut displaced = |slots: &mut Slots| match rewritten(slots, rewrites.next().expect("a page")) {
            Plan::Ssd(ticket) => ticket.displaced,
            plan => panic!("{plan:?}"),
        };
        for _ in 0..4 {
            assert_eq!(displaced(&mut slots), None, "the reserve");
        }
        assert!(displaced(&mut slots).is_some(), "a copy of the zone was given up");
        let next = rewrites.next().expect("a page");
        assert_eq!(rewritten(&mut slots, next), Plan::Wait, "no more than six slots without a page");
        assert_eq!(slots.map_work(false, NOW), Some(MapWork::Checkpoint));
        assert!(!slots.has_capacity(), "more bursts may follow");
        for _ in 0..16 {
            slots.begin_checkpoint(NOW);
            slots.end_checkpoint(true);
        }
        assert!(slots.has_capacity(), "new pages need to displace nothing until the reserve is reached");
    }
}
