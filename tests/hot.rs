//! The hot set is restored after a restart, and a file of another kind is refused.

use crate::fixture::{Fixture, PAGES, expect_all, grown, read};
use pagetier::{PageId, errors::HotSetError};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect};

#[tokio::test(start_paused = true)]
async fn what_was_hot_is_in_memory_again_without_a_demand_read() {
    let (fixture, store, space) = Fixture::synced(1).await;
    let hot = |no: u32| no % 11 == 3;
    // Enough for the policy to learn what is hot, wherever the pages were at first.
    for _ in 0..10 {
        for no in (0..PAGES).filter(|no| hot(*no)) {
            read(&store, space, no).await.unwrap();
        }
    }
    let dir = pagetier_testing::scratch();
    let path = dir.path().join("hot");
    let exported = store.hot_set().export(&path).await.unwrap();
    assert_eq!(exported as usize, store.hot_set().pages(usize::MAX).len());
    store.close().await.unwrap();

    let store = fixture.open().await;
    let report = store.hot_set().import(&path).await.unwrap();
    assert!(report.listed == exported && report.loaded == report.wanted && report.loaded > 20, "{report:?}");
    assert_eq!(store.stats().pool.misses, 0);
    let here = |no: &u32| store.try_get(PageId::new(space, *no)).is_some();
    let (all, found) =
        ((0..PAGES).filter(|no| hot(*no)).count(), (0..PAGES).filter(|no| hot(*no)).filter(here).count());
    assert!(found * 10 >= all * 8, "{found} of {all} hot pages are in memory");
    expect_all(&store, space, 1).await;
    store.validate().unwrap();

    // Missing pages are skipped, and files of another kind refused.
    std::fs::write(&path, format!("pagetier hot set 1\n{} {}\n99 1\n", space.0, PAGES + 5)).unwrap();
    assert_eq!(store.hot_set().import(&path).await.unwrap().wanted, 0);
    std::fs::write(&path, "pagetier hot set 1\n1 x\n").unwrap();
    let refused = store.hot_set().import(&path).await;
    assert!(matches!(refused, Err(HotSetError::Malformed { line: 2, .. })), "{refused:?}");
    assert!(matches!(store.hot_set().import(dir.path().join("no")).await, Err(HotSetError::Io { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_hot_set_is_imported_as_far_as_its_pages_can_be_read() {
    let (fixture, store, space) = Fixture::synced(1).await;
    let dir = pagetier_testing::scratch();
    let path = dir.path().join("hot");
    store.hot_set().export(&path).await.unwrap();
    store.close().await.unwrap();
    let store = fixture.open().await;
    fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Read));
    let report = store.hot_set().import(&path).await.unwrap();
    assert!(report.loaded < report.wanted, "{report:?}");
    fixture.hdd.clear_faults();
    let report = store.hot_set().import(&path).await.unwrap();
    assert_eq!(report.loaded, report.wanted);
    expect_all(&store, space, 1).await;
    store.validate().unwrap();
}

#[tokio::test]
async fn a_hot_set_that_cannot_be_saved_leaves_the_earlier_file_and_no_other() {
    let fixture = Fixture::with_latency(std::time::Duration::ZERO, std::time::Duration::ZERO);
    let store = fixture.open().await;
    grown(&store).await;
    let dir = pagetier_testing::scratch();
    let taken = dir.path().join("taken");
    std::fs::create_dir(&taken).unwrap();
    let refused = store.hot_set().export(&taken).await;
    assert!(matches!(&refused, Err(HotSetError::Io { path, .. }) if *path == taken), "{refused:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "a part of a file is left");
    std::fs::remove_dir(&taken).unwrap();
    // Several at the same time: each writes the whole file.
    let saves = (0..16).map(|_| store.hot_set().export(&taken));
    for saved in futures_util::future::join_all(saves).await {
        assert!(saved.unwrap() > 0);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let report = store.hot_set().import(&taken).await.unwrap();
    assert!(report.listed > 20 && report.loaded == report.wanted, "{report:?}");
}
