//! GD2L: GreedyDual restricted to two retrieval costs (Liu & Salem 2013, section 3).
//!
//! Two LRU queues: Q_S for buffered pages that have an SSD copy, Q_D for those that have not. Every page
//! carries H; the page of smallest H is at one of the two LRU ends, because each queue is sorted by H.
//! Instead of lowering all H at an eviction, the inflation value L rises to the victim's H and is added to
//! whatever is set later (Figure 2).
//!
//! Where the paper is silent:
//!
//! - *Replacement write admitted to the SSD* (LRU end of Q_S): the page keeps its H, lowered to that of the
//!   page it is put behind, so that Q_S stays sorted.
//! - *Midpoint of a queue of fewer than three*: its LRU end, with that page's H. An empty queue has no page
//!   to take H from: the page's own cost, L + R.
//! - *SSD copy invalidated*: that is a reference by a writer, and the page is now one that Figure 2 (lines
//!   9-11) would load from the HDD: MRU end of Q_D, H = L + R_D. The midpoint of 3.1 is for pages that change
//!   tier without being used.
//! - *The LRU page cannot be evicted* (pinned or dirty): the next in order of H goes in its stead, and L
//!   rises to the H of the last page passed over, not of the one that goes. R_D is some sixty times R_S: when
//!   all of a short Q_S is on its way to the SSD, one page of Q_D goes; had L jumped to its H, every page of
//!   Q_D below it would have gone before the next page of Q_S. L never falls, or the queues would lose their
//!   order.
//! - *Equal H*: the page of Q_S goes, being cheaper to get back.
//! - *Costs that fall while running*: a page put at the MRU end gets at least the H of the page it is put
//!   before.
//!
//! Precision. L grows by at most R_D per turnover of the whole pool. At L = 2^40 · R_D an `f64` still
//! resolves R_D / 4096, 60 times finer than the R_S of a flash device; a pool that turns over ten times a
//! second gets there after 3,000 years. H and L are therefore never renormalised.

use super::Gd2lOptions;
use super::greedy_dual::{Class, GreedyDual};
use crate::{Costs, Home};

/// The two-level GreedyDual policy of the 2013 paper; see the module's text for what it leaves open.
pub type Gd2l = GreedyDual<2>;

impl Gd2l {
    /// For a pool of `frames` frames.
    #[must_use]
    pub fn new(frames: usize, costs: Costs) -> Self {
        Self::weighted(frames, costs, Gd2lOptions::PAPER)
    }

    /// How many frames are in Q_S and in Q_D.
    #[must_use]
    pub fn queue_lens(&self) -> (usize, usize) {
        let len = |home| self.len_of(Class { home, dirty: false, more_uses: 0 });
        (len(Home::Ssd), len(Home::Hdd))
    }
}
