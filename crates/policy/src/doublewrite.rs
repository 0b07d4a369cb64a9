//! The doublewrite buffer as a read cache (Kang et al., *InnoDB DoubleWrite Buffer as Read Cache using SSDs*): the buffer that every dirty page is written to
//! before it goes home lies on the SSD and is enlarged, to 5 to 10 % of the database in the paper; what it still holds is read from there.
//!
//! Every cleaned page is appended and written home; pages that leave the pool clean are not taken. Slots are taken back in the order in which they were written, read
//! or not. Neither cost-based nor anticipatory.
//!
//! The shell keeps the circle ([`SsdPolicy::append_group`]) and the order of the two writes ([`SsdPolicy::write_through`]); the policy knows which versions are
//! valid. Everything is O(1), as in [`MvFifo`], whose queue this is. Under a shell that does not append, it is a FIFO that evicts within its zone.
//!
//! Where the paper is silent:
//!
//! - *What is written over*: the slots written longest ago, since the writes are sequential and the buffer is a file.
//! - *A page that is read again* from the buffer stays where it is: no second chance, no copy elsewhere.
//! - *A page changed in the pool* keeps its version in the buffer until it is cleaned: what the HDD has, too.

use crate::{Access, CacParams, Cause, Home, Millis, MvFifo, PageId, SlotId, SsdPolicy, Verdict};

/// The doublewrite buffer as a read cache; see the module's text.
#[derive(Debug)]
pub struct Doublewrite(MvFifo);

impl Doublewrite {
    /// With an empty SSD.
    #[must_use]
    pub fn new(params: &CacParams) -> Self {
        Self(MvFifo::new(params, false))
    }
}

impl SsdPolicy for Doublewrite {
    fn name(&self) -> &'static str {
        "doublewrite"
    }

    fn read(&mut self, _page: PageId, _from: Option<Home>, _access: Access, _now: Millis) {}

    fn consider(
        &mut self,
        page: PageId,
        cause: Cause,
        free_slots: usize,
        usable: &mut dyn FnMut(SlotId) -> bool,
        now: Millis,
    ) -> Verdict {
        match cause {
            Cause::Cleaned => self.0.consider(page, cause, free_slots, usable, now),
            Cause::Evicted | Cause::Read => Verdict::Reject,
        }
    }

    fn inserted(&mut self, page: PageId, slot: SlotId, now: Millis) {
        self.0.inserted(page, slot, now);
    }

    fn removed(&mut self, page: PageId, evicted: bool, now: Millis) {
        self.0.removed(page, evicted, now);
    }

    fn start_zone(
        &mut self,
        k: usize,
        eligible: &mut dyn FnMut(SlotId) -> bool,
        now: Millis,
        out: &mut Vec<SlotId>,
    ) {
        self.0.start_zone(k, eligible, now, out);
    }

    fn next_victims(&mut self, n: usize, now: Millis, out: &mut Vec<SlotId>) {
        self.0.next_victims(n, now, out);
    }

    fn write_through(&self) -> bool {
        true
    }

    fn append_group(&self) -> Option<usize> {
        self.0.append_group()
    }

    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }

    fn validate(&self) -> Result<(), String> {
        self.0.validate()
    }
}
