//! LRU2: the SSD under LRU-2, as Liu & Salem (2013, section 6) have it for comparison; after the lazy cleaning of Do et al. (2011).
//!
//! Every page that is cleaned or leaves the pool clean is admitted, in place of the page whose last but one reference lies furthest back. Write-back; pages are
//! cleaned only when they are evicted; only copies identical to the HDD's are invalidated. Neither cost-based nor anticipatory.
//!
//! A reference is O(1), or O(log k) for a page in the zone of k slots; a decision O(log k); a zone O(slots). 24 bytes per slot, and the page index.
//!
//! Where the paper is silent:
//!
//! - *A reference* is what the SSD sees: the admission, a read from the SSD, a write of a page that is there. An admission of a dirty page is one, not two.
//! - *Pages referenced once* go before all others, by LRU. What is not on the SSD has no history (no retained information).
//! - *Zone*: as for CAC, since the paper measures how often LRU2's map is checkpointed (section 6.5): the k pages that LRU-2 would evict first.

use crate::page_index::PageIndex;
use crate::zone::Zone;
use crate::{
    Access, CacParams, Cause, Costs, GroupStats, Home, LOOK_MAX, Millis, PageId, SlotId, SsdPolicy, Verdict,
};

/// Above every count of references: pages referenced once rank below those referenced twice.
const TWICE: f64 = (1_u64 << 53) as f64;

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    page: PageId,
    /// The number of the last reference; 0 for an empty slot.
    last: u64,
    /// Of the one before; 0 if there was none.
    before: u64,
}

/// LRU-2 over the SSD's slots; see the module's text.
#[derive(Debug)]
pub struct Lru2 {
    slots: Vec<Slot>,
    index: PageIndex,
    zone: Zone,
    references: u64,
    /// The page admitted last, if its write is still to be told of: that is no second reference.
    admitted: Option<PageId>,
}

impl Lru2 {
    /// With an empty SSD.
    #[must_use]
    pub fn new(params: &CacParams) -> Self {
        Self {
            slots: vec![Slot::default(); params.slots],
            index: PageIndex::with_capacity(params.slots),
            zone: Zone::new(params.slots),
            references: 0,
            admitted: None,
        }
    }

    fn find(&self, page: PageId) -> Option<SlotId> {
        self.index.find(page, |slot| self.slots[slot as usize].page).map(SlotId)
    }

    fn reference(&mut self, slot: SlotId) {
        self.references += 1;
        let s = &mut self.slots[slot.at()];
        s.before = s.last;
        s.last = self.references;
        self.zone.update(slot, rank(&self.slots[slot.at()]));
    }

    fn vacate(&mut self, slot: SlotId) -> Slot {
        let page = self.slots[slot.at()].page;
        let slots = &self.slots;
        self.index.remove(page, |slot| slots[slot as usize].page);
        self.zone.remove(slot);
        std::mem::take(&mut self.slots[slot.at()])
    }

    fn lowest(&mut self, look: usize, mut accept: impl FnMut(SlotId) -> bool) -> Option<SlotId> {
        let Self { zone, slots, .. } = self;
        zone.lowest(look, |slot| rank(&slots[slot.at()]), |slot, _| accept(slot)).map(|(slot, _)| slot)
    }
}

/// Sorts as LRU-2 does: by the last but one reference; pages without one before, by their only one.
fn rank(slot: &Slot) -> f64 {
    if slot.before > 0 { slot.before as f64 } else { slot.last as f64 - TWICE }
}

impl SsdPolicy for Lru2 {
    fn name(&self) -> &'static str {
        "lru2"
    }

    fn read(&mut self, page: PageId, from: Option<Home>, _access: Access, _now: Millis) {
        if let Some(slot) = self.find(page).filter(|_| from == Some(Home::Ssd)) {
            self.admitted = None;
            self.reference(slot);
        }
    }

    fn logical(&mut self, _page: PageId, _n: u32, _home: Home, _now: Millis) {}

    fn consider(
        &mut self,
        _page: PageId,
        _cause: Cause,
        free_slots: usize,
        usable: &mut dyn FnMut(SlotId) -> bool,
        _now: Millis,
    ) -> Verdict {
        if free_slots > 0 {
            return Verdict::AdmitFree;
        }
        self.zone.note_decision();
        self.lowest(LOOK_MAX, usable).map_or(Verdict::Reject, Verdict::AdmitOver)
    }

    fn wrote(&mut self, page: PageId, home: Home, _now: Millis) {
        if home == Home::Ssd
            && self.admitted.take() != Some(page)
            && let Some(slot) = self.find(page)
        {
            self.reference(slot);
        }
    }

    fn inserted(&mut self, page: PageId, slot: SlotId, _now: Millis) {
        if slot.at() >= self.slots.len() {
            self.slots.resize(slot.at() + 1, Slot::default());
        }
        let history = self.find(page).map(|before| self.vacate(before));
        if self.slots[slot.at()].last > 0 {
            self.vacate(slot);
        }
        self.slots[slot.at()] = Slot { page, ..history.unwrap_or_default() };
        if history.is_none() {
            self.reference(slot);
            self.admitted = Some(page);
        }
        let slots = &self.slots;
        self.index.insert(page, slot.0, |slot| slots[slot as usize].page);
    }

    fn removed(&mut self, page: PageId, _evicted: bool, _now: Millis) {
        if let Some(slot) = self.find(page) {
            self.vacate(slot);
        }
    }

    fn left_pool(&mut self, page: PageId, _now: Millis) {
        self.admitted.take_if(|admitted| *admitted == page);
    }

    fn forget(&mut self, page: PageId) {
        self.removed(page, false, Millis(0));
    }

    fn start_zone(
        &mut self,
        k: usize,
        eligible: &mut dyn FnMut(SlotId) -> bool,
        _now: Millis,
        out: &mut Vec<SlotId>,
    ) {
        let occupied = self.slots.iter().enumerate().filter(|(_, s)| s.last > 0);
        let candidates =
            occupied.map(|(at, s)| (SlotId(at as u32), rank(s))).filter(|&(slot, _)| eligible(slot));
        self.zone.start(k, candidates, out);
    }

    fn next_victims(&mut self, n: usize, _now: Millis, out: &mut Vec<SlotId>) {
        if n > 0 {
            self.lowest(n, |slot| {
                out.push(slot);
                false
            });
        }
    }

    fn benefit(&self, _page: PageId) -> Option<f64> {
        None
    }

    fn groups(&self) -> Vec<GroupStats> {
        Vec::new()
    }

    fn set_costs(&mut self, _costs: Costs) {}

    fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>() + self.index.memory_bytes() + self.zone.memory_bytes()
    }

    fn validate(&self) -> Result<(), String> {
        self.zone.validate()?;
        let mut occupied = 0;
        for (at, slot) in self.slots.iter().enumerate().filter(|(_, s)| s.last > 0) {
            occupied += 1;
            if self.find(slot.page) != Some(SlotId(at as u32)) || slot.before >= slot.last {
                return Err(format!("slot {at}: {slot:?}"));
            }
        }
        let empty = self.zone.slots().find(|slot| self.slots[slot.at()].last == 0);
        if occupied != self.index.len() || empty.is_some() {
            return Err(format!(
                "{occupied} slots, {} in the index; empty candidate {empty:?}",
                self.index.len()
            ));
        }
        Ok(())
    }
}
