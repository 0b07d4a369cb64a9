//! The simulated tiers: I/O counted by hand, the paper's ordering, and nothing lost on random references under every pair of policies.

use pagetier_policy::{
    CacParams, Costs, POOL_POLICIES, PageId, SSD_POLICIES, SpaceId, pool_policy, ssd_policy,
};
use pagetier_sim::{Counts, Reference, Source, TierParams, Tiers, Tpcc, Use};
use proptest::prelude::*;

fn tiers(params: TierParams, pool: &str, ssd: &str) -> Tiers {
    let (frames, slots) = (params.pool_pages as usize, params.ssd_pages as usize);
    let cac = CacParams { outqueue_entries: slots.max(16), ..CacParams::new(params.costs, slots, frames) };
    Tiers::new(params, pool_policy(pool, frames, params.costs).unwrap(), ssd_policy(ssd, &cac).unwrap())
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

/// After each reference: HDD reads, HDD writes, SSD reads, SSD writes.
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
    // The SSD copy of page 1 is newer than the HDD's: it is not invalidated but overwritten. Page 2 was admitted clean.
    assert_eq!(seen, [[1, 0, 0, 0], [2, 0, 0, 1], [2, 0, 1, 2], [2, 0, 2, 3]]);
    assert_eq!(t.counts().invalidations, 0);
}

#[test]
fn an_identical_ssd_copy_is_invalidated_when_the_page_is_changed() {
    let mut t = tiers(TierParams::new(1, 2), "lru", "cc");
    io(&mut t, &[read(1), read(2), write(1)]);
    assert_eq!((t.counts().invalidations, t.ssd_used()), (1, 1));
    // Its slot is free again, and takes the new version.
    assert_eq!(io(&mut t, &[read(2)]), [[2, 0, 2, 3]]);
    assert_eq!(t.ssd_used(), 2);
}

#[test]
fn a_newer_ssd_copy_is_copied_to_the_hdd_before_its_slot_is_given_up() {
    let mut t = tiers(TierParams { zone_share: 1.0, ..TierParams::new(1, 1) }, "lru", "cc");
    // Page 1 is written to the one slot: one read and one write are worth 7.09 + 4.69 ms. A page read twice is worth 14.18.
    io(&mut t, &[write(1), read(2), read(3), read(2)]);
    assert_eq!((t.counts().write_backs, t.counts().hdd_writes), (0, 0));
    io(&mut t, &[read(3)]);
    assert_eq!((t.counts().write_backs, t.counts().hdd_writes), (1, 1));
    // Page 1 is on the HDD now.
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
    // It was page 1: changing it again makes a third dirty page, and costs page 2's write.
    io(&mut t, &[write(1)]);
    assert_eq!(t.counts().hdd_writes, 2);
    // Page 3 is still dirty.
    io(&mut t, &[write(3)]);
    assert_eq!(t.counts().hdd_writes, 2);
}

#[test]
fn gd2l_keeps_hdd_pages_and_lets_ssd_pages_come_and_go() {
    // Four pages in turn, three frames, two slots: LRU misses every time. GD2L keeps the two pages that are not on the SSD.
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
    fn everything_adds_up_under_every_pair(
        references in prop::collection::vec(reference(), 1..300),
        pool_pages in 1..10u32,
        ssd_pages in 0..12u32,
        look_ahead in 1..6usize,
        dirty_share_max in 0.1..1.0f64,
        zone_share in 0.01..1.0f64,
    ) {
        let params = TierParams { look_ahead, dirty_share_max, zone_share, ..TierParams::new(pool_pages, ssd_pages) };
        for (pool, ssd) in POOL_POLICIES.iter().flat_map(|pool| SSD_POLICIES.iter().map(move |ssd| (pool, ssd))) {
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
