//! A store is dropped with I/O in flight and opened again at once: no write of the dropped store lands after
//! the writes of its successor.

use crate::fixture::{self, Fixture, PAGE, fill, read, write, zoned};
use pagetier::{Builder, OpenError, PageStore, SpaceId};
use pagetier_devio::{Device, IoClass, IoOp};
use pagetier_testing::{Fault, FaultEffect};
use std::time::Duration;

/// Pages of the small store: more than the ring holds.
const OTHERS: u32 = 3 * fixture::RING_PAGES;

const LONG: Duration = Duration::from_secs(60);

/// Without an SSD, every page goes home through the ring.
fn builder(fixture: &Fixture) -> Builder {
    fixture.builder().ssd_bytes(0)
}

/// A store with pages at version 1, at home.
async fn small_store(fixture: &Fixture) -> (PageStore, SpaceId) {
    let store = builder(fixture).open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    for no in 0..OTHERS {
        fill(&mut store.allocate(space).await.unwrap(), no, 1);
    }
    store.sync().await.unwrap();
    tokio::time::sleep(LONG).await;
    (store, space)
}

/// The final version of the page: the second store writes 3, while 2 is in flight when the first is dropped.
async fn newest(slow_ring: Duration, slow_home: Duration) -> u32 {
    let fixture = Fixture::new();
    let (store, space) = small_store(&fixture).await;
    fixture.ring.inject(Fault::new(FaultEffect::Slow(slow_ring)).on(IoOp::Write).times(1));
    fixture.hdd.inject(Fault::new(FaultEffect::Slow(slow_home)).on(IoOp::Write).times(1));
    write(&store, space, 0, 2).await.unwrap();
    let part = Duration::from_millis(500);
    assert!(tokio::time::timeout(part, store.sync()).await.is_err(), "the write takes longer");
    drop(store);
    let store = builder(&fixture).open().await.unwrap();
    write(&store, space, 0, 3).await.unwrap();
    store.sync().await.unwrap();
    tokio::time::sleep(LONG).await;
    // Flush the page out of the ring.
    for version in 2..4 {
        for no in 1..OTHERS {
            write(&store, space, no, version).await.unwrap();
        }
        store.sync().await.unwrap();
    }
    drop(store);
    let store = builder(&fixture).open().await.unwrap();
    read(&store, space, 0).await.unwrap()
}

const FAST: Duration = Duration::ZERO;
const SLOW: Duration = Duration::from_secs(20);

#[tokio::test(start_paused = true)]
async fn a_home_write_in_flight_at_the_drop_does_not_land_on_a_newer_version() {
    assert_eq!(newest(FAST, SLOW).await, 3);
}

#[tokio::test(start_paused = true)]
async fn no_home_write_starts_after_the_drop() {
    assert_eq!(newest(Duration::from_secs(1), SLOW).await, 3);
}

#[tokio::test(start_paused = true)]
async fn after_the_drop_the_devices_see_no_operation() {
    for policy in ["cac", "lru2", "mv-fifo-gsc", "tac", "doublewrite"] {
        let fixture = Fixture::new();
        let store = fixture.builder().ssd_policy(zoned(policy)).open().await.unwrap();
        let space = fixture::grown(&store).await;
        let sync = tokio::time::timeout(Duration::from_millis(30), store.sync()).await;
        assert!(sync.is_err(), "{policy}: there is more to write");
        let scrub = store.scrub(pagetier::scrub::ScrubOptions::default().pages_per_second(None));
        for no in 0..20 {
            fixture::write(&store, space, no, 2).await.unwrap();
        }
        drop(store);
        let ops = || fixture.hdd.ops() + fixture.ssd.ops() + fixture.ring.ops();
        let before = ops();
        tokio::time::sleep(LONG).await;
        assert_eq!(ops(), before, "{policy}");
        assert_eq!(fixture.hdd.occupancy().in_flight() + fixture.ssd.occupancy().in_flight(), 0, "{policy}");
        assert!(!scrub.finished().await.complete);
    }
}

#[tokio::test(start_paused = true)]
async fn a_running_store_is_not_waited_for() {
    let fixture = Fixture::new();
    let store = fixture.open().await;
    let started = tokio::time::Instant::now();
    assert!(matches!(fixture.try_open().await, Err(OpenError::AlreadyOpen { .. })));
    assert_eq!(started.elapsed(), Duration::ZERO);
    store.close().await.unwrap();
    fixture.open().await;
}

#[tokio::test(start_paused = true)]
async fn an_opening_that_is_dropped_lets_the_next_one_in() {
    let fixture = Fixture::new();
    let (store, space) = small_store(&fixture).await;
    drop(store);
    for ms in (0..200).step_by(3) {
        let opening = builder(&fixture).open();
        drop(tokio::time::timeout(Duration::from_millis(ms), opening).await);
    }
    let store = builder(&fixture).open().await.unwrap();
    assert_eq!(read(&store, space, 0).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_device_that_never_finishes_is_bounded() {
    let fixture = Fixture::new();
    let (store, space) = small_store(&fixture).await;
    fixture.hdd.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(3600))).on(IoOp::Write).times(1));
    write(&store, space, 0, 2).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(1), store.sync()).await.is_err());
    drop(store);
    assert!(matches!(builder(&fixture).open().await, Err(OpenError::AlreadyOpen { .. })));
    tokio::time::sleep(Duration::from_secs(3600)).await;
    fixture.hdd.flush(IoClass::Meta).await.unwrap();
    let store = builder(&fixture).open().await.unwrap();
    assert!((1..=2).contains(&read(&store, space, 0).await.unwrap()));
    assert_eq!(fixture.hdd.size() % PAGE, 0);
}
