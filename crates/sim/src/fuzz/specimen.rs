//! A small store to damage: built once, cleanly closed or crashed, with every version of its pages that was
//! ever written.

use crate::campaign::contract::content::{fill, version_in};
use pagetier::{Error, MemoryManifest, OpenError, PageId, PageMut, PageSize, PageStore, SpaceId};
use pagetier_devio::{Device, IoBuf, IoBufs, IoClass, SharedDevice};
use pagetier_page::StoreSeed;
use pagetier_ssdcache::{BLOCK_BYTES, Found, Layout, identify};
use pagetier_testing::{SimDevice, SimPower};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

pub(super) const BLOCK: usize = BLOCK_BYTES as usize;
const PAGE: u64 = 4096;
// The tables hold more pages than the SSD has blocks, and the SSD more blocks than the pool has frames:
// every tier evicts, so slots and homes hold versions of different ages.
const SSD_PAGES: u64 = 72;
const POOL_PAGES: u64 = 44;
const PAGES: u32 = 100;

/// The size limit of the HDD: a damaged manifest must not grow it further.
const HDD_BYTES_MAX: u64 = 16 << 20;

/// The written versions of each page.
type Truth = BTreeMap<PageId, BTreeSet<u32>>;

/// A store at rest.
pub(super) struct Specimen {
    hdd: Kept,
    ssd: Kept,
    manifest: Vec<u8>,
    seed: StoreSeed,
    layout: Layout,
    truth: Truth,
}

/// A copy of a specimen's bytes, to be changed.
pub(super) struct Copies {
    pub(super) hdd: Vec<u8>,
    pub(super) ssd: Vec<u8>,
    /// The manifest without its checksum.
    pub(super) manifest_line: Vec<u8>,
    /// The seed of the checksums of maps and journal.
    pub(super) seed: StoreSeed,
    pub(super) layout: Layout,
    /// The offset of the first page on the HDD.
    pub(super) homes_at: u64,
}

/// One cleanly closed, one crashed.
static SPECIMENS: LazyLock<[Specimen; 2]> = LazyLock::new(|| [specimen(true), specimen(false)]);

/// Runs in virtual time.
fn run<T>(future: impl Future<Output = T>) -> T {
    match tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build() {
        Ok(runtime) => runtime.block_on(future),
        Err(error) => panic!("no runtime: {error}"),
    }
}

/// Makes the checksum of a metadata block match.
pub(super) fn reseal(seed: StoreSeed, block: &mut [u8]) {
    let sum = seed.checksum(&block[12..]);
    block[8..12].copy_from_slice(&sum.to_le_bytes());
}

/// A manifest's line, with its checksum.
pub(super) fn sealed_manifest(line: &[u8]) -> Vec<u8> {
    let mut bytes = line.to_vec();
    bytes.extend_from_slice(format!("\ncrc32c {:08x}\n", pagetier_page::crc32c(line)).as_bytes());
    bytes
}

/// A specimen, cleanly closed or crashed.
pub(super) fn specimen_of(crashed: bool) -> &'static Specimen {
    &SPECIMENS[usize::from(crashed)]
}

impl Specimen {
    pub(super) fn copies(&self) -> Copies {
        let line = self.manifest.split(|b| *b == b'\n').next().unwrap_or_default();
        Copies {
            hdd: self.hdd.bytes.clone(),
            ssd: self.ssd.bytes.clone(),
            manifest_line: line.to_vec(),
            seed: self.seed,
            layout: self.layout,
            homes_at: 1 << 20,
        }
    }

    /// Opens a store on `copies`, reads everything, does more work, and opens it again.
    pub(super) fn open(&self, copies: Copies) {
        let manifest = sealed_manifest(&copies.manifest_line);
        self.open_as(copies, manifest);
    }

    /// Like [`Specimen::open`], with these bytes for the manifest.
    pub(super) fn open_as(&self, copies: Copies, manifest: Vec<u8>) {
        run(async {
            let (hdd, ssd) = (self.hdd.with(&copies.hdd).await, self.ssd.with(&copies.ssd).await);
            let manifest = Arc::new(MemoryManifest::from_bytes(manifest));
            let mut truth = self.truth.clone();
            // The second life opens what the first has made of the damage.
            for life in 0..2 {
                // A refusal is a sound answer to damage: only panics and wrong contents count as defects.
                let Ok(store) = open(&manifest, &hdd, &ssd).await else { return };
                check(&store, &truth).await;
                work(&store, &mut truth, 1_000_000 * (life + 1)).await;
                check(&store, &truth).await;
                assert_eq!(store.validate(), Ok(()));
                // A close may fail on a damaged device, and the next life must cope with the remains.
                let _ = store.close().await;
            }
        });
    }
}

/// A device's contents, and a device to put them in.
struct Kept {
    bytes: Vec<u8>,
    device: SimDevice,
}

impl Kept {
    fn of(device: SimDevice) -> Self {
        Self { bytes: device.snapshot(), device: device.with_size_max(HDD_BYTES_MAX) }
    }

    /// The device, with `changed` as its contents.
    async fn with(&self, changed: &[u8]) -> Arc<SimDevice> {
        let power = SimPower::new();
        // A fork shares what does not change, so an input costs only the blocks that it damages, not a
        // copy of both devices.
        let device = self.device.fork(0, &power);
        let blocks = changed.chunks(BLOCK).zip(self.bytes.chunks(BLOCK)).zip((0..).step_by(BLOCK));
        for ((block, old), at) in blocks.filter(|((block, old), _)| block != old) {
            let bufs = IoBufs::from_iter([IoBuf::copy_of(block)]);
            let done = device.write(at, bufs, IoClass::Meta).await;
            assert!(done.result.is_ok(), "{} bytes for {}", block.len(), old.len());
        }
        Arc::new(device.fork(0, &power))
    }
}

async fn open(
    manifest: &Arc<MemoryManifest>,
    hdd: &Arc<SimDevice>,
    ssd: &Arc<SimDevice>,
) -> Result<PageStore, OpenError> {
    PageStore::builder()
        .in_memory(Arc::clone(manifest))
        .hdd(Arc::clone(hdd) as SharedDevice)
        .ssd(Arc::clone(ssd) as SharedDevice)
        .page_size(PageSize::MIN)
        .ssd_bytes(SSD_PAGES * PAGE)
        .ring_pages(4)
        .ssd_policy("auto:zone=30")
        .pool_bytes(POOL_PAGES * PAGE)
        .exhausted_after(Duration::from_secs(1))
        .open()
        .await
}

/// Gives the page its next version.
fn write(mut guard: PageMut<'_>, truth: &mut Truth, version: &mut u32) {
    let page = guard.id();
    *version += 1;
    truth.entry(page).or_default().insert(*version);
    fill(&mut guard, page, *version);
}

/// Checks that every page, including some that were never written, reads as one of its written versions or as
/// an error.
async fn check(store: &PageStore, truth: &Truth) {
    // Spaces with and without pages; numbers at the edges of extents, of the space, and of the type.
    let never = [0, 1, 2, 7].into_iter().flat_map(|space| {
        [0, 63, 64, 130, 256, u32::MAX].into_iter().map(move |no| PageId::new(SpaceId(space), no))
    });
    for page in truth.keys().copied().chain(never) {
        if let Ok(found) = store.get(page).await {
            let (written, version) = (truth.get(&page), version_in(&found, page));
            // A page that was never written has no truth: it must not read as anything.
            let known = version.as_ref().is_ok_and(|v| written.is_some_and(|w| w.contains(v)));
            assert!(known, "{page} reads as {version:?}; its written versions are {written:?}");
        }
    }
}

/// Changes some pages and allocates others; errors are allowed.
async fn work(store: &PageStore, truth: &mut Truth, first_version: u32) {
    let mut version = first_version;
    // Most pages are not written, so the check after the work still sees what the damage did to them.
    let pages: Vec<PageId> = truth.keys().copied().step_by(3).collect();
    for page in pages {
        let Ok(guard) = store.get_mut(page).await else { continue };
        write(guard, truth, &mut version);
    }
    // A damaged manifest may list any number of spaces.
    for space in store.spaces().list().into_iter().take(4) {
        for _ in 0..4 {
            let Ok(guard) = store.allocate(space.id).await else { break };
            write(guard, truth, &mut version);
        }
    }
    let _ = store.sync().await;
}

fn specimen(closed: bool) -> Specimen {
    run(async {
        match build(closed).await {
            Ok(specimen) => specimen,
            Err(error) => panic!("the specimen: {error}"),
        }
    })
}

async fn build(closed: bool) -> Result<Specimen, Box<dyn std::error::Error>> {
    let power = SimPower::new();
    let hdd = Arc::new(SimDevice::new("hdd", 0, 1, &power));
    let ssd = Arc::new(SimDevice::new("ssd", 0, 2, &power));
    let manifest = Arc::new(MemoryManifest::default());
    let store = open(&manifest, &hdd, &ssd).await?;
    let mut truth = Truth::new();
    live(&store, &mut truth).await?;
    if closed {
        store.close().await?;
    } else {
        drop(store);
    }
    // The closed store has its power cut as well, which must not matter to it.
    let (hdd, ssd) = (hdd.after_power_cut(3, &SimPower::new()), ssd.after_power_cut(4, &SimPower::new()));
    let (hdd, ssd) = (Kept::of(hdd), Kept::of(ssd));
    let shared: SharedDevice = Arc::new(ssd.device.fork(0, &SimPower::new()));
    let Found::Superblock(superblock) = identify(&shared).await? else { return Err("no superblock".into()) };
    let manifest = manifest.compacted().to_bytes().ok_or("no manifest")?;
    Ok(Specimen { hdd, ssd, manifest, seed: superblock.seed(), layout: superblock.layout, truth })
}

/// Writes pages repeatedly, so that old versions remain on the devices.
async fn live(store: &PageStore, truth: &mut Truth) -> Result<(), Error> {
    let spaces = [store.spaces().create("t").await?, store.spaces().create("u").await?];
    let mut version = 0;
    for no in 0..PAGES {
        write(store.allocate(spaces[usize::from(no % 4 == 3)]).await?, truth, &mut version);
    }
    store.sync().await?;
    let pages: Vec<PageId> = truth.keys().copied().collect();
    for round in 0..4_usize {
        for page in pages.iter().skip(round).step_by(round + 1) {
            write(store.get_mut(*page).await?, truth, &mut version);
        }
        // The last round is not synced: the store that crashes has writes that no flush covers.
        if round < 3 {
            store.sync().await?;
        }
    }
    Ok(())
}
