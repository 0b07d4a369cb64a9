//! Checks on devices that become a store's SSD or ring after its first open: a device with another
//! program's data is refused, wherever the data is.

use crate::fixture::{self, Fixture, PAGES, expect_all, grown};
use pagetier::{Builder, Error, OpenError, PageId, PageSize, SsdMode, options::Create};
use pagetier_devio::Device;
use pagetier_testing::{SimDevice, SimPower};
use std::sync::Arc;

/// The offset of the first btrfs superblock: beyond the range of this store's superblocks.
const FURTHER_IN: u64 = 64 << 10;

fn used_by_others(name: &str) -> Arc<SimDevice> {
    let device = SimDevice::new(name, 4 << 20, 5, &SimPower::new());
    device.implant(FURTHER_IN, b"_BHRfS_M");
    Arc::new(device)
}

fn unchanged(device: &SimDevice) -> bool {
    let bytes = device.snapshot();
    let mark = FURTHER_IN as usize..FURTHER_IN as usize + 8;
    device.size() == 4 << 20
        && bytes[mark.clone()] == *b"_BHRfS_M"
        && bytes.iter().enumerate().all(|(at, byte)| mark.contains(&at) || *byte == 0)
}

fn is_foreign(error: &OpenError) -> bool {
    matches!(error, OpenError::Foreign { .. })
}

/// A store without its SSD, in mode off, whose options name `device` as the SSD.
async fn switched_off(device: &Arc<SimDevice>, create: Create) -> (Fixture, pagetier::PageStore) {
    let (fixture, store, space) = Fixture::grown().await;
    store.ssd().set_mode(SsdMode::Off).await.unwrap();
    store.close().await.unwrap();
    let builder = fixture.builder().create(create).ssd(Arc::clone(device));
    let store = builder.open().await.unwrap();
    expect_all(&store, space, 1).await;
    (fixture, store)
}

#[tokio::test(start_paused = true)]
async fn a_device_with_data_further_in_is_refused() {
    for leaves_off in [false, true] {
        let device = used_by_others("other");
        let (_fixture, store) = switched_off(&device, Create::OnBlank).await;
        let refused = if leaves_off {
            store.ssd().set_mode(SsdMode::WriteBack).await
        } else {
            store.ssd().readmit().await.map(drop)
        };
        assert!(matches!(&refused, Err(Error::Attach(error)) if is_foreign(error)), "{refused:?}");
        assert!(unchanged(&device));
        assert_eq!(store.stats().ssd.mode, SsdMode::Off);
        store.sync().await.unwrap();
        store.close().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn force_accepts_a_foreign_device_and_a_blank_one_needs_none() {
    for (device, create) in [
        (used_by_others("other"), Create::Overwriting),
        (used_by_others("other"), Create::NeverOverwritingSsd),
        (Arc::new(SimDevice::new("blank", 4 << 20, 5, &SimPower::new())), Create::OnBlank),
    ] {
        let (_fixture, store) = switched_off(&device, create).await;
        store.ssd().readmit().await.unwrap();
        let space = store.spaces().find("t").unwrap();
        fixture::write_all(&store, space, 2).await;
        store.sync().await.unwrap();
        assert!(store.stats().ssd.pages > 0);
        store.close().await.unwrap();
    }
}

/// A directory that is not mounted must not cost the store its HDD.
#[tokio::test]
async fn overwriting_an_ssd_creates_no_store() {
    let dir = pagetier_testing::scratch();
    let builder = || Builder::default().directory(dir.path()).create(Create::NeverOverwritingSsd);
    let opened = builder().open().await;
    assert!(matches!(opened, Err(OpenError::NotFound { .. })), "{opened:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Off and on, it has its size, ring and slots, whatever the options of this open say of them: nothing.
#[tokio::test]
async fn an_ssd_that_comes_back_is_the_one_that_went() {
    for ssd_bytes in [1 << 20, (4 << 20) + 5_000] {
        let dir = pagetier_testing::scratch();
        let builder =
            || Builder::default().directory(dir.path()).page_size(PageSize::MIN).pool_bytes(1 << 20);
        builder().ssd_bytes(ssd_bytes).open().await.unwrap().close().await.unwrap();
        let store = builder().open().await.unwrap();
        let before = store.stats();
        for back in [SsdMode::WriteBack, SsdMode::WriteThrough] {
            store.ssd().set_mode(SsdMode::Off).await.unwrap();
            store.ssd().set_mode(back).await.unwrap();
            let now = store.stats();
            assert_eq!((now.ssd.slots, now.frames), (before.ssd.slots, before.frames), "{ssd_bytes} bytes");
            assert!(now.memory_bytes() <= 1 << 20, "{} bytes", now.memory_bytes());
        }
        store.close().await.unwrap();
        builder().ssd_bytes(ssd_bytes).open().await.unwrap().close().await.unwrap();
    }
}

/// Switching the SSD off attaches the ring's device, which another program used.
#[tokio::test(start_paused = true)]
async fn a_rings_device_with_data_further_in_is_refused() {
    let mut fixture = Fixture::new();
    fixture.ring = used_by_others("ring");
    let store = fixture.open().await;
    let space = grown(&store).await;
    let refused = store.ssd().set_mode(SsdMode::Off).await;
    assert!(matches!(&refused, Err(Error::Attach(error)) if is_foreign(error)), "{refused:?}");
    assert!(unchanged(&fixture.ring));
    fixture::write_all(&store, space, 2).await;
    store.sync().await.unwrap();
    expect_all(&store, space, 2).await;
}

/// Another program's device stands in place of an SSD whose loss is accepted.
#[tokio::test(start_paused = true)]
async fn a_device_in_a_lost_ssds_place_is_refused() {
    let (fixture, store, space) = Fixture::grown().await;
    store.close().await.unwrap();
    let device = used_by_others("other");
    let builder = || fixture.builder().accept_ssd_loss(true).ssd(Arc::clone(&device));
    let refused = builder().open().await.map(drop);
    assert!(matches!(&refused, Err(error) if is_foreign(error)), "{refused:?}");
    assert!(unchanged(&device));
    let store = builder().create(Create::Overwriting).open().await.unwrap();
    let lost = store.ssd().loss().unwrap();
    for no in (0..PAGES).filter(|no| !lost.contains(PageId::new(space, *no))) {
        assert_eq!(fixture::read(&store, space, no).await.unwrap(), 1, "page {no}");
    }
}
