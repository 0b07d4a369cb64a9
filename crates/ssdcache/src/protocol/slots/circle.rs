//! The slots of a policy that appends: given out strictly in circular order, so that all writes to the SSD
//! are sequential.
//!
//! The *front* is the slot that is given out next, the one written longest ago. A void version keeps its slot
//! until the front comes to it; a clean one is evicted then; a dirty one is waited for until it is home.
//! Slots that are bad, being read, or kept by a discarded page are passed over. The zone of a checkpoint is
//! the next slots from the front on, whatever is in them, so only the front's position decides what may be
//! written.
//!
//! Where pages get second chances, the front does not go beyond the slots that were judged (`chances`).

use super::{Slots, State, WriteBack};
use crate::mutation::Mutation;
use pagetier_page::PageId;
use pagetier_policy::{Cause, Millis, SlotId, Verdict};

/// A group is at most this share of a zone: the pages that stay need slots that were judged before them.
const GROUPS_PER_ZONE: usize = 4;

/// A checkpoint is due when no more than this share of the zone is left, so that writers do not run dry while
/// it is written.
const ZONE_LEFT: u32 = 2;

/// Where the next slot is, and how far it may go.
#[derive(Debug)]
pub(super) struct Circle {
    front: u32,
    slots: u32,
    /// Slots from the front on that are in the zone of the durable checkpoint.
    left: u32,
    /// The same of the checkpoint being written.
    left_next: u32,
    /// Slots from the front on that were judged, where there are second chances.
    judged: u32,
    /// Slots judged at a time; 1: no slot gets a second chance.
    group: u32,
    /// Whether a slot of the present zone was given out.
    gave: bool,
    /// How often the front came round.
    pub(super) laps: u64,
}

/// What the front does with a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    Give,
    /// It may be otherwise next time.
    Pass,
    /// Its page can neither be read nor given up.
    PassForGood,
    Wait,
}

impl Circle {
    /// Empty slots, of which `group` are judged at a time.
    pub(super) fn new(group: usize, zone: u32, slots: u32) -> Self {
        let group = group.min(zone as usize / GROUPS_PER_ZONE).max(1) as u32;
        Self { front: 0, slots, left: 0, left_next: 0, judged: 0, group, gave: false, laps: 0 }
    }

    /// `newest` is the slot that was written last.
    pub(super) fn go_on_after(&mut self, newest: Option<SlotId>) {
        self.front = newest.map_or(0, |newest| (newest.0 + 1) % self.slots);
    }

    fn at(&self, ahead: u32) -> SlotId {
        SlotId((self.front + ahead) % self.slots)
    }

    fn advance(&mut self) {
        self.front = (self.front + 1) % self.slots;
        self.left = self.left.saturating_sub(1);
        self.left_next = self.left_next.saturating_sub(1);
        self.judged = self.judged.saturating_sub(1);
        self.laps += u64::from(self.front == 0);
    }

    fn has_chances(&self) -> bool {
        self.group > 1
    }

    /// The slots of the next group, which count as judged from here on; `None`: enough are.
    pub(super) fn judge(&mut self) -> Option<Vec<SlotId>> {
        if !self.has_chances() || self.judged > self.group {
            return None;
        }
        let from = self.judged;
        self.judged = (from + self.group).min(self.slots);
        Some((from..self.judged).map(|ahead| self.at(ahead)).collect())
    }

    pub(super) fn end_checkpoint(&mut self, ok: bool) {
        self.left = if ok { self.left_next } else { self.left.min(self.left_next) };
    }
}

impl Slots {
    /// Whether slots are given out in circular order.
    #[must_use]
    pub fn appends(&self) -> bool {
        self.circle.is_some()
    }

    /// The slot that is next, with the page that had to go for it. `None`: not now.
    pub(super) fn take_front(&mut self, now: Millis) -> Option<(SlotId, Option<PageId>)> {
        loop {
            let circle = self.circle.as_ref()?;
            let slot = circle.at(0);
            let unjudged = circle.has_chances() && circle.judged == 0;
            let turn = if self.zone_left() == 0 || unjudged { Turn::Wait } else { self.turn_of(slot) };
            if turn == Turn::Wait {
                self.starved = true;
                return None;
            }
            let gone = (turn == Turn::Give).then(|| self.evict_from(slot, now));
            // What is only passed over now may be given out after another checkpoint.
            self.changes += u64::from(turn != Turn::PassForGood);
            let circle = self.circle.as_mut()?;
            circle.advance();
            if let Some(displaced) = gone {
                circle.gave = true;
                return Some((slot, displaced));
            }
        }
    }

    fn zone_left(&self) -> u32 {
        let Some(circle) = &self.circle else { return 0 };
        match self.capturing {
            _ if self.broken.is(Mutation::ZoneIgnored) => circle.slots,
            true => circle.left.min(circle.left_next),
            false => circle.left,
        }
    }

    fn turn_of(&self, slot: SlotId) -> Turn {
        let s = &self.slots[slot.at()];
        let may = s.writable(self.capturing, self.broken);
        match s.state {
            State::Bad => Turn::PassForGood,
            State::Writing => Turn::Wait,
            State::Live | State::Retired if s.moving => Turn::Wait,
            State::Retired if s.readers == 0 => Turn::Wait,
            State::Live if s.dirty && s.readers == 0 && may && self.broken.is(Mutation::AppendedTooSoon) => {
                Turn::Give
            }
            State::Live if s.dirty => {
                if s.stuck {
                    Turn::PassForGood
                } else {
                    Turn::Wait
                }
            }
            State::Free | State::Live if s.readers == 0 && may => Turn::Give,
            _ => Turn::Pass,
        }
    }

    /// Empties the slot, which is free or holds a page that the HDD has, too.
    fn evict_from(&mut self, slot: SlotId, now: Millis) -> Option<PageId> {
        let s = self.slots[slot.at()];
        if s.state != State::Live {
            return None;
        }
        self.unmap(s.page);
        self.policy.removed(s.page, true, now);
        self.release(slot);
        self.counts.evicted += 1;
        Some(s.page)
    }

    /// Whether `page` goes to the SSD, and if so, the next slot. `Err(true)`: no slot can be had for now, but
    /// soon.
    pub(super) fn append(
        &mut self,
        page: PageId,
        cause: Cause,
        now: Millis,
    ) -> Result<(SlotId, Option<PageId>), bool> {
        // An only copy keeps a place here whatever the policy says: without a ring nothing would back its way
        // home.
        let admitted = self.is_only_copy(page)
            || self.policy.consider(page, cause, 1, &mut |_| false, now) == Verdict::AdmitFree;
        if !admitted {
            self.counts.rejected += 1;
            return Err(false);
        }
        let before = self.home(page);
        let Some((slot, displaced)) = self.take_front(now) else {
            // While nothing gets home, and when a whole zone could not be used, waiting leads nowhere.
            let circle = self.circle.as_ref();
            let useless = self.zone_left() == 0 && circle.is_some_and(|c| !c.gave) && self.changes == 0;
            return Err(!(self.home_fails || useless));
        };
        match (displaced, before) {
            (_, pagetier_policy::Home::Ssd) => self.counts.rewritten += 1,
            (Some(_), _) => self.counts.admitted_over += 1,
            (None, _) => self.counts.admitted_free += 1,
        }
        // A page whose own old copy was in the slot has not lost its place.
        Ok((slot, displaced.filter(|gone| *gone != page)))
    }

    // ---- keeping the front free
    // -----------------------------------------------------------------------------

    /// The slots that are to be free next: twice as many as of a zone's victims, since batches want
    /// neighbours.
    fn window(&self) -> impl Iterator<Item = SlotId> + '_ {
        let ahead = |c: &Circle| match c.has_chances() {
            true => c.judged,
            false => (2 * self.params.clean_ahead).min(c.slots),
        };
        self.circle.iter().flat_map(move |c| (0..ahead(c)).map(|n| c.at(n)))
    }

    fn must_go_home(&self, slot: SlotId) -> bool {
        let s = &self.slots[slot.at()];
        s.state == State::Live && s.dirty && !s.backs && !s.moving && !s.stuck && !self.is_going_home(s.page)
    }

    /// The next slots whose pages must be written home first.
    pub(super) fn front_dirty(&self) -> Vec<SlotId> {
        self.window().filter(|slot| self.must_go_home(*slot)).collect()
    }

    /// Whether fewer than half of the next slots could be given out at once.
    fn front_is_blocked(&self) -> bool {
        let ready = self.window().take_while(|slot| self.turn_of(*slot) != Turn::Wait).count();
        ready * 2 < self.window().count()
    }

    pub(super) fn front_wants_write_back(&self) -> bool {
        self.front_is_blocked() && self.window().any(|slot| self.must_go_home(slot))
    }

    /// Whether slots wait at the front for a flush of the HDD only.
    #[must_use]
    pub fn front_wants_hdd_flush(&self) -> bool {
        let waits = |slot: SlotId| self.slots[slot.at()].state == State::Live && self.slots[slot.at()].backs;
        self.front_is_blocked() && self.window().any(waits)
    }

    /// What an appending policy's slots need: the next zone in time, and a flush when the front comes to
    /// slots that wait for one.
    pub(super) fn front_map_work(&mut self, journal_high: bool) -> Option<super::MapWork> {
        let spent = self.zone_left() <= self.params.zone / ZONE_LEFT && self.changes > 0;
        if !self.capturing && self.params.slots > 0 && (journal_high || spent) {
            return Some(super::MapWork::Checkpoint);
        }
        let front = self.circle.as_ref().map(|c| self.slots[c.at(0).at()]);
        if self.starved && front.is_some_and(|s| s.state == State::Retired && s.readers == 0) {
            return Some(super::MapWork::Flush);
        }
        self.starved = false;
        None
    }

    /// Names the next zone: what is being written, and the slots from the front on.
    pub(super) fn name_front_zone(&mut self) {
        let zone = self.params.zone;
        for s in &mut self.slots {
            s.in_next = s.state == State::Writing;
        }
        let writing = self.slots.iter().filter(|s| s.in_next).count() as u32;
        let Some(circle) = &mut self.circle else { return };
        let mut wanted = zone.saturating_sub(writing).max(zone / 2);
        circle.left_next = 0;
        while wanted > 0 && circle.left_next < circle.slots {
            let s = &mut self.slots[circle.at(circle.left_next).at()];
            circle.left_next += 1;
            if s.state != State::Bad {
                s.in_next = true;
                wanted -= 1;
            }
        }
        circle.gave = false;
    }

    /// The only copy in `slot` cannot be read: the front must not wait for it.
    pub(crate) fn cannot_be_read(&mut self, copy: WriteBack) {
        let s = &mut self.slots[copy.slot.at()];
        s.stuck |= s.state == State::Live && s.stamp == copy.stamp;
    }

    /// Whether the HDD takes writes: as long as it does not, no write waits for slots whose pages have to go
    /// there first.
    pub(crate) fn note_home(&mut self, ok: bool) {
        self.home_fails = !ok;
    }

    // ---- what the pool has not been told
    // --------------------------------------------------------------------

    /// A page lost its copy at a moment when the pool could not be told.
    pub(crate) fn note_untold(&mut self, displaced: Option<PageId>) {
        self.untold.extend(displaced);
        if self.untold.len() > UNTOLD_MAX {
            self.untold.pop_front();
        }
    }

    /// A page that lost its copy, and has not got another since.
    pub(crate) fn take_untold(&mut self) -> Option<PageId> {
        loop {
            let page = self.untold.pop_front()?;
            if self.home(page) == pagetier_policy::Home::Hdd {
                return Some(page);
            }
        }
    }
}

/// Displaced pages remembered for the pool; beyond that the oldest are forgotten, which costs its policy
/// precision only.
const UNTOLD_MAX: usize = 1024;
