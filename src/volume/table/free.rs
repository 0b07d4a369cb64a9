//! Pages that cease to exist, and whose numbers are used again.

use super::{PageRuns, SpaceEntry, UNWRITTEN, Volume};
use pagetier_page::{PageId, SpaceId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

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

impl Volume {
    /// The existing pages in `range`, and those of them that the manifest does not list as free. `None` if
    /// there is no such space.
    pub(crate) fn existing(&self, space: SpaceId, range: Range<u32>) -> Option<(PageRuns, PageRuns)> {
        let s = self.live(space)?;
        let all: PageRuns = (range.start..range.end.min(s.pages)).filter(|no| s.has(*no)).collect();
        // The others need no record: the manifest has not yet noticed that they were used again.
        let unlisted = all.numbers().filter(|no| !s.reused.contains_key(no)).collect();
        Some((all, unlisted))
    }

    /// Notes that the next `sync` frees those of the pages `numbers` that exist. Returns how many it noted;
    /// `None` if there is no such space.
    pub(crate) fn note_frees(&self, space: SpaceId, numbers: impl Iterator<Item = u32>) -> Option<u32> {
        let mut s = self.live_mut(space)?;
        // Numbered, so that a `sync` frees only what was pending before it began: see `free_pending`.
        let call = self.free_calls.fetch_add(1, Ordering::AcqRel) + 1;
        let before = s.pending_frees.len();
        for no in numbers {
            if s.has(no) {
                s.pending_frees.entry(no).or_insert(call);
            }
        }
        let noted = s.pending_frees.len() - before;
        self.pending_frees.fetch_add(noted, Ordering::Release);
        u32::try_from(noted).ok()
    }

    /// The number of the last call that noted frees; `None` if no free is pending.
    pub(crate) fn last_pending(&self) -> Option<u64> {
        // The usual case, at every `sync`: no space is locked.
        let any = self.pending_frees.load(Ordering::Acquire) > 0;
        any.then(|| self.free_calls.load(Ordering::Acquire))
    }

    /// By space, the pages that the `upto`-th call or an earlier one noted, and those of them that the
    /// manifest does not list as free; of all spaces, or of `only` one.
    pub(crate) fn pending_frees(
        &self,
        upto: u64,
        only: Option<SpaceId>,
    ) -> Vec<(SpaceId, (PageRuns, PageRuns))> {
        let of = |s: &SpaceEntry| {
            let due = s.pending_frees.iter().filter(|(_, call)| **call <= upto);
            let mut due: Vec<u32> = due.map(|(no, _)| *no).collect();
            due.sort_unstable();
            let unlisted = due.iter().filter(|no| !s.reused.contains_key(no)).copied().collect();
            (due.into_iter().collect(), unlisted)
        };
        let spaces = self.spaces.iter().filter(|s| !s.dropping && only.is_none_or(|only| only == *s.key()));
        let due = spaces.map(|s| (*s.key(), of(&s)));
        due.filter(|(_, (pages, _)): &(_, (PageRuns, PageRuns))| !pages.is_empty()).collect()
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
        // A backup that finds no version of such a page must find the page in its list, and one that begins
        // meanwhile there or among the free ones: it lists these after it has begun to watch (I35).
        let watchers = self.freed.lock();
        for freed in watchers.iter().filter_map(Weak::upgrade) {
            freed.add(space, pages);
        }
        let Some(mut s) = self.spaces.get_mut(&space) else { return };
        for (first, count) in pages.iter() {
            let _ = s.free.insert(first, count);
            let _ = s.leaving.insert(first, count);
        }
        // Whichever call makes a pending free, no later `sync` may free the number's next life.
        if !s.pending_frees.is_empty() {
            let before = s.pending_frees.len();
            for no in pages.numbers() {
                let _ = s.pending_frees.remove(&no);
            }
            self.pending_frees.fetch_sub(before - s.pending_frees.len(), Ordering::Relaxed);
        }
        drop((s, watchers));
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
            s.note_usable(pages.iter());
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

    pub(super) fn reuse(&self, s: &mut SpaceEntry, no: u32) {
        let _ = (s.free.remove(no, 1), s.usable.remove(no, 1));
        // Until its first version is durable the manifest lists it as free, so that a crash does not bring
        // back what its home held before (I28).
        if s.reused.insert(no, UNWRITTEN).is_none() {
            self.reused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The number of first writes of reused pages so far.
    pub(crate) fn first_writes(&self) -> u64 {
        self.first_writes.load(Ordering::Acquire)
    }

    /// By space, the reused pages that the manifest still lists as free and whose first write was the
    /// `upto`-th or an earlier one.
    pub(crate) fn reused(&self, upto: u64) -> Vec<(SpaceId, PageRuns)> {
        // The usual case, at every `sync`: no space is locked.
        if self.reused.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let of = |s: &SpaceEntry| -> PageRuns {
            // A page without a version must stay listed as free: after a crash its home would show its
            // earlier life (I28).
            let pages = s.reused.iter().filter(|(_, first)| (UNWRITTEN + 1..=upto).contains(first));
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
    pub(super) fn note_first_write(&self, page: PageId, note: impl FnOnce(&mut u64)) {
        if self.reused.load(Ordering::Relaxed) > 0
            && let Some(mut s) = self.spaces.get_mut(&page.space)
            && let Some(first) = s.reused.get_mut(&page.no)
        {
            note(first);
        }
    }
}
