//! LRU-WSR: LRU with a second chance for hot dirty pages (Jung 2008, as Ou, Jin & Härder restate it in section 2).
//!
//! One list. The search for a victim starts at the LRU end: a clean page goes, and so does a dirty one that is marked cold; a dirty page that is not
//! (a *hot* one) is marked cold and passed over.
//!
//! The list is kept in two queues, the hot dirty pages apart from those that go at once, each page with the time of its last use, which tells which hot pages a
//! search passed over. Every event is O(1), the second chances amortised: each has to be earned by a use.
//!
//! Where the paper is silent:
//!
//! - *Second Chance moves the page* passed over to the MRU end, as the algorithm of that name does. A use makes it hot again; a page is hot when it is loaded.
//! - *A pick does not write*: the marks are set when the page that the search found is evicted, or cleaned for replacement, since writing and evicting are one
//!   step there. When it is a hot dirty page itself, the search has been through the whole list and come to it again: all are cold.
//! - *A cold page that was cleaned* stays where it is. A hot one that was cleaned for another reason than replacement goes to the midpoint of those that go at
//!   once, as of that page's last use (as the 2013 paper does with pages that change their queue without being used).
//! - *Becoming dirty is a use*, should the hit not have come yet, or be lost. *Read-ahead* has no place of its own.

use crate::links::{Links, NIL, Queue, QueueNo};
use crate::pool::clean_in_order;
use crate::{Access, CleanReason, Costs, FrameId, FrameState, Home, PageId, PoolPolicy};

const AT_ONCE: QueueNo = 1;
const HOT_DIRTY: QueueNo = 2;

#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// In uses.
    last_used: u64,
    dirty: bool,
}

/// LRU with a second chance for hot dirty pages; see the module's text.
#[derive(Debug)]
pub struct LruWsr {
    links: Links<Page>,
    /// Clean pages, and dirty ones that are marked cold.
    at_once: Queue,
    hot_dirty: Queue,
    uses: u64,
}

impl LruWsr {
    /// For a pool of `frames` frames.
    #[must_use]
    pub fn new(frames: usize) -> Self {
        Self {
            links: Links::new(frames),
            at_once: Queue::new(AT_ONCE),
            hot_dirty: Queue::new(HOT_DIRTY),
            uses: 0,
        }
    }

    fn tracked(&self, frame: FrameId) -> bool {
        self.links.queue_of(frame.0) != 0
    }

    fn is_hot(&self, frame: u32) -> bool {
        self.links.queue_of(frame) == HOT_DIRTY
    }

    fn take_out(&mut self, frame: u32) {
        match self.links.queue_of(frame) {
            AT_ONCE => self.at_once.unlink(&mut self.links, frame),
            HOT_DIRTY => self.hot_dirty.unlink(&mut self.links, frame),
            _ => {}
        }
    }

    /// To the MRU end of the list, hot or not.
    fn put_mru(&mut self, frame: u32, dirty: bool, hot: bool) {
        self.take_out(frame);
        self.uses += 1;
        self.links.set_value(frame, Page { last_used: self.uses, dirty });
        let queue = if dirty && hot { &mut self.hot_dirty } else { &mut self.at_once };
        queue.push_mru(&mut self.links, frame);
    }

    /// The search found `found`: gives a second chance to the hot dirty pages that it passed over.
    fn searched(&mut self, found: u32) {
        let until = if self.is_hot(found) { u64::MAX } else { self.links.value(found).last_used };
        loop {
            let frame = self.hot_dirty.lru();
            if frame == NIL || self.links.value(frame).last_used >= until {
                return;
            }
            self.put_mru(frame, true, false);
        }
    }

    fn eviction_order(&self) -> impl Iterator<Item = FrameId> + '_ {
        let queues = [&self.at_once, &self.hot_dirty];
        queues.into_iter().flat_map(|queue| queue.oldest_first(&self.links)).map(FrameId)
    }
}

impl PoolPolicy for LruWsr {
    fn name(&self) -> &'static str {
        "lru-wsr"
    }

    fn insert(&mut self, frame: FrameId, _page: PageId, _home: Home, _access: Access) {
        self.links.cover(frame.0);
        self.put_mru(frame.0, false, true);
    }

    fn hit(&mut self, frame: FrameId, _write: bool) {
        if self.tracked(frame) {
            self.put_mru(frame.0, self.links.value(frame.0).dirty, true);
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
            self.take_out(frame.0);
        }
    }

    fn dirtied(&mut self, frame: FrameId) {
        if self.tracked(frame) {
            self.put_mru(frame.0, true, true);
        }
    }

    fn cleaned(&mut self, frame: FrameId, _home: Home, reason: CleanReason) {
        if !self.tracked(frame) || !self.links.value(frame.0).dirty {
            return;
        }
        if reason == CleanReason::Replacement {
            self.searched(frame.0);
        }
        let Page { mut last_used, .. } = self.links.value(frame.0);
        if self.is_hot(frame.0) {
            self.take_out(frame.0);
            if self.at_once.midpoint() != NIL {
                last_used = self.links.value(self.at_once.midpoint()).last_used;
            }
            self.at_once.push_midpoint(&mut self.links, frame.0);
        }
        self.links.set_value(frame.0, Page { last_used, dirty: false });
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
        self.at_once.len() + self.hot_dirty.len()
    }

    fn validate(&self) -> Result<(), String> {
        for queue in [&self.at_once, &self.hot_dirty] {
            queue.validate(&self.links)?;
            let pages: Vec<Page> = queue.oldest_first(&self.links).map(|f| self.links.value(f)).collect();
            if !pages.is_sorted_by_key(|page| page.last_used) {
                return Err(format!("out of order: {pages:?}"));
            }
        }
        match self.hot_dirty.oldest_first(&self.links).find(|&frame| !self.links.value(frame).dirty) {
            Some(frame) => Err(format!("frame {frame} is clean among the hot dirty ones")),
            None => Ok(()),
        }
    }
}
