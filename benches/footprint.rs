//! How much memory does a store take, and what does `sync` cost as the pool grows?
//! `cargo bench --bench footprint [-- --quick]`.
//!
//! Each figure comes from a process of its own, because memory that an allocator once had hides what a later
//! store takes. *Budget* is what the store counts against `pool_bytes`; *resident* is the growth of the
//! process's resident memory (`VmRSS`, `VmHWM`), pages excluded. What each frame or slot takes is the slope
//! between a store of that size and one of a quarter, since a process has costs that do not grow with either.
//!
//! - **Per frame**: a full pool of pages of 4 KiB, per pool policy. Goal: at most 64 bytes.
//! - **Per slot**: a full SSD of pages of 4 KiB, per SSD policy, with three times as many pages as slots, so
//!   that the outqueue is full too. Goals: 24 bytes under `none`, 40 under LRU2, MV-FIFO and TAC, 64 under
//!   the default and CAC with the outqueue. An entry of the outqueue is the difference to a store without
//!   one.
//! - **Per group**: CAC with subranges so narrow that its pages fall into many groups, beside CAC with few.
//! - **A large SSD**: the SSD's tables alone, without a device: memory, and the CPU time of opening
//!   them and of a checkpoint, in proportion to the slots; computed for 1 TiB.
//! - **Beyond the budget**: the peak of a store on files (pool of 64 MiB, SSD of 256 MiB, 512 MiB of pages of
//!   16 KiB) minus its budget and what the process had before it opened the store.
//! - **`sync`**: CPU time of the thread that calls it, on devices in memory and a runtime with one
//!   thread, so that no device time counts; of one dirty page, and of nothing, which must do no I/O. Goal:
//!   flat from 1,000 to 10,000,000 frames, or as many as the machine has memory for. The pools are sparse:
//!   their frames are never touched.
//!
//! The files are under `target/`; what is measured does not depend on the device. `docs/BENCHMARKS.md` has
//! machine, date and results.

mod common;
#[path = "footprint/large.rs"]
mod large;

use common::report::Report;
use common::target::{Role, Target};
use common::{Length, Workers, median, runtime};
use pagetier::backup::BackupOptions;
use pagetier::device::{Backend, MemoryDevice};
use pagetier::{
    Builder, MemoryManifest, PageId, PageSize, PageStore, SpaceId, pool_bytes_for, ssd_bytes_for,
};
use pagetier_rivals::{POOL_POLICIES, SSD_POLICIES};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The variable that makes a process take one measurement.
const TASK: &str = "PAGETIER_FOOTPRINT_TASK";
const SMALL: PageSize = PageSize::MIN;
const MIB: f64 = (1 << 20) as f64;

/// Named figures of one process.
type Figures = BTreeMap<String, f64>;

fn main() {
    pagetier_rivals::register();
    if let Ok(task) = std::env::var(TASK) {
        let words: Vec<&str> = task.split(' ').collect();
        println!("{}", serde_json::to_string(&perform(&words)).expect("figures"));
        return;
    }
    let target = Target::plain(Role::Hdd);
    let mut report = Report::new("footprint", "plain", &[&target.about]);
    per_frame(&mut report);
    per_slot(&mut report);
    large::report(&mut report, measured);
    beyond_budget(&mut report, target.folder());
    syncs(&mut report);
    report.finish();
}

/// Takes a measurement in a process of its own. What it says on failure is the error.
fn measured(task: &str) -> Result<Figures, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let out = Command::new(program).env(TASK, task).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let figures = said.lines().last().and_then(|line| serde_json::from_str(line).ok());
    figures.ok_or_else(|| {
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        let why = error.lines().find(|line| !line.is_empty() && !line.starts_with("thread "));
        format!("{}: {}", out.status, why.unwrap_or("no figures"))
    })
}

/// The figures of the task of `size`, and the resident bytes per unit between a quarter of that and all.
fn slope(size: u32, task: impl Fn(u32) -> String) -> Result<(Figures, f64), String> {
    let (all, quarter) = (measured(&task(size))?, measured(&task(size / 4))?);
    let resident = (all["resident"] - quarter["resident"]) / (all["units"] - quarter["units"]);
    Ok((all, resident))
}

fn perform(words: &[&str]) -> Figures {
    let number = |at: usize| words[at].parse::<u32>().expect("a number");
    match words[0] {
        "frames" => runtime(Workers::One).block_on(frames(words[1], number(2))),
        "slots" => runtime(Workers::One).block_on(slots(words[1], number(2))),
        "groups" => runtime(Workers::One).block_on(groups(number(1), words[2].parse().expect("a width"))),
        "fill" => runtime(Workers::Two).block_on(fill(Path::new(words[1]))),
        "beyond" => runtime(Workers::Two).block_on(beyond(Path::new(words[1]), words[2])),
        "sync" => runtime(Workers::One).block_on(sync_of(number(1))),
        "large" => large::tables(words[1], number(2)),
        other => panic!("no such task: {other}"),
    }
}

/// A figure of `/proc/self/status` in bytes.
fn status(key: &str) -> f64 {
    proc_bytes("/proc/self/status", key)
}

fn proc_bytes(file: &str, key: &str) -> f64 {
    let text = std::fs::read_to_string(file).expect("/proc");
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.expect("a figure in KiB") * 1024.0
}

fn figures<const N: usize>(named: [(&str, f64); N]) -> Figures {
    named.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
}

fn per_frame(report: &mut Report) {
    let frames: u32 = Length::selected().pick(8_192, 65_536, 262_144);
    report.line(format_args!("\n## Bytes per frame, {frames} frames of 4 KiB"));
    report.head(&["pool policy", "budget", "resident", "asked", "kept"]);
    let mut policies: Vec<&str> = vec!["auto"];
    let all: Vec<String> = POOL_POLICIES.iter().map(ToString::to_string).collect();
    policies.extend(all.iter().map(String::as_str).filter(|name| *name != "auto"));
    for policy in policies.into_iter().take(Length::selected().pick(1, 4, usize::MAX)) {
        report.line(match slope(frames, |frames| format!("frames {policy} {frames}")) {
            Ok((f, resident)) => {
                let budget = f["budget"];
                let kept = if resident <= 64.0 { "yes" } else { "NO" };
                format!("| `{policy}` | {budget:.0} | {resident:.0} | <= 64 | {kept} |")
            }
            Err(why) => format!("| `{policy}` | not measured: {why} | | | |"),
        });
    }
}

async fn frames(policy: &str, frames: u32) -> Figures {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let policy = *POOL_POLICIES.iter().find(|one| one.to_string() == policy).expect("a policy");
    let before = status("VmRSS");
    let store = PageStore::builder()
        .directory(folder.path())
        .page_size(SMALL)
        .ssd_bytes(0)
        .pool_policy(policy)
        .pool_bytes(pool_bytes_for(u64::from(frames), 0, SMALL))
        .open()
        .await
        .expect("a store");
    let space = store.spaces().create("pages").await.expect("a space");
    // Twice as many pages as frames, so that every frame has been used and replaced.
    for _ in 0..2 * frames {
        drop(store.allocate(space).await.expect("room"));
    }
    let (stats, resident) = (store.stats(), status("VmRSS") - before);
    let frames = store.frames() as f64;
    let pages = stats.pool_memory.frames as f64;
    let others = stats.memory_bytes() as f64 - pages - stats.pool_memory.staging as f64;
    figures([("budget", others / frames), ("resident", resident - pages), ("units", frames)])
}

fn per_slot(report: &mut Report) {
    let slots: u32 = Length::selected().pick(4_096, 65_536, 131_072);
    report.line(format_args!("\n## Bytes per slot of the SSD, {slots} slots of 4 KiB"));
    report.head(&["SSD policy", "pages on SSD", "budget", "resident", "per outqueue entry", "asked", "kept"]);
    let all = SSD_POLICIES.iter().map(ToString::to_string);
    for policy in all.take(Length::selected().pick(1, usize::MAX, usize::MAX)) {
        let asked = match policy.as_str() {
            "none" => 24.0,
            "lru2" | "mv-fifo" | "mv-fifo-gsc" | "tac" => 40.0,
            _ => 64.0,
        };
        let has_outqueue = policy == "auto" || policy.starts_with("cac") || policy.starts_with("cc");
        let with = slope(slots, |slots| format!("slots {policy} {slots}"));
        let without =
            has_outqueue.then(|| slope(slots, |slots| format!("slots {policy}:outqueue=0 {slots}")));
        report.line(match with {
            Ok((f, resident)) => {
                let entry = without.and_then(Result::ok).map(|(_, without)| resident - without);
                let entry = entry.map_or_else(String::new, |bytes| format!("{bytes:.0}"));
                let kept = if resident <= asked { "yes" } else { "NO" };
                format!(
                    "| `{policy}` | {:.0} | {:.0} | {resident:.0} | {entry} | <= {asked:.0} | {kept} |",
                    f["pages"], f["budget"]
                )
            }
            Err(why) => format!("| `{policy}` | not measured: {why} | | | | | |"),
        });
    }
    let few = measured(&format!("groups {slots} 1"));
    let many = measured(&format!("groups {slots} 0.001"));
    report.line(match (few, many) {
        (Ok(few), Ok(many)) if many["groups"] >= few["groups"] + 1000.0 => {
            let groups = many["groups"] - few["groups"];
            let bytes = (many["resident"] - few["resident"]) / groups;
            format!("\nA group of CAC takes {bytes:.0} bytes ({groups:.0} more groups, narrow subranges).")
        }
        (Ok(few), Ok(many)) => {
            let (few, many) = (few["groups"], many["groups"]);
            format!("\nBytes per group: not measured, since there are only {few:.0} and {many:.0} groups.")
        }
        (few, many) => format!("\nBytes per group: not measured: {:?}", few.err().or(many.err())),
    });
}

/// A builder for a full SSD of small pages in `folder`, under a small pool.
fn over_slots(folder: &Path, slots: u32) -> Builder {
    let ssd_bytes = ssd_bytes_for(u64::from(slots), SMALL);
    PageStore::builder()
        .directory(folder)
        .page_size(SMALL)
        .ssd_bytes(ssd_bytes)
        .pool_bytes(pool_bytes_for(512, ssd_bytes, SMALL))
}

/// Passes three times as many pages as there are slots through the SSD.
async fn pass_through(store: &PageStore, slots: u32) -> SpaceId {
    let space = store.spaces().create("pages").await.expect("a space");
    for _ in 0..3 * slots {
        drop(store.allocate(space).await.expect("room"));
    }
    space
}

/// The resident memory that a store took since there were `before` bytes, its frames excluded.
fn resident_since(before: f64, store: &PageStore) -> f64 {
    status("VmRSS") - before - store.stats().pool_memory.frames as f64
}

async fn slots(policy: &str, slots: u32) -> Figures {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let policy = *SSD_POLICIES.iter().find(|one| one.to_string() == policy).expect("a policy");
    let before = status("VmRSS");
    let builder = over_slots(folder.path(), slots).ssd_policy(policy);
    let store = builder.open().await.expect("a store");
    pass_through(&store, slots).await;
    let ssd = store.stats().ssd;
    figures([
        ("pages", ssd.pages as f64),
        ("budget", ssd.memory_bytes as f64 / ssd.slots as f64),
        ("resident", resident_since(before, &store)),
        ("units", ssd.slots as f64),
    ])
}

async fn groups(slots: u32, width: f64) -> Figures {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let before = status("VmRSS");
    let builder = over_slots(folder.path(), slots).ssd_policy(format!("cac:group-width={width}"));
    let store = builder.open().await.expect("a store");
    let space = pass_through(&store, slots).await;
    let mut rng = SmallRng::seed_from_u64(1);
    for _ in 0..slots {
        // A skew, so that the pages' rates differ.
        let below = rng.random_range(1..3 * slots);
        let page = rng.random_range(0..below);
        drop(store.get(PageId::new(space, page)).await.expect("read"));
    }
    let groups = store.policies().groups().len() as f64;
    figures([("groups", groups), ("resident", resident_since(before, &store))])
}

const PAGES: u32 = 32_768;
const SITUATIONS: [&str; 5] = ["idle", "scan", "8-clients", "64-clients", "backup"];

fn beyond_budget(report: &mut Report, folder: &Path) {
    report.line("\n## Resident memory beyond the budget, MiB");
    report.head(&["what the store does", "budget", "before opening", "peak", "beyond"]);
    if let Err(why) = measured(&format!("fill {}", folder.display())) {
        report.line(format_args!("| not measured: {why} | | | | |"));
        return;
    }
    for situation in SITUATIONS {
        report.line(match measured(&format!("beyond {} {situation}", folder.display())) {
            Ok(f) => {
                let beyond = f["peak"] - f["budget"] - f["before"];
                let mib = |name: &str| f[name] / MIB;
                let (budget, before, peak) = (mib("budget"), mib("before"), mib("peak"));
                format!("| {situation} | {budget:.1} | {before:.1} | {peak:.1} | {:.1} |", beyond / MIB)
            }
            Err(why) => format!("| {situation} | not measured: {why} | | | |"),
        });
    }
}

fn pages() -> u32 {
    Length::selected().pick(PAGES / 8, PAGES, PAGES)
}

/// An eighth of the pages fit into the pool, half of them on the SSD.
async fn open(folder: &Path) -> PageStore {
    let bytes = u64::from(pages()) * PageSize::DEFAULT.bytes() as u64;
    let builder = PageStore::builder().directory(folder).ssd_bytes(bytes / 2).pool_bytes(bytes / 8);
    builder.io(Backend::Uring).open().await.expect("a store")
}

async fn fill(folder: &Path) -> Figures {
    let store = open(folder).await;
    let space = store.spaces().create("pages").await.expect("a space");
    for _ in 0..pages() {
        drop(store.allocate(space).await.expect("room"));
    }
    store.close().await.expect("closed");
    Figures::new()
}

async fn beyond(folder: &Path, situation: &str) -> Figures {
    let before = status("VmRSS");
    let store = Arc::new(open(folder).await);
    let space = store.spaces().find("pages").expect("its space");
    let clients = match situation {
        "8-clients" => 8,
        "64-clients" => 64,
        // One client's reads fill the pool.
        _ => 1,
    };
    read_and_write(&store, space, clients).await;
    match situation {
        "scan" => {
            let mut scan = store.scan(space, 0..pages());
            while let Some(page) = scan.next().await {
                drop(page.expect("read"));
            }
        }
        "backup" => {
            let to = tempfile::tempdir_in(folder).expect("a folder");
            store.backup(to.path(), BackupOptions::new()).await.expect("a backup");
        }
        _ => tokio::time::sleep(Duration::from_millis(200)).await,
    }
    let budget = store.stats().memory_bytes() as f64;
    let found = figures([("before", before), ("budget", budget), ("peak", status("VmHWM"))]);
    Arc::into_inner(store).expect("the clients have ended").close().await.expect("closed");
    found
}

/// Clients that read random pages and change every fourth, until each page was requested once on average.
async fn read_and_write(store: &Arc<PageStore>, space: SpaceId, clients: u32) {
    let clients = (0..clients).map(|client| {
        let (store, requests) = (Arc::clone(store), pages() / clients);
        tokio::spawn(async move {
            let mut rng = SmallRng::seed_from_u64(u64::from(client));
            for request in 0..requests {
                let page = PageId::new(space, rng.random_range(0..pages()));
                if request % 4 == 0 {
                    store.get_mut(page).await.expect("read")[..4].copy_from_slice(&request.to_le_bytes());
                } else {
                    drop(store.get(page).await.expect("read"));
                }
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.expect("a client");
    }
}

fn syncs(report: &mut Report) {
    report.line("\n## CPU time of `sync`, microseconds (median)");
    report.head(&[
        "frames",
        "one dirty page",
        "to 1,000",
        "nothing",
        "to 1,000",
        "I/O per sync of nothing",
        "resident, MiB",
    ]);
    let mut sizes = vec![1_000, 10_000];
    if Length::selected() > Length::Short {
        // A pool larger than the machine is refused, however sparse.
        let fit = 0.85 * proc_bytes("/proc/meminfo", "MemTotal") / SMALL.bytes() as f64;
        sizes.extend([100_000, 1_000_000, (fit as u32).min(10_000_000)]);
    }
    let mut smallest: Option<Figures> = None;
    for frames in sizes {
        report.line(match measured(&format!("sync {frames}")) {
            Ok(f) => {
                let small = smallest.get_or_insert_with(|| f.clone());
                let ratio = |name: &str| f[name] / small[name];
                format!(
                    "| {frames} | {:.1} | {:.2} x | {:.1} | {:.2} x | {:.1} | {:.0} |",
                    f["dirty"],
                    ratio("dirty"),
                    f["nothing"],
                    ratio("nothing"),
                    f["ops"],
                    f["resident"] / MIB
                )
            }
            Err(why) => format!("| {frames} | not measured: {why} | | | | | |"),
        });
    }
}

async fn sync_of(frames: u32) -> Figures {
    let before = status("VmRSS");
    let store = PageStore::builder()
        .in_memory(Arc::new(MemoryManifest::default()))
        .hdd(Arc::new(MemoryDevice::new("hdd", 0)))
        .page_size(SMALL)
        .ssd_bytes(0)
        .pool_bytes(pool_bytes_for(u64::from(frames), 0, SMALL))
        .open()
        .await
        .expect("the machine has the memory");
    let space = store.spaces().create("pages").await.expect("a space");
    let page = store.allocate(space).await.expect("room").id();
    store.sync().await.expect("synced");
    let rounds = Length::selected().pick(5, 50, 100);
    let (mut dirty, mut nothing, mut ops) = (Vec::new(), Vec::new(), 0);
    for round in 0..rounds {
        store.get_mut(page).await.expect("resident")[..4].copy_from_slice(&u32::to_le_bytes(round));
        dirty.push(cpu_us(&store).await);
        let count = || {
            let stats = store.stats();
            [stats.hdd_device, stats.ssd_device].map(|device| {
                let all = device.totals();
                all.read.ops + all.write.ops + device.flush.ops
            })
        };
        let ops_before: u64 = count().iter().sum();
        nothing.push(cpu_us(&store).await);
        ops += count().iter().sum::<u64>() - ops_before;
    }
    figures([
        ("dirty", median(dirty)),
        ("nothing", median(nothing)),
        ("ops", ops as f64 / f64::from(rounds)),
        ("resident", status("VmRSS") - before),
    ])
}

/// The CPU time of one `sync` on this thread, which runs all of the store's tasks. It is the shorter
/// of CPU time and elapsed time, because the clock of CPU time may be coarse.
async fn cpu_us(store: &PageStore) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let (began, own) = (Instant::now(), now());
    store.sync().await.expect("synced");
    (now() - own).min(began.elapsed()).as_secs_f64() * 1e6
}
