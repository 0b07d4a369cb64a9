//! The cost of reading a page that is not in memory: `cargo bench --bench miss_path [-- --quick]`.
//!
//! The subject is a store without an SSD tier on a real file (io_uring, O_DIRECT), with 1 GiB of written
//! pages of 16 KiB and a pool of 16 MiB. The bench reads each page once in random order, so every read
//! misses: a victim is evicted; the page is read, checked and returned in a guard; 8 bytes of it are read.
//! Either one task waits for one page at a time (latency), or 32 tasks do (IOPS).
//!
//! The limit is the device's, measured by fio on the same file in the same minute. A round consists of fio,
//! raw reads through `pagetier-devio`, and reads through the store, each on a runtime with one thread and one
//! with two workers. The table at the end has the medians of the rounds, and the medians of each round's
//! ratios to fio. Without fio, the raw reads replace it: this excludes the cost of the device layer, and the
//! table says so.
//!
//! The file is in cargo's target directory, or in `PAGETIER_BENCH_DIR`; that file system must support
//! O_DIRECT.
//!
//! With a name (`cargo bench --bench miss_path -- store`) criterion measures the store alone, for comparison
//! with an earlier run.

use criterion::{BenchmarkId, Criterion};
use pagetier::{
    PageId, PageStore, SpaceId,
    device::{Backend, DirectIo},
};
use pagetier_devio::{IoBuf, IoClass, OpenOptions, Reap, SharedDevice, open_file};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder as RuntimeBuilder, Runtime};

const PAGE_BYTES: usize = 16 << 10;
const PAGES: u32 = 65_536;
const POOL_BYTES: u64 = 16 << 20;
/// The home of the first page (`docs/format.md`); the others follow, since there is one space.
const DATA_AT: u64 = 1 << 20;
const DEPTHS: [u32; 2] = [1, 32];
/// The length of each measurement, after a ramp that is not counted.
const MEASURED: Duration = Duration::from_millis(1500);
const RAMP: Duration = Duration::from_millis(200);
/// The required limits, as ratios to fio: maximum latency at depth 1, minimum IOPS at depth 32.
const LATENCY_MAX: f64 = 1.3;
const IOPS_MIN: f64 = 0.85;

fn main() {
    let place = Place::new();
    place.write_pages();
    let mut criterion = Criterion::default().configure_from_args();
    if std::env::args().skip(1).any(|arg| !arg.starts_with('-')) {
        with_criterion(&mut criterion, &place);
    } else {
        let quick = std::env::args().any(|arg| arg == "--quick");
        beside_the_device(&place, if quick { 3 } else { 7 });
    }
}

/// The store's directory, removed on drop.
struct Place {
    folder: tempfile::TempDir,
    order: Arc<Order>,
}

/// All pages in random order, repeated.
struct Order {
    pages: Vec<u32>,
    next: AtomicU64,
}

impl Order {
    fn next(&self) -> u32 {
        self.pages[self.next.fetch_add(1, Ordering::Relaxed) as usize % self.pages.len()]
    }
}

impl Place {
    fn new() -> Self {
        let parent =
            std::env::var_os("PAGETIER_BENCH_DIR").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
        std::fs::create_dir_all(&parent).expect("a directory for the data");
        let mut pages: Vec<u32> = (0..PAGES).collect();
        pages.shuffle(&mut SmallRng::seed_from_u64(1));
        Self {
            folder: tempfile::tempdir_in(parent).expect("a directory for the data"),
            order: Arc::new(Order { pages, next: AtomicU64::new(0) }),
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("hdd.vol")
    }

    async fn open(&self) -> PageStore {
        PageStore::builder()
            .directory(self.folder.path())
            .ssd_bytes(0)
            .pool_bytes(POOL_BYTES)
            .io(Backend::Uring)
            .direct_io(DirectIo::Required)
            .open()
            .await
            .expect("a file system with O_DIRECT, a kernel with io_uring")
    }

    fn write_pages(&self) {
        runtime(Workers::One).block_on(async {
            let store = self.open().await;
            let space = store.spaces().create("pages").await.expect("created");
            assert_eq!(space, page(0).space);
            for no in 0..PAGES {
                store.allocate(space).await.expect("allocated")[..8].copy_from_slice(&word_of(no));
            }
            store.close().await.expect("closed");
        });
    }
}

fn page(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

fn word_of(no: u32) -> [u8; 8] {
    (u64::from(no) << 32 | 1).to_le_bytes()
}

#[derive(Clone, Copy, PartialEq)]
enum Workers {
    One,
    Two,
}

fn runtime(workers: Workers) -> Runtime {
    let mut builder = match workers {
        Workers::One => RuntimeBuilder::new_current_thread(),
        Workers::Two => RuntimeBuilder::new_multi_thread(),
    };
    if workers == Workers::Two {
        builder.worker_threads(2);
    }
    builder.enable_all().build().expect("a runtime")
}

/// The results of one measurement.
#[derive(Clone, Copy)]
struct Figures {
    iops: f64,
    latency_mean_us: f64,
}

/// A task's reads since the ramp.
#[derive(Default)]
struct Share {
    reads: u64,
    latency: Duration,
}

/// Runs `depth` tasks, each of which reads sequentially until the time is up.
async fn measure<Task>(depth: u32, task: impl Fn(u32, Instant) -> Task) -> Figures
where
    Task: Future<Output = Share> + Send + 'static,
{
    let from = Instant::now() + RAMP;
    let tasks: Vec<_> = (0..depth).map(|number| tokio::spawn(task(number, from))).collect();
    let mut sum = Share::default();
    for task in tasks {
        let share = task.await.expect("read");
        sum.reads += share.reads;
        sum.latency += share.latency;
    }
    Figures {
        iops: sum.reads as f64 / MEASURED.as_secs_f64(),
        latency_mean_us: sum.latency.as_secs_f64() * 1e6 / sum.reads.max(1) as f64,
    }
}

impl Share {
    /// Records a read that started at `began` and has just ended; false when the time is up.
    fn note(&mut self, began: Instant, from: Instant) -> bool {
        let ended = Instant::now();
        if ended >= from + MEASURED {
            return false;
        }
        if began >= from {
            self.reads += 1;
            self.latency += ended - began;
        }
        true
    }
}

async fn read_page(store: &PageStore, order: &Order) {
    let no = order.next();
    let guard = store.get(page(no)).await.expect("read");
    assert_eq!(guard[..8], word_of(no));
}

fn through_the_store(place: &Place, depth: u32, workers: Workers) -> Figures {
    runtime(workers).block_on(async {
        let store = Arc::new(place.open().await);
        let figures = measure(depth, |_, from| {
            let (store, order) = (Arc::clone(&store), Arc::clone(&place.order));
            async move {
                let mut share = Share::default();
                loop {
                    let began = Instant::now();
                    read_page(&store, &order).await;
                    if !share.note(began, from) {
                        return share;
                    }
                }
            }
        })
        .await;
        let pool = store.stats().pool;
        assert!(pool.hits * 1000 < pool.misses, "{pool:?}: nearly all reads must miss");
        let store = Arc::into_inner(store).expect("the tasks have ended");
        store.close().await.expect("closed");
        figures
    })
}

/// Raw reads of the same pages through the device layer alone.
fn through_the_device(place: &Place, depth: u32, workers: Workers) -> Figures {
    let options = OpenOptions {
        direct: DirectIo::Required,
        backend: Backend::Uring,
        read_only: true,
        reap: Reap::Reactor,
        ..OpenOptions::default()
    };
    let runtime = runtime(workers);
    let inside = runtime.enter();
    let device = open_file(&place.file(), &options).expect("opened").device;
    drop(inside);
    runtime.block_on(measure(depth, |_, from| {
        let (device, order) = (SharedDevice::clone(&device), Arc::clone(&place.order));
        async move {
            let mut bufs = [IoBuf::zeroed(PAGE_BYTES)].into_iter().collect();
            let mut share = Share::default();
            loop {
                let began = Instant::now();
                let offset = DATA_AT + u64::from(order.next()) * PAGE_BYTES as u64;
                let done = device.read(offset, bufs, IoClass::Demand).await;
                done.result.expect("read");
                bufs = done.bufs;
                if !share.note(began, from) {
                    return share;
                }
            }
        }
    }))
}

/// The device's limit as measured by fio, or why there is none.
fn by_fio(file: &Path, depth: u32) -> Result<Figures, String> {
    let out = Command::new("fio")
        .args(["--name=limit", "--readonly", "--output-format=json", "--ioengine=io_uring", "--direct=1"])
        .args(["--bs=16k", "--rw=randread", "--time_based"])
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--offset={DATA_AT}"))
        .arg(format!("--size={}", u64::from(PAGES) * PAGE_BYTES as u64))
        .arg(format!("--iodepth={depth}"))
        .arg(format!("--runtime={}ms", MEASURED.as_millis()))
        .arg(format!("--ramp_time={}ms", RAMP.as_millis()))
        // Read different pages in each round.
        .arg("--randrepeat=0")
        .output()
        .map_err(|error| format!("fio does not start: {error}"))?;
    if !out.status.success() {
        return Err(format!("fio failed: {}", String::from_utf8_lossy(&out.stderr).trim()));
    }
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).map_err(|e| e.to_string())?;
    let read = &report["jobs"][0]["read"];
    match (read["iops"].as_f64(), read["lat_ns"]["mean"].as_f64()) {
        (Some(iops), Some(ns)) => Ok(Figures { iops, latency_mean_us: ns / 1e3 }),
        _ => Err("fio's report has no reads".to_owned()),
    }
}

/// One way of reading, with its figures per round.
struct Row {
    name: &'static str,
    read: fn(&Place, u32, Workers) -> Figures,
    workers: Workers,
    rounds: Vec<Figures>,
}

impl Row {
    fn all() -> Vec<Self> {
        let row = |name, read, workers| Self { name, read, workers, rounds: Vec::new() };
        vec![
            row("raw reads, one thread", through_the_device, Workers::One),
            row("raw reads, two workers", through_the_device, Workers::Two),
            row("store, one thread", through_the_store, Workers::One),
            row("store, two workers", through_the_store, Workers::Two),
        ]
    }
}

fn beside_the_device(place: &Place, rounds: usize) {
    let fio = by_fio(&place.file(), 1);
    if let Err(why) = &fio {
        eprintln!("\nNO FIO ({why}): the figures are relative to raw reads by pagetier-devio, not to fio.\n");
    }
    let limit = if fio.is_ok() { "fio" } else { "raw reads by pagetier-devio, NOT fio" };
    println!("\nLimit: {limit}. Medians of {rounds} rounds.\n");
    println!("| depth | what | IOPS | limit's | ratio | mean latency | limit's | ratio | asked | kept |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for depth in DEPTHS {
        let mut rows = Row::all();
        let mut limits = Vec::new();
        for _ in 0..rounds {
            limits.extend(fio.as_ref().ok().map(|_| by_fio(&place.file(), depth).expect("it ran before")));
            for row in &mut rows {
                row.rounds.push((row.read)(place, depth, row.workers));
            }
        }
        let limits = if fio.is_ok() { limits } else { rows[0].rounds.clone() };
        rows.iter().for_each(|row| print(depth, row, &limits));
    }
}

fn print(depth: u32, row: &Row, limits: &[Figures]) {
    let of = |figures: &[Figures], what: fn(&Figures) -> f64| median(figures.iter().map(what).collect());
    let ratio = |what: fn(&Figures) -> f64| {
        median(row.rounds.iter().zip(limits).map(|(own, limit)| what(own) / what(limit)).collect())
    };
    let (iops, latency) = (|f: &Figures| f.iops, |f: &Figures| f.latency_mean_us);
    let (asked, kept) = if depth == 1 {
        (format!("latency <= {LATENCY_MAX}"), ratio(latency) <= LATENCY_MAX)
    } else {
        (format!("IOPS >= {IOPS_MIN}"), ratio(iops) >= IOPS_MIN)
    };
    println!(
        "| {depth} | {} | {:.0} | {:.0} | {:.2} | {:.1} us | {:.1} us | {:.2} | {asked} | {} |",
        row.name,
        of(&row.rounds, iops),
        of(limits, iops),
        ratio(iops),
        of(&row.rounds, latency),
        of(limits, latency),
        ratio(latency),
        if kept { "yes" } else { "NO" },
    );
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The time per read with `depth` concurrent readers, for criterion's comparisons.
fn with_criterion(criterion: &mut Criterion, place: &Place) {
    let mut group = criterion.benchmark_group("store");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    for workers in [Workers::One, Workers::Two] {
        let runtime = runtime(workers);
        let store = Arc::new(runtime.block_on(place.open()));
        for depth in DEPTHS {
            let name = if workers == Workers::One { "one-thread" } else { "two-workers" };
            group.bench_function(BenchmarkId::new(name, depth), |b| {
                b.iter_custom(|n| runtime.block_on(time_reads(&store, &place.order, depth, n)));
            });
        }
        let store = Arc::into_inner(store).expect("the tasks have ended");
        runtime.block_on(store.close()).expect("closed");
    }
    group.finish();
}

async fn time_reads(store: &Arc<PageStore>, order: &Arc<Order>, depth: u32, reads: u64) -> Duration {
    let left = Arc::new(AtomicU64::new(reads));
    let began = Instant::now();
    let start = |_| {
        let (store, order, left) = (Arc::clone(store), Arc::clone(order), Arc::clone(&left));
        tokio::spawn(async move {
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
                read_page(&store, &order).await;
            }
        })
    };
    let tasks: Vec<_> = (0..depth).map(start).collect();
    for task in tasks {
        task.await.expect("read");
    }
    began.elapsed()
}
