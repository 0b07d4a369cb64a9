//! Slots with what is kept of their pages, and the zone of those that may go: what an SSD policy is made of
//! that ranks slots and knows no others.

use super::zone::Zone;
use crate::collections::slot_table::SlotTable;
use crate::{Costs, PageId, SlotId, Verdict};

/// The slots, and which of them are candidates. What a page ranks is told by `rank` whenever it is asked for;
/// the lowest goes first.
#[derive(Debug)]
pub(crate) struct ZonedSlots<T> {
    slots: SlotTable<T>,
    zone: Zone,
}

impl<T> ZonedSlots<T> {
    pub(crate) fn new(slots: usize) -> Self {
        Self { slots: SlotTable::new(slots), zone: Zone::new(slots) }
    }

    /// The slot of `page`.
    pub(crate) fn find(&self, page: PageId) -> Option<SlotId> {
        self.slots.find(page)
    }

    /// The slots that hold a page, with what is kept of it.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = (SlotId, PageId, &T)> {
        self.slots.occupied()
    }

    /// Changes what is kept of the page in `slot`, and returns it.
    pub(crate) fn update(&mut self, slot: SlotId, change: impl FnOnce(&mut T), rank: impl FnOnce(&T) -> f64) {
        if let Some(kept) = self.slots.get_mut(slot) {
            change(kept);
            self.zone.update(slot, rank(kept));
        }
    }

    /// Puts `page`, which has no slot any more, into `slot`, whatever was there.
    pub(crate) fn put(&mut self, slot: SlotId, page: PageId, kept: T) {
        self.vacate(slot);
        self.slots.put(slot, page, kept);
    }

    /// Takes `page` out of its slot, if it has one, and returns what was kept of it.
    pub(crate) fn take(&mut self, page: PageId) -> Option<T> {
        self.find(page).and_then(|slot| self.vacate(slot))
    }

    fn vacate(&mut self, slot: SlotId) -> Option<T> {
        self.zone.remove(slot);
        self.slots.take(slot)
    }

    /// Whether a page that ranks `rank_of_page` is admitted, and over which of the candidates that `usable`
    /// accepts.
    pub(crate) fn decide(
        &mut self,
        rank_of_page: f64,
        rank: impl Fn(PageId, &T) -> f64,
        usable: &mut dyn FnMut(SlotId) -> bool,
    ) -> Verdict {
        let Self { slots, zone } = self;
        let slot = zone.decide(rank_of_page, rank_in(slots, rank), usable);
        slot.map_or(Verdict::Reject, Verdict::AdmitOver)
    }

    /// Makes the `k` lowest slots that `eligible` accepts the only candidates, and appends them to `out`.
    pub(crate) fn start_zone(
        &mut self,
        k: usize,
        eligible: &mut dyn FnMut(SlotId) -> bool,
        rank: impl Fn(PageId, &T) -> f64,
        out: &mut Vec<SlotId>,
    ) {
        let occupied = self.slots.occupied().filter(|&(slot, ..)| eligible(slot));
        self.zone.start(k, occupied.map(|(slot, page, kept)| (slot, rank(page, kept))), out);
    }

    /// Appends the up to `n` candidates that rank lowest to `out`.
    pub(crate) fn next_victims(&mut self, n: usize, rank: impl Fn(PageId, &T) -> f64, out: &mut Vec<SlotId>) {
        let Self { slots, zone } = self;
        zone.next_victims(n, rank_in(slots, rank), out);
    }

    /// Costs went from `before` to `after`, and ranks with them.
    pub(crate) fn reprice(&mut self, before: &Costs, after: &Costs, rank: impl Fn(PageId, &T) -> f64) {
        let Self { slots, zone } = self;
        zone.reprice(before, after, rank_in(slots, rank));
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes() + self.zone.memory_bytes()
    }

    /// Recounts slots and zone.
    pub(crate) fn validate(&self) -> Result<(), String> {
        self.slots.validate()?;
        self.zone.validate(|slot| self.slots.page(slot).is_some())
    }
}

/// What a slot ranks; an empty one below all others.
fn rank_in<T>(slots: &SlotTable<T>, rank: impl Fn(PageId, &T) -> f64) -> impl Fn(SlotId) -> f64 {
    move |slot| slots.in_slot(slot).map_or(f64::NEG_INFINITY, |(page, kept)| rank(page, kept))
}
