//! REF: recently-evicted-first (Seo & Shin 2008, as Ou, Jin & Härder restate it in section 2).
//!
//! Victims come from the *victim blocks*: the blocks that had the most pages in the victim window, the least
//! recently used part of the LRU list, when they were chosen. Their pages are evicted in LRU order; when none
//! is left, the policy chooses new victim blocks. It does not distinguish clean from dirty pages. For a while
//! all writes therefore go to a few blocks, in any order.
//!
//! The paper finds new victim blocks by a linear search of the window. Here the blocks are kept sorted by
//! their pages in the window: a page that enters or leaves the window costs O(log m) for m blocks there,
//! everything else O(1), a victim O(number of victim blocks).
//!
//! Where the paper is silent:
//!
//! - *"At the MRU end of the list"* must read LRU end: the window is "similar to the clean-first region of
//!   CFLRU", and victims come from it.
//! - *Window and number of victim blocks*: half of the pool, as in CFLRU; 8 blocks. A block is a cluster.
//! - *Blocks with equally many pages*: the one with the least recently used page comes first.
//! - *Pages of victim blocks that enter the window later* are victims too. A block ceases to be a victim
//!   block when its last page leaves the window.
//! - *A pick does not write*: victim blocks are chosen when the first of their pages is evicted, or cleaned
//!   for replacement.
//! - *All pages of the victim blocks are refused*: the victim comes from the blocks that would be victim
//!   blocks next, and at last from the working region, in LRU order.
//! - *Becoming dirty counts as a use*, since its hit may be reported later or lost. *Read-ahead* is not
//!   treated specially.

use super::clusters::{ClusterId, Clusters};
use super::window::{WindowPercent, WorkingRegion};
use pagetier_policy::collections::{QueueNo, Queues};
use pagetier_policy::{Access, CleanReason, FrameId, FramePolicy, Location, PageId};
use std::cmp::Reverse;
use std::collections::BTreeSet;

const WORKING: QueueNo = QueueNo(0);

/// The number of victim blocks chosen at a time.
const VICTIM_BLOCKS: usize = 8;

/// Recently-evicted-first; see the module's text.
#[derive(Debug)]
pub struct Ref {
    /// The time at which each page of the window entered it.
    queues: Queues<u64, 1>,
    working: WorkingRegion,
    /// The window's pages by block.
    window: Clusters,
    /// The window's blocks: most pages first; among equals, the block whose oldest page entered the window
    /// first.
    by_size: BTreeSet<(Reverse<u32>, u64, ClusterId)>,
    victims: Vec<ClusterId>,
    demotions: u64,
}

impl Ref {
    /// For a pool of `frames` frames, of which `window` is the victim window, with blocks of
    /// `pages_per_block`.
    #[must_use]
    pub fn new(frames: usize, window: WindowPercent, pages_per_block: u32) -> Self {
        Self {
            queues: Queues::new(frames),
            working: WorkingRegion::new(WORKING, frames, window),
            window: Clusters::new(frames, pages_per_block),
            by_size: BTreeSet::new(),
            victims: Vec::new(),
            demotions: 0,
        }
    }

    fn works(&self, frame: FrameId) -> bool {
        self.queues.tracks(frame.0)
    }

    fn tracked(&self, frame: FrameId) -> bool {
        self.works(frame) || self.window.of(frame).is_some()
    }

    fn rank(&self, block: ClusterId) -> (Reverse<u32>, u64, ClusterId) {
        (Reverse(self.window.size(block)), self.queues.value(self.window.oldest(block).0), block)
    }

    fn enter_window(&mut self, frame: u32) {
        self.demotions += 1;
        // The order of entering is the LRU order of the window: the working region demotes its LRU page.
        self.queues.set_value(frame, self.demotions);
        let block = self.window.enter(FrameId(frame));
        if self.window.size(block) > 1 {
            // Remove the block's previous entry: one page fewer, the same oldest page.
            let (Reverse(size), first, _) = self.rank(block);
            self.by_size.remove(&(Reverse(size - 1), first, block));
        }
        self.by_size.insert(self.rank(block));
    }

    fn take_out(&mut self, frame: FrameId) {
        if self.works(frame) {
            self.queues.take_out(frame.0);
        } else if let Some(block) = self.window.of(frame) {
            // Before the page leaves: the entry is found by the block's present rank.
            self.by_size.remove(&self.rank(block));
            self.window.leave(frame);
            if self.window.size(block) > 0 {
                self.by_size.insert(self.rank(block));
            } else {
                // The last page of a victim block is gone; when none is left, the next search chooses new
                // ones.
                self.victims.retain(|&victim| victim != block);
            }
        }
    }

    fn promote(&mut self, frame: FrameId) {
        if !self.works(frame) {
            self.take_out(frame);
            self.demote();
        }
        self.queues.put_mru(WORKING, frame.0);
    }

    /// Makes room in the working region.
    fn demote(&mut self) {
        if let Some(demoted) = self.working.demote(&mut self.queues) {
            self.enter_window(demoted);
        }
    }

    /// Handles the choice of a page of the window: if there are no victim blocks, chooses them.
    fn searched(&mut self, frame: FrameId) {
        if self.victims.is_empty() && self.window.of(frame).is_some() {
            // The largest blocks, and all victims come from them until they are consumed: their pages leave,
            // and are erased, together.
            self.victims.extend(self.by_size.iter().take(VICTIM_BLOCKS).map(|&(.., block)| block));
        }
    }

    fn eviction_order(&self) -> impl Iterator<Item = FrameId> + '_ {
        let others = self.by_size.iter().map(|&(.., block)| block);
        // Blocks after the victims, in case all of those are refused.
        let mut others = others.filter(|block| !self.victims.contains(block));
        // The next page of each block in the current round.
        let first = |block: ClusterId| self.window.oldest(block);
        let mut heads: Vec<FrameId> = self.victims.iter().copied().map(first).collect();
        let window = std::iter::from_fn(move || {
            if heads.is_empty() {
                // As many blocks at a time as there are victim blocks, so that the order beyond them is the
                // one that the next searches would take.
                heads.extend(others.by_ref().take(VICTIM_BLOCKS).map(first));
            }
            // Within the round, by LRU over all of its blocks.
            let entered = |&at: &usize| self.queues.value(heads[at].0);
            let at = (0..heads.len()).min_by_key(entered)?;
            let frame = heads[at];
            match self.window.next(frame) {
                Some(next) => heads[at] = next,
                None => drop(heads.swap_remove(at)),
            }
            Some(frame)
        });
        window.chain(self.queues.in_turn().map(FrameId))
    }
}

impl FramePolicy for Ref {
    fn insert(&mut self, frame: FrameId, page: PageId, _location: Location, _access: Access) {
        self.queues.cover(frame.0);
        self.take_out(frame);
        self.window.holds(frame, page);
        self.promote(frame);
    }

    fn hit(&mut self, frame: FrameId, _write: bool) {
        if self.tracked(frame) {
            self.promote(frame);
        }
    }

    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.eviction_order().find(|&frame| accept(frame))
    }

    fn remove(&mut self, frame: FrameId, evicted: bool) {
        if evicted {
            self.searched(frame);
        }
        self.take_out(frame);
    }

    fn dirtied(&mut self, frame: FrameId) {
        self.hit(frame, true);
    }

    fn cleaned(&mut self, frame: FrameId, _location: Location, reason: CleanReason) {
        if reason == CleanReason::Replacement {
            self.searched(frame);
        }
    }

    fn set_frames(&mut self, frames: usize) {
        self.working.set_frames(frames);
        while self.working.has_too_many(&self.queues) {
            self.demote();
        }
    }

    fn len(&self) -> usize {
        self.queues.len() + self.window.len()
    }

    fn validate(&self) -> Result<(), String> {
        self.queues.validate()?;
        self.working.validate(&self.queues)?;
        self.window.validate()?;
        let pages: u32 = self.by_size.iter().map(|(Reverse(size), ..)| size).sum();
        let misplaced = self.by_size.iter().find(|entry| **entry != self.rank(entry.2));
        let unknown = self.victims.iter().find(|block| self.window.size(**block) == 0);
        match (misplaced, unknown) {
            (None, None) if pages as usize == self.window.len() => Ok(()),
            _ => Err(format!("blocks hold {pages} pages; misplaced {misplaced:?}, unknown {unknown:?}")),
        }
    }
}
