//! Stores on real files: limits, concurrent tasks, backups under load, and the program.

use pagetier_kv::{BackupProgress, Kv, KvError, Options};
use pagetier_wal::WalError;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn options(directory: &Path) -> Options {
    Options::new(directory).page_bytes(4096).pool_bytes(4 << 20).ssd_bytes(8 << 20).log_bytes(2 << 20)
}

async fn expect_sound(kv: &Kv) -> u64 {
    let report = kv.check(|_, _| ()).await.unwrap();
    assert!(report.is_sound(), "{:#?}", report.listed);
    report.entries
}

#[tokio::test]
async fn keys_and_values_of_every_length_come_back_and_longer_ones_are_refused() {
    for page_bytes in [4096, 65536] {
        let folder = tempfile::tempdir().unwrap();
        let options = options(&folder.path().join("kv")).page_bytes(page_bytes).pool_bytes(24 << 20);
        let kv = Kv::open(&options).await.unwrap();
        let (key_max, value_max) = (kv.key_bytes_max(), kv.value_bytes_max());
        let lengths = [0, 1, 100, key_max, 1_000, 4_000, 4_100, 16_000, 70_000, value_max - 1, value_max];
        for (i, bytes) in lengths.into_iter().enumerate().filter(|(_, bytes)| *bytes <= value_max) {
            let key = vec![i as u8 + 1; if i % 2 == 0 { key_max } else { 1 + i }];
            kv.put(&key, &vec![7; bytes]).await.unwrap();
            assert_eq!(kv.get(&key).await.unwrap().unwrap().len(), bytes);
            // Another length, in place or in a chain, and back.
            kv.put(&key, &vec![8; value_max - bytes]).await.unwrap();
            assert_eq!(kv.get(&key).await.unwrap().unwrap(), vec![8; value_max - bytes]);
        }
        expect_sound(&kv).await;
        assert!(matches!(kv.put(b"", b"x").await, Err(KvError::BadKey { bytes: 0, .. })));
        let long = vec![1; key_max + 1];
        assert!(matches!(kv.put(&long, b"x").await, Err(KvError::BadKey { .. })));
        let long = vec![1; value_max + 1];
        assert!(matches!(kv.put(b"k", &long).await, Err(KvError::ValueTooLong { .. })));
        kv.shutdown().await.unwrap();
        let kv = Kv::open(&options).await.unwrap();
        assert_eq!(kv.recovered().applied, 0, "a closed store has nothing to redo");
        expect_sound(&kv).await;
    }
}

/// Changes its own keys and compares them.
async fn worker(kv: Arc<Kv>, task: u64) {
    let mut rng = SmallRng::seed_from_u64(task);
    let mut expected = std::collections::BTreeMap::new();
    for step in 0..600_u32 {
        let key = format!("{:04}-{task}", rng.random_range(0..200)).into_bytes();
        if rng.random_bool(0.4) {
            let was_there = expected.remove(&key).is_some();
            assert_eq!(kv.delete_unsynced(&key).await.unwrap().is_some(), was_there);
        } else {
            let value = vec![step as u8; rng.random_range(0..if step % 20 == 0 { 9_000 } else { 300 })];
            kv.put_unsynced(&key, &value).await.unwrap();
            expected.insert(key.clone(), value);
        }
        assert_eq!(kv.get(&key).await.unwrap(), expected.get(&key).cloned());
    }
    for (key, value) in expected {
        assert_eq!(kv.get(&key).await.unwrap(), Some(value));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_side_by_side_see_their_own_changes_and_scans_stay_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let kv = Arc::new(Kv::open(&options(&folder.path().join("kv"))).await.unwrap());
    let workers: Vec<_> = (0..6).map(|task| tokio::spawn(worker(Arc::clone(&kv), task))).collect();
    let done = Arc::new(AtomicBool::new(false));
    let (scanned, over) = (Arc::clone(&kv), Arc::clone(&done));
    let scanner = tokio::spawn(async move {
        let mut scans = 0;
        while !over.load(Ordering::Acquire) {
            let mut scan = scanned.scan(..);
            let mut last = Vec::new();
            while let Some((key, _)) = scan.next().await.unwrap() {
                assert!(key > last, "the scan goes back");
                last = key;
            }
            expect_sound(&scanned).await;
            scans += 1;
        }
        scans
    });
    for worker in workers {
        worker.await.unwrap();
    }
    done.store(true, Ordering::Release);
    assert!(scanner.await.unwrap() > 0);
    expect_sound(&kv).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_is_the_store_at_one_moment() {
    let folder = tempfile::tempdir().unwrap();
    let kv = Arc::new(Kv::open(&options(&folder.path().join("kv"))).await.unwrap());
    for number in 0..3_000 {
        kv.put_unsynced(format!("{number:05}").as_bytes(), &[1; 300]).await.unwrap();
    }
    kv.put(b"a", &0_u64.to_le_bytes()).await.unwrap();
    kv.put(b"z", &0_u64.to_le_bytes()).await.unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let (changed, over) = (Arc::clone(&kv), Arc::clone(&done));
    // `a` always equals `z` or is one ahead; meanwhile the tree changes its shape.
    let writer = tokio::spawn(async move {
        let mut number = 0_u64;
        while !over.load(Ordering::Acquire) {
            number += 1;
            changed.put_unsynced(b"a", &number.to_le_bytes()).await.unwrap();
            let other = format!("{:05}x", number % 3_000);
            if number.is_multiple_of(3) {
                changed.delete_unsynced(other.as_bytes()).await.unwrap();
            } else {
                let bytes = if number.is_multiple_of(50) { 12_000 } else { 200 };
                changed.put_unsynced(other.as_bytes(), &vec![2; bytes]).await.unwrap();
            }
            changed.put_unsynced(b"z", &number.to_le_bytes()).await.unwrap();
        }
        number
    });
    for copy in 0..2 {
        let before = u64::from_le_bytes(kv.get(b"z").await.unwrap().unwrap().try_into().unwrap());
        // The same directory, with a slash at the end or without.
        let to = folder.path().join(format!("copy {copy}{}", ["", "/"][copy]));
        let mut recovering = 0;
        let report =
            kv.backup(&to, |at| recovering += u32::from(at == BackupProgress::Recovering)).await.unwrap();
        assert_eq!(recovering, 1);
        let copied = Kv::open(&options(&to)).await.unwrap();
        assert_eq!(expect_sound(&copied).await, report.entries);
        let [a, z] = [b"a", b"z"].map(|key| copied.get(key));
        let [a, z] = [a.await, z.await].map(|v| u64::from_le_bytes(v.unwrap().unwrap().try_into().unwrap()));
        assert!(z >= before && (a == z || a == z + 1), "a is {a}, z {z}, {before} before");
        // The copy is a store of its own.
        copied.put(b"only here", b"1").await.unwrap();
        copied.shutdown().await.unwrap();
    }
    done.store(true, Ordering::Release);
    assert!(writer.await.unwrap() > 10);
    assert!(kv.get(b"only here").await.unwrap().is_none());
    let again = kv.backup(&folder.path().join("copy 0"), |_| ()).await;
    assert!(matches!(again, Err(KvError::Io { .. })), "{again:?}");
    expect_sound(&kv).await;
}

/// Whether a backup has reached some moment.
type Reached = fn(BackupProgress) -> bool;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_that_is_dropped_leaves_the_store_in_use_and_no_backup() {
    let folder = tempfile::tempdir().unwrap();
    let kv = Kv::open(&options(&folder.path().join("kv"))).await.unwrap();
    for number in 0..3_000 {
        kv.put_unsynced(format!("{number:05}").as_bytes(), &[1; 300]).await.unwrap();
    }
    let moments: [Reached; 3] = [
        |at| matches!(at, BackupProgress::Pages(..)),
        |at| at == BackupProgress::Recovering,
        |at| matches!(at, BackupProgress::Checking(..)),
    ];
    for (n, reached) in moments.into_iter().enumerate() {
        let (to, partial) =
            [format!("copy {n}"), format!("copy {n}.partial")].map(|name| folder.path().join(name)).into();
        let at_moment = tokio::sync::Notify::new();
        let backup = kv.backup(&to, |at| {
            if reached(at) {
                at_moment.notify_one();
            }
        });
        // Dropped at the first await after that moment.
        tokio::select! {
            biased;
            () = at_moment.notified() => {}
            report = backup => panic!("the backup is not dropped: {report:?}"),
        }
        assert!(!to.exists() && partial.exists());
    }
    // The log is free again: checkpoints truncate it while changes continue.
    let held = kv.wal().oldest();
    for number in 0..30_000_u32 {
        kv.put_unsynced(format!("{:05}", number % 3_000).as_bytes(), &[2; 300]).await.unwrap();
    }
    assert!(kv.wal().oldest() > held, "a dropped backup keeps the log");
    let report = kv.backup(&folder.path().join("copy"), |_| ()).await.unwrap();
    assert_eq!(report.entries, 3_000);
    expect_sound(&kv).await;
}

#[tokio::test]
async fn an_opening_waits_for_a_flush_that_outlasts_the_previous_store() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let kv = Kv::open(&options).await.unwrap();
    kv.put(b"a", b"1").await.unwrap();
    let log = kv.wal().clone();
    drop(kv);
    let refused = Kv::open(&options).await;
    assert!(matches!(refused, Err(KvError::Log(WalError::InUse { .. }))), "{refused:?}");
    let opening = tokio::spawn(async move { Kv::open(&options).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(log);
    let kv = opening.await.unwrap().unwrap();
    assert_eq!(kv.get(b"a").await.unwrap().as_deref(), Some(&b"1"[..]));
    kv.shutdown().await.unwrap();
}

fn kv(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kv"));
    command.args(["--dir", directory.to_str().unwrap(), "--pool-mib", "8", "--ssd-mib", "16"]);
    command.args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn the_program_puts_gets_scans_loads_checks_copies_and_says_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("kv");
    let expect = |arguments: &[&str], code: i32, words: &str| {
        let output = kv(&dir, arguments);
        let text = said(&output);
        assert!(output.status.code() == Some(code) && text.contains(words), "{arguments:?}: {text}");
    };
    expect(&["get", "apple"], 1, "no store here");
    expect(&["put", "apple", "red"], 0, "");
    expect(&["get", "apple"], 0, "red");
    expect(&["get", "pear"], 3, "no such key");
    expect(&["load", "--count", "2000", "--value-bytes", "500"], 0, "2000 entries");
    expect(&["scan", "--prefix", "user", "--backward", "--limit", "1"], 0, "user0000001999\t");
    expect(&["scan", "--to", "b"], 0, "apple\tred");
    expect(&["delete", "apple"], 0, "");
    expect(&["delete", "apple"], 3, "no such key");
    expect(&["check"], 0, "sound");
    let bench = ["bench", "--records", "2000", "--seconds", "0", "--value-bytes", "500"];
    for workload in ["a", "b", "c", "d", "e", "f"] {
        expect(&[&bench[..], &["--workload", workload]].concat(), 0, "operations/s");
    }
    expect(&["bench", "--records", "9999999"], 1, "load --count 9999999");
    let to = folder.path().join("copy");
    expect(&["backup", to.to_str().unwrap()], 0, "2000 entries");
    expect(&["backup", to.to_str().unwrap()], 1, "exists");
    let copied = kv(&to, &["check"]);
    assert!(said(&copied).contains("sound"), "{}", said(&copied));
    let lines = folder.path().join("lines");
    std::fs::write(&lines, "k1\tv1\nk2\tv2\nno tab here\n").unwrap();
    expect(&["load", lines.to_str().unwrap()], 1, "line 3: no tab");
    expect(&["get", "k2"], 0, "v2");
    expect(&["put", &"k".repeat(5000), "v"], 1, "keys have from 1 to");
    expect(&["put", "", "v"], 1, "keys have from 1 to");
    expect(&["get", "k2", "--no-such-option"], 2, "unexpected argument");
    expect(&["--survive-ssd-loss", "get", "k2"], 0, "v2");
    assert!(dir.join("log/kept-for-ssd-loss").exists(), "later opens do not know");
    // Keys and values are bytes.
    let bytes = |text: &[u8]| OsStr::from_bytes(text).to_owned();
    let raw = |arguments: &[OsString]| {
        Command::new(env!("CARGO_BIN_EXE_kv")).arg("--dir").arg(&dir).args(arguments).output().unwrap()
    };
    assert!(raw(&["put".into(), bytes(b"\xff\x01"), bytes(b"\xfe\xfd")]).status.success());
    assert_eq!(raw(&["get".into(), bytes(b"\xff\x01")]).stdout, b"\xfe\xfd");
    assert_eq!(raw(&["scan".into(), "--from".into(), bytes(b"\xff")]).stdout, b"\xff\x01\t\xfe\xfd\n");
    expect(&["--help"], 0, "Copy the store to a new directory");
}

fn segments(log: &Path) -> usize {
    let Ok(files) = std::fs::read_dir(log) else { return 0 };
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    names.filter(|name| name.ends_with(".log")).count()
}

#[test]
fn an_interrupted_load_keeps_what_it_inserted() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("kv");
    let mut load = Command::new(env!("CARGO_BIN_EXE_kv"))
        .args(["--dir", dir.to_str().unwrap(), "--ssd-mib", "16", "load", "--count", "100000000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Wait until the log has some of it: one segment is full.
    for _ in 0..6_000 {
        if segments(&dir.join("log")) > 1 {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_child(&load);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = load.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    let checked = said(&kv(&dir, &["check"]));
    assert!(checked.contains("sound") && !checked.starts_with("0 entries"), "{checked}");
}
