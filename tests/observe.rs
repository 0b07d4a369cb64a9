//! The operator's view: the summary, the reasons for a page's place, the export for other processes.

use crate::fixture::{Fixture, PAGES, read, synced, write, zoned};
use pagetier::{
    Location, PageId, PageStore, SpaceId, SsdMode,
    stats::{LiveStats, StatsSummary},
};
use std::time::Duration;

async fn busy(fixture: &Fixture) -> (PageStore, SpaceId) {
    let store = fixture.builder().ssd_policy(zoned("cac")).pool_policy("gd2l").open().await.unwrap();
    let space = synced(&store, 2).await;
    for no in (0..PAGES).chain(0..20) {
        read(&store, space, no).await.unwrap();
    }
    (store, space)
}

#[tokio::test(start_paused = true)]
async fn the_statistics_print_as_a_screenful_and_survive_json() {
    let fixture = Fixture::new();
    let (store, _) = busy(&fixture).await;
    let stats = store.stats();
    let text = stats.to_string();
    assert!((20..=50).contains(&text.lines().count()), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
    let (pool, summary) = (stats.pool, stats.summary());
    assert!(text.contains(&format!("{} hits, {} misses", pool.hits, pool.misses)), "{text}");
    let json = serde_json::to_string(&stats).unwrap();
    assert!(json.len() < 16_384, "{} bytes", json.len());
    let mut parsed: StatsSummary = serde_json::from_str(&json).unwrap();
    // A fraction may differ in its last digit.
    let ratios = parsed.pool.hit_ratio.zip(summary.pool.hit_ratio).unwrap();
    assert!((ratios.0 - ratios.1).abs() < 1e-12, "{ratios:?}");
    parsed.pool.hit_ratio = summary.pool.hit_ratio;
    assert_eq!(parsed, summary);
    // The quantiles are the histograms'.
    let (hdd, reads) = (&summary.hdd_device.read, stats.hdd_device.totals().read);
    assert!(hdd.ops > 0 && hdd.p50_us <= hdd.p999_us, "{hdd:?}");
    for (share, us) in [(0.5, hdd.p50_us), (0.9, hdd.p90_us), (0.99, hdd.p99_us), (0.999, hdd.p999_us)] {
        assert_eq!(us, reads.latency.quantile_ns(share) as f64 / 1000.0);
    }
    let lookups = summary.pool.counts.hits + summary.pool.counts.misses;
    assert_eq!(summary.pool.hit_ratio, Some(summary.pool.counts.hits as f64 / lookups as f64));
    let pool = &summary.memory.pool;
    let parts = pool.frames + pool.metadata + pool.policy + pool.staging;
    assert!(pool.policy > 0);
    assert_eq!(summary.memory.total, parts + summary.memory.ssd_tables);
    let classes = &summary.hdd_device.classes;
    assert_eq!(classes.iter().map(|c| c.read.ops + c.write.ops).sum::<u64>(), hdd.ops + writes(&summary));
}

fn writes(summary: &StatsSummary) -> u64 {
    summary.hdd_device.write.ops
}

#[tokio::test(start_paused = true)]
async fn an_empty_store_prints_no_ratio_and_no_latencies() {
    let fixture = Fixture::new();
    let store = fixture.builder().ssd_bytes(0).open().await.unwrap();
    let summary = store.stats().summary();
    assert_eq!((summary.pool.hit_ratio, summary.ssd.tier.mode), (None, SsdMode::Off));
    assert!(store.stats().to_string().contains("hit ratio -"));
}

#[tokio::test(start_paused = true)]
async fn a_page_is_explained_by_the_figures_of_its_policies() {
    let fixture = Fixture::new();
    let (store, space) = busy(&fixture).await;
    let page = |no| PageId::new(space, no);
    write(&store, space, 3, 3).await.unwrap();
    let why = store.why(page(3)).unwrap();
    let memory = why.memory.unwrap();
    assert!(memory.dirty && memory.h_ms.is_some_and(|h| h >= 0.0), "{why}");
    assert_eq!(memory.recovery_lsn, Some(3003));
    for no in 0..PAGES {
        let why = store.why(page(no)).unwrap();
        assert_eq!(why.on_ssd, store.location(page(no)) == Location::Ssd);
        assert_eq!(why.memory.is_some(), store.try_get(page(no)).is_some(), "page {no}");
        assert_eq!(why.counts.map(|c| c.reads_hdd), store.policies().counts(page(no)).map(|c| c.reads_hdd));
        // The benefit follows from the counts and the group's factor by the paper's equations 2 to 6.
        if let (Some(c), Some(g), Some(benefit)) = (why.counts, why.group, why.benefit_ms) {
            let costs = store.policies().costs();
            let (r_d, r_s) = (c.reads_hdd as f64, c.reads_ssd as f64);
            let (w_d, w_s) = (c.writes_hdd as f64, c.writes_ssd as f64);
            let reads = (r_d + r_s / g.alpha) * costs.hdd_read_ms - (r_s + g.alpha * r_d) * costs.ssd_read_ms;
            let writes =
                (w_d + w_s / g.alpha) * costs.hdd_write_ms - (w_s + g.alpha * w_d) * costs.ssd_write_ms;
            assert!((reads + writes - benefit).abs() < 1e-6, "page {no}: {why}");
        }
    }
    let explained = (0..PAGES).filter(|no| store.why(page(*no)).unwrap().group.is_some()).count();
    assert!(explained > 100, "{explained} pages have a group");
    assert!(store.why(page(PAGES)).is_err());
    let text = store.why(page(3)).unwrap().to_string();
    assert!(text.contains("memory  yes, dirty") && text.contains("H - L"), "{text}");
    store.ssd().set_mode(SsdMode::WriteThrough).await.unwrap();
    assert_eq!(store.why(page(3)).unwrap().ssd_mode, SsdMode::WriteThrough);
    store.validate().unwrap();
}

/// Reads the file until its number is at least `number`, as a tool in another process does.
async fn exported(path: &std::path::Path, number: u64) -> LiveStats {
    loop {
        let live: LiveStats = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        if live.number >= number {
            return live;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_export_is_whole_at_every_moment_and_ends_when_dropped() {
    let dir = pagetier_testing::scratch();
    let path = dir.path().join("stats.json");
    let fixture = Fixture::new();
    let (store, space) = busy(&fixture).await;
    let export = store.export_stats(&path, Duration::from_secs(1)).await.unwrap();
    let first = exported(&path, 1).await;
    assert_eq!(first.stats.pool.counts.misses, store.stats().pool.misses);
    assert_eq!((first.spaces.len(), first.spaces[0].pages), (1, PAGES));
    for no in 0..PAGES {
        read(&store, space, no).await.unwrap();
    }
    let second = exported(&path, first.number + 2).await;
    assert!(second.stats.pool.counts.misses > first.stats.pool.counts.misses);
    drop(export);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let last = exported(&path, 1).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(exported(&path, 1).await, last);
    let refused = store.export_stats(dir.path().join("no/such"), Duration::from_secs(1)).await;
    assert!(refused.unwrap_err().to_string().contains("no/such"));
}

#[tokio::test(start_paused = true)]
async fn an_export_and_a_trace_that_cannot_be_written_disturb_no_request() {
    let dir = pagetier_testing::scratch();
    let (folder, away) = (dir.path().join("exports"), dir.path().join("away"));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("stats.json");
    let fixture = Fixture::new();
    let (store, space) = busy(&fixture).await;
    let export = store.export_stats(&path, Duration::from_secs(1)).await.unwrap();
    // Like a full disk, the device accepts no byte.
    store.trace().start("/dev/full").unwrap();
    std::fs::rename(&folder, &away).unwrap();
    for _ in 0..20 {
        for no in 0..PAGES {
            read(&store, space, no).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let stopped = store.trace().stop().await;
    assert_eq!(stopped.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    // Another trace can begin, and the export continues once it can be written again.
    let trace = dir.path().join("trace");
    store.trace().start(&trace).unwrap();
    read(&store, space, 1).await.unwrap();
    assert_eq!(store.trace().stop().await.unwrap().records, 1);
    let before: LiveStats = serde_json::from_slice(&std::fs::read(away.join("stats.json")).unwrap()).unwrap();
    std::fs::rename(&away, &folder).unwrap();
    assert!(exported(&path, before.number + 10).await.stats.pool.counts.misses > 0);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    drop(export);
    store.validate().unwrap();
}
