//! CCF-LRU: cold-clean-first LRU (Li & Jin 2009, as Ou, Jin & Härder restate it in section 2).
//!
//! Pages are clean or dirty, and cold or hot by second chance. The victim is the LRU page of the first
//! non-empty class of cold-clean, cold-dirty, hot-clean and hot-dirty.
//!
//! There is one queue per class; together the four make up the paper's LRU list. Each page carries the time
//! of its last use, from which the policy derives the pages that a search of that list passed over. Every
//! event is O(1); second chances are amortised, since each is earned by a use.
//!
//! Where the paper is silent:
//!
//! - *Cold and hot*: a page is loaded cold; a later use makes it hot. A search for a cold-dirty page gives a
//!   second chance to the hot pages before it in the list: they become cold, at the MRU end. A search that
//!   finds no cold page gives a second chance to all hot pages. A cold-clean page is taken without a search.
//! - *A pick does not write*: the second chances are given when the page found is evicted, or cleaned for
//!   replacement.
//! - *The paper writes and evicts in one step*; here a page cleaned for replacement goes to the LRU end of
//!   the cold-clean pages, behind those so cleaned before it. A page cleaned for another reason goes to the
//!   midpoint of the cold-clean or hot-clean pages, with the last use of the page there (as in section 3.1 of
//!   the 2013 paper).
//! - *Becoming dirty* belongs to the use that loaded the page, or to a hit that is reported separately: the
//!   page goes to the MRU end and stays cold or hot.
//! - *Read-ahead* is not treated specially.

use pagetier_policy::collections::{QueueNo, Queues};
use pagetier_policy::{Access, CleanReason, FrameId, FramePolicy, Location, PageId};

/// A page's class, and the number of its queue; the queues are searched in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
enum Class {
    ColdClean,
    ColdDirty,
    HotClean,
    HotDirty,
}

use Class::{ColdClean, ColdDirty, HotClean, HotDirty};

impl Class {
    const ALL: [Self; 4] = [ColdClean, ColdDirty, HotClean, HotDirty];

    const fn queue(self) -> QueueNo {
        QueueNo(self as u8)
    }

    const fn hot(self) -> Self {
        if self.is_dirty() { HotDirty } else { HotClean }
    }

    const fn cold(self) -> Self {
        if self.is_dirty() { ColdDirty } else { ColdClean }
    }

    const fn dirty(self) -> Self {
        if self.is_hot() { HotDirty } else { ColdDirty }
    }

    const fn clean(self) -> Self {
        if self.is_hot() { HotClean } else { ColdClean }
    }

    const fn is_dirty(self) -> bool {
        matches!(self, ColdDirty | HotDirty)
    }

    const fn is_hot(self) -> bool {
        matches!(self, HotClean | HotDirty)
    }
}

/// Cold-clean-first LRU; see the module's text.
#[derive(Debug)]
pub struct CcfLru {
    /// The time of each page's last use, counted in uses.
    queues: Queues<u64, 4>,
    uses: u64,
}

impl CcfLru {
    /// For a pool of `frames` frames.
    #[must_use]
    pub fn new(frames: usize) -> Self {
        Self { queues: Queues::new(frames), uses: 0 }
    }

    fn class(&self, frame: u32) -> Option<Class> {
        self.queues.queue_of(frame).map(|queue| Class::ALL[queue.at()])
    }

    fn put_mru(&mut self, frame: u32, class: Class) {
        self.uses += 1;
        self.queues.set_value(frame, self.uses);
        self.queues.put_mru(class.queue(), frame);
    }

    /// Makes the hot pages last used before `time` cold, at the MRU end.
    fn second_chances(&mut self, time: u64) {
        loop {
            let oldest = [HotClean, HotDirty]
                .into_iter()
                .filter_map(|class| Some((self.queues.lru(class.queue())?, class)))
                // The search walks one list; two queues in order of the last use are that list.
                .min_by_key(|&(frame, _)| self.queues.value(frame));
            let Some((frame, class)) = oldest else { return };
            // The search stopped before this page, so it was not passed over.
            if self.queues.value(frame) >= time {
                return;
            }
            self.put_mru(frame, class.cold());
        }
    }

    /// Gives the second chances of a search that found `frame`.
    fn searched(&mut self, frame: u32, class: Class) {
        match class {
            ColdClean => {}
            // No cold clean page was found, so the search began again and stopped at this one.
            ColdDirty => self.second_chances(self.queues.value(frame)),
            // Nothing cold at all: the search passed over every page.
            HotClean | HotDirty => self.second_chances(u64::MAX),
        }
    }
}

impl FramePolicy for CcfLru {
    fn insert(&mut self, frame: FrameId, _page: PageId, _location: Location, _access: Access) {
        self.queues.cover(frame.0);
        // Cold until it is used again: a page that is loaded once leaves first.
        self.put_mru(frame.0, ColdClean);
    }

    fn hit(&mut self, frame: FrameId, _write: bool) {
        if let Some(class) = self.class(frame.0) {
            self.put_mru(frame.0, class.hot());
        }
    }

    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.queues.in_turn().map(FrameId).find(|&frame| accept(frame))
    }

    fn remove(&mut self, frame: FrameId, evicted: bool) {
        if let Some(class) = self.class(frame.0).filter(|_| evicted) {
            self.searched(frame.0, class);
        }
        self.queues.take_out(frame.0);
    }

    fn dirtied(&mut self, frame: FrameId) {
        if let Some(class) = self.class(frame.0) {
            self.put_mru(frame.0, class.dirty());
        }
    }

    fn cleaned(&mut self, frame: FrameId, _location: Location, reason: CleanReason) {
        let Some(class) = self.class(frame.0).filter(|class| class.is_dirty()) else { return };
        if reason == CleanReason::Replacement {
            self.searched(frame.0, class);
            // The paper evicts what it writes; here the eviction follows, and must find this page first.
            self.queues.put_outbound(ColdClean.queue(), frame.0);
        } else {
            let queue = class.clean().queue();
            if let Some(midpoint) = self.queues.midpoint(queue) {
                // Each queue is sorted by the last use; the page takes the one of its new neighbour.
                self.queues.set_value(frame.0, self.queues.value(midpoint));
            }
            self.queues.put_midpoint(queue, frame.0);
        }
    }

    fn len(&self) -> usize {
        self.queues.len()
    }

    fn validate(&self) -> Result<(), String> {
        self.queues.validate()?;
        for class in [HotClean, HotDirty] {
            let times: Vec<u64> =
                self.queues.lru_first(class.queue()).map(|f| self.queues.value(f)).collect();
            if !times.is_sorted() {
                return Err(format!("{class:?}: last used at {times:?}"));
            }
        }
        Ok(())
    }
}
