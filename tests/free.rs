//! Pages that are freed and whose numbers are reused: no crash brings back what was freed, or loses what was
//! synced.

use crate::fixture::{self, Fixture, PAGES, fill, grown, polled, read, version_of, write, write_all};
use pagetier::{Error, Lsn, PageId, PageRef, PageStore, SpaceId, backup::BackupOptions};
use pagetier_devio::{Device, IoOp};
use pagetier_testing::{Fault, FaultEffect, newest_area};
use std::collections::BTreeSet;
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

/// Extents whose pages are all free go to other spaces. The pages stay free; reusing them gets new extents.
#[tokio::test(start_paused = true)]
async fn a_space_that_shrinks_gives_its_room_to_others() {
    for crash in [None, Some(1), Some(2)] {
        let fixture = Fixture::new();
        let store = written(&fixture).await;
        assert_eq!(store.spaces().shrink(SPACE).await.unwrap(), 0);
        store.free((SPACE, 30..256)).await.unwrap();
        let room = store.stats().room.unallocated_bytes;
        assert_eq!(store.spaces().shrink(SPACE).await.unwrap(), 3 * 64 * fixture::PAGE);
        assert_eq!(store.stats().room.unallocated_bytes, room + 3 * 64 * fixture::PAGE);
        assert_eq!(store.spaces().shrink(SPACE).await.unwrap(), 0);
        let size = fixture.hdd.size();
        let other = store.spaces().create("u").await.unwrap();
        for no in 0..3 * 64 {
            fill(&mut store.allocate(other).await.unwrap(), no, 4);
        }
        assert_eq!(fixture.hdd.size(), size, "the other space has the room of the first");
        // Numbers with room are reused first, then those without.
        for no in 30..100 {
            assert_eq!(store.allocate(SPACE).await.unwrap().id().no, no);
        }
        fill(&mut store.overwrite(at(200)).await.unwrap(), 200, 5);
        store.sync().await.unwrap();
        let (fixture, store) = match crash {
            None => {
                store.close().await.unwrap();
                let store = fixture.open().await;
                (fixture, store)
            }
            Some(seed) => {
                let crashed = fixture.after_power_cut(seed);
                let store = crashed.open().await;
                (crashed, store)
            }
        };
        for no in 0..PAGES {
            match no {
                30..100 => assert!(store.get(at(no)).await.unwrap().iter().all(|byte| *byte == 0)),
                200 => assert_eq!(read(&store, SPACE, no).await.unwrap(), 5),
                100..256 => assert!(is_absent(&store, no).await, "page {no}"),
                _ => assert_eq!(read(&store, SPACE, no).await.unwrap(), 1),
            }
        }
        for no in 0..3 * 64 {
            assert_eq!(read(&store, other, no).await.unwrap(), 4);
        }
        store.free((SPACE, 0..PAGES)).await.unwrap();
        assert!(store.spaces().shrink(SPACE).await.unwrap() > 0);
        assert_eq!(store.spaces().pages(SPACE).unwrap(), 0);
        store.close().await.unwrap();
        let store = fixture.open().await;
        assert_eq!(store.spaces().pages(SPACE).unwrap(), 0);
        for no in 0..2 {
            assert_eq!(store.allocate(SPACE).await.unwrap().id().no, no);
        }
        assert_eq!(store.validate(), Ok(()));
    }
}

/// The end of a space falls to its last page; a page that the next `sync` is to free still is one. What is
/// created beyond the end again is blank, and the numbers before it are free.
#[tokio::test(start_paused = true)]
async fn a_space_that_shrinks_ends_with_its_last_page() {
    for crash in [None, Some(1), Some(2)] {
        let fixture = Fixture::new();
        let store = written(&fixture).await;
        store.free((SPACE, 100..290)).await.unwrap();
        store.free((SPACE, 291..PAGES)).await.unwrap();
        assert_eq!(store.free_on_sync(&[at(290)]).unwrap(), 1);
        let _ = store.spaces().shrink(SPACE).await.unwrap();
        assert_eq!(store.spaces().pages(SPACE).unwrap(), 291);
        store.sync().await.unwrap();
        let _ = store.spaces().shrink(SPACE).await.unwrap();
        let info = store.spaces().list().remove(0);
        assert_eq!((info.pages, info.free), (100, 0));
        let reopened = async |fixture: Fixture, store: PageStore| match crash {
            None => {
                store.close().await.unwrap();
                let store = fixture.open().await;
                (fixture, store)
            }
            Some(seed) => {
                let crashed = fixture.after_power_cut(seed);
                let store = crashed.open().await;
                (crashed, store)
            }
        };
        let (fixture, store) = reopened(fixture, store).await;
        assert_eq!(store.spaces().pages(SPACE).unwrap(), 100);
        assert!(store.overwrite(at(200)).await.unwrap().iter().all(|byte| *byte == 0));
        assert_eq!(store.allocate(SPACE).await.unwrap().id().no, 100);
        let info = store.spaces().list().remove(0);
        assert_eq!((info.pages, info.free), (201, 99));
        fill(&mut store.overwrite(at(200)).await.unwrap(), 200, 3);
        store.sync().await.unwrap();
        let (_fixture, store) = reopened(fixture, store).await;
        assert_eq!(store.spaces().pages(SPACE).unwrap(), 201);
        for no in 0..PAGES {
            match no {
                0..100 => assert_eq!(read(&store, SPACE, no).await.unwrap(), 1),
                100 => assert!(store.get(at(no)).await.unwrap().iter().all(|byte| *byte == 0)),
                200 => assert_eq!(read(&store, SPACE, no).await.unwrap(), 3),
                _ => assert!(is_absent(&store, no).await, "page {no}"),
            }
        }
        assert_eq!(store.validate(), Ok(()));
    }
}

/// Schedules: the power is cut at any moment of a shrink, so between the records of what is given back and
/// the save of the lower end, and while numbers beyond the end are used again.
#[tokio::test(start_paused = true)]
async fn a_power_cut_while_a_space_shrinks_brings_no_freed_page_back() {
    let mut shrunk = 0;
    for step in 0.. {
        let fixture = Fixture::new();
        let store = written(&fixture).await;
        let stage = std::cell::Cell::new(0);
        let life = tokio::time::timeout(step * Duration::from_micros(300), async {
            store.free((SPACE, 100..PAGES)).await.unwrap();
            stage.set(1);
            store.spaces().shrink(SPACE).await.unwrap();
            stage.set(2);
            for (done, no) in [(3, 110), (4, 280)] {
                fill(&mut store.overwrite(at(no)).await.unwrap(), no, 2);
                store.sync().await.unwrap();
                stage.set(done);
            }
        });
        let ended = life.await.is_ok();
        let stage = stage.get();
        shrunk += u32::from(stage == 1);
        let after = fixture.after_power_cut(step.into()).open().await;
        for no in 0..PAGES {
            let found = read(&after, SPACE, no).await.ok();
            let is_sound = match no {
                0..100 => found == Some(1),
                110 if stage >= 3 => found == Some(2),
                280 if stage >= 4 => found == Some(2),
                110 | 280 if stage >= 2 => found.is_none_or(|version| version == 2),
                _ if stage == 0 => found.is_none_or(|version| version == 1),
                _ => found.is_none(),
            };
            assert!(is_sound, "step {step}, stage {stage}: page {no} has {found:?}");
        }
        assert!(stage != 2 || after.spaces().pages(SPACE).unwrap() < 300, "step {step}");
        assert_eq!(after.validate(), Ok(()));
        if ended {
            break;
        }
    }
    assert!(shrunk >= 3, "only {shrunk} cuts of a shrink");
}

/// A page that a guard keeps in memory after it was freed may still be written: its extent stays its space's,
/// even if the space ends before it.
#[tokio::test(start_paused = true)]
async fn a_page_that_is_leaving_memory_beyond_the_end_keeps_its_extent() {
    let fixture = Fixture::new();
    let store = Arc::new(written(&fixture).await);
    store.free((SPACE, 100..290)).await.unwrap();
    store.free((SPACE, 291..PAGES)).await.unwrap();
    let mut guard = store.get_mut(at(290)).await.unwrap();
    fill(&mut guard, 290, 2);
    let freeing = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.free(at(290)).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!store.exists(at(290)) && !freeing.is_finished());
    let given = store.spaces().shrink(SPACE).await.unwrap();
    assert_eq!((given, store.spaces().pages(SPACE).unwrap()), (2 * 64 * fixture::PAGE, 100));
    // The number is not given out before the page has left, and those after it are, once each.
    let mut numbers = BTreeSet::new();
    for _ in (100..322).filter(|no| *no != 290) {
        let mut page = store.allocate(SPACE).await.unwrap();
        let no = page.id().no;
        assert!(no >= 100 && no != 290 && numbers.insert(no));
        fill(&mut page, no, 4);
    }
    assert_eq!(numbers.last(), Some(&321));
    drop(guard);
    assert_eq!(freeing.await.unwrap().unwrap(), 1);
    assert_eq!(store.allocate(SPACE).await.unwrap().id(), at(290));
    for no in 0..322 {
        let expected = if no < 100 { 1 } else { 4 };
        assert!(no == 290 || read(&store, SPACE, no).await.unwrap() == expected, "page {no}");
    }
    assert_eq!(store.validate(), Ok(()));
}

/// Each save of a shrink fails, with effect or without. A crash then finds a store that opens, with no freed
/// page; and what the store does without one is not lost by a later crash.
#[tokio::test(start_paused = true)]
async fn a_shrink_whose_saves_fail_loses_nothing_and_brings_nothing_back() {
    let mut failures = 0;
    for (step, replaced) in (0..20).flat_map(|step| [(step, false), (step, true)]) {
        let fixture = Fixture::new();
        let store = written(&fixture).await;
        // An extent in the middle, too.
        store.free((SPACE, 64..128)).await.unwrap();
        store.free((SPACE, 150..PAGES)).await.unwrap();
        fixture.manifest.fail_saves(step, 1, replaced);
        let shrunk = store.spaces().shrink(SPACE).await;
        fixture.manifest.fail_saves(0, 0, false);
        failures += u32::from(shrunk.is_err());
        let crashed = fixture.after_power_cut(step).open().await;
        let other = store.spaces().create("u").await.unwrap();
        for no in 0..PAGES {
            fill(&mut store.allocate(other).await.unwrap(), no, 4);
        }
        for no in [70, 151, 280] {
            fill(&mut store.overwrite(at(no)).await.unwrap(), no, 2);
        }
        store.sync().await.unwrap();
        let later = fixture.after_power_cut(step).open().await;
        for (store, again, what) in
            [(crashed, false, "crashed"), (store, true, "running"), (later, true, "later")]
        {
            for no in 0..PAGES {
                let expected = match no {
                    70 | 151 | 280 if again => Some(2),
                    64..128 | 150.. => None,
                    _ => Some(1),
                };
                let found = read(&store, SPACE, no).await.ok();
                assert_eq!(found, expected, "step {step}, {replaced}, {what}: page {no}");
            }
            for no in (0..PAGES).filter(|_| again) {
                assert_eq!(read(&store, other, no).await.unwrap(), 4, "step {step}, {replaced}, {what}");
            }
            assert_eq!(store.validate(), Ok(()));
        }
        if shrunk.is_ok() && step > 0 {
            break;
        }
    }
    assert!(failures >= 6, "only {failures}");
}

/// A tool that inspects the store sees the disk space that a space has, not what it gave back.
#[tokio::test(start_paused = true)]
async fn extents_that_were_given_back_are_no_room_of_their_space() {
    let fixture = Fixture::new();
    let store = written(&fixture).await;
    let room = async || {
        let inspection = fixture.builder().inspect().await.unwrap().manifest;
        (inspection.spaces[0].pages, inspection.spaces[0].room, (inspection.extents, inspection.extents_free))
    };
    assert_eq!(room().await, (0, 320, (5, 0)));
    store.free((SPACE, 64..256)).await.unwrap();
    store.spaces().shrink(SPACE).await.unwrap();
    store.close().await.unwrap();
    assert_eq!(room().await, (PAGES, 320 - 192, (5, 3)));
}

/// While a space shrinks, no number of the extents that it gives back is used again.
#[tokio::test(start_paused = true)]
async fn numbers_of_extents_that_are_given_back_are_withheld_meanwhile() {
    for (seed, cut) in [(0, false), (1, true), (2, false), (3, true)] {
        let fixture = Fixture::new();
        let store = Arc::new(written(&fixture).await);
        // All of the second and third extent, and some pages of the first.
        store.free((SPACE, 60..192)).await.unwrap();
        if cut {
            // The end, too: all of the last extent, and some pages of the one before.
            store.free((SPACE, 250..PAGES)).await.unwrap();
        }
        store.sync().await.unwrap();
        // The shrinking waits for a flush of the HDD.
        let slow = Fault::new(FaultEffect::Slow(Duration::from_secs(5))).on(IoOp::Flush).times(1);
        fixture.hdd.inject(slow);
        let shrinking = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.spaces().shrink(SPACE).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!shrinking.is_finished());
        let mut numbers = Vec::new();
        for _ in 0..6 {
            let mut page = store.allocate(SPACE).await.unwrap();
            let no = page.id().no;
            fill(&mut page, no, 2);
            numbers.push(no);
        }
        let next = if cut { [250, 251] } else { [300, 301] };
        assert_eq!(numbers[..4], [60, 61, 62, 63]);
        assert_eq!(numbers[4..], next, "not those that are being given back");
        // A call for such a number waits until the space grows for it again.
        fill(&mut store.overwrite(at(100)).await.unwrap(), 100, 2);
        assert_eq!(shrinking.await.unwrap().unwrap(), (2 + u64::from(cut)) * 64 * fixture::PAGE);
        numbers.push(100);
        let other = store.spaces().create("u").await.unwrap();
        for no in 0..200 {
            fill(&mut store.allocate(other).await.unwrap(), no, 4);
        }
        store.sync().await.unwrap();
        let crashed = fixture.after_power_cut(seed).open().await;
        for store in [&*store, &crashed] {
            for no in &numbers {
                assert_eq!(read(store, SPACE, *no).await.unwrap(), 2);
            }
            for no in 0..200 {
                assert_eq!(read(store, other, no).await.unwrap(), 4);
            }
            assert!(is_absent(store, 150).await);
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

/// A shrink frees numbers that were never used, since the rest of their extent is free. One that is created
/// meanwhile is not among them.
#[tokio::test(start_paused = true)]
async fn a_page_that_is_created_while_a_space_shrinks_is_not_freed() {
    for step in 0..20 {
        let fixture = Fixture { on_hdd: true, ..Fixture::new() };
        let store = Arc::new(written(&fixture).await);
        store.free((SPACE, 200..PAGES)).await.unwrap();
        let shrinking = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.spaces().shrink(SPACE).await }
        });
        tokio::time::sleep(step * Duration::from_millis(1)).await;
        // Of the numbers that the last extent has left, and beyond it.
        for no in [PAGES, PAGES + 10, PAGES + 30] {
            fill(&mut store.overwrite(at(no)).await.unwrap(), no, 2);
        }
        shrinking.await.unwrap().unwrap();
        store.sync().await.unwrap();
        let crashed = fixture.after_power_cut(step.into()).open().await;
        for (what, store) in [("running", &*store), ("crashed", &crashed)] {
            for no in [PAGES, PAGES + 10, PAGES + 30] {
                assert_eq!(read(store, SPACE, no).await.unwrap(), 2, "step {step}, {what}: page {no}");
            }
            assert_eq!(store.spaces().pages(SPACE).unwrap(), PAGES + 31, "step {step}, {what}");
            assert_eq!(store.validate(), Ok(()));
        }
    }
}
