//! Replaces the policy over the slots in use: leaves them as a recovery under the new policy would.

use super::alloc::Alloc;
use super::{SlotParams, Slots};
use pagetier_page::{PageId, Stamp};
use pagetier_policy::{Access, Millis, SlotId, SlotPolicy};

impl Slots {
    /// Replaces the policy by `policy`, which is empty. Informs it of every copy, in the order in which they
    /// were written, and then of the `buffered` pages. Copies keep their slots and their standing. No write
    /// to a slot and no checkpoint may be in flight.
    ///
    /// A free slot stays writable as far as the zone in force allows (I2). A circle has no zone of its own
    /// yet: it gives out no slot until the next checkpoint names one. That and later zones have
    /// `zone_percent` per cent of the slots.
    pub fn switch_policy(
        &mut self,
        policy: Box<dyn SlotPolicy>,
        zone_percent: f64,
        buffered: &[PageId],
        now: Millis,
    ) {
        debug_assert!(!self.capturing && self.arriving == 0 && self.pending.is_empty());
        (self.through, self.on_read) = (policy.write_through(), policy.admits_on_read());
        self.policy = policy;
        self.params = SlotParams::new(self.params.slots, zone_percent);
        self.policy.share_pages(self.slots.pages());
        let mut copies: Vec<(Stamp, SlotId, PageId)> = self.stored_copies().collect();
        copies.sort_unstable();
        for (_, slot, page) in &copies {
            self.policy.recovered(*page, *slot);
        }
        self.note_buffered(buffered, now);
        self.alloc = Alloc::new(self.policy.append_group(), &self.params);
        self.start_after_recovery(copies.last().map(|(_, slot, _)| *slot));
        self.zones_changed();
        // The next checkpoint names another zone, so it is due even if nothing is written before it.
        self.changes += 1;
    }

    /// Informs the policy of the `buffered` pages.
    pub fn note_buffered(&mut self, buffered: &[PageId], now: Millis) {
        // Report them as sequential, like allocated pages: nothing is known of their reads.
        for page in buffered {
            self.policy.read(*page, None, Access::Sequential, now);
        }
    }

    fn stored_copies(&self) -> impl Iterator<Item = (Stamp, SlotId, PageId)> + '_ {
        self.copies_by_slot().map(|(slot, stored)| (stored.stamp, slot, stored.page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::map::Entry;
    use crate::protocol::flushes::SsdFlush;
    use crate::protocol::slots::{MapWork, Plan};
    use pagetier_page::SpaceId;
    use pagetier_policy::{Costs, SlotPolicyParams, SsdPolicy, ZonePercent};
    use pagetier_rivals::RivalSsd;

    const NOW: Millis = Millis(0);
    const SLOTS: u32 = 16;

    fn page(no: u32) -> PageId {
        PageId::new(SpaceId(1), no)
    }

    fn built(policy: SsdPolicy) -> Box<dyn SlotPolicy> {
        policy.build(&SlotPolicyParams::new(Costs::PAPER, SLOTS as usize, 8))
    }

    fn checkpoint(slots: &mut Slots) -> Vec<Option<Entry>> {
        let body = slots.begin_and_capture(NOW);
        slots.end_checkpoint(true);
        body.entries().collect()
    }

    /// Plans and completes a write of page `no` to a slot. Returns false if none is writable.
    fn write(slots: &mut Slots, no: u32, stamp: u64) -> bool {
        let Plan::Ssd(ticket) = slots.plan_dirty(page(no), NOW, &mut || Stamp::from_bits(stamp)) else {
            return false;
        };
        slots.end_write(ticket, true, SsdFlush(stamp), NOW);
        slots.flushed(SsdFlush(stamp));
        true
    }

    /// Slots with copies of the pages 0 to 4. Page 1 was written last; all but page 2, which is home, are
    /// dirty.
    fn filled(policy: SsdPolicy) -> Slots {
        let mut slots = Slots::new(
            SlotParams::new(SLOTS, 80.0),
            built(SsdPolicy::Custom(&RivalSsd::Lru2, ZonePercent::DEFAULT)),
            &[],
            0,
        );
        checkpoint(&mut slots);
        for (at, no) in [0, 1, 2, 3, 4, 1].into_iter().enumerate() {
            assert!(write(&mut slots, no, at as u64 + 1));
        }
        let back = slots.hold_copy(page(2)).expect("a copy");
        slots.end_write_back(back, true);
        slots.switch_policy(built(policy), 80.0, &[page(7)], NOW);
        slots
    }

    #[test]
    fn the_copies_stay_and_the_policy_works_with_them_as_after_a_recovery() {
        for &policy in pagetier_rivals::SSD_POLICIES {
            let mut slots = filled(policy);
            slots.validate().unwrap_or_else(|error| panic!("{policy}: {error}"));
            assert_eq!((slots.pages(), slots.dirty_pages()), (5, 4), "{policy}");
            let map = checkpoint(&mut slots);
            let recovered = Slots::new(SlotParams::new(SLOTS, 80.0), built(policy), &map, 0);
            assert_eq!(slots.mappings(), recovered.mappings(), "{policy}");
            assert_eq!(slots.writes_home_first(), recovered.writes_home_first(), "{policy}");
            assert_eq!(slots.backs_home(), recovered.backs_home(), "{policy}");
            assert_eq!(slots.admits_on_read(), recovered.admits_on_read(), "{policy}");
            assert_eq!(slots.appends(), recovered.appends(), "{policy}");
        }
    }

    #[test]
    fn a_circle_writes_nothing_before_a_checkpoint_names_its_zone() {
        for &policy in pagetier_rivals::SSD_POLICIES {
            let mut slots = filled(policy);
            let circle = slots.appends();
            assert_eq!(write(&mut slots, 0, 20), !circle, "{policy}");
            checkpoint(&mut slots);
            // With second chances, the front waits until the slots before it have been judged.
            let moves = slots.reclaim(NOW, &|_| true, &mut || Stamp::from_bits(21));
            assert!(moves.is_none_or(|moves| moves.is_empty()), "{policy}");
            assert!(write(&mut slots, 0, 22), "{policy}");
            slots.validate().unwrap_or_else(|error| panic!("{policy}: {error}"));
        }
    }

    #[test]
    fn a_new_policy_gets_a_zone_of_its_own_even_if_nothing_is_written() {
        let entry = |no| Entry { page: page(no), stamp: Stamp::from_bits(u64::from(no) + 1), clean: true };
        let full: Vec<_> = (0..SLOTS).map(|no| Some(entry(no))).collect();
        for &policy in pagetier_rivals::SSD_POLICIES.iter().filter(|policy| **policy != SsdPolicy::None) {
            let old = built(SsdPolicy::Custom(&RivalSsd::Lru2, ZonePercent::DEFAULT));
            let mut slots = Slots::new(SlotParams::new(SLOTS, 50.0), old, &full, 0);
            checkpoint(&mut slots);
            assert_eq!(slots.map_work(false, NOW), None);
            slots.switch_policy(built(policy), 80.0, &[], NOW);
            assert_eq!(slots.map_work(false, NOW), Some(MapWork::Checkpoint), "{policy}");
            checkpoint(&mut slots);
            assert_eq!(slots.map_work(false, NOW), None, "{policy}");
        }
    }

    #[test]
    fn the_front_of_a_circle_goes_on_after_the_copy_written_last() {
        let mut slots = filled(SsdPolicy::Custom(&RivalSsd::MvFifo, ZonePercent::DEFAULT));
        let last = slots.slot_of(page(1)).unwrap();
        checkpoint(&mut slots);
        assert!(write(&mut slots, 5, 30));
        assert_eq!(slots.slot_of(page(5)).unwrap().0, (last.0 + 1) % SLOTS);
    }
}
