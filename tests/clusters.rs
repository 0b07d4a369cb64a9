//! Policies that clean in clusters do so in the store: the cleaner takes the policy's write set, and the disk
//! seeks less far.

use pagetier::device::SharedDevice;
use pagetier::{MemoryManifest, PageId, PageSize, PageStore, device::MemoryDevice};
use pagetier_testing::{DeviceModel, EmulatedClock, EmulatedDevice};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

const PAGE: u64 = 4096;
const PAGES: u32 = 4000;
const FRAMES: u64 = 800;

/// The disk time per written page, in milliseconds, under `policy` without an SSD, while random pages are
/// changed.
async fn ms_per_write(policy: &str) -> f64 {
    pagetier_rivals::register();
    let model = DeviceModel::disk_7200rpm(u64::from(PAGES) * PAGE).with_page_bytes(PAGE as u32);
    let memory = Arc::new(MemoryDevice::new("hdd", 0));
    let hdd: SharedDevice = Arc::new(EmulatedDevice::new(memory, model, EmulatedClock::Tokio));
    let store = PageStore::builder()
        .in_memory(Arc::new(MemoryManifest::default()))
        .hdd(Arc::clone(&hdd))
        .ssd_bytes(0)
        .page_size(PageSize::MIN)
        .pool_bytes(FRAMES * PAGE)
        .pool_policy(policy)
        .open()
        .await
        .unwrap();
    let space = store.spaces().create("t").await.unwrap();
    for _ in 0..PAGES {
        drop(store.allocate(space).await.unwrap());
    }
    store.sync().await.unwrap();
    let before = hdd.stats();
    let mut rng = SmallRng::seed_from_u64(7);
    for _ in 0..20_000 {
        let id = PageId::new(space, rng.random_range(0..PAGES));
        store.get_mut(id).await.unwrap()[0] ^= 1;
    }
    let written = hdd.stats().since(&before).totals().write;
    store.close().await.unwrap();
    assert!(written.bytes > 1000 * PAGE, "{policy}: {written:?}");
    written.busy_ns as f64 / 1e6 / (written.bytes / PAGE) as f64
}

#[tokio::test(start_paused = true)]
async fn writing_clusters_saves_the_disk_time() {
    let page_by_page = ms_per_write("lru").await;
    for policy in ["cfdc", "sawc"] {
        let clustered = ms_per_write(policy).await;
        println!("{policy}: {clustered:.2} ms of disk time a page, {page_by_page:.2} under LRU");
        assert!(
            clustered < 0.8 * page_by_page,
            "{policy}: {clustered:.2} ms of disk time a page, {page_by_page:.2} under LRU"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn clusters_have_the_configured_size() {
    let [single, small, default] = ["sawc:cluster=1", "sawc:cluster=8", "sawc"].map(ms_per_write);
    let (single, small, default) = (single.await, small.await, default.await);
    println!("{single:.2} ms of disk time a page in clusters of 1, {small:.2} of 8, {default:.2} of 64");
    assert!(default < 0.95 * small && small < 0.95 * single, "{single:.2} {small:.2} {default:.2}");
}
