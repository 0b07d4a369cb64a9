//! Runs every command as a process, on stores that were closed, that crashed and that are damaged.

use crate::stores::{
    self, PAGES, contents, contents_of_pages, damage, json, made, open, printed, run, runtime, said, write,
};
use pagetier::{PageId, PageStore, SsdMode};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn what_only_looks_writes_nothing_even_after_a_crash() {
    for close in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (store, hot) = (dir.path().join("store"), dir.path().join("hot"));
        made(&store, close);
        let before = contents(&store);
        let at = store.to_str().unwrap();
        let (code, inspected) = json(&["inspect", at]);
        assert_eq!((code, &inspected["manifest"]["clean"]), (0, &Value::Bool(close)));
        let (code, verified) = json(&["verify", at]);
        assert_eq!((code, &verified["damaged"], &verified["complete"]), (0, &0.into(), &true.into()));
        assert!(verified["checked"].as_u64().unwrap() >= u64::from(PAGES));
        let (code, stat) = json(&["stat", at]);
        assert_eq!((code, &stat["spaces"][0]["pages"]), (0, &PAGES.into()), "{stat}");
        // The command's own reads say nothing of the devices.
        assert_eq!(
            (&stat["stats"]["hdd_device"], &stat["stats"]["ssd_device"]),
            (&Value::Null, &Value::Null)
        );
        let text = said(&run(&["stat", at]));
        assert!(text.contains("policy: setting forever, unchanged;") && !text.contains(" reads"), "{text}");
        let of_page = ["why", at, "--space", "t", "--page", "7"];
        let (code, why) = json(&of_page);
        assert_eq!((code, &why["no"]), (0, &7.into()));
        // That is how these commands open it.
        for command in [&of_page[..], &["stat", at], &["inspect", at]] {
            assert!(!said(&run(command)).contains("read-only"), "{}", said(&run(command)));
        }
        let folder = said(&run(&["stat", dir.path().to_str().unwrap()]));
        assert!(folder.contains("no store here") && folder.contains(&format!("one in {at}")), "{folder}");
        let (code, listed) = json(&["export-hot", at, "--to", hot.to_str().unwrap()]);
        assert!(code == 0 && listed["pages"] == stat["stats"]["ssd"]["pages"], "{listed} {stat}");
        for command in ["inspect", "verify", "stat"] {
            let out = run(&[command, at]);
            let text = String::from_utf8(out.stdout).unwrap();
            assert!(out.status.success() && text.lines().count() < 60, "{text}");
        }
        let unwritten = run(&["repair", at]);
        assert!(unwritten.status.success());
        assert!(String::from_utf8_lossy(&unwritten.stderr).contains("nothing was written"));
        assert!(contents(&store) == before, "a file changed");
    }
}

/// The directory of such a store has no manifest, and another one will do.
#[test]
fn a_store_whose_manifest_is_on_the_hdd_is_named_by_its_hdd() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (at, volume, elsewhere, chain) = (path("store"), path("volume"), path("elsewhere"), path("chain"));
    runtime().block_on(async {
        let builder =
            PageStore::builder().directory(&at).hdd(&volume).manifest(pagetier::options::OnHdd::default());
        let store = builder.ssd_bytes(8 << 20).pool_bytes(8 << 20).open().await.unwrap();
        let space = store.spaces().create("t").await.unwrap();
        write(&store, space, 1).await;
        store.close().await.unwrap();
    });
    std::fs::create_dir(&elsewhere).unwrap();
    for command in ["inspect", "verify", "stat", "repair", "drain"] {
        let out = run(&[command, &at, "--hdd", &volume]);
        assert!(out.status.success(), "{command}: {}", said(&out));
    }
    let out = run(&["backup", &at, "--hdd", &volume, "--to", &chain]);
    assert!(out.status.success(), "{}", said(&out));
    // All was drained, so nothing is lost without the SSD.
    let out = run(&["verify", &elsewhere, "--hdd", &volume, "--accept-ssd-loss"]);
    assert!(out.status.success(), "{}", said(&out));
    for (hdd, why) in [("rbd:pool/image", "crates/rbd"), (&*path("missing"), "missing")] {
        let out = run(&["verify", &at, "--hdd", hdd]);
        assert!(out.status.code() == Some(1) && said(&out).contains(why), "{}", said(&out));
    }
    // A lost manifest is no store on the HDD.
    let lost = dir.path().join("lost");
    made(&lost, true);
    std::fs::remove_file(lost.join("manifest.json")).unwrap();
    // But for the lock, which names its last holder.
    let kept = |dir: &Path| -> Vec<_> {
        contents(dir).into_iter().filter(|(file, _)| !file.ends_with("/lock")).collect()
    };
    let before = kept(&lost);
    let out =
        run(&["repair", lost.to_str().unwrap(), "--hdd", lost.join("hdd.vol").to_str().unwrap(), "--write"]);
    assert!(out.status.code() == Some(1) && said(&out).contains("manifest"), "{}", said(&out));
    assert!(kept(&lost) == before, "a file changed");
}

#[test]
fn damage_is_listed_with_an_exit_code_and_repaired_where_a_copy_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    made(&store, true);
    let at = store.to_str().unwrap();
    // Write everything home, so that a bad copy on the SSD has a good one there.
    assert_eq!(json(&["drain", at]).0, 0);
    // Both have a copy on the SSD; of one page, that is bad, too.
    let (mended, lost) = (5, 6);
    for page in [mended, lost] {
        let why = json(&["why", at, "--space", "t", "--page", &page.to_string()]).1;
        assert_eq!(why["on_ssd"], true);
        assert_eq!(damage(&store.join("hdd.vol"), 1 << 20, page), 1);
    }
    assert!(damage(&store.join("ssd.cache"), 0, lost) > 0);
    let (code, found) = json(&["verify", at]);
    assert_eq!((code, &found["damaged"]), (3, &3.into()), "{found}");
    assert_eq!(found["findings"][0]["healed"], false);
    let (code, repaired) = json(&["repair", at, "--write"]);
    assert_eq!((code, &repaired["damaged"], &repaired["healed"]), (3, &3.into(), &1.into()), "{repaired}");
    let (code, found) = json(&["verify", at]);
    assert_eq!((code, &found["damaged"], &found["findings"][0]["page"]), (3, &2.into(), &lost.into()));
    // A bad copy on the SSD is dropped.
    assert!(damage(&store.join("ssd.cache"), 0, mended) > 0);
    let (_, repaired) = json(&["repair", at, "--write"]);
    assert_eq!((&repaired["damaged"], &repaired["healed"]), (&3.into(), &1.into()), "{repaired}");
    for (no, read) in contents_of_pages(&store) {
        assert_eq!(read.ok(), (no != lost).then_some(2), "page {no}");
    }
    // Each damage once, in what a terminal shows of both streams.
    let text = said(&run(&["verify", at]));
    assert!(text.contains("slots and homes checked") && text.matches("is corrupt").count() == 1, "{text}");
}

#[test]
fn a_drained_store_opens_without_its_ssd() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    made(&store, false);
    let at = store.to_str().unwrap();
    let (code, drained) = json(&["drain", at, "--off"]);
    assert_eq!((code, &drained["left"], &drained["off"]), (0, &0.into(), &true.into()), "{drained}");
    std::fs::remove_file(store.join("ssd.cache")).unwrap();
    assert_eq!(json(&["verify", at]).0, 0);
    // A second drain finds no SSD and creates none.
    assert_eq!(json(&["drain", at]).1["off"], true);
    assert!(!store.join("ssd.cache").exists());
    runtime().block_on(async {
        let store = PageStore::builder().directory(&store).ssd_bytes(0).open().await.unwrap();
        let page = store.get(PageId::new(store.spaces().find("t").unwrap(), 9)).await.unwrap();
        assert_eq!((page[0], store.stats().ssd.mode), (2, SsdMode::Off));
    });
}

#[test]
fn a_chain_of_backups_is_made_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (store, chain) = (path("store"), path("chain"));
    made(Path::new(&store), false);
    let (code, full) = json(&["backup", &store, "--to", &chain]);
    assert_eq!((code, &full["pages"], &full["number"]), (0, &PAGES.into(), &1.into()), "{full}");
    runtime().block_on(async {
        let store = open(Path::new(&store)).await;
        let mut page = store.get_mut(PageId::new(store.spaces().find("t").unwrap(), 9)).await.unwrap();
        page[0] = 77;
        drop(page);
        store.close().await.unwrap();
    });
    let (code, more) = json(&["backup", &store, "--to", &chain]);
    assert!(code == 0 && more["full_because"].is_null() && more["pages"].as_u64() < Some(200), "{more}");
    assert_eq!(json(&["restore", &chain, "--to", &path("one"), "--upto", "1"]).0, 0);
    let (hdd, ssd) = (path("disk"), path("flash"));
    let devices = ["--hdd", &hdd, "--ssd", &ssd, "--ssd-mib", "8"];
    let (code, restored) = json(&[&["restore", &chain, "--to", &path("two")], &devices[..]].concat());
    assert_eq!((code, &restored["files"]), (0, &2.into()), "{restored}");
    assert!([&hdd, &ssd].iter().all(|device| Path::new(device).exists()));
    for (name, byte) in [("one", 2), ("two", 77)] {
        let places: &[&str] = if byte == 2 { &[] } else { &devices[..4] };
        assert_eq!(json(&[&["verify", &path(name)], places].concat()).0, 0);
        runtime().block_on(async {
            let store = PageStore::builder().directory(path(name)).create(pagetier::options::Create::Never);
            let store = match byte {
                2 => store.ssd_bytes(0),
                _ => store.hdd(&hdd).ssd(&ssd).ssd_bytes(8 << 20),
            };
            let store = store.open().await.unwrap();
            let page = store.get(PageId::new(store.spaces().find("t").unwrap(), 9)).await.unwrap();
            assert_eq!(page[0], byte, "{name}");
        });
    }
    let again = run(&["restore", &chain, "--to", &path("two")]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("does not"), "{again:?}");
}

/// Backs up an engine with a log itself, then by the tool; the steps of `docs/operating.md`, Test a restore.
#[test]
fn a_backup_says_that_it_lacks_the_log_and_a_restore_takes_the_log_along() {
    use pagetier::backup::BackupOptions;
    use pagetier_wal::{LoggedStore, Wal, WalOptions};
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (chain, bare) = (path("chain"), path("bare"));
    let opened = async |pages: &str, log: &str| {
        let wal = Wal::open(Path::new(log), WalOptions::new()).unwrap();
        let builder = PageStore::builder().directory(pages).ssd_bytes(0).pool_bytes(4 << 20);
        LoggedStore::on(builder, wal).await
    };
    runtime().block_on(async {
        let db = opened(&path("pages"), &path("log")).await.unwrap();
        let space = db.spaces().create("t").await.unwrap();
        let mut change = db.begin().await.unwrap();
        let page = change.add(db.allocate(space).await.unwrap());
        change.write(page, 0, b"kept");
        db.commit(change).await.unwrap();
        let made = db.backup(Path::new(&chain), BackupOptions::new()).await.unwrap();
        assert!(!made.lacks_log);
        db.shutdown().await.unwrap();
    });
    // The engine's backup.
    assert_eq!(json(&["backups", "verify", &chain]).0, 0);
    let (to, log) = (path("new"), path("new-log"));
    let (code, restored) = json(&["restore", &chain, "--to", &to, "--log-to", &log]);
    let copy = format!("{chain}/log-000001");
    assert_eq!(
        (code, &restored["needs_log"], &restored["log"], &restored["log_copy"]),
        (0, &true.into(), &log.as_str().into(), &copy.as_str().into()),
        "{restored}"
    );
    assert_eq!(json(&["verify", &to]).0, 0);
    runtime().block_on(async {
        let db = opened(&to, &log).await.unwrap();
        let page = PageId::new(db.spaces().find("t").unwrap(), 0);
        assert_eq!(&db.get(page).await.unwrap()[..4], b"kept");
        db.shutdown().await.unwrap();
    });
    // Without --log-to it says where the copy is. A log in the way is left alone, and no store is made.
    let text = said(&run(&["restore", &chain, "--to", &path("second")]));
    assert!(text.contains("the engine needs its log") && text.contains(&copy), "{text}");
    let taken = run(&["restore", &chain, "--to", &path("third"), "--log-to", &log]);
    assert!(taken.status.code() == Some(1) && Path::new(&log).exists(), "{}", said(&taken));
    assert!(!Path::new(&path("third")).exists());
    // A store that cannot be made leaves no log.
    let refused = run(&["restore", &chain, "--to", &to, "--log-to", &path("vain")]);
    assert!(refused.status.code() == Some(1) && !Path::new(&path("vain")).exists(), "{}", said(&refused));
    // The tool's own.
    let (code, bare_one) = json(&["backup", &path("pages"), "--to", &bare]);
    assert_eq!((code, &bare_one["lacks_log"]), (0, &true.into()), "{bare_one}");
    let text = said(&run(&["backup", &path("pages"), "--to", &bare]));
    assert!(text.contains("the engine's log is not in it"), "{text}");
    let text = said(&run(&["restore", &bare, "--to", &path("fourth")]));
    assert!(text.contains("no copy"), "{text}");
    let none = run(&["restore", &bare, "--to", &path("fifth"), "--log-to", &path("vain")]);
    assert!(none.status.code() == Some(1) && said(&none).contains("no copy of a log"), "{}", said(&none));
    // Of a store without a log, neither says anything of one.
    let plain = path("plain");
    made(Path::new(&plain), false);
    assert_eq!(json(&["backup", &plain, "--to", &path("of plain")]).1["lacks_log"], false);
    let restored = run(&["restore", &path("of plain"), "--to", &path("sixth")]);
    assert!(restored.status.success() && !said(&restored).contains("log"), "{}", said(&restored));
}

#[test]
fn the_list_of_backups_says_to_which_moments_an_archive_leads() {
    use pagetier_wal::{LoggedStore, Wal, WalOptions};
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (chain, archive) = (path("chain"), path("archive"));
    std::fs::create_dir(&archive).unwrap();
    let end = runtime().block_on(async {
        let wal = Wal::open(Path::new(&path("log")), WalOptions::new()).unwrap();
        wal.archive_to(Path::new(&archive)).unwrap();
        let builder = PageStore::builder().directory(path("pages")).ssd_bytes(0).pool_bytes(4 << 20);
        let db = LoggedStore::on(builder, wal).await.unwrap();
        let space = db.spaces().create("t").await.unwrap();
        db.backup(Path::new(&chain), pagetier::backup::BackupOptions::new()).await.unwrap();
        let mut change = db.begin().await.unwrap();
        let page = change.add(db.allocate(space).await.unwrap());
        change.write(page, 0, b"later");
        db.commit(change).await.unwrap();
        let end = db.wal().archive_now().await.unwrap();
        db.shutdown().await.unwrap();
        end
    });
    let (code, list) = json(&["backups", "list", &chain, "--archive", &archive]);
    let moments = &list["backups"][0]["moments"];
    assert_eq!((code, &moments["first"]["lsn"], &moments["last"]["lsn"]), (0, &64.into(), &end.0.into()));
    assert!(moments["last"]["time"].as_str().is_some_and(|time| time.starts_with("20")), "{list}");
    let text = String::from_utf8(run(&["backups", "list", &chain, "--archive", &archive]).stdout).unwrap();
    assert!(text.contains("to moments from") && text.contains(&format!("position {end}")), "{text}");
    let text = run(&["backups", "list", &chain, "--archive", &path("nowhere")]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("to no moment with the archive"), "{text:?}");
    assert!(json(&["backups", "list", &chain]).1["backups"][0]["moments"].is_null());
}

/// Programs read it by field: no pairs without names, and no text to take apart but errors.
fn is_plain(value: &Value, key: &str) -> bool {
    match value {
        Value::Array(all) => all.iter().all(|one| !one.is_array() && is_plain(one, key)),
        Value::Object(all) => all.iter().all(|(key, one)| is_plain(one, key)),
        Value::String(text) => !text.contains(' ') || ["error", "stopped_by"].contains(&key),
        _ => true,
    }
}

#[test]
fn json_has_neither_pairs_nor_sentences() {
    for harm in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        made(&store, harm == 0);
        let at = store.to_str().unwrap();
        match harm {
            1 => {
                assert_eq!(json(&["drain", at]).0, 0);
                assert!(damage(&store.join("hdd.vol"), 1 << 20, 6) > 0);
            }
            2 => std::fs::write(store.join("ssd.cache"), "letters").unwrap(),
            _ => {}
        }
        for command in ["inspect", "stat", "verify", "drain"] {
            if harm == 2 && command != "inspect" {
                continue;
            }
            let value = json(&[command, at]).1;
            assert!(value.is_object() && is_plain(&value, ""), "{command}: {value}");
        }
    }
}

#[test]
fn what_a_repair_leaves_comes_from_a_backup() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (store, chain, foreign) = (path("store"), path("chain"), path("foreign"));
    made(Path::new(&store), true);
    let (code, made_backup) = json(&["backup", &store, "--to", &chain, "--bytes-per-second", "100MiB"]);
    assert_eq!((code, &made_backup["pages"]), (0, &PAGES.into()));
    let other = path("other");
    made(Path::new(&other), true);
    assert_eq!(json(&["backup", &other, "--to", &foreign]).0, 0);
    // A newer version of one page, which is not in the backup, and no copy of any but their homes.
    runtime().block_on(async {
        let open = open(Path::new(&store)).await;
        let space = open.spaces().find("t").unwrap();
        for no in [6, 8] {
            open.get_mut(PageId::new(space, no)).await.unwrap()[..4].copy_from_slice(&3_u32.to_le_bytes());
        }
        let mut new = open.allocate(space).await.unwrap();
        new[..4].copy_from_slice(&3_u32.to_le_bytes());
        drop(new);
        open.close().await.unwrap();
    });
    assert_eq!(json(&["drain", &store, "--off"]).0, 0);
    for page in [6, 7, PAGES] {
        assert!(damage(&Path::new(&store).join("hdd.vol"), 1 << 20, page) > 0);
    }
    let (code, plain) = json(&["repair", &store, "--write"]);
    assert_eq!((code, &plain["left"], plain["fetched"].as_array().unwrap().len()), (3, &3.into(), 0));
    // Another store's pages are not this store's, and nothing is written.
    let refused = run(&["repair", &store, "--write", "--from", &foreign]);
    assert!(refused.status.code() == Some(1) && said(&refused).contains("of store"), "{}", said(&refused));
    assert_eq!(json(&["verify", &store]).1["damaged"], 3);
    let none = run(&["repair", &store, "--write", "--from", &path("none")]);
    assert!(none.status.code() == Some(1) && said(&none).contains("no backup"), "{}", said(&none));
    // The page that is younger than the backup stays.
    let (code, repaired) = json(&["repair", &store, "--write", "--from", &chain]);
    assert_eq!((code, &repaired["damaged"], &repaired["left"]), (3, &3.into(), &1.into()), "{repaired}");
    let fetched: Vec<_> = repaired["fetched"].as_array().unwrap().iter().map(|one| &one["page"]).collect();
    assert_eq!(fetched, [6, 7], "{repaired}");
    assert_eq!(repaired["fetched"][0]["lsn"], 2);
    assert_eq!(json(&["verify", &store]).1["damaged"], 1);
    for (no, read) in contents_of_pages(Path::new(&store)) {
        assert_eq!(read, Ok(if no == 8 { 3 } else { 2 }), "page {no}");
    }
    // Nothing is left that the backup has: it changes nothing more.
    assert_eq!(json(&["repair", &store, "--write", "--from", &chain]).1["fetched"], Value::Array(vec![]));
}

#[test]
fn free_pages_and_room_are_shown_and_damage_names_its_space() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    made(&store, true);
    runtime().block_on(async {
        let open = open(&store).await;
        let space = open.spaces().find("t").unwrap();
        open.free((space, 100..180)).await.unwrap();
        open.close().await.unwrap();
    });
    let at = store.to_str().unwrap();
    let stat = json(&["stat", at]).1;
    assert_eq!((&stat["spaces"][0]["free"], &stat["lost_pages"]), (&80.into(), &0.into()), "{stat}");
    let room = |key: &str| stat["room"][key].as_u64().unwrap();
    assert_eq!(room("free_pages_bytes"), 80 * 4096);
    assert!(room("file_system_bytes") > 0);
    let inspected = json(&["inspect", at]).1;
    assert_eq!(inspected["manifest"]["spaces"][0]["free"], 80);
    assert_eq!(inspected["hdd"]["unallocated_bytes"], room("unallocated_bytes"));
    for command in ["inspect", "stat"] {
        assert!(said(&run(&[command, at])).contains("80 of them free"));
    }
    assert_eq!(json(&["drain", at]).0, 0);
    assert!(damage(&store.join("hdd.vol"), 1 << 20, 6) > 0);
    let found = json(&["verify", at]).1;
    assert_eq!(found["findings"][0]["space_name"], "t");
    assert!(said(&run(&["verify", at])).contains("page 6 of space 1 \"t\""));
}

#[test]
fn events_are_selected_by_the_environment_and_printed_in_two_forms() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    made(&store, false);
    let at = store.to_str().unwrap();
    let verified = |selection: &str, form: &str| {
        let mut tool = Command::new(env!("CARGO_BIN_EXE_pagetier"));
        let out =
            tool.env("RUST_LOG", selection).args(["verify", at, "--json", "--log", form]).output().unwrap();
        assert!(out.status.success(), "{}", said(&out));
        serde_json::from_slice::<Value>(&out.stdout).unwrap();
        String::from_utf8(out.stderr).unwrap()
    };
    let text = verified("info", "text");
    assert!(
        text.contains("INFO") && text.contains("opened") && text.contains("recovery=after a crash"),
        "{text}"
    );
    let lines = verified("info", "json");
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let opened = events.iter().find(|event| event["message"] == "opened").unwrap();
    assert!(opened["level"] == "INFO" && opened["page_bytes"] == 4096, "{opened}");
    assert_eq!(verified("off", "text"), "");
}

/// A signal at any moment leaves only backups that can be restored.
#[test]
fn backups_are_listed_verified_and_purged_and_pages_taken_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (store, chain) = (path("store"), path("chain"));
    made(Path::new(&store), false);
    for number in 1..=6 {
        // 1 and 4 are full.
        let backup = ["backup", &store, "--to", &chain, "--full"];
        assert_eq!(json(&backup[..if number % 3 == 1 { 5 } else { 4 }]).1["number"], number);
    }
    let (code, listed) = json(&["backups", "list", &chain]);
    let kinds: Vec<_> = listed["backups"].as_array().unwrap().iter().map(|file| &file["kind"]).collect();
    assert_eq!((code, kinds[2].as_str(), kinds[3].as_str()), (0, Some("incremental"), Some("full")));
    let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
    let text = said(&run(&["backups", "list", &chain]));
    assert!(text.lines().count() == 6 && text.lines().all(|line| line.contains("B  20")), "{text}");
    assert_eq!(listed["backups"][0]["written"].as_str().unwrap()[..4], now[..4]);
    for file in std::fs::read_dir(&chain).unwrap() {
        assert_eq!(file.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    for (space, number, code) in [("t", "17", 0), ("t", "300", 1), ("u", "1", 1)] {
        let file = path(&format!("{space}-{number}"));
        let out = run(&["restore", &chain, "--space", space, "--page", number, "--to", &file, "--json"]);
        assert_eq!((out.status.code(), Path::new(&file).exists()), (Some(code), code == 0), "{}", said(&out));
        assert!(code == 0 || said(&out).contains("in this backup"), "{}", said(&out));
    }
    assert_eq!(std::fs::read(path("t-17")).unwrap()[..4], 2_u32.to_le_bytes());
    for (round, ms) in [0, 2, 4, 8, 16, 32].into_iter().enumerate() {
        let copy = dir.path().join(format!("copy {round}"));
        stores::copy(Path::new(&chain), &copy);
        let at = copy.to_str().unwrap();
        let mut purge = Command::new(env!("CARGO_BIN_EXE_pagetier"));
        let mut child = purge.args(["backups", "purge", at, "--keep", "2"]).spawn().unwrap();
        std::thread::park_timeout(Duration::from_millis(ms));
        child.kill().unwrap();
        child.wait().unwrap();
        let (code, verified) = json(&["backups", "verify", at]);
        assert!(code == 0 && verified["backups"].as_array().unwrap().len() >= 3, "{verified}");
        let (code, purged) = json(&["backups", "purge", at, "--keep", "2"]);
        assert_eq!((code, &purged["kept"]), (0, &serde_json::json!([4, 5, 6])), "{purged}");
        assert_eq!(json(&["restore", at, "--to", &path(&format!("restored {round}"))]).0, 0);
    }
    // Damage has its exit code, and keeps a purge from its work.
    let file = std::fs::OpenOptions::new().write(true).open(format!("{chain}/000005.backup")).unwrap();
    file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    let (code, verified) = json(&["backups", "verify", &chain]);
    assert_eq!((code, &verified["backups"][5]["restorable"]), (3, &false.into()), "{verified}");
    assert!(verified["backups"][4]["error"].as_str().unwrap().contains("incomplete"), "{verified}");
    assert!(said(&run(&["backups", "verify", &chain])).contains("NOT RESTORABLE"));
    assert_eq!(run(&["backups", "purge", &chain, "--keep", "2"]).status.code(), Some(1));
    assert_eq!(std::fs::read_dir(&chain).unwrap().count(), 6);
    for args in [&["backups", "list", &store][..], &["backups", "purge", &store, "--keep", "1"]] {
        let refused = run(args);
        assert!(
            refused.status.code() == Some(1) && said(&refused).contains("no backup"),
            "{}",
            said(&refused)
        );
    }
}

/// Every command of the guide's examples, on small stores and files in place of its devices.
#[test]
fn the_guides_commands_run() {
    let guide = include_str!("../../../docs/operating.md");
    let mut ran = 0;
    for block in guide.split("```sh\n").skip(1) {
        let block = block.split("```").next().unwrap();
        let commands: Vec<_> = block.lines().filter_map(|line| line.strip_prefix("pagetier ")).collect();
        if commands.is_empty() {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().to_str().unwrap();
        made(&dir.path().join("db"), true);
        let (runtime, db) = (runtime(), dir.path().join("db"));
        let running = block.starts_with("# while an engine has the store open").then(|| {
            runtime.block_on(async {
                let store = Arc::new(open(&db).await);
                let control = pagetier_control::listen(&store, &db).await.unwrap();
                (store, control)
            })
        });
        for command in commands {
            let command = command.split('#').next().unwrap();
            let command = command.replace("/var/lib", at).replace("/dev", at).replace("/backup/db", "chain");
            let command = command.replace("accounts", "t").replace("200000", "8");
            let mut tool = Command::new(env!("CARGO_BIN_EXE_pagetier"));
            let out = tool.args(command.split_whitespace()).current_dir(dir.path()).output().unwrap();
            assert!(out.status.success(), "{command}: {}", said(&out));
            ran += 1;
        }
        if let Some((store, control)) = running {
            runtime.block_on(async {
                control.end().await;
                store.shutdown().await.unwrap();
            });
        }
    }
    assert!(ran >= 25, "{ran} commands");
}

#[test]
fn a_running_store_is_watched_through_its_export() {
    let dir = tempfile::tempdir().unwrap();
    let (store, file) = (dir.path().join("store"), dir.path().join("stats.json"));
    let (at, file_at) = (store.to_str().unwrap(), file.to_str().unwrap());
    runtime().block_on(async {
        let open = open(&store).await;
        let space = open.spaces().create("t").await.unwrap();
        let export = open.export_stats(&file, Duration::from_millis(100)).await.unwrap();
        let args = ["top", file_at, "--every", "0.3", "--count", "3"].map(str::to_owned);
        let top =
            tokio::task::spawn_blocking(move || run(&args.iter().map(String::as_str).collect::<Vec<_>>()));
        write(&open, space, 1).await;
        write(&open, space, 2).await;
        let top = top.await.unwrap();
        let text = String::from_utf8(top.stdout).unwrap();
        assert!(top.status.success() && text.matches("pagetier top").count() == 3, "{text}");
        assert!(text.contains("\"t\"") && text.contains("requests/s"), "{text}");
        for arguments in [&["stat", "--live", file_at][..], &["stat", at, "--live", file_at]] {
            assert_eq!(json(arguments).1["pid"], std::process::id());
        }
        drop(export);
        open.close().await.unwrap();
    });
}

#[test]
fn devices_are_measured_in_scratch_files_and_a_trace_is_replayed() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = dir.path().to_str().unwrap();
    let (code, costs) = json(&["calibrate", "--hdd", at, "--ssd", at, "--seconds", "0.3"]);
    assert!(code == 0 && costs["hdd_read_ms"].as_f64().unwrap() > 0.0, "{costs}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "scratch files are left");
    let (store, trace) = (dir.path().join("store"), dir.path().join("t.ptr"));
    runtime().block_on(async {
        let store = open(&store).await;
        let space = store.spaces().create("t").await.unwrap();
        store.trace().start(&trace).unwrap();
        write(&store, space, 1).await;
        write(&store, space, 2).await;
        store.trace().stop().await.unwrap();
        store.close().await.unwrap();
    });
    let trace = trace.to_str().unwrap();
    let (code, what_if) = json(&["what-if", trace, "--pool-pages", "50", "--ssd-pages", "200"]);
    assert!(code == 0 && what_if["costs"].as_array().unwrap().len() > 4, "{what_if}");
    assert_eq!(run(&["what-if", at, "--pool-pages", "5", "--ssd-pages", "2"]).status.code(), Some(1));
}

#[test]
fn every_command_has_help_and_names_what_it_lacks() {
    let commands = [
        "inspect",
        "verify",
        "stat",
        "why",
        "top",
        "drain",
        "attach",
        "readmit",
        "replace-ssd",
        "set-mode",
        "shrink",
        "scrub",
        "set-policy",
        "set-budget",
        "resize-pool",
        "calibrate",
        "what-if",
        "export-hot",
        "backup",
        "backups",
        "restore",
        "repair",
    ];
    let help = String::from_utf8(run(&["--help"]).stdout).unwrap();
    for command in commands {
        assert!(help.contains(command), "{help}");
        let own = run(&[command, "--help"]);
        assert!(own.status.success() && own.stdout.len() > 100);
        assert_eq!(run(&[command, "--no-such-option"]).status.code(), Some(2));
    }
    // The guide has them all, and no other.
    let guide = include_str!("../../../docs/operating.md");
    let rows = guide.lines().filter_map(|line| line.strip_prefix("| `"));
    let documented =
        rows.filter(|row| row.ends_with(" no |") || row.contains(" yes") || row.contains("new store |"));
    let named: std::collections::BTreeSet<_> =
        documented.map(|row| row.split([' ', '`']).next().unwrap()).collect();
    assert_eq!(named, commands.into_iter().collect());
    // Nothing is ignored: what cannot take effect is refused.
    let useless: [&[&str]; 14] = [
        &["set-policy", "store"],
        &["set-budget", "store"],
        &["resize-pool", "store", "--to", "lots"],
        &["scrub", "store", "--pages-per-second", "-1"],
        &["stat"],
        &["stat", "--live", "f", "--hdd", "h"],
        &["stat", "--live", "f", "--memory-mib", "8"],
        &["top", "f", "--every", "0.01"],
        &["restore", "chain", "--to", "new", "--ssd", "flash"],
        &["set-mode", "store", "--mode", "write-through"],
        &["attach", "store", "--accept-ssd-loss"],
        &["replace-ssd", "store"],
        &["backups", "purge", "chain", "--keep", "0"],
        &["restore", "chain", "--to", "file", "--page", "1"],
    ];
    for arguments in useless {
        let mut refused = Command::new(env!("CARGO_BIN_EXE_pagetier"));
        let refused = refused.env_remove("PAGETIER_DIR").args(arguments);
        let (code, failed) = printed(&refused.arg("--json").output().unwrap());
        assert!(code == 2 && failed["error"].is_string(), "{arguments:?}: {failed}");
    }
    let nothing = run(&["verify", "/no/such/store"]);
    assert_eq!(nothing.status.code(), Some(1));
    let said = String::from_utf8_lossy(&nothing.stderr).into_owned();
    assert!(said.contains("/no/such/store") && said.contains("no store"), "{said}");
}

/// After a downgrade: no command takes what a later version wrote for damaged, or writes to it.
#[test]
fn a_store_of_a_later_version_is_refused_by_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let (store, other) = (dir.path().join("store"), dir.path().join("other"));
    made(&store, true);
    let (at, other) = (store.to_str().unwrap(), other.to_str().unwrap());
    for file in ["hdd.vol", "ssd.cache"] {
        let before = std::fs::read(store.join(file)).unwrap();
        let mut bytes = before.clone();
        // Both copies of the superblock.
        for block in bytes.chunks_mut(4096).take(2) {
            block[12..16].copy_from_slice(&99_u32.to_le_bytes());
            let sum = crc32c::crc32c(&block[12..]);
            block[8..12].copy_from_slice(&sum.to_le_bytes());
        }
        std::fs::write(store.join(file), &bytes).unwrap();
        assert!(said(&run(&["inspect", at])).contains("of format 99, which this version does not read"));
        let verbs = "verify stat drain readmit repair repair:--write:--accept-ssd-loss shrink:--all backup:--to:O \
                     replace-ssd:--with:O";
        for verb in verbs.split_whitespace() {
            let mut args: Vec<&str> =
                verb.split(':').map(|arg| if arg == "O" { other } else { arg }).collect();
            args.insert(1, at);
            let refused = run(&args);
            let words = said(&refused).contains(&format!("{file}: it has format 99, this version reads 2"));
            assert!(words && refused.status.code() == Some(1), "{verb}: {}", said(&refused));
            assert!(std::fs::read(store.join(file)).unwrap() == bytes, "{verb} changed {file}");
        }
        std::fs::write(store.join(file), before).unwrap();
    }
    stores::has_all_pages(&store, "marked and restored");
}
