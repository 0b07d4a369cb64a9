//! CASA: cost-aware self-adaptive (Ou & Härder 2010, as section 3.2 of Ou, Jin & Härder has it).
//!
//! Clean pages C and dirty pages D, each in LRU order, and a target size τ for C that follows what pays. A
//! read that hits in C (Case 1) raises τ by c_R · |D|/|C|, a write that hits in D (Case 2) lowers it by c_W ·
//! |C|/|D|. The victim is C's LRU page while |C| > τ, else D's (Algorithm 2). Every event is O(1), a victim
//! costs the frames that are refused before it.
//!
//! Where the paper is silent, or speaks of one step where there are two:
//!
//! - *Costs*: c_R and c_W are the HDD's R_D and W_D normalised, as the paper knows one device only, and the
//!   HDD is the one whose time matters. [`FramePolicy::set_costs`] follows them when they are measured
//!   (section 3.2.2). A store does not measure them unless it is told to: `Builder::online_costs`, off by
//!   default. Without it CASA goes by the costs that the store was opened with (`Builder::costs`, or what
//!   `Builder::calibrate` found).
//! - *The list to draw on is empty* (|C| ≤ τ and nothing is dirty), or all of it is refused: the other one.
//! - *What the request does*: `hit` says whether it writes, [`FramePolicy::dirtied`] that a clean page has
//!   become dirty: then it goes to the MRU position of D. The hit comes first, when the page is still in C: τ
//!   stays (line 5). A store, which tells hits in batches, tells those of a thread before a page that it
//!   changed.
//! - *Writing and evicting are one step there*; a page of D cleaned for replacement goes to the LRU end of C,
//!   behind others that came so: it would have gone. Cleaned for another reason, it goes to the midpoint of
//!   C, as the 2013 paper does with pages that change their queue without being used.
//! - *Cleaning ahead*: what goes next depends on the pages that come. The look-ahead takes these for reads,
//!   of which each lengthens C: from D only as many as it takes until |C| > τ.
//! - *Read-ahead* has no place of its own.

use crate::collections::links::QueueNo;
use crate::collections::queues::Queues;
use crate::{Access, CleanReason, Costs, FrameId, FramePolicy, Home, PageId};

/// C of the paper.
const CLEAN: QueueNo = QueueNo(0);
/// D of the paper.
const DIRTY: QueueNo = QueueNo(1);

/// Cost-aware self-adaptive; see the module's text.
#[derive(Debug)]
pub struct Casa {
    queues: Queues<(), 2>,
    /// b.
    frames: usize,
    tau: f64,
    /// c_R; c_W is what it leaves of 1.
    read_cost: f64,
}

impl Casa {
    /// For a pool of `frames` frames.
    #[must_use]
    pub fn new(frames: usize, costs: Costs) -> Self {
        let mut casa = Self { queues: Queues::new(frames), frames, tau: 0.0, read_cost: 0.5 };
        casa.set_costs(costs);
        casa
    }

    /// τ, the target size of the clean list, in pages.
    #[must_use]
    pub fn tau(&self) -> f64 {
        self.tau
    }

    /// |C| and |D|.
    #[must_use]
    pub fn list_lens(&self) -> (usize, usize) {
        (self.queues.len_of(CLEAN), self.queues.len_of(DIRTY))
    }

    pub(crate) fn tracked(&self, frame: FrameId) -> bool {
        self.queues.tracks(frame.0)
    }

    pub(crate) fn is_dirty(&self, frame: FrameId) -> bool {
        self.queues.queue_of(frame.0) == Some(DIRTY)
    }

    /// A dirty page was written for `reason`, and is clean.
    pub(crate) fn move_to_clean(&mut self, frame: FrameId, reason: CleanReason) {
        self.queues.put_cleaned(CLEAN, frame.0, reason);
    }

    /// Every frame in the order in which they would go if reads came.
    pub(crate) fn eviction_order(&self) -> impl Iterator<Item = FrameId> + '_ {
        let lacking = self.tau - self.queues.len_of(CLEAN) as f64;
        let from_dirty = if lacking < 0.0 { 0 } else { lacking as usize + 1 };
        let dirty = || self.queues.lru_first(DIRTY);
        let clean = self.queues.lru_first(CLEAN);
        dirty().take(from_dirty).chain(clean).chain(dirty().skip(from_dirty)).map(FrameId)
    }
}

impl FramePolicy for Casa {
    fn insert(&mut self, frame: FrameId, _page: PageId, _home: Home, _access: Access) {
        self.queues.cover(frame.0);
        self.queues.put_mru(CLEAN, frame.0);
    }

    fn hit(&mut self, frame: FrameId, write: bool) {
        let Some(queue) = self.queues.queue_of(frame.0) else { return };
        let [clean, dirty] = [CLEAN, DIRTY].map(|queue| self.queues.len_of(queue) as f64);
        if queue == CLEAN && !write {
            self.tau = (self.tau + self.read_cost * dirty / clean).min(self.frames as f64);
        } else if queue == DIRTY && write {
            self.tau = (self.tau - (1.0 - self.read_cost) * clean / dirty).max(0.0);
        }
        self.queues.put_mru(queue, frame.0);
    }

    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.eviction_order().find(|&frame| accept(frame))
    }

    fn remove(&mut self, frame: FrameId, _evicted: bool) {
        self.queues.take_out(frame.0);
    }

    fn dirtied(&mut self, frame: FrameId) {
        if self.tracked(frame) {
            self.queues.put_mru(DIRTY, frame.0);
        }
    }

    fn cleaned(&mut self, frame: FrameId, _home: Home, reason: CleanReason) {
        if self.is_dirty(frame) {
            self.move_to_clean(frame, reason);
        }
    }

    fn set_costs(&mut self, costs: Costs) {
        let share = costs.hdd_read_ms / (costs.hdd_read_ms + costs.hdd_write_ms);
        if (0.0..=1.0).contains(&share) {
            self.read_cost = share;
        }
    }

    fn len(&self) -> usize {
        self.queues.len()
    }

    fn validate(&self) -> Result<(), String> {
        if !(0.0..=self.frames as f64).contains(&self.tau) {
            return Err(format!("τ = {} in a pool of {}", self.tau, self.frames));
        }
        self.queues.validate()
    }
}
