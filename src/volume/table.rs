//! The HDD as a volume: a superblock (`manifest::superblock`), then extents, each of which belongs to one
//! space.
//!
//! All spaces share one device. Offsets are the disk's own, so that sorting and merging writes suits the arm,
//! and a block device serves as well as a file. The table (runs of extents) is small and kept in memory;
//! changes reach the manifest before they take effect.
//!
//! A freed page does not exist until its number is reused. The manifest lists it as free until the page's
//! first new version is durable (`spaces::free`): whatever an earlier crash leaves of it belongs to a page
//! that does not exist.

mod free;
mod room;

pub(crate) use free::Freed;
pub(crate) use room::pages_of;

use super::arriving::{Arriving, Mark};
use super::growth_plan::Extents;
use super::placement::Placement;
use super::space_entry::{SpaceEntry, UNWRITTEN};
use super::space_hints::SpaceHints;
use crate::manifest::contents::Manifest;
pub(crate) use crate::manifest::extents::EXTENT_PAGES;
use crate::manifest::extents::{HOLE, has};
use crate::manifest::page_runs::PageRuns;
use crate::manifest::superblock::HEAD_BYTES;
use dashmap::DashMap;
use dashmap::mapref::one::{Ref, RefMut};
use pagetier_page::{PageId, PageSize, SpaceId};
use pagetier_ssdcache::Homes;
use parking_lot::Mutex;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::sync::Notify;

/// A space's description.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceInfo {
    /// Its id, which page ids bear; never reused.
    pub id: SpaceId,
    /// Its name, unique in the store.
    pub name: String,
    /// Its number of pages, free ones included.
    pub pages: u32,
    /// The number of its free pages below that, which
    /// [`PageStore::allocate`](crate::PageStore::allocate) reuses.
    pub free: u32,
    /// How its pages are to be treated; by default as the policies decide.
    pub hints: SpaceHints,
}

/// The spaces and their extents.
#[derive(Debug)]
pub(crate) struct Volume {
    page_size: PageSize,
    spaces: DashMap<SpaceId, SpaceEntry, FxBuildHasher>,
    /// The spaces that are not being dropped, by name.
    names: Mutex<FxHashMap<String, SpaceId>>,
    extents: Mutex<Extents>,
    /// The byte offset of the first extent.
    extents_at: u64,
    /// The number of pages in [`SpaceEntry::reused`], for all spaces.
    reused: AtomicUsize,
    first_writes: AtomicU64,
    /// The number of pages in [`SpaceEntry::pending_frees`], for all spaces.
    pending_frees: AtomicUsize,
    free_calls: AtomicU64,
    /// The lists of the backups in progress: see [`Volume::watch_freed`].
    freed: Mutex<Vec<Weak<Freed>>>,
    /// Signals that freed pages have left memory.
    pub(crate) left: Notify,
    /// Pages that exist but wait for a frame.
    pub(crate) arriving: Arriving,
}

/// A page number for a new page.
#[derive(Debug)]
pub(crate) enum Taken<'a> {
    /// The number, of a page that exists from here on.
    Page(u32, Mark<'a>),
    /// The space has to grow for this page.
    NoRoom(u32),
}

#[derive(Debug)]
pub(crate) enum Claimed<'a> {
    /// It exists from here on.
    Yes(Mark<'a>),
    /// Its space has no extent for it.
    NoRoom,
    /// The page was freed and is still leaving memory.
    Leaving,
    /// A `sync` is to free it.
    PendingFree,
}

impl Volume {
    pub(crate) fn new(manifest: &Manifest, page_size: PageSize) -> Self {
        let spaces = DashMap::with_hasher(FxBuildHasher);
        let mut names = FxHashMap::default();
        for s in &manifest.spaces {
            let (placement, free) = (Placement::new(&s.runs), s.free.clone());
            let (pages, dropping) = (s.pages, s.dropping);
            let mut entry = SpaceEntry { pages, placement, free, dropping, ..SpaceEntry::new(&s.name) };
            // Without holes every free number has room: no need to look each one up, which takes long in a
            // large space.
            if s.runs.iter().all(|(first, _)| *first != HOLE) {
                entry.usable = s.free.clone();
            } else {
                entry.note_usable(s.free.iter());
            }
            spaces.insert(SpaceId(s.id), entry);
            // Hidden at once: the next space may take the name before the drop has ended.
            if !dropping {
                names.insert(s.name.clone(), SpaceId(s.id));
            }
        }
        let extents = Extents {
            used: manifest.extents_used,
            free: manifest.extents_free.clone(),
            unformatted: manifest.unformatted.clone(),
        };
        let (names, extents, extents_at) = (Mutex::new(names), Mutex::new(extents), manifest.extents_at());
        Self { spaces, names, extents, extents_at, ..Self::empty(page_size) }
    }

    fn empty(page_size: PageSize) -> Self {
        Self {
            page_size,
            spaces: DashMap::default(),
            names: Mutex::default(),
            extents: Mutex::new(Extents { used: 0, free: Vec::new(), unformatted: Vec::new() }),
            extents_at: HEAD_BYTES,
            reused: AtomicUsize::new(0),
            first_writes: AtomicU64::new(0),
            pending_frees: AtomicUsize::new(0),
            free_calls: AtomicU64::new(0),
            freed: Mutex::default(),
            left: Notify::new(),
            arriving: Arriving::default(),
        }
    }

    /// Updates the page counts in the manifest, the only part of the table that changes without it.
    pub(crate) fn record(&self, manifest: &mut Manifest) {
        for space in &mut manifest.spaces {
            // A space that is being dropped may be gone from the table before it is gone from the manifest.
            if let Some(s) = self.spaces.get(&SpaceId(space.id)) {
                space.pages = s.pages;
            }
        }
    }

    /// The number of pages, free ones included, whose extents have a place on the HDD.
    pub(crate) fn placed_pages(&self) -> u64 {
        let placed = |s: &SpaceEntry| u64::from(s.pages).saturating_sub(s.placement.roomless_pages(s.pages));
        self.spaces.iter().map(|s| placed(&s)).sum()
    }

    pub(crate) fn list(&self) -> Vec<SpaceInfo> {
        let info = |id: SpaceId, s: &SpaceEntry| {
            let free = s.free.pages() - s.free.pages_from(s.pages);
            let hints = SpaceHints::default();
            SpaceInfo { id, name: s.name.clone(), pages: s.pages, free, hints }
        };
        let mut all: Vec<SpaceInfo> =
            self.spaces.iter().filter(|s| !s.dropping).map(|s| info(*s.key(), &s)).collect();
        all.sort_unstable_by_key(|s| s.id);
        all
    }

    /// The free pages of all spaces as runs: space, first, count.
    pub(crate) fn free_pages(&self) -> Vec<(u32, u32, u32)> {
        let of = |id: SpaceId, s: &SpaceEntry| -> Vec<(u32, u32, u32)> {
            s.free.iter().map(|(first, count)| (id.0, first, count)).collect()
        };
        self.spaces.iter().filter(|s| !s.dropping).flat_map(|s| of(*s.key(), &s)).collect()
    }

    /// The reused pages that the manifest still lists as free.
    pub(crate) fn reused_pages(&self) -> FxHashSet<PageId> {
        let of = |s: &SpaceEntry, id| s.reused.keys().map(|no| PageId::new(id, *no)).collect::<Vec<_>>();
        self.spaces.iter().flat_map(|s| of(&s, *s.key())).collect()
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<SpaceId> {
        self.names.lock().get(name).copied()
    }

    pub(crate) fn add(&self, id: SpaceId, name: &str) {
        let _ = self.spaces.insert(id, SpaceEntry::new(name));
        let _ = self.names.lock().insert(name.to_owned(), id);
    }

    /// The space, unless it is being dropped.
    fn live(&self, id: SpaceId) -> Option<Ref<'_, SpaceId, SpaceEntry>> {
        self.spaces.get(&id).filter(|s| !s.dropping)
    }

    fn live_mut(&self, id: SpaceId) -> Option<RefMut<'_, SpaceId, SpaceEntry>> {
        self.spaces.get_mut(&id).filter(|s| !s.dropping)
    }

    /// Whether `id` is being dropped; `None` if there is no such space.
    pub(crate) fn is_dropping(&self, id: SpaceId) -> Option<bool> {
        self.spaces.get(&id).map(|s| s.dropping)
    }

    /// Hides the space from lookups; it keeps its extents.
    pub(crate) fn begin_drop(&self, id: SpaceId) {
        let Some(mut s) = self.spaces.get_mut(&id) else { return };
        s.dropping = true;
        let mut names = self.names.lock();
        if names.get(&s.name) == Some(&id) {
            names.remove(&s.name);
        }
    }

    pub(crate) fn dropping(&self) -> Vec<SpaceId> {
        self.spaces.iter().filter(|s| s.dropping).map(|s| *s.key()).collect()
    }

    /// Ends the drop: frees the extents of the space; no write to them may be in flight.
    pub(crate) fn end_drop(&self, id: SpaceId) {
        let Some((_, s)) = self.spaces.remove(&id) else { return };
        // Their records would never be settled, and every later `sync` would look for them.
        self.reused.fetch_sub(s.reused.len(), Ordering::Relaxed);
        self.pending_frees.fetch_sub(s.pending_frees.len(), Ordering::Relaxed);
        let placed = s.placement.runs().iter().copied().filter(|(first, _)| *first != HOLE);
        let _ = self.put_back(&placed.collect::<Vec<_>>());
    }

    /// Takes a free page of `space`, or else the next one; `None` if there is no such space.
    pub(crate) fn take_page(&self, space: SpaceId) -> Option<Taken<'_>> {
        let mut s = self.live_mut(space)?;
        // Free numbers first: their homes exist, so a space whose pages come and go does not grow.
        if let Some(no) = s.usable.first() {
            // It may be one beyond the end that `shrink` set.
            s.pages = s.pages.max(no + 1);
            self.reuse(&mut s, no);
            return Some(Taken::Page(no, self.arriving.begin(PageId::new(space, no))));
        }
        // A number in a hole comes before a new one, so that page numbers stay dense. It has no room until
        // the space has grown there.
        if let Some(no) = s.roomless() {
            return Some(Taken::NoRoom(no));
        }
        // Those that are free are leaving, perhaps beyond the space's last page.
        let no = s.end();
        if u64::from(no) >= s.placement.pages() || no == u32::MAX {
            return Some(Taken::NoRoom(no));
        }
        s.pages = no + 1;
        Some(Taken::Page(no, self.arriving.begin(PageId::new(space, no))))
    }

    /// Makes the page exist if its space has room for it; `None` if there is no such space.
    pub(crate) fn claim(&self, page: PageId) -> Option<Claimed<'_>> {
        let mut s = self.live_mut(page.space)?;
        // Copies from before the free may still be in memory or in flight: a page created now could be
        // overwritten by them (I28).
        if s.leaving.contains(page.no) {
            return Some(Claimed::Leaving);
        }
        // Its new life must not begin with the contents of this one, nor end with the next `sync`.
        if s.pending_frees.contains_key(&page.no) {
            return Some(Claimed::PendingFree);
        }
        if s.placement.extent(u64::from(page.no / EXTENT_PAGES)).is_none() {
            return Some(Claimed::NoRoom);
        }
        // Pages before it that were never created have room, and no version: reads find none.
        s.pages = s.pages.max(page.no + 1);
        if s.free.contains(page.no) {
            self.reuse(&mut s, page.no);
        }
        Some(Claimed::Yes(self.arriving.begin(page)))
    }

    /// Whether the page exists, and no `sync` is to free it.
    pub(crate) fn exists(&self, page: PageId) -> bool {
        self.live(page.space).is_some_and(|s| s.has(page.no) && !s.pending_frees.contains_key(&page.no))
    }

    /// Whether the page has a place on the HDD, even if it does not exist.
    pub(crate) fn has_room(&self, page: PageId) -> bool {
        self.place(page).is_some()
    }

    pub(crate) fn pages(&self, space: SpaceId) -> Option<u32> {
        self.live(space).map(|s| s.pages)
    }

    /// The number of pages that fit into the extents of `space`, holes included.
    pub(crate) fn reserved(&self, space: SpaceId) -> u64 {
        self.live(space).map_or(0, |s| s.placement.pages())
    }

    pub(crate) fn set_pages(&self, space: SpaceId, pages: u32) {
        if let Some(mut s) = self.spaces.get_mut(&space) {
            s.pages = pages;
        }
    }

    /// Lowers the end of `space` to the last page that is not free, but not below `least`. The numbers beyond
    /// stay listed as free: versions from before they were are ignored when they are used again (I28).
    pub(crate) fn lower_end(&self, space: SpaceId, least: u32) {
        if let Some(mut s) = self.live_mut(space) {
            s.pages = s.pages.min(s.free.begin_before(s.pages).max(least));
        }
    }

    fn extent_bytes(&self) -> u64 {
        u64::from(EXTENT_PAGES) * self.page_size.bytes() as u64
    }

    /// The offset of a page, whether or not it exists; for recovery.
    pub(crate) fn place(&self, page: PageId) -> Option<u64> {
        self.place_in(&*self.live(page.space)?, page.no)
    }

    fn place_in(&self, space: &SpaceEntry, no: u32) -> Option<u64> {
        let extent = space.placement.extent(u64::from(no / EXTENT_PAGES))?;
        let within = u64::from(no % EXTENT_PAGES) * self.page_size.bytes() as u64;
        Some(self.extents_at + extent * self.extent_bytes() + within)
    }
}

impl Homes for Volume {
    fn offset(&self, page: PageId) -> Option<u64> {
        // A page that is free has a place, but must not be read there: the home holds its earlier life.
        self.live(page.space).filter(|s| s.has(page.no)).and_then(|s| self.place_in(&s, page.no))
    }

    fn source(&self, page: PageId) -> Option<u64> {
        if self.reused.load(Ordering::Relaxed) > 0
            && self.live(page.space)?.reused.get(&page.no) == Some(&UNWRITTEN)
        {
            return None;
        }
        self.offset(page)
    }

    fn place(&self, page: PageId) -> Option<u64> {
        Self::place(self, page)
    }

    fn is_given_up(&self, page: PageId) -> bool {
        self.live(page.space).is_none_or(|space| space.free.contains(page.no))
    }

    fn may_be_blank(&self, page: PageId) -> bool {
        let extent =
            self.live(page.space).and_then(|s| s.placement.extent(u64::from(page.no / EXTENT_PAGES)));
        extent.is_some_and(|extent| has(&self.extents.lock().unformatted, extent))
    }

    fn written(&self, page: PageId) {
        self.note_first_write(page, |first| {
            // Only the first write counts: `sync` waits until that one is durable, and later ones are newer
            // anyway.
            if *first == UNWRITTEN {
                *first = self.first_writes.fetch_add(1, Ordering::AcqRel) + 1;
            }
        });
    }

    fn discarded(&self, page: PageId) {
        // The version written is void, so the page must not be recorded as existing on its account.
        self.note_first_write(page, |first| *first = UNWRITTEN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::extents::merged;
    use crate::volume::growth_plan::Ahead;

    fn volume() -> Volume {
        let manifest = Manifest::new(String::new(), PageSize::MIN);
        let volume = Volume::new(&manifest, PageSize::MIN);
        volume.add(SpaceId(1), "a");
        volume.add(SpaceId(2), "b");
        volume
    }

    /// What a backup that begins at that moment finds (I35).
    #[test]
    fn a_page_freed_while_its_lists_begin_is_in_one_of_them() {
        let turns = std::sync::atomic::AtomicUsize::new(0);
        let meet = |nth: usize| {
            turns.fetch_add(1, Ordering::AcqRel);
            while turns.load(Ordering::Acquire) < 2 * nth {
                std::hint::spin_loop();
            }
        };
        let (volume, page) = (volume(), PageId::new(SpaceId(1), 0));
        assert!(volume.grow(&volume.plan_growth(page, Ahead::Some).unwrap()));
        // Counted: the other thread would wait for one that panics.
        let mut missed = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..100_000 {
                    drop(volume.take_page(SpaceId(1)));
                    meet(2 * round + 1);
                    volume.begin_free(SpaceId(1), &[0].into_iter().collect());
                    meet(2 * round + 2);
                    volume.end_free(SpaceId(1), &[0].into_iter().collect());
                }
            });
            for round in 0..100_000 {
                meet(2 * round + 1);
                let freed = volume.watch_freed();
                let free = volume.free_pages();
                meet(2 * round + 2);
                missed += u32::from(free.is_empty() && !freed.contains(page));
            }
        });
        assert_eq!(missed, 0);
    }

    #[test]
    fn spaces_that_grow_in_turns_never_share_a_place() {
        let volume = volume();
        let mut places = std::collections::BTreeSet::new();
        for _ in 0..300 {
            for space in [SpaceId(1), SpaceId(2)] {
                let no = loop {
                    match volume.take_page(space).unwrap() {
                        Taken::Page(no, _) => break no,
                        Taken::NoRoom(no) => {
                            assert!(
                                volume
                                    .grow(&volume.plan_growth(PageId::new(space, no), Ahead::Some).unwrap())
                            );
                        }
                    }
                };
                assert!(places.insert(volume.offset(PageId::new(space, no)).unwrap()));
            }
        }
        assert_eq!(volume.offset(PageId::new(SpaceId(1), 300)), None);
        assert_eq!(volume.offset(PageId::new(SpaceId(9), 0)), None);
        assert_eq!(volume.pages(SpaceId(2)), Some(300));
    }

    #[test]
    fn a_planned_growth_changes_nothing_and_a_dropped_space_keeps_its_extents_to_the_end() {
        let volume = volume();
        let plan = |space| volume.plan_growth(PageId::new(space, 0), Ahead::Some).unwrap();
        let run = |space| plan(space).run;
        assert_eq!((run(SpaceId(1)), run(SpaceId(2))), ((0, 1), (0, 1)));
        assert!(volume.grow(&plan(SpaceId(1))));
        volume.begin_drop(SpaceId(1));
        assert_eq!((volume.pages(SpaceId(1)), volume.by_name("a")), (None, None));
        assert_eq!((run(SpaceId(2)), volume.dropping()), ((1, 1), vec![SpaceId(1)]));
        volume.end_drop(SpaceId(1));
        assert_eq!((run(SpaceId(2)), volume.is_dropping(SpaceId(1))), ((0, 1), None));
        assert_eq!(merged(vec![(4, 2), (0, 1), (1, 3)]), [(0, 6)]);
    }

    /// A first write after the flush that is about to be recorded is not durable.
    #[test]
    fn reused_pages_first_written_after_a_moment_are_not_recorded() {
        let volume = volume();
        let (space, page) = (SpaceId(1), |no| PageId::new(SpaceId(1), no));
        assert!(volume.grow(&volume.plan_growth(page(0), Ahead::Some).unwrap()));
        for _ in 0..3 {
            let _ = volume.take_page(space);
        }
        let pages = PageRuns::from_iter([0, 1, 2]);
        volume.begin_free(space, &pages);
        volume.end_free(space, &pages);
        for _ in 0..3 {
            let _ = volume.take_page(space);
        }
        volume.written(page(1));
        let upto = volume.first_writes();
        volume.written(page(2));
        let reused = |upto| volume.reused(upto).pop().map(|(_, pages)| pages);
        assert_eq!(reused(upto), Some(PageRuns::from_iter([1])));
        assert_eq!(reused(volume.first_writes()), Some(PageRuns::from_iter([1, 2])));
    }

    #[test]
    fn pages_freed_since_a_moment_stay_listed_when_they_exist_again() {
        let volume = volume();
        assert!(volume.grow(&volume.plan_growth(PageId::new(SpaceId(1), 0), Ahead::Some).unwrap()));
        for _ in 0..2 {
            let _ = volume.take_page(SpaceId(1));
        }
        let free = |no| {
            let pages = PageRuns::from_iter([no]);
            volume.begin_free(SpaceId(1), &pages);
            volume.end_free(SpaceId(1), &pages);
        };
        free(0);
        let freed = volume.watch_freed();
        for _ in 0..2 {
            free(1);
            assert!(matches!(volume.claim(PageId::new(SpaceId(1), 1)), Some(Claimed::Yes(_))));
        }
        assert_eq!([0, 1].map(|no| freed.contains(PageId::new(SpaceId(1), no))), [false, true]);
    }

    /// A space that was large lists its numbers in two runs, one free and one without a place.
    #[test]
    fn a_hole_takes_no_time_in_proportion_to_its_pages() {
        let mut manifest = Manifest::new(String::new(), PageSize::MIN);
        manifest.add_space(1, "a");
        let hole_end = u32::MAX / EXTENT_PAGES * EXTENT_PAGES;
        (manifest.extents_used, manifest.spaces[0].runs, manifest.spaces[0].pages) = (1, vec![(0, 1)], 40);
        manifest.spaces[0].list_free(hole_end);
        let volume = Volume::new(&manifest, PageSize::MIN);
        // 10^10 steps would take minutes.
        assert_eq!(volume.hole_start(PageId::new(SpaceId(1), hole_end - 1)), Some(EXTENT_PAGES));
        assert_eq!((volume.list()[0].pages, volume.list()[0].free), (40, 0));
        for no in 40..EXTENT_PAGES {
            assert!(matches!(volume.take_page(SpaceId(1)), Some(Taken::Page(taken, _)) if taken == no));
        }
        assert!(matches!(volume.take_page(SpaceId(1)), Some(Taken::NoRoom(EXTENT_PAGES))));
    }

    #[test]
    fn a_page_without_a_home_was_given_up_or_is_at_fault() {
        let volume = volume();
        let page = |space, no| PageId::new(SpaceId(space), no);
        let without = |page| volume.offset(page).is_none().then(|| volume.is_given_up(page));
        for space in [1, 2] {
            assert!(volume.grow(&volume.plan_growth(page(space, 0), Ahead::Some).unwrap()));
            assert!(matches!(volume.take_page(SpaceId(space)), Some(Taken::Page(0, _))));
        }
        assert_eq!(without(page(1, 0)), None);
        assert_eq!(without(page(1, 1)), Some(false), "beyond the end of a space that is in use");
        volume.begin_free(SpaceId(1), &PageRuns::from_iter([0]));
        volume.begin_drop(SpaceId(2));
        assert_eq!([page(1, 0), page(2, 0), page(3, 0)].map(without), [Some(true); 3]);
    }
}
