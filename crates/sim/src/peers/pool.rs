//! A peer as a pool policy.

use super::{Order, Peer};
use pagetier_policy::{Access, CleanReason, FrameId, FramePolicy, Location, PageId};
use rustc_hash::FxHashMap;

/// A peer's order over the pool's pages.
#[derive(Debug)]
pub(crate) struct PeerPool {
    order: Box<dyn Order>,
    pages: Vec<Option<PageId>>,
    frames: FxHashMap<PageId, FrameId>,
}

impl PeerPool {
    pub(crate) fn new(peer: Peer, frames: usize) -> Self {
        Self { order: peer.order(frames), pages: vec![None; frames], frames: FxHashMap::default() }
    }
}

impl FramePolicy for PeerPool {
    fn insert(&mut self, frame: FrameId, page: PageId, _location: Location, _access: Access) {
        // A declared scan enters like any other page. These policies resist scans by themselves, and the
        // hint would hide how well.
        self.pages[frame.at()] = Some(page);
        self.frames.insert(page, frame);
        self.order.entered(page);
    }

    fn hit(&mut self, frame: FrameId, _write: bool) {
        if let Some(page) = self.pages[frame.at()] {
            self.order.used(page);
        }
    }

    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        let frames = &self.frames;
        let page = self.order.each(&mut |page| accept(frames[&page]))?;
        Some(frames[&page])
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        let frames = &self.frames;
        let page = self.order.victim(&mut |page| evictable(frames[&page]))?;
        Some(frames[&page])
    }

    fn remove(&mut self, frame: FrameId, evicted: bool) {
        if let Some(page) = self.pages[frame.at()].take() {
            self.frames.remove(&page);
            self.order.left(page, evicted);
        }
    }

    // The policies of the literature do not tell dirty pages from clean ones, so neither event moves a
    // page.
    fn dirtied(&mut self, _frame: FrameId) {}

    fn cleaned(&mut self, _frame: FrameId, _location: Location, _reason: CleanReason) {}

    fn len(&self) -> usize {
        self.frames.len()
    }

    fn validate(&self) -> Result<(), String> {
        match (self.order.len(), self.frames.len()) {
            (ordered, held) if ordered == held => Ok(()),
            (ordered, held) => Err(format!("{ordered} pages in order, {held} in the pool")),
        }
    }
}
