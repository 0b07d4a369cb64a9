//! The slot of each page that has a copy.
//!
//! It stores slot numbers alone, since each slot names its page: a page stays in its slot for as long as the
//! map names that slot for it. It takes 8 bytes a slot, and none of them is touched before a page comes.

use super::table::SlotTable;
use pagetier_page::PageId;
use pagetier_policy::{PageIndex, SlotId};

#[derive(Debug)]
pub(super) struct PageMap(PageIndex);

impl PageMap {
    /// A map for at most `slots` pages.
    pub(super) fn new(slots: u32) -> Self {
        Self(PageIndex::with_capacity(slots as usize))
    }

    pub(super) fn get(&self, slots: &SlotTable, page: PageId) -> Option<SlotId> {
        self.0.find(page, |slot| page_in(slots, slot)).map(SlotId)
    }

    /// Names `slot`, which holds `page`, as the page's. Returns the slot named before.
    pub(super) fn insert(&mut self, slots: &SlotTable, page: PageId, slot: SlotId) -> Option<SlotId> {
        debug_assert_eq!(page_in(slots, slot.0), page);
        let before = self.remove(slots, page);
        self.0.insert(page, slot.0, |slot| page_in(slots, slot));
        before
    }

    pub(super) fn remove(&mut self, slots: &SlotTable, page: PageId) -> Option<SlotId> {
        let slot = self.get(slots, page)?;
        self.0.remove(page, |slot| page_in(slots, slot));
        Some(slot)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }
}

fn page_in(slots: &SlotTable, slot: u32) -> PageId {
    slots.page(SlotId(slot))
}
