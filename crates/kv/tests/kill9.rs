//! A process is killed with SIGKILL while it changes a store on real files: nothing confirmed is lost, and
//! `check` finds no problem. After a third of the kills the recovery is killed too, up to three times in a
//! row.
//!
//! `PAGETIER_KILL_ROUNDS=500 cargo test --release -p pagetier-kv --test kill9 -- --nocapture` runs a
//! campaign; the default is a few rounds.

use pagetier::OpenError;
use pagetier_kv::{Kv, KvError, Options};
use pagetier_testing::kills::{self, Known};
use pagetier_wal::WalError;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const KEYS: u32 = 800;
const TASKS: u32 = 4;
const ROUNDS: u64 = 4;

/// The tests that are killed.
const WRITER: &str = "the_writer_that_is_killed";
const RECOVERY: &str = "the_recovery_that_is_killed";

/// The approximate time that it takes to open the store with recovery.
const OPENING: Duration = Duration::from_millis(80);

/// The store whose log suffices once its SSD is lost, which happens to it now and then.
const SURVIVES: &str = "survives";
const LOG_BYTES: u64 = 1 << 20;
/// What such a log has at most: eight capacities, and a segment and a batch.
const LOG_BYTES_MAX: u64 = 8 * LOG_BYTES + LOG_BYTES / 8;

fn options(directory: &Path) -> Options {
    let options = Options::new(directory).page_bytes(4096).pool_bytes(2 << 20).log_bytes(LOG_BYTES);
    let lost = !directory.join("pages/ssd.cache").exists();
    options.ssd_bytes(4 << 20).survives_ssd_loss(directory.ends_with(SURVIVES)).accept_ssd_loss(lost)
}

fn lose_ssd(directory: &Path) {
    std::fs::remove_file(directory.join("pages/ssd.cache")).unwrap();
}

fn log_bytes(directory: &Path) -> u64 {
    let files = std::fs::read_dir(directory.join("log")).unwrap().map(Result::unwrap);
    let segments = files.filter(|file| file.path().extension().is_some_and(|extension| extension == "log"));
    segments.map(|file| file.metadata().unwrap().len()).sum()
}

/// Opens the store once its previous opener has left it: a dropped store ends with its last operation.
async fn open(directory: &Path) -> Kv {
    for _ in 0..500 {
        match Kv::open(&options(directory)).await {
            Err(KvError::Open(OpenError::AlreadyOpen { .. }) | KvError::Log(WalError::InUse { .. })) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            opened => return opened.unwrap(),
        }
    }
    panic!("the store stays in use");
}

fn key(number: u32) -> Vec<u8> {
    let mut key = format!("{number:04}").into_bytes();
    key.resize(4 + number as usize * 7 % 120, b'.');
    key
}

/// The value of a version; in every fifth version the key is absent.
fn value(number: u32, version: u32) -> Option<Vec<u8>> {
    if version.is_multiple_of(5) {
        return None;
    }
    let mut rng = SmallRng::seed_from_u64(u64::from(number) << 32 | u64::from(version));
    let bytes = match rng.random_range(0..20) {
        0 => rng.random_range(2_000..20_000),
        _ => rng.random_range(8..400),
    };
    let mut value = vec![0; bytes];
    rng.fill(&mut value[..]);
    value[..4].copy_from_slice(&number.to_le_bytes());
    value[4..8].copy_from_slice(&version.to_le_bytes());
    Some(value)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Not a test by itself: the process to be killed.
#[test]
fn the_writer_that_is_killed() {
    let Some((directory, seed)) = kills::part(WRITER) else { return };
    runtime().block_on(async move {
        let kv = Arc::new(open(&directory).await);
        kills::say("ready");
        let writers: Vec<_> = (0..TASKS)
            .map(|task| tokio::spawn(write(Arc::clone(&kv), seed * 31 + u64::from(task), task)))
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
    });
}

/// Not a test by itself: the recovery to be killed.
#[test]
fn the_recovery_that_is_killed() {
    if let Some((directory, _)) = kills::part(RECOVERY) {
        runtime().block_on(kills::open_and_wait(open(&directory)));
    }
}

fn version_of(value: Option<&[u8]>) -> Option<u32> {
    value.map(|value| u32::from_le_bytes(value[4..8].try_into().unwrap()))
}

/// Each task has its own keys, so the versions of a key are sequential.
async fn write(kv: Arc<Kv>, seed: u64, task: u32) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut versions = vec![0; KEYS as usize];
    for number in (task..KEYS).step_by(TASKS as usize) {
        let found = version_of(kv.get(&key(number)).await.unwrap().as_deref());
        // An absent key may be at any version without a value: continue far above all of them.
        versions[number as usize] = found.unwrap_or_else(|| (seed as u32 + 2) * 100_000 / 5 * 5);
    }
    loop {
        let unsynced = rng.random_bool(0.3);
        let mut changed = Vec::new();
        for _ in 0..rng.random_range(1..12) {
            let number = rng.random_range(0..KEYS / TASKS) * TASKS + task;
            let version = versions[number as usize] + 1;
            versions[number as usize] = version;
            kills::begun(number, version);
            match (value(number, version), unsynced) {
                (Some(value), false) => kv.put(&key(number), &value).await.unwrap(),
                (Some(value), true) => drop(kv.put_unsynced(&key(number), &value).await.unwrap()),
                (None, false) => drop(kv.delete(&key(number)).await.unwrap()),
                (None, true) => drop(kv.delete_unsynced(&key(number)).await.unwrap()),
            }
            if unsynced {
                changed.push((number, version));
            } else {
                kills::durable(number, version);
            }
        }
        kv.sync().await.unwrap();
        for (number, version) in changed {
            kills::durable(number, version);
        }
    }
}

async fn check(directory: &Path, known: &mut [Known], close: bool, openings: &mut Vec<Duration>) -> u64 {
    let begun = Instant::now();
    let kv = open(directory).await;
    openings.push(begun.elapsed());
    let report = kv.check(|_, _| ()).await.unwrap();
    assert!(report.is_sound(), "{:#?}", report.listed);
    for (number, known) in (0..).zip(known) {
        let found = kv.get(&key(number)).await.unwrap();
        let version = match version_of(found.as_deref()) {
            Some(version) => {
                assert!(found == value(number, version), "key {number} mixes versions");
                version
            }
            // The key is absent: a version without a value must be among the allowed ones.
            None => {
                let absence = (known.durable..=known.begun).find(|version| version.is_multiple_of(5));
                absence.unwrap_or_else(|| panic!("key {number} of version {} is lost", known.durable))
            }
        };
        known.found(format_args!("key {number}"), version);
    }
    if close {
        kv.shutdown().await.unwrap();
    }
    report.entries
}

#[test]
fn nothing_confirmed_is_lost_when_the_process_is_killed() {
    kill_again_and_again("store");
}

#[test]
fn a_log_for_the_loss_of_the_ssd_stays_within_its_limit_and_suffices_however_the_process_ends() {
    kill_again_and_again(SURVIVES);
}

fn kill_again_and_again(name: &str) {
    let rounds = kills::rounds(ROUNDS);
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = directory.path().join(name);
    let mut known = vec![Known::default(); KEYS as usize];
    let (mut recoveries, mut cut, mut entries, mut longest) = (0, 0, 0, 0);
    let mut openings = Vec::new();
    for round in 0..rounds {
        kills::write_and_kill(WRITER, (&store, round), 5..500, &mut known);
        let (again, cut_now) = kills::kill_recoveries(RECOVERY, (&store, round), OPENING);
        (recoveries, cut) = (recoveries + again, cut + cut_now);
        longest = longest.max(log_bytes(&store));
        // Only the other rounds' times are compared.
        let loses = name == SURVIVES && round % 8 == 3;
        if loses {
            lose_ssd(&store);
        }
        let mut redone = Vec::new();
        let timed = if loses { &mut redone } else { &mut openings };
        // Dropping it without a close adds another crash.
        entries = runtime().block_on(check(&store, &mut known, round % 7 == 6, timed));
        if round % 50 == 49 {
            println!("{} kills, and {cut} of recoveries; nothing lost", round + 1);
        }
    }
    println!("{recoveries} recoveries killed, {cut} of them before the store was open");
    println!("{rounds} kills, {entries} entries at the end; check found nothing wrong");
    openings.sort_unstable();
    println!("{name}: median open {:?}, longest log {longest} bytes", openings[openings.len() / 2]);
    assert!(longest <= LOG_BYTES_MAX || name != SURVIVES, "{longest}");
    assert!(rounds < 4 || entries > 100, "{entries} entries");
}
