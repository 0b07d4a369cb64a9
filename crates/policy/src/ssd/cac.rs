//! CAC and CC: the SSD keeps the pages of highest estimated benefit (Liu & Salem 2013, sections 5 and 6).
//!
//! Equations 2 to 6 and 8 turn a page's counts into its benefit. CAC anticipates how a page's physical reads
//! and writes change when it moves to or from the SSD (α, by group). CC takes past counts for future ones,
//! which is α = 1 (equation 1). Page statistics, outqueue and eviction zone are the same.

use super::groups::{Dropped, GroupRules, Groups};
use super::page_stats::{PageRecord, PageRecordMut, PageStats, SUBRANGES_MAX};
use super::tracked::{Record, RecordId, Tracked};
use super::zone::Zone;
use super::{Cause, GroupStats, PageCounts, SlotPolicy, SlotReport, Verdict};
use crate::numbers::{GroupWidth, ZonePercent};
use crate::{Access, Costs, Location, Millis, PageId, SlotId, SlotPages, Usable};
use std::sync::Arc;

/// Whether CAC anticipates a page's reads and writes after a move.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Alpha {
    /// By the miss rate expansion factor of the page's group (equation 8).
    #[default]
    ByGroup,
    /// α = 1: past counts are taken for future ones (equation 1). No groups are kept.
    One,
}

/// How CAC ranks pages. The default is the paper's CAC, except for the end of a zone: see
/// [`CacOptions::strict_zone`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CacOptions {
    /// Whether reads and writes after a move are anticipated.
    pub alpha: Alpha,
    /// Ends a zone only when all its candidates have been evicted, as in section 5.4. By default, a zone also
    /// ends when the benefits of all remaining candidates exceed the lowest benefit that was outside when the
    /// zone began; `docs/policies.md` describes the difference.
    pub strict_zone: bool,
    /// `zone=K`: the eviction zone.
    pub zone: ZonePercent,
    /// `outqueue=N`: the entries of the outqueue. Default: as many as the SSD has slots (section 6.1).
    pub outqueue: Option<u32>,
    /// `group-width=W`: the width of a subrange. Default: [`GroupWidth::DEFAULT`].
    pub group_width: Option<GroupWidth>,
}

impl Default for CacOptions {
    fn default() -> Self {
        Self::CAC
    }
}

impl CacOptions {
    /// The paper's CAC.
    pub const CAC: Self = Self {
        alpha: Alpha::ByGroup,
        strict_zone: false,
        zone: ZonePercent::DEFAULT,
        outqueue: None,
        group_width: None,
    };

    /// The paper's CC: α = 1.
    pub const CC: Self = Self { alpha: Alpha::One, ..Self::CAC };
}

/// Sizes, costs and tuning of an SSD policy. Slots, frames and costs apply to every policy; the outqueue to
/// CAC, CC and the default; the rest to CAC and CC.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SlotPolicyParams {
    /// Device costs.
    pub costs: Costs,
    /// Slots of the SSD.
    pub slots: usize,
    /// Frames of the pool.
    pub frames: usize,
    /// N_outq, the maximum number of pages remembered that are neither buffered nor on the SSD. Default: the
    /// number of slots (section 6.1).
    pub outqueue_entries: usize,
    /// The width of a subrange in logical reads per minute. Default: 1 (section 5.2).
    pub group_width_per_min: f64,
    /// The maximum number of subranges per space, the last being open-ended; from 1 to 1023. Default: 1000,
    /// the example of section 5.2.
    pub subranges_max: u16,
    /// The lower bound of α. Default: 1/1000.
    pub alpha_min: f64,
    /// The upper bound of α. Default: 1000, far above the cost ratios that decide a benefit's sign.
    pub alpha_max: f64,
    /// The treatment of the reads of pages that drop out of the outqueue. Default: they stay in their group's
    /// sums.
    pub dropped: Dropped,
}

impl SlotPolicyParams {
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
        }
    }

    fn group_rules(&self) -> GroupRules {
        GroupRules {
            width_per_min: self.group_width_per_min,
            subranges: self.subranges_max.clamp(1, SUBRANGES_MAX),
            alpha_min: self.alpha_min,
            alpha_max: self.alpha_max,
            dropped: self.dropped,
        }
    }
}

/// Computes benefits from counts, with the state that this takes beside the records.
#[derive(Debug)]
struct Estimate {
    costs: Costs,
    /// `None` if α = 1.
    groups: Option<Groups>,
}

impl Estimate {
    fn new(options: CacOptions, params: &SlotPolicyParams) -> Self {
        let groups = match options.alpha {
            Alpha::ByGroup => Some(Groups::new(params.group_rules())),
            Alpha::One => None,
        };
        Self { costs: params.costs, groups }
    }

    /// Equations 2 to 6, in milliseconds; with α = 1, equation 1.
    fn benefit(&self, record: PageRecord<'_>) -> f64 {
        let (costs, counts) = (&self.costs, record.kept);
        let (r_d, r_s) = (f64::from(counts.reads_hdd), f64::from(counts.reads_ssd));
        let (w_d, w_s) = (f64::from(counts.writes_hdd), f64::from(counts.writes_ssd));
        match &self.groups {
            None => {
                // Equation 1: a page that moves is accessed as before, so every access saves the difference
                // of the devices.
                (r_d + r_s) * costs.read_saving_ms() + (w_d + w_s) * (costs.hdd_write_ms - costs.ssd_write_ms)
            }
            Some(groups) => {
                // Equations 2 to 4. A page on the SSD is missed α times as often as off it, because GD2L
                // keeps it in memory for a shorter time. So reads counted on the SSD would have been fewer on
                // the HDD (r_S / α), and reads counted off it will be more on the SSD (α r_D).
                let alpha = groups.alpha(record);
                let reads = (r_d + r_s / alpha) * costs.hdd_read_ms - (r_s + alpha * r_d) * costs.ssd_read_ms;
                // Equations 5 and 6: the same for writes, since a page that leaves memory more often is also
                // written more often.
                let writes =
                    (w_d + w_s / alpha) * costs.hdd_write_ms - (w_s + alpha * w_d) * costs.ssd_write_ms;
                reads + writes
            }
        }
    }

    /// Counts a random physical read from `location`, which is also a logical read.
    fn read(&mut self, record: &mut PageRecordMut<'_>, location: Location, now: Millis) {
        // With α = 1 there are no sums to add to, so nothing has to wait.
        if self.groups.is_none() {
            record.kept.settle();
        // One read may wait for its group's sums, not two: settle the first, which also moves the page to the
        // group of its present rate.
        } else if record.kept.read_waits() {
            self.settle(record, now);
        }
        record.kept.count_read(location);
        // A physical read is a logical one as well; a miss rate above 1 would result otherwise.
        self.logical(record, 1, location, now);
    }

    fn logical(&mut self, record: &mut PageRecordMut<'_>, n: u32, location: Location, now: Millis) {
        let Some(groups) = &mut self.groups else { return };
        let mut left = record.kept.count_logical(n, location);
        // The counter of waiting reads holds those of one home, up to a limit. At a change of home, or when
        // it is full, the group takes them.
        while left > 0 {
            groups.settle(record, now);
            left = record.kept.count_logical(left, location);
        }
    }

    /// Settles the record, upon one of the three events of section 5.2.
    fn settle(&mut self, record: &mut PageRecordMut<'_>, now: Millis) {
        if let Some(groups) = &mut self.groups {
            groups.settle(record, now);
        }
    }

    fn assign(&mut self, record: &mut PageRecordMut<'_>, now: Millis) {
        if let Some(groups) = &mut self.groups {
            groups.assign(record, now);
        }
    }

    /// Handles a record that dropped out of the outqueue.
    fn dropped(&mut self, record: PageRecord<'_>) {
        if let Some(groups) = &mut self.groups {
            groups.dropped(record);
        }
    }

    fn forget(&mut self, record: PageRecord<'_>) {
        if let Some(groups) = &mut self.groups {
            groups.forget(record);
        }
    }

    fn memory_bytes(&self) -> usize {
        self.groups.as_ref().map_or(0, Groups::memory_bytes)
    }
}

/// CAC and CC; see the module's text.
#[derive(Debug)]
pub struct Cac {
    stats: Tracked<PageStats>,
    /// The time of the latest read.
    now: Millis,
    zone: Zone,
    estimate: Estimate,
}

impl Cac {
    /// For an empty SSD.
    #[must_use]
    pub fn new(options: CacOptions, params: &SlotPolicyParams) -> Self {
        let mut params = *params;
        if let Some(entries) = options.outqueue {
            params.outqueue_entries = entries as usize;
        }
        if let Some(width) = options.group_width {
            params.group_width_per_min = width.get();
        }
        Self {
            stats: Tracked::new(params.slots, params.frames, params.outqueue_entries, 0),
            now: Millis(0),
            zone: if options.strict_zone { Zone::strict() } else { Zone::empty() },
            estimate: Estimate::new(options, &params),
        }
    }

    /// Updates the slot's position in the zone after the record's counts or group changed.
    fn reposition(&mut self, id: RecordId) {
        let record = self.stats.get(id);
        if let Some(slot) = record.slot.filter(|&slot| self.zone.contains(slot)) {
            self.zone.update(slot, self.estimate.benefit(record));
        }
    }

    fn find_or_track(&mut self, page: PageId, now: Millis) -> RecordId {
        self.stats.find(page).unwrap_or_else(|| self.stats.track(page, PageStats::new(now)))
    }

    fn settle(&mut self, id: RecordId, now: Millis) {
        self.estimate.settle(&mut self.stats.get_mut(id), now);
        self.reposition(id);
    }

    /// Drops the records beyond the outqueue's capacity.
    fn trim(&mut self) {
        while let Some((id, _)) = self.stats.surplus() {
            let Record { page, slot, kept } = self.stats.forget(id);
            self.estimate.dropped(Record { page, slot, kept: &kept });
        }
    }

    /// The zone, and a function that returns the current benefit of the page in a slot.
    fn zone(&mut self) -> (&mut Zone, impl Fn(SlotId) -> f64) {
        let Self { zone, stats, estimate, .. } = self;
        (zone, |slot| stats.in_slot(slot).map_or(f64::NEG_INFINITY, |id| estimate.benefit(stats.get(id))))
    }
}

impl SlotPolicy for Cac {
    fn share_pages(&mut self, pages: &Arc<SlotPages>) {
        self.stats.share(pages);
    }

    fn overwritten(&mut self, slot: SlotId) {
        // Remove the page before the store names the slot's next one, which would inherit its record.
        if let Some(page) = self.stats.in_slot(slot).map(|id| self.stats.page(id)) {
            self.removed(page, true, self.now);
        }
    }

    fn read(&mut self, page: PageId, from: Option<Location>, access: Access, now: Millis) {
        self.now = now;
        let id = self.find_or_track(page, now);
        // Sequential reads do not count (section 5.3): a scan costs a disk little, and would make every page
        // of a table look worth caching.
        if let (Some(location), Access::Random) = (from, access) {
            self.estimate.read(&mut self.stats.get_mut(id), location, now);
            self.reposition(id);
        }
        self.stats.set_buffered(id, true);
    }

    fn logical(&mut self, page: PageId, n: u32, location: Location, now: Millis) {
        if let Some(id) = self.stats.find(page) {
            self.estimate.logical(&mut self.stats.get_mut(id), n, location, now);
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
            // An empty slot displaces nothing, so any page is better than none (section 5.4).
            return Verdict::AdmitFree;
        }
        // Without a record there is no benefit to compare.
        let Some(id) = self.stats.find(page) else { return Verdict::Reject };
        match cause {
            // One of the three events of section 5.2: the page leaves the pool, so its counts join its
            // group's sums.
            Cause::Evicted => self.settle(id, now),
            // The page stays in the pool: it only needs a group, for its α.
            Cause::Cleaned | Cause::Read => self.estimate.assign(&mut self.stats.get_mut(id), now),
        }
        let benefit = self.estimate.benefit(self.stats.get(id));
        let (zone, now) = self.zone();
        zone.decide(benefit, now, usable).map_or(Verdict::Reject, Verdict::AdmitOver)
    }

    fn wrote(&mut self, page: PageId, location: Location, now: Millis) {
        if let Some(id) = self.stats.find(page) {
            let record = self.stats.get_mut(id);
            record.kept.count_write(location);
            match location {
                // An admission is another of the three events; a write to the HDD is none.
                Location::Ssd => self.settle(id, now),
                Location::Hdd => self.reposition(id),
            }
        }
    }

    fn inserted(&mut self, page: PageId, slot: SlotId, now: Millis) {
        if let Some(before) = self.stats.in_slot(slot).map(|id| self.stats.page(id)).filter(|&p| p != page) {
            // The slot's page is evicted without a call of its own, if the store overwrites the slot.
            self.removed(before, true, now);
        }
        let id = self.find_or_track(page, now);
        if let Some(before) = self.stats.slot(id) {
            // A page that moves to another slot must not stay a candidate in the one it left.
            self.zone.remove(before);
        }
        // The new page was admitted for its benefit: it is no candidate before the next zone.
        self.zone.remove(slot);
        self.stats.set_slot(id, Some(slot));
    }

    fn recovered(&mut self, page: PageId, slot: SlotId) {
        let id = self.stats.track(page, PageStats::new(Millis(0)));
        self.stats.set_slot(id, Some(slot));
        // Give the page a group at once: without one it would have α = 1 until it is used.
        self.estimate.settle(&mut self.stats.get_mut(id), Millis(0));
    }

    fn copied_home(&mut self, page: PageId, slot: SlotId) {
        // Its place in the zone may be that of an older α. The page may have moved to another slot meanwhile.
        if let Some(id) = self.stats.find(page).filter(|id| self.stats.slot(*id) == Some(slot)) {
            self.reposition(id);
        }
    }

    fn removed(&mut self, page: PageId, evicted: bool, now: Millis) {
        let Some(id) = self.stats.find(page) else { return };
        let Some(slot) = self.stats.slot(id) else { return };
        self.zone.remove(slot);
        // An eviction moves the page between tiers, which is an event of section 5.2; an invalidation is
        // followed by one, when the page is written.
        if evicted {
            self.settle(id, now);
        }
        self.stats.set_slot(id, None);
        // Without slot and frame the page enters the outqueue, which may be full.
        self.trim();
    }

    fn left_pool(&mut self, page: PageId, now: Millis) {
        if let Some(id) = self.stats.find(page) {
            self.settle(id, now);
            self.stats.set_buffered(id, false);
            self.trim();
        }
    }

    fn forget(&mut self, page: PageId) {
        if let Some(id) = self.stats.find(page) {
            // A freed page's slot is empty: as a candidate it would be offered with nothing to evict.
            if let Some(slot) = self.stats.slot(id) {
                self.zone.remove(slot);
            }
            let Record { page, slot, kept } = self.stats.forget(id);
            self.estimate.forget(Record { page, slot, kept: &kept });
        }
    }

    fn start_zone(&mut self, k: usize, eligible: Usable<'_>, _now: Millis, out: &mut Vec<SlotId>) {
        let Self { zone, stats, estimate, .. } = self;
        let candidates = stats
            .occupied()
            .filter(|&(slot, _)| eligible(slot))
            .map(|(slot, id)| (slot, estimate.benefit(stats.get(id))));
        zone.start(k, candidates, out);
    }

    fn next_victims(&mut self, n: usize, _now: Millis, out: &mut Vec<SlotId>) {
        let (zone, now) = self.zone();
        zone.next_victims(n, now, out);
    }

    fn benefit(&self, page: PageId) -> Option<f64> {
        self.stats.get_by_page(page).map(|record| self.estimate.benefit(record))
    }

    fn set_costs(&mut self, costs: Costs) {
        // Compared with benefits by the new costs, those in the zone would all look cheap, or all dear.
        let before = std::mem::replace(&mut self.estimate.costs, costs);
        let (zone, now) = self.zone();
        zone.reprice(&before, &costs, now);
    }
}

impl SlotReport for Cac {
    fn counts(&self, page: PageId) -> Option<PageCounts> {
        self.stats.get_by_page(page).map(|record| record.kept.counts())
    }

    fn groups(&self) -> Vec<GroupStats> {
        self.estimate.groups.as_ref().map_or_else(Vec::new, Groups::stats)
    }

    fn group_of(&self, page: PageId) -> Option<GroupStats> {
        let subrange = u32::from(self.stats.get_by_page(page)?.kept.subrange()?);
        self.groups().into_iter().find(|group| group.space == page.space && group.subrange == subrange)
    }

    fn memory_bytes(&self) -> usize {
        self.stats.memory_bytes() + self.zone.memory_bytes() + self.estimate.memory_bytes()
    }

    fn validate(&self) -> Result<(), String> {
        self.stats.validate()?;
        if let Some((_, surplus)) = self.stats.surplus() {
            return Err(format!("{surplus} records above the outqueue's capacity"));
        }
        self.zone.validate(|slot| self.stats.in_slot(slot).is_some())?;
        let live = self.stats.live().map(|(_, record)| record);
        self.estimate.groups.as_ref().map_or(Ok(()), |groups| groups.validate(live))
    }
}
