//! Another machine takes a store over: `kv` with homes and log on images of a real cluster, and an SSD that
//! is lost with its machine. Each owner is a process of its own, with a directory of its own.
//!
//! `PAGETIER_TAKEOVERS` sets how often (default: 3), `PAGETIER_RACES` how many races of takers there are (3);
//! `crates/rbd/run-tests` starts a cluster.

use pagetier_kv::{Kv, KvError, Options};
use pagetier_rbd::{Cluster, ConnectOptions, ImageName, ImageOptions, RbdDevice};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long an owner serves what it has read once before it asks again whether it is one.
const LEASE: Duration = Duration::from_secs(2);

/// The number of the newest batch, which each owner writes and reads.
const NEWEST: &[u8] = b"newest";

/// The SSD of an owner, unless it has none.
const SSD_MIB: u64 = 16;

/// How many keys an owner reads back besides checking the whole tree.
const READ_BACK: u64 = 2_000;

fn key(no: u64) -> [u8; 8] {
    no.to_be_bytes()
}

fn value(no: u64) -> Vec<u8> {
    no.to_le_bytes().repeat(1 + no as usize % 40)
}

/// Milliseconds of a clock that the processes of a machine share.
fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// The two numbers of a line.
fn two(said: &str) -> (u64, u64) {
    let (one, other) = said.split_once(' ').unwrap();
    (one.parse().unwrap(), other.parse().unwrap())
}

async fn taken(cluster: &Cluster, name: &str) -> RbdDevice {
    let name: ImageName = name.parse().unwrap();
    cluster.open(name, ImageOptions::default().take_over(true)).await.unwrap()
}

/// An owner: takes the images over, recovers, checks that nothing acknowledged is missing, and goes on
/// writing. Says `sound`, then the number of each key that it has acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs as another process of these tests"]
async fn an_owner_of_its_own() {
    let Ok(told) = std::env::var("PAGETIER_RBD_TAKES") else { return };
    let [homes, log, dir, numbers @ ..] = &told.split(' ').collect::<Vec<_>>()[..] else { panic!("{told}") };
    let numbers: Vec<u64> = numbers.iter().map(|number| number.parse().unwrap()).collect();
    let [acknowledged, ssd_mib, base, ref others @ ..] = numbers[..] else { panic!("{told}") };
    let key = move |no: u64| key(base + no);
    let cluster = Cluster::connect(ConnectOptions::default()).await.unwrap();
    let begun = Instant::now();
    let (homes, log) = (taken(&cluster, homes).await, taken(&cluster, log).await);
    let took = begun.elapsed();
    let options = Options::new(dir).hdd_device(Arc::new(homes)).log_device(Arc::new(log));
    let options = options
        .ssd_bytes(ssd_mib << 20)
        .pool_bytes(6 << 20)
        .log_bytes(8 << 20)
        .accept_ssd_loss(true)
        .lease(LEASE);
    let kv = Arc::new(Kv::open(&options).await.unwrap());
    println!("\nopened {} {}", took.as_millis(), begun.elapsed().as_millis());
    let report = kv.check(|_, _| ()).await.unwrap();
    assert_eq!(report.problems, 0, "{:?}", report.listed);
    // One more may be there than was heard of.
    let entries = report.entries.saturating_sub(1);
    assert!(entries >= acknowledged, "{entries} of {acknowledged}");
    for no in acknowledged.saturating_sub(READ_BACK)..acknowledged {
        assert_eq!(kv.get(&key(no)).await.unwrap(), Some(value(no)), "key {no} of {acknowledged}");
    }
    for other in others.chunks(2) {
        for no in other[0]..other[1] {
            if kv.get(&no.to_be_bytes()).await.unwrap().is_none() {
                println!("\nmissing {no}");
                return;
            }
        }
    }
    // The harness has not ended its line.
    println!("\nsound {entries}");
    let next = AtomicU64::new(acknowledged);
    let reads = Arc::clone(&kv);
    tokio::spawn(async move {
        // Until it is refused. The time is that before the answer was known.
        loop {
            let at = now_ms();
            let Ok(newest) = reads.get(NEWEST).await else { break };
            if let Some(newest) = newest {
                println!("read {} {at}", u64::from_le_bytes(newest.try_into().unwrap()));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    loop {
        // Group commit: a batch of tasks, acknowledged together.
        let from = next.load(Ordering::Relaxed);
        let puts = (from..from + 32).map(|no| {
            let kv = Arc::clone(&kv);
            tokio::spawn(async move { kv.put(&key(no), &value(no)).await })
        });
        let mut puts: Vec<_> = puts.collect();
        let reads = Arc::clone(&kv);
        puts.push(tokio::spawn(async move { reads.put(NEWEST, &(from + 32).to_le_bytes()).await }));
        for put in puts {
            if let Err(error) = put.await.unwrap() {
                println!("refused {error:?}");
                eprintln!("refused {error}");
                // A fenced store fails at once, whatever is asked of it.
                let again: Result<(), KvError> = kv.put(&key(0), b"never").await;
                println!("ended {}", again.is_err());
                return;
            }
        }
        next.fetch_add(32, Ordering::Relaxed);
        println!("has {} {}", from + 32, now_ms());
    }
}

struct Owner {
    process: Child,
    says: BufReader<ChildStdout>,
    _dir: tempfile::TempDir,
}

impl Owner {
    /// Starts an owner, with a directory of its own.
    fn start(images: &[String; 2], acknowledged: u64, ssd_mib: u64) -> Self {
        Self::told(images, &format!("{acknowledged} {ssd_mib} 0"))
    }

    /// Starts one that writes keys from `base` on, and looks for those in `others`, which are ranges.
    fn among(images: &[String; 2], base: u64, others: &[(u64, u64)]) -> Self {
        let others: String = others.iter().map(|(from, to)| format!(" {from} {to}")).collect();
        Self::told(images, &format!("0 {SSD_MIB} {base}{others}"))
    }

    fn told([homes, log]: &[String; 2], numbers: &str) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let told = format!("{homes} {log} {} {numbers}", dir.path().join("kv").display());
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["an_owner_of_its_own", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env("PAGETIER_RBD_TAKES", told)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(process.stdout.take().unwrap());
        Self { process, says, _dir: dir }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.process.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// What follows the last such word that it has said, up to the end of its output.
    fn last(&mut self, word: &str) -> Option<String> {
        let (mut last, mut line) = (None, String::new());
        while self.says.read_line(&mut line).unwrap() > 0 {
            last = line.trim().strip_prefix(word).map(str::to_owned).or(last);
            line.clear();
        }
        last
    }

    fn wait_for(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.says.read_line(&mut line).unwrap() > 0, "it ended before it said {word:?}");
            if let Some(rest) = line.trim().strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Past the test harness, which hides the output of passing tests.
fn say(what: &str) {
    let _ = std::io::stderr().write_all(format!("\n{what}\n").as_bytes());
}

async fn images(what: &str) -> Option<[String; 2]> {
    if std::env::var_os("CEPH_CONF").is_none() {
        say("SKIPPED: no Ceph cluster: run crates/rbd/run-tests");
        return None;
    }
    let cluster = Cluster::connect(ConnectOptions::default()).await.expect("a cluster");
    let [homes, log] = ["homes", "log"].map(|image| format!("rbd/{what}-{image}-{}", std::process::id()));
    cluster.create(homes.parse().unwrap(), 64 << 20).await.unwrap();
    cluster.create(log.parse().unwrap(), 512 << 20).await.unwrap();
    Some([homes, log])
}

fn rounds() -> u64 {
    std::env::var("PAGETIER_TAKEOVERS").map_or(3, |times| times.parse().expect("a number"))
}

/// The owner is killed at a random moment, often while it recovers, and its SSD is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_owner_acknowledged_is_there_after_a_takeover() {
    take_over_killed("killed", SSD_MIB).await;
}

/// Such a store has nothing on the machines of its owners.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_an_ssd_is_taken_over() {
    take_over_killed("bare", 0).await;
}

async fn take_over_killed(what: &str, ssd_mib: u64) {
    let Some(images) = images(what).await else { return };
    let mut rng = SmallRng::seed_from_u64(u64::from(std::process::id()));
    let (mut acknowledged, mut takeovers) = (0, 0);
    for round in 1..=rounds() {
        let mut owner = Owner::start(&images, acknowledged, ssd_mib);
        let begun = rng.random_bool(0.7);
        if begun {
            owner.wait_for("sound");
            takeovers += 1;
        }
        tokio::time::sleep(Duration::from_millis(rng.random_range(50..2_500))).await;
        owner.signal("-KILL");
        acknowledged = owner.last("has ").map_or(acknowledged, |said| two(&said).0);
        say(&format!("{what} {round}: {}, {acknowledged} keys", if begun { "open" } else { "opening" }));
    }
    let mut last = Owner::start(&images, acknowledged, ssd_mib);
    last.wait_for("sound");
    println!("{takeovers} takeovers, {acknowledged} keys");
}

/// Three machines take the store over at once, from each other and from its owner. What any of them has
/// acknowledged is there afterwards, so no two served at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_takers_that_race_one_serves() {
    let Some(images) = images("race").await else { return };
    let races = std::env::var("PAGETIER_RACES").map_or(3, |times| times.parse().expect("a number"));
    let mut rng = SmallRng::seed_from_u64(u64::from(std::process::id()));
    let (mut acknowledged, mut served): (Vec<(u64, u64)>, u64) = (Vec::new(), 0);
    for race in 1..=races {
        let bases: Vec<u64> = (0..3).map(|nth| (race * 4 + nth) << 32).collect();
        let mut takers: Vec<Owner> = Vec::new();
        for base in &bases {
            takers.push(Owner::among(&images, *base, &acknowledged));
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..300))).await;
        }
        tokio::time::sleep(Duration::from_millis(rng.random_range(4_000..9_000))).await;
        takers.iter().for_each(|taker| taker.signal("-KILL"));
        let mut writers = 0;
        for (taker, base) in takers.iter_mut().zip(bases) {
            let mut has = 0;
            for said in taker.says.by_ref().lines() {
                let said = said.unwrap();
                assert!(!said.starts_with("missing"), "{said}, which was acknowledged: {acknowledged:?}");
                has = said.strip_prefix("has ").map_or(has, |said| two(said).0);
            }
            if has > 0 {
                acknowledged.push((base, base + has));
                writers += 1;
            }
        }
        served += writers;
        // The last few: a look at all of them takes ever longer.
        acknowledged.drain(..acknowledged.len().saturating_sub(6));
        say(&format!("race {race}: {writers} of 3 takers acknowledged changes"));
    }
    Owner::among(&images, (races * 4 + 3) << 32, &acknowledged).wait_for("sound");
    assert!(served > 0, "none ever served");
}

/// The owner stops, as a machine that hangs does, and resumes when another has taken the store over: while it
/// is banned, or after an operator has lifted the bans.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_resumes_after_a_takeover_writes_nothing_more() {
    let Some(images) = images("stopped").await else { return };
    let mut rng = SmallRng::seed_from_u64(u64::from(std::process::id()));
    let mut acknowledged = 0;
    let mut owner = Owner::start(&images, acknowledged, SSD_MIB);
    owner.wait_for("sound");
    let (mut opened, mut first) = (Vec::new(), Vec::new());
    for round in 1..=rounds() {
        tokio::time::sleep(Duration::from_millis(rng.random_range(50..2_000))).await;
        owner.signal("-STOP");
        // What it has said is in the pipe, which ends when the process does.
        let begun = Instant::now();
        let mut next = Owner::start(&images, acknowledged, SSD_MIB);
        opened.push(two(&next.wait_for("opened")).0);
        let there: u64 = next.wait_for("sound").parse().unwrap();
        let (newest, newest_at) = two(&next.wait_for("has"));
        first.push(begun.elapsed().as_millis());
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..500))).await;
        let lifts = round % 4 == 0;
        if lifts {
            let cleared = Command::new("ceph").args(["osd", "blocklist", "clear"]).output().unwrap();
            assert!(cleared.status.success(), "{cleared:?}");
        }
        owner.signal("-CONT");
        let (mut heard, mut is_refused) = (acknowledged, false);
        let mut line = String::new();
        while owner.says.read_line(&mut line).unwrap() > 0 {
            let said = line.trim();
            if let Some(said) = said.strip_prefix("has ") {
                heard = two(said).0;
            }
            if let Some(said) = said.strip_prefix("read ") {
                let (read, at) = two(said);
                let limit = newest_at + LEASE.as_millis() as u64;
                assert!(read >= newest || at <= limit, "{read} was read {} ms after the lease", at - limit);
            }
            is_refused |= said.starts_with("refused");
            assert_ne!(said, "ended false", "a fenced store took a change");
            line.clear();
        }
        assert!(is_refused, "the owner that resumed was not told");
        // Every key that the old owner ever acknowledged was there when the new one opened.
        assert!(heard <= there, "{heard} were acknowledged, {there} are there");
        acknowledged = there - there % 32;
        let ban = if lifts { ", its ban lifted" } else { "" };
        say(&format!("stopped and resumed {round}{ban}: refused, {there} keys"));
        owner = next;
    }
    opened.sort_unstable();
    first.sort_unstable();
    let (both, write) = (opened[opened.len() / 2], first[first.len() / 2]);
    say(&format!("medians: {both} ms until both images are taken, {write} ms until a write is acknowledged"));
    owner.signal("-KILL");
    acknowledged = owner.last("has ").map_or(acknowledged, |said| two(&said).0);
    Owner::start(&images, acknowledged, SSD_MIB).wait_for("sound");
}
