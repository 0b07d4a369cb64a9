//! The SSD's own duties beside everything else: write-back never puts an old version over a newer one, nothing spins, nothing falls asleep.

use pagetier_bufpool::{DirtyPage, Tier, WrittenPage};
use pagetier_devio::{
    Device, Fault, FaultEffect, IoBuf, IoBufs, IoClass, IoOp, SharedDevice, SimDevice, SimPower,
};
use pagetier_page::{Flags, Header, Lsn, PageId, PageSize, SpaceId, Stamp};
use pagetier_policy::{Access, CacParams, Costs, Home, ssd_policy};
use pagetier_ssdcache::{Homes, Layout, OpenParams, SsdMode, SsdTier, Superblock, format};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{sleep, timeout};

const PAGE: usize = 4096;
const LONG: Duration = Duration::from_secs(60);

/// Every page lies where its number says.
struct Flat;

impl Homes for Flat {
    fn offset(&self, page: PageId) -> Option<u64> {
        Some(u64::from(page.no) * PAGE as u64)
    }
}

struct Bed {
    tier: SsdTier,
    hdd: Arc<SimDevice>,
    ssd: Arc<SimDevice>,
    layout: Layout,
}

impl Bed {
    async fn new(policy: &str) -> Self {
        let power = SimPower::new();
        let hdd = SimDevice::new("hdd", 64 << 20, 3, &power).with_latency(Duration::from_millis(8));
        let ssd = SimDevice::new("ssd", 4 << 20, 4, &power).with_latency(Duration::from_millis(3));
        let (hdd, ssd) = (Arc::new(hdd), Arc::new(ssd));
        let layout = Layout::for_bytes(1 << 20, PageSize::MIN, 8).unwrap();
        let device: SharedDevice = Arc::clone(&ssd) as SharedDevice;
        format(&device, &Superblock { store: [1; 16], ssd: [2; 16], layout }).await.unwrap();
        let params = CacParams::new(Costs::PAPER, layout.slots as usize, 64);
        let tier = SsdTier::open(OpenParams {
            hdd: Arc::clone(&hdd) as SharedDevice,
            ssd: device,
            layout,
            homes: Arc::new(Flat),
            policy: ssd_policy(policy, &params).unwrap(),
            zone_percent: 25.0,
            epoch: 1,
            admissions_max: 4,
            mode: SsdMode::WriteBack,
            progress: None,
            #[cfg(feature = "mutations")]
            mutation: None,
        });
        Self { tier: tier.await.unwrap(), hdd, ssd, layout }
    }

    /// Where it went; `None`: it failed.
    async fn write(&self, no: u32, version: u8) -> Option<Home> {
        let home = Mutex::new(None);
        let done = |written: WrittenPage| *home.lock().unwrap() = Some(written.result);
        let batch =
            vec![DirtyPage { page: page(no), image: image(no, version), logical: 1, recovery_lsn: Lsn(0) }];
        timeout(LONG, self.tier.write(batch, IoClass::Clean, &done)).await.expect("written at last");
        home.into_inner().unwrap().unwrap().ok()
    }

    /// Fills the SSD with dirty pages of version 1.
    async fn fill(&self) -> u32 {
        let mut no = 0;
        while timeout(Duration::from_secs(1), self.write(no, 1)).await == Ok(Some(Home::Ssd)) {
            no += 1;
        }
        no
    }

    async fn version(&self, no: u32) -> u8 {
        let fetched = self.tier.fetch(page(no), Access::Random, IoBuf::zeroed(PAGE)).await;
        fetched.result.unwrap();
        fetched.buf.as_slice()[2000]
    }

    /// Reads of slots, and with them the write-back, take seconds.
    fn slow_slots(&self) {
        let slots = self.layout.slot_at(0)..self.layout.end();
        self.ssd.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(5))).on(IoOp::Read).within(slots));
    }
}

fn page(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

fn image(no: u32, version: u8) -> IoBuf {
    let mut image = IoBuf::zeroed(PAGE);
    image.as_mut_slice().fill(version);
    Header { page: page(no), lsn: Lsn(0), stamp: Stamp::ZERO, flags: Flags::NONE }.put(image.as_mut_slice());
    image
}

#[tokio::test(start_paused = true)]
async fn a_slow_write_back_does_not_overwrite_what_came_home_after_a_discard() {
    let bed = Bed::new("lru2").await;
    bed.slow_slots();
    let written = bed.fill().await.min(24);
    let mut home = 0;
    for no in 0..written {
        // As the pool does: a page whose write-back is under way is discarded after it.
        while !bed.tier.discarded(page(no)) {
            bed.tier.settled(page(no)).await;
        }
        // Another page takes the room, so that this one has to go home.
        let _ = timeout(Duration::from_secs(1), bed.write(500 + no, 1)).await;
        home += u32::from(timeout(Duration::from_secs(4), bed.write(no, 2)).await == Ok(Some(Home::Hdd)));
    }
    assert!(home > 0, "nothing went home: the case was not met");
    bed.ssd.clear_faults();
    sleep(LONG).await;
    for no in 0..written {
        assert_eq!(bed.version(no).await, 2, "page {no} is back at an older version");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_write_back_does_not_overwrite_what_came_home_after_a_failed_slot_write() {
    let bed = Bed::new("lru2").await;
    bed.slow_slots();
    bed.fill().await;
    let slots = bed.layout.slot_at(0)..bed.layout.end();
    bed.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(slots).times(1));
    assert_eq!(bed.write(0, 2).await, Some(Home::Hdd));
    sleep(LONG).await;
    assert_eq!(bed.version(0).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_takes_no_writes_keeps_nobody_busy() {
    let bed = Bed::new("lru2").await;
    bed.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write));
    bed.fill().await;
    sleep(LONG).await;
    let before = bed.hdd.ops() + bed.ssd.ops();
    sleep(LONG).await;
    let spent = bed.hdd.ops() + bed.ssd.ops() - before;
    assert!(spent < 100, "{spent} operations in an idle minute");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_only_read_goes_on_admitting() {
    let bed = Bed::new("cac").await;
    for no in 0..3000 {
        let mut image = image(no, 1);
        pagetier_page::seal(image.as_mut_slice(), Stamp::from_bits(5), Flags::NONE);
        let at = u64::from(no) * PAGE as u64;
        bed.hdd.write(at, IoBufs::from_iter([image]), IoClass::Clean).await.result.unwrap();
    }
    let filled = bed.fill().await;
    // What is on the SSD is read again and again, so that its pages are worth more than the zone's ceiling.
    for _ in 0..6 {
        for no in 0..filled {
            bed.version(no).await;
        }
        for no in (1000..1100).cycle().take(400) {
            let fetched = bed.tier.fetch(page(no), Access::Random, IoBuf::zeroed(PAGE)).await;
            let _ = bed.tier.evicted(page(no), 1, fetched.buf.as_slice());
            sleep(Duration::from_millis(20)).await;
        }
    }
    let counts = bed.tier.stats().counts;
    assert!(counts.admitted_over > 20, "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_failed_slot_write_tells_which_page_had_to_make_room_for_it() {
    let bed = Bed::new("lru2").await;
    let filled = bed.fill().await;
    sleep(LONG).await;
    let slots = bed.layout.slot_at(0)..bed.layout.end();
    bed.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(slots).times(1));
    let homes: Vec<Home> = (0..filled).map(|no| bed.tier.home(page(no))).collect();
    let told = Mutex::new(None);
    let done = |written: WrittenPage| *told.lock().unwrap() = Some((written.result, written.displaced));
    let batch = vec![DirtyPage { page: page(900), image: image(900, 1), logical: 1, recovery_lsn: Lsn(0) }];
    timeout(LONG, bed.tier.write(batch, IoClass::Clean, &done)).await.expect("written at last");
    let (result, displaced) = told.into_inner().unwrap().unwrap();
    assert_eq!(result.unwrap(), Home::Hdd);
    let gone: Vec<PageId> = (0..filled)
        .filter(|no| homes[*no as usize] == Home::Ssd && bed.tier.home(page(*no)) == Home::Hdd)
        .map(page)
        .collect();
    assert_eq!(displaced.0.into_iter().collect::<Vec<_>>(), gone);
    assert_eq!(gone.len(), 1);
}
