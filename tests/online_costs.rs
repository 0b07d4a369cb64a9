//! Costs measured while the store runs on devices of known speed; they do not depend on the configured costs.

use pagetier::{
    Costs, MemoryManifest, PageId,
    device::{COST_POINTS, MemoryDevice},
    options::CostSource,
};
use pagetier::{PageSize, PageStore, device::SharedDevice};
use pagetier_testing::{DeviceModel, EmulatedClock, EmulatedDevice};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

const PAGE: u64 = 4096;
const PAGES: u32 = 2000;

fn device(name: &str, model: DeviceModel) -> SharedDevice {
    let memory = Arc::new(MemoryDevice::new(name, 0));
    Arc::new(EmulatedDevice::new(memory, model.with_page_bytes(PAGE as u32), EmulatedClock::Tokio))
}

/// A store with some use, configured with equal costs for both devices; `points` is the length of its moving
/// averages.
async fn used(points: Option<usize>) -> PageStore {
    let equal = Costs { hdd_read_ms: 1.0, hdd_write_ms: 1.0, ssd_read_ms: 1.0, ssd_write_ms: 1.0 };
    let mut builder = PageStore::builder()
        .in_memory(Arc::new(MemoryManifest::default()))
        .hdd(device("hdd", DeviceModel::paper_hdd()))
        .ssd(device("ssd", DeviceModel::paper_ssd()))
        .page_size(PageSize::MIN)
        .ssd_bytes(500 * PAGE)
        .pool_bytes(200 * PAGE);
    builder = match points {
        Some(points) => builder.costs(CostSource::Online { points, start: Some(equal) }),
        None => builder.costs(equal),
    };
    let store = builder.open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    for _ in 0..PAGES {
        drop(store.allocate(space).await.unwrap());
    }
    let mut rng = SmallRng::seed_from_u64(1);
    for _ in 0..6000 {
        // Square the number, so that some pages are hot enough to keep on the SSD.
        let at = rng.random::<f64>();
        let id = PageId::new(space, (at * at * f64::from(PAGES)) as u32);
        if rng.random_bool(0.3) {
            store.get_mut(id).await.unwrap()[0] ^= 1;
        } else {
            drop(store.get(id).await.unwrap());
        }
    }
    store
}

#[track_caller]
fn assert_near(name: &str, measured: f64, of_the_model: f64) {
    let ratio = measured / of_the_model;
    assert!((0.9..1.1).contains(&ratio), "{name}: {measured} ms measured, {of_the_model} ms in the model");
}

#[tokio::test(start_paused = true)]
async fn the_policies_use_the_devices_costs() {
    for points in [COST_POINTS, 256] {
        let store = used(Some(points)).await;
        let (found, model) = (store.policies().costs(), Costs::PAPER);
        assert_near("HDD read", found.hdd_read_ms, model.hdd_read_ms);
        assert_near("HDD write", found.hdd_write_ms, model.hdd_write_ms);
        assert_near("SSD read", found.ssd_read_ms, model.ssd_read_ms);
        assert_near("SSD write", found.ssd_write_ms, model.ssd_write_ms);
        store.close().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_measured_by_default() {
    let store = used(None).await;
    assert!((store.policies().costs().hdd_read_ms - 1.0).abs() < 1e-9);
    store.policies().set_costs(Costs::PAPER).unwrap();
    assert_eq!(store.policies().costs(), Costs::PAPER);
}
