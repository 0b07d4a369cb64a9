//! Copies that are written home from their slots: of the next victims, and of pages that are drained or
//! repaired.

use super::slot::Standing;
use super::{Slots, WriteBack};
use pagetier_page::PageId;
use pagetier_policy::{Millis, SlotId};

impl Slots {
    /// Holds the next dirty victims that are not `kept`, at most `max`, each until [`Slots::end_write_back`].
    pub fn begin_write_back(
        &mut self,
        kept: &dyn Fn(PageId) -> bool,
        max: usize,
        now: Millis,
    ) -> Vec<WriteBack> {
        let mut next = self.next_to_go_home(kept, now);
        next.truncate(max);
        let mut held: Vec<WriteBack> = Vec::with_capacity(next.len());
        for slot in next {
            let page = self.slots[slot.at()].live().map(|stored| stored.version.page);
            // A policy may name a slot twice.
            let named = held.iter().any(|one| one.slot == slot);
            if page.is_some_and(|page| !kept(page)) && !named {
                held.extend(self.hold(slot));
            }
        }
        held
    }

    /// Holds the copy of `page` for a write-back, if it has one without a reader, until
    /// [`Slots::end_write_back`].
    pub fn hold_copy(&mut self, page: PageId) -> Option<WriteBack> {
        let slot = *self.by_page.get(&page)?;
        if self.hidden || self.slots[slot.at()].readers() > 0 {
            return None;
        }
        self.hold(slot)
    }

    /// Holds the copy in `slot` as a read does.
    pub(super) fn hold(&mut self, slot: SlotId) -> Option<WriteBack> {
        let stored = self.slots[slot.at()].live_mut()?;
        stored.readers += 1;
        let (version, durable_at) = (stored.version, stored.durable_at);
        Some(WriteBack { slot, page: version.page, stamp: version.stamp, durable_at })
    }

    /// Ends a write-back. With `ok`, an HDD flush followed it, and the slot is clean if it still holds that
    /// version (I5).
    pub fn end_write_back(&mut self, done: WriteBack, ok: bool) {
        let live = self.slots[done.slot.at()].live_mut();
        if let Some(stored) = live.filter(|stored| ok && stored.version.stamp == done.stamp) {
            stored.version.standing = Standing::Clean;
            self.counts.written_back += 1;
            self.policy.copied_home(done.page, done.slot);
        }
        self.end_read(done.slot);
    }
}
