//! A log whose file system is full, through the kernel: pages are freed for as long as it is. Needs root and
//! loop devices; without them the test says so on standard error and does nothing.

use pagetier::errors::Advice;
use pagetier::{Lsn, PageId, PageStore};
use pagetier_wal::{LoggedStore, WalError, WalOptions};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const PAGES: u32 = 120;

/// An ext4 of 16 MiB; unmounted when dropped.
struct Small(PathBuf);

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

impl Small {
    fn mount(folder: &Path) -> Option<Self> {
        let (image, at) = (folder.join("image"), folder.join("at"));
        File::create(&image).and_then(|file| file.set_len(16 << 20)).ok()?;
        std::fs::create_dir(&at).ok()?;
        let made = Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image).status().ok()?.success();
        let mounted = || Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at).status();
        (made && mounted().ok()?.success()).then_some(Self(at))
    }

    /// Leaves no space, as other users of the disk would at any time.
    fn fill_up(&self) {
        let ballast = self.0.join("ballast");
        let mut file = File::options().create(true).append(true).open(ballast).unwrap();
        for bytes in [1 << 20, 4096, 512] {
            while file.write_all(&vec![7; bytes]).is_ok() {}
        }
        let _ = file.sync_all();
    }
}

async fn open(folder: &Path, disk: &Small) -> LoggedStore {
    let builder = PageStore::builder().directory(folder.join("store")).ssd_bytes(4 << 20).pool_bytes(4 << 20);
    let options = WalOptions::new().capacity_bytes(256 << 10);
    LoggedStore::open(builder, disk.0.join("log"), options).await.unwrap()
}

async fn put(db: &LoggedStore, page: PageId, bytes: usize) -> Result<Lsn, WalError> {
    let mut change = db.begin().await?;
    let at = change.add(db.get_mut(page).await.expect("the page"));
    change.write(at, 1000, &vec![7; bytes]);
    db.commit(change).await
}

async fn trim(db: &LoggedStore, head: PageId, page: PageId) -> Result<Lsn, WalError> {
    let mut change = db.begin().await?;
    let at = change.add(db.get_mut(head).await.expect("the page"));
    change.write(at, 8 * page.no as usize, b"is freed");
    change.free(page);
    db.commit(change).await
}

#[tokio::test]
async fn pages_are_freed_on_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = Small::mount(folder.path()) else {
        pagetier_testing::skipped("mounts", "a full disk is not tried");
        return;
    };
    let mut db = open(folder.path(), &disk).await;
    let space = db.spaces().create("pages").await.unwrap();
    let page = |no| PageId::new(space, no);
    for _ in 0..PAGES {
        let mut change = db.begin().await.unwrap();
        let at = change.add(db.allocate(space).await.unwrap());
        change.write(at, 0, &[1; 8]);
        db.commit(change).await.unwrap();
    }
    let mut refused = 0;
    for no in 1..PAGES {
        // Whatever the log gives back, others take.
        disk.fill_up();
        for other in 0..5 {
            if let Err(error) = put(&db, page(PAGES - 1 - other % (PAGES - no)), 9_000).await {
                assert_eq!(error.advice(), Advice::FreeSpace, "{error}");
                refused += 1;
            }
        }
        trim(&db, page(0), page(no)).await.unwrap_or_else(|error| panic!("page {no}: {error}"));
        if no % 10 == 0 {
            // As after a crash.
            let closed = db.wait_closed();
            drop(db);
            closed.await;
            db = open(folder.path(), &disk).await;
        }
        if no % 3 == 0 {
            db.wal().free_pending(db.store()).await.unwrap();
            assert!(!db.exists(page(no)));
        }
    }
    assert!(refused > 10, "{refused}");
    db.wal().free_pending(db.store()).await.unwrap();
    assert!((1..PAGES).all(|no| !db.exists(page(no))));
    db.checkpoint().await.unwrap();
    std::fs::remove_file(disk.0.join("ballast")).unwrap();
    put(&db, page(0), 9_000).await.unwrap();
    db.shutdown().await.unwrap();
}

/// A page was freed, and its extent is another space's. Redo of what the log has of it, from before the
/// record that frees it, needs no disk space: there is none.
#[tokio::test]
async fn redo_of_a_freed_page_needs_no_space_on_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = Small::mount(folder.path()) else {
        pagetier_testing::skipped("mounts", "a full disk is not tried");
        return;
    };
    let open = async || {
        let builder = PageStore::builder().directory(disk.0.join("store")).ssd_bytes(1 << 20);
        let options = WalOptions::new().capacity_bytes(1 << 20);
        LoggedStore::open(builder.pool_bytes(4 << 20), folder.path().join("log"), options).await
    };
    let db = open().await.unwrap();
    let [space, other] = ["freed", "other"].map(|name| db.spaces().create(name));
    let (space, other) = (space.await.unwrap(), other.await.unwrap());
    let [first, freed] = [0, 64].map(|no| PageId::new(space, no));
    for page in [first, freed] {
        let mut change = db.begin().await.unwrap();
        let at = change.add(db.overwrite(page).await.unwrap());
        change.write(at, 0, &[1; 8]);
        db.commit(change).await.unwrap();
    }
    // The record that frees it is in a later segment.
    for _ in 0..20 {
        put(&db, first, 9_000).await.unwrap();
    }
    trim(&db, first, freed).await.unwrap();
    db.wal().free_pending(db.store()).await.unwrap();
    db.spaces().shrink(space).await.unwrap();
    disk.fill_up();
    while let Ok(page) = db.allocate(other).await {
        drop(page);
    }
    let closed = db.wait_closed();
    drop(db);
    closed.await;
    let db = open().await.unwrap();
    assert!(!db.exists(freed));
    assert_eq!(db.get(first).await.unwrap()[..8], [1; 8]);
    std::fs::remove_file(disk.0.join("ballast")).unwrap();
    db.shutdown().await.unwrap();
}
