//! The eviction zone's candidates: a binary heap of slots by benefit, lowest first.
//!
//! The zone holds the pages of low priority (2013 paper, section 5.4). Its *ceiling* is the lowest benefit
//! left outside when the zone began; a candidate whose benefit rises above it is not of low priority. A zone
//! with only such candidates is exhausted and drops them. Without this rule a few pages that became hot after
//! the zone began would keep it alive, and the SSD would reject every page below them. A zone of k slots is
//! not exhausted before k decisions: otherwise, with all benefits drifting upwards, each zone would be
//! exhausted at once. A policy whose benefits change only when a page is accessed uses a *steady* zone, which
//! drops such candidates at any time: the k decisions would evict the pages that were accessed since.
//!
//! A slot's place in the heap is not known: with it, each step of an entry through the heap would write it
//! down somewhere else in memory, which for a zone of a million took most of a decision's time. A new benefit
//! is filed as one more entry, and a removed slot's entry stays; both leave the heap when they come up.

use super::LOOK_MAX;
use crate::collections::slot_set::SlotSet;
use crate::{Costs, SlotId};
use rustc_hash::FxHashMap;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fmt;

/// The maximum number of candidates that one decision re-files under their current benefit. Every eviction
/// changes its group's factor, and thereby the benefits of all the group's pages; a zone of millions cannot
/// be sorted again each time. A decision always compares the current benefit; beyond this number, the filed
/// benefits determine the lowest candidate.
const REFILE_MAX: usize = 8;

/// A candidate and its benefit as one integer with the same order: by benefit, as `f64::total_cmp` orders,
/// and among equals by slot, so that runs are reproducible. The heap compares often and with unpredictable
/// results; an integer compares without a branch. It is kept as three words, since a zone has millions.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry([u32; 3]);

const SIGN: u64 = 1 << 63;

impl Entry {
    fn new(slot: SlotId, benefit: f64) -> Self {
        let bits = benefit.to_bits();
        // Negative numbers have their bits inverted, since the larger of two has the smaller magnitude.
        let ascending = if bits & SIGN == 0 { bits | SIGN } else { !bits };
        Self([(ascending >> 32) as u32, ascending as u32, slot.0])
    }

    fn slot(self) -> SlotId {
        SlotId(self.0[2])
    }

    fn benefit(self) -> f64 {
        let ascending = u64::from(self.0[0]) << 32 | u64::from(self.0[1]);
        f64::from_bits(if ascending & SIGN == 0 { !ascending } else { ascending & !SIGN })
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        let whole = |Self([high, low, slot]): &Self| {
            u128::from(*high) << 64 | u128::from(*low) << 32 | u128::from(*slot)
        };
        whole(self).cmp(&whole(other))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in slot {}", self.benefit(), self.slot().0)
    }
}

/// The slots that may be evicted until the next zone.
#[derive(Debug)]
pub struct Zone {
    /// An entry of each candidate, and outdated ones.
    heap: BinaryHeap<Reverse<Entry>>,
    candidates: SlotSet,
    /// The number of candidates.
    len: usize,
    /// The entries of candidates whose benefit was set anew. Each is in the heap, perhaps twice, and the
    /// slot's other entries are outdated. Every other candidate has one entry.
    updated: FxHashMap<SlotId, Entry>,
    /// Candidates passed over by the current call of [`Zone::lowest`].
    aside: Vec<Entry>,
    /// The lowest benefit outside the zone when it began.
    ceiling: f64,
    /// The decisions to take before the zone can be exhausted.
    young_for: usize,
    /// Whether the zone has no ceiling: only evictions exhaust it.
    strict: bool,
    /// Whether a benefit changes only when its page is accessed: the zone is never young.
    steady: bool,
}

impl Zone {
    /// Creates a zone without candidates.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            heap: BinaryHeap::new(),
            candidates: SlotSet::default(),
            len: 0,
            updated: FxHashMap::default(),
            aside: Vec::new(),
            ceiling: f64::INFINITY,
            young_for: 0,
            strict: false,
            steady: false,
        }
    }

    /// Creates a zone for benefits that change only when a page is accessed.
    pub(crate) fn steady() -> Self {
        Self { steady: true, ..Self::empty() }
    }

    /// Creates a zone whose candidates remain until they are evicted, however their benefits grow: the
    /// paper's wording.
    pub(crate) fn strict() -> Self {
        Self { strict: true, ..Self::empty() }
    }

    /// Makes the `k` lowest of `slots` the only candidates and appends them to `out`, lowest first. O(n + k
    /// log k).
    pub fn start(&mut self, k: usize, slots: impl Iterator<Item = (SlotId, f64)>, out: &mut Vec<SlotId>) {
        // What is left of the last zone stays on the SSD; the new zone may choose it again.
        self.clear();
        self.ceiling = f64::INFINITY;
        // Buffer the lowest k + 1 so far and as many more: linear time without memory for the whole cache.
        // From then on, most slots are above all of the lowest k + 1 and are skipped.
        let keep = k.saturating_add(1);
        let mut low = Vec::new();
        let mut highest = Entry([u32::MAX; 3]);
        for (slot, benefit) in slots {
            let entry = Entry::new(slot, benefit);
            // Cannot be among the k + 1 lowest.
            if entry > highest {
                continue;
            }
            low.push(entry);
            if low.len() / 2 >= keep {
                highest = *low.select_nth_unstable(keep - 1).1;
                low.truncate(keep);
            }
        }
        if k < low.len() {
            let (_, outside, _) = low.select_nth_unstable(k);
            if !self.strict {
                // The first slot left out: a candidate that rises above it would not be chosen today.
                self.ceiling = outside.benefit();
            }
            low.truncate(k);
        }
        low.sort_unstable();
        out.extend(low.iter().map(|entry| entry.slot()));
        // Otherwise a drift of all benefits would exhaust each zone at its first decision.
        self.young_for = if self.steady { 0 } else { low.len() };
        self.len = low.len();
        low.iter().for_each(|entry| self.candidates.set(entry.slot(), true));
        // Half of it held what was sorted out. The heap would double its memory at the first update.
        low.shrink_to(self.len + self.outdated_max());
        self.heap = low.into_iter().map(Reverse).collect();
    }

    pub(crate) fn contains(&self, slot: SlotId) -> bool {
        self.candidates.contains(slot)
    }

    /// Sets the benefit of the page in `slot`, if the slot is a candidate.
    pub fn update(&mut self, slot: SlotId, benefit: f64) {
        let entry = Entry::new(slot, benefit);
        if !self.contains(slot) || self.updated.insert(slot, entry) == Some(entry) {
            return;
        }
        self.heap.push(Reverse(entry));
        if self.heap.len() > self.len + self.outdated_max() {
            self.drop_outdated();
        }
    }

    /// Removes `slot` from the candidates.
    pub fn remove(&mut self, slot: SlotId) {
        if self.contains(slot) {
            self.candidates.set(slot, false);
            self.updated.remove(&slot);
            self.len -= 1;
        }
    }

    /// How many outdated entries the heap may have.
    const fn outdated_max(&self) -> usize {
        self.len / 4 + 64
    }

    /// Makes the heap hold one entry for each candidate.
    fn drop_outdated(&mut self) {
        let mut all = std::mem::take(&mut self.heap).into_vec();
        all.retain(|Reverse(entry)| {
            self.candidates.contains(entry.slot()) && !self.updated.contains_key(&entry.slot())
        });
        all.extend(self.updated.drain().map(|(_, entry)| Reverse(entry)));
        self.heap = BinaryHeap::from(all);
    }

    /// The entry of the candidate of lowest filed benefit.
    fn first(&mut self) -> Option<Entry> {
        loop {
            let Reverse(entry) = *self.heap.peek()?;
            let slot = entry.slot();
            if self.contains(slot) && self.updated.get(&slot).is_none_or(|updated| *updated == entry) {
                return Some(entry);
            }
            self.heap.pop();
        }
    }

    /// Files the first candidate under another benefit.
    fn refile_first(&mut self, entry: Entry) {
        self.note(entry);
        if let Some(mut first) = self.heap.peek_mut() {
            *first = Reverse(entry);
        }
    }

    /// Makes `entry` the one that counts for its slot.
    fn note(&mut self, entry: Entry) {
        if let Some(updated) = self.updated.get_mut(&entry.slot()) {
            *updated = entry;
        }
    }

    /// Takes the entry of the first candidate, which stays a candidate, out of the heap.
    fn take_first(&mut self, entry: Entry) {
        // An update may have filed the same benefit twice.
        while let Some(first) = self.heap.peek_mut()
            && *first == Reverse(entry)
        {
            PeekMut::pop(first);
        }
    }

    /// Takes a decision: returns the candidate of lowest benefit that `usable` accepts, if that benefit is
    /// below `benefit`.
    pub fn decide(
        &mut self,
        benefit: f64,
        now: impl Fn(SlotId) -> f64,
        usable: &mut dyn FnMut(SlotId) -> bool,
    ) -> Option<SlotId> {
        // Each decision counts, also one that rejects: a zone that evicts nothing must be exhausted as well.
        self.young_for = self.young_for.saturating_sub(1);
        let mut found = None;
        self.lowest(LOOK_MAX, now, |slot, lowest| {
            // The order is ascending: if one benefit is too high, so are the rest.
            if lowest < benefit && usable(slot) {
                found = Some(slot);
            }
            found.is_some() || lowest >= benefit
        });
        found
    }

    /// Appends the up to `n` candidates of lowest benefit to `out`, lowest first.
    pub fn next_victims(&mut self, n: usize, now: impl Fn(SlotId) -> f64, out: &mut Vec<SlotId>) {
        if n > 0 {
            self.lowest(n, now, |slot, _| {
                out.push(slot);
                false
            });
        }
    }

    /// Returns the candidate of lowest benefit that `accept` takes, out of at most `look` candidates. A
    /// candidate whose benefit `now` differs from the filed one, because its group's factor changed, is first
    /// re-filed, up to [`REFILE_MAX`] of them.
    fn lowest(
        &mut self,
        look: usize,
        now: impl Fn(SlotId) -> f64,
        mut accept: impl FnMut(SlotId, f64) -> bool,
    ) -> Option<(SlotId, f64)> {
        let (mut found, mut refiled) = (None, 0);
        while let Some(on_file) = self.first() {
            let slot = on_file.slot();
            let benefit = now(slot);
            let entry = Entry::new(slot, benefit);
            // The order on file is that of earlier benefits: without this the page named first might be far
            // from the lowest by now.
            if refiled < REFILE_MAX && entry != on_file {
                self.refile_first(entry);
                refiled += 1;
                continue;
            }
            if benefit > self.ceiling && self.young_for == 0 {
                // Candidates were passed over, for example because they are being read: they are still of low
                // priority, so the zone is not exhausted.
                if !self.aside.is_empty() {
                    break;
                }
                self.spend(&now);
                continue;
            }
            if accept(slot, benefit) {
                found = Some((slot, benefit));
                break;
            }
            self.take_first(on_file);
            self.aside.push(entry);
            if self.aside.len() >= look {
                break;
            }
        }
        // They were refused for the moment only: the next decision may take them.
        while let Some(entry) = self.aside.pop() {
            // Not before: an outdated entry of the same benefit would have counted meanwhile.
            self.note(entry);
            self.heap.push(Reverse(entry));
        }
        found
    }

    /// Handles a lowest candidate above the ceiling: updates all benefits, and drops every candidate above
    /// the ceiling.
    #[cold]
    fn spend(&mut self, now: impl Fn(SlotId) -> f64) {
        self.refresh(now);
        self.heap.retain(|Reverse(entry)| {
            let low = entry.benefit() <= self.ceiling;
            self.candidates.set(entry.slot(), low);
            low
        });
        self.len = self.heap.len();
    }

    /// Removes all candidates, until the next zone starts.
    pub fn clear(&mut self) {
        self.heap = BinaryHeap::new();
        self.candidates.clear();
        self.len = 0;
        self.updated = FxHashMap::default();
    }

    /// Adapts the zone to a change of costs: benefits scale approximately with the saving of a read.
    pub fn reprice(&mut self, before: &Costs, after: &Costs, now: impl Fn(SlotId) -> f64) {
        let factor = after.read_saving_ms() / before.read_saving_ms();
        let scaled = self.ceiling * factor;
        // Costs of which reading from the SSD saves nothing give no order to scale: no ceiling is the safe
        // side, since then only evictions end the zone.
        self.ceiling = if factor > 0.0 && !scaled.is_nan() { scaled } else { f64::INFINITY };
        self.refresh(now);
    }

    /// Recomputes every benefit.
    fn refresh(&mut self, now: impl Fn(SlotId) -> f64) {
        self.drop_outdated();
        let mut all = std::mem::take(&mut self.heap).into_vec();
        for Reverse(entry) in &mut all {
            *entry = Entry::new(entry.slot(), now(entry.slot()));
        }
        self.heap = BinaryHeap::from(all);
    }

    /// The memory of the zone, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        (self.heap.capacity() + self.aside.capacity()) * size_of::<Entry>()
            + self.candidates.memory_bytes()
            + self.updated.capacity() * (size_of::<(SlotId, Entry)>() + 1)
    }

    /// Recounts the candidates and their entries, and checks that every candidate is `occupied`.
    pub fn validate(&self, occupied: impl Fn(SlotId) -> bool) -> Result<(), String> {
        let mut filed: Vec<Entry> = self.heap.iter().map(|Reverse(entry)| *entry).collect();
        filed.retain(|entry| {
            let slot = entry.slot();
            self.contains(slot) && self.updated.get(&slot).is_none_or(|updated| updated == entry)
        });
        if let Some(entry) = filed.iter().find(|entry| !occupied(entry.slot())) {
            return Err(format!("zone: {entry:?}, a candidate, is empty"));
        }
        filed.sort_unstable();
        filed.dedup();
        let (slots, candidates) = (filed.len(), self.candidates.len());
        filed.dedup_by_key(|entry| entry.slot());
        if [slots, candidates, filed.len()] != [self.len; 3] || !self.aside.is_empty() {
            return Err(format!("zone: {candidates} candidates with {slots} entries, {} counted", self.len));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;

    proptest! {
        #[test]
        fn an_entrys_order_is_that_of_its_benefit_and_then_its_slot(
            a in (any::<f64>(), any::<u32>()),
            b in (any::<f64>(), any::<u32>()),
            special in prop::sample::select(vec![0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -1.5]),
        ) {
            for b in [b, (special, b.1), (a.0, b.1), a] {
                let [one, other] = [a, b].map(|(benefit, slot)| Entry::new(SlotId(slot), benefit));
                prop_assert_eq!(one.cmp(&other), a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
                prop_assert_eq!((other.benefit().to_bits(), other.slot()), (b.0.to_bits(), SlotId(b.1)));
            }
        }
    }

    /// The same rules over a plain list of the candidates' entries.
    #[derive(Debug)]
    struct Model {
        filed: Vec<Entry>,
        ceiling: f64,
        young_for: usize,
        steady: bool,
    }

    impl Model {
        fn start(k: usize, benefits: &[f64], steady: bool) -> Self {
            let mut filed: Vec<Entry> =
                benefits.iter().zip(0..).map(|(&benefit, slot)| Entry::new(SlotId(slot), benefit)).collect();
            filed.sort_unstable();
            let ceiling = filed.get(k).map_or(f64::INFINITY, |entry| entry.benefit());
            filed.truncate(k);
            let young_for = if steady { 0 } else { filed.len() };
            Self { filed, ceiling, young_for, steady }
        }

        fn file(&mut self, slot: SlotId, benefit: f64) {
            if let Some(entry) = self.filed.iter_mut().find(|entry| entry.slot() == slot) {
                *entry = Entry::new(slot, benefit);
            }
        }

        fn remove(&mut self, slot: SlotId) {
            self.filed.retain(|entry| entry.slot() != slot);
        }

        /// The slots that are looked at, in order, until one is accepted.
        fn lowest(&mut self, look: usize, now: &[f64], accept: impl Fn(SlotId, f64) -> bool) -> Vec<SlotId> {
            let (mut looked, mut refiled) = (Vec::new(), 0);
            loop {
                let left = self.filed.iter().filter(|entry| !looked.contains(&entry.slot()));
                let Some(&on_file) = left.min() else { return looked };
                let (slot, benefit) = (on_file.slot(), now[on_file.slot().at()]);
                if refiled < REFILE_MAX && Entry::new(slot, benefit) != on_file {
                    refiled += 1;
                    self.file(slot, benefit);
                } else if benefit > self.ceiling && self.young_for == 0 {
                    if !looked.is_empty() {
                        return looked;
                    }
                    self.filed.iter_mut().for_each(|e| *e = Entry::new(e.slot(), now[e.slot().at()]));
                    self.filed.retain(|entry| entry.benefit() <= self.ceiling);
                } else {
                    let accepted = accept(slot, benefit);
                    if !accepted {
                        // It comes back under the benefit of now.
                        self.file(slot, benefit);
                    }
                    looked.push(slot);
                    if accepted || looked.len() >= look {
                        return looked;
                    }
                }
            }
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// The benefit of a slot changes, as that of a whole group does, without a word to the zone.
        Drift(u32, i8),
        /// All benefits change by so much.
        Shift(i8),
        /// The benefit of a slot changes, and the zone is told.
        Update(u32, i8),
        Remove(u32),
        /// A decision about a page of this benefit, where the slots of this remainder by 3 are in use.
        Decide(i8, u32),
        Victims(usize),
        Start(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let slot = || 0..40_u32;
        let step = prop_oneof![
            4 => (slot(), -20..20_i8).prop_map(|(slot, to)| Step::Drift(slot, to)),
            1 => (-3..4_i8).prop_map(Step::Shift),
            24 => (slot(), -20..20_i8).prop_map(|(slot, to)| Step::Update(slot, to)),
            2 => slot().prop_map(Step::Remove),
            4 => (-20..20_i8, 0..4_u32).prop_map(|(benefit, in_use)| Step::Decide(benefit, in_use)),
            2 => (0..20_usize).prop_map(Step::Victims),
            1 => (0..50_usize).prop_map(Step::Start),
        ];
        prop::collection::vec(step, 1..600)
    }

    proptest! {
        #[test]
        fn the_heap_with_outdated_entries_decides_as_a_list_of_the_candidates_does(
            steps in steps(), steady: bool,
        ) {
            let mut benefits: Vec<f64> = (0..40).map(|slot| f64::from(slot * 7 % 13)).collect();
            let mut zone = if steady { Zone::steady() } else { Zone::empty() };
            let mut model = Model::start(0, &benefits, steady);
            for step in steps {
                match step {
                    Step::Drift(slot, to) => benefits[slot as usize] = f64::from(to),
                    Step::Shift(by) => benefits.iter_mut().for_each(|benefit| *benefit += f64::from(by)),
                    Step::Update(slot, to) => {
                        benefits[slot as usize] = f64::from(to);
                        zone.update(SlotId(slot), f64::from(to));
                        model.file(SlotId(slot), f64::from(to));
                    }
                    Step::Remove(slot) => {
                        zone.remove(SlotId(slot));
                        model.remove(SlotId(slot));
                    }
                    Step::Decide(benefit, in_use) => {
                        let (benefit, usable) = (f64::from(benefit), |slot: SlotId| slot.0 % 3 != in_use);
                        let found = zone.decide(benefit, |slot| benefits[slot.at()], &mut |slot| usable(slot));
                        model.young_for = model.young_for.saturating_sub(1);
                        let ends = |slot, lowest| lowest >= benefit || usable(slot);
                        let looked = model.lowest(LOOK_MAX, &benefits, ends);
                        let fits = |slot: &SlotId| benefits[slot.at()] < benefit && usable(*slot);
                        prop_assert_eq!(found, looked.last().copied().filter(fits));
                    }
                    Step::Victims(n) => {
                        let mut out = Vec::new();
                        zone.next_victims(n, |slot| benefits[slot.at()], &mut out);
                        let model = if n == 0 { vec![] } else { model.lowest(n, &benefits, |_, _| false) };
                        prop_assert_eq!(out, model);
                    }
                    Step::Start(k) => {
                        let all = benefits.iter().zip(0..).map(|(&benefit, slot)| (SlotId(slot), benefit));
                        zone.start(k, all, &mut Vec::new());
                        model = Model::start(k, &benefits, model.steady);
                    }
                }
                prop_assert_eq!(zone.validate(|_| true), Ok(()));
                let candidates: Vec<u32> = (0..40).filter(|&slot| zone.contains(SlotId(slot))).collect();
                let mut listed: Vec<u32> = model.filed.iter().map(|entry| entry.slot().0).collect();
                listed.sort_unstable();
                prop_assert_eq!(candidates, listed);
            }
        }
    }

    fn zone_of(benefits: &[f64], k: usize) -> Zone {
        let mut zone = Zone::empty();
        let slots = benefits.iter().enumerate().map(|(slot, &benefit)| (SlotId(slot as u32), benefit));
        zone.start(k, slots, &mut Vec::new());
        zone
    }

    #[test]
    fn the_lowest_are_chosen_whatever_their_order() {
        for n in [0, 1, 2, 5, 40, 301] {
            for k in [0, 1, 2, 7, 299, 300, 301, 400, usize::MAX] {
                let benefits: Vec<f64> = (0..n).map(|i| f64::from(i * 7919 % 301)).collect();
                let mut out = Vec::new();
                let mut zone = Zone::empty();
                let slots = benefits.iter().enumerate().map(|(slot, &b)| (SlotId(slot as u32), b));
                zone.start(k, slots, &mut out);
                zone.validate(|_| true).unwrap();
                let mut sorted = benefits.clone();
                sorted.sort_by(f64::total_cmp);
                let chosen: Vec<f64> = out.iter().map(|slot| benefits[slot.at()]).collect();
                assert_eq!(chosen, sorted[..k.min(sorted.len())]);
                assert_eq!(zone.ceiling, sorted.get(k).copied().unwrap_or(f64::INFINITY));
            }
        }
    }

    #[test]
    fn a_decision_files_a_bounded_number_anew_and_compares_with_what_is_true() {
        let mut benefits: Vec<f64> = (0..1000).map(f64::from).collect();
        let mut zone = zone_of(&benefits, 1000);
        // Every benefit rises: all filed benefits are too low.
        benefits.iter_mut().for_each(|b| *b += 5000.0);
        let looked = Cell::new(0);
        let now = |slot: SlotId| {
            looked.set(looked.get() + 1);
            benefits[slot.at()]
        };
        let lowest = zone.lowest(256, now, |_, _| true);
        assert_eq!(lowest, Some((SlotId(REFILE_MAX as u32), 5000.0 + REFILE_MAX as f64)));
        assert_eq!(looked.get(), REFILE_MAX + 1);
        zone.validate(|_| true).unwrap();
        // After some decisions every entry is up to date, and the lowest is found.
        for _ in 0..1000 {
            zone.lowest(256, |slot| benefits[slot.at()], |_, _| true);
        }
        assert_eq!(zone.lowest(256, |slot| benefits[slot.at()], |_, _| true), Some((SlotId(0), 5000.0)));
    }

    #[test]
    fn a_steady_zone_drops_pages_accessed_since_it_began() {
        let evicted = |mut zone: Zone| {
            let mut benefits: Vec<f64> = (0..100).map(f64::from).collect();
            let slots = benefits.iter().enumerate().map(|(slot, &benefit)| (SlotId(slot as u32), benefit));
            zone.start(10, slots, &mut Vec::new());
            // Accesses to every other candidate raise it above the pages outside of the zone.
            for slot in (0..10).step_by(2) {
                benefits[slot] += 1000.0;
                zone.update(SlotId(slot as u32), benefits[slot]);
            }
            let mut evicted = Vec::new();
            while let Some(slot) = zone.decide(f64::INFINITY, |slot| benefits[slot.at()], &mut |_| true) {
                zone.remove(slot);
                evicted.push(slot.0);
            }
            evicted
        };
        assert_eq!(evicted(Zone::steady()), [1, 3, 5, 7, 9]);
        assert_eq!(evicted(Zone::empty()), [1, 3, 5, 7, 9, 0, 2, 4, 6]);
    }

    #[test]
    fn no_more_than_asked_are_looked_at() {
        let benefits = [4.0, 2.0, 3.0, 1.0];
        let mut zone = zone_of(&benefits, 4);
        let mut seen = Vec::new();
        let refuse = |slot: SlotId, _: f64| {
            seen.push(slot.0);
            false
        };
        assert_eq!(zone.lowest(3, |slot| benefits[slot.at()], refuse), None);
        assert_eq!(seen, [3, 1, 2]);
        zone.validate(|_| true).unwrap();
    }
}
