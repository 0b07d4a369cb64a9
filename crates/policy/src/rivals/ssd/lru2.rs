//! LRU2: the SSD under LRU-2, the baseline of Liu & Salem (2013, section 6), after the lazy cleaning of Do et
//! al. (2011).
//!
//! Every page that is cleaned or leaves the pool clean is admitted, in place of the page with the oldest
//! penultimate reference. The SSD is write-back. Pages on it are cleaned only when they are evicted; only
//! copies identical to the HDD's are invalidated. The policy is neither cost-based nor anticipatory.
//!
//! A reference is O(1), or O(log k) for a page in the zone of k slots; a decision O(log k); a new zone
//! O(slots). It takes 24 bytes per slot, plus the page index.
//!
//! Where the paper is silent:
//!
//! - *A reference* is an access that reaches the SSD: an admission, a read from the SSD, a write of a page
//!   that has a slot. The admission of a dirty page is one reference, not two.
//! - *Pages referenced once* are evicted before all others, by LRU. A page that is not on the SSD has no
//!   history (no retained information).
//! - *Zone*: as for CAC, since the paper measures the checkpoints of LRU2's map (section 6.5): the k pages
//!   that LRU-2 would evict first.

use super::zoned_slots::ZonedSlots;
use crate::{Access, Cause, Location, Millis, PageId, SlotId, SlotPolicy, SlotPolicyParams, Verdict};
use std::num::NonZeroU64;

/// Exceeds every number of a reference, so that pages referenced once rank below those referenced twice.
const TWICE: f64 = (1_u64 << 53) as f64;

#[derive(Clone, Copy, Debug)]
struct History {
    /// The number of the last reference.
    last: NonZeroU64,
    /// The number of the reference before it.
    before: Option<NonZeroU64>,
}

impl History {
    /// Returns the LRU-2 rank: the penultimate reference; for a page referenced once, its only one, below all
    /// others.
    fn rank(&self) -> f64 {
        // Without a penultimate reference the distance is infinite: such pages go first, and among them LRU
        // decides.
        self.before.map_or(self.last.get() as f64 - TWICE, |before| before.get() as f64)
    }
}

/// LRU-2 over the SSD's slots; see the module's text.
#[derive(Debug)]
pub struct Lru2 {
    slots: ZonedSlots<History>,
    /// The number of the next reference.
    next: NonZeroU64,
    /// The page admitted last, until its write is reported: that write is not a second reference.
    admitted: Option<PageId>,
}

impl Lru2 {
    /// For an empty SSD.
    #[must_use]
    pub fn new(params: &SlotPolicyParams) -> Self {
        Self { slots: ZonedSlots::new(params.slots), next: NonZeroU64::MIN, admitted: None }
    }

    fn next_number(&mut self) -> NonZeroU64 {
        let next = self.next.saturating_add(1);
        std::mem::replace(&mut self.next, next)
    }

    fn reference(&mut self, slot: SlotId) {
        let last = self.next_number();
        let refer = |history: &mut History| *history = History { last, before: Some(history.last) };
        self.slots.update(slot, refer, History::rank);
    }
}

/// The rank of a page is that of its history.
fn rank(_page: PageId, history: &History) -> f64 {
    history.rank()
}

impl SlotPolicy for Lru2 {
    fn read(&mut self, page: PageId, from: Option<Location>, _access: Access, _now: Millis) {
        if let Some(slot) = self.slots.find(page).filter(|_| from == Some(Location::Ssd)) {
            // A read in between: the write that follows is a reference of its own.
            self.admitted = None;
            self.reference(slot);
        }
    }

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
        // Once admitted, the page would be the latest referenced.
        self.slots.decide(f64::INFINITY, rank, usable)
    }

    fn wrote(&mut self, page: PageId, location: Location, _now: Millis) {
        if location == Location::Ssd
            && self.admitted.take() != Some(page)
            && let Some(slot) = self.slots.find(page)
        {
            self.reference(slot);
        }
    }

    fn inserted(&mut self, page: PageId, slot: SlotId, _now: Millis) {
        // A page that moves to another slot keeps its history; its move is no reference.
        let history = self.slots.take(page).unwrap_or_else(|| {
            self.admitted = Some(page);
            History { last: self.next_number(), before: None }
        });
        self.slots.put(slot, page, history);
    }

    fn removed(&mut self, page: PageId, _evicted: bool, _now: Millis) {
        self.slots.take(page);
    }

    fn left_pool(&mut self, page: PageId, _now: Millis) {
        self.admitted.take_if(|admitted| *admitted == page);
    }

    fn start_zone(
        &mut self,
        k: usize,
        eligible: &mut dyn FnMut(SlotId) -> bool,
        _now: Millis,
        out: &mut Vec<SlotId>,
    ) {
        self.slots.start_zone(k, eligible, rank, out);
    }

    fn next_victims(&mut self, n: usize, _now: Millis, out: &mut Vec<SlotId>) {
        self.slots.next_victims(n, rank, out);
    }

    fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes()
    }

    fn validate(&self) -> Result<(), String> {
        self.slots.validate()?;
        let later = |history: &History| history.before >= Some(history.last) || history.last >= self.next;
        match self.slots.occupied().find(|(.., history)| later(history)) {
            Some((slot, page, history)) => Err(format!("{slot:?} with page {page}: {history:?}")),
            None => Ok(()),
        }
    }
}
