//! The SSD's policies: they keep page statistics, and decide which pages are worth a slot and which slot to
//! evict for them.
//!
//! The store (`ssdcache`) owns the slots' durability: it reports events to the policy, asks for a verdict,
//! and executes it in a safe order. A bad policy costs speed, never data.

mod adaptive;
mod cac;
mod groups;
mod no_ssd;
mod page_stats;
mod report;
mod tracked;
mod zone;

pub use adaptive::{Adaptive, AutoOptions, SsdSetting};
pub use cac::{Alpha, Cac, CacOptions, SlotPolicyParams};
pub use groups::Dropped;
pub use no_ssd::NoSsd;
pub use report::{GroupStats, PageCounts, SlotReport};
#[doc(hidden)]
pub use zone::Zone;

use crate::{Access, Costs, Location, Millis, PageId, SlotId, SlotPages};
use std::sync::Arc;

/// The maximum number of candidates that one decision examines to find a usable one. The store cleans the
/// lowest ahead of time ([`SlotPolicy::next_victims`]), so that usable ones come first.
pub const LOOK_MAX: usize = 256;

/// Asks whether a slot may be named.
pub type Usable<'a> = &'a mut dyn FnMut(SlotId) -> bool;

/// Why a page is being considered for the SSD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A dirty page is being written.
    Cleaned,
    /// A clean page is leaving the pool.
    Evicted,
    /// A page was read from the HDD; only asked of a policy that [`SlotPolicy::admits_on_read`].
    Read,
}

/// Whether to write a page to the SSD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Yes, to a free slot.
    AdmitFree,
    /// Yes, in place of the page in this slot of the zone.
    AdmitOver(SlotId),
    /// No: the page belongs on the HDD.
    Reject,
}

/// Decides what the SSD holds.
///
/// The life of a page: [`SlotPolicy::read`] (loaded), [`SlotPolicy::logical`] (used while buffered),
/// [`SlotPolicy::wrote`] (cleaned), [`SlotPolicy::left_pool`]; independently, [`SlotPolicy::inserted`] and
/// [`SlotPolicy::removed`] for its SSD slot. The outqueue, if the policy has one, remembers pages that are
/// neither buffered nor on the SSD.
pub trait SlotPolicy: SlotReport + Send + Sync + std::fmt::Debug {
    /// Offers the store's own table of which page is in which slot, so that the policy need not have one.
    /// Called at most once, before any other event. The store puts `page` into `slot` there before it calls
    /// [`SlotPolicy::inserted`] or [`SlotPolicy::recovered`], and calls [`SlotPolicy::overwritten`] before it
    /// puts another page there.
    fn share_pages(&mut self, _pages: &Arc<SlotPages>) {}

    /// Reports that `slot` is about to be given to another page than the one put there last, of which the
    /// policy may not have been told that it left. Policies that keep a page number with each slot ignore it.
    fn overwritten(&mut self, _slot: SlotId) {}

    /// Reports a physical read of `page` from `from`, or its allocation in memory (`None`). The page is
    /// buffered from then on. If `access` is [`Access::Random`], the request that missed also counts as one
    /// logical read: a later [`SlotPolicy::logical`] must not include it.
    fn read(&mut self, page: PageId, from: Option<Location>, access: Access, now: Millis);

    /// Reports `n` more logical reads (hits) of the buffered `page`, which lay on `location` since the last
    /// report. Must be called before the page changes its home, is cleaned, or leaves the pool, because those
    /// events update the group statistics. Policies that count only physical accesses ignore it.
    fn logical(&mut self, _page: PageId, _n: u32, _location: Location, _now: Millis) {}

    /// Decides whether the buffered `page`, which has no SSD copy and is being cleaned or leaves the pool
    /// clean, gets one. `free_slots` is the number of slots writable now beyond the store's reserve: if any,
    /// the answer is [`Verdict::AdmitFree`] (section 5). Otherwise the candidates are the slots of the
    /// current zone that `usable` accepts (clean, not being read). The page replaces the candidate of lowest
    /// benefit, if its own benefit is higher.
    fn consider(
        &mut self,
        page: PageId,
        cause: Cause,
        free_slots: usize,
        usable: &mut dyn FnMut(SlotId) -> bool,
        now: Millis,
    ) -> Verdict;

    /// Reports a physical write of `page` to `location` by the cleaner; the SSD's own write-back is not
    /// reported. Policies that do not count writes ignore it.
    fn wrote(&mut self, _page: PageId, _location: Location, _now: Millis) {}

    /// Reports that the SSD copy of `page` is in `slot`, instead of any earlier slot of the same page.
    fn inserted(&mut self, page: PageId, slot: SlotId, now: Millis);

    /// Reports that a recovery found `page` in `slot`; the page is not in the pool. Called once per slot that
    /// holds a page, before any other event.
    fn recovered(&mut self, page: PageId, slot: SlotId) {
        self.inserted(page, slot, Millis(0));
        self.left_pool(page, Millis(0));
    }

    /// Reports that the newer version of `page` in `slot` was copied home before eviction. Default: ignored.
    fn copied_home(&mut self, _page: PageId, _slot: SlotId) {}

    /// Reports that `page` lost its SSD copy: if `evicted`, to make room (the page enters the outqueue unless
    /// it is buffered); otherwise because the copy was invalidated or discarded.
    fn removed(&mut self, page: PageId, evicted: bool, now: Millis);

    /// Reports that `page` left the pool (it enters the outqueue unless it is on the SSD). Policies that do
    /// not track buffered pages ignore it.
    fn left_pool(&mut self, _page: PageId, _now: Millis) {}

    /// Reports that `page` ceased to exist (it was discarded, or its space dropped). A policy that remembers
    /// pages beyond their slots must override this, because [`SlotPolicy::removed`] does not suffice.
    fn forget(&mut self, page: PageId) {
        self.removed(page, false, Millis(0));
    }

    /// Starts a new eviction zone (section 5.4): appends the `k` occupied slots of lowest benefit that
    /// `eligible` accepts to `out`. They are the only eviction candidates until the next call.
    fn start_zone(&mut self, k: usize, eligible: Usable<'_>, now: Millis, out: &mut Vec<SlotId>);

    /// Appends up to `n` zone slots that would be evicted next, lowest benefit first: the store cleans them
    /// ahead of time.
    fn next_victims(&mut self, n: usize, now: Millis, out: &mut Vec<SlotId>);

    /// Whether every cleaned page is written to the HDD, and also to the SSD if it has a slot there or is
    /// admitted. Then no SSD copy stays newer than the HDD's; a copy that is older, because its page was
    /// changed in the pool, keeps its slot until the page is written again. Without write-through, a cleaned
    /// page is written either to the SSD or to the HDD (section 2). Under a policy that also appends
    /// ([`SlotPolicy::append_group`]), pages are written to the SSD first, and their slots back the writes to
    /// the HDD as a doublewrite buffer does.
    fn write_through(&self) -> bool {
        false
    }

    /// Whether pages are also considered when they are read from the HDD, with [`Cause::Read`] after
    /// [`SlotPolicy::read`]. The 2013 paper does not do so, in order not to hold pages twice.
    fn admits_on_read(&self) -> bool {
        false
    }

    /// `Some` for a policy that writes slots only in circular order, never in place: a page written again is
    /// appended, and its earlier version is invalid but keeps its slot until the order reaches it. When no
    /// slot is left before the tail, this number of slots, those written longest ago, is reclaimed at a time:
    /// their pages are evicted, or appended again if they get a [`SlotPolicy::second_chance`], but not all of
    /// them. Such a policy has no zone; [`SlotPolicy::consider`] is called as if a slot were free.
    fn append_group(&self) -> Option<usize> {
        None
    }

    /// Whether to append the page in `slot`, which is being reclaimed, again.
    fn second_chance(&self, _slot: SlotId) -> bool {
        false
    }

    /// The anticipated benefit of having `page` on the SSD, in milliseconds over the measurement interval
    /// (equation 2). Without one (the default), the page gets no copy while a write budget is overdrawn.
    fn benefit(&self, _page: PageId) -> Option<f64> {
        None
    }

    /// Sets new costs, from calibration or online measurement. Policies that do not use costs ignore it.
    fn set_costs(&mut self, _costs: Costs) {}
}
