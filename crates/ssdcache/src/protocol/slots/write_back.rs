//! Copies that go home from their slots: the next victims, and those that are drained or healed.

use super::slot::Standing;
use super::{Slots, WriteBack};
use crate::mutation::Mutation;
use pagetier_page::{PageId, SpaceId};
use pagetier_policy::{Millis, SlotId};

impl Slots {
    /// Whether a write-back is due: fewer than half of the next victims could be given up at once.
    pub fn next_victims_are_dirty(&mut self, now: Millis) -> bool {
        self.wants_write_back(now)
    }

    /// The next victims that are dirty, at most `max`; each is held until [`Slots::end_write_back`].
    pub fn begin_write_back(&mut self, max: usize, now: Millis) -> Vec<WriteBack> {
        let mut next = self.next_to_go_home(now);
        next.truncate(max);
        let mut held = Vec::with_capacity(next.len());
        for slot in next {
            let page = self.slots[slot.at()].live().map(|stored| stored.version.page);
            // A policy may name a slot twice.
            if page.is_some_and(|page| !self.is_going_home(page)) {
                held.extend(self.hold(slot));
                self.going_home.extend(page);
            }
        }
        held
    }

    /// Holds the copy of `page`, if it has one without a reader, so that it is written home as by a
    /// write-back. Ends with [`Slots::end_write_back`].
    pub fn hold_copy(&mut self, page: PageId) -> Option<WriteBack> {
        let slot = *self.by_page.get(&page)?;
        if self.hidden || self.slots[slot.at()].readers() > 0 {
            return None;
        }
        if !self.broken.is(Mutation::DrainedPageDiscarded) {
            self.going_home.push(page);
        }
        self.hold(slot)
    }

    /// Holds the copy in `slot` like a read.
    pub(super) fn hold(&mut self, slot: SlotId) -> Option<WriteBack> {
        let stored = self.slots[slot.at()].live_mut()?;
        stored.readers += 1;
        let (version, durable_at) = (stored.version, stored.durable_at);
        Some(WriteBack { slot, page: version.page, stamp: version.stamp, durable_at })
    }

    /// The write-back is over; when `ok`, the HDD was flushed after it, and the slot is clean if it still
    /// holds that version.
    pub fn end_write_back(&mut self, done: WriteBack, ok: bool) {
        self.release_home(done.page);
        let live = self.slots[done.slot.at()].live_mut();
        if let Some(stored) = live.filter(|stored| ok && stored.version.stamp == done.stamp) {
            stored.version.standing = Standing::Clean;
            self.counts.written_back += 1;
            self.policy.copied_home(done.page, done.slot);
        }
        self.end_read(done.slot);
    }

    /// Whether a write-back of `page` is under way. It must not lose its copy then: a crash might leave its
    /// home torn, and nothing to mend it.
    #[must_use]
    pub fn is_going_home(&self, page: PageId) -> bool {
        self.going_home.contains(&page)
    }

    /// The home of `page` is being written from elsewhere: as for a write-back.
    pub(crate) fn hold_home(&mut self, page: PageId) {
        self.going_home.push(page);
    }

    /// That is over.
    pub(crate) fn release_home(&mut self, page: PageId) {
        if let Some(at) = self.going_home.iter().position(|other| *other == page) {
            self.going_home.swap_remove(at);
        }
    }

    /// The pages of `space` whose write-back is under way.
    pub(crate) fn going_home_of(&self, space: SpaceId) -> Vec<PageId> {
        self.going_home.iter().copied().filter(|page| page.space == space).collect()
    }
}
