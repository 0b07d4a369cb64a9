//! CASA: cost-aware self-adaptive (Ou & Härder 2010, as restated in section 3.2 of Ou, Jin & Härder).
//!
//! It keeps the clean pages C and the dirty pages D, each in LRU order, and adapts a target size τ for C. A
//! read that hits in C (Case 1) raises τ by c_R · |D|/|C|; a write that hits in D (Case 2) lowers it by c_W ·
//! |C|/|D|. The victim is C's LRU page while |C| > τ, else D's (Algorithm 2). Every event is O(1); a pick is
//! linear in the refused frames.
//!
//! Where the paper is silent, or speaks of one step where there are two:
//!
//! - *Costs*: c_R and c_W are the HDD's R_D and W_D, normalised: the paper has one device, and the HDD is the
//!   bottleneck. [`FramePolicy::set_costs`] updates them when the store measures costs (section 3.2.2), which
//!   `CostSource::Online` enables; it is off by default. Without it CASA uses the costs that the store was
//!   opened with (`Builder::costs`).
//! - *The list to pick from is empty* (|C| ≤ τ and nothing is dirty), or all of it is refused: the victim
//!   comes from the other list.
//! - *Reads and writes*: `hit` says whether the request writes; [`FramePolicy::dirtied`] reports that a clean
//!   page has become dirty and moves it to the MRU position of D. The hit is reported first, while the page
//!   is still in C: τ does not change (line 5). A store, which reports hits in batches, reports a thread's
//!   hits before the pages that the thread dirtied.
//! - *The paper writes and evicts in one step*; here a page of D cleaned for replacement goes to the LRU end
//!   of C, behind those so cleaned before it: it is evicted next. A page cleaned for another reason goes to
//!   the midpoint of C, as the 2013 paper treats pages that change their queue without being used.
//! - *Cleaning ahead*: the next victims depend on the requests to come. The look-ahead assumes reads, each of
//!   which lengthens C: it takes pages from D only until |C| > τ.
//! - *Read-ahead* is not treated specially.

use pagetier_policy::collections::{QueueNo, Queues};
use pagetier_policy::{Access, CleanReason, Costs, FrameId, FramePolicy, Location, PageId};

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
    /// c_R; c_W is 1 - c_R.
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
    pub fn tau(&self) -> f64 {
        self.tau
    }

    /// |C| and |D|.
    pub fn list_lens(&self) -> (usize, usize) {
        (self.queues.len_of(CLEAN), self.queues.len_of(DIRTY))
    }

    pub(crate) fn tracked(&self, frame: FrameId) -> bool {
        self.queues.tracks(frame.0)
    }

    pub(crate) fn is_dirty(&self, frame: FrameId) -> bool {
        self.queues.queue_of(frame.0) == Some(DIRTY)
    }

    /// Moves a dirty page, written for `reason`, to C.
    pub(crate) fn move_to_clean(&mut self, frame: FrameId, reason: CleanReason) {
        self.queues.put_cleaned(CLEAN, frame.0, reason);
    }

    /// All frames in the order of eviction, if every request were a read.
    pub(crate) fn eviction_order(&self) -> impl Iterator<Item = FrameId> + '_ {
        // Algorithm 2 takes from C while |C| > τ. Reads lengthen C by one each, so as many dirty pages go
        // before.
        let lacking = self.tau - self.queues.len_of(CLEAN) as f64;
        let from_dirty = if lacking < 0.0 { 0 } else { lacking as usize + 1 };
        let dirty = || self.queues.lru_first(DIRTY);
        let clean = self.queues.lru_first(CLEAN);
        dirty().take(from_dirty).chain(clean).chain(dirty().skip(from_dirty)).map(FrameId)
    }
}

impl FramePolicy for Casa {
    fn insert(&mut self, frame: FrameId, _page: PageId, _location: Location, _access: Access) {
        self.queues.cover(frame.0);
        self.queues.put_mru(CLEAN, frame.0);
    }

    fn hit(&mut self, frame: FrameId, write: bool) {
        let Some(queue) = self.queues.queue_of(frame.0) else { return };
        let [clean, dirty] = [CLEAN, DIRTY].map(|queue| self.queues.len_of(queue) as f64);
        if queue == CLEAN && !write {
            // Case 1, a read hit in C: the clean list was worth its room. By |D|/|C|: the shorter list grows
            // faster.
            self.tau = (self.tau + self.read_cost * dirty / clean).min(self.frames as f64);
        } else if queue == DIRTY && write {
            // Case 2, a write hit in D, which saved a write.
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

    fn cleaned(&mut self, frame: FrameId, _location: Location, reason: CleanReason) {
        if self.is_dirty(frame) {
            self.move_to_clean(frame, reason);
        }
    }

    fn set_costs(&mut self, costs: Costs) {
        let share = costs.hdd_read_ms / (costs.hdd_read_ms + costs.hdd_write_ms);
        // Costs of 0 give no share (NaN): the former one stays.
        if (0.0..=1.0).contains(&share) {
            self.read_cost = share;
        }
    }

    /// τ keeps its share of the pool.
    fn set_frames(&mut self, frames: usize) {
        let share = self.tau / self.frames.max(1) as f64;
        self.tau = (share * frames as f64).clamp(0.0, frames as f64);
        self.frames = frames;
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
