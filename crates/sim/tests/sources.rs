//! The sources of references: the trace format, TPC-C's tables, zipf.

use pagetier_policy::{PageId, SpaceId};
use pagetier_sim::{
    Reference, Source, TABLES, Tpcc, Trace, TraceError, Use, Zipf, decode, encode, table_name,
};
use rustc_hash::FxHashMap;

#[test]
fn a_trace_record_by_hand() {
    let bytes = [0x39, 0x30, 0, 0, 0, 0, 0, 0, 1, 1, 7, 2];
    let reference =
        Reference { page: PageId::new(SpaceId(0x0207), 12345), used: Use::Write, sequential: true };
    assert_eq!(decode(&bytes), Some(reference));
    assert_eq!(encode(reference), bytes);
}

#[test]
fn records_survive_a_round_trip() {
    for (space, no, used, sequential) in [
        (0, 0, Use::Read, false),
        (0xFFFF_FFFF, u32::MAX, Use::Write, true),
        (0x0001_0002, 0x8000_0000, Use::Read, true),
    ] {
        let reference = Reference { page: PageId::new(SpaceId(space), no), used, sequential };
        assert_eq!(decode(&encode(reference)), Some(reference));
    }
}

#[test]
fn what_is_no_trace_is_refused() {
    let good = encode(Reference::read(PageId::default()));
    assert_eq!(Trace::from_bytes(&good).unwrap().references().len(), 1);
    assert!(matches!(Trace::from_bytes(&good[..11]), Err(TraceError::Torn(11))));
    for (at, byte, why) in [(8, 2, "operation"), (9, 2, "flag"), (6, 1, "48 bits")] {
        let mut bad = [good, good].concat();
        bad[12 + at] = byte;
        assert!(matches!(Trace::from_bytes(&bad), Err(TraceError::Record(1, _))), "byte {at}");
        let message = Trace::from_bytes(&bad).unwrap_err().to_string();
        assert!(message.contains("record 1") && message.contains(why), "{message}");
    }
}

#[test]
fn a_trace_is_replayed_in_order_once() {
    let trace: Trace = (0..3000).map(|no| Reference::read(PageId::new(SpaceId(1), no))).collect();
    let mut source = trace.source();
    let mut all = Vec::new();
    while source.batch(&mut all) {}
    assert_eq!(all, trace.references());
}

#[test]
fn zipf_goes_by_rank() {
    let mut zipf = Zipf::new(100, 1.0, 0.25, 7);
    let mut references = Vec::new();
    while references.len() < 100_000 {
        zipf.batch(&mut references);
    }
    let mut counts: FxHashMap<PageId, f64> = FxHashMap::default();
    for reference in &references {
        *counts.entry(reference.page).or_default() += 1.0;
    }
    let mut counts: Vec<f64> = counts.into_values().collect();
    counts.sort_by(|a, b| b.total_cmp(a));
    // Rank 1 has 1 / H(100) = 19.3% of the references, ten times as many as rank 10.
    let n = references.len() as f64;
    assert!((counts[0] / n - 0.193).abs() < 0.01, "{}", counts[0] / n);
    assert!((counts[0] / counts[9] - 10.0).abs() < 1.0, "{}", counts[0] / counts[9]);
    let writes = references.iter().filter(|r| r.used == Use::Write).count() as f64;
    assert!((writes / n - 0.25).abs() < 0.01);
}

#[test]
fn tpcc_has_the_papers_size_and_the_standard_mix() {
    let mut tpcc = Tpcc::new(3, 5);
    let loaded = tpcc.pages();
    // About 100 MB per warehouse: 30 GB at 300 in the paper. All share the 667 pages of items.
    let per_warehouse_mb = (loaded - 667) as f64 * 16.0 / 1024.0 / 3.0;
    assert!((80.0..110.0).contains(&per_warehouse_mb), "{per_warehouse_mb}");
    let (mut created, mut batch) = (0, Vec::new());
    for _ in 0..10_000 {
        batch.clear();
        assert!(tpcc.batch(&mut batch));
        created += batch.iter().filter(|r| r.used == Use::Create).count();
        for r in &batch {
            assert!(table_name(r.page.space).is_some(), "{r:?}");
        }
    }
    assert!((4300..4700).contains(&tpcc.new_orders()), "{}", tpcc.new_orders());
    assert_eq!(tpcc.pages() - loaded, created as u64);
    // Some 4,500 orders with 45,000 lines of 80 bytes, and 4,300 payments.
    assert!((200..400).contains(&created), "{created}");
}

#[test]
fn tpcc_reads_no_page_before_it_exists() {
    let mut tpcc = Tpcc::new(1, 3);
    let (mut seen, mut batch) = (FxHashMap::default(), Vec::new());
    for _ in 0..20_000 {
        batch.clear();
        tpcc.batch(&mut batch);
        for r in &batch {
            let before = seen.insert(r.page, ());
            assert!(before.is_none() || r.used != Use::Create, "created twice: {r:?}");
        }
    }
    // Hot pages are hot: every New-Order and Payment uses the warehouse row.
    assert!(seen.contains_key(&PageId::new(SpaceId(1), 0)));
    assert_eq!(table_name(SpaceId(9)), Some("stock"));
    assert_eq!((table_name(SpaceId(0)), table_name(SpaceId(TABLES.len() as u32 + 1))), (None, None));
}

#[test]
fn sources_repeat_for_a_seed() {
    let first = |seed| {
        let mut out = Vec::new();
        for _ in 0..50 {
            Tpcc::new(1, seed).batch(&mut out);
        }
        Zipf::new(50, 0.9, 0.5, seed).batch(&mut out);
        out
    };
    assert_eq!(first(1), first(1));
    assert_ne!(first(1), first(2));
}

#[test]
fn a_hot_set_that_moves_leaves_the_shares_of_the_ranks() {
    let hottest = |churn: f64| {
        let mut zipf = Zipf::new(100, 1.0, 0.0, 7).churning(churn);
        let mut by_part: Vec<PageId> = Vec::new();
        for _ in 0..20 {
            let mut references = Vec::new();
            while references.len() < 20_000 {
                zipf.batch(&mut references);
            }
            let mut counts: FxHashMap<PageId, u32> = FxHashMap::default();
            references.iter().for_each(|reference| *counts.entry(reference.page).or_default() += 1);
            by_part.push(counts.into_iter().max_by_key(|&(page, n)| (n, page)).unwrap().0);
        }
        by_part.dedup();
        by_part.len()
    };
    assert_eq!(hottest(0.0), 1);
    // One page in 200 changes its rank during a hundred references, so all pages do in each part.
    assert!(hottest(0.005) > 10);
}

#[test]
fn a_scan_reads_all_pages_in_order() {
    let mut zipf = Zipf::new(50, 1.0, 1.0, 7).scanned(0.2);
    let mut references = Vec::new();
    while references.len() < 10_000 {
        zipf.batch(&mut references);
    }
    // The other references write, so all reads are the scan's.
    let scanned: Vec<u32> = references.iter().filter(|r| r.used == Use::Read).map(|r| r.page.no).collect();
    assert!((1_800..2_200).contains(&scanned.len()), "{}", scanned.len());
    assert!(scanned.iter().enumerate().all(|(at, &no)| no == at as u32 % 50));
    assert!(references.iter().all(|r| !r.sequential));
}
