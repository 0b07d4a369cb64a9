//! The slots of an SSD that is taken back after a failure (I31).
//!
//! After a failed flush nothing that was written since the last good one need be durable, however it reads.
//! So a version written since then is unproved until it was written again and flushed, and the version before
//! it, in a slot retired since then or on the HDD, is still the durable one.

use super::Slots;
use super::slot::{SlotState, Standing, Stored};
use crate::format::map::Entry;
use crate::protocol::flushes::SsdFlush;
use pagetier_page::{PageId, Stamp};
use pagetier_policy::{Millis, SlotId};

/// A retired slot that waits for its successor's flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Predecessor {
    /// The flush that frees it.
    pub(super) until: SsdFlush,
    pub(super) slot: SlotId,
    /// The flush that makes its own version durable; `None`: none is awaited.
    pub(super) durable_at: Option<SsdFlush>,
    /// The version that replaced it. Another life of the page has other successors.
    pub(super) successor: Stamp,
}

/// A copy to be verified. Held as by a read until [`Slots::end_read`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ToProve {
    pub(crate) slot: SlotId,
    pub(crate) entry: Entry,
    /// No good flush has followed its write.
    pub(crate) unproved: bool,
}

/// What became of a copy that turned out to be damaged or gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fallen {
    /// The slot has another version by now, or none.
    Changed,
    /// The HDD has the same version: the copy was dropped.
    Dropped,
    /// The page has its previous version, which is in another slot or on the HDD.
    Back,
    /// It was durable, so no older version may take its place: reading the page is an error.
    Lost,
}

impl Slots {
    /// The slots that may have to be verified, retired ones included; `completed` is the last good flush.
    pub(crate) fn to_prove(&self) -> impl Iterator<Item = SlotId> + use<> {
        (0..self.params.slots).map(SlotId)
    }

    /// Retired slots whose own versions no flush up to `completed` has covered, sorted.
    pub(crate) fn unproved_predecessors(&self, completed: SsdFlush) -> Vec<SlotId> {
        let unproved = self.retired.iter().filter(|one| one.durable_at > Some(completed));
        let mut slots: Vec<SlotId> = unproved.map(|one| one.slot).collect();
        slots.sort_unstable();
        slots
    }

    /// Holds the version in `slot` to be verified, if it is a copy or the predecessor of one. `unproved`: as
    /// [`Slots::unproved_predecessors`] returned them.
    pub(crate) fn begin_proof(
        &mut self,
        slot: SlotId,
        completed: SsdFlush,
        unproved: &[SlotId],
    ) -> Option<ToProve> {
        if self.hidden {
            return None;
        }
        let (unproved, stored) = match &mut self.slots.get_mut(slot.at())?.state {
            SlotState::Live { stored, .. } => (stored.durable_at > Some(completed), stored),
            // One that waits for no flush is free as soon as its readers are gone.
            SlotState::Retired(stored) if stored.durable_at.is_some() => {
                (unproved.binary_search(&slot).is_ok(), stored)
            }
            _ => return None,
        };
        stored.readers += 1;
        let version = &stored.version;
        let entry = Entry { page: version.page, stamp: version.stamp, clean: !version.is_dirty() };
        Some(ToProve { slot, entry, unproved })
    }

    /// Gives up the version `stamp` of `page` in `slot`, which cannot be read. If no flush up to `completed`
    /// has made it durable, the page falls back to the newest earlier version that is not `bad`, up to the
    /// one that was durable; that is the HDD's if no retired slot has one.
    pub(crate) fn fall_back(
        &mut self,
        (slot, page, stamp): (SlotId, PageId, Stamp),
        completed: SsdFlush,
        bad: &dyn Fn(SlotId, Stamp) -> bool,
        now: Millis,
    ) -> Fallen {
        let here = self.by_page.get(&page) == Some(&slot);
        let Some(found) = self.live(page).copied().filter(|found| here && found.version.stamp == stamp)
        else {
            return Fallen::Changed;
        };
        if !found.version.is_dirty() {
            self.drop_bad_copy(page, slot, now);
            return Fallen::Dropped;
        }
        let mut newer = (stamp, found.durable_at);
        loop {
            if newer.1 <= Some(completed) {
                return Fallen::Lost;
            }
            let Some(at) = self.retired.iter().position(|one| one.successor == newer.0) else { break };
            let one = self.retired[at];
            let Some(stored) = self.slots[one.slot.at()].stored().copied() else { break };
            if !bad(one.slot, stored.version.stamp) {
                self.retired.remove(at);
                self.revive(one, stored, now);
                return Fallen::Back;
            }
            newer = (stored.version.stamp, one.durable_at);
        }
        self.unmap(page);
        self.release(slot);
        self.policy.removed(page, false, now);
        Fallen::Back
    }

    /// Makes the retired version in `one` its page's copy again.
    fn revive(&mut self, one: Predecessor, stored: Stored, now: Millis) {
        let page = stored.version.page;
        if let Some(slot) = self.unmap(page) {
            self.release(slot);
        }
        let mut stored = Stored { durable_at: one.durable_at, ..stored };
        if stored.version.is_dirty() {
            // Retired, it was not told of flushes of the HDD.
            (stored.version.standing, stored.version.perhaps_home) = (Standing::Only, true);
        }
        self.slots[one.slot.at()].state = SlotState::Live { stored, overtaken: false };
        self.by_page.insert(page, one.slot);
        self.policy.inserted(page, one.slot, now);
    }

    /// Notes that every sound version that flush `completed` and earlier ones did not cover was written
    /// again: flush `again` covers it.
    pub fn written_again(&mut self, completed: SsdFlush, again: SsdFlush) {
        let unproved = |durable_at: &mut Option<SsdFlush>| {
            if *durable_at > Some(completed) {
                *durable_at = Some(again);
            }
        };
        for s in &mut self.slots {
            if let Some(stored) = s.stored_mut() {
                unproved(&mut stored.durable_at);
            }
        }
        for one in &mut self.retired {
            one.until = again;
            unproved(&mut one.durable_at);
        }
    }

    /// Takes the slots back into use. Every copy was read, is sound and durable, and is named by a
    /// checkpoint; so the slots whose writes failed are free.
    pub fn proved(&mut self) {
        self.bad = 0;
        for slot in (0..self.params.slots).map(SlotId) {
            let s = &mut self.slots[slot.at()];
            if let Some(stored) = s.stored_mut() {
                // The outcome of a home write that the failure cut short is unknown.
                stored.version.perhaps_home |= stored.version.is_dirty();
            }
            if s.state == SlotState::Bad {
                self.release(slot);
            }
        }
    }
}
