//! Which extents a growing space gets next, and how large the volume is once it has all that it needs.

use super::placement::Placement;
use crate::manifest::changes::Change;
use crate::manifest::extents::{EXTENT_PAGES, next_extents};
use pagetier_page::{PageId, SpaceId};
use std::ops::Range;

/// The maximum number of pages by which a space grows ahead; bounds what crash recovery must search.
const GROWTH_PAGES_MAX: u32 = 256;

/// The extents of the volume that belong to no space.
#[derive(Clone, Debug)]
pub(crate) struct Extents {
    /// Extents from here on have never been used.
    pub(crate) used: u64,
    /// Runs that spaces gave back.
    pub(crate) free: Vec<(u64, u64)>,
    /// Runs that a version before formatting gave to spaces.
    pub(crate) unformatted: Vec<(u64, u64)>,
}

/// How many extents a growth takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ahead {
    /// A few more than the page needs, so that the space grows rarely.
    Some,
    /// What the page needs.
    None,
}

/// One step of a growth: a run of extents that the volume adopts once the HDD has them and the manifest
/// records them.
#[derive(Debug)]
pub(crate) struct Growth {
    pub(crate) space: SpaceId,
    pub(crate) run: (u64, u64),
    /// The first extent of the space to fill, in a hole; `None`: the space grows at its end.
    pub(crate) at: Option<u64>,
    /// The number in the space of the first extent that it gets.
    pub(crate) nth: u64,
    /// The number of extents that the volume has once the space has all extents that the page needs. It is
    /// known before the first step, so that a page for which there is no room takes none.
    total: u64,
}

impl Growth {
    /// Plans the next step for `page`, of whose space `placement` is. The space has `pages` pages.
    pub(crate) fn plan(
        page: PageId,
        pages: u32,
        placement: &Placement,
        extents: &Extents,
        ahead: Ahead,
    ) -> Self {
        let nth = u64::from(page.no / EXTENT_PAGES);
        let hole = placement.hole(nth);
        // A hole is filled from the page's extent on, one at a time if need be; beyond the end, all extents
        // up to the page are needed, since a space has no gaps in its table.
        let needed = if hole.is_some() { 1 } else { (nth + 1).saturating_sub(placement.extents()) };
        // About 3% of the space: a large one grows seldom, a small one does not take much from a small disk.
        let regular = match ahead {
            Ahead::Some => u64::from((pages / 32).clamp(EXTENT_PAGES, GROWTH_PAGES_MAX) / EXTENT_PAGES),
            Ahead::None => 1,
        };
        // Never beyond the hole: the extents behind it belong to other pages.
        let wanted = regular.min(hole.as_ref().map_or(u64::MAX, |hole| hole.end - nth)).max(needed);
        let run = next_extents(extents.used, &extents.free, wanted);
        let free: u64 = extents.free.iter().map(|(_, count)| count).sum();
        // Free extents are used first and need no space on the HDD. Of the rest, only what the page needs is
        // new: growing ahead is for a volume that has no free extents.
        let new = if extents.free.is_empty() { wanted } else { needed.saturating_sub(free) };
        let total = extents.used + new;
        let at = hole.map(|_| nth);
        Self { space: page.space, run, at, nth: at.unwrap_or(placement.extents()), total }
    }

    /// The growth as the manifest records it.
    pub(crate) fn change(&self) -> Change {
        Change::Grow { space: self.space.0, run: self.run, at: self.at }
    }

    /// The byte ranges of a volume whose extents begin at `data_at`: the run, and the end of the volume.
    pub(crate) fn bytes(&self, data_at: u64, extent_bytes: u64) -> (Range<u64>, u64) {
        let offset = |extent: u64| data_at + extent * extent_bytes;
        (offset(self.run.0)..offset(self.run.0 + self.run.1), offset(self.total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(no: u32, has: u64, extents: &Extents, ahead: Ahead) -> Growth {
        let placement = Placement::new(&[(100, has)]);
        Growth::plan(PageId::new(SpaceId(1), no), 64 * 1000, &placement, extents, ahead)
    }

    #[test]
    fn a_growth_knows_its_end_before_its_first_step() {
        let fresh = Extents { used: 10, free: Vec::new(), unformatted: Vec::new() };
        let growth = plan(0, 0, &fresh, Ahead::Some);
        assert_eq!((growth.run, growth.total), ((10, 4), 14), "some ahead");
        let growth = plan(0, 0, &fresh, Ahead::None);
        assert_eq!((growth.run, growth.total), ((10, 1), 11));
        let growth = plan(64 * 100, 3, &fresh, Ahead::Some);
        assert_eq!((growth.run, growth.total), ((10, 98), 108), "one step for a page far ahead");
        // The free extents come first, in several steps; the end counts what they do not cover.
        let free = Extents { used: 10, free: vec![(1, 2), (5, 3)], unformatted: Vec::new() };
        let growth = plan(64 * 100, 3, &free, Ahead::Some);
        assert_eq!((growth.run, growth.total, growth.nth), ((5, 3), 10 + 98 - 5, 3));
        let growth = plan(64 * 4, 0, &free, Ahead::Some);
        assert_eq!((growth.run, growth.total), ((5, 3), 10), "no new ones are needed");
        assert_eq!(growth.bytes(1000, 10), (1050..1080, 1100));
    }
}
