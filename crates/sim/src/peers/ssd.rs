//! A peer as an SSD policy.

use super::lists::Lists;
use super::order::Uses;
use super::{Admission, Order, Peer};
use pagetier_policy::{
    Access, Cause, Location, Millis, PageId, SlotId, SlotPolicy, SlotReport, Usable, Verdict,
};
use rustc_hash::FxHashMap;

/// A peer's order over the SSD's pages, behind an admission.
#[derive(Debug)]
pub(crate) struct PeerSsd {
    order: Box<dyn Order>,
    admission: Admission,
    slots: FxHashMap<PageId, SlotId>,
    /// Pages offered lately.
    offered: Lists<1>,
    uses: Uses,
    slots_max: usize,
}

impl PeerSsd {
    pub(crate) fn new(peer: Peer, admission: Admission, slots: usize) -> Self {
        Self {
            order: peer.order(slots),
            admission,
            slots: FxHashMap::default(),
            offered: Lists::new(),
            uses: Uses::new(slots),
            slots_max: slots,
        }
    }

    /// Records that the page was offered; returns whether it was before.
    fn offered_before(&mut self, page: PageId) -> bool {
        let before = self.offered.list_of(page).is_some();
        self.offered.put(page, 0);
        self.offered.trim(0, self.slots_max);
        before
    }
}

impl SlotPolicy for PeerSsd {
    fn read(&mut self, page: PageId, from: Option<Location>, _access: Access, _now: Millis) {
        self.uses.add(page);
        // A page without a slot may be in the history of the order, where only its arrival counts.
        if from == Some(Location::Ssd) {
            self.order.used(page);
        }
    }

    fn consider(
        &mut self,
        page: PageId,
        cause: Cause,
        free_slots: usize,
        usable: &mut dyn FnMut(SlotId) -> bool,
        _now: Millis,
    ) -> Verdict {
        // Note the offer even while slots are free: a later one is judged by it.
        let before = self.offered_before(page);
        if free_slots > 0 {
            return Verdict::AdmitFree;
        }
        let admitted = match self.admission {
            Admission::All | Admission::TinyLfu => true,
            Admission::Second => before,
            // A dirty page must be written to one of the devices anyway, so the SSD saves a write of the
            // HDD. A clean page only adds a write.
            Admission::SecondClean => before || cause == Cause::Cleaned,
        };
        if !admitted {
            return Verdict::Reject;
        }
        // The order names a victim before TinyLFU compares. Promotions that the search makes on its way,
        // as in S3-FIFO, stay even if the page is then rejected.
        let slots = &self.slots;
        let Some(victim) = self.order.victim(&mut |page| usable(slots[&page])) else {
            return Verdict::Reject;
        };
        // TinyLFU: a page must have been used more often than the one that it displaces.
        if self.admission == Admission::TinyLfu && self.uses.of(page) <= self.uses.of(victim) {
            return Verdict::Reject;
        }
        Verdict::AdmitOver(self.slots[&victim])
    }

    fn wrote(&mut self, page: PageId, location: Location, _now: Millis) {
        self.uses.add(page);
        if location == Location::Ssd && self.slots.contains_key(&page) {
            self.order.used(page);
        }
    }

    fn inserted(&mut self, page: PageId, slot: SlotId, _now: Millis) {
        // A page written again may get another slot. As an arrival, that would reset it in the order.
        if self.slots.insert(page, slot).is_none() {
            self.order.entered(page);
        }
    }

    fn removed(&mut self, page: PageId, evicted: bool, _now: Millis) {
        if self.slots.remove(&page).is_some() {
            self.order.left(page, evicted);
        }
    }

    fn start_zone(&mut self, _k: usize, _eligible: Usable<'_>, _now: Millis, _out: &mut Vec<SlotId>) {
        // Every slot is a candidate at any time.
    }

    fn next_victims(&mut self, n: usize, _now: Millis, out: &mut Vec<SlotId>) {
        // The walk only looks: the store cleans these slots ahead, and `victim` picks among them later.
        let (slots, most) = (&self.slots, out.len() + n);
        self.order.each(&mut |page| {
            if out.len() < most {
                out.push(slots[&page]);
            }
            out.len() >= most
        });
    }
}

impl SlotReport for PeerSsd {
    fn validate(&self) -> Result<(), String> {
        match (self.order.len(), self.slots.len()) {
            (ordered, held) if ordered == held => Ok(()),
            (ordered, held) => Err(format!("{ordered} pages in order, {held} in slots")),
        }
    }
}
