//! An open takes no other log than the one that its pages need, as far as they need it, and changes
//! nothing when it refuses one.

use crate::calls::space;
use pagetier::backup::BackupOptions;
use pagetier::device::{Backend, OpenOptions, SharedDevice, open_file};
use pagetier::{Builder, Error, Lsn, PageId, PageMut, PageSize, PageStore, pool_bytes_for};
use pagetier_testing::newest_area;
use pagetier_wal::{LoggedStore, RecoverError, UnfitLog, Wal, WalError, WalOptions};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SSD_BYTES: u64 = 200 * 4096;
/// The pages that are changed.
const PAGES: u32 = 12;

fn builder(dir: &Path) -> Builder {
    let builder = PageStore::builder().directory(dir.join("pages")).page_size(PageSize::MIN);
    let builder = builder.ssd_bytes(SSD_BYTES).ring_pages(8).io(Backend::Threads).low_room(0);
    builder.pool_bytes(pool_bytes_for(120, SSD_BYTES, PageSize::MIN))
}

fn options() -> WalOptions {
    WalOptions::new().capacity_bytes(256 << 10)
}

async fn open(dir: &Path) -> Result<LoggedStore, RecoverError> {
    LoggedStore::open(builder(dir), dir.join("log"), options()).await
}

/// Fills a page with `value` and acknowledges it.
async fn put(db: &LoggedStore, no: u32, value: u8) {
    let space = space(db).await;
    let mut change = db.begin::<PageMut<'_>>().await.unwrap();
    let page = change.add(db.get_or_create(PageId::new(space, no)).await.unwrap());
    let filled = vec![value; change.payload(page).len()];
    change.write(page, 0, &filled);
    db.commit(change).await.unwrap();
}

async fn put_all(db: &LoggedStore, value: u8) {
    for no in 0..PAGES {
        put(db, no, value).await;
    }
}

async fn read(db: &PageStore, no: u32) -> u8 {
    let page = db.get(PageId::new(db.spaces().find("t").unwrap(), no)).await.unwrap();
    assert!(page.iter().all(|byte| *byte == page[0]), "page {no} is mixed");
    page[0]
}

async fn expect_all(db: &PageStore, value: u8) {
    for no in 0..PAGES {
        assert_eq!(read(db, no).await, value, "page {no}");
    }
}

async fn crash(db: LoggedStore) {
    let left = db.store().wait_closed();
    drop(db);
    left.await;
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (entry, to) = (entry.as_ref().unwrap(), to.join(entry.as_ref().unwrap().file_name()));
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Every file below `dir` but the locks, with its contents.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(contents(&path));
        } else if path.file_name().is_some_and(|name| name != "lock") {
            all.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    all
}

fn segments(log: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = all.filter(|path| path.extension().is_some_and(|end| end == "log")).collect();
    all.sort();
    all
}

/// The open is refused, and has changed neither pages nor log.
async fn refused(dir: &Path, builder: Builder) -> UnfitLog {
    let (before, has_log) = (contents(dir), dir.join("log").exists());
    let opened = LoggedStore::open(builder, dir.join("log"), options()).await;
    let unfit = match opened {
        Err(RecoverError::Unfit(unfit)) => unfit,
        other => panic!("it was not refused: {other:?}"),
    };
    let after = contents(dir);
    assert!(before == after, "the refused open changed a file");
    assert_eq!(dir.join("log").exists(), has_log, "a directory is in the way of the right log");
    unfit
}

/// A store whose log has been copied aside at value 1, and that goes on to value 5.
async fn with_older_copy(dir: &Path, closes: bool) -> PathBuf {
    let db = open(dir).await.unwrap();
    put_all(&db, 1).await;
    db.shutdown().await.unwrap();
    copy(&dir.join("log"), &dir.join("older"));
    let db = open(dir).await.unwrap();
    for value in 2..=5 {
        put_all(&db, value).await;
    }
    if closes {
        db.shutdown().await.unwrap();
    } else {
        crash(db).await;
    }
    dir.join("older")
}

#[tokio::test]
async fn an_older_copy_of_the_log_is_refused_after_a_close_and_after_a_crash() {
    for closes in [true, false] {
        let folder = pagetier_testing::scratch();
        let dir = &folder.path().join("db");
        let older = with_older_copy(dir, closes).await;
        fs::rename(dir.join("log"), dir.join("newer")).unwrap();
        fs::rename(older, dir.join("log")).unwrap();
        let unfit = refused(dir, builder(dir)).await;
        // After the crash the copy reaches as far as recorded, but lacks the last generation.
        let expected = matches!(unfit, UnfitLog::Short { .. } | UnfitLog::OtherCopy { .. });
        assert!(expected, "{unfit:?}");
        // The right log is put back.
        fs::remove_dir_all(dir.join("log")).unwrap();
        fs::rename(dir.join("newer"), dir.join("log")).unwrap();
        let db = open(dir).await.unwrap();
        expect_all(&db, 5).await;
    }
}

#[tokio::test]
async fn a_blank_log_is_refused_also_if_the_ssd_is_lost_and_given_up_only_when_told_so() {
    for without_ssd in [false, true] {
        let folder = pagetier_testing::scratch();
        let dir = &folder.path().join("db");
        let db = open(dir).await.unwrap();
        put_all(&db, 1).await;
        db.sync().await.unwrap();
        put_all(&db, 2).await;
        crash(db).await;
        fs::rename(dir.join("log"), dir.join("aside")).unwrap();
        let mut given = builder(dir);
        if without_ssd {
            fs::remove_file(dir.join("pages/ssd.cache")).unwrap();
            given = given.accept_ssd_loss(true);
        }
        assert_eq!(refused(dir, given).await, UnfitLog::Missing);
        if without_ssd {
            continue;
        }
        // The right log.
        copy(dir, &folder.path().join("other"));
        let other = &folder.path().join("other");
        fs::rename(other.join("aside"), other.join("log")).unwrap();
        let db = open(other).await.unwrap();
        expect_all(&db, 2).await;
        drop(db);
        // None: what was flushed is there, and later changes survive a crash, although the log is new.
        let accepting = || builder(dir).accept_log_loss(true);
        let db = LoggedStore::open(accepting(), dir.join("log"), options()).await.unwrap();
        for no in 0..PAGES {
            assert!(read(&db, no).await >= 1);
        }
        put_all(&db, 3).await;
        crash(db).await;
        let db = open(dir).await.unwrap();
        expect_all(&db, 3).await;
    }
}

#[tokio::test]
async fn a_young_store_names_its_log_before_anything_is_synced() {
    let folder = pagetier_testing::scratch();
    let dir = folder.path();
    let db = open(dir).await.unwrap();
    put_all(&db, 1).await;
    crash(db).await;
    fs::rename(dir.join("log"), dir.join("aside")).unwrap();
    assert_eq!(refused(dir, builder(dir)).await, UnfitLog::Missing);
    fs::rename(dir.join("aside"), dir.join("log")).unwrap();
    expect_all(&open(dir).await.unwrap(), 1).await;
}

/// The last position of the log that the store's manifest names.
fn recorded(dir: &Path) -> u64 {
    let file = fs::read(dir.join("pages/manifest.json")).unwrap();
    let manifest = String::from_utf8_lossy(&file[newest_area(&file)]).into_owned();
    let ends = manifest.split("\"end\":").skip(1);
    let digits = |rest: &str| rest.split(|c: char| !c.is_ascii_digit()).next().map(str::to_owned);
    ends.filter_map(digits).filter_map(|end| end.parse().ok()).max().unwrap_or(0)
}

/// Where the last of the segments begins, which its name says.
fn begins_at(segments: &[PathBuf]) -> u64 {
    let name = segments.last().unwrap().file_stem().unwrap().to_str().unwrap();
    u64::from_str_radix(name, 16).unwrap()
}

#[tokio::test]
async fn a_log_without_its_newest_segment_is_refused_after_a_crash() {
    let folder = pagetier_testing::scratch();
    let dir = folder.path();
    let open = || LoggedStore::open(builder(dir), dir.join("log"), WalOptions::new().capacity_bytes(4 << 20));
    let db = open().await.unwrap();
    for value in 1..=8 {
        put_all(&db, value).await;
    }
    // The store records in the background that the log has got there.
    while recorded(dir) <= begins_at(&segments(&dir.join("log"))) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    crash(db).await;
    let all = segments(&dir.join("log"));
    assert!(all.len() > 1);
    let newest = all.last().unwrap();
    let aside = dir.join("aside");
    fs::rename(newest, &aside).unwrap();
    let unfit = refused(dir, builder(dir)).await;
    assert!(matches!(unfit, UnfitLog::Short { .. }), "{unfit:?}");
    fs::rename(aside, newest).unwrap();
    expect_all(&open().await.unwrap(), 8).await;
}

#[tokio::test]
async fn rot_in_the_last_segment_is_no_torn_tail_and_makes_no_synced_page_older() {
    for closes in [true, false] {
        let folder = pagetier_testing::scratch();
        let (dir, rotten) = (&folder.path().join("db"), &folder.path().join("rotten"));
        let db = open(dir).await.unwrap();
        for value in 1..=4 {
            for no in 0..3 {
                put(&db, no, value).await;
            }
        }
        db.sync().await.unwrap();
        // The last write, which nothing but the recorded end tells from a torn one.
        put(&db, 3, 9).await;
        if closes {
            db.shutdown().await.unwrap();
        } else {
            crash(db).await;
        }
        let name = segments(&dir.join("log")).pop().unwrap().file_name().unwrap().to_owned();
        // Zeroes follow, which the file had before.
        let whole = fs::read(dir.join("log").join(&name)).unwrap();
        let bytes = whole.iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1;
        let (mut opened, places) = (0, 40);
        for place in 0..places {
            copy(dir, rotten);
            let path = rotten.join("log").join(&name);
            let mut segment = fs::read(&path).unwrap();
            segment[(bytes * place / places) as usize] ^= 0x10;
            fs::write(&path, segment).unwrap();
            if let Ok(db) = open(rotten).await {
                opened += 1;
                for no in 0..3 {
                    assert_eq!(read(&db, no).await, 4, "place {place}, page {no}");
                }
                crash(db).await;
            }
        }
        // One of 13 records is the last.
        assert!(opened <= if closes { 0 } else { 4 }, "{opened} places passed for a torn tail");
    }
}

#[tokio::test]
async fn restored_pages_refuse_a_later_log_with_a_gap_and_take_one_without() {
    let folder = pagetier_testing::scratch();
    let (live, chain) = (&folder.path().join("live"), &folder.path().join("chain"));
    let db = open(live).await.unwrap();
    put_all(&db, 1).await;
    let report = db.backup(chain, BackupOptions::new()).await.unwrap();
    for value in 2..=40 {
        put_all(&db, value).await;
        if value == 3 {
            let to = &folder.path().join("soon");
            db.wal().copy_to(&to.join("log")).await.unwrap();
            builder(to).restore(chain, Some(report.number), |_| ()).await.unwrap();
            let restored = open(to).await.unwrap();
            expect_all(&restored, 3).await;
            crash(restored).await;
            // It is a store of its own from its first open on.
            expect_all(&open(to).await.unwrap(), 3).await;
        }
        db.checkpoint().await.unwrap();
    }
    let to = &folder.path().join("late");
    db.wal().copy_to(&to.join("log")).await.unwrap();
    db.shutdown().await.unwrap();
    builder(to).restore(chain, Some(report.number), |_| ()).await.unwrap();
    let unfit = refused(to, builder(to)).await;
    assert!(matches!(unfit, UnfitLog::Gap { .. }), "{unfit:?}");
}

#[tokio::test]
async fn the_logs_of_a_store_and_of_its_restored_copy_cannot_be_exchanged() {
    for works in [true, false] {
        let folder = pagetier_testing::scratch();
        let [one, two, chain] = ["one", "two", "chain"].map(|name| folder.path().join(name));
        let db = open(&one).await.unwrap();
        put_all(&db, 1).await;
        let report = db.backup(&chain, BackupOptions::new()).await.unwrap();
        if works {
            put_all(&db, 2).await;
        }
        db.shutdown().await.unwrap();
        LoggedStore::restore(builder(&two), &two.join("log"), &chain, report.number).await.unwrap();
        let copy = open(&two).await.unwrap();
        put_all(&copy, 7).await;
        copy.shutdown().await.unwrap();
        let aside = folder.path().join("aside");
        fs::rename(one.join("log"), &aside).unwrap();
        fs::rename(two.join("log"), one.join("log")).unwrap();
        fs::rename(aside, two.join("log")).unwrap();
        for dir in [&one, &two] {
            let unfit = refused(dir, builder(dir)).await;
            assert!(
                matches!(unfit, UnfitLog::OtherCopy { .. } | UnfitLog::Short { .. } | UnfitLog::Gap { .. }),
                "{unfit:?}"
            );
        }
    }
}

#[tokio::test]
async fn the_log_of_another_store_is_not_redone_over_pages_that_were_never_logged() {
    let folder = pagetier_testing::scratch();
    let (plain, other) = (&folder.path().join("plain"), &folder.path().join("other"));
    let store = builder(plain).open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    for _ in 0..PAGES {
        store.allocate(space).await.unwrap().fill(55);
    }
    store.close().await.unwrap();
    let db = open(other).await.unwrap();
    put_all(&db, 3).await;
    db.shutdown().await.unwrap();
    copy(&other.join("log"), &plain.join("log"));
    assert_eq!(refused(plain, builder(plain)).await, UnfitLog::NoPages);
    expect_all(&builder(plain).open().await.unwrap(), 55).await;
    // A new log is taken.
    fs::remove_dir_all(plain.join("log")).unwrap();
    let db = open(plain).await.unwrap();
    put_all(&db, 4).await;
    crash(db).await;
    expect_all(&open(plain).await.unwrap(), 4).await;
}

#[tokio::test]
async fn a_page_that_is_newer_than_the_log_ends_all_commits() {
    let folder = pagetier_testing::scratch();
    let dir = folder.path();
    let db = open(dir).await.unwrap();
    put(&db, 0, 1).await;
    let page = PageId::new(space(&db).await, 0);
    let (end, mut change) = (db.wal().end(), db.begin::<PageMut<'_>>().await.unwrap());
    let mut guard = db.get_mut(page).await.unwrap();
    guard.set_lsn(Lsn(end.0 + 1_000_000));
    let at = change.add(guard);
    change.write(at, 0, b"x");
    let committed = db.commit(change).await;
    assert!(matches!(committed, Err(WalError::Behind { .. })), "{committed:?}");
    let synced = db.sync().await;
    assert!(matches!(synced, Err(Error::Pool(_))), "{synced:?}");
}

fn device(path: &Path) -> SharedDevice {
    let options = OpenOptions { backend: Backend::Threads, ..OpenOptions::default() };
    open_file(path, &options).unwrap().device
}

#[tokio::test]
async fn a_device_that_was_cut_is_refused_wherever_the_log_ends() {
    let folder = pagetier_testing::scratch();
    let path = &folder.path().join("log");
    let options = || WalOptions::new().capacity_bytes(1 << 20);
    fs::File::create(path).unwrap().set_len(64 << 20).unwrap();
    let wal = Wal::on_device(device(path), options()).await.unwrap();
    for byte in 0..20 {
        wal.flush(wal.append_commit(&[byte; 9_000]).unwrap()).await.unwrap();
    }
    let end = wal.end();
    drop(wal);
    for percent in [90, 20, 6, 3] {
        let cut = &folder.path().join(format!("cut {percent}"));
        fs::copy(path, cut).unwrap();
        let bytes = (64 << 20) * percent / 100 / 4096 * 4096;
        fs::File::options().write(true).open(cut).unwrap().set_len(bytes).unwrap();
        let opened = Wal::on_device(device(cut), options()).await;
        let Err(WalError::Io { source, .. }) = opened else { panic!("{percent}: {opened:?}") };
        assert!(source.to_string().contains("was cut to"), "{source}");
    }
    assert_eq!(Wal::on_device(device(path), options()).await.unwrap().end(), end);
}

/// Records before that would follow what redo has yet to read, in a log that the store does not know.
#[tokio::test]
async fn a_log_takes_no_record_before_its_store_is_recovered() {
    let dir = pagetier_testing::scratch();
    let wal = Wal::open(&dir.path().join("log"), options()).unwrap();
    let store = std::sync::Arc::new(builder(dir.path()).log_gate(wal.gate()).open().await.unwrap());
    let early = wal.append_commit(b"early").unwrap();
    assert!(matches!(wal.flush(early).await, Err(WalError::NotRecovered)));
    pagetier_wal::recover(&store, &wal).await.unwrap();
    wal.flush(early).await.unwrap();
    store.shutdown().await.unwrap();
}

/// A freed page has lost its contents: redo of its earlier changes would make a page of parts.
#[tokio::test]
async fn a_log_that_has_lost_the_record_of_a_free_is_refused() {
    let folder = pagetier_testing::scratch();
    let dir = folder.path();
    let db = open(dir).await.unwrap();
    put_all(&db, 1).await;
    db.shutdown().await.unwrap();
    let db = open(dir).await.unwrap();
    let space = space(&db).await;
    let page = PageId::new(space, 0);
    // A change of a part, which needs what the page was before.
    let mut change = db.begin::<PageMut<'_>>().await.unwrap();
    let part = change.add(db.get_mut(page).await.unwrap());
    change.write(part, 8, &[2; 8]);
    db.commit(change).await.unwrap();
    let newest = segments(&dir.join("log")).pop().unwrap();
    // Behind the headers of file and generation.
    let before = 60 + db.wal().end().0 - db.wal().segment_starts().last().unwrap();
    let mut change = db.begin::<PageMut<'_>>().await.unwrap();
    change.free(page);
    db.commit(change).await.unwrap();
    assert_eq!(db.wal().free_pending(db.store()).await.unwrap(), 1);
    crash(db).await;
    copy(&dir.join("log"), &dir.join("right"));
    fs::File::options().write(true).open(&newest).unwrap().set_len(before).unwrap();
    refused(dir, builder(dir)).await;
    copy(&dir.join("right"), &dir.join("log"));
    let db = open(dir).await.unwrap();
    assert!(matches!(db.get(page).await, Err(Error::NoSuchPage { .. })));
    for no in 1..PAGES {
        assert_eq!(read(&db, no).await, 1, "page {no}");
    }
}

/// Openers that crash before the store has recorded its log, each on an SSD of its own, as machines that race
/// for a new store. The loss of an SSD that had no page tells nothing of the log.
#[tokio::test]
async fn a_store_that_lost_its_ssd_before_it_had_a_page_is_new() {
    let dir = pagetier_testing::scratch();
    for _ in 0..2 {
        let wal = Wal::open(&dir.path().join("log"), options()).unwrap();
        let opened = builder(dir.path()).accept_ssd_loss(true).log_gate(wal.gate()).open().await;
        drop(opened.unwrap());
        fs::remove_file(dir.path().join("pages/ssd.cache")).unwrap();
    }
    let store = builder(dir.path()).accept_ssd_loss(true);
    let db = LoggedStore::open(store, dir.path().join("log"), options()).await.unwrap();
    assert!(db.wal().is_new(), "it begins at {}", db.wal().end());
    put(&db, 0, 7).await;
    drop(db);
    let db = open(dir.path()).await.unwrap();
    assert_eq!(read(&db, 0).await, 7);
}
