//! The slots of a policy that appends: given out strictly in circular order, so that all writes to the SSD
//! are sequential.
//!
//! The *front* is the slot given out next, the one written longest ago. An obsolete version keeps its slot
//! until the front reaches it. A clean version is then evicted; a dirty one stops the front until it has been
//! written home. The front skips slots that are bad, being read, or kept for a discarded page. A checkpoint's
//! zone consists of the next slots from the front on, regardless of their contents, so only the front's
//! position decides what may be written.
//!
//! Where pages get second chances, the front does not pass the slots that were judged (`second_chance`).

use super::{Alloc, Grant};
use crate::protocol::slots::slot::{Phase, Standing};
use crate::protocol::slots::types::{MapWork, NoSlot, WriteBack};
use crate::protocol::slots::{Slot, Slots};
use pagetier_page::PageId;
use pagetier_policy::{Cause, Location, Millis, SlotId, Verdict};

/// A group is at most the zone divided by this: pages that get a second chance need slots that were judged
/// before theirs.
const GROUPS_PER_ZONE: usize = 4;

/// A checkpoint is due when at most the zone divided by this is left, so that writers do not run out of slots
/// while it is written.
const ZONE_LEFT: u32 = 2;

/// The position of the front, and how far it may advance.
#[derive(Debug, Default)]
pub(in crate::protocol::slots) struct Circle {
    front: u32,
    slots: u32,
    /// Slots from the front on that are in the zone of the durable checkpoint.
    left: u32,
    /// Slots from the front on that are in the zone of the checkpoint being written.
    left_next: u32,
    /// With second chances: slots from the front on that were judged.
    judged: u32,
    /// Slots judged at a time; 1: there are no second chances.
    group: u32,
    /// Whether a slot of the current zone was given out.
    gave: bool,
    /// Whether write-backs fail.
    pub(super) home_fails: bool,
    /// The number of times that the front has wrapped around.
    #[cfg_attr(not(feature = "probes"), allow(dead_code, reason = "for the simulator's coverage"))]
    pub(super) laps: u64,
}

/// The decision about the slot at the front.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    Give,
    /// Skip it; the next decision about it may differ.
    Pass,
    /// Skip it for good: it is bad, or holds an only copy that cannot be read.
    PassForGood,
    Wait,
}

impl Circle {
    /// A circle of empty slots, of which `group` are judged at a time.
    pub(super) fn new(group: usize, zone: u32, slots: u32) -> Self {
        let group = group.min(zone as usize / GROUPS_PER_ZONE).max(1) as u32;
        Self { slots, group, ..Self::default() }
    }

    /// Continues after a recovery behind `newest`, the slot written last.
    pub(super) fn continue_after(&mut self, newest: Option<SlotId>) {
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

    /// Takes the slots of the next group, which count as judged from here on; `None`: enough slots are
    /// judged.
    pub(in crate::protocol::slots) fn judge(&mut self) -> Option<Vec<SlotId>> {
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
    fn circle(&self) -> Option<&Circle> {
        if let Alloc::Circle(circle) = &self.alloc { Some(circle) } else { None }
    }

    pub(in crate::protocol::slots) fn circle_mut(&mut self) -> Option<&mut Circle> {
        if let Alloc::Circle(circle) = &mut self.alloc { Some(circle) } else { None }
    }

    /// Takes the slot at the front, with the page displaced for it. `None`: not possible at present.
    pub(in crate::protocol::slots) fn take_front(&mut self, now: Millis) -> Option<Grant> {
        loop {
            let circle = self.circle()?;
            let slot = circle.at(0);
            let unjudged = circle.has_chances() && circle.judged == 0;
            let turn = if self.zone_left() == 0 || unjudged { Turn::Wait } else { self.turn_of(slot) };
            if turn == Turn::Wait {
                self.starved = true;
                return None;
            }
            // The slot is free or holds a clean copy.
            let gone = (turn == Turn::Give).then(|| self.evict(slot, now));
            // A slot that is only skipped may be given out after another checkpoint.
            self.changes += u64::from(turn != Turn::PassForGood);
            let circle = self.circle_mut()?;
            circle.advance();
            if let Some(displaced) = gone {
                circle.gave = true;
                return Some((slot, displaced));
            }
        }
    }

    fn zone_left(&self) -> u32 {
        let Some(circle) = self.circle() else { return 0 };
        if self.capturing { circle.left.min(circle.left_next) } else { circle.left }
    }

    fn turn_of(&self, slot: SlotId) -> Turn {
        let may = self.is_writable(slot);
        let s = self.slot(slot);
        match s.phase {
            Phase::Bad => Turn::PassForGood,
            Phase::Writing { .. } => Turn::Wait,
            Phase::Free if may => Turn::Give,
            Phase::Free => Turn::Pass,
            Phase::Live { .. } | Phase::Retired if s.moving => Turn::Wait,
            // A flush frees it soon. A slot that is being read may stay so for long, so that one is passed
            // over.
            Phase::Retired if s.readers == 0 => Turn::Wait,
            Phase::Retired => Turn::Pass,
            Phase::Live { .. } => turn_of_live(&s, may),
        }
    }

    /// The slot at the front for `page`, if the policy admits the page.
    pub(super) fn append(&mut self, page: PageId, cause: Cause, now: Millis) -> Result<Grant, NoSlot> {
        // A page with an only copy stays regardless of the policy: without a ring nothing would back its home
        // write.
        let admitted = self.is_only_copy(page)
            || self.policy.consider(page, cause, 1, &mut |_| false, now) == Verdict::AdmitFree;
        if !admitted {
            self.counts.rejected += 1;
            return Err(NoSlot::Never);
        }
        let before = self.location(page);
        let Some((slot, displaced)) = self.take_front(now) else {
            // Waiting is futile while home writes fail, and after a zone none of whose slots could be given
            // out.
            let circle = self.circle();
            let useless = self.zone_left() == 0 && circle.is_some_and(|c| !c.gave) && self.changes == 0;
            let fails = circle.is_some_and(|c| c.home_fails);
            return Err(if fails || useless { NoSlot::Never } else { NoSlot::Soon });
        };
        match (displaced, before) {
            (_, Location::Ssd) => self.counts.rewritten += 1,
            (Some(_), _) => self.counts.admitted_over += 1,
            (None, _) => self.counts.admitted_free += 1,
        }
        // A page whose own old copy was in the slot is not displaced.
        Ok((slot, displaced.filter(|gone| *gone != page)))
    }

    // ---- keeping the front free

    /// The slots to free next: twice as many as a zone's victims, since batches need adjacent slots.
    fn window(&self) -> impl Iterator<Item = SlotId> + '_ {
        let ahead = |c: &Circle| match c.has_chances() {
            true => c.judged,
            false => (2 * self.params.clean_ahead).min(c.slots),
        };
        self.circle().into_iter().flat_map(move |c| (0..ahead(c)).map(|n| c.at(n)))
    }

    fn must_go_home(&self, slot: SlotId, kept: &dyn Fn(PageId) -> bool) -> bool {
        self.slot(slot).live().is_some_and(|s| {
            let waits = matches!(s.standing, Standing::Only | Standing::AwaitsFlush);
            waits && !s.moving && !kept(s.page)
        })
    }

    /// The next slots whose pages must be written home first.
    pub(super) fn front_dirty(&self, kept: &dyn Fn(PageId) -> bool) -> Vec<SlotId> {
        self.window().filter(|slot| self.must_go_home(*slot, kept)).collect()
    }

    /// Whether fewer than half of the next slots could be given out at once.
    fn front_is_blocked(&self) -> bool {
        let ready = self.window().take_while(|slot| self.turn_of(*slot) != Turn::Wait).count();
        ready * 2 < self.window().count()
    }

    pub(super) fn front_wants_write_back(&self, kept: &dyn Fn(PageId) -> bool) -> bool {
        self.front_is_blocked() && self.window().any(|slot| self.must_go_home(slot, kept))
    }

    /// Whether slots at the front, those of `backed` pages, wait only for a flush of the HDD.
    pub(crate) fn front_wants_hdd_flush(&self, backed: &dyn Fn(PageId) -> bool) -> bool {
        let waits = |slot: SlotId| self.slot(slot).live().is_some_and(|s| backed(s.page));
        self.front_is_blocked() && self.window().any(waits)
    }

    /// The work due: a checkpoint before the zone is used up, or a flush when the front has reached a slot
    /// that waits for one.
    pub(super) fn front_map_work(&mut self, journal_high: bool) -> Option<MapWork> {
        let spent = self.zone_left() <= self.params.zone / ZONE_LEFT && self.changes > 0;
        if !self.capturing && self.params.slots > 0 && (journal_high || spent) {
            return Some(MapWork::Checkpoint);
        }
        let front = self.circle().map(|c| self.slot(c.at(0)));
        if self.starved && front.is_some_and(|s| s.is_retired() && s.readers() == 0) {
            return Some(MapWork::Flush);
        }
        self.starved = false;
        None
    }

    /// Names the zone: the slots being written, and the slots from the front on.
    pub(super) fn name_front_zone(&mut self) {
        let zone = self.params.zone;
        let writing = self.slots.unsettled().filter(|slot| self.slots.get(*slot).is_writing());
        let writing: Vec<SlotId> = writing.collect();
        self.slots.begin_next_zone(&writing);
        let Alloc::Circle(circle) = &mut self.alloc else { return };
        // However many writes are in flight, the front must be able to advance.
        let mut wanted = zone.saturating_sub(writing.len() as u32).max(zone / 2);
        circle.left_next = 0;
        while wanted > 0 && circle.left_next < circle.slots {
            let slot = circle.at(circle.left_next);
            circle.left_next += 1;
            if !self.slots.is_bad(slot) {
                self.slots.put_in_next_zone(slot);
                wanted -= 1;
            }
        }
        circle.gave = false;
    }

    /// Notes that the only copy in the slot cannot be read: the front must not wait for it.
    pub(crate) fn cannot_be_read(&mut self, copy: WriteBack) {
        let mut slot = self.slots.edit(copy.slot);
        if let Some(stored) = slot.live_mut().filter(|s| s.stamp == copy.stamp && s.is_only()) {
            stored.standing = Standing::Stuck;
        }
    }
}

fn turn_of_live(stored: &Slot, may: bool) -> Turn {
    let free = stored.readers == 0 && may;
    match stored.standing {
        Standing::Clean if free => Turn::Give,
        Standing::Clean => Turn::Pass,
        Standing::Stuck => Turn::PassForGood,
        Standing::Only | Standing::AwaitsFlush => Turn::Wait,
    }
}
