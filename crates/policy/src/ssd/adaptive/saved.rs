//! What the default saves: its clock, the choice of a setting, the ghosts' stretch, and the records: those of
//! pages on the SSD by slot, then those of the others, the outqueue's oldest first.

use super::Adaptive;
use super::retention::Retention;
use super::score::{Seen, TICKS_PER_SLOT};
use crate::SlotId;
use crate::saved::{Reader, Writer};

impl Adaptive {
    /// See [`SlotPolicy::save`](crate::SlotPolicy::save).
    pub(super) fn write_down(&self, out: &mut Writer<'_>) {
        let tick = self.scale().tick;
        out.put(self.accesses);
        self.chooser.save(out);
        self.retention.save(out);
        self.ghosts.save(out);
        // By slot, as a recovery creates the records: so restoring them reads memory in order.
        out.put(self.pages.by_slot().count() as u64);
        let mut next = 0;
        for (slot, record) in self.pages.by_slot() {
            out.put(slot.0 - next);
            next = slot.0 + 1;
            out.put_page(record.page);
            out.put(self.dirty.contains(slot));
            record.kept.save(tick, out);
        }
        out.put(self.pages.away().count() as u64);
        for record in self.pages.away() {
            out.put_page(record.page);
            record.kept.save(tick, out);
        }
    }

    /// See [`SlotPolicy::restore`](crate::SlotPolicy::restore).
    pub(super) fn take_over(&mut self, from: &mut Reader<'_>) -> Option<()> {
        // Ticks have 32 bits.
        let accesses_max = (u64::from(u32::MAX) / u64::from(TICKS_PER_SLOT)).saturating_mul(self.slots);
        self.accesses = from.take().filter(|&accesses| accesses <= accesses_max)?;
        let pin = self.chooser.chosen;
        self.chooser.restore(from)?;
        if self.pinned {
            self.chooser.chosen = pin;
        }
        self.retention = Retention::restored(from)?;
        let same_ghosts = self.ghosts.restore(&mut self.pages, from)?;
        let tick = self.scale().tick;
        let mut next = 0_u32;
        for _ in 0..from.take()? {
            let slot = SlotId(next.checked_add(from.number()?)?);
            next = slot.0.checked_add(1)?;
            let (page, dirty) = (from.page()?, from.flag()?);
            let (seen, held) = Seen::restored(tick, from)?;
            // The slot may have lost its page: a space that was being dropped at the close is gone.
            let Some(id) = self.pages.in_slot(slot).filter(|&id| self.pages.page(id) == page) else {
                continue;
            };
            self.pages.kept_mut(id).take(seen);
            self.dirty.set(slot, dirty);
            if same_ghosts {
                self.ghosts.hold(&mut self.pages, id, held);
            }
        }
        let count = from.take()?;
        // The outqueue may have become smaller: its oldest pages go. It may exceed its capacity by the pages
        // that ghosts hold.
        let most = self.pages.queued_max() + self.ghosts.records_max();
        let first = count.saturating_sub(most as u64);
        for at in 0..count {
            let page = from.page()?;
            let (seen, held) = Seen::restored(tick, from)?;
            if at < first || self.pages.find(page).is_some() {
                continue;
            }
            let id = self.pages.track(page, seen);
            self.pages.set_buffered(id, false);
            if same_ghosts {
                self.ghosts.hold(&mut self.pages, id, held);
            }
        }
        Some(())
    }
}
