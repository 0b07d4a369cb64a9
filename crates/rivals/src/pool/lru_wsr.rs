//! LRU-WSR: LRU with a second chance for hot dirty pages (Jung 2008, as Ou, Jin & Härder restate it in
//! section 2).
//!
//! There is one LRU list. The search for a victim starts at the LRU end and takes the first page that is
//! clean, or dirty and marked cold. A dirty page that is not marked (a *hot* one) is marked cold and passed
//! over.
//!
//! The list is kept as two queues: the hot dirty pages, and the pages that may be evicted at once. Each page
//! carries the time of its last use, from which the policy derives the hot pages that a search passed over.
//! Every event is O(1); second chances are amortised, since each is earned by a use.
//!
//! Where the paper is silent:
//!
//! - *Second chance* moves a page passed over to the MRU end, as the algorithm of that name does. A use makes
//!   it hot again; a page is hot when loaded.
//! - *A pick does not write*: the marks are set when the page that the search found is evicted, or cleaned
//!   for replacement, since the paper writes and evicts in one step. If the page found is hot and dirty
//!   itself, the search went through the whole list and came back to it: all pages are then cold.
//! - *A cold page that was cleaned* stays where it is. A hot page cleaned for any reason but replacement goes
//!   to the midpoint of the queue of pages that may be evicted at once, with the last use of the page there
//!   (as the 2013 paper treats pages that change their queue without being used).
//! - *Becoming dirty counts as a use*, since its hit may be reported later or lost. *Read-ahead* is not
//!   treated specially.

use pagetier_policy::collections::{QueueNo, Queues};
use pagetier_policy::{Access, CleanReason, FrameId, FramePolicy, Location, PageId};

/// Clean pages, and dirty pages marked cold.
const AT_ONCE: QueueNo = QueueNo(0);
const HOT_DIRTY: QueueNo = QueueNo(1);

#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// The time of the page's last use, counted in uses.
    last_used: u64,
    dirty: bool,
}

/// LRU with a second chance for hot dirty pages; see the module's text.
#[derive(Debug)]
pub struct LruWsr {
    queues: Queues<Page, 2>,
    uses: u64,
}

impl LruWsr {
    /// For a pool of `frames` frames.
    #[must_use]
    pub fn new(frames: usize) -> Self {
        Self { queues: Queues::new(frames), uses: 0 }
    }

    fn is_hot(&self, frame: u32) -> bool {
        self.queues.queue_of(frame) == Some(HOT_DIRTY)
    }

    /// Puts the page at the MRU end of the list, hot or not.
    fn put_mru(&mut self, frame: u32, dirty: bool, hot: bool) {
        self.uses += 1;
        self.queues.set_value(frame, Page { last_used: self.uses, dirty });
        self.queues.put_mru(if dirty && hot { HOT_DIRTY } else { AT_ONCE }, frame);
    }

    /// Gives a second chance to the hot dirty pages that the search for `found` passed over.
    fn searched(&mut self, found: u32) {
        // A hot page was found: the search went round once and made every page cold.
        let until = if self.is_hot(found) { u64::MAX } else { self.queues.value(found).last_used };
        while let Some(frame) = self.queues.lru(HOT_DIRTY)
            && self.queues.value(frame).last_used < until
        {
            // Marked cold and moved to the MRU end: the second chance.
            self.put_mru(frame, true, false);
        }
    }
}

impl FramePolicy for LruWsr {
    fn insert(&mut self, frame: FrameId, _page: PageId, _location: Location, _access: Access) {
        self.queues.cover(frame.0);
        self.put_mru(frame.0, false, true);
    }

    fn hit(&mut self, frame: FrameId, _write: bool) {
        if self.queues.tracks(frame.0) {
            self.put_mru(frame.0, self.queues.value(frame.0).dirty, true);
        }
    }

    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.queues.in_turn().map(FrameId).find(|&frame| accept(frame))
    }

    fn remove(&mut self, frame: FrameId, evicted: bool) {
        if evicted && self.queues.tracks(frame.0) {
            self.searched(frame.0);
        }
        self.queues.take_out(frame.0);
    }

    fn dirtied(&mut self, frame: FrameId) {
        if self.queues.tracks(frame.0) {
            self.put_mru(frame.0, true, true);
        }
    }

    fn cleaned(&mut self, frame: FrameId, _location: Location, reason: CleanReason) {
        if !self.queues.tracks(frame.0) || !self.queues.value(frame.0).dirty {
            // Clean already: where a page stands among those that may be evicted at once does not change.
            return;
        }
        if reason == CleanReason::Replacement {
            self.searched(frame.0);
        }
        let Page { mut last_used, .. } = self.queues.value(frame.0);
        if self.is_hot(frame.0) {
            if let Some(midpoint) = self.queues.midpoint(AT_ONCE) {
                // The queue is sorted by the last use, which a page at its midpoint has to fit.
                last_used = self.queues.value(midpoint).last_used;
            }
            self.queues.put_midpoint(AT_ONCE, frame.0);
        }
        self.queues.set_value(frame.0, Page { last_used, dirty: false });
    }

    fn len(&self) -> usize {
        self.queues.len()
    }

    fn validate(&self) -> Result<(), String> {
        self.queues.validate()?;
        for queue in [AT_ONCE, HOT_DIRTY] {
            let pages: Vec<Page> = self.queues.lru_first(queue).map(|f| self.queues.value(f)).collect();
            if !pages.is_sorted_by_key(|page| page.last_used) {
                return Err(format!("out of order: {pages:?}"));
            }
        }
        match self.queues.lru_first(HOT_DIRTY).find(|&frame| !self.queues.value(frame).dirty) {
            Some(frame) => Err(format!("frame {frame} is clean among the hot dirty ones")),
            None => Ok(()),
        }
    }
}
