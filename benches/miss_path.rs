//! The cost of reading a page that is not in memory: `cargo bench --bench miss_path [-- --quick]`.
//!
//! The subject is a store without an SSD tier on a real device or file (io_uring, O_DIRECT), with 1 GiB of
//! written pages of 16 KiB and a pool of 16 MiB. The bench reads each page once in random order, so every
//! read misses: a victim is evicted; the page is read, checked and returned in a guard; 8 bytes of it are
//! read. Either one task waits for one page at a time (latency), or 8, 32 or 64 tasks do (IOPS).
//!
//! The limit is the device's, measured by fio on the same range in the same minute. A round consists of fio,
//! a bare loop over io_uring (with and without registered buffers), raw reads through `pagetier-devio`, and
//! reads through the store, each of the last two on a runtime with one thread and one with two workers. The
//! table at the end has the medians of the rounds, and the medians of each round's ratios: IOPS and latency
//! to fio's, user and system time per read to the bare loop's. Without fio, the loop replaces it, and the
//! table says so.
//!
//! `PAGETIER_HDD` and `PAGETIER_SSD` name devices; the bench runs on each. Without them it uses a file under
//! `target/`. `docs/BENCHMARKS.md` has machine, date and results.
//!
//! With a name (`cargo bench --bench miss_path -- store`) criterion measures the store alone, for comparison
//! with an earlier run.

mod common;

use common::bare;
use common::limit::{Figures, Load, Op, Share, Times, measure};
use common::report::Report;
use common::target::{Target, each};
use common::{Length, Workers, median, runtime};
use criterion::{BenchmarkId, Criterion};
use pagetier::device::{Backend, DirectIo};
use pagetier::{PageId, PageStore, SpaceId};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE_BYTES: usize = 16 << 10;
const PAGES: u32 = 65_536;
const SHORT_PAGES: u32 = 4096;
const POOL_BYTES: u64 = 16 << 20;
/// The home of the first page (`docs/format.md`); the others follow, since there is one space.
const DATA_AT: u64 = 1 << 20;
const DEPTHS: [u32; 4] = [1, 8, 32, 64];
/// The goals, as ratios to fio: maximum latency at depth 1, minimum IOPS beyond.
const LATENCY_MAX: f64 = 1.1;
const IOPS_MIN: f64 = 0.97;
/// The goal, as a ratio to the bare loop: maximum user and system time per read.
const CPU_MAX: f64 = 1.3;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let by_criterion = std::env::args().skip(1).any(|arg| !arg.starts_with('-'));
    for target in each() {
        let place = Place::new(target);
        place.write_pages();
        if by_criterion {
            with_criterion(&mut criterion, &place);
        } else {
            beside_the_device(&place, Length::selected().pick(1, 3, 7));
        }
    }
}

/// The store's pages, on one device.
struct Place {
    target: Target,
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
    fn new(target: Target) -> Self {
        let wanted = Length::selected().pick(SHORT_PAGES, PAGES, PAGES);
        let mut pages: Vec<u32> = (0..target.fit(wanted, PAGE_BYTES)).collect();
        pages.shuffle(&mut SmallRng::seed_from_u64(1));
        Self { target, order: Arc::new(Order { pages, next: AtomicU64::new(0) }) }
    }

    fn pages(&self) -> u32 {
        self.order.pages.len() as u32
    }

    async fn open(&self) -> PageStore {
        let builder = PageStore::builder()
            .directory(self.target.folder())
            .ssd_bytes(0)
            .pool_bytes(POOL_BYTES.min(u64::from(self.pages()) * PAGE_BYTES as u64 / 16))
            .io(Backend::Uring)
            .direct_io(DirectIo::Required);
        let opened = self.target.as_hdd(builder).open().await;
        opened.expect("a file system with O_DIRECT, a kernel with io_uring")
    }

    fn write_pages(&self) {
        runtime(Workers::One).block_on(async {
            let store = self.open().await;
            let space = store.spaces().create("pages").await.expect("created");
            assert_eq!(space, page(0).space);
            for no in 0..self.pages() {
                store.allocate(space).await.expect("allocated")[..8].copy_from_slice(&word_of(no));
            }
            store.close().await.expect("closed");
        });
    }

    /// Random reads of the store's pages, below the store.
    fn load(&self, depth: u32) -> Load {
        let bytes = u64::from(self.pages()) * PAGE_BYTES as u64;
        Load { op: Op::RandomRead, block: PAGE_BYTES, from: DATA_AT, bytes, depth }
    }
}

fn page(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

fn word_of(no: u32) -> [u8; 8] {
    (u64::from(no) << 32 | 1).to_le_bytes()
}

async fn read_page(store: &PageStore, order: &Order) {
    let no = order.next();
    let guard = store.get(page(no)).await.expect("read");
    assert_eq!(guard[..8], word_of(no));
}

fn through_the_store(place: &Place, depth: u32, workers: Workers) -> Figures {
    runtime(workers).block_on(async {
        let store = Arc::new(place.open().await);
        let figures = measure(Times::selected(), depth, |_, span| {
            let (store, order) = (Arc::clone(&store), Arc::clone(&place.order));
            async move {
                let mut share = Share::default();
                loop {
                    let began = Instant::now();
                    read_page(&store, &order).await;
                    if !share.note(began, span) {
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
    runtime(workers).block_on(async {
        let device = place.target.device();
        place.load(depth).by_devio(&device, Times::selected()).await
    })
}

/// Reads of the same pages by io_uring alone.
fn by_loop(place: &Place, depth: u32, registered: bool) -> Figures {
    let read = bare::by_loop(place.load(depth), &place.target.path, Times::selected(), registered);
    read.expect("a file system with O_DIRECT, a kernel with io_uring")
}

/// One way of reading, with its figures per round.
struct Row {
    name: &'static str,
    read: fn(&Place, u32, Workers) -> Figures,
    workers: Workers,
    rounds: Vec<Figures>,
}

impl Row {
    /// The bare loop comes first.
    fn all() -> Vec<Self> {
        let row = |name, read, workers| Self { name, read, workers, rounds: Vec::new() };
        vec![
            row("bare loop", |place, depth, _| by_loop(place, depth, false), Workers::One),
            row("bare loop, registered buffers", |place, depth, _| by_loop(place, depth, true), Workers::One),
            row("raw reads, one thread", through_the_device, Workers::One),
            row("raw reads, two workers", through_the_device, Workers::Two),
            row("store, one thread", through_the_store, Workers::One),
            row("store, two workers", through_the_store, Workers::Two),
        ]
    }
}

fn beside_the_device(place: &Place, rounds: usize) {
    let mut report = Report::new("miss_path", &place.target.name, &[&place.target.about]);
    let by_fio = |depth| place.load(depth).by_fio(&place.target.path, Times::selected());
    let fio = by_fio(1);
    if let Err(why) = &fio {
        report.line(format_args!("\nNO FIO ({why}): the figures are relative to the bare loop, not to fio."));
    }
    let limit = if fio.is_ok() { "fio" } else { "the bare loop, NOT fio" };
    report.line(format_args!("\nLimit: {limit}; of CPU time, the bare loop. Medians of {rounds} rounds."));
    let columns = ["depth", "what", "IOPS", "of the limit", "mean latency", "of the limit"];
    report.head(&[&columns[..], &["CPU per read", "of the loop", "asked", "kept"]].concat());
    for depth in DEPTHS {
        let mut rows = Row::all();
        let mut limits = Vec::new();
        for _ in 0..rounds {
            limits.extend(fio.as_ref().ok().map(|_| by_fio(depth).expect("it ran before")));
            for row in &mut rows {
                row.rounds.push((row.read)(place, depth, row.workers));
            }
        }
        let loops = rows[0].rounds.clone();
        let limits = if fio.is_ok() { limits } else { loops.clone() };
        let of = |what: fn(&Figures) -> f64| median(limits.iter().map(what));
        let (iops, latency) = (of(|limit| limit.iops), of(|limit| limit.latency_mean_us));
        report.line(format_args!("| {depth} | {limit} | {iops:.0} | | {latency:.1} us | | | | | |"));
        rows.iter().for_each(|row| report.line(line(depth, row, &limits, &loops)));
    }
    report.finish();
}

fn line(depth: u32, row: &Row, limits: &[Figures], loops: &[Figures]) -> String {
    let of = |what: fn(&Figures) -> f64| median(row.rounds.iter().map(what));
    let ratio = |what: fn(&Figures) -> f64, limits: &[Figures]| {
        median(row.rounds.iter().zip(limits).map(|(own, limit)| what(own) / what(limit)))
    };
    let iops = |f: &Figures| f.iops;
    let latency = |f: &Figures| f.latency_mean_us;
    let cpu = |f: &Figures| f.cpu_us;
    let (of_iops, of_latency, of_cpu) = (ratio(iops, limits), ratio(latency, limits), ratio(cpu, loops));
    let (asked, kept) = if depth == 1 {
        (format!("latency <= {LATENCY_MAX}"), of_latency <= LATENCY_MAX)
    } else {
        (format!("IOPS >= {IOPS_MIN}"), of_iops >= IOPS_MIN)
    };
    format!(
        "| {depth} | {} | {:.0} | {of_iops:.2} | {:.1} us | {of_latency:.2} | {:.1} us | {of_cpu:.2} | {asked}, \
         CPU <= {CPU_MAX} | {}, {} |",
        row.name,
        of(iops),
        of(latency),
        of(cpu),
        if kept { "yes" } else { "NO" },
        if of_cpu <= CPU_MAX { "yes" } else { "NO" },
    )
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
