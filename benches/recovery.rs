//! The time a store takes to open after a crash: `cargo bench --bench recovery [-- --quick]`.
//!
//! The store has an SSD cache of 10 GiB (655,360 pages of 16 KiB; 1 GiB with `--quick`) and an eviction zone
//! of 10% on real files (io_uring, O_DIRECT). The bench fills the SSD with pages that the HDD lacks, changes
//! some of them, and drops the store without closing it, which is equivalent to a crash. Then it alternates
//! several times between two measurements: it opens the store (and drops it again), and it reads and checks
//! every slot of the SSD, as a recovery without a checkpoint would have to. The table has the medians, and
//! the bytes that each read.
//!
//! The bench fails when recovery reads more than the maps, the journal, the ring and the zone, or takes more
//! than 15% of the scan's time.
//!
//! The files are in cargo's target directory, or in `PAGETIER_BENCH_DIR`; it needs 11 GiB on a file system
//! with O_DIRECT.

use futures_util::StreamExt;
use indicatif::{ProgressBar, ProgressStyle};
use pagetier::{
    PageId, PageStore, RecoveryReport, SpaceId,
    device::{Backend, DirectIo},
    pool_bytes_for, ssd_bytes_for,
};
use pagetier_devio::{IoBuf, IoBufs, IoClass, OpenOptions, Reap, SharedDevice, open_file};
use pagetier_page::{HEADER_BYTES, Header, PageSize, StoreSeed, verify};
use pagetier_ssdcache::{Found, Layout, identify};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::time::{Duration, Instant};

const PAGES: u32 = 655_360;
const QUICK_PAGES: u32 = 65_536;
const ZONE_PERCENT: f64 = 10.0;
/// Small, so that opening the pool takes negligible time.
const POOL_PAGES: u64 = 2048;
const ROUNDS: usize = 5;
/// The maximum share of a full scan's time.
const SHARE_MAX: f64 = 0.15;
/// The size of a read of the scan, and the number of reads in flight.
const SCAN_BYTES: u64 = 1 << 20;
const SCAN_DEPTH: usize = 16;

fn main() {
    // Other arguments are for cargo and criterion.
    let pages = if std::env::args().any(|arg| arg == "--quick") { QUICK_PAGES } else { PAGES };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(run(pages));
}

async fn run(pages: u32) {
    let parent = std::env::var_os("PAGETIER_BENCH_DIR").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    std::fs::create_dir_all(&parent).expect("a directory for the data");
    let folder = tempfile::tempdir_in(parent).expect("a directory for the data");
    fill(folder.path(), pages).await;

    let mut rounds = Vec::new();
    for round in 1..=ROUNDS {
        let (recovering, report) = recover(folder.path(), pages).await;
        let (scanning, scanned) = scan(folder.path()).await;
        assert!(scanned.sound >= u64::from(pages) * 9 / 10, "{scanned:?}");
        println!("round {round}: recovery {recovering:.2?}, full scan {scanning:.2?}");
        rounds.push((recovering, scanning, report, scanned));
    }
    let share = median(rounds.iter().map(|(r, s, ..)| r.as_secs_f64() / s.as_secs_f64()));
    let recovering = median(rounds.iter().map(|(time, ..)| time.as_secs_f64()));
    let scanning = median(rounds.iter().map(|(_, time, ..)| time.as_secs_f64()));
    let (_, _, report, scanned) = &rounds[0];
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!("\n| | seconds | MiB read | slots read |\n| --- | --- | --- | --- |");
    println!("| recovery | {:.2} | {:.0} | {} |", recovering, mib(report.bytes_read), report.zone_slots);
    println!(
        "| full scan | {:.2} | {:.0} | {} |",
        scanning,
        mib(u64::from(scanned.slots) * PageSize::DEFAULT.bytes() as u64),
        scanned.slots
    );
    println!("\nrecovery takes {:.1}% of a full scan (at most {:.0}%)", share * 100.0, SHARE_MAX * 100.0);
    for (_, _, report, scanned) in &rounds {
        let layout = scanned.layout;
        let zone = report.zone_slots * PageSize::DEFAULT.bytes() as u64;
        assert!(report.zone_slots <= u64::from(layout.slots) / 10 + 1, "{report:?}");
        assert!(
            report.bytes_read <= layout.slot_at(0) + zone,
            "{report:?}, slots from {}",
            layout.slot_at(0)
        );
    }
    assert!(share <= SHARE_MAX, "recovery takes {share:.3} of a full scan");
}

/// Fills the SSD, changes a tenth of its pages, and crashes.
async fn fill(folder: &Path, pages: u32) {
    let store = open(folder, pages).await;
    let space = store.spaces().create("t").await.expect("a space");
    let bar = ProgressBar::new(u64::from(pages) * 11 / 10);
    let style = ProgressStyle::with_template("filling the SSD {bar:40} {percent}% {eta}");
    bar.set_style(style.expect("a template"));
    for no in 0..pages {
        let mut page = store.allocate(space).await.expect("room");
        page[..4].copy_from_slice(&no.to_le_bytes());
        drop(page);
        bar.inc(1);
    }
    let mut rng = SmallRng::seed_from_u64(1);
    for _ in 0..pages / 10 {
        let no = rng.random_range(0..pages);
        let mut page = store.get_mut(PageId::new(space, no)).await.expect("the page");
        page[4..8].copy_from_slice(&1u32.to_le_bytes());
        drop(page);
        bar.inc(1);
    }
    store.sync().await.expect("a durable store");
    bar.finish_and_clear();
    let ssd = store.stats().ssd;
    println!("{} of {} slots in use, {} pages nowhere else", ssd.pages, ssd.slots, ssd.dirty_pages);
    assert!(ssd.pages * 10 >= u64::from(pages) * 9, "{ssd:?}");
}

async fn recover(folder: &Path, pages: u32) -> (Duration, RecoveryReport) {
    let started = Instant::now();
    let store = open(folder, pages).await;
    let took = started.elapsed();
    let report = store.recovery();
    let space = store.spaces().find("t").expect("its space");
    check(&store, space, pages).await;
    (took, report)
}

/// Checks that a sample of pages reads as written.
async fn check(store: &PageStore, space: SpaceId, pages: u32) {
    for no in (0..pages).step_by(pages as usize / 64) {
        let page = store.get(PageId::new(space, no)).await.expect("the page");
        assert_eq!(page[..4], no.to_le_bytes(), "page {no}");
    }
}

async fn open(folder: &Path, pages: u32) -> PageStore {
    let ssd_bytes = ssd_bytes_for(u64::from(pages), PageSize::DEFAULT);
    PageStore::builder()
        .directory(folder)
        .ssd_bytes(ssd_bytes)
        .pool_bytes(pool_bytes_for(POOL_PAGES, ssd_bytes, PageSize::DEFAULT))
        .zone_percent(ZONE_PERCENT)
        .io(Backend::Uring)
        .direct_io(DirectIo::Required)
        .open()
        .await
        .expect("a store")
}

#[derive(Clone, Copy, Debug)]
struct Scanned {
    layout: Layout,
    slots: u32,
    sound: u64,
}

/// Reads every slot in large reads and verifies its contents.
async fn scan(folder: &Path) -> (Duration, Scanned) {
    let options = OpenOptions {
        direct: DirectIo::Required,
        backend: Backend::Uring,
        reap: Reap::Reactor,
        ..OpenOptions::default()
    };
    let ssd = open_file(&folder.join("ssd.cache"), &options).expect("the SSD").device;
    let Found::Superblock(superblock) = identify(&ssd).await.expect("a superblock") else {
        panic!("no superblock on the SSD");
    };
    let (layout, seed) = (superblock.layout, superblock.seed());
    let started = Instant::now();
    let (from, to) = (layout.slot_at(0), layout.slot_at(layout.slots));
    let reads = (from..to).step_by(SCAN_BYTES as usize).map(|at| {
        let (ssd, len) = (SharedDevice::clone(&ssd), (to - at).min(SCAN_BYTES));
        async move { tokio::spawn(scan_piece(ssd, seed, at, len)).await.expect("a scan") }
    });
    let sound = futures_util::stream::iter(reads)
        .buffer_unordered(SCAN_DEPTH)
        .fold(0, |n, piece| async move { n + piece })
        .await;
    (started.elapsed(), Scanned { layout, slots: layout.slots, sound })
}

/// The number of sound page images in a range of slots.
async fn scan_piece(ssd: SharedDevice, seed: StoreSeed, at: u64, len: u64) -> u64 {
    let bufs = IoBufs::from_iter([IoBuf::zeroed(len as usize)]);
    let done = ssd.read(at, bufs, IoClass::Recovery).await;
    done.result.expect("a read");
    let images = done.bufs[0].as_slice().chunks(PageSize::DEFAULT.bytes());
    let sound = images
        .filter(|image| image.len() > HEADER_BYTES && verify(seed, image, Header::peek(image).page).is_ok());
    sound.count() as u64
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
