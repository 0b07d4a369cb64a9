//! GD2L with two more terms in H: the number of uses, and the write that an eviction costs.
//!
//! GD2L sets H to L + R for every page, whether used once or a hundred times since loading, clean or dirty.
//! Two options extend it, alone or together:
//!
//! - *Frequency* (`gd2l:frequency`): H = L + f · R, where f counts the uses since loading, up to
//!   [`FREQUENCY_MAX`], as in GreedyDual-Size-Frequency (Cherkasova 1998, which also divides by size). A page
//!   read once is evicted before a page read often. A page used often long ago is evicted in the end: L rises
//!   past its H.
//! - *Write-back* (`gd2l:write-back`): a dirty page costs W more to evict: W_S or W_D, depending on its home.
//!   H = L + R + W while it is dirty, so that repeated changes of a page are absorbed by one write.
//! - Both (`gd2l:frequency,write-back`): H = L + f · (R + W).
//!
//! There is one queue per home, dirty state and f, instead of GD2L's two. All pages put at the MRU end of one
//! queue get the same increment over L, so each queue stays sorted by H, and the page of smallest H is at one
//! of the LRU ends. Every event is O(1), a pick O(queues), at most 40. It takes 17 bytes per frame, as GD2L
//! does: the queue implies home, dirty state and f.
//!
//! The choices that `gd2l` documents hold here too, for the queue that the page belongs in. In addition:
//!
//! - *A page that becomes dirty* counts as used: it goes to the MRU end. Only hits raise f.
//! - *A page cleaned to be replaced* goes to the LRU end of its clean queue, its H no higher than before: it
//!   was the next victim. A page cleaned for another reason goes to that queue's midpoint.
//! - *f does not change* when a page moves without being used.

use super::greedy_dual::GreedyDual;
use super::{FREQUENCY_MAX, Gd2lOptions};
use crate::Costs;

/// One queue per home, dirty state and f.
const QUEUES: usize = 4 * FREQUENCY_MAX as usize;

/// GD2L with options; see the module's text.
pub type Gd2lWeighted = GreedyDual<QUEUES>;

impl Gd2lWeighted {
    /// For a pool of `frames` frames.
    #[must_use]
    pub fn new(frames: usize, costs: Costs, options: Gd2lOptions) -> Self {
        Self::weighted(frames, costs, options)
    }
}
