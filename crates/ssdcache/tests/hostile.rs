//! Slots under hostile policies: a bad policy costs speed, never data.
//!
//! A model tracks what every slot and home holds. Reads must find the newest version of every page, and no
//! slot may be given out that holds its only copy.

use pagetier_page::{PageId, SpaceId, Stamp};
use pagetier_policy::{Access, Cause, Costs, Location, Millis, SlotId, SlotPolicyParams, SsdPolicy};
use pagetier_ssdcache::{Located, MapWork, Move, Plan, SlotParams, Slots, SsdFlush, Ticket, WriteBack};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

const NOW: Millis = Millis(0);
const SLOTS: u32 = 48;
const PAGES: u32 = 80;

fn page(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

fn slots(policy: &str, zone: u32) -> Slots {
    pagetier_testing::hostile::register();
    pagetier_rivals::register();
    let params = SlotParams { slots: SLOTS, zone, reserve: 4, burst: 4, clean_ahead: 4 };
    let policy = policy.parse::<SsdPolicy>().expect("a policy").build(&SlotPolicyParams::new(
        Costs::PAPER,
        SLOTS as usize,
        8,
    ));
    let mut slots = Slots::new(params, policy, &[], 0);
    slots.begin_checkpoint(NOW);
    slots.end_checkpoint(true);
    slots
}

/// A source of stamps.
struct Stamps(u64);

impl Stamps {
    fn fresh(&mut self) -> Stamp {
        self.0 += 1;
        Stamp::from_bits(self.0)
    }
}

fn planned(slots: &mut Slots, stamps: &mut Stamps, no: u32) -> Option<Ticket> {
    match slots.plan_dirty(page(no), NOW, &mut || stamps.fresh()) {
        Plan::Ssd(ticket) => Some(ticket),
        Plan::Hdd | Plan::Wait => None,
    }
}

fn reclaim(slots: &mut Slots, stamps: &mut Stamps) -> Option<Vec<Move>> {
    slots.reclaim(NOW, &|_| false, &mut || stamps.fresh())
}

#[test]
fn a_page_that_is_being_rewritten_is_not_copied_to_the_front_though_the_policy_says_so() {
    // Second chances for all, in groups.
    let mut slots = slots("hostile:1", 32);
    let mut stamps = Stamps(100);
    while reclaim(&mut slots, &mut stamps).is_some() {}
    let first = planned(&mut slots, &mut stamps, 1).expect("the SSD is empty");
    slots.end_write(first, true, SsdFlush(1), NOW);
    // The second version has been stamped and is on its way.
    let second = planned(&mut slots, &mut stamps, 1).expect("the SSD is empty");
    let mut judged = 0;
    for no in 2..100 {
        for one in reclaim(&mut slots, &mut stamps).into_iter().flatten() {
            assert_ne!(one.from.page, page(1), "an old version is copied under a larger stamp");
            judged += 1;
            slots.end_write(one.to, true, SsdFlush(1), NOW);
            slots.end_move(one, true, NOW);
        }
        slots.flushed(SsdFlush(1));
        for copy in slots.begin_write_back(&|_| false, 32, NOW) {
            slots.end_write_back(copy, true);
        }
        slots.begin_checkpoint(NOW);
        slots.end_checkpoint(true);
        if let Some(other) = planned(&mut slots, &mut stamps, no) {
            slots.end_write(other, true, SsdFlush(1), NOW);
        }
    }
    assert!(judged > 4, "others get their second chance: {judged}");
    slots.end_write(second, true, SsdFlush(1), NOW);
    assert_eq!(slots.copy_of(page(1)).map(|(slot, _)| slot), Some(second.slot));
    assert!(slots.holds(page(1), second.stamp));
    slots.validate().unwrap();
}

/// A page gets a second chance, its source turns out bad, and a newer version is written home before the copy
/// completes. Returns where the slots say that the page is.
fn after_a_bad_source() -> Location {
    let mut slots = slots("mv-fifo-gsc", 32);
    let mut stamps = Stamps(100);
    while reclaim(&mut slots, &mut stamps).is_some() {}
    for no in 0..8 {
        let ticket = slots.plan_copy(page(no), Cause::Evicted, NOW, &mut || stamps.fresh());
        slots.end_write(ticket.expect("the SSD is empty"), true, SsdFlush(1), NOW);
        slots.note_read(page(no), Some(Location::Ssd), Access::Random, NOW);
    }
    // Write until the first group is judged again.
    let mut moves = Vec::new();
    let mut no = 100;
    while moves.is_empty() {
        assert!(no < 400, "nothing gets a second chance");
        if let Some(ticket) = planned(&mut slots, &mut stamps, no) {
            slots.end_write(ticket, true, SsdFlush(1), NOW);
        }
        slots.flushed(SsdFlush(1));
        for copy in slots.begin_write_back(&|_| false, 32, NOW) {
            slots.end_write_back(copy, true);
        }
        slots.begin_checkpoint(NOW);
        slots.end_checkpoint(true);
        moves = reclaim(&mut slots, &mut stamps).unwrap_or_default();
        no += 1;
    }
    let one = moves[0];
    let moved = one.from.page;
    assert!(!one.to.dirty, "the HDD has it, too");
    assert!(slots.drop_bad_copy(moved, one.from.slot, NOW), "a read finds its source bad");
    slots.validate().unwrap();
    // It is changed and written home; only then does the copy complete.
    assert_eq!(slots.location(moved), Location::Hdd);
    for other in moves {
        slots.end_write(other.to, true, SsdFlush(2), NOW);
        slots.end_move(other, true, NOW);
    }
    slots.validate().unwrap();
    slots.location(moved)
}

#[test]
fn a_second_chance_whose_source_is_dropped_as_bad_makes_no_copy() {
    assert_eq!(after_a_bad_source(), Location::Hdd, "the HDD has a newer version");
}

/// A version of a page: the page's number, the version, its stamp.
type Version = (u32, u64, u64);

/// The model: the contents of slots and homes after every completed write.
struct World {
    slots: Slots,
    stamps: Stamps,
    rng: SmallRng,
    /// The number of completed flushes of the SSD.
    flush: u64,
    /// By slot: the version whose write completed last.
    held: Vec<Option<Version>>,
    /// By page: the newest version written anywhere, and the one at home.
    newest: BTreeMap<u32, u64>,
    home: BTreeMap<u32, u64>,
    writing: Vec<(Ticket, u64)>,
    moving: Vec<(Move, Option<u64>)>,
    backing: Vec<(WriteBack, Option<u64>)>,
    admitted: u64,
}

impl World {
    fn new(seed: u64, policy: &str) -> Self {
        Self {
            slots: slots(policy, 24),
            stamps: Stamps(100),
            rng: SmallRng::seed_from_u64(seed),
            flush: 0,
            held: vec![None; SLOTS as usize],
            newest: BTreeMap::new(),
            home: BTreeMap::new(),
            writing: Vec::new(),
            moving: Vec::new(),
            backing: Vec::new(),
            admitted: 0,
        }
    }

    fn in_flight(&self, no: u32) -> bool {
        self.writing.iter().any(|(ticket, _)| ticket.page.no == no)
    }

    /// Whether a write-back of the page is under way.
    fn goes_home(&self, no: u32) -> bool {
        self.backing.iter().any(|(one, _)| one.page.no == no)
    }

    /// The content of a slot that is given out must not be the only copy of a page's newest version.
    fn given(&mut self, slot: SlotId) {
        let Some((no, version, _)) = self.held[slot.at()].take() else { return };
        let newest = self.newest.get(&no) == Some(&version);
        let elsewhere = self.held.iter().flatten().any(|(p, v, _)| (*p, *v) == (no, version));
        assert!(!newest || elsewhere || self.home.get(&no) == Some(&version), "page {no} is written over");
    }

    fn step(&mut self) {
        let no = self.rng.random_range(0..PAGES);
        match self.rng.random_range(0..12) {
            0..4 if !self.in_flight(no) => self.write(no),
            4 if !self.in_flight(no) && !self.goes_home(no) => self.evict(no),
            5 | 6 => self.end_write(),
            7 => self.flush(),
            8 => self.write_back(),
            9 => self.moves(),
            10 => self.checkpoint(),
            _ => self.read(no),
        }
        self.slots.validate().unwrap();
    }

    fn write(&mut self, no: u32) {
        let version = self.newest.get(&no).map_or(1, |v| v + 1);
        self.slots.dirtied(page(no), 1, NOW);
        match self.slots.plan_dirty(page(no), NOW, &mut || self.stamps.fresh()) {
            Plan::Ssd(ticket) => {
                self.admitted += 1;
                self.given(ticket.slot);
                self.writing.push((ticket, version));
            }
            Plan::Hdd if !self.goes_home(no) => {
                // At once, like the pages of a batch that nothing delays.
                self.home.insert(no, version);
                self.newest.insert(no, version);
                if self.slots.location(page(no)) == Location::Ssd {
                    self.slots.discard(page(no));
                }
            }
            Plan::Hdd | Plan::Wait => {}
        }
    }

    /// A clean page leaves the pool.
    fn evict(&mut self, no: u32) {
        let Some(version) = self.newest.get(&no).copied() else { return };
        if self.home.get(&no) != Some(&version) {
            return;
        }
        let ticket = self.slots.plan_copy(page(no), Cause::Evicted, NOW, &mut || self.stamps.fresh());
        if let Some(ticket) = ticket {
            self.given(ticket.slot);
            self.writing.push((ticket, version));
        }
    }

    fn end_write(&mut self) {
        if self.writing.is_empty() {
            return;
        }
        let (ticket, version) = self.writing.swap_remove(self.rng.random_range(0..self.writing.len()));
        let (no, stamp) = (ticket.page.no, ticket.stamp.bits());
        self.held[ticket.slot.at()] = Some((no, version, stamp));
        if ticket.dirty {
            self.newest.insert(no, version);
        }
        self.slots.end_write(ticket, true, SsdFlush(self.flush + 1), NOW);
        // Under the doublewrite policy: home and durable in one step.
        if ticket.backs_home && self.slots.holds(ticket.page, ticket.stamp) {
            self.home.insert(no, version);
        }
    }

    fn flush(&mut self) {
        self.flush += 1;
        self.slots.flushed(SsdFlush(self.flush));
    }

    fn write_back(&mut self) {
        if self.backing.is_empty() {
            let due = self.slots.next_victims_are_dirty(&|_| false, NOW);
            let batch = if due { self.slots.begin_write_back(&|_| false, 8, NOW) } else { Vec::new() };
            self.backing = batch.into_iter().map(|one| (one, self.version_in(one.slot, one.page))).collect();
            return;
        }
        for (one, version) in std::mem::take(&mut self.backing) {
            // Right before the home write, check that the slot still holds that version.
            let holds = self.slots.holds(one.page, one.stamp);
            if holds {
                self.home.insert(one.page.no, version.expect("a slot that is held keeps what it has"));
            }
            self.slots.end_write_back(one, holds);
        }
    }

    fn version_in(&self, slot: SlotId, page: PageId) -> Option<u64> {
        self.held[slot.at()].filter(|(no, ..)| *no == page.no).map(|(_, version, _)| version)
    }

    fn moves(&mut self) {
        if self.moving.is_empty() && self.backing.is_empty() {
            let moves = reclaim(&mut self.slots, &mut self.stamps).unwrap_or_default();
            for one in moves {
                self.given(one.to.slot);
                let version = self.version_in(one.from.slot, one.from.page);
                self.moving.push((one, version));
            }
            return;
        }
        for (one, version) in std::mem::take(&mut self.moving) {
            let version = version.expect("a slot that is held keeps what it has");
            self.held[one.to.slot.at()] = Some((one.to.page.no, version, one.to.stamp.bits()));
            self.slots.end_write(one.to, true, SsdFlush(self.flush + 1), NOW);
            self.slots.end_move(one, true, NOW);
        }
    }

    fn checkpoint(&mut self) {
        match self.slots.map_work(false, NOW) {
            Some(MapWork::Checkpoint) => {
                self.slots.begin_checkpoint(NOW);
                self.flush();
                let ok = self.rng.random_range(0..8) > 0;
                self.slots.end_checkpoint(ok);
            }
            Some(MapWork::Flush) => self.flush(),
            None => {}
        }
    }

    fn read(&mut self, no: u32) {
        let newest = self.newest.get(&no).copied();
        match self.slots.begin_read(page(no)) {
            Located::Slot { slot, stamp, dirty } => {
                let held = self.held[slot.at()].expect("something was written");
                assert_eq!((held.0, held.2), (no, stamp.bits()), "another image than the map says");
                assert!(Some(held.1) == newest || self.in_flight(no), "page {no}: {held:?}, not {newest:?}");
                self.slots.end_read(slot);
                if !dirty && self.rng.random_range(0..4) == 0 {
                    self.slots.drop_bad_copy(page(no), slot, NOW);
                }
            }
            Located::Hdd => {
                let fine = self.home.get(&no).copied() == newest || self.in_flight(no);
                assert!(fine, "page {no} is not at home in version {newest:?}");
            }
            Located::Pending => {}
        }
    }
}

#[test]
fn whatever_a_policy_answers_the_newest_versions_are_found_and_never_written_over() {
    let mut admitted = 0;
    for seed in 0..600 {
        let mut world = World::new(seed, &format!("hostile:{seed}"));
        for _ in 0..1200 {
            world.step();
        }
        admitted += world.admitted;
    }
    assert!(admitted > 60_000, "only {admitted} pages went to the SSD");
}

#[test]
fn the_model_passes_the_policies_that_are_not_hostile() {
    for policy in pagetier_rivals::SSD_POLICIES {
        let mut world = World::new(7, &policy.to_string());
        for _ in 0..1200 {
            world.step();
        }
    }
}
