//! CFLRU: clean-first LRU (Park 2006, as Ou, Jin & Härder restate it in section 2).
//!
//! The w least recently used pages of the LRU list are the clean-first region. The victim is the LRU one of its clean pages; only when it has
//! none, the LRU page, which is dirty. Dirty pages stay longer, and are written less often.
//!
//! Three queues: the working region, and the window's clean and dirty pages apart, so that no clean page has to be searched for. Every event is O(1), a
//! victim costs the frames that are refused before it.
//!
//! Where the paper is silent:
//!
//! - *w* is "performance critical but difficult to determine": half of the pool unless told otherwise.
//! - *Writing and evicting are one step there*; here a page is cleaned first. A replacement write puts it at the LRU end of the clean pages, behind those
//!   that came there before it in the same way: it would have gone. Any other write puts it at their midpoint, as the 2013 paper does with pages that change their queue without being used (section 3.1).
//! - *Becoming dirty is a use*: the page goes to the MRU end, should its hit not have come yet, or be lost.
//! - *Read-ahead* has no place of its own: prefetched pages enter as others do.
//! - *The whole window refused*: then the working region's LRU page.

use crate::links::{Links, Queue, QueueNo};
use crate::pool::clean_in_order;
use crate::window::WindowPercent;
use crate::{Access, CleanReason, Costs, FrameId, FrameState, Home, PageId, PoolPolicy};

const WORKING: QueueNo = 1;
const CLEAN: QueueNo = 2;
const DIRTY: QueueNo = 3;

/// Clean-first LRU; see the module's text.
#[derive(Debug)]
pub struct Cflru {
    /// Whether the page is dirty.
    links: Links<bool>,
    working: Queue,
    working_pages: usize,
    clean: Queue,
    dirty: Queue,
}

impl Cflru {
    /// For a pool of `frames` frames whose clean-first region is `window` of them.
    #[must_use]
    pub fn new(frames: usize, window: WindowPercent) -> Self {
        Self {
            links: Links::new(frames),
            working: Queue::new(WORKING),
            working_pages: window.working_pages(frames),
            clean: Queue::new(CLEAN),
            dirty: Queue::new(DIRTY),
        }
    }

    fn take_out(&mut self, frame: u32) {
        match self.links.queue_of(frame) {
            WORKING => self.working.unlink(&mut self.links, frame),
            CLEAN => self.clean.unlink(&mut self.links, frame),
            DIRTY => self.dirty.unlink(&mut self.links, frame),
            _ => {}
        }
    }

    fn promote(&mut self, frame: u32) {
        if self.links.queue_of(frame) == WORKING {
            return self.working.move_to_mru(&mut self.links, frame);
        }
        self.take_out(frame);
        if self.working.len() >= self.working_pages {
            let demoted = self.working.lru();
            self.working.unlink(&mut self.links, demoted);
            let dirty = self.links.value(demoted);
            let queue = if dirty { &mut self.dirty } else { &mut self.clean };
            queue.push_mru(&mut self.links, demoted);
        }
        self.working.push_mru(&mut self.links, frame);
    }

    fn eviction_order(&self) -> impl Iterator<Item = FrameId> + '_ {
        let queues = [&self.clean, &self.dirty, &self.working];
        queues.into_iter().flat_map(|queue| queue.oldest_first(&self.links)).map(FrameId)
    }
}

impl PoolPolicy for Cflru {
    fn name(&self) -> &'static str {
        "cflru"
    }

    fn insert(&mut self, frame: FrameId, _page: PageId, _home: Home, _access: Access) {
        self.links.cover(frame.0);
        self.take_out(frame.0);
        self.links.set_value(frame.0, false);
        self.promote(frame.0);
    }

    fn hit(&mut self, frame: FrameId, _write: bool) {
        if self.links.queue_of(frame.0) != 0 {
            self.promote(frame.0);
        }
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.eviction_order().find(|&frame| evictable(frame))
    }

    fn remove(&mut self, frame: FrameId, _evicted: bool) {
        self.take_out(frame.0);
    }

    fn dirtied(&mut self, frame: FrameId) {
        if self.links.queue_of(frame.0) != 0 {
            self.links.set_value(frame.0, true);
            self.promote(frame.0);
        }
    }

    fn cleaned(&mut self, frame: FrameId, _home: Home, reason: CleanReason) {
        if self.links.queue_of(frame.0) == 0 {
            return;
        }
        self.links.set_value(frame.0, false);
        if self.links.queue_of(frame.0) == DIRTY {
            self.dirty.unlink(&mut self.links, frame.0);
            match reason {
                CleanReason::Replacement => self.clean.push_outbound(&mut self.links, frame.0),
                CleanReason::Recoverability => self.clean.push_midpoint(&mut self.links, frame.0),
            }
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
        self.working.len() + self.clean.len() + self.dirty.len()
    }

    fn validate(&self) -> Result<(), String> {
        for (queue, dirty) in [(&self.clean, false), (&self.dirty, true)] {
            queue.validate(&self.links)?;
            if let Some(frame) = queue.oldest_first(&self.links).find(|&f| self.links.value(f) != dirty) {
                return Err(format!("frame {frame} is in the wrong queue of the window"));
            }
        }
        if self.working.len() > self.working_pages {
            return Err(format!(
                "{} pages in a working region of {}",
                self.working.len(),
                self.working_pages
            ));
        }
        self.working.validate(&self.links)
    }
}
