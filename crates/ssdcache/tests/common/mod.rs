//! A tier on simulated devices, for the tests of this crate.

#![allow(dead_code, reason = "the unit tests use a part")]

use pagetier_bufpool::{DirtyPage, Tier, TierError, WrittenPage};
use pagetier_devio::{IoBuf, IoClass, SharedDevice};
use pagetier_page::{Flags, Header, Lsn, PageId, PageSize, SpaceId, Stamp, StoreSeed};
use pagetier_policy::{Access, Costs, Location, SlotPolicy, SlotPolicyParams, SsdPolicy};
use pagetier_ssdcache::{
    Homes, Layout, OldRing, OpenParams, OpeningMarks, RememberInMemory, SsdMode, SsdTier, Superblock, format,
};
use pagetier_testing::SimDevice;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::timeout;

pub(crate) const PAGE: usize = 4096;
/// Longer than any operation here takes in virtual time.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Places every page's home at the position given by its number.
struct Flat;

impl Homes for Flat {
    fn offset(&self, page: PageId) -> Option<u64> {
        Some(u64::from(page.no) * PAGE as u64)
    }
}

pub(crate) fn seed() -> StoreSeed {
    StoreSeed::of_store([1; 16])
}

pub(crate) fn page(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

/// Page `no`, filled with `version`.
pub(crate) fn image(no: u32, version: u8) -> IoBuf {
    let mut image = IoBuf::zeroed(PAGE);
    image.as_mut_slice().fill(version);
    Header { page: page(no), lsn: Lsn(0), stamp: Stamp::ZERO, flags: Flags::NONE }.put(image.as_mut_slice());
    image
}

pub(crate) fn dirty(no: u32, version: u8) -> DirtyPage {
    DirtyPage { page: page(no), image: image(no, version), logical: 1, recovery_lsn: Lsn(0) }
}

/// A small cache device with a ring of `ring_pages`.
pub(crate) fn layout(ring_pages: u32) -> Layout {
    Layout::for_bytes(1 << 19, PageSize::MIN, ring_pages).expect("a layout")
}

pub(crate) fn superblock(layout: Layout) -> Superblock {
    Superblock { store: [1; 16], ssd: [2; 16], layout, marks: OpeningMarks::default() }
}

pub(crate) async fn formatted(ssd: &Arc<SimDevice>, layout: Layout) {
    let shared = Arc::clone(ssd) as SharedDevice;
    format(&shared, &superblock(layout), seed(), OldRing::Wiped).await.expect("formatted");
}

pub(crate) fn policy(name: &str, layout: Layout) -> Box<dyn SlotPolicy> {
    pagetier_rivals::register();
    let params = SlotPolicyParams::new(Costs::PAPER, layout.slots as usize, 64);
    name.parse::<SsdPolicy>().expect("a policy").build(&params)
}

/// The parameters of a first open; tests override those that they examine.
pub(crate) fn params(hdd: &Arc<SimDevice>, ssd: &Arc<SimDevice>, layout: Layout, name: &str) -> OpenParams {
    OpenParams {
        hdd: Arc::clone(hdd) as SharedDevice,
        ssd: Arc::clone(ssd) as SharedDevice,
        seed: seed(),
        layout,
        ring_on_hdd: false,
        homes: Arc::new(Flat),
        policy: policy(name, layout),
        zone_percent: 50.0,
        epoch: 1,
        admissions_max: 4,
        mode: SsdMode::WriteBack,
        closed: false,
        remember: Arc::new(RememberInMemory::default()),
        progress: None,
        #[cfg(feature = "probes")]
        // Many pieces to a checkpoint, in a build that can.
        map_piece: 5,
    }
}

/// Writes one page, as the pool's cleaner does.
pub(crate) async fn write(tier: &SsdTier, no: u32, version: u8) -> Result<Location, TierError> {
    let result = Mutex::new(None);
    let done = |written: WrittenPage| *result.lock().expect("no panic") = Some(written.result);
    let write = tier.write(vec![dirty(no, version)], IoClass::Clean, &done);
    timeout(LONG, write).await.expect("written at last");
    result.into_inner().expect("no panic").expect("a result")
}

/// The version that page `no` reads as.
pub(crate) async fn read(tier: &SsdTier, no: u32) -> Result<u8, TierError> {
    let fetched = tier.fetch(page(no), Access::Random, IoBuf::zeroed(PAGE)).await;
    fetched.result.map(|_| fetched.buf.as_slice()[2000])
}
