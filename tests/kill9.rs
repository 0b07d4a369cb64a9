//! A process killed with SIGKILL while it writes: nothing acknowledged is lost, nothing is torn, and the SSD
//! comes back warm. After a third of the kills the recovery is killed as well, up to three times in a row.
//!
//! `PAGETIER_KILL_ROUNDS=1000 cargo test --release --test kill9 -- --nocapture` runs a campaign; the default
//! is a few rounds. The writer is this program itself, on real files, alternately with io_uring (and O_DIRECT
//! where the file system has it) and with threads.

mod fixture;

use fixture::{fill, version_of};
use pagetier::{PageId, PageSize, PageStore, SpaceId, SsdPolicy, device::Backend};
use pagetier_rivals::SSD_POLICIES;
use pagetier_testing::kills::{self, Known};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const PAGES: u32 = 600;
const TASKS: u32 = 4;
const ROUNDS: u64 = 8;

/// The tests that are killed.
const WRITER: &str = "the_writer_that_is_killed";
const RECOVERY: &str = "the_recovery_that_is_killed";

/// The approximate time that it takes to open the store with recovery.
const OPENING: Duration = Duration::from_millis(60);

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

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Not a test by itself: the process to be killed.
#[test]
fn the_writer_that_is_killed() {
    if let Some((directory, seed)) = kills::part(WRITER) {
        runtime().block_on(write_for_ever(&directory, seed));
    }
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
    kills::say(&format!("open {}", stats.ssd.pages));
    while store.spaces().pages(space).unwrap() < PAGES {
        let mut page = store.allocate(space).await.unwrap();
        let no = page.id().no;
        fill(&mut page, no, 0);
    }
    store.sync().await.unwrap();
    kills::say("ready");
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
    if let Some((directory, seed)) = kills::part(RECOVERY) {
        runtime().block_on(kills::open_and_wait(open(&directory, seed % 2 == 1, SSD_POLICIES[0])));
    }
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
            kills::begun(no, version);
            fill(&mut store.get_mut(page).await.unwrap(), no, version);
            changed.push((no, version));
        }
        store.sync().await.unwrap();
        for (no, version) in changed {
            kills::durable(no, version);
        }
    }
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
        // The version just read comes from durable copies.
        k.found(format_args!("page {no}"), version);
    }
    store.validate().unwrap();
    let stats = store.stats();
    // Dropping it without a close adds another crash.
    (stats.ssd.pages, stats.ssd.slots)
}

#[tokio::test]
async fn nothing_synced_is_lost_when_the_process_is_killed() {
    let rounds = kills::rounds(ROUNDS);
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut known = vec![Known::default(); PAGES as usize];
    let (mut warm, mut verified, mut recoveries, mut cut) = (Vec::new(), 0, 0, 0);
    for round in 0..rounds {
        // A dropped store keeps its locks until its last flush has ended, so the runtime continues.
        let at = directory.path().to_owned();
        let killed = tokio::task::spawn_blocking(move || {
            kills::write_and_kill(WRITER, (&at, round), 5..400, &mut known);
            let (again, cut) = kills::kill_recoveries(RECOVERY, (&at, round), OPENING);
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
