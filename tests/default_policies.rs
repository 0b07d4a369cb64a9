//! Measures how many read-only, zipf-distributed requests to the whole store reach the disk, on emulated
//! devices in virtual time.
//!
//! Memory holds a thirtieth of the pages, the SSD a third. For independent requests, as here, the lower bound
//! of any static placement is the share of the requests to pages that fit in neither.

use pagetier::{
    MemoryManifest, PageId, PageSize, PageStore, SpaceId,
    device::{MemoryDevice, SharedDevice},
    pool_bytes_for, ssd_bytes_for,
};
use pagetier_testing::{DeviceModel, EmulatedClock, EmulatedDevice};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

/// The pages that `docs/EVALUATION.md` has; every run of the tests has a fifth of them.
const PAGES: u32 = 60_000;
const SKEW: f64 = 0.9;
const SIZE: PageSize = PageSize::MIN;

/// Ranks by probability, each assigned to a random page of the space.
struct Zipf {
    cumulative: Vec<f64>,
    page_of: Vec<u32>,
    rng: SmallRng,
}

impl Zipf {
    fn new(pages: u32, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut sum = 0.0;
        let cumulative = (1..=pages)
            .map(|rank| {
                sum += f64::from(rank).powf(-SKEW);
                sum
            })
            .collect();
        let mut page_of: Vec<u32> = (0..pages).collect();
        for at in (1..page_of.len()).rev() {
            page_of.swap(at, rng.random_range(0..=at));
        }
        Self { cumulative, page_of, rng }
    }

    fn next(&mut self) -> u32 {
        let at = self.rng.random::<f64>() * self.cumulative[self.cumulative.len() - 1];
        let rank = self.cumulative.partition_point(|&sum| sum < at);
        self.page_of[rank.min(self.page_of.len() - 1)]
    }

    /// The requests per 1,000 that the best static placement of `kept` pages leaves to the disk.
    fn static_optimum(&self, kept: u32) -> f64 {
        let all = self.cumulative[self.cumulative.len() - 1];
        1000.0 * (1.0 - self.cumulative[kept as usize - 1] / all)
    }
}

/// A store's devices, filled with pages.
struct Loaded {
    hdd: Arc<MemoryDevice>,
    ssd: Arc<MemoryDevice>,
    manifest: Arc<MemoryManifest>,
    space: SpaceId,
    pages: u32,
}

impl Loaded {
    async fn new(pages: u32) -> Self {
        let (hdd, ssd) = (Arc::new(MemoryDevice::new("hdd", 0)), Arc::new(MemoryDevice::new("ssd", 0)));
        let manifest = Arc::new(MemoryManifest::default());
        let store = PageStore::builder()
            .in_memory(Arc::clone(&manifest))
            .hdd(Arc::clone(&hdd) as SharedDevice)
            .ssd(Arc::clone(&ssd) as SharedDevice)
            .page_size(SIZE)
            .ssd_bytes(ssd_bytes_for(u64::from(pages / 3), SIZE))
            .pool_bytes(pool_bytes_for(4096, ssd_bytes_for(u64::from(pages / 3), SIZE), SIZE))
            .ssd_policy("none")
            .open()
            .await
            .unwrap();
        let space = store.spaces().create("zipf").await.unwrap();
        for no in 0..pages {
            store.allocate(space).await.unwrap()[..4].copy_from_slice(&no.to_le_bytes());
        }
        store.close().await.unwrap();
        Self { hdd, ssd, manifest, space, pages }
    }

    /// HDD reads per 1,000 requests after the warm-up, under these policies.
    async fn hdd_reads(&self, pool_policy: &str, ssd_policy: &str) -> f64 {
        let emulated = |device: &MemoryDevice, model: DeviceModel| -> SharedDevice {
            let model = model.with_page_bytes(SIZE.bytes() as u32);
            Arc::new(EmulatedDevice::new(Arc::new(device.fork()), model, EmulatedClock::Tokio))
        };
        let ssd_bytes = ssd_bytes_for(u64::from(self.pages / 3), SIZE);
        let store = PageStore::builder()
            .in_memory(Arc::new(self.manifest.fork()))
            .hdd(emulated(&self.hdd, DeviceModel::paper_hdd()))
            .ssd(emulated(&self.ssd, DeviceModel::paper_ssd()))
            .ssd_bytes(ssd_bytes)
            .pool_bytes(pool_bytes_for(u64::from(self.pages / 30), ssd_bytes, SIZE))
            .pool_policy(pool_policy)
            .ssd_policy(ssd_policy)
            .read_ahead(false)
            .open()
            .await
            .unwrap();
        let mut zipf = Zipf::new(self.pages, 1);
        for _ in 0..40 * self.pages {
            self.read(&store, &mut zipf).await;
        }
        let reads = || store.stats().hdd_device.totals().read.ops;
        let before = reads();
        for _ in 0..2 * self.pages {
            self.read(&store, &mut zipf).await;
        }
        let counted = reads() - before;
        store.close().await.unwrap();
        counted as f64 * 1000.0 / f64::from(2 * self.pages)
    }

    async fn read(&self, store: &PageStore, zipf: &mut Zipf) {
        let no = zipf.next();
        let page = store.get(PageId::new(self.space, no)).await.unwrap();
        assert_eq!(page[..4], no.to_le_bytes());
    }
}

#[tokio::test(start_paused = true)]
async fn few_of_the_requests_reach_the_disk() {
    let pages = PAGES / 5;
    let loaded = Loaded::new(pages).await;
    let best = Zipf::new(pages, 1).static_optimum(pages / 3 + pages / 30);
    let seen = loaded.hdd_reads("auto", "auto").await;
    println!("HDD reads per 1,000 requests: {seen:.1}; with the best static placement {best:.1}");
    assert!(seen <= 159.0, "{seen} HDD reads per 1,000 requests");
}

/// The figures of `docs/EVALUATION.md`: `cargo test --test all default_policies -- --ignored --nocapture`.
#[tokio::test(start_paused = true)]
#[ignore = "three runs, half a minute"]
async fn the_default_reads_the_disk_least() {
    pagetier_rivals::register();
    let loaded = Loaded::new(PAGES).await;
    let mut seen = Vec::new();
    for (pool, ssd) in [("auto", "auto"), ("gd2l", "cac"), ("lru", "lru2")] {
        let reads = loaded.hdd_reads(pool, ssd).await;
        println!("{pool}+{ssd}: {reads:.1}");
        seen.push(reads);
    }
    assert!(seen.is_sorted() && seen[0] <= 150.0, "{seen:?}");
}
