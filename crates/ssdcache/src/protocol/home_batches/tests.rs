//! The table of home writes, step by step, from plain values.

use super::*;

const FRESH: Stamp = Stamp::from_bits(99);

fn page(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

fn at(n: u64) -> Stamp {
    Stamp::from_bits(n)
}

/// Pages from `no` on, with stamps from `stamp` on.
fn versions(no: u32, stamp: u64, count: u32) -> Vec<(PageId, Stamp)> {
    (0..count).map(|i| (page(no + i), at(stamp + u64::from(i)))).collect()
}

fn begin(home: &mut HomeBatches, backing: Backing, versions: Vec<(PageId, Stamp)>) -> Places {
    home.fits(backing, versions.len()).expect("room");
    let stamp_min = versions[0].1;
    let places = home.begin(backing, versions, stamp_min, None);
    home.end_recording(places.id);
    home.validate().expect("sound");
    places
}

#[test]
fn a_ring_image_is_held_until_the_flush_after_its_home_write_and_those_before_it() {
    let mut home = HomeBatches::new(4, 0, 0, Default::default());
    let full = |home: &HomeBatches| home.fits(Backing::Ring, 2) == Err(NoPlace::Ring);
    let first = begin(&mut home, Backing::Ring, versions(1, 10, 2));
    let second = begin(&mut home, Backing::Ring, versions(3, 20, 1));
    assert_eq!((&first.ring[..], &second.ring[..]), (&[0, 1][..], &[2][..]));
    home.flushed(HddFlush(5));
    assert!(full(&home), "its home write is still in flight");
    home.end_home_writes(second.id, true, Vec::new(), HddFlush(6));
    home.flushed(HddFlush(6));
    assert!(full(&home), "the ring is given up in its order");
    home.end_home_writes(first.id, true, Vec::new(), HddFlush(8));
    home.flushed(HddFlush(7));
    assert!(full(&home), "that flush began too early");
    assert_eq!(home.journal_floor(FRESH), (at(10), false));
    home.flushed(HddFlush(8));
    assert_eq!((home.ring_used(), home.journal_floor(FRESH)), (0, (FRESH, false)));
    assert_eq!(begin(&mut home, Backing::Ring, versions(1, 30, 2)).ring, [3, 0]);
}

#[test]
fn an_image_whose_home_write_failed_is_held_until_its_page_is_home_after_all() {
    let mut home = HomeBatches::new(8, 0, 0, Default::default());
    let batch = begin(&mut home, Backing::Ring, versions(1, 10, 2));
    home.end_home_writes(batch.id, true, vec![page(2)], HddFlush(1));
    home.flushed(HddFlush(1));
    assert!(home.ring_is_stuck() && home.needs_ring_repair());
    assert_eq!(home.place_of(page(2), at(11)), Some(1));
    let repair = home.begin_ring_repair();
    assert_eq!(repair, [FailedHome { page: page(2), stamp: at(11), place: 1, optional: false }]);
    assert!(home.is_writing(page(2)) && home.must_keep_copy(page(2)) && home.begin_ring_repair().is_empty());
    assert!(!home.note_ring_repair(page(2), false, HddFlush(2)), "one attempt is not enough");
    home.discard(page(2));
    assert!(home.note_ring_repair(page(2), false, HddFlush(2)), "but for a page of no value");
    home.end_ring_repair(page(2));
    assert!(!home.has_pages_of(SpaceId(1)));
    home.flushed(HddFlush(2));
    assert_eq!(home.ring_used(), 0);
}

#[test]
fn a_page_discarded_between_its_failed_home_write_and_the_end_of_its_batch_gets_one_attempt() {
    let mut home = HomeBatches::new(8, 0, 0, Default::default());
    let batch = begin(&mut home, Backing::Ring, versions(1, 10, 2));
    home.discard(page(1));
    home.discard(page(2));
    home.end_home_writes(batch.id, true, vec![page(2)], HddFlush(1));
    assert_eq!(home.begin_ring_repair().len(), 1);
    assert!(home.note_ring_repair(page(2), false, HddFlush(2)), "it is of no value");
    home.end_ring_repair(page(2));
    // The discard of page 1, whose home write succeeded, does not affect its next version.
    let batch = begin(&mut home, Backing::Ring, versions(1, 20, 1));
    home.end_home_writes(batch.id, true, vec![page(1)], HddFlush(3));
    assert_eq!(home.begin_ring_repair().len(), 1);
    assert!(!home.note_ring_repair(page(1), false, HddFlush(4)), "one attempt is not enough");
}

#[test]
fn without_a_ring_nothing_brings_back_a_page_that_was_discarded_during_its_home_write() {
    let mut home = HomeBatches::new(0, 0, 8, Default::default());
    for failed in [vec![], vec![page(1)]] {
        let batch = begin(&mut home, Backing::Ring, versions(1, 10, 1));
        home.discard(page(1));
        assert!(home.may_resurrect_discarded(), "the home write may still land");
        home.end_home_writes(batch.id, true, failed, HddFlush(1));
        assert!(!home.may_resurrect_discarded());
    }
}

#[test]
fn a_batch_that_was_not_written_home_mends_no_older_failure() {
    let mut home = HomeBatches::new(8, 0, 0, Default::default());
    let torn = begin(&mut home, Backing::Ring, versions(1, 10, 1));
    home.end_home_writes(torn.id, true, vec![page(1)], HddFlush(1));
    let never = begin(&mut home, Backing::Ring, versions(1, 20, 1));
    home.end_home_writes(never.id, false, Vec::new(), HddFlush(1));
    assert!(home.needs_ring_repair(), "the home may still be torn");
}

#[test]
fn a_slot_backs_its_page_from_the_plan_to_the_flush_after_the_home_write() {
    let mut home = HomeBatches::new(0, 0, 8, Default::default());
    home.plan_appended(page(1), at(10));
    home.plan_appended(page(9), at(9));
    assert!(home.is_backed_by_slot(page(1)) && home.is_backed_by_slot(page(9)) && !home.is_writing(page(1)));
    home.cancel_appended(page(9), at(9));
    assert!(!home.must_keep_copy(page(9)), "its slot could not be written");
    let first = begin(&mut home, Backing::Appended, versions(1, 10, 2));
    let second = begin(&mut home, Backing::Appended, versions(3, 12, 1));
    assert_eq!((home.journal_floor(FRESH), home.flush_would_settle()), ((at(10), true), false));
    home.end_home_writes(second.id, true, Vec::new(), HddFlush(4));
    assert!(home.flushed(HddFlush(3)).is_empty(), "that flush began too early");
    assert_eq!((home.journal_needed_from(), home.flushed(HddFlush(4))), (JournalSeq(0), versions(3, 12, 1)));
    home.end_home_writes(first.id, true, vec![page(2)], HddFlush(5));
    assert!(home.is_backed_by_slot(page(1)) && !home.is_backed_by_slot(page(2)), "its home write failed");
    assert_eq!(home.journal_needed_from(), JournalSeq(0), "the map names its slot as an only copy");
    assert_eq!(home.flushed(HddFlush(5)), versions(1, 10, 1));
    assert_eq!((home.journal_floor(FRESH), home.journal_needed_from()), ((at(11), true), JournalSeq(2)));
    assert!(!home.has_pages_of(SpaceId(1)));
}

#[test]
fn a_flush_is_due_before_the_journal_is_full_of_records_that_wait_for_it() {
    let mut home = HomeBatches::new(0, 0, 8, Default::default());
    for no in 0..2 {
        assert!(!home.backed_flush_is_due());
        let batch = begin(&mut home, Backing::Appended, versions(no, 10, 1));
        home.end_home_writes(batch.id, true, Vec::new(), HddFlush(1));
    }
    assert!(home.backed_flush_is_due());
    home.flush_failed();
    assert_eq!(
        (home.flush_would_settle(), home.journal_floor(FRESH)),
        (false, (at(10), true)),
        "they may be torn"
    );
}

#[test]
fn a_checkpoint_frees_no_record_of_pages_on_their_way_home() {
    let mut home = HomeBatches::new(8, 0, 8, JournalSeq(10)..JournalSeq(17));
    assert_eq!((home.journal_needed_from(), home.journal_is_high()), (JournalSeq(17), true));
    let from_pool = begin(&mut home, Backing::Ring, versions(1, 10, 1));
    assert_eq!((from_pool.journal, home.journal_used()), (JournalSeq(17)..JournalSeq(18), 8));
    assert_eq!(home.fits(Backing::Ring, 1), Err(NoPlace::Journal));
    home.free_journal(home.journal_needed_from());
    assert!(!home.journal_is_high(), "a checkpoint would free nothing");
    let write_back = begin(&mut home, Backing::WriteBack, versions(2, 11, 1));
    home.end_home_writes(from_pool.id, true, Vec::new(), HddFlush(1));
    assert_eq!(home.journal_needed_from(), JournalSeq(18));
    home.end_home_writes(write_back.id, true, Vec::new(), HddFlush(1));
    assert_eq!(home.journal_needed_from(), JournalSeq(18), "until its slot is let go of");
    home.forget_write_backs();
    assert_eq!((home.journal_needed_from(), home.journal_used()), (JournalSeq(19), 2));
}

#[test]
fn a_block_that_is_being_written_keeps_its_place_whatever_a_checkpoint_frees() {
    let mut home = HomeBatches::new(8, 0, 8, Default::default());
    let places = home.begin(Backing::Ring, versions(1, 10, 1), at(10), None);
    home.free_journal(home.journal_next());
    assert_eq!(home.journal_used(), 1);
    home.end_recording(places.id);
    assert_eq!(home.journal_used(), 0);
}

#[test]
fn images_of_a_batch_that_never_began_are_held_and_stand_in_no_exchanges_way() {
    let mut home = HomeBatches::new(4, 0, 0, Default::default());
    let all = || vec![page(1), page(2)];
    let batch = begin(&mut home, Backing::Ring, versions(1, 10, 2));
    home.end_home_writes(batch.id, false, all(), HddFlush(1));
    home.flushed(HddFlush(9));
    assert_eq!(home.journal_floor(FRESH), (at(10), false), "a recovery would ignore images that void copies");
    assert!(!home.needs_ring_repair(), "no home is torn");
    // Without the images nothing would be left of these pages: a repair that cannot read them is an error.
    let repair = home.begin_ring_repair();
    assert!(repair.len() == 2 && repair.iter().all(|one| !one.optional));
    for one in repair {
        assert!(home.note_ring_repair(one.page, true, HddFlush(10)));
        home.end_ring_repair(one.page);
    }
    home.flushed(HddFlush(10));
    assert_eq!(home.ring_used(), 0);
    // The same of a batch none of whose records was written.
    let batch = begin(&mut home, Backing::Ring, versions(1, 20, 2));
    home.waive_images(batch.id);
    home.end_home_writes(batch.id, false, all(), HddFlush(11));
    for one in home.begin_ring_repair() {
        assert!(one.optional);
        home.note_wiped_image(one.page, one.stamp, HddFlush(12));
        home.end_ring_repair(one.page);
    }
    home.flushed(HddFlush(12));
    assert_eq!(home.ring_used(), 0);
    home.validate().unwrap();
}

#[test]
fn a_ring_that_takes_all_holds_the_images_of_a_write_back_until_its_homes_are_durable() {
    let mut home = HomeBatches::new(4, 0, 8, Default::default()).ring_takes_all(true);
    assert_eq!(home.batch_max(Backing::WriteBack), 2);
    let written = begin(&mut home, Backing::WriteBack, versions(1, 10, 2));
    let appended = begin(&mut home, Backing::Appended, versions(3, 20, 2));
    assert_eq!((&written.ring[..], &appended.ring[..]), (&[0, 1][..], &[2, 3][..]));
    assert_eq!(home.journal_floor(FRESH), (at(20), true), "the floor is that of the appended slots alone");
    home.end_home_writes(written.id, true, Vec::new(), HddFlush(2));
    home.end_home_writes(appended.id, true, Vec::new(), HddFlush(3));
    // The slots were released without a flush: the images stay, and nothing pins the journal.
    home.forget_write_backs();
    home.validate().expect("sound");
    assert_eq!((home.ring_used(), home.journal_needed_from()), (4, appended.journal.start));
    assert!(home.flushed(HddFlush(2)).is_empty());
    assert_eq!(home.ring_used(), 2);
    assert_eq!(home.flushed(HddFlush(3)), versions(3, 20, 2));
    home.validate().expect("sound");
    assert_eq!((home.ring_used(), home.journal_needed_from()), (0, home.journal_next()));
}

#[test]
fn a_write_back_pins_the_journal_though_a_flush_has_freed_its_images() {
    let mut home = HomeBatches::new(4, 0, 8, Default::default()).ring_takes_all(true);
    let batch = begin(&mut home, Backing::WriteBack, versions(1, 10, 2));
    home.end_home_writes(batch.id, true, Vec::new(), HddFlush(1));
    home.flushed(HddFlush(1));
    assert_eq!((home.ring_used(), home.journal_needed_from()), (0, batch.journal.start));
    home.forget_write_backs();
    assert_eq!(home.journal_needed_from(), home.journal_next());
}

#[test]
fn appended_slots_settle_though_their_images_wait_for_an_older_batch() {
    let mut home = HomeBatches::new(8, 0, 8, Default::default()).ring_takes_all(true);
    let first = begin(&mut home, Backing::Ring, versions(1, 10, 1));
    let second = begin(&mut home, Backing::Appended, versions(2, 20, 1));
    home.end_home_writes(second.id, true, Vec::new(), HddFlush(1));
    assert_eq!(home.flushed(HddFlush(1)), versions(2, 20, 1));
    home.validate().expect("sound");
    assert_eq!((home.ring_used(), home.flush_would_settle()), (2, false));
    home.end_home_writes(first.id, true, Vec::new(), HddFlush(2));
    home.flushed(HddFlush(2));
    assert_eq!(home.ring_used(), 0);
}

#[test]
fn a_ring_at_rest_lists_each_batch_in_one_place_and_no_more_pages_than_a_note_has_room_for() {
    let mut home = HomeBatches::new(8, 0, 0, Default::default()).ring_rests(true);
    let quarter = LISTED_MAX as u32 / 4;
    let first = begin(&mut home, Backing::Ring, versions(0, 10, quarter));
    assert_eq!((first.ring, home.ring_floor(FRESH)), (vec![0], at(10)));
    assert!(home.place_of(page(0), at(10)).is_none() && !home.has_ring(), "it has no image");
    // Of a home write that failed the ring has nothing that would repair it.
    home.end_home_writes(first.id, true, vec![page(0)], HddFlush(1));
    assert!(!home.needs_ring_repair() && !home.ring_flush_is_due());
    for n in 1..4 {
        let next = begin(&mut home, Backing::Ring, versions(n * quarter, 1000 * u64::from(n), quarter));
        home.end_home_writes(next.id, true, Vec::new(), HddFlush(2));
    }
    assert!(home.ring_flush_is_due());
    assert_eq!(home.fits(Backing::Ring, 1), Err(NoPlace::Ring));
    home.flushed(HddFlush(1));
    assert_eq!((home.fits(Backing::Ring, 1), home.ring_floor(FRESH)), (Ok(()), at(1000)));
}
