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

use super::arriving::{Arriving, Mark};
use super::growth_plan::{Ahead, Extents, Growth};
use super::placement::Placement;
use super::space_entry::{SpaceEntry, UNWRITTEN};
use super::space_hints::SpaceHints;
use crate::manifest::contents::Manifest;
pub(crate) use crate::manifest::extents::EXTENT_PAGES;
use crate::manifest::extents::{HOLE, merged, places, take_extents};
use crate::manifest::page_runs::PageRuns;
use crate::manifest::superblock::DATA_AT;
use crate::seam::Seam;
use dashmap::DashMap;
use dashmap::mapref::one::{Ref, RefMut};
use pagetier_page::{PageId, PageSize, SpaceId};
use pagetier_ssdcache::Homes;
use parking_lot::Mutex;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
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
    /// The number of its free pages, which [`PageStore::allocate`](crate::PageStore::allocate) reuses.
    pub free: u32,
    /// How its pages are to be treated; by default as the policies decide.
    pub hints: SpaceHints,
    /// The frames that hold its pages, or read them; counted only for a space with hints for memory.
    pub frames: Option<u64>,
}

/// The spaces and their extents.
#[derive(Debug)]
pub(crate) struct Volume {
    page_size: PageSize,
    spaces: DashMap<SpaceId, SpaceEntry, FxBuildHasher>,
    /// The spaces that are not being dropped, by name.
    names: Mutex<FxHashMap<String, SpaceId>>,
    extents: Mutex<Extents>,
    /// The number of pages in [`SpaceEntry::reused`], for all spaces.
    reused: AtomicUsize,
    first_writes: AtomicU64,
    /// The lists of the backups in progress: see [`Volume::watch_freed`].
    freed: Mutex<Vec<Weak<Freed>>>,
    /// Signals that freed pages have left memory.
    pub(crate) left: Notify,
    /// Pages that exist but wait for a frame.
    pub(crate) arriving: Arriving,
}

/// Extents of a space beyond its last page, taken away from it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tail {
    /// The number of extents that the space has left.
    pub(crate) kept: u64,
    /// Their places on the HDD.
    pub(crate) runs: Vec<(u64, u64)>,
}

/// The pages freed since [`Volume::watch_freed`] returned this.
#[derive(Debug, Default)]
pub(crate) struct Freed(Mutex<FxHashMap<SpaceId, PageRuns>>);

impl Freed {
    /// Whether `page` was freed; it may exist again.
    pub(crate) fn contains(&self, page: PageId) -> bool {
        self.0.lock().get(&page.space).is_some_and(|pages| pages.contains(page.no))
    }

    fn add(&self, space: SpaceId, pages: &PageRuns) {
        let mut all = self.0.lock();
        let freed = all.entry(space).or_default();
        // One by one: some may have been freed before, and used again.
        for no in pages.numbers() {
            let _ = freed.insert(no, 1);
        }
    }
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
                entry.note_usable(s.free.numbers());
            }
            spaces.insert(SpaceId(s.id), entry);
            // Hidden at once: the next space may take the name before the drop has ended.
            if !dropping {
                names.insert(s.name.clone(), SpaceId(s.id));
            }
        }
        let extents = Extents { used: manifest.extents_used, free: manifest.extents_free.clone() };
        Self { spaces, names: Mutex::new(names), extents: Mutex::new(extents), ..Self::empty(page_size) }
    }

    fn empty(page_size: PageSize) -> Self {
        Self {
            page_size,
            spaces: DashMap::default(),
            names: Mutex::default(),
            extents: Mutex::new(Extents { used: 0, free: Vec::new() }),
            reused: AtomicUsize::new(0),
            first_writes: AtomicU64::new(0),
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
        let placed = |s: &SpaceEntry| u64::from(s.pages).saturating_sub(s.placement.roomless_pages());
        self.spaces.iter().map(|s| placed(&s)).sum()
    }

    pub(crate) fn list(&self) -> Vec<SpaceInfo> {
        let info = |id: SpaceId, s: &SpaceEntry| {
            let free = s.free.pages();
            let hints = SpaceHints::default();
            SpaceInfo { id, name: s.name.clone(), pages: s.pages, free, hints, frames: None }
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

    /// Removes the space and frees its extents; no write to them may be in flight.
    pub(crate) fn end_drop(&self, id: SpaceId) {
        let Some((_, s)) = self.spaces.remove(&id) else { return };
        // Their records would never be settled, and every later `sync` would look for them.
        self.reused.fetch_sub(s.reused.len(), Ordering::Relaxed);
        let placed = s.placement.runs().iter().copied().filter(|(first, _)| *first != HOLE);
        let mut extents = self.extents.lock();
        extents.free = merged(extents.free.iter().copied().chain(placed).collect());
    }

    /// Takes a free page of `space`, or else the next one; `None` if there is no such space.
    pub(crate) fn take_page(&self, space: SpaceId) -> Option<Taken<'_>> {
        let mut s = self.live_mut(space)?;
        // Free numbers first: their homes exist, so a space whose pages come and go does not grow.
        if let Some(no) = s.usable.first() {
            self.reuse(&mut s, no);
            return Some(Taken::Page(no, self.arriving.begin(PageId::new(space, no))));
        }
        // A number in a hole comes before a new one, so that page numbers stay dense. It has no room until
        // the space has grown there.
        let no = s.roomless().unwrap_or(s.pages);
        if no < s.pages || u64::from(no) >= s.placement.pages() || no == u32::MAX {
            return Some(Taken::NoRoom(no));
        }
        s.pages += 1;
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

    fn reuse(&self, s: &mut SpaceEntry, no: u32) {
        let _ = (s.free.remove(no, 1), s.usable.remove(no, 1));
        // Until its first version is durable the manifest lists it as free, so that a crash does not bring
        // back what its home held before (I28).
        if s.reused.insert(no, UNWRITTEN).is_none() {
            self.reused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The existing pages in `range`, and those of them that the manifest does not list as free. `None` if
    /// there is no such space.
    pub(crate) fn existing(&self, space: SpaceId, range: Range<u32>) -> Option<(PageRuns, PageRuns)> {
        let s = self.live(space)?;
        let all: PageRuns = (range.start..range.end.min(s.pages)).filter(|no| s.has(*no)).collect();
        // The others need no record: the manifest has not yet noticed that they were used again.
        let unlisted = all.numbers().filter(|no| !s.reused.contains_key(no)).collect();
        Some((all, unlisted))
    }

    /// The pages in `range` that were freed, and whose copies may be in memory or in flight.
    pub(crate) fn leaving(&self, space: SpaceId, range: Range<u32>) -> PageRuns {
        let Some(s) = self.live(space) else { return PageRuns::default() };
        let leaving = s.leaving.numbers().filter(|no| range.contains(no));
        leaving.collect()
    }

    /// Removes from `pages` those that are not leaving (or their space is gone).
    pub(crate) fn keep_leaving(&self, space: SpaceId, pages: &mut PageRuns) {
        let s = self.live(space);
        let left = |no: &u32| s.as_ref().is_some_and(|s| s.leaving.contains(*no));
        *pages = pages.numbers().filter(left).collect();
    }

    pub(crate) fn exists(&self, page: PageId) -> bool {
        self.live(page.space).is_some_and(|s| s.has(page.no))
    }

    /// Lists every page that is freed from now on, for as long as the result lives.
    pub(crate) fn watch_freed(&self) -> Arc<Freed> {
        let freed = Arc::new(Freed::default());
        let mut all = self.freed.lock();
        // Lists of backups that have ended or were cancelled.
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&freed));
        freed
    }

    /// Makes existing pages cease to exist. Their numbers cannot be reused before [`Volume::end_free`].
    pub(crate) fn begin_free(&self, space: SpaceId, pages: &PageRuns) {
        // First: a backup that finds no version of such a page must find the page in its list.
        for freed in self.freed.lock().iter().filter_map(Weak::upgrade) {
            freed.add(space, pages);
        }
        let Some(mut s) = self.spaces.get_mut(&space) else { return };
        for (first, count) in pages.iter() {
            let _ = s.free.insert(first, count);
            let _ = s.leaving.insert(first, count);
        }
        drop(s);
        // They are free in both places now. A later `sync` must not record that they exist.
        self.settle_reused(space, pages);
    }

    /// Ends a free: no copies of the pages are in memory or in flight, so their numbers can be reused.
    pub(crate) fn end_free(&self, space: SpaceId, pages: &PageRuns) {
        if let Some(mut s) = self.spaces.get_mut(&space) {
            for (first, count) in pages.iter() {
                let _ = s.leaving.remove(first, count);
            }
            // Only now: a number given out before its last copy had left could be written by two owners
            // (I28).
            s.note_usable(pages.numbers());
        }
        self.left.notify_waiters();
    }

    /// Notes that the call that freed the pages ended before their copies had left memory.
    pub(crate) fn strand(&self, space: SpaceId, pages: &PageRuns) {
        if let Some(mut s) = self.spaces.get_mut(&space) {
            for (first, count) in pages.iter() {
                let _ = s.stranded.insert(first, count);
            }
        }
        self.left.notify_waiters();
    }

    /// Those of `pages` that [`Volume::strand`] noted; the caller takes over.
    pub(crate) fn take_stranded(&self, space: SpaceId, pages: &PageRuns) -> PageRuns {
        // Almost always: only the end of a runtime strands pages.
        let Some(mut s) = self.spaces.get_mut(&space).filter(|s| !s.stranded.is_empty()) else {
            return PageRuns::default();
        };
        let taken: PageRuns = pages.numbers().filter(|no| s.stranded.contains(*no)).collect();
        for (first, count) in taken.iter() {
            let _ = s.stranded.remove(first, count);
        }
        taken
    }

    /// Withholds from reuse the extents of `space` (first in the space, count) that lie on the HDD and whose
    /// pages are all free, until [`Volume::give_back`] and [`Volume::end_free`]. `None` if there is no such
    /// space.
    pub(crate) fn withhold_extents(&self, space: SpaceId) -> Option<Vec<(u64, u64)>> {
        let mut s = self.live_mut(space)?;
        let of = u64::from(EXTENT_PAGES);
        // Rounded inwards: an extent goes only if all of its pages are free.
        let whole = |(first, count): (u32, u32)| {
            let at = u64::from(first).div_ceil(of);
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
        // Before the hole is made: afterwards the places are forgotten.
        let given = places(s.placement.runs(), extents.0..extents.0 + extents.1);
        s.placement.replace(extents.0, (HOLE, extents.1));
        let mut all = self.extents.lock();
        all.free = merged(all.free.iter().chain(&given).copied().collect());
        let at = |extent| DATA_AT + extent * self.extent_bytes();
        given.into_iter().map(|(first, count)| at(first)..at(first + count)).collect()
    }

    /// Whether the page has a place on the HDD, even if it does not exist.
    pub(crate) fn has_room(&self, page: PageId) -> bool {
        self.place(page).is_some()
    }

    /// The number of first writes of reused pages so far.
    pub(crate) fn first_writes(&self) -> u64 {
        self.first_writes.load(Ordering::Acquire)
    }

    /// By space, the reused pages that the manifest still lists as free and whose first write was the
    /// `upto`-th or an earlier one; with `unwritten`, also those that have not been written.
    pub(crate) fn reused(&self, upto: u64, unwritten: bool) -> Vec<(SpaceId, PageRuns)> {
        // The usual case, at every `sync`: no space is locked.
        if self.reused.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        // A page without a version must stay listed as free: after a crash its home would show its earlier
        // life (I28).
        let least = if unwritten { UNWRITTEN } else { UNWRITTEN + 1 };
        let of = |s: &SpaceEntry| -> PageRuns {
            let pages = s.reused.iter().filter(|(_, first)| (least..=upto).contains(first));
            let mut pages: Vec<u32> = pages.map(|(no, _)| *no).collect();
            pages.sort_unstable();
            pages.into_iter().collect()
        };
        let all = self.spaces.iter().filter(|s| !s.dropping).map(|s| (*s.key(), of(&s)));
        all.filter(|(_, pages)| !pages.is_empty()).collect()
    }

    /// Notes that the manifest and the table agree on these pages: none of them is both reused and still
    /// listed as free.
    pub(crate) fn settle_reused(&self, space: SpaceId, pages: &PageRuns) {
        let Some(mut s) = self.spaces.get_mut(&space) else { return };
        let before = s.reused.len();
        for no in pages.numbers() {
            let _ = s.reused.remove(&no);
        }
        self.reused.fetch_sub(before - s.reused.len(), Ordering::Relaxed);
    }

    /// Changes the record of a reused page's first write, if there is one.
    fn note_first_write(&self, page: PageId, note: impl FnOnce(&mut u64)) {
        if self.reused.load(Ordering::Relaxed) > 0
            && let Some(mut s) = self.spaces.get_mut(&page.space)
            && let Some(first) = s.reused.get_mut(&page.no)
        {
            note(first);
        }
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

    /// Plans the next step of a growth of the space of `page`, which has no room: in the hole that the page
    /// lies in, or at the space's end. Changes nothing: see [`Volume::grow`]. The caller holds the manifest's
    /// lock until the growth has taken effect.
    pub(crate) fn plan_growth(&self, page: PageId, ahead: Ahead) -> Option<Growth> {
        let s = self.live(page.space)?;
        Some(Growth::plan(page, s.pages, &s.placement, &self.extents.lock(), ahead))
    }

    /// The run of a growth in bytes, and the end of the volume that the HDD must reach for it.
    pub(crate) fn growth_bytes(&self, growth: &Growth) -> (Range<u64>, u64) {
        growth.bytes(DATA_AT, self.extent_bytes())
    }

    /// The end of the volume in bytes.
    pub(crate) fn end(&self) -> u64 {
        DATA_AT + self.extents.lock().used * self.extent_bytes()
    }

    /// Gives the space the planned extents; returns false, without effect, if the plan is outdated.
    pub(crate) fn grow(&self, growth: &Growth) -> bool {
        let Some(mut s) = self.spaces.get_mut(&growth.space) else { return false };
        let Extents { used, free } = &mut *self.extents.lock();
        // The manifest names the run already. Taking another one instead would give two spaces the same place
        // later.
        if !take_extents(used, free, growth.run) {
            return false;
        }
        match growth.at {
            None => s.placement.append(growth.run),
            Some(at) => {
                s.placement.replace(at, growth.run);
                let pages = pages_of((at, growth.run.1));
                // Free pages in the former hole have homes again.
                s.note_usable(pages.into_iter().flat_map(|(first, count)| first..first + count));
            }
        }
        true
    }

    /// Takes away the extents of `space` beyond its last page, but none of the first `kept`: no page can be
    /// created in them any more. [`Volume::give_back_tail`] or [`Volume::restore_tail`] follows.
    pub(crate) fn withhold_tail(&self, space: SpaceId, kept: u64, seam: Seam) -> Tail {
        let Some(mut s) = self.live_mut(space) else { return Tail::default() };
        // Never below the last page number in use, whatever the caller asks for.
        let kept = kept.max(u64::from(s.pages.div_ceil(EXTENT_PAGES)));
        let runs = seam.cut_tail(&mut s.placement, |placement| placement.truncate(kept));
        Tail { kept, runs }
    }

    /// Gives withheld extents to the volume. Returns their byte ranges.
    pub(crate) fn give_back_tail(&self, tail: &Tail) -> Vec<Range<u64>> {
        let mut all = self.extents.lock();
        all.free = merged(all.free.iter().chain(&tail.runs).copied().collect());
        let at = |extent| DATA_AT + extent * self.extent_bytes();
        tail.runs.iter().map(|(first, count)| at(*first)..at(first + count)).collect()
    }

    /// Undoes [`Volume::withhold_tail`].
    pub(crate) fn restore_tail(&self, space: SpaceId, tail: &Tail) {
        if let Some(mut s) = self.spaces.get_mut(&space) {
            tail.runs.iter().for_each(|run| s.placement.append(*run));
        }
    }

    fn extent_bytes(&self) -> u64 {
        u64::from(EXTENT_PAGES) * self.page_size.bytes() as u64
    }

    /// The offset of a page, whether or not it exists; for recovery.
    pub(crate) fn place(&self, page: PageId) -> Option<u64> {
        let s = self.live(page.space)?;
        let extent = s.placement.extent(u64::from(page.no / EXTENT_PAGES))?;
        let within = u64::from(page.no % EXTENT_PAGES) * self.page_size.bytes() as u64;
        Some(DATA_AT + extent * self.extent_bytes() + within)
    }
}

/// The pages (first, count) of a space's extents (first, count).
pub(crate) fn pages_of((first, count): (u64, u64)) -> Option<(u32, u32)> {
    let pages =
        |extents: u64| extents.checked_mul(u64::from(EXTENT_PAGES)).and_then(|n| u32::try_from(n).ok());
    pages(first).zip(pages(count))
}

impl Homes for Volume {
    fn offset(&self, page: PageId) -> Option<u64> {
        // A page that is free has a place, but must not be read there: the home holds its earlier life.
        if !self.live(page.space)?.has(page.no) {
            return None;
        }
        self.place(page)
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

    fn volume() -> Volume {
        let manifest = Manifest::new(String::new(), PageSize::MIN);
        let volume = Volume::new(&manifest, PageSize::MIN);
        volume.add(SpaceId(1), "a");
        volume.add(SpaceId(2), "b");
        volume
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
        let reused = |upto, unwritten| volume.reused(upto, unwritten).pop().map(|(_, pages)| pages);
        assert_eq!(reused(upto, false), Some(PageRuns::from_iter([1])));
        assert_eq!(reused(volume.first_writes(), false), Some(PageRuns::from_iter([1, 2])));
        assert_eq!(reused(upto, true), Some(PageRuns::from_iter([0, 1])));
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
