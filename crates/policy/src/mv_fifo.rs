//! MV-FIFO: the SSD as a circular queue of page versions (Kang et al. 2012, FaCE, as Liu & Salem 2013 restate it in sections 6 and 7); and
//! the same with FaCE's group second chance.
//!
//! Every page that is cleaned, or leaves the pool clean without a copy, is appended; an older version in the queue becomes void but keeps its slot. Slots are
//! taken back in the order in which they were written, so that all writes to the SSD are sequential. Neither cost-based nor anticipatory.
//!
//! The shell keeps the circle ([`SsdPolicy::append_group`]); the policy knows which versions are valid, in order, and which have been read. Everything is
//! O(1). 21 bytes per slot, and the page index. Under a shell that does not append, it is a FIFO that evicts within its zone.
//!
//! Where the papers are silent:
//!
//! - *Group second chance*: 64 slots are taken back at a time. Valid pages in them that were read since they were written are appended again; at least one
//!   slot is gained (the last that would have to stay goes). Groups are not filled up with pages from the pool's LRU end.
//! - *A valid page newer than the HDD's* is copied there when its slot is taken back, whatever the pool holds.
//! - *A page changed in the pool* keeps its version in the queue until it is cleaned.

use crate::links::QueueNo;
use crate::page_index::PageIndex;
use crate::queues::Queues;
use crate::{
    Access, CacParams, Cause, Costs, GroupStats, Home, LOOK_MAX, Millis, PageId, SlotId, SsdPolicy, Verdict,
};

/// The valid versions in order of writing.
const QUEUE: QueueNo = QueueNo(0);

/// Slots taken back at a time when there are second chances.
const GROUP: usize = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Version {
    page: PageId,
    read: bool,
    in_zone: bool,
}

/// A circular queue of page versions; see the module's text.
#[derive(Debug)]
pub struct MvFifo {
    /// By slot.
    versions: Queues<Version, 1>,
    index: PageIndex,
    zone: Vec<SlotId>,
    second_chances: bool,
}

impl MvFifo {
    /// With an empty SSD, and group second chance or without.
    #[must_use]
    pub fn new(params: &CacParams, second_chances: bool) -> Self {
        Self {
            versions: Queues::new(params.slots),
            index: PageIndex::with_capacity(params.slots),
            zone: Vec::new(),
            second_chances,
        }
    }

    fn find(&self, page: PageId) -> Option<u32> {
        self.index.find(page, |slot| self.versions.value(slot).page)
    }

    fn is_valid(&self, slot: u32) -> bool {
        self.versions.tracks(slot)
    }

    fn void(&mut self, slot: u32) {
        let Version { page, .. } = self.versions.value(slot);
        let versions = &self.versions;
        self.index.remove(page, |slot| versions.value(slot).page);
        self.versions.take_out(slot);
    }

    /// The candidates among the `look` oldest versions.
    fn candidates(&self, look: usize) -> impl Iterator<Item = SlotId> + '_ {
        let oldest = self.versions.in_turn().take(look);
        oldest.filter(|&slot| self.versions.value(slot).in_zone).map(SlotId)
    }
}

impl SsdPolicy for MvFifo {
    fn name(&self) -> &'static str {
        if self.second_chances { "mv-fifo-gsc" } else { "mv-fifo" }
    }

    fn read(&mut self, page: PageId, from: Option<Home>, _access: Access, _now: Millis) {
        if let Some(slot) = self.find(page).filter(|_| from == Some(Home::Ssd)) {
            let version = self.versions.value(slot);
            self.versions.set_value(slot, Version { read: true, ..version });
        }
    }

    fn logical(&mut self, _page: PageId, _n: u32, _home: Home, _now: Millis) {}

    fn consider(
        &mut self,
        _page: PageId,
        _cause: Cause,
        free_slots: usize,
        usable: &mut dyn FnMut(SlotId) -> bool,
        _now: Millis,
    ) -> Verdict {
        if free_slots > 0 {
            return Verdict::AdmitFree;
        }
        self.candidates(LOOK_MAX).find(|&slot| usable(slot)).map_or(Verdict::Reject, Verdict::AdmitOver)
    }

    fn wrote(&mut self, _page: PageId, _home: Home, _now: Millis) {}

    fn inserted(&mut self, page: PageId, slot: SlotId, _now: Millis) {
        self.versions.cover(slot.0);
        if let Some(older) = self.find(page) {
            self.void(older);
        }
        if self.is_valid(slot.0) {
            self.void(slot.0);
        }
        self.versions.set_value(slot.0, Version { page, ..Version::default() });
        self.versions.put_mru(QUEUE, slot.0);
        let versions = &self.versions;
        self.index.insert(page, slot.0, |slot| versions.value(slot).page);
    }

    fn removed(&mut self, page: PageId, _evicted: bool, _now: Millis) {
        if let Some(slot) = self.find(page) {
            self.void(slot);
        }
    }

    fn left_pool(&mut self, _page: PageId, _now: Millis) {}

    fn forget(&mut self, page: PageId) {
        self.removed(page, false, Millis(0));
    }

    fn start_zone(
        &mut self,
        k: usize,
        eligible: &mut dyn FnMut(SlotId) -> bool,
        _now: Millis,
        out: &mut Vec<SlotId>,
    ) {
        for SlotId(slot) in self.zone.drain(..) {
            let version = self.versions.value(slot);
            self.versions.set_value(slot, Version { in_zone: false, ..version });
        }
        let oldest = self.versions.in_turn().map(SlotId);
        self.zone.extend(oldest.filter(|&slot| eligible(slot)).take(k));
        for &SlotId(slot) in &self.zone {
            let version = self.versions.value(slot);
            self.versions.set_value(slot, Version { in_zone: true, ..version });
        }
        out.extend_from_slice(&self.zone);
    }

    fn next_victims(&mut self, n: usize, _now: Millis, out: &mut Vec<SlotId>) {
        out.extend(self.candidates(n.saturating_add(LOOK_MAX)).take(n));
    }

    fn append_group(&self) -> Option<usize> {
        Some(if self.second_chances { GROUP } else { 1 })
    }

    fn second_chance(&self, slot: SlotId) -> bool {
        self.second_chances && self.is_valid(slot.0) && self.versions.value(slot.0).read
    }

    fn benefit(&self, _page: PageId) -> Option<f64> {
        None
    }

    fn groups(&self) -> Vec<GroupStats> {
        Vec::new()
    }

    fn set_costs(&mut self, _costs: Costs) {}

    fn memory_bytes(&self) -> usize {
        self.versions.memory_bytes() + self.index.memory_bytes() + self.zone.capacity() * size_of::<SlotId>()
    }

    fn validate(&self) -> Result<(), String> {
        self.versions.validate()?;
        let lost =
            self.versions.in_turn().find(|&slot| self.find(self.versions.value(slot).page) != Some(slot));
        if lost.is_some() || self.index.len() != self.versions.len() {
            return Err(format!(
                "{} versions, {} in the index; lost {lost:?}",
                self.versions.len(),
                self.index.len()
            ));
        }
        Ok(())
    }
}
