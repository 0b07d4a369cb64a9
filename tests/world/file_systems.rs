//! File systems: one table. In each row a store is opened, written and synced; the file system is filled up;
//! the store is closed, opened, crashed, opened again, frees pages, and resumes once there is room. Nothing
//! that was synced is lost.

use crate::mounted::{SmallDisk, check, grown, reports_a_full_disk, run, skip, word};
use futures_util::future::join_all;
use pagetier::{PageId, PageStore, SpaceId};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Pages written to each space before the disk is full.
const PAGES: u32 = 300;

/// A row of the table.
struct Row {
    name: &'static str,
    mount: fn(&Path) -> Result<Place, String>,
}

/// A mounted file system, and the directory in it that the store gets.
struct Place {
    disk: SmallDisk,
    directory: PathBuf,
}

fn plain(folder: &Path, kind: &str, sector_bytes: u32, options: &str) -> Result<Place, String> {
    let disk = SmallDisk::with_sectors(folder, kind, sector_bytes, options)?;
    Ok(Place { directory: disk.mount.join("store"), disk })
}

/// A limit of 48 MiB for the directory, which `xfs_quota` enforces even for root.
fn xfs_with_a_quota(folder: &Path) -> Result<Place, String> {
    let disk = SmallDisk::with_sectors(folder, "xfs", 512, "prjquota")?;
    let limited = disk.mount.join("limited");
    std::fs::create_dir(&limited).map_err(|e| e.to_string())?;
    let project = format!("project -s -p {} 7", limited.display());
    for command in [project.as_str(), "limit -p bhard=48m 7"] {
        run(Command::new("xfs_quota").args(["-x", "-c", command]).arg(&disk.mount))?;
    }
    Ok(Place { directory: limited.join("store"), disk: disk.with_ballast_in(limited) })
}

/// A limit of 48 MiB for a subvolume.
fn btrfs_with_a_quota(folder: &Path) -> Result<Place, String> {
    let disk = SmallDisk::with_sectors(folder, "btrfs", 512, "defaults")?;
    let limited = disk.mount.join("limited");
    run(Command::new("btrfs").args(["quota", "enable"]).arg(&disk.mount))?;
    run(Command::new("btrfs").args(["subvolume", "create"]).arg(&limited))?;
    run(Command::new("btrfs").args(["qgroup", "limit", "48M"]).arg(&limited))?;
    Ok(Place { directory: limited.join("store"), disk: disk.with_ballast_in(limited) })
}

fn overlay(folder: &Path) -> Result<Place, String> {
    let below = SmallDisk::with_sectors(folder, "ext4", 512, "defaults")?;
    for name in ["lower", "upper", "work"] {
        std::fs::create_dir(below.mount.join(name)).map_err(|e| e.to_string())?;
    }
    let at = |name: &str| below.mount.join(name).display().to_string();
    let options = format!("lowerdir={},upperdir={},workdir={}", at("lower"), at("upper"), at("work"));
    let above = folder.join("above");
    std::fs::create_dir(&above).map_err(|e| e.to_string())?;
    let disk = SmallDisk::without_device(&above, "overlay", &options)?.over(below);
    Ok(Place { directory: disk.mount.join("store"), disk })
}

const ROWS: [Row; 10] = [
    Row { name: "ext4, sectors of 512 bytes", mount: |folder| plain(folder, "ext4", 512, "defaults") },
    Row { name: "ext4, sectors of 4 KiB", mount: |folder| plain(folder, "ext4", 4096, "defaults") },
    Row { name: "xfs, sectors of 512 bytes", mount: |folder| plain(folder, "xfs", 512, "defaults") },
    Row { name: "xfs, sectors of 4 KiB", mount: |folder| plain(folder, "xfs", 4096, "defaults") },
    Row { name: "xfs with a quota", mount: xfs_with_a_quota },
    Row { name: "btrfs, sectors of 512 bytes", mount: |folder| plain(folder, "btrfs", 512, "defaults") },
    Row { name: "btrfs, compressed", mount: |folder| plain(folder, "btrfs", 4096, "compress-force=zstd") },
    Row { name: "btrfs with a quota", mount: btrfs_with_a_quota },
    Row {
        name: "tmpfs",
        mount: |folder| {
            let disk = SmallDisk::without_device(folder, "tmpfs", "size=64m")?;
            Ok(Place { directory: disk.mount.join("store"), disk })
        },
    },
    Row { name: "overlay over ext4", mount: overlay },
];

async fn open(place: &Place) -> PageStore {
    let builder = PageStore::builder().directory(&place.directory).ssd_bytes(6 << 20).pool_bytes(3 << 20);
    builder.exhausted_after(Duration::from_millis(500)).open().await.unwrap()
}

async fn write(store: &PageStore, space: SpaceId, no: u32, version: u32) {
    store.get_mut(PageId::new(space, no)).await.unwrap()[..8].copy_from_slice(&word(no, version));
}

/// Allocates pages until that fails; returns the number of pages. An allocation that finds no frame in time
/// may use up a number without creating its page.
async fn fill(store: &PageStore, space: SpaceId) -> u32 {
    let mut pages = store.spaces().pages(space).unwrap();
    for _ in 0..40 * PAGES {
        match store.allocate(space).await {
            // A freed page is used again first, so the numbers need not rise.
            Ok(mut page) => {
                let no = page.id().no;
                page[..8].copy_from_slice(&word(no, 1));
                pages = pages.max(no + 1);
            }
            Err(error) => {
                assert!(reports_a_full_disk(&error), "{error}");
                return pages;
            }
        }
    }
    panic!("the file system does not fill up");
}

async fn lives(place: &Place, crash: bool, name: &str) {
    println!("{name}, crash: {crash}");
    // 1. Open, write, sync.
    let store = open(place).await;
    assert!(store.recovery().clean);
    let [kept, dropped] = [store.spaces().create("kept").await, store.spaces().create("dropped").await];
    let [kept, dropped] = [kept.unwrap(), dropped.unwrap()];
    for no in 0..PAGES {
        for space in [kept, dropped] {
            store.allocate(space).await.unwrap()[..8].copy_from_slice(&word(no, 1));
        }
    }
    store.sync().await.unwrap();
    // 2. Fill up; what is allocated has its disk space.
    place.disk.fill_up();
    let pages = fill(&store, kept).await;
    for turn in 2..5 {
        for no in (0..pages).step_by(2) {
            write(&store, kept, no, turn).await;
        }
        store.sync().await.unwrap();
    }
    let version = |no: u32| if no.is_multiple_of(2) { 4 } else { 1 };
    // 3. Close or crash, and open without a free byte.
    if crash {
        drop(store);
    } else {
        store.close().await.unwrap();
    }
    let store = open(place).await;
    assert_eq!(store.recovery().clean, !crash);
    check(&store, kept, pages, version).await;
    check(&store, dropped, PAGES, |_| 1).await;
    store.close().await.unwrap();
    let store = open(place).await;
    // 4. Free pages and a space; other pages get the disk space.
    assert_eq!(store.free((dropped, 0..PAGES / 2)).await.unwrap(), PAGES / 2);
    store.free(PageId::new(kept, pages - 1)).await.unwrap();
    store.spaces().drop(dropped).await.unwrap();
    let more = fill(&store, kept).await;
    assert!(more >= pages + PAGES / 2, "{more} pages after {pages}");
    store.sync().await.unwrap();
    drop(store);
    // 5. Resume once there is room.
    place.disk.make_room();
    let store = open(place).await;
    check(&store, kept, pages - 1, version).await;
    for no in 0..more {
        write(&store, kept, no, 5).await;
    }
    let next = grown(&store, "next", PAGES, 6).await;
    store.sync().await.unwrap();
    store.close().await.unwrap();
    let store = open(place).await;
    check(&store, kept, more, |_| 5).await;
    check(&store, next, PAGES, |_| 6).await;
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_file_system_keeps_what_was_synced_when_it_is_full() {
    let only = std::env::var("PAGETIER_WORLD").unwrap_or_default();
    // At once: each waits for its own device most of the time.
    join_all(ROWS.iter().filter(|row| row.name.contains(&only)).map(async |row| {
        for crash in [false, true] {
            let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            match (row.mount)(folder.path()) {
                Ok(place) => lives(&place, crash, row.name).await,
                Err(why) => return skip(&format!("{}: {why}", row.name)),
            }
        }
    }))
    .await;
}

/// A full btrfs refuses even the byte by which a dropped store says that it is leaving.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_disk_an_opening_waits_for_a_dropped_store_whose_operations_are_in_flight() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let place = match plain(folder.path(), "btrfs", 512, "defaults") {
        Ok(place) => place,
        Err(why) => return skip(&why),
    };
    let store = open(&place).await;
    let space = grown(&store, "t", PAGES, 1).await;
    store.close().await.unwrap();
    let rest = place.disk.mount.join("rest");
    for turn in 2..6 {
        // It can still write that it is running.
        let store = open(&place).await;
        place.disk.fill_up();
        let mut file = std::fs::File::create(&rest).unwrap();
        while file.write_all(&[1; 512]).is_ok() {}
        for no in 0..PAGES {
            write(&store, space, no, turn).await;
        }
        // Dropped with the store once its writes have begun.
        let _ = tokio::time::timeout(Duration::from_millis(1), store.sync()).await;
        drop(store);
        let store = open(&place).await;
        for no in 0..PAGES {
            let page = store.get(PageId::new(space, no)).await.unwrap();
            assert!((1..=turn).any(|turn| page[..8] == word(no, turn)), "page {no}");
        }
        store.close().await.unwrap();
        place.disk.make_room();
        std::fs::remove_file(&rest).unwrap();
    }
}

/// Files that btrfs copies on write, because the store did not create them: a full disk stops writes with an
/// error that says so, and they resume once there is room and the SSD is readmitted, or after an open.
/// What was synced stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_files_that_are_copied_on_write_writes_resume_once_there_is_room() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let place = match plain(folder.path(), "btrfs", 512, "defaults") {
        Ok(place) => place,
        Err(why) => return skip(&why),
    };
    std::fs::create_dir(&place.directory).unwrap();
    for name in ["hdd.vol", "ssd.cache"] {
        // Only an empty file can be switched to being overwritten in place.
        std::fs::File::create(place.directory.join(name)).unwrap().set_len(4096).unwrap();
    }
    let store = open(&place).await;
    let space = grown(&store, "t", PAGES, 1).await;
    store.sync().await.unwrap();
    place.disk.fill_up();
    let mut refused = None;
    for no in 0..PAGES {
        match store.get_mut(PageId::new(space, no)).await {
            Ok(mut page) => page[..8].copy_from_slice(&word(no, 2)),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    refused = store.sync().await.err().or(refused);
    let text = refused.map(|error| error.to_string()).unwrap_or_default();
    assert!(text.contains("no space left"), "{text}");
    // Pages in memory and on the devices can be read.
    for no in (0..PAGES).rev().step_by(7) {
        if let Ok(page) = store.get(PageId::new(space, no)).await {
            assert!(page[..8] == word(no, 1) || page[..8] == word(no, 2), "page {no}");
        }
    }
    place.disk.make_room();
    // The SSD counts as failed until it is readmitted.
    store.ssd().readmit().await.unwrap();
    store.sync().await.unwrap();
    for no in 0..PAGES {
        write(&store, space, no, 5).await;
    }
    store.sync().await.unwrap();
    // Closed on a full disk, and opened there or once there is room.
    place.disk.fill_up();
    let _ = store.close().await;
    let opened = PageStore::builder().directory(&place.directory).ssd_bytes(6 << 20).open().await;
    if let Ok(store) = opened {
        check(&store, space, PAGES, |_| 5).await;
        let left = store.wait_closed();
        drop(store);
        left.await;
    }
    place.disk.make_room();
    let store = open(&place).await;
    check(&store, space, PAGES, |_| 5).await;
    for no in 0..PAGES {
        write(&store, space, no, 6).await;
    }
    store.close().await.unwrap();
}
