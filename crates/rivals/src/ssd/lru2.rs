//! LRU2: the SSD under LRU-2, the baseline of Liu & Salem (2013, section 6), after the lazy cleaning of Do et
//! al. (2011).
//!
//! Every page that is cleaned or leaves the pool clean is admitted, in place of the page with the oldest
//! penultimate reference. The SSD is write-back. Pages on it are cleaned only when they are evicted; only
//! copies identical to the HDD's are invalidated. The policy is neither cost-based nor anticipatory.
//!
//! A reference is O(1), or O(log k) for a page in the zone of k slots; a decision O(log k); a new zone
//! O(slots). It takes 11 bytes per slot, 8 more if it has the pages itself, plus the page index.
//! References have numbers of 32 bits; after 4 billion of them they are numbered anew, which ends the zone.
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
use pagetier_policy::{
    Access, Cause, Location, Millis, PageId, SlotId, SlotPages, SlotPolicy, SlotPolicyParams, SlotReport,
    Usable, Verdict,
};
use std::sync::Arc;

/// Exceeds every number of a reference, so that pages referenced once rank below those referenced twice.
const TWICE: f64 = (1_u64 << 53) as f64;

#[derive(Clone, Copy, Debug, Default)]
struct History {
    /// The number of the last reference, from 1.
    last: u32,
    /// The number of the reference before it; 0: there was none.
    before: u32,
}

impl History {
    /// Returns the LRU-2 rank: the penultimate reference; for a page referenced once, its only one, below all
    /// others.
    fn rank(&self) -> f64 {
        // Without a penultimate reference the distance is infinite: such pages go first, and among them LRU
        // decides.
        if self.before == 0 { f64::from(self.last) - TWICE } else { f64::from(self.before) }
    }
}

/// LRU-2 over the SSD's slots; see the module's text.
#[derive(Debug)]
pub struct Lru2 {
    slots: ZonedSlots<History>,
    /// The number of the next reference.
    next: u32,
    /// The page admitted last, until its write is reported: that write is not a second reference.
    admitted: Option<PageId>,
}

impl Lru2 {
    /// For an empty SSD.
    #[must_use]
    pub fn new(params: &SlotPolicyParams) -> Self {
        Self { slots: ZonedSlots::new(params.slots), next: 1, admitted: None }
    }

    fn next_number(&mut self) -> u32 {
        if self.next == u32::MAX {
            self.number_anew();
        }
        self.next += 1;
        self.next - 1
    }

    /// Gives the references that count the lowest numbers, in the same order.
    #[cold]
    fn number_anew(&mut self) {
        let histories = self.slots.occupied().flat_map(|(.., history)| [history.last, history.before]);
        let mut used: Vec<u32> = histories.filter(|number| *number > 0).collect();
        used.sort_unstable();
        used.dedup();
        let anew = |number: u32| used.binary_search(&number).map_or(0, |at| at as u32 + 1);
        self.slots.change_all(|history| {
            *history = History { last: anew(history.last), before: anew(history.before) };
        });
        self.next = used.len() as u32 + 1;
    }

    fn reference(&mut self, slot: SlotId) {
        let last = self.next_number();
        let refer = |history: &mut History| *history = History { last, before: history.last };
        self.slots.update(slot, refer, History::rank);
    }
}

/// The rank of a page is that of its history.
fn rank(_page: PageId, history: &History) -> f64 {
    history.rank()
}

impl SlotPolicy for Lru2 {
    fn share_pages(&mut self, pages: &Arc<SlotPages>) {
        self.slots.share(pages);
    }

    fn overwritten(&mut self, slot: SlotId) {
        self.slots.vacate(slot);
    }

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
            History { last: self.next_number(), before: 0 }
        });
        self.slots.put(slot, page, history);
    }

    fn removed(&mut self, page: PageId, _evicted: bool, _now: Millis) {
        self.slots.take(page);
    }

    fn left_pool(&mut self, page: PageId, _now: Millis) {
        self.admitted.take_if(|admitted| *admitted == page);
    }

    fn start_zone(&mut self, k: usize, eligible: Usable<'_>, _now: Millis, out: &mut Vec<SlotId>) {
        self.slots.start_zone(k, eligible, rank, out);
    }

    fn next_victims(&mut self, n: usize, _now: Millis, out: &mut Vec<SlotId>) {
        self.slots.next_victims(n, rank, out);
    }
}

impl SlotReport for Lru2 {
    fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes()
    }

    fn validate(&self) -> Result<(), String> {
        self.slots.validate()?;
        let later = |history: &History| history.before >= history.last || history.last >= self.next;
        let bad = self.slots.occupied().find(|(.., history)| later(history));
        bad.map_or(Ok(()), |(slot, page, history)| Err(format!("{slot:?} with page {page}: {history:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_policy::{Costs, SpaceId};

    const SLOTS: usize = 8;
    const NOW: Millis = Millis(0);

    fn page(no: u32) -> PageId {
        PageId::new(SpaceId(1), no)
    }

    /// A full SSD whose references begin with number `next`; some pages are referenced again.
    fn used(next: u32) -> Lru2 {
        let mut policy = Lru2::new(&SlotPolicyParams::new(Costs::PAPER, SLOTS, 4));
        policy.next = next;
        for no in 0..SLOTS as u32 {
            policy.inserted(page(no), SlotId(no), NOW);
        }
        for no in [5, 2, 5, 7, 0, 2] {
            policy.read(page(no), Some(Location::Ssd), Access::Random, NOW);
        }
        policy.validate().expect("sound");
        policy
    }

    #[test]
    fn references_numbered_anew_keep_their_order() {
        let order = |mut policy: Lru2| {
            let mut out = Vec::new();
            policy.start_zone(SLOTS, &mut |_| true, NOW, &mut out);
            out
        };
        let expected = order(used(1));
        for short in 0..16 {
            assert_eq!(order(used(u32::MAX - short)), expected, "{short} before the last number");
        }
    }
}
