//! The commands on a store that is in use elsewhere or damaged, on a full disk, and stopped half-way: each
//! says what is wrong, returns the right exit code, and loses nothing that was confirmed.

use pagetier_kv::{Kv, Options};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const KV: &str = env!("CARGO_BIN_EXE_kv");
const SIZES: [&str; 4] = ["--pool-mib", "8", "--ssd-mib", "16"];

fn arguments<'a>(dir: &'a Path, command: &[&'a str]) -> Vec<&'a str> {
    [&["--dir", dir.to_str().unwrap()], &SIZES[..], command].concat()
}

fn kv(dir: &Path, command: &[&str]) -> Output {
    Command::new(KV).args(arguments(dir, command)).output().unwrap()
}

/// Runs a command under a limit on file sizes, in bytes, which acts like a full disk.
fn limited(bytes: u64, dir: &Path, command: &[&str]) -> Output {
    let script = "trap '' XFSZ; ulimit -f \"$0\"; exec \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, &(bytes / 512).to_string(), KV]);
    shell.args(arguments(dir, command)).output().unwrap()
}

fn begun(dir: &Path, command: &[&str]) -> Child {
    let mut process = Command::new(KV);
    process.args(arguments(dir, command)).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    process.spawn().unwrap()
}

fn signalled(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn said(out: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&out.stdout) + &text(&out.stderr)
}

fn key(number: u32) -> String {
    format!("user{number:010}")
}

/// A closed store with this number of numbered entries.
fn loaded(dir: &Path, count: u32) {
    let load = kv(dir, &["load", "--count", &count.to_string(), "--value-bytes", "300"]);
    assert!(load.status.success(), "{}", said(&load));
}

/// Checks that the store is sound and has the entries from number 0 on; returns their number.
fn entries(dir: &Path) -> u32 {
    let checked = kv(dir, &["check"]);
    let text = said(&checked);
    assert!(checked.status.success() && text.contains("sound"), "{text}");
    let count: u32 = text.split(' ').next().unwrap().parse().unwrap();
    let last = said(&kv(dir, &["scan", "--backward", "--limit", "1"]));
    assert!(count == 0 || last.starts_with(&key(count - 1)), "{count} entries, the last is {last}");
    count
}

#[test]
fn a_store_in_use_refuses_every_command_and_is_not_disturbed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("kv");
    loaded(&dir, 500);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let options = Options::new(&dir).pool_bytes(8 << 20).ssd_bytes(16 << 20);
    let store = Arc::new(runtime.block_on(Kv::open(&options)).unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let writer = runtime.spawn({
        let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
        async move {
            let mut number = 0_u32;
            while !stop.load(Ordering::Relaxed) || number < 500 {
                store.put_unsynced(key(number % 500).as_bytes(), &number.to_le_bytes()).await.unwrap();
                number += 1;
            }
            store.sync().await.unwrap();
            number
        }
    });
    let copy = folder.path().join("copy");
    let commands: [&[&str]; 8] = [
        &["put", "new", "1"],
        &["get", "user0000000001"],
        &["delete", "user0000000001"],
        &["scan"],
        &["load", "--count", "5"],
        &["check"],
        &["bench", "--records", "5", "--seconds", "0"],
        &["backup", copy.to_str().unwrap()],
    ];
    for command in commands {
        let refused = kv(&dir, command);
        let text = said(&refused);
        let why = text.contains("in use") || text.contains("open already");
        assert!(refused.status.code() == Some(1) && why, "{command:?}: {text}");
        assert!(refused.stdout.is_empty() && !copy.exists(), "{command:?}: {text}");
    }
    stop.store(true, Ordering::Relaxed);
    runtime.block_on(async {
        let last = writer.await.unwrap() - 1;
        let found = store.get(key(last % 500).as_bytes()).await.unwrap();
        assert_eq!(found, Some(last.to_le_bytes().to_vec()));
        store.shutdown().await.unwrap();
    });
    assert_eq!(entries(&dir), 500);
}

#[test]
fn a_full_disk_ends_a_load_by_name_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("kv");
    loaded(&dir, 2_000);
    // Neither the log nor the pages can grow much.
    let full = limited(3 << 20, &dir, &["load", "--count", "100000", "--value-bytes", "300"]);
    let text = said(&full);
    assert_eq!(full.status.code(), Some(1), "{text}");
    assert!(text.contains("kv: ") && !text.contains("panicked"), "{text}");
    let kept = entries(&dir);
    assert!(kept >= 2_000, "{kept}");
    loaded(&dir, 4_000);
    assert!(entries(&dir) >= 4_000);
    // A backup fails too, and leaves the store unchanged.
    let (to, partial) = (folder.path().join("copy"), folder.path().join("copy.partial"));
    let backup = ["backup", to.to_str().unwrap()];
    let full = limited(1 << 20, &dir, &backup);
    assert!(full.status.code() == Some(1) && !to.exists(), "{}", said(&full));
    let before = entries(&dir);
    // What an interrupted backup leaves is refused by name.
    if !partial.exists() {
        std::fs::create_dir(&partial).unwrap();
    }
    let refused = kv(&dir, &backup);
    assert!(
        refused.status.code() == Some(1) && said(&refused).contains("copy.partial"),
        "{}",
        said(&refused)
    );
    std::fs::remove_dir_all(&partial).unwrap();
    assert!(kv(&dir, &backup).status.success());
    assert_eq!(entries(&to), before);
}

#[test]
fn a_lost_ssd_is_given_up_only_on_request_and_its_changes_come_from_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("kv");
    let kv = |arguments: &[&str]| {
        Command::new(KV)
            .args(["--pool-mib", "8", "--dir", dir.to_str().unwrap()])
            .args(arguments)
            .output()
            .unwrap()
    };
    let load = ["--survive-ssd-loss", "--ssd-mib", "16", "load", "--count", "2000", "--value-bytes", "300"];
    assert!(kv(&load).status.success());
    let before = kv(&["scan"]).stdout;
    std::fs::remove_file(dir.join("pages/ssd.cache")).unwrap();
    let refused = kv(&["get", &key(7)]);
    assert!(refused.status.code() == Some(1) && said(&refused).contains("ssd.cache"), "{}", said(&refused));
    let accepted = kv(&["--accept-ssd-loss", "get", &key(7)]);
    assert!(accepted.status.success() && accepted.stdout.len() == 300, "{}", said(&accepted));
    assert_eq!(entries(&dir), 2_000);
    assert!(kv(&["scan"]).stdout == before);
}

/// Stops commands later and later, until one ends by itself. On a busy machine the signals come late, so the
/// commands are repeated until enough of them were stopped.
#[test]
fn a_command_stopped_at_any_moment_keeps_what_was_confirmed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("kv");
    loaded(&dir, 3_000);
    let mut stopped = 0;
    for (pass, command) in ["load", "backup", "check"].into_iter().cycle().take(30).enumerate() {
        if pass >= 3 && stopped >= 6 {
            break;
        }
        let mut ms = 2;
        for round in 0.. {
            let to = folder.path().join(format!("{command} {pass} {round}"));
            let arguments: &[&str] = match command {
                "load" => &["load", "--count", "3000", "--value-bytes", "300"],
                "backup" => &["backup", to.to_str().unwrap()],
                _ => &["check"],
            };
            let child = begun(&dir, arguments);
            std::thread::park_timeout(Duration::from_millis(ms));
            let signal = [Signal::KILL, Signal::INT, Signal::TERM][round % 3];
            signalled(&child, signal);
            let out = child.wait_with_output().unwrap();
            let what = format!("{command} after {ms} ms of {signal:?}: {}", said(&out));
            // Before the program has its handler, a signal kills it.
            assert!([None, Some(130), Some(0)].contains(&out.status.code()), "{what}");
            assert_eq!(entries(&dir), 3_000, "{what}");
            // The signal may arrive between the backup's last step, a rename, and the end of the program.
            if command == "backup" {
                assert!(to.exists() || !out.status.success(), "{what}");
                assert!(!to.exists() || entries(&to) == 3_000, "{what}");
            }
            if out.status.success() {
                break;
            }
            stopped += 1;
            ms *= 2;
        }
    }
    assert!(stopped >= 6, "{stopped} commands were stopped");
}

/// The scan's output is not read, so the scan waits half-way.
#[test]
fn a_scan_that_is_stopped_says_that_it_is_not_whole() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("kv");
    loaded(&dir, 3_000);
    let mut child = begun(&dir, &["scan"]);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    out.read_line(&mut text).unwrap();
    signalled(&child, Signal::INT);
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut String::new()).unwrap();
    out.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let lines = text.lines().count();
    assert!(lines > 0 && lines < 3_000, "{lines}");
    // The scan ends when its reader closes the pipe.
    let mut child = begun(&dir, &["scan"]);
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{}", said(&out));
    assert_eq!(entries(&dir), 3_000);
}

#[test]
fn damage_is_an_error_that_names_the_page_and_never_a_wrong_value() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("kv");
    loaded(&dir, 1_000);
    let pages = dir.join("pages");
    let sound: Vec<(&str, Vec<u8>)> =
        ["hdd.vol", "ssd.cache"].map(|name| (name, std::fs::read(pages.join(name)).unwrap())).into();
    let value = said(&kv(&dir, &["get", &key(500)]));
    let mut noticed = 0;
    for part in 0..6 {
        // Damage the same part of the pages' homes and of the slots.
        for (name, bytes) in &sound {
            let mut bytes = bytes.clone();
            let (from, to) = (2 << 20, bytes.len());
            let at = from + (to - from) / 6 * part;
            bytes[at..at + (to - from) / 6].iter_mut().step_by(512).for_each(|byte| *byte ^= 0x55);
            std::fs::write(pages.join(name), bytes).unwrap();
        }
        let checked = kv(&dir, &["check"]);
        let text = said(&checked);
        assert!(matches!(checked.status.code(), Some(0 | 1)) && !text.contains("panicked"), "{text}");
        let found = kv(&dir, &["get", &key(500)]);
        match found.status.code() {
            Some(0) => assert!(said(&found) == value, "part {part}: a wrong value"),
            code => assert_eq!(code, Some(1), "part {part}: {}", said(&found)),
        }
        noticed += u32::from(!checked.status.success());
        for (name, bytes) in &sound {
            std::fs::write(pages.join(name), bytes).unwrap();
        }
    }
    assert!(noticed > 0, "no damage is noticed");
}

/// The store keeps to its manifest. The command that the message names is tested with the tool.
#[test]
fn an_ssd_that_only_the_options_name_is_said_to_be_unused() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("kv");
    loaded(&dir, 100);
    assert!(kv(&dir, &["get", "user0000000001"]).stderr.is_empty());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let kv = Kv::open(&Options::new(&dir).pool_bytes(8 << 20)).await.unwrap();
        kv.store().ssd().set_mode(pagetier::SsdMode::Off).await.unwrap();
        kv.shutdown().await.unwrap();
    });
    let got = kv(&dir, &["get", "user0000000001"]);
    let text = String::from_utf8_lossy(&got.stderr).into_owned();
    let verb = format!("pagetier attach {} --ssd-mib 16", dir.join("pages").display());
    assert!(got.status.success() && text.contains(&verb), "{text}");
    // Without an option there is nothing to say.
    let at = dir.to_str().unwrap();
    let quiet = Command::new(KV).args(["--dir", at, "get", "user0000000001"]).output().unwrap();
    assert!(quiet.status.success() && quiet.stderr.is_empty(), "{}", said(&quiet));
    assert_eq!(entries(&dir), 100);
}

/// Its operators reach it through the socket, which is there only if it was asked for.
#[test]
fn a_running_command_takes_requests_of_its_operators() {
    let dir = tempfile::tempdir().unwrap();
    loaded(dir.path(), 2000);
    let pages = dir.path().join("pages");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let connect = || runtime.block_on(pagetier_control::Client::connect(&pages)).unwrap();
    let bench = ["bench", "--records", "2000", "--seconds", "60", "--tasks", "4"];
    for listens in [false, true] {
        let mut command = bench.to_vec();
        if listens {
            command.push("--control-socket");
        }
        let mut child = begun(dir.path(), &command);
        let mut client = None;
        for _ in 0..if listens { 3000 } else { 100 } {
            client = connect();
            if client.is_some() {
                break;
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        assert_eq!(client.is_some(), listens);
        if let Some(mut client) = client {
            assert_eq!(client.pid(), child.id());
            // Under load, and with its log: redo brings the copy to one moment.
            let (chain, copy) = (dir.path().join("chain"), dir.path().join("copy"));
            let backup =
                pagetier_control::Request::Backup { to: chain.clone(), full: false, bytes_per_second: None };
            let answer = runtime.block_on(client.ask(&backup, |_| ())).unwrap();
            assert_eq!(answer.value["log"], true, "{answer:?}");
            let builder = pagetier::PageStore::builder().directory(copy.join("pages")).ssd_bytes(0);
            let log = copy.join("log");
            let restored = pagetier_wal::LoggedStore::restore(builder, &log, &chain, 1);
            runtime.block_on(restored).unwrap();
            assert_eq!(entries(&copy), 2000);
            let drain = pagetier_control::Request::Drain { off: true };
            let answer = runtime.block_on(client.ask(&drain, |_| ())).unwrap();
            assert!(answer.complete, "{answer:?}");
        }
        signalled(&child, Signal::INT);
        let mut text = String::new();
        child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        // A bench that is stopped reports what it has measured, and its exit code says that it was stopped.
        assert_eq!(child.wait().unwrap().code(), Some(130), "{text}");
        assert!(text.contains("operations/s"), "{text}");
        assert!(!pages.join("control").exists());
    }
    assert_eq!(entries(dir.path()), 2000);
    // A foreign file in its place is left alone, and the store is closed again as it was.
    std::fs::write(pages.join("control"), "letters").unwrap();
    let refused = kv(dir.path(), &["get", &key(1), "--control-socket"]);
    assert!(refused.status.code() == Some(1) && said(&refused).contains("no socket"), "{}", said(&refused));
    assert_eq!(std::fs::read(pages.join("control")).unwrap(), b"letters");
    assert_eq!(entries(dir.path()), 2000);
}
