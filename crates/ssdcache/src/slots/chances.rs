//! Second chances: slots are judged in groups some way ahead of the front, and the pages that stay are copied to the front, into slots that were judged before.
//! A page is never without a durable slot meanwhile.

use super::{Move, Slots, State, WriteBack};
use crate::mutation::Mutation;
use pagetier_page::{PageId, Stamp};
use pagetier_policy::{Millis, SlotId};

impl Slots {
    /// Judges the next group, if few judged slots are left. Pages that get a second chance are given slots at the front, as far as there are any: they are
    /// to be copied there. One slot at least is gained. `busy`: pages that must stay where they are; `None`: nothing was due.
    pub fn take_back(
        &mut self,
        now: Millis,
        busy: &dyn Fn(PageId) -> bool,
        fresh: &mut dyn FnMut() -> Stamp,
    ) -> Option<Vec<Move>> {
        let slots = self.circle.as_mut()?.judge()?;
        let group = slots.len();
        let mut staying = Vec::new();
        for slot in slots {
            let s = &self.slots[slot.at()];
            let here = s.state == State::Live && s.readers == 0 && self.by_page.get(&s.page) == Some(&slot);
            // A copy gets a larger stamp than a version that has one already, and must not win over it.
            let newest = !s.overtaken || self.broken.is(Mutation::MoveUnderNewer);
            let free = here && newest && !s.backs && !self.is_going_home(s.page) && !busy(s.page);
            let free = free && !self.hidden;
            if free && staying.len() + 1 < group && self.policy.second_chance(slot) {
                self.slots[slot.at()].moving = true;
                staying.push(slot);
            }
        }
        let starved = self.starved;
        let mut moves = Vec::with_capacity(staying.len());
        for slot in staying {
            match self.take_front(now) {
                Some((to, displaced)) => {
                    self.note_untold(displaced);
                    moves.push(self.start_move(slot, to, now, fresh()));
                }
                None => self.slots[slot.at()].moving = false,
            }
        }
        // Nobody waits for a slot on behalf of a second chance.
        self.starved = starved;
        Some(moves)
    }

    fn start_move(&mut self, from: SlotId, to: SlotId, now: Millis, stamp: Stamp) -> Move {
        let source = &mut self.slots[from.at()];
        source.readers += 1;
        let (page, dirty, lsn) = (source.page, source.dirty, source.lsn);
        let from = WriteBack { slot: from, page, stamp: source.stamp, durable_at: source.durable_at };
        let to = self.start(to, page, dirty, None, now, stamp);
        self.slots[to.slot.at()].lsn = lsn;
        // The copy is of the same version.
        self.slots[from.slot.at()].overtaken = false;
        self.moving.insert(page, to.slot);
        Move { from, to }
    }

    /// The move is over. With `copied`, the image was on its way to its new slot, and [`Slots::end_write`] has been told how that ended; otherwise the old slot
    /// could not be read, and the new one is as it was.
    pub fn end_move(&mut self, done: Move, copied: bool, now: Millis) {
        let Move { from, to } = done;
        if !copied {
            self.moving.remove(&to.page);
            if !self.slots[to.slot.at()].abandoned
                && let Some(&slot) = self.by_page.get(&to.page)
            {
                self.policy.inserted(to.page, slot, now);
            }
            self.release(to.slot);
        }
        self.counts.second_chances += u64::from(copied);
        self.slots[from.slot.at()].moving = false;
        self.end_read(from.slot);
    }

    /// A newer version of `page` is about to be written somewhere, or none is wanted any more.
    pub(super) fn overtake_move(&mut self, page: PageId) {
        if self.broken.is(Mutation::MovedOverNewer) {
            return;
        }
        if let Some(to) = self.moving.remove(&page) {
            self.slots[to.at()].abandoned = true;
        }
    }
}
