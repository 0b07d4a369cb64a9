//! The pages on the SSD, by slot and by page, each with the policy's state for it.

use pagetier_policy::collections::SlotSet;
use pagetier_policy::{PageId, PageIndex, SlotId, SlotPages};
use std::sync::Arc;

/// Every page has one slot, every slot at most one page. Everything but iteration is O(1).
#[derive(Debug)]
pub(crate) struct SlotTable<T> {
    pages: Pages,
    occupied: SlotSet,
    kept: Vec<T>,
    index: PageIndex,
}

/// By slot, its page.
#[derive(Debug)]
enum Pages {
    Own(Vec<PageId>),
    /// The store's, which has them already.
    Shared(Arc<SlotPages>),
}

impl Pages {
    fn get(&self, slot: SlotId) -> PageId {
        match self {
            Self::Own(pages) => pages.get(slot.at()).copied(),
            Self::Shared(pages) => pages.get(slot),
        }
        .unwrap_or_default()
    }
}

impl<T: Copy + Default> SlotTable<T> {
    /// Creates `slots` empty slots; grows when a higher one is filled.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            pages: Pages::Own(Vec::new()),
            occupied: SlotSet::default(),
            kept: vec![T::default(); slots],
            index: PageIndex::with_capacity(slots),
        }
    }

    /// Reads which page is in a slot from `pages` from now on: those of the store whose slots these are. The
    /// table is empty.
    pub(crate) fn share(&mut self, pages: &Arc<SlotPages>) {
        debug_assert!(self.index.is_empty());
        self.pages = Pages::Shared(Arc::clone(pages));
    }

    /// The slot of `page`.
    pub(crate) fn find(&self, page: PageId) -> Option<SlotId> {
        self.index.find(page, |at| self.pages.get(SlotId(at))).map(SlotId)
    }

    /// The page in `slot`, with its state.
    pub(crate) fn in_slot(&self, slot: SlotId) -> Option<(PageId, &T)> {
        Some((self.page(slot)?, self.kept.get(slot.at())?))
    }

    /// The page in `slot`.
    pub(crate) fn page(&self, slot: SlotId) -> Option<PageId> {
        self.occupied.contains(slot).then(|| self.pages.get(slot))
    }

    /// The state of the page in `slot`.
    pub(crate) fn get(&self, slot: SlotId) -> Option<&T> {
        self.kept.get(slot.at()).filter(|_| self.occupied.contains(slot))
    }

    pub(crate) fn get_mut(&mut self, slot: SlotId) -> Option<&mut T> {
        self.kept.get_mut(slot.at()).filter(|_| self.occupied.contains(slot))
    }

    /// Puts `page`, which has no slot, into `slot`, which is empty.
    pub(crate) fn put(&mut self, slot: SlotId, page: PageId, kept: T) {
        debug_assert!(self.find(page).is_none() && self.page(slot).is_none());
        // The SSD may have grown since the policy was built.
        let need = (slot.at() + 1).max(self.kept.len());
        self.kept.resize(need, T::default());
        self.kept[slot.at()] = kept;
        match &mut self.pages {
            Pages::Own(pages) => {
                // All at once: the slots are filled in any order.
                pages.resize(need, PageId::default());
                pages[slot.at()] = page;
            }
            Pages::Shared(pages) => debug_assert_eq!(pages.get(slot), Some(page)),
        }
        self.occupied.set(slot, true);
        let pages = &self.pages;
        self.index.insert(page, slot.0, |at| pages.get(SlotId(at)));
    }

    /// Empties `slot`, and returns its page's state.
    pub(crate) fn take(&mut self, slot: SlotId) -> Option<T> {
        let page = self.page(slot)?;
        let pages = &self.pages;
        self.index.remove(page, |at| pages.get(SlotId(at)));
        self.occupied.set(slot, false);
        self.kept.get(slot.at()).copied()
    }

    /// The slots that hold a page, with its state.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = (SlotId, PageId, &T)> {
        let slots = (0..self.kept.len() as u32).map(SlotId);
        slots.filter_map(|slot| self.in_slot(slot).map(|(page, kept)| (slot, page, kept)))
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let pages = if let Pages::Own(pages) = &self.pages { pages.capacity() } else { 0 };
        pages * size_of::<PageId>()
            + self.occupied.memory_bytes()
            + self.kept.capacity() * size_of::<T>()
            + self.index.memory_bytes()
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
