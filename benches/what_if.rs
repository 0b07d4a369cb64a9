//! The overhead of the ghosts of `PageStore::what_if`: `cargo bench --bench what_if [-- --quick]`.
//!
//! Two tasks read a store on devices in memory with a skew (exponent 0.9), alternately without and with
//! ghosts; once with all pages resident, and once with a pool for a quarter of the pages. The table has the
//! median time per read, the median of the ratios of neighbouring turns, and the ratio of the best turns,
//! which other work on the machine disturbs least. Devices in memory respond at once: on real ones misses
//! cost more, and ghosts relatively less.

mod common;

use common::{Length, median};
use pagetier::{
    MemoryManifest, PageId, PageStore,
    device::MemoryDevice,
    what_if::{WhatIf, WhatIfOptions},
};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Zipf};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

const PAGES: u32 = 32_768;
const PAGE_BYTES: u64 = 16_384;
const TASKS: u64 = 2;

fn main() {
    let (rounds, stretch) = Length::selected().pick((1, 20), (15, 150), (41, 400));
    println!("{:<34} {:>12} {:>12} {:>8} {:>8}", "pages in memory, sample", "off", "on", "on/off", "best");
    for resident in [1.1, 0.25] {
        for share in [None, Some(0.05)] {
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
            let runtime = runtime.unwrap_or_else(|error| panic!("no runtime: {error}"));
            let store = runtime.block_on(store(resident));
            turns(&runtime, &store, share, rounds, Duration::from_millis(stretch), resident);
        }
    }
}

async fn store(resident: f64) -> Arc<PageStore> {
    let store = PageStore::builder()
        .in_memory(Arc::new(MemoryManifest::default()))
        .hdd(Arc::new(MemoryDevice::new("hdd", 0)))
        .ssd(Arc::new(MemoryDevice::new("ssd", 0)))
        .ssd_bytes(u64::from(PAGES) / 2 * PAGE_BYTES)
        .pool_bytes((f64::from(PAGES) * resident) as u64 * PAGE_BYTES + (24 << 20))
        .open()
        .await;
    let store = store.unwrap_or_else(|error| panic!("the store does not open: {error}"));
    let space = store.spaces().create("pages").await.unwrap_or_else(|error| panic!("{error}"));
    for _ in 0..PAGES {
        drop(store.allocate(space).await.unwrap_or_else(|error| panic!("{error}")));
    }
    store.sync().await.unwrap_or_else(|error| panic!("{error}"));
    Arc::new(store)
}

fn turns(
    runtime: &Runtime,
    store: &Arc<PageStore>,
    share: Option<f64>,
    rounds: usize,
    stretch: Duration,
    resident: f64,
) {
    let draws = draws(store);
    let (mut off, mut on, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut last: Option<WhatIf> = None;
    reads(runtime, store, &draws, stretch);
    for _ in 0..rounds {
        let without = reads(runtime, store, &draws, stretch);
        let options = share.map_or_else(WhatIfOptions::new, |share| WhatIfOptions::new().share(share));
        runtime
            .block_on(async { store.what_if().start(&options) })
            .unwrap_or_else(|error| panic!("no ghosts: {error}"));
        let with = reads(runtime, store, &draws, stretch);
        last = runtime.block_on(store.what_if().stop());
        off.push(without);
        on.push(with);
        ratios.push(with / without);
    }
    let looked = last.map_or_else(String::new, |report| {
        format!("{:.2}% of pages, {} lost", 100.0 * report.rate, report.sampled.lost)
    });
    let name = format!("{:.0}%, {looked}", 100.0 * resident.min(1.0));
    let least = |all: &[f64]| all.iter().copied().fold(f64::INFINITY, f64::min);
    let best = least(&on) / least(&off);
    let (off, on, ratio) = (median(off), median(on), median(ratios));
    println!("{name:<34} {off:>9.0} ns {on:>9.0} ns {ratio:>8.3} {best:>8.3}");
}

fn draws(store: &PageStore) -> Vec<Arc<[PageId]>> {
    let Some(space) = store.spaces().find("pages") else { panic!("the space is gone") };
    let zipf = Zipf::new(f64::from(PAGES), 0.9).unwrap_or_else(|error| panic!("{error}"));
    let of_task = |task| {
        let mut rng = SmallRng::seed_from_u64(task);
        // Ranks are scattered over the pages.
        let page = |rank: f64| PageId::new(space, (rank as u32).wrapping_mul(2_654_435_761) % PAGES);
        (0..1 << 18).map(|_| page(zipf.sample(&mut rng))).collect()
    };
    (0..TASKS).map(of_task).collect()
}

/// A task's time per read in nanoseconds.
fn reads(runtime: &Runtime, store: &Arc<PageStore>, draws: &[Arc<[PageId]>], stretch: Duration) -> f64 {
    let tasks: Vec<_> = draws
        .iter()
        .map(|draws| {
            let (store, draws) = (Arc::clone(store), Arc::clone(draws));
            runtime.spawn(async move {
                let (began, mut reads) = (Instant::now(), 0_u64);
                while began.elapsed() < stretch {
                    for _ in 0..256 {
                        let page = draws[reads as usize % draws.len()];
                        let page = store.get(page).await.unwrap_or_else(|error| panic!("{error}"));
                        black_box(page[0]);
                        reads += 1;
                    }
                    tokio::task::yield_now().await;
                }
                began.elapsed().as_nanos() as f64 / reads as f64
            })
        })
        .collect();
    let count = tasks.len() as f64;
    let wait = |task: JoinHandle<f64>| {
        runtime.block_on(task).unwrap_or_else(|error| panic!("a task failed: {error}"))
    };
    tasks.into_iter().map(wait).sum::<f64>() / count
}
