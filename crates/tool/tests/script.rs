//! An operator's script: the verbs on stores in several states, in words and as JSON. What they say is so.

use crate::faults::fifo;
use crate::running::Running;
use crate::stores::{
    PAGE, PAGES, contents, contents_of_pages, copy, damage, has_all_pages, json, made, overwrite, printed,
    run, said, write,
};
use pagetier::{PageId, PageStore, SsdMode};
use serde_json::Value;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Runs a command in words and as JSON. Both end with the same code, and a failure is said in both. Returns
/// the code, the object, and the words.
fn both(args: &[&str]) -> (i32, Value, String) {
    let out = run(args);
    let (code, value) = json(args);
    assert_eq!(out.status.code(), Some(code), "{args:?}: {}", said(&out));
    let words = said(&out);
    assert!(!words.contains("panicked"), "{args:?}: {words}");
    if code == 1 {
        let why = value["error"].as_str().unwrap_or_else(|| panic!("{args:?}: {value}"));
        assert!(words.contains(why.lines().next().unwrap()), "{args:?}: {value} {words}");
    }
    (code, value, words)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// What is so of a store.
struct Is {
    clean: bool,
    /// The pages that no copy of theirs has left whole.
    lost: Vec<u32>,
    /// The bad copies.
    bad_copies: u64,
    /// The pages of which only the SSD has the newest version.
    only_on_ssd: u64,
}

/// The verbs that only look, which write nothing.
fn looks(at: &str, is: &Is) {
    let before = contents(Path::new(at));
    // After a crash, the manifest's numbers are old, which is said.
    let (_, value, words) = both(&["inspect", at]);
    assert_eq!(value["manifest"]["clean"], is.clean, "{value}");
    assert_eq!(words.contains("closed cleanly") && words.contains("\"t\": 300 pages,"), is.clean, "{words}");
    assert_eq!(words.contains("pages when the manifest was saved"), !is.clean, "{words}");
    let (code, value, words) = both(&["stat", at]);
    let (dirty, on_ssd) = (number(&value["stats"]["ssd"]["dirty_pages"]), &value["stats"]["ssd"]["pages"]);
    assert_eq!((code, number(&value["spaces"][0]["pages"])), (0, u64::from(PAGES)));
    assert_eq!((dirty, number(&value["lost_pages"])), (is.only_on_ssd, 0), "{value}");
    assert!(words.contains(&format!("{on_ssd} of ")) && words.contains(&format!("{dirty} of them newer")));
    let hot = format!("{at}.hot");
    assert_eq!(&both(&["export-hot", at, "--to", &hot]).1["pages"], on_ssd);
    assert_eq!(std::fs::read_to_string(hot).unwrap().lines().count() as u64, 1 + number(on_ssd));
    for no in (0..PAGES).step_by(60) {
        let (_, value, words) = both(&["why", at, "--space", "t", "--page", &no.to_string()]);
        assert_eq!(value["ssd_alone"], is.only_on_ssd > 0, "{value}");
        assert_eq!(words.contains("the only copy of the newest version"), is.only_on_ssd > 0, "{words}");
    }
    for needs_a_process in
        ["scrub", "set-policy:--pool:lru", "set-budget:--per-day:none", "resize-pool:--to:1GiB"]
    {
        let mut args: Vec<_> = needs_a_process.split(':').collect();
        args.insert(1, at);
        let (code, _, words) = both(&args);
        assert!(code == 1 && words.contains("no process has the store open"), "{words}");
    }
    assert_eq!(both(&["set-mode", at, "--mode", "read-only"]).0, 2);
    let (code, value, words) = both(&["verify", at]);
    assert_eq!((code, number(&value["damaged"])), (if is.bad_copies > 0 { 3 } else { 0 }, is.bad_copies));
    assert_eq!(value["findings"].as_array().unwrap().len() as u64, is.bad_copies, "{value}");
    assert!(words.contains(&format!("{} damaged", is.bad_copies)), "{words}");
    assert!(contents(Path::new(at)) == before, "what only looks has written");
}

/// The verbs that write, each looked at by the others.
fn changes(dir: &Path, at: &str, is: &Is) {
    // A process that was killed has left its socket.
    drop(UnixListener::bind(Path::new(at).join("control")).unwrap());
    let stat = || both(&["stat", at]).1["stats"]["ssd"].clone();
    let (_, value) = json(&["drain", at]);
    assert_eq!((number(&value["written"]), &value["left"]), (is.only_on_ssd, &0.into()), "{value}");
    assert_eq!(both(&["drain", at]).2, "0 pages written home, 0 left\n");
    assert_eq!(stat()["dirty_pages"], 0);
    let (code, value) = json(&["repair", at, "--write"]);
    let left = number(&value["left"]);
    assert_eq!(code, if is.lost.is_empty() { 0 } else { 3 }, "{value}");
    assert_eq!(number(&value["damaged"]), is.bad_copies, "{value}");
    assert_eq!(number(&value["healed"]) + left, is.bad_copies, "{value}");
    let (code, again, words) = both(&["verify", at]);
    assert_eq!((code == 3, number(&again["damaged"])), (left > 0, left), "{words}");
    for (no, read) in contents_of_pages(Path::new(at)) {
        assert_eq!(read.ok(), (!is.lost.contains(&no)).then_some(2), "page {no}");
    }
    let chain = dir.join("chain");
    let to = chain.to_str().unwrap();
    let (code, value, words) = both(&["backup", at, "--to", to]);
    if !is.lost.is_empty() {
        assert!(code == 1 && words.contains(&format!(":{} is corrupt", is.lost[0])), "{words}");
        return;
    }
    // The second of both is incremental, and has nothing to add.
    assert_eq!((code, number(&value["number"]), number(&value["pages"])), (0, 2, 0), "{value}");
    assert!(words.contains("300 of 300 pages"), "{words}");
    let (_, value, words) = both(&["backups", "list", to]);
    assert!(value.to_string().matches("\"number\"").count() == 2, "{value}");
    assert!(words.contains("1  full") && words.contains("2  incremental"), "{words}");
    let restored = dir.join("restored");
    assert_eq!(json(&["restore", to, "--to", restored.to_str().unwrap()]).0, 0);
    has_all_pages(&restored, "restored");
    assert_eq!(both(&["shrink", at, "--all"]).1["spaces"][0]["bytes"], 0);
    assert_eq!(json(&["set-mode", at, "--mode", "off"]).1["off"], true);
    assert_eq!((&stat()["mode"], &stat()["slots"]), (&"off".into(), &0.into()));
    assert_eq!(json(&["set-mode", at, "--mode", "write-back"]).0, 0);
    assert!(number(&stat()["slots"]) > 0);
    has_all_pages(Path::new(at), "after all");
}

/// A store in the directory `name` of `dir`, and what is so of it.
fn state(dir: &Path, name: &str) -> Is {
    let store = dir.join("store");
    made(&store, name != "crashed");
    let is = Is { clean: name != "crashed", lost: vec![], bad_copies: 0, only_on_ssd: PAGES.into() };
    if !name.contains("bad") {
        return is;
    }
    assert_eq!(json(&["drain", store.to_str().unwrap()]).0, 0);
    let mut bad_copies = damage(&store.join("hdd.vol"), 1 << 20, 6);
    let mut lost = Vec::new();
    if name == "both copies bad" {
        // Older images of the page count for nothing.
        bad_copies += usize::from(damage(&store.join("ssd.cache"), 0, 6) > 0);
        lost.push(6);
    }
    Is { lost, bad_copies: bad_copies as u64, only_on_ssd: 0, ..is }
}

#[test]
fn what_every_verb_says_is_so() {
    for name in ["closed", "crashed", "home bad", "both copies bad"] {
        println!("{name}");
        let dir = tempfile::tempdir().unwrap();
        let is = state(dir.path(), name);
        let at = dir.path().join("store").to_str().unwrap().to_owned();
        looks(&at, &is);
        changes(dir.path(), &at, &is);
    }
}

#[test]
fn what_is_said_of_a_lost_ssd_is_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    made(&store, true);
    std::fs::remove_file(store.join("ssd.cache")).unwrap();
    let (at, accept) = (store.to_str().unwrap(), "--accept-ssd-loss");
    for verb in [&["stat", at][..], &["verify", at], &["drain", at], &["export-hot", at, "--to", "none"]] {
        let (code, _, words) = both(verb);
        assert!(code == 1 && words.contains("ssd.cache") && words.contains(accept), "{words}");
    }
    // Before and after it is accepted for good, until the loss is acknowledged.
    for write in [false, true] {
        let (code, value, words) = both(&["verify", at, accept]);
        assert_eq!((code, number(&value["damaged"])), (3, 0), "{words}");
        let (lost, checked) = (number(&value["lost_pages"]), number(&value["checked"]));
        assert!(lost > 0 && words.contains(&format!("{lost} pages listed as lost")), "{words}");
        // No SSD is there that could be checked.
        assert_eq!(checked, u64::from(PAGES), "{words}");
        if !write {
            let (code, value) = json(&["repair", at, "--write", accept]);
            assert_eq!((code, number(&value["lost_pages"]), &value["has_ssd"]), (3, lost, &false.into()));
        }
        let stat = both(&["stat", at]);
        assert_eq!((stat.0, number(&stat.1["lost_pages"])), (0, lost));
        assert!(stat.2.contains(&format!("LISTS {lost} PAGES AS LOST")), "{}", stat.2);
    }
}

/// No verb waits for the other end of a pipe.
#[test]
fn a_pipe_or_a_directory_in_place_of_a_file_is_said_to_be_one() {
    let dir = tempfile::tempdir().unwrap();
    let sound = dir.path().join("sound");
    made(&sound, true);
    for file in ["manifest.json", "lock", "hdd.vol", "ssd.cache"] {
        for (is_pipe, what) in [(true, "a pipe"), (false, "irectory")] {
            let store = dir.path().join(format!("{file} {is_pipe}"));
            copy(&sound, &store);
            std::fs::remove_file(store.join(file)).unwrap();
            if is_pipe {
                fifo(&store.join(file))
            } else {
                std::fs::create_dir(store.join(file)).unwrap()
            }
            let at = store.to_str().unwrap();
            for verb in ["stat", "drain", "verify", "backup:--to:chain"] {
                let mut args: Vec<_> = verb.split(':').collect();
                args.insert(1, at);
                let (code, _, words) = both(&args);
                // One that only reads needs no lock.
                let reads = file == "lock" && ["stat", "verify"].contains(&verb);
                assert_eq!(code, i32::from(!reads), "{verb}: {words}");
                let of_device = words.contains("neither a regular file nor a block device");
                assert!(reads || of_device || words.contains(what), "{verb}: {words}");
            }
        }
    }
}

/// A command on a running store, in its folder: its exit code, some of its words, and whether what it says as
/// JSON is so.
type Row = (&'static str, i32, &'static str, fn(&PageStore, &Value) -> bool);

fn is_so(_: &PageStore, _: &Value) -> bool {
    true
}

/// Every verb.
const VERBS: &[Row] = &[
    ("inspect store", 0, "\"t\": 300 pages", |_, said| said["manifest"]["clean"] == false),
    ("stat store", 0, "300 pages, 0 of them free", |store, said| {
        said["pid"] == std::process::id() && said["stats"]["ssd"]["slots"] == store.stats().ssd.slots
    }),
    ("stat --live stats", 0, "\"t\": 300 pages", |_, said| said["pid"] == std::process::id()),
    ("top stats --count 1 --every 0.2", 0, "pagetier top", |store, said| {
        said["ssd_dirty_pages"] == store.stats().ssd.dirty_pages
    }),
    ("verify store", 1, "no process serves verify for others; scrub --no-heal", is_so),
    ("why store --space t --page 1", 1, "no process serves this command", is_so),
    ("export-hot store --to hot", 1, "no process serves this command", is_so),
    ("repair store", 1, "no process serves repair for others; scrub", is_so),
    ("repair store --write", 1, "no process serves repair for others; scrub", is_so),
    ("drain store", 0, " pages written home, 0 left", |store, said| {
        said["left"] == 0 && said["off"] == false && store.stats().ssd.dirty_pages == 0
    }),
    ("scrub store --pages-per-second 0", 0, " 0 damaged, 0 repaired, 0 not", |store, said| {
        said["checked"] == u64::from(PAGES) + store.stats().ssd.slots && said["damaged"] == 0
    }),
    ("set-mode store --mode read-only", 0, "mode is read-only", |store, _| {
        store.stats().ssd.mode == SsdMode::ReadOnly
    }),
    ("set-mode store --mode write-through", 0, "mode is write-through", |store, _| {
        store.stats().ssd.mode == SsdMode::WriteThrough
    }),
    ("set-mode store --mode write-back", 0, "mode is write-back", |store, _| {
        store.stats().ssd.mode == SsdMode::WriteBack
    }),
    ("set-policy store --pool none", 1, "none", |store, _| store.policies().pool().to_string() == "auto"),
    ("set-policy store --pool lru --ssd-policy cac", 0, "policy is lru, the SSD's is cac", |store, said| {
        said["pool"] == *store.policies().pool().to_string() && said["ssd"] == "cac"
    }),
    ("set-budget store --per-day 50GiB", 0, "53687091200 bytes", |store, said| {
        said["bytes_per_day"] == 50_u64 << 30 && store.stats().ssd.write_budget.is_some()
    }),
    ("set-budget store --per-day none", 0, "not limited", |store, _| {
        store.stats().ssd.write_budget.is_none()
    }),
    ("resize-pool store --to 2MiB", 0, " frames", |store, said| said["frames"] == store.frames()),
    ("resize-pool store --to 1", 1, "bytes", is_so),
    ("shrink store --space none", 1, "\"none\"", is_so),
    ("shrink store --space t", 0, "space 1 \"t\": 0 bytes", |_, said| said["bytes"] == 0),
    ("shrink store --all", 0, "space 1 \"t\": 0 bytes", |_, said| said["spaces"][0]["name"] == "t"),
    ("readmit store", 0, " 0 damaged ones dropped", |_, said| said["formatted"] == false),
    ("backup store --to chain", 0, "300 of 300 pages", |_, said| {
        said["number"] == 1 && said["pages"] == PAGES && said["log"] == false && said["lacks_log"] == false
    }),
    ("backup store --to chain", 0, "(incremental): 0 of 300 pages", |_, said| said["number"] == 2),
    ("backups list chain", 0, "2  incremental", |_, said| said["backups"][1]["restorable"] == true),
    ("backups verify chain", 0, "300 pages", |_, said| said["backups"][0]["pages"] == PAGES),
    ("backups purge chain --keep 1", 0, "0 removed, 2 kept: 1 2", |_, said| {
        said["kept"].as_array().map(Vec::len) == Some(2)
    }),
    ("restore chain --to copy", 0, "300 pages in 1 spaces from 2 files", |_, said| said["log"].is_null()),
    ("restore chain --space t --page 7 --to page", 0, "1 of 1 pages", |_, said| said["copied"] == 1),
    ("verify copy", 0, " 0 damaged", |_, said| said["checked"] == PAGES),
    ("replace-ssd store --with /no/such/place/ssd", 1, "/no/such/place", is_so),
    ("replace-ssd store --with other --ssd-mib 4", 0, "SSD, 4194304 bytes of it", |store, said| {
        said["bytes"] == 4 << 20 && store.stats().ssd.dirty_pages == 0
    }),
    ("attach store", 1, "replace-ssd exchanges it", is_so),
    ("drain store --off", 0, "the SSD is out of use", |store, said| {
        said["off"] == true && store.stats().ssd.mode == SsdMode::Off
    }),
    ("set-mode store --mode off", 0, "the store has no SSD", |_, said| said["off"] == true),
    ("attach store --ssd third --ssd-mib 4", 0, "third: in use", |store, said| {
        said["bytes"] == 4 << 20 && store.stats().ssd.mode == SsdMode::WriteBack
    }),
    ("calibrate --hdd . --ssd . --seconds 0.1", 0, "milliseconds", |_, said| {
        said["hdd_read_ms"].as_f64() > Some(0.0)
    }),
    ("what-if trace --pool-pages 50 --ssd-pages 200", 0, "", |_, said| said["costs"].is_array()),
];

/// What a store in use says whose process has no socket.
const UNSERVED: &[Row] = &[
    ("inspect store", 0, "\"t\": 300 pages", is_so),
    ("stat store", 1, "--control-socket", is_so),
    ("verify store", 1, "no process serves verify for others; scrub", is_so),
    ("verify store --accept-ssd-loss", 1, "no process serves verify for others; scrub", is_so),
    ("why store --space t --page 1", 1, "no process serves this command", is_so),
    ("export-hot store --to hot", 1, "no process serves this command", is_so),
    ("drain store", 1, "--control-socket", is_so),
    ("attach store", 1, "the store has an SSD", is_so),
    ("readmit store", 1, "--control-socket", is_so),
    ("replace-ssd store --with hot", 1, "--control-socket", is_so),
    ("set-mode store --mode off", 1, "--control-socket", is_so),
    ("shrink store --all", 1, "--control-socket", is_so),
    ("scrub store", 1, "--control-socket", is_so),
    ("set-policy store --pool lru", 1, "--control-socket", is_so),
    ("set-budget store --per-day none", 1, "--control-socket", is_so),
    ("resize-pool store --to 1GiB", 1, "--control-socket", is_so),
    ("backup store --to chain", 1, "--control-socket", is_so),
    ("repair store", 1, "no process serves repair for others; scrub", is_so),
    ("repair store --write", 1, "no process serves repair for others; scrub", is_so),
    ("restore foreign --to store", 1, "store: it already exists", is_so),
    ("restore foreign --to hot", 0, "", is_so),
    ("restore foreign --to chain", 0, "", is_so),
];

/// Faults, each with what the verbs say of it. A fault that has no other copy to mend it comes last.
const FAULTS: &[Row] = &[
    ("drain store", 0, " 0 left", is_so),
    ("!zero hdd.vol 6", 0, "", is_so),
    ("scrub store --no-heal --pages-per-second 0", 3, "1 damaged, 0 repaired, 1 not", |_, said| {
        said["damaged"] == 1 && said["findings"][0]["page"] == 6
    }),
    ("backup store --to chain", 0, "300 of 300 pages", |_, said| said["number"] == 1),
    ("scrub store --pages-per-second 0", 0, "1 damaged, 1 repaired, 0 not", |_, said| said["healed"] == 1),
    ("!damage ssd.cache 7", 0, "", is_so),
    ("scrub store --no-heal --pages-per-second 0", 3, "1 damaged, 0 repaired, 1 not", is_so),
    ("scrub store --pages-per-second 0", 0, "1 damaged, 1 repaired, 0 not", |_, said| said["healed"] == 1),
    ("scrub store --pages-per-second 0", 0, " 0 damaged", |_, said| said["complete"] == true),
    ("backup store --to store", 1, "the store's own directory", is_so),
    ("backup store --to store/hdd.vol", 1, "hdd.vol/unfinished.partial: it cannot be read", is_so),
    ("backup store --to foreign", 1, "its backups are of store", is_so),
    ("!fifo chain/unfinished.partial", 0, "", is_so),
    ("backup store --to chain", 1, "unfinished.partial: it cannot be read or written: it is a pipe", is_so),
    ("!dir chain/unfinished.partial", 0, "", is_so),
    ("backup store --to chain", 1, "unfinished.partial: it cannot be read or written", is_so),
    ("!gone chain/unfinished.partial", 0, "", is_so),
    ("!fifo chain/000002.backup", 0, "", is_so),
    ("backup store --to chain", 1, "000002.backup: it is no regular file", is_so),
    ("backups list chain", 0, "it is no regular file", is_so),
    ("backups verify chain", 3, "it is no regular file", is_so),
    ("restore chain --to copy", 1, "000002.backup: it is no regular file", is_so),
    ("!gone chain/000002.backup", 0, "", is_so),
    ("backup store --to chain", 0, " of 300 pages", |_, said| said["number"] == 2),
    ("backups verify chain", 0, "2  incremental", |_, said| said["backups"][1]["restorable"] == true),
    ("!fifo pipe", 0, "", is_so),
    ("replace-ssd store --with pipe", 1, "pipe: is neither a regular file nor a block device", is_so),
    ("replace-ssd store --with foreign", 1, "foreign: is neither a regular file nor a block device", is_so),
    ("stat --live foreign", 1, "foreign", is_so),
    ("restore chain --to pipe", 1, "pipe: it already exists", is_so),
    ("restore chain --to copy --log-to log", 1, "backup 2 has no copy of a log", is_so),
    ("!zero hdd.vol 8", 0, "", is_so),
    ("!damage ssd.cache 8", 0, "", is_so),
    ("scrub store --pages-per-second 0", 3, "2 damaged, 0 repaired, 2 not", |_, said| said["healed"] == 0),
    ("backup store --to chain", 1, ":8 is corrupt", is_so),
    ("backups verify chain", 0, "2  incremental", |_, said| said["backups"][2].is_null()),
    ("!mend 8", 0, "", is_so),
    ("drain store", 0, " 0 left", is_so),
    ("scrub store --pages-per-second 0", 0, " 0 not", is_so),
];

/// Makes a fault in the folder of a running store.
fn harm(running: &Running, fault: &str) {
    let words: Vec<_> = fault.split(' ').collect();
    let (path, in_store) = (running.dir.path().join(words[1]), running.at().join(words[1]));
    let page = words.last().unwrap().parse().unwrap_or(0);
    match words[0] {
        "zero" => assert_eq!(overwrite(&in_store, 1 << 20, page, (0, &[0; PAGE])), 1),
        "damage" => assert!(damage(&in_store, 0, page) > 0),
        "fifo" => fifo(&path),
        "dir" => {
            std::fs::remove_file(&path).unwrap();
            std::fs::create_dir(&path).unwrap();
        }
        "gone" if path.is_dir() => std::fs::remove_dir(&path).unwrap(),
        "gone" => std::fs::remove_file(&path).unwrap(),
        "mend" => running.runtime.block_on(async {
            let id = PageId::new(running.store.spaces().find("t").unwrap(), page);
            running.store.overwrite(id).await.unwrap()[..4].copy_from_slice(&2_u32.to_le_bytes());
            running.store.sync().await.unwrap();
        }),
        _ => panic!("{fault}"),
    }
}

/// Runs a script on a new store that this process has open, in words or as JSON; returns each exit code, and
/// what a command says that failed.
fn played(
    (script, listens): (&[Row], bool),
    form: Option<&str>,
    wrong: &mut Vec<String>,
) -> Vec<(i32, String)> {
    let mut running = Running::new();
    if !listens {
        drop(running.control.take());
    }
    let (dir, store) = (running.dir.path(), &running.store);
    let space = store.spaces().find("t").unwrap();
    made(&dir.join("elsewhere"), true);
    assert_eq!(run_in(dir, "backup elsewhere --to foreign", None).status.code(), Some(0));
    let export = running.runtime.block_on(async {
        store.trace().start(dir.join("trace")).unwrap();
        write(store, space, 2).await;
        store.trace().stop().await.unwrap();
        store.export_stats(&dir.join("stats"), Duration::from_millis(100)).await.unwrap()
    });
    let mut all = Vec::new();
    for (line, code, words, is_so) in script {
        if let Some(fault) = line.strip_prefix('!') {
            harm(&running, fault);
            continue;
        }
        let out = run_in(dir, line, form);
        let text = said(&out);
        let mut is_right = out.status.code() == Some(*code) && !text.contains("panicked");
        let mut error = text.clone();
        if form.is_some() {
            let value = printed(&out).1;
            value["error"].as_str().unwrap_or_default().clone_into(&mut error);
            is_right &= value.is_object() && is_so(store, &value) && error.is_empty() == (*code != 1);
        } else {
            is_right &= text.contains(words);
        }
        if !is_right {
            wrong.push(format!("{line} {form:?}: {text}"));
        }
        all.push((*code, error.replace(dir.to_str().unwrap(), "")));
    }
    drop(export);
    running.closed_whole();
    all
}

fn run_in(dir: &Path, line: &str, form: Option<&str>) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagetier"));
    command.args(line.split(' ')).args(form).current_dir(dir).output().unwrap()
}

#[test]
fn what_is_said_of_a_running_store_is_so() {
    // The two stores of a script have ids and checksums of their own.
    let plain = |text: &str| text.replace(|c: char| c.is_ascii_hexdigit() || c == '-', "");
    let mut wrong = Vec::new();
    for script in [(UNSERVED, false), (FAULTS, true), (VERBS, true)] {
        let [words, json] = [None, Some("--json")].map(|form| played(script, form, &mut wrong));
        for ((code, words), (_, error)) in words.iter().zip(&json) {
            if *code == 1 && !plain(words).contains(&plain(error)) {
                wrong.push(format!("{words} is not {error}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let help = said(&run(&["--help"]));
    let verbs =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    for verb in verbs.filter_map(|line| line.split_whitespace().next()).filter(|verb| *verb != "help") {
        assert!(VERBS.iter().any(|row| row.0.split(' ').next() == Some(verb)), "{verb}");
    }
}
