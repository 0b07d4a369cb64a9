//! The pages on the SSD, by slot and by page, each with the policy's state for it.

use crate::collections::page_index::PageIndex;
use crate::{PageId, SlotId};

/// Every page has one slot, every slot at most one page. Everything but iteration is O(1).
#[derive(Debug)]
pub(crate) struct SlotTable<T> {
    slots: Vec<Option<(PageId, T)>>,
    index: PageIndex,
}

impl<T> SlotTable<T> {
    /// Creates `slots` empty slots; grows when a higher one is filled.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            slots: std::iter::repeat_with(|| None).take(slots).collect(),
            index: PageIndex::with_capacity(slots),
        }
    }

    /// The slot of `page`.
    pub(crate) fn find(&self, page: PageId) -> Option<SlotId> {
        self.index.find(page, |at| page_at(&self.slots, at)).map(SlotId)
    }

    /// The page in `slot`, with its state.
    pub(crate) fn in_slot(&self, slot: SlotId) -> Option<(PageId, &T)> {
        self.slots.get(slot.at())?.as_ref().map(|(page, kept)| (*page, kept))
    }

    /// The page in `slot`.
    pub(crate) fn page(&self, slot: SlotId) -> Option<PageId> {
        self.slots.get(slot.at())?.as_ref().map(|(page, _)| *page)
    }

    /// The state of the page in `slot`.
    pub(crate) fn get(&self, slot: SlotId) -> Option<&T> {
        self.slots.get(slot.at())?.as_ref().map(|(_, kept)| kept)
    }

    pub(crate) fn get_mut(&mut self, slot: SlotId) -> Option<&mut T> {
        self.slots.get_mut(slot.at())?.as_mut().map(|(_, kept)| kept)
    }

    /// Puts `page`, which has no slot, into `slot`, which is empty.
    pub(crate) fn put(&mut self, slot: SlotId, page: PageId, kept: T) {
        debug_assert!(self.find(page).is_none() && self.page(slot).is_none());
        // The SSD may have grown since the policy was built.
        if slot.at() >= self.slots.len() {
            self.slots.resize_with(slot.at() + 1, || None);
        }
        self.slots[slot.at()] = Some((page, kept));
        let slots = &self.slots;
        self.index.insert(page, slot.0, |at| page_at(slots, at));
    }

    /// Empties `slot`, and returns its page's state.
    pub(crate) fn take(&mut self, slot: SlotId) -> Option<T> {
        let page = self.page(slot)?;
        let slots = &self.slots;
        self.index.remove(page, |at| page_at(slots, at));
        self.slots[slot.at()].take().map(|(_, kept)| kept)
    }

    /// The slots that hold a page, with its state.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = (SlotId, PageId, &T)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(at, slot)| slot.as_ref().map(|(page, kept)| (SlotId(at as u32), *page, kept)))
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Option<(PageId, T)>>() + self.index.memory_bytes()
    }

    /// Checks that slots and index agree.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let occupied = self.occupied().count();
        let lost = self.occupied().find(|&(slot, page, _)| self.find(page) != Some(slot));
        match lost {
            None if occupied == self.index.len() => Ok(()),
            _ => Err(format!(
                "{occupied} slots, {} in the index; lost {:?}",
                self.index.len(),
                lost.map(|(slot, ..)| slot)
            )),
        }
    }
}

/// The page in slot `at`. The index refers only to slots that hold a page.
fn page_at<T>(slots: &[Option<(PageId, T)>], at: u32) -> PageId {
    slots[at as usize].as_ref().map_or_else(PageId::default, |(page, _)| *page)
}
