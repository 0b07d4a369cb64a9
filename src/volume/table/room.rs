//! How spaces get extents of the volume, and give them back.

use super::{EXTENT_PAGES, HOLE, Volume};
use crate::manifest::extents::{hole_to, merged, places, take_extents, without};
use crate::volume::growth_plan::{Ahead, Extents, Growth};
use pagetier_page::{PageId, SpaceId};
use std::ops::Range;

/// Extents of a space beyond its last number, taken away from it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tail {
    /// The number of extents that the space has left.
    pub(crate) kept: u64,
    /// Their places on the HDD.
    pub(crate) runs: Vec<(u64, u64)>,
}

impl Volume {
    /// Plans the next step of a growth of the space of `page`, which has no room: in the hole that the page
    /// lies in, or at the space's end. Changes nothing: see [`Volume::grow`]. The caller holds the manifest's
    /// lock until the growth has taken effect.
    pub(crate) fn plan_growth(&self, page: PageId, ahead: Ahead) -> Option<Growth> {
        let s = self.live(page.space)?;
        Some(Growth::plan(page, s.pages, &s.placement, &self.extents.lock(), ahead))
    }

    /// The lowest page number below `pages` for which `space` has no room.
    pub(crate) fn first_without_room(&self, space: SpaceId, pages: u32) -> Option<u32> {
        let extents = u64::from(pages.div_ceil(EXTENT_PAGES));
        let nth = self.live(space)?.placement.first_without_place(extents)?;
        u32::try_from(nth * u64::from(EXTENT_PAGES)).ok()
    }

    /// The run of a growth in bytes, and the end of the volume that the HDD must reach for it.
    pub(crate) fn growth_bytes(&self, growth: &Growth) -> (Range<u64>, u64) {
        growth.bytes(self.extents_at, self.extent_bytes())
    }

    /// The first number of the hole that `page` lies in, if its extent has no place.
    pub(crate) fn hole_start(&self, page: PageId) -> Option<u32> {
        let hole = self.live(page.space)?.placement.hole((page.no / EXTENT_PAGES).into())?;
        u32::try_from(hole.start * u64::from(EXTENT_PAGES)).ok()
    }

    /// Whether extents of the volume belong to no space.
    pub(crate) fn has_free_extents(&self) -> bool {
        !self.extents.lock().free.is_empty()
    }

    /// The byte offset of the first extent.
    pub(crate) fn extents_at(&self) -> u64 {
        self.extents_at
    }

    /// The end of the volume in bytes.
    pub(crate) fn end(&self) -> u64 {
        self.extents_at + self.extents.lock().used * self.extent_bytes()
    }

    /// Gives the space the planned extents; returns false, without effect, if the plan is outdated.
    pub(crate) fn grow(&self, growth: &Growth) -> bool {
        let Some(mut s) = self.spaces.get_mut(&growth.space) else { return false };
        let Extents { used, free, unformatted } = &mut *self.extents.lock();
        // The manifest names the run already. Taking another one instead would give two spaces the same place
        // later.
        if !take_extents(used, free, growth.run) {
            return false;
        }
        *unformatted = without(unformatted, growth.run);
        match growth.at {
            None => s.placement.append(growth.run),
            Some(at) => {
                s.placement.replace(at, growth.run);
                let pages = pages_of((at, growth.run.1));
                // Free pages in the former hole have homes again.
                s.note_usable(pages.into_iter());
            }
        }
        true
    }

    /// Withholds the numbers (first, count) that the last extent of `space` has beyond the end, if all others
    /// of it are free, until [`Volume::end_free`].
    pub(crate) fn withhold_rest(&self, space: SpaceId) -> Option<(u32, u32)> {
        let mut s = self.live_mut(space)?;
        let end = s.end();
        let extent = end / EXTENT_PAGES * EXTENT_PAGES;
        let rest = (end, extent.checked_add(EXTENT_PAGES)? - end);
        let is_free = extent < end && s.free.begin_before(end) <= extent;
        // Marked as leaving, although they have never existed: `allocate` and `create` keep away.
        (is_free && s.leaving.insert(rest.0, rest.1)).then_some(rest)
    }

    /// Takes away the extents of `space` beyond its last number, but none of the first `kept`: no page can be
    /// created in them any more. [`Volume::give_back_tail`] or [`Volume::restore_tail`] follows.
    pub(crate) fn withhold_tail(&self, space: SpaceId, kept: u64) -> Tail {
        let Some(mut s) = self.live_mut(space) else { return Tail::default() };
        // Never below the last number that is in use or free, whatever the caller asks for: redo of a page
        // that was freed needs disk space for its extent then, and for no other.
        let kept = kept.max(u64::from(s.end().div_ceil(EXTENT_PAGES)));
        let runs = s.placement.truncate(kept);
        Tail { kept, runs }
    }

    /// Gives withheld extents to the volume. Returns their byte ranges.
    pub(crate) fn give_back_tail(&self, tail: &Tail) -> Vec<Range<u64>> {
        self.put_back(&tail.runs)
    }

    /// Undoes [`Volume::withhold_tail`].
    pub(crate) fn restore_tail(&self, space: SpaceId, tail: &Tail) {
        if let Some(mut s) = self.spaces.get_mut(&space) {
            tail.runs.iter().for_each(|run| s.placement.append(*run));
        }
    }

    /// Withholds from reuse the extents of `space` (first in the space, count) that lie on the HDD, whose
    /// pages are all free, and that are none of its first `kept`, until [`Volume::give_back`] and
    /// [`Volume::end_free`]. `None` if there is no such space.
    pub(crate) fn withhold_extents(&self, space: SpaceId, kept: u64) -> Option<Vec<(u64, u64)>> {
        let mut s = self.live_mut(space)?;
        let of = u64::from(EXTENT_PAGES);
        // Rounded inwards: an extent goes only if all of its pages are free.
        let whole = |(first, count): (u32, u32)| {
            let at = u64::from(first).div_ceil(of).max(kept);
            (at, ((u64::from(first) + u64::from(count)) / of).saturating_sub(at))
        };
        let extents: Vec<(u64, u64)> = s.usable.iter().map(whole).filter(|(_, count)| *count > 0).collect();
        for (first, count) in extents.iter().copied().filter_map(pages_of) {
            // Marked as leaving, which keeps `allocate` and `create` away until the extents are gone or back
            // (I28).
            let _ = (s.usable.remove(first, count), s.leaving.insert(first, count));
        }
        Some(extents)
    }

    /// Gives extents of `space` to the volume, as [`Change::GiveBack`] does. Returns their byte ranges.
    pub(crate) fn give_back(&self, space: SpaceId, extents: (u64, u64)) -> Vec<Range<u64>> {
        let Some(mut s) = self.spaces.get_mut(&space) else { return Vec::new() };
        // Look the places up before the hole is made, which forgets them.
        let given = places(s.placement.runs(), extents.0..extents.0 + extents.1);
        s.placement.replace(extents.0, (HOLE, extents.1));
        self.put_back(&given)
    }

    /// Lists the numbers from the end of `space` to `end` as free, as [`SpaceRecord::list_free`] does.
    ///
    /// [`SpaceRecord::list_free`]: crate::manifest::contents::SpaceRecord::list_free
    pub(crate) fn list_free(&self, space: SpaceId, end: u32) {
        let Some(mut s) = self.live_mut(space) else { return };
        let beyond = (s.end(), end.saturating_sub(s.end()));
        let _ = s.free.insert(beyond.0, beyond.1);
        if let Some(run) = hole_to(s.placement.extents(), end) {
            s.placement.append(run);
        }
        s.note_usable([beyond].into_iter());
    }

    /// Makes runs of extents free for any space. Returns their byte ranges.
    pub(super) fn put_back(&self, runs: &[(u64, u64)]) -> Vec<Range<u64>> {
        let mut all = self.extents.lock();
        all.free = merged(all.free.iter().chain(runs).copied().collect());
        drop(all);
        self.bytes_of(runs)
    }

    /// The byte ranges of the extents that no space has, but for those at the end.
    pub(crate) fn free_bytes(&self) -> Vec<Range<u64>> {
        self.bytes_of(&self.extents.lock().free)
    }

    fn bytes_of(&self, runs: &[(u64, u64)]) -> Vec<Range<u64>> {
        let at = |extent| self.extents_at + extent * self.extent_bytes();
        runs.iter().map(|(first, count)| at(*first)..at(first + count)).collect()
    }
}

/// The pages (first, count) of a space's extents (first, count).
pub(crate) fn pages_of((first, count): (u64, u64)) -> Option<(u32, u32)> {
    let pages =
        |extents: u64| extents.checked_mul(u64::from(EXTENT_PAGES)).and_then(|n| u32::try_from(n).ok());
    pages(first).zip(pages(count))
}
