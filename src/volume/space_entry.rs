//! A space as the volume knows it: its pages, and where they lie.

use super::placement::Placement;
use crate::manifest::page_runs::PageRuns;
use rustc_hash::FxHashMap;

/// In [`SpaceEntry::reused`]: the page has not been written yet.
pub(crate) const UNWRITTEN: u64 = 0;

/// A space in memory: what the manifest says of it, and what changed since.
#[derive(Clone, Debug)]
pub(crate) struct SpaceEntry {
    pub(crate) name: String,
    /// Pages allocated, free ones included, but for those beyond the end that `shrink` set.
    pub(crate) pages: u32,
    pub(crate) placement: Placement,
    /// The pages that do not exist.
    pub(crate) free: PageRuns,
    /// Pages that exist until a `sync` frees them, each with the number of the call that said so.
    pub(crate) pending_frees: FxHashMap<u32, u64>,
    /// Those of `free` whose numbers cannot be reused yet: copies of them may be in memory or in flight.
    pub(crate) leaving: PageRuns,
    /// Those of `leaving` for which no call waits any more: the call that freed them was cut short.
    pub(crate) stranded: PageRuns,
    /// Those of `free` whose numbers can be reused and have room on the HDD.
    pub(crate) usable: PageRuns,
    /// Reused pages that the manifest still lists as free, each with the number of its first write since it
    /// was reused.
    pub(crate) reused: FxHashMap<u32, u64>,
    /// The space is being dropped: lookups do not find it, but its extents are not free yet.
    pub(crate) dropping: bool,
}

impl SpaceEntry {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            pages: 0,
            placement: Placement::default(),
            free: PageRuns::default(),
            pending_frees: FxHashMap::default(),
            leaving: PageRuns::default(),
            stranded: PageRuns::default(),
            usable: PageRuns::default(),
            reused: FxHashMap::default(),
            dropping: false,
        }
    }

    /// The number after the last one that is in use, free or withheld.
    pub(crate) fn end(&self) -> u32 {
        self.pages.max(self.free.end()).max(self.leaving.end())
    }

    pub(crate) fn has(&self, no: u32) -> bool {
        no < self.pages && !self.free.contains(no)
    }

    /// The lowest free number that is not leaving. None of them has room when `usable` is empty.
    pub(crate) fn roomless(&self) -> Option<u32> {
        if self.leaving.is_empty() {
            return self.free.first();
        }
        self.free.numbers().find(|no| !self.leaving.contains(*no))
    }

    /// Adds those of `pages` (first, count) to `usable` that are free, not leaving, and have room.
    pub(crate) fn note_usable(&mut self, pages: impl Iterator<Item = (u32, u32)>) {
        for (first, count) in pages {
            // Holes are left out as a whole: that of a space that was shrunk may have any number of pages.
            for no in self.placement.placed(first..first.saturating_add(count)).into_iter().flatten() {
                if self.free.contains(no) && !self.leaving.contains(no) {
                    let _ = self.usable.insert(no, 1);
                }
            }
        }
    }
}
