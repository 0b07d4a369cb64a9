//! Miniature simulations of the SSD, one per setting, over a sample of the pages that the pool misses and
//! writes.
//!
//! The accesses of an SSD are the pool's misses and writes. They depend little on which pages the SSD holds,
//! and a page's worth does not. So the ghosts share the records of the policy that uses their results: a
//! ghost is a few bits in each sampled record, and a list of eviction candidates.
//!
//! The ghosts fill while the SSD does, and cost the same until one of them is full.
//!
//! A ghost's new zone takes time in the records that ghosts hold, and the number of a ghost's slots is
//! bounded, so the time per eviction does not grow with the SSD.

use super::held::{GHOSTS_MAX, Held};
use super::listed::Listed;
use super::score::Seen;
use super::setting::{SETTINGS, Scale, key_of_held};
use crate::collections::page_index::mixed;
use crate::numbers::ZonePercent;
use crate::ssd::tracked::{Kept, Record, RecordId, Tracked};
use crate::{Cause, Costs, PageId};

const _: () = assert!(SETTINGS.len() <= GHOSTS_MAX);

/// The maximum number of slots of a ghost, however large the SSD: a sample of this size estimates costs well
/// enough, and a new zone takes less than a millisecond.
const SLOTS_MAX: usize = 16_384;

/// The minimum number of slots of a ghost, unless the SSD has fewer, all of which it then simulates: among
/// fewer sampled pages chance decides. With 100, one of 27 sizes of a sampled store cost 15% too much.
const SLOTS_MIN: usize = 200;

/// The cost of a change, in reads from the HDD per page that the new setting would hold and the SSD does not.
const REFILLED: f64 = 0.2;

/// The simulated SSD of one setting.
#[derive(Default, Debug)]
struct Ghost {
    used: usize,
    /// The eviction candidates with their keys when the zone began, highest first.
    zone: Vec<(u32, f64)>,
    /// The highest key in the zone when it began.
    ceiling: f64,
    /// The cost of this stretch, in milliseconds.
    cost_ms: f64,
}

/// The ghosts, one per setting.
#[derive(Debug)]
pub(crate) struct Ghosts {
    ghosts: [Ghost; SETTINGS.len()],
    /// The slots of a ghost.
    slots: usize,
    /// The slots of its eviction zone: as large a part as of the SSD's own.
    zone_slots: usize,
    /// The sample: pages whose hash is not above this.
    below: u64,
    costs: Costs,
    /// Accesses of the sample in this stretch.
    accesses: usize,
    /// The records of the pages that a ghost holds.
    listed: Listed,
    scratch: Vec<(u32, f64)>,
}

impl Ghosts {
    /// Empty ghosts of an SSD of `slots` slots under a pool of `frames` frames.
    pub(crate) fn new(slots: usize, zone: ZonePercent, frames: usize, costs: Costs) -> Self {
        let sampled = sampled_slots(slots, frames);
        let rate = sampled as f64 / slots.max(1) as f64;
        Self {
            ghosts: Default::default(),
            slots: sampled,
            zone_slots: ((sampled as f64 * zone.get() / 100.0) as usize).max(1),
            below: if rate >= 1.0 { u64::MAX } else { (rate * u64::MAX as f64) as u64 },
            costs,
            accesses: 0,
            listed: Listed::new(),
            scratch: Vec::with_capacity(sampled),
        }
    }

    /// The maximum number of records kept only for the ghosts.
    pub(crate) fn records_max(&self) -> usize {
        // One per slot of one ghost suffices, although all hold other pages: most of their records are those
        // of pages in the pool, on the SSD or in the outqueue.
        self.slots
    }

    /// Whether `page` belongs to the sample.
    pub(crate) fn take(&self, page: PageId) -> bool {
        mixed(page).wrapping_mul(0xD6E8_FEB8_6659_FD93) <= self.below
    }

    fn list(&mut self, pages: &mut Tracked<Seen>, id: RecordId) {
        self.listed.add(pages, id);
        if self.listed.is_crowded() {
            self.visit(pages, |_, _| {});
        }
    }

    /// Calls `visit` for every record that a ghost holds.
    fn visit(&mut self, pages: &mut Tracked<Seen>, visit: impl FnMut(RecordId, &Seen)) {
        self.listed.visit(pages, |seen| seen.ghosts.by_any(), visit);
    }

    pub(crate) fn set_costs(&mut self, costs: Costs) {
        self.costs = costs;
    }

    /// Records that a sampled page was read from a device.
    pub(crate) fn read(&mut self, seen: &mut Seen) {
        self.accesses += 1;
        for (at, ghost) in self.ghosts.iter_mut().enumerate() {
            let hit = seen.ghosts.by(at);
            if hit && SETTINGS[at].segmented {
                seen.ghosts.set_again_in_ghost(true);
            }
            ghost.cost_ms += if hit { self.costs.ssd_read_ms } else { self.costs.hdd_read_ms };
        }
    }

    /// Records that a sampled page was written, or left the pool clean.
    pub(crate) fn offer(&mut self, pages: &mut Tracked<Seen>, id: RecordId, cause: Cause, scale: &Scale) {
        self.accesses += usize::from(cause == Cause::Cleaned);
        for at in 0..self.ghosts.len() {
            let held = pages.kept(id).ghosts;
            match cause {
                Cause::Cleaned if held.newer_in(at) => self.ghosts[at].cost_ms += self.costs.ssd_write_ms,
                // The copy was identical to the HDD's, so the change of the page invalidated it.
                Cause::Cleaned if held.by(at) => {
                    self.remove(at, pages, id);
                    self.consider(at, pages, id, cause, scale);
                }
                _ if held.by(at) => {}
                _ => self.consider(at, pages, id, cause, scale),
            }
        }
    }

    fn consider(&mut self, at: usize, pages: &mut Tracked<Seen>, id: RecordId, cause: Cause, scale: &Scale) {
        let setting = &SETTINGS[at];
        let newer = cause == Cause::Cleaned;
        if self.ghosts[at].used >= self.slots {
            let key = scale.key_of_candidate(setting, pages.kept(id), cause);
            let Some(victim) = self.victim(at, pages, key) else {
                self.ghosts[at].cost_ms += if newer { self.costs.hdd_write_ms } else { 0.0 };
                return;
            };
            self.remove(at, pages, victim);
        }
        let ghost = &mut self.ghosts[at];
        ghost.used += 1;
        ghost.cost_ms += self.costs.ssd_write_ms;
        if newer {
            // Charge the write-back that the eviction will take. Charged at the eviction, it would make a
            // setting that fills its slots with such pages look cheap until then.
            ghost.cost_ms += self.costs.ssd_read_ms + self.costs.hdd_write_ms;
        }
        let seen = pages.kept_mut(id);
        seen.ghosts.set(at, true, newer);
        if setting.segmented {
            seen.ghosts.set_again_in_ghost(false);
        }
        self.list(pages, id);
    }

    fn remove(&mut self, at: usize, pages: &mut Tracked<Seen>, victim: RecordId) {
        pages.kept_mut(victim).ghosts.set(at, false, false);
        self.ghosts[at].used -= 1;
    }

    /// The page that ghost `at` would evict for one with this key.
    fn victim(&mut self, at: usize, pages: &mut Tracked<Seen>, key: f64) -> Option<RecordId> {
        for _ in 0..2 {
            let ghost = &mut self.ghosts[at];
            while let Some(&(no, on_file)) = ghost.zone.last() {
                let id = RecordId(no);
                let seen = pages.kept(id);
                if !seen.ghosts.by(at) {
                    ghost.zone.pop();
                    continue;
                }
                let now = key_of_held(&SETTINGS[at], seen, seen.ghosts.again_in_ghost());
                if now > on_file && now > ghost.ceiling {
                    ghost.zone.pop();
                    continue;
                }
                if now >= key {
                    return None;
                }
                ghost.zone.pop();
                return Some(id);
            }
            self.renew_zone(at, pages);
        }
        None
    }

    /// O(records that ghosts hold).
    #[cold]
    fn renew_zone(&mut self, at: usize, pages: &mut Tracked<Seen>) {
        let mut all = std::mem::take(&mut self.scratch);
        all.clear();
        self.visit(pages, |id, seen| {
            if seen.ghosts.by(at) {
                all.push((id.0, key_of_held(&SETTINGS[at], seen, seen.ghosts.again_in_ghost())));
            }
        });
        let keep = self.zone_slots.min(all.len());
        if keep > 0 {
            let by_key = |a: &(u32, f64), b: &(u32, f64)| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0));
            all.select_nth_unstable_by(keep - 1, by_key);
            let ghost = &mut self.ghosts[at];
            ghost.zone.clear();
            ghost.zone.extend_from_slice(&all[..keep]);
            ghost.zone.sort_unstable_by(|a, b| by_key(b, a));
            ghost.ceiling = ghost.zone.first().map_or(f64::INFINITY, |(_, key)| *key);
        }
        self.scratch = all;
    }

    /// Updates the counts for a record that is being removed.
    pub(crate) fn forget(&mut self, held: Held) {
        for (at, ghost) in self.ghosts.iter_mut().enumerate() {
            ghost.used -= usize::from(held.by(at));
        }
    }

    /// At the end of a stretch, half an access per slot, returns the cost of each setting in it. All cost the
    /// same until a ghost is full.
    pub(crate) fn stretch(&mut self) -> Option<[f64; SETTINGS.len()]> {
        if self.accesses < self.slots.div_ceil(2) {
            return None;
        }
        self.accesses = 0;
        Some(self.ghosts.each_mut().map(|ghost| std::mem::take(&mut ghost.cost_ms)))
    }

    /// The cost of a change to `setting`: pages that it would hold, and the SSD does not, get their slots
    /// only after further reads from the HDD. O(records that ghosts hold).
    #[cold]
    pub(crate) fn change_ms(&mut self, pages: &mut Tracked<Seen>, setting: usize) -> f64 {
        let mut missing = 0;
        self.visit(pages, |_, seen| {
            missing += usize::from(seen.ghosts.by(setting) && !seen.is_on_ssd());
        });
        REFILLED * missing as f64 * self.costs.read_saving_ms()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let zones: usize = self.ghosts.iter().map(|ghost| ghost.zone.capacity()).sum();
        (zones + self.scratch.capacity()) * size_of::<(u32, f64)>() + self.listed.memory_bytes()
    }

    /// Recounts the slots, and the listed records.
    pub(crate) fn validate(&self, pages: &Tracked<Seen>) -> Result<(), String> {
        for (at, ghost) in self.ghosts.iter().enumerate() {
            let held = pages.live().filter(|(_, record)| record.kept.ghosts.by(at)).count();
            if held != ghost.used || held > self.slots {
                return Err(format!("ghost {at}: {held} pages, {} counted", ghost.used));
            }
        }
        let mut listed = 0;
        for (_, Record { page, kept, .. }) in pages.live() {
            listed += usize::from(self.listed.has(kept));
            if kept.ghosts.by_any() && !self.listed.has(kept) {
                return Err(format!("page {page} is in a ghost and not listed"));
            }
        }
        if listed > self.listed.len() {
            return Err(format!("{listed} records carry the round, {} are listed", self.listed.len()));
        }
        Ok(())
    }
}

/// The number of slots of a ghost.
fn sampled_slots(slots: usize, frames: usize) -> usize {
    // The ghosts take some 110 bytes per slot: at 16 KiB a page, a hundredth of the pool's memory.
    frames.saturating_add(frames / 2).clamp(SLOTS_MIN, SLOTS_MAX).min(slots)
}

#[cfg(test)]
mod tests {
    use super::super::{Adaptive, AutoOptions};
    use super::*;
    use crate::{
        Access, Location, Millis, SlotId, SlotPolicy, SlotPolicyParams, SlotReport, SpaceId, Verdict,
    };

    const NOW: Millis = Millis(0);

    /// Reads a page from the HDD and lets it leave the pool, for the SSD if the policy wants it there.
    fn pass(policy: &mut Adaptive, page: PageId, in_slot: &mut Vec<PageId>, slots: usize) {
        let from = if in_slot.contains(&page) { Location::Ssd } else { Location::Hdd };
        policy.read(page, Some(from), Access::Random, NOW);
        if from == Location::Hdd {
            let free = slots - in_slot.len();
            if free == 0 {
                policy.start_zone(slots / 10, &mut |_| true, NOW, &mut Vec::new());
            }
            match policy.consider(page, Cause::Evicted, free, &mut |_| true, NOW) {
                Verdict::AdmitFree => {
                    policy.inserted(page, SlotId(in_slot.len() as u32), NOW);
                    in_slot.push(page);
                }
                Verdict::AdmitOver(slot) => {
                    policy.removed(in_slot[slot.at()], true, NOW);
                    policy.inserted(page, slot, NOW);
                    in_slot[slot.at()] = page;
                }
                Verdict::Reject => {}
            }
        }
        policy.left_pool(page, NOW);
    }

    #[test]
    fn what_a_new_zone_looks_through_is_a_multiple_of_a_ghosts_slots() {
        const SLOTS: usize = 3_000;
        let mut policy =
            Adaptive::new(AutoOptions::DEFAULT, &SlotPolicyParams::new(Costs::PAPER, SLOTS, 1_000));
        let mut in_slot = Vec::new();
        for no in 0..4 * SLOTS as u32 {
            // New pages, some of them again soon.
            let recent = no - no % 7;
            for no in [no, recent] {
                pass(&mut policy, PageId::new(SpaceId(1), no), &mut in_slot, SLOTS);
            }
            let ghosts = &policy.ghosts;
            // Every ghost may hold other pages.
            let most = SETTINGS.len() * (ghosts.slots + 1);
            assert!(ghosts.listed.len() <= 2 * most + 64, "{}: {}", ghosts.slots, ghosts.listed.len());
        }
        assert!(policy.ghosts.slots > 500);
        policy.validate().unwrap();
    }

    #[test]
    fn a_large_ssd_has_ghosts_of_bounded_size() {
        for slots in [1 << 20, 1 << 22, 1 << 26] {
            let ghosts = Ghosts::new(slots, ZonePercent::DEFAULT, slots / 10, Costs::PAPER);
            assert_eq!(ghosts.slots, SLOTS_MAX);
            assert!(ghosts.memory_bytes() < 1 << 20);
        }
    }
}
