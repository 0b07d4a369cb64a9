//! The buffer pool's policies: they hear what happens to frames, and say which to evict and which to clean.

mod adaptive;
mod casa;
mod ccf_lru;
mod cfdc;
mod cflru;
mod choice;
mod clusters;
mod gd2l;
mod gd2l_weighted;
mod greedy_dual;
mod lru;
mod lru_wsr;
mod ref_window;
mod sawc;
mod window;

pub use adaptive::{AdaptivePool, Ranking};
pub use casa::Casa;
pub use ccf_lru::CcfLru;
pub use cfdc::Cfdc;
pub use cflru::Cflru;
pub use choice::{FramePolicyParams, PoolPolicy};
pub use clusters::{CLUSTER_PAGES, CLUSTER_PAGES_MAX};
pub use gd2l::Gd2l;
pub use gd2l_weighted::Gd2lWeighted;
pub use greedy_dual::{FREQUENCY_MAX, Gd2lOptions, GreedyDual};
pub use lru::{Lru, MidpointLru, OneQueue};
pub use lru_wsr::LruWsr;
pub use ref_window::Ref;
pub use sawc::Sawc;
pub use window::WindowPercent;

use crate::{Access, Choice, CleanReason, Costs, FrameId, Home, PageId};

/// What the shell says of a frame when the policy looks for pages to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameState {
    /// Clean: it could go at once.
    Clean,
    /// Dirty, and its write could start now.
    Dirty,
    /// Neither: being written, latched, or held back.
    Busy,
}

/// How many frames [`FramePolicy::clean_set`] looks at, at most, for each one of `depth`.
pub const LOOK_FACTOR: usize = 16;

/// How much further [`FramePolicy::clean_set`] looks.
#[derive(Debug)]
pub(crate) struct LookAhead {
    /// Frames still to be seen clean or dirty.
    to_see: usize,
    /// Frames to be looked at, at most.
    to_look_at: usize,
}

impl LookAhead {
    pub(crate) const fn new(depth: usize) -> Self {
        Self { to_see: depth, to_look_at: depth.saturating_mul(LOOK_FACTOR) }
    }

    pub(crate) const fn is_over(&self) -> bool {
        self.to_see == 0 || self.to_look_at == 0
    }

    /// A frame was looked at, and was in `state`.
    pub(crate) fn note(&mut self, state: FrameState) {
        self.to_look_at = self.to_look_at.saturating_sub(1);
        self.to_see = self.to_see.saturating_sub(usize::from(state != FrameState::Busy));
    }
}

/// Decides which frame goes. Knows frames by index only; the shell owns their contents.
///
/// A frame is *tracked* between [`FramePolicy::insert`] and [`FramePolicy::remove`]. Events for frames that
/// are not tracked are ignored, because hits reach the policy late, in batches.
pub trait FramePolicy: Send + std::fmt::Debug {
    /// `page` was loaded into `frame`, or newly allocated there. `home` says whether it has an SSD copy.
    fn insert(&mut self, frame: FrameId, page: PageId, home: Home, access: Access);

    /// The page in `frame` was used: read, or written when `write`.
    fn hit(&mut self, frame: FrameId, write: bool);

    /// The frame that the policy would replace first among those that `accept` takes. Every tracked frame is
    /// offered, once, in the order in which they would go, until one is taken.
    fn first_to_go(&self, accept: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId>;

    /// The next victim: the frame that the policy would replace first among those that `evictable` accepts
    /// (it refuses pinned and dirty ones). Changes nothing but scan positions; the shell follows up with
    /// [`FramePolicy::remove`].
    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.first_to_go(evictable)
    }

    /// The frame was given up. `evicted`: as the victim of replacement (GD2L then raises L); otherwise its
    /// page was discarded.
    fn remove(&mut self, frame: FrameId, evicted: bool);

    /// The page in `frame` became dirty (first change since it was loaded or cleaned).
    fn dirtied(&mut self, frame: FrameId);

    /// The page in `frame` was written for `reason` and is clean again; it now lies on `home`. Moving from
    /// `Home::Hdd` to `Home::Ssd` is the paper's "admitted to SSD" (2013, section 3.1).
    fn cleaned(&mut self, frame: FrameId, home: Home, reason: CleanReason);

    /// The SSD copy of the page in `frame` was evicted from the SSD while the page is buffered. Nothing to a
    /// policy that does not tell homes apart.
    fn ssd_evicted(&mut self, _frame: FrameId) {}

    /// The SSD copy of the page in `frame` was invalidated because the page was changed. Nothing to a policy
    /// that does not tell homes apart.
    fn ssd_invalidated(&mut self, _frame: FrameId) {}

    /// Replacement cleaning: looks at frames in eviction order until `depth` were clean or dirty and appends
    /// the dirty ones to `out`, in the order in which they should be written, at most `max` of them. Busy
    /// frames do not count, but no more than [`LOOK_FACTOR`] times `depth` are looked at. A policy that
    /// cleans in clusters appends the cluster's other dirty frames too.
    fn clean_set(
        &mut self,
        depth: usize,
        max: usize,
        state: &mut dyn FnMut(FrameId) -> FrameState,
        out: &mut Vec<FrameId>,
    ) {
        let mut ahead = LookAhead::new(depth);
        let full = out.len().saturating_add(max);
        self.first_to_go(&mut |frame| {
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

    /// H of the page in `frame` above the present inflation L, in milliseconds, if the policy values pages so
    /// and tracks the frame. For reports.
    fn worth_ms(&self, _frame: FrameId) -> Option<f64> {
        None
    }

    /// New costs, from calibration or online measurement. Nothing to a policy that does not weigh them.
    fn set_costs(&mut self, _costs: Costs) {}

    /// The pool has `frames` frames from now on. Tracked frames may have larger numbers: a pool that shrinks
    /// gives up frames wherever they are. Nothing to a policy without shares of the pool.
    fn set_frames(&mut self, _frames: usize) {}

    /// How often the policy came to follow another setting: what a shell notices a change by. O(1).
    fn choice_changes(&self) -> u64 {
        0
    }

    /// What the policy follows, if it adapts.
    fn choice(&self) -> Option<Choice> {
        None
    }

    /// The memory of tables beside the few bytes per frame that every policy takes, in bytes.
    fn extra_memory_bytes(&self) -> usize {
        0
    }

    /// How many frames are tracked.
    fn len(&self) -> usize;

    /// Whether none is.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Recounts every structure; for tests.
    ///
    /// # Errors
    /// What does not add up.
    fn validate(&self) -> Result<(), String>;
}
