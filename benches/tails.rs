//! How long do readers wait while pages are cleaned and the SSD's map is checkpointed?
//! `cargo bench --bench tails [-- --quick]`.
//!
//! Four tasks read random pages of 16 KiB, 1 ms apart, alone and beside a writer that overwrites 100 random
//! pages and calls `sync` ten times per second. The store has a full SSD of 192 MiB, twice as many pages, and
//! a pool of 16 MiB, so nearly every read goes to a device, every `sync` cleans pages, and the map is
//! checkpointed again and again. The table has the 99th percentile of the reads' times, and its ratio to that
//! without the writer.
//!
//! The limit is the device's: the same reads by the bare device layer, beside as many random writes, eight at
//! a time, and a flush after each hundred. The goal of the store is 1.5; where the bare device layer exceeds
//! that, no store can reach it.
//!
//! `PAGETIER_HDD` and `PAGETIER_SSD` name devices; what is not named is a file under `target/`.
//! `docs/BENCHMARKS.md` has machine, date and results.

mod common;

use common::limit::{Load, Op};
use common::report::Report;
use common::target::Pair;
use common::{Length, Workers, median, runtime};
use futures_util::StreamExt;
use pagetier::device::{Backend, DirectIo};
use pagetier::{PageId, PageSize, PageStore, SpaceId, pool_bytes_for};
use pagetier_devio::{IoBuf, IoBufs, IoClass, SharedDevice};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::time::sleep;

const PAGE_BYTES: usize = PageSize::DEFAULT.bytes();
const SSD_BYTES: u64 = 192 << 20;
const POOL_PAGES: u64 = 1024;
/// Where the pages begin on the HDD.
const DATA_AT: u64 = 1 << 20;
const READERS: u64 = 4;
const READ_EVERY: Duration = Duration::from_millis(1);
const BURST: u32 = 100;
const BURST_EVERY: Duration = Duration::from_millis(100);
const BURST_DEPTH: usize = 8;
const RATIO_MAX: f64 = 1.5;

fn main() {
    let (pair, rounds) = (Pair::selected(), Length::selected().pick(1, 3, 5));
    let pages = pair.hdd.fit(2 * (SSD_BYTES / PAGE_BYTES as u64) as u32, PAGE_BYTES);
    let mut report = Report::new("tails", &pair.name(), &[&pair.hdd.about, &pair.ssd.about]);
    let mut rows = vec![("bare device layer", Vec::new()), ("store", Vec::new())];
    for _ in 0..rounds {
        rows[0].1.push(runtime(Workers::Two).block_on(bare(&pair, pages)));
        pair.hdd.erase();
        rows[1].1.push(runtime(Workers::Two).block_on(stored(&pair, pages)));
        pair.hdd.erase();
        pair.ssd.erase();
    }
    report.line(format_args!("\nThe 99th percentile of random reads. Medians of {rounds} rounds."));
    report.head(&["what", "alone", "beside the writer", "ratio", "checkpoints", "asked", "kept"]);
    for (name, results) in &rows {
        let of = |what: fn(&Tails) -> f64| median(results.iter().map(what));
        let ratio = of(|t| t.beside_us / t.alone_us);
        report.line(format_args!(
            "| {name} | {:.0} us | {:.0} us | {ratio:.2} | {:.0} | <= {RATIO_MAX} | {} |",
            of(|t| t.alone_us),
            of(|t| t.beside_us),
            of(|t| t.checkpoints),
            if ratio <= RATIO_MAX { "yes" } else { "NO" },
        ));
    }
    report.finish();
}

/// The 99th percentiles of one round.
struct Tails {
    alone_us: f64,
    beside_us: f64,
    checkpoints: f64,
}

/// What is read and written.
#[derive(Clone)]
enum Subject {
    Bare(SharedDevice),
    Stored(Arc<PageStore>, SpaceId),
}

impl Subject {
    async fn read(&self, no: u32) {
        match self {
            Self::Bare(device) => {
                let bufs = IoBufs::from_iter([IoBuf::zeroed(PAGE_BYTES)]);
                device.read(home(no), bufs, IoClass::Demand).await.result.expect("read");
            }
            Self::Stored(store, space) => {
                black_box(store.get(PageId::new(*space, no)).await.expect("read")[0]);
            }
        }
    }

    /// Writes `pages` and makes them durable.
    async fn write(&self, pages: Vec<u32>) {
        match self {
            Self::Bare(device) => {
                let write = |no| {
                    let bufs = IoBufs::from_iter([IoBuf::zeroed(PAGE_BYTES)]);
                    device.write(home(no), bufs, IoClass::Clean)
                };
                let mut writes =
                    futures_util::stream::iter(pages.into_iter().map(write)).buffered(BURST_DEPTH);
                while let Some(done) = writes.next().await {
                    done.result.expect("written");
                }
                device.flush(IoClass::Meta).await.expect("durable");
            }
            Self::Stored(store, space) => {
                for no in pages {
                    let mut page = store.overwrite(PageId::new(*space, no)).await.expect("room");
                    page[..4].copy_from_slice(&no.to_le_bytes());
                }
                store.sync().await.expect("durable");
            }
        }
    }
}

fn home(no: u32) -> u64 {
    DATA_AT + u64::from(no) * PAGE_BYTES as u64
}

async fn bare(pair: &Pair, pages: u32) -> Tails {
    let device = pair.hdd.device();
    let bytes = u64::from(pages) * PAGE_BYTES as u64;
    Load { op: Op::RandomWrite, block: PAGE_BYTES, from: DATA_AT, bytes, depth: 1 }.fill(&device).await;
    let (alone_us, beside_us) = measure(&Subject::Bare(device), pages).await;
    Tails { alone_us, beside_us, checkpoints: 0.0 }
}

async fn stored(pair: &Pair, pages: u32) -> Tails {
    let folder = pair.ssd.store_folder();
    let store = PageStore::builder()
        .directory(folder.path())
        .hdd(&pair.hdd.path)
        .ssd(&pair.ssd.path)
        .ssd_bytes(SSD_BYTES)
        .pool_bytes(pool_bytes_for(POOL_PAGES, SSD_BYTES, PageSize::DEFAULT))
        .io(Backend::Uring)
        .direct_io(DirectIo::Required)
        .open();
    let store = Arc::new(store.await.expect("a store"));
    let space = store.spaces().create("pages").await.expect("a space");
    for _ in 0..pages {
        drop(store.allocate(space).await.expect("room"));
    }
    store.sync().await.expect("durable");
    let before = store.stats().ssd.counts.checkpoints;
    let (alone_us, beside_us) = measure(&Subject::Stored(Arc::clone(&store), space), pages).await;
    let checkpoints = (store.stats().ssd.counts.checkpoints - before) as f64;
    Arc::into_inner(store).expect("the readers have ended").close().await.expect("closed");
    Tails { alone_us, beside_us, checkpoints }
}

/// The 99th percentile of the reads alone, and beside the writer.
async fn measure(subject: &Subject, pages: u32) -> (f64, f64) {
    let alone_us = p99_us(subject, pages).await;
    let (ends, mut rng) = (AtomicBool::new(false), SmallRng::seed_from_u64(99));
    let writing = async {
        while !ends.load(Ordering::Relaxed) {
            let pause = sleep(BURST_EVERY);
            subject.write((0..BURST).map(|_| rng.random_range(0..pages)).collect()).await;
            pause.await;
        }
    };
    let reading = async {
        // The first bursts find an SSD that nothing has changed yet.
        sleep(BURST_EVERY * 5).await;
        let p99 = p99_us(subject, pages).await;
        ends.store(true, Ordering::Relaxed);
        p99
    };
    let (beside_us, ()) = tokio::join!(reading, writing);
    (alone_us, beside_us)
}

async fn p99_us(subject: &Subject, pages: u32) -> f64 {
    let seconds = Length::selected().pick(0.3, 3.0, 6.0);
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let readers = (0..READERS).map(|seed| {
        let (subject, mut rng) = (subject.clone(), SmallRng::seed_from_u64(seed));
        tokio::spawn(async move {
            let mut took_us = Vec::new();
            while Instant::now() < until {
                let began = Instant::now();
                subject.read(rng.random_range(0..pages)).await;
                took_us.push(began.elapsed().as_secs_f64() * 1e6);
                sleep(READ_EVERY).await;
            }
            took_us
        })
    });
    let mut all = Vec::new();
    for reader in readers.collect::<Vec<_>>() {
        all.extend(reader.await.expect("the pages can be read"));
    }
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len() * 99 / 100).copied().unwrap_or(f64::NAN)
}
