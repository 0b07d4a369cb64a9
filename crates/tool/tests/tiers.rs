//! The commands that put the SSD of a store at rest into use, exchange it or take it out: on stores that were
//! closed and that crashed, repeated, refused and stopped at any moment.

use crate::stores::{PAGES, contents, copy, json, made, open, run, runtime, said};
use pagetier::{PageId, PageStore, SsdMode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Checks that the store opens with the SSD at `ssd`, or with none, and has every page in version 2.
fn is_whole(store: &Path, ssd: Option<&Path>, what: &str) {
    runtime().block_on(async {
        let builder = PageStore::builder()
            .directory(store)
            .create(pagetier::options::Create::Never)
            .pool_bytes(4 << 20);
        let builder = if let Some(ssd) = ssd { builder.ssd(ssd) } else { builder };
        let open = builder.open_read_only().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(open.stats().ssd.mode == SsdMode::Off, ssd.is_none(), "{what}");
        assert!(open.ssd().loss().is_none(), "{what}");
        let space = open.spaces().find("t").unwrap();
        for no in 0..PAGES {
            let page = open.get(PageId::new(space, no)).await.unwrap();
            assert_eq!(page[..4], 2_u32.to_le_bytes(), "{what}: page {no}");
        }
    });
}

/// Runs a command that must end with exit code 1; returns what it said.
fn failed(args: &[&str]) -> String {
    let out = run(args);
    assert_eq!(out.status.code(), Some(1), "{args:?}: {}", said(&out));
    assert!(out.stdout.is_empty() && !said(&out).contains("panicked"), "{args:?}: {}", said(&out));
    said(&out)
}

/// The same, of a command that must not even open the store: no file changes but the lock.
fn refused(store: &Path, args: &[&str]) -> String {
    let files =
        || contents(store).into_iter().filter(|(name, _)| !name.ends_with("lock")).collect::<Vec<_>>();
    let before = files();
    let text = failed(args);
    assert!(files() == before, "{args:?}: a file changed");
    text
}

#[test]
fn an_ssd_is_taken_out_attached_replaced_and_readmitted() {
    for close in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (store, other, third) =
            (dir.path().join("store"), dir.path().join("other"), dir.path().join("third"));
        let own = store.join("ssd.cache");
        made(&store, close);
        let at = text(&store);
        // A store with an SSD has no place for another one.
        assert!(refused(&store, &["attach", at, "--ssd", text(&other)]).contains("replace-ssd"));
        let (code, set) = json(&["set-mode", at, "--mode", "write-back"]);
        assert_eq!((code, &set["bytes"]), (0, &Value::Null));
        assert_eq!(json(&["set-mode", at, "--mode", "off"]).1["off"], true);
        is_whole(&store, None, "off");
        for verb in
            [&["replace-ssd", at, "--with", text(&other)][..], &["readmit", at, "--ssd", text(&other)]]
        {
            assert!(refused(&store, verb).contains("attach"), "{verb:?}");
        }
        assert!(!other.exists());
        let (code, attached) = json(&["attach", at, "--ssd", text(&other), "--ssd-mib", "4"]);
        assert_eq!((code, &attached["bytes"]), (0, &(4 << 20).into()), "{attached}");
        is_whole(&store, Some(&other), "attached");
        assert!(refused(&store, &["attach", at, "--ssd", text(&third)]).contains("replace-ssd"));
        // Without a size, the size of the one before.
        let replace = ["replace-ssd", at, "--ssd", text(&other), "--with", text(&third)];
        let (code, replaced) = json(&replace);
        assert_eq!((code, &replaced["bytes"]), (0, &other.metadata().unwrap().len().into()), "{replaced}");
        is_whole(&store, Some(&third), "replaced");
        // A command that looks for the SSD elsewhere is told where it was last used.
        for command in [&["verify", at][..], &["readmit", at], &["shrink", at, "--all", "--ssd", "/none"]] {
            assert!(refused(&store, command).contains(&format!("last used at {}", text(&third))));
        }
        // Repeated, as after a stop whose outcome is not known.
        assert!(refused(&store, &replace).contains("already"));
        let (code, readmitted) = json(&["readmit", at, "--ssd", text(&third)]);
        assert_eq!((code, &readmitted["damaged"], &readmitted["formatted"]), (0, &0.into(), &false.into()));
        // The first SSD is an earlier one of this store: it is formatted, whatever it holds.
        assert_eq!(json(&["drain", at, "--ssd", text(&third), "--off"]).0, 0);
        let (code, readmitted) = json(&["readmit", at]);
        assert_eq!((code, &readmitted["formatted"]), (0, &true.into()), "{readmitted}");
        is_whole(&store, Some(&own), "readmitted");
    }
}

#[test]
fn after_an_accepted_loss_a_store_gets_an_ssd_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    made(&store, true);
    let at = text(&store);
    assert_eq!(json(&["drain", at]).0, 0);
    std::fs::remove_file(store.join("ssd.cache")).unwrap();
    assert!(refused(&store, &["readmit", at]).contains("--accept-ssd-loss"));
    assert_eq!(json(&["repair", at, "--write", "--accept-ssd-loss"]).1["has_ssd"], false);
    let (code, attached) = json(&["attach", at, "--ssd-mib", "4"]);
    assert_eq!((code, &attached["bytes"]), (0, &(4 << 20).into()), "{attached}");
    is_whole(&store, Some(&store.join("ssd.cache")), "attached");
}

#[test]
fn foreign_and_unfit_devices_are_refused_and_left_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let (store, off, file) = (dir.path().join("store"), dir.path().join("off"), dir.path().join("letters"));
    made(&store, true);
    copy(&store, &off);
    assert_eq!(json(&["drain", text(&off), "--off"]).0, 0);
    let other = dir.path().join("other");
    made(&other, true);
    let strangers: [PathBuf; 2] = [file.clone(), other.join("ssd.cache")];
    std::fs::write(&file, vec![b'x'; 4 << 20]).unwrap();
    for stranger in &strangers {
        let before = std::fs::read(stranger).unwrap();
        for (store, args) in [
            (&off, vec!["attach", text(&off), "--ssd", text(stranger)]),
            (&off, vec!["readmit", text(&off), "--ssd", text(stranger)]),
            (&store, vec!["replace-ssd", text(&store), "--with", text(stranger)]),
        ] {
            // A drain may run first, and the ring's file is opened: only the pages must stay as they were.
            let out = run(&args);
            assert_eq!(out.status.code(), Some(1), "{args:?}: {}", said(&out));
            assert!(said(&out).contains(text(stranger)), "{args:?}: {}", said(&out));
            assert!(std::fs::read(stranger).unwrap() == before, "{args:?}");
            let own = store.join("ssd.cache");
            is_whole(store, (store.ends_with("store")).then_some(own.as_path()), "after a refusal");
        }
    }
    let missing = failed(&["attach", text(&off), "--ssd", "/no/such/place"]);
    assert!(missing.contains("/no/such/place"), "{missing}");
    for size in ["0", "18446744073709551615"] {
        let odd = refused(&off, &["attach", text(&off), "--ssd-mib", size]);
        assert!(odd.contains("--ssd-mib"), "{odd}");
    }
    // Its own devices.
    let own = run(&["replace-ssd", text(&store), "--with", text(&store.join("hdd.vol"))]);
    assert!(own.status.code() == Some(1) && said(&own).contains("uses it"), "{}", said(&own));
    is_whole(&store, Some(&store.join("ssd.cache")), "its HDD as an SSD");
}

#[test]
fn a_shrunken_space_returns_the_room_of_its_free_pages() {
    for close in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        made(&store, true);
        runtime().block_on(async {
            let open = open(&store).await;
            let space = open.spaces().find("t").unwrap();
            open.free((space, 64..192)).await.unwrap();
            if close {
                open.close().await.unwrap();
            }
        });
        let at = text(&store);
        assert!(failed(&["shrink", at, "--space", "no such"]).contains("no such"));
        let (code, given) = json(&["shrink", at, "--space", "t"]);
        assert!(code == 0 && given["bytes"].as_u64() >= Some(128 * 4096), "{given}");
        assert_eq!(given["spaces"][0]["name"], "t");
        assert_eq!(json(&["shrink", at, "--all"]).1["bytes"], 0);
        assert_eq!(json(&["verify", at]).0, 0);
        runtime().block_on(async {
            let open = open(&store).await;
            let space = open.spaces().find("t").unwrap();
            for no in (0..64).chain(192..PAGES) {
                assert_eq!(open.get(PageId::new(space, no)).await.unwrap()[0], 2, "page {no}");
            }
            assert!(open.get(PageId::new(space, 100)).await.is_err());
        });
    }
}

/// Stops each command later and later, until one ends by itself, on a store that had crashed. Afterwards the
/// store has one SSD or the other, with every page.
#[test]
fn a_command_stopped_at_any_moment_leaves_one_ssd_or_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let crashed = dir.path().join("crashed");
    made(&crashed, false);
    let off = dir.path().join("off");
    copy(&crashed, &off);
    assert_eq!(json(&["drain", text(&off), "--off"]).0, 0);
    let mut stopped = 0;
    for command in ["attach", "replace-ssd", "readmit"] {
        let (mut ms, mut round) = (3, 0);
        loop {
            let store = dir.path().join(format!("{command} {round}"));
            copy(if command == "replace-ssd" { &crashed } else { &off }, &store);
            let (own, new) = (store.join("ssd.cache"), store.join("new"));
            let (at, new_at) = (text(&store), text(&new));
            let args: &[&str] = match command {
                "attach" => &["attach", at, "--ssd", new_at, "--ssd-mib", "4"],
                "replace-ssd" => &["replace-ssd", at, "--with", new_at, "--ssd-mib", "4"],
                _ => &["readmit", at],
            };
            let mut process = Command::new(env!("CARGO_BIN_EXE_pagetier"));
            let process =
                process.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let child = process.spawn().unwrap();
            std::thread::park_timeout(Duration::from_millis(ms));
            kill_process(Pid::from_child(&child), [Signal::KILL, Signal::INT, Signal::TERM][round % 3])
                .unwrap();
            let out = child.wait_with_output().unwrap();
            let (code, what) = (out.status.code(), format!("{command} after {ms} ms: {}", said(&out)));
            assert!([None, Some(130), Some(0)].contains(&code), "{what}");
            let named = json(&["inspect", at]).1["manifest"]["ssd"].clone();
            let is_new = |ssd: &Path| {
                let found = json(&["inspect", at, "--ssd", text(ssd)]).1["ssd"]["ours"].clone();
                !named.is_null() && found == true
            };
            let ssd = [&new, &own].into_iter().find(|ssd| is_new(ssd));
            assert!(ssd.is_some() || named.is_null(), "{what}: it names an SSD that is not there");
            is_whole(&store, ssd.map(PathBuf::as_path), &what);
            // Repeated, it completes, or says that there is nothing left to do.
            let again = run(args);
            let told = said(&again).contains("already") || said(&again).contains("has an SSD");
            assert!(again.status.success() || told, "{what}: {}", said(&again));
            is_whole(&store, Some(if command == "readmit" { &own } else { &new }), "repeated");
            if code == Some(0) {
                break;
            }
            (stopped, ms, round) = (stopped + 1, ms * 3, round + 1);
        }
    }
    assert!(stopped >= 3, "{stopped} commands were stopped");
}
