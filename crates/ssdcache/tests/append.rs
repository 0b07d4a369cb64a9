//! Slots under policies that append: the order in which they are given out, what the front waits for, and
//! second chances.

use pagetier_page::{PageId, SpaceId, Stamp};
use pagetier_policy::{Access, Cause, Costs, Location, Millis, SlotId, SlotPolicyParams, SsdPolicy};
use pagetier_ssdcache::{Entry, Located, MapWork, Plan, SlotParams, Slots, SsdFlush, Ticket};

const NOW: Millis = Millis(0);

fn page(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

/// Slots with a source of stamps and of SSD flushes.
struct Fixture {
    slots: Slots,
    stamp: u64,
    flush: u64,
}

impl Fixture {
    /// Empty slots after a first checkpoint.
    fn new(policy: &str, slots: u32, zone: u32) -> Self {
        Self::recovered(policy, slots, zone, &[])
    }

    fn recovered(policy: &str, slots: u32, zone: u32, map: &[Option<Entry>]) -> Self {
        let params = SlotParams { slots, zone, reserve: 4, burst: 4, clean_ahead: 2 };
        pagetier_rivals::register();
        let policy = policy.parse::<SsdPolicy>().unwrap().build(&SlotPolicyParams::new(
            Costs::PAPER,
            slots as usize,
            4,
        ));
        let mut fixture = Self { slots: Slots::new(params, policy, map, 0), stamp: 100, flush: 0 };
        fixture.checkpoint();
        fixture
    }

    fn checkpoint(&mut self) {
        self.slots.begin_checkpoint(NOW);
        self.slots.end_checkpoint(true);
        self.slots.validate().unwrap();
    }

    fn plan(&mut self, no: u32) -> Plan {
        let stamp = &mut self.stamp;
        self.slots.plan_dirty(page(no), NOW, &mut || {
            *stamp += 1;
            Stamp::from_bits(*stamp)
        })
    }

    fn end(&mut self, ticket: Ticket) {
        self.slots.end_write(ticket, true, SsdFlush(self.flush + 1), NOW);
        self.slots.validate().unwrap();
    }

    /// Writes a new version of the page; returns its slot.
    fn write(&mut self, no: u32) -> Option<u32> {
        match self.plan(no) {
            Plan::Ssd(ticket) => {
                self.end(ticket);
                Some(ticket.slot.0)
            }
            Plan::Hdd | Plan::Wait => None,
        }
    }

    fn flush(&mut self) {
        self.flush += 1;
        self.slots.flushed(SsdFlush(self.flush));
    }

    /// Writes the next pages home, which makes their slots clean. Returns the slots.
    fn write_back(&mut self) -> Vec<u32> {
        let batch = self.slots.begin_write_back(&|_| false, 32, NOW);
        let slots = batch.iter().map(|one| one.slot.0).collect();
        batch.into_iter().for_each(|one| self.slots.end_write_back(one, true));
        slots
    }

    fn read(&mut self, no: u32) {
        self.slots.note_read(page(no), Some(Location::Ssd), Access::Random, NOW);
    }

    fn reclaim(&mut self, busy: &[u32]) -> Option<Vec<pagetier_ssdcache::Move>> {
        let stamp = &mut self.stamp;
        let is_busy = |page: PageId| busy.contains(&page.no);
        self.slots.reclaim(NOW, &is_busy, &mut || {
            *stamp += 1;
            Stamp::from_bits(*stamp)
        })
    }
}

#[test]
fn slots_are_given_out_in_circular_order_within_the_zone() {
    let mut fixture = Fixture::new("mv-fifo", 12, 8);
    let first: Vec<_> = (0..8).map(|no| fixture.write(no)).collect();
    assert_eq!(first, (0..8).map(Some).collect::<Vec<_>>());
    assert_eq!(fixture.plan(8), Plan::Wait, "the zone ends here");
    assert_eq!(fixture.slots.map_work(false, NOW), Some(MapWork::Checkpoint));
    fixture.checkpoint();
    // Page 3 is rewritten: its old slot is obsolete and has to wait for its turn.
    assert_eq!([fixture.write(3), fixture.write(8)], [Some(8), Some(9)]);
    // While the next checkpoint is written, only slots in both zones.
    fixture.slots.begin_checkpoint(NOW);
    assert_eq!([fixture.write(9), fixture.write(10)], [Some(10), Some(11)]);
    fixture.slots.end_checkpoint(true);
    assert_eq!(fixture.plan(11), Plan::Wait, "the page in slot 0 is not home");
    assert_eq!(fixture.write_back(), [0, 1, 2]);
    assert_eq!([fixture.write(11), fixture.write(12)], [Some(0), Some(1)]);
    assert_eq!(
        (fixture.slots.location(page(0)), fixture.slots.location(page(3))),
        (Location::Hdd, Location::Ssd)
    );
}

#[test]
fn a_void_slot_waits_for_a_flush_and_the_front_for_it() {
    let mut fixture = Fixture::new("mv-fifo", 8, 8);
    for no in [0, 1, 2, 3, 0, 4, 5, 6] {
        assert!(fixture.write(no).is_some());
    }
    fixture.checkpoint();
    assert_eq!(fixture.plan(7), Plan::Wait, "the new version of page 0 is not durable yet");
    assert_eq!(fixture.slots.map_work(false, NOW), Some(MapWork::Flush));
    fixture.flush();
    assert_eq!(fixture.write(7), Some(0));
}

#[test]
fn the_front_passes_over_slots_that_are_read_bad_or_kept_by_a_discarded_page() {
    let mut fixture = Fixture::new("mv-fifo", 12, 12);
    for no in 0..11 {
        assert!(fixture.write(no).is_some());
    }
    let Plan::Ssd(ticket) = fixture.plan(11) else { panic!("the last slot is free") };
    fixture.slots.end_write(ticket, false, SsdFlush(1), NOW);
    fixture.checkpoint();
    // It is not home: until a checkpoint does not name it, a crash has to find it.
    fixture.slots.discard(page(2));
    assert_eq!(fixture.write_back(), [0, 1, 3]);
    let held = fixture.slots.begin_read(page(1));
    assert_eq!([fixture.write(20), fixture.write(21)], [Some(0), Some(3)], "slot 1 is being read: {held:?}");
    for no in 4..11 {
        fixture.write_back();
        assert_eq!(fixture.write(18 + no), Some(no));
    }
    fixture.slots.end_read(SlotId(1));
    fixture.checkpoint();
    fixture.write_back();
    let slots: Vec<_> = (40..43).map(|no| fixture.write(no)).collect();
    assert_eq!(slots, [Some(0), Some(1), Some(2)], "slot 11 is bad");
}

#[test]
fn after_a_recovery_the_front_is_behind_the_slot_written_last() {
    let entry = |no, stamp| Some(Entry { page: page(no), stamp: Stamp::from_bits(stamp), clean: true });
    let map = [entry(1, 30), entry(2, 31), None, entry(3, 20), entry(4, 21), None, None, None];
    let mut fixture = Fixture::recovered("mv-fifo", 8, 8, &map);
    let slots: Vec<_> = (10..14).map(|no| fixture.write(no).unwrap()).collect();
    assert_eq!(slots, [2, 3, 4, 5]);
    assert_eq!(fixture.slots.pages(), 6, "pages 3 and 4 were clean and had to go");
}

#[test]
fn a_page_read_since_it_was_written_is_copied_to_the_front() {
    let mut fixture = Fixture::new("mv-fifo-gsc", 32, 32);
    assert_eq!(fixture.plan(99), Plan::Wait, "which pages stay is not decided yet");
    // Groups of 8, a quarter of the zone; one group is judged in advance.
    for no in 0..24 {
        while let Some(moves) = fixture.reclaim(&[]) {
            assert_eq!(moves, []);
        }
        assert_eq!(fixture.write(no), Some(no));
    }
    fixture.read(2);
    fixture.read(5);
    let moves = fixture.reclaim(&[5]).expect("slots 0 to 7 are due");
    let [one] = moves[..] else { panic!("page 5 has to stay where it is: {moves:?}") };
    assert_eq!(
        (one.from.page, one.from.slot, one.to.slot, one.to.dirty),
        (page(2), SlotId(2), SlotId(24), true)
    );
    fixture.slots.end_write(one.to, true, SsdFlush(1), NOW);
    fixture.slots.end_move(one, true, NOW);
    assert_eq!(
        (fixture.slots.copy_of(page(2)), fixture.slots.counts().second_chances),
        (Some((SlotId(24), false)), 1)
    );
    assert_eq!(fixture.write(30), Some(25));
    fixture.slots.validate().unwrap();
}

#[test]
fn a_moved_page_that_is_written_anew_meanwhile_stays_the_newer_one() {
    let mut fixture = Fixture::new("mv-fifo-gsc", 32, 32);
    let mut next = 0;
    let mut moved = Vec::new();
    // Continue around the circle, reading page 0 all the time, until it is to be moved.
    while moved.is_empty() {
        if let Some(moves) = fixture.reclaim(&[]) {
            moved = moves;
            continue;
        }
        fixture.flush();
        if fixture.slots.map_work(false, NOW) == Some(MapWork::Checkpoint) {
            fixture.checkpoint();
        }
        fixture.write_back();
        fixture.write(next % 200).or_else(|| fixture.write(next % 200));
        next += 1;
        fixture.read(0);
        assert!(next < 500, "page 0 never gets its second chance");
    }
    let one = moved[0];
    assert_eq!((one.from.page, one.to.page, moved.len()), (page(0), page(0), 1));
    assert_eq!(fixture.slots.location(page(0)), Location::Ssd);
    let newer = fixture.write(0).expect("there is room");
    fixture.slots.end_write(one.to, true, SsdFlush(fixture.flush + 1), NOW);
    fixture.slots.end_move(one, true, NOW);
    fixture.slots.validate().unwrap();
    assert_eq!(fixture.slots.copy_of(page(0)).map(|(slot, _)| slot), Some(SlotId(newer)));
}

#[test]
fn a_page_on_its_way_home_is_not_moved() {
    let mut fixture = Fixture::new("mv-fifo-gsc", 32, 32);
    for no in 0..200 {
        fixture.flush();
        let moves = fixture.reclaim(&(0..400).collect::<Vec<_>>());
        assert!(moves.is_none_or(|moves| moves.is_empty()));
        if fixture.slots.map_work(false, NOW) == Some(MapWork::Checkpoint) {
            fixture.checkpoint();
        }
        fixture.write_back();
        fixture.write(no);
        fixture.read(no);
    }
}

#[test]
fn a_doublewrite_slot_backs_its_page_and_a_full_zone_sends_pages_to_the_ring() {
    let mut fixture = Fixture::new("doublewrite", 12, 8);
    let Plan::Ssd(ticket) = fixture.plan(1) else { panic!("there is room") };
    assert!(ticket.backs_home && ticket.dirty && !ticket.over_only_copy);
    fixture.end(ticket);
    let Plan::Ssd(again) = fixture.plan(1) else { panic!("there is room") };
    assert!(again.over_only_copy, "the HDD has not got the version before");
    fixture.end(again);
    for no in 2..8 {
        assert!(fixture.write(no).is_some());
    }
    assert_eq!(fixture.plan(9), Plan::Hdd);
    // Pages that leave the pool are not admitted.
    assert_eq!(fixture.slots.plan_copy(page(9), Cause::Evicted, NOW, &mut || Stamp::from_bits(999)), None);
}

#[test]
fn a_page_written_through_keeps_its_place_in_another_slot() {
    let mut fixture = Fixture::new("tac", 12, 12);
    let mut stamp = 500;
    let mut fresh = || {
        stamp += 1;
        Stamp::from_bits(stamp)
    };
    assert!(fixture.slots.writes_home_first() && fixture.slots.admits_on_read());
    let first = fixture.slots.plan_copy(page(1), Cause::Read, NOW, &mut fresh).expect("a slot is free");
    fixture.end(first);
    assert!(!fixture.slots.dirtied(page(1), 1, NOW), "the copy is what the HDD has");
    let second = fixture.slots.plan_arrived(page(1), true, NOW, &mut fresh).expect("a slot is free");
    assert!(!second.dirty && fixture.slots.location(page(1)) == Location::Ssd);
    // The page is written home again while that copy is on its way: the copy does not count.
    let third = fixture.slots.plan_arrived(page(1), true, NOW, &mut fresh).expect("a slot is free");
    fixture.end(third);
    fixture.end(second);
    assert_eq!(fixture.slots.copy_of(page(1)), Some((third.slot, true)));
    // A page without a copy is not admitted by being written; one that cannot be copied loses its place.
    assert_eq!(fixture.slots.plan_arrived(page(2), true, NOW, &mut fresh), None);
    assert_eq!(fixture.slots.plan_arrived(page(1), false, NOW, &mut fresh), None);
    assert_eq!(fixture.slots.location(page(1)), Location::Hdd);
    assert_eq!((fixture.slots.counts().renewed, fixture.slots.counts().admitted_on_read), (2, 1));
    fixture.slots.validate().unwrap();
}

#[test]
fn lru2_invalidates_copies_that_the_hdd_has_too_and_no_others() {
    let mut fixture = Fixture::new("lru2", 12, 12);
    let clean = fixture.slots.plan_copy(page(1), Cause::Evicted, NOW, &mut || Stamp::from_bits(7)).unwrap();
    fixture.end(clean);
    fixture.write(2).unwrap();
    assert!(fixture.slots.dirtied(page(1), 0, NOW));
    assert!(!fixture.slots.dirtied(page(2), 0, NOW), "the HDD has not got this version");
    assert_eq!([1, 2].map(|no| fixture.slots.location(page(no))), [Location::Hdd, Location::Ssd]);
}

#[test]
fn an_obsolete_slot_is_given_out_only_when_its_last_reader_has_gone() {
    for reclaimed in [false, true] {
        let mut fixture = Fixture::new("lru2", 16, 16);
        let slot = fixture.write(1).expect("the SSD is empty");
        for _ in 0..2 {
            assert!(
                matches!(fixture.slots.begin_read(page(1)), Located::Slot { slot: read, .. } if read.0 == slot)
            );
        }
        fixture.write(1).expect("a slot is free");
        // Its successor becomes durable: by a flush, or in a readmission of the SSD, by the next one.
        if reclaimed {
            fixture.slots.written_again(SsdFlush(0), SsdFlush(9));
            fixture.slots.flushed(SsdFlush(8));
            assert_eq!(fixture.slots.free_slots().retired, 1, "it is the durable version until then");
            fixture.slots.flushed(SsdFlush(9));
            fixture.slots.take_into_use();
        } else {
            fixture.flush()
        }
        fixture.slots.end_read(SlotId(slot));
        fixture.checkpoint();
        let free =
            |fixture: &Fixture| fixture.slots.free_slots().writable + fixture.slots.free_slots().waiting;
        assert_eq!(free(&fixture), 14, "one reader is left");
        for no in 10..40 {
            assert_ne!(fixture.write(no), Some(slot));
        }
        let before = free(&fixture);
        fixture.slots.end_read(SlotId(slot));
        assert_eq!(free(&fixture), before + 1);
    }
}

#[test]
fn a_writer_that_found_no_slot_is_looked_after_once() {
    let mut fixture = Fixture::new("mv-fifo", 12, 12);
    assert!((0..12).all(|no| fixture.write(no).is_some()));
    fixture.checkpoint();
    assert_eq!(fixture.plan(12), Plan::Wait, "the page in slot 0 is not home");
    assert!(fixture.slots.wants_look());
    assert_eq!(fixture.slots.map_work(false, NOW), None, "neither a checkpoint nor a flush would help");
    assert!(!fixture.slots.wants_look(), "so no flush is due later on that account");
}

#[test]
fn a_slot_is_given_out_once_under_a_zone_of_all_slots_one_of_which_is_bad() {
    let mut fixture = Fixture::new("mv-fifo", 12, 12);
    let Plan::Ssd(first) = fixture.plan(0) else { panic!("the SSD is empty") };
    fixture.slots.end_write(first, false, SsdFlush(1), NOW);
    fixture.checkpoint();
    assert_eq!(
        (1..12).map(|no| fixture.write(no)).collect::<Vec<_>>(),
        (1..12).map(Some).collect::<Vec<_>>()
    );
    fixture.flush();
    fixture.write_back();
    assert_eq!(fixture.plan(20), Plan::Wait, "the zone ends here");
    fixture.checkpoint();
    assert_eq!(fixture.write(20), Some(1));
}

#[test]
fn a_front_with_enough_slots_to_give_out_wants_no_write_back() {
    let mut fixture = Fixture::new("mv-fifo", 12, 12);
    assert!((0..12).all(|no| fixture.write(no).is_some()));
    fixture.checkpoint();
    assert!(fixture.slots.next_victims_are_dirty(&|_| false, NOW));
    fixture.flush();
    assert_eq!(fixture.write_back(), [0, 1, 2, 3]);
    assert_eq!(fixture.write(12), Some(0));
    assert!(
        !fixture.slots.next_victims_are_dirty(&|_| false, NOW),
        "three of the next four can be given out"
    );
    assert_eq!([fixture.write(13), fixture.write(14)], [Some(1), Some(2)]);
    assert!(fixture.slots.next_victims_are_dirty(&|_| false, NOW));
}
