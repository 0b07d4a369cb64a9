//! Page groups and their miss rate expansion factors α (Liu & Salem 2013, section 5.2).
//!
//! A group is the pages of one space whose logical read rates fall into one subrange; subranges are equally
//! wide, the last is open-ended. Its sums of physical and logical reads, on the SSD and off it, are updated
//! lazily: *settling* a page adds its pending counts, and moves its counts to another group if its rate has
//! changed subrange.
//!
//! Where the paper is silent:
//!
//! - *m_S undefined* (no logical reads on the SSD): α = 1, as the paper says. This comes first.
//! - *m_D undefined*: 0, as the paper says. *m_D = 0* then divides by zero: the group's pages miss when on
//!   the SSD and never when off it, so α is the upper bound. If m_S = 0 as well, no read ever missed: α = 1.
//! - *m_S = 0, m_D > 0*: α would be 0, and equation 4 divides by it: α is the lower bound.
//! - *Age of young pages*: a page younger than 1 / width, the time in which one read amounts to one subrange,
//!   gets its rate over that time. Otherwise a page read once would start in the highest group.

use super::page_stats::{Counted, PageRecord, PageRecordMut};
use crate::{GroupStats, Millis, SpaceId};
use rustc_hash::FxHashMap;

/// The treatment of a page's share in its group's sums when the outqueue drops its record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Dropped {
    /// The page's reads stay in the sums: the miss rates include them.
    #[default]
    Kept,
    /// The page's reads are subtracted: the sums are those of the tracked pages.
    Subtracted,
}

/// The parameters that form groups and bound their factors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupRules {
    pub(crate) width_per_min: f64,
    pub(crate) subranges: u16,
    pub(crate) alpha_min: f64,
    pub(crate) alpha_max: f64,
    pub(crate) dropped: Dropped,
}

impl GroupRules {
    /// The subrange of a page with `logical` reads in `age_min` minutes.
    fn subrange(&self, logical: u64, age_min: f64) -> u16 {
        // A page younger than one subrange's time counts as that old: otherwise one read in its first second
        // would put it among the hottest.
        let subranges_up = logical as f64 / (age_min * self.width_per_min).max(1.0);
        (subranges_up as u64).min(u64::from(self.subranges) - 1) as u16
    }

    /// Equation 8, with its bounds.
    fn alpha(&self, miss_ssd: Option<f64>, miss_hdd: Option<f64>) -> f64 {
        // As the paper says, and first: a group that was never on the SSD tells nothing about a move there.
        let Some(miss_ssd) = miss_ssd else { return 1.0 };
        let miss_hdd = miss_hdd.unwrap_or(0.0);
        // No read ever missed, so there is no change of the miss rate to anticipate.
        if miss_ssd == 0.0 && miss_hdd == 0.0 {
            return 1.0;
        }
        // Equation 4 divides by α, and equation 8 by the miss rate: without bounds one page could get an
        // infinite benefit.
        (miss_ssd / miss_hdd).clamp(self.alpha_min, self.alpha_max)
    }
}

#[derive(Clone, Copy, Debug)]
struct Group {
    reads_ssd: u64,
    reads_hdd: u64,
    logical_ssd: u64,
    logical_hdd: u64,
    pages: u64,
    alpha: f64,
}

impl Group {
    const EMPTY: Self =
        Self { reads_ssd: 0, reads_hdd: 0, logical_ssd: 0, logical_hdd: 0, pages: 0, alpha: 1.0 };

    fn miss_ssd(&self) -> Option<f64> {
        rate(self.reads_ssd, self.logical_ssd)
    }

    fn miss_hdd(&self) -> Option<f64> {
        rate(self.reads_hdd, self.logical_hdd)
    }

    fn add(&mut self, c: Counted) {
        self.reads_ssd += u64::from(c.reads_ssd);
        self.reads_hdd += u64::from(c.reads_hdd);
        self.logical_ssd += u64::from(c.logical_ssd);
        self.logical_hdd += u64::from(c.logical_hdd);
    }

    fn subtract(&mut self, c: Counted) {
        self.reads_ssd -= u64::from(c.reads_ssd);
        self.reads_hdd -= u64::from(c.reads_hdd);
        self.logical_ssd -= u64::from(c.logical_ssd);
        self.logical_hdd -= u64::from(c.logical_hdd);
    }
}

fn rate(physical: u64, logical: u64) -> Option<f64> {
    (logical > 0).then(|| physical as f64 / logical as f64)
}

/// All groups.
#[derive(Debug)]
pub(crate) struct Groups {
    rules: GroupRules,
    by_space: FxHashMap<SpaceId, Vec<Group>>,
}

impl Groups {
    pub(crate) fn new(rules: GroupRules) -> Self {
        Self { rules, by_space: FxHashMap::default() }
    }

    /// α of the record's group; 1 for a page that has none yet.
    pub(crate) fn alpha(&self, record: PageRecord<'_>) -> f64 {
        let group =
            record.kept.subrange().and_then(|at| self.by_space.get(&record.page.space)?.get(usize::from(at)));
        group.map_or(1.0, |group| group.alpha)
    }

    /// Gives the page a group if it has none.
    pub(crate) fn assign(&mut self, record: &mut PageRecordMut<'_>, now: Millis) {
        if record.kept.subrange().is_none() {
            let subrange = self.rules.subrange(record.kept.logical(), record.kept.age_min(now));
            let counted = record.kept.counted();
            self.enter(record, subrange, counted);
        }
    }

    /// Adds the page's pending counts to the sums, and moves the page to the group of its logical read rate.
    pub(crate) fn settle(&mut self, record: &mut PageRecordMut<'_>, now: Millis) {
        let subrange = self.rules.subrange(record.kept.logical(), record.kept.age_min(now));
        let before = record.kept.counted();
        // Before the comparison of subranges: the waiting reads belong to the group that the page leaves or
        // stays in, not to none.
        let after = record.kept.settle();
        if record.kept.subrange() == Some(subrange) {
            // Nothing waited: α cannot have changed, and a hash lookup is saved.
            if before != after {
                let rules = self.rules;
                let group = self.group(record.page.space, subrange);
                group.subtract(before);
                group.add(after);
                group.alpha = rules.alpha(group.miss_ssd(), group.miss_hdd());
            }
        } else {
            // The page takes its counts with it: a group's sums are those of its pages, plus those of dropped
            // ones.
            self.leave(record.shared(), before);
            self.enter(record, subrange, after);
        }
    }

    /// Handles the outqueue's drop of the record.
    pub(crate) fn dropped(&mut self, record: PageRecord<'_>) {
        match self.rules.dropped {
            // The sums keep the reads, so that the rates of a group do not depend on the outqueue's length.
            Dropped::Kept => self.leave(record, Counted::default()),
            Dropped::Subtracted => self.leave(record, record.kept.counted()),
        }
    }

    /// Handles a page that ceased to exist.
    pub(crate) fn forget(&mut self, record: PageRecord<'_>) {
        self.dropped(record);
        let space = record.page.space;
        // A space whose last page is forgotten was dropped: its number may name another table later, with
        // other rates.
        if self.by_space.get(&space).is_some_and(|groups| groups.iter().all(|g| g.pages == 0)) {
            self.by_space.remove(&space);
        }
    }

    fn group(&mut self, space: SpaceId, subrange: u16) -> &mut Group {
        let groups = self.by_space.entry(space).or_default();
        let at = usize::from(subrange);
        if at >= groups.len() {
            groups.resize(at + 1, Group::EMPTY);
        }
        &mut groups[at]
    }

    fn enter(&mut self, record: &mut PageRecordMut<'_>, subrange: u16, counted: Counted) {
        record.kept.set_subrange(subrange);
        let rules = self.rules;
        let group = self.group(record.page.space, subrange);
        group.pages += 1;
        group.add(counted);
        group.alpha = rules.alpha(group.miss_ssd(), group.miss_hdd());
    }

    fn leave(&mut self, record: PageRecord<'_>, counted: Counted) {
        let Some(subrange) = record.kept.subrange() else { return };
        let rules = self.rules;
        let group = self.group(record.page.space, subrange);
        group.pages -= 1;
        group.subtract(counted);
        group.alpha = rules.alpha(group.miss_ssd(), group.miss_hdd());
    }

    /// Every group with pages or sums, by space and subrange.
    pub(crate) fn stats(&self) -> Vec<GroupStats> {
        let mut all: Vec<GroupStats> = self
            .by_space
            .iter()
            .flat_map(|(&space, groups)| groups.iter().enumerate().map(move |(at, group)| (space, at, group)))
            .filter(|(.., group)| group.pages > 0 || group.logical_ssd + group.logical_hdd > 0)
            .map(|(space, at, group)| GroupStats {
                space,
                subrange: at as u32,
                miss_rate_ssd: group.miss_ssd(),
                miss_rate_hdd: group.miss_hdd(),
                alpha: group.alpha,
                pages: group.pages,
            })
            .collect();
        // A hash map's order would make reports differ from run to run.
        all.sort_unstable_by_key(|group| (group.space, group.subrange));
        all
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let groups: usize = self.by_space.values().map(|groups| groups.capacity() * size_of::<Group>()).sum();
        groups + self.by_space.capacity() * (size_of::<(SpaceId, Vec<Group>)>() + 1)
    }

    /// Recounts the groups' pages, and their sums if these are those of the tracked pages.
    pub(crate) fn validate<'a>(&self, live: impl Iterator<Item = PageRecord<'a>>) -> Result<(), String> {
        let mut recount = Self::new(self.rules);
        for record in live {
            if let Some(subrange) = record.kept.subrange() {
                let group = recount.group(record.page.space, subrange);
                group.pages += 1;
                group.add(record.kept.counted());
            }
        }
        for (space, groups) in &self.by_space {
            for (at, have) in groups.iter().enumerate() {
                let want = *recount.group(*space, at as u16);
                let sums = |g: &Group| [g.reads_ssd, g.reads_hdd, g.logical_ssd, g.logical_hdd];
                let sums_hold = match self.rules.dropped {
                    Dropped::Subtracted => sums(have) == sums(&want),
                    Dropped::Kept => sums(have).iter().zip(sums(&want)).all(|(have, want)| *have >= want),
                };
                let alpha = self.rules.alpha(have.miss_ssd(), have.miss_hdd());
                if have.pages != want.pages || !sums_hold || have.alpha != alpha {
                    return Err(format!("group {space}/{at}: {have:?}, counted {want:?}"));
                }
            }
        }
        Ok(())
    }
}
