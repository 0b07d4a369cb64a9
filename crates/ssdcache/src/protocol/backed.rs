//! The book-keeping of home writes that slots back (the doublewrite policy): which of them a crash may still
//! tear.
//!
//! As the ring's entries, such a slot is needed as it is until an HDD flush that began after the home write
//! is over. Until then it counts as the only copy of its version, and the journal keeps its record: a map
//! captured before says so, too.

use pagetier_page::{PageId, Stamp};
use pagetier_policy::SlotId;

/// Home writes without a flush, at most, before one is due: a recovery looks at as many homes.
const PAGES_MAX: usize = 128;

/// A slot that backs a home write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Copy {
    pub(crate) page: PageId,
    pub(crate) slot: SlotId,
    pub(crate) stamp: Stamp,
}

/// What a flush, or its failure, has settled.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    pub(crate) copies: Vec<Copy>,
    /// Their blocks of the journal.
    pub(crate) blocks: Vec<u64>,
}

#[derive(Debug)]
struct Held {
    id: u64,
    copies: Vec<Copy>,
    blocks: Vec<u64>,
    /// The HDD flush that settles it; `None` while home writes are in flight.
    until_flush: Option<u64>,
}

/// The batches whose home writes are not durable yet.
#[derive(Debug, Default)]
pub(crate) struct Backed {
    ids: u64,
    held: Vec<Held>,
    /// The oldest version whose home write failed, and may have left it torn.
    failed: Option<Stamp>,
}

impl Backed {
    /// A batch is about to go home.
    pub(crate) fn hold(&mut self, copies: Vec<Copy>) -> u64 {
        self.ids += 1;
        self.held.push(Held { id: self.ids, copies, blocks: Vec::new(), until_flush: None });
        self.ids
    }

    /// Its records are in these blocks of the journal.
    pub(crate) fn recorded(&mut self, id: u64, blocks: &[u64]) {
        if let Some(held) = self.held.iter_mut().find(|h| h.id == id) {
            held.blocks.extend_from_slice(blocks);
        }
    }

    /// The home writes of batch `id` are over, and HDD flush number `flush` will make them durable, but for
    /// those of `failed`, which are given back.
    pub(crate) fn written_home(&mut self, id: u64, failed: &[PageId], flush: u64) -> Vec<Copy> {
        let Some(held) = self.held.iter_mut().find(|h| h.id == id) else { return Vec::new() };
        held.until_flush = Some(flush);
        let failed: Vec<Copy> = held.copies.extract_if(.., |copy| failed.contains(&copy.page)).collect();
        self.note_failed(&failed);
        failed
    }

    /// HDD flush number `number` is over.
    pub(crate) fn flushed(&mut self, number: u64) -> Settled {
        self.settle(|held| held.until_flush.is_some_and(|flush| flush <= number))
    }

    /// A flush of the HDD failed: what it should have made durable may be torn.
    pub(crate) fn flush_failed(&mut self) -> Settled {
        let settled = self.settle(|held| held.until_flush.is_some());
        self.note_failed(&settled.copies);
        settled
    }

    fn settle(&mut self, over: impl Fn(&Held) -> bool) -> Settled {
        let mut settled = Settled::default();
        for held in self.held.extract_if(.., |held| over(held)) {
            settled.copies.extend(held.copies);
            settled.blocks.extend(held.blocks);
        }
        settled
    }

    fn note_failed(&mut self, copies: &[Copy]) {
        self.failed = copies.iter().map(|copy| copy.stamp).chain(self.failed).min();
    }

    /// Versions with smaller stamps are home durably, or need nothing to mend them; `None`: all are.
    pub(crate) fn floor(&self) -> Option<Stamp> {
        let held = self.held.iter().flat_map(|h| &h.copies).map(|copy| copy.stamp);
        held.chain(self.failed).min()
    }

    /// Whether a flush of the HDD would settle something.
    pub(crate) fn can_settle(&self) -> bool {
        self.held.iter().any(|h| h.until_flush.is_some())
    }

    /// Whether so much has gathered, of pages or of a journal of `journal_blocks`, that a flush is due.
    pub(crate) fn wants_flush(&self, journal_blocks: u32) -> bool {
        let waiting = || self.held.iter().filter(|h| h.until_flush.is_some());
        let pages: usize = waiting().map(|h| h.copies.len()).sum();
        let blocks: usize = waiting().map(|h| h.blocks.len()).sum();
        pages >= PAGES_MAX || (blocks > 0 && blocks * 4 >= journal_blocks as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_page::SpaceId;

    fn copy(no: u32, stamp: u64) -> Copy {
        let page = PageId::new(SpaceId(1), no);
        Copy { page, slot: SlotId(no), stamp: Stamp::from_bits(stamp) }
    }

    #[test]
    fn a_slot_backs_its_page_until_the_flush_after_the_home_write() {
        let mut backed = Backed::default();
        let first = backed.hold(vec![copy(1, 10), copy(2, 11)]);
        backed.recorded(first, &[7]);
        let second = backed.hold(vec![copy(3, 12)]);
        backed.recorded(second, &[8]);
        assert_eq!((backed.floor(), backed.can_settle()), (Some(Stamp::from_bits(10)), false));
        assert!(backed.written_home(second, &[], 4).is_empty());
        assert!(backed.flushed(3).copies.is_empty(), "that flush began too early");
        let settled = backed.flushed(4);
        assert_eq!((settled.copies, settled.blocks), (vec![copy(3, 12)], vec![8]));
        assert_eq!(backed.written_home(first, &[copy(2, 11).page], 5), [copy(2, 11)]);
        let settled = backed.flushed(5);
        assert_eq!((settled.copies, settled.blocks), (vec![copy(1, 10)], vec![7]));
        assert_eq!(backed.floor(), Some(Stamp::from_bits(11)), "its home may be torn");
    }

    #[test]
    fn a_flush_is_due_before_the_journal_is_full_of_records_that_wait_for_it() {
        let mut backed = Backed::default();
        for block in 0..2 {
            assert!(!backed.wants_flush(8));
            let id = backed.hold(vec![copy(block as u32, 10 + block)]);
            backed.recorded(id, &[block]);
            backed.written_home(id, &[], 1);
        }
        assert!(backed.wants_flush(8) && !backed.wants_flush(9));
    }
}
