//! TAC: temperature-aware caching (Canim et al. 2010, as Liu & Salem 2013 restate it in sections 5.4, 6 and
//! 7).
//!
//! The SSD is a write-through cache of the most read pages. Statistics are kept by region, not by page. A
//! region's *temperature* is the saving of its random physical reads from the SSD, R_D - R_S each (the read
//! term of equation 1; a write that also goes to the HDD saves nothing). A page read from the HDD is admitted
//! if a slot is free, or if its region is hotter than that of the coldest page in the zone.
//!
//! A read is O(1), a decision O(log k) in a zone of k slots, a new zone O(slots). Beside the page
//! index it takes 3 bytes per slot, 8 more if it has the pages itself, and some 20 per region ever read.
//!
//! Where the papers are silent:
//!
//! - *A region* is 32 consecutive pages of a space.
//! - *Temperatures* only rise: neither paper says how they age. Reads from either device count, sequential
//!   ones do not (section 5.3).
//! - *A page changed in the pool* keeps its slot, whose content is invalid until the page is written to the
//!   HDD and to that slot. A page without a slot is written to the HDD only: pages are admitted on reads.
//! - *The benefit of a page* that `why` reports and a write budget prices is the page's share of its region's
//!   temperature, a thirty-second.
//! - *Zone*: as for CAC, the k pages of the coldest regions. The admitted page's region must be strictly
//!   hotter.

use super::zoned_slots::ZonedSlots;
use pagetier_policy::{
    Access, Cause, Costs, Location, Millis, PageId, SlotId, SlotPages, SlotPolicy, SlotPolicyParams,
    SlotReport, Usable, Verdict,
};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Pages per region.
const REGION_PAGES: u32 = 32;

/// Temperature-aware caching; see the module's text.
#[derive(Debug)]
pub struct Tac {
    costs: Costs,
    slots: ZonedSlots<()>,
    /// Random physical reads by region.
    reads: FxHashMap<PageId, u64>,
}

impl Tac {
    /// For an empty SSD.
    #[must_use]
    pub fn new(params: &SlotPolicyParams) -> Self {
        Self { costs: params.costs, slots: ZonedSlots::new(params.slots), reads: FxHashMap::default() }
    }

    /// Returns the temperature of the region of `page`, in milliseconds.
    pub fn temperature(&self, page: PageId) -> f64 {
        temperature(&self.reads, &self.costs, page)
    }

    /// The slots, and a function that returns the current temperature of a page.
    fn slots(&mut self) -> (&mut ZonedSlots<()>, impl Fn(PageId, &()) -> f64) {
        let Self { slots, reads, costs } = self;
        (slots, |page, ()| temperature(reads, costs, page))
    }
}

fn temperature(reads: &FxHashMap<PageId, u64>, costs: &Costs, page: PageId) -> f64 {
    let reads = reads.get(&region(page)).copied().unwrap_or(0);
    reads as f64 * costs.read_saving_ms()
}

fn region(page: PageId) -> PageId {
    PageId::new(page.space, page.no / REGION_PAGES)
}

impl SlotPolicy for Tac {
    fn share_pages(&mut self, pages: &Arc<SlotPages>) {
        self.slots.share(pages);
    }

    fn overwritten(&mut self, slot: SlotId) {
        self.slots.vacate(slot);
    }

    fn read(&mut self, page: PageId, from: Option<Location>, access: Access, _now: Millis) {
        // Section 5.3: what a scan reads costs the disk little, so it does not warm a region.
        if from.is_some() && access == Access::Random {
            *self.reads.entry(region(page)).or_default() += 1;
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
        // Pages are admitted as they are read from the HDD; a page that is evicted or cleaned was either
        // admitted then, or not hot enough.
        if cause != Cause::Read {
            return Verdict::Reject;
        }
        if free_slots > 0 {
            return Verdict::AdmitFree;
        }
        // Strictly hotter than the coldest in the zone: pages of equally cold regions would replace each
        // other for ever.
        let temperature = self.temperature(page);
        let (slots, now) = self.slots();
        slots.decide(temperature, now, usable)
    }

    fn inserted(&mut self, page: PageId, slot: SlotId, _now: Millis) {
        self.slots.take(page);
        self.slots.put(slot, page, ());
    }

    fn removed(&mut self, page: PageId, _evicted: bool, _now: Millis) {
        self.slots.take(page);
    }

    fn start_zone(&mut self, k: usize, eligible: Usable<'_>, _now: Millis, out: &mut Vec<SlotId>) {
        let (slots, now) = self.slots();
        slots.start_zone(k, eligible, now, out);
    }

    fn next_victims(&mut self, n: usize, _now: Millis, out: &mut Vec<SlotId>) {
        let (slots, now) = self.slots();
        slots.next_victims(n, now, out);
    }

    fn write_through(&self) -> bool {
        true
    }

    fn admits_on_read(&self) -> bool {
        true
    }

    fn benefit(&self, page: PageId) -> Option<f64> {
        let reads = self.reads.get(&region(page))?;
        Some(*reads as f64 * self.costs.read_saving_ms() / f64::from(REGION_PAGES))
    }

    fn set_costs(&mut self, costs: Costs) {
        let before = std::mem::replace(&mut self.costs, costs);
        let (slots, now) = self.slots();
        slots.reprice(&before, &costs, now);
    }
}

impl SlotReport for Tac {
    fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes() + self.reads.capacity() * (size_of::<(PageId, u64)>() + 1)
    }

    fn validate(&self) -> Result<(), String> {
        self.slots.validate()
    }
}
