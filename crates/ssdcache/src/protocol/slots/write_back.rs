//! Copies that are written home from their slots: of the next victims, and of pages that are drained or
//! repaired.

use super::slot::{Slot, Standing};
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
            let page = self.slots.get(slot).live().map(|stored| stored.page);
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
        let slot = self.slot_of(page)?;
        if self.hidden || self.slots.get(slot).readers() > 0 {
            return None;
        }
        self.hold(slot)
    }

    /// Holds the copy in `slot` as a read does.
    pub(super) fn hold(&mut self, slot: SlotId) -> Option<WriteBack> {
        let Slot { page, stamp, durable_at, .. } = self.slots.get(slot).live()?;
        self.slots.edit(slot).readers += 1;
        Some(WriteBack { slot, page, stamp, durable_at })
    }

    /// Ends a write-back. With `ok`, an HDD flush followed it, and the slot is clean if it still holds that
    /// version (I5).
    pub fn end_write_back(&mut self, done: WriteBack, ok: bool) {
        let mut slot = self.slots.edit(done.slot);
        let live = slot.live_mut().filter(|stored| ok && stored.stamp == done.stamp);
        if let Some(stored) = live {
            stored.standing = Standing::Clean;
            self.counts.written_back += 1;
            self.policy.copied_home(done.page, done.slot);
        }
        drop(slot);
        self.end_read(done.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::map::Entry;
    use crate::protocol::slots::SlotParams;
    use pagetier_page::{SpaceId, Stamp};
    use pagetier_policy::{Costs, SlotPolicyParams, SsdPolicy};

    const NOW: Millis = Millis(0);

    #[test]
    fn no_victim_is_written_back_that_is_kept_or_on_its_way() {
        let page = |no| PageId::new(SpaceId(1), no);
        let entry = |no| Entry { page: page(no), stamp: Stamp::from_bits(u64::from(no) + 1), clean: false };
        let full: Vec<_> = (0..8).map(|no| Some(entry(no))).collect();
        let params = SlotParams { slots: 8, zone: 8, reserve: 0, burst: 0, clean_ahead: 2 };
        pagetier_rivals::register();
        for name in ["lru2", "mv-fifo", "doublewrite"] {
            let policy = name.parse::<SsdPolicy>().expect("a policy");
            let policy = policy.build(&SlotPolicyParams::new(Costs::PAPER, 8, 4));
            let mut slots = Slots::new(params, policy, &full, 0);
            slots.begin_checkpoint(NOW);
            slots.end_checkpoint(true);
            let due = |slots: &mut Slots| slots.next_victims_are_dirty(&|_| false, NOW);
            assert!(due(&mut slots), "{name}");
            assert!(slots.begin_write_back(&|_| true, 32, NOW).is_empty(), "{name}: all are kept");
            let batch = slots.begin_write_back(&|_| false, 32, NOW);
            assert!(!batch.is_empty(), "{name}");
            let on_its_way = |page| batch.iter().any(|one| one.page == page);
            assert!(!slots.next_victims_are_dirty(&on_its_way, NOW), "{name}: all of them are on their way");
            batch.into_iter().for_each(|one| slots.end_write_back(one, false));
            assert!(due(&mut slots), "{name}: the write-back failed");
        }
    }
}
