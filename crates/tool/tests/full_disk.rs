//! Commands on a file system without room, through the kernel: each names what it could not write, returns
//! the right exit code, loses nothing, and succeeds once there is room.
//!
//! Needs root and loop devices; without them a test reports so on standard error and does nothing.

use crate::mounted::{SmallDisk, skip};
use crate::running::Running;
use crate::stores::{PAGE, PAGES, has_all_pages, json, made, run, said};
use pagetier_testing::newest_area;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder on the machine's own file system, and a small one mounted in it.
fn disk() -> Option<(TempDir, SmallDisk)> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    match SmallDisk::mount(folder.path(), "ext4") {
        Ok(disk) => Some((folder, disk)),
        Err(why) => {
            skip(&why);
            None
        }
    }
}

fn text(path: PathBuf) -> String {
    path.to_str().unwrap().to_owned()
}

/// Gives back this much of the space that [`SmallDisk::fill_up`] took.
fn free_some(disk: &SmallDisk, bytes: u64) {
    let ballast = OpenOptions::new().write(true).open(disk.mount.join("ballast")).unwrap();
    ballast.set_len(ballast.metadata().unwrap().len() - bytes).unwrap();
}

/// The bytes of a page's header, the only ones that are not zero in a home that was never written.
const HEADER_BYTES: usize = 32;

/// Makes a copy of a store one of the format before homes were formatted: those of its pages that are not
/// zero have room on the HDD.
fn made_unformatted(store: &Path) {
    let path = store.join("manifest.json");
    let mut bytes = std::fs::read(&path).unwrap();
    let area = newest_area(&bytes);
    let line = bytes[area.clone()].split(|byte| *byte == b'\n').next().unwrap();
    let mut fields: serde_json::Value = serde_json::from_slice(line).unwrap();
    fields["format"] = 4.into();
    let json = serde_json::to_vec(&fields).unwrap();
    let sum = crc32c::crc32c(&json);
    let mut edited = [&json[..], format!("\ncrc32c {sum:08x}\n").as_bytes()].concat();
    edited.resize(area.len(), b'\n');
    bytes[area].copy_from_slice(&edited);
    std::fs::write(&path, bytes).unwrap();
}

/// Copies a store. In its HDD, blocks without room become holes, as by `cp --sparse=always`.
fn copy_with_hdd(from: &Path, to: &Path, has_room: impl Fn(&[u8]) -> bool) {
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap().map(|file| file.unwrap()) {
        let (bytes, is_hdd) = (std::fs::read(file.path()).unwrap(), file.file_name() == "hdd.vol");
        let copy = File::create(to.join(file.file_name())).unwrap();
        copy.set_len(bytes.len() as u64).unwrap();
        for (no, block) in bytes.chunks(PAGE).enumerate() {
            if !is_hdd || has_room(block) {
                copy.write_all_at(block, (no * PAGE) as u64).unwrap();
            }
        }
        copy.sync_all().unwrap();
    }
}

/// At rest, and over the control socket.
#[test]
fn a_backup_into_a_full_directory_names_its_draft_and_succeeds_once_there_is_room() {
    for runs in [false, true] {
        let Some((folder, disk)) = disk() else { return };
        let chain = disk.mount.join("chain");
        let running = runs.then(Running::new);
        let store = running.as_ref().map_or_else(|| folder.path().join("store"), Running::at);
        if !runs {
            made(&store, true);
        }
        std::fs::create_dir(&chain).unwrap();
        let backup = ["backup", store.to_str().unwrap(), "--to", chain.to_str().unwrap()];
        // Without a byte, and with room for half of the backup.
        for room in [0, u64::from(PAGES) * PAGE as u64 / 2] {
            disk.fill_up();
            free_some(&disk, room);
            let full = run(&backup);
            let printed = said(&full);
            assert_eq!(full.status.code(), Some(1), "{printed}");
            assert!(printed.contains("unfinished.partial") && printed.contains("No space left"), "{printed}");
            assert!(printed.contains("free space on the device or in the directory"), "{printed}");
            let finished = std::fs::read_dir(&chain).unwrap().map(|file| file.unwrap().file_name());
            let finished: Vec<_> = finished.filter(|name| name != "unfinished.partial").collect();
            assert!(finished.is_empty(), "an incomplete backup is in the chain: {finished:?}");
            // The engine gets back what there was.
            let draft = std::fs::metadata(chain.join("unfinished.partial"));
            assert_eq!(draft.map_or(0, |draft| draft.len()), 0);
            disk.make_room();
        }
        let (code, report) = json(&backup);
        assert_eq!((code, &report["number"], &report["pages"]), (0, &1.into(), &PAGES.into()));
        let restored = folder.path().join("restored");
        let restore = ["restore", chain.to_str().unwrap(), "--to", restored.to_str().unwrap()];
        assert_eq!(run(&restore).status.code(), Some(0));
        has_all_pages(&restored, "restored");
        let _folder = running.map(Running::closed_whole);
        has_all_pages(&store, "after backups without room");
    }
}

#[test]
fn a_drain_to_a_full_hdd_counts_the_pages_that_stay_on_the_ssd() {
    let Some((folder, disk)) = disk() else { return };
    let (made_at, store) = (folder.path().join("store"), disk.mount.join("store"));
    made(&made_at, true);
    copy_with_hdd(&made_at, &store, |block| block[HEADER_BYTES..].iter().any(|byte| *byte != 0));
    made_unformatted(&store);
    disk.fill_up();
    let at = store.to_str().unwrap();
    let (code, report) = json(&["drain", at, "--off"]);
    assert_eq!(code, 3, "{report}");
    assert_eq!(report["off"], false, "{report}");
    let (left, failed) = (report["left"].as_u64().unwrap(), report["failed"].as_u64().unwrap());
    assert!(left > 0 && (failed > 0 || report["stopped_by"].is_string()), "{report}");
    assert!(failed <= left && left <= u64::from(PAGES), "{report}");
    // The pages are read from the SSD, before there is room and after.
    has_all_pages(&store, "after a drain without room");
    disk.make_room();
    let (code, report) = json(&["drain", at, "--off"]);
    assert_eq!((code, &report["left"], &report["off"]), (0, &0.into(), &true.into()), "{report}");
    has_all_pages(&store, "drained");
}

/// The homes have had their disk space since the space got it.
#[test]
fn a_drain_on_a_full_disk_needs_room_for_the_ring_alone() {
    let Some((folder, disk)) = disk() else { return };
    let (made_at, store) = (folder.path().join("store"), disk.mount.join("store"));
    made(&made_at, true);
    copy_with_hdd(&made_at, &store, |block| block.iter().any(|byte| *byte != 0));
    disk.fill_up();
    let at = store.to_str().unwrap();
    let out = run(&["drain", at, "--off"]);
    assert!(!out.status.success() && said(&out).contains("no space left"), "{}", said(&out));
    has_all_pages(&store, "after a drain without room");
    disk.make_room();
    let (code, report) = json(&["drain", at, "--off"]);
    assert_eq!((code, &report["left"], &report["off"]), (0, &0.into(), &true.into()), "{report}");
    has_all_pages(&store, "drained");
}

#[test]
fn a_restoration_to_a_full_disk_leaves_no_store_and_starts_over_once_there_is_room() {
    let Some((folder, disk)) = disk() else { return };
    let (store, chain) = (folder.path().join("store"), text(folder.path().join("chain")));
    let (to, partial) = (disk.mount.join("to"), disk.mount.join("to.partial"));
    made(&store, true);
    assert_eq!(json(&["backup", store.to_str().unwrap(), "--to", &chain]).1["number"], 1);
    let restore = ["restore", &chain, "--to", to.to_str().unwrap()];
    for room in [64 << 10, u64::from(PAGES) * PAGE as u64 / 2] {
        disk.fill_up();
        free_some(&disk, room);
        let full = run(&restore);
        let printed = said(&full);
        assert_eq!((full.status.code(), to.exists()), (Some(1), false), "{printed}");
        assert!(printed.to_lowercase().contains("no space left"), "{printed}");
        // What it leaves is no store; the next attempt takes its place.
        assert!(partial.exists(), "{printed}");
        disk.make_room();
    }
    let (code, report) = json(&restore);
    assert_eq!((code, &report["pages"], partial.exists()), (0, &PAGES.into(), false), "{report}");
    has_all_pages(&to, "restored");
}
