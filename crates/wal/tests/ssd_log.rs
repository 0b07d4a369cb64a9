//! A log that is kept for the loss of the SSD: how long it is, how much of it a crash needs, and that the
//! rest suffices once the SSD is gone.

use crate::calls::space;
use pagetier::device::Backend;
use pagetier::{Builder, PageId, PageMut, PageSize, PageStore, pool_bytes_for};
use pagetier_wal::{Keep, LoggedStore, RecoverError, Wal, WalError, WalOptions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::fs;
use std::path::{Path, PathBuf};

const SSD_BYTES: u64 = 400 * 4096;
/// Fewer than the SSD holds, and more than memory does.
const PAGES: u32 = 200;
const CAPACITY: u64 = 256 << 10;
const SEGMENT: u64 = 64 << 10;
/// The bytes of a change, which the log has, too.
const CHANGED: usize = 2_800;

fn options() -> WalOptions {
    WalOptions::new().capacity_bytes(CAPACITY).keep(Keep::ForSsdLoss)
}

fn builder(dir: &Path) -> Builder {
    let builder = PageStore::builder().directory(dir.join("pages")).page_size(PageSize::MIN);
    let builder = builder.ssd_bytes(SSD_BYTES).ring_pages(8).io(Backend::Threads).low_room(0);
    builder.pool_bytes(pool_bytes_for(60, SSD_BYTES, PageSize::MIN))
}

/// A store in a directory, and what it has acknowledged.
struct Case {
    dir: tempfile::TempDir,
    options: WalOptions,
    rng: SmallRng,
    values: Vec<u8>,
    /// The pages that are changed.
    changed: u32,
}

impl Case {
    fn new(options: WalOptions, seed: u64) -> Self {
        let dir = pagetier_testing::scratch();
        Self {
            dir,
            options,
            rng: SmallRng::seed_from_u64(seed),
            values: vec![0; PAGES as usize],
            changed: PAGES,
        }
    }

    async fn open(&self, accepts_loss: bool) -> Result<LoggedStore, RecoverError> {
        let builder = builder(self.dir.path()).accept_ssd_loss(accepts_loss);
        LoggedStore::open(builder, self.log(), self.options).await
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Changes pages at random; returns the length of the log when it was longest.
    async fn change(&mut self, db: &LoggedStore, times: u32) -> u64 {
        let (space, mut longest) = (space(db).await, 0);
        for _ in 0..times {
            let no = self.rng.random_range(0..self.changed);
            let value = &mut self.values[no as usize];
            *value = value.wrapping_add(1).max(1);
            let mut change = db.begin::<PageMut<'_>>().await.unwrap();
            let page = change.add(db.get_or_create(PageId::new(space, no)).await.unwrap());
            change.write(page, 0, &[*value; CHANGED]);
            db.commit(change).await.unwrap();
            longest = longest.max(len(db.wal()));
        }
        longest
    }

    async fn expect_all(&self, db: &LoggedStore) {
        let space = space(db).await;
        for (no, value) in (0..PAGES).zip(&self.values).filter(|(_, value)| **value > 0) {
            let page = db.get(PageId::new(space, no)).await.unwrap();
            assert!(page[..CHANGED].iter().all(|byte| byte == value), "page {no}");
        }
    }

    fn lose_ssd(&self) {
        fs::remove_file(self.dir.path().join("pages/ssd.cache")).unwrap();
    }
}

/// The records that it holds, in bytes.
fn len(wal: &Wal) -> u64 {
    wal.end().0 - wal.oldest().0
}

async fn crash(db: LoggedStore) {
    let left = db.store().wait_closed();
    drop(db);
    left.await;
}

#[tokio::test]
async fn the_log_is_no_longer_than_it_may_be_and_a_crash_reads_no_more_than_its_capacity() {
    for (seed, limit) in [(1, None), (2, Some(2 * CAPACITY)), (3, Some(4 * CAPACITY)), (4, Some(0))] {
        let mut case = Case::new(limit.into_iter().fold(options(), WalOptions::ssd_log_bytes), seed);
        let limit = limit.unwrap_or(8 * CAPACITY).max(2 * CAPACITY);
        let db = case.open(false).await.unwrap();
        let longest = case.change(&db, 1_400).await;
        assert!(longest <= limit + SEGMENT, "{longest} of {limit}");
        assert!(longest > limit / 3, "it was shorter than it may be: {longest} of {limit}");
        crash(db).await;
        let db = case.open(false).await.unwrap();
        let (records, all) = (db.recovered().records, len(db.wal()) / CHANGED as u64);
        assert!(records <= (CAPACITY + SEGMENT) / CHANGED as u64, "{records} of {all}");
        assert!(records < all || limit == 2 * CAPACITY, "{records} of {all}");
        case.expect_all(&db).await;
        // One that was closed has nothing to redo but its last segment.
        case.change(&db, 30).await;
        db.shutdown().await.unwrap();
        let db = case.open(false).await.unwrap();
        let records = db.recovered().records;
        assert!(records <= 2 * SEGMENT / CHANGED as u64, "{records} records");
        case.change(&db, 30).await;
        crash(db).await;
        case.lose_ssd();
        let db = case.open(true).await.unwrap();
        let recovered = db.recovered();
        assert!(recovered.records >= records && recovered.lost_pages > 0, "{recovered:?}");
        case.expect_all(&db).await;
        db.shutdown().await.unwrap();
    }
}

/// Pages that were on the SSD at an open go home while the log grows, and hold no change up.
#[tokio::test]
async fn after_an_opening_the_pages_that_the_ssd_had_go_home_in_shares() {
    let limit = 4 * CAPACITY;
    let mut case = Case::new(options().ssd_log_bytes(limit), 6);
    let db = case.open(false).await.unwrap();
    case.change(&db, 700).await;
    crash(db).await;
    let db = case.open(false).await.unwrap();
    let (found, before) = (db.stats().ssd.dirty_pages, db.wal().end().0);
    assert!(found > 30, "{found}");
    // Fewer and fewer of them hold the log, long before all would have to go.
    let mut longest = 0;
    while db.wal().end().0 < before + SEGMENT {
        longest = longest.max(case.change(&db, 10).await);
    }
    assert!(db.stats().ssd.oldest_lsn.is_some_and(|lsn| lsn.0 < before), "all went at once");
    case.changed = 20;
    while db.wal().end().0 < before + limit / 4 {
        longest = longest.max(case.change(&db, 10).await);
    }
    let left = db.stats().ssd.dirty_pages;
    assert!(left < found, "{left} of {found} are left");
    let holds = || db.stats().ssd.oldest_lsn.is_some_and(|lsn| lsn.0 < before);
    while holds() && db.wal().end().0 < before + limit {
        longest = longest.max(case.change(&db, 10).await);
    }
    assert!(!holds(), "some never went");
    assert!(longest <= limit + SEGMENT, "{longest} of {limit}");
    db.shutdown().await.unwrap();
}

/// A record that is not durable yet may be the oldest one that the pages need, and be lost in a crash. Others
/// take its place then, and are redone.
#[tokio::test]
async fn no_position_beyond_the_durable_log_is_recorded() {
    let case = Case::new(options(), 7);
    let db = case.open(false).await.unwrap();
    let space = space(&db).await;
    let mut change = db.begin::<PageMut<'_>>().await.unwrap();
    for no in 0..60 {
        let page = change.add(db.get_or_create(PageId::new(space, no)).await.unwrap());
        change.write(page, 0, &[1; CHANGED]);
    }
    let lsn = change.commit().unwrap();
    let durable = db.wal().durable();
    db.wal().truncate(lsn, lsn).await.unwrap();
    assert!(db.wal().durable() == durable && db.wal().mark().from <= durable, "{:?}", db.wal().mark());
    db.shutdown().await.unwrap();
}

/// The log that is kept for the loss of the SSD has what a crash needs no record of, too.
#[tokio::test]
async fn a_damaged_copy_that_redo_meets_is_made_anew_from_the_older_log() {
    let mut case = Case::new(options(), 8);
    let db = case.open(false).await.unwrap();
    case.change(&db, 250).await;
    assert!(db.wal().is_whole() && db.stats().ssd.dirty_pages > 30);
    crash(db).await;
    let file = case.dir.path().join("pages/ssd.cache");
    let mut bytes = fs::read(&file).unwrap();
    // Every page there, and nothing else.
    for page in bytes.chunks_mut(4096).filter(|page| page.len() == 4096 && page[1000] > 0) {
        if page[500..2000].iter().all(|byte| *byte == page[500]) {
            page[1000] ^= 1;
        }
    }
    fs::write(&file, bytes).unwrap();
    let db = case.open(false).await.unwrap();
    let all = len(db.wal()) / CHANGED as u64;
    assert!(db.recovered().records + 5 >= all, "{} of {all}", db.recovered().records);
    case.expect_all(&db).await;
    db.shutdown().await.unwrap();
}

/// What only the loss of the SSD needs is read, and found damaged, before anything is given up for it.
#[tokio::test]
async fn damage_in_the_older_log_matters_once_the_ssd_is_lost() {
    let mut case = Case::new(options(), 5);
    let db = case.open(false).await.unwrap();
    case.change(&db, 800).await;
    let starts = db.wal().segment_starts();
    assert!(starts.len() > 12);
    crash(db).await;
    let file = case.log().join(format!("{:016x}.log", starts[1]));
    let (sound, mut bytes) = (fs::read(&file).unwrap(), fs::read(&file).unwrap());
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let db = case.open(false).await.unwrap();
    case.expect_all(&db).await;
    crash(db).await;
    case.lose_ssd();
    for _ in 0..2 {
        let error = case.open(true).await.unwrap_err();
        assert!(matches!(error, RecoverError::Log(WalError::Damaged { .. })), "{error:?}");
    }
    fs::write(&file, sound).unwrap();
    let db = case.open(true).await.unwrap();
    case.expect_all(&db).await;
    db.shutdown().await.unwrap();
}
