//! CCF-LRU: cold-clean-first LRU (Li & Jin 2009, as Ou, Jin & Härder restate it in section 2).
//!
//! Pages are clean or dirty, and cold or hot by Second Chance. The victim is the LRU page of the first class
//! that has any: cold-clean, cold-dirty, hot-clean, hot-dirty.
//!
//! A queue per class; each page carries the time of its last use, which tells who was passed over by a search
//! of the list that the four queues are parts of. Every event is O(1), the second chances amortised: each has
//! to be earned by a use.
//!
//! Where the paper is silent:
//!
//! - *Cold and hot*: a page is loaded cold, a later use makes it hot. A search for a cold-dirty page gives a
//!   second chance to the hot pages that lie before it in the list: they become cold, at the MRU end. A
//!   search that finds no cold page gives it to all. A cold-clean page is taken without a search.
//! - *A pick does not write*: the second chances are given when the page found is evicted, or cleaned for
//!   replacement.
//! - *Writing and evicting are one step there*; a page cleaned for replacement goes to the LRU end of the
//!   cold-clean ones (behind others so cleaned), any other to the midpoint of the clean ones of its warmth,
//!   as of that page's last use (as the 2013 paper has it in section 3.1).
//! - *Becoming dirty* is the use that loaded the page, or a hit that is told of by itself: the page goes to
//!   the MRU end, and stays as warm as it is.
//! - *Read-ahead* has no place of its own.

use crate::collections::links::QueueNo;
use crate::collections::queues::Queues;
use crate::{Access, CleanReason, FrameId, FramePolicy, Home, PageId};

/// What a page is; the number of its queue, in the order in which they are drawn on.
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

    const fn queue(self) -> QueueNo {
        QueueNo(self as u8)
    }

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
    queues: Queues<u64, 4>,
    uses: u64,
}

impl CcfLru {
    /// For a pool of `frames` frames.
    #[must_use]
    pub fn new(frames: usize) -> Self {
        Self { queues: Queues::new(frames), uses: 0 }
    }

    fn class(&self, frame: u32) -> Option<Class> {
        self.queues.queue_of(frame).map(|queue| Class::ALL[queue.at()])
    }

    fn put_mru(&mut self, frame: u32, class: Class) {
        self.uses += 1;
        self.queues.set_value(frame, self.uses);
        self.queues.put_mru(class.queue(), frame);
    }

    /// Hot pages last used before `time` become cold, at the MRU end.
    fn second_chances(&mut self, time: u64) {
        loop {
            let oldest = [HotClean, HotDirty]
                .into_iter()
                .filter_map(|class| Some((self.queues.lru(class.queue())?, class)))
                .min_by_key(|&(frame, _)| self.queues.value(frame));
            let Some((frame, class)) = oldest else { return };
            if self.queues.value(frame) >= time {
                return;
            }
            self.put_mru(frame, class.cold());
        }
    }

    /// The search found `frame`.
    fn searched(&mut self, frame: u32, class: Class) {
        match class {
            ColdClean => {}
            ColdDirty => self.second_chances(self.queues.value(frame)),
            HotClean | HotDirty => self.second_chances(u64::MAX),
        }
    }
}

impl FramePolicy for CcfLru {
    fn insert(&mut self, frame: FrameId, _page: PageId, _home: Home, _access: Access) {
        self.queues.cover(frame.0);
        self.put_mru(frame.0, ColdClean);
    }

    fn hit(&mut self, frame: FrameId, _write: bool) {
        if let Some(class) = self.class(frame.0) {
            self.put_mru(frame.0, class.hot());
        }
    }

    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.queues.in_turn().map(FrameId).find(|&frame| accept(frame))
    }

    fn remove(&mut self, frame: FrameId, evicted: bool) {
        if let Some(class) = self.class(frame.0).filter(|_| evicted) {
            self.searched(frame.0, class);
        }
        self.queues.take_out(frame.0);
    }

    fn dirtied(&mut self, frame: FrameId) {
        if let Some(class) = self.class(frame.0) {
            self.put_mru(frame.0, class.dirty());
        }
    }

    fn cleaned(&mut self, frame: FrameId, _home: Home, reason: CleanReason) {
        let Some(class) = self.class(frame.0).filter(|class| class.is_dirty()) else { return };
        if reason == CleanReason::Replacement {
            self.searched(frame.0, class);
            self.queues.put_outbound(ColdClean.queue(), frame.0);
        } else {
            let queue = class.clean().queue();
            if let Some(midpoint) = self.queues.midpoint(queue) {
                self.queues.set_value(frame.0, self.queues.value(midpoint));
            }
            self.queues.put_midpoint(queue, frame.0);
        }
    }

    fn len(&self) -> usize {
        self.queues.len()
    }

    fn validate(&self) -> Result<(), String> {
        self.queues.validate()?;
        for class in [HotClean, HotDirty] {
            let times: Vec<u64> =
                self.queues.lru_first(class.queue()).map(|f| self.queues.value(f)).collect();
            if !times.is_sorted() {
                return Err(format!("{class:?}: last used at {times:?}"));
            }
        }
        Ok(())
    }
}
