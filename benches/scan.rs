//! How fast is a scan of pages that are not in memory, and what does it displace?
//! `cargo bench --bench scan [-- --quick]`.
//!
//! A store without an SSD tier has a space of hot pages, half as many as its pool has frames, and a cold one
//! of 1 GiB. Each round reads the hot pages eight times, then scans the cold space once (`PageStore::scan`,
//! one task that reads 8 bytes of each page), and then asks which hot pages are still in memory. No task
//! reads a hot page meanwhile, which is the worst case for them.
//!
//! The limit is the device's sequential bandwidth over the same range in the same round: fio reading 1 MiB at
//! a time at a depth of 8; on an emulated disk, which fio does not see, the bare device layer at a depth of
//! 2. The goals are 90% of the bandwidth, and 95% of the hot pages in memory.
//!
//! `PAGETIER_HDD` and `PAGETIER_SSD` name devices; the bench runs on each. Without them it uses a file under
//! `target/`, and the emulated disk. `docs/BENCHMARKS.md` has machine, date and results.

mod common;

use common::limit::{Figures, Load, Op, Times};
use common::report::Report;
use common::target::{Target, each_or_emulated};
use common::{Length, Workers, median, runtime};
use pagetier::device::{Backend, DirectIo};
use pagetier::{Builder, PageId, PageStore, PoolPolicy};
use std::hint::black_box;
use std::time::{Duration, Instant};

const PAGE_BYTES: usize = 16 << 10;
const COLD: u32 = 65_536;
const SHORT_COLD: u32 = 4096;
const FRAMES_PER_COLD: u32 = 16;
/// Where the pages begin on the device.
const DATA_AT: u64 = 1 << 20;
const POLICIES: [&str; 2] = ["auto", "lru"];
/// Reads of each hot page.
const HOT_READS: u32 = 8;
const BANDWIDTH_MIN: f64 = 0.9;
const KEPT_MIN: f64 = 0.95;

fn main() {
    pagetier_rivals::register();
    for target in each_or_emulated() {
        let rounds = Length::selected().pick(1, 3, 5);
        on(&target, if target.is_emulated() { (rounds / 2).max(1) } else { rounds });
    }
}

/// What one scan did.
struct Scanned {
    took: Duration,
    kept: f64,
}

fn on(target: &Target, rounds: usize) {
    let mut report = Report::new("scan", &target.name, &[&target.about]);
    // The hot pages take another thirty-second part.
    let cold = target.fit(Length::selected().pick(SHORT_COLD, COLD, COLD), PAGE_BYTES) / 32 * 31;
    let hot = cold / FRAMES_PER_COLD / 2;
    let folder = target.store_folder();
    let builder = |policy: &str| {
        let policy: PoolPolicy = policy.parse().expect("a policy");
        let frames_bytes = pagetier::pool_bytes_for(u64::from(hot) * 2, 0, pagetier::PageSize::DEFAULT);
        PageStore::builder()
            .directory(folder.path())
            .ssd_bytes(0)
            .pool_bytes(frames_bytes)
            .pool_policy(policy)
            .io(Backend::Uring)
            .direct_io(DirectIo::Required)
    };
    runtime(Workers::One).block_on(fill(builder("auto").hdd(&target.path), hot, cold));

    let (limit_name, mut limits) = ("", Vec::new());
    let mut limit_name = limit_name;
    let mut results: Vec<Vec<Scanned>> = POLICIES.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        let (name, figures) = limit(target, hot + cold);
        (limit_name, _) = (name, limits.push(figures));
        for (policy, results) in POLICIES.iter().zip(&mut results) {
            let builder = target.as_hdd(builder(policy));
            results.push(runtime(Workers::One).block_on(scan(builder, hot, cold)));
        }
    }
    report.line(format_args!(
        "\nLimit: {limit_name}. {hot} hot pages, {cold} cold pages, medians of {rounds} rounds."
    ));
    report.head(&[
        "pool policy",
        "MiB/s",
        "limit's",
        "ratio",
        "asked",
        "hot pages kept",
        "asked",
        "both kept",
    ]);
    let mib = |bytes_per_s: f64| bytes_per_s / f64::from(1 << 20);
    let of_scan = |s: &Scanned| f64::from(cold) * PAGE_BYTES as f64 / s.took.as_secs_f64();
    let of_limit = |f: &Figures| f.iops * BLOCK as f64;
    for (policy, results) in POLICIES.iter().zip(&results) {
        let ratio = median(results.iter().zip(&limits).map(|(own, limit)| of_scan(own) / of_limit(limit)));
        let kept = median(results.iter().map(|scan| scan.kept));
        report.line(format_args!(
            "| {policy} | {:.0} | {:.0} | {ratio:.2} | >= {BANDWIDTH_MIN} | {:.1}% | >= {:.0}% | {} |",
            mib(median(results.iter().map(of_scan))),
            mib(median(limits.iter().map(of_limit))),
            100.0 * kept,
            100.0 * KEPT_MIN,
            if ratio >= BANDWIDTH_MIN && kept >= KEPT_MIN { "yes" } else { "NO" },
        ));
    }
    report.finish();
}

const BLOCK: usize = 1 << 20;

fn limit(target: &Target, pages: u32) -> (&'static str, Figures) {
    let bytes = u64::from(pages) * PAGE_BYTES as u64 / BLOCK as u64 * BLOCK as u64;
    let load = |depth| Load { op: Op::SequentialRead, block: BLOCK, from: DATA_AT, bytes, depth };
    let by_fio = if target.is_emulated() {
        Err("it does not see the emulated timing".to_owned())
    } else {
        load(8).by_fio(&target.path, Times::selected())
    };
    match by_fio {
        Ok(figures) => ("fio", figures),
        Err(why) => {
            eprintln!("no fio: {why}");
            let bare = async { load(2).by_devio(&target.device(), Times::selected()).await };
            ("the bare device layer, NOT fio", runtime(Workers::One).block_on(bare))
        }
    }
}

async fn fill(builder: Builder, hot: u32, cold: u32) {
    let store = builder.open().await.expect("a store");
    for (name, pages) in [("hot", hot), ("cold", cold)] {
        let space = store.spaces().create(name).await.expect("a space");
        for no in 0..pages {
            store.allocate(space).await.expect("room")[..4].copy_from_slice(&no.to_le_bytes());
        }
    }
    store.close().await.expect("closed");
}

async fn scan(builder: Builder, hot: u32, cold: u32) -> Scanned {
    let store = builder.open().await.expect("the store");
    let [hot_space, cold_space] = ["hot", "cold"].map(|name| store.spaces().find(name).expect("its space"));
    for _ in 0..HOT_READS {
        for no in 0..hot {
            black_box(store.get(PageId::new(hot_space, no)).await.expect("read")[0]);
        }
    }
    let began = Instant::now();
    let (mut pages, mut scan) = (0, store.scan(cold_space, 0..cold));
    while let Some(page) = scan.next().await {
        black_box(u64::from_le_bytes(page.expect("read")[..8].try_into().expect("8 bytes")));
        pages += 1;
    }
    let took = began.elapsed();
    assert_eq!(pages, cold, "a scan returns every page");
    let kept = (0..hot).filter(|no| store.try_get(PageId::new(hot_space, *no)).is_some()).count();
    store.close().await.expect("closed");
    Scanned { took, kept: kept as f64 / f64::from(hot) }
}
