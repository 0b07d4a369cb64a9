//! SSD policies that keep the pages of highest estimated benefit: CAC and CC (Liu & Salem 2013, sections 5 and 6).
//!
//! They share the page statistics, the outqueue and the eviction zone, and differ in how the counts become a benefit: [`Cac`] anticipates how a
//! page's physical reads and writes change when it moves (equations 2-6 and 8), [`Cc`] takes them as they were (equation 1).

use crate::ageing::{Ageing, Ager, Due};
use crate::dirty_slots::DirtySlots;
use crate::groups::{Dropped, GroupRules, Groups};
use crate::page_stats::{PageStats, Record, RecordId, SUBRANGES_MAX};
use crate::sketch::Sketch;
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
    /// When [`CacAged`] halves its counts. Default: when they are outdated, in stretches of ten accesses per slot.
    pub ageing: Ageing,
    /// Physical accesses per slot after which a sketch is halved; it is halved with the counts, too. Default: 40.
    pub sketch_halved_after_per_slot: u32,
    /// The memory of [`CacSketch`]'s sketch, in bytes per slot. Default: 4, a byte for each page of a database of four times the SSD's size.
    pub sketch_bytes_per_slot: usize,
    /// A zone ends only when all its candidates have been evicted, as section 5.4 has it. Default: also when those left have outgrown what was outside when it
    /// began; `docs/policies.md` has the difference.
    pub strict_zone: bool,
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
            ageing: Ageing::WhenOutdated(10),
            sketch_halved_after_per_slot: 40,
            sketch_bytes_per_slot: 4,
            strict_zone: false,
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
pub type Cac = CostBased<Anticipating<0>>;

/// CAC whose counts age: all are halved from time to time ([`CacParams::ageing`]), so that the ranking follows a workload that changes
/// (exponential decay, in steps). O(records) each time.
pub type CacAged = CostBased<Anticipating<AGED>>;

/// CAC that counts the write at hand: see [`Anticipating`].
pub type CacWrite = CostBased<Anticipating<WRITE>>;

/// CAC whose counts age, and that counts the write at hand.
pub type CacAgedWrite = CostBased<Anticipating<AGED_WRITE>>;

/// CAC that chooses between clean and dirty victims: see [`Anticipating`].
pub type CacDirty = CostBased<Anticipating<DIRTY>>;

/// CAC that avoids to write back pages that will be rewritten: see [`Anticipating`].
pub type CacRewrite = CostBased<Anticipating<REWRITE>>;

/// CAC with a frequency sketch beyond the outqueue: see [`Anticipating`].
pub type CacSketch = CostBased<Anticipating<SKETCH>>;

/// [`CacAgedWrite`] that avoids to write back pages that will be rewritten.
pub type CacAgedWriteRewrite = CostBased<Anticipating<AGED_WRITE_REWRITE>>;

/// [`CacAgedWriteRewrite`] with a frequency sketch.
pub type CacAgedWriteRewriteSketch = CostBased<Anticipating<AGED_WRITE_REWRITE_SKETCH>>;

/// CC: as CAC, but the past counts are taken for the future ones (equation 1).
pub type Cc = CostBased<Observed>;

/// How counts become a benefit. Sealed by its arguments being private to this crate.
pub(crate) trait Estimate: Send + std::fmt::Debug {
    const NAME: &'static str;
    /// What an access counts in a record.
    const STEP: u32 = 1;
    fn new(params: &CacParams) -> Self;
    /// Says when to halve what ages; `None` where nothing does.
    fn ager(_params: &CacParams) -> Option<Ager> {
        None
    }
    fn benefit(&self, record: &Record, costs: &Costs) -> f64;
    /// What an admission for `cause` saves at once, beside the benefit.
    fn at_once(&self, _cause: Cause, _costs: &Costs) -> f64 {
        0.0
    }
    /// Halves all counts.
    fn halve_counts(&mut self, _stats: &mut PageStats, _now: Millis) {}
    fn halve_sketch(&mut self) {}
    /// The slot's version is newer than the HDD's, or it is not.
    fn set_dirty(&mut self, _slot: SlotId, _dirty: bool) {}
    /// A page was read that had no record.
    fn tracked(&mut self, _record: &mut Record) {}
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

/// What a write-back that will probably be saved weighs against them. From 1 to 3 it makes a difference of 1 % for TPC-C.
const REWRITE_WEIGHT: f64 = 2.0;

/// What an access counts where counts are halved, so that halves and quarters of it do.
const AGED_STEP: u32 = 64;

/// Counts are halved now and then.
const AGED: u8 = 1;
/// The write at hand is counted.
const WRITE: u8 = 2;
/// Evicting a dirty slot costs the copy to the HDD.
const DIRTY: u8 = 4;
/// It does so as far as the page is likely to be rewritten.
const REWRITE: u8 = 8;
/// What drops out of the outqueue goes on in a frequency sketch.
const SKETCH: u8 = 16;

const AGED_WRITE: u8 = AGED | WRITE;
const AGED_WRITE_REWRITE: u8 = AGED_WRITE | REWRITE;
const AGED_WRITE_REWRITE_SKETCH: u8 = AGED_WRITE_REWRITE | SKETCH;

/// CAC's estimate: equations 2 to 6, α by group; and `PARTS`, what goes beyond the paper.
///
/// - *Aged*: the counts are halved when they are outdated, or from time to time ([`Ageing`]).
/// - *The write at hand*: a dirty page that is rejected costs W_D now, and W_S if it is admitted; a clean one costs nothing if it is rejected. CAC compares benefits as
///   if both were free. So a dirty page is admitted with a little less benefit, and a clean one needs a little more.
/// - *Dirty*: a slot whose version the HDD does not have costs a copy to evict, R_S + W_D; its page's benefit is so much higher. Of two alike the clean one goes.
///   After a recovery all pass for clean until they are written.
/// - *Rewrite*: as dirty, but a copy only postponed saves nothing. It is saved if the page is rewritten before: of w writes so far all but the last were followed by
///   another, so the copy counts (w - 1) / w, and twice (benefits are sums over many accesses).
/// - *Sketch*: a page that drops out of the outqueue leaves its reads in a frequency sketch, and gets them back, as reads from the HDD, when it is read again. They are in
///   its group's sums twice then if those of dropped pages stay there.
#[derive(Debug)]
pub struct Anticipating<const PARTS: u8> {
    groups: Groups,
    dirty: DirtySlots,
    sketch: Option<Sketch>,
}

impl<const PARTS: u8> Anticipating<PARTS> {
    const fn has(part: u8) -> bool {
        PARTS & part != 0
    }

    /// What it costs to evict the page's slot, as far as that counts.
    fn eviction_cost(&self, record: &Record, costs: &Costs) -> f64 {
        if !Self::has(DIRTY | REWRITE) || !record.slot().is_some_and(|slot| self.dirty.contains(slot)) {
            return 0.0;
        }
        let copy = costs.ssd_read_ms + costs.hdd_write_ms;
        let writes = (f64::from(record.writes_hdd) + f64::from(record.writes_ssd)) / f64::from(Self::STEP);
        let rewritten = 1.0 - 1.0 / writes.max(1.0);
        let postponed = if Self::has(DIRTY) { copy } else { 0.0 };
        let saved = if Self::has(REWRITE) { REWRITE_WEIGHT * rewritten * copy } else { 0.0 };
        postponed + saved
    }
}

impl<const PARTS: u8> Estimate for Anticipating<PARTS> {
    const NAME: &'static str = match PARTS {
        0 => "cac",
        AGED => "cac-aged",
        WRITE => "cac-write",
        DIRTY => "cac-dirty",
        REWRITE => "cac-rewrite",
        SKETCH => "cac-sketch",
        AGED_WRITE => "cac-aged-write",
        AGED_WRITE_REWRITE => "cac-aged-write-rewrite",
        AGED_WRITE_REWRITE_SKETCH => "cac-aged-write-rewrite-sketch",
        _ => panic!("parts without a name"),
    };
    const STEP: u32 = if Self::has(AGED) { AGED_STEP } else { 1 };

    fn new(params: &CacParams) -> Self {
        let sketch_bytes = params.sketch_bytes_per_slot.saturating_mul(params.slots);
        Self {
            groups: Groups::new(GroupRules { step: Self::STEP, ..params.rules() }),
            dirty: DirtySlots::default(),
            sketch: Self::has(SKETCH).then(|| Sketch::new(sketch_bytes)),
        }
    }

    fn ager(params: &CacParams) -> Option<Ager> {
        let counts = Self::has(AGED).then_some(params.ageing);
        let sketch = Self::has(SKETCH).then_some(params.sketch_halved_after_per_slot);
        Self::has(AGED | SKETCH).then(|| Ager::new(counts, sketch, params.slots))
    }

    fn benefit(&self, record: &Record, costs: &Costs) -> f64 {
        let alpha = self.groups.alpha(record);
        let (r_d, r_s) = (f64::from(record.reads_hdd), f64::from(record.reads_ssd));
        let (w_d, w_s) = (f64::from(record.writes_hdd), f64::from(record.writes_ssd));
        let reads = (r_d + r_s / alpha) * costs.hdd_read_ms - (r_s + alpha * r_d) * costs.ssd_read_ms;
        let writes = (w_d + w_s / alpha) * costs.hdd_write_ms - (w_s + alpha * w_d) * costs.ssd_write_ms;
        (reads + writes) / f64::from(Self::STEP) + self.eviction_cost(record, costs)
    }

    fn at_once(&self, cause: Cause, costs: &Costs) -> f64 {
        let saved = match cause {
            Cause::Cleaned => costs.hdd_write_ms - costs.ssd_write_ms,
            Cause::Evicted | Cause::Read => -costs.ssd_write_ms,
        };
        if Self::has(WRITE) { AT_ONCE_WEIGHT * saved } else { 0.0 }
    }

    fn halve_counts(&mut self, stats: &mut PageStats, now: Millis) {
        self.groups.halve(stats.live_mut(), now);
    }

    fn halve_sketch(&mut self) {
        if let Some(sketch) = &mut self.sketch {
            sketch.halve();
        }
    }

    fn set_dirty(&mut self, slot: SlotId, dirty: bool) {
        if Self::has(DIRTY | REWRITE) {
            self.dirty.set(slot, dirty);
        }
    }

    fn tracked(&mut self, record: &mut Record) {
        if let Some(sketch) = &self.sketch {
            record.restore_reads(u32::from(sketch.estimate(record.page)) * Self::STEP);
        }
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
        if let Some(sketch) = &mut self.sketch {
            sketch.raise(record.page, record.reads(Self::STEP));
        }
    }

    fn forget(&mut self, record: &Record) {
        self.groups.forget(record);
    }

    fn groups(&self) -> Vec<GroupStats> {
        self.groups.stats()
    }

    fn memory_bytes(&self) -> usize {
        let sketch = self.sketch.as_ref().map_or(0, Sketch::memory_bytes);
        self.groups.memory_bytes() + self.dirty.memory_bytes() + sketch
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
    ager: Option<Ager>,
}

#[expect(private_bounds, reason = "the estimates are told by name: Cac and Cc")]
impl<E: Estimate> CostBased<E> {
    /// With nothing known yet.
    #[must_use]
    pub fn new(params: &CacParams) -> Self {
        Self {
            costs: params.costs,
            stats: PageStats::new(params.slots, params.frames, params.outqueue_entries),
            zone: if params.strict_zone { Zone::strict(params.slots) } else { Zone::new(params.slots) },
            estimate: E::new(params),
            ager: E::ager(params),
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

    /// A physical access of `page` was counted.
    fn age(&mut self, page: PageId, now: Millis) {
        let Some(ager) = &mut self.ager else { return };
        match ager.accessed(page) {
            Due::Nothing => {}
            Due::Sketch => self.estimate.halve_sketch(),
            Due::Counts => {
                self.estimate.halve_counts(&mut self.stats, now);
                self.estimate.halve_sketch();
                let (zone, now) = self.zone();
                zone.scale(0.5, now);
            }
        }
    }

    /// The record of a page that was read.
    fn find_or_track(&mut self, page: PageId, from: Option<Home>, now: Millis) -> RecordId {
        self.stats.find(page).unwrap_or_else(|| {
            let id = self.stats.track(page, now);
            if from.is_some() {
                self.estimate.tracked(self.stats.get_mut(id));
            }
            id
        })
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

impl<E: Estimate + Sync> SsdPolicy for CostBased<E> {
    fn name(&self) -> &'static str {
        E::NAME
    }

    fn read(&mut self, page: PageId, from: Option<Home>, access: Access, now: Millis) {
        let id = self.find_or_track(page, from, now);
        if let (Some(home), Access::Random) = (from, access) {
            self.estimate.read(self.stats.get_mut(id), home, now);
            self.reposition(id);
        }
        let dropped = self.stats.set_buffered(id, true);
        self.dropped(dropped);
        if from.is_some() && access == Access::Random {
            self.age(page, now);
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
            let record = self.stats.get_mut(id);
            record.count_write(home, E::STEP);
            if let (Home::Ssd, Some(slot)) = (home, record.slot()) {
                self.estimate.set_dirty(slot, true);
            }
            match home {
                Home::Ssd => self.settle(id, now),
                Home::Hdd => self.reposition(id),
            }
            self.age(page, now);
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
        self.estimate.set_dirty(slot, false);
        let dropped = self.stats.set_slot(id, Some(slot));
        self.dropped(dropped);
    }

    fn recovered(&mut self, page: PageId, slot: SlotId) {
        let id = self.stats.track(page, Millis(0));
        self.stats.set_slot(id, Some(slot));
        self.estimate.settle(self.stats.get_mut(id), Millis(0));
    }

    fn copied_home(&mut self, page: PageId, slot: SlotId) {
        if let Some(id) = self.stats.find(page).filter(|id| self.stats.get(*id).slot() == Some(slot)) {
            self.estimate.set_dirty(slot, false);
            self.reposition(id);
        }
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
        self.stats.get_by_page(page).map(|record| self.benefit_of(record))
    }

    fn counts(&self, page: PageId) -> Option<PageCounts> {
        self.stats.get_by_page(page).map(|record| record.counts(E::STEP))
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
        self.stats.memory_bytes()
            + self.zone.memory_bytes()
            + self.estimate.memory_bytes()
            + self.ager.as_ref().map_or(0, Ager::memory_bytes)
    }

    fn validate(&self) -> Result<(), String> {
        self.stats.validate()?;
        self.zone.validate(|slot| self.stats.in_slot(slot).is_some())?;
        self.estimate.validate(&self.stats)
    }
}
