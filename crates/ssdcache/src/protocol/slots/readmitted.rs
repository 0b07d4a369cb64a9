//! The slots of an SSD that is readmitted after a failure (I31).
//!
//! After a failed flush nothing that was written since the last good one need be durable, however it reads.
//! So a version written since then is unverified until it was written again and flushed, and the version
//! before it, in a slot retired since then or on the HDD, is still the durable one.

use super::Slots;
use super::slot::{Phase, Slot, Standing};
use crate::format::map::Entry;
use crate::protocol::flushes::SsdFlush;
use pagetier_page::{Lsn, PageId, Stamp};
use pagetier_policy::{Millis, SlotId};

/// A retired slot that waits for its successor's flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Predecessor {
    /// The flush that frees it.
    pub(super) until: SsdFlush,
    pub(super) slot: SlotId,
    /// The flush that makes its own version durable.
    pub(super) durable_at: SsdFlush,
    /// The version that replaced it. Another life of the page has other successors.
    pub(super) successor: Stamp,
}

/// A copy to be verified. Held as by a read until [`Slots::end_read`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ToVerify {
    pub(crate) slot: SlotId,
    pub(crate) entry: Entry,
    /// No good flush has followed its write.
    pub(crate) unverified: bool,
}

/// What became of a copy that turned out to be damaged or gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fallen {
    /// The slot has another version by now, or none.
    Changed,
    /// The HDD has the same version: the copy was dropped.
    Dropped,
    /// The page has its previous version, which is in another slot or on the HDD. Redo from this position
    /// would bring the damaged one back.
    Back(Lsn),
    /// It was durable, so no older version may take its place: reading the page is an error.
    Lost,
}

/// What a page has without a copy that turned out to be damaged or gone.
enum Judged {
    /// The slot has another version by now, or none.
    Changed,
    /// The HDD has the same version.
    Clean,
    /// Nothing: the version was durable.
    Lost,
    /// The version in the slot of this predecessor, which is number `at` of those that wait.
    ToSlot { at: usize, one: Predecessor, stored: Slot, lsn: Lsn },
    /// The version on the HDD.
    ToHome { lsn: Lsn },
}

impl Slots {
    /// The slots that may have to be verified, retired ones included; `completed` is the last good flush.
    pub(crate) fn to_verify(&self) -> impl Iterator<Item = SlotId> + use<> {
        (0..self.params.slots).map(SlotId)
    }

    /// Retired slots whose own versions no flush up to `completed` has covered, sorted.
    pub(crate) fn unverified_predecessors(&self, completed: SsdFlush) -> Vec<SlotId> {
        let unverified = self.retired.iter().filter(|one| one.durable_at > completed);
        let mut slots: Vec<SlotId> = unverified.map(|one| one.slot).collect();
        slots.sort_unstable();
        slots
    }

    /// Holds the version in `slot` to be verified, if it is a copy or the predecessor of one. `unverified`:
    /// as [`Slots::unverified_predecessors`] returned them.
    pub(crate) fn begin_verification(
        &mut self,
        slot: SlotId,
        completed: SsdFlush,
        unverified: &[SlotId],
    ) -> Option<ToVerify> {
        if self.hidden {
            return None;
        }
        let stored = self.slots.find(slot)?;
        let unverified = match stored.phase {
            Phase::Live { .. } => stored.durable_at > completed,
            // One that waits for no flush is free as soon as its readers are gone.
            Phase::Retired if stored.durable_at != SsdFlush::NONE => unverified.binary_search(&slot).is_ok(),
            _ => return None,
        };
        self.slots.edit(slot).readers += 1;
        let entry = Entry { page: stored.page, stamp: stored.stamp, clean: !stored.is_dirty() };
        Some(ToVerify { slot, entry, unverified })
    }

    /// What becomes of `page`, whose version `stamp` in `slot` cannot be read, if it is given up.
    fn judge(
        &self,
        (slot, page, stamp): (SlotId, PageId, Stamp),
        completed: SsdFlush,
        bad: &dyn Fn(SlotId, Stamp) -> bool,
    ) -> Judged {
        let here = self.slot_of(page) == Some(slot);
        let Some(found) = self.live(page).filter(|found| here && found.stamp == stamp) else {
            return Judged::Changed;
        };
        if !found.is_dirty() {
            return Judged::Clean;
        }
        let mut newer = (stamp, found.durable_at);
        loop {
            // A good flush had covered this version, so a `sync` may have promised it. An older one would be
            // silent loss (I31).
            if newer.1 <= completed {
                return Judged::Lost;
            }
            // Follow the successors, not the page number: a page that was freed and reused has slots of an
            // earlier life.
            let Some(at) = self.retired.iter().position(|one| one.successor == newer.0) else { break };
            let one = self.retired[at];
            let Some(stored) = self.slots.get(one.slot).stored() else { break };
            if !bad(one.slot, stored.stamp) {
                return Judged::ToSlot { at, one, stored, lsn: found.lsn };
            }
            newer = (stored.stamp, one.durable_at);
        }
        // No slot has a version of this life left, so the durable one is at home.
        Judged::ToHome { lsn: found.lsn }
    }

    /// Whether [`Slots::fall_back`] would take the page of `copy` back to an older version.
    pub(crate) fn falls_back(
        &self,
        copy: (SlotId, PageId, Stamp),
        completed: SsdFlush,
        bad: &dyn Fn(SlotId, Stamp) -> bool,
    ) -> bool {
        matches!(self.judge(copy, completed, bad), Judged::ToSlot { .. } | Judged::ToHome { .. })
    }

    /// Gives up the version `stamp` of `page` in `slot`, which cannot be read. If no flush up to `completed`
    /// has made it durable, the page falls back to the newest earlier version that is not `bad`, up to the
    /// one that was durable; that is the HDD's if no retired slot has one.
    pub(crate) fn fall_back(
        &mut self,
        copy: (SlotId, PageId, Stamp),
        completed: SsdFlush,
        bad: &dyn Fn(SlotId, Stamp) -> bool,
        now: Millis,
    ) -> Fallen {
        let (slot, page, _) = copy;
        match self.judge(copy, completed, bad) {
            Judged::Changed => Fallen::Changed,
            Judged::Lost => Fallen::Lost,
            Judged::Clean => {
                self.drop_bad_copy(page, slot, now);
                Fallen::Dropped
            }
            Judged::ToSlot { at, one, stored, lsn } => {
                self.retired.remove(at);
                self.revive(one, stored, now);
                Fallen::Back(lsn)
            }
            Judged::ToHome { lsn } => {
                self.unmap(page);
                self.release(slot);
                self.policy.removed(page, false, now);
                Fallen::Back(lsn)
            }
        }
    }

    /// Makes the retired version in `one` its page's copy again.
    fn revive(&mut self, one: Predecessor, stored: Slot, now: Millis) {
        let page = stored.page;
        if let Some(slot) = self.unmap(page) {
            self.release(slot);
        }
        let mut s = self.slots.edit(one.slot);
        (s.phase, s.durable_at) = (Phase::Live { being_replaced: false }, one.durable_at);
        if stored.is_dirty() {
            // Retired, it was not told of flushes of the HDD.
            (s.standing, s.perhaps_home) = (Standing::Only, true);
        }
        drop(s);
        self.by_page.insert(&self.slots, page, one.slot);
        self.policy.inserted(page, one.slot, now);
    }

    /// Notes that every sound version that flush `completed` and earlier ones did not cover was written
    /// again: flush `again` covers it.
    pub fn written_again(&mut self, completed: SsdFlush, again: SsdFlush) {
        let unverified = |durable_at: &mut SsdFlush| {
            if *durable_at > completed {
                *durable_at = again;
            }
        };
        for slot in self.slots.ids() {
            if let Some(stored) = self.slots.edit(slot).stored_mut() {
                unverified(&mut stored.durable_at);
            }
        }
        for one in &mut self.retired {
            // Retired slots remain the fallback until what replaced them is durable.
            one.until = again;
            unverified(&mut one.durable_at);
        }
    }

    /// Takes the slots back into use. Every copy was read, is sound and durable, and is named by a
    /// checkpoint; so the slots whose writes failed are free.
    pub fn take_into_use(&mut self) {
        self.bad = 0;
        for slot in (0..self.params.slots).map(SlotId) {
            let mut s = self.slots.edit(slot);
            if let Some(stored) = s.stored_mut() {
                // The outcome of a home write that the failure cut short is unknown.
                stored.perhaps_home |= stored.is_dirty();
            }
            let bad = s.phase == Phase::Bad;
            drop(s);
            if bad {
                self.release(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::slots::{Plan, SlotParams};
    use pagetier_page::SpaceId;
    use pagetier_policy::{Costs, Location, SlotPolicyParams, SsdPolicy, ZonePercent};
    use pagetier_rivals::RivalSsd;

    const NOW: Millis = Millis(0);
    const PAGE: PageId = PageId::new(SpaceId(1), 7);
    /// The last good flush.
    const GOOD: SsdFlush = SsdFlush(1);

    fn slots() -> Slots {
        let policy = SsdPolicy::Custom(&RivalSsd::Lru2, ZonePercent::DEFAULT).build(&SlotPolicyParams::new(
            Costs::PAPER,
            32,
            8,
        ));
        let mut slots = Slots::new(SlotParams::new(32, 80.0), policy, &[], 0);
        slots.begin_checkpoint(NOW);
        slots.end_checkpoint(true);
        slots
    }

    /// Writes version `stamp`, which flush `until` covers; returns its slot.
    fn write(slots: &mut Slots, stamp: u64, until: SsdFlush) -> SlotId {
        let Plan::Ssd(ticket) = slots.plan_dirty(PAGE, NOW, &mut || Stamp::from_bits(stamp)) else {
            panic!("there is room")
        };
        slots.end_write(ticket, true, until, NOW);
        slots.flushed(GOOD);
        ticket.slot
    }

    fn fall(slots: &mut Slots, slot: SlotId, stamp: u64, bad: &[SlotId]) -> Fallen {
        let is_bad = |slot, _| bad.contains(&slot);
        slots.fall_back((slot, PAGE, Stamp::from_bits(stamp)), GOOD, &is_bad, NOW)
    }

    #[test]
    fn a_page_falls_back_to_its_newest_sound_version_up_to_the_durable_one() {
        for sound in [2, 1, 0] {
            let mut slots = slots();
            let at = [write(&mut slots, 1, GOOD), write(&mut slots, 2, SsdFlush(2)), {
                write(&mut slots, 3, SsdFlush(2))
            }];
            assert_eq!(slots.unverified_predecessors(GOOD), [at[1]]);
            let fallen = fall(&mut slots, at[2], 3, &at[sound..]);
            match sound {
                0 => assert_eq!((fallen, slots.holds(PAGE, Stamp::from_bits(3))), (Fallen::Lost, true)),
                _ => assert_eq!(
                    (fallen, slots.holds(PAGE, Stamp::from_bits(sound as u64))),
                    (Fallen::Back(Lsn(0)), true)
                ),
            }
            slots.validate().expect("sound slots");
            // A later judgement of the same copy finds it gone.
            if sound > 0 {
                assert_eq!(fall(&mut slots, at[2], 3, &at[sound..]), Fallen::Changed);
            }
            slots.written_again(GOOD, SsdFlush(3));
            slots.flushed(SsdFlush(2));
            assert!(sound < 2 || slots.free_slots().retired == 1, "it waits for the flush of its successor");
            slots.flushed(SsdFlush(3));
            slots.take_into_use();
            slots.validate().expect("sound slots");
        }
    }

    #[test]
    fn a_page_without_a_predecessor_in_its_life_falls_back_to_the_hdd() {
        let mut slots = slots();
        let only = write(&mut slots, 1, SsdFlush(2));
        assert_eq!(fall(&mut slots, only, 1, &[only]), Fallen::Back(Lsn(0)));
        assert_eq!(slots.location(PAGE), Location::Hdd);
        // Its first life has a durable version that waits for a flush.
        write(&mut slots, 2, GOOD);
        write(&mut slots, 3, SsdFlush(2));
        slots.discard(PAGE);
        let second = write(&mut slots, 4, SsdFlush(2));
        assert_eq!(fall(&mut slots, second, 4, &[second]), Fallen::Back(Lsn(0)));
        assert_eq!(slots.location(PAGE), Location::Hdd, "its first life came back");
        slots.validate().expect("sound slots");
    }
}
