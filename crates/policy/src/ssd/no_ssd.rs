//! No SSD cache: every page goes to the HDD.

use crate::{Access, Cause, Location, Millis, PageId, SlotId, SlotPolicy, SlotReport, Usable, Verdict};

/// Rejects every page, even if slots are free.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSsd;

impl SlotPolicy for NoSsd {
    fn read(&mut self, _page: PageId, _from: Option<Location>, _access: Access, _now: Millis) {}

    fn consider(
        &mut self,
        _page: PageId,
        _cause: Cause,
        _free_slots: usize,
        _usable: &mut dyn FnMut(SlotId) -> bool,
        _now: Millis,
    ) -> Verdict {
        Verdict::Reject
    }

    fn inserted(&mut self, _page: PageId, _slot: SlotId, _now: Millis) {}

    fn removed(&mut self, _page: PageId, _evicted: bool, _now: Millis) {}

    fn start_zone(&mut self, _k: usize, _eligible: Usable<'_>, _now: Millis, _out: &mut Vec<SlotId>) {}

    fn next_victims(&mut self, _n: usize, _now: Millis, _out: &mut Vec<SlotId>) {}
}

impl SlotReport for NoSsd {}
