//! What one operation costs, in counts instead of times: `RUSTFLAGS="--cfg rustix_use_libc" cargo bench
//! --bench counts`.
//!
//! Counts hardly depend on the machine's other work, so a difference of a few per cent is a difference. The
//! bench runs itself twice per row, with fewer and with more operations, and divides the difference by the
//! operations: what open and filling cost cancels out.
//!
//! | column | meaning |
//! | --- | --- |
//! | instructions | of the process in user mode, background tasks included, as callgrind counts them |
//! | beyond the floor | without those of the row's floor |
//! | locked | those that lock memory, such as an atomic addition, but not the bench's own |
//! | allocations | calls of the allocator that return memory |
//! | clock reads | calls of `clock_gettime` |
//! | device operations | reads, writes and flushes of HDD and SSD (`PageStore::stats`) |
//!
//! The floor of a hit is a loop over an array that reads the same bytes of the same pages; that of a miss is
//! the checksum of a page. `with ghosts` is what `PageStore::what_if` adds to a store whose requests all hit.
//! `quick_cache` and `lru` (under a mutex) are peers of a hit: caches of the same pages, as `Arc<[u8]>`. They
//! neither latch a page nor pin it; `hits` in `crates/bench-rivals` compares their times.
//!
//! Without valgrind the instructions are left out. Under it a program crashes in rustix, unless
//! `RUSTFLAGS="--cfg rustix_use_libc"` lets rustix call libc.

mod common;

use common::{Length, Workers, has_valgrind, runtime};
use pagetier::what_if::WhatIfOptions;
use pagetier::{MemoryManifest, PageId, PageStore, SpaceId, device::MemoryDevice};
use pagetier_kv::Kv;
use pagetier_page::StoreSeed;
use pagetier_wal::{Wal, WalOptions};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The variable that makes a process perform one task: a case, and a number of operations.
const TASK: &str = "PAGETIER_COUNTS_TASK";
const PAGE_BYTES: usize = 16 << 10;
/// From how many bytes on the C library copies and fills with `rep`.
const REP: [&str; 2] = ["glibc.cpu.x86_rep_movsb_threshold", "glibc.cpu.x86_rep_stosb_threshold"];
/// Pages that are read, all in memory, or none.
const HIT_PAGES: u32 = 1024;
const MISS_PAGES: u32 = 4096;
/// Pages of one `get_many`.
const MANY: usize = 16;
/// The operations on a key-value store, in this order: loads, reads, changes.
const KV: [u64; 3] = [12_000, 2_000, 2_000];
const VALUE_BYTES: usize = 1000;

/// Name, case, fewer and more operations, and the place of the row that is its floor.
type Row = (&'static str, &'static str, u64, u64, Option<usize>);

const ROWS: [Row; 12] = [
    ("loop over an array", "array", 10_000, 110_000, None),
    ("hit, `get`", "get", 10_000, 110_000, Some(0)),
    ("hit, `get`, with ghosts", "ghosts", 10_000, 110_000, Some(0)),
    ("hit, `get_many` of 16, per page", "get_many", 10_000, 110_000, Some(0)),
    ("hit, `quick_cache`", "quick_cache", 10_000, 110_000, Some(0)),
    ("hit, a mutex and `lru`", "lru", 10_000, 110_000, Some(0)),
    ("checksum of 16 KiB", "checksum", 1_000, 3_000, None),
    ("miss of 16 KiB", "miss", 6_000, 12_000, Some(6)),
    ("`kv`, load", "kv", 0, KV[0], None),
    ("`kv`, read", "kv", KV[0], KV[0] + KV[1], None),
    ("`kv`, durable change", "kv", KV[0] + KV[1], KV[0] + KV[1] + KV[2], None),
    ("`kv`, mean of the three", "kv", 0, KV[0] + KV[1] + KV[2], None),
];

/// The counts of one process: allocations, clock reads, device operations, the case's operations; then
/// instructions and those that lock, if they were counted.
type Counts = [f64; 6];

fn main() {
    if let Ok(task) = std::env::var(TASK) {
        let (case, operations) = task.split_once(' ').expect("a case and a number");
        perform(case, operations.parse().expect("a number"));
        return;
    }
    let valgrind = has_valgrind();
    let counted = valgrind && cfg!(rustix_use_libc);
    if !valgrind {
        println!("valgrind is not installed, so no instructions are counted");
    } else if !counted {
        println!("set RUSTFLAGS=\"--cfg rustix_use_libc\" to count instructions under valgrind");
    }
    println!(
        "| operation | instructions | beyond the floor | locked | allocations | clock reads | device \
         operations |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    let (mut runs, mut instructions) = (BTreeMap::new(), Vec::new());
    for (name, case, fewer, more, floor) in ROWS {
        let shorter = Length::selected().pick(20, 1, 1);
        let [before, after] = [fewer, more].map(|operations| {
            *runs.entry((case, operations)).or_insert_with(|| run(case, operations / shorter, counted))
        });
        let operations = after[3] - before[3];
        let [allocations, clock_reads, on_devices, _, of_processor, locked] =
            std::array::from_fn(|i| (after[i] - before[i]) / operations);
        // Each is counted by one.
        let locked = locked - allocations - clock_reads;
        instructions.push(of_processor);
        let beyond = floor.map_or_else(String::new, |at| format!("{:.0}", of_processor - instructions[at]));
        print!("| {name} | {of_processor:.0} | {beyond} | {locked:.1} | ");
        println!("{allocations:.2} | {clock_reads:.2} | {on_devices:.2} |");
    }
}

/// Lets another process perform `operations` of a case.
fn run(case: &str, operations: u64, counted: bool) -> Counts {
    let program = std::env::current_exe().expect("this program's path");
    let mut command = if counted { Command::new("valgrind") } else { Command::new(&program) };
    if counted {
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-bus=yes"]);
        command.arg(&program);
        // Callgrind takes each byte that an instruction with `rep` copies for an instruction.
        command.env("GLIBC_TUNABLES", format!("{}=1000000000:{}=1000000000", REP[0], REP[1]));
    }
    let out = command.env(TASK, format!("{case} {operations}")).output().expect("the program starts");
    let [said, reported] =
        [&out.stdout, &out.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(out.status.success(), "{case}: {reported}");
    let mut counts = [f64::NAN; 6];
    let words = said.lines().last().unwrap_or_default().split(' ');
    counts.iter_mut().zip(words).for_each(|(count, word)| *count = word.parse().expect("a count"));
    let collected = reported.lines().find_map(|line| line.split_once("Collected : "));
    let numbers = collected.map_or("", |(_, numbers)| numbers).split_whitespace();
    counts[4..].iter_mut().zip(numbers).for_each(|(count, number)| *count = number.parse().expect("a count"));
    counts
}

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static CLOCK_READS: AtomicU64 = AtomicU64::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    // The trait's own would zero and copy by themselves, which the system avoids.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, bytes) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) };
    }
}

/// Takes the place of libc's function in this program.
#[unsafe(no_mangle)]
extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    CLOCK_READS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel checks both arguments.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as libc::c_int }
}

/// Performs a case and prints the counts.
fn perform(case: &str, operations: u64) {
    let task = {
        let case = case.to_owned();
        async move {
            match &*case {
                "array" | "checksum" => (0, without_store(&case, operations)),
                "quick_cache" | "lru" => (0, in_a_peer(&case, operations)),
                "miss" => misses(operations).await,
                "kv" => on_kv(operations).await,
                _ => hits(&case, operations).await,
            }
        }
    };
    // A task of its own, as requests are: tokio wakes the future of `block_on` through the reactor.
    let (on_devices, done) =
        runtime(Workers::One).block_on(async { tokio::spawn(task).await.expect("done") });
    let [allocations, clock_reads] = [&ALLOCATIONS, &CLOCK_READS].map(|count| count.load(Ordering::Relaxed));
    println!("{allocations} {clock_reads} {on_devices} {done}");
}

fn page(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

/// Pages of the store in memory, in random order.
fn draws() -> Vec<PageId> {
    let mut rng = SmallRng::seed_from_u64(1);
    (0..1 << 12).map(|_| page(rng.random_range(0..HIT_PAGES))).collect()
}

/// Eight bytes of page `no`.
#[inline]
fn word(payload: &[u8], no: u32) -> u64 {
    let at = no as usize * 8 % 16_000;
    payload[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

fn without_store(case: &str, operations: u64) -> u64 {
    if case == "checksum" {
        let image = vec![7; PAGE_BYTES];
        for _ in 0..operations {
            black_box(StoreSeed::NONE.checksum(black_box(&image)));
        }
    } else {
        let pages = vec![1_u8; HIT_PAGES as usize * PAGE_BYTES];
        let mut total = 0_u64;
        for page in draws().iter().cycle().take(operations as usize) {
            total = total.wrapping_add(word(&pages[page.no as usize * PAGE_BYTES..][..PAGE_BYTES], page.no));
        }
        black_box(total);
    }
    operations
}

/// Hits in a cache that has room for twice as many pages, so that no shard evicts.
fn in_a_peer(case: &str, operations: u64) -> u64 {
    const ROOM: NonZeroUsize = NonZeroUsize::new(2 * HIT_PAGES as usize).expect("not zero");
    let (draws, mut total) = (draws(), 0_u64);
    let value = |_: u32| -> Arc<[u8]> { vec![1; PAGE_BYTES].into() };
    if case == "quick_cache" {
        let cache = quick_cache::sync::Cache::new(ROOM.get());
        (0..HIT_PAGES).for_each(|no| cache.insert(page(no), value(no)));
        for page in draws.iter().cycle().take(operations as usize) {
            total = total.wrapping_add(word(&cache.get(page).expect("in memory"), page.no));
        }
    } else {
        let cache = Mutex::new(lru::LruCache::new(ROOM));
        (0..HIT_PAGES).for_each(|no| drop(cache.lock().put(page(no), value(no))));
        for page in draws.iter().cycle().take(operations as usize) {
            let value = cache.lock().get(page).map(Arc::clone).expect("in memory");
            total = total.wrapping_add(word(&value, page.no));
        }
    }
    black_box(total);
    operations
}

async fn hits(case: &str, operations: u64) -> (u64, u64) {
    let builder = PageStore::builder().in_memory(Arc::new(MemoryManifest::default())).ssd_bytes(0);
    let builder = builder.hdd(Arc::new(MemoryDevice::new("hdd", 0))).pool_bytes(24 << 20);
    let store = builder.open().await.expect("opened");
    fill(&store, HIT_PAGES).await;
    if case == "ghosts" {
        store.what_if().start(&WhatIfOptions::new()).expect("ghosts");
    }
    let (draws, mut total) = (draws(), 0_u64);
    if case == "get_many" {
        for pages in draws.chunks_exact(MANY).cycle().take(operations as usize / MANY) {
            let guards = store.get_many(pages).await.expect("in memory");
            let words = pages.iter().zip(&guards).map(|(page, guard)| word(guard, page.no));
            total = words.fold(total, u64::wrapping_add);
        }
    } else {
        for &page in draws.iter().cycle().take(operations as usize) {
            total = total.wrapping_add(word(&store.get(page).await.expect("in memory"), page.no));
        }
    }
    black_box(total);
    drop(store.what_if().stop().await);
    assert_eq!(store.stats().pool.misses, 0, "all pages are in memory");
    (on_devices(&store), operations)
}

async fn fill(store: &PageStore, pages: u32) {
    let space = store.spaces().create("pages").await.expect("created");
    for no in 0..pages {
        let mut page = store.allocate(space).await.expect("allocated");
        page[..4].copy_from_slice(&no.to_le_bytes());
    }
    store.sync().await.expect("synced");
}

/// Reads pages in turn of which a quarter fit into memory; each miss is an operation.
async fn misses(operations: u64) -> (u64, u64) {
    let folder = folder();
    let builder = PageStore::builder().directory(folder.path()).ssd_bytes(0);
    let bytes = u64::from(MISS_PAGES) * PAGE_BYTES as u64 / 4;
    let store = builder.pool_bytes(bytes).open().await.expect("opened");
    fill(&store, MISS_PAGES).await;
    let mut order: Vec<u32> = (0..MISS_PAGES).collect();
    order.shuffle(&mut SmallRng::seed_from_u64(1));
    for &no in order.iter().cycle().take(operations as usize) {
        black_box(word(&store.get(page(no)).await.expect("read"), no));
    }
    (on_devices(&store), store.stats().pool.misses)
}

async fn on_kv(operations: u64) -> (u64, u64) {
    let folder = folder();
    let wal = Wal::open(folder.path(), WalOptions::new()).expect("a log");
    let [hdd, ssd] = ["hdd", "ssd"].map(|name| Arc::new(MemoryDevice::new(name, 0)));
    let builder = PageStore::builder().in_memory(Arc::new(MemoryManifest::default())).hdd(hdd).ssd(ssd);
    let builder = builder.ssd_bytes(64 << 20).pool_bytes(64 << 20);
    let kv = Kv::open_on(builder, wal, Duration::from_secs(30)).await.expect("opened");
    // In no order, as hashed keys are.
    let key = |no: u64| format!("user{:012}", no.wrapping_mul(2_654_435_761) % (1 << 32));
    let [loads, reads, _] = KV;
    for no in 0..operations {
        if no < loads {
            kv.put_unsynced(key(no).as_bytes(), &[no as u8; VALUE_BYTES]).await.expect("put");
            if no + 1 == loads {
                // The log of the load is its own, not the first change's.
                kv.sync().await.expect("synced");
            }
        } else if no < loads + reads {
            assert!(kv.get(key(no * 7 % loads).as_bytes()).await.expect("read").is_some());
        } else {
            kv.put(key(no * 7 % loads).as_bytes(), &[1; VALUE_BYTES]).await.expect("put");
        }
    }
    (on_devices(kv.store()), operations)
}

/// A folder on the file system of the build.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).expect("a folder")
}

fn on_devices(store: &PageStore) -> u64 {
    let stats = store.stats();
    let counts = [&stats.hdd_device, &stats.ssd_device].map(|device| (device.totals(), device.flush.ops));
    counts.iter().map(|one| one.0.read.ops + one.0.write.ops + one.1).sum()
}
