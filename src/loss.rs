//! What is lost with an SSD: which pages may read as older versions.

use crate::manifest::OnlyCopies;
use crate::volume::Volume;
use pagetier_page::{Lsn, PageId, SpaceId};
use std::ops::Range;

/// Runs of pages that the manifest lists, at most.
const RUNS_MAX: usize = 1 << 16;

/// The pages that may read as an older version than the last `sync` that covered them, or not at all, because the SSD that held newer ones
/// was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SsdLoss {
    /// Every page listed was on the SSD alone, and no other is affected. Otherwise the pages listed *may* be affected, and no other is: after a
    /// crash these are all pages of all spaces, those included that lie beyond a space's end as the HDD shows it.
    pub exact: bool,
    /// By space, the pages affected.
    pub spaces: Vec<LostPages>,
    /// Redo of the embedder's log from here on brings all of them back; `None` when it is not known (the embedder may have noted
    /// [`crate::PageStore::oldest_ssd_lsn`]), or nothing is lost.
    pub redo_from: Option<Lsn>,
}

/// Pages of one space.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostPages {
    /// The space.
    pub space: SpaceId,
    /// Its name.
    pub name: String,
    /// The pages, in order, without overlaps.
    pub ranges: Vec<Range<u32>>,
}

impl SsdLoss {
    /// How many pages are listed.
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

    /// Of these pages exactly.
    pub(crate) fn of(pages: &[(PageId, Lsn)], volume: &Volume) -> Self {
        Lost { known: Some(only_copies(pages)) }.report(volume)
    }
}

/// What is known of a loss before the spaces are.
#[derive(Debug)]
pub(crate) struct Lost {
    /// The list that a close in order left.
    pub(crate) known: Option<OnlyCopies>,
}

impl Lost {
    pub(crate) fn report(self, volume: &Volume) -> SsdLoss {
        let names = volume.list();
        let named = |space: SpaceId, ranges| {
            let name = names.iter().find(|s| s.id == space).map(|s| s.name.clone()).unwrap_or_default();
            LostPages { space, name, ranges }
        };
        let Some(OnlyCopies { redo_from, runs, coarse }) = self.known else {
            // Every page that may ever have been allocated: where a space ended may have been known to the SSD alone.
            let end = |space| volume.reserved(space).min(u64::from(u32::MAX)) as u32;
            let whole = |space| 0..end(space);
            let written = names.iter().filter(|s| end(s.id) > 0);
            let spaces = written.map(|s| named(s.id, Vec::from_iter([whole(s.id)]))).collect();
            return SsdLoss { exact: false, spaces, redo_from: None };
        };
        let mut spaces: Vec<LostPages> = Vec::new();
        for (space, first, count) in runs {
            let range = first..first.saturating_add(count);
            match spaces.last_mut().filter(|s| s.space == SpaceId(space)) {
                Some(last) => last.ranges.push(range),
                None => spaces.push(named(SpaceId(space), Vec::from_iter([range]))),
            }
        }
        SsdLoss { exact: !coarse, spaces, redo_from: redo_from.map(Lsn) }
    }
}

/// As the manifest lists them; with wider and wider runs if there are many.
pub(crate) fn only_copies(pages: &[(PageId, Lsn)]) -> OnlyCopies {
    let redo_from = pages.iter().map(|(_, lsn)| lsn.0).min();
    let mut gap = 0;
    loop {
        let runs = runs(pages.iter().map(|(page, _)| *page), gap);
        if runs.len() <= RUNS_MAX || gap > u32::MAX / 4 {
            return OnlyCopies { redo_from, runs, coarse: gap > 0 };
        }
        gap = (gap * 2).max(16);
    }
}

/// Runs of the sorted `pages`; pages no more than `gap` apart fall into one.
fn runs(pages: impl Iterator<Item = PageId>, gap: u32) -> Vec<(u32, u32, u32)> {
    let mut runs: Vec<(u32, u32, u32)> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some((space, first, count))
                if *space == page.space.0 && page.no - *first <= count.saturating_add(gap) =>
            {
                *count = page.no - *first + 1;
            }
            _ => runs.push((page.space.0, page.no, 1)),
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
        let listed = only_copies(&pages(&[(1, 3), (1, 4), (1, 6), (2, 7)]));
        assert_eq!(listed.runs, [(1, 3, 2), (1, 6, 1), (2, 7, 1)]);
        assert_eq!((listed.redo_from, listed.coarse), (Some(13), false));
        assert_eq!(
            runs(pages(&[(1, 3), (1, 4), (1, 6), (2, 7)]).into_iter().map(|p| p.0), 4),
            [(1, 3, 4), (2, 7, 1)]
        );
    }

    #[test]
    fn a_list_that_would_be_long_gets_coarse_and_covers_everything() {
        let many: Vec<_> = (0..=RUNS_MAX as u32).map(|i| (1, i * 40)).collect();
        let listed = only_copies(&pages(&many));
        assert!(listed.coarse && listed.runs.len() <= RUNS_MAX);
        for (_, no) in many {
            assert!(listed.runs.iter().any(|(_, first, count)| (*first..first + count).contains(&no)));
            if no > 4000 {
                break;
            }
        }
    }
}
