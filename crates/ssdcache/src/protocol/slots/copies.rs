//! What is asked of the slots when the SSD is drained, failed, proved again or taken out of use.

use super::{Slot, Slots, State, WriteBack};
use crate::format::map::Entry;
use crate::mutation::Mutation;
use pagetier_page::{Lsn, PageId};
use pagetier_policy::{Millis, SlotId};

impl Slots {
    /// Notes that the dirty version on its way into `slot` lacks no change older than `lsn` on the HDD; a
    /// dirty copy that it replaces may lack older ones.
    pub fn note_lsn(&mut self, slot: SlotId, lsn: Lsn) {
        let older = self.by_page.get(&self.slots[slot.at()].page).map(|old| self.slots[old.at()]);
        let older = older.filter(|old| old.dirty).map_or(lsn, |old| old.lsn);
        self.slots[slot.at()].lsn = lsn.min(older);
    }

    /// After a recovery: no copy lacks a change older than `floor` on the HDD.
    pub fn set_lsn_floor(&mut self, floor: Lsn) {
        for slot in &mut self.slots {
            slot.lsn = floor;
        }
    }

    /// The oldest log position from which redo would need records if every copy were lost; `None`: the HDD
    /// has every version.
    #[must_use]
    pub fn oldest_lsn(&self) -> Option<Lsn> {
        self.slots.iter().filter(|s| s.is_only_copy()).map(|s| s.lsn).min()
    }

    /// The pages that have a copy, or one on its way.
    #[must_use]
    pub fn copies(&self) -> Vec<PageId> {
        self.by_page.keys().chain(self.pending.keys()).copied().collect()
    }

    /// The pages whose newest version is on the SSD alone, in order, each with the log position from which
    /// redo would bring it back.
    #[must_use]
    pub fn only_copies(&self) -> Vec<(PageId, Lsn)> {
        let dirty = |s: &Slot| s.state == State::Live && s.dirty;
        let mut pages: Vec<_> = self.slots.iter().filter(|s| dirty(s)).map(|s| (s.page, s.lsn)).collect();
        pages.sort_unstable();
        pages
    }

    /// Whether the newest version of `page` is on the SSD alone.
    #[must_use]
    pub fn is_only_copy(&self, page: PageId) -> bool {
        self.by_page.get(&page).is_some_and(|slot| self.slots[slot.at()].dirty)
    }

    /// The log position from which redo would bring `page` back if its copy were lost.
    #[must_use]
    pub fn lsn_of(&self, page: PageId) -> Lsn {
        self.by_page.get(&page).map_or(Lsn(0), |slot| self.slots[slot.at()].lsn)
    }

    /// From now on reads find nothing here (those of only copies wait), until it is taken back.
    pub fn hide(&mut self, hidden: bool) {
        self.hidden = hidden;
    }

    /// Whether reads find nothing here.
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.hidden
    }

    /// Reads and write-backs that hold a slot.
    #[must_use]
    pub fn readers(&self) -> usize {
        self.slots.iter().map(|s| usize::from(s.readers)).sum()
    }

    /// Holds the copy of `page`, if it has one without a reader, so that it is written home as by a
    /// write-back. Ends with [`Slots::end_write_back`].
    pub fn hold_copy(&mut self, page: PageId) -> Option<WriteBack> {
        let slot = *self.by_page.get(&page)?;
        let s = &mut self.slots[slot.at()];
        (s.readers == 0 && !self.hidden).then(|| {
            s.readers += 1;
            if !self.broken.is(Mutation::DrainedPageDiscarded) {
                self.going_home.push(page);
            }
            WriteBack { slot, page, stamp: s.stamp, durable_at: s.durable_at }
        })
    }

    /// The slot of the copy of `page`, and whether the HDD has that version too.
    #[must_use]
    pub fn copy_of(&self, page: PageId) -> Option<(SlotId, bool)> {
        self.by_page.get(&page).map(|slot| (*slot, !self.slots[slot.at()].dirty))
    }

    /// Holds slot `slot` for a check, if a copy is in it. Ends with [`Slots::end_read`].
    pub fn begin_check(&mut self, slot: SlotId) -> Option<(Entry, bool)> {
        let hidden = self.hidden;
        let s = self.slots.get_mut(slot.at()).filter(|s| s.state == State::Live && !hidden)?;
        s.readers += 1;
        Some((Entry { page: s.page, stamp: s.stamp, clean: !s.dirty }, s.durable_at == 0))
    }

    /// Whether the version in `slot` was covered by flush `completed` or an earlier one.
    #[must_use]
    pub fn is_durable(&self, slot: SlotId, completed: u64) -> bool {
        self.slots[slot.at()].durable_at <= completed
    }

    /// The SSD is used again after a failure: every copy that is left was read and is sound and durable, so
    /// slots that waited for a flush are free, and those that failed a write get another chance. The caller
    /// writes a checkpoint next.
    pub fn proved(&mut self) {
        self.retired.clear();
        self.bad = 0;
        for index in 0..self.params.slots {
            let slot = SlotId(index);
            let s = &mut self.slots[slot.at()];
            s.durable_at = 0;
            // One that is still being read is freed by the end of that.
            if s.state == State::Bad || (s.state == State::Retired && s.readers == 0) {
                self.release(slot);
            }
        }
    }

    /// The clean copy of `page` is given up, whatever is in its slot.
    pub fn drop_clean(&mut self, page: PageId, now: Millis) {
        if let Some(&slot) = self.by_page.get(&page) {
            self.drop_bad_copy(page, slot, now);
        }
    }
}

impl Slot {
    /// A version that the HDD has not, or is not known to have, is in the slot or on its way.
    fn is_only_copy(&self) -> bool {
        self.dirty && matches!(self.state, State::Live | State::Writing | State::Retired)
    }
}
