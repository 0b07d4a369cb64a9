//! The cost of reading a page that is in memory: `cargo bench --bench hit_path [-- --quick]`.
//!
//! The subject is a store on devices in memory, with all pages resident; each read takes 8 bytes of a page
//! through its guard. The floor runs beside it: a lookup in a hash table from page to frame (open addressing,
//! no deletions), an atomic pin, the same 8 bytes, an atomic unpin; no latch, no policy, no generations.
//! Every pool with evictable pages must do at least this.
//!
//! | name | meaning |
//! | --- | --- |
//! | `floor`, `get`, `get_mut` | the floor; a shared guard; an exclusive guard, page not changed |
//! | `many4`, `many16`, `many64` | shared guards of so many pages by one `get_many`; a page's time |
//! | `one` | the same page every time: instructions alone |
//! | `few` | 1,024 pages, uniform: in the CPU's second cache |
//! | `uniform`, `zipf` | 32,768 pages (512 MiB), uniform and skewed (exponent 0.9): cache misses included |
//! | `1`, `2` | concurrent reader tasks on a runtime with two workers: a task's time per read |
//!
//! The table at the end compares each with the floor. With `one/2` both tasks read the same page, and its
//! cache line moves between the cores in the floor as in the store.

mod common;

use common::Length;
use common::board::Board;
use criterion::Criterion;
use pagetier::{MemoryManifest, PageId, PageStore, SpaceId, device::MemoryDevice};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::Zipf;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;

const PAGES: u32 = 32_768;
const FEW: u32 = 1_024;
const PAGE_BYTES: usize = 16_384;
/// Pre-drawn references per task.
const DRAWS: usize = 1 << 18;

type Draws = Arc<[PageId]>;

#[derive(Clone, Copy)]
enum Way {
    Floor,
    Get,
    GetMut,
    Many(usize),
}

const WAYS: [(Way, &str); 6] = [
    (Way::Floor, "floor"),
    (Way::Get, "get"),
    (Way::GetMut, "get_mut"),
    (Way::Many(4), "many4"),
    (Way::Many(16), "many16"),
    (Way::Many(64), "many64"),
];

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let board = Board::default();
    let runtime = runtime();
    let store = runtime.block_on(resident_store());
    let subject = Arc::new(Subject { store, floor: Floor::new() });
    for workers in [1, 2] {
        for keys in ["one", "few", "uniform", "zipf"] {
            let draws: Vec<_> = (0..workers).map(|worker| draws(keys, worker)).collect();
            for (way, name) in WAYS {
                let name = format!("{name}/{keys}/{workers}");
                let mut group = criterion.benchmark_group("hit_path");
                let length = Length::selected();
                group.sample_size(length.pick(10, 20, 20)).nresamples(length.pick(2000, 100_000, 100_000));
                group.warm_up_time(Duration::from_millis(length.pick(1, 300, 300)));
                group.measurement_time(Duration::from_millis(length.pick(10, 1000, 1000)));
                group.bench_function(&name, |b| {
                    b.iter_custom(|n| {
                        board.time(&name, n, || on_workers(&runtime, &subject, way, &draws, n))
                    });
                });
                group.finish();
            }
        }
    }
    criterion.final_summary();
    board.print("way, pages, workers", |name| match name.split_once('/') {
        Some((_, rest)) => format!("floor/{rest}"),
        None => String::new(),
    });
    let pool = subject.store.stats().pool;
    println!("\nhits {}, misses {}, hits lost to the policy {}", pool.hits, pool.misses, pool.hits_lost);
    assert_eq!(pool.misses, 0, "all pages must be resident");
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
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
    assert_eq!(page(0), PageId::new(space, 0));
    for _ in 0..PAGES {
        store.allocate(space).await.expect("allocated")[place(0)] = 1;
    }
    store
}

fn page(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

/// A sequence of pages to read.
fn draws(keys: &str, worker: u64) -> Draws {
    let mut rng = SmallRng::seed_from_u64(worker);
    let zipf = Zipf::new(f64::from(PAGES), 0.9).expect("parameters");
    let mut one = || match keys {
        "one" => 0,
        "few" => rng.random_range(0..FEW),
        "uniform" => rng.random_range(0..PAGES),
        // Scatter the ranks over the whole pool, so that neighbours are not hot together.
        _ => (rng.sample(zipf) as u32).wrapping_mul(0x9e37_79b1) % PAGES,
    };
    (0..DRAWS).map(|_| page(one())).collect()
}

/// Runs `n` reads per list of draws, each in a task on its own worker.
fn on_workers(runtime: &Runtime, subject: &Arc<Subject>, way: Way, draws: &[Draws], n: u64) {
    let start = |own: &Draws| {
        let (subject, own) = (Arc::clone(subject), Arc::clone(own));
        runtime.spawn(async move { subject.read(way, &own, n).await })
    };
    let tasks: Vec<_> = draws.iter().map(start).collect();
    for task in tasks {
        black_box(runtime.block_on(task).expect("read"));
    }
}

struct Subject {
    store: PageStore,
    floor: Floor,
}

impl Subject {
    async fn read(&self, way: Way, draws: &[PageId], n: u64) -> u64 {
        let groups = draws;
        let draws = draws.iter().cycle().take(n as usize);
        let mut total = 0u64;
        match way {
            Way::Floor => {
                for &page in draws {
                    total = total.wrapping_add(self.floor.read(page));
                }
            }
            Way::Get => {
                for &page in draws {
                    let guard = self.store.get(page).await.expect("resident");
                    total = total.wrapping_add(word(&guard, page.no));
                }
            }
            Way::GetMut => {
                for &page in draws {
                    let guard = self.store.get_mut(page).await.expect("resident");
                    total = total.wrapping_add(word(&guard, page.no));
                }
            }
            Way::Many(count) => {
                for pages in groups.chunks_exact(count).cycle().take((n as usize).div_ceil(count)) {
                    let guards = self.store.get_many(pages).await.expect("resident");
                    for (page, guard) in pages.iter().zip(&guards) {
                        total = total.wrapping_add(word(guard, page.no));
                    }
                }
            }
        }
        total
    }
}

/// The offset at which page `no` is read. It varies, because otherwise all reads would compete for a few
/// cache sets.
#[inline]
fn place(no: u32) -> usize {
    (no.wrapping_mul(0x85eb_ca6b) >> 21) as usize * 7
}

#[inline]
fn word(payload: &[u8], no: u32) -> u64 {
    let at = place(no);
    payload[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

/// A table of pages and frames, the pins, and the pages.
struct Floor {
    table: Vec<(u64, u32)>,
    pins: Vec<AtomicU64>,
    pages: Vec<u8>,
    shift: u32,
}

impl Floor {
    fn new() -> Self {
        let slots = (PAGES as usize * 2).next_power_of_two();
        let mut floor = Self {
            table: vec![(u64::MAX, 0); slots],
            pins: (0..PAGES).map(|_| AtomicU64::new(0)).collect(),
            pages: in_huge_pages(PAGES as usize * PAGE_BYTES),
            shift: 64 - slots.trailing_zeros(),
        };
        for no in 0..PAGES {
            let key = page(no).to_u64();
            let mut at = floor.start(key);
            while floor.table[at].0 != u64::MAX {
                at = (at + 1) % slots;
            }
            floor.table[at] = (key, no);
        }
        floor
    }

    fn start(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    #[inline]
    fn read(&self, page: PageId) -> u64 {
        let key = page.to_u64();
        let mut at = self.start(key);
        while self.table[at].0 != key {
            at = (at + 1) & (self.table.len() - 1);
        }
        let frame = self.table[at].1 as usize;
        self.pins[frame].fetch_add(1, Ordering::AcqRel);
        let word = word(&self.pages[frame * PAGE_BYTES..][..PAGE_BYTES], page.no);
        self.pins[frame].fetch_sub(1, Ordering::AcqRel);
        word
    }
}

/// Memory with huge pages like the pool's; otherwise the floor would pay for translations that the store
/// avoids.
fn in_huge_pages(bytes: usize) -> Vec<u8> {
    let mut memory = Vec::with_capacity(bytes);
    // SAFETY: advice about the vector's own memory does not change its contents. It may fail.
    unsafe {
        libc::madvise(
            (memory.as_mut_ptr() as usize).next_multiple_of(4096) as _,
            bytes - 4096,
            libc::MADV_HUGEPAGE,
        )
    };
    memory.resize(bytes, 1);
    memory
}
