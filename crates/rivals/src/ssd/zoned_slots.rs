//! Slots with per-page state, and the zone of eviction candidates: the base of an SSD policy that ranks slots
//! and keeps no state of pages without a slot.

use super::slot_table::SlotTable;
use pagetier_policy::ssd::Zone;
use pagetier_policy::{Costs, PageId, SlotId, SlotPages, Verdict};
use std::sync::Arc;

/// The slots, and the candidates among them. The caller passes `rank` to each method that needs it; the
/// lowest rank is evicted first.
#[derive(Debug)]
pub(crate) struct ZonedSlots<T> {
    slots: SlotTable<T>,
    zone: Zone,
}

impl<T: Copy + Default> ZonedSlots<T> {
    pub(crate) fn new(slots: usize) -> Self {
        Self { slots: SlotTable::new(slots), zone: Zone::empty() }
    }

    /// See [`SlotTable::share`].
    pub(crate) fn share(&mut self, pages: &Arc<SlotPages>) {
        self.slots.share(pages);
    }

    /// The slot of `page`.
    pub(crate) fn find(&self, page: PageId) -> Option<SlotId> {
        self.slots.find(page)
    }

    /// The slots that hold a page, with its state.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = (SlotId, PageId, &T)> {
        self.slots.occupied()
    }

    /// Changes the state of the page in `slot`, and updates its rank in the zone.
    pub(crate) fn update(&mut self, slot: SlotId, change: impl FnOnce(&mut T), rank: impl FnOnce(&T) -> f64) {
        if let Some(kept) = self.slots.get_mut(slot) {
            change(kept);
            self.zone.update(slot, rank(kept));
        }
    }

    /// Puts `page`, which has no slot, into `slot`, and drops the page that was there.
    pub(crate) fn put(&mut self, slot: SlotId, page: PageId, kept: T) {
        // The store overwrites a slot without a call for its former page.
        self.vacate(slot);
        self.slots.put(slot, page, kept);
    }

    /// Takes `page` out of its slot, if it has one, and returns its state.
    pub(crate) fn take(&mut self, page: PageId) -> Option<T> {
        self.find(page).and_then(|slot| self.vacate(slot))
    }

    /// Empties `slot`, and returns its page's state.
    pub(crate) fn vacate(&mut self, slot: SlotId) -> Option<T> {
        // First the zone, whose candidates all hold a page.
        self.zone.remove(slot);
        self.slots.take(slot)
    }

    /// Decides whether a page of rank `rank_of_page` is admitted, and which of the candidates that `usable`
    /// accepts it replaces.
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

    /// Appends up to `n` candidates of lowest rank to `out`.
    pub(crate) fn next_victims(&mut self, n: usize, rank: impl Fn(PageId, &T) -> f64, out: &mut Vec<SlotId>) {
        let Self { slots, zone } = self;
        zone.next_victims(n, rank_in(slots, rank), out);
    }

    /// Adapts the zone to a change of costs, with which ranks change.
    pub(crate) fn reprice(&mut self, before: &Costs, after: &Costs, rank: impl Fn(PageId, &T) -> f64) {
        let Self { slots, zone } = self;
        zone.reprice(before, after, rank_in(slots, rank));
    }

    /// Changes the state of every page, with which all ranks change: no slot is a candidate until the next
    /// zone.
    pub(crate) fn change_all(&mut self, mut change: impl FnMut(&mut T)) {
        self.zone.clear();
        let slots: Vec<SlotId> = self.slots.occupied().map(|(slot, ..)| slot).collect();
        for slot in slots {
            self.slots.get_mut(slot).into_iter().for_each(&mut change);
        }
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

/// Returns a function from a slot to its rank; an empty slot ranks below all others.
fn rank_in<T: Copy + Default>(
    slots: &SlotTable<T>,
    rank: impl Fn(PageId, &T) -> f64,
) -> impl Fn(SlotId) -> f64 {
    move |slot| slots.in_slot(slot).map_or(f64::NEG_INFINITY, |(page, kept)| rank(page, kept))
}
