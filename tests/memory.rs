//! The memory that a store takes: what its statistics count is within its budget at every moment, and the
//! process's resident anonymous memory exceeds the budget by no more than 5% and a constant.
//!
//! Each figure comes from a process of its own, because an allocator keeps what it had once. `-- --nocapture`
//! prints the parts.

use pagetier::{PageId, PageStore, SpaceId};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Resident anonymous memory beyond the budget and 5% of it: see `docs/embedding.md`.
const BEYOND_MAX: u64 = 10 * MIB;

/// The variable that makes a process take one measurement: clients and bytes.
const TASK: &str = "PAGETIER_MEMORY_TASK";

const RUN: Duration = Duration::from_millis(1000);

/// Bytes of anonymous memory that are resident, by kind of mapping.
fn resident() -> BTreeMap<&'static str, u64> {
    let text = std::fs::read_to_string("/proc/self/smaps").expect("/proc");
    let mut parts: BTreeMap<&'static str, u64> = BTreeMap::new();
    let (mut kind, mut size) = ("others", 0);
    for line in text.lines() {
        let kib = |key: &str| {
            let rest = line.strip_prefix(key)?.trim().strip_suffix(" kB")?;
            rest.parse::<u64>().ok().map(|kib| kib << 10)
        };
        // `7f0000000000-7f0000001000 rw-p 00000000 00:00 0   [heap]`
        if line.split_once(' ').is_some_and(|(range, _)| range.contains('-')) {
            kind = if line.ends_with("[heap]") { "heap" } else { "mappings" };
            if line.ends_with("[stack]") {
                kind = "stacks";
            }
        } else if let Some(bytes) = kib("Size:") {
            size = bytes;
        } else if let Some(bytes) = kib("Anonymous:") {
            // A thread's stack has 2 MiB unless its maker says otherwise.
            let kind = if kind == "mappings" && (2 * MIB..2 * MIB + (64 << 10)).contains(&size) {
                "stacks"
            } else {
                kind
            };
            *parts.entry(kind).or_default() += bytes;
        }
    }
    parts
}

fn anonymous() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.expect("a figure in KiB") << 10
}

/// Clients that read random pages and change every fourth, until they are told to end.
async fn read_and_write(store: &Arc<PageStore>, space: SpaceId, pages: u32, clients: u32) {
    let ended = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..clients)
        .map(|client| {
            let (store, ended) = (Arc::clone(store), Arc::clone(&ended));
            tokio::spawn(async move {
                let mut rng = SmallRng::seed_from_u64(u64::from(client));
                while !ended.load(Ordering::Relaxed) {
                    let page = PageId::new(space, rng.random_range(0..pages));
                    if rng.random_ratio(1, 4) {
                        store.get_mut(page).await.expect("read")[..4].copy_from_slice(&client.to_le_bytes());
                    } else {
                        drop(store.get(page).await.expect("read"));
                    }
                }
            })
        })
        .collect();
    tokio::time::sleep(RUN).await;
    ended.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("a client");
    }
}

/// Twice as many pages as fit on the SSD, which is four times as large as the pool. Prints the figures.
async fn measure(clients: u32, pool_bytes: u64) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let before = anonymous();
    let builder =
        PageStore::builder().directory(folder.path()).ssd_bytes(4 * pool_bytes).pool_bytes(pool_bytes);
    let store = Arc::new(builder.open().await.expect("a store"));
    let space = store.spaces().create("pages").await.expect("a space");
    let pages = (8 * pool_bytes / store.page_size().bytes() as u64) as u32;
    let ended = Arc::new(AtomicBool::new(false));
    // A thread of its own: it looks while the workers are busy.
    let looking = std::thread::spawn({
        let (store, ended) = (Arc::clone(&store), Arc::clone(&ended));
        move || {
            let (mut peak, mut counted, mut parts) = (0, 0, BTreeMap::new());
            while !ended.load(Ordering::Relaxed) {
                counted = counted.max(store.stats().memory_bytes());
                let now = anonymous();
                if now > peak {
                    (peak, parts) = (now, resident());
                }
                std::thread::park_timeout(Duration::from_millis(10));
            }
            (peak, counted, parts)
        }
    });
    for _ in 0..pages {
        drop(store.allocate(space).await.expect("room"));
    }
    read_and_write(&store, space, pages, clients).await;
    store.sync().await.expect("synced");
    ended.store(true, Ordering::Relaxed);
    let (peak, counted, parts) = looking.join().expect("figures");
    let stats = store.stats();
    let memory = (stats.pool_memory, stats.ssd.memory_bytes);
    Arc::into_inner(store).expect("the clients have ended").close().await.expect("closed");
    println!("before opening {before}, {parts:?}, of the store {memory:?}");
    println!("figures {before} {peak} {counted}");
}

fn in_this_process(task: &str) {
    let (clients, bytes) = task.split_once(' ').expect("two numbers");
    let (clients, bytes) = (clients.parse().expect("clients"), bytes.parse().expect("bytes"));
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if clients == 1 {
        builder = tokio::runtime::Builder::new_current_thread();
    }
    builder.worker_threads(2).enable_all().build().expect("a runtime").block_on(measure(clients, bytes));
}

#[test]
fn a_store_takes_what_its_budget_says_and_little_more() {
    if let Ok(task) = std::env::var(TASK) {
        return in_this_process(&task);
    }
    // Each waits for its devices most of the time.
    std::thread::scope(|scope| {
        for clients in [1, 8, 64] {
            scope.spawn(move || [16 * MIB, 64 * MIB].map(|bytes| check(clients, bytes)));
        }
    });
}

fn check(clients: u32, bytes: u64) {
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child.env(TASK, format!("{clients} {bytes}")).args(["--nocapture", "--test-threads=1"]);
    let out = child.output().expect("it runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    let line = text.lines().find_map(|line| line.strip_prefix("figures ")).expect("figures");
    let figures: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
    let [before, peak, counted] = figures[..] else { panic!("{line}") };
    let (taken, allowed) = (peak - before, bytes + bytes / 20 + BEYOND_MAX);
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    println!(
        "{clients} clients, a budget of {:.0} MiB: counted at most {:.1}, resident {:.1}\n{text}",
        mib(bytes),
        mib(counted),
        mib(taken)
    );
    assert!(counted <= bytes, "{clients} clients: {counted} bytes are counted of {bytes}");
    assert!(taken <= allowed, "{clients} clients: {taken} bytes are resident of {allowed}");
}
