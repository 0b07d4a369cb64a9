//! Cost-oblivious LRU, plain and with InnoDB's midpoint.
//!
//! The 2013 paper's baseline "LRU" is InnoDB's buffer pool as section 3.1 describes it: [`MidpointLru`]. Released InnoDB puts demand
//! loads at the midpoint too and moves them on a later access; section 3.1 says MRU end, and so does this code.

use crate::links::{Links, Queue};
use crate::pool::clean_in_order;
use crate::{Access, CleanReason, Costs, FrameId, FrameState, Home, PageId, PoolPolicy};

/// One LRU queue; with `MIDPOINT`, prefetched pages enter 3/8 from the LRU end.
#[derive(Debug)]
pub struct OneQueue<const MIDPOINT: bool> {
    links: Links<()>,
    queue: Queue,
}

/// Plain LRU: every load and every use puts a page at the MRU end.
pub type Lru = OneQueue<false>;

/// LRU whose prefetched pages enter 3/8 from the LRU end and reach the MRU end only when they are later read.
pub type MidpointLru = OneQueue<true>;

impl<const MIDPOINT: bool> OneQueue<MIDPOINT> {
    /// For a pool of `frames` frames.
    #[must_use]
    pub fn new(frames: usize) -> Self {
        Self { links: Links::new(frames), queue: Queue::new(1) }
    }

    fn tracked(&self, frame: FrameId) -> bool {
        self.links.queue_of(frame.0) != 0
    }

    fn eviction_order(&self) -> impl Iterator<Item = FrameId> + '_ {
        self.queue.oldest_first(&self.links).map(FrameId)
    }
}

impl<const MIDPOINT: bool> PoolPolicy for OneQueue<MIDPOINT> {
    fn name(&self) -> &'static str {
        if MIDPOINT { "midpoint-lru" } else { "lru" }
    }

    fn insert(&mut self, frame: FrameId, _page: PageId, _home: Home, access: Access) {
        self.links.cover(frame.0);
        self.remove(frame, false);
        if MIDPOINT && access == Access::Sequential {
            self.queue.push_midpoint(&mut self.links, frame.0);
        } else {
            self.queue.push_mru(&mut self.links, frame.0);
        }
    }

    fn hit(&mut self, frame: FrameId, _write: bool) {
        if self.tracked(frame) {
            self.queue.move_to_mru(&mut self.links, frame.0);
        }
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.eviction_order().find(|&frame| evictable(frame))
    }

    fn remove(&mut self, frame: FrameId, _evicted: bool) {
        if self.tracked(frame) {
            self.queue.unlink(&mut self.links, frame.0);
        }
    }

    fn dirtied(&mut self, _frame: FrameId) {}

    fn cleaned(&mut self, _frame: FrameId, _home: Home, _reason: CleanReason) {}

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
