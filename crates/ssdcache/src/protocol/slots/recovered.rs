//! The slots after a recovery: first those outside the zone, as the checkpoint names them; then, once the
//! zone has been read, all of them.

use super::Slots;
use super::slot::{Phase, Slot, Standing};
use crate::format::map::Entry;

impl Slots {
    /// Replaces a recovery's preliminary findings with its final ones, `map`. Only before the first
    /// checkpoint.
    pub fn apply_recovered(&mut self, map: &[Option<Entry>]) {
        let found = |slot: usize| map.get(slot).copied().flatten();
        for slot in self.slots.ids() {
            let Some(stored) = self.slots.get(slot).live() else { continue };
            let known = Entry { page: stored.page, stamp: stored.stamp, clean: !stored.is_dirty() };
            // What the zone, the journal and the ring have shown overrides the map.
            if found(slot.at()) != Some(known) {
                self.by_page.remove(&self.slots, stored.page);
                self.policy.forget(stored.page);
                self.slots.edit(slot).phase = Phase::Free;
            }
        }
        for slot in self.slots.ids() {
            match found(slot.at()) {
                _ if self.slots.get(slot).live().is_some() => {}
                // A damaged map may name a page twice.
                Some(entry) if self.slot_of(entry.page).is_none() => {
                    put(&mut self.slots.edit(slot), entry);
                    self.by_page.insert(&self.slots, entry.page, slot);
                    self.policy.recovered(entry.page, slot);
                }
                _ => {}
            }
        }
        let newest =
            self.copies_by_slot().max_by_key(|(slot, stored)| (stored.stamp, *slot)).map(|(slot, _)| slot);
        self.start_after_recovery(newest);
    }
}

fn put(slot: &mut Slot, entry: Entry) {
    let Entry { page, stamp, clean } = entry;
    let standing = if clean { Standing::Clean } else { Standing::Only };
    slot.hold(page, stamp, standing, Phase::Live { being_replaced: false });
    slot.perhaps_home = !clean;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::slots::{Plan, SlotParams};
    use pagetier_page::{PageId, SpaceId, Stamp};
    use pagetier_policy::{Costs, Millis, SlotPolicyParams, SsdPolicy};

    fn holds(no: u32, stamp: u64, clean: bool) -> Option<Entry> {
        Some(Entry { page: PageId::new(SpaceId(1), no), stamp: Stamp::from_bits(stamp), clean })
    }

    fn slots(map: &[Option<Entry>], policy: &str) -> Slots {
        pagetier_rivals::register();
        let params = SlotPolicyParams::new(Costs::PAPER, 8, 4);
        Slots::new(
            SlotParams::new(8, 50.0),
            policy.parse::<SsdPolicy>().expect("a policy").build(&params),
            map,
            3,
        )
    }

    /// By slot, the page and whether its version is dirty.
    fn content(slots: &Slots) -> Vec<Option<(PageId, bool)>> {
        let content = |s: Slot| (s.page, s.is_dirty());
        slots.slots.iter().map(|s| s.live().map(content)).collect()
    }

    #[test]
    fn recovered_slots_are_as_if_everything_had_been_known_at_once() {
        let trusted = [holds(0, 1, true), holds(1, 2, true), holds(2, 3, false), None, holds(4, 5, true)];
        // Page 1 was written home since, page 2 has a newer version in the zone, and page 0 turned out to be
        // dirty.
        let found = [holds(0, 1, false), None, holds(7, 8, true), holds(2, 9, false), holds(4, 5, true)];
        for policy in pagetier_rivals::SSD_POLICIES.iter().filter(|policy| **policy != SsdPolicy::None) {
            let policy = &policy.to_string();
            let at_once = slots(&found, policy);
            let mut applied = slots(&trusted, policy);
            applied.apply_recovered(&found);
            applied.validate().unwrap_or_else(|error| panic!("{policy}: {error}"));
            assert_eq!(content(&applied), content(&at_once), "{policy}");
            assert_eq!(applied.mappings(), at_once.mappings(), "{policy}");
            assert_eq!(format!("{:?}", applied.alloc), format!("{:?}", at_once.alloc), "{policy}");
        }
    }

    #[test]
    fn a_rewrite_finds_a_slot_when_a_recovery_left_none_free() {
        for clean in [true, false] {
            let full: Vec<_> = (0..8).map(|no| holds(no, u64::from(no) + 1, clean && no > 0)).collect();
            let mut slots = slots(&full, "lru2");
            slots.begin_checkpoint(Millis(0));
            slots.end_checkpoint(true);
            let page = PageId::new(SpaceId(1), 0);
            let plan = slots.plan_dirty(page, Millis(0), &mut || Stamp::from_bits(99));
            match plan {
                Plan::Ssd(ticket) => assert!(clean && ticket.displaced.is_some(), "{ticket:?}"),
                other => assert_eq!((clean, other), (false, Plan::Hdd)),
            }
            slots.validate().expect("sound slots");
        }
    }

    #[test]
    fn a_rewritten_page_does_not_displace_itself() {
        let full: Vec<_> = (0..8).map(|no| holds(no, u64::from(no) + 1, true)).collect();
        for no in 0..8 {
            let mut slots = slots(&full, "lru2");
            slots.begin_checkpoint(Millis(0));
            slots.end_checkpoint(true);
            let page = PageId::new(SpaceId(1), no);
            let plan = slots.plan_dirty(page, Millis(0), &mut || Stamp::from_bits(99));
            let Plan::Ssd(ticket) = plan else { panic!("{plan:?}") };
            assert!(ticket.displaced.is_some_and(|displaced| displaced != page), "{ticket:?}");
        }
    }

    #[test]
    fn a_page_has_one_slot_even_if_a_map_names_two() {
        let twice = slots(&[holds(0, 1, true), holds(0, 2, true)], "cac");
        twice.validate().expect("sound slots");
        assert_eq!(twice.by_page.len(), 1);
    }
}
