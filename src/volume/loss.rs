//! The loss with an SSD: the pages that may read as older versions.

use super::table::{SpaceInfo, Volume};
use crate::manifest::contents::{Manifest, SpaceRecord};
use crate::manifest::extents::EXTENT_PAGES;
use crate::manifest::only_copies::OnlyCopies;
use pagetier_page::{Lsn, PageId, SpaceId};
use std::ops::Range;

/// The pages that may read as an older version than the last `sync` that covered them, or not at all, because
/// the SSD that held newer versions was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SsdLoss {
    /// Whether every page listed was on the SSD alone. If not, the pages listed *may* be affected. In both
    /// cases no other page is affected. After a crash the list has all pages of all spaces, even those beyond
    /// a space's end as the HDD shows it. With an SSD that was recovered after a crash, the list includes
    /// pages that were written back shortly before the crash.
    pub exact: bool,
    /// The affected pages by space.
    pub spaces: Vec<LostPages>,
    /// Redo of the embedder's log from here on restores all of them. Never before the newest position that
    /// [`PageStore::redo_from`](crate::PageStore::redo_from) returned for [`Loss::Ssd`](crate::Loss::Ssd), so
    /// a log that was shortened by these positions alone suffices. `None` when nothing is lost, or when it is
    /// unknown: after a crash of a store that never asked for such a position. [`Lsn::BLANK`] when all of
    /// them were created and not changed since, so that the log has no record of them.
    pub redo_from: Option<Lsn>,
}

/// Affected pages of one space.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostPages {
    /// The space's id.
    pub space: SpaceId,
    /// The space's name, for messages.
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

    pub(crate) fn none() -> Self {
        Self { exact: true, spaces: Vec::new(), redo_from: None }
    }
}

impl OnlyCopies {
    /// The list with the names of the spaces, without pages of dropped spaces.
    pub(crate) fn report(&self, volume: &Volume) -> SsdLoss {
        let names = volume.list();
        let mut spaces: Vec<LostPages> = Vec::new();
        for (space, first, count) in &self.runs {
            let range = *first..first.saturating_add(*count);
            // A space that was dropped since needs no redo.
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
        // Unknown where redo must begin: the SSD had the positions.
        Self { redo_from: None, runs: written.map(|s| (s.id, 0, end(s))).collect(), coarse: true }
    }

    /// The list, with redo from no earlier than `handed_out` (I33): every older change is on the HDD, also
    /// where the SSD knows of a floor only, or nothing is known.
    pub(crate) fn redone_from(mut self, handed_out: Option<u64>) -> Self {
        if !self.runs.is_empty() {
            self.redo_from = self.redo_from.max(handed_out);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_crash_all_extents_may_be_lost_but_for_those_of_dropped_spaces() {
        let mut manifest = Manifest::new("s".into(), pagetier_page::PageSize::MIN);
        for id in 1..=3 {
            manifest.add_space(id, "a");
        }
        (manifest.spaces[0].runs, manifest.spaces[0].pages) = (vec![(0, 1), (4, 2)], 1);
        (manifest.spaces[2].runs, manifest.spaces[2].dropping) = (vec![(1, 1)], true);
        let all = OnlyCopies::all_of(&manifest);
        assert_eq!((&all.runs, all.coarse), (&vec![(1, 0, 3 * EXTENT_PAGES)], true));
        assert_eq!(all.redo_from, None);
        let known = all.redone_from(Some(7));
        assert_eq!(known.redo_from, Some(7));
        let older = OnlyCopies { redo_from: Some(3), ..known.clone() };
        assert_eq!(older.redone_from(Some(7)).redo_from, Some(7));
        let newer = OnlyCopies { redo_from: Some(9), ..known };
        assert_eq!(newer.redone_from(Some(7)).redo_from, Some(9));
        assert_eq!(OnlyCopies::default().redone_from(Some(7)), OnlyCopies::default());
    }
}
