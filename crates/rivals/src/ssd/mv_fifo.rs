//! MV-FIFO: the SSD as a circular queue of page versions (Kang et al. 2012, FaCE, as Liu & Salem 2013 restate
//! it in sections 6 and 7), optionally with FaCE's group second chance.
//!
//! The policy appends every page that is cleaned, or that leaves the pool clean without a copy. An older
//! version in the queue becomes invalid but keeps its slot. Slots are reclaimed in the order in which they
//! were written, so that all writes to the SSD are sequential. The policy is neither cost-based nor
//! anticipatory.
//!
//! The store manages the circular order ([`SlotPolicy::append_group`]); the policy tracks the valid versions,
//! in order, and which of them have been read. Everything is O(1). It takes 9 bytes per slot, 8 more if it
//! has the pages itself, plus the page index. Under a caller that does not append, it is a FIFO that evicts
//! within its zone.
//!
//! Where the papers are silent:
//!
//! - *Group second chance*: 64 slots are reclaimed at a time. Their valid pages that were read since they
//!   were written are appended again, except the last one if all would be: at least one slot is gained.
//!   Groups are not filled up with pages from the pool's LRU end.
//! - *A valid page newer than the HDD's* is copied there when its slot is reclaimed, whatever the pool holds.
//! - *A page changed in the pool* keeps its version in the queue until it is cleaned.

use super::slot_table::SlotTable;
use pagetier_policy::collections::{Chain, ChainLinks};
use pagetier_policy::ssd::LOOK_MAX;
use pagetier_policy::{
    Access, Cause, Location, Millis, PageId, SlotId, SlotPages, SlotPolicy, SlotPolicyParams, SlotReport,
    Usable, Verdict,
};
use std::sync::Arc;

/// The number of slots reclaimed at a time with second chances.
const GROUP: usize = 64;

/// A version's flags.
#[derive(Clone, Copy, Debug, Default)]
struct Version(u8);

const READ: u8 = 1;
const IN_ZONE: u8 = 1 << 1;

impl Version {
    const fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }

    fn set(&mut self, flag: u8, is: bool) {
        self.0 = if is { self.0 | flag } else { self.0 & !flag };
    }
}

/// A circular queue of page versions: [`MvFifo`], or, with `DOUBLEWRITE`, the
/// [`Doublewrite`](super::Doublewrite) buffer.
#[derive(Debug)]
pub struct VersionQueue<const DOUBLEWRITE: bool> {
    /// The valid versions.
    versions: SlotTable<Version>,
    /// Their slots in order of writing.
    order: Chain,
    links: ChainLinks,
    zone: Vec<SlotId>,
    second_chances: bool,
}

/// FaCE's queue; see the module's text.
pub type MvFifo = VersionQueue<false>;

impl MvFifo {
    /// For an empty SSD, with or without group second chance.
    #[must_use]
    pub fn new(params: &SlotPolicyParams, second_chances: bool) -> Self {
        Self::empty(params, second_chances)
    }
}

impl<const DOUBLEWRITE: bool> VersionQueue<DOUBLEWRITE> {
    pub(crate) fn empty(params: &SlotPolicyParams, second_chances: bool) -> Self {
        Self {
            versions: SlotTable::new(params.slots),
            order: Chain::EMPTY,
            links: ChainLinks::with_capacity(params.slots),
            zone: Vec::new(),
            second_chances,
        }
    }

    fn void(&mut self, slot: SlotId) {
        if self.versions.take(slot).is_some() {
            self.order.take_out(&mut self.links, slot.0);
        }
    }

    fn oldest_first(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.order.iter(&self.links).map(SlotId)
    }

    /// The candidates among the `look` oldest versions.
    fn candidates(&self, look: usize) -> impl Iterator<Item = SlotId> + '_ {
        let in_zone = |slot| self.versions.get(slot).is_some_and(|version| version.has(IN_ZONE));
        self.oldest_first().take(look).filter(move |&slot| in_zone(slot))
    }

    fn mark_zone(&mut self, in_zone: bool) {
        for &slot in &self.zone {
            if let Some(version) = self.versions.get_mut(slot) {
                version.set(IN_ZONE, in_zone);
            }
        }
    }
}

impl<const DOUBLEWRITE: bool> SlotPolicy for VersionQueue<DOUBLEWRITE> {
    fn share_pages(&mut self, pages: &Arc<SlotPages>) {
        self.versions.share(pages);
    }

    fn overwritten(&mut self, slot: SlotId) {
        self.void(slot);
    }

    fn read(&mut self, page: PageId, from: Option<Location>, _access: Access, _now: Millis) {
        if from == Some(Location::Ssd)
            && let Some(slot) = self.versions.find(page)
            && let Some(version) = self.versions.get_mut(slot)
        {
            version.set(READ, true);
        }
    }

    fn consider(
        &mut self,
        _page: PageId,
        cause: Cause,
        free_slots: usize,
        usable: &mut dyn FnMut(SlotId) -> bool,
        _now: Millis,
    ) -> Verdict {
        // The doublewrite buffer takes what is written anyway; a clean page would be an extra write.
        if DOUBLEWRITE && cause != Cause::Cleaned {
            return Verdict::Reject;
        }
        if free_slots > 0 {
            return Verdict::AdmitFree;
        }
        self.candidates(LOOK_MAX).find(|&slot| usable(slot)).map_or(Verdict::Reject, Verdict::AdmitOver)
    }

    fn inserted(&mut self, page: PageId, slot: SlotId, _now: Millis) {
        if let Some(older) = self.versions.find(page) {
            // Only the newest version of a page is valid: a lookup must not find the one before.
            self.void(older);
        }
        self.void(slot);
        self.versions.put(slot, page, Version::default());
        self.order.put_last(&mut self.links, slot.0);
    }

    fn removed(&mut self, page: PageId, _evicted: bool, _now: Millis) {
        if let Some(slot) = self.versions.find(page) {
            self.void(slot);
        }
    }

    fn start_zone(&mut self, k: usize, eligible: Usable<'_>, _now: Millis, out: &mut Vec<SlotId>) {
        // What is left of the last zone is no candidate unless it is among the oldest again.
        self.mark_zone(false);
        self.zone.clear();
        // FIFO: the slots written longest ago, whether their pages were read or not.
        let oldest = self.order.iter(&self.links).map(SlotId);
        self.zone.extend(oldest.filter(|&slot| eligible(slot)).take(k));
        self.mark_zone(true);
        out.extend_from_slice(&self.zone);
    }

    fn next_victims(&mut self, n: usize, _now: Millis, out: &mut Vec<SlotId>) {
        out.extend(self.candidates(n.saturating_add(LOOK_MAX)).take(n));
    }

    fn write_through(&self) -> bool {
        DOUBLEWRITE
    }

    fn append_group(&self) -> Option<usize> {
        Some(if self.second_chances { GROUP } else { 1 })
    }

    fn second_chance(&self, slot: SlotId) -> bool {
        // FaCE's GSC: only a page that was read since it was written is appended again, instead of being
        // copied home.
        self.second_chances && self.versions.get(slot).is_some_and(|version| version.has(READ))
    }
}

impl<const DOUBLEWRITE: bool> SlotReport for VersionQueue<DOUBLEWRITE> {
    fn memory_bytes(&self) -> usize {
        self.versions.memory_bytes() + self.links.memory_bytes() + self.zone.capacity() * size_of::<SlotId>()
    }

    fn validate(&self) -> Result<(), String> {
        self.versions.validate()?;
        let void = self.oldest_first().find(|&slot| self.versions.page(slot).is_none());
        let sound = void.is_none() && self.versions.occupied().count() == self.order.len();
        if sound { Ok(()) } else { Err(format!("{} versions queued; void {void:?}", self.order.len())) }
    }
}
