//! The SSD below each ghost of the pool.
//!
//! The ranking of the pool determines which pages the SSD holds: a page that one ranking keeps in memory is
//! missed under another, and admitted to the SSD. The homes in the actual store are those of the ranking in
//! force, so each ghost has an SSD in proportion to its size, with contents of its own.
//!
//! All of them rank as the SSD's settings `half-life-16` and `half-life-4` do: by a decaying sum of what a
//! slot would have saved the page's accesses. The half-life is that of the setting that the actual SSD
//! follows, within bounds. A ghost evicts the page of the lowest sum among a few drawn at random, which takes
//! no queues. The generator has a fixed seed, so everything is deterministic.

use super::ranked::Ranking;
use crate::collections::page_index::PageIndex;
use crate::{Costs, Location, PageId};

const N: usize = Ranking::ALL.len();

/// The bounds of the half-life, in misses per slot. Sums of shorter half-lives rank a sample poorly; those
/// that hardly decay differ little from the longest.
const HALF_LIFE_MIN: f64 = 4.0;
const HALF_LIFE_MAX: f64 = 16.0;

/// The number of pages drawn to find one to evict.
const DRAWN: usize = 12;

/// The maximum number of records, in halves of the slots of one ghost.
const RECORDS_HALVES: usize = 5;

/// Keys are rebased when the time exceeds this many half-lives: an f32 then still resolves 1/2048 of one.
const HALF_LIVES_MAX: f64 = 4096.0;

/// A page that a ghost of the pool missed or evicted.
#[derive(Clone, Copy, Debug)]
struct Known {
    page: PageId,
    /// Per ghost, the logarithm of the sum plus the time of the last access in half-lives: decay lowers all
    /// sums at the same rate, so a key changes only when the page is accessed.
    keys: [f32; N],
    /// Which ghosts' SSDs hold the page: one bit each.
    held: u8,
    /// Which of them hold a version newer than the HDD's.
    newer: u8,
}

const _: () = assert!(size_of::<Known>() == 28);

/// The outcome of offering a page to a ghost's SSD.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Offered {
    pub(crate) cost_ms: f64,
    /// The page that lost its slot.
    pub(crate) displaced: Option<PageId>,
}

impl Offered {
    const fn costing(cost_ms: f64) -> Self {
        Self { cost_ms, displaced: None }
    }
}

/// The SSDs of all ghosts. They share one record per page.
#[derive(Debug)]
pub(crate) struct Below {
    known: Vec<Known>,
    index: PageIndex,
    /// The slots of each ghost's SSD, and how many of them hold a page.
    slots: usize,
    /// An access counts half after this many misses per slot.
    half_life: f64,
    used: [usize; N],
    /// Misses of the sample since the keys were rebased.
    misses: u64,
    random: u64,
}

impl Below {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            known: Vec::with_capacity(records_max(slots)),
            index: PageIndex::with_capacity(records_max(slots)),
            slots,
            half_life: HALF_LIFE_MAX,
            used: [0; N],
            misses: 0,
            random: 0x9E37_79B9_7F4A_7C15,
        }
    }

    /// The time in half-lives.
    fn now(&self) -> f64 {
        self.misses as f64 / (self.half_life * self.slots.max(1) as f64)
    }

    /// Records that the actual pool missed a page of the sample: the clock of the sums.
    pub(crate) fn tick(&mut self) {
        self.misses += 1;
        if self.now() > HALF_LIVES_MAX {
            let now = self.now() as f32;
            self.known.iter_mut().flat_map(|known| &mut known.keys).for_each(|key| *key -= now);
            self.misses = 0;
        }
    }

    /// Ranks by sums of this half-life, within bounds, from now on. Sums keep their present values.
    /// O(records).
    #[cold]
    pub(crate) fn set_half_life(&mut self, half_life: f64) {
        let before = self.now();
        self.half_life = half_life.clamp(HALF_LIFE_MIN, HALF_LIFE_MAX);
        let shift = (self.now() - before) as f32;
        self.known.iter_mut().flat_map(|known| &mut known.keys).for_each(|key| *key += shift);
    }

    fn find(&self, page: PageId) -> Option<usize> {
        self.index.find(page, |no| self.known[no as usize].page).map(|no| no as usize)
    }

    /// The home of `page` under ghost `at`.
    pub(crate) fn location(&self, at: usize, page: PageId) -> Location {
        let held = self.find(page).is_some_and(|no| self.known[no].held >> at & 1 != 0);
        if held { Location::Ssd } else { Location::Hdd }
    }

    /// Records that ghost `at` missed the page. Returns the page's home.
    pub(crate) fn read(&mut self, at: usize, page: PageId, costs: &Costs) -> Location {
        let location = self.location(at, page);
        self.add(at, page, costs.read_saving_ms());
        location
    }

    /// Records that the page changed in ghost `at`. Returns whether that invalidated a copy on its SSD.
    pub(crate) fn changed(&mut self, at: usize, page: PageId) -> bool {
        let Some(no) = self.find(page) else { return false };
        let Known { held, newer, .. } = self.known[no];
        let invalid = (held & !newer) >> at & 1 != 0;
        if invalid {
            self.vacate(at, no);
        }
        invalid
    }

    /// Records that ghost `at` evicted the page, dirty or clean, and offers it to the ghost's SSD.
    pub(crate) fn evicted(&mut self, at: usize, page: PageId, dirty: bool, costs: &Costs) -> Offered {
        let saved_ms = costs.hdd_write_ms - costs.ssd_write_ms;
        if dirty {
            self.add(at, page, saved_ms);
        }
        if self.location(at, page) == Location::Ssd {
            return Offered::costing(if dirty { costs.ssd_write_ms } else { 0.0 });
        }
        let at_hand = if self.half_life < HALF_LIFE_MAX { 2.0 } else { 3.0 };
        let at_hand_ms = at_hand * if dirty { saved_ms } else { -costs.ssd_write_ms };
        let Some((no, displaced)) = self.place_for(at, page, at_hand_ms) else {
            return Offered::costing(if dirty { costs.hdd_write_ms } else { 0.0 });
        };
        let known = &mut self.known[no];
        known.held |= 1 << at;
        known.newer = known.newer & !(1 << at) | (dirty as u8) << at;
        self.used[at] += 1;
        // The write-back that the eviction will take is charged now, as in the SSD's ghosts.
        let copy_ms = if dirty { costs.ssd_read_ms + costs.hdd_write_ms } else { 0.0 };
        Offered { cost_ms: costs.ssd_write_ms + copy_ms, displaced }
    }

    /// Returns the page's record, and the page evicted for it, if the page is worth a slot.
    fn place_for(&mut self, at: usize, page: PageId, at_hand_ms: f64) -> Option<(usize, Option<PageId>)> {
        let no = self.record(page);
        if self.used[at] < self.slots {
            return Some((no, None));
        }
        let victim = self.lowest(|known| known.held >> at & 1 != 0, |known| known.keys[at])?;
        let worth_ms = self.sum_ms(at, no) + at_hand_ms;
        if self.sum_ms(at, victim) >= worth_ms {
            return None;
        }
        self.vacate(at, victim);
        Some((no, Some(self.known[victim].page)))
    }

    fn vacate(&mut self, at: usize, no: usize) {
        self.known[no].held &= !(1 << at);
        self.known[no].newer &= !(1 << at);
        self.used[at] -= 1;
    }

    fn sum_ms(&self, at: usize, no: usize) -> f64 {
        (f64::from(self.known[no].keys[at]) - self.now()).exp2()
    }

    fn add(&mut self, at: usize, page: PageId, saved_ms: f64) {
        let no = self.record(page);
        let sum_ms = (self.sum_ms(at, no) + saved_ms).max(f64::MIN_POSITIVE);
        self.known[no].keys[at] = (sum_ms.log2() + self.now()) as f32;
    }

    /// The record of `page`; a new one if there is none, in the place of another if there are too many.
    fn record(&mut self, page: PageId) -> usize {
        if let Some(no) = self.find(page) {
            return no;
        }
        if self.known.len() >= records_max(self.slots) {
            let newest = |known: &Known| known.keys.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let other = self.lowest(|known| known.held == 0, newest);
            // The draws may meet only pages that a ghost holds: then forget one of these.
            let other = other.unwrap_or_else(|| self.draw());
            self.forget(other);
        }
        let no = self.known.len();
        self.known.push(Known { page, keys: [f32::NEG_INFINITY; N], held: 0, newer: 0 });
        let known = &self.known;
        self.index.insert(page, no as u32, |no| known[no as usize].page);
        no
    }

    fn forget(&mut self, no: usize) {
        (0..N).filter(|at| self.known[no].held >> at & 1 != 0).for_each(|at| self.used[at] -= 1);
        let (last, known) = (self.known.len() - 1, &self.known);
        self.index.remove(known[no].page, |no| known[no as usize].page);
        if no != last {
            self.index.remove(known[last].page, |no| known[no as usize].page);
        }
        self.known.swap_remove(no);
        let known = &self.known;
        if let Some(moved) = known.get(no) {
            self.index.insert(moved.page, no as u32, |no| known[no as usize].page);
        }
    }

    /// Of a few records drawn at random among those `wanted`, the one with the lowest key.
    fn lowest(&mut self, wanted: impl Fn(&Known) -> bool, key: impl Fn(&Known) -> f32) -> Option<usize> {
        let (mut found, mut lowest) = (0, None);
        // A full SSD holds at least two of five records, so these draws nearly always find enough.
        for _ in 0..4 * DRAWN {
            let no = self.draw();
            let known = &self.known[no];
            if wanted(known) {
                found += 1;
                let key = key(known);
                if lowest.is_none_or(|(_, least)| key < least) {
                    lowest = Some((no, key));
                }
            }
            if found == DRAWN {
                break;
            }
        }
        lowest.map(|(no, _)| no)
    }

    /// A record drawn at random; there must be one.
    fn draw(&mut self) -> usize {
        // Marsaglia's xorshift.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((u128::from(self.random) * self.known.len() as u128) >> 64) as usize
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.known.capacity() * size_of::<Known>() + self.index.memory_bytes()
    }

    /// Recounts the slots, and looks every record up.
    pub(crate) fn validate(&self) -> Result<(), String> {
        for at in 0..N {
            let held = self.known.iter().filter(|known| known.held >> at & 1 != 0).count();
            if held != self.used[at] || held > self.slots {
                return Err(format!("SSD of ghost {at}: {held} pages, {} counted", self.used[at]));
            }
        }
        if let Some((no, known)) =
            self.known.iter().enumerate().find(|(no, known)| self.find(known.page) != Some(*no))
        {
            return Err(format!("record {no} of page {} is not found", known.page));
        }
        if self.index.len() != self.known.len()
            || self.known.iter().any(|known| known.newer & !known.held != 0)
        {
            return Err(format!("{} records, {} indexed", self.known.len(), self.index.len()));
        }
        Ok(())
    }
}

const fn records_max(slots: usize) -> usize {
    slots * RECORDS_HALVES / 2 + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SpaceId;
    use proptest::prelude::*;

    const COSTS: Costs = Costs::PAPER;

    fn page(no: u32) -> PageId {
        PageId::new(SpaceId(1), no)
    }

    /// The pages below 10 that the SSD of ghost `at` holds.
    fn held(below: &Below, at: usize) -> Vec<u32> {
        (0..10).filter(|&no| below.location(at, page(no)) == Location::Ssd).collect()
    }

    #[test]
    fn each_ghost_fills_an_ssd_of_its_own() {
        let mut below = Below::new(4);
        for no in 0..3 {
            assert_eq!(below.read(0, page(no), &COSTS), Location::Hdd);
            below.evicted(0, page(no), false, &COSTS);
        }
        below.evicted(1, page(7), true, &COSTS);
        assert_eq!([0, 1, 2].map(|at| held(&below, at)), [vec![0, 1, 2], vec![7], vec![]]);
        assert_eq!(
            (below.read(0, page(1), &COSTS), below.read(1, page(1), &COSTS)),
            (Location::Ssd, Location::Hdd)
        );
        below.validate().unwrap();
    }

    #[test]
    fn a_page_takes_the_slot_of_one_that_saved_less() {
        let mut below = Below::new(2);
        for (no, reads) in [(0, 5), (1, 1)] {
            (0..reads).for_each(|_| assert_eq!(below.read(0, page(no), &COSTS), Location::Hdd));
            below.evicted(0, page(no), false, &COSTS);
        }
        // A page without reads is worth less than either, and one with two reads more than the second.
        assert_eq!(below.evicted(0, page(2), false, &COSTS), Offered::costing(0.0));
        (0..2).for_each(|_| assert_eq!(below.read(0, page(3), &COSTS), Location::Hdd));
        let offered = below.evicted(0, page(3), false, &COSTS);
        assert_eq!(offered, Offered { cost_ms: COSTS.ssd_write_ms, displaced: Some(page(1)) });
        assert_eq!(held(&below, 0), [0, 3]);
    }

    #[test]
    fn old_reads_are_worth_less() {
        let mut below = Below::new(1);
        (0..8).for_each(|_| assert_eq!(below.read(0, page(0), &COSTS), Location::Hdd));
        below.evicted(0, page(0), false, &COSTS);
        (0..4 * HALF_LIFE_MAX as u32).for_each(|_| below.tick());
        // Eight reads of four half-lives ago are worth half a read.
        assert_eq!(below.read(0, page(1), &COSTS), Location::Hdd);
        below.evicted(0, page(1), false, &COSTS);
        assert_eq!(held(&below, 0), [1]);
    }

    #[test]
    fn a_shorter_half_life_discounts_later_time_alone() {
        let mut below = Below::new(1);
        assert_eq!(below.read(0, page(0), &COSTS), Location::Hdd);
        (0..HALF_LIFE_MAX as u32).for_each(|_| below.tick());
        let reads = |below: &Below| below.sum_ms(0, below.find(page(0)).unwrap()) / COSTS.read_saving_ms();
        for half_life in [4.0, f64::INFINITY, 0.25] {
            below.set_half_life(half_life);
            assert!((reads(&below) - 0.5).abs() < 1e-4, "{half_life}: {}", reads(&below));
        }
        (0..HALF_LIFE_MIN as u32).for_each(|_| below.tick());
        assert!((reads(&below) - 0.25).abs() < 1e-4, "{}", reads(&below));
        below.validate().unwrap();
    }

    #[test]
    fn a_change_invalidates_a_copy_unless_it_is_newer_than_the_hdds() {
        let mut below = Below::new(4);
        below.evicted(0, page(0), false, &COSTS);
        below.evicted(0, page(1), true, &COSTS);
        assert_eq!([0, 1, 2].map(|no| below.changed(0, page(no))), [true, false, false]);
        assert_eq!(held(&below, 0), [1]);
        // The next write of the page overwrites its slot.
        assert_eq!(below.evicted(0, page(1), true, &COSTS), Offered::costing(COSTS.ssd_write_ms));
    }

    #[test]
    fn without_an_ssd_every_page_is_on_the_hdd() {
        let mut below = Below::new(0);
        for no in 0..10 {
            below.tick();
            assert_eq!(below.read(0, page(no), &COSTS), Location::Hdd);
            assert_eq!(below.evicted(0, page(no), true, &COSTS), Offered::costing(COSTS.hdd_write_ms));
            assert_eq!(below.evicted(0, page(no), false, &COSTS), Offered::costing(0.0));
        }
        below.validate().unwrap();
    }

    #[test]
    fn keys_are_rebased_without_changing_what_pages_are_worth() {
        let mut below = Below::new(1);
        let ticks = (HALF_LIVES_MAX * HALF_LIFE_MAX) as u64;
        (0..ticks - 1).for_each(|_| below.tick());
        assert_eq!(below.read(0, page(0), &COSTS), Location::Hdd);
        (0..2).for_each(|_| below.tick());
        assert_eq!(below.misses, 0);
        let no = below.find(page(0)).unwrap();
        let sum_ms = below.sum_ms(0, no) / COSTS.read_saving_ms();
        assert!((0.85..1.0).contains(&sum_ms), "{sum_ms}");
    }

    proptest! {
        #[test]
        fn the_records_stay_bounded_and_consistent(
            slots in 0..12_usize,
            steps in proptest::collection::vec((0..5_u8, 0..N, 0..40_u32), 0..400),
        ) {
            let mut below = Below::new(slots);
            let before = below.memory_bytes();
            for (step, at, no) in steps {
                match step {
                    0 => below.tick(),
                    1 => { below.read(at, page(no), &COSTS); }
                    2 => { below.changed(at, page(no)); }
                    _ => { below.evicted(at, page(no), step == 3, &COSTS); }
                }
                below.validate().map_err(TestCaseError::fail)?;
            }
            prop_assert_eq!(below.memory_bytes(), before);
        }
    }
}
