//! CAC and CC by definition: a log per page, from which everything is computed.

use pagetier_policy::ssd::Dropped;
use pagetier_policy::{
    Access, Cause, Location, Millis, PageCounts, PageId, SlotId, SlotPolicyParams, SpaceId, Verdict,
};
use std::collections::BTreeMap;

pub(super) const SLOTS: u32 = 8;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum What {
    Read,
    Logical,
    Write,
}

/// A kind of access, its home, and how many.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Entry(What, Location, u64);

/// Returns the accesses of this kind at `location` in `log`.
fn count(log: &[Entry], what: What, location: Location) -> u64 {
    log.iter().filter(|entry| (entry.0, entry.1) == (what, location)).map(|entry| entry.2).sum()
}

pub(super) type Group = (SpaceId, u16);

#[derive(Clone, Debug)]
pub(super) struct Page {
    log: Vec<Entry>,
    /// The number of log entries included in its group.
    pub(super) settled: usize,
    pub(super) group: Option<Group>,
    pub(super) born: u64,
    pub(super) buffered: bool,
    pub(super) slot: Option<u32>,
}

impl Page {
    /// The log entries not yet included in its group.
    fn waiting(&self) -> &[Entry] {
        &self.log[self.settled..]
    }
}

pub(super) struct Model {
    pub(super) params: SlotPolicyParams,
    pub(super) anticipates: bool,
    pub(super) pages: BTreeMap<PageId, Page>,
    pub(super) outqueue: Vec<PageId>,
    /// Logs of dropped pages, if they stay in their groups' sums.
    pub(super) gone: Vec<(Group, Vec<Entry>)>,
    /// The zone's candidates with the benefit at which they were last filed.
    pub(super) zone: Vec<(u32, f64)>,
    /// The lowest benefit outside the zone when it began.
    pub(super) ceiling: f64,
    /// The decisions to take before the zone can be exhausted.
    pub(super) young_for: usize,
}

impl Model {
    pub(super) fn new(params: SlotPolicyParams, anticipates: bool) -> Self {
        Self {
            params,
            anticipates,
            pages: BTreeMap::new(),
            outqueue: vec![],
            gone: vec![],
            zone: vec![],
            ceiling: f64::INFINITY,
            young_for: 0,
        }
    }

    pub(super) fn subrange(&self, page: &Page, now: Millis) -> u16 {
        let logical =
            [Location::Ssd, Location::Hdd].map(|location| count(&page.log, What::Logical, location));
        let logical = logical[0] + logical[1];
        let age = (now.0 / 100 - page.born) as f64 / 600.0;
        let rate = logical as f64 / (age * self.params.group_width_per_min).max(1.0);
        rate.min(f64::from(self.params.subranges_max - 1)) as u16
    }

    pub(super) fn settle(&mut self, id: PageId, now: Millis) {
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
    pub(super) fn miss_rates(&self, group: Group) -> [Option<f64>; 2] {
        let log = self.log_of(group);
        [Location::Ssd, Location::Hdd].map(|location| {
            let [reads, logical] = [What::Read, What::Logical].map(|what| count(&log, what, location));
            (logical > 0).then(|| reads as f64 / logical as f64)
        })
    }

    pub(super) fn alpha(&self, group: Group) -> f64 {
        match self.miss_rates(group) {
            [None, _] => 1.0,
            [Some(m_s), m_d] => match (m_s, m_d.unwrap_or(0.0)) {
                (0.0, 0.0) => 1.0,
                (m_s, m_d) => (m_s / m_d).max(self.params.alpha_min).min(self.params.alpha_max),
            },
        }
    }

    pub(super) fn benefit(&self, id: PageId) -> Option<f64> {
        let page = self.pages.get(&id)?;
        let c = self.params.costs;
        let n = |what, location| count(&page.log, what, location) as f64;
        let (r_d, r_s) = (n(What::Read, Location::Hdd), n(What::Read, Location::Ssd));
        let (w_d, w_s) = (n(What::Write, Location::Hdd), n(What::Write, Location::Ssd));
        if !self.anticipates {
            return Some(
                (r_d + r_s) * (c.hdd_read_ms - c.ssd_read_ms)
                    + (w_d + w_s) * (c.hdd_write_ms - c.ssd_write_ms),
            );
        }
        let alpha = page.group.map_or(1.0, |group| self.alpha(group));
        Some(
            ((r_d + r_s / alpha) * c.hdd_read_ms - (r_s + alpha * r_d) * c.ssd_read_ms)
                + ((w_d + w_s / alpha) * c.hdd_write_ms - (w_s + alpha * w_d) * c.ssd_write_ms),
        )
    }

    pub(super) fn page_in(&self, slot: u32) -> Option<PageId> {
        self.pages.iter().find(|(_, page)| page.slot == Some(slot)).map(|(&id, _)| id)
    }

    pub(super) fn refile(&mut self, id: PageId) {
        let benefit = self.benefit(id).unwrap();
        if let Some(candidate) = self.zone.iter_mut().find(|c| self.pages[&id].slot == Some(c.0)) {
            candidate.1 = benefit;
        }
    }

    /// Removes a page that ceased to exist, and the space if none of its pages has a group.
    pub(super) fn discard(&mut self, id: PageId) {
        if self.pages.contains_key(&id) {
            self.drop_record(id);
            if !self.pages.values().any(|page| page.group.is_some_and(|group| group.0 == id.space)) {
                self.gone.retain(|gone| gone.0.0 != id.space);
            }
        }
    }

    /// Updates the outqueue after the page entered or left the pool or the SSD.
    pub(super) fn place(&mut self, id: PageId) {
        let page = &self.pages[&id];
        if page.buffered || page.slot.is_some() {
            self.outqueue.retain(|&other| other != id);
        } else if !self.outqueue.contains(&id) {
            self.outqueue.push(id);
            if self.outqueue.len() > self.params.outqueue_entries {
                let oldest = self.outqueue[0];
                self.drop_record(oldest);
            }
        }
    }

    pub(super) fn drop_record(&mut self, id: PageId) {
        self.outqueue.retain(|&other| other != id);
        if let Some(page) = self.pages.remove(&id) {
            self.zone.retain(|c| Some(c.0) != page.slot);
            if let (Dropped::Kept, Some(group)) = (self.params.dropped, page.group) {
                self.gone.push((group, page.log[..page.settled].to_vec()));
            }
        }
    }

    pub(super) fn track(&mut self, id: PageId, now: Millis) -> &mut Page {
        let fresh =
            Page { log: vec![], settled: 0, group: None, born: now.0 / 100, buffered: false, slot: None };
        self.pages.entry(id).or_insert(fresh)
    }

    pub(super) fn read(&mut self, id: PageId, from: Option<Location>, access: Access, now: Millis) {
        self.track(id, now);
        if let (Some(location), Access::Random) = (from, access) {
            let page = &self.pages[&id];
            if self.anticipates && page.waiting().iter().any(|entry| entry.0 == What::Read) {
                self.settle(id, now);
            }
            self.pages.get_mut(&id).unwrap().log.push(Entry(What::Read, location, 1));
            self.logical(id, 1, location, now);
            self.refile(id);
        }
        self.pages.get_mut(&id).unwrap().buffered = true;
        self.place(id);
    }

    /// Pending reads are from one home at a time, and at most `u16::MAX`.
    pub(super) fn logical(&mut self, id: PageId, mut n: u32, location: Location, now: Millis) {
        while n > 0 {
            let Some(page) = self.pages.get_mut(&id) else { return };
            let waiting =
                [Location::Ssd, Location::Hdd].map(|location| count(page.waiting(), What::Logical, location));
            let elsewhere = waiting[usize::from(location == Location::Ssd)] > 0;
            let room = match self.anticipates {
                false => n,
                true if elsewhere => 0,
                true => 65_535 - (waiting[0] + waiting[1]) as u32,
            };
            let taken = n.min(room);
            if taken > 0 {
                page.log.push(Entry(What::Logical, location, u64::from(taken)));
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
    pub(super) fn lowest(&mut self, unusable: u32, below: f64) -> Option<u32> {
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

    pub(super) fn consider(
        &mut self,
        id: PageId,
        cause: Cause,
        free: usize,
        unusable: u32,
        now: Millis,
    ) -> Verdict {
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
        let benefit = self.benefit(id).unwrap();
        self.young_for = self.young_for.saturating_sub(1);
        self.lowest(unusable, benefit).map_or(Verdict::Reject, |slot| Verdict::AdmitOver(SlotId(slot)))
    }

    pub(super) fn inserted(&mut self, id: PageId, slot: u32, now: Millis) {
        if let Some(before) = self.page_in(slot).filter(|&before| before != id) {
            self.removed(before, true, now);
        }
        self.track(id, now);
        let before = self.pages[&id].slot;
        self.zone.retain(|c| c.0 != slot && Some(c.0) != before);
        self.pages.get_mut(&id).unwrap().slot = Some(slot);
        self.place(id);
    }

    pub(super) fn removed(&mut self, id: PageId, evicted: bool, now: Millis) {
        let Some(slot) = self.pages.get(&id).and_then(|page| page.slot) else { return };
        self.zone.retain(|c| c.0 != slot);
        if evicted {
            self.settle(id, now);
        }
        self.pages.get_mut(&id).unwrap().slot = None;
        self.place(id);
    }

    pub(super) fn wrote(&mut self, id: PageId, location: Location, now: Millis) {
        let Some(page) = self.pages.get_mut(&id) else { return };
        page.log.push(Entry(What::Write, location, 1));
        if location == Location::Ssd {
            self.settle(id, now);
        }
        self.refile(id);
    }

    /// CC does not use logical reads.
    pub(super) fn counts(&self, id: PageId) -> Option<PageCounts> {
        let page = self.pages.get(&id)?;
        let n = |what, location| count(&page.log, what, location);
        let logical = |location| if self.anticipates { n(What::Logical, location) } else { 0 };
        let mut counts = PageCounts::default();
        counts.reads_hdd = n(What::Read, Location::Hdd);
        counts.reads_ssd = n(What::Read, Location::Ssd);
        counts.logical_hdd = logical(Location::Hdd);
        counts.logical_ssd = logical(Location::Ssd);
        counts.writes_hdd = n(What::Write, Location::Hdd);
        counts.writes_ssd = n(What::Write, Location::Ssd);
        Some(counts)
    }

    pub(super) fn copied_home(&mut self, id: PageId, slot: u32) {
        if self.page_in(slot) == Some(id) {
            self.refile(id);
        }
    }

    pub(super) fn left_pool(&mut self, id: PageId, now: Millis) {
        if self.pages.contains_key(&id) {
            self.settle(id, now);
            self.pages.get_mut(&id).unwrap().buffered = false;
            self.place(id);
        }
    }

    pub(super) fn start_zone(&mut self, k: usize, ineligible: u32) -> Vec<u32> {
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
