//! A hit in Pagetier beside hits in other in-memory caches: `cargo bench --bench hits` in this directory, `--
//! --quick` for fewer rounds.
//!
//! Everything is resident: 32,768 pages of 16 KiB (512 MiB in each cache). A read looks the page up and takes
//! 8 bytes of it: through a guard in Pagetier, through an `Arc<[u8]>` in the others, whose values have the
//! same length. Keys, their order, and the place of the 8 bytes are the same for all. The others have room
//! for twice as many values, so that none of their shards evicts.
//!
//! These reads do not provide the same service. A Pagetier guard holds a latch against writers and a pin
//! against eviction; an `Arc` from a cache keeps bytes alive that may be outdated. The others do not
//! distinguish clean from dirty values, and have no tiers.
//! | name | meaning |
//! | --- | --- |
//! | `pagetier` | `PageStore::get`, on a device in memory |
//! | `moka` | `moka::sync::Cache::get` |
//! | `foyer` | `foyer::Cache::get`, its default eviction |
//! | `quick_cache` | `quick_cache::sync::Cache::get` |
//! | `lru` | `lru::LruCache::get` under one `parking_lot::Mutex` |
//! | `uniform`, `zipf` | keys drawn uniformly, and skewed (exponent 0.9) |
//! | `1`, `2` | concurrent reader tasks on a runtime with two workers: a task's time per read |
//!
//! The caches take turns in every round. The table has the medians of the rounds, and the medians of each
//! round's ratios to Pagetier. Pagetier's pages lie in huge pages, the others' values where the allocator
//! puts them; both are what users get.

use pagetier::{MemoryManifest, PageId, PageStore, SpaceId, device::MemoryDevice};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::Zipf;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Runtime;

const PAGES: u32 = 32_768;
const PAGE_BYTES: usize = 16 << 10;
/// The payload that a guard of a page derefs to.
const PAYLOAD_BYTES: usize = PAGE_BYTES - 32;
const ROOM: usize = 2 * PAGES as usize;
/// Pre-drawn references per task.
const DRAWS: usize = 1 << 20;

type Value = Arc<[u8]>;
type Draws = Arc<[PageId]>;

const NAMES: [&str; 5] = ["pagetier", "moka", "foyer", "quick_cache", "lru"];

struct Caches {
    pagetier: PageStore,
    moka: moka::sync::Cache<PageId, Value>,
    foyer: foyer::Cache<PageId, Value>,
    quick_cache: quick_cache::sync::Cache<PageId, Value>,
    lru: Mutex<lru::LruCache<PageId, Value>>,
}

fn main() {
    // `cargo test` runs this too; only `cargo bench` asks for figures.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let rounds = if std::env::args().any(|arg| arg == "--quick") { 3 } else { 11 };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let caches = Arc::new(runtime.block_on(Caches::filled()));
    println!("\nMedians of {rounds} rounds.\n");
    println!("| keys | tasks | cache | ns per read | beside pagetier |");
    println!("| --- | --- | --- | --- | --- |");
    for keys in ["uniform", "zipf"] {
        for tasks in [1, 2] {
            let draws: Vec<_> = (0..tasks).map(|task| draws(keys, task)).collect();
            let rounds: Vec<_> = (0..rounds).map(|_| round(&runtime, &caches, &draws)).collect();
            for (at, name) in NAMES.iter().enumerate() {
                let ns = median(rounds.iter().map(|round| round[at]).collect());
                let ratio = median(rounds.iter().map(|round| round[at] / round[0]).collect());
                println!("| {keys} | {tasks} | {name} | {ns:.0} | {ratio:.2} |");
            }
        }
    }
    let pool = caches.pagetier.stats().pool;
    assert_eq!(pool.misses, 0, "all pages must be resident");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn page(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

/// A sequence of pages to read.
fn draws(keys: &str, task: u64) -> Draws {
    let mut rng = SmallRng::seed_from_u64(task);
    let zipf = Zipf::new(f64::from(PAGES), 0.9).expect("parameters");
    let mut one = || match keys {
        "uniform" => rng.random_range(0..PAGES),
        // Scatter the ranks over all pages, so that neighbours are not hot together.
        _ => (rng.sample(zipf) as u32).wrapping_mul(0x9e37_79b1) % PAGES,
    };
    (0..DRAWS).map(|_| page(one())).collect()
}

/// The offset at which page `no` is read. It varies, because otherwise all reads would compete for a few
/// cache sets.
#[inline]
fn place(no: u32) -> usize {
    (no.wrapping_mul(0x85eb_ca6b) >> 21) as usize * 7
}

#[inline]
fn word(bytes: &[u8], page: PageId) -> u64 {
    let at = place(page.no);
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

impl Caches {
    async fn filled() -> Self {
        let caches = Self {
            pagetier: resident_store().await,
            moka: moka::sync::Cache::new(ROOM as u64),
            foyer: foyer::CacheBuilder::new(ROOM).build(),
            quick_cache: quick_cache::sync::Cache::new(ROOM),
            lru: Mutex::new(lru::LruCache::new(NonZeroUsize::new(ROOM).expect("not zero"))),
        };
        // Fill one cache after the other, so that the values of each lie together.
        let values = || (0..PAGES).map(|no| (page(no), Value::from(vec![1; PAYLOAD_BYTES])));
        values().for_each(|(page, value)| caches.moka.insert(page, value));
        values().for_each(|(page, value)| drop(caches.foyer.insert(page, value)));
        values().for_each(|(page, value)| caches.quick_cache.insert(page, value));
        values().for_each(|(page, value)| drop(caches.lru.lock().put(page, value)));
        caches.moka.run_pending_tasks();
        caches
    }

    async fn read(&self, name: &str, draws: &[PageId]) -> u64 {
        match name {
            "pagetier" => {
                let mut total = 0;
                for &page in draws {
                    let guard = self.pagetier.get(page).await.expect("resident");
                    total += word(&guard, page);
                }
                total
            }
            "moka" => draws.iter().map(|page| word(&self.moka.get(page).expect("resident"), *page)).sum(),
            "foyer" => draws.iter().map(|page| word(&self.foyer.get(page).expect("resident"), *page)).sum(),
            "quick_cache" => {
                draws.iter().map(|page| word(&self.quick_cache.get(page).expect("resident"), *page)).sum()
            }
            _ => {
                let get = |page| self.lru.lock().get(page).map(Arc::clone);
                draws.iter().map(|page| word(&get(page).expect("resident"), *page)).sum()
            }
        }
    }
}

async fn resident_store() -> PageStore {
    let store = PageStore::builder()
        .in_memory(Arc::new(MemoryManifest::default()))
        .hdd(Arc::new(MemoryDevice::new("hdd", 0)))
        .ssd_bytes(0)
        .pool_bytes(u64::from(PAGES) * PAGE_BYTES as u64 * 9 / 8)
        .open()
        .await
        .expect("opened");
    let space = store.spaces().create("pages").await.expect("created");
    for no in 0..PAGES {
        let mut page = store.allocate(space).await.expect("allocated");
        assert_eq!((page.id(), page.len()), (self::page(no), PAYLOAD_BYTES));
        page.fill(1);
    }
    store
}

/// Nanoseconds per read of each cache.
fn round(runtime: &Runtime, caches: &Arc<Caches>, draws: &[Draws]) -> [f64; NAMES.len()] {
    NAMES.map(|name| {
        let start = |own: &Draws| {
            let (caches, own) = (Arc::clone(caches), Arc::clone(own));
            runtime.spawn(async move {
                let began = Instant::now();
                black_box(caches.read(name, &own).await);
                began.elapsed()
            })
        };
        let tasks: Vec<_> = draws.iter().map(start).collect();
        let times = tasks.into_iter().map(|task| runtime.block_on(task).expect("read"));
        let ns: u128 = times.map(|time| time.as_nanos()).sum();
        ns as f64 / (draws.len() * DRAWS) as f64
    })
}
