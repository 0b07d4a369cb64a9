//! The default SSD policy: ranks pages by what a slot would have saved them, summed with the rate of decay
//! that would have cost least recently.
//!
//! - *Worth*: an access that the pool could not serve is worth the HDD's cost of it minus the SSD's. Each
//!   page has one decaying sum of these per half-life (`score`), as LRFU has for one (Lee et al. 2001).
//! - *Settings* (`setting`): the half-life that ranks, and the weight of writes; or a ranking by recency, in
//!   two segments (Karedla, Love & Wherry 1994), with admission at second sight.
//! - *Ghosts* (`ghosts`): what each setting would have cost, on a sample of the pages. They share the
//!   policy's records (`tracked`), because the pool's misses and writes depend little on which pages the SSD
//!   holds.
//! - *Choice* (`choosing`): the cheapest setting recently, unless chance explains its lead. A change moves no
//!   page; it ends the zone.
//!
//! An access takes O(half-lives) and O(log zone), a decision O(log zone). A sampled access takes O(settings)
//! more; a ghost starts a new zone, O(records that ghosts hold), once the last is used up. A record takes
//! 22 bytes, and 16 more if its page is not on the SSD.

mod ghosts;
mod held;
mod listed;
mod score;
mod setting;

use super::tracked::{RecordId, Tracked};
use super::zone::Zone;
use crate::choosing::Chooser;
use crate::numbers::ZonePercent;
use crate::{
    Access, Cause, Costs, Location, Millis, PageId, PolicyChoice, SlotId, SlotPages, SlotPolicy,
    SlotPolicyParams, SlotReport, Usable, Verdict,
};
use ghosts::Ghosts;
use score::{Seen, TICKS_PER_SLOT};
use setting::{FIRST, SETTINGS, Scale, key_of_held};
use std::sync::Arc;

/// One of the settings that the default SSD policy chooses among, for [`AutoOptions::pin`]. By name:
/// `forever`, `half-life-16`, `half-life-4`, `half-life-1`, `half-life-0.25`, `plain`, `second-sight`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SsdSetting(u8);

impl SsdSetting {
    /// Every setting.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..SETTINGS.len() as u8).map(Self)
    }

    /// The setting's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        SETTINGS[self.index()].name
    }

    /// Returns the setting with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|setting| setting.name() == name)
    }

    const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The options of the default SSD policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AutoOptions {
    /// `pin=NAME`: the setting that the policy always follows, instead of the best one for the workload.
    pub pin: Option<SsdSetting>,
    /// `zone=K`: the eviction zone.
    pub zone: ZonePercent,
    /// `outqueue=N`: the entries of the outqueue. Default: as many as the SSD has slots.
    pub outqueue: Option<u32>,
}

impl AutoOptions {
    /// The recommended policy.
    pub const DEFAULT: Self = Self { pin: None, zone: ZonePercent::DEFAULT, outqueue: None };
}

impl Default for AutoOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The default SSD policy; see the module's text.
#[derive(Debug)]
pub struct Adaptive {
    pages: Tracked<Seen>,
    zone: Zone,
    ghosts: Ghosts,
    costs: Costs,
    slots: u64,
    /// Physical accesses so far.
    accesses: u64,
    chooser: Chooser<{ SETTINGS.len() }>,
    pinned: bool,
}

impl Adaptive {
    /// For an empty SSD.
    #[must_use]
    pub fn new(options: AutoOptions, params: &SlotPolicyParams) -> Self {
        let SlotPolicyParams { slots, frames, costs, .. } = *params;
        let outqueue_entries = options.outqueue.map_or(params.outqueue_entries, |entries| entries as usize);
        let pin = options.pin;
        let ghosts = Ghosts::new(slots, options.zone, frames, costs);
        Self {
            pages: Tracked::new(slots, frames, outqueue_entries, ghosts.records_max()),
            zone: Zone::steady(),
            ghosts,
            costs,
            slots: slots.max(1) as u64,
            accesses: 0,
            chooser: Chooser::new(pin.map_or(FIRST, SsdSetting::index)),
            pinned: pin.is_some(),
        }
    }

    fn scale(&self) -> Scale {
        let tick = (self.accesses * u64::from(TICKS_PER_SLOT) / self.slots) as u32;
        Scale { costs: self.costs, tick }
    }

    fn reposition(&mut self, id: RecordId) {
        if let Some(slot) = self.pages.slot(id).filter(|&slot| self.zone.contains(slot)) {
            let (zone, _, key) = self.zone_and_keys();
            let key = key(slot);
            zone.update(slot, key);
        }
    }

    /// Counts an access that costs the HDD `saved_ms` more than the SSD.
    fn count(&mut self, id: RecordId, saved_ms: f64) {
        self.accesses += 1;
        let tick = self.scale().tick;
        self.pages.kept_mut(id).add(tick, saved_ms);
        self.reposition(id);
    }

    fn samples(&self, page: PageId) -> bool {
        !self.pinned && self.ghosts.take(page)
    }

    /// Compares the settings if a stretch of the ghosts has ended.
    fn choose(&mut self) {
        let Some(costs) = self.ghosts.stretch() else { return };
        let Self { ghosts, pages, .. } = self;
        if self.chooser.compare(costs, &mut |setting| ghosts.change_ms(pages, setting)).is_some() {
            // The zone is sorted by the previous setting.
            self.zone.clear();
        }
    }

    /// Drops the oldest record if there are more than the outqueue's capacity. A record that a ghost holds is
    /// queued again instead, unless so many are beyond the capacity already.
    fn trim(&mut self) {
        let Some((id, surplus)) = self.pages.surplus() else { return };
        let held = self.pages.kept(id).ghosts;
        if held.by_any() && surplus <= self.ghosts.records_max() {
            self.pages.requeue(id);
            return;
        }
        self.ghosts.forget(held);
        self.pages.forget(id);
    }

    /// The zone, the records, and the key of a slot's page.
    fn zone_and_keys(&mut self) -> (&mut Zone, &Tracked<Seen>, impl Fn(SlotId) -> f64) {
        let Self { zone, pages, chooser, .. } = self;
        let (pages, setting) = (&*pages, &SETTINGS[chooser.chosen]);
        (zone, pages, move |slot| {
            pages.in_slot(slot).map_or(f64::NEG_INFINITY, |id| {
                let seen = pages.kept(id);
                key_of_held(setting, seen, seen.ghosts.again_on_ssd())
            })
        })
    }
}

impl SlotPolicy for Adaptive {
    fn share_pages(&mut self, pages: &Arc<SlotPages>) {
        self.pages.share(pages);
    }

    fn overwritten(&mut self, slot: SlotId) {
        // Remove the page before the store names the slot's next one, which would inherit its record.
        if let Some(page) = self.pages.in_slot(slot).map(|id| self.pages.page(id)) {
            self.removed(page, true, Millis(0));
        }
    }

    fn read(&mut self, page: PageId, from: Option<Location>, access: Access, _now: Millis) {
        let id = self.pages.find(page).unwrap_or_else(|| {
            let tick = self.scale().tick;
            self.pages.track(page, Seen::new(tick))
        });
        self.pages.set_buffered(id, true);
        if from == Some(Location::Ssd) {
            self.pages.kept_mut(id).ghosts.set_again_on_ssd(true);
        }
        if from.is_some() {
            if self.samples(page) {
                self.ghosts.read(self.pages.kept_mut(id));
            }
            // Read-ahead joins a scan's reads, so the HDD hardly spends more on them than the SSD. But each
            // is an access: without its time, the page would seem idle, and ghosts without it would pay
            // nothing.
            let saved_ms = if access == Access::Random { self.costs.read_saving_ms() } else { 0.0 };
            self.count(id, saved_ms);
            self.choose();
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
        if free_slots > 0 {
            return Verdict::AdmitFree;
        }
        let Some(id) = self.pages.find(page) else { return Verdict::Reject };
        let key = self.scale().key_of_candidate(&SETTINGS[self.chooser.chosen], self.pages.kept(id), cause);
        let (zone, _, keys) = self.zone_and_keys();
        zone.decide(key, keys, usable).map_or(Verdict::Reject, Verdict::AdmitOver)
    }

    fn wrote(&mut self, page: PageId, _location: Location, _now: Millis) {
        let Some(id) = self.pages.find(page) else { return };
        if self.samples(page) {
            let scale = self.scale();
            self.ghosts.offer(&mut self.pages, id, Cause::Cleaned, &scale);
        }
        self.count(id, self.costs.hdd_write_ms - self.costs.ssd_write_ms);
        self.choose();
    }

    fn inserted(&mut self, page: PageId, slot: SlotId, now: Millis) {
        let before = self.pages.in_slot(slot).map(|id| self.pages.page(id));
        if let Some(before) = before.filter(|&before| before != page) {
            self.removed(before, true, now);
        }
        let id = self.pages.find(page).unwrap_or_else(|| self.pages.track(page, Seen::default()));
        match self.pages.slot(id) {
            Some(before) => self.zone.remove(before),
            None => self.pages.kept_mut(id).ghosts.set_again_on_ssd(false),
        }
        self.zone.remove(slot);
        self.pages.set_slot(id, Some(slot));
        self.trim();
    }

    fn removed(&mut self, page: PageId, _evicted: bool, _now: Millis) {
        let Some(id) = self.pages.find(page) else { return };
        let Some(slot) = self.pages.slot(id) else { return };
        self.zone.remove(slot);
        self.pages.set_slot(id, None);
        self.trim();
    }

    fn left_pool(&mut self, page: PageId, _now: Millis) {
        let Some(id) = self.pages.find(page) else { return };
        if self.samples(page) {
            let scale = self.scale();
            self.ghosts.offer(&mut self.pages, id, Cause::Evicted, &scale);
        }
        self.pages.set_buffered(id, false);
        self.trim();
    }

    fn forget(&mut self, page: PageId) {
        let Some(id) = self.pages.find(page) else { return };
        if let Some(slot) = self.pages.slot(id) {
            self.zone.remove(slot);
        }
        let record = self.pages.forget(id);
        self.ghosts.forget(record.kept.ghosts);
    }

    fn start_zone(&mut self, k: usize, eligible: Usable<'_>, _now: Millis, out: &mut Vec<SlotId>) {
        let (zone, pages, key) = self.zone_and_keys();
        let eligible = pages.occupied().filter(|&(slot, _)| eligible(slot));
        zone.start(k, eligible.map(|(slot, _)| (slot, key(slot))), out);
    }

    fn next_victims(&mut self, n: usize, _now: Millis, out: &mut Vec<SlotId>) {
        let (zone, _, keys) = self.zone_and_keys();
        zone.next_victims(n, keys, out);
    }

    fn benefit(&self, page: PageId) -> Option<f64> {
        let tick = self.scale().tick;
        self.pages.get_by_page(page).map(|record| record.kept.sum(SETTINGS[self.chooser.chosen].rate, tick))
    }

    fn set_costs(&mut self, costs: Costs) {
        self.costs = costs;
        self.ghosts.set_costs(costs);
    }
}

impl SlotReport for Adaptive {
    fn choice_changes(&self) -> u64 {
        self.chooser.changes()
    }

    fn choice(&self) -> Option<PolicyChoice> {
        Some(self.chooser.choice(SETTINGS.map(|setting| setting.name)))
    }

    fn memory_bytes(&self) -> usize {
        self.pages.memory_bytes() + self.zone.memory_bytes() + self.ghosts.memory_bytes()
    }

    fn validate(&self) -> Result<(), String> {
        self.pages.validate()?;
        self.zone.validate(|slot| self.pages.in_slot(slot).is_some())?;
        self.ghosts.validate(&self.pages)
    }
}
