//! Cost-oblivious LRU, plain and with InnoDB's midpoint.
//!
//! The 2013 paper's baseline "LRU" is InnoDB's buffer pool as section 3.1 describes it: [`MidpointLru`].
//! Released InnoDB also puts demand loads at the midpoint and moves them on a later access. Section 3.1 puts
//! them at the MRU end, and so does this code.

use crate::collections::links::QueueNo;
use crate::collections::queues::Queues;
use crate::{Access, CleanReason, FrameId, FramePolicy, Location, PageId};

const QUEUE: QueueNo = QueueNo(0);

/// One LRU queue; with `MIDPOINT`, prefetched pages enter 3/8 from the LRU end.
#[derive(Debug)]
pub struct OneQueue<const MIDPOINT: bool> {
    queues: Queues<(), 1>,
}

/// Plain LRU: every load and every use puts a page at the MRU end.
pub type Lru = OneQueue<false>;

/// LRU whose prefetched pages enter 3/8 from the LRU end and reach the MRU end only upon a later read.
pub type MidpointLru = OneQueue<true>;

impl<const MIDPOINT: bool> OneQueue<MIDPOINT> {
    /// For a pool of `frames` frames.
    #[must_use]
    pub fn new(frames: usize) -> Self {
        Self { queues: Queues::new(frames) }
    }
}

impl<const MIDPOINT: bool> FramePolicy for OneQueue<MIDPOINT> {
    fn insert(&mut self, frame: FrameId, _page: PageId, _location: Location, access: Access) {
        self.queues.cover(frame.0);
        // Read ahead, not used yet: a scan must not push out the pages in use.
        if MIDPOINT && access == Access::Sequential {
            self.queues.put_midpoint(QUEUE, frame.0);
        } else {
            self.queues.put_mru(QUEUE, frame.0);
        }
    }

    fn hit(&mut self, frame: FrameId, _write: bool) {
        if self.queues.tracks(frame.0) {
            self.queues.put_mru(QUEUE, frame.0);
        }
    }

    fn uses_seen(&self) -> u8 {
        1
    }

    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.queues.in_turn().map(FrameId).find(|&frame| accept(frame))
    }

    fn remove(&mut self, frame: FrameId, _evicted: bool) {
        self.queues.take_out(frame.0);
    }

    fn dirtied(&mut self, _frame: FrameId) {}

    fn cleaned(&mut self, _frame: FrameId, _location: Location, _reason: CleanReason) {}

    fn len(&self) -> usize {
        self.queues.len()
    }

    fn validate(&self) -> Result<(), String> {
        self.queues.validate()
    }
}
