//! TAC: temperature-aware caching (Canim et al. 2010, as Liu & Salem 2013 restate it in sections 5.4, 6 and 7).
//!
//! The SSD is a write-through cache of the pages read most. Statistics are kept by region, not by page: a region's *temperature* is what its random physical reads
//! would have saved, each R_D - R_S (what equation 1 has for reads; a write saves nothing when it goes to the HDD anyway). A page read from the HDD is
//! admitted if a slot is free, or if its region is hotter than that of the coldest page in the zone.
//!
//! A read is O(1), a decision O(log k) in a zone of k slots, a zone O(slots). 8 bytes per slot, the page index, and some 20 bytes per region ever read.
//!
//! Where the papers are silent:
//!
//! - *A region* is 32 consecutive pages of a space.
//! - *Temperatures* only rise: neither text says how they age. Reads from either device count, sequential ones do not (section 5.3).
//! - *A page changed in the pool* keeps its slot, whose content is void until the page is written: to the HDD and to that slot. A page without a slot is written to
//!   the HDD only: admission is on reading.
//! - *Zone*: as for CAC: the k pages of the coldest regions. The page's region must be strictly hotter.

use crate::page_index::PageIndex;
use crate::zone::Zone;
use crate::{
    Access, CacParams, Cause, Costs, GroupStats, Home, LOOK_MAX, Millis, PageId, SlotId, SsdPolicy, Verdict,
};
use rustc_hash::FxHashMap;

/// Pages of a region.
const REGION_PAGES: u32 = 32;

/// Temperature-aware caching; see the module's text.
#[derive(Debug)]
pub struct Tac {
    costs: Costs,
    slots: Vec<Option<PageId>>,
    index: PageIndex,
    zone: Zone,
    /// Random physical reads by region.
    reads: FxHashMap<PageId, u64>,
}

impl Tac {
    /// With an empty SSD.
    #[must_use]
    pub fn new(params: &CacParams) -> Self {
        Self {
            costs: params.costs,
            slots: vec![None; params.slots],
            index: PageIndex::with_capacity(params.slots),
            zone: Zone::new(params.slots),
            reads: FxHashMap::default(),
        }
    }

    /// The temperature of the region that `page` lies in, in milliseconds.
    #[must_use]
    pub fn temperature(&self, page: PageId) -> f64 {
        temperature(&self.reads, &self.costs, page)
    }

    fn find(&self, page: PageId) -> Option<SlotId> {
        self.index.find(page, |slot| page_of(&self.slots, slot)).map(SlotId)
    }

    fn vacate(&mut self, slot: SlotId) {
        if let Some(page) = self.slots[slot.at()] {
            let slots = &self.slots;
            self.index.remove(page, |slot| page_of(slots, slot));
            self.zone.remove(slot);
            self.slots[slot.at()] = None;
        }
    }

    fn lowest(&mut self, look: usize, accept: impl FnMut(SlotId, f64) -> bool) -> Option<SlotId> {
        let Self { zone, slots, reads, costs, .. } = self;
        let now = |slot: SlotId| slots[slot.at()].map_or(0.0, |page| temperature(reads, costs, page));
        zone.lowest(look, now, accept).map(|(slot, _)| slot)
    }
}

fn temperature(reads: &FxHashMap<PageId, u64>, costs: &Costs, page: PageId) -> f64 {
    let reads = reads.get(&region(page)).copied().unwrap_or(0);
    reads as f64 * (costs.hdd_read_ms - costs.ssd_read_ms)
}

fn region(page: PageId) -> PageId {
    PageId::new(page.space, page.no / REGION_PAGES)
}

/// The page in a slot that the index knows, and that therefore has one.
fn page_of(slots: &[Option<PageId>], slot: u32) -> PageId {
    slots[slot as usize].unwrap_or_default()
}

impl SsdPolicy for Tac {
    fn name(&self) -> &'static str {
        "tac"
    }

    fn read(&mut self, page: PageId, from: Option<Home>, access: Access, _now: Millis) {
        if from.is_some() && access == Access::Random {
            *self.reads.entry(region(page)).or_default() += 1;
        }
    }

    fn logical(&mut self, _page: PageId, _n: u32, _home: Home, _now: Millis) {}

    fn consider(
        &mut self,
        page: PageId,
        cause: Cause,
        free_slots: usize,
        usable: &mut dyn FnMut(SlotId) -> bool,
        _now: Millis,
    ) -> Verdict {
        if cause != Cause::Read {
            return Verdict::Reject;
        }
        if free_slots > 0 {
            return Verdict::AdmitFree;
        }
        self.zone.note_decision();
        let temperature = self.temperature(page);
        let mut found = None;
        self.lowest(LOOK_MAX, |slot, coldest| {
            // In ascending order: once one is too hot, so are the rest.
            if coldest < temperature && usable(slot) {
                found = Some(slot);
            }
            found.is_some() || coldest >= temperature
        });
        found.map_or(Verdict::Reject, Verdict::AdmitOver)
    }

    fn wrote(&mut self, _page: PageId, _home: Home, _now: Millis) {}

    fn inserted(&mut self, page: PageId, slot: SlotId, _now: Millis) {
        if slot.at() >= self.slots.len() {
            self.slots.resize(slot.at() + 1, None);
        }
        if let Some(before) = self.find(page) {
            self.vacate(before);
        }
        self.vacate(slot);
        self.slots[slot.at()] = Some(page);
        let slots = &self.slots;
        self.index.insert(page, slot.0, |slot| page_of(slots, slot));
    }

    fn removed(&mut self, page: PageId, _evicted: bool, _now: Millis) {
        if let Some(slot) = self.find(page) {
            self.vacate(slot);
        }
    }

    fn left_pool(&mut self, _page: PageId, _now: Millis) {}

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
        let Self { slots, zone, reads, costs, .. } = self;
        let occupied = slots.iter().enumerate().filter_map(|(at, page)| Some((SlotId(at as u32), (*page)?)));
        let candidates = occupied.filter(|&(slot, _)| eligible(slot));
        zone.start(k, candidates.map(|(slot, page)| (slot, temperature(reads, costs, page))), out);
    }

    fn next_victims(&mut self, n: usize, _now: Millis, out: &mut Vec<SlotId>) {
        if n > 0 {
            self.lowest(n, |slot, _| {
                out.push(slot);
                false
            });
        }
    }

    fn write_through(&self) -> bool {
        true
    }

    fn admits_on_read(&self) -> bool {
        true
    }

    fn benefit(&self, page: PageId) -> Option<f64> {
        self.reads.contains_key(&region(page)).then(|| self.temperature(page))
    }

    fn groups(&self) -> Vec<GroupStats> {
        Vec::new()
    }

    fn set_costs(&mut self, costs: Costs) {
        let before = std::mem::replace(&mut self.costs, costs);
        let Self { slots, zone, reads, costs, .. } = self;
        zone.scale_ceiling(
            (costs.hdd_read_ms - costs.ssd_read_ms) / (before.hdd_read_ms - before.ssd_read_ms),
        );
        zone.refresh(|slot| slots[slot.at()].map_or(0.0, |page| temperature(reads, costs, page)));
    }

    fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Option<PageId>>()
            + self.index.memory_bytes()
            + self.zone.memory_bytes()
            + self.reads.capacity() * (size_of::<(PageId, u64)>() + 1)
    }

    fn validate(&self) -> Result<(), String> {
        self.zone.validate()?;
        let occupied = self.slots.iter().flatten().count();
        let lost = (0..self.slots.len() as u32)
            .map(SlotId)
            .find(|slot| self.slots[slot.at()].is_some_and(|page| self.find(page) != Some(*slot)));
        let empty = self.zone.slots().find(|slot| self.slots[slot.at()].is_none());
        if occupied != self.index.len() || lost.is_some() || empty.is_some() {
            return Err(format!(
                "{occupied} slots, {} in the index; lost {lost:?}, empty candidate {empty:?}",
                self.index.len()
            ));
        }
        Ok(())
    }
}
