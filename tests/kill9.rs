//! A process killed with SIGKILL while it writes: nothing acknowledged is lost, nothing is torn, and the SSD
//! comes back warm. After a third of the kills the recovery is killed as well, up to three times in a row.
//!
//! `PAGETIER_KILL_ROUNDS=1000 cargo test --release --test kill9 -- --nocapture` runs a campaign; the default
//! is a few rounds. The writer is this program itself, on real files, alternately with io_uring (and O_DIRECT
//! where the file system has it) and with threads.

use pagetier::{PageId, PageSize, PageStore, SpaceId, SsdPolicy, device::Backend};
use pagetier_rivals::SSD_POLICIES;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAGES: u32 = 600;
const TASKS: u32 = 4;
const ROUNDS: u64 = 8;
const DIRECTORY: &str = "PAGETIER_KILL_DIRECTORY";
const RECOVERED: &str = "PAGETIER_KILL_RECOVERED";
const SEED: &str = "PAGETIER_KILL_SEED";

/// The approximate time of an opening with recovery, in microseconds.
const OPENING_US: u64 = 60_000;

/// By page: the last version whose `sync` returned, and the last version whose write began.
#[derive(Clone, Copy, Default)]
struct Known {
    durable: u32,
    begun: u32,
}

async fn open(directory: &Path, threads: bool, ssd_policy: SsdPolicy) -> PageStore {
    let opened = PageStore::builder()
        .directory(directory)
        .page_size(PageSize::MIN)
        .pool_bytes(1 << 20)
        .ssd_bytes(3 << 20)
        .ring_pages(16)
        .ssd_policy(ssd_policy)
        .io(if threads { Backend::Threads } else { Backend::Auto })
        .open()
        .await;
    opened.unwrap_or_else(|error| panic!("the store does not open after a kill: {error}"))
}

/// Every word encodes page and version, so that a mixture of versions is visible.
fn fill(payload: &mut [u8], no: u32, version: u32) {
    let word = (u64::from(version) << 32 | u64::from(no)).to_le_bytes();
    payload.copy_from_slice(&word.repeat(payload.len() / 8));
}

fn version_of(payload: &[u8], no: u32) -> u32 {
    let first = u64::from_le_bytes(payload[..8].try_into().unwrap());
    assert_eq!(first as u32, no, "another page's content");
    let whole = payload[8..] == payload[..payload.len() - 8];
    assert!(whole, "page {no} mixes versions");
    (first >> 32) as u32
}

/// Not a test by itself: the process to be killed.
#[test]
fn the_writer_that_is_killed() {
    let (Some(directory), Ok(seed)) = (std::env::var_os(DIRECTORY), std::env::var(SEED)) else { return };
    let seed: u64 = seed.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(write_for_ever(Path::new(&directory), seed));
}

async fn write_for_ever(directory: &Path, seed: u64) {
    // All policies except the last, `none`.
    let ssd_policy = SSD_POLICIES[seed as usize % (SSD_POLICIES.len() - 1)];
    let store = Arc::new(open(directory, seed % 2 == 1, ssd_policy).await);
    let space = match store.spaces().find("t") {
        Some(space) => space,
        None => store.spaces().create("t").await.unwrap(),
    };
    let stats = store.stats();
    say(format!("open {} {}", stats.ssd.pages, store.spaces().pages(space).unwrap()));
    while store.spaces().pages(space).unwrap() < PAGES {
        let mut page = store.allocate(space).await.unwrap();
        let no = page.id().no;
        fill(&mut page, no, 0);
    }
    store.sync().await.unwrap();
    say("ready".into());
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| tokio::spawn(write(Arc::clone(&store), space, seed * 31 + u64::from(task), task)))
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// Not a test by itself: the recovery to be killed.
#[test]
fn the_recovery_that_is_killed() {
    let (Some(directory), Ok(seed)) = (std::env::var_os(RECOVERED), std::env::var(SEED)) else { return };
    let seed: u64 = seed.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async move {
        say("opening".into());
        let store = open(Path::new(&directory), seed % 2 == 1, SSD_POLICIES[0]).await;
        say("opened".into());
        // Wait for the kill.
        std::future::pending::<()>().await;
        drop(store);
    });
}

/// Each task has its own pages, so the versions of a page are sequential.
async fn write(store: Arc<PageStore>, space: SpaceId, seed: u64, task: u32) {
    let mut rng = SmallRng::seed_from_u64(seed);
    loop {
        let mut changed = Vec::new();
        for _ in 0..rng.random_range(1..40) {
            // Half of the changes go to a tenth of the pages.
            let among = if rng.random_bool(0.5) { PAGES / 10 } else { PAGES } / TASKS;
            let no = rng.random_range(0..among) * TASKS + task;
            let page = PageId::new(space, no);
            let version = version_of(&store.get(page).await.unwrap(), no) + 1;
            say(format!("begun {no} {version}"));
            fill(&mut store.get_mut(page).await.unwrap(), no, version);
            changed.push((no, version));
        }
        store.sync().await.unwrap();
        for (no, version) in changed {
            say(format!("durable {no} {version}"));
        }
    }
}

/// Prints one line in one system call, so that it is complete before the kill.
fn say(line: String) {
    std::io::stdout().write_all(format!("\n@{line}\n").as_bytes()).unwrap();
}

fn spawn(test: &str, variable: &str, directory: &Path, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(variable, directory)
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs the writer and kills it after a random time. Once it was ready, returns the number of pages on its
/// SSD when it opened.
fn run_and_kill(directory: &Path, seed: u64, known: &mut [Known]) -> Option<u64> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut writer = spawn("the_writer_that_is_killed", DIRECTORY, directory, seed);
    let lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    let mut opened_with = None;
    let mut kill_at = None;
    // Occasionally kill it during the opening or the first allocations.
    if rng.random_bool(0.15) {
        std::thread::park_timeout(Duration::from_millis(rng.random_range(0..60)));
        writer.kill().unwrap();
    }
    for line in lines {
        let Ok(line) = line else { break };
        let Some(line) = line.strip_prefix('@') else { continue };
        let mut words = line.split(' ');
        let what = words.next().unwrap_or_default();
        let numbers: Vec<u32> = words.filter_map(|word| word.parse().ok()).collect();
        match (what, numbers[..].split_at_checked(2)) {
            ("open", Some(([pages, _], _))) => opened_with = Some(u64::from(*pages)),
            ("begun", Some(([no, version], _))) => known[*no as usize].begun = *version,
            ("durable", Some(([no, version], _))) => known[*no as usize].durable = *version,
            ("ready", _) => {
                let after = Duration::from_millis(rng.random_range(5..400));
                kill_at = Some(Instant::now() + after);
            }
            _ => {}
        }
        if kill_at.is_some_and(|at| Instant::now() >= at) {
            kill_at = None;
            // SIGKILL.
            writer.kill().unwrap();
        }
    }
    let ended = writer.wait().unwrap();
    assert!(!ended.success() && ended.code().is_none(), "the writer ended by itself: {ended}");
    opened_with
}

/// Opens the store in another process and kills that process within the time of an opening. Returns true if
/// the store was not open yet.
fn kill_a_recovery(directory: &Path, seed: u64) -> bool {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut opener = spawn("the_recovery_that_is_killed", RECOVERED, directory, seed);
    let mut lines = BufReader::new(opener.stdout.take().unwrap()).lines().map_while(Result::ok);
    let began = lines.by_ref().any(|line| line.starts_with("@opening"));
    assert!(began, "the opener ended by itself");
    std::thread::park_timeout(Duration::from_micros(rng.random_range(0..OPENING_US)));
    opener.kill().unwrap();
    let opened = lines.any(|line| line.starts_with("@opened"));
    let ended = opener.wait().unwrap();
    assert!(!ended.success() && ended.code().is_none(), "the opener ended by itself: {ended}");
    !opened
}

async fn check(directory: &Path, threads: bool, known: &mut [Known]) -> (u64, u64) {
    let store = open(directory, threads, SSD_POLICIES[0]).await;
    let Some(space) = store.spaces().find("t") else {
        assert!(known.iter().all(|k| k.durable == 0), "the space is gone");
        return (0, 0);
    };
    let pages = store.spaces().pages(space).unwrap();
    assert!(pages == PAGES || known.iter().all(|k| k.durable == 0), "{pages} pages are left");
    for no in 0..pages {
        let k = &mut known[no as usize];
        let version = match store.get(PageId::new(space, no)).await {
            Ok(page) => version_of(&page, no),
            Err(error) if k.durable == 0 && k.begun == 0 && pages < PAGES => {
                // The page was allocated but never synced.
                assert!(error.to_string().contains("does not exist"), "{error}");
                continue;
            }
            Err(error) => panic!("page {no}: {error}"),
        };
        assert!(
            (k.durable..=k.begun).contains(&version),
            "page {no} has version {version}: {} was durable, {} the last begun",
            k.durable,
            k.begun
        );
        // The version just read comes from durable copies.
        *k = Known { durable: version, begun: version };
    }
    store.validate().unwrap();
    let stats = store.stats();
    // Dropping it without a close adds another crash.
    (stats.ssd.pages, stats.ssd.slots)
}

#[tokio::test]
async fn nothing_synced_is_lost_when_the_process_is_killed() {
    let rounds =
        std::env::var("PAGETIER_KILL_ROUNDS").map_or(ROUNDS, |n| n.parse().expect("a number of rounds"));
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut known = vec![Known::default(); PAGES as usize];
    let (mut warm, mut verified, mut recoveries, mut cut) = (Vec::new(), 0, 0, 0);
    for round in 0..rounds {
        // A dropped store keeps its locks until its last flush has ended, so the runtime continues.
        let at = directory.path().to_owned();
        let killed = tokio::task::spawn_blocking(move || {
            run_and_kill(&at, round, &mut known);
            let again = if round % 3 == 1 { 1 + round % 2 + round % 5 % 2 } else { 0 };
            let cut = (0..again).map(|nth| u64::from(kill_a_recovery(&at, round * 7 + nth))).sum::<u64>();
            (known, again, cut)
        });
        let (again, cut_now);
        (known, again, cut_now) = killed.await.unwrap();
        recoveries += again;
        cut += cut_now;
        let (pages, slots) = check(directory.path(), round % 3 == 2, &mut known).await;
        verified += u64::from(PAGES);
        if slots > 0 && known.iter().any(|k| k.durable > 0) {
            warm.push(100 * pages / slots);
        }
        if round % 50 == 49 {
            println!("{} kills, and {cut} of recoveries; nothing lost", round + 1);
        }
    }
    warm.sort_unstable();
    let median = warm.get(warm.len() / 2).copied().unwrap_or(0);
    println!("{recoveries} recoveries killed, {cut} of them before the store was open");
    println!("{rounds} kills, {verified} pages verified; SSD {median}% full after recovery (median)");
    assert!(rounds < 4 || median >= 50, "the SSD starts cold: {warm:?}% of its slots");
}
