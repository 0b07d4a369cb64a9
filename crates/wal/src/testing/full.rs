//! A log on a full medium: what gives space back goes on, and what takes space does not use its reserve up.
//!
//! The schedule that the reserve is against: the disk is full, so a commit fails, and its record waits in
//! memory. Its page cannot be written without it, so no checkpoint can shorten the log, and the record of a
//! free, which comes after it, cannot be written either: only space from elsewhere would help.

use super::sim::{SimMedia, WAYS};
use super::{LIMITS, SMALL, bodies, in_use};
use crate::{LoggedStore, WalError};
use futures_util::FutureExt;
use pagetier::errors::Advice;
use pagetier::{Builder, Lsn, MemoryManifest, PageId, PageSize, PageStore, SpaceId, device::SharedDevice};
use pagetier_testing::{SimDevice, SimPower};
use std::sync::Arc;

/// The devices of a store without an SSD.
pub(super) struct Disks {
    pub(super) hdd: Arc<SimDevice>,
    pub(super) ring: Arc<SimDevice>,
    pub(super) manifest: Arc<MemoryManifest>,
}

impl Disks {
    pub(super) fn new() -> Self {
        let device = |name| Arc::new(SimDevice::new(name, 0, 1, &SimPower::new()));
        Self { hdd: device("hdd"), ring: device("ring"), manifest: Arc::default() }
    }

    pub(super) async fn open(&self, media: &SimMedia) -> LoggedStore {
        let wal = in_use(Box::new(media.clone()), SMALL).unwrap();
        LoggedStore::on(self.builder(), wal).await.unwrap()
    }

    pub(super) fn builder(&self) -> Builder {
        PageStore::builder()
            .in_memory(Arc::clone(&self.manifest))
            .hdd(Arc::clone(&self.hdd) as SharedDevice)
            .ring_device(Arc::clone(&self.ring) as SharedDevice)
            .page_size(PageSize::MIN)
            .ssd_bytes(0)
            .pool_bytes(4 << 20)
    }
}

/// Drops the store like a process that ends.
pub(super) async fn crash(db: LoggedStore) {
    let closed = db.wait_closed();
    drop(db);
    closed.await;
}

pub(super) async fn put(db: &LoggedStore, page: PageId, value: u8) -> Result<Lsn, WalError> {
    let mut change = db.begin().await?;
    let at = change.add(db.get_mut(page).await.expect("the page"));
    change.write(at, 0, &[value; 300]);
    db.commit(change).await
}

/// Frees `page` in the record that notes it in another one.
pub(super) async fn trim(db: &LoggedStore, head: PageId, page: PageId) -> Result<Lsn, WalError> {
    let mut change = db.begin().await?;
    let at = change.add(db.get_mut(head).await.expect("the page"));
    change.write(at, 8 * page.no as usize, b"is freed");
    change.free(page);
    db.commit(change).await
}

/// A space with pages, the first of which notes which of the others are freed.
pub(super) async fn pages(db: &LoggedStore, count: u32) -> SpaceId {
    let space = db.spaces().create("pages").await.unwrap();
    for _ in 0..count {
        let mut change = db.begin().await.unwrap();
        let at = change.add(db.allocate(space).await.unwrap());
        change.write(at, 0, &[1; 8]);
        db.commit(change).await.unwrap();
    }
    space
}

#[tokio::test]
async fn records_that_take_room_leave_the_reserve_to_those_that_give_it_back() {
    for seed in 0..20 {
        let media = SimMedia::new(seed);
        let wal = in_use(Box::new(media.clone()), SMALL).unwrap();
        super::append_and_flush(&wal, b"first").await;
        media.set_full(true);
        for body in [b"second", b"third."] {
            let lsn = wal.append_commit(body).unwrap();
            let error = wal.flush(lsn).await.unwrap_err();
            assert_eq!(error.advice(), Advice::FreeSpace);
            assert!(error.to_string().contains("no space left"), "{error}");
            assert!(media.has_reserve() && wal.is_tight());
        }
        wal.flush_or_reserve(wal.end()).await.unwrap();
        assert!(!media.has_reserve() && !wal.is_failing() && wal.is_tight());
        let wal = in_use(Box::new(media.after_power_cut(seed)), SMALL).unwrap();
        let found: Vec<_> = bodies(&wal).into_iter().map(|(_, body)| body).collect();
        assert_eq!(found, [&b"first"[..], b"second", b"third."]);
        assert!(!media.has_reserve(), "there is no room for one");
    }
}

#[tokio::test]
async fn more_than_the_reserve_takes_waits_for_room() {
    let media = SimMedia::new(1);
    let wal = in_use(Box::new(media.clone()), LIMITS).unwrap();
    media.set_full(true);
    let lsn = wal.append_commit(&vec![7; 1 + LIMITS.segment_bytes() as usize]).unwrap();
    assert!(matches!(wal.flush_or_reserve(lsn).await, Err(WalError::Io { .. })));
    assert!(media.has_reserve());
    media.set_full(false);
    wal.flush(lsn).await.unwrap();
    wal.truncate(lsn, lsn).await.unwrap();
    assert!(!wal.is_tight());
}

#[tokio::test]
async fn pages_are_freed_for_as_long_as_the_medium_is_full() {
    let disks = Disks::new();
    let mut media = SimMedia::new(1);
    let mut db = disks.open(&media).await;
    let space = pages(&db, 40).await;
    let head = PageId::new(space, 0);
    media.set_full(true);
    for no in 1..40 {
        let page = PageId::new(space, no);
        // Its record waits in memory, and its page with it.
        if let Err(error) = put(&db, page, no as u8).await {
            assert_eq!(error.advice(), Advice::FreeSpace, "{error}");
        }
        trim(&db, head, page).await.unwrap_or_else(|error| panic!("page {no}: {error}"));
        match no % 4 {
            0 => db.checkpoint().await.unwrap(),
            1 => assert_eq!(db.wal().free_pending(db.store()).await.unwrap(), 1),
            2 => {
                crash(db).await;
                media = media.after_power_cut(u64::from(no));
                db = disks.open(&media).await;
                db.wal().free_pending(db.store()).await.unwrap();
            }
            _ => continue,
        }
        assert!((1..=no).all(|no| !db.exists(PageId::new(space, no))), "page {no}");
    }
    db.checkpoint().await.unwrap();
    assert!(media.has_reserve());
    assert!(put(&db, head, 9).await.is_err() || !db.wal().is_failing());
    media.set_full(false);
    put(&db, head, 9).await.unwrap();
    db.shutdown().await.unwrap();
}

/// The checkpoint knows nothing of what waits, so the medium counts as no longer full.
#[tokio::test]
async fn a_change_begins_although_a_checkpoint_ends_just_after_its_record_was_refused() {
    let (disks, media) = (Disks::new(), SimMedia::new(1));
    let db = disks.open(&media).await;
    let space = pages(&db, 3).await;
    db.checkpoints.end();
    media.set_full(true);
    assert!(put(&db, PageId::new(space, 1), 7).await.is_err());
    let other = db.wal().0.checkpoints.lock().await;
    let mut freed = std::pin::pin!(trim(&db, PageId::new(space, 0), PageId::new(space, 2)));
    assert!(freed.as_mut().now_or_never().is_none(), "it waits for the checkpoint");
    db.wal().truncate(Lsn(0), Lsn(0)).await.unwrap();
    assert!(db.wal().is_failing() && !db.wal().is_tight());
    drop(other);
    freed.await.unwrap();
    db.shutdown().await.unwrap();
}

/// Any operation of the log fails in any way, or is the last one before a power cut, while the medium is
/// full: a free that was acknowledged is there, and the next ones go on.
#[tokio::test]
async fn a_fault_in_the_use_of_the_reserve_loses_no_free() {
    let mut cases = 0;
    for way in WAYS {
        for n in 0.. {
            let disks = Disks::new();
            let media = SimMedia::new(n);
            let db = disks.open(&media).await;
            let space = pages(&db, 8).await;
            media.set_full(true);
            media.fail(n, way);
            let mut acknowledged = Vec::new();
            for no in 1..5 {
                let page = PageId::new(space, no);
                let _ = put(&db, page, 7).await;
                if trim(&db, PageId::new(space, 0), page).await.is_ok() {
                    acknowledged.push(page);
                }
                let _ = db.checkpoint().await;
            }
            let happened = media.failed();
            crash(db).await;
            let media = media.after_power_cut(n);
            media.set_full(false);
            let db = disks.open(&media).await;
            db.wal().free_pending(db.store()).await.unwrap();
            for page in &acknowledged {
                assert!(!db.exists(*page), "{way:?} at {n}: page {page} is not free");
            }
            put(&db, PageId::new(space, 7), 3).await.unwrap();
            db.checkpoint().await.unwrap();
            assert!(media.has_reserve());
            db.shutdown().await.unwrap();
            if !happened {
                assert_eq!(acknowledged.len(), 4);
                break;
            }
            cases += 1;
        }
    }
    assert!(cases >= 20, "{cases} cases");
}

/// The log was of no generation, so its store recorded nothing more of it: once shortened, it had a gap.
#[tokio::test(start_paused = true)]
async fn a_log_that_is_new_on_an_almost_full_disk_is_recorded_as_any() {
    let (disks, mut media) = (Disks::new(), SimMedia::new(1));
    for life in 1..4 {
        media.set_crowded();
        let db = disks.open(&media).await;
        assert_ne!(db.wal().mark().generation, 0);
        let space = match db.spaces().find("pages") {
            Some(space) => space,
            None => pages(&db, 3).await,
        };
        let oldest = db.wal().oldest();
        for _ in 0..900 {
            put(&db, PageId::new(space, 1), life).await.unwrap();
        }
        db.checkpoint().await.unwrap();
        assert!(db.wal().oldest() > oldest, "the log was not shortened");
        crash(db).await;
        media = media.after_kill(life.into());
    }
}
