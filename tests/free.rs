//! Pages that are freed and whose numbers are reused: no crash brings back what was freed, or loses what was
//! synced.

use crate::fixture::{Fixture, PAGES, fill, grown, polled, read, version_of, write, write_all};
use pagetier::{Error, Lsn, PageId, PageRef, PageStore, SpaceId, backup::BackupOptions};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect, newest_area};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const SPACE: SpaceId = SpaceId(1);

pub(crate) fn at(no: u32) -> PageId {
    PageId::new(SPACE, no)
}

pub(crate) async fn is_absent(store: &PageStore, no: u32) -> bool {
    matches!(store.get(at(no)).await, Err(Error::NoSuchPage { .. }))
}

/// A store whose pages are at version 1, durably, on the SSD and the HDD.
pub(crate) async fn written(fixture: &Fixture) -> PageStore {
    let store = fixture.open().await;
    assert_eq!(grown(&store).await, SPACE);
    store.sync().await.unwrap();
    store
}

#[tokio::test(start_paused = true)]
async fn a_freed_page_does_not_exist_until_its_number_is_used_again() {
    let fixture = Fixture::new();
    let store = written(&fixture).await;
    store.free(at(3)).await.unwrap();
    assert!(is_absent(&store, 3).await);
    assert_eq!(store.free(at(3)).await.unwrap(), 0);
    assert!(matches!(store.discard(at(3)).await, Err(Error::NoSuchPage { .. })));
    assert_eq!(store.free(&[at(2), at(3), at(9), at(2)]).await.unwrap(), 2);
    assert_eq!(store.free((SPACE, 280..10_000)).await.unwrap(), 20);
    let info = store.spaces().list().remove(0);
    assert_eq!((info.pages, info.free), (PAGES, 23));
    assert_eq!(store.spaces().pages(SPACE).unwrap(), PAGES);
    let mut scan = store.scan(SPACE, 0..12);
    let mut seen = Vec::new();
    while let Some(page) = scan.next().await {
        seen.push(page.unwrap().id().no);
    }
    assert_eq!(seen, [0, 1, 4, 5, 6, 7, 8, 10, 11]);
    for expected in [2, 3, 9, 280, 281] {
        let page = store.allocate(SPACE).await.unwrap();
        assert_eq!(page.id().no, expected);
        assert!(page.iter().all(|byte| *byte == 0));
    }
    // Reuse numbers by each call that redo makes.
    fill(&mut store.overwrite(at(290)).await.unwrap(), 290, 7);
    fill(&mut store.overwrite(at(291)).await.unwrap(), 291, 7);
    fill(&mut store.get_or_create(at(292)).await.unwrap(), 292, 7);
    store.sync().await.unwrap();
    for store in [fixture.after_power_cut(1).open().await, store] {
        for no in [290, 291, 292] {
            assert_eq!(read(&store, SPACE, no).await.unwrap(), 7);
        }
        for no in (282..290).chain(293..300) {
            assert!(is_absent(&store, no).await, "page {no}");
        }
        assert_eq!(store.spaces().list()[0].free, 15);
        assert_eq!(store.validate(), Ok(()));
        store.close().await.unwrap();
    }
}

/// After a close, and after a crash, the free numbers are reused and every other page exists.
#[tokio::test(start_paused = true)]
async fn the_free_pages_outlive_a_close_and_a_crash() {
    for crash in [false, true] {
        let fixture = Fixture::new();
        let store = written(&fixture).await;
        store.free((SPACE, 10..40)).await.unwrap();
        // Reused, but not synced.
        for no in 10..14 {
            fill(&mut store.allocate(SPACE).await.unwrap(), no, 2);
        }
        let left = store.wait_closed();
        let fixture = if crash {
            drop(store);
            left.await;
            fixture.after_power_cut(5)
        } else {
            store.close().await.unwrap();
            fixture
        };
        let store = fixture.open().await;
        let first = if crash { 10 } else { 14 };
        for no in 0..PAGES {
            match no {
                10..14 if !crash => assert_eq!(read(&store, SPACE, no).await.unwrap(), 2),
                10..40 => assert!(is_absent(&store, no).await, "page {no}"),
                _ => assert_eq!(read(&store, SPACE, no).await.unwrap(), 1),
            }
        }
        for no in (first..40).chain([PAGES]) {
            assert_eq!(store.allocate(SPACE).await.unwrap().id().no, no, "crash: {crash}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_page_from_before_it_was_freed_is_read_again() {
    let fixture = Fixture::new();
    let store = written(&fixture).await;
    store.free(&[at(5), at(6), at(7)]).await.unwrap();
    drop(store.overwrite(at(5)).await.unwrap());
    fill(&mut store.overwrite(at(6)).await.unwrap(), 6, 2);
    store.discard(at(6)).await.unwrap();
    assert!(is_absent(&store, 6).await);
    let store = {
        drop(store);
        fixture.after_power_cut(9).open().await
    };
    for no in 5..8 {
        assert!(is_absent(&store, no).await, "page {no}");
    }
}

#[tokio::test(start_paused = true)]
async fn freeing_waits_for_guards_and_completes_when_its_future_is_dropped() {
    let fixture = Fixture::new();
    let store = Arc::new(written(&fixture).await);
    let guard = store.get(at(4)).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(50), store.free(at(4))).await.is_err());
    assert_eq!(version_of(&guard, 4), 1);
    // Its number is not reused while a guard is alive.
    assert_eq!(store.allocate(SPACE).await.unwrap().id().no, PAGES);
    let again = tokio::spawn({
        let store = Arc::clone(&store);
        async move { fill(&mut store.overwrite(at(4)).await.unwrap(), 4, 9) }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!again.is_finished());
    drop(guard);
    again.await.unwrap();
    assert_eq!(read(&store, SPACE, 4).await.unwrap(), 9);
    for polls in 0..12 {
        let no = 20 + polls as u32;
        let _ = polled(polls, store.free(at(no))).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let free: Vec<u32> = (20..32).collect();
    for no in &free[1..] {
        assert!(is_absent(&store, *no).await, "page {no}");
    }
    let mut reused = Vec::new();
    for _ in 1..free.len() {
        reused.push(store.allocate(SPACE).await.unwrap().id().no);
    }
    assert_eq!(reused, free[1..]);
}

/// A store in which a dropped call still frees pages 4 and 9: page 9 is in memory, because the call waits for
/// the guard of page 4.
async fn half_freed(store: &PageStore) -> PageRef<'_> {
    drop(store.get(at(9)).await.unwrap());
    let guard = store.get(at(4)).await.unwrap();
    let pages = [at(4), at(9)];
    let freeing = tokio::time::timeout(Duration::from_millis(50), store.free(&pages));
    assert!(freeing.await.is_err());
    guard
}

#[tokio::test(start_paused = true)]
async fn freeing_a_page_that_a_dropped_call_still_frees_returns_once_it_has_left_memory() {
    for one in [true, false] {
        let fixture = Fixture::new();
        let store = written(&fixture).await;
        let guard = half_freed(&store).await;
        let mut again = Box::pin(async {
            let pages = [at(9), at(20)];
            store.free(if one { &pages[..1] } else { &pages }).await
        });
        let waited = tokio::time::timeout(Duration::from_millis(50), again.as_mut()).await;
        assert!(waited.is_err(), "{waited:?} while the page is in memory");
        drop(guard);
        assert_eq!(again.as_mut().await.unwrap(), u32::from(!one));
        assert!(store.try_get(at(9)).is_none() && is_absent(&store, 9).await);
        assert_eq!(store.allocate(SPACE).await.unwrap().id().no, 4);
    }
}

/// The records of frees in the manifest of a directory; each is there twice.
fn records_of_frees(directory: &std::path::Path) -> usize {
    let file = std::fs::read(directory.join("manifest.json")).unwrap();
    let manifest = String::from_utf8_lossy(&file[newest_area(&file)]);
    manifest.matches("{\"free\":").count() / 2
}

#[tokio::test]
async fn calls_that_come_together_share_a_record_and_each_counts_its_own_pages() {
    let folder = pagetier_testing::scratch();
    let builder = || PageStore::builder().directory(folder.path()).ssd_bytes(4 << 20).pool_bytes(4 << 20);
    let store = builder().open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    for no in 0..200 {
        fill(&mut store.allocate(space).await.unwrap(), no, 1);
    }
    store.sync().await.unwrap();
    let before = records_of_frees(folder.path());
    // Neighbours name a page in common: one of them frees it, and the other waits until it is gone.
    let calls = (0..60).map(|call| store.free((space, 2 * call..2 * call + 3)));
    let unknown = store.free((SpaceId(9), 0..1));
    let (freed, unknown) = futures_util::future::join(futures_util::future::join_all(calls), unknown).await;
    assert!(matches!(unknown, Err(Error::NoSuchSpace { space: SpaceId(9) })));
    let freed: Vec<u32> = freed.into_iter().map(Result::unwrap).collect();
    assert_eq!(freed.iter().sum::<u32>(), 121);
    let records = records_of_frees(folder.path()) - before;
    assert!((1..=6).contains(&records), "{records} records for 60 calls");
    // One page each, of which two calls name the last.
    let calls = (0..40).map(|call| store.free(PageId::new(space, 130 + call.min(38))));
    let results = futures_util::future::join_all(calls).await;
    assert_eq!(results.iter().filter(|result| matches!(result, Ok(0))).count(), 1);
    assert!(records_of_frees(folder.path()) - before <= 12);
    drop(store);
    let store = builder().open().await.unwrap();
    for no in 0..200 {
        let is_freed = no <= 120 || (130..=168).contains(&no);
        assert_eq!(store.exists(PageId::new(space, no)), !is_freed, "page {no}");
    }
    store.close().await.unwrap();
}

/// Several calls share the record that fails: none of them has freed its page, and each can be repeated.
#[tokio::test(start_paused = true)]
async fn a_failure_of_a_shared_record_is_that_of_each_call() {
    for replaced in [false, true] {
        let fixture = Fixture::new();
        let store = written(&fixture).await;
        // While a growth waits for the HDD it has the manifest, and the calls come together.
        for op in [IoOp::Write, IoOp::Flush] {
            fixture.hdd.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(1))).on(op).times(1));
        }
        let growth = store.overwrite(at(1000));
        let calls = futures_util::future::join_all((0..9).map(|no| store.free(at(no))));
        // The growth's save is the first.
        fixture.manifest.fail_saves(1, 1, replaced);
        let (_, results) = futures_util::future::join(growth, calls).await;
        assert!(results.iter().all(Result::is_err), "{results:?}");
        for no in 0..9 {
            let result = store.free(at(no)).await;
            assert!(matches!(result, Ok(1)) && is_absent(&store, no).await, "page {no}: {result:?}");
        }
        let crashed = fixture.after_power_cut(1).open().await;
        for no in 0..10 {
            assert_eq!(is_absent(&crashed, no).await, no < 9, "page {no}");
        }
    }
}

/// A call of no more than 128 runs is recorded as a whole or not at all, although others share its records: a
/// log repeats it after a failure, and would free what is in use again.
#[tokio::test(start_paused = true)]
async fn a_call_that_has_room_in_one_record_gets_one() {
    let mut failed = 0;
    for skip in 0..4 {
        let fixture = Fixture::new();
        let store = written(&fixture).await;
        let batch: Vec<PageId> = (1..129).map(|nth| at(2 * nth)).collect();
        // While a growth waits for the HDD it has the manifest, and the calls come together.
        for op in [IoOp::Write, IoOp::Flush] {
            fixture.hdd.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(1))).on(op).times(1));
        }
        let growth = store.overwrite(at(1000));
        let ends = [at(0), at(299)];
        let own = store.free(&ends);
        // The growth's save is the first.
        fixture.manifest.fail_saves(1 + skip, 1, false);
        let (grown, own, freed) = futures_util::future::join3(growth, own, store.free(&batch)).await;
        assert!(grown.is_ok(), "{grown:?}");
        let gone = batch.iter().filter(|page| !store.exists(**page)).count();
        assert_eq!(gone, if freed.is_ok() { 128 } else { 0 }, "{skip}: {freed:?}, its own {own:?}");
        failed += u32::from(freed.is_err() && own.is_ok());
    }
    assert!(failed > 0, "no record failed after another one");
}

/// What is written to a page that is being freed leaves memory with it.
#[tokio::test(start_paused = true)]
async fn a_page_recreated_while_a_dropped_call_still_frees_it_is_a_new_one() {
    let fixture = Fixture::new();
    let store = written(&fixture).await;
    let guard = half_freed(&store).await;
    let mut again = Box::pin(store.get_or_create(at(9)));
    let waited = tokio::time::timeout(Duration::from_millis(50), again.as_mut()).await;
    assert!(waited.is_err(), "{waited:?} while the page is in memory");
    drop(guard);
    let mut page = again.await.unwrap();
    assert!(page.iter().all(|byte| *byte == 0));
    fill(&mut page, 9, 2);
    drop(page);
    store.sync().await.unwrap();
    assert_eq!(read(&store, SPACE, 9).await.unwrap(), 2);
    assert_eq!(read(&fixture.after_power_cut(1).open().await, SPACE, 9).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_a_call_that_waits_for_a_page_to_leave_memory() {
    let fixture = Fixture::new();
    let store = Arc::new(written(&fixture).await);
    let guard = half_freed(&store).await;
    let again = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.free(at(9)).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let ending = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.shutdown().await }
    });
    let ended = again.await.unwrap();
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    drop(guard);
    ending.await.unwrap().unwrap();
    let store = fixture.open().await;
    assert!(is_absent(&store, 4).await && is_absent(&store, 9).await);
}

#[tokio::test(start_paused = true)]
async fn a_page_whose_freeing_could_not_be_recorded_is_there() {
    for replaced in [false, true] {
        for seed in 0..4 {
            let fixture = Fixture::new();
            let store = written(&fixture).await;
            write_all(&store, SPACE, 2).await;
            store.sync().await.unwrap();
            fixture.manifest.fail_saves(0, 1, replaced);
            let freed = store.free(at(8)).await;
            assert!(matches!(freed, Err(Error::Manifest { .. })), "{freed:?}");
            assert_eq!(read(&store, SPACE, 8).await.unwrap(), 2);
            let crashed = fixture.after_power_cut(seed).open().await;
            match read(&crashed, SPACE, 8).await {
                Ok(version) => assert_eq!((version, replaced), (2, false)),
                Err(error) => assert!(replaced && matches!(error, Error::NoSuchPage { .. }), "{error}"),
            }
            // A sync saves the manifest again, so both outcomes become one.
            write(&store, SPACE, 8, 3).await.unwrap();
            store.sync().await.unwrap();
            assert_eq!(read(&fixture.after_power_cut(seed).open().await, SPACE, 8).await.unwrap(), 3);
            store.free(at(8)).await.unwrap();
            assert!(is_absent(&fixture.after_power_cut(seed).open().await, 8).await);
        }
    }
}

/// A reuse whose record failed may be in force on disk: freeing the page again must be recorded nevertheless.
#[tokio::test(start_paused = true)]
async fn a_page_freed_after_its_reuse_was_recorded_in_doubt_stays_free() {
    for replaced in [false, true] {
        let fixture = Fixture::new();
        let store = written(&fixture).await;
        store.free(at(8)).await.unwrap();
        fill(&mut store.overwrite(at(8)).await.unwrap(), 8, 2);
        fixture.manifest.fail_saves(0, 1, replaced);
        assert!(store.sync().await.is_err());
        store.free(at(8)).await.unwrap();
        assert!(is_absent(&fixture.after_power_cut(3).open().await, 8).await);
        fill(&mut store.overwrite(at(8)).await.unwrap(), 8, 3);
        store.sync().await.unwrap();
        assert_eq!(read(&fixture.after_power_cut(4).open().await, SPACE, 8).await.unwrap(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_by_lsn_covers_pages_that_exist_again() {
    let fixture = Fixture::new();
    let store = written(&fixture).await;
    store.free((SPACE, 0..6)).await.unwrap();
    for no in 0..6 {
        let mut page = store.allocate(SPACE).await.unwrap();
        fill(&mut page, no, 2);
        page.set_lsn(Lsn(1_000_000 + u64::from(no)));
    }
    store.flush_to(Lsn(1_000_003)).await.unwrap();
    let after = fixture.after_power_cut(1).open().await;
    for no in 0..4 {
        assert_eq!(read(&after, SPACE, no).await.unwrap(), 2);
    }
    // A page that redo still covers is in its new life or does not exist.
    for no in 4..6 {
        match read(&after, SPACE, no).await {
            Ok(version) => assert_eq!(version, 2),
            Err(error) => assert!(matches!(error, Error::NoSuchPage { .. }), "{error}"),
        }
    }
}

#[tokio::test]
async fn free_pages_are_absent_from_a_read_only_opening_and_from_backups() {
    let fixture = Fixture::with_latency(Duration::ZERO, Duration::ZERO);
    let store = written(&fixture).await;
    let folder = pagetier_testing::scratch();
    let chain = folder.path().join("chain");
    store.backup(&chain, BackupOptions::new()).await.unwrap();
    // The chain has pages beyond the end, of which one is created again.
    store.free((SPACE, 260..PAGES)).await.unwrap();
    store.spaces().shrink(SPACE).await.unwrap();
    store.backup(&chain, BackupOptions::new()).await.unwrap();
    fill(&mut store.overwrite(at(290)).await.unwrap(), 290, 2);
    store.free((SPACE, 100..120)).await.unwrap();
    for no in 100..105 {
        fill(&mut store.allocate(SPACE).await.unwrap(), no, 2);
    }
    let report = store.backup(&chain, BackupOptions::new()).await.unwrap();
    assert_eq!(report.full_because, None);
    let restored = || pagetier::PageStore::builder().directory(folder.path().join("restored")).ssd_bytes(0);
    restored().pool_bytes(3 << 20).restore(&chain, None, |_| ()).await.unwrap();
    let restored = restored().pool_bytes(3 << 20).open().await.unwrap();
    let crashed = fixture.after_power_cut(2);
    let read_only = crashed.builder().open_read_only().await.unwrap();
    for (name, store) in [("restored", restored), ("read-only", read_only)] {
        for no in 0..PAGES {
            match no {
                100..105 | 290 => assert_eq!(read(&store, SPACE, no).await.unwrap(), 2, "{name}: page {no}"),
                105..120 | 260..PAGES => assert!(is_absent(&store, no).await, "{name}: page {no}"),
                _ => assert_eq!(read(&store, SPACE, no).await.unwrap(), 1, "{name}: page {no}"),
            }
        }
    }
}

/// A reused page was written, but its reuse could not be recorded; then it is discarded. What is below
/// memory is from before it was freed, and is neither read nor brought back by a crash.
#[tokio::test(start_paused = true)]
async fn a_discarded_page_does_not_return_to_its_life_before_it_was_freed() {
    for written_again in [false, true] {
        let fixture = Fixture::new();
        let store = written(&fixture).await;
        // The home has version 1.
        assert!(store.ssd().drain(pagetier::DrainOptions::new()).await.stopped_by.is_none());
        store.free(at(8)).await.unwrap();
        fill(&mut store.overwrite(at(8)).await.unwrap(), 8, 2);
        fixture.manifest.fail_saves(0, 1, false);
        assert!(store.sync().await.is_err(), "the reuse is not recorded");
        store.discard(at(8)).await.unwrap();
        assert!(is_absent(&store, 8).await, "its earlier life");
        if written_again {
            fill(&mut store.overwrite(at(8)).await.unwrap(), 8, 3);
        }
        store.sync().await.unwrap();
        let crashed = fixture.after_power_cut(2).open().await;
        for store in [&store, &crashed] {
            if written_again {
                assert_eq!(read(store, SPACE, 8).await.unwrap(), 3);
            } else {
                assert!(is_absent(store, 8).await, "its earlier life, after a sync");
            }
        }
        drop(store);
        if !written_again {
            assert_eq!(crashed.allocate(SPACE).await.unwrap().id().no, 8, "it is still free on disk");
        }
    }
}

/// The runtime ends while a call that runs on it frees a page and waits for a guard.
#[test]
fn a_page_whose_freeing_ended_with_its_runtime_can_be_created() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let fixture = Fixture::with_latency(Duration::ZERO, Duration::ZERO);
    let (first, second) = (runtime(), runtime());
    let store = first.block_on(written(&fixture));
    let store = Arc::new(store);
    let guard = second.block_on(store.get(at(4))).unwrap();
    second.block_on(async {
        let pages = [at(4), at(9)];
        let freeing = tokio::time::timeout(Duration::from_millis(200), store.free(&pages));
        assert!(freeing.await.is_err());
    });
    first.shutdown_timeout(Duration::from_secs(5));
    drop(guard);
    second.block_on(async {
        let created = tokio::time::timeout(Duration::from_secs(20), store.overwrite(at(9))).await;
        assert!(created.expect("it waits for ever").unwrap().iter().all(|byte| *byte == 0));
        let created = tokio::time::timeout(Duration::from_secs(20), store.get_or_create(at(4))).await;
        assert!(created.expect("it waits for ever").unwrap().iter().all(|byte| *byte == 0));
    });
}

/// An allocation takes a page's number and waits for a frame; meanwhile the page is freed with a range.
#[tokio::test(start_paused = true)]
async fn a_page_that_waits_for_a_frame_while_its_range_is_freed_gets_one_owner() {
    let fixture = Fixture::new();
    let store = Arc::new(written(&fixture).await);
    // All frames are pinned.
    let mut guards = Vec::new();
    while let Some(Ok(guard)) = polled(100, store.get(at(guards.len() as u32))).await {
        guards.push(guard);
    }
    let mut waiting = Box::pin(store.allocate(SPACE));
    assert!(polled(3, &mut waiting).await.is_none());
    assert_eq!(store.spaces().pages(SPACE).unwrap(), PAGES + 1);
    let freeing = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.free((SPACE, PAGES..PAGES + 1)).await })
    };
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert!(!freeing.is_finished(), "the page is freed while its frame is on the way");
    guards.clear();
    let page = waiting.await.unwrap();
    assert_eq!(page.id(), at(PAGES));
    let other = store.allocate(SPACE).await.unwrap();
    assert_ne!(other.id(), page.id(), "two owners");
    drop((page, other));
    assert_eq!(freeing.await.unwrap().unwrap(), 1);
    assert!(is_absent(&store, PAGES).await);
}
