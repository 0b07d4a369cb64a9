//! What CAC and CC save: clock, ageing, sketch, groups, and the records: those of pages on the SSD by slot,
//! then those of the others, the outqueue's oldest first.

use super::{Cac, PageStats, SUBRANGES_MAX};
use crate::saved::{Reader, Writer};
use crate::ssd::groups::Groups;
use crate::{Millis, SlotId};

impl Cac {
    /// See [`SlotPolicy::save`](crate::SlotPolicy::save).
    pub(super) fn write_down(&self, now: Millis, out: &mut Writer<'_>) {
        out.put(self.clock(now).0);
        if let Some(ager) = &self.ager {
            ager.save(out);
        }
        if let Some(sketch) = &self.estimate.sketch {
            sketch.save(out);
        }
        if let Some(groups) = &self.estimate.groups {
            groups.save(self.stats.live().map(|(_, record)| record), out);
        }
        // By slot, as a recovery creates the records: so restoring them reads memory in order.
        out.put(self.stats.by_slot().count() as u64);
        let mut next = 0;
        for (slot, record) in self.stats.by_slot() {
            out.put(slot.0 - next);
            next = slot.0 + 1;
            out.put_page(record.page);
            out.put(self.estimate.dirty.contains(slot));
            record.kept.save(out);
        }
        out.put(self.stats.away().count() as u64);
        for record in self.stats.away() {
            out.put_page(record.page);
            record.kept.save(out);
        }
    }

    /// See [`SlotPolicy::restore`](crate::SlotPolicy::restore).
    pub(super) fn take_over(&mut self, from: &mut Reader<'_>) -> Option<()> {
        // Ages are in tenths of a second, 32 bits of them.
        self.earlier_ms = from.take().filter(|&ms| ms / 100 <= u64::from(u32::MAX))?;
        if let Some(ager) = &mut self.ager {
            ager.restore(from)?;
        }
        if let Some(sketch) = &mut self.estimate.sketch {
            sketch.restore(from)?;
        }
        if let Some(groups) = &mut self.estimate.groups {
            groups.restore(from)?;
        }
        let (step, subranges) = (self.estimate.step, SUBRANGES_MAX);
        let subranges = self.estimate.groups.as_ref().map_or(subranges, Groups::subranges);
        let mut next = 0_u32;
        for _ in 0..from.take()? {
            let slot = SlotId(next.checked_add(from.number()?)?);
            next = slot.0.checked_add(1)?;
            let (page, dirty) = (from.page()?, from.flag()?);
            let saved = PageStats::restored(from, step, subranges)?;
            // The slot may have lost its page: a space that was being dropped at the close is gone.
            let Some(id) = self.stats.in_slot(slot).filter(|&id| self.stats.page(id) == page) else {
                continue;
            };
            self.estimate.replace(&mut self.stats.get_mut(id), saved);
            self.estimate.set_dirty(slot, dirty);
        }
        let count = from.take()?;
        // The outqueue may have become smaller: its oldest pages go.
        let first = count.saturating_sub(self.stats.queued_max() as u64);
        for at in 0..count {
            let page = from.page()?;
            let saved = PageStats::restored(from, step, subranges)?;
            if at < first || self.stats.find(page).is_some() {
                continue;
            }
            let id = self.stats.track(page, PageStats::new(Millis(0)));
            self.estimate.replace(&mut self.stats.get_mut(id), saved);
            self.stats.set_buffered(id, false);
        }
        Some(())
    }
}
