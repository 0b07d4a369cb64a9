//! Queries about the whole table, as folds over the batches: where ring and journal may be overwritten, from
//! which stamps on homes may be torn, whether a flush would help.

use super::{BACKED_MAX, HomeBatch, HomeBatches, LISTED_MAX, Phase};
use crate::format::journal::Backing;
use crate::format::layout::JournalSeq;
use pagetier_page::{Lsn, PageId, Stamp};

impl HomeBatches {
    // ---- the ring

    pub(super) fn place(&self, at: u64) -> u32 {
        (at % u64::from(self.ring_pages.max(1))) as u32
    }

    /// The place that the ring continues at.
    pub fn ring_next(&self) -> u32 {
        self.place(self.ring.end)
    }

    pub(super) fn ringed(&self) -> impl Iterator<Item = &HomeBatch> {
        self.batches.iter().filter(|batch| batch.is_ringed())
    }

    /// The ring place of the image of version `stamp` of `page`, if it is held and no slot has it.
    pub fn place_of(&self, page: PageId, stamp: Stamp) -> Option<u32> {
        let imaged = |batch: &&HomeBatch| batch.backing == Backing::Ring && self.has_ring();
        self.ringed().filter(imaged).find_map(|batch| {
            let nth = batch.versions.iter().position(|version| *version == (page, stamp))?;
            Some(self.place(batch.ring.start + nth as u64))
        })
    }

    /// The number of ring pages that are held.
    pub fn ring_used(&self) -> u64 {
        self.ring.end - self.ring.start
    }

    /// Whether the oldest images wait for a page whose home write failed, while no home write is under way.
    pub fn ring_is_stuck(&self) -> bool {
        // While a home write is under way, its end may free the ring without a repair.
        let torn = self.ringed().next().is_some_and(|batch| matches!(batch.phase, Phase::Torn(_)));
        torn && self.pages_with(|claims| claims.writing) == 0
    }

    /// Whether there may be torn homes that only the ring can repair.
    pub fn needs_ring_repair(&self) -> bool {
        self.batches.iter().any(|batch| batch.begun && matches!(batch.phase, Phase::Torn(_)))
    }

    /// The oldest change in the ring's images that may not be durable on the HDD.
    pub fn oldest_lsn(&self) -> Option<Lsn> {
        self.ringed().filter_map(|batch| batch.lsn).min()
    }

    /// What a journal block states about homes: a stamp, and whether slots back home writes. Images in the
    /// ring with smaller stamps are durable at home; so are versions that slots back. `fresh` is an unused
    /// stamp.
    pub fn journal_floor(&self, fresh: Stamp) -> (Stamp, bool) {
        let backed = self.batches.iter().filter(|batch| batch.backing == Backing::Appended);
        let backed = backed.flat_map(|batch| &batch.versions).map(|(_, stamp)| *stamp);
        // A torn home remains its slot's to repair, also after a failed flush, and keeps the floor below it.
        let slots = backed.chain(self.torn_from).min();
        let ring = self.ring_floor(fresh);
        (slots.map_or(ring, |slots| slots.min(ring)), slots.is_some())
    }

    /// What a list in a ring at rest states: home writes of earlier lists, with smaller stamps, are durable.
    pub fn ring_floor(&self, fresh: Stamp) -> Stamp {
        self.ringed().filter_map(|batch| batch.stamp_min).min().unwrap_or(fresh)
    }

    /// The number of pages that lists in the ring name.
    pub(super) fn listed(&self) -> usize {
        if self.rests { self.ringed().map(|batch| batch.versions.len()).sum() } else { 0 }
    }

    // ---- flushes of the HDD

    /// Whether an HDD flush is due to keep the ring from filling up.
    pub fn ring_flush_is_due(&self) -> bool {
        let full = self.ring_used() > u64::from(self.ring_pages) / 2 || self.listed() > LISTED_MAX / 2;
        full && self.ringed().next().is_some_and(|batch| batch.flush().is_some())
    }

    fn written_backed(&self) -> impl Iterator<Item = &HomeBatch> {
        self.batches.iter().filter(|batch| batch.backing == Backing::Appended && batch.flush().is_some())
    }

    /// Whether an HDD flush would make home writes durable that slots back.
    pub fn flush_would_settle(&self) -> bool {
        self.written_backed().next().is_some()
    }

    /// Whether so many home writes that slots back, or so many of their records, have accumulated that an HDD
    /// flush is due.
    pub fn backed_flush_is_due(&self) -> bool {
        let pages: usize = self.written_backed().map(|batch| batch.versions.len()).sum();
        let blocks: u64 = self.written_backed().map(|b| b.journal.end - b.journal.start).sum();
        pages >= BACKED_MAX || (blocks > 0 && blocks * 4 >= u64::from(self.journal_blocks))
    }

    // ---- the journal

    /// The next block's sequence number.
    pub fn journal_next(&self) -> JournalSeq {
        self.journal.end
    }

    /// The oldest block that is still needed after a checkpoint that begins at this moment. Its map is about
    /// to become outdated for pages on their way home, and only their records show that.
    pub fn journal_needed_from(&self) -> JournalSeq {
        let pinned = self.batches.iter().filter(|batch| batch.pins_journal());
        pinned.map(|batch| batch.journal.start).min().unwrap_or(self.journal.end)
    }

    /// Frees the blocks before `from`, which a durable checkpoint has made superfluous.
    pub fn free_journal(&mut self, from: JournalSeq) {
        self.journal.start = from;
    }

    /// The number of blocks that the next checkpoint may free.
    pub fn journal_held(&self) -> u64 {
        self.journal.end - self.journal.start
    }

    /// Whether the journal is more than half full and a checkpoint would make room.
    pub fn journal_is_high(&self) -> bool {
        let half = self.journal_held() * 2 > u64::from(self.journal_blocks);
        half && self.journal_needed_from() > self.journal.start
    }

    /// The number of blocks that may not be overwritten: those that a recovery needs, and those being
    /// written, which might otherwise land on their successors.
    pub fn journal_used(&self) -> u64 {
        let recording = self.batches.iter().filter(|batch| batch.phase == Phase::Recording);
        let from = recording.filter(|b| !b.journal.is_empty()).map(|b| b.journal.start).min();
        self.journal.end - from.map_or(self.journal.start, |from| from.min(self.journal.start))
    }
}
