//! GD2L with more in H: how often a page was used, and the write that its eviction costs.
//!
//! GD2L's H is L + R, whatever the page: used once or a hundred times since it was loaded, clean or dirty.
//! Two options, each of which can be left out:
//!
//! - *Frequency* (`gd2l:frequency`): H = L + f · R, where f counts the uses since loading, up to
//!   [`FREQUENCY_MAX`], as in GreedyDual-Size-Frequency (Cherkasova 1998, there by size too). A page read
//!   once no longer stays as long as one that everybody reads. What was used often long ago still goes: L
//!   rises past it.
//! - *Write-back* (`gd2l:write-back`): a dirty page costs W more to evict, W_S or W_D as it lies. H = L + R +
//!   W while it is dirty; a page that is rewritten over and over is then written once.
//! - Both (`gd2l:frequency,write-back`): H = L + f · (R + W).
//!
//! GD2L's two queues become one for each home, clean or dirty, and each f: within one of them everything that
//! is put at the MRU end is worth the same, so that each is still sorted by H, and the page of smallest H is
//! at one of the LRU ends. Every event is O(1), a pick O(queues), 40 at most. 17 bytes per frame, as GD2L:
//! the queue tells home, dirt and f.
//!
//! Where GD2L has a reading of its own (see `gd2l`) it holds here, for the queue that the page belongs in.
//! Beside these:
//!
//! - *A page that becomes dirty* has been used: MRU end. Its uses are counted by the hits.
//! - *A page cleaned to be replaced* goes to the LRU end of the clean ones, its H no higher than before: it
//!   was about to go. Cleaned for another reason: to their midpoint.
//! - *f stays* when a page moves without being used.

use super::greedy_dual::GreedyDual;
use super::{FREQUENCY_MAX, Gd2lOptions};
use crate::Costs;

/// One for each home, clean or dirty, and each f.
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
