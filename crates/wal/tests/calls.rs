//! What an engine's author calls: open, change, free, back up, restore, close; and what is refused.

use crate::backups::builder;
use pagetier::{Error, OwnedPageMut, PageId, PageMut, SpaceId, backup::BackupOptions};
use pagetier_wal::{
    CheckpointError, LoggedBackupError, LoggedStore, MiniTx, RecoverError, RedoError, UnfitLog, Until, Wal,
    WalError, WalOptions, blocking, copy_log,
};
use std::fs;
use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

fn options() -> WalOptions {
    WalOptions::new().capacity_bytes(256 << 10)
}

async fn open(dir: &Path) -> Result<LoggedStore, RecoverError> {
    LoggedStore::open(builder(dir), dir.join("log"), options()).await
}

pub(crate) async fn space(db: &LoggedStore) -> SpaceId {
    match db.spaces().find("t") {
        Some(space) => space,
        None => db.spaces().create("t").await.unwrap(),
    }
}

/// Writes `value` to two pages at once.
async fn put(db: &LoggedStore, value: u64) {
    let space = space(db).await;
    let mut change = db.begin().await.unwrap();
    for no in 0..2 {
        let page = change.add(db.get_or_create(PageId::new(space, no)).await.unwrap());
        change.write(page, 0, &value.to_le_bytes());
        change.write(page, 8, &[value as u8; 100]);
    }
    db.commit(change).await.unwrap();
}

async fn get(db: &LoggedStore) -> u64 {
    let space = space(db).await;
    let [one, other] = [0, 1].map(|no| db.get(PageId::new(space, no)));
    let [one, other] = [one.await.unwrap()[..8].to_vec(), other.await.unwrap()[..8].to_vec()];
    assert_eq!(one, other, "half of a change");
    u64::from_le_bytes(one.try_into().unwrap())
}

/// Drops the store without closing it, and waits until its last operation has ended.
async fn crash(db: LoggedStore) {
    let closed = db.store().wait_closed();
    drop(db);
    closed.await;
}

#[tokio::test]
async fn a_crash_keeps_what_was_committed_and_a_close_leaves_nothing_to_redo() {
    let dir = pagetier_testing::scratch();
    let db = open(dir.path()).await.unwrap();
    for value in 0..1_300 {
        put(&db, value).await;
    }
    assert!(!db.wal().is_whole(), "the log was not shortened in the background");
    crash(db).await;
    let db = open(dir.path()).await.unwrap();
    assert!(get(&db).await == 1_299 && db.recovered().records > 0);
    db.shutdown().await.unwrap();
    let db = open(dir.path()).await.unwrap();
    assert_eq!((get(&db).await, db.recovered().applied), (1_299, 0));
    db.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_shared_store_is_shut_down_once_and_can_be_opened_while_handles_remain() {
    let dir = pagetier_testing::scratch();
    let db = Arc::new(open(dir.path()).await.unwrap());
    put(&db, 1).await;
    let (space, oldest) = (space(&db).await, db.wal().oldest().0);
    let (first, second) = tokio::join!(db.shutdown(), db.shutdown());
    first.and(second).and(db.shutdown().await).unwrap();
    assert!(matches!(db.begin::<PageMut<'_>>().await, Err(WalError::Stopped)));
    assert!(matches!(db.checkpoint().await, Err(CheckpointError::Log(WalError::Stopped))));
    assert!(matches!(db.drop_space(space).await, Err(CheckpointError::Log(WalError::Stopped))));
    assert!(matches!(db.wal().append_commit(b"late"), Err(WalError::Stopped)));
    assert!(matches!(db.wal().segment(oldest), Err(WalError::Stopped)));
    assert!(matches!(db.get(PageId::new(space, 0)).await, Err(Error::Closed)));
    db.wal().flush(db.wal().end()).await.unwrap();
    let again = open(dir.path()).await.unwrap();
    assert_eq!((get(&again).await, again.recovered().applied), (1, 0));
    drop(db);
    put(&again, 2).await;
    again.shutdown().await.unwrap();
}

#[tokio::test]
async fn owned_guards_and_borrowed_ones_are_logged_alike() {
    let dir = pagetier_testing::scratch();
    let db = open(dir.path()).await.unwrap();
    put(&db, 1).await;
    let page = PageId::new(space(&db).await, 0);
    let owned: OwnedPageMut = db.store().get_mut(page).await.unwrap().into_owned(db.store());
    let mut change = db.begin().await.unwrap();
    let index = change.add(owned);
    change.write(index, 100, b"owned");
    let changed = tokio::spawn({
        let wal = db.wal().clone();
        let lsn = change.commit().unwrap();
        async move { wal.flush(lsn).await }
    });
    changed.await.unwrap().unwrap();
    let kept: PageMut<'_> = {
        let mut change = MiniTx::on(Some(db.wal()), db.get_mut(page).await.unwrap());
        change.write(0, 200, b"kept");
        change.commit_keeping().unwrap().1.remove(0)
    };
    let lsn = kept.lsn();
    drop(kept);
    db.wal().flush(lsn).await.unwrap();
    crash(db).await;
    let db = open(dir.path()).await.unwrap();
    let found = db.get(page).await.unwrap();
    assert!(found[100..105] == *b"owned" && found[200..204] == *b"kept");
    drop(found);
    db.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_freed_page_is_free_after_a_crash_and_its_number_is_used_again() {
    // Only a page that was written is there to be freed again.
    for (written, freed) in [(false, 0), (true, 1)] {
        let dir = pagetier_testing::scratch();
        let db = open(dir.path()).await.unwrap();
        put(&db, 1).await;
        if written {
            db.sync().await.unwrap();
        }
        let page = PageId::new(space(&db).await, 1);
        let mut change = db.begin::<PageMut<'_>>().await.unwrap();
        change.free(page);
        db.commit(change).await.unwrap();
        crash(db).await;
        let db = open(dir.path()).await.unwrap();
        assert_eq!(db.recovered().freed, freed);
        assert!(matches!(db.get(page).await, Err(Error::NoSuchPage { .. })));
        assert_eq!(db.allocate(page.space).await.unwrap().id(), page);
        db.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn a_removed_space_needs_no_redo() {
    let dir = pagetier_testing::scratch();
    let db = open(dir.path()).await.unwrap();
    put(&db, 1).await;
    let removed = space(&db).await;
    db.drop_space(removed).await.unwrap();
    let none = db.drop_space(SpaceId(removed.0 + 1)).await;
    assert!(matches!(none, Err(CheckpointError::Store(_))), "{none:?}");
    crash(db).await;
    let db = open(dir.path()).await.unwrap();
    assert!(db.recovered().records > 0 && db.spaces().find("t").is_none());
    // The next space has the id that was asked for too early.
    put(&db, 3).await;
    db.shutdown().await.unwrap();
    let db = open(dir.path()).await.unwrap();
    assert_eq!(get(&db).await, 3);
    // Removed without the log: redo misses it.
    let removed = space(&db).await;
    db.spaces().drop(removed).await.unwrap();
    crash(db).await;
    let refused = open(dir.path()).await;
    let missing = matches!(refused, Err(RecoverError::Redo(RedoError::Store(Error::NoSuchSpace { .. }))));
    assert!(missing, "{refused:?}");
}

#[tokio::test]
async fn log_and_pages_that_do_not_belong_together_are_refused_and_nothing_changes() {
    let (dir, other) = (pagetier_testing::scratch(), pagetier_testing::scratch());
    for dir in [&dir, &other] {
        let db = open(dir.path()).await.unwrap();
        for value in 0..1_300 {
            put(&db, value).await;
        }
        db.shutdown().await.unwrap();
    }
    let path = |name| dir.path().join(name);
    fs::rename(path("log"), path("aside")).unwrap();
    assert!(matches!(open(dir.path()).await, Err(RecoverError::Unfit(UnfitLog::Missing))));
    assert!(!path("log").exists());
    copy_log(&other.path().join("log"), &path("log")).unwrap();
    assert!(matches!(open(dir.path()).await, Err(RecoverError::Unfit(UnfitLog::Other { .. }))));
    fs::remove_dir_all(path("log")).unwrap();
    fs::rename(path("aside"), path("log")).unwrap();
    fs::rename(path("pages"), path("aside")).unwrap();
    assert!(matches!(open(dir.path()).await, Err(RecoverError::Unfit(UnfitLog::NoPages))));
    // A refusal creates no space.
    let blank = builder(dir.path()).open().await.unwrap();
    assert!(blank.spaces().list().is_empty());
    blank.close().await.unwrap();
    fs::remove_dir_all(path("pages")).unwrap();
    fs::rename(path("aside"), path("pages")).unwrap();
    let db = open(dir.path()).await.unwrap();
    assert_eq!(get(&db).await, 1_299);
    db.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backups_under_load_are_the_store_at_one_moment() {
    let dir = pagetier_testing::scratch();
    let db = Arc::new(open(&dir.path().join("db")).await.unwrap());
    put(&db, 0).await;
    let writer = tokio::spawn({
        let db = Arc::clone(&db);
        async move {
            for value in 1..600 {
                put(&db, value).await;
            }
        }
    });
    let chain = dir.path().join("chain");
    let mut numbers = Vec::new();
    for _ in 0..3 {
        let before = get(&db).await;
        let report = db.backup(&chain, BackupOptions::new()).await.unwrap();
        numbers.push((report.number, before, get(&db).await));
    }
    writer.await.unwrap();
    for (number, before, after) in numbers {
        let to = dir.path().join(format!("restored {number}"));
        LoggedStore::restore(builder(&to), &to.join("log"), &chain, number).await.unwrap();
        let restored = open(&to).await.unwrap();
        let value = get(&restored).await;
        assert!((before..=after).contains(&value), "{value} of {before} to {after}");
        put(&restored, 1).await;
        restored.shutdown().await.unwrap();
        let again = LoggedStore::restore(builder(&to), &to.join("log"), &chain, number).await;
        assert!(matches!(again, Err(LoggedBackupError::Log(WalError::Io { .. }))), "{again:?}");
    }
}

/// Whatever checkpoints would remove meanwhile.
#[tokio::test]
async fn a_backup_holds_the_log_from_its_beginning() {
    let dir = pagetier_testing::scratch();
    let db = open(&dir.path().join("db")).await.unwrap();
    put(&db, 0).await;
    let (from, chain) = (db.wal().oldest(), dir.path().join("chain"));
    let report = {
        let mut backup = pin!(db.backup(&chain, BackupOptions::new()));
        // The changes of one round alone: the log cannot be shortened for more meanwhile.
        let mut values = 0..40;
        loop {
            if let Poll::Ready(done) = poll_fn(|cx| Poll::Ready(backup.as_mut().poll(cx))).await {
                assert!(values.is_empty(), "it waits for its tasks at first");
                break done.unwrap();
            }
            for value in values.by_ref() {
                put(&db, value).await;
                // A record of some length, so that segments end.
                let filler = db.wal().append_commit(&[0; 6_000]).unwrap();
                db.wal().append_applied(filler);
            }
            db.checkpoint().await.unwrap();
            assert_eq!(db.wal().oldest(), from, "the log is shortened");
        }
    };
    for value in 40..1_300 {
        put(&db, value).await;
    }
    db.checkpoint().await.unwrap();
    assert!(db.wal().oldest() > from, "the hold has ended");
    let copy = Wal::open(&chain.join("log-000001"), options()).unwrap();
    assert_eq!(copy.oldest(), from);
    drop(copy);
    let to = dir.path().join("restored");
    LoggedStore::restore(builder(&to), &to.join("log"), &chain, report.number).await.unwrap();
    assert!(get(&open(&to).await.unwrap()).await < 40);
}

/// The next open executes their operations: a close must not remove them with the log that no page needs.
#[tokio::test]
async fn a_close_keeps_the_commits_that_are_not_applied() {
    let dir = pagetier_testing::scratch();
    let db = open(dir.path()).await.unwrap();
    let [applied, commit] = [b"applied", b"waiting"].map(|ops| db.wal().append_commit(ops).unwrap());
    db.wal().append_applied(applied);
    for value in 0..300 {
        put(&db, value).await;
    }
    db.shutdown().await.unwrap();
    let db = open(dir.path()).await.unwrap();
    assert_eq!(db.recovered().commits, [(commit, b"waiting".to_vec())].into());
    db.wal().append_applied(commit);
    put(&db, 300).await;
    db.shutdown().await.unwrap();
    let db = open(dir.path()).await.unwrap();
    assert!(db.recovered().commits.is_empty());
    // Nothing keeps the log any longer: its last segment is left, and the one that this open began.
    assert_eq!(db.wal().segment_starts().len(), 2);
    db.shutdown().await.unwrap();
}

/// Nor may a caller remove them that asks for less log: the next open would refuse what is left.
#[tokio::test]
async fn a_log_keeps_the_record_of_a_commit_that_is_not_applied_whatever_is_asked_for() {
    let dir = pagetier_testing::scratch();
    let db = open(dir.path()).await.unwrap();
    put(&db, 1).await;
    let commit = db.wal().append_commit(b"waiting").unwrap();
    for _ in 0..12 {
        let filler = db.wal().append_commit(&[0; 10_000]).unwrap();
        db.wal().append_applied(filler);
    }
    db.wal().flush(db.wal().end()).await.unwrap();
    db.store().sync().await.unwrap();
    let end = db.wal().end();
    db.wal().truncate(end, end).await.unwrap();
    crash(db).await;
    let db = open(dir.path()).await.unwrap();
    assert_eq!(db.recovered().commits.get(&commit).map(Vec::as_slice), Some(&b"waiting"[..]));
    assert_eq!(get(&db).await, 1);
    db.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_record_beyond_the_capacity_is_refused_with_the_size_that_fits() {
    let dir = pagetier_testing::scratch();
    let db = open(dir.path()).await.unwrap();
    let space = space(&db).await;
    let max = db.wal().record_bytes_max();
    assert_eq!(max, db.wal().capacity_bytes());
    let mut change = db.begin::<PageMut<'_>>().await.unwrap();
    let whole = vec![7; 4_000];
    for no in 0..80 {
        let page = change.add(db.get_or_create(PageId::new(space, no)).await.unwrap());
        change.write(page, 0, &whole);
    }
    let refused = db.commit(change).await.unwrap_err();
    assert!(matches!(refused, WalError::TooLong { bytes, bytes_max } if bytes > 320_000 && bytes_max == max));
    assert!(db.wal().append_commit(&vec![0; 320 << 10]).is_err());
    for value in 0..300 {
        put(&db, value).await;
    }
    db.checkpoint().await.unwrap();
    db.shutdown().await.unwrap();
    let db = open(dir.path()).await.unwrap();
    assert_eq!(get(&db).await, 299);
    let created = db.get_or_create(PageId::new(space, 79)).await.unwrap();
    assert!(created.iter().all(|byte| *byte == 0), "the change was refused");
    drop(created);
    db.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_log_that_cannot_be_shortened_refuses_changes_with_the_cause() {
    let dir = pagetier_testing::scratch();
    let wal = Wal::in_memory(options());
    let db = LoggedStore::on(builder(dir.path()), wal).await.unwrap();
    put(&db, 1).await;
    // A commit that is not applied keeps its record.
    let commit = db.wal().append_commit(b"for long").unwrap();
    for _ in 0..40 {
        let filler = db.wal().append_commit(&[0; 10_000]).unwrap();
        db.wal().append_applied(filler);
    }
    let full = db.admit(Duration::from_millis(300)).await;
    assert!(matches!(full, Err(WalError::Full { cause: None })), "{full:?}");
    db.wal().append_applied(commit);
    db.admit(Duration::from_secs(10)).await.unwrap();
    put(&db, 2).await;
    assert_eq!(get(&db).await, 2);
    db.shutdown().await.unwrap();
}

/// One change of both pages through the blocking form, whose threads share syncs.
fn put_blocking(db: &blocking::LoggedStore, space: SpaceId, value: u64) {
    let mut change = db.begin().unwrap();
    for no in 0..2 {
        let page = change.add(db.get_or_create(PageId::new(space, no)).unwrap());
        change.write(page, 0, &value.to_le_bytes());
    }
    db.commit(change).unwrap();
}

/// Also on a thread that runs tasks of a runtime, where a wait must not panic.
#[tokio::test]
async fn the_blocking_form_opens_changes_frees_backs_up_restores_and_closes() {
    let folder = pagetier_testing::scratch();
    let [dir, chain, archive, copy, last] =
        ["db", "chain", "archive", "copy", "last"].map(|name| folder.path().join(name));
    let open = |dir: &Path| blocking::LoggedStore::open(builder(dir), dir.join("log"), options()).unwrap();
    fs::create_dir(&archive).unwrap();
    let wal = Wal::open(&dir.join("log"), options()).unwrap();
    wal.archive_to(&archive).unwrap();
    let db = blocking::LoggedStore::on(builder(&dir), wal).unwrap();
    let space = db.block_on(db.store().spaces().create("t")).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let db = &db;
            scope.spawn(move || (0..50).for_each(|at| put_blocking(db, space, thread * 50 + at)));
        }
    });
    put_blocking(&db, space, 7);
    let mut change = db.begin().unwrap();
    let extra = change.add(db.allocate(space).unwrap());
    let freed = change.id(extra);
    change.write(extra, 0, b"short");
    db.commit(change).unwrap();
    let mut change: MiniTx<'_> = db.begin().unwrap();
    change.free(freed);
    db.commit(change).unwrap();
    db.checkpoint().unwrap();
    assert!(!db.store().exists(freed));
    let number = db.backup(&chain, BackupOptions::new()).unwrap().number;
    put_blocking(&db, space, 8);
    let archived = db.block_on(db.wal().archive_now()).unwrap();
    drop(db);

    let db = open(&dir);
    let value = |db: &blocking::LoggedStore| db.get(PageId::new(space, 1)).unwrap()[0];
    assert_eq!(value(&db), 8);
    db.shutdown().unwrap();
    let backup = (chain.as_path(), number);
    let span = blocking::LoggedStore::restorable(&chain, number, &archive).unwrap();
    assert!(span.0.lsn < span.1.lsn && span.1.lsn == archived, "{span:?}");
    let log = last.join("log");
    let end = blocking::LoggedStore::restore_until(builder(&last), &log, backup, &archive, Until::End);
    assert_eq!((end.unwrap(), value(&open(&last))), (archived, 8));
    blocking::LoggedStore::restore(builder(&copy), &copy.join("log"), &chain, number).unwrap();
    let db = open(&copy);
    assert_eq!(value(&db), 7);
    db.drop_space(space).unwrap();
    db.shutdown().unwrap();
}

/// The background checkpoint that is running holds the store, but no longer than the store's owner.
#[tokio::test]
async fn a_store_that_is_dropped_during_a_checkpoint_is_free_at_once() {
    let dir = pagetier_testing::scratch();
    for turns in 0..60 {
        let db = open(dir.path()).await.unwrap();
        put(&db, turns).await;
        let filler = db.wal().append_commit(&[0; 60_000]).unwrap();
        db.wal().append_applied(filler);
        db.wal().flush(db.wal().end()).await.unwrap();
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        let store = Arc::downgrade(db.store());
        drop(db);
        assert_eq!(store.strong_count(), 0, "after {turns} turns");
    }
    open(dir.path()).await.unwrap().shutdown().await.unwrap();
}

/// Redo reaches pages beyond the end of a space: of what was freed since, it makes nothing anew, unless the
/// log does not know that. No number is too far away for it, and it needs disk space for no others.
#[tokio::test]
async fn redo_reaches_pages_beyond_the_end_of_a_space_that_was_shrunk() {
    for logged in [true, false] {
        let dir = pagetier_testing::scratch();
        let open = async || {
            let wal = Wal::open_when_free(&dir.path().join("log"), options()).await.unwrap();
            LoggedStore::on(builder(dir.path()).page_gap_max(64), wal).await.unwrap()
        };
        let db = open().await;
        let page = PageId::new(space(&db).await, 1500);
        for no in (0..=1500).step_by(60) {
            write(&db, PageId { no, ..page }).await;
        }
        if logged {
            free_with_records(&db, page.space).await;
        }
        db.free((page.space, 1..u32::MAX)).await.unwrap();
        db.spaces().shrink(page.space).await.unwrap();
        assert_eq!(db.spaces().pages(page.space).unwrap(), 1);
        crash(db).await;
        let db = open().await;
        assert_eq!(db.exists(page), !logged);
        assert_eq!(db.get(PageId { no: 0, ..page }).await.unwrap()[0], 1);
        db.shutdown().await.unwrap();
        if logged {
            let inspected = builder(dir.path()).inspect().await.unwrap().manifest;
            assert_eq!((inspected.spaces[0].pages, inspected.spaces[0].room), (1, 64));
        }
    }
}

/// A restored store knows the numbers beyond the end of a space that was shrunk: redo of what came after the
/// backup uses one again, as the store did, and takes no disk space for the others.
#[tokio::test]
async fn redo_onto_a_backup_reaches_pages_beyond_the_end_of_a_space_that_was_shrunk() {
    let dir = pagetier_testing::scratch();
    let [archive, chain, to] = ["archive", "chain", "to"].map(|name| dir.path().join(name));
    fs::create_dir(&archive).unwrap();
    let near = |at: &Path| builder(at).page_gap_max(64);
    let wal = Wal::open_when_free(&dir.path().join("log"), options()).await.unwrap();
    wal.archive_to(&archive).unwrap();
    let db = LoggedStore::on(near(dir.path()), wal).await.unwrap();
    let page = PageId::new(space(&db).await, 1500);
    for no in (0..=1500).step_by(60) {
        write(&db, PageId { no, ..page }).await;
    }
    free_with_records(&db, page.space).await;
    db.free((page.space, 1..u32::MAX)).await.unwrap();
    db.spaces().shrink(page.space).await.unwrap();
    let number = db.backup(&chain, BackupOptions::new()).await.unwrap().number;
    write(&db, page).await;
    db.wal().archive_now().await.unwrap();
    db.shutdown().await.unwrap();
    let until = (chain.as_path(), number);
    LoggedStore::restore_until(near(&to), &to.join("log"), until, &archive, Until::End).await.unwrap();
    let wal = Wal::open_when_free(&to.join("log"), options()).await.unwrap();
    let db = LoggedStore::on(near(&to), wal).await.unwrap();
    for no in 0..=1600 {
        let is_there = matches!(no, 0 | 1500);
        assert_eq!(db.exists(PageId { no, ..page }), is_there, "page {no}");
    }
    assert_eq!(db.get(page).await.unwrap()[0], 1);
    assert_eq!(db.spaces().pages(page.space).unwrap(), 1501);
    db.shutdown().await.unwrap();
    let inspected = builder(&to).inspect().await.unwrap().manifest;
    assert!(inspected.spaces[0].room <= 3 * 64, "{}", inspected.spaces[0].room);
}

/// Frees the pages that both tests above have created, but for the first.
async fn free_with_records(db: &LoggedStore, space: SpaceId) {
    for no in (60..=1500).step_by(60) {
        let mut change = db.begin::<PageMut<'_>>().await.unwrap();
        change.free(PageId::new(space, no));
        db.commit(change).await.unwrap();
    }
}

/// Creates `page`, if need be, and writes to it.
async fn write(db: &LoggedStore, page: PageId) {
    let mut change = db.begin::<PageMut<'_>>().await.unwrap();
    let at = change.add(db.get_or_create(page).await.unwrap());
    change.write(at, 0, &[1]);
    db.commit(change).await.unwrap();
}
