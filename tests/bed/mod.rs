//! A store on simulated devices, and the expected versions of its pages.

#![allow(dead_code, reason = "each test file uses a part")]

use pagetier::{Builder, Error, Lsn, MemoryManifest, OpenError, PageId, PageSize, PageStore, SpaceId};
use pagetier_devio::{SharedDevice, SimDevice, SimPower};
use pagetier_page::StoreSeed;
use pagetier_ssdcache::Layout;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

pub(crate) const PAGE: u64 = 4096;
const SOON: Duration = Duration::from_micros(400);
pub(crate) const SSD_PAGES: u64 = 160;
pub(crate) const RING_PAGES: u32 = 8;
/// More pages than pool and SSD hold together.
pub(crate) const PAGES: u32 = 300;

pub(crate) struct Bed {
    pub(crate) hdd: Arc<SimDevice>,
    pub(crate) ssd: Arc<SimDevice>,
    pub(crate) ring: Arc<SimDevice>,
    pub(crate) manifest: Arc<MemoryManifest>,
}

impl Bed {
    pub(crate) fn new() -> Self {
        Self::with_latency(Duration::from_millis(4), Duration::from_micros(400))
    }

    pub(crate) fn with_latency(hdd: Duration, ssd: Duration) -> Self {
        let power = SimPower::new();
        Self {
            hdd: Arc::new(SimDevice::new("hdd", 0, 1, &power).with_latency(hdd)),
            ssd: Arc::new(SimDevice::new("ssd", 0, 2, &power).with_latency(ssd)),
            ring: Arc::new(SimDevice::new("ring", 0, 3, &power).with_latency(hdd)),
            manifest: Arc::new(MemoryManifest::default()),
        }
    }

    pub(crate) fn builder(&self) -> Builder {
        PageStore::builder()
            .in_memory(Arc::clone(&self.manifest))
            .hdd_device(Arc::clone(&self.hdd) as SharedDevice)
            .ssd_device(Arc::clone(&self.ssd) as SharedDevice)
            .ring_device(Arc::clone(&self.ring) as SharedDevice)
            .page_size(PageSize::MIN)
            .ssd_bytes(SSD_PAGES * PAGE)
            .ring_pages(RING_PAGES)
            .zone_percent(30.0)
            .exhausted_after(Duration::from_secs(2))
            .pool_bytes(60 * PAGE)
    }

    pub(crate) async fn open(&self) -> PageStore {
        self.try_open().await.unwrap()
    }

    pub(crate) async fn try_open(&self) -> Result<PageStore, OpenError> {
        self.builder().open().await
    }

    /// The devices as they come back after a power cut at this moment.
    pub(crate) fn after_power_cut(&self, seed: u64) -> Self {
        let power = SimPower::new();
        Self {
            hdd: Arc::new(self.hdd.after_power_cut(seed, &power)),
            ssd: Arc::new(self.ssd.after_power_cut(seed + 1, &power)),
            ring: Arc::new(self.ring.after_power_cut(seed + 2, &power)),
            manifest: Arc::new(self.manifest.fork()),
        }
    }

    /// Replaces the SSD with a blank one.
    pub(crate) fn with_blank_ssd(mut self) -> Self {
        self.ssd = Arc::new(SimDevice::new("blank", 0, 9, &SimPower::new()).with_latency(SOON));
        self
    }

    pub(crate) fn layout(&self) -> Layout {
        Layout::for_bytes(SSD_PAGES * PAGE, PageSize::MIN, RING_PAGES).unwrap()
    }

    /// The byte range of the slots.
    pub(crate) fn slots(&self) -> Range<u64> {
        self.layout().slot_at(0)..self.layout().end()
    }

    /// The seed of the store's checksums.
    pub(crate) fn seed(&self) -> StoreSeed {
        let manifest = self.manifest.to_bytes().unwrap();
        let line = manifest.split(|b| *b == b'\n').next().unwrap();
        let fields: serde_json::Value = serde_json::from_slice(line).unwrap();
        StoreSeed::of_store(uuid::Uuid::parse_str(fields["store"].as_str().unwrap()).unwrap().into_bytes())
    }

    /// The offsets of the SSD slots with images of `page`, found by content: targets for rot.
    pub(crate) fn slots_of(&self, page: PageId) -> Vec<u64> {
        let (bytes, seed) = (self.ssd.snapshot(), self.seed());
        self.slots().step_by(PAGE as usize).filter(|at| holds(seed, &bytes, *at, page)).collect()
    }

    /// The offsets of all images of `page` on the SSD, wherever they are: also in the ring, and with any
    /// layout of the device.
    pub(crate) fn images_of(&self, page: PageId) -> Vec<u64> {
        let (bytes, seed) = (self.ssd.snapshot(), self.seed());
        (0..bytes.len() as u64).step_by(PAGE as usize).filter(|at| holds(seed, &bytes, *at, page)).collect()
    }

    /// The offset of the home of `page`, found by content.
    pub(crate) fn home_of(&self, page: PageId) -> Option<u64> {
        let (bytes, seed) = (self.hdd.snapshot(), self.seed());
        (1 << 20..bytes.len() as u64).step_by(PAGE as usize).find(|at| holds(seed, &bytes, *at, page))
    }
}

fn holds(seed: StoreSeed, bytes: &[u8], at: u64, page: PageId) -> bool {
    let image = bytes.get(at as usize..(at + PAGE) as usize);
    image.is_some_and(|image| pagetier_page::verify(seed, image, page).is_ok())
}

pub(crate) fn fill(payload: &mut [u8], no: u32, version: u32) {
    let word = (u64::from(version) << 32 | u64::from(no)).to_le_bytes();
    payload.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&word));
}

pub(crate) fn version_of(payload: &[u8], no: u32) -> u32 {
    let first = u64::from_le_bytes(payload[..8].try_into().unwrap());
    assert_eq!(first as u32, no, "another page's content");
    assert!(payload.chunks_exact(8).all(|chunk| chunk == first.to_le_bytes()), "page {no} mixes versions");
    (first >> 32) as u32
}

/// Creates a space of `PAGES` pages in version 1.
pub(crate) async fn grown(store: &PageStore) -> SpaceId {
    let space = store.create_space("t").await.unwrap();
    for no in 0..PAGES {
        fill(&mut store.allocate(space).await.unwrap(), no, 1);
    }
    space
}

pub(crate) async fn write(store: &PageStore, space: SpaceId, no: u32, version: u32) -> Result<(), Error> {
    let mut page = store.get_mut(PageId::new(space, no)).await?;
    fill(&mut page, no, version);
    page.set_lsn(Lsn(u64::from(version) * 1000 + u64::from(no)));
    Ok(())
}

pub(crate) async fn write_all(store: &PageStore, space: SpaceId, version: u32) {
    for no in 0..PAGES {
        write(store, space, no, version).await.unwrap();
    }
}

pub(crate) async fn read(store: &PageStore, space: SpaceId, no: u32) -> Result<u32, Error> {
    Ok(version_of(&store.get(PageId::new(space, no)).await?, no))
}

pub(crate) async fn expect_all(store: &PageStore, space: SpaceId, version: u32) {
    for no in 0..PAGES {
        match read(store, space, no).await {
            Ok(found) => assert_eq!(found, version, "page {no}"),
            Err(error) => panic!("page {no}: {error}"),
        }
    }
}

/// Polls `future` at most `polls` times, then drops it; `None` if it was still pending.
pub(crate) async fn polled<T>(polls: u64, future: impl Future<Output = T>) -> Option<T> {
    let mut future = Box::pin(future);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}
