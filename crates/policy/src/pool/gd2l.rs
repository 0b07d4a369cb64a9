//! GD2L: GreedyDual restricted to two retrieval costs (Liu & Salem 2013, section 3).
//!
//! It keeps two LRU queues: Q_S for buffered pages with an SSD copy, Q_D for those without. Every page
//! carries H; the page of smallest H is at one of the two LRU ends, because each queue is sorted by H. An
//! eviction does not lower every H; instead the inflation value L rises to the victim's H and is added to
//! each H set later (Figure 2).
//!
//! Where the paper is silent:
//!
//! - *Replacement write admitted to the SSD* (LRU end of Q_S): the page keeps its H, or takes the H of the
//!   page it is put behind if that is lower, so that Q_S stays sorted. If Q_S is empty, that H is L + R_S.
//! - *Midpoint of a queue of fewer than three*: the LRU end, with the H of the page there. In an empty queue,
//!   H is the page's own cost, L + R.
//! - *SSD copy invalidated*: this is a reference by a writer, and Figure 2 (lines 9-11) would load the page
//!   from the HDD: it goes to the MRU end of Q_D with H = L + R_D. The midpoint of section 3.1 is for pages
//!   that change tier without being used.
//! - *The LRU page cannot be evicted* (pinned or dirty): the next in order of H is evicted in its stead, and
//!   L rises to the H of the last page passed over, not to the victim's. R_D is some sixty times R_S: while
//!   all of a short Q_S is being written to the SSD, a page of Q_D is evicted. If L rose to its H, every page
//!   of Q_D below that H would be evicted before the next page of Q_S. L never falls, since the queues would
//!   lose their order.
//! - *Equal H*: the page of Q_S is evicted, being cheaper to read again.
//! - *Costs that change while running* count for every page at once (`h_queues`).
//!
//! Precision. L grows by at most R_D per turnover of the whole pool. At L = 2^40 · R_D an `f64` still
//! resolves R_D / 4096, 60 times finer than the R_S of a flash device; a pool that turns over ten times a
//! second takes 3,000 years to reach it. H and L are therefore never renormalised.

use super::Gd2lOptions;
use super::greedy_dual::{Class, GreedyDual};
use crate::{Costs, Location};

/// The two-level GreedyDual policy of the 2013 paper; the module's text lists what the paper leaves open.
pub type Gd2l = GreedyDual<2>;

impl Gd2l {
    /// For a pool of `frames` frames.
    #[must_use]
    pub fn new(frames: usize, costs: Costs) -> Self {
        Self::weighted(frames, costs, Gd2lOptions::PAPER)
    }

    /// Returns the number of frames in Q_S and in Q_D.
    #[must_use]
    pub fn queue_lens(&self) -> (usize, usize) {
        let len = |location| self.len_of(Class { location, dirty: false, more_uses: 0 });
        (len(Location::Ssd), len(Location::Hdd))
    }
}
