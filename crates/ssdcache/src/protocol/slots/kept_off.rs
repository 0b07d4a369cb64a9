//! Spaces kept off the SSD: their pages get no copies there, and their existing copies are removed.
//!
//! The removal needs no rules of its own. A clean copy is given up like that of a page that changes in
//! memory. An only copy is written home like a victim (I4, I5) and is then clean. A page that changes
//! meanwhile goes home like any page that the policy does not take: its record voids the copy, and the image
//! is durable before the record is (I6).

use super::slot::{Phase, Slot, Standing};
use super::{Slots, WriteBack};
use pagetier_page::{PageId, SpaceId};
use pagetier_policy::Millis;
use rustc_hash::FxHashSet;
use std::collections::VecDeque;

/// The maximum number of clean copies given up at once: the state is locked meanwhile.
const DROPPED_MAX: usize = 256;

/// The spaces, and the copies still to be removed.
#[derive(Debug, Default)]
pub(super) struct KeptOff {
    spaces: FxHashSet<SpaceId>,
    /// Pages of such spaces that have, or had, a copy.
    leaving: VecDeque<PageId>,
}

/// The copies to be removed next.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    /// Only copies to be written home, held until [`Slots::end_write_back`].
    pub(crate) held: Vec<WriteBack>,
    /// The number of clean copies that were given up.
    pub(crate) dropped: usize,
    /// A copy waits for nothing but a flush of the HDD.
    pub(crate) flush: bool,
}

/// The state of a page's home writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OnItsWay {
    /// Its copy must stay: its home is being written, or its slot backs a home write.
    pub(crate) keeps_copy: bool,
    /// A flush of the HDD would end that.
    pub(crate) settles: bool,
}

impl Slots {
    /// Keeps the pages of `space` off the SSD from now on, or admits them again.
    pub(crate) fn keep_off(&mut self, space: SpaceId, off: bool) {
        if !off {
            self.kept_off.spaces.remove(&space);
        } else if self.kept_off.spaces.insert(space) {
            let copies = self.copies().into_iter().filter(|page| page.space == space);
            // Clean ones first: they do not wait for the HDD.
            let (only, clean): (Vec<_>, Vec<_>) = copies.partition(|page| self.is_only_copy(*page));
            self.kept_off.leaving.extend(clean.into_iter().chain(only));
        }
    }

    /// The spaces whose pages are kept off the SSD.
    pub(crate) fn spaces_kept_off(&self) -> Vec<SpaceId> {
        self.kept_off.spaces.iter().copied().collect()
    }

    /// Whether `page` may get a copy.
    pub(crate) fn admits(&self, page: PageId) -> bool {
        self.kept_off.spaces.is_empty() || !self.kept_off.spaces.contains(&page.space)
    }

    /// The number of copies of pages that are kept off the SSD.
    pub fn copies_kept_off(&self) -> usize {
        if self.kept_off.spaces.is_empty() {
            return 0;
        }
        self.mapped().filter(|page| !self.admits(*page)).count()
    }

    /// Notes that a copy of `page` is complete: if its space has been kept off since the write began, the
    /// copy is removed again.
    pub(super) fn note_copy(&mut self, page: PageId) {
        if !self.admits(page) {
            self.kept_off.leaving.push_back(page);
        }
    }

    /// Gives up the clean copies of pages that are kept off the SSD, and holds at most `max` only copies, to
    /// be written home. Copies that cannot be removed yet wait for the next call.
    pub(crate) fn next_leaving(
        &mut self,
        on_its_way: &dyn Fn(PageId) -> OnItsWay,
        max: usize,
        now: Millis,
    ) -> Leaving {
        let mut next = Leaving::default();
        for _ in 0..self.kept_off.leaving.len() {
            if next.held.len() >= max || next.dropped >= DROPPED_MAX {
                break;
            }
            let Some(page) = self.kept_off.leaving.pop_front() else { break };
            if !self.admits(page) && !self.leaves(page, on_its_way(page), now, &mut next) {
                self.kept_off.leaving.push_back(page);
            }
        }
        next
    }

    /// Removes the copy of `page` as far as possible. Returns whether nothing remains to be done.
    fn leaves(&mut self, page: PageId, way: OnItsWay, now: Millis, next: &mut Leaving) -> bool {
        // A copy that is on its way is noted when it is complete.
        let Some(slot) = self.slot_of(page) else { return true };
        let Slot { phase: Phase::Live { being_replaced }, moving, standing, .. } = self.slots.get(slot)
        else {
            return true;
        };
        if way.keeps_copy || being_replaced || moving || self.hidden {
            next.flush |= way.settles;
            return false;
        }
        match standing {
            Standing::Clean => {
                self.unmap(page);
                self.policy.removed(page, false, now);
                self.release(slot);
                self.note_unreported(Some(page));
                next.dropped += 1;
                true
            }
            Standing::Only => {
                next.held.extend(self.hold(slot));
                false
            }
            Standing::AwaitsFlush => {
                next.flush |= way.settles;
                false
            }
            // It cannot be read: only a newer version of the page takes its place.
            Standing::Stuck => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::flushes::SsdFlush;
    use crate::protocol::slots::{Plan, SlotParams};
    use pagetier_page::Stamp;
    use pagetier_policy::{Cause, Costs, Location, SlotPolicyParams, SsdPolicy, ZonePercent};
    use pagetier_rivals::RivalSsd;

    const NOW: Millis = Millis(0);
    const FREE: OnItsWay = OnItsWay { keeps_copy: false, settles: false };

    fn page(space: u32, no: u32) -> PageId {
        PageId::new(SpaceId(space), no)
    }

    fn slots(policy: SsdPolicy) -> Slots {
        let policy = policy.build(&SlotPolicyParams::new(Costs::PAPER, 32, 8));
        let mut slots = Slots::new(SlotParams::new(32, 80.0), policy, &[], 0);
        slots.begin_checkpoint(NOW);
        slots.end_checkpoint(true);
        slots
    }

    fn written(slots: &mut Slots, page: PageId, stamp: u64) -> bool {
        let Plan::Ssd(ticket) = slots.plan_dirty(page, NOW, &mut || Stamp::from_bits(stamp)) else {
            return false;
        };
        slots.end_write(ticket, true, SsdFlush(stamp), NOW);
        slots.flushed(SsdFlush(stamp));
        true
    }

    #[test]
    fn a_page_that_is_kept_off_gets_no_copy_in_any_way() {
        for &policy in pagetier_rivals::SSD_POLICIES {
            let (mut slots, mut other) = (slots(policy), slots(policy));
            slots.keep_off(SpaceId(1), true);
            assert!(!written(&mut slots, page(1, 0), 1), "{policy}");
            for cause in [Cause::Evicted, Cause::Read, Cause::Cleaned] {
                let copy = slots.plan_copy(page(1, 0), cause, NOW, &mut || Stamp::from_bits(2));
                assert!(copy.is_none(), "{policy}, {cause:?}");
            }
            assert!(slots.plan_arrived(page(1, 0), true, NOW, &mut || Stamp::from_bits(3)).is_none());
            assert_eq!(slots.pages(), 0, "{policy}");
            slots.keep_off(SpaceId(1), false);
            let (again, usual) = (written(&mut slots, page(1, 0), 4), written(&mut other, page(1, 0), 4));
            assert_eq!(again, usual, "{policy}");
        }
    }

    #[test]
    fn copies_leave_when_they_may_and_those_of_other_spaces_stay() {
        let mut slots = slots(SsdPolicy::Custom(&RivalSsd::Lru2, ZonePercent::DEFAULT));
        for no in 0..3 {
            assert!(written(&mut slots, page(1, no), u64::from(no) + 1));
            assert!(written(&mut slots, page(2, no), u64::from(no) + 11));
        }
        let back = slots.hold_copy(page(1, 0)).expect("a copy");
        slots.end_write_back(back, true);
        slots.keep_off(SpaceId(1), true);
        assert_eq!(slots.copies_kept_off(), 3);
        // Page 1 is on its way home, and waits for a flush.
        let way = |p: PageId| OnItsWay { keeps_copy: p.no == 1, settles: p.no == 1 };
        let next = slots.next_leaving(&way, 10, NOW);
        assert_eq!((next.dropped, next.flush), (1, true));
        assert_eq!(next.held.iter().map(|one| one.page).collect::<Vec<_>>(), [page(1, 2)]);
        assert_eq!(slots.location(page(1, 0)), Location::Hdd);
        // The write-back of page 2 fails, then succeeds.
        slots.end_write_back(next.held[0], false);
        let next = slots.next_leaving(&|_| FREE, 1, NOW);
        assert_eq!((next.held.len(), next.dropped), (1, 0), "as many as wanted");
        slots.end_write_back(next.held[0], true);
        let next = slots.next_leaving(&|_| FREE, 10, NOW);
        assert_eq!((next.held.len(), next.dropped), (1, 1));
        slots.end_write_back(next.held[0], true);
        assert_eq!(slots.next_leaving(&|_| FREE, 10, NOW).dropped, 1);
        assert_eq!((slots.copies_kept_off(), slots.pages()), (0, 3));
        assert_eq!(slots.next_leaving(&|_| FREE, 10, NOW).dropped, 0);
        assert!(slots.kept_off.leaving.is_empty(), "nothing is looked at again that has left");
        slots.validate().unwrap();
    }

    #[test]
    fn a_copy_that_was_on_its_way_leaves_when_it_has_arrived() {
        let mut slots = slots(SsdPolicy::Custom(&RivalSsd::Lru2, ZonePercent::DEFAULT));
        let Plan::Ssd(ticket) = slots.plan_dirty(page(1, 0), NOW, &mut || Stamp::from_bits(1)) else {
            panic!("there is room")
        };
        let copy = slots.plan_copy(page(1, 1), Cause::Evicted, NOW, &mut || Stamp::from_bits(2)).unwrap();
        slots.keep_off(SpaceId(1), true);
        assert_eq!(slots.next_leaving(&|_| FREE, 10, NOW).held.len(), 0, "nothing is there");
        slots.end_write(ticket, true, SsdFlush(1), NOW);
        slots.end_write(copy, true, SsdFlush(1), NOW);
        let next = slots.next_leaving(&|_| FREE, 10, NOW);
        assert_eq!((next.held.len(), next.dropped), (1, 1));
        slots.end_write_back(next.held[0], true);
        assert_eq!(slots.next_leaving(&|_| FREE, 10, NOW).dropped, 1);
        assert_eq!(slots.pages(), 0);
        slots.validate().unwrap();
    }
}
