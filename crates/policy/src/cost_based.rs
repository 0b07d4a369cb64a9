//! SSD policies that keep the pages of highest estimated benefit: CAC and CC (Liu & Salem 2013, sections 5 and 6).
//!
//! They share the page statistics, the outqueue and the eviction zone, and differ in how the counts become a benefit: [`Cac`] anticipates how a
//! page's physical reads and writes change when it moves (equations 2-6 and 8), [`Cc`] takes them as they were (equation 1).

use crate::groups::{Dropped, GroupRules, Groups};
use crate::page_stats::{PageStats, Record, RecordId, SUBRANGES_MAX};
use crate::zone::Zone;
use crate::{Access, Cause, Costs, GroupStats, Home, Millis, PageCounts, PageId, SlotId, SsdPolicy, Verdict};

/// What CAC and CC can be told. The group and α parameters matter to CAC alone.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CacParams {
    /// Device costs.
    pub costs: Costs,
    /// Slots of the SSD.
    pub slots: usize,
    /// Frames of the pool.
    pub frames: usize,
    /// N_outq, the most pages remembered that are neither buffered nor on the SSD. Default: as many as slots (section 6.1).
    pub outqueue_entries: usize,
    /// The width of a subrange in logical reads per minute. Default: 1 (section 5.2).
    pub group_width_per_min: f64,
    /// The most subranges per space, the last being open-ended; from 1 to 1023. Default: 1000, section 5.2's example.
    pub subranges_max: u16,
    /// The lower bound of α. Default: 1/1000.
    pub alpha_min: f64,
    /// The upper bound of α. Default: 1000, far above the cost ratios that decide a benefit's sign.
    pub alpha_max: f64,
    /// What becomes of the reads of pages that drop out of the outqueue. Default: they stay in their group's sums.
    pub dropped: Dropped,
    /// Physical accesses per slot after which [`CacAged`] halves its counts. Default: 40. Where pages have few accesses each, fewer make the ranking noise:
    /// TPC-C loses up to 5 % with 10, and a hot set that changes gains from the least.
    pub halve_after_per_slot: u32,
}

impl CacParams {
    /// The defaults for an SSD of `slots` slots under a pool of `frames` frames.
    #[must_use]
    pub const fn new(costs: Costs, slots: usize, frames: usize) -> Self {
        Self {
            costs,
            slots,
            frames,
            outqueue_entries: slots,
            group_width_per_min: 1.0,
            subranges_max: 1000,
            alpha_min: 1e-3,
            alpha_max: 1e3,
            dropped: Dropped::Kept,
            halve_after_per_slot: 40,
        }
    }

    fn rules(&self) -> GroupRules {
        GroupRules {
            width_per_min: self.group_width_per_min,
            subranges: self.subranges_max.clamp(1, SUBRANGES_MAX),
            alpha_min: self.alpha_min,
            alpha_max: self.alpha_max,
            dropped: self.dropped,
            step: 1,
        }
    }
}

/// CAC: cost-adjusted caching, anticipating what a move to or from the SSD does to a page's physical reads and writes.
pub type Cac = CostBased<Anticipating<false, false>>;

/// CAC whose counts age: all are halved after every [`CacParams::halve_after_per_slot`] accesses per slot, so that the ranking follows a workload that changes
/// (exponential decay, in steps). O(records) once in so many accesses.
pub type CacAged = CostBased<Anticipating<true, false>>;

/// CAC that counts the write at hand: see [`Anticipating`].
pub type CacWrite = CostBased<Anticipating<false, true>>;

/// CAC whose counts age, and that counts the write at hand.
pub type CacAgedWrite = CostBased<Anticipating<true, true>>;

/// CC: as CAC, but the past counts are taken for the future ones (equation 1).
pub type Cc = CostBased<Observed>;

/// How counts become a benefit. Sealed by its arguments being private to this crate.
pub(crate) trait Estimate: Send + std::fmt::Debug {
    const NAME: &'static str;
    /// What an access counts in a record.
    const STEP: u32 = 1;
    fn new(params: &CacParams) -> Self;
    fn benefit(&self, record: &Record, costs: &Costs) -> f64;
    /// What an admission for `cause` saves at once, beside the benefit.
    fn at_once(&self, _cause: Cause, _costs: &Costs) -> f64 {
        0.0
    }
    /// Halves all counts. Asked for only where they age.
    fn halve(&mut self, _stats: &mut PageStats, _now: Millis) {}
    /// A random physical read from `home`, which is a logical one as well.
    fn read(&mut self, record: &mut Record, home: Home, now: Millis);
    fn logical(&mut self, record: &mut Record, n: u32, home: Home, now: Millis);
    /// One of the three events of section 5.2.
    fn settle(&mut self, record: &mut Record, now: Millis);
    fn assign(&mut self, record: &mut Record, now: Millis);
    fn dropped(&mut self, record: &Record);
    fn forget(&mut self, record: &Record);
    fn groups(&self) -> Vec<GroupStats>;
    fn memory_bytes(&self) -> usize;
    fn validate(&self, stats: &PageStats) -> Result<(), String>;
}

/// What the write at hand weighs against the benefits, which are sums over many accesses. From 1 to 6 it makes no difference of 1 %.
const AT_ONCE_WEIGHT: f64 = 3.0;

/// What an access counts where counts are halved, so that halves and quarters of it do.
const AGED_STEP: u32 = 64;

/// CAC's estimate: equations 2 to 6, α by group.
///
/// `AGED`: the counts are halved from time to time. `WRITE`: the write at hand is counted too. A dirty page that is rejected costs W_D now, and W_S if it is admitted;
/// a clean one costs nothing if it is rejected. CAC compares benefits as if both were free. So a dirty page is admitted with a little less benefit, and a clean one
/// needs a little more.
#[derive(Debug)]
pub struct Anticipating<const AGED: bool, const WRITE: bool> {
    groups: Groups,
}

impl<const AGED: bool, const WRITE: bool> Estimate for Anticipating<AGED, WRITE> {
    const NAME: &'static str = match (AGED, WRITE) {
        (false, false) => "cac",
        (true, false) => "cac-aged",
        (false, true) => "cac-write",
        (true, true) => "cac-aged-write",
    };
    const STEP: u32 = if AGED { AGED_STEP } else { 1 };

    fn new(params: &CacParams) -> Self {
        Self { groups: Groups::new(GroupRules { step: Self::STEP, ..params.rules() }) }
    }

    fn benefit(&self, record: &Record, costs: &Costs) -> f64 {
        let alpha = self.groups.alpha(record);
        let (r_d, r_s) = (f64::from(record.reads_hdd), f64::from(record.reads_ssd));
        let (w_d, w_s) = (f64::from(record.writes_hdd), f64::from(record.writes_ssd));
        let reads = (r_d + r_s / alpha) * costs.hdd_read_ms - (r_s + alpha * r_d) * costs.ssd_read_ms;
        let writes = (w_d + w_s / alpha) * costs.hdd_write_ms - (w_s + alpha * w_d) * costs.ssd_write_ms;
        (reads + writes) / f64::from(Self::STEP)
    }

    fn at_once(&self, cause: Cause, costs: &Costs) -> f64 {
        let saved = match cause {
            Cause::Cleaned => costs.hdd_write_ms - costs.ssd_write_ms,
            Cause::Evicted | Cause::Read => -costs.ssd_write_ms,
        };
        if WRITE { AT_ONCE_WEIGHT * saved } else { 0.0 }
    }

    fn halve(&mut self, stats: &mut PageStats, now: Millis) {
        self.groups.halve(stats.live_mut(), now);
    }

    fn read(&mut self, record: &mut Record, home: Home, now: Millis) {
        if record.read_waits() {
            self.settle(record, now);
        }
        record.count_read(home, Self::STEP);
        self.logical(record, 1, home, now);
    }

    fn logical(&mut self, record: &mut Record, n: u32, home: Home, now: Millis) {
        let mut left = record.count_logical(n, home);
        while left > 0 {
            self.settle(record, now);
            left = record.count_logical(left, home);
        }
    }

    fn settle(&mut self, record: &mut Record, now: Millis) {
        self.groups.settle(record, now);
    }

    fn assign(&mut self, record: &mut Record, now: Millis) {
        self.groups.assign(record, now);
    }

    fn dropped(&mut self, record: &Record) {
        self.groups.dropped(record);
    }

    fn forget(&mut self, record: &Record) {
        self.groups.forget(record);
    }

    fn groups(&self) -> Vec<GroupStats> {
        self.groups.stats()
    }

    fn memory_bytes(&self) -> usize {
        self.groups.memory_bytes()
    }

    fn validate(&self, stats: &PageStats) -> Result<(), String> {
        self.groups.validate(stats.live())
    }
}

/// CC's estimate: equation 1.
#[derive(Debug)]
pub struct Observed;

impl Estimate for Observed {
    const NAME: &'static str = "cc";

    fn new(_params: &CacParams) -> Self {
        Self
    }

    fn benefit(&self, record: &Record, costs: &Costs) -> f64 {
        let reads = f64::from(record.reads_hdd) + f64::from(record.reads_ssd);
        let writes = f64::from(record.writes_hdd) + f64::from(record.writes_ssd);
        reads * costs.read_saving_ms() + writes * (costs.hdd_write_ms - costs.ssd_write_ms)
    }

    fn read(&mut self, record: &mut Record, home: Home, _now: Millis) {
        record.settle(Self::STEP);
        record.count_read(home, Self::STEP);
    }

    fn logical(&mut self, _record: &mut Record, _n: u32, _home: Home, _now: Millis) {}

    fn settle(&mut self, _record: &mut Record, _now: Millis) {}

    fn assign(&mut self, _record: &mut Record, _now: Millis) {}

    fn dropped(&mut self, _record: &Record) {}

    fn forget(&mut self, _record: &Record) {}

    fn groups(&self) -> Vec<GroupStats> {
        Vec::new()
    }

    fn memory_bytes(&self) -> usize {
        0
    }

    fn validate(&self, _stats: &PageStats) -> Result<(), String> {
        Ok(())
    }
}

/// A policy that keeps the pages of highest benefit by estimate `E`: [`Cac`] or [`Cc`].
#[derive(Debug)]
pub struct CostBased<E> {
    costs: Costs,
    stats: PageStats,
    zone: Zone,
    estimate: E,
    /// Physical accesses until the counts are halved; `None` where they do not age.
    halve_in: Option<u64>,
    halve_after: u64,
}

#[expect(private_bounds, reason = "the estimates are told by name: Cac and Cc")]
impl<E: Estimate> CostBased<E> {
    /// With nothing known yet.
    #[must_use]
    pub fn new(params: &CacParams) -> Self {
        let halve_after = (u64::from(params.halve_after_per_slot) * params.slots as u64).max(1);
        Self {
            costs: params.costs,
            stats: PageStats::new(params.slots, params.frames, params.outqueue_entries),
            zone: Zone::new(params.slots),
            estimate: E::new(params),
            halve_in: (E::STEP > 1).then_some(halve_after),
            halve_after,
        }
    }

    fn benefit_of(&self, record: &Record) -> f64 {
        self.estimate.benefit(record, &self.costs)
    }

    /// The record's counts or group changed: its slot may have to move within the zone.
    fn reposition(&mut self, id: RecordId) {
        let record = self.stats.get(id);
        if let Some(slot) = record.slot().filter(|&slot| self.zone.contains(slot)) {
            self.zone.update(slot, self.estimate.benefit(record, &self.costs));
        }
    }

    /// A physical access was counted.
    fn age(&mut self, now: Millis) {
        let Some(left) = &mut self.halve_in else { return };
        *left -= 1;
        if *left == 0 {
            *left = self.halve_after;
            self.estimate.halve(&mut self.stats, now);
            let (zone, now) = self.zone();
            zone.scale(0.5, now);
        }
    }

    fn settle(&mut self, id: RecordId, now: Millis) {
        self.estimate.settle(self.stats.get_mut(id), now);
        self.reposition(id);
    }

    fn dropped(&mut self, record: Option<Record>) {
        if let Some(record) = record {
            self.estimate.dropped(&record);
        }
    }

    /// The zone, and what tells it the benefits of its candidates as they are now.
    fn zone(&mut self) -> (&mut Zone, impl Fn(SlotId) -> f64) {
        let Self { zone, stats, estimate, costs, .. } = self;
        (zone, |slot| {
            stats.in_slot(slot).map_or(f64::NEG_INFINITY, |id| estimate.benefit(stats.get(id), costs))
        })
    }
}

impl<E: Estimate> SsdPolicy for CostBased<E> {
    fn name(&self) -> &'static str {
        E::NAME
    }

    fn read(&mut self, page: PageId, from: Option<Home>, access: Access, now: Millis) {
        let id = self.stats.find_or_track(page, now);
        if let (Some(home), Access::Random) = (from, access) {
            self.estimate.read(self.stats.get_mut(id), home, now);
            self.reposition(id);
        }
        let dropped = self.stats.set_buffered(id, true);
        self.dropped(dropped);
        if from.is_some() && access == Access::Random {
            self.age(now);
        }
    }

    fn logical(&mut self, page: PageId, n: u32, home: Home, now: Millis) {
        if let Some(id) = self.stats.find(page) {
            self.estimate.logical(self.stats.get_mut(id), n, home, now);
        }
    }

    fn consider(
        &mut self,
        page: PageId,
        cause: Cause,
        free_slots: usize,
        usable: &mut dyn FnMut(SlotId) -> bool,
        now: Millis,
    ) -> Verdict {
        if free_slots > 0 {
            return Verdict::AdmitFree;
        }
        let Some(id) = self.stats.find(page) else { return Verdict::Reject };
        match cause {
            Cause::Evicted => self.settle(id, now),
            Cause::Cleaned | Cause::Read => self.estimate.assign(self.stats.get_mut(id), now),
        }
        let benefit = self.benefit_of(self.stats.get(id)) + self.estimate.at_once(cause, &self.costs);
        let (zone, now) = self.zone();
        zone.decide(benefit, now, usable).map_or(Verdict::Reject, Verdict::AdmitOver)
    }

    fn wrote(&mut self, page: PageId, home: Home, now: Millis) {
        if let Some(id) = self.stats.find(page) {
            self.stats.get_mut(id).count_write(home, E::STEP);
            match home {
                Home::Ssd => self.settle(id, now),
                Home::Hdd => self.reposition(id),
            }
            self.age(now);
        }
    }

    fn inserted(&mut self, page: PageId, slot: SlotId, now: Millis) {
        if let Some(before) =
            self.stats.in_slot(slot).map(|id| self.stats.get(id).page).filter(|&p| p != page)
        {
            self.removed(before, true, now);
        }
        let id = self.stats.find_or_track(page, now);
        if let Some(before) = self.stats.get(id).slot() {
            self.zone.remove(before);
        }
        self.zone.remove(slot);
        let dropped = self.stats.set_slot(id, Some(slot));
        self.dropped(dropped);
    }

    fn recovered(&mut self, page: PageId, slot: SlotId) {
        let id = self.stats.track(page, Millis(0));
        self.stats.set_slot(id, Some(slot));
        self.estimate.settle(self.stats.get_mut(id), Millis(0));
    }

    fn removed(&mut self, page: PageId, evicted: bool, now: Millis) {
        let Some(id) = self.stats.find(page) else { return };
        let Some(slot) = self.stats.get(id).slot() else { return };
        self.zone.remove(slot);
        if evicted {
            self.settle(id, now);
        }
        let dropped = self.stats.set_slot(id, None);
        self.dropped(dropped);
    }

    fn left_pool(&mut self, page: PageId, now: Millis) {
        if let Some(id) = self.stats.find(page) {
            self.settle(id, now);
            let dropped = self.stats.set_buffered(id, false);
            self.dropped(dropped);
        }
    }

    fn forget(&mut self, page: PageId) {
        if let Some(id) = self.stats.find(page) {
            if let Some(slot) = self.stats.get(id).slot() {
                self.zone.remove(slot);
            }
            let record = self.stats.forget(id);
            self.estimate.forget(&record);
        }
    }

    fn start_zone(
        &mut self,
        k: usize,
        eligible: &mut dyn FnMut(SlotId) -> bool,
        _now: Millis,
        out: &mut Vec<SlotId>,
    ) {
        let Self { zone, stats, estimate, costs, .. } = self;
        let candidates = stats
            .occupied()
            .filter(|&(slot, _)| eligible(slot))
            .map(|(slot, record)| (slot, estimate.benefit(record, costs)));
        zone.start(k, candidates, out);
    }

    fn next_victims(&mut self, n: usize, _now: Millis, out: &mut Vec<SlotId>) {
        let (zone, now) = self.zone();
        zone.next_victims(n, now, out);
    }

    fn benefit(&self, page: PageId) -> Option<f64> {
        self.stats.find(page).map(|id| self.benefit_of(self.stats.get(id)))
    }

    fn counts(&self, page: PageId) -> Option<PageCounts> {
        self.stats.find(page).map(|id| self.stats.get(id).counts(E::STEP))
    }

    fn groups(&self) -> Vec<GroupStats> {
        self.estimate.groups()
    }

    fn set_costs(&mut self, costs: Costs) {
        let before = std::mem::replace(&mut self.costs, costs);
        let (zone, now) = self.zone();
        zone.reprice(&before, &costs, now);
    }

    fn memory_bytes(&self) -> usize {
        self.stats.memory_bytes() + self.zone.memory_bytes() + self.estimate.memory_bytes()
    }

    fn validate(&self) -> Result<(), String> {
        self.stats.validate()?;
        self.zone.validate(|slot| self.stats.in_slot(slot).is_some())?;
        self.estimate.validate(&self.stats)
    }
}
