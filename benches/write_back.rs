//! How near does the cleaning of random dirty pages come to the device's random writes?
//! `cargo bench --bench write_back [-- --quick]`.
//!
//! 32 tasks overwrite random pages of 16 KiB, without reading them, in a store without an SSD tier whose pool
//! holds a quarter of them. Each overwritten page that is not in memory displaces another, which has to be
//! written to its home first, so the tasks go as fast as the cleaners write. The bench counts the pages
//! written home, with the doublewrite ring (the default) and without it.
//!
//! The limit is the device's: fio's random writes of 16 KiB at a depth of 32 to the same range, in the same
//! round; then the same by the bare device layer. On an emulated disk, which fio does not see, the bare
//! device layer is the limit. The goal is 90%. The ring is a file beside the plain file, so it takes a share
//! of the same device there; on a named device it lies under `target/`. With the ring, no home write begins
//! before a flush of the ring covers its image, so the bench also runs fio with a flush (`fdatasync`) after
//! as many writes: what the device allows to any program that keeps such a promise.
//!
//! | column | meaning |
//! | --- | --- |
//! | home writes | pages per write to the HDD: neighbours are merged |
//! | depth | writes to the HDD in flight, on average |
//! | ring | bytes written to the ring per byte written home, and pages per write to the ring |
//! | flushes | flushes of HDD and ring per 1,000 pages |
//! | checksum | CPU time to seal a page with its CRC, as measured here, times the pages per second |
//!
//! Then bursts: what does a `sync` of 300 pages take that all are on a small SSD? Each page goes to another
//! slot, and a map checkpoint makes the slots writable again that a burst has used up.
//!
//! `PAGETIER_HDD` and `PAGETIER_SSD` name devices; the bench runs on each. Without them it uses a file under
//! `target/`, and the emulated disk. `docs/BENCHMARKS.md` has machine, date and results.

mod common;

use common::limit::{Figures, Load, Op, Times};
use common::report::Report;
use common::target::{Target, each_or_emulated};
use common::{Length, Workers, median, runtime};
use pagetier::device::{Backend, DirectIo, IoClass};
use pagetier::stats::Stats;
use pagetier::{PageId, PageStore, SpaceId};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PAGE_BYTES: usize = 16 << 10;
const PAGES: u32 = 32_768;
const SHORT_PAGES: u32 = 4096;
/// Where the pages begin on the device.
const DATA_AT: u64 = 1 << 20;
const DEPTH: u32 = 32;
const IOPS_MIN: f64 = 0.9;

fn main() {
    for target in each_or_emulated() {
        // An emulated disk takes its time, and varies little.
        let rounds = Length::selected().pick(1, 3, 5);
        let rounds = if target.is_emulated() { (rounds / 2).max(1) } else { rounds };
        on(&target, rounds);
    }
}

fn times() -> Times {
    let (ramp, measured) = Length::selected().pick((100, 300), (1000, 4000), (1000, 4000));
    Times { ramp: Duration::from_millis(ramp), measured: Duration::from_millis(measured) }
}

/// One way of writing.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// With a flush after so many writes; 0: without.
    Fio(u32),
    Bare,
    Store {
        ring_pages: Option<u32>,
    },
}

const WAYS: [(&str, Way); 5] = [
    ("fio", Way::Fio(0)),
    ("fio, a flush per 32 writes", Way::Fio(32)),
    ("bare device layer", Way::Bare),
    ("store, with the ring", Way::Store { ring_pages: None }),
    ("store, without the ring", Way::Store { ring_pages: Some(0) }),
];

/// What one way did in one round.
#[derive(Clone, Copy)]
struct Written {
    per_second: f64,
    pages_per_write: f64,
    depth: f64,
    ring_share: f64,
    ring_pages_per_write: f64,
    flushes: f64,
}

impl From<Figures> for Written {
    fn from(figures: Figures) -> Self {
        let depth = figures.iops * figures.latency_mean_us / 1e6;
        let (ring_share, ring_pages_per_write) = (0.0, 0.0);
        Self {
            per_second: figures.iops,
            pages_per_write: 1.0,
            depth,
            ring_share,
            ring_pages_per_write,
            flushes: 0.0,
        }
    }
}

fn on(target: &Target, rounds: usize) {
    let mut report = Report::new("write_back", &target.name, &[&target.about]);
    let pages = target.fit(Length::selected().pick(SHORT_PAGES, PAGES, PAGES), PAGE_BYTES);
    let mut ways: Vec<(&str, Way, Vec<Written>)> =
        WAYS.into_iter().map(|(name, way)| (name, way, Vec::new())).collect();
    for _ in 0..rounds {
        for (_, way, results) in &mut ways {
            let result = match *way {
                Way::Fio(_) if target.is_emulated() => Err("it does not see the emulated timing".to_owned()),
                Way::Fio(flush_every) => by_fio(target, pages, flush_every),
                Way::Bare => Ok(by_device_layer(target, pages)),
                Way::Store { ring_pages } => {
                    Ok(runtime(Workers::Two).block_on(clean(target, pages, ring_pages)))
                }
            };
            target.erase();
            match result {
                Ok(written) => results.push(written),
                Err(why) => eprintln!("no fio: {why}"),
            }
        }
    }
    ways.retain(|(.., results)| !results.is_empty());
    let Some((limit, _, limits)) = ways.first().cloned() else { return };
    report.line(format_args!("\nLimit: {limit}. {pages} pages, medians of {rounds} rounds."));
    let columns = ["what", "pages/s", "of the limit", "home writes", "depth", "ring", "flushes", "checksum"];
    report.head(&[&columns[..], &["asked", "kept"]].concat());
    let seal = time_to_seal();
    for (name, way, results) in &ways {
        let of = |what: fn(&Written) -> f64| median(results.iter().map(what));
        let per_second = of(|w| w.per_second);
        let ratio = median(results.iter().zip(&limits).map(|(own, limit)| own.per_second / limit.per_second));
        let is_store = matches!(way, Way::Store { .. });
        let checksum = if is_store { percent(per_second * seal.as_secs_f64()) } else { String::new() };
        report.line(format_args!(
            "| {name} | {per_second:.0} | {ratio:.2} | {:.2} | {:.0} | {:.2}, {:.1} | {:.0} | {checksum} | {} | {} |",
            of(|w| w.pages_per_write),
            of(|w| w.depth),
            of(|w| w.ring_share),
            of(|w| w.ring_pages_per_write),
            of(|w| w.flushes),
            if is_store { format!(">= {IOPS_MIN}") } else { String::new() },
            if !is_store {
                ""
            } else if ratio >= IOPS_MIN {
                "yes"
            } else {
                "NO"
            },
        ));
    }
    bursts(target, &mut report);
    report.finish();
}

/// Pages per `sync`, and the sizes of the SSD in MiB, whose file lies in the store's folder.
const BURST: u32 = 300;
const SSD_MIB: [u64; 3] = [48, 192, 768];

fn bursts(target: &Target, report: &mut Report) {
    if target.is_emulated() {
        return;
    }
    report.line(format_args!("\nA `sync` of {BURST} pages that are on the SSD, medians."));
    report.head(&["SSD", "ms per sync", "checkpoints per sync"]);
    for mib in SSD_MIB {
        let (took, checkpoints) = runtime(Workers::Two).block_on(burst(target, mib << 20));
        report.line(format_args!("| {mib} MiB | {:.1} | {checkpoints:.2} |", took * 1e3));
    }
}

/// The seconds and map checkpoints of one `sync` of a burst, in a store whose SSD has `ssd_bytes`.
async fn burst(target: &Target, ssd_bytes: u64) -> (f64, f64) {
    let folder = target.store_folder();
    // Not all of them find a slot: the SSD is full.
    let pages = u32::try_from(ssd_bytes / PAGE_BYTES as u64).expect("a small SSD");
    let store = PageStore::builder()
        .directory(folder.path())
        .ssd_bytes(ssd_bytes)
        .pool_bytes(u64::from(pages + 512) * PAGE_BYTES as u64)
        .open()
        .await
        .expect("a store");
    let space = store.spaces().create("pages").await.expect("a space");
    for _ in 0..pages {
        drop(store.allocate(space).await.expect("room"));
    }
    let rounds = Length::selected().pick(3, 20, 60);
    let mut rng = SmallRng::seed_from_u64(7);
    let (mut took, mut before) = (Vec::new(), 0);
    // The first rounds bring the pages to the SSD.
    for round in 0..rounds + 3 {
        if round == 3 {
            before = store.stats().ssd.counts.checkpoints;
        }
        let first = rng.random_range(0..pages - BURST);
        let burst = if round < 3 { 0..pages } else { first..first + BURST };
        for no in burst {
            store.get_mut(PageId::new(space, no)).await.expect("resident")[..4]
                .copy_from_slice(&u32::to_le_bytes(round));
        }
        let began = Instant::now();
        store.sync().await.expect("synced");
        took.push(began.elapsed().as_secs_f64());
    }
    let checkpoints = store.stats().ssd.counts.checkpoints - before;
    store.close().await.expect("closed");
    (median(took.drain(3..)), checkpoints as f64 / f64::from(rounds))
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

fn load(pages: u32) -> Load {
    let bytes = u64::from(pages) * PAGE_BYTES as u64;
    Load { op: Op::RandomWrite, block: PAGE_BYTES, from: DATA_AT, bytes, depth: DEPTH }
}

fn by_fio(target: &Target, pages: u32, flush_every: u32) -> Result<Written, String> {
    runtime(Workers::One).block_on(async { load(pages).fill(&target.device()).await });
    let flushes = if flush_every > 0 { 1000.0 / f64::from(flush_every) } else { 0.0 };
    let figures = load(pages).by_flushing_fio(&target.path, times(), flush_every)?;
    Ok(Written { flushes, ..Written::from(figures) })
}

fn by_device_layer(target: &Target, pages: u32) -> Written {
    runtime(Workers::One).block_on(async {
        load(pages).fill(&target.untimed_device()).await;
        load(pages).by_devio(&target.device(), times()).await.into()
    })
}

/// Creates a store and measures how many pages per second its cleaners write home.
async fn clean(target: &Target, pages: u32, ring_pages: Option<u32>) -> Written {
    let folder = target.store_folder();
    let builder = || {
        let builder = PageStore::builder()
            .directory(folder.path())
            .ssd_bytes(0)
            .pool_bytes(u64::from(pages) * PAGE_BYTES as u64 / 4)
            .io(Backend::Uring)
            .direct_io(DirectIo::Required);
        if let Some(pages) = ring_pages { builder.ring_pages(pages) } else { builder }
    };
    let store = builder().hdd(&target.path).open().await.expect("a store");
    let space = store.spaces().create("pages").await.expect("a space");
    for _ in 0..pages {
        drop(store.allocate(space).await.expect("room"));
    }
    store.close().await.expect("closed");

    let store = Arc::new(target.as_hdd(builder()).open().await.expect("the store"));
    let ends = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..DEPTH)
        .map(|task| tokio::spawn(overwrite(Arc::clone(&store), space, pages, task, Arc::clone(&ends))))
        .collect();
    tokio::time::sleep(times().ramp).await;
    let (before, began) = (store.stats(), Instant::now());
    tokio::time::sleep(times().measured).await;
    let (after, took) = (store.stats(), began.elapsed());
    ends.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("the pages can be overwritten");
    }
    // Closing would write every dirty page; the store is of no use any more.
    let closed = store.wait_closed();
    drop(store);
    closed.await;
    written(&before, &after, took)
}

async fn overwrite(store: Arc<PageStore>, space: SpaceId, pages: u32, task: u32, ends: Arc<AtomicBool>) {
    let mut rng = SmallRng::seed_from_u64(u64::from(task));
    while !ends.load(Ordering::Relaxed) {
        let page = PageId::new(space, rng.random_range(0..pages));
        let mut page = store.overwrite(page).await.expect("room");
        page[..4].copy_from_slice(&task.to_le_bytes());
        drop(page);
        // A page that is still in memory is overwritten without waiting.
        tokio::task::yield_now().await;
    }
}

fn written(before: &Stats, after: &Stats, took: Duration) -> Written {
    let hdd = after.hdd_device.since(&before.hdd_device);
    let homes = hdd.totals_of(&[IoClass::Clean, IoClass::UrgentClean]).write;
    let ssd = after.ssd_device.since(&before.ssd_device);
    let ring = ssd.totals_of(&[IoClass::Ring]).write;
    let pages = |bytes: u64| bytes as f64 / PAGE_BYTES as f64;
    Written {
        per_second: pages(homes.bytes) / took.as_secs_f64(),
        pages_per_write: pages(homes.bytes) / homes.ops.max(1) as f64,
        depth: homes.latency_ns as f64 / took.as_nanos() as f64,
        ring_share: ring.bytes as f64 / homes.bytes.max(1) as f64,
        ring_pages_per_write: pages(ring.bytes) / ring.ops.max(1) as f64,
        flushes: (ssd.flush.ops + hdd.flush.ops) as f64 * 1000.0 / pages(homes.bytes).max(1.0),
    }
}

/// The CPU time of one page's checksum.
fn time_to_seal() -> Duration {
    const TURNS: u32 = 2000;
    let page = vec![7_u8; PAGE_BYTES];
    let began = Instant::now();
    for _ in 0..TURNS {
        black_box(pagetier_page::crc32c(black_box(&page)));
    }
    began.elapsed() / TURNS
}
