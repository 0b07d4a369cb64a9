//! CFLRU: clean-first LRU (Park 2006, as Ou, Jin & Härder restate it in section 2).
//!
//! The w least recently used pages of the LRU list are the clean-first region. The victim is the LRU page
//! among its clean pages; if it has none, the LRU page, which is dirty. Dirty pages stay longer, and are
//! written less often.
//!
//! There are three queues: the working region, the window's clean pages and its dirty pages. So no search for
//! a clean page is needed. Every event is O(1); a pick is linear in the refused frames.
//!
//! Where the paper is silent:
//!
//! - *w* is "performance critical but difficult to determine": half of the pool by default.
//! - *The paper writes and evicts in one step*; here a page is cleaned first. A replacement write puts it at
//!   the LRU end of the clean pages, behind those so cleaned before it: it is evicted next. Any other write
//!   puts it at their midpoint, as the 2013 paper treats pages that change their queue without being used
//!   (section 3.1).
//! - *Becoming dirty counts as a use*: the page goes to the MRU end, since its hit may be reported later or
//!   lost.
//! - *Read-ahead* is not treated specially: prefetched pages enter as others do.
//! - *The whole window is refused*: the victim is the working region's LRU page.

use super::window::{WindowPercent, WorkingRegion};
use pagetier_policy::collections::{QueueNo, Queues};
use pagetier_policy::{Access, CleanReason, FrameId, FramePolicy, Location, PageId};

/// The window's clean pages; the queues are searched in the order of their numbers.
const CLEAN: QueueNo = QueueNo(0);
/// The window's dirty pages.
const DIRTY: QueueNo = QueueNo(1);
const WORKING: QueueNo = QueueNo(2);

/// Clean-first LRU; see the module's text.
#[derive(Debug)]
pub struct Cflru {
    /// Whether the page is dirty.
    queues: Queues<bool, 3>,
    working: WorkingRegion,
}

impl Cflru {
    /// For a pool of `frames` frames, of which `window` is the clean-first region.
    #[must_use]
    pub fn new(frames: usize, window: WindowPercent) -> Self {
        Self { queues: Queues::new(frames), working: WorkingRegion::new(WORKING, frames, window) }
    }

    fn promote(&mut self, frame: u32) {
        if self.queues.queue_of(frame) != Some(WORKING) {
            self.demote();
        }
        self.queues.put_mru(WORKING, frame);
    }

    /// Makes room in the working region.
    fn demote(&mut self) {
        if let Some(demoted) = self.working.demote(&mut self.queues) {
            // In the window clean and dirty pages part: the clean ones go first.
            let queue = if self.queues.value(demoted) { DIRTY } else { CLEAN };
            self.queues.put_mru(queue, demoted);
        }
    }
}

impl FramePolicy for Cflru {
    fn insert(&mut self, frame: FrameId, _page: PageId, _location: Location, _access: Access) {
        self.queues.cover(frame.0);
        self.queues.take_out(frame.0);
        self.queues.set_value(frame.0, false);
        self.promote(frame.0);
    }

    fn hit(&mut self, frame: FrameId, _write: bool) {
        if self.queues.tracks(frame.0) {
            self.promote(frame.0);
        }
    }

    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.queues.in_turn().map(FrameId).find(|&frame| accept(frame))
    }

    fn remove(&mut self, frame: FrameId, _evicted: bool) {
        self.queues.take_out(frame.0);
    }

    fn dirtied(&mut self, frame: FrameId) {
        if self.queues.tracks(frame.0) {
            self.queues.set_value(frame.0, true);
            self.promote(frame.0);
        }
    }

    fn cleaned(&mut self, frame: FrameId, _location: Location, reason: CleanReason) {
        let Some(queue) = self.queues.queue_of(frame.0) else { return };
        self.queues.set_value(frame.0, false);
        // In the working region a page stays where it is: only the window prefers clean pages.
        if queue == DIRTY {
            self.queues.put_cleaned(CLEAN, frame.0, reason);
        }
    }

    fn set_frames(&mut self, frames: usize) {
        self.working.set_frames(frames);
        while self.working.has_too_many(&self.queues) {
            self.demote();
        }
    }

    fn len(&self) -> usize {
        self.queues.len()
    }

    fn validate(&self) -> Result<(), String> {
        self.queues.validate()?;
        self.working.validate(&self.queues)?;
        for (queue, dirty) in [(CLEAN, false), (DIRTY, true)] {
            if let Some(frame) = self.queues.lru_first(queue).find(|&f| self.queues.value(f) != dirty) {
                return Err(format!("frame {frame} is in the wrong queue of the window"));
            }
        }
        Ok(())
    }
}
