//! LRU-WSR: LRU with a second chance for hot dirty pages (Jung 2008, as Ou, Jin & Härder restate it in section 2).
//!
//! One list. The search for a victim starts at the LRU end: a clean page goes, and so does a dirty one that is marked cold; a dirty page that is not
//! (a *hot* one) is marked cold and passed over.
//!
//! Hits are O(1). The search passes hot dirty pages and refused ones; as each page passed is cold from then on until it is used again,
//! that is O(1) per use, amortised.
//!
//! Where the paper is silent:
//!
//! - *Second Chance moves the page* passed over to the MRU end, as the algorithm of that name does. A use makes it hot again; a page is hot when it is loaded.
//! - *A pick does not write*: the marks are set when the page that the search found is evicted, or cleaned for replacement, since writing and evicting are one
//!   step there. When it is a hot dirty page itself, the search has been through the whole list and come to it again: all are cold.
//! - *A page that was cleaned* stays where it is; it will be the first clean one met.
//! - *Becoming dirty is a use*, should the hit not have come yet, or be lost. *Read-ahead* has no place of its own.

use crate::links::{Links, NIL, Queue};
use crate::pool::clean_in_order;
use crate::{Access, CleanReason, Costs, FrameId, FrameState, Home, PageId, PoolPolicy};

#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    dirty: bool,
    cold: bool,
}

/// LRU with a second chance for hot dirty pages; see the module's text.
#[derive(Debug)]
pub struct LruWsr {
    links: Links<Marks>,
    queue: Queue,
}

impl LruWsr {
    /// For a pool of `frames` frames.
    #[must_use]
    pub fn new(frames: usize) -> Self {
        Self { links: Links::new(frames), queue: Queue::new(1) }
    }

    fn tracked(&self, frame: FrameId) -> bool {
        self.links.queue_of(frame.0) != 0
    }

    fn passed_over(&self, frame: u32) -> bool {
        let Marks { dirty, cold } = self.links.value(frame);
        dirty && !cold
    }

    fn used(&mut self, frame: u32, dirty: bool) {
        self.links.set_value(frame, Marks { dirty, cold: false });
        self.queue.move_to_mru(&mut self.links, frame);
    }

    /// The search found `found`: gives a second chance to the hot dirty pages that it passed over.
    fn searched(&mut self, found: u32) {
        let all = self.passed_over(found);
        let (mut at, last) = (self.queue.lru(), self.queue.mru());
        while at != NIL && (all || at != found) {
            let next = self.links.newer(at);
            if self.passed_over(at) {
                self.links.set_value(at, Marks { dirty: true, cold: true });
                self.queue.move_to_mru(&mut self.links, at);
            }
            if at == last {
                break;
            }
            at = next;
        }
    }

    fn eviction_order(&self) -> impl Iterator<Item = FrameId> + '_ {
        let all = || self.queue.oldest_first(&self.links);
        let at_once = all().filter(|&frame| !self.passed_over(frame));
        at_once.chain(all().filter(|&frame| self.passed_over(frame))).map(FrameId)
    }
}

impl PoolPolicy for LruWsr {
    fn name(&self) -> &'static str {
        "lru-wsr"
    }

    fn insert(&mut self, frame: FrameId, _page: PageId, _home: Home, _access: Access) {
        self.links.cover(frame.0);
        self.remove(frame, false);
        self.links.set_value(frame.0, Marks::default());
        self.queue.push_mru(&mut self.links, frame.0);
    }

    fn hit(&mut self, frame: FrameId, _write: bool) {
        if self.tracked(frame) {
            self.used(frame.0, self.links.value(frame.0).dirty);
        }
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.eviction_order().find(|&frame| evictable(frame))
    }

    fn remove(&mut self, frame: FrameId, evicted: bool) {
        if self.tracked(frame) {
            if evicted {
                self.searched(frame.0);
            }
            self.queue.unlink(&mut self.links, frame.0);
        }
    }

    fn dirtied(&mut self, frame: FrameId) {
        if self.tracked(frame) {
            self.used(frame.0, true);
        }
    }

    fn cleaned(&mut self, frame: FrameId, _home: Home, reason: CleanReason) {
        if !self.tracked(frame) {
            return;
        }
        if reason == CleanReason::Replacement {
            self.searched(frame.0);
        }
        let cold = self.links.value(frame.0).cold;
        self.links.set_value(frame.0, Marks { dirty: false, cold });
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
        self.queue.len()
    }

    fn validate(&self) -> Result<(), String> {
        self.queue.validate(&self.links)
    }
}
