//! The protocol, pure: plain values in, decisions out. No clock, lock, runtime or device (`tests/tidy.rs`
//! checks the words). `docs/recovery.md` argues that it loses nothing; `exec` carries it out.

pub(crate) mod backed;
pub(crate) mod recovery;
pub(crate) mod ring;
pub(crate) mod slots;

use crate::mode::SsdMode;
use backed::{Backed, Settled};
use pagetier_page::{Lsn, PageId};
use ring::Ring;
use rustc_hash::FxHashSet;
use slots::Slots;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Positions in the journal.
#[derive(Debug)]
pub(crate) struct JournalPlace {
    pub(crate) next: u64,
    pub(crate) tail: u64,
    /// Blocks whose write is under way.
    pub(crate) writing: BTreeSet<u64>,
    /// Blocks of pages from the pool that are on their way home: the map may still name copies that these
    /// void.
    pub(crate) homing: BTreeSet<u64>,
    /// The block of the write-back under way: the map names its slots as holding only copies, but they may
    /// soon be given away.
    pub(crate) write_back: Option<u64>,
}

impl JournalPlace {
    pub(crate) fn new(next: u64, tail: u64) -> Self {
        Self { next, tail, writing: BTreeSet::new(), homing: BTreeSet::new(), write_back: None }
    }

    /// The oldest block that a checkpoint captured now does not make superfluous. What the map of such a
    /// moment says of pages on their way home is about to be untrue, and only the record tells.
    pub(crate) fn needed_from(&self) -> u64 {
        let homing = self.homing.first().copied();
        homing.into_iter().chain(self.write_back).min().unwrap_or(self.next)
    }

    /// Whether the journal has filled so far that a checkpoint should make room, and one would.
    pub(crate) fn is_high(&self, blocks: u32) -> bool {
        (self.next - self.tail) * 2 > u64::from(blocks) && self.needed_from() > self.tail
    }

    /// Blocks that may not be written over: those that a recovery wants, and those still being written, which
    /// would land on their successors.
    pub(crate) fn used(&self) -> u64 {
        let from = self.writing.first().map_or(self.tail, |oldest| self.tail.min(*oldest));
        self.next - from
    }
}

#[derive(Debug)]
pub(crate) struct Protocol {
    pub(crate) slots: Slots,
    pub(crate) ring: Ring,
    /// Home writes that slots back in the ring's stead.
    pub(crate) backed: Backed,
    pub(crate) journal: JournalPlace,
    /// Pages with an HDD write in flight: at most one per page, so that versions arrive in order.
    pub(crate) writing_home: FxHashSet<PageId>,
    /// Copies of pages that the HDD has on their way to the SSD: of evicted ones, of some just read or
    /// written there.
    pub(crate) admissions: usize,
    /// The SSD failed a write or a checkpoint: nothing new is admitted.
    pub(crate) ssd_error: Option<Arc<str>>,
    /// A map checkpoint failed: the journal gets no more room.
    pub(crate) map_failed: bool,
    /// The last checkpoint failed: the area of the next one may hold its header, whole.
    pub(crate) map_doubtful: bool,
    /// What the SSD is used for, as long as there is one.
    pub(crate) mode: SsdMode,
    /// Drains under way: until they are over the SSD gets no only copies.
    pub(crate) drains: usize,
    /// A task waits for quiet: no new admissions.
    pub(crate) closing: bool,
    /// No change older than this can be on the SSD alone, by the last checkpoint.
    pub(crate) lsn_floor: Lsn,
}

impl Protocol {
    /// The oldest change that the HDD may lack if the SSD were lost now; `None`: it lacks none.
    pub(crate) fn oldest_lsn(&self) -> Option<Lsn> {
        self.slots.oldest_lsn().into_iter().chain(self.ring.oldest_lsn()).min()
    }

    /// What a checkpoint may say of the oldest change that a copy lacks on the HDD, now or written later.
    /// `in_memory`: the oldest change that is dirty in memory, if that is known.
    pub(crate) fn next_lsn_floor(&self, in_memory: Option<Option<Lsn>>) -> Lsn {
        let Some(in_memory) = in_memory else { return self.lsn_floor };
        // With nothing dirty anywhere, nothing is known of the changes to come but that they are newer.
        in_memory.into_iter().chain(self.oldest_lsn()).min().unwrap_or(self.lsn_floor)
    }

    /// Whether a copy of a page that the HDD has may start on its way to the SSD, with at most `max` in
    /// flight.
    pub(crate) fn may_admit(&self, max: usize) -> bool {
        let takes = matches!(self.mode, SsdMode::WriteBack | SsdMode::WriteThrough) && !self.closing;
        takes && self.ssd_error.is_none() && self.admissions < max
    }

    /// The slots of `settled` are clean (`ok`), or only copies, and their records have done their duty.
    pub(crate) fn settle(&mut self, settled: Settled, ok: bool) {
        for copy in settled.copies {
            self.slots.end_backing(copy.slot, copy.stamp, ok);
        }
        for block in settled.blocks {
            self.journal.homing.remove(&block);
        }
    }

    /// HDD flush number `over` is over.
    pub(crate) fn hdd_flushed(&mut self, over: u64) {
        self.ring.flushed(over);
        let settled = self.backed.flushed(over);
        self.settle(settled, true);
    }

    /// Whether a flush of the HDD is due for slots that back home writes.
    pub(crate) fn backed_wants_flush(&self, journal_blocks: u32) -> bool {
        self.backed.can_settle()
            && (self.backed.wants_flush(journal_blocks) || self.slots.front_wants_hdd_flush())
    }

    /// Whether changed pages may go to the SSD alone.
    pub(crate) fn writes_back(&self) -> bool {
        self.mode == SsdMode::WriteBack && self.drains == 0 && self.ssd_error.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_frees_no_record_of_pages_on_their_way_home() {
        let mut journal = JournalPlace::new(17, 10);
        assert_eq!((journal.needed_from(), journal.is_high(8)), (17, true));
        journal.homing.extend([15, 12]);
        assert_eq!(journal.needed_from(), 12);
        journal.write_back = Some(10);
        assert_eq!(
            (journal.needed_from(), journal.is_high(8)),
            (10, false),
            "a checkpoint would free nothing"
        );
        assert_eq!(journal.used(), 7);
    }
}
