//! LRU2, TAC and MV-FIFO (the baselines of Liu & Salem 2013, section 6) and the doublewrite buffer of Kang et
//! al.: hand-computed traces, and comparison with models of their descriptions.

use pagetier_policy::{
    Access, Cause, Costs, Location, Millis, PageId, SlotId, SlotPolicy, SlotPolicyParams, SlotReport,
    SpaceId, Verdict,
};
use pagetier_rivals::ssd::{Doublewrite, Lru2, MvFifo, Tac};
use proptest::prelude::*;
use rustc_hash::FxHashMap;

const NOW: Millis = Millis(0);

fn params(slots: usize) -> SlotPolicyParams {
    SlotPolicyParams::new(Costs::PAPER, slots, 4)
}

fn p(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

fn read(policy: &mut dyn SlotPolicy, no: u32, from: Location) {
    policy.read(p(no), Some(from), Access::Random, NOW);
}

fn zone(policy: &mut dyn SlotPolicy, k: usize) -> Vec<u32> {
    let mut out = Vec::new();
    policy.start_zone(k, &mut |_| true, NOW, &mut out);
    out.iter().map(|slot| slot.0).collect()
}

fn consider(policy: &mut dyn SlotPolicy, no: u32, cause: Cause, free: usize) -> Verdict {
    policy.consider(p(no), cause, free, &mut |_| true, NOW)
}

#[test]
fn lru2_goes_by_the_last_but_one_reference() {
    let mut lru2 = Lru2::new(&params(4));
    for slot in 0..4 {
        lru2.inserted(p(slot), SlotId(slot), NOW);
    }
    // References to 0 1 2 3, then 0, 2, 2, 1: the penultimate ones are number 1, 2, 6, none.
    for no in [0, 2, 2, 1] {
        read(&mut lru2, no, Location::Ssd);
    }
    assert_eq!(zone(&mut lru2, 4), [3, 0, 1, 2]);
    assert_eq!(consider(&mut lru2, 9, Cause::Evicted, 0), Verdict::AdmitOver(SlotId(3)));
    // Read again, 3 has a penultimate reference: its admission, number 4, after those of 0 and 1.
    read(&mut lru2, 3, Location::Ssd);
    assert_eq!(consider(&mut lru2, 9, Cause::Cleaned, 0), Verdict::AdmitOver(SlotId(0)));
    let mut next = Vec::new();
    lru2.next_victims(3, NOW, &mut next);
    assert_eq!(next, [SlotId(0), SlotId(1), SlotId(3)]);
    assert_eq!(consider(&mut lru2, 9, Cause::Cleaned, 1), Verdict::AdmitFree);
}

#[test]
fn lru2_counts_the_admission_of_a_dirty_page_once() {
    let mut lru2 = Lru2::new(&params(3));
    for slot in 0..3 {
        lru2.inserted(p(slot), SlotId(slot), NOW);
        lru2.wrote(p(slot), Location::Ssd, NOW);
    }
    // Page 0 is written again and thereby referenced twice. A write to the HDD is not a reference.
    lru2.wrote(p(0), Location::Ssd, NOW);
    lru2.wrote(p(1), Location::Hdd, NOW);
    assert_eq!(zone(&mut lru2, 3), [1, 2, 0]);
    // A page that moves to another slot keeps its history.
    lru2.removed(p(1), true, NOW);
    lru2.inserted(p(0), SlotId(1), NOW);
    assert_eq!(zone(&mut lru2, 3), [2, 1]);
    lru2.validate().unwrap();
}

#[test]
fn lru2_evicts_within_its_zone() {
    let mut lru2 = Lru2::new(&params(4));
    for slot in 0..4 {
        lru2.inserted(p(slot), SlotId(slot), NOW);
    }
    assert_eq!(zone(&mut lru2, 2), [0, 1]);
    assert_eq!(
        lru2.consider(p(9), Cause::Cleaned, 0, &mut |slot| slot.0 != 0, NOW),
        Verdict::AdmitOver(SlotId(1))
    );
    assert_eq!(lru2.consider(p(9), Cause::Cleaned, 0, &mut |_| false, NOW), Verdict::Reject);
    lru2.removed(p(0), true, NOW);
    lru2.removed(p(1), true, NOW);
    assert_eq!(consider(&mut lru2, 9, Cause::Cleaned, 0), Verdict::Reject);
}

#[test]
fn tac_admits_pages_of_hotter_regions_on_reading_them() {
    let mut tac = Tac::new(&params(2));
    assert!(tac.write_through() && tac.admits_on_read() && tac.append_group().is_none());
    // Regions of 32 pages: 0 and 31 share one, 32 lies in the next.
    for no in [0, 31, 32] {
        read(&mut tac, no, Location::Hdd);
    }
    tac.read(p(32), Some(Location::Hdd), Access::Sequential, NOW);
    tac.read(p(32), None, Access::Random, NOW);
    assert_eq!([0, 1, 32].map(|no| tac.temperature(p(no))), [2.0 * 7.09, 2.0 * 7.09, 7.09]);
    assert_eq!(tac.temperature(PageId::new(SpaceId(2), 0)), 0.0);
    assert_eq!(consider(&mut tac, 0, Cause::Read, 1), Verdict::AdmitFree);
    for (slot, no) in [(0, 0), (1, 32)] {
        tac.inserted(p(no), SlotId(slot), NOW);
    }
    assert_eq!(zone(&mut tac, 2), [1, 0]);
    // 64 has never been read, then is as hot as 32, then hotter.
    assert_eq!(consider(&mut tac, 64, Cause::Read, 0), Verdict::Reject);
    read(&mut tac, 64, Location::Hdd);
    assert_eq!(consider(&mut tac, 64, Cause::Read, 0), Verdict::Reject);
    read(&mut tac, 70, Location::Hdd);
    assert_eq!(consider(&mut tac, 64, Cause::Read, 0), Verdict::AdmitOver(SlotId(1)));
    // Reads from the SSD keep a region hot; a page that leaves the pool or is cleaned is never admitted.
    read(&mut tac, 32, Location::Ssd);
    assert_eq!(consider(&mut tac, 64, Cause::Read, 0), Verdict::Reject);
    assert_eq!(consider(&mut tac, 64, Cause::Evicted, 1), Verdict::Reject);
    assert_eq!(consider(&mut tac, 64, Cause::Cleaned, 1), Verdict::Reject);
    tac.validate().unwrap();
}

#[test]
fn mv_fifo_knows_the_valid_versions_in_order() {
    let mut fifo = MvFifo::new(&params(4), false);
    assert_eq!(fifo.append_group(), Some(1));
    for (slot, no) in [(0, 7), (1, 8), (2, 7), (3, 9)] {
        fifo.inserted(p(no), SlotId(slot), NOW);
    }
    // Slot 0 holds an invalid version of page 7.
    assert_eq!(zone(&mut fifo, 4), [1, 2, 3]);
    assert_eq!(consider(&mut fifo, 5, Cause::Cleaned, 1), Verdict::AdmitFree);
    // Slots are reused in turn; a read changes nothing.
    read(&mut fifo, 8, Location::Ssd);
    fifo.inserted(p(5), SlotId(0), NOW);
    fifo.inserted(p(6), SlotId(1), NOW);
    assert_eq!(zone(&mut fifo, 9), [2, 3, 0, 1]);
    assert!((0..4).all(|slot| !fifo.second_chance(SlotId(slot))));
    fifo.validate().unwrap();
}

#[test]
fn group_second_chance_is_for_pages_read_since_they_were_written() {
    let mut fifo = MvFifo::new(&params(3), true);
    assert_eq!(fifo.append_group(), Some(64));
    for slot in 0..3 {
        fifo.inserted(p(slot), SlotId(slot), NOW);
    }
    read(&mut fifo, 0, Location::Ssd);
    read(&mut fifo, 1, Location::Ssd);
    // The new version of 1 has not been read; a read from the HDD does not count.
    fifo.inserted(p(1), SlotId(2), NOW);
    read(&mut fifo, 1, Location::Hdd);
    assert_eq!([0, 1, 2].map(|slot| fifo.second_chance(SlotId(slot))), [true, false, false]);
    // It is one chance: once appended again, the page must be read again.
    fifo.inserted(p(0), SlotId(1), NOW);
    assert!(!fifo.second_chance(SlotId(1)));
}

#[test]
fn the_doublewrite_buffer_takes_what_is_cleaned_and_nothing_else() {
    let mut buffer = Doublewrite::new(&params(3));
    assert!(buffer.write_through() && !buffer.admits_on_read());
    assert_eq!(buffer.append_group(), Some(1));
    for cause in [Cause::Evicted, Cause::Read] {
        assert_eq!(consider(&mut buffer, 7, cause, 1), Verdict::Reject, "{cause:?}");
    }
    assert_eq!(consider(&mut buffer, 7, Cause::Cleaned, 1), Verdict::AdmitFree);
    for (slot, no) in [(0, 7), (1, 8), (2, 7)] {
        buffer.inserted(p(no), SlotId(slot), NOW);
    }
    // The older version of 7 is invalid; a read moves nothing and earns no second chance.
    read(&mut buffer, 8, Location::Ssd);
    assert_eq!(zone(&mut buffer, 3), [1, 2]);
    assert!((0..3).all(|slot| !buffer.second_chance(SlotId(slot))));
    buffer.inserted(p(9), SlotId(0), NOW);
    assert_eq!(zone(&mut buffer, 3), [1, 2, 0]);
    buffer.removed(p(8), true, NOW);
    assert_eq!(zone(&mut buffer, 3), [2, 0]);
    buffer.validate().unwrap();
}

const SLOTS: usize = 8;

/// A literal model of a zone's candidates and its end: the lowest rank goes first, equal ranks by slot.
struct ZoneModel<K> {
    slots: Vec<u32>,
    /// The lowest rank outside the zone when it began, if any slot was outside.
    ceiling: Option<K>,
    young_for: usize,
}

impl<K: Ord + Copy> ZoneModel<K> {
    fn new() -> Self {
        Self { slots: Vec::new(), ceiling: None, young_for: 0 }
    }

    fn start(&mut self, k: usize, eligible: impl Iterator<Item = (K, u32)>) -> Vec<u32> {
        let mut all: Vec<_> = eligible.collect();
        all.sort_unstable();
        self.ceiling = all.get(k).map(|outside| outside.0);
        self.slots = all.iter().take(k).map(|candidate| candidate.1).collect();
        self.young_for = self.slots.len();
        self.slots.clone()
    }

    fn leave(&mut self, slot: u32) {
        self.slots.retain(|&other| other != slot);
    }

    /// The candidates, lowest first. Once the zone is not young, it excludes candidates above the ceiling; if
    /// none is left, the zone ends.
    fn in_order(&mut self, rank: impl Fn(u32) -> K) -> Vec<u32> {
        let (ceiling, young) = (self.ceiling, self.young_for > 0);
        let mut order = self.slots.clone();
        order.sort_unstable_by_key(|&slot| (rank(slot), slot));
        order.retain(|&slot| young || ceiling.is_none_or(|ceiling| rank(slot) <= ceiling));
        if order.is_empty() {
            self.slots.clear();
        }
        order
    }

    /// Chooses the lowest candidate among `usable`; it must rank below `below`, if given.
    fn decide(&mut self, below: Option<K>, usable: u32, rank: impl Fn(u32) -> K) -> Verdict {
        self.young_for = self.young_for.saturating_sub(1);
        let order = self.in_order(&rank).into_iter();
        let mut lower = order.filter(|&slot| below.is_none_or(|below| rank(slot) < below));
        let slot = lower.find(|&slot| usable & 1 << slot != 0);
        slot.map_or(Verdict::Reject, |slot| Verdict::AdmitOver(SlotId(slot)))
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// Reads the page from its home, by read-ahead or not, and considers it for `cause`; the bits of `usable`
    /// mark the slots that it may replace.
    Use {
        no: u32,
        ahead: bool,
        cause: Cause,
        usable: u32,
    },
    /// Cleans the page in place.
    Rewrite(u32),
    /// Cleans the page to another slot.
    Move(u32),
    Invalidate(u32),
    /// Starts a zone of this many slots, out of those whose bits are set.
    StartZone(usize, u32),
    NextVictims(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let no = || prop_oneof![0..12u32, 0..30u32];
    let bits = || prop_oneof![2 => Just(u32::MAX), 1 => any::<u32>()];
    let cause = prop_oneof![Just(Cause::Evicted), Just(Cause::Cleaned), Just(Cause::Read)];
    let used = (no(), prop::bool::weighted(0.1), cause, bits());
    let event = prop_oneof![
        12 => used.prop_map(|(no, ahead, cause, usable)| Event::Use { no, ahead, cause, usable }),
        4 => no().prop_map(Event::Rewrite),
        2 => no().prop_map(Event::Move),
        2 => no().prop_map(Event::Invalidate),
        3 => (0..=SLOTS, bits()).prop_map(|(k, eligible)| Event::StartZone(k, eligible)),
        1 => (0..=SLOTS).prop_map(Event::NextVictims),
    ];
    prop::collection::vec(event, 1..300)
}

/// The page in each slot.
#[derive(Default)]
struct Ssd([Option<u32>; SLOTS]);

impl Ssd {
    fn slot_of(&self, no: u32) -> Option<u32> {
        self.0.iter().position(|&page| page == Some(no)).map(|slot| slot as u32)
    }

    fn free(&self) -> Option<u32> {
        self.0.iter().position(Option::is_none).map(|slot| slot as u32)
    }

    fn set(&mut self, slot: u32, page: Option<u32>) {
        self.0[slot as usize] = page;
    }

    /// The occupied slots and their pages, out of those whose bits are set.
    fn occupied(&self, bits: u32) -> impl Iterator<Item = (u32, u32)> {
        let pages = self.0.iter().enumerate().filter_map(|(slot, page)| Some((slot as u32, (*page)?)));
        pages.filter(move |&(slot, _)| bits & 1 << slot != 0)
    }
}

/// A policy and its model: callers pass `rank`, the rank of a page in `ssd`.
struct Pair<'a, K> {
    real: &'a mut dyn SlotPolicy,
    ssd: Ssd,
    zone: ZoneModel<K>,
}

impl<K: Ord + Copy> Pair<'_, K> {
    fn start_zone(&mut self, k: usize, bits: u32, rank: impl Fn(u32) -> K) -> Result<(), TestCaseError> {
        let mut out = Vec::new();
        self.real.start_zone(k, &mut |slot| bits & 1 << slot.0 != 0, NOW, &mut out);
        let expected = self.zone.start(k, self.ssd.occupied(bits).map(|(slot, no)| (rank(no), slot)));
        prop_assert_eq!(out, expected.into_iter().map(SlotId).collect::<Vec<_>>());
        Ok(())
    }

    fn next_victims(&mut self, n: usize, rank: impl Fn(u32) -> K) -> Result<(), TestCaseError> {
        let mut out = Vec::new();
        self.real.next_victims(n, NOW, &mut out);
        let pages = self.ssd.0;
        let order =
            if n > 0 { self.zone.in_order(|slot| rank(pages[slot as usize].unwrap())) } else { vec![] };
        prop_assert_eq!(out, order.into_iter().take(n).map(SlotId).collect::<Vec<_>>());
        Ok(())
    }

    /// Considers page `no`, whose rank would be `below`, and returns the slot it got.
    fn admit(
        &mut self,
        no: u32,
        cause: Cause,
        usable: u32,
        below: Option<K>,
        rank: impl Fn(u32) -> K,
    ) -> Result<Option<u32>, TestCaseError> {
        let free = self.ssd.free();
        let takes = &mut |slot: SlotId| usable & 1 << slot.0 != 0;
        let verdict = self.real.consider(p(no), cause, usize::from(free.is_some()), takes, NOW);
        let pages = self.ssd.0;
        let rank = |slot: u32| rank(pages[slot as usize].unwrap());
        let expected = match free {
            Some(_) => Verdict::AdmitFree,
            None => self.zone.decide(below, usable, rank),
        };
        prop_assert_eq!(verdict, expected);
        let slot = match verdict {
            Verdict::Reject => return Ok(None),
            Verdict::AdmitFree => free.unwrap(),
            Verdict::AdmitOver(slot) => {
                self.remove(pages[slot.at()].unwrap(), true);
                slot.0
            }
        };
        self.insert(no, slot);
        Ok(Some(slot))
    }

    fn insert(&mut self, no: u32, slot: u32) {
        if let Some(before) = self.ssd.slot_of(no) {
            self.ssd.set(before, None);
            self.zone.leave(before);
        }
        self.ssd.set(slot, Some(no));
        self.real.inserted(p(no), SlotId(slot), NOW);
    }

    /// Removes the page; returns whether it was on the SSD.
    fn remove(&mut self, no: u32, evicted: bool) -> bool {
        let slot = self.ssd.slot_of(no);
        if let Some(slot) = slot {
            self.ssd.set(slot, None);
            self.zone.leave(slot);
        }
        self.real.removed(p(no), evicted, NOW);
        slot.is_some()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lru2_agrees_with_histories(events in events()) {
        let mut lru2 = Lru2::new(&params(SLOTS));
        let mut pair = Pair { real: &mut lru2, ssd: Ssd::default(), zone: ZoneModel::new() };
        // The times of the references to the pages on the SSD.
        let mut times: FxHashMap<u32, Vec<usize>> = FxHashMap::default();
        // Ranks by the penultimate reference, then by the last one.
        fn rank(times: &FxHashMap<u32, Vec<usize>>, no: u32) -> (Option<usize>, Option<usize>) {
            let mut times = times[&no].iter().rev().copied();
            let last = times.next();
            (times.next(), last)
        }
        for (time, event) in events.into_iter().enumerate() {
            match event {
                Event::Use { no, ahead, cause, usable } => {
                    let access = if ahead { Access::Sequential } else { Access::Random };
                    if let Some(references) = times.get_mut(&no) {
                        pair.real.read(p(no), Some(Location::Ssd), access, NOW);
                        references.push(time);
                        continue;
                    }
                    pair.real.read(p(no), Some(Location::Hdd), access, NOW);
                    let slot = pair.admit(no, cause, usable, None, |no| rank(&times, no))?;
                    if slot.is_some() {
                        times.retain(|&no, _| pair.ssd.slot_of(no).is_some());
                        times.insert(no, vec![time]);
                    }
                    if cause == Cause::Cleaned {
                        // The write of an admission is the same reference; a write to the HDD is not a
                        // reference.
                        let location = if slot.is_some() { Location::Ssd } else { Location::Hdd };
                        pair.real.wrote(p(no), location, NOW);
                    }
                    pair.real.left_pool(p(no), NOW);
                }
                Event::Rewrite(no) => if let Some(references) = times.get_mut(&no) {
                    pair.real.wrote(p(no), Location::Ssd, NOW);
                    references.push(time);
                },
                Event::Move(no) => if let (Some(references), Some(free)) = (times.get_mut(&no), pair.ssd.free()) {
                    pair.insert(no, free);
                    pair.real.wrote(p(no), Location::Ssd, NOW);
                    references.push(time);
                },
                Event::Invalidate(no) => if pair.remove(no, false) {
                    times.remove(&no);
                },
                Event::StartZone(k, bits) => pair.start_zone(k, bits, |no| rank(&times, no))?,
                Event::NextVictims(n) => pair.next_victims(n, |no| rank(&times, no))?,
            }
            pair.real.validate().map_err(TestCaseError::fail)?;
        }
    }

    #[test]
    fn tac_agrees_with_counting(events in events()) {
        let mut tac = Tac::new(&params(SLOTS));
        let mut pair = Pair { real: &mut tac, ssd: Ssd::default(), zone: ZoneModel::new() };
        let mut reads: Vec<u32> = Vec::new();
        // The pages spread over nine regions.
        let far = |no: u32| no * 9;
        fn heat(reads: &[u32], page: u32) -> usize {
            reads.iter().filter(|&&read| read / 32 == page / 32).count()
        }
        for event in events {
            match event {
                Event::Use { no, ahead, cause, usable } => {
                    let page = far(no);
                    let location = if pair.ssd.slot_of(page).is_some() { Location::Ssd } else { Location::Hdd };
                    let access = if ahead { Access::Sequential } else { Access::Random };
                    pair.real.read(p(page), Some(location), access, NOW);
                    if !ahead {
                        reads.push(page);
                    }
                    if location == Location::Ssd {
                        continue;
                    }
                    if cause == Cause::Read {
                        let own = Some(heat(&reads, page));
                        pair.admit(page, cause, usable, own, |page| heat(&reads, page))?;
                    } else {
                        prop_assert_eq!(consider(pair.real, page, cause, SLOTS), Verdict::Reject);
                    }
                }
                // Written to both devices; writes make no region hotter.
                Event::Rewrite(no) => {
                    pair.real.wrote(p(far(no)), Location::Hdd, NOW);
                    if pair.ssd.slot_of(far(no)).is_some() {
                        pair.real.wrote(p(far(no)), Location::Ssd, NOW);
                    }
                }
                Event::Move(no) => {
                    let here = pair.ssd.slot_of(far(no));
                    if let (Some(_), Some(free)) = (here, pair.ssd.free()) {
                        pair.real.wrote(p(far(no)), Location::Hdd, NOW);
                        pair.insert(far(no), free);
                        pair.real.wrote(p(far(no)), Location::Ssd, NOW);
                    }
                }
                Event::Invalidate(no) => {
                    pair.remove(far(no), false);
                }
                Event::StartZone(k, bits) => pair.start_zone(k, bits, |page| heat(&reads, page))?,
                Event::NextVictims(n) => pair.next_victims(n, |page| heat(&reads, page))?,
            }
            pair.real.validate().map_err(TestCaseError::fail)?;
            for region in 0..9 {
                let known = pair.real.benefit(p(32 * region)).unwrap_or(0.0);
                prop_assert_eq!(known, heat(&reads, 32 * region) as f64 * (7.2 - 0.11) / 32.0);
            }
        }
    }
}
