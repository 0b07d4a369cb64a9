//! CCF-LRU: cold-clean-first LRU (Li & Jin 2009, as Ou, Jin & Härder restate it in section 2).
//!
//! Pages are clean or dirty, and cold or hot by Second Chance. The victim is the LRU page of the first class that has any: cold-clean, cold-dirty,
//! hot-clean, hot-dirty.
//!
//! A queue per class; each page carries the time of its last use, which tells who was passed over by a search of the list that the four
//! queues are parts of. Every event is O(1), the second chances amortised: each has to be earned by a use.
//!
//! Where the paper is silent:
//!
//! - *Cold and hot*: a page is loaded cold, a later use makes it hot. A search for a cold-dirty page gives a second chance to the hot pages that lie before it
//!   in the list: they become cold, at the MRU end. A search that finds no cold page gives it to all. A cold-clean page is taken without a search.
//! - *A pick does not write*: the second chances are given when the page found is evicted, or cleaned for replacement.
//! - *Writing and evicting are one step there*; a page cleaned for replacement goes to the LRU end of the cold-clean ones (behind others so cleaned), any other to the midpoint of the clean
//!   ones of its warmth, as of that page's last use (as the 2013 paper has it in section 3.1).
//! - *Becoming dirty* is the use that loaded the page, or a hit that is told of by itself: the page goes to the MRU end, and stays as warm as it is.
//! - *Read-ahead* has no place of its own.

use crate::links::{Links, NIL, Queue};
use crate::pool::clean_in_order;
use crate::{Access, CleanReason, Costs, FrameId, FrameState, Home, PageId, PoolPolicy};

/// What a page is; the index of its queue, in the order in which they are drawn on.
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
    /// When the page was last used, in uses.
    links: Links<u64>,
    queues: [Queue; 4],
    uses: u64,
}

impl CcfLru {
    /// For a pool of `frames` frames.
    #[must_use]
    pub fn new(frames: usize) -> Self {
        Self {
            links: Links::new(frames),
            queues: Class::ALL.map(|class| Queue::new(class as u8 + 1)),
            uses: 0,
        }
    }

    fn class(&self, frame: u32) -> Option<Class> {
        Class::ALL.into_iter().find(|&class| self.links.queue_of(frame) == class as u8 + 1)
    }

    fn take_out(&mut self, frame: u32, class: Class) {
        self.queues[class as usize].unlink(&mut self.links, frame);
    }

    fn put_mru(&mut self, frame: u32, class: Class) {
        self.uses += 1;
        self.links.set_value(frame, self.uses);
        self.queues[class as usize].push_mru(&mut self.links, frame);
    }

    /// Hot pages last used before `time` become cold, at the MRU end.
    fn second_chances(&mut self, time: u64) {
        loop {
            let oldest = [HotClean, HotDirty]
                .map(|class| (self.queues[class as usize].lru(), class))
                .into_iter()
                .filter(|&(frame, _)| frame != NIL)
                .min_by_key(|&(frame, _)| self.links.value(frame));
            let Some((frame, class)) = oldest else { return };
            if self.links.value(frame) >= time {
                return;
            }
            self.take_out(frame, class);
            self.put_mru(frame, class.cold());
        }
    }

    /// The search found `frame`.
    fn searched(&mut self, frame: u32, class: Class) {
        match class {
            ColdClean => {}
            ColdDirty => self.second_chances(self.links.value(frame)),
            HotClean | HotDirty => self.second_chances(u64::MAX),
        }
    }

    fn eviction_order(&self) -> impl Iterator<Item = FrameId> + '_ {
        self.queues.iter().flat_map(|queue| queue.oldest_first(&self.links)).map(FrameId)
    }
}

impl PoolPolicy for CcfLru {
    fn name(&self) -> &'static str {
        "ccf-lru"
    }

    fn insert(&mut self, frame: FrameId, _page: PageId, _home: Home, _access: Access) {
        self.links.cover(frame.0);
        self.remove(frame, false);
        self.put_mru(frame.0, ColdClean);
    }

    fn hit(&mut self, frame: FrameId, _write: bool) {
        if let Some(class) = self.class(frame.0) {
            self.take_out(frame.0, class);
            self.put_mru(frame.0, class.hot());
        }
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.eviction_order().find(|&frame| evictable(frame))
    }

    fn remove(&mut self, frame: FrameId, evicted: bool) {
        let Some(class) = self.class(frame.0) else { return };
        if evicted {
            self.searched(frame.0, class);
        }
        // The search may have cooled the page itself.
        self.take_out(frame.0, self.class(frame.0).unwrap_or(class));
    }

    fn dirtied(&mut self, frame: FrameId) {
        if let Some(class) = self.class(frame.0) {
            self.take_out(frame.0, class);
            self.put_mru(frame.0, class.dirty());
        }
    }

    fn cleaned(&mut self, frame: FrameId, _home: Home, reason: CleanReason) {
        let Some(class) = self.class(frame.0).filter(|class| class.is_dirty()) else { return };
        if reason == CleanReason::Replacement {
            self.searched(frame.0, class);
            self.take_out(frame.0, class.cold());
            self.queues[ColdClean as usize].push_outbound(&mut self.links, frame.0);
        } else {
            self.take_out(frame.0, class);
            let queue = &mut self.queues[class.clean() as usize];
            if queue.midpoint() != NIL {
                let last_used = self.links.value(queue.midpoint());
                self.links.set_value(frame.0, last_used);
            }
            queue.push_midpoint(&mut self.links, frame.0);
        }
    }

    fn ssd_evicted(&mut self, _frame: FrameId) {}

    fn ssd_invalidated(&mut self, _frame: FrameId) {}

    fn clean_set(
        &mut self,
        depth: usize,
        max: usize,
        state: &mut dyn FnMut(FrameId) -> FrameState,
        out: &mut Vec<FrameId>,
    ) {
        clean_in_order(self.eviction_order(), depth, max, state, out);
    }

    fn set_costs(&mut self, _costs: Costs) {}

    fn len(&self) -> usize {
        self.queues.iter().map(Queue::len).sum()
    }

    fn validate(&self) -> Result<(), String> {
        for (queue, class) in self.queues.iter().zip(Class::ALL) {
            queue.validate(&self.links)?;
            let times: Vec<u64> = queue.oldest_first(&self.links).map(|f| self.links.value(f)).collect();
            if class.is_hot() && !times.is_sorted() {
                return Err(format!("{class:?}: last used at {times:?}"));
            }
        }
        Ok(())
    }
}
