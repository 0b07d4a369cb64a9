//! The SSD's policies: they keep page statistics, say which pages are worth a slot, and which slot should
//! make room.
//!
//! The shell (`ssdcache`) owns the slots' durability: it tells the policy what happened, asks for a verdict,
//! and carries it out in a safe order. A bad policy costs speed, never data.

mod adaptive;
mod ageing;
mod cac;
mod choice;
mod doublewrite;
mod groups;
mod lru2;
mod mv_fifo;
mod no_ssd;
mod page_stats;
mod tac;
mod zone;
mod zoned_slots;

pub use adaptive::{Adaptive, SsdSetting};
pub use ageing::Ageing;
pub use cac::{Alpha, Cac, CacOptions, EvictionCost, SlotPolicyParams};
pub use choice::SsdPolicy;
pub use doublewrite::Doublewrite;
pub use groups::Dropped;
pub use lru2::Lru2;
pub use mv_fifo::{MvFifo, VersionQueue};
pub use no_ssd::NoSsd;
pub use tac::Tac;

use crate::{Access, Choice, Costs, Home, Millis, PageId, SlotId};

/// How many candidates one decision looks at before it gives up on finding a usable one. The shell cleans the
/// lowest ahead of time ([`SlotPolicy::next_victims`]), so that usable ones come first.
pub(crate) const LOOK_MAX: usize = 256;

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

/// Whether a page shall be written to the SSD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Yes, into a free slot.
    AdmitFree,
    /// Yes, in place of what is in this slot (of the zone).
    AdmitOver(SlotId),
    /// No: the HDD.
    Reject,
}

/// One group's statistics (2013 paper, section 5.2), for reports.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GroupStats {
    /// The space that the group's pages belong to.
    pub space: crate::SpaceId,
    /// The subrange of logical read rates, from 0.
    pub subrange: u32,
    /// Miss rate while on the SSD; `None` when undefined.
    pub miss_rate_ssd: Option<f64>,
    /// Miss rate while not on the SSD; `None` when undefined.
    pub miss_rate_hdd: Option<f64>,
    /// The miss rate expansion factor in use, equation 8.
    pub alpha: f64,
    /// Pages that counted towards it.
    pub pages: u64,
}

/// What a policy has counted of one page since it began to track it (2013 paper, section 5.1), each by where
/// the page lay then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct PageCounts {
    /// r_D: random physical reads while not on the SSD.
    pub reads_hdd: u64,
    /// r_S: the same while on the SSD.
    pub reads_ssd: u64,
    /// Logical reads while not on the SSD, missed ones included.
    pub logical_hdd: u64,
    /// The same while on the SSD.
    pub logical_ssd: u64,
    /// w_D: writes by the cleaner to the HDD.
    pub writes_hdd: u64,
    /// w_S: the same to the SSD.
    pub writes_ssd: u64,
}

/// Decides what the SSD holds.
///
/// Page life in the policy's eyes: [`SlotPolicy::read`] (loaded), [`SlotPolicy::logical`] (used while
/// buffered), [`SlotPolicy::wrote`] (cleaned), [`SlotPolicy::left_pool`]; beside it, [`SlotPolicy::inserted`]
/// and [`SlotPolicy::removed`] for its SSD slot. A page that is in neither pool nor SSD is remembered by the
/// outqueue, if the policy has one.
pub trait SlotPolicy: Send + Sync + std::fmt::Debug {
    /// A physical read of `page` from `from`, or its allocation in memory (`None`). It is now buffered. When
    /// `access` is [`Access::Random`], the request that missed counts here as one logical read too: it must
    /// not be in a later [`SlotPolicy::logical`].
    fn read(&mut self, page: PageId, from: Option<Home>, access: Access, now: Millis);

    /// `n` more logical reads (hits) of the buffered `page` since the last report, during which it lay on
    /// `home`. Report before what changes the page's home, and before it is cleaned or leaves the pool: group
    /// statistics are moved there. Nothing to a policy that counts physical accesses only.
    fn logical(&mut self, _page: PageId, _n: u32, _home: Home, _now: Millis) {}

    /// The buffered `page` is being cleaned, or leaves the pool clean, and has no SSD copy: shall it get one?
    /// `free_slots` counts slots that are writable now beyond the shell's reserve: with any, the answer is
    /// [`Verdict::AdmitFree`] (section 5). Otherwise the candidates are the slots of the current zone that
    /// `usable` accepts (clean, not being read): the one of lowest benefit, if the page's is higher.
    fn consider(
        &mut self,
        page: PageId,
        cause: Cause,
        free_slots: usize,
        usable: &mut dyn FnMut(SlotId) -> bool,
        now: Millis,
    ) -> Verdict;

    /// A physical write of `page` to `home` (by the cleaner; the SSD's own write-back is not counted).
    /// Nothing to a policy that does not count writes.
    fn wrote(&mut self, _page: PageId, _home: Home, _now: Millis) {}

    /// `page` now has its SSD copy in `slot`, in place of any earlier slot of the same page.
    fn inserted(&mut self, page: PageId, slot: SlotId, now: Millis);

    /// A recovery found `page` in `slot`; it is not in the pool. Told of every slot that holds a page, once,
    /// before anything else.
    fn recovered(&mut self, page: PageId, slot: SlotId) {
        self.inserted(page, slot, Millis(0));
        self.left_pool(page, Millis(0));
    }

    /// The newer version of `page` in `slot` was copied to the HDD ahead of its eviction. Nothing to a policy
    /// that does not tell clean slots from dirty ones.
    fn copied_home(&mut self, _page: PageId, _slot: SlotId) {}

    /// `page` lost its SSD copy: `evicted` to make room (it goes to the outqueue unless buffered), otherwise
    /// invalidated or discarded.
    fn removed(&mut self, page: PageId, evicted: bool, now: Millis);

    /// `page` left the pool (to the outqueue unless it is on the SSD). Nothing to a policy that does not know
    /// what is buffered.
    fn left_pool(&mut self, _page: PageId, _now: Millis) {}

    /// `page` exists no more (discarded, space dropped): forget everything about it. A policy that remembers
    /// pages beyond their slots has more to do than [`SlotPolicy::removed`].
    fn forget(&mut self, page: PageId) {
        self.removed(page, false, Millis(0));
    }

    /// Starts a new eviction zone (section 5.4): appends the `k` occupied slots of lowest benefit that
    /// `eligible` accepts to `out`, and remembers them as the only eviction candidates until the next call.
    fn start_zone(
        &mut self,
        k: usize,
        eligible: &mut dyn FnMut(SlotId) -> bool,
        now: Millis,
        out: &mut Vec<SlotId>,
    );

    /// The up to `n` zone slots that would be evicted next, lowest benefit first: the shell cleans them ahead
    /// of time.
    fn next_victims(&mut self, n: usize, now: Millis, out: &mut Vec<SlotId>);

    /// Whether a cleaned page is written to the HDD in any case, and besides to the SSD when it has a slot
    /// there or is admitted. No copy on the SSD stays newer than the HDD's; one that is older, because its
    /// page was changed in the pool, keeps its place until the page is written again. Otherwise a cleaned
    /// page goes to the SSD or to the HDD (section 2). A policy that also appends
    /// ([`SlotPolicy::append_group`]) has its pages written to the SSD first, and its slots back the writes
    /// to the HDD as a doublewrite buffer does.
    fn write_through(&self) -> bool {
        false
    }

    /// Whether pages are considered when they are read from the HDD, too, with [`Cause::Read`] after
    /// [`SlotPolicy::read`]; the 2013 paper does not, so as not to hold them twice.
    fn admits_on_read(&self) -> bool {
        false
    }

    /// `Some` for a policy that writes slots in circular order only, never in place: a page written again is
    /// appended, and its earlier version is void but keeps its slot until that comes round. When no slot is
    /// left before the tail, the number told here of the slots written longest ago is taken back at a time:
    /// their pages are evicted, or appended again if they get a [`SlotPolicy::second_chance`], but not all of
    /// them. Such a policy has no zone, and is asked [`SlotPolicy::consider`] as if a slot were free.
    fn append_group(&self) -> Option<usize> {
        None
    }

    /// Whether the page in `slot`, which is being taken back, is to be appended again.
    fn second_chance(&self, _slot: SlotId) -> bool {
        false
    }

    /// The anticipated benefit of having `page` on the SSD, in milliseconds over the measurement interval
    /// (equation 2), if it is tracked and the policy estimates benefits.
    fn benefit(&self, _page: PageId) -> Option<f64> {
        None
    }

    /// What was counted of `page`, if it is tracked; CC counts no logical reads. For reports.
    fn counts(&self, _page: PageId) -> Option<PageCounts> {
        None
    }

    /// α by group; empty for policies without.
    fn groups(&self) -> Vec<GroupStats> {
        Vec::new()
    }

    /// The group of `page`, if the policy groups pages and tracks this one. For reports.
    fn group_of(&self, _page: PageId) -> Option<GroupStats> {
        None
    }

    /// How often the policy came to follow another setting: what a shell notices a change by. O(1).
    fn choice_changes(&self) -> u64 {
        0
    }

    /// What the policy follows, if it adapts.
    fn choice(&self) -> Option<Choice> {
        None
    }

    /// New costs, from calibration or online measurement. Nothing to a policy that does not weigh them.
    fn set_costs(&mut self, _costs: Costs) {}

    /// The memory that the policy's tables take, in bytes.
    fn memory_bytes(&self) -> usize;

    /// Recounts every structure; for tests.
    ///
    /// # Errors
    /// What does not add up.
    fn validate(&self) -> Result<(), String>;
}
