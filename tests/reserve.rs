//! Disk space that is reserved: pages get it later although the disk is full by then, also after a crash; a
//! failure takes nothing, and `shrink` gives it back once the reservation is given up. Whether a page's
//! number is in use, and truncation.

use crate::fixture::{Fixture, PAGE, fill, polled, read};
use pagetier::{Error, PageId, PageStore, SpaceId, device::DeviceErrorKind};
use pagetier_devio::Device;
use pagetier_testing::{SimDevice, SimPower};
use std::sync::Arc;
use std::time::Duration;

/// Pages of an extent.
const EXTENT: u32 = 64;

/// A fixture whose HDD has at most `extents` extents.
pub(crate) fn small(extents: u64) -> Fixture {
    let mut fixture = Fixture::new();
    let bytes = (1 << 20) + extents * u64::from(EXTENT) * PAGE;
    fixture.hdd = Arc::new(SimDevice::new("hdd", 0, 1, &SimPower::new()).with_size_max(bytes));
    fixture
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Device(device) if matches!(device.kind, DeviceErrorKind::NoSpace))
}

/// Allocates pages of `space` until the HDD is full; returns their number.
async fn fill_up(store: &PageStore, space: SpaceId) -> u32 {
    for pages in 0.. {
        match store.allocate(space).await {
            Ok(_) => {}
            Err(error) if is_full(&error) => return pages,
            Err(other) => panic!("{other}"),
        }
    }
    unreachable!("the HDD has an end")
}

#[tokio::test(start_paused = true)]
async fn reserved_room_is_there_when_the_disk_is_full_and_after_a_crash() {
    let fixture = small(12);
    let store = fixture.open().await;
    let space = store.spaces().create("t").await.unwrap();
    let other = store.spaces().create("u").await.unwrap();
    fill(&mut store.allocate(space).await.unwrap(), 0, 1);
    store.sync().await.unwrap();
    store.spaces().reserve(space, 5 * EXTENT + 1).await.unwrap();
    assert_eq!(store.spaces().pages(space).unwrap(), 1, "the pages do not exist yet");
    assert!(!store.exists(PageId::new(space, 1)));
    let saves = fixture.manifest.saves();
    for pages in [1, 6 * EXTENT] {
        store.spaces().reserve(space, pages).await.unwrap();
    }
    assert_eq!(fixture.manifest.saves(), saves, "the room is there");
    assert_eq!(fill_up(&store, other).await, 6 * EXTENT);
    let crashed = fixture.after_power_cut(1);
    for store in [store, crashed.open().await] {
        assert_eq!(read(&store, space, 0).await.unwrap(), 1);
        for no in 1..6 * EXTENT {
            let page = PageId::new(space, no);
            fill(&mut store.overwrite(page).await.unwrap(), no, 2);
        }
        store.sync().await.unwrap();
        assert!(is_full(&store.overwrite(PageId::new(space, 6 * EXTENT)).await.unwrap_err()));
        assert_eq!(store.validate(), Ok(()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reservation_fills_holes_and_goes_beyond_the_gap() {
    let fixture = Fixture::new();
    let store = fixture.builder().page_gap_max(0).open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    for _ in 0..4 * EXTENT {
        drop(store.allocate(space).await.unwrap());
    }
    store.free((space, EXTENT..3 * EXTENT)).await.unwrap();
    assert!(store.spaces().shrink(space).await.unwrap() > 0);
    store.spaces().reserve(space, 100 * EXTENT).await.unwrap();
    let (size, saves) = (fixture.hdd.size(), fixture.manifest.saves());
    for no in [EXTENT, 3 * EXTENT - 1, 100 * EXTENT - 1] {
        fill(&mut store.overwrite(PageId::new(space, no)).await.unwrap(), no, 1);
    }
    assert_eq!((fixture.hdd.size(), fixture.manifest.saves()), (size, saves));
    // Truncation: everything from a page on, and its disk space.
    assert!(store.free((space, 2 * EXTENT..u32::MAX)).await.unwrap() > EXTENT);
    assert!(store.exists(PageId::new(space, EXTENT)) && !store.exists(PageId::new(space, 2 * EXTENT)));
    // What is reserved stays, also in later opens, until the reservation is given up.
    assert_eq!(store.spaces().shrink(space).await.unwrap(), 0);
    drop(store);
    let fixture = fixture.after_power_cut(1);
    let store = fixture.open().await;
    store.spaces().reserve(space, 50 * EXTENT).await.unwrap();
    assert_eq!(store.spaces().shrink(space).await.unwrap(), 0);
    store.spaces().reserve(space, 0).await.unwrap();
    assert!(store.spaces().shrink(space).await.unwrap() > 90 * u64::from(EXTENT) * PAGE);
    assert!(matches!(store.spaces().reserve(SpaceId(9), 1).await, Err(Error::NoSuchSpace { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_reservation_that_fails_or_is_dropped_takes_nothing_from_others() {
    let fixture = small(12);
    let store = fixture.open().await;
    let space = store.spaces().create("t").await.unwrap();
    let other = store.spaces().create("u").await.unwrap();
    drop(store.allocate(space).await.unwrap());
    for pages in [100 * EXTENT, u32::MAX] {
        let refused = store.spaces().reserve(space, pages).await.unwrap_err();
        assert!(is_full(&refused), "{pages}: {refused}");
    }
    // A dropped call completes.
    assert!(polled(1, store.spaces().reserve(space, 4 * EXTENT)).await.is_none());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(fill_up(&store, other).await, 8 * EXTENT);
    // What lies beyond the last page goes back, once it is not reserved.
    store.spaces().reserve(space, 0).await.unwrap();
    assert!(store.spaces().shrink(space).await.unwrap() >= 3 * u64::from(EXTENT) * PAGE);
    assert_eq!(fill_up(&store, other).await, 3 * EXTENT);
}
