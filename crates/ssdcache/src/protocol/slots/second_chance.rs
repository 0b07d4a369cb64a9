//! Second chances: slots are judged in groups some distance ahead of the front, and pages that get a second
//! chance are copied to the front, into slots judged earlier. Meanwhile each of these pages keeps its durable
//! slot.

use super::slot::{Phase, Slot, Standing};
use super::{Move, Slots};
use crate::protocol::flushes::SsdFlush;
use pagetier_page::{PageId, Stamp};
use pagetier_policy::{Millis, SlotId};

impl Slots {
    /// Judges the next group, if few judged slots are left. Pages that get a second chance are assigned slots
    /// at the front, while there are any, to be copied there. At least one slot is gained. `busy` pages must
    /// not move. `None`: no group was due.
    pub fn reclaim(
        &mut self,
        now: Millis,
        busy: &dyn Fn(PageId) -> bool,
        fresh: &mut dyn FnMut() -> Stamp,
    ) -> Option<Vec<Move>> {
        let slots = self.circle_mut()?.judge()?;
        let group = slots.len();
        let mut staying = Vec::new();
        for slot in slots {
            let free = !self.hidden && self.may_move(slot, busy);
            // At least one slot of each group is gained: if every page stayed, the front would never advance.
            if free && staying.len() + 1 < group && self.policy.second_chance(slot) {
                self.set_moving(slot, true);
                staying.push(slot);
            }
        }
        let starved = self.starved;
        let mut moves = Vec::with_capacity(staying.len());
        for slot in staying {
            match self.take_front(now) {
                Some((to, displaced)) => {
                    self.note_unreported(displaced);
                    moves.extend(self.start_move(slot, to, now, fresh()));
                }
                None => self.set_moving(slot, false),
            }
        }
        // A second chance that found no slot must not make the SSD look starved.
        self.starved = starved;
        Some(moves)
    }

    /// Whether the page in `slot` may move. The copy gets a larger stamp than any version already stamped, so
    /// it must not supersede a newer one.
    fn may_move(&self, slot: SlotId, busy: &dyn Fn(PageId) -> bool) -> bool {
        let Slot { page, readers, phase, .. } = self.slots.get(slot);
        phase == Phase::Live { being_replaced: false } && readers == 0 && !busy(page) && self.admits(page)
    }

    fn set_moving(&mut self, slot: SlotId, moving: bool) {
        if let Some(stored) = self.slots.edit(slot).stored_mut() {
            stored.moving = moving;
        }
    }

    fn start_move(&mut self, from: SlotId, to: SlotId, now: Millis, stamp: Stamp) -> Option<Move> {
        let version = self.slots.get(from).live()?;
        let page = version.page;
        let standing = if version.is_dirty() { Standing::Only } else { Standing::Clean };
        let source = self.hold(from)?;
        let to = self.start(to, page, standing, None, now, stamp);
        if let Some(copy) = self.slots.edit(to.slot).version_mut() {
            (copy.lsn, copy.perhaps_home) = (version.lsn, version.perhaps_home);
        }
        if version.is_dirty() {
            self.note_captured(version.lsn);
        }
        // The copy has the same version, so it does not supersede the source.
        self.set_being_replaced(from, false);
        self.moving.insert(page, to.slot);
        Some(Move { from: source, to })
    }

    /// Ends a move. With `copied`, the image was sent to its new slot, and [`Slots::end_write`] has ended
    /// that write unless it was dropped: a dropped write may land at any time, so its slot is not used again.
    /// Without `copied`, the old slot could not be read and the new one is untouched.
    pub fn end_move(&mut self, done: Move, copied: bool, now: Millis) {
        let Move { from, to } = done;
        let slot = self.slots.get(to.slot);
        let dropped = slot.is_writing() && slot.version().is_some_and(|version| version.stamp == to.stamp);
        if copied && dropped {
            self.end_write(to, false, SsdFlush(0), now);
        } else if !copied {
            self.moving.remove(&to.page);
            let counts = matches!(self.slots.get(to.slot).phase, Phase::Writing { abandoned: false, .. });
            if counts && let Some(slot) = self.slot_of(to.page) {
                self.policy.inserted(to.page, slot, now);
            }
            self.release(to.slot);
        }
        self.counts.second_chances += u64::from(copied && !dropped);
        self.set_moving(from.slot, false);
        self.end_read(from.slot);
    }

    /// Cancels the second chance of `page` (I16): the page was changed or discarded, or a newer version is
    /// about to be written.
    pub(crate) fn cancel_move(&mut self, page: PageId) {
        if let Some(to) = self.moving.remove(&page) {
            self.abandon(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::map::Entry;
    use crate::protocol::slots::SlotParams;
    use pagetier_page::{Lsn, SpaceId};
    use pagetier_policy::{Costs, Location, SlotPolicyParams, SsdPolicy};

    fn page(no: u32) -> PageId {
        PageId::new(SpaceId(1), no)
    }

    /// Slots full of copies, of which `dirty` is the only one of its version.
    fn full(dirty: Option<u32>) -> Slots {
        let stamp = |no| Stamp::from_bits(u64::from(no) + 1);
        let entry = |no| Entry { page: page(no), stamp: stamp(no), clean: dirty != Some(no) };
        let full: Vec<_> = (0..48).map(|no| Some(entry(no))).collect();
        let params = SlotParams { slots: 48, zone: 32, reserve: 4, burst: 4, clean_ahead: 4 };
        // The policy gives every page a second chance.
        pagetier_testing::hostile::register();
        let policy = "hostile:1".parse::<SsdPolicy>().expect("a policy").build(&SlotPolicyParams::new(
            Costs::PAPER,
            48,
            8,
        ));
        let mut slots = Slots::new(params, policy, &full, 0);
        slots.begin_checkpoint(Millis(0));
        slots.end_checkpoint(true);
        slots
    }

    fn move_all(slots: &mut Slots) -> Vec<Move> {
        let more = || slots.reclaim(Millis(0), &|_| false, &mut || Stamp::from_bits(100));
        std::iter::from_fn(more).flatten().collect()
    }

    /// Slots full of clean copies, and the second chances that have begun.
    fn moving() -> (Slots, Vec<Move>) {
        let mut slots = full(None);
        let moves = move_all(&mut slots);
        assert!(!moves.is_empty(), "nothing was moved");
        (slots, moves)
    }

    #[test]
    fn a_second_chance_whose_source_cannot_be_read_costs_no_slot() {
        let (mut slots, moves) = moving();
        for one in &moves {
            slots.end_move(*one, false, Millis(0));
            assert!(slots.slots.get(one.to.slot).is_free(), "nothing was written into it");
            assert!(slots.holds(one.from.page, one.from.stamp), "the old copy counts");
        }
        assert_eq!((slots.count_bad(), slots.readers()), (0, 0));
        assert_eq!(slots.counts().second_chances, 0);
        slots.validate().expect("sound slots");
    }

    /// The copy's new slot may have been captured already, and its old one may be given away before it is.
    #[test]
    fn a_checkpoint_counts_the_oldest_change_of_a_copy_that_moves_while_it_is_captured() {
        let moved = moving().1.last().map(|one| one.from.slot.0);
        let mut slots = full(moved);
        slots.set_lsn_floor(Lsn(5));
        slots.begin_checkpoint(Millis(0));
        assert_eq!(slots.oldest_captured(), None);
        let moves = move_all(&mut slots);
        assert!(moves.iter().any(|one| Some(one.from.slot.0) == moved), "the dirty copy stays");
        assert_eq!(slots.oldest_captured(), Some(Lsn(5)));
    }

    #[test]
    fn the_pool_is_told_of_pages_that_make_room_for_second_chances() {
        let (mut slots, moves) = moving();
        let told: Vec<PageId> = std::iter::from_fn(|| slots.take_unreported()).collect();
        let gone: Vec<PageId> =
            (0..48).map(page).filter(|page| slots.location(*page) == Location::Hdd).collect();
        assert_eq!(told, gone);
        assert_eq!(told.len(), moves.len());
    }
}
