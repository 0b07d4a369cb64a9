//! Queries and changes of copies for when the SSD is drained, checked or taken out of use.

use super::Slots;
#[cfg(test)]
use super::slot::Phase;
use super::slot::Slot;
use crate::format::map::Entry;
use crate::protocol::flushes::SsdFlush;
use pagetier_page::{Lsn, PageId, SpaceId};
use pagetier_policy::SlotId;
use std::ops::Range;

impl Slots {
    /// Notes that the HDD has every change older than `lsn` of the dirty version on its way into `slot`,
    /// except for those in a dirty copy that it replaces.
    pub fn note_lsn(&mut self, slot: SlotId, lsn: Lsn) {
        let Some(page) = self.slots.get(slot).version().map(|version| version.page) else { return };
        let older = self.live(page).filter(Slot::is_dirty);
        let lsn = older.map_or(lsn, |older| older.lsn.min(lsn));
        if let Some(version) = self.slots.edit(slot).version_mut() {
            version.lsn = lsn;
        }
        self.note_captured(lsn);
    }

    /// Notes, after a recovery, that the HDD has every change older than `floor` of every copy.
    pub fn set_lsn_floor(&mut self, floor: Lsn) {
        for slot in self.slots.ids() {
            if let Some(version) = self.slots.edit(slot).version_mut() {
                version.lsn = floor;
            }
        }
    }

    /// The oldest log position that redo would need if every copy were lost; `None`: the HDD has every
    /// version.
    pub fn oldest_lsn(&self) -> Option<Lsn> {
        self.slots.iter().filter_map(|s| s.version()).filter(|v| v.is_dirty()).map(|v| v.lsn).min()
    }

    /// The pages that have a copy, or one on its way.
    pub fn copies(&self) -> Vec<PageId> {
        self.mapped().chain(self.pending.keys().copied()).collect()
    }

    /// The pages with copies in `slots`, which need not all exist.
    pub fn copies_in(&self, slots: Range<u32>) -> impl Iterator<Item = PageId> + '_ {
        slots.filter_map(move |slot| self.slots.find(SlotId(slot))?.live()).map(|slot| slot.page)
    }

    fn dirty(&self) -> impl Iterator<Item = Slot> {
        self.slots.iter().filter_map(|s| s.live()).filter(|s| s.is_dirty())
    }

    /// The number of copies that are newer than the HDD's version.
    pub fn dirty_pages(&self) -> usize {
        self.dirty().count()
    }

    /// The pages whose newest version is on the SSD alone, in order, each with the log position from which
    /// redo would bring it back.
    pub fn only_copies(&self) -> Vec<(PageId, Lsn)> {
        let mut pages: Vec<_> = self.dirty().map(|version| (version.page, version.lsn)).collect();
        pages.sort_unstable();
        pages
    }

    /// Whether the newest version of each of `pages` is certainly on the SSD alone. The HDD may also have a
    /// version that a recovery found, since no checkpoint may have recorded its write-back.
    pub fn are_only_copies(&self, pages: &[(PageId, Lsn)]) -> bool {
        let known = |stored: Slot| stored.is_dirty() && !stored.perhaps_home;
        pages.iter().all(|(page, _)| self.live(*page).is_some_and(known))
    }

    /// Whether the newest version of `page` is on the SSD alone.
    pub fn is_only_copy(&self, page: PageId) -> bool {
        self.live(page).is_some_and(|stored| stored.is_dirty())
    }

    /// The log position from which redo would bring `page` back if its copy were lost.
    pub fn lsn_of(&self, page: PageId) -> Lsn {
        self.live(page).map_or(Lsn(0), |stored| stored.lsn)
    }

    /// The highest page number of `space` that has a copy.
    pub fn highest_page(&self, space: SpaceId) -> Option<u32> {
        self.mapped().filter(|p| p.space == space).map(|p| p.no).max()
    }

    /// Hides the slots from reads or reveals them. While they are hidden, reads go to the HDD, and those of
    /// only copies wait.
    pub fn hide(&mut self, hidden: bool) {
        self.hidden = hidden;
    }

    /// Whether the slots are hidden from reads.
    pub fn is_hidden(&self) -> bool {
        self.hidden
    }

    /// The number of reads and write-backs that hold a slot.
    pub fn readers(&self) -> usize {
        self.slots.iter().map(|s| usize::from(s.readers())).sum()
    }

    /// The slot of the copy of `page`, and whether it is clean.
    pub fn copy_of(&self, page: PageId) -> Option<(SlotId, bool)> {
        let slot = self.slot_of(page)?;
        self.slots.get(slot).live().map(|stored| (slot, !stored.is_dirty()))
    }

    /// Holds `slot` for a check, if it holds a copy, until [`Slots::end_read`].
    pub fn begin_check(&mut self, slot: SlotId) -> Option<Entry> {
        let stored = self.slots.find(slot)?.live().filter(|_| !self.hidden)?;
        self.slots.edit(slot).readers += 1;
        Some(Entry { page: stored.page, stamp: stored.stamp, clean: !stored.is_dirty() })
    }

    /// Whether the version in `slot` was covered by flush `completed` or an earlier one.
    pub fn is_durable(&self, slot: SlotId, completed: SsdFlush) -> bool {
        self.slots.get(slot).stored().is_none_or(|stored| stored.durable_at <= completed)
    }

    /// The number of slots that are not used again before the next open.
    #[cfg(test)]
    pub fn count_bad(&self) -> usize {
        self.slots.iter().filter(|slot| slot.phase == Phase::Bad).count()
    }
}
