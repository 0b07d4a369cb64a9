//! The commands on a store that another process has open: they ask it through its control socket.

use crate::stores::{PAGES, json, made, open, printed, run, runtime, said, write};
use pagetier::{PageId, PageStore};
use pagetier_control::{Control, Request, listen, perform};
use pagetier_wal::{LoggedStore, WalOptions};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A store that this process has open, and its socket.
pub(crate) struct Running {
    pub(crate) dir: TempDir,
    pub(crate) runtime: Runtime,
    pub(crate) store: Arc<PageStore>,
    pub(crate) control: Option<Control>,
}

impl Running {
    pub(crate) fn new() -> Self {
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

    pub(crate) fn at(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// Checks that every page is there, and closes the store. Returns its folder.
    pub(crate) fn closed_whole(mut self) -> TempDir {
        let control = self.control.take();
        self.runtime.block_on(async {
            let space = self.store.spaces().find("t").unwrap();
            for no in 0..PAGES {
                let page = self.store.get(PageId::new(space, no)).await.unwrap();
                assert_eq!(page[..4], 2_u32.to_le_bytes(), "page {no}");
            }
            if let Some(control) = control {
                control.end().await;
            }
            self.store.shutdown().await.unwrap();
        });
        assert!(!self.at().join("control").exists());
        self.dir
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Begins a request that would go on for minutes, and waits until the store performs it.
fn begun(running: &Running, verb: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagetier"));
    let args = match verb {
        "scrub" => &["--pages-per-second", "1"][..],
        _ => &["--to", "chain", "--bytes-per-second", "4096"],
    };
    command.args([verb, text(&running.at()), "--json"]).args(args).current_dir(running.dir.path());
    let begun = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let draft = running.dir.path().join("chain/unfinished.partial");
    while Arc::strong_count(&running.store) == 1 || verb == "backup" && !draft.exists() {
        std::thread::park_timeout(Duration::from_millis(10));
    }
    begun
}

/// A backup that was broken off is not in the chain, and another one completes.
fn is_backed_up(dir: &Path, store: &Path) {
    let (chain, copy) = (dir.join("chain"), dir.join("copy"));
    assert_eq!(json(&["backup", text(store), "--to", text(&chain)]).1["number"], 1);
    assert_eq!(json(&["restore", text(&chain), "--to", text(&copy)]).0, 0);
    crate::stores::has_all_pages(&copy, "restored");
}

#[test]
fn a_stopped_command_stops_its_request_and_loses_nothing() {
    for (signal, verb) in [(Signal::INT, "scrub"), (Signal::KILL, "scrub"), (Signal::KILL, "backup")] {
        let running = Running::new();
        let child = begun(&running, verb);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), (signal == Signal::INT).then_some(130), "{}", said(&out));
        if signal == Signal::INT {
            assert!(printed(&out).1["error"].as_str().unwrap().contains("stopped"), "{}", said(&out));
        }
        while Arc::strong_count(&running.store) > 1 {
            std::thread::park_timeout(Duration::from_millis(10));
        }
        if verb == "backup" {
            is_backed_up(running.dir.path(), &running.at());
        }
        running.closed_whole();
    }
}

#[test]
fn a_store_that_closes_meanwhile_is_told() {
    for verb in ["scrub", "backup"] {
        let mut running = Running::new();
        let path = running.at();
        let child = begun(&running, verb);
        let control = running.control.take().unwrap();
        running.runtime.block_on(async {
            control.end().await;
            let space = running.store.spaces().find("t").unwrap();
            write(&running.store, space, 2).await;
            running.store.shutdown().await.unwrap();
        });
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(1), "{}", said(&out));
        assert!(said(&out).contains("before it answered"), "{}", said(&out));
        let Running { dir, store, .. } = running;
        drop(store);
        is_backed_up(dir.path(), &path);
        crate::stores::has_all_pages(&path, "closed");
    }
}

/// As an operator does of an engine with a log, and as `docs/operating.md` says, Test a restore.
#[test]
fn a_backup_of_a_running_engine_has_its_log_and_every_change_that_it_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let opened = async |pages: &str, log: &str| {
        let builder = PageStore::builder().directory(path(pages)).page_size(pagetier::PageSize::MIN);
        let builder = builder.ssd_bytes(3 << 20).pool_bytes(1 << 20);
        LoggedStore::open(builder, path(log), WalOptions::new()).await.unwrap()
    };
    let runtime = runtime();
    let db = Arc::new(runtime.block_on(opened("pages", "log")));
    let control = runtime.block_on(listen(&db, path("pages"))).unwrap();
    let (stop, committed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let load = runtime.spawn({
        let (db, stop, committed) = (Arc::clone(&db), Arc::clone(&stop), Arc::clone(&committed));
        async move {
            let space = db.spaces().create("t").await.unwrap();
            for number in 1_u32.. {
                let mut change = db.begin().await.unwrap();
                // Its page grows the store at first; later changes come round to it again.
                let page = db.get_or_create(PageId::new(space, number * 37 % PAGES)).await.unwrap();
                let page = change.add(page);
                change.write(page, 0, &number.to_le_bytes());
                db.commit(change).await.unwrap();
                committed.store(number, Ordering::SeqCst);
                if stop.load(Ordering::SeqCst) {
                    break;
                }
            }
        }
    });
    let (at, chain) = (path("pages"), path("chain"));
    for number in 1..=3 {
        while committed.load(Ordering::SeqCst) < number * PAGES {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        let acknowledged = committed.load(Ordering::SeqCst);
        let backup = ["backup", text(&at), "--to", text(&chain), "--bytes-per-second", "4MiB"];
        let (code, made) = json(&backup);
        assert_eq!((code, &made["number"], &made["log"]), (0, &number.into(), &true.into()), "{made}");
        let [to, log] = ["new", "log"].map(|name| path(&format!("{name}-{number}")));
        let (code, restored) = json(&["restore", text(&chain), "--to", text(&to), "--log-to", text(&log)]);
        assert_eq!((code, &restored["log"]), (0, &text(&log).into()), "{restored}");
        runtime.block_on(async {
            let copy = opened(&format!("new-{number}"), &format!("log-{number}")).await;
            let space = copy.spaces().find("t").unwrap();
            for of in acknowledged - PAGES + 1..=acknowledged {
                let page = copy.get(PageId::new(space, of * 37 % PAGES)).await.unwrap();
                let found = u32::from_le_bytes(page[..4].try_into().unwrap());
                assert!(found >= of && (found - of) % PAGES == 0, "backup {number}: {found}, not {of}");
            }
            copy.shutdown().await.unwrap();
        });
    }
    // An absent log, and a foreign one: nothing is restored.
    let (own, aside) = (path("chain/log-000003"), path("aside"));
    std::fs::rename(&own, &aside).unwrap();
    let foreign = runtime.block_on(opened("other", "chain/log-000003"));
    runtime.block_on(foreign.shutdown()).unwrap();
    for (why, code) in [("it is not the log of backup 3", 0), ("backup 3 has no copy of a log", 3)] {
        let (to, log) = (path("vain"), path("vain-log"));
        let refused = json(&["restore", text(&chain), "--to", text(&to), "--log-to", text(&log)]);
        assert!(refused.0 == 1 && refused.1["error"].as_str().unwrap().contains(why), "{refused:?}");
        assert!(!to.exists() && !log.exists());
        assert_eq!(json(&["backups", "verify", text(&chain)]).0, code);
        let _ = std::fs::remove_dir_all(&own);
    }
    std::fs::rename(&aside, &own).unwrap();
    // In words. At rest, the tool does not know where the log is.
    let (words, at_rest) = ("the engine's log is in it", "the engine's log is not in it");
    assert!(said(&run(&["backup", text(&at), "--to", text(&chain)])).contains(words));
    // An engine that served its store alone would remove what the pages need of its log.
    let request = Request::Backup { to: path("bare"), full: false, bytes_per_second: None };
    let bare = runtime.block_on(perform(&**db.store(), request, Arc::new(|_| ()))).unwrap();
    assert!(!bare.complete && bare.text.contains("begins before this backup"), "{bare:?}");
    stop.store(true, Ordering::SeqCst);
    runtime.block_on(async {
        load.await.unwrap();
        control.end().await;
        assert_eq!(Arc::strong_count(&db), 1);
        db.shutdown().await.unwrap();
    });
    drop(db);
    assert!(said(&run(&["backup", text(&at), "--to", text(&chain)])).contains(at_rest));
}
