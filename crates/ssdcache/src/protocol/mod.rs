//! The pure protocol: plain values in, decisions out, without clock, lock, runtime or device (`tests/tidy.rs`
//! checks). `docs/recovery.md` numbers its invariants (I1, I2, …), `docs/proof.md` argues that it loses
//! nothing, and `exec` carries it out.

pub(crate) mod checkpoint;
pub(crate) mod flushes;
pub(crate) mod home_batches;
#[cfg(test)]
mod pieces;
pub(crate) mod recovery;
pub(crate) mod slots;

use crate::format::journal::{Backing, Block, RECORDS_MAX, Record};
use crate::format::layout::JournalSeq;
use crate::mode::SsdMode;
use flushes::HddFlush;
use home_batches::{BatchId, HomeBatches, NoPlace, Places};
use pagetier_page::{Lsn, PageId, Stamp};
use pagetier_policy::Millis;
use slots::{Leaving, Move, OnItsWay, Slots, WriteBack};
use std::sync::Arc;

/// The maximum number of pages of a write-back, which a drain still writes after it was cancelled.
const WRITE_BACK_MAX: usize = 32;

/// A page to be written home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HomePage {
    pub(crate) page: PageId,
    /// The image's stamp. An image that the ring backs gets a new one.
    pub(crate) stamp: Stamp,
    /// The HDD has every change older than this.
    pub(crate) lsn: Lsn,
    /// Appended pages only: the superseded slot is newer than the HDD's version.
    pub(crate) over_only_copy: bool,
}

/// The steps before the pages of a batch are written home: images to the ring, records to the journal, a
/// flush of the SSD.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct HomePlan {
    pub(crate) id: BatchId,
    pub(crate) backing: Backing,
    pub(crate) versions: Vec<(PageId, Stamp)>,
    /// The ring page of each page, if the ring backs the batch.
    pub(crate) ring: Vec<u32>,
    /// If the ring rests: the place of the ring that lists the pages, and the list (I14).
    pub(crate) list: Option<(u32, Block)>,
    pub(crate) blocks: Vec<Block>,
    /// A page of the batch has a version on the SSD that the HDD lacks. Its record may become durable only
    /// after the image in the ring, or in the page's new slot (I6).
    pub(crate) images_first: bool,
    /// Images and records must be durable before the first home write (I3, I4).
    pub(crate) flush: bool,
}

/// What prevents pages from being written home.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct InTheWay {
    /// One of their homes is being written.
    pub(crate) writing: bool,
    /// Pages whose slots have received a newer version, which may be home already.
    pub(crate) superseded: Vec<PageId>,
}

/// The state of the protocol.
#[derive(Debug)]
pub(crate) struct Protocol {
    pub(crate) slots: Slots,
    /// Every page on its way home.
    pub(crate) home: HomeBatches,
    /// Copies on their way to the SSD of versions that the HDD has: of evicted pages, and of some just read
    /// from the HDD or written there.
    pub(crate) admissions: usize,
    /// A write or a checkpoint on the SSD failed: nothing new is admitted.
    pub(crate) ssd_error: Option<Arc<str>>,
    /// A map checkpoint failed: no journal space is freed.
    pub(crate) map_failed: bool,
    /// The last checkpoint failed: the area of the next one may hold a sound header of it.
    pub(crate) map_unverified: bool,
    /// What the SSD is used for while there is one, as the user set it.
    pub(crate) mode: SsdMode,
    /// The modes that calls under way restrict the SSD to; the strictest counts.
    pub(crate) limits: Vec<SsdMode>,
    /// The number of drains under way, during which the SSD gets no new only copies.
    pub(crate) drains: usize,
    /// A task waits for quiet: admissions are suspended.
    pub(crate) closing: bool,
    /// By the last checkpoint, no change older than this can be on the SSD alone.
    pub(crate) lsn_floor: Lsn,
}

impl Protocol {
    /// The state with nothing under way. No change older than `lsn_floor` is on the SSD alone.
    pub(crate) fn new(slots: Slots, home: HomeBatches, mode: SsdMode, lsn_floor: Lsn) -> Self {
        Self {
            slots,
            home,
            admissions: 0,
            ssd_error: None,
            map_failed: false,
            map_unverified: false,
            mode,
            limits: Vec::new(),
            drains: 0,
            closing: false,
            lsn_floor,
        }
    }

    /// The oldest change that would be lost with the SSD; `None`: the HDD has every change. A page that was
    /// created and not changed since has none.
    pub(crate) fn oldest_lsn(&self) -> Option<Lsn> {
        let oldest = self.slots.oldest_lsn().into_iter().chain(self.home.oldest_lsn()).min();
        oldest.filter(|lsn| *lsn != Lsn::BLANK)
    }

    /// What the SSD is used for at present.
    pub(crate) fn mode_in_force(&self) -> SsdMode {
        self.limits.iter().fold(self.mode, |mode, limit| mode.max(*limit))
    }

    /// Whether another admission may start, with at most `max` in flight.
    pub(crate) fn may_admit(&self, max: usize) -> bool {
        self.takes_copies() && !self.closing && self.admissions < max
    }

    /// Whether the SSD takes copies of clean pages.
    pub(crate) fn takes_copies(&self) -> bool {
        let mode = self.mode_in_force();
        matches!(mode, SsdMode::WriteBack | SsdMode::WriteThrough) && self.ssd_error.is_none()
    }

    // ---- home writes

    /// What prevents `pages` from being written home (I8). The contents of their slots matter once no other
    /// home write is in flight.
    pub(crate) fn in_the_way(&self, backing: Backing, pages: &[HomePage]) -> InTheWay {
        let writing = pages.iter().any(|one| self.home.is_writing(one.page));
        let stale = |one: &&HomePage| backing != Backing::Ring && !self.slots.holds(one.page, one.stamp);
        InTheWay { writing, superseded: pages.iter().filter(stale).map(|one| one.page).collect() }
    }

    /// Begins the home writes of a batch, none of whose pages is being written home. Stamps come from
    /// `fresh`.
    ///
    /// # Errors
    /// What the batch must wait for.
    pub(crate) fn begin_home_batch(
        &mut self,
        backing: Backing,
        pages: &[HomePage],
        fresh: &mut dyn FnMut() -> Stamp,
    ) -> Result<HomePlan, NoPlace> {
        self.home.fits(backing, pages.len())?;
        // Drawn before the stamps of the images, so it is a lower bound of all of them.
        let stamp_min = fresh();
        let ringed = backing == Backing::Ring;
        let images_first =
            self.home.has_journal() && pages.iter().any(|one| self.voids_only_copy(backing, one));
        let lsn = pages.iter().map(|one| self.lsn_lacked(one)).min().filter(|_| ringed);
        let stamp = |one: &HomePage| if ringed { fresh() } else { one.stamp };
        let stamps: Vec<Stamp> = pages.iter().map(stamp).collect();
        let versions: Vec<_> = pages.iter().map(|one| one.page).zip(stamps).collect();
        // The copy of a second chance has old content, but may have a larger stamp than this record, which
        // would then not void it (I16).
        if ringed {
            pages.iter().for_each(|one| self.slots.cancel_move(one.page));
        }
        let Places { id, mut ring, journal } = self.home.begin(backing, versions.clone(), stamp_min, lsn);
        // Asked for after the batch has its places, so that the floor is not above its own images.
        let (ring_floor, slots_back) = self.home.journal_floor(fresh());
        let generation = self.slots.in_force();
        let block = |seq, versions: &[(PageId, Stamp)]| {
            let records =
                versions.iter().map(|(page, stamp)| Record { page: *page, stamp: *stamp }).collect();
            Block { seq, ring_floor, backing, slots_back, generation, records }
        };
        let blocks = (journal.start.0..journal.end.0).map(JournalSeq).zip(versions.chunks(RECORDS_MAX));
        let blocks = blocks.map(|(seq, versions)| block(seq, versions)).collect();
        let list = self.home.lists(backing).then(|| ring.pop()).flatten().map(|place| {
            // A slot's stamp may be older than the floor.
            let listed: Vec<_> = versions.iter().map(|(page, _)| (*page, stamp_min)).collect();
            let floor = self.home.ring_floor(stamp_min);
            (place, Block { ring_floor: floor, ..block(JournalSeq(0), &listed) })
        });
        let flush = self.home.has_journal() || self.home.has_ring();
        Ok(HomePlan { id, backing, versions, ring, list, blocks, images_first, flush })
    }

    fn voids_only_copy(&self, backing: Backing, one: &HomePage) -> bool {
        match backing {
            Backing::Ring => self.slots.is_only_copy(one.page),
            Backing::Appended => one.over_only_copy,
            // The record has the slot's own stamp, so it voids only older copies.
            Backing::WriteBack => false,
        }
    }

    /// The oldest change of the page that the HDD may lack, including those in its copy on the SSD.
    fn lsn_lacked(&self, one: &HomePage) -> Lsn {
        if self.slots.is_only_copy(one.page) { one.lsn.min(self.slots.lsn_of(one.page)) } else { one.lsn }
    }

    /// Notes that HDD flush number `over` has completed.
    pub(crate) fn hdd_flushed(&mut self, over: HddFlush) {
        for (page, stamp) in self.home.flushed(over) {
            self.slots.backed_home(page, stamp);
        }
    }

    /// Whether a flush of the HDD is due, for the ring or for slots that back home writes.
    pub(crate) fn wants_hdd_flush(&self) -> bool {
        let front = || self.slots.front_wants_hdd_flush(&|page| self.home.is_backed_by_slot(page));
        self.home.ring_flush_is_due()
            || (self.home.flush_would_settle() && (self.home.backed_flush_is_due() || front()))
    }

    /// Whether a write-back is due.
    pub(crate) fn wants_write_back(&mut self, now: Millis) -> bool {
        let Self { slots, home, .. } = self;
        slots.next_victims_are_dirty(&|page| home.must_keep_copy(page), now)
    }

    /// The maximum number of pages of a write-back. A recovery looks at the pages of the last batch, so a
    /// write-back must not take two.
    pub(crate) fn write_back_max(&self) -> usize {
        WRITE_BACK_MAX.min(self.home.batch_max(Backing::WriteBack))
    }

    /// Holds the next dirty victims, at most `max`, each until [`Protocol::end_write_back`].
    pub(crate) fn begin_write_back(&mut self, max: usize, now: Millis) -> Vec<WriteBack> {
        let Self { slots, home, .. } = self;
        let batch = slots.begin_write_back(&|page| home.must_keep_copy(page), max, now);
        batch.iter().for_each(|one| home.hold(one.page));
        batch
    }

    /// Gives up the clean copies of pages that are kept off the SSD, and holds at most `max` only copies,
    /// each until [`Protocol::end_write_back`], to be written home. `in_flight`: the page's home is being
    /// written.
    pub(crate) fn begin_leaving(
        &mut self,
        in_flight: &dyn Fn(PageId) -> bool,
        max: usize,
        now: Millis,
    ) -> Leaving {
        let Self { slots, home, .. } = self;
        let settles = home.flush_would_settle();
        let on_its_way = |page| {
            let keeps_copy = home.must_keep_copy(page);
            let settles = if keeps_copy { home.is_backed_by_slot(page) && settles } else { !in_flight(page) };
            OnItsWay { keeps_copy, settles }
        };
        let next = slots.next_leaving(&on_its_way, max, now);
        next.held.iter().for_each(|one| home.hold(one.page));
        next
    }

    /// Ends a write-back. `ok`: an HDD flush followed it.
    pub(crate) fn end_write_back(&mut self, done: WriteBack, ok: bool) {
        self.home.release(done.page);
        self.slots.end_write_back(done, ok);
    }

    /// Judges the next slots that are due. Returns the pages that get a second chance, each with its new
    /// slot; no page that is on its way home or whose slot backs a home write gets one (I4). `None`: no slot
    /// was due.
    pub(crate) fn reclaim(&mut self, now: Millis, fresh: &mut dyn FnMut() -> Stamp) -> Option<Vec<Move>> {
        let may = self.may_admit(usize::MAX) && self.drains == 0;
        let Self { slots, home, .. } = self;
        let busy = |page| !may || home.is_writing(page) || home.must_keep_copy(page);
        slots.reclaim(now, &busy, fresh)
    }

    /// Whether changed pages may go to the SSD alone.
    pub(crate) fn writes_back(&self) -> bool {
        self.mode_in_force() == SsdMode::WriteBack && self.drains == 0 && self.ssd_error.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::map::Entry;
    use crate::protocol::slots::SlotParams;
    use pagetier_page::SpaceId;
    use pagetier_policy::{Costs, SlotPolicyParams, SsdPolicy};

    fn page(no: u32) -> PageId {
        PageId::new(SpaceId(1), no)
    }

    fn stamp(no: u32) -> Stamp {
        Stamp::from_bits(u64::from(no) + 1)
    }

    /// The protocol over 48 slots, of which the first 40 hold only copies, and a ring of 64 pages.
    fn protocol(policy: &str) -> Protocol {
        let entry = |no| Entry { page: page(no), stamp: stamp(no), clean: false };
        let full: Vec<_> = (0..40).map(|no| Some(entry(no))).collect();
        let params = SlotParams { slots: 48, zone: 32, reserve: 4, burst: 4, clean_ahead: 4 };
        pagetier_rivals::register();
        let policy = policy.parse::<SsdPolicy>().expect("a policy");
        let policy = policy.build(&SlotPolicyParams::new(Costs::PAPER, 48, 8));
        let slots = Slots::new(params, policy, &full, 0);
        let home = HomeBatches::new(64, 0, 8, Default::default());
        let mut state = Protocol::new(slots, home, SsdMode::WriteBack, Lsn(0));
        state.slots.begin_checkpoint(Millis(0));
        state.slots.end_checkpoint(true);
        state
    }

    /// The pages that get a second chance from a policy that gives one to every page.
    fn moved(begin: impl FnOnce(&mut Protocol)) -> Vec<u32> {
        pagetier_testing::hostile::register();
        let mut state = protocol("hostile:1");
        begin(&mut state);
        let mut moved = Vec::new();
        while let Some(moves) = state.reclaim(Millis(0), &mut || stamp(100)) {
            moved.extend(moves.iter().map(|one| one.from.page.no));
        }
        assert!(!moved.is_empty(), "nothing was moved");
        moved
    }

    fn home_page(no: u32, lsn: u64) -> HomePage {
        HomePage { page: page(no), stamp: stamp(no), lsn: Lsn(lsn), over_only_copy: false }
    }

    #[test]
    fn a_slot_that_backs_a_home_write_is_not_moved_whatever_the_policy_says() {
        let backed = |state: &mut Protocol| {
            (0..40).step_by(2).for_each(|no| state.home.plan_appended(page(no), stamp(no)));
        };
        let moved = moved(backed);
        assert!(moved.iter().all(|no| no % 2 == 1), "{moved:?}: the even ones back home writes");
    }

    #[test]
    fn a_write_back_is_one_batch_however_small_the_ring() {
        let mut state = protocol("lru2");
        assert_eq!(state.write_back_max(), WRITE_BACK_MAX);
        for (ring, max) in [(4, 2), (1, 1), (0, WRITE_BACK_MAX)] {
            state.home = HomeBatches::new(ring, 0, 8, Default::default()).ring_takes_all(true);
            assert_eq!(state.write_back_max(), max, "a ring of {ring} pages");
        }
    }

    /// The moved copy of an old version would have a larger stamp than the record of the newer version, which
    /// would not void it (I16).
    #[test]
    fn a_page_that_is_being_written_home_is_not_moved_whatever_the_policy_says() {
        let going_home = |state: &mut Protocol| {
            let pages: Vec<HomePage> = (0..40).step_by(2).map(|no| home_page(no, 1)).collect();
            state.begin_home_batch(Backing::Ring, &pages, &mut || stamp(90)).expect("there is room");
        };
        let moved = moved(going_home);
        assert!(moved.iter().all(|no| no % 2 == 1), "{moved:?}: the even ones are going home");
    }

    #[test]
    fn the_images_in_the_ring_have_the_changes_of_their_pages_and_of_the_only_copies_they_supersede() {
        // Page 0 has an only copy, whose oldest change is at 20; page 50 has no copy.
        for (no, written, oldest) in [(0, 30, 20), (0, 10, 10), (50, 30, 30)] {
            let mut state = protocol("lru2");
            state.slots.set_lsn_floor(Lsn(20));
            let batch = [home_page(no, written)];
            state.begin_home_batch(Backing::Ring, &batch, &mut || stamp(90)).expect("there is room");
            assert_eq!(state.home.oldest_lsn(), Some(Lsn(oldest)), "page {no}, changed at {written}");
        }
    }
}
