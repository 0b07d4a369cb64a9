//! A store is shut down while other handles share it; and what a dropped store leaves.

use crate::fixture::{Fixture, PAGE, PAGES, SSD_PAGES, fill, grown, read, write};
use pagetier::log::{GateError, GateFuture};
use pagetier::{
    DrainOptions, Error, LogGate, Loss, Lsn, PageId, PageSize, PageStore, SpaceId, SsdMode,
    scrub::ScrubOptions,
};
use pagetier_devio::{IoOp, SharedDevice};
use pagetier_testing::{Fault, FaultEffect};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

async fn filled(fixture: &Fixture) -> (Arc<PageStore>, SpaceId) {
    let store = fixture.open().await;
    let space = grown(&store).await;
    (Arc::new(store), space)
}

fn closed_cleanly(fixture: &Fixture) -> bool {
    let bytes = fixture.manifest.to_bytes().unwrap();
    // The checksum follows on a line of its own.
    let manifest = serde_json::Deserializer::from_slice(&bytes).into_iter::<serde_json::Value>().next();
    let manifest = manifest.unwrap().unwrap();
    manifest["opened"] == manifest["closed"]
}

async fn closed<T>(what: &str, call: impl Future<Output = Result<T, Error>>) {
    assert!(matches!(call.await.err(), Some(Error::Closed)), "{what}");
}

#[tokio::test(start_paused = true)]
async fn every_operation_after_a_shutdown_gets_a_typed_error() {
    let fixture = Fixture::new();
    let (store, space) = filled(&fixture).await;
    let hot = PageId::new(space, PAGES - 1);
    store.shutdown().await.unwrap();
    assert!(store.try_get(hot).is_none() && store.try_get_mut(hot).is_none());
    closed("get", store.get(hot)).await;
    closed("get_mut", store.get_mut(hot)).await;
    closed("allocate", store.allocate(space)).await;
    closed("create", store.overwrite(hot)).await;
    closed("recreate", store.get_or_create(hot)).await;
    closed("overwrite", store.overwrite(PageId::new(space, 10 * PAGES))).await;
    closed("discard", store.discard(hot)).await;
    closed("sync", store.sync()).await;
    closed("flush", store.flush()).await;
    closed("flush_to", store.flush_to(Lsn(9))).await;
    closed("redo_from", store.redo_from(Lsn(9), Loss::Crash)).await;
    closed("create a space", store.spaces().create("u")).await;
    closed("remove a space", store.spaces().drop(space)).await;
    closed("set_mode", store.ssd().set_mode(SsdMode::Off)).await;
    closed("readmit", store.ssd().readmit()).await;
    closed("abandon", store.ssd().abandon()).await;
    closed("acknowledge_loss", store.ssd().acknowledge_loss()).await;
    closed("scan", async { store.scan(space, 0..9).next().await.unwrap() }).await;
    assert!(!store.scrub(ScrubOptions::default()).finished().await.complete);
    let _ = store.ssd().drain(DrainOptions::new()).await;
    // The refused calls have not changed what the next open finds.
    assert!(closed_cleanly(&fixture));
    let again = fixture.open().await;
    for no in 0..PAGES {
        assert_eq!(read(&again, space, no).await.unwrap(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn all_calls_get_the_same_result_and_a_dropped_one_changes_nothing() {
    let fixture = Fixture::new();
    let (store, space) = filled(&fixture).await;
    {
        let dropped = store.shutdown();
        tokio::pin!(dropped);
        assert!(futures_util::poll!(&mut dropped).is_pending());
    }
    let others: Vec<_> = (0..3).map(|_| Arc::clone(&store)).collect();
    let calls = others.iter().map(|store| store.shutdown());
    assert!(futures_util::future::join_all(calls).await.iter().all(Result::is_ok));
    assert!(store.shutdown().await.is_ok());
    drop(others);
    let again = fixture.open().await;
    assert_eq!(read(&again, space, 7).await.unwrap(), 1);
    drop(again);
    Arc::into_inner(store).unwrap().close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failed_shutdown_says_so_to_all_and_redo_keeps_its_log() {
    let fixture = Fixture::new();
    let (store, space) = filled(&fixture).await;
    store.sync().await.unwrap();
    write(&store, space, 3, 2).await.unwrap();
    fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write));
    fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write));
    let (one, two) = tokio::join!(store.shutdown(), store.shutdown());
    assert_eq!(one.as_ref().unwrap_err().to_string(), two.unwrap_err().to_string());
    assert!(!matches!(one, Err(Error::Closed)), "the cause, not the consequence");
    closed("get", store.get(PageId::new(space, 3))).await;
    assert_eq!(store.min_recovery_lsn(), Some(Lsn(0)), "changes were dropped: redo needs its log");
    closed("redo_from", store.redo_from(Lsn(1 << 40), Loss::Crash)).await;
    drop(store);
    fixture.hdd.clear_faults();
    fixture.ssd.clear_faults();
    assert!(!closed_cleanly(&fixture));
    let again = fixture.open().await;
    assert!(read(&again, space, 3).await.unwrap() >= 1);
}

#[tokio::test(start_paused = true)]
async fn a_shared_guard_outlives_the_shutdown_and_an_exclusive_one_delays_it() {
    let fixture = Fixture::new();
    let (store, space) = filled(&fixture).await;
    let [read_page, written] = [PAGES - 1, PAGES - 2].map(|no| PageId::new(space, no));
    let reader = store.get(read_page).await.unwrap().into_owned(&store);
    let before = reader.to_vec();
    let mut writer = store.get_mut(written).await.unwrap().into_owned(&store);
    let shutdown = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.shutdown().await }
    });
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!shutdown.is_finished());
    fill(&mut writer, PAGES - 2, 9);
    drop(writer);
    shutdown.await.unwrap().unwrap();
    assert_eq!((reader.id(), &reader[..]), (read_page, &before[..]));
    let again = fixture.open().await;
    assert_eq!(read(&again, space, PAGES - 2).await.unwrap(), 9, "the change made meanwhile is kept");
    drop(reader);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_operations_and_ends_long_ones() {
    let fixture = Fixture::new();
    let (store, _) = filled(&fixture).await;
    store.sync().await.unwrap();
    let slow = ScrubOptions::default().pages_per_second(Some(0.1));
    let scrub = store.scrub(slow);
    fixture.hdd.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(600))).on(IoOp::Write).times(1));
    let (drained, ended) = tokio::join!(store.ssd().drain(DrainOptions::new()), store.shutdown());
    ended.unwrap();
    assert!(drained.left > 0, "it ended early");
    assert!(!scrub.finished().await.complete);
}

struct Log;

impl LogGate for Log {
    fn make_durable(&self, _: Lsn) -> GateFuture<'_> {
        Box::pin(async { Ok::<(), GateError>(()) })
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_dropped_store_once_left_returns() {
    let fixture = Fixture::new();
    for shut in [false, true] {
        let log = Arc::new(Log);
        let store = fixture.builder().log_gate(Arc::clone(&log) as Arc<dyn LogGate>).open().await.unwrap();
        let space = match store.spaces().find("t") {
            Some(space) => space,
            None => store.spaces().create("t").await.unwrap(),
        };
        for no in 0..40 {
            let mut page = store.overwrite(PageId::new(space, no)).await.unwrap();
            fill(&mut page, no, 1);
            page.set_lsn(Lsn(5));
        }
        fixture.hdd.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(5))).on(IoOp::Write).times(3));
        let part = tokio::time::timeout(Duration::from_millis(1), store.sync()).await;
        assert!(part.is_err(), "writes are in flight");
        let left = store.wait_closed();
        tokio::pin!(left);
        assert!(futures_util::poll!(&mut left).is_pending());
        if shut {
            store.shutdown().await.unwrap();
            assert_eq!(Arc::strong_count(&log), 1, "the store exists, and its gate is free");
        }
        drop(store);
        left.await;
        assert_eq!(Arc::strong_count(&log), 1);
        let devices = [&fixture.hdd, &fixture.ssd, &fixture.ring];
        assert!(devices.iter().all(|device| pagetier_devio::Device::occupancy(&***device).in_flight() == 0));
    }
}

fn is_unlocked(path: &std::path::Path) -> bool {
    let file = std::fs::File::open(path).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
}

#[tokio::test]
async fn a_directory_can_be_opened_at_once_after_left_or_a_failed_opening() {
    let directory = pagetier_testing::scratch();
    let builder = || PageStore::builder().directory(directory.path()).ssd_bytes(4 << 20).pool_bytes(2 << 20);
    for _ in 0..3 {
        let store = builder().open().await.unwrap();
        let space = match store.spaces().find("t") {
            Some(space) => space,
            None => store.spaces().create("t").await.unwrap(),
        };
        for _ in 0..50 {
            store.allocate(space).await.unwrap()[0] = 1;
        }
        let left = store.wait_closed();
        drop(store);
        left.await;
        assert!(is_unlocked(&directory.path().join("lock")));
        assert!(builder().page_size(PageSize::new(8192).unwrap()).open().await.is_err(), "another page size");
        assert!(is_unlocked(&directory.path().join("lock")), "the failed open left nothing");
    }
}

#[tokio::test(start_paused = true)]
async fn the_redo_position_covers_what_each_loss_takes() {
    let (_fixture, store, space) = Fixture::with_space().await;
    let put = async |no: u32, lsn: u64| {
        let mut page = store.overwrite(PageId::new(space, no)).await.unwrap();
        fill(&mut page, no, 1);
        page.set_lsn(Lsn(lsn));
    };
    assert_eq!(store.redo_from(Lsn(7), Loss::Ssd).await.unwrap(), Lsn(7), "nothing was changed");
    put(0, 10).await;
    put(1, 20).await;
    assert_eq!(store.redo_from(Lsn(30), Loss::Crash).await.unwrap(), Lsn(10));
    store.flush_to(Lsn(10)).await.unwrap();
    assert_eq!(store.redo_from(Lsn(30), Loss::Crash).await.unwrap(), Lsn(20));
    assert_eq!(store.redo_from(Lsn(30), Loss::Ssd).await.unwrap(), Lsn(10), "it is on the SSD alone");
    store.flush_to(Lsn(30)).await.unwrap();
    assert_eq!(store.redo_from(Lsn(30), Loss::Crash).await.unwrap(), Lsn(30));
    assert_eq!(store.ssd().drain(DrainOptions::new()).await.left, 0);
    assert_eq!(store.redo_from(Lsn(30), Loss::Ssd).await.unwrap(), Lsn(30));
}

/// The schedule: an engine takes a page, is cancelled before it logs anything, and later truncates its log.
#[tokio::test(start_paused = true)]
async fn a_page_that_was_created_and_not_changed_holds_no_log_back() {
    let (_fixture, store, space) = Fixture::with_space().await;
    let page = |no| PageId::new(space, no);
    for no in 0..4 {
        drop(store.overwrite(page(no)).await.unwrap());
    }
    assert_eq!(store.min_recovery_lsn(), None);
    let log = async |no: u32, lsn: u64| store.get_mut(page(no)).await.unwrap().set_lsn(Lsn(lsn));
    log(2, 20).await;
    assert_eq!(store.min_recovery_lsn(), Some(Lsn(20)), "the first change counts");
    drop(store.overwrite(page(2)).await.unwrap());
    assert_eq!(store.min_recovery_lsn(), Some(Lsn(20)), "the version below lacks that change, too");
    store.flush_to(Lsn(1)).await.unwrap();
    let is_dirty = |no: &u32| store.why(page(*no)).unwrap().memory.is_some_and(|memory| memory.dirty);
    let dirty = (0..4).filter(is_dirty);
    assert_eq!(dirty.collect::<Vec<u32>>(), [2], "what was created is written");
    store.sync().await.unwrap();
    assert_eq!(store.redo_from(Lsn(30), Loss::Ssd).await.unwrap(), Lsn(20), "all are on the SSD alone");
    assert_eq!(store.stats().ssd.oldest_lsn, Some(Lsn(20)));
    log(0, 25).await;
    assert_eq!(store.min_recovery_lsn(), Some(Lsn(25)));
    assert_eq!(store.ssd().drain(DrainOptions::new()).await.left, 0);
    drop(store.overwrite(page(5)).await.unwrap());
    assert_eq!(store.redo_from(Lsn(30), Loss::Ssd).await.unwrap(), Lsn(25));
    store.sync().await.unwrap();
    store.get_mut(page(1)).await.unwrap()[0] = 1;
    assert_eq!(store.min_recovery_lsn(), Some(Lsn(0)), "a change without a record may need any");
}

#[tokio::test(start_paused = true)]
async fn a_space_is_restored_under_its_number_and_no_number_is_used_twice() {
    let fixture = Fixture::new();
    let store = fixture.open().await;
    let first = store.spaces().create("first").await.unwrap();
    let seven = SpaceId(7);
    store.spaces().create_as(seven, "seven").await.unwrap();
    assert_eq!(store.spaces().find("seven"), Some(seven));
    assert_eq!(store.spaces().create("eight").await.unwrap(), SpaceId(8));
    store.spaces().drop(seven).await.unwrap();
    for used in [SpaceId(0), first, SpaceId(3), seven, SpaceId(8), SpaceId(u32::MAX)] {
        let refused = store.spaces().create_as(used, "again").await;
        assert!(matches!(refused, Err(Error::SpaceIdUsed { space, free_from })
            if space == used && free_from == SpaceId(9)));
    }
    let last = SpaceId(u32::MAX - 1);
    store.spaces().create_as(last, "last").await.unwrap();
    assert!(matches!(store.spaces().create("more").await, Err(Error::SpaceIdUsed { .. })));
    fill(&mut store.overwrite(PageId::new(last, 3)).await.unwrap(), 3, 1);
    store.close().await.unwrap();
    let again = fixture.open().await;
    assert_eq!(again.spaces().find("last"), Some(last));
    assert_eq!(read(&again, last, 3).await.unwrap(), 1);
}

/// The store would go on with a ring in its directory, which another store may have by then.
#[tokio::test]
async fn a_store_whose_ssd_fails_at_its_shutdown_makes_no_ring_afterwards() {
    let (directory, fixture) =
        (pagetier_testing::scratch(), Fixture::with_latency(Duration::ZERO, Duration::ZERO));
    let ssd = Arc::clone(&fixture.ssd) as SharedDevice;
    let builder = PageStore::builder().directory(directory.path()).ssd(ssd).page_size(PageSize::MIN);
    let builder = builder.ssd_bytes(SSD_PAGES * PAGE).pool_bytes(60 * PAGE).ssd_mode(SsdMode::WriteThrough);
    let store = builder.open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    fill(&mut store.allocate(space).await.unwrap(), 0, 1);
    fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush));
    assert!(store.shutdown().await.is_err());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!directory.path().join("ring").exists());
    drop(store);
}
