//! The table of home writes: every page on its way to the HDD, and everything that waits for it.
//!
//! The phases of a batch are drawn below. When a written batch is gone depends on what backs its homes until
//! they are durable (I4):
//!
//! | backed by | kept until | then |
//! | --- | --- | --- |
//! | ring | an HDD flush that began after `end_home_writes`, and all batches before are gone | places free |
//! | appended slots | such a flush | slots clean; those of failed home writes stay dirty |
//! | slots written back | the slots are released (`forget_write_backs`), after such a flush | |
//! | nothing (no ring) | `end_home_writes` | |
//!
//! A ring on the HDD ([`HomeBatches::ring_takes_all`]) backs homes beside the slots, which may be lost with
//! the SSD. There, such a batch holds its places as a batch of the ring does, also once it is gone otherwise.
//!
//! A ring at rest ([`HomeBatches::ring_rests`]) backs nothing. A batch that would have images there takes one
//! place for the list of its pages, until such a flush: killed before, the store must write them again (I14).
//!
//! A page that goes home first (`exec/write/write_first.rs`) passes through the same phases, but its records
//! are written last. Until a batch is gone it may pin the journal (I7), and its pages may have to keep their
//! copies ([`HomeBatches::must_keep_copy`]). No home write of a page begins before an earlier one has ended
//! (I8).
//!
//! Queries about the whole table are folds over the batches (`whole`); queries about single pages are
//! indexed.

//                       records durable,
//          +-----------+ or never written +---------+   all writes have ended   +---------+
//  begin-> | Recording | ---------------> | Writing | ------------------------> | Written | -> gone
//          +-----------+ (end_recording)  +---------+     (end_home_writes)     +---------+
//   takes places in                            |                                     ^
//   ring and journal                           | some failed, and the ring           |
//                                              | has their images                    | a repair, a later
//                                              v                                     | version, or a discard
//                                          +------+                                  | (reached_home)
//                                          | Torn | ---------------------------------+
//                                          +------+

mod torn;
mod whole;

use super::flushes::HddFlush;
use crate::format::journal::{Backing, RECORDS_MAX};
use crate::format::layout::JournalSeq;
use pagetier_page::{Lsn, PageId, SpaceId, Stamp};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::ops::Range;

/// A flush is due at this many home writes that slots back. It bounds the number of homes that a recovery
/// reads for them.
const BACKED_MAX: usize = 128;
/// The maximum number of pages that lists in the ring name. It bounds what a recovery writes again, and the
/// space that their note takes in the manifest.
const LISTED_MAX: usize = 1024;

/// Names a batch. Later batches have larger ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BatchId(u64);

/// What a batch must wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoPlace {
    /// A home write of one of its pages.
    Busy,
    /// Room in the journal.
    Journal,
    /// Room in the ring.
    Ring,
}

/// The places of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Places {
    /// Names the batch.
    pub id: BatchId,
    /// The ring page of each page of the batch, or the one that lists them if the ring rests; empty if the
    /// batch has none.
    pub ring: Vec<u32>,
    /// The sequence numbers of its journal blocks.
    pub journal: Range<JournalSeq>,
}

/// A page whose home write failed, with its image in the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailedHome {
    /// The page, whose home may be torn.
    pub page: PageId,
    /// The version being written home.
    pub stamp: Stamp,
    /// The ring page with the image that repairs it.
    pub place: u32,
    /// Whether the home write never began and nothing needs the image, which need not be durable.
    pub optional: bool,
}

/// The progress of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Phase {
    /// Images and records are being written.
    Recording,
    /// Images and records are durable or about to be; the pages are being written home.
    Writing,
    /// The home writes of these pages failed and may have torn their homes, or never began although records
    /// or images may have voided older copies: the ring holds their images until they have been written home
    /// after all.
    Torn(Vec<PageId>),
    /// The home writes have ended; HDD flush number `flush` makes them durable.
    Written { flush: HddFlush },
}

#[derive(Debug)]
struct HomeBatch {
    id: BatchId,
    backing: Backing,
    /// The pages and their versions, in the order of their images if the ring has these.
    versions: Vec<(PageId, Stamp)>,
    /// Its places in the ring, numbered without wrap-around.
    ring: Range<u64>,
    journal: Range<JournalSeq>,
    /// The stamps of its images in the ring, or of its list, are at least this. `None`: slots back it, which
    /// know of no floor.
    stamp_min: Option<Stamp>,
    /// For images in the ring: the HDD has every change older than this.
    lsn: Option<Lsn>,
    /// Whether its home writes began, so that they may have torn homes. True until it is known.
    begun: bool,
    /// Its home writes never began, and nothing but its images can have voided a copy that the HDD lacks.
    images_optional: bool,
    phase: Phase,
}

impl HomeBatch {
    fn is_ringed(&self) -> bool {
        !self.ring.is_empty()
    }

    fn is_under_way(&self) -> bool {
        matches!(self.phase, Phase::Recording | Phase::Writing)
    }

    /// The HDD flush that makes its home writes durable.
    fn flush(&self) -> Option<HddFlush> {
        if let Phase::Written { flush } = self.phase { Some(flush) } else { None }
    }

    fn is_covered(&self, flush: HddFlush) -> bool {
        self.flush().is_some_and(|needed| needed <= flush)
    }

    /// Whether the map of a checkpoint that begins at this moment may name copies that the batch's records
    /// void, or name as only copies slots that may soon be given away.
    fn pins_journal(&self) -> bool {
        !self.journal.is_empty() && (self.is_under_way() || self.backing != Backing::Ring)
    }

    /// Ends what a slot backs, if the ring has images of it that wait for a flush of the HDD: from here on it
    /// is a batch of the ring. Returns whether it has.
    fn leaves_images(&mut self) -> bool {
        if self.is_ringed() {
            (self.backing, self.journal) = (Backing::Ring, self.journal.end..self.journal.end);
            self.versions.clear();
        }
        self.is_ringed()
    }

    fn is_torn(&self, page: PageId) -> bool {
        matches!(&self.phase, Phase::Torn(pages) if pages.contains(&page))
    }
}

/// The reasons why a page is in the table, counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Claims {
    /// Home writes of the page in flight or about to start.
    pub(crate) writing: u32,
    /// Copies of the page from a slot to its home, and repairs of its home from the ring: until an HDD flush
    /// it must not lose its copy.
    pub(crate) held: u32,
    /// Home writes that the page's slot backs, or will back, and that are not durable.
    pub(crate) backed: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub struct HomeBatches {
    ids: u64,
    batches: VecDeque<HomeBatch>,
    claims: FxHashMap<PageId, Claims>,
    /// Appended versions whose home writes have not begun.
    appended: FxHashSet<(PageId, Stamp)>,
    /// The oldest version whose home write failed while a slot backed it.
    torn_from: Option<Stamp>,
    /// Pages that were discarded after their home writes failed.
    discarded: FxHashSet<PageId>,
    ring_pages: u32,
    /// Whether the ring has lists of pages instead of images.
    rests: bool,
    /// Whether the ring also backs home writes that slots back.
    ring_takes_all: bool,
    /// The places of the ring that are held, numbered without wrap-around.
    ring: Range<u64>,
    journal_blocks: u32,
    /// Sequence numbers, from the oldest block that a recovery needs to the next one to be written.
    journal: Range<JournalSeq>,
}

impl HomeBatches {
    /// A table without home writes, an empty ring of `ring_pages` pages that continues at place `ring_from`,
    /// and a journal of `journal_blocks` blocks, of which a recovery needs those of `journal`.
    #[must_use]
    pub fn new(ring_pages: u32, ring_from: u32, journal_blocks: u32, journal: Range<JournalSeq>) -> Self {
        let ring = u64::from(ring_from)..u64::from(ring_from);
        Self { ring_pages, ring, journal_blocks, journal, ..Self::default() }
    }

    /// Whether the ring lists the pages that go home, since the HDD keeps them whole.
    #[must_use]
    pub fn ring_rests(mut self, rests: bool) -> Self {
        self.rests = rests;
        self
    }

    /// Puts the ring into use. No home write is under way, and none is unflushed.
    pub fn use_ring(&mut self) {
        self.rests = false;
    }

    /// Whether the ring has an image also of each page that a slot backs: it is on the HDD, and must suffice
    /// once the SSD is lost.
    #[must_use]
    pub fn ring_takes_all(mut self, all: bool) -> Self {
        self.ring_takes_all = all;
        self
    }

    // ---- pages

    fn claims(&self, page: PageId) -> Claims {
        self.claims.get(&page).copied().unwrap_or_default()
    }

    fn claim(&mut self, page: PageId) -> &mut Claims {
        self.claims.entry(page).or_default()
    }

    fn unclaim(&mut self, page: PageId, which: impl FnOnce(&mut Claims) -> &mut u32) {
        let Some(claims) = self.claims.get_mut(&page) else { return };
        let count = which(claims);
        *count = count.saturating_sub(1);
        if *claims == Claims::default() {
            self.claims.remove(&page);
        }
    }

    /// Whether the home of `page` is being written. At most one write is in flight, so that versions arrive
    /// in order (I8).
    pub fn is_writing(&self, page: PageId) -> bool {
        self.claims(page).writing > 0
    }

    /// Whether the slot of `page` backs a home write that is not durable. A crash might tear the home, and
    /// only the slot could repair it.
    pub fn is_backed_by_slot(&self, page: PageId) -> bool {
        self.claims(page).backed > 0
    }

    /// Whether `page` must keep its copy: a crash might tear its home, and nothing else could repair it.
    pub fn must_keep_copy(&self, page: PageId) -> bool {
        let Claims { held, backed, .. } = self.claims(page);
        held + backed > 0
    }

    /// Whether a page of `space` is on its way home, or backed by its slot.
    pub fn has_pages_of(&self, space: SpaceId) -> bool {
        self.claims.keys().any(|page| page.space == space)
    }

    /// Whether slots of pages of `space` back home writes.
    pub fn has_backed_pages_of(&self, space: SpaceId) -> bool {
        self.claims.iter().any(|(page, claims)| page.space == space && claims.backed > 0)
    }

    /// The number of pages that have claims of this kind.
    pub(crate) fn pages_with(&self, kind: fn(&Claims) -> u32) -> usize {
        self.claims.values().filter(|claims| kind(claims) > 0).count()
    }

    /// Claims `page` for a copy home from its slot, until [`HomeBatches::release`].
    pub fn hold(&mut self, page: PageId) {
        self.claim(page).held += 1;
    }

    /// Ends one [`HomeBatches::hold`]. The page may lose its copy once all its claims have ended.
    pub fn release(&mut self, page: PageId) {
        self.unclaim(page, |claims| &mut claims.held);
    }

    /// Notes that the slot to which version `stamp` of `page` is appended will back its home write.
    pub fn plan_appended(&mut self, page: PageId, stamp: Stamp) {
        if self.appended.insert((page, stamp)) {
            self.claim(page).backed += 1;
        }
    }

    /// Reverts [`HomeBatches::plan_appended`], unless the home write has begun.
    pub fn cancel_appended(&mut self, page: PageId, stamp: Stamp) {
        if self.appended.remove(&(page, stamp)) {
            self.unclaim(page, |claims| &mut claims.backed);
        }
    }

    // ---- a batch's life

    /// The maximum number of pages of a batch: half the ring, and at most one journal block.
    pub fn batch_max(&self, backing: Backing) -> usize {
        // Half the ring, so that a batch can be prepared while the one before it waits for its HDD flush.
        if self.takes_images(backing) {
            (self.ring_pages as usize / 2).clamp(1, RECORDS_MAX)
        } else {
            RECORDS_MAX
        }
    }

    /// Whether there is a journal; without slots none is needed.
    pub fn has_journal(&self) -> bool {
        self.journal_blocks > 0
    }

    /// Whether a ring backs home writes.
    pub fn has_ring(&self) -> bool {
        self.ring_pages > 0 && !self.rests
    }

    /// Whether a place of the ring lists a batch.
    pub fn lists(&self, backing: Backing) -> bool {
        self.ring_pages > 0 && self.rests && (backing == Backing::Ring || self.ring_takes_all)
    }

    fn blocks_of(&self, pages: usize) -> u64 {
        if self.journal_blocks > 0 { pages.div_ceil(RECORDS_MAX) as u64 } else { 0 }
    }

    /// Whether the ring has images of a batch.
    fn takes_images(&self, backing: Backing) -> bool {
        self.has_ring() && (backing == Backing::Ring || self.ring_takes_all)
    }

    fn places_of(&self, backing: Backing, pages: usize) -> u64 {
        if self.takes_images(backing) { pages as u64 } else { u64::from(self.lists(backing)) }
    }

    /// Checks that journal and ring have room for a batch of `pages` pages.
    ///
    /// # Errors
    /// What it has to wait for.
    pub fn fits(&self, backing: Backing, pages: usize) -> Result<(), NoPlace> {
        let blocks = self.blocks_of(pages);
        if blocks > 0 && self.journal_used() + blocks > u64::from(self.journal_blocks) {
            return Err(NoPlace::Journal);
        }
        let places = self.places_of(backing, pages);
        if self.ring.end + places - self.ring.start > u64::from(self.ring_pages) {
            return Err(NoPlace::Ring);
        }
        let listed = self.listed();
        if self.lists(backing) && listed > 0 && listed + pages > LISTED_MAX {
            return Err(NoPlace::Ring);
        }
        Ok(())
    }

    /// Begins a batch that has room. Its stamps are at least `stamp_min`; the HDD has every change of its
    /// pages older than `lsn`.
    pub fn begin(
        &mut self,
        backing: Backing,
        versions: Vec<(PageId, Stamp)>,
        stamp_min: Stamp,
        lsn: Option<Lsn>,
    ) -> Places {
        self.ids += 1;
        let id = BatchId(self.ids);
        let ring = self.ring.end..self.ring.end + self.places_of(backing, versions.len());
        let journal = self.journal.end..self.journal.end + self.blocks_of(versions.len());
        // Places are taken in the order of batches, so they can be given back in that order, too.
        (self.ring.end, self.journal.end) = (ring.end, journal.end);
        for version in &versions {
            // The claim that `plan_appended` made passes to the batch. Counted twice, it would never be
            // released.
            let planned = backing == Backing::Appended && self.appended.remove(version);
            let claims = self.claim(version.0);
            claims.writing += 1;
            claims.backed += u32::from(backing == Backing::Appended && !planned);
        }
        // The image that accompanies a slot matters once the SSD is lost, and the floor with it.
        let stamp_min = Some(stamp_min).filter(|_| backing == Backing::Ring || self.lists(backing));
        let lsn = lsn.filter(|_| self.has_ring());
        let places = ring.clone().map(|at| self.place(at)).collect();
        let batch = HomeBatch {
            id,
            backing,
            versions,
            ring,
            journal: journal.clone(),
            stamp_min,
            lsn,
            begun: true,
            images_optional: false,
            phase: Phase::Recording,
        };
        self.batches.push_back(batch);
        Places { id, ring: places, journal }
    }

    /// Notes that the writes of the batch's journal blocks have ended or will never start: none of them can
    /// land later.
    pub fn end_recording(&mut self, id: BatchId) {
        if let Some(batch) = self.batch(id) {
            batch.phase = Phase::Writing;
        }
    }

    /// Notes that batch `id` will not be written home, and that its images may be missing in the ring without
    /// harm: none of its records was written, or these void only what the HDD has.
    pub fn waive_images(&mut self, id: BatchId) {
        if let Some(batch) = self.batch(id) {
            batch.images_optional = true;
        }
    }

    /// Ends the home writes of batch `id`; those of `failed` failed, or never began. HDD flush number `flush`
    /// makes the others durable. `begun`: any of them had begun.
    pub fn end_home_writes(&mut self, id: BatchId, begun: bool, failed: Vec<PageId>, flush: HddFlush) {
        let Some(batch) = self.batch(id) else { return };
        let (backing, versions) = (batch.backing, batch.versions.clone());
        (batch.phase, batch.begun) = (Phase::Written { flush }, begun);
        for (page, _) in &versions {
            self.unclaim(*page, |claims| &mut claims.writing);
            if begun && !failed.contains(page) {
                self.reached_home(*page, flush);
            }
        }
        match backing {
            // Without a ring nothing backs these homes, so nothing is held until a flush.
            Backing::Ring if self.batch(id).is_some_and(|batch| !batch.is_ringed()) => {
                self.batches.retain(|batch| batch.id != id);
            }
            // These homes may be torn, or lack a version whose image voids the page's copy in a slot. The
            // images stay until a repair, or a later version, has reached the home (I4, I25).
            Backing::Ring if self.has_ring() && !failed.is_empty() => {
                self.batch(id).into_iter().for_each(|batch| batch.phase = Phase::Torn(failed.clone()));
            }
            Backing::Ring | Backing::WriteBack => {}
            // A flush makes slots clean whose home writes succeeded. The others leave the batch: their slots
            // stay dirty.
            Backing::Appended => {
                self.mark_torn(versions.iter().filter(|version| failed.contains(&version.0)));
                let still = |version: &(PageId, Stamp)| !failed.contains(&version.0);
                self.batch(id).into_iter().for_each(|batch| batch.versions.retain(still));
            }
        }
        versions.iter().for_each(|(page, _)| self.forget_discard(*page));
    }

    /// Ends the write-back whose slots were released: checkpoints name their actual state again.
    pub fn forget_write_backs(&mut self) {
        self.batches.retain_mut(|batch| {
            batch.backing != Backing::WriteBack || batch.is_under_way() || batch.leaves_images()
        });
    }

    /// Ends the backing of versions whose home writes failed.
    fn mark_torn<'a>(&mut self, versions: impl Iterator<Item = &'a (PageId, Stamp)>) {
        for (page, stamp) in versions {
            self.torn_from = Some(self.torn_from.map_or(*stamp, |oldest| oldest.min(*stamp)));
            self.unclaim(*page, |claims| &mut claims.backed);
        }
    }

    /// Notes that HDD flush number `number` has completed. Returns the versions whose home writes were backed
    /// by their slots and are durable.
    pub fn flushed(&mut self, number: HddFlush) -> Vec<(PageId, Stamp)> {
        self.free_ring(number);
        self.settle(number)
    }

    /// Frees the ring's images that flush `number` covers, in ring order.
    pub(crate) fn free_ring(&mut self, number: HddFlush) {
        // The ring's tail is a single number, so a covered batch waits for the ones before it.
        let covered = self.ringed().take_while(|batch| batch.is_covered(number));
        let tail = covered.last().map_or(self.ring.start, |batch| batch.ring.end);
        self.ring.start = tail;
        self.batches.retain_mut(|batch| {
            let freed = batch.is_ringed() && batch.ring.end <= tail;
            if freed {
                batch.ring = tail..tail;
            }
            !freed || batch.backing != Backing::Ring
        });
    }

    /// Takes the versions that flush `number` covers and slots backed.
    pub(crate) fn settle(&mut self, number: HddFlush) -> Vec<(PageId, Stamp)> {
        let settled = self.take_backed(&|batch| batch.is_covered(number));
        for (page, _) in &settled {
            self.unclaim(*page, |claims| &mut claims.backed);
        }
        settled
    }

    /// Notes that a flush of the HDD failed: the homes that it should have made durable may be torn, and
    /// their slots hold the only copies.
    pub fn flush_failed(&mut self) {
        let torn = self.take_backed(&|batch| batch.flush().is_some());
        self.mark_torn(torn.iter());
    }

    /// Removes the batches that slots back and that `over` selects; returns their versions.
    fn take_backed(&mut self, over: &dyn Fn(&HomeBatch) -> bool) -> Vec<(PageId, Stamp)> {
        let mut taken = Vec::new();
        self.batches.retain_mut(|batch| {
            let over = batch.backing == Backing::Appended && over(batch);
            if over {
                taken.append(&mut batch.versions);
            }
            !over || batch.leaves_images()
        });
        taken
    }

    /// Batches are in the order in which they began, which is that of their ids.
    fn batch(&mut self, id: BatchId) -> Option<&mut HomeBatch> {
        let at = self.batches.binary_search_by_key(&id, |batch| batch.id).ok()?;
        self.batches.get_mut(at)
    }

    /// Recounts; for tests.
    ///
    /// # Errors
    /// What does not add up.
    pub fn validate(&self) -> Result<(), String> {
        if !self.batches.iter().is_sorted_by_key(|batch| batch.id) {
            return Err("batches are out of order".to_owned());
        }
        let held: u64 = self.ringed().map(|batch| batch.ring.end - batch.ring.start).sum();
        if held != self.ring_used() {
            return Err(format!("{held} images in the ring, {} counted", self.ring_used()));
        }
        let mut writing: FxHashMap<PageId, u32> = FxHashMap::default();
        let under_way = self.batches.iter().filter(|batch| batch.is_under_way());
        for (page, _) in under_way.flat_map(|batch| &batch.versions) {
            *writing.entry(*page).or_default() += 1;
        }
        // Repairs claim pages, too.
        if let Some((page, count)) = writing.iter().find(|(page, n)| self.claims(**page).writing < **n) {
            return Err(format!("{page} is in {count} batches under way, which its claims do not say"));
        }
        let mut backed: FxHashMap<PageId, u32> = FxHashMap::default();
        let begun = self.batches.iter().filter(|batch| batch.backing == Backing::Appended);
        for (page, _) in begun.flat_map(|batch| &batch.versions).chain(&self.appended) {
            *backed.entry(*page).or_default() += 1;
        }
        let claimed = self.claims.iter().filter(|(_, claims)| claims.backed > 0);
        let claimed: FxHashMap<PageId, u32> = claimed.map(|(page, claims)| (*page, claims.backed)).collect();
        if backed == claimed { Ok(()) } else { Err(format!("{backed:?} backed, {claimed:?} claimed")) }
    }
}

#[cfg(test)]
mod tests;
