//! Lists of pages as the manifest records them: runs within spaces.

use pagetier_page::{Lsn, PageId, SpaceId};
use pagetier_ssdcache::Unverified;
use serde::{Deserialize, Serialize};

/// The maximum number of page runs in the manifest's list.
pub(crate) const RUNS_MAX: usize = 1 << 16;

/// Used instead of [`RUNS_MAX`] when the disk has no room for a longer manifest.
pub(crate) const RUNS_MAX_WHEN_FULL: usize = 256;

/// Upper bound on listed homes. The tier flushes long before it accumulates this many.
const HOMES_MAX: u64 = 1 << 20;

/// The pages whose newest version is on the SSD alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OnlyCopies {
    /// The log position from which redo would restore all of them.
    pub(crate) redo_from: Option<u64>,
    /// Runs of pages: space, first, count.
    pub(crate) runs: Vec<(u32, u32, u32)>,
    /// The list also covers unaffected pages, to keep it short.
    pub(crate) coarse: bool,
}

impl OnlyCopies {
    /// A list of these pages, in at most `runs_max` runs. Unless `exact`, the HDD may have the newest
    /// versions of some of them.
    pub(crate) fn of(pages: &[(PageId, Lsn)], exact: bool, runs_max: usize) -> Self {
        // The oldest change decides: redo runs through all later records anyway.
        let redo_from = pages.iter().map(|(_, lsn)| lsn.0).min();
        let single: Vec<_> = pages.iter().map(|(page, _)| (page.space.0, page.no, 1)).collect();
        let (runs, widened) = shortened(&single, runs_max);
        Self { redo_from, runs, coarse: widened || !exact }
    }

    /// Lists nothing, exactly.
    pub(crate) fn is_none(&self) -> bool {
        self.runs.is_empty() && !self.coarse
    }

    /// The union of both losses. Redo begins at the earlier position; if either is unknown, so is the result.
    pub(crate) fn merge(self, other: Self) -> Self {
        if self.is_none() {
            return other;
        }
        if other.is_none() {
            return self;
        }
        // A position of one loss says nothing about the other.
        let redo_from = self.redo_from.zip(other.redo_from).map(|(a, b)| a.min(b));
        let mut all: Vec<(u32, u32, u32)> = self.runs.into_iter().chain(other.runs).collect();
        all.sort_unstable();
        let (runs, widened) = shortened(&all, RUNS_MAX);
        Self { redo_from, runs, coarse: self.coarse || other.coarse || widened }
    }

    /// This loss without the pages `saved`, which must be sorted and unique.
    pub(crate) fn without(&self, saved: &[PageId]) -> Self {
        let mut runs = Vec::with_capacity(self.runs.len());
        for &(space, first, count) in &self.runs {
            let (mut from, end) = (first, first.saturating_add(count));
            let of_run = |page: &&PageId| page.space.0 == space && (first..end).contains(&page.no);
            for page in saved.iter().filter(of_run) {
                if page.no > from {
                    runs.push((space, from, page.no - from));
                }
                from = page.no + 1;
            }
            if from < end {
                runs.push((space, from, end - from));
            }
        }
        let redo_from = self.redo_from.filter(|_| !runs.is_empty());
        // An empty list is exact.
        let coarse = self.coarse && !runs.is_empty();
        Self { redo_from, runs, coarse }
    }
}

/// Adds `loss` to the `known` one; `None` when nothing was lost.
pub(crate) fn added(known: Option<OnlyCopies>, loss: OnlyCopies) -> Option<OnlyCopies> {
    Some(known.unwrap_or_default().merge(loss)).filter(|all| !all.is_none())
}

/// Reduces the sorted runs to at most `runs_max`, by joining across wider and wider gaps; says whether that
/// was necessary.
fn shortened(all: &[(u32, u32, u32)], runs_max: usize) -> (Vec<(u32, u32, u32)>, bool) {
    let mut gap = 0;
    loop {
        let runs = joined(all, gap);
        if runs.len() <= runs_max || gap > u32::MAX / 4 {
            return (runs, gap > 0);
        }
        // Joining over a gap lists pages that are not affected. The smallest gaps that suffice list the
        // fewest.
        gap = (gap * 2).max(16);
    }
}

/// Joins sorted runs that are at most `gap` apart.
fn joined(all: &[(u32, u32, u32)], gap: u32) -> Vec<(u32, u32, u32)> {
    let mut runs: Vec<(u32, u32, u32)> = Vec::new();
    for &(space, first, count) in all {
        match runs.last_mut() {
            Some((of, start, len)) if *of == space && first - *start <= len.saturating_add(gap) => {
                *len = (*len).max((first - *start).saturating_add(count));
            }
            _ => runs.push((space, first, count)),
        }
    }
    runs
}

/// [`Unverified`] as the manifest records it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UnverifiedRecord {
    pub(crate) hdd: bool,
    pub(crate) ssd: bool,
    /// Runs of pages: space, first, count.
    pub(crate) homes: Vec<(u32, u32, u32)>,
}

impl UnverifiedRecord {
    /// The record; `None`: nothing is unverified.
    pub(crate) fn of(unverified: &Unverified) -> Option<Self> {
        let homes: Vec<(PageId, Lsn)> = unverified.homes.iter().map(|page| (*page, Lsn(0))).collect();
        let record = Self {
            hdd: unverified.hdd,
            ssd: unverified.ssd,
            homes: OnlyCopies::of(&homes, true, RUNS_MAX).runs,
        };
        (!unverified.is_empty()).then_some(record)
    }

    /// Whether [`UnverifiedRecord::of`] can have produced this list.
    pub(crate) fn is_valid(&self) -> bool {
        let pages = self.homes.iter().fold(0, |sum: u64, (.., count)| sum + u64::from(*count));
        let ends = |(_, first, count): &(u32, u32, u32)| first.checked_add(*count).is_some();
        pages <= HOMES_MAX && self.homes.iter().all(ends)
    }

    pub(crate) fn unverified(&self) -> Unverified {
        let pages =
            |(space, first, count)| (first..first + count).map(move |no| PageId::new(SpaceId(space), no));
        let homes = self.homes.iter().copied().flat_map(pages).collect();
        Unverified { hdd: self.hdd, ssd: self.ssd, homes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(numbers: &[(u32, u32)]) -> Vec<(PageId, Lsn)> {
        numbers.iter().map(|(s, no)| (PageId::new(SpaceId(*s), *no), Lsn(u64::from(*no) + 10))).collect()
    }

    #[test]
    fn neighbours_make_a_run_and_gaps_and_spaces_end_it() {
        let listed = OnlyCopies::of(&pages(&[(1, 3), (1, 4), (1, 6), (2, 7)]), true, RUNS_MAX);
        assert_eq!(listed.runs, [(1, 3, 2), (1, 6, 1), (2, 7, 1)]);
        assert_eq!((listed.redo_from, listed.coarse), (Some(13), false));
        assert_eq!(joined(&[(1, 3, 1), (1, 4, 1), (1, 6, 1), (2, 7, 1)], 4), [(1, 3, 4), (2, 7, 1)]);
    }

    #[test]
    fn losses_add_up_and_saved_pages_leave_the_list() {
        let a = OnlyCopies::of(&pages(&[(1, 3), (1, 4), (2, 7)]), true, RUNS_MAX);
        let b = OnlyCopies::of(&pages(&[(1, 4), (1, 5), (3, 1)]), true, RUNS_MAX);
        let both = added(added(None, a.clone()), b).unwrap();
        assert_eq!(
            (both.runs.as_slice(), both.redo_from),
            (&[(1, 3, 3), (2, 7, 1), (3, 1, 1)][..], Some(11))
        );
        let page = |space, no| PageId::new(SpaceId(space), no);
        let left = both.without(&[page(1, 4), page(2, 7)]);
        assert_eq!(left.runs, [(1, 3, 1), (1, 5, 1), (3, 1, 1)]);
        assert_eq!(
            both.without(&[page(1, 3), page(1, 4), page(1, 5), page(2, 7), page(3, 1)]).redo_from,
            None
        );
        let coarse = OnlyCopies { coarse: true, ..both };
        assert!(coarse.without(&[page(1, 4)]).coarse);
        let saved = [page(1, 3), page(1, 4), page(1, 5), page(2, 7), page(3, 1)];
        assert!(coarse.without(&saved).is_none(), "an empty list is exact");
        // For an unknown loss redo may have to begin anywhere.
        let unknown = OnlyCopies { redo_from: None, runs: vec![(1, 0, 64)], coarse: true };
        let all = a.merge(unknown);
        assert_eq!((all.redo_from, all.coarse, all.runs), (None, true, vec![(1, 0, 64), (2, 7, 1)]));
        assert_eq!(added(None, OnlyCopies::default()), None);
    }

    #[test]
    fn homes_end_with_the_last_page_number() {
        let is_valid = |homes: &[(u32, u32, u32)]| {
            UnverifiedRecord { homes: homes.to_vec(), ..UnverifiedRecord::default() }.is_valid()
        };
        assert!(is_valid(&[(1, 3, 1), (2, u32::MAX - 1, 1)]));
        assert!(!is_valid(&[(1, 3, 1), (2, u32::MAX, 1)]));
    }

    #[test]
    fn a_long_list_gets_coarse_and_covers_everything() {
        let many: Vec<_> = (0..=RUNS_MAX as u32).map(|i| (1, i * 40)).collect();
        let listed = OnlyCopies::of(&pages(&many), true, RUNS_MAX);
        assert!(listed.coarse && listed.runs.len() <= RUNS_MAX);
        for (_, no) in many {
            assert!(listed.runs.iter().any(|(_, first, count)| (*first..first + count).contains(&no)));
            if no > 4000 {
                break;
            }
        }
    }
}
