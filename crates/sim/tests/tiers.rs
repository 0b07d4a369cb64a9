//! The simulated tiers: I/O counted by hand, the paper's ordering, and consistency on random references under
//! every pair of policies.

use pagetier_policy::{Costs, FramePolicyParams, PageId, PoolPolicy, SlotPolicyParams, SpaceId, SsdPolicy};
use pagetier_rivals::{POOL_POLICIES, SSD_POLICIES};
use pagetier_sim::{Counts, Reference, Source, TierParams, Tiers, Tpcc, Use};
use proptest::prelude::*;

fn tiers(params: TierParams, pool: &str, ssd: &str) -> Tiers {
    let (frames, slots) = (params.pool_pages as usize, params.ssd_pages as usize);
    pagetier_rivals::register();
    let pool_params = FramePolicyParams::new(frames, params.costs);
    let cac = SlotPolicyParams {
        outqueue_entries: slots.max(16),
        ..SlotPolicyParams::new(params.costs, slots, frames)
    };
    Tiers::new(
        params,
        pool.parse::<PoolPolicy>().unwrap().build(&pool_params),
        ssd.parse::<SsdPolicy>().unwrap().build(&cac),
    )
}

fn p(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

fn read(no: u32) -> Reference {
    Reference::read(p(no))
}

fn write(no: u32) -> Reference {
    Reference::write(p(no))
}

fn create(no: u32) -> Reference {
    Reference { page: p(no), used: Use::Create, sequential: false }
}

/// HDD reads, HDD writes, SSD reads and SSD writes after each reference.
fn io(tiers: &mut Tiers, references: &[Reference]) -> Vec<[u64; 4]> {
    let apply = |&reference| {
        tiers.apply(reference);
        tiers.validate().unwrap();
        let Counts { hdd_reads, hdd_writes, ssd_reads, ssd_writes, .. } = *tiers.counts();
        [hdd_reads, hdd_writes, ssd_reads, ssd_writes]
    };
    references.iter().map(apply).collect()
}

#[test]
fn a_clean_page_is_admitted_when_it_is_evicted_and_comes_back_from_the_ssd() {
    let mut t = tiers(TierParams::new(1, 2), "lru", "cc");
    let seen = io(&mut t, &[read(1), read(1), read(2), read(1)]);
    // Page 1 missed, hit, evicted to the SSD by page 2; page 2 evicted to the SSD by page 1.
    assert_eq!(seen, [[1, 0, 0, 0], [1, 0, 0, 0], [2, 0, 0, 1], [2, 0, 1, 2]]);
    assert_eq!((t.counts().pool_hits, t.counts().pool_misses, t.counts().ssd_hits), (1, 3, 1));
}

#[test]
fn a_dirty_page_is_cleaned_to_the_ssd_and_rewritten_there() {
    let mut t = tiers(TierParams::new(1, 2), "lru", "cc");
    let seen = io(&mut t, &[write(1), read(2), write(1), read(2)]);
    // The SSD copy of page 1 is newer than the HDD's: it is overwritten instead of invalidated. Page 2 was
    // admitted clean.
    assert_eq!(seen, [[1, 0, 0, 0], [2, 0, 0, 1], [2, 0, 1, 2], [2, 0, 2, 3]]);
    assert_eq!(t.counts().invalidations, 0);
}

#[test]
fn an_identical_ssd_copy_is_invalidated_when_the_page_is_changed() {
    let mut t = tiers(TierParams::new(1, 2), "lru", "cc");
    io(&mut t, &[read(1), read(2), write(1)]);
    assert_eq!((t.counts().invalidations, t.ssd_used()), (1, 1));
    // Its slot is free again, and receives the new version.
    assert_eq!(io(&mut t, &[read(2)]), [[2, 0, 2, 3]]);
    assert_eq!(t.ssd_used(), 2);
}

#[test]
fn a_newer_ssd_copy_is_copied_to_the_hdd_before_its_slot_is_given_up() {
    let mut t = tiers(TierParams { zone_share: 1.0, ..TierParams::new(1, 1) }, "lru", "cc");
    // Page 1 is written to the only slot: one read and one write are worth 7.09 + 4.69 ms. A page read twice
    // is worth 14.18 ms.
    io(&mut t, &[write(1), read(2), read(3), read(2)]);
    assert_eq!((t.counts().write_backs, t.counts().hdd_writes), (0, 0));
    io(&mut t, &[read(3)]);
    assert_eq!((t.counts().write_backs, t.counts().hdd_writes), (1, 1));
    // Page 1 is on the HDD afterwards.
    let before = *t.counts();
    t.apply(read(1));
    assert_eq!(t.counts().since(&before).hdd_reads, 1);
}

#[test]
fn a_created_page_is_not_read_and_must_be_written() {
    let mut t = tiers(TierParams::new(1, 0), "gd2l", "none");
    assert_eq!(io(&mut t, &[create(1), read(2), read(1)]), [[0, 0, 0, 0], [1, 1, 0, 0], [2, 1, 0, 0]]);
}

#[test]
fn the_cleaner_writes_the_dirty_pages_within_its_look_ahead() {
    for (look_ahead, written) in [(1, 1), (2, 2), (64, 3)] {
        let params = TierParams { look_ahead, ..TierParams::new(4, 0) };
        let mut t = tiers(params, "lru", "none");
        io(&mut t, &[write(1), write(2), write(3), read(4), read(5)]);
        assert_eq!(t.counts().hdd_writes, written, "look-ahead {look_ahead}");
    }
}

#[test]
fn recoverability_writes_clean_the_page_dirty_longest() {
    let params = TierParams { dirty_share_max: 0.5, ..TierParams::new(4, 0) };
    let mut t = tiers(params, "lru", "none");
    io(&mut t, &[write(1), write(2), write(1)]);
    assert_eq!(t.counts().hdd_writes, 0);
    io(&mut t, &[write(3)]);
    assert_eq!(t.counts().hdd_writes, 1);
    // Page 1 was cleaned: changing it again makes a third page dirty, and costs a write of page 2.
    io(&mut t, &[write(1)]);
    assert_eq!(t.counts().hdd_writes, 2);
    // Page 3 is still dirty.
    io(&mut t, &[write(3)]);
    assert_eq!(t.counts().hdd_writes, 2);
}

#[test]
fn gd2l_keeps_hdd_pages_and_lets_ssd_pages_come_and_go() {
    // Four pages in turn, three frames, two slots: LRU always misses. GD2L keeps the two pages that are not
    // on the SSD.
    let rounds = |n| [1, 2, 3, 4].map(read).repeat(n);
    let seen = |pool| {
        let mut t = tiers(TierParams::new(3, 2), pool, "cc");
        io(&mut t, &rounds(3));
        let before = *t.counts();
        io(&mut t, &rounds(10));
        let c = t.counts().since(&before);
        (c.pool_hits, c.ssd_hits, c.hdd_reads)
    };
    assert_eq!(seen("lru").0, 0);
    assert_eq!(seen("gd2l"), (20, 20, 0));
}

#[test]
fn tpcc_shows_the_papers_order() {
    // 30:10:2 of section 6, two warehouses.
    let pages = Tpcc::new(2, 1).pages() as u32;
    let cost = |pool: &str, ssd: &str| {
        let mut t = tiers(TierParams::new(pages / 15, pages / 3), pool, ssd);
        let mut tpcc = Tpcc::new(2, 1);
        let mut batch = Vec::new();
        let mut run = |t: &mut Tiers, tpcc: &mut Tpcc, transactions: u32| {
            for _ in 0..transactions {
                batch.clear();
                tpcc.batch(&mut batch);
                batch.iter().for_each(|&reference| t.apply(reference));
            }
        };
        run(&mut t, &mut tpcc, 9000);
        let (before, orders) = (*t.counts(), tpcc.new_orders());
        run(&mut t, &mut tpcc, 3000);
        t.validate().unwrap();
        let counts = t.counts().since(&before);
        let costs = Costs::PAPER;
        (counts.hdd_ms(&costs) + counts.ssd_ms(&costs)) / (tpcc.new_orders() - orders) as f64
    };
    let (lru_cc, gd2l_cc, gd2l_cac) = (cost("lru", "cc"), cost("gd2l", "cc"), cost("gd2l", "cac"));
    assert!(gd2l_cac < gd2l_cc && gd2l_cc < 0.75 * lru_cc, "{lru_cc} {gd2l_cc} {gd2l_cac}");
    assert!(lru_cc < cost("lru", "none"));
}

#[test]
fn tac_admits_on_reading_and_writes_through() {
    let mut t = tiers(TierParams::new(1, 2), "lru", "tac");
    // Both pages are admitted when they are read. Page 1 is changed, and cleaned to HDD and SSD when page 2
    // needs the frame.
    let seen = io(&mut t, &[read(1), read(2), read(1), write(1), read(2), read(1)]);
    assert_eq!(seen, [[1, 0, 0, 1], [2, 0, 0, 2], [2, 0, 1, 2], [2, 0, 1, 2], [2, 1, 2, 3], [2, 1, 3, 3]]);
    // A created page has not been read, so it is written only to the HDD. No copy is ever newer.
    assert_eq!(io(&mut t, &[create(3), read(2)])[1], [2, 2, 4, 3]);
    assert_eq!((t.counts().invalidations, t.counts().write_backs), (0, 0));
}

#[test]
fn mv_fifo_appends_versions_and_takes_slots_back_in_turn() {
    let mut t = tiers(TierParams::new(1, 2), "lru", "mv-fifo");
    // Version 1 of page 1 goes to slot 0; page 2, clean, to slot 1; version 2 of page 1 to slot 0, which held
    // only a void version.
    let seen = io(&mut t, &[write(1), read(2), write(1), read(3)]);
    assert_eq!(seen, [[1, 0, 0, 0], [2, 0, 0, 1], [2, 0, 1, 2], [3, 0, 1, 3]]);
    // Page 3 takes slot 1 from page 2, which is clean, so page 2 is read from the HDD; page 2 takes slot 0
    // from page 1, whose version is newer than the HDD's.
    assert_eq!(io(&mut t, &[read(2), read(4)]), [[4, 0, 1, 4], [5, 1, 2, 5]]);
    assert_eq!((t.counts().write_backs, t.counts().zones, t.ssd_used()), (1, 0, 2));
}

#[test]
fn a_void_version_takes_a_slot_until_its_turn() {
    let mut t = tiers(TierParams::new(1, 3), "lru", "mv-fifo");
    // Page 1 is written three times, and read back in between.
    io(&mut t, &[write(1), read(2), write(1), read(2), write(1), read(2)]);
    // Slots: 1, 2, 1; the third version replaced the first, which was void.
    assert_eq!((t.ssd_used(), t.counts().ssd_writes, t.counts().write_backs), (2, 4, 0));
}

#[test]
fn a_page_read_from_the_ssd_gets_a_second_chance() {
    let run = |ssd: &str| {
        let mut t = tiers(TierParams::new(1, 4), "lru", ssd);
        // Pages 1 to 4 fill the slots, and page 1 is read back before they are full. Page 5 needs a slot.
        io(&mut t, &[1, 2, 3, 1, 4, 5, 6].map(read));
        let before = *t.counts();
        t.apply(read(1));
        let counts = t.counts().since(&before);
        (counts.ssd_hits, t.counts().second_chances, t.ssd_used())
    };
    assert_eq!(run("mv-fifo"), (0, 0, 4));
    // All four slots were reclaimed: page 1 was read since it was written, and was appended again, before 5
    // and 6.
    assert_eq!(run("mv-fifo-gsc"), (1, 1, 3));
}

#[test]
fn the_doublewrite_buffer_serves_what_was_written_last() {
    let mut t = tiers(TierParams::new(1, 2), "lru", "doublewrite");
    // Page 1 is cleaned to slot 0 and home; its second version to slot 1 and home; page 2 to slot 0. Pages 2
    // and 3 leave clean, without I/O.
    let seen = io(&mut t, &[write(1), read(2), write(1), read(3), read(1), write(2), read(3), read(1)]);
    let before = [[1, 0, 0, 0], [2, 1, 0, 1], [2, 1, 1, 1], [3, 2, 1, 2]];
    assert_eq!(seen[..4], before);
    assert_eq!(seen[4..], [[3, 2, 2, 2], [4, 2, 2, 2], [5, 3, 2, 3], [5, 3, 3, 3]]);
    assert_eq!((t.counts().write_backs, t.counts().invalidations, t.ssd_used()), (0, 0, 2));
}

#[test]
fn cluster_switches_are_counted_by_hand() {
    let params = TierParams { cluster_pages: 4, look_ahead: 64, ..TierParams::new(6, 0) };
    let mut t = tiers(params, "lru", "none");
    // Clusters of the references: 0 0 1 0 2 2, and of the writes, in LRU order: 0 0 1 0 2 2.
    io(&mut t, &[write(0), write(1), write(4), write(2), write(8), write(9)]);
    assert_eq!((t.counts().request_switches, t.counts().cluster_switches), (4, 0));
    io(&mut t, &[read(40)]);
    assert_eq!((t.counts().request_switches, t.counts().cluster_switches, t.counts().hdd_writes), (5, 4, 6));
    assert_eq!(t.counts().cluster_switch_factor(), 0.8);
    // CFDC writes them by cluster.
    let cfdc = FramePolicyParams { cluster_pages: 4, ..FramePolicyParams::new(6, Costs::PAPER) };
    let cfdc = "cfdc-100".parse::<PoolPolicy>().map(|policy| policy.build(&cfdc));
    let mut t = Tiers::new(
        params,
        cfdc.unwrap(),
        "none".parse::<SsdPolicy>().unwrap().build(&SlotPolicyParams::new(Costs::PAPER, 0, 6)),
    );
    io(&mut t, &[write(0), write(1), write(4), write(2), write(8), write(9), read(40)]);
    assert_eq!((t.counts().cluster_switches, t.counts().hdd_writes), (3, 6));
}

/// A literal model of an LRU pool over FaCE's queue, or over a doublewrite buffer. Pages: whether dirty;
/// versions: whether newer than the HDD's, valid, read.
struct Face {
    frames: usize,
    slots: usize,
    group: usize,
    doublewrite: bool,
    pool: Vec<(u32, bool)>,
    queue: Vec<(u32, bool, bool, bool)>,
    /// HDD reads and writes, SSD reads and writes.
    io: [u64; 4],
}

impl Face {
    fn append(&mut self, no: u32, newer: bool) {
        self.queue.iter_mut().filter(|version| version.0 == no).for_each(|version| version.2 = false);
        if self.queue.len() == self.slots {
            let group = self.group.min(self.slots);
            let mut again = Vec::new();
            for (no, newer, valid, read) in self.queue.drain(..group) {
                if valid && read && again.len() + 1 < group {
                    again.push((no, newer, true, false));
                    self.io[2] += 1;
                    self.io[3] += 1;
                } else if valid && newer {
                    self.io[2] += 1;
                    self.io[1] += 1;
                }
            }
            self.queue.extend(again);
        }
        self.queue.push((no, newer, true, false));
        self.io[3] += 1;
    }

    fn holds(&self, no: u32) -> bool {
        self.queue.iter().any(|version| version.0 == no && version.2)
    }

    fn request(&mut self, no: u32, write: bool) {
        if let Some(at) = self.pool.iter().position(|page| page.0 == no) {
            let (_, dirty) = self.pool.remove(at);
            return self.pool.push((no, dirty || write));
        }
        if self.pool.len() == self.frames {
            let (gone, dirty) = self.pool.remove(0);
            if self.doublewrite && dirty {
                // To the buffer and home; a clean page is at home already.
                self.append(gone, false);
                self.io[1] += 1;
            } else if !self.doublewrite && (dirty || !self.holds(gone)) {
                self.append(gone, dirty);
            }
        }
        let version = self.queue.iter_mut().find(|version| version.0 == no && version.2);
        match version {
            Some(version) => {
                version.3 = true;
                self.io[2] += 1;
            }
            None => self.io[0] += 1,
        }
        self.pool.push((no, write));
    }
}

fn reference() -> impl Strategy<Value = Reference> {
    let no = prop_oneof![3 => 0..12u32, 1 => 0..60u32];
    let used = prop_oneof![6 => Just(Use::Read), 3 => Just(Use::Write)];
    (no, used, prop::bool::weighted(0.1)).prop_map(|(no, used, sequential)| Reference {
        page: p(no),
        used,
        sequential,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_appends_is_a_queue_of_versions(
        requests in prop::collection::vec((prop_oneof![0..12u32, 0..40u32], prop::bool::weighted(0.4)), 1..400),
        frames in 1..8u32,
        slots in 1..20u32,
    ) {
        for (name, group) in [("mv-fifo", 1), ("mv-fifo-gsc", 64), ("doublewrite", 1)] {
            let params = TierParams { look_ahead: 1, ..TierParams::new(frames, slots) };
            let mut t = tiers(params, "lru", name);
            let (frames, slots) = (frames as usize, slots as usize);
            let doublewrite = name == "doublewrite";
            let (pool, queue) = (Vec::new(), Vec::new());
            let mut face = Face { frames, slots, group, doublewrite, pool, queue, io: [0; 4] };
            for &(no, used) in &requests {
                face.request(no, used);
                let seen = io(&mut t, &[if used { write(no) } else { read(no) }]);
                prop_assert_eq!(seen[0], face.io, "{}", name);
            }
        }
    }

    #[test]
    fn everything_adds_up_under_every_pair(
        references in prop::collection::vec(reference(), 1..300),
        pool_pages in 1..10u32,
        ssd_pages in 0..12u32,
        look_ahead in 1..6usize,
        dirty_share_max in 0.1..1.0f64,
        zone_share in 0.01..1.0f64,
    ) {
        let params = TierParams { look_ahead, dirty_share_max, zone_share, ..TierParams::new(pool_pages, ssd_pages) };
        let with = |pool| SSD_POLICIES.iter().map(move |ssd| (pool, ssd));
        for (pool, ssd) in POOL_POLICIES.iter().flat_map(with) {
            let (pool, ssd) = (&pool.to_string(), &ssd.to_string());
            let mut t = tiers(params, pool, ssd);
            for &reference in &references {
                t.apply(reference);
                t.validate().map_err(TestCaseError::fail)?;
            }
            prop_assert_eq!(t.counts().requests, references.len() as u64);
            if *ssd == "none" {
                prop_assert_eq!((t.counts().ssd_reads, t.counts().ssd_writes, t.ssd_used()), (0, 0, 0));
            }
        }
    }
}
