//! The SSD's background work: write-back never overwrites a newer version with an older one, nothing spins,
//! nothing stalls.

use crate::common::{PAGE, dirty, formatted, image, page, params, read, seed, write};
use pagetier_bufpool::{Tier, WrittenPage};
use pagetier_devio::{Device, IoBuf, IoBufs, IoClass, IoOp};
use pagetier_page::{Flags, PageId, PageSize, Stamp};
use pagetier_policy::{Access, Location};
use pagetier_ssdcache::{Layout, OpenParams, SsdTier};
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{sleep, timeout};

const LONG: Duration = Duration::from_secs(60);

struct Fixture {
    tier: SsdTier,
    hdd: Arc<SimDevice>,
    ssd: Arc<SimDevice>,
    layout: Layout,
}

impl Fixture {
    async fn new(policy: &str) -> Self {
        let power = SimPower::new();
        let hdd = SimDevice::new("hdd", 64 << 20, 3, &power).with_latency(Duration::from_millis(8));
        let ssd = SimDevice::new("ssd", 4 << 20, 4, &power).with_latency(Duration::from_millis(3));
        let (hdd, ssd) = (Arc::new(hdd), Arc::new(ssd));
        let layout = Layout::for_bytes(1 << 20, PageSize::MIN, 8).unwrap();
        formatted(&ssd, layout).await;
        let tier = SsdTier::open(OpenParams { zone_percent: 25.0, ..params(&hdd, &ssd, layout, policy) });
        Self { tier: tier.await.unwrap(), hdd, ssd, layout }
    }

    /// Returns where the page went; `None`: the write failed.
    async fn write(&self, no: u32, version: u8) -> Option<Location> {
        write(&self.tier, no, version).await.ok()
    }

    /// Writes pages in one batch.
    async fn write_batch(&self, pages: std::ops::Range<u32>, version: u8) {
        let done = |written: WrittenPage| assert_eq!(written.result.unwrap(), Location::Ssd);
        let batch = pages.map(|no| dirty(no, version)).collect();
        timeout(LONG, self.tier.write(batch, IoClass::Clean, &done)).await.expect("written at last");
    }

    /// Reads a page on demand, as the pool does.
    async fn get(&self, no: u32) -> Location {
        self.tier.fetch(page(no), Access::Random, IoBuf::zeroed(PAGE)).await.result.unwrap()
    }

    /// Fills the SSD with dirty pages of version 1; returns their number.
    async fn fill(&self) -> u32 {
        self.fill_from(0).await
    }

    /// As [`Self::fill`], with pages of these numbers.
    async fn fill_from(&self, first: u32) -> u32 {
        let mut no = first;
        while timeout(Duration::from_secs(1), self.write(no, 1)).await == Ok(Some(Location::Ssd)) {
            no += 1;
        }
        no - first
    }

    async fn version(&self, no: u32) -> u8 {
        read(&self.tier, no).await.unwrap()
    }

    /// Makes reads of slots, and with them write-backs, take seconds.
    fn slow_slots(&self) {
        let slots = self.layout.slot_at(0)..self.layout.end();
        self.ssd.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(5))).on(IoOp::Read).within(slots));
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_write_back_does_not_overwrite_what_came_home_after_a_discard() {
    let fixture = Fixture::new("lru2").await;
    fixture.slow_slots();
    let written = fixture.fill().await.min(24);
    let mut home = 0;
    for no in 0..written {
        // As in the pool, a page whose write-back is under way is discarded after it.
        while !fixture.tier.discarded(page(no)) {
            fixture.tier.settled(page(no)).await;
        }
        // Another page takes the slot, so that this one has to be written home.
        let _ = timeout(Duration::from_secs(1), fixture.write(500 + no, 1)).await;
        home +=
            u32::from(timeout(Duration::from_secs(4), fixture.write(no, 2)).await == Ok(Some(Location::Hdd)));
    }
    assert!(home > 0, "nothing went home: the case was not met");
    fixture.ssd.clear_faults();
    sleep(LONG).await;
    for no in 0..written {
        assert_eq!(fixture.version(no).await, 2, "page {no} is back at an older version");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_write_back_does_not_overwrite_what_came_home_after_a_failed_slot_write() {
    for policy in ["lru2", "mv-fifo"] {
        let fixture = Fixture::new(policy).await;
        fixture.slow_slots();
        fixture.fill().await;
        let slots = fixture.layout.slot_at(0)..fixture.layout.end();
        fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(slots).times(1));
        assert_eq!(fixture.write(0, 2).await, Some(Location::Hdd), "{policy}");
        sleep(LONG).await;
        assert_eq!(fixture.version(0).await, 2, "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_takes_no_writes_keeps_nobody_busy() {
    for policy in ["lru2", "mv-fifo", "mv-fifo-gsc"] {
        let fixture = Fixture::new(policy).await;
        fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write));
        fixture.fill().await;
        sleep(LONG).await;
        let before = fixture.hdd.ops() + fixture.ssd.ops();
        sleep(LONG).await;
        let spent = fixture.hdd.ops() + fixture.ssd.ops() - before;
        assert!(spent < 100, "{policy}: {spent} operations in an idle minute");
        // The slots that were kept for bursts have room for a few more.
        fixture.fill_from(600).await;
        // No write waits for a slot that only a home write would free: it gets the error.
        assert_eq!(fixture.write(900, 1).await, None, "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_only_read_goes_on_admitting() {
    let fixture = Fixture::new("cac").await;
    for no in 0..3000 {
        let mut image = image(no, 1);
        pagetier_page::seal(seed(), image.as_mut_slice(), Stamp::from_bits(5), Flags::NONE);
        let at = u64::from(no) * PAGE as u64;
        fixture.hdd.write(at, IoBufs::from_iter([image]), IoClass::Clean).await.result.unwrap();
    }
    let filled = fixture.fill().await;
    // Pages on the SSD are read repeatedly, which makes them worth more than the zone's ceiling.
    for _ in 0..6 {
        for no in 0..filled {
            fixture.version(no).await;
        }
        for no in (1000..1100).cycle().take(400) {
            let fetched = fixture.tier.fetch(page(no), Access::Random, IoBuf::zeroed(PAGE)).await;
            let _ = fixture.tier.evicted(page(no), 1, fetched.buf.as_slice());
            sleep(Duration::from_millis(20)).await;
        }
    }
    let counts = fixture.tier.stats().counts;
    assert!(counts.admitted_over > 20, "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_failed_slot_write_tells_which_page_had_to_make_room_for_it() {
    let fixture = Fixture::new("lru2").await;
    let filled = fixture.fill().await;
    sleep(LONG).await;
    // The slots that were kept for bursts have room for a few more, after some checkpoints.
    let mut more = 600;
    for _ in 0..10 {
        more += fixture.fill_from(more).await;
        sleep(LONG).await;
    }
    let pages = (0..filled).chain(600..more);
    let slots = fixture.layout.slot_at(0)..fixture.layout.end();
    fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(slots).times(1));
    let on_ssd: Vec<u32> = pages.filter(|no| fixture.tier.location(page(*no)) == Location::Ssd).collect();
    let told = Mutex::new(None);
    let done = |written: WrittenPage| *told.lock().unwrap() = Some((written.result, written.displaced));
    let batch = vec![dirty(900, 1)];
    timeout(LONG, fixture.tier.write(batch, IoClass::Clean, &done)).await.expect("written at last");
    let (result, displaced) = told.into_inner().unwrap().unwrap();
    assert_eq!(result.unwrap(), Location::Hdd);
    let is_gone = |page: &PageId| fixture.tier.location(*page) == Location::Hdd;
    let gone: Vec<PageId> = on_ssd.into_iter().map(page).filter(is_gone).collect();
    assert_eq!(displaced.0.into_iter().collect::<Vec<_>>(), gone);
    assert_eq!(gone.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn appended_pages_are_written_side_by_side_in_one_operation() {
    for policy in ["mv-fifo", "mv-fifo-gsc"] {
        let fixture = Fixture::new(policy).await;
        let before = fixture.ssd.stats().class(IoClass::Clean).write.clone();
        let rounds = 3 * fixture.layout.slots / 16;
        for round in 0..rounds {
            fixture.write_batch(round * 16 % 64..round * 16 % 64 + 16, 1 + round as u8).await;
            // Time for the next slots to be made ready.
            sleep(Duration::from_secs(1)).await;
        }
        let after = fixture.ssd.stats().class(IoClass::Clean).write.clone();
        let (ops, pages) = (after.ops - before.ops, (after.bytes - before.bytes) / PAGE as u64);
        assert!(pages >= u64::from(16 * rounds), "{policy}: {pages} pages");
        // One operation per batch, and one more where the circle wraps around.
        assert!(ops <= u64::from(rounds) + 3, "{policy}: {ops} operations for {rounds} batches");
    }
}

#[tokio::test(start_paused = true)]
async fn the_doublewrite_buffer_writes_each_page_once_and_the_ring_not_at_all() {
    let fixture = Fixture::new("doublewrite").await;
    for round in 0..12 {
        fixture.write_batch(0..16, 1 + round).await;
        fixture.write_batch(100..116, 1 + round).await;
        sleep(Duration::from_secs(1)).await;
    }
    let ssd = fixture.ssd.stats();
    let (slots, ring) = (&ssd.class(IoClass::Clean).write, &ssd.class(IoClass::Ring).write);
    assert_eq!((slots.bytes / PAGE as u64, ring.ops), (24 * 16, 0));
    // One more where the circle wraps around.
    assert!(slots.ops <= 26, "{slots:?}");
    let home = fixture.hdd.stats().class(IoClass::Clean).write.clone();
    assert_eq!((home.bytes / PAGE as u64, home.ops), (24 * 16, 24));
    assert_eq!(
        (fixture.get(3).await, fixture.version(3).await, fixture.version(103).await),
        (Location::Ssd, 12, 12)
    );
    sleep(LONG).await;
    // Except for those that await the next flush of the HDD, all copies are clean.
    let stats = fixture.tier.stats();
    assert!(stats.dirty_pages <= 128 && stats.counts.doublewritten > 200, "{stats:?}");
    fixture.tier.validate().unwrap();
}

#[tokio::test(start_paused = true)]
async fn tac_copies_what_is_read_and_what_is_written_home() {
    let fixture = Fixture::new("tac").await;
    for no in 0..20 {
        let mut image = image(no, 1);
        pagetier_page::seal(seed(), image.as_mut_slice(), Stamp::from_bits(5), Flags::NONE);
        let at = u64::from(no) * PAGE as u64;
        fixture.hdd.write(at, IoBufs::from_iter([image]), IoClass::Clean).await.result.unwrap();
    }
    for no in 0..20 {
        assert_eq!(fixture.get(no).await, Location::Ssd, "admitted as it is read");
        sleep(Duration::from_millis(10)).await;
    }
    assert!(!fixture.tier.dirtied(page(3), 1), "its copy is what the HDD has");
    assert_eq!(fixture.write(3, 2).await, Some(Location::Ssd));
    assert_eq!(fixture.version(3).await, 2);
    assert_eq!(fixture.write(50, 2).await, Some(Location::Hdd), "only what was read is admitted");
    let stats = fixture.tier.stats();
    assert_eq!((stats.dirty_pages, stats.counts.admitted_on_read, stats.counts.renewed), (0, 20, 1));
    // More at once than may be in flight: the others are not admitted, and no read waits.
    for no in 0..20 {
        fixture.tier.discarded(page(no));
    }
    let reads = fixture.hdd.stats().class(IoClass::Demand).read.ops;
    futures_util::future::join_all((0..20).map(|no| fixture.get(no))).await;
    assert_eq!(fixture.hdd.stats().class(IoClass::Demand).read.ops, reads + 20);
    assert!(fixture.tier.stats().counts.admitted_on_read < 40);
    fixture.tier.validate().unwrap();
}

/// The number of write-backs' writes to the disk so far: those that alternated with reads, and those that
/// yielded to them.
fn write_backs(fixture: &Fixture) -> [u64; 2] {
    [IoClass::UrgentWriteBack, IoClass::WriteBack].map(|class| fixture.hdd.stats().class(class).write.ops)
}

#[tokio::test(start_paused = true)]
async fn write_backs_that_somebody_waits_for_do_not_yield() {
    for (policy, appends) in [("mv-fifo", true), ("mv-fifo-gsc", true), ("cac", false), ("lru2", false)] {
        let fixture = Fixture::new(policy).await;
        // With time between writes, victims are clean when needed, so only a circle waits for write-backs.
        let mut went_home = 0;
        for no in 0..2 * fixture.layout.slots {
            went_home += u32::from(fixture.write(no, 1).await == Some(Location::Hdd));
            sleep(Duration::from_secs(1)).await;
        }
        let [urgent, patient] = write_backs(&fixture);
        assert!(urgent + patient > 0, "{policy}: nothing was written back");
        assert_eq!(
            (urgent > 0, patient > 0),
            (appends, !appends),
            "{policy}: {urgent} urgent, {patient} not; {went_home}"
        );
        // No write waits for a drain's copies.
        assert!(fixture.tier.drain(None, None, None).await.written > 0, "{policy}");
        assert_eq!(write_backs(&fixture)[0], urgent, "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn write_backs_hurry_once_a_dirty_page_had_to_go_home_for_want_of_a_clean_victim() {
    let fixture = Fixture::new("lru2").await;
    fixture.fill().await;
    sleep(LONG).await;
    let [urgent, patient] = write_backs(&fixture);
    // More at once than there are clean victims: LRU2 would have admitted them all.
    let mut went_home = 0;
    for no in 500..500 + 2 * fixture.layout.slots {
        went_home += u32::from(fixture.write(no, 1).await == Some(Location::Hdd));
    }
    assert!(went_home > 0, "there was always a clean victim");
    sleep(LONG).await;
    assert!(write_backs(&fixture)[0] > urgent, "{went_home} went home, {urgent} + {patient} before");
    // Once these and the next write-back have ended, nothing is urgent.
    for no in 800..810 {
        assert_eq!(fixture.write(no, 1).await, Some(Location::Ssd));
        sleep(Duration::from_secs(1)).await;
    }
    let [more_urgent, patient] = write_backs(&fixture);
    for no in 0..fixture.layout.slots {
        assert_eq!(fixture.write(900 + no, 1).await, Some(Location::Ssd));
        sleep(Duration::from_secs(1)).await;
    }
    let [at_last, then_patient] = write_backs(&fixture);
    assert_eq!(at_last, more_urgent);
    assert!(then_patient > patient);
}
