//! The commands on a store that another process has open: they ask it through its control socket.

use crate::stores::{PAGES, json, made, open, printed, run, runtime, said, write};
use pagetier::{PageId, PageStore, SsdMode};
use pagetier_control::{Control, listen};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A store that this process has open, and its socket.
struct Running {
    dir: TempDir,
    runtime: Runtime,
    store: Arc<PageStore>,
    control: Option<Control>,
}

impl Running {
    fn new() -> Self {
        let (dir, runtime) = (tempfile::tempdir().unwrap(), runtime());
        let at = dir.path().join("store");
        made(&at, true);
        let (store, control) = runtime.block_on(async {
            let store = Arc::new(open(&at).await);
            let control = listen(&store, &at).await.unwrap();
            (store, control)
        });
        Self { dir, runtime, store, control: Some(control) }
    }

    fn at(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// Checks that every page is there, and closes the store. Returns its folder.
    fn closed_whole(mut self) -> TempDir {
        let control = self.control.take().unwrap();
        self.runtime.block_on(async {
            let space = self.store.spaces().find("t").unwrap();
            for no in 0..PAGES {
                let page = self.store.get(PageId::new(space, no)).await.unwrap();
                assert_eq!(page[..4], 2_u32.to_le_bytes(), "page {no}");
            }
            control.end().await;
            self.store.shutdown().await.unwrap();
        });
        assert!(!self.at().join("control").exists());
        self.dir
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a command in another working directory, as an operator would: relative paths lead from there.
fn run_in(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pagetier")).args(args).current_dir(dir).output().unwrap()
}

#[test]
fn every_verb_asks_the_process_that_has_the_store_open() {
    let running = Running::new();
    let (path, store) = (running.at(), Arc::clone(&running.store));
    let at = text(&path);
    assert_eq!(json(&["stat", at]).1["pid"], std::process::id());
    let (code, drained) = json(&["drain", at]);
    assert_eq!((code, &drained["left"]), (0, &0.into()), "{drained}");
    for mode in [SsdMode::WriteThrough, SsdMode::ReadOnly, SsdMode::WriteBack] {
        assert_eq!(json(&["set-mode", at, "--mode", &mode.to_string()]).0, 0);
        assert_eq!(store.stats().ssd.mode, mode);
    }
    assert_eq!(json(&["scrub", at, "--pages-per-second", "0"]).1["damaged"], 0);
    let (_, set) = json(&["set-policy", at, "--pool", "lru", "--ssd-policy", "cac"]);
    assert_eq!((&set["pool"], &set["ssd"]), (&"lru".into(), &"cac".into()));
    assert_eq!(json(&["set-budget", at, "--per-day", "50GiB"]).1["bytes_per_day"], 50_u64 << 30);
    assert!(store.stats().ssd.write_budget.is_some());
    assert_eq!(json(&["set-budget", at, "--per-day", "none"]).0, 0);
    assert!(store.stats().ssd.write_budget.is_none());
    let before = store.frames();
    assert_eq!(json(&["resize-pool", at, "--to", "2MiB"]).0, 0);
    assert!(store.frames() > before);
    assert_eq!(json(&["shrink", at, "--space", "t"]).1["spaces"][0]["name"], "t");
    assert_eq!(json(&["readmit", at]).1["formatted"], false);
    let replaced =
        run_in(running.dir.path(), &["replace-ssd", at, "--with", "other", "--ssd-mib", "4", "--json"]);
    assert!(replaced.status.success(), "{}", said(&replaced));
    assert!(running.dir.path().join("other").exists());
    assert_eq!(json(&["drain", at, "--off"]).1["off"], true);
    assert_eq!(store.stats().ssd.mode, SsdMode::Off);
    let third = running.dir.path().join("third");
    assert_eq!(json(&["attach", at, "--ssd", text(&third), "--ssd-mib", "4"]).1["bytes"], 4 << 20);
    assert_eq!(json(&["set-mode", at, "--mode", "off"]).1["off"], true);
    assert_eq!(json(&["attach", at]).0, 0);
    // In words, and refusals with the store's advice.
    assert!(said(&run(&["stat", at])).contains("space   1 \"t\": 300 pages"));
    for (args, why) in [
        (&["attach", at][..], "replace-ssd"),
        (&["shrink", at, "--space", "none"], "\"none\""),
        (&["set-policy", at, "--pool", "none"], "none"),
        (&["replace-ssd", at, "--with", "/no/such/place/ssd"], "/no/such/place"),
    ] {
        let refused = run(args);
        assert_eq!(refused.status.code(), Some(1), "{args:?}: {}", said(&refused));
        assert!(said(&refused).contains(why) && refused.stdout.is_empty(), "{args:?}: {}", said(&refused));
    }
    running.closed_whole();
}

#[test]
fn a_stopped_command_stops_its_request_and_loses_nothing() {
    for signal in [Signal::INT, Signal::KILL] {
        let running = Running::new();
        let mut scrub = Command::new(env!("CARGO_BIN_EXE_pagetier"));
        let scrub = scrub.args(["scrub", text(&running.at()), "--pages-per-second", "1", "--json"]);
        let scrub = scrub.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while Arc::strong_count(&running.store) == 1 {
            std::thread::park_timeout(Duration::from_millis(10));
        }
        kill_process(Pid::from_child(&scrub), signal).unwrap();
        let out = scrub.wait_with_output().unwrap();
        assert_eq!(out.status.code(), (signal == Signal::INT).then_some(130), "{}", said(&out));
        if signal == Signal::INT {
            assert!(printed(&out).1["error"].as_str().unwrap().contains("stopped"), "{}", said(&out));
        }
        // At a page a second, it would go on for minutes.
        while Arc::strong_count(&running.store) > 1 {
            std::thread::park_timeout(Duration::from_millis(10));
        }
        running.closed_whole();
    }
}

#[test]
fn without_a_socket_a_command_says_who_has_the_store_and_how_to_switch_it_on() {
    let mut running = Running::new();
    let path = running.at();
    let at = text(&path);
    drop(running.control.take());
    let pid = format!("in process {}", std::process::id());
    for args in [&["drain", at][..], &["scrub", at], &["set-budget", at, "--per-day", "1GiB"], &["stat", at]]
    {
        let refused = run(args);
        assert_eq!(refused.status.code(), Some(1), "{args:?}: {}", said(&refused));
        for part in ["open already", "--control-socket", &pid] {
            assert!(said(&refused).contains(part), "{args:?}: {}", said(&refused));
        }
    }
    running.control = Some(running.runtime.block_on(listen(&running.store, &path)).unwrap());
    let _dir = running.closed_whole();
    // Nothing has it open: what only a running store can do says what to do instead.
    for args in [
        &["scrub", at][..],
        &["set-policy", at, "--pool", "lru"],
        &["set-budget", at, "--per-day", "none"],
        &["resize-pool", at, "--to", "64MiB"],
    ] {
        let refused = run(args);
        assert_eq!(refused.status.code(), Some(1), "{args:?}: {}", said(&refused));
        assert!(said(&refused).contains("no process has the store open"), "{}", said(&refused));
    }
    let refused = run(&["set-mode", at, "--mode", "read-only"]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    // A socket that a killed process left does not stand in the way.
    drop(std::os::unix::net::UnixListener::bind(path.join("control")).unwrap());
    assert_eq!(json(&["drain", at]).0, 0);
}

#[test]
fn a_store_that_closes_meanwhile_is_told() {
    let mut running = Running::new();
    let path = running.at();
    let scrub = Command::new(env!("CARGO_BIN_EXE_pagetier"))
        .args(["scrub", text(&path), "--pages-per-second", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while Arc::strong_count(&running.store) == 1 {
        std::thread::park_timeout(Duration::from_millis(10));
    }
    let control = running.control.take().unwrap();
    running.runtime.block_on(async {
        control.end().await;
        let space = running.store.spaces().find("t").unwrap();
        write(&running.store, space, 2).await;
        running.store.shutdown().await.unwrap();
    });
    let out = scrub.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(1), "{}", said(&out));
    assert!(said(&out).contains("before it answered"), "{}", said(&out));
    let _dir = running.dir;
    crate::stores::has_all_pages(&path, "closed");
}
