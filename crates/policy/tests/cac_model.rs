//! Compares CAC and CC, on random events, with a model that keeps a log per page and computes everything from
//! it.

use pagetier_policy::ssd::{Cac, CacOptions, Dropped};
use pagetier_policy::{
    Access, Cause, Costs, Home, Millis, PageCounts, PageId, SlotId, SlotPolicy, SlotPolicyParams, SpaceId,
    SsdPolicy, Verdict,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the options that a policy's name selects.
fn options(name: &str) -> CacOptions {
    match name.parse() {
        Ok(SsdPolicy::Cac(options)) => options,
        other => panic!("{name}: {other:?}"),
    }
}

/// The number of parts that an access counts as, so that counts can be halved.
const PARTS: u64 = 64;

#[derive(Clone, Copy, PartialEq, Debug)]
enum What {
    Read,
    Logical,
    Write,
}

/// A kind of access, its home, and a number of its parts.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Entry(What, Home, u64);

/// Every kind of access at every home.
const KINDS: [(What, Home); 6] = [
    (What::Read, Home::Ssd),
    (What::Read, Home::Hdd),
    (What::Logical, Home::Ssd),
    (What::Logical, Home::Hdd),
    (What::Write, Home::Ssd),
    (What::Write, Home::Hdd),
];

/// Returns the total parts of this kind of access at `home` in `log`.
fn parts(log: &[Entry], what: What, home: Home) -> u64 {
    log.iter().filter(|entry| (entry.0, entry.1) == (what, home)).map(|entry| entry.2).sum()
}

/// Returns a log with half of each total, rounded down.
fn half(log: &[Entry]) -> Vec<Entry> {
    KINDS.iter().map(|&(what, home)| Entry(what, home, parts(log, what, home) / 2)).collect()
}

type Group = (SpaceId, u16);

#[derive(Clone, Debug)]
struct Page {
    log: Vec<Entry>,
    /// The number of log entries included in its group.
    settled: usize,
    group: Option<Group>,
    born: u64,
    buffered: bool,
    slot: Option<u32>,
}

impl Page {
    /// The log entries not yet included in its group.
    fn waiting(&self) -> &[Entry] {
        &self.log[self.settled..]
    }
}

struct Model {
    params: SlotPolicyParams,
    anticipates: bool,
    /// The weight of the write at hand.
    at_once: f64,
    /// The weight of the copy that evicting a dirty slot costs: unconditionally, and scaled by the likelihood
    /// that the page is rewritten.
    eviction: f64,
    eviction_if_rewritten: f64,
    /// Slots whose version is newer than the HDD's.
    dirty: BTreeSet<u32>,
    /// Reads of pages that dropped out of the outqueue, if the options remember them.
    sketch: Option<BTreeMap<PageId, usize>>,
    pages: BTreeMap<PageId, Page>,
    outqueue: Vec<PageId>,
    /// Logs of dropped pages, if they stay in their groups' sums; and the excess of a group's sums over its
    /// pages' counts after both were halved.
    gone: Vec<(Group, Vec<Entry>)>,
    /// The number of physical accesses between halvings, if any; and the number so far.
    halve_after: Option<u64>,
    accesses: u64,
    /// The times of the halvings.
    halved: Vec<Millis>,
    /// The zone's candidates with the benefit at which they were last filed.
    zone: Vec<(u32, f64)>,
    /// The lowest benefit outside the zone when it began.
    ceiling: f64,
    /// The decisions to take before the zone can be exhausted.
    young_for: usize,
}

impl Model {
    fn new(params: SlotPolicyParams, anticipates: bool) -> Self {
        Self {
            params,
            anticipates,
            at_once: 0.0,
            eviction: 0.0,
            eviction_if_rewritten: 0.0,
            dirty: BTreeSet::new(),
            sketch: None,
            pages: BTreeMap::new(),
            outqueue: vec![],
            gone: vec![],
            halve_after: None,
            accesses: 0,
            halved: vec![],
            zone: vec![],
            ceiling: f64::INFINITY,
            young_for: 0,
        }
    }

    fn subrange(&self, page: &Page, now: Millis) -> u16 {
        let logical = [Home::Ssd, Home::Hdd].map(|home| parts(&page.log, What::Logical, home));
        let logical = (logical[0] + logical[1]) / PARTS;
        let age = (now.0 / 100 - page.born) as f64 / 600.0;
        // The time before a halving counts half, like the accesses in it.
        let minutes = |from: Millis, to: Millis| (to.0 - from.0) as f64 / 60_000.0;
        let (mut counted, mut since) = (0.0, Millis(0));
        for &at in &self.halved {
            counted = (counted + minutes(since, at)) / 2.0;
            since = at;
        }
        let age = if self.halved.is_empty() { age } else { age.min(counted + minutes(since, now)) };
        let rate = logical as f64 / (age * self.params.group_width_per_min).max(1.0);
        rate.min(f64::from(self.params.subranges_max - 1)) as u16
    }

    fn settle(&mut self, id: PageId, now: Millis) {
        let subrange = self.subrange(&self.pages[&id], now);
        let page = self.pages.get_mut(&id).unwrap();
        page.settled = page.log.len();
        page.group = Some((id.space, subrange));
        self.refile(id);
    }

    /// The log entries included in a group, from the logs of its pages.
    fn log_of(&self, group: Group) -> Vec<Entry> {
        let live = self.pages.values().filter(|p| p.group == Some(group)).map(|p| &p.log[..p.settled]);
        let gone = self.gone.iter().filter(|g| g.0 == group).map(|g| &g.1[..]);
        live.chain(gone).flatten().copied().collect()
    }

    /// The miss rates of a group, on the SSD and off it.
    fn miss_rates(&self, group: Group) -> [Option<f64>; 2] {
        let log = self.log_of(group);
        [Home::Ssd, Home::Hdd].map(|home| {
            let [reads, logical] = [What::Read, What::Logical].map(|what| parts(&log, what, home));
            (logical > 0).then(|| reads as f64 / logical as f64)
        })
    }

    /// Records a physical access.
    fn accessed(&mut self, now: Millis) {
        self.accesses += 1;
        if self.halve_after.is_some_and(|after| self.accesses.is_multiple_of(after)) {
            self.halve(now);
        }
    }

    /// Halves the counts of every page and of every group.
    fn halve(&mut self, now: Millis) {
        for id in self.pages.keys().copied().collect::<Vec<_>>() {
            self.settle(id, now);
        }
        let groups =
            self.pages.values().filter_map(|page| page.group).chain(self.gone.iter().map(|gone| gone.0));
        let known: BTreeMap<Group, Vec<Entry>> =
            groups.map(|group| (group, half(&self.log_of(group)))).collect();
        for page in self.pages.values_mut() {
            page.log = half(&page.log);
            page.settled = page.log.len();
        }
        self.gone.clear();
        self.halved.push(now);
        if self.params.dropped == Dropped::Kept {
            for (group, log) in known {
                let of_pages = self.log_of(group);
                let more = log
                    .into_iter()
                    .map(|Entry(what, home, n)| Entry(what, home, n - parts(&of_pages, what, home)));
                self.gone.push((group, more.collect()));
            }
        }
        self.ceiling /= 2.0;
        for slot in self.zone.iter().map(|c| c.0).collect::<Vec<_>>() {
            self.refile(self.page_in(slot).unwrap());
        }
    }

    fn alpha(&self, group: Group) -> f64 {
        match self.miss_rates(group) {
            [None, _] => 1.0,
            [Some(m_s), m_d] => match (m_s, m_d.unwrap_or(0.0)) {
                (0.0, 0.0) => 1.0,
                (m_s, m_d) => (m_s / m_d).max(self.params.alpha_min).min(self.params.alpha_max),
            },
        }
    }

    fn benefit(&self, id: PageId) -> Option<f64> {
        let page = self.pages.get(&id)?;
        let c = self.params.costs;
        let n = |what, home| parts(&page.log, what, home) as f64 / PARTS as f64;
        let (r_d, r_s) = (n(What::Read, Home::Hdd), n(What::Read, Home::Ssd));
        let (w_d, w_s) = (n(What::Write, Home::Hdd), n(What::Write, Home::Ssd));
        if !self.anticipates {
            return Some(
                (r_d + r_s) * (c.hdd_read_ms - c.ssd_read_ms)
                    + (w_d + w_s) * (c.hdd_write_ms - c.ssd_write_ms),
            );
        }
        let alpha = page.group.map_or(1.0, |group| self.alpha(group));
        Some(
            ((r_d + r_s / alpha) * c.hdd_read_ms - (r_s + alpha * r_d) * c.ssd_read_ms)
                + ((w_d + w_s / alpha) * c.hdd_write_ms - (w_s + alpha * w_d) * c.ssd_write_ms)
                + self.eviction_cost(page),
        )
    }

    fn eviction_cost(&self, page: &Page) -> f64 {
        if !page.slot.is_some_and(|slot| self.dirty.contains(&slot)) {
            return 0.0;
        }
        let copy = self.params.costs.ssd_read_ms + self.params.costs.hdd_write_ms;
        let writes: u64 = [Home::Ssd, Home::Hdd].map(|home| parts(&page.log, What::Write, home)).iter().sum();
        let rewritten = 1.0 - PARTS as f64 / writes.max(PARTS) as f64;
        self.eviction * copy + self.eviction_if_rewritten * rewritten * copy
    }

    fn page_in(&self, slot: u32) -> Option<PageId> {
        self.pages.iter().find(|(_, page)| page.slot == Some(slot)).map(|(&id, _)| id)
    }

    fn refile(&mut self, id: PageId) {
        let benefit = self.benefit(id).unwrap();
        if let Some(candidate) = self.zone.iter_mut().find(|c| self.pages[&id].slot == Some(c.0)) {
            candidate.1 = benefit;
        }
    }

    /// Removes a page that ceased to exist, and the space if none of its pages has a group.
    fn discard(&mut self, id: PageId) {
        if self.pages.contains_key(&id) {
            self.drop_record(id);
            if !self.pages.values().any(|page| page.group.is_some_and(|group| group.0 == id.space)) {
                self.gone.retain(|gone| gone.0.0 != id.space);
            }
        }
    }

    /// Updates the outqueue after the page entered or left the pool or the SSD.
    fn place(&mut self, id: PageId) {
        let page = &self.pages[&id];
        if page.buffered || page.slot.is_some() {
            self.outqueue.retain(|&other| other != id);
        } else if !self.outqueue.contains(&id) {
            self.outqueue.push(id);
            if self.outqueue.len() > self.params.outqueue_entries {
                let oldest = self.outqueue[0];
                if let Some(sketch) = &mut self.sketch {
                    let log = &self.pages[&oldest].log;
                    let reads = log.iter().filter(|entry| entry.0 == What::Read).count().min(15);
                    let known = sketch.entry(oldest).or_insert(0);
                    *known = reads.max(*known);
                }
                self.drop_record(oldest);
            }
        }
    }

    fn drop_record(&mut self, id: PageId) {
        self.outqueue.retain(|&other| other != id);
        if let Some(page) = self.pages.remove(&id) {
            self.zone.retain(|c| Some(c.0) != page.slot);
            if let (Dropped::Kept, Some(group)) = (self.params.dropped, page.group) {
                self.gone.push((group, page.log[..page.settled].to_vec()));
            }
        }
    }

    fn track(&mut self, id: PageId, now: Millis) -> &mut Page {
        let fresh =
            Page { log: vec![], settled: 0, group: None, born: now.0 / 100, buffered: false, slot: None };
        self.pages.entry(id).or_insert(fresh)
    }

    fn read(&mut self, id: PageId, from: Option<Home>, access: Access, now: Millis) {
        let known = self.sketch.as_ref().and_then(|sketch| sketch.get(&id).copied()).unwrap_or(0);
        if !self.pages.contains_key(&id) && from.is_some() {
            let page = self.track(id, now);
            page.log =
                [Entry(What::Read, Home::Hdd, PARTS), Entry(What::Logical, Home::Hdd, PARTS)].repeat(known);
            page.settled = page.log.len();
        }
        self.track(id, now);
        if let (Some(home), Access::Random) = (from, access) {
            let page = &self.pages[&id];
            if self.anticipates && page.waiting().iter().any(|entry| entry.0 == What::Read) {
                self.settle(id, now);
            }
            self.pages.get_mut(&id).unwrap().log.push(Entry(What::Read, home, PARTS));
            self.logical(id, 1, home, now);
            self.refile(id);
        }
        self.pages.get_mut(&id).unwrap().buffered = true;
        self.place(id);
        if from.is_some() && access == Access::Random {
            self.accessed(now);
        }
    }

    /// Pending reads are from one home at a time, and at most `u16::MAX`.
    fn logical(&mut self, id: PageId, mut n: u32, home: Home, now: Millis) {
        while n > 0 {
            let Some(page) = self.pages.get_mut(&id) else { return };
            let waiting =
                [Home::Ssd, Home::Hdd].map(|home| parts(page.waiting(), What::Logical, home) / PARTS);
            let elsewhere = waiting[usize::from(home == Home::Ssd)] > 0;
            let room = match self.anticipates {
                false => n,
                true if elsewhere => 0,
                true => 65_535 - (waiting[0] + waiting[1]) as u32,
            };
            let taken = n.min(room);
            if taken > 0 {
                page.log.push(Entry(What::Logical, home, u64::from(taken) * PARTS));
            }
            n -= taken;
            if n > 0 {
                // Do not refile in the zone: the page's own counts are unchanged.
                let filed = self.zone.clone();
                self.settle(id, now);
                self.zone = filed;
            }
        }
    }

    /// Returns the lowest usable candidate below `below`; refiles the candidates it meets whose group's
    /// factor changed.
    fn lowest(&mut self, unusable: u32, below: f64) -> Option<u32> {
        let mut zone = self.zone.clone();
        let mut best = None;
        while let Some(at) =
            (0..zone.len()).min_by(|&a, &b| zone[a].1.total_cmp(&zone[b].1).then(zone[a].0.cmp(&zone[b].0)))
        {
            let (slot, filed) = zone[at];
            let fresh = self.benefit(self.page_in(slot).unwrap()).unwrap();
            if fresh != filed {
                zone[at].1 = fresh;
                self.zone.iter_mut().find(|c| c.0 == slot).unwrap().1 = fresh;
            } else if fresh > self.ceiling && self.young_for == 0 {
                if zone.len() < self.zone.len() {
                    break;
                }
                for at in 0..zone.len() {
                    self.zone[at].1 = self.benefit(self.page_in(self.zone[at].0).unwrap()).unwrap();
                }
                self.zone.retain(|c| c.1 <= self.ceiling);
                zone.clone_from(&self.zone);
            } else if fresh >= below {
                break;
            } else if unusable & 1 << slot == 0 {
                best = Some(slot);
                break;
            } else {
                zone.remove(at);
            }
        }
        best
    }

    fn consider(&mut self, id: PageId, cause: Cause, free: usize, unusable: u32, now: Millis) -> Verdict {
        if free > 0 {
            return Verdict::AdmitFree;
        }
        if !self.pages.contains_key(&id) {
            return Verdict::Reject;
        }
        if cause == Cause::Evicted {
            self.settle(id, now);
        } else if self.pages[&id].group.is_none() {
            let subrange = self.subrange(&self.pages[&id], now);
            self.pages.get_mut(&id).unwrap().group = Some((id.space, subrange));
        }
        let c = self.params.costs;
        let saved = if cause == Cause::Cleaned { c.hdd_write_ms - c.ssd_write_ms } else { -c.ssd_write_ms };
        let benefit = self.benefit(id).unwrap() + self.at_once * saved;
        self.young_for = self.young_for.saturating_sub(1);
        self.lowest(unusable, benefit).map_or(Verdict::Reject, |slot| Verdict::AdmitOver(SlotId(slot)))
    }

    fn inserted(&mut self, id: PageId, slot: u32, now: Millis) {
        if let Some(before) = self.page_in(slot).filter(|&before| before != id) {
            self.removed(before, true, now);
        }
        self.track(id, now);
        let before = self.pages[&id].slot;
        self.zone.retain(|c| c.0 != slot && Some(c.0) != before);
        self.dirty.remove(&slot);
        self.pages.get_mut(&id).unwrap().slot = Some(slot);
        self.place(id);
    }

    fn removed(&mut self, id: PageId, evicted: bool, now: Millis) {
        let Some(slot) = self.pages.get(&id).and_then(|page| page.slot) else { return };
        self.zone.retain(|c| c.0 != slot);
        if evicted {
            self.settle(id, now);
        }
        self.pages.get_mut(&id).unwrap().slot = None;
        self.place(id);
    }

    fn wrote(&mut self, id: PageId, home: Home, now: Millis) {
        let Some(page) = self.pages.get_mut(&id) else { return };
        page.log.push(Entry(What::Write, home, PARTS));
        if let (Home::Ssd, Some(slot)) = (home, page.slot) {
            self.dirty.insert(slot);
        }
        if home == Home::Ssd {
            self.settle(id, now);
        }
        self.refile(id);
        self.accessed(now);
    }

    /// Rounds partial accesses up; CC does not use logical reads.
    fn counts(&self, id: PageId) -> Option<PageCounts> {
        let page = self.pages.get(&id)?;
        let n = |what, home| parts(&page.log, what, home).div_ceil(PARTS);
        let logical = |home| if self.anticipates { n(What::Logical, home) } else { 0 };
        Some(PageCounts {
            reads_hdd: n(What::Read, Home::Hdd),
            reads_ssd: n(What::Read, Home::Ssd),
            logical_hdd: logical(Home::Hdd),
            logical_ssd: logical(Home::Ssd),
            writes_hdd: n(What::Write, Home::Hdd),
            writes_ssd: n(What::Write, Home::Ssd),
        })
    }

    fn copied_home(&mut self, id: PageId, slot: u32) {
        if self.page_in(slot) == Some(id) {
            self.dirty.remove(&slot);
            self.refile(id);
        }
    }

    fn left_pool(&mut self, id: PageId, now: Millis) {
        if self.pages.contains_key(&id) {
            self.settle(id, now);
            self.pages.get_mut(&id).unwrap().buffered = false;
            self.place(id);
        }
    }

    fn start_zone(&mut self, k: usize, ineligible: u32) -> Vec<u32> {
        let mut all: Vec<(u32, f64)> = (0..SLOTS)
            .filter(|slot| ineligible & 1 << slot == 0)
            .filter_map(|slot| Some((slot, self.benefit(self.page_in(slot)?)?)))
            .collect();
        all.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        self.ceiling = all.get(k).map_or(f64::INFINITY, |outside| outside.1);
        all.truncate(k);
        self.young_for = all.len();
        self.zone = all;
        self.zone.iter().map(|c| c.0).collect()
    }
}

const SLOTS: u32 = 8;

#[derive(Clone, Copy, Debug)]
enum Event {
    Read(PageId, Option<Home>, Access),
    Logical(PageId, u32, Option<Home>),
    /// The page leaves the pool, and the verdict is carried out. The bits mark the unusable slots.
    Evicted(PageId, u32),
    Cleaned(PageId, u32),
    Invalidated(PageId),
    /// Reports that the version of this page in this slot was copied to the HDD.
    CopiedHome(PageId, u32),
    Forget(PageId),
    StartZone(usize, u32),
    SetCosts(f64),
    Pass(u64),
}

fn page() -> impl Strategy<Value = PageId> {
    (1..3u32, 0..12u32).prop_map(|(space, no)| PageId::new(SpaceId(space), no))
}

fn event() -> impl Strategy<Value = Event> {
    let home = prop_oneof![Just(Home::Ssd), Just(Home::Hdd)];
    // Mostly the page's own home; late and early reports occur too.
    let said = prop_oneof![9 => Just(None), 1 => home.prop_map(Some)];
    let access = prop_oneof![5 => Just(Access::Random), 1 => Just(Access::Sequential)];
    let unusable = prop_oneof![2 => Just(0u32), 1 => any::<u32>()];
    let logical = prop_oneof![9 => 1..20u32, 1 => 1..60_000u32];
    prop_oneof![
        10 => (page(), said.clone(), access).prop_map(|(p, h, a)| Event::Read(p, h, a)),
        10 => (page(), logical, said).prop_map(|(p, n, h)| Event::Logical(p, n, h)),
        10 => (page(), unusable.clone()).prop_map(|(p, u)| Event::Evicted(p, u)),
        5 => (page(), unusable.clone()).prop_map(|(p, u)| Event::Cleaned(p, u)),
        2 => page().prop_map(Event::Invalidated),
        2 => (page(), 0..SLOTS).prop_map(|(p, slot)| Event::CopiedHome(p, slot)),
        1 => page().prop_map(Event::Forget),
        2 => (0..6usize, unusable).prop_map(|(k, u)| Event::StartZone(k, u)),
        1 => (1.0..90.0f64).prop_map(Event::SetCosts),
        3 => (1..200_000u64).prop_map(Event::Pass),
    ]
}

struct Pair<'a> {
    real: &'a mut dyn SlotPolicy,
    model: Model,
    now: Millis,
}

impl Pair<'_> {
    fn home(&self, id: PageId) -> Home {
        let on_ssd = self.model.pages.get(&id).is_some_and(|page| page.slot.is_some());
        if on_ssd { Home::Ssd } else { Home::Hdd }
    }

    /// Considers a page without an SSD copy, checks that both verdicts agree, and carries them out.
    fn consider(&mut self, id: PageId, cause: Cause, unusable: u32) -> Result<(), TestCaseError> {
        if self.home(id) == Home::Ssd {
            return Ok(());
        }
        let free = (0..SLOTS).find(|&slot| self.model.page_in(slot).is_none());
        let free_slots = usize::from(free.is_some());
        let usable = &mut |slot: SlotId| unusable & 1 << slot.0 == 0;
        let verdict = self.real.consider(id, cause, free_slots, usable, self.now);
        prop_assert_eq!(verdict, self.model.consider(id, cause, free_slots, unusable, self.now));
        let slot = match verdict {
            Verdict::Reject => return Ok(()),
            Verdict::AdmitFree => free.unwrap(),
            Verdict::AdmitOver(slot) => {
                let before = self.model.page_in(slot.0).unwrap();
                self.real.removed(before, true, self.now);
                self.model.removed(before, true, self.now);
                slot.0
            }
        };
        self.real.inserted(id, SlotId(slot), self.now);
        self.model.inserted(id, slot, self.now);
        Ok(())
    }

    fn apply(&mut self, event: Event) -> Result<(), TestCaseError> {
        match event {
            Event::Read(id, said, access) => {
                let from = Some(said.unwrap_or(self.home(id))).filter(|_| id.no != 11);
                self.real.read(id, from, access, self.now);
                self.model.read(id, from, access, self.now);
            }
            Event::Logical(id, n, said) => {
                let home = said.unwrap_or(self.home(id));
                self.real.logical(id, n, home, self.now);
                self.model.logical(id, n, home, self.now);
            }
            Event::Evicted(id, unusable) => {
                self.consider(id, Cause::Evicted, unusable)?;
                self.real.left_pool(id, self.now);
                self.model.left_pool(id, self.now);
            }
            Event::Cleaned(id, unusable) => {
                self.consider(id, Cause::Cleaned, unusable)?;
                let home = self.home(id);
                self.real.wrote(id, home, self.now);
                self.model.wrote(id, home, self.now);
            }
            Event::Invalidated(id) => {
                self.real.removed(id, false, self.now);
                self.model.removed(id, false, self.now);
            }
            Event::CopiedHome(id, slot) => {
                // Mostly the page's own slot; late reports occur too.
                let slot = if slot < 2 {
                    slot
                } else {
                    self.model.pages.get(&id).and_then(|p| p.slot).unwrap_or(slot)
                };
                self.real.copied_home(id, SlotId(slot));
                self.model.copied_home(id, slot);
            }
            Event::Forget(id) => {
                self.real.forget(id);
                self.model.discard(id);
            }
            Event::StartZone(k, ineligible) => {
                let mut out = Vec::new();
                self.real.start_zone(k, &mut |slot| ineligible & 1 << slot.0 == 0, self.now, &mut out);
                let zone = self.model.start_zone(k, ineligible);
                prop_assert_eq!(out, zone.into_iter().map(SlotId).collect::<Vec<_>>());
            }
            Event::SetCosts(hdd_read_ms) => {
                let costs = Costs { hdd_read_ms, ..self.model.params.costs };
                let before = self.model.params.costs.hdd_read_ms - costs.ssd_read_ms;
                self.model.ceiling *= (costs.hdd_read_ms - costs.ssd_read_ms) / before;
                self.real.set_costs(costs);
                self.model.params.costs = costs;
                for slot in self.model.zone.iter().map(|c| c.0).collect::<Vec<_>>() {
                    self.model.refile(self.model.page_in(slot).unwrap());
                }
            }
            Event::Pass(ms) => self.now.0 += ms,
        }
        Ok(())
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        self.real.validate().map_err(TestCaseError::fail)?;
        for (space, no) in (1..3).flat_map(|space| (0..12).map(move |no| (space, no))) {
            let id = PageId::new(SpaceId(space), no);
            prop_assert_eq!(self.real.benefit(id), self.model.benefit(id), "page {}", id);
            prop_assert_eq!(self.real.counts(id), self.model.counts(id), "page {}", id);
        }
        for group in self.real.groups() {
            let key = (group.space, group.subrange as u16);
            prop_assert_eq!([group.miss_rate_ssd, group.miss_rate_hdd], self.model.miss_rates(key));
            prop_assert_eq!(group.alpha, self.model.alpha(key));
            let pages = self.model.pages.values().filter(|p| p.group == Some(key)).count();
            prop_assert_eq!(group.pages, pages as u64);
        }
        Ok(())
    }
}

fn run(real: &mut dyn SlotPolicy, model: Model, events: Vec<Event>) -> Result<(), TestCaseError> {
    let mut pair = Pair { real, model, now: Millis(0) };
    for event in events {
        pair.apply(event)?;
        pair.compare()?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cac_and_cc_agree_with_the_logs(
        events in prop::collection::vec(event(), 1..250),
        anticipates in prop::bool::weighted(0.75),
        kept in any::<bool>(),
        outqueue_entries in 0..8usize,
        group_width_per_min in prop_oneof![Just(1.0), Just(40.0)],
    ) {
        let params = SlotPolicyParams {
            outqueue_entries,
            group_width_per_min,
            subranges_max: 50,
            dropped: if kept { Dropped::Kept } else { Dropped::Subtracted },
            ..SlotPolicyParams::new(Costs::PAPER, 2, 0)
        };
        let model = Model::new(params, anticipates);
        if anticipates {
            run(&mut Cac::new(CacOptions::CAC, &params), model, events)?;
        } else {
            run(&mut Cac::new(CacOptions::CC, &params), model, events)?;
        }
    }

    #[test]
    fn what_goes_beyond_the_paper_is_added_to_cac(
        events in prop::collection::vec(event(), 1..250),
        variant in 0..10usize,
        outqueue_entries in 0..3usize,
    ) {
        // The counts are halved only after the last event. Their steps are powers of two, so that even the
        // rounding is the same.
        let params = SlotPolicyParams {
            outqueue_entries,
            subranges_max: 50,
            sketch_halved_after_per_slot: u32::MAX,
            // Large enough that no two pages share all counters.
            sketch_bytes_per_slot: 1 << 12,
            ..SlotPolicyParams::new(Costs::PAPER, 2, 0)
        };
        let cac = Model::new(params, true);
        match variant {
            0 => run(&mut Cac::new(CacOptions::CAC, &params), cac, events)?,
            1 => run(&mut Cac::new(options("cac:ageing=4294967295"), &params), cac, events)?,
            2 => run(&mut Cac::new(options("cac:write-at-hand"), &params), Model { at_once: 3.0, ..cac }, events)?,
            3 => run(&mut Cac::new(options("cac:ageing=4294967295,write-at-hand"), &params), Model { at_once: 3.0, ..cac }, events)?,
            4 => run(&mut Cac::new(options("cac:dirty"), &params), Model { eviction: 1.0, ..cac }, events)?,
            5 => run(&mut Cac::new(options("cac:rewrite"), &params), Model { eviction_if_rewritten: 2.0, ..cac }, events)?,
            6 | 7 => run(&mut Cac::new(options("cac:sketch"), &params), Model { sketch: Some(BTreeMap::new()), ..cac }, events)?,
            8 => {
                let model = Model { at_once: 3.0, eviction_if_rewritten: 2.0, ..cac };
                run(&mut Cac::new(options("cac:ageing=4294967295,write-at-hand,rewrite"), &params), model, events)?;
            }
            _ => {
                let sketch = Some(BTreeMap::new());
                let model = Model { at_once: 3.0, eviction_if_rewritten: 2.0, sketch, ..cac };
                run(&mut Cac::new(options("cac:ageing=4294967295,write-at-hand,rewrite,sketch"), &params), model, events)?;
            }
        }
    }

    #[test]
    fn counts_that_age_are_halved_as_the_logs_are(
        events in prop::collection::vec(event(), 1..250),
        write in any::<bool>(),
        kept in any::<bool>(),
        outqueue_entries in 0..8usize,
        halve_after_per_slot in 1..16u32,
    ) {
        let params = SlotPolicyParams {
            outqueue_entries,
            subranges_max: 50,
            dropped: if kept { Dropped::Kept } else { Dropped::Subtracted },
            ..SlotPolicyParams::new(Costs::PAPER, 2, 0)
        };
        let model = Model {
            at_once: if write { 3.0 } else { 0.0 },
            halve_after: Some(2 * u64::from(halve_after_per_slot)),
            ..Model::new(params, true)
        };
        let write = if write { ",write-at-hand" } else { "" };
        let name = format!("cac:ageing={halve_after_per_slot}{write}");
        run(&mut Cac::new(options(&name), &params), model, events)?;
    }
}
