//! The pool's size changes while the store is in use, with faults. `operations.rs` changes it under load,
//! with power cuts.

use crate::changing::blank_ssd;
use crate::fixture::{Fixture, PAGE, PAGES, expect_all, grown, write, write_all};
use pagetier::errors::PoolSizeError::TooSmall;
use pagetier::{
    Error, PageId,
    errors::{Exhausted, PoolError},
    scrub::ScrubOptions,
};
use pagetier_devio::{IoOp, SharedDevice};
use pagetier_testing::{Fault, FaultEffect};
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn a_pool_that_cannot_shrink_says_what_keeps_its_frames_and_goes_on() {
    let fixture = Fixture::new();
    let store = fixture.builder().pool_bytes(400 * PAGE).open().await.unwrap();
    let space = grown(&store).await;
    store.sync().await.unwrap();
    let frames = store.stats().frames;
    match store.resize_pool(1).await {
        Err(Error::PoolSize(TooSmall { needed, .. })) => assert!(store.resize_pool(needed).await.is_ok()),
        other => panic!("{other:?}"),
    }
    assert_eq!(store.resize_pool(400 * PAGE).await.unwrap(), frames);
    // Guards pin the frames.
    let mut guards = Vec::new();
    for no in 0..40 {
        guards.push(store.get(PageId::new(space, no)).await.unwrap());
    }
    let Err(Error::Pool(PoolError::Shrink { frames: 40, why, .. })) = store.resize_pool(40 * PAGE).await
    else {
        panic!("the guards' frames were taken")
    };
    assert!(matches!(*why, Exhausted::Pinned { pinned: 40, .. }), "{why}");
    assert_eq!(store.stats().frames, 40);
    drop(guards);
    assert!(store.resize_pool(40 * PAGE).await.unwrap() < 40);
    // Dirty pages that cannot be written.
    store.resize_pool(400 * PAGE).await.unwrap();
    write_all(&store, space, 2).await;
    for device in [&fixture.hdd, &fixture.ssd] {
        device.inject(Fault::new(FaultEffect::NoSpace).on(IoOp::Write));
    }
    for no in 0..PAGES {
        write(&store, space, no, 3).await.unwrap();
    }
    let stuck = store.resize_pool(40 * PAGE).await;
    assert!(matches!(stuck, Err(Error::Pool(PoolError::Shrink { .. }))), "{stuck:?}");
    store.validate().unwrap();
    for device in [&fixture.hdd, &fixture.ssd] {
        device.clear_faults();
    }
    drop(store);
    let store = fixture.after_power_cut(1).open().await;
    let report = store.scrub(ScrubOptions::default().pages_per_second(None)).finished().await;
    assert!(report.findings.is_empty(), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_does_not_keep_a_pool_small() {
    let (fixture, store, space) = Fixture::grown().await;
    write_all(&store, space, 2).await;
    fixture.hdd.inject(Fault::new(FaultEffect::NoSpace).on(IoOp::Write));
    assert!(store.resize_pool(600 * PAGE).await.is_ok());
    fixture.hdd.clear_faults();
    store.sync().await.unwrap();
    expect_all(&store, space, 2).await;
    // Every page stays in memory.
    let misses = store.stats().pool.misses;
    expect_all(&store, space, 2).await;
    assert_eq!(store.stats().pool.misses, misses);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_a_change_of_size() {
    let fixture = Fixture::new();
    let store = fixture.builder().pool_bytes(400 * PAGE).open().await.unwrap();
    let space = grown(&store).await;
    store.sync().await.unwrap();
    let mut guards = Vec::new();
    for no in 0..40 {
        guards.push(store.get(PageId::new(space, no)).await.unwrap());
    }
    let (resized, ended) = tokio::join!(store.resize_pool(40 * PAGE), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        store.shutdown().await
    });
    assert!(matches!(resized, Err(Error::Closed)), "{resized:?}");
    ended.unwrap();
    assert!(matches!(store.resize_pool(400 * PAGE).await, Err(Error::Closed)));
    assert_eq!(guards[7].id().no, 7);
}

#[tokio::test(start_paused = true)]
async fn a_budget_covers_the_same_when_it_is_given_again() {
    let fixture = Fixture::new();
    let store = fixture.builder().pool_bytes(200 * PAGE).open().await.unwrap();
    let opened = store.stats();
    for pages in [600, 100, 200] {
        let frames = store.resize_pool(pages * PAGE).await.unwrap();
        let other = Fixture::new().builder().pool_bytes(pages * PAGE).open().await.unwrap();
        assert_eq!(other.stats().frames, frames);
        assert_eq!(other.stats().pool_memory.frames, store.stats().pool_memory.frames);
        assert_eq!(other.stats().pool_memory.staging, store.stats().pool_memory.staging);
    }
    assert_eq!(store.stats().frames, opened.frames);
}

/// Schedules: `resize_pool` waits for guards when the SSD is exchanged for one of other tables. For a smaller
/// one, both succeed. A larger one's tables need more than the new budget: the exchange is refused, both when
/// it would have to change the pool, and when the guards pin just what it would leave of the budget before.
#[tokio::test(start_paused = true)]
async fn a_budget_that_changes_during_an_exchange_of_the_ssd_is_kept() {
    let fixture = Fixture::new();
    let store = fixture.builder().pool_bytes(400 * PAGE).open().await.unwrap();
    let space = grown(&store).await;
    store.sync().await.unwrap();
    let after = async |ms| tokio::time::sleep(Duration::from_millis(ms)).await;
    let replace = async |slots| {
        let ssd = blank_ssd(&format!("{slots} slots"), slots) as SharedDevice;
        store.ssd().replace(ssd, slots * PAGE).await
    };
    replace(2000).await.unwrap();
    let (least, beside_large) = (store.resize_pool(1).await, store.frames());
    let Err(Error::PoolSize(TooSmall { needed, .. })) = least else { panic!("{least:?}") };
    for (from, to, pinned, fits) in
        [(2000, 100, 250, true), (100, 2000, 250, false), (100, 2000, beside_large, false)]
    {
        replace(from).await.unwrap();
        let mut guards = Vec::new();
        for no in 0..pinned as u32 {
            guards.push(store.get(PageId::new(space, no)).await.unwrap());
        }
        let budget = if fits { needed } else { needed - 1 };
        let exchange = async {
            after(1).await;
            replace(to).await
        };
        let release = async {
            after(1500).await;
            drop(guards);
        };
        let (resized, exchanged, ()) = tokio::join!(store.resize_pool(budget), exchange, release);
        let refused = matches!(exchanged, Err(Error::PoolSize(TooSmall { .. })));
        assert!(resized.is_ok() && refused != fits, "{pinned}: {resized:?} {exchanged:?}");
        assert!(store.stats().ssd.slots < 100);
        let frames = store.frames();
        assert_eq!(store.resize_pool(budget).await.unwrap(), frames);
        store.resize_pool(400 * PAGE).await.unwrap();
    }
}
