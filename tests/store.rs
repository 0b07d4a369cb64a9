//! The store from a user's perspective: in memory, and on files.

use pagetier::{
    Builder, Error, Lsn, MemoryManifest, OpenError, PageId, PageSize, PageStore, SpaceId,
    device::{DeviceStats, DirectIo, MemoryDevice, SharedDevice},
};
use std::sync::Arc;

const PAGE: u64 = 4096;

struct Devices {
    hdd: SharedDevice,
    ssd: SharedDevice,
    manifest: Arc<MemoryManifest>,
}

impl Devices {
    fn new() -> Self {
        Self {
            hdd: Arc::new(MemoryDevice::new("hdd", 0)),
            ssd: Arc::new(MemoryDevice::new("ssd", 0)),
            manifest: Arc::new(MemoryManifest::default()),
        }
    }

    fn builder(&self, frames: u64, ssd_pages: u64) -> Builder {
        PageStore::builder()
            .in_memory(Arc::clone(&self.manifest))
            .hdd(Arc::clone(&self.hdd))
            .ssd(Arc::clone(&self.ssd))
            .page_size(PageSize::MIN)
            .ssd_bytes(ssd_pages * PAGE)
            .pool_bytes(frames * PAGE)
    }

    async fn open(&self, frames: u64, ssd_pages: u64) -> Result<PageStore, OpenError> {
        self.builder(frames, ssd_pages).open().await
    }
}

fn fill(no: u32, version: u32) -> [u8; 8] {
    (u64::from(version) << 32 | u64::from(no)).to_le_bytes()
}

async fn write(store: &PageStore, page: PageId, version: u32) {
    store.get_mut(page).await.unwrap()[..8].copy_from_slice(&fill(page.no, version));
}

async fn expect(store: &PageStore, page: PageId, version: u32) {
    assert_eq!(store.get(page).await.unwrap()[..8], fill(page.no, version), "page {page}");
}

async fn grown(store: &PageStore, pages: u32) -> SpaceId {
    let space = store.spaces().create("t").await.unwrap();
    for no in 0..pages {
        let mut page = store.allocate(space).await.unwrap();
        assert_eq!(page.id(), PageId::new(space, no));
        page[..8].copy_from_slice(&fill(no, 0));
    }
    space
}

#[tokio::test]
async fn pages_survive_eviction_through_every_tier() {
    let devices = Devices::new();
    let store = devices.open(200, 400).await.unwrap();
    let space = grown(&store, 2000).await;
    for version in 1..4 {
        for no in (0..2000).step_by(version as usize) {
            let page = PageId::new(space, no);
            write(&store, page, version).await;
        }
    }
    for no in 0..2000 {
        let version = (1..4).rev().find(|v| no % v == 0).unwrap();
        expect(&store, PageId::new(space, no), version).await;
    }
    store.validate().unwrap();
    let stats = store.stats();
    assert!(stats.ssd.pages > 100, "{stats:?}");
    assert!(
        stats.pool.loads_ssd > 0 && stats.pool.loads_hdd > 0 && stats.ssd.counts.checkpoints > 0,
        "{stats:?}"
    );
    assert!(stats.memory_bytes() <= 200 * PAGE + 150_000);
}

/// The memory of a store is bounded by its options, not by its data.
#[tokio::test]
async fn without_an_ssd_no_table_grows_with_the_pages() {
    let store = Devices::new().open(200, 0).await.unwrap();
    let space = grown(&store, 5_000).await;
    for no in 0..5_000 {
        expect(&store, PageId::new(space, no), 0).await;
    }
    let stats = store.stats();
    assert!(stats.pool.loads_hdd + stats.pool.prefetched > 4_000, "{stats:?}");
    assert_eq!(stats.ssd.memory_bytes, 0);
}

#[tokio::test]
async fn a_closed_store_opens_warm_and_complete() {
    let devices = Devices::new();
    let store = devices.open(200, 400).await.unwrap();
    let space = grown(&store, 1000).await;
    for no in 0..1000 {
        write(&store, PageId::new(space, no), 7).await;
    }
    let on_ssd = store.stats().ssd.pages;
    store.close().await.unwrap();
    let store = devices.open(200, 400).await.unwrap();
    assert_eq!(store.spaces().pages(space).unwrap(), 1000);
    assert_eq!(store.spaces().find("t"), Some(space));
    let warm = store.stats().ssd.pages;
    assert!(warm * 100 >= on_ssd * 95, "{warm} of {on_ssd} pages are still on the SSD");
    for no in 0..1000 {
        expect(&store, PageId::new(space, no), 7).await;
    }
}

#[tokio::test]
async fn synced_pages_survive_a_drop_without_close() {
    let devices = Devices::new();
    for round in 1..6 {
        let store = devices.open(200, 400).await.unwrap();
        let space = match store.spaces().find("t") {
            Some(space) => space,
            None => grown(&store, 1000).await,
        };
        for no in 0..1000 {
            let page = PageId::new(space, no);
            if round > 1 {
                expect(&store, page, round - 1).await;
            }
            write(&store, page, round).await;
        }
        store.sync().await.unwrap();
        store.validate().unwrap();
        drop(store);
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_store_without_an_ssd_works_and_recovers() {
    let devices = Devices::new();
    for round in 1..4 {
        let store = PageStore::builder()
            .in_memory(Arc::clone(&devices.manifest))
            .hdd(Arc::clone(&devices.hdd))
            .page_size(PageSize::MIN)
            .ssd_bytes(0)
            .ring_pages(0)
            .pool_bytes(100 * PAGE)
            .open()
            .await;
        // The ring of an in-memory store without an SSD does not outlive it.
        let Ok(store) = store else {
            assert!(round > 1);
            return;
        };
        let space = match store.spaces().find("t") {
            Some(space) => space,
            None => grown(&store, 500).await,
        };
        for no in 0..500 {
            write(&store, PageId::new(space, no), round).await;
        }
        for no in 0..500 {
            expect(&store, PageId::new(space, no), round).await;
        }
        store.sync().await.unwrap();
    }
}

#[tokio::test]
async fn pages_and_spaces_that_do_not_exist_are_errors() {
    let devices = Devices::new();
    let store = devices.open(100, 200).await.unwrap();
    let space = grown(&store, 10).await;
    let beyond = PageId::new(space, 10);
    assert!(matches!(store.get(beyond).await, Err(Error::NoSuchPage { page }) if page == beyond));
    assert!(matches!(store.discard(beyond).await, Err(Error::NoSuchPage { .. })));
    assert!(matches!(store.spaces().create("t").await, Err(Error::SpaceExists { .. })));
    store.spaces().drop(space).await.unwrap();
    assert!(matches!(store.get(PageId::new(space, 1)).await, Err(Error::NoSuchPage { .. })));
    assert!(matches!(store.allocate(space).await, Err(Error::NoSuchSpace { .. })));
    assert_eq!(store.spaces().find("t"), None);
    let again = grown(&store, 10).await;
    assert_ne!(again, space);
    store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_new_store_measures_its_devices_and_remembers() {
    use pagetier_testing::{DeviceModel, EmulatedClock, EmulatedDevice};
    use std::time::Duration;
    let devices = Devices::new();
    let emulated = |device: &SharedDevice, model: DeviceModel| -> SharedDevice {
        Arc::new(EmulatedDevice::new(Arc::clone(device), model.with_page_bytes(4096), EmulatedClock::Tokio))
    };
    let (hdd, ssd) =
        (emulated(&devices.hdd, DeviceModel::paper_hdd()), emulated(&devices.ssd, DeviceModel::paper_ssd()));
    let (hdd, ssd) = (growing(&hdd), growing(&ssd));
    let budget = Duration::from_secs(2);
    let costs = pagetier::calibrate(&hdd, 0, &ssd, 0, PageSize::MIN, budget).await.unwrap();
    let close = |a: f64, b: f64| (a - b).abs() < 0.05 * b;
    assert!(close(costs.hdd_read_ms, 7.2) && close(costs.hdd_write_ms, 4.96), "{costs:?}");
    assert!(close(costs.ssd_read_ms, 0.11) && close(costs.ssd_write_ms, 0.27), "{costs:?}");
}

fn growing(device: &SharedDevice) -> SharedDevice {
    device.grow(16 << 20).unwrap();
    Arc::clone(device)
}

#[tokio::test]
async fn redo_starts_at_the_oldest_change_that_only_memory_has() {
    let devices = Devices::new();
    let store = devices.open(100, 200).await.unwrap();
    let space = grown(&store, 4).await;
    store.sync().await.unwrap();
    assert_eq!(store.min_recovery_lsn(), None);
    for (no, lsn) in [(1, 70), (2, 50), (1, 90)] {
        let mut page = store.get_mut(PageId::new(space, no)).await.unwrap();
        page[0] = 1;
        page.set_lsn(Lsn(lsn));
    }
    assert_eq!(store.min_recovery_lsn(), Some(Lsn(50)));
    store.flush_to(Lsn(60)).await.unwrap();
    assert_eq!(store.min_recovery_lsn(), Some(Lsn(70)));
    store.sync().await.unwrap();
    assert_eq!(store.min_recovery_lsn(), None);
}

#[tokio::test]
async fn only_one_recording_runs_at_a_time() {
    let folder = pagetier_testing::scratch();
    let (first, second) = (folder.path().join("first.ptr"), folder.path().join("second.ptr"));
    let store = Devices::new().open(200, 400).await.unwrap();
    store.trace().start(&first).unwrap();
    let busy = store.trace().start(&second).unwrap_err();
    assert_eq!(busy.kind(), std::io::ErrorKind::ResourceBusy);
    assert!(!second.exists());
    let _ = store.spaces().create("t").await.unwrap();
    store.trace().stop().await.unwrap();
    store.trace().start(&second).unwrap();
    assert!(first.exists() && second.exists());
}

#[tokio::test]
async fn a_sync_of_nothing_does_no_io() {
    for (ssd_pages, ring_pages) in [(256, 64), (256, 0), (0, 64), (0, 0)] {
        let devices = Devices::new();
        let store = devices.builder(256, ssd_pages).ring_pages(ring_pages).open().await.unwrap();
        check_syncs_of_nothing(&store, &format!("{ssd_pages} slots, ring of {ring_pages}")).await;
    }
    for direct in [DirectIo::Disabled, DirectIo::Preferred] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let builder =
            PageStore::builder().directory(folder.path()).page_size(PageSize::MIN).direct_io(direct);
        let store = builder.ssd_bytes(256 * PAGE).pool_bytes(256 * PAGE).open().await.unwrap();
        check_syncs_of_nothing(&store, &format!("files, {direct:?}")).await;
    }
}

async fn check_syncs_of_nothing(store: &PageStore, what: &str) {
    let space = grown(store, 8).await;
    store.sync().await.unwrap();
    let operations = || {
        let stats = store.stats();
        let of = |s: &DeviceStats| (s.totals().read.ops + s.totals().write.ops + s.discard.ops, s.flush.ops);
        [of(&stats.hdd_device), of(&stats.ssd_device)]
    };
    for version in 1..3 {
        let before = operations();
        for _ in 0..3 {
            store.sync().await.unwrap();
        }
        assert_eq!(operations(), before, "{what}");
        write(store, PageId::new(space, 3), version).await;
        store.sync().await.unwrap();
        let flushes = |operations: [(u64, u64); 2]| operations.map(|(_, flushes)| flushes);
        assert_ne!(flushes(operations()), flushes(before), "{what}: what was written is flushed");
    }
}
