//! Ghosts whose costs were counted by hand, and their reports.

use pagetier_ghost::{GhostError, GhostParams, Ghosts, Reference, SampleSummary, Stream, WhatIf};
use pagetier_page::Sampling;
use pagetier_policy::{PageId, PoolPolicy, SpaceId};

fn p(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

fn params(pool: u32, ssd: u32, ssd_policy: &str) -> GhostParams {
    pagetier_rivals::register();
    GhostParams {
        pool_policy: PoolPolicy::Lru,
        ssd_policy: ssd_policy.parse().unwrap(),
        pool_factors: vec![1.0, 2.0],
        ssd_factors: vec![1.0, 2.0],
        ..GhostParams::new(pool, ssd)
    }
}

fn counted(requests: u64) -> SampleSummary {
    SampleSummary { requests, references: requests, lost: 0 }
}

fn total(report: &WhatIf, pool: u32, ssd: u32) -> f64 {
    report.at(pool, ssd).unwrap().total_ms()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

#[test]
fn two_pages_that_take_turns_in_a_pool_for_one() {
    let mut ghosts = Ghosts::new(params(1, 1, "lru2")).unwrap();
    // A and B are read from the HDD; with slots for both, their copies go to the SSD as they leave the pool.
    for no in [1, 2, 1, 2] {
        ghosts.apply(Reference::read(p(no)));
    }
    ghosts.mark();
    for no in [1, 2, 1, 2] {
        ghosts.apply(Reference::read(p(no)));
    }
    ghosts.validate().unwrap();
    let report = ghosts.report(counted(4), false);
    // One frame, two slots: every request is read from the SSD, 0.11 ms.
    assert!(close(total(&report, 1, 2), 110.0), "{report}");
    // Two frames: everything is in memory, whatever the SSD's size.
    assert!(close(total(&report, 2, 1), 0.0) && close(total(&report, 2, 2), 0.0), "{report}");
    assert_eq!(report.at(1, 2).map(|cost| (cost.misses, cost.ssd_hits)), Some((1000.0, 1000.0)));
    let advice = report.advice();
    assert!(advice.iter().any(|line| line.starts_with("another 16 KiB of SSD would save")), "{advice:?}");
    assert!(
        advice.iter().any(|line| line.starts_with("another 16 KiB of memory would save 100%")),
        "{advice:?}"
    );
}

#[test]
fn changes_are_written_home_without_an_ssd() {
    let mut ghosts = Ghosts::new(params(1, 0, "none")).unwrap();
    for no in [1, 2, 1, 2] {
        ghosts.apply(Reference::write(p(no)));
    }
    let report = ghosts.report(counted(4), false);
    // One frame: four reads, and three pages written when evicted (the last is still dirty). Two frames: two
    // reads.
    assert!(close(total(&report, 1, 0), (4.0 * 7.2 + 3.0 * 4.96) * 250.0), "{report}");
    assert!(close(total(&report, 2, 0), 2.0 * 7.2 * 250.0), "{report}");
    assert_eq!(report.ssds(), [0]);
    assert!(report.to_string().contains(&format!("[{:.1}]", total(&report, 1, 0))), "{report}");
}

#[test]
fn a_sample_is_scaled_up_to_the_whole_stream() {
    let sampling = Sampling::new(0.25);
    let mut ghosts = Ghosts::new(GhostParams { sampling, ..params(400, 0, "none") }).unwrap();
    let mut references = 0;
    for no in (0..100_000).filter(|&no| sampling.takes(p(no))) {
        ghosts.apply(Reference::read(p(no)));
        references += 1;
    }
    let report = ghosts.report(SampleSummary { requests: 100_000, references, lost: 0 }, false);
    let now = report.present().unwrap();
    assert!((now.hdd_ms / 7_200.0 - 1.0).abs() < 0.02, "every request misses: {report}");
}

#[test]
fn a_stream_reports_its_later_half() {
    let mut stream = Stream::new(Ghosts::new(params(8, 0, "none")).unwrap(), 500);
    // 4,096 pages once each, then eight pages repeatedly.
    let reads = |from: u32, to: u32| (from..to).map(|no| Reference::read(p(no))).collect::<Vec<_>>();
    stream.put(reads(0, 4_096), 500 + 4_096, 0);
    for round in 1..=1_024 {
        stream.put(reads(0, 8), 500 + 4_096 + 8 * round, 3);
    }
    let report = stream.report();
    assert!(
        close(report.present().unwrap().total_ms(), 8.0 * 7_200.0 / report.sampled.requests as f64)
            || close(report.present().unwrap().total_ms(), 0.0),
        "{report}"
    );
    assert!(report.sampled.requests >= 4_096 && report.sampled.requests <= 8_192, "{:?}", report.sampled);
    assert!(report.sampled.references <= report.sampled.requests);
}

#[test]
fn impossible_grids_are_refused() {
    let with = |change: fn(&mut GhostParams)| {
        let mut params = params(10, 10, "cac");
        change(&mut params);
        Ghosts::new(params).unwrap_err()
    };
    assert_eq!(with(|p| p.ssd_factors = vec![-1.0]), GhostError::Factor(-1.0));
    assert!(matches!(with(|p| p.ssd_factors = vec![f64::NAN]), GhostError::Factor(_)));
    assert_eq!(with(|p| p.pool_factors = vec![0.0]), GhostError::Factor(0.0));
    assert!(matches!(with(|p| p.ssd_factors = vec![1e9]), GhostError::TooLarge(_)));
    assert!(matches!(with(|p| p.ssd_factors = (0..300).map(f64::from).collect()), GhostError::TooMany(_)));
}
