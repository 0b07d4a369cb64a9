//! Restorations to a moment: each shows what the store was then, and no archive passes that has less or other
//! records than that takes.

use crate::media::{FileMedia, Media};
use crate::{
    ArchiveError, LoggedBackupError, LoggedStore, Moment, RecoverError, UnfitLog, Until, Wal, WalError,
    WalOptions,
};
use pagetier::backup::BackupOptions;
use pagetier::{Builder, Lsn, PageId, PageStore};
use pagetier_devio::files::RealDir;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn builder(dir: &Path) -> Builder {
    PageStore::builder().directory(dir.join("pages")).ssd_bytes(0).pool_bytes(4 << 20)
}

/// Segments of 64 KiB.
fn options() -> WalOptions {
    WalOptions::new().capacity_bytes(256 << 10)
}

async fn open(dir: &Path, archive: Option<&Path>) -> Result<LoggedStore, RecoverError> {
    let wal = Wal::open_when_free(&dir.join("log"), options()).await?;
    if let Some(archive) = archive {
        wal.archive_to(archive)?;
    }
    LoggedStore::on(builder(dir), wal).await
}

/// A store with an archive, a backup, and what was true when.
struct World {
    dir: tempfile::TempDir,
    /// After each change: its time, its LSN, its number.
    moments: Vec<(SystemTime, Lsn, u32)>,
    number: u32,
    first: Lsn,
}

const CHANGES: u32 = 40;

impl World {
    async fn new() -> Self {
        let dir = pagetier_testing::scratch();
        fs::create_dir(dir.path().join("archive")).unwrap();
        let mut world = Self { moments: Vec::new(), number: 0, first: Lsn(0), dir };
        let db = open(&world.at("store"), Some(&world.archive())).await.unwrap();
        let space = db.spaces().create("t").await.unwrap();
        for n in 0..CHANGES {
            if n == 10 {
                let made = db.backup(&world.at("chain"), BackupOptions::new()).await.unwrap();
                (world.number, world.first) = (made.number, db.wal().durable());
            }
            world.put(&db, PageId::new(space, 0), n).await;
        }
        db.wal().archive_now().await.unwrap();
        db.shutdown().await.unwrap();
        world
    }

    async fn put(&mut self, db: &LoggedStore, page: PageId, n: u32) {
        let mut change = db.begin().await.unwrap();
        let at = change.add(db.get_or_create(page).await.unwrap());
        change.write(at, 0, &n.to_le_bytes());
        // So that the log has several segments.
        change.write(at, 64, &[n as u8; 3900].as_slice()[..3900]);
        let filler = change.add(db.get_or_create(PageId::new(page.space, 1 + n % 4)).await.unwrap());
        change.write(filler, 0, &[n as u8; 4000]);
        let lsn = db.commit(change).await.unwrap();
        self.moments.push((SystemTime::now(), lsn, n));
        // The next one has a later time.
        tokio::time::sleep(Duration::from_millis(3)).await;
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn archive(&self) -> PathBuf {
        self.at("archive")
    }

    async fn restore(&self, to: &Path, archive: &Path, until: Until) -> Result<Lsn, LoggedBackupError> {
        let chain = self.at("chain");
        LoggedStore::restore_until(builder(to), &to.join("log"), (&chain, self.number), archive, until).await
    }

    /// Restores, and returns the number that page 0 has.
    async fn restored(&self, name: &str, until: Until) -> (Lsn, u32) {
        let to = self.at(name);
        let lsn = self.restore(&to, &self.archive(), until).await.unwrap();
        let db = open(&to, None).await.unwrap();
        let page = PageId::new(db.spaces().find("t").unwrap(), 0);
        let found = u32::from_le_bytes(db.get(page).await.unwrap()[..4].try_into().unwrap());
        db.shutdown().await.unwrap();
        (lsn, found)
    }

    async fn refused(&self, archive: &Path, until: Until) -> ArchiveError {
        let to = self.at("refused");
        let refused = self.restore(&to, archive, until).await.unwrap_err();
        assert!(!to.exists(), "nothing is written");
        match refused {
            LoggedBackupError::Log(WalError::Archive(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    /// A copy of the archive, changed by `change` in its segments after the backup.
    fn spoiled(&self, change: impl FnOnce(&[PathBuf])) -> PathBuf {
        let to = self.at("spoiled");
        let _ = fs::remove_dir_all(&to);
        fs::create_dir(&to).unwrap();
        for file in fs::read_dir(self.archive()).unwrap().map(|file| file.unwrap()) {
            fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
        let mut files: Vec<_> = fs::read_dir(&to).unwrap().map(|file| file.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|ext| ext == "log"));
        files.sort();
        assert!(files.len() > 4, "{files:?}");
        change(&files);
        to
    }
}

#[tokio::test]
async fn a_store_is_restored_to_each_moment_after_its_backup() {
    let world = World::new().await;
    for (n, &(time, lsn, number)) in world.moments.iter().enumerate().skip(10).step_by(14) {
        assert_eq!(world.restored(&format!("lsn-{n}"), Until::Lsn(lsn)).await.1, number);
        // Between two records there is the first of them.
        let (found, restored) = world.restored(&format!("before-{n}"), Until::Lsn(Lsn(lsn.0 + 20))).await;
        assert!(restored == number && found >= lsn, "{found}");
        assert_eq!(world.restored(&format!("time-{n}"), Until::Time(time)).await.1, number);
    }
    assert_eq!(world.restored("end", Until::End).await.1, CHANGES - 1);
    assert_eq!(world.restored("first", Until::Lsn(world.first)).await.1, 9);
    for path in ["archive", "lsn-10/log", "chain/log-000001"] {
        let first = fs::read(super::segments(&world.at(path)).remove(0)).unwrap();
        assert_eq!(first[..8], *b"PTLOG\0\0\x03", "{path}: a version that knows times");
    }
    let (first, last) = LoggedStore::restorable(&world.at("chain"), world.number, &world.archive()).unwrap();
    assert!(world.moments[9].1 <= first.lsn && first.lsn <= world.moments[10].1, "{first:?}");
    assert_eq!(
        world.restored("earliest", Until::Time(first.time.unwrap())).await.1,
        9 + u32::from(first.lsn >= world.moments[10].1)
    );
    assert_eq!(world.restored("latest", Until::Time(last.time.unwrap())).await.1, CHANGES - 1);
}

#[tokio::test]
async fn a_moment_that_the_archive_does_not_have_is_refused_by_name() {
    let world = World::new().await;
    let (first, last) = LoggedStore::restorable(&world.at("chain"), world.number, &world.archive()).unwrap();
    for until in [Until::Lsn(world.moments[8].1), Until::Time(world.moments[8].0), Until::Time(UNIX_EPOCH)] {
        let error = world.refused(&world.archive(), until).await;
        assert!(matches!(error, ArchiveError::TooEarly { earliest } if earliest == first), "{error}");
        assert!(error.to_string().contains(&first.lsn.to_string()), "{error}");
    }
    let later = SystemTime::now() + Duration::from_secs(9);
    for until in [Until::Lsn(Lsn(last.lsn.0 + 1)), Until::Time(later)] {
        let error = world.refused(&world.archive(), until).await;
        assert!(matches!(error, ArchiveError::TooLate { latest } if latest == last), "{error}");
    }
}

#[tokio::test]
async fn an_archive_with_a_gap_or_a_damaged_segment_is_refused() {
    let world = World::new().await;
    let remove = |n: usize| move |files: &[PathBuf]| fs::remove_file(&files[n]).unwrap();
    let count = fs::read_dir(world.archive()).unwrap().count();
    let error = world.refused(&world.spoiled(remove(count - 3)), Until::End).await;
    assert!(matches!(error, ArchiveError::Gap { .. }), "{error}");
    // What precedes the gap is there.
    let (_, early, number) = world.moments[11];
    let to = world.at("early");
    world.restore(&to, &world.at("spoiled"), Until::Lsn(early)).await.unwrap();
    drop(open(&to, None).await.unwrap());
    assert_eq!(number, 11);
    // The last one cut between two records, or anywhere; bits of any one.
    let edit = |n: usize, edit: fn(&mut Vec<u8>)| {
        move |files: &[PathBuf]| {
            let path = &files[files.len() - n];
            let mut bytes = fs::read(path).unwrap();
            edit(&mut bytes);
            fs::write(path, bytes).unwrap();
        }
    };
    let first_record: fn(&mut Vec<u8>) = |bytes| {
        let length = u32::from_le_bytes(bytes[60..64].try_into().unwrap()) as usize;
        bytes.truncate(60 + length);
    };
    let flip: fn(&mut Vec<u8>) = |bytes| bytes[5_000] ^= 4;
    let flip_prefix: fn(&mut Vec<u8>) = |bytes| bytes[45] ^= 4;
    let flip_seal: fn(&mut Vec<u8>) = |bytes| *bytes.last_mut().unwrap() ^= 1;
    let cut: fn(&mut Vec<u8>) = |bytes| bytes.truncate(3_000);
    for (n, change) in [(1, first_record), (1, cut), (1, flip), (2, flip), (2, flip_prefix), (1, flip_seal)] {
        let error = world.refused(&world.spoiled(edit(n, change)), Until::End).await;
        assert!(matches!(error, ArchiveError::Damaged { .. }), "{error}");
    }
}

/// A store, its copy, and another one have an archive each: a backup takes only its own.
#[tokio::test]
async fn the_archive_of_another_log_or_line_is_refused() {
    let (world, other) = (World::new().await, World::new().await);
    let error = world.refused(&other.archive(), Until::End).await;
    assert!(matches!(error, ArchiveError::OtherLog { .. }), "{error}");
    // Nor does another store archive there, before or after its log was given up.
    let refused = open(&other.at("store"), Some(&world.archive())).await.unwrap_err();
    assert!(
        matches!(refused, RecoverError::Log(WalError::Archive(ArchiveError::OtherLog { .. }))),
        "{refused}"
    );
    fs::remove_dir_all(world.at("store/log")).unwrap();
    let wal = Wal::open(&world.at("store/log"), options()).unwrap();
    let refused = wal.archive_to(&world.archive()).unwrap_err();
    assert!(matches!(refused, WalError::Archive(ArchiveError::OtherLog { .. })), "{refused}");
}

/// Schedule: a store is restored to a moment and goes on, while the archive has what came after the moment.
/// Neither its records nor those of the old timeline are ever taken for the other's.
#[tokio::test]
async fn the_line_of_a_restored_store_is_not_mixed_with_the_old_one() {
    let mut world = World::new().await;
    let to = world.at("restored");
    world.restore(&to, &world.archive(), Until::Lsn(world.moments[20].1)).await.unwrap();
    let refused = open(&to, Some(&world.archive())).await.unwrap_err();
    assert!(
        matches!(refused, RecoverError::Log(WalError::Archive(ArchiveError::OtherLog { .. }))),
        "{refused}"
    );
    // The old store's log is not its own, nor the other way round.
    for (pages, log) in [(&to, world.at("store")), (&world.at("store"), to.clone())] {
        let wal = Wal::open(&log.join("log"), options()).unwrap();
        let refused = LoggedStore::on(builder(pages), wal).await.unwrap_err();
        assert!(matches!(refused, RecoverError::Unfit(UnfitLog::Other { .. })), "{refused}");
    }
    // It has an archive and backups of its own.
    let own = world.at("own");
    fs::create_dir(&own).unwrap();
    let db = open(&to, Some(&own)).await.unwrap();
    let page = PageId::new(db.spaces().find("t").unwrap(), 0);
    world.put(&db, page, 1000).await;
    let made = db.backup(&world.at("own-chain"), BackupOptions::new()).await.unwrap();
    world.put(&db, page, 1001).await;
    db.wal().archive_now().await.unwrap();
    db.shutdown().await.unwrap();
    let error = world.refused(&own, Until::End).await;
    assert!(matches!(error, ArchiveError::OtherLog { .. }), "{error}");
    let span = LoggedStore::restorable(&world.at("own-chain"), made.number, &own);
    let is_whole = |(first, last): &(Moment, Moment)| first.lsn < last.lsn && first.time <= last.time;
    assert!(span.as_ref().is_ok_and(is_whole), "{span:?}");
}

/// Schedule: the clock is an hour ahead, and is corrected before the backup, whose log has times of both.
#[tokio::test]
async fn times_before_the_backup_do_not_end_a_restoration() {
    let mut world = World::new().await;
    let (to, archive, chain) = (world.at("again"), world.at("again-archive"), world.at("again-chain"));
    fs::create_dir(&archive).unwrap();
    for ahead in [3600, 0] {
        let wal = Wal::open(&to.join("log"), options()).unwrap();
        let (id, path) = (wal.id(), archive.clone());
        let opens =
            move || Ok(Box::new(FileMedia::archive(Arc::new(RealDir::open(&path)?), id)?) as Box<dyn Media>);
        wal.archive_on(
            archive.clone(),
            opens,
            move || SystemTime::now() + Duration::from_secs(ahead),
            Duration::from_secs(60),
        )
        .unwrap();
        let db = LoggedStore::on(builder(&to), wal).await.unwrap();
        let space = match db.spaces().find("t") {
            Some(space) => space,
            None => db.spaces().create("t").await.unwrap(),
        };
        let page = PageId::new(space, 0);
        world.put(&db, page, 1).await;
        if ahead == 0 {
            let made = db.backup(&chain, BackupOptions::new()).await.unwrap();
            for n in 2..5 {
                world.put(&db, page, n).await;
            }
            db.wal().archive_now().await.unwrap();
            let (time, lsn, _) = world.moments[world.moments.len() - 2];
            let (to, backup) = (world.at("back"), (&*chain, made.number));
            let until = Until::Time(time);
            let end =
                LoggedStore::restore_until(builder(&to), &to.join("log"), backup, &archive, until).await;
            let next = world.moments[world.moments.len() - 1].1;
            assert!(end.as_ref().is_ok_and(|end| lsn <= *end && *end < next), "{end:?}");
        }
        db.shutdown().await.unwrap();
    }
}

/// The directory is missing when the store opens: the store works, and archives once the directory is there.
#[tokio::test]
async fn an_archive_that_is_missing_at_the_opening_is_taken_up_later() {
    let dir = pagetier_testing::scratch();
    let archive = dir.path().join("archive");
    let db = open(dir.path(), Some(&archive)).await.unwrap();
    let mut world = World { dir: pagetier_testing::scratch(), moments: Vec::new(), number: 0, first: Lsn(0) };
    let page = PageId::new(db.spaces().create("t").await.unwrap(), 0);
    for n in 0..150 {
        world.put(&db, page, n).await;
    }
    db.checkpoint().await.unwrap();
    assert!(db.wal().is_whole(), "nothing has gone");
    let why = db.wal().archived().unwrap().failure.unwrap().to_string();
    assert!(why.contains("archive"), "{why}");
    fs::create_dir(&archive).unwrap();
    assert!(db.wal().archive_now().await.unwrap() > world.moments[149].1);
    db.sync().await.unwrap();
    db.checkpoint().await.unwrap();
    assert!(!db.wal().is_whole());
    db.shutdown().await.unwrap();
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_all(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Schedule: a store is copied, and both go on with records of one length, each with an archive of its own.
/// Then comes a backup whose last segment has no record: its positions fit the other one's archive.
#[tokio::test]
async fn a_backup_that_ends_with_an_empty_segment_takes_no_other_line() {
    let mut world = World::new().await;
    copy_all(&world.at("store"), &world.at("copy"));
    let chain = world.at("empty-chain");
    for (name, n) in [("store", 1), ("copy", 5)] {
        let (dir, archive) = (world.at(name), world.at(&format!("{name}-archive")));
        fs::create_dir(&archive).unwrap();
        let db = open(&dir, Some(&archive)).await.unwrap();
        let page = PageId::new(db.spaces().find("t").unwrap(), 0);
        world.put(&db, page, n).await;
        let end = db.wal().archive_now().await.unwrap();
        assert_eq!(db.wal().segment_starts().last(), Some(&end.0));
        if name == "store" {
            db.backup(&chain, BackupOptions::new()).await.unwrap();
        }
        db.shutdown().await.unwrap();
        // While there are handles of the former one. Its generation begins in the place of the empty segment.
        let db = open(&dir, Some(&archive)).await.unwrap();
        world.put(&db, page, n + 8).await;
        db.wal().archive_now().await.unwrap();
        db.shutdown().await.unwrap();
    }
    let restore = async |to: &Path, of: &str| {
        let (log, archive) = (to.join("log"), world.at(of));
        LoggedStore::restore_until(builder(to), &log, (&chain, 1), &archive, Until::End).await
    };
    let refused = restore(&world.at("refused"), "copy-archive").await;
    let other =
        matches!(refused, Err(LoggedBackupError::Log(WalError::Archive(ArchiveError::OtherTimeline { .. }))));
    assert!(other && !world.at("refused").exists(), "{refused:?}");
    let to = world.at("back");
    restore(&to, "store-archive").await.unwrap();
    let db = open(&to, None).await.unwrap();
    let page = PageId::new(db.spaces().find("t").unwrap(), 0);
    assert_eq!(db.get(page).await.unwrap()[..4], 9_u32.to_le_bytes());
}
