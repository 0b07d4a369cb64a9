//! What is lost with an SSD: which pages may read as older versions.

use crate::manifest::{Manifest, OnlyCopies, SpaceRecord};
use crate::volume::{EXTENT_PAGES, SpaceInfo, Volume};
use pagetier_page::{Lsn, PageId, SpaceId};
use std::ops::Range;

/// The maximum number of page runs in the manifest's list.
pub(crate) const RUNS_MAX: usize = 1 << 16;

/// The maximum when there is no room for more.
pub(crate) const RUNS_MIN: usize = 256;

/// The pages that may read as an older version than the last `sync` that covered them, or not at all, because
/// the SSD that held newer versions was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SsdLoss {
    /// Every page listed was on the SSD alone, and no other page is affected. If false, the pages listed
    /// *may* be affected, and no other is. After a crash these are all pages of all spaces, including those
    /// beyond a space's end as the HDD shows it. With an SSD that was recovered after a crash, the list
    /// includes pages that were written back shortly before the crash.
    pub exact: bool,
    /// The affected pages by space.
    pub spaces: Vec<LostPages>,
    /// Redo of the embedder's log from here on restores all of them. `None` when it is unknown (the embedder
    /// may have recorded [`crate::Ssd::oldest_lsn`]) or nothing is lost.
    pub redo_from: Option<Lsn>,
}

/// Affected pages of one space.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostPages {
    /// The space.
    pub space: SpaceId,
    /// Its name.
    pub name: String,
    /// The page ranges, in order, without overlaps.
    pub ranges: Vec<Range<u32>>,
}

impl SsdLoss {
    /// The number of pages listed.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.spaces.iter().flat_map(|s| &s.ranges).map(|r| u64::from(r.end - r.start)).sum()
    }

    /// Whether `page` is listed.
    #[must_use]
    pub fn contains(&self, page: PageId) -> bool {
        let of_space = self.spaces.iter().filter(|s| s.space == page.space);
        of_space.flat_map(|s| &s.ranges).any(|r| r.contains(&page.no))
    }

    /// Nothing is lost.
    pub(crate) fn none() -> Self {
        Self { exact: true, spaces: Vec::new(), redo_from: None }
    }
}

impl OnlyCopies {
    /// A list of these pages. Unless `exact`, the HDD may have the newest versions of some of them.
    pub(crate) fn of(pages: &[(PageId, Lsn)], exact: bool, runs_max: usize) -> Self {
        let listed = only_copies(pages, runs_max);
        Self { coarse: listed.coarse || !exact, ..listed }
    }

    /// Adds the names of the spaces; omits pages of dropped spaces.
    pub(crate) fn report(&self, volume: &Volume) -> SsdLoss {
        let names = volume.list();
        let mut spaces: Vec<LostPages> = Vec::new();
        for (space, first, count) in &self.runs {
            let range = *first..first.saturating_add(*count);
            let Some(SpaceInfo { id, name, .. }) = names.iter().find(|s| s.id.0 == *space) else { continue };
            match spaces.last_mut().filter(|s| s.space == *id) {
                Some(last) => last.ranges.push(range),
                None => {
                    let ranges = Vec::from_iter([range]);
                    spaces.push(LostPages { space: *id, name: name.clone(), ranges });
                }
            }
        }
        SsdLoss { exact: !self.coarse, spaces, redo_from: self.redo_from.map(Lsn) }
    }

    /// Every page that may ever have been allocated: the SSD alone may have known where a space ended.
    pub(crate) fn all_of(manifest: &Manifest) -> Self {
        let end = |s: &SpaceRecord| {
            let extents: u64 = s.runs.iter().map(|(_, count)| count).sum();
            extents.saturating_mul(u64::from(EXTENT_PAGES)).min(u64::from(u32::MAX)) as u32
        };
        let written = manifest.spaces.iter().filter(|s| end(s) > 0 && !s.dropping);
        Self { redo_from: None, runs: written.map(|s| (s.id, 0, end(s))).collect(), coarse: true }
    }

    /// Lists nothing, exactly.
    fn is_none(&self) -> bool {
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
        // With nothing left there is nothing to be uncertain of.
        let coarse = self.coarse && !runs.is_empty();
        Self { redo_from, runs, coarse }
    }
}

/// Adds `loss` to the `known` one; `None` when nothing was lost.
pub(crate) fn added(known: Option<OnlyCopies>, loss: OnlyCopies) -> Option<OnlyCopies> {
    Some(known.unwrap_or_default().merge(loss)).filter(|all| !all.is_none())
}

/// The manifest's form of the list, in at most `runs_max` runs.
pub(crate) fn only_copies(pages: &[(PageId, Lsn)], runs_max: usize) -> OnlyCopies {
    let redo_from = pages.iter().map(|(_, lsn)| lsn.0).min();
    let single: Vec<_> = pages.iter().map(|(page, _)| (page.space.0, page.no, 1)).collect();
    let (runs, coarse) = shortened(&single, runs_max);
    OnlyCopies { redo_from, runs, coarse }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(numbers: &[(u32, u32)]) -> Vec<(PageId, Lsn)> {
        numbers.iter().map(|(s, no)| (PageId::new(SpaceId(*s), *no), Lsn(u64::from(*no) + 10))).collect()
    }

    #[test]
    fn neighbours_make_a_run_and_gaps_and_spaces_end_it() {
        let listed = only_copies(&pages(&[(1, 3), (1, 4), (1, 6), (2, 7)]), RUNS_MAX);
        assert_eq!(listed.runs, [(1, 3, 2), (1, 6, 1), (2, 7, 1)]);
        assert_eq!((listed.redo_from, listed.coarse), (Some(13), false));
        assert_eq!(joined(&[(1, 3, 1), (1, 4, 1), (1, 6, 1), (2, 7, 1)], 4), [(1, 3, 4), (2, 7, 1)]);
    }

    #[test]
    fn losses_add_up_and_saved_pages_leave_the_list() {
        let a = only_copies(&pages(&[(1, 3), (1, 4), (2, 7)]), RUNS_MAX);
        let b = only_copies(&pages(&[(1, 4), (1, 5), (3, 1)]), RUNS_MAX);
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
        // For an unknown loss redo may have to begin anywhere.
        let unknown = OnlyCopies { redo_from: None, runs: vec![(1, 0, 64)], coarse: true };
        let all = a.merge(unknown);
        assert_eq!((all.redo_from, all.coarse, all.runs), (None, true, vec![(1, 0, 64), (2, 7, 1)]));
        assert_eq!(added(None, OnlyCopies::default()), None);
    }

    #[test]
    fn after_a_crash_all_extents_may_be_lost_but_for_those_of_dropped_spaces() {
        let mut manifest = Manifest::new("s".into(), pagetier_page::PageSize::MIN);
        for id in 1..=3 {
            manifest.add_space(id, "a");
        }
        (manifest.spaces[0].runs, manifest.spaces[0].pages) = (vec![(0, 1), (4, 2)], 1);
        (manifest.spaces[2].runs, manifest.spaces[2].dropping) = (vec![(1, 1)], true);
        let all = OnlyCopies::all_of(&manifest);
        assert_eq!((all.runs, all.coarse), (vec![(1, 0, 3 * EXTENT_PAGES)], true));
    }

    #[test]
    fn a_long_list_gets_coarse_and_covers_everything() {
        let many: Vec<_> = (0..=RUNS_MAX as u32).map(|i| (1, i * 40)).collect();
        let listed = only_copies(&pages(&many), RUNS_MAX);
        assert!(listed.coarse && listed.runs.len() <= RUNS_MAX);
        for (_, no) in many {
            assert!(listed.runs.iter().any(|(_, first, count)| (*first..first + count).contains(&no)));
            if no > 4000 {
                break;
            }
        }
    }
}
