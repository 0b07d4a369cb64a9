//! Crashes of checkpoints that are captured in pieces, against a model of both devices (I44).
//!
//! Pages are written, moved, written back, written home, changed in memory and discarded between any two
//! steps of a checkpoint. After each step the power is cut: what no flush has covered is kept, lost or torn
//! at random, and a recovery has to find every page, no older than it was at the last flush that covers it.
//! With the ring on the HDD the SSD may be lost, too: then every home must be whole, and no older than it
//! was.

use super::checkpoint::Checkpoint;
use super::flushes::{HddFlush, SsdFlush};
use super::home_batches::{BatchId, HomeBatches};
use super::recovery::{Evidence, Image};
use super::slots::{Move, Plan, SlotParams, Slots, Ticket, WriteBack};
use super::{HomePage, Protocol};
use crate::format::journal::{Backing, Block};
use crate::format::map::{MapBody, MapHeader, MapPiece};
use crate::mode::SsdMode;
use pagetier_page::{Lsn, PageId, SpaceId, Stamp};
use pagetier_policy::{Access, Cause, Costs, Location, Millis, SlotId, SlotPolicyParams, SsdPolicy};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustc_hash::{FxHashMap, FxHashSet};

const NOW: Millis = Millis(0);
const SLOTS: u32 = 40;
const PAGES: u32 = 56;
const RING: u32 = 16;
const JOURNAL: u32 = 6;
/// The slots of a piece.
const PIECE: u32 = 7;

/// What a checkpoint does otherwise, to show that the model notices it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Broken {
    /// The watermark is that of the end of the capture.
    WatermarkLate,
    /// The journal is free up to the end of the capture.
    JournalLate,
    /// The zone is the one at the end of the capture.
    ZoneLate,
    /// The flush comes before the last piece.
    LastPieceUnflushed,
}

/// A place on a device: what is durable, and what was written since the last flush. The last one may be on
/// its way.
#[derive(Clone, Debug)]
struct Place<T> {
    durable: Option<T>,
    since: Vec<T>,
    in_flight: bool,
}

impl<T: Copy> Place<T> {
    const EMPTY: Self = Self { durable: None, since: Vec::new(), in_flight: false };

    fn begin(&mut self, content: T) {
        self.since.push(content);
        self.in_flight = true;
    }

    fn put(&mut self, content: T) {
        self.since.push(content);
        self.in_flight = false;
    }

    fn flush(&mut self) {
        let keep = usize::from(self.in_flight);
        if let Some(last) = self.since.len().checked_sub(keep + 1) {
            self.durable = Some(self.since[last]);
            self.since.drain(..=last);
        }
    }

    /// What a power cut leaves; `None`: it is torn.
    fn cut(&self, rng: &mut SmallRng) -> Option<Option<T>> {
        match rng.random_range(0..self.since.len() + 2) {
            1 if !self.since.is_empty() => None,
            0 | 1 => Some(self.durable),
            nth => Some(Some(self.since[nth - 2])),
        }
    }
}

/// The image of a page's version, which counts a page's changes.
#[derive(Clone, Copy, Debug)]
struct Held {
    page: PageId,
    stamp: Stamp,
    clean: bool,
    version: u64,
}

/// Pages on their way home.
#[derive(Debug)]
struct Homing {
    id: BatchId,
    backing: Backing,
    images_first: bool,
    ring: Vec<u32>,
    blocks: Vec<Block>,
    pages: Vec<Held>,
    held: Vec<WriteBack>,
    step: u32,
}

/// A checkpoint being written.
#[derive(Debug)]
struct Writing {
    planned: Checkpoint,
    pieces: Vec<MapPiece>,
    from: u32,
    flushed: bool,
    headers: bool,
}

struct World {
    state: Protocol,
    rng: SmallRng,
    broken: Option<Broken>,
    ring_on_hdd: bool,
    stamps: u64,
    flushes: u64,
    hdd_flushes: u64,
    slots: Vec<Place<Held>>,
    ring: Vec<Place<Held>>,
    journal: Vec<Place<usize>>,
    blocks: Vec<Block>,
    homes: FxHashMap<PageId, Place<Held>>,
    /// By page, its newest version, and the one that a crash must not go behind.
    newest: FxHashMap<PageId, u64>,
    floor: FxHashMap<PageId, u64>,
    /// The same if the SSD is lost.
    home_floor: FxHashMap<PageId, u64>,
    /// Complete versions that the next flush of the SSD makes durable.
    written: FxHashMap<PageId, u64>,
    discarded: FxHashSet<PageId>,
    tickets: Vec<(Ticket, u64)>,
    moves: Vec<Move>,
    homing: Vec<Homing>,
    writing: Option<Writing>,
    /// The checkpoint in force, and one whose header may have landed.
    maps: Vec<(MapHeader, MapBody)>,
    checked: u64,
    between_pieces: u64,
}

fn page(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

impl World {
    fn new(seed: u64, policy: &str, broken: Option<Broken>) -> Self {
        pagetier_testing::hostile::register();
        pagetier_rivals::register();
        let params = SlotParams { slots: SLOTS, zone: 14, reserve: 4, burst: 4, clean_ahead: 4 };
        let policy = policy.parse::<SsdPolicy>().expect("a policy");
        let policy = policy.build(&SlotPolicyParams::new(Costs::PAPER, SLOTS as usize, 8));
        let slots = Slots::new(params, policy, &[], 0);
        let home = HomeBatches::new(RING, 0, JOURNAL, Default::default());
        let mut world = Self {
            state: Protocol::new(slots, home, SsdMode::WriteBack, Lsn(0)),
            rng: SmallRng::seed_from_u64(seed),
            broken,
            ring_on_hdd: false,
            stamps: 0,
            flushes: 0,
            hdd_flushes: 0,
            slots: vec![Place::EMPTY; SLOTS as usize],
            ring: vec![Place::EMPTY; RING as usize],
            journal: vec![Place::EMPTY; JOURNAL as usize],
            blocks: Vec::new(),
            homes: FxHashMap::default(),
            newest: FxHashMap::default(),
            floor: FxHashMap::default(),
            home_floor: FxHashMap::default(),
            written: FxHashMap::default(),
            discarded: FxHashSet::default(),
            tickets: Vec::new(),
            moves: Vec::new(),
            homing: Vec::new(),
            writing: None,
            maps: Vec::new(),
            checked: 0,
            between_pieces: 0,
        };
        while world.maps.is_empty() || world.writing.is_some() {
            world.checkpoint();
        }
        world
    }

    fn with_ring_on_hdd(seed: u64, policy: &str) -> Self {
        let mut world = Self::new(seed, policy, None);
        world.ring_on_hdd = true;
        world.state.home = std::mem::take(&mut world.state.home).ring_takes_all(true);
        world
    }

    fn fresh(stamps: &mut u64) -> Stamp {
        *stamps += 1;
        Stamp::from_bits(*stamps)
    }

    fn step(&mut self) {
        let no = self.rng.random_range(0..PAGES);
        match self.rng.random_range(0..24) {
            0..6 => self.write(page(no)),
            6..10 => self.end_write(),
            10..14 => self.go_home(),
            14 => self.write_back(),
            15 => self.flush(),
            16 => self.flush_hdd(),
            17 => self.discard(page(no)),
            18 => self.change(page(no)),
            19 => self.admit(page(no)),
            20 => self.give_second_chances(),
            _ => self.checkpoint(),
        }
        self.state.slots.note_read(page(no), Some(Location::Ssd), Access::Random, NOW);
        self.state.slots.validate().expect("sound slots");
        self.state.home.validate().expect("sound home writes");
    }

    // ---- the pool's writes

    fn is_busy(&self, page: PageId) -> bool {
        self.is_being_written(page) || self.state.home.is_writing(page)
    }

    /// Whether the pool is writing the page.
    fn is_being_written(&self, page: PageId) -> bool {
        let has = |homing: &Homing| homing.pages.iter().any(|one| one.page == page);
        self.tickets.iter().any(|(ticket, _)| ticket.page == page)
            || self.homing.iter().any(|homing| homing.backing == Backing::Ring && has(homing))
    }

    /// A changed page is written to a slot, or begins its way home.
    fn write(&mut self, page: PageId) {
        if self.is_being_written(page) {
            return;
        }
        let version = self.newest.get(&page).map_or(1, |version| version + 1);
        let stamps = &mut self.stamps;
        let plan = match self.rng.random_range(0..4) {
            // As while the SSD is drained.
            0 => Plan::Hdd,
            _ => self.state.slots.plan_dirty(page, NOW, &mut || Self::fresh(stamps)),
        };
        match plan {
            Plan::Ssd(ticket) => {
                self.newest.insert(page, version);
                self.discarded.remove(&page);
                self.start(ticket, version);
            }
            Plan::Hdd if self.state.home.is_writing(page) => {}
            Plan::Hdd => {
                let one = HomePage { page, stamp: Stamp::ZERO, lsn: Lsn(0), over_only_copy: false };
                if self.begin_home(Backing::Ring, &[one], &[version], Vec::new()) {
                    self.newest.insert(page, version);
                    self.discarded.remove(&page);
                }
            }
            Plan::Wait => {}
        }
    }

    fn start(&mut self, ticket: Ticket, version: u64) {
        let Ticket { slot, page, stamp, dirty, .. } = ticket;
        self.slots[slot.at()].begin(Held { page, stamp, clean: !dirty, version });
        self.tickets.push((ticket, version));
    }

    fn end_write(&mut self) {
        if self.tickets.is_empty() {
            return;
        }
        let nth = self.rng.random_range(0..self.tickets.len());
        let (ticket, version) = self.tickets.swap_remove(nth);
        self.slots[ticket.slot.at()].in_flight = false;
        self.state.slots.end_write(ticket, true, SsdFlush(self.flushes + 1), NOW);
        if self.state.slots.holds(ticket.page, ticket.stamp) {
            self.written.insert(ticket.page, version);
        }
    }

    /// The copy of a page that leaves memory unchanged.
    fn admit(&mut self, page: PageId) {
        let home = self.homes.get(&page).filter(|home| home.since.is_empty()).and_then(|home| home.durable);
        let Some(home) = home.filter(|home| self.newest.get(&page) == Some(&home.version)) else { return };
        if self.is_busy(page) || self.discarded.contains(&page) {
            return;
        }
        let stamps = &mut self.stamps;
        let planned = self.state.slots.plan_copy(page, Cause::Evicted, NOW, &mut || Self::fresh(stamps));
        if let Some(ticket) = planned {
            self.start(ticket, home.version);
        }
    }

    /// The page changes in memory: a copy that the HDD has is given up.
    fn change(&mut self, page: PageId) {
        self.state.slots.dirtied(page, 1, NOW);
    }

    fn discard(&mut self, page: PageId) {
        // A discard waits for both.
        if self.is_busy(page) || self.state.home.must_keep_copy(page) {
            return;
        }
        self.state.slots.discard(page);
        // Any older version may come back, but no error.
        self.discarded.insert(page);
        self.floor.remove(&page);
        self.home_floor.remove(&page);
        self.written.remove(&page);
    }

    fn give_second_chances(&mut self) {
        if self.homing.iter().any(|homing| homing.backing == Backing::WriteBack) {
            return;
        }
        if self.moves.is_empty() {
            let stamps = &mut self.stamps;
            self.moves = self.state.reclaim(NOW, &mut || Self::fresh(stamps)).unwrap_or_default();
            for one in self.moves.clone() {
                let version = self.version_in(one.from.slot);
                let Ticket { slot, page, stamp, dirty, .. } = one.to;
                self.slots[slot.at()].begin(Held { page, stamp, clean: !dirty, version });
            }
            return;
        }
        for one in std::mem::take(&mut self.moves) {
            self.slots[one.to.slot.at()].in_flight = false;
            self.state.slots.end_write(one.to, true, SsdFlush(self.flushes + 1), NOW);
            self.state.slots.end_move(one, true, NOW);
        }
    }

    fn version_in(&self, slot: SlotId) -> u64 {
        let place = &self.slots[slot.at()];
        place.since.last().copied().or(place.durable).expect("a slot that is held keeps what it has").version
    }

    // ---- home writes

    fn write_back(&mut self) {
        if !self.moves.is_empty() || self.homing.iter().any(|one| one.backing == Backing::WriteBack) {
            return;
        }
        let batch = self.state.begin_write_back(4, NOW);
        if batch.is_empty() {
            return;
        }
        self.flush();
        let home = |one: &WriteBack| HomePage {
            page: one.page,
            stamp: one.stamp,
            lsn: Lsn(0),
            over_only_copy: false,
        };
        let way = self.state.in_the_way(Backing::WriteBack, &batch.iter().map(home).collect::<Vec<_>>());
        let goes = |one: &WriteBack| !way.writing && !way.superseded.contains(&one.page);
        let (held, not): (Vec<WriteBack>, Vec<WriteBack>) = batch.into_iter().partition(goes);
        not.into_iter().for_each(|one| self.state.end_write_back(one, false));
        let versions: Vec<u64> = held.iter().map(|one| self.version_in(one.slot)).collect();
        let pages: Vec<HomePage> = held.iter().map(home).collect();
        if pages.is_empty() || !self.begin_home(Backing::WriteBack, &pages, &versions, held.clone()) {
            held.into_iter().for_each(|one| self.state.end_write_back(one, false));
        }
    }

    fn begin_home(
        &mut self,
        backing: Backing,
        pages: &[HomePage],
        versions: &[u64],
        held: Vec<WriteBack>,
    ) -> bool {
        let stamps = &mut self.stamps;
        let Ok(plan) = self.state.begin_home_batch(backing, pages, &mut || Self::fresh(stamps)) else {
            return false;
        };
        let pages = plan.versions.iter().zip(versions);
        let pages = pages.map(|((page, stamp), version)| Held {
            page: *page,
            stamp: *stamp,
            clean: false,
            version: *version,
        });
        self.homing.push(Homing {
            id: plan.id,
            backing,
            images_first: plan.images_first,
            ring: plan.ring,
            blocks: plan.blocks,
            pages: pages.collect(),
            held,
            step: 0,
        });
        true
    }

    /// The next step of a batch on its way home.
    fn go_home(&mut self) {
        if self.homing.is_empty() {
            return;
        }
        let nth = self.rng.random_range(0..self.homing.len());
        let mut one = self.homing.swap_remove(nth);
        match one.step {
            0 => {
                for (place, held) in one.ring.iter().zip(&one.pages) {
                    self.ring[*place as usize].put(*held);
                }
                if one.images_first {
                    self.flush();
                }
                for block in one.blocks.drain(..) {
                    let place = block.seq.0 as usize % JOURNAL as usize;
                    self.journal[place].put(self.blocks.len());
                    self.blocks.push(block);
                }
                self.state.home.end_recording(one.id);
            }
            1 => self.flush(),
            2 => {
                for held in &one.pages {
                    self.homes.entry(held.page).or_insert(Place::EMPTY).begin(*held);
                }
            }
            3 => {
                for held in &one.pages {
                    let home = self.homes.get_mut(&held.page).expect("it was begun");
                    home.in_flight = false;
                    if one.backing == Backing::Ring {
                        if self.state.slots.location(held.page) == Location::Ssd {
                            self.state.slots.discard(held.page);
                        }
                        self.written.remove(&held.page);
                        // Its image in the ring is durable.
                        self.floor.insert(held.page, held.version);
                        self.home_floor.insert(held.page, held.version);
                    }
                }
                let flush = HddFlush(self.hdd_flushes + 1);
                self.state.home.end_home_writes(one.id, true, Vec::new(), flush);
                if one.backing == Backing::Ring {
                    return;
                }
            }
            _ => {
                self.flush_hdd();
                one.held.drain(..).for_each(|one| self.state.end_write_back(one, true));
                self.state.home.forget_write_backs();
                return;
            }
        }
        one.step += 1;
        self.homing.push(one);
    }

    // ---- flushes and checkpoints

    fn flush(&mut self) {
        self.slots.iter_mut().chain(&mut self.ring).for_each(Place::flush);
        self.journal.iter_mut().for_each(Place::flush);
        for (page, version) in self.written.drain() {
            let floor = self.floor.entry(page).or_insert(version);
            *floor = version.max(*floor);
        }
        self.flushes += 1;
        self.state.slots.flushed(SsdFlush(self.flushes));
    }

    fn flush_hdd(&mut self) {
        self.homes.values_mut().for_each(Place::flush);
        for (page, home) in self.homes.iter().filter(|(page, _)| !self.discarded.contains(*page)) {
            let version = home.durable.map_or(0, |held| held.version);
            let floor = self.home_floor.entry(*page).or_insert(version);
            *floor = version.max(*floor);
        }
        if self.ring_on_hdd {
            self.ring.iter_mut().for_each(Place::flush);
        }
        self.hdd_flushes += 1;
        self.state.hdd_flushed(HddFlush(self.hdd_flushes));
    }

    /// The next step of a checkpoint.
    fn checkpoint(&mut self) {
        let Some(mut writing) = self.writing.take() else {
            let planned = self.state.begin_checkpoint(Stamp::from_bits(self.stamps), None, NOW);
            self.writing =
                Some(Writing { planned, pieces: Vec::new(), from: 0, flushed: false, headers: false });
            return;
        };
        // What a failed one left is wiped before anything is written over its body.
        if writing.from == 0 {
            self.maps.truncate(1);
        }
        let last = writing.from + PIECE >= SLOTS;
        if writing.from < SLOTS {
            if last && self.broken == Some(Broken::LastPieceUnflushed) {
                self.flush();
                writing.flushed = true;
                // Others get in between.
                for _ in 0..8 {
                    self.write(page(self.stamps as u32 % PAGES));
                    self.end_write();
                }
            }
            let to = SLOTS.min(writing.from + PIECE);
            writing.pieces.push(self.state.slots.capture(writing.from..to));
            writing.from = to;
            self.writing = Some(writing);
            return;
        }
        if !writing.flushed {
            self.flush();
            writing.flushed = true;
            self.writing = Some(writing);
            return;
        }
        if !writing.headers {
            let planned = &mut writing.planned;
            self.state.captured(planned);
            match self.broken {
                Some(Broken::WatermarkLate) => planned.header.watermark = Stamp::from_bits(self.stamps),
                Some(Broken::JournalLate) => planned.header.journal_from = self.state.home.journal_next(),
                Some(Broken::ZoneLate) => planned.zone = self.state.slots.next_zone_words(),
                _ => {}
            }
            // A crash may find them or not.
            self.maps.push((planned.header, MapBody::of(SLOTS, &planned.zone, &writing.pieces)));
            writing.headers = true;
            self.writing = Some(writing);
            return;
        }
        let ok = self.maps.len() == 1 || self.rng.random_range(0..8) > 0;
        if ok {
            self.maps.drain(..self.maps.len() - 1);
        }
        self.state.end_checkpoint(&writing.planned.header, ok);
    }

    // ---- crashes

    /// Cuts the power and recovers.
    fn crash(&mut self) -> Result<(), String> {
        let rng = &mut self.rng;
        let (header, map) = self.maps[rng.random_range(0..self.maps.len())].clone();
        let slots: Vec<Option<Held>> = self.slots.iter().map(|place| place.cut(rng).flatten()).collect();
        let image = |held: Held| Image { page: held.page, stamp: held.stamp, clean: held.clean };
        let ring: Vec<Held> = self.ring.iter().filter_map(|place| place.cut(rng)?).collect();
        let blocks = self.journal.iter().filter_map(|place| place.cut(rng)?);
        let mut newest_image: FxHashMap<PageId, Held> = FxHashMap::default();
        for held in &ring {
            let newest = newest_image.entry(held.page).or_insert(*held);
            if held.stamp > newest.stamp {
                *newest = *held;
            }
        }
        let evidence = Evidence {
            zone: map.zone().filter_map(|slot| Some((slot, image(slots[slot as usize]?)))).collect(),
            map,
            watermark: header.watermark,
            unreadable: FxHashSet::default(),
            closed: false,
            journal: blocks.map(|at| self.blocks[at].clone()).collect(),
            ring: newest_image.values().map(|held| (held.page, held.stamp)).collect(),
        };
        let lost = self.ring_on_hdd && rng.random_bool(0.5);
        let found = if lost { vec![None; SLOTS as usize] } else { evidence.merge().entries };
        let by_page: FxHashMap<PageId, usize> =
            found.iter().enumerate().filter_map(|(slot, entry)| Some(((*entry)?.page, slot))).collect();
        for no in 0..PAGES {
            let page = page(no);
            let version = match by_page.get(&page) {
                Some(slot) => match slots[*slot] {
                    Some(held)
                        if Some((held.page, held.stamp)) == found[*slot].map(|e| (e.page, e.stamp)) =>
                    {
                        held.version
                    }
                    other => {
                        return Err(format!("page {no} is damaged in slot {slot}, which has {other:?}"));
                    }
                },
                None => {
                    let home = self.homes.get(&page).map_or(Some(None), |home| home.cut(rng));
                    // A home that is torn, or older than its newest image, is written again.
                    let image = newest_image.get(&page);
                    match (home, image) {
                        (Some(Some(held)), Some(image)) if image.stamp > held.stamp => image.version,
                        (Some(Some(held)), _) => held.version,
                        (_, Some(image)) => image.version,
                        (None, None) if !self.discarded.contains(&page) => {
                            return Err(format!("the home of page {no} is torn"));
                        }
                        (_, None) => 0,
                    }
                }
            };
            let floors = if lost { &self.home_floor } else { &self.floor };
            let floor = floors.get(&page).copied().unwrap_or(0);
            if version < floor {
                return Err(format!("page {no} is back at version {version}, after {floor}"));
            }
        }
        self.checked += 1;
        self.between_pieces += u64::from(self.writing.is_some());
        Ok(())
    }

    /// Lives `steps` steps and crashes after each.
    fn live(&mut self, steps: u32) -> Result<(), String> {
        for step in 0..steps {
            self.step();
            for _ in 0..2 {
                self.crash().map_err(|what| format!("step {step}: {what}"))?;
            }
        }
        Ok(())
    }
}

const POLICIES: [&str; 5] = ["lru2", "cac", "mv-fifo", "mv-fifo-gsc", "hostile:1"];

#[test]
fn whatever_happens_between_two_pieces_a_crash_finds_every_page() {
    let (mut checked, mut between) = (0, 0);
    for seed in 0..40 {
        for policy in POLICIES {
            let mut world = World::new(seed, policy, None);
            world.live(400).unwrap_or_else(|what| panic!("{policy}, seed {seed}, {what}"));
            checked += world.checked;
            between += world.between_pieces;
        }
    }
    assert!(checked > 100_000 && between > checked / 2, "{checked} crashes, {between} of checkpoints");
}

#[test]
fn with_the_ring_on_the_hdd_every_home_survives_the_ssd() {
    for seed in 0..12 {
        for policy in POLICIES {
            let mut world = World::with_ring_on_hdd(seed, policy);
            world.live(1600).unwrap_or_else(|what| panic!("{policy}, seed {seed}, {what}"));
        }
    }
}

#[test]
fn a_ring_that_takes_only_what_no_slot_backs_does_not_survive_it() {
    let torn = (0..12).any(|seed| {
        let mut world = World::with_ring_on_hdd(seed, "lru2");
        world.state.home = std::mem::take(&mut world.state.home).ring_takes_all(false);
        world.live(1600).is_err()
    });
    assert!(torn);
}

#[test]
fn each_part_of_the_rule_is_needed() {
    for broken in [Broken::WatermarkLate, Broken::JournalLate, Broken::ZoneLate, Broken::LastPieceUnflushed] {
        let found = (0..1000).any(|seed| {
            let policy = POLICIES[seed as usize % POLICIES.len()];
            World::new(seed, policy, Some(broken)).live(400).is_err()
        });
        assert!(found, "{broken:?} goes unnoticed");
    }
}

/// The floor of log positions counts a copy that was moved from a slot captured late to one captured early.
#[test]
fn the_oldest_change_is_counted_wherever_its_copy_is_when_a_piece_is_captured() {
    let mut world = World::new(1, "lru2", None);
    let write = |world: &mut World, lsn| {
        let stamps = &mut world.stamps;
        let plan = world.state.slots.plan_dirty(page(1), NOW, &mut || World::fresh(stamps));
        let Plan::Ssd(ticket) = plan else { panic!("there is room: {plan:?}") };
        world.state.slots.note_lsn(ticket.slot, Lsn(lsn));
        world.state.slots.end_write(ticket, true, SsdFlush(world.flushes + 1), NOW);
        world.flush();
        ticket.slot.0
    };
    let first = write(&mut world, 5);
    let mut planned = world.state.begin_checkpoint(Stamp::from_bits(world.stamps), Some(Some(Lsn(30))), NOW);
    // All slots but the copy's are captured; then it is rewritten elsewhere, and its slot is free.
    for slot in (0..SLOTS).filter(|slot| *slot != first) {
        world.state.slots.capture(slot..slot + 1);
    }
    assert_ne!(write(&mut world, 40), first);
    assert_eq!(world.state.slots.capture(first..first + 1).entry(first), None);
    world.state.captured(&mut planned);
    assert_eq!(planned.header.lsn_floor, Lsn(5), "the HDD lacks what was changed then");
}
