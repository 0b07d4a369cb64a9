//! How long does a store take to open after a crash? `cargo bench --bench recovery [-- --quick]`.
//!
//! The store has an SSD cache of 10 GiB (655,360 pages of 16 KiB; 1 GiB with `--quick`) and an eviction zone
//! of 10% (io_uring, O_DIRECT). The bench fills the SSD with pages that the HDD lacks, changes some of them,
//! and drops the store without closing it, which is equivalent to a crash. Then it alternates several times
//! between three measurements: it opens the store (and drops it again); it reads as many slots as the zone
//! has once, in order, which any recovery of the zone has to do; and it reads and checks every slot of the
//! SSD, as a recovery without a checkpoint would have to. The table has the medians, the bytes that each
//! read, and the reads per slot of the zone.
//!
//! The limit is 15% of the full scan's time; a disk that reads faster than the one in `docs/BENCHMARKS.md`
//! may exceed it. The bench fails only when recovery reads more than the maps, the journal, the ring and the
//! zone.
//!
//! `PAGETIER_HDD` and `PAGETIER_SSD` name devices; what is not named is a file under `target/`. It needs 11
//! GiB on a file system with O_DIRECT. `docs/BENCHMARKS.md` has machine, date and results.

mod common;

use common::report::Report;
use common::target::Pair;
use common::{Length, Workers, median, runtime};
use futures_util::StreamExt;
use indicatif::{ProgressBar, ProgressStyle};
use pagetier::{
    PageId, PageStore, RecoveryReport, SpaceId,
    device::{Backend, DirectIo},
    pool_bytes_for, ssd_bytes_for,
};
use pagetier_devio::{IoBuf, IoBufs, IoClass, SharedDevice};
use pagetier_page::{HEADER_BYTES, Header, PageSize, StoreSeed, verify};
use pagetier_ssdcache::{Found, Layout, identify};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::time::{Duration, Instant};

const PAGE_BYTES: usize = PageSize::DEFAULT.bytes();
const PAGES: u32 = 655_360;
const QUICK_PAGES: u32 = 65_536;
const SHORT_PAGES: u32 = 4096;
const ZONE_PERCENT: f64 = 10.0;
/// Small, so that opening the pool takes negligible time.
const POOL_PAGES: u64 = 2048;
/// The maximum share of a full scan's time.
const SHARE_MAX: f64 = 0.15;
/// The size of a read of the scan, and the number of reads in flight.
const SCAN_BYTES: u64 = 1 << 20;
const SCAN_DEPTH: usize = 16;

fn main() {
    runtime(Workers::Two).block_on(run());
}

/// One round: the time of the recovery, of reading the zone once, and of the full scan.
struct Round {
    recovering: Duration,
    report: RecoveryReport,
    reads: u64,
    zone: Duration,
    scanning: Duration,
    scanned: Scanned,
}

async fn run() {
    let (pair, length) = (Pair::selected(), Length::selected());
    let wanted = length.pick(SHORT_PAGES, QUICK_PAGES, PAGES);
    // The SSD has maps and a ring besides its pages; the HDD has room for every page.
    let pages = pair.ssd.fit(pair.hdd.fit(wanted, PAGE_BYTES), PAGE_BYTES * 11 / 10);
    let mut report = Report::new("recovery", &pair.name(), &[&pair.hdd.about, &pair.ssd.about]);
    let folder = pair.ssd.store_folder();
    let store = Subject { pair: &pair, folder: folder.path(), pages };
    store.fill().await;
    let mut rounds = Vec::new();
    for number in 1..=length.pick(1, 5, 5) {
        let round = store.round().await;
        println!(
            "round {number}: recovery {:.2?}, the zone once {:.2?}, full scan {:.2?}",
            round.recovering, round.zone, round.scanning
        );
        rounds.push(round);
    }
    table(&mut report, &rounds);
    report.finish();
    // In a small store, what is read beside the zone matters.
    if length > Length::Short {
        rounds.iter().for_each(assert_bounded);
    }
}

fn table(report: &mut Report, rounds: &[Round]) {
    let first = &rounds[0];
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let page_bytes = PAGE_BYTES as u64;
    report.head(&["", "seconds", "MiB read", "slots read", "reads per slot"]);
    report.line(format_args!(
        "| recovery | {:.3} | {:.0} | {} | {:.3} |",
        median(rounds.iter().map(|round| round.recovering.as_secs_f64())),
        mib(first.report.bytes_read),
        first.report.zone_slots,
        median(rounds.iter().map(|round| round.reads as f64 / round.report.zone_slots as f64)),
    ));
    let zone_bytes = first.report.zone_slots * page_bytes;
    report.line(format_args!(
        "| as many slots as the zone has, once | {:.3} | {:.0} | {} | {:.3} |",
        median(rounds.iter().map(|round| round.zone.as_secs_f64())),
        mib(zone_bytes),
        first.report.zone_slots,
        page_bytes as f64 / SCAN_BYTES as f64,
    ));
    let slots = u64::from(first.scanned.layout.slots);
    report.line(format_args!(
        "| full scan | {:.3} | {:.0} | {slots} | {:.3} |",
        median(rounds.iter().map(|round| round.scanning.as_secs_f64())),
        mib(slots * page_bytes),
        page_bytes as f64 / SCAN_BYTES as f64,
    ));
    let of_zone = rounds.iter().map(|round| round.recovering.as_secs_f64() / round.zone.as_secs_f64());
    let share = share_of_scan(rounds);
    report.line(format_args!(
        "\nRecovery takes {:.1}% of a full scan (at most {:.0}%: {}), and {:.2} times as long as reading the \
         zone once.",
        share * 100.0,
        SHARE_MAX * 100.0,
        if share <= SHARE_MAX { "yes" } else { "NO" },
        median(of_zone),
    ));
}

fn share_of_scan(rounds: &[Round]) -> f64 {
    median(rounds.iter().map(|round| round.recovering.as_secs_f64() / round.scanning.as_secs_f64()))
}

/// Recovery reads the zone, and what lies before the slots: superblocks, maps, journal, ring.
fn assert_bounded(round: &Round) {
    let (report, layout) = (round.report, round.scanned.layout);
    let zone = report.zone_slots * PAGE_BYTES as u64;
    assert!(report.zone_slots <= u64::from(layout.slots) / 10 + 1, "{report:?}");
    assert!(report.bytes_read <= layout.slot_at(0) + zone, "{report:?}, slots from {}", layout.slot_at(0));
}

/// The store of this run.
struct Subject<'a> {
    pair: &'a Pair,
    folder: &'a Path,
    pages: u32,
}

impl Subject<'_> {
    /// Fills the SSD, changes a tenth of its pages, and crashes.
    async fn fill(&self) {
        let (store, pages) = (self.open().await, self.pages);
        let space = store.spaces().create("t").await.expect("a space");
        let bar = ProgressBar::new(u64::from(pages) * 11 / 10);
        let style = ProgressStyle::with_template("filling the SSD {bar:40} {percent} % {eta}");
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

    async fn round(&self) -> Round {
        let (recovering, report, reads) = self.recover().await;
        let (zone, _) = self.scan(Some(report.zone_slots as u32)).await;
        let (scanning, scanned) = self.scan(None).await;
        assert!(scanned.sound >= u64::from(self.pages) * 9 / 10, "{scanned:?}");
        Round { recovering, report, reads, zone, scanning, scanned }
    }

    /// The time of an open, what it found, and its reads from the SSD.
    async fn recover(&self) -> (Duration, RecoveryReport, u64) {
        let started = Instant::now();
        let store = self.open().await;
        let took = started.elapsed();
        let reads = store.stats().ssd_device.totals().read.ops;
        let report = store.recovery();
        let space = store.spaces().find("t").expect("its space");
        check(&store, space, self.pages).await;
        drop(store);
        (took, report, reads)
    }

    async fn open(&self) -> PageStore {
        let ssd_bytes = ssd_bytes_for(u64::from(self.pages), PageSize::DEFAULT);
        PageStore::builder()
            .directory(self.folder)
            .hdd(&self.pair.hdd.path)
            .ssd(&self.pair.ssd.path)
            .ssd_bytes(ssd_bytes)
            .pool_bytes(pool_bytes_for(
                POOL_PAGES.min(u64::from(self.pages) / 8),
                ssd_bytes,
                PageSize::DEFAULT,
            ))
            .ssd_policy(format!("auto:zone={ZONE_PERCENT}"))
            .io(Backend::Uring)
            .direct_io(DirectIo::Required)
            .open()
            .await
            .expect("a store")
    }

    /// Reads every slot, or the first ones, in large reads and verifies their contents.
    async fn scan(&self, first: Option<u32>) -> (Duration, Scanned) {
        let ssd = self.pair.ssd.device();
        let Found::Superblock(superblock) = identify(&ssd).await.expect("a superblock") else {
            panic!("no superblock on the SSD");
        };
        let (layout, seed) = (superblock.layout, superblock.seed());
        let started = Instant::now();
        let (from, to) = (layout.slot_at(0), layout.slot_at(first.unwrap_or(layout.slots)));
        let reads = (from..to).step_by(SCAN_BYTES as usize).map(|at| {
            let (ssd, len) = (SharedDevice::clone(&ssd), (to - at).min(SCAN_BYTES));
            async move { tokio::spawn(scan_piece(ssd, seed, at, len)).await.expect("a scan") }
        });
        let sound = futures_util::stream::iter(reads)
            .buffer_unordered(SCAN_DEPTH)
            .fold(0, |n, piece| async move { n + piece })
            .await;
        (started.elapsed(), Scanned { layout, sound })
    }
}

/// Checks that a sample of pages reads as written.
async fn check(store: &PageStore, space: SpaceId, pages: u32) {
    for no in (0..pages).step_by(pages as usize / 64) {
        let page = store.get(PageId::new(space, no)).await.expect("the page");
        assert_eq!(page[..4], no.to_le_bytes(), "page {no}");
    }
}

#[derive(Clone, Copy, Debug)]
struct Scanned {
    layout: Layout,
    sound: u64,
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
