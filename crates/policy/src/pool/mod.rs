//! The buffer pool's policies: from the events of frames, they decide which frames to evict and which to
//! clean.

mod adaptive;
mod gd2l;
mod gd2l_weighted;
mod greedy_dual;
mod h_queues;
mod hinted;
mod lru;
mod params;

pub use adaptive::AdaptivePool;
pub use gd2l::Gd2l;
pub use gd2l_weighted::Gd2lWeighted;
pub use greedy_dual::{FREQUENCY_MAX, Gd2lOptions, GreedyDual};
pub use hinted::{HintedPool, Resident, Retention};
pub use lru::{Lru, MidpointLru, OneQueue};
pub use params::{CLUSTER_PAGES, CLUSTER_PAGES_MAX, FramePolicyParams};

use crate::{Access, CleanReason, Costs, FrameId, Location, PageId, PolicyChoice};

/// The state of a frame, as the pool reports it to a policy that looks for pages to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameState {
    /// Clean: it can be evicted at once.
    Clean,
    /// Dirty, and its write can start now.
    Dirty,
    /// Neither: being written, latched, or held back.
    Busy,
}

/// Asks for the state of a frame.
pub type StateOf<'a> = &'a mut dyn FnMut(FrameId) -> FrameState;

/// The maximum number of frames that [`FramePolicy::clean_set`] examines per unit of `depth`.
pub const LOOK_FACTOR: usize = 16;

/// How much further [`FramePolicy::clean_set`] looks.
#[derive(Debug)]
pub struct LookAhead {
    /// Clean or dirty frames still to find.
    to_see: usize,
    /// The maximum number of frames still to examine.
    to_look_at: usize,
}

impl LookAhead {
    /// For a walk that is to see `depth` frames.
    #[must_use]
    pub const fn new(depth: usize) -> Self {
        Self { to_see: depth, to_look_at: depth.saturating_mul(LOOK_FACTOR) }
    }

    /// Whether the walk has seen enough.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.to_see == 0 || self.to_look_at == 0
    }

    /// Records that a frame in `state` was examined.
    pub fn note(&mut self, state: FrameState) {
        self.to_look_at = self.to_look_at.saturating_sub(1);
        // A busy frame cannot be written now, and is likely being written: it is no victim to prepare.
        self.to_see = self.to_see.saturating_sub(usize::from(state != FrameState::Busy));
    }
}

/// Decides which frame to evict. Knows frames by index only; the pool owns their contents.
///
/// A frame is *tracked* between [`FramePolicy::insert`] and [`FramePolicy::remove`]. Events for untracked
/// frames are ignored, because hits reach the policy late, in batches.
pub trait FramePolicy: Send + std::fmt::Debug {
    /// Reports that `page` was loaded into `frame`, or newly allocated there. `location` says whether it has
    /// an SSD copy.
    fn insert(&mut self, frame: FrameId, page: PageId, location: Location, access: Access);

    /// Reports a use of the page in `frame`: a write if `write`, otherwise a read.
    fn hit(&mut self, frame: FrameId, write: bool);

    /// How many uses of a page the policy needs to see while a 64th of the pool is replaced; more would not
    /// move the page any more. The pool leaves further ones out. Above 15, the default, it reports every use.
    fn uses_seen(&self) -> u8 {
        u8::MAX
    }

    /// Returns the frame that the policy would evict first among those that `accept` takes. Offers each
    /// tracked frame once, in eviction order, until one is taken.
    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId>;

    /// Returns the next victim: the frame that the policy would evict first among those that `evictable`
    /// accepts (it refuses pinned and dirty ones). Changes nothing but scan positions; the pool follows up
    /// with [`FramePolicy::remove`].
    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.first_to_go(evictable)
    }

    /// Reports that the frame was vacated: if `evicted`, as the victim of a replacement (GD2L then raises L);
    /// otherwise because its page was discarded.
    fn remove(&mut self, frame: FrameId, evicted: bool);

    /// Reports that `page` was evicted from `frame`, as the victim of a replacement. A policy that remembers
    /// pages that left need not know which frame holds which page until then. By default the same as
    /// [`FramePolicy::remove`], which is not called as well.
    fn evicted(&mut self, frame: FrameId, _page: PageId) {
        self.remove(frame, true);
    }

    /// Reports that the page in `frame` became dirty (the first change since it was loaded or cleaned).
    fn dirtied(&mut self, frame: FrameId);

    /// Reports that the page in `frame` was written to `location` for `reason`, and is clean. A move from
    /// `Location::Hdd` to `Location::Ssd` is the paper's "admitted to SSD" (2013, section 3.1).
    fn cleaned(&mut self, frame: FrameId, location: Location, reason: CleanReason);

    /// Reports that the SSD copy of the page in `frame` was evicted while the page was buffered. Policies
    /// that do not distinguish homes ignore it.
    fn ssd_evicted(&mut self, _frame: FrameId) {}

    /// Reports that a change of the page in `frame` invalidated its SSD copy. Policies that do not
    /// distinguish homes ignore it.
    fn ssd_invalidated(&mut self, _frame: FrameId) {}

    /// Selects frames for replacement cleaning: examines frames in eviction order until `depth` of them were
    /// clean or dirty, and appends up to `max` dirty ones to `out`, in the order to write them. Busy frames
    /// do not count towards `depth`, but no more than [`LOOK_FACTOR`] times `depth` frames are examined. A
    /// policy that cleans in clusters also appends the other dirty frames of a cluster.
    fn clean_set(&mut self, depth: usize, max: usize, state: StateOf<'_>, out: &mut Vec<FrameId>) {
        let mut ahead = LookAhead::new(depth);
        let full = out.len().saturating_add(max);
        self.first_to_go(&mut |frame| {
            // Taking this frame ends the walk: `first_to_go` has no other way to stop.
            if ahead.is_over() || out.len() >= full {
                return true;
            }
            let state = state(frame);
            ahead.note(state);
            if state == FrameState::Dirty {
                out.push(frame);
            }
            false
        });
    }

    /// H of the page in `frame` minus the current inflation L, in milliseconds, if the policy uses H and
    /// tracks the frame. For reports.
    fn worth_ms(&self, _frame: FrameId) -> Option<f64> {
        None
    }

    /// Sets new costs, from calibration or online measurement. Policies that do not use costs ignore it.
    fn set_costs(&mut self, _costs: Costs) {}

    /// The pool has `frames` frames from now on. Tracked frames may have larger numbers, because a pool that
    /// shrinks gives up frames wherever they are. Policies without shares of the pool ignore it.
    fn set_frames(&mut self, _frames: usize) {}

    /// The setting in force, if the policy adapts.
    fn choice(&self) -> Option<PolicyChoice> {
        None
    }

    /// The memory of tables beyond the few bytes per frame that every policy takes, in bytes.
    fn extra_memory_bytes(&self) -> usize {
        0
    }

    /// The number of tracked frames.
    fn len(&self) -> usize;

    /// Whether no frame is tracked.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Recounts every structure; for tests.
    ///
    /// # Errors
    /// The first inconsistency found.
    fn validate(&self) -> Result<(), String>;
}
