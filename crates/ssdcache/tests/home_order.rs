//! What the HDD must have before the SSD may release it: without a ring, after errors, and while pages are
//! discarded.

use crate::common::{LONG, PAGE, dirty, formatted, image, layout, page, params, policy, read, write};
use futures_util::future::join_all;
use pagetier_bufpool::{DirtyPage, Tier, TierError, WrittenPage};
use pagetier_devio::{Device, IoClass, IoOp};
use pagetier_page::{Lsn, PageId, PageSize, SpaceId};
use pagetier_policy::Location;
use pagetier_ssdcache::{
    DrainProgress, ExchangeError, HomeWrites, Layout, NewCacheDevice, OpenParams, SsdMode, SsdState, SsdTier,
};
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
use std::future::ready;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// The page under test.
const P: u32 = 3;

struct Fixture {
    tier: Arc<SsdTier>,
    hdd: Arc<SimDevice>,
    ssd: Arc<SimDevice>,
    layout: Layout,
    epoch: u32,
    policy: &'static str,
}

impl Fixture {
    /// A new store; every operation takes up to `latency`.
    async fn new(ring_pages: u32, mode: SsdMode, latency: Duration) -> Self {
        Self::with_policy("lru2", ring_pages, mode, latency).await
    }

    async fn with_policy(policy: &'static str, ring_pages: u32, mode: SsdMode, latency: Duration) -> Self {
        let power = SimPower::new();
        let device = |name, seed| Arc::new(SimDevice::new(name, 1 << 20, seed, &power).with_latency(latency));
        let (hdd, ssd) = (device("hdd", 1), device("ssd", 2));
        let layout = layout(ring_pages);
        formatted(&ssd, layout).await;
        Self::open(hdd, ssd, layout, mode, 1, policy).await
    }

    async fn open(
        hdd: Arc<SimDevice>,
        ssd: Arc<SimDevice>,
        layout: Layout,
        mode: SsdMode,
        epoch: u32,
        policy: &'static str,
    ) -> Self {
        let tier = SsdTier::open(OpenParams { epoch, mode, ..params(&hdd, &ssd, layout, policy) });
        let tier = Arc::new(timeout(LONG, tier).await.expect("it ends").expect("it opens"));
        Self { tier, hdd, ssd, layout, epoch, policy }
    }

    /// The store reopened after a power cut.
    async fn after_power_cut(&self, seed: u64) -> Self {
        self.after_power_cut_and(seed, |_| {}).await
    }

    /// The same, after `change` of the HDD.
    async fn after_power_cut_and(&self, seed: u64, change: impl FnOnce(&SimDevice)) -> Self {
        let power = SimPower::new();
        let hdd = Arc::new(self.hdd.after_power_cut(seed, &power));
        change(&hdd);
        let ssd = Arc::new(self.ssd.after_power_cut(seed + 1000, &power));
        let (epoch, mode) = (self.epoch + 1, SsdMode::WriteBack);
        Self::open(hdd, ssd, self.layout, mode, epoch, self.policy).await
    }

    async fn write(&self, no: u32, version: u8) -> Result<Location, TierError> {
        write(&self.tier, no, version).await
    }

    async fn sync(&self) {
        timeout(LONG, self.tier.flush()).await.expect("flushed at last").expect("flushed");
    }

    async fn read(&self, no: u32) -> Result<u8, TierError> {
        read(&self.tier, no).await
    }

    /// What the home of page `no` holds.
    fn at_home(&self, no: u32) -> Vec<u8> {
        let home = self.home_of(no);
        self.hdd.snapshot()[home.start as usize..home.end as usize].to_vec()
    }

    fn home_of(&self, no: u32) -> std::ops::Range<u64> {
        u64::from(no) * PAGE as u64..u64::from(no + 1) * PAGE as u64
    }
}

/// Without a ring, version 1 of `P` is written home, and its copy reaches the SSD before any flush of the
/// HDD. The power is cut, the copy is read, and the SSD is switched off if it holds no only copy. Returns how
/// often the page reverts to an older version.
async fn goes_back_with_the_ssd_off() -> u32 {
    let fixture = Fixture::new(0, SsdMode::WriteThrough, Duration::ZERO).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Hdd);
    let _ = fixture.tier.evicted(page(P), 1, image(P, 1).as_slice());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.tier.location(page(P)), Location::Ssd);
    assert_eq!(fixture.tier.stats().dirty_pages, 1, "the home may be lost still");
    fixture.ssd.flush(IoClass::Meta).await.expect("the copy is durable");
    let mut older = 0;
    for seed in 0..16 {
        let cut = fixture.after_power_cut(seed).await;
        let read = cut.read(P).await;
        let off = other_cache(Layout::ring_only(PageSize::MIN, 0)).await;
        let exchanged = cut.tier.exchange(off, None, |_| ready(Ok::<(), String>(()))).await;
        older += u32::from(matches!(read, Ok(1)) && exchanged.is_ok() && !matches!(cut.read(P).await, Ok(1)));
    }
    // A flush of the HDD makes it clean.
    let _ = fixture.tier.flush().await;
    assert_eq!(fixture.tier.stats().dirty_pages, 0, "now the HDD has it");
    older
}

#[tokio::test(start_paused = true)]
async fn without_a_ring_a_copy_of_an_unflushed_home_is_dirty_until_the_flush() {
    assert_eq!(goes_back_with_the_ssd_off().await, 0);
}

/// Without a ring, pages are written home, and a checkpoint captures their copies before a `sync`. Then these
/// pages change in memory, their slots are given to others, and the power is cut. Returns how many synced
/// pages read as errors.
async fn errors_though_synced() -> usize {
    let mut errors = 0;
    for polls in 0..3 {
        let fixture = Fixture::new(0, SsdMode::WriteThrough, Duration::ZERO).await;
        // With fewer free slots, the HDD is flushed for them.
        let written = 0..fixture.layout.slots - 5;
        for no in written.clone() {
            assert_eq!(fixture.write(no, 1).await.expect("written"), Location::Hdd);
            let _ = fixture.tier.evicted(page(no), 1, image(no, 1).as_slice());
            sleep(Duration::from_millis(1)).await;
        }
        fixture.sync().await;
        for no in written.clone() {
            fixture.tier.dirtied(page(no), 1);
        }
        // The slots that were never used come first.
        for other in written.end..written.end + 8 {
            let _ = fixture.tier.evicted(page(other), 1, image(other, 2).as_slice());
            if other < written.end + 5 {
                sleep(Duration::from_millis(1)).await;
            }
        }
        for _ in 0..polls {
            tokio::task::yield_now().await;
        }
        let cuts = join_all((0..16).map(|seed| fixture.after_power_cut(seed))).await;
        for cut in cuts {
            let reads = join_all(written.clone().map(|no| cut.read(no))).await;
            errors += reads.iter().filter(|read| !matches!(read, Ok(1))).count();
        }
    }
    errors
}

#[tokio::test(start_paused = true)]
async fn without_a_ring_a_copy_whose_slot_was_given_out_does_not_stand_for_its_page() {
    assert_eq!(errors_though_synced().await, 0);
}

/// Without a ring, version 2 of `P` goes home over an only copy of version 1, which is sound although every
/// read of it comes back wrong if `misread`. The power is cut at any moment. Returns which versions were
/// found, and how often neither was.
async fn over_an_only_copy(misread: bool) -> ([bool; 3], u32) {
    let (mut seen, mut lost) = ([false; 3], 0);
    for seed in 0..60 {
        let fixture = Fixture::new(0, SsdMode::WriteBack, Duration::from_millis(2)).await;
        assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Ssd);
        fixture.sync().await;
        // A slot write fails: from now on changed pages go home.
        let slots = fixture.layout.slot_at(0)..fixture.layout.end();
        let fault = |effect, op| Fault::new(effect).on(op).within(slots.clone());
        fixture.ssd.inject(fault(FaultEffect::Eio, IoOp::Write).times(1));
        if misread {
            fixture.ssd.inject(fault(FaultEffect::BitFlip, IoOp::Read));
        }
        let cut = Duration::from_micros(seed * 400);
        let whole = timeout(cut, fixture.write(P, 2)).await.is_ok();
        match fixture.after_power_cut(seed).await.read(P).await {
            Ok(version @ 1..=2) => {
                assert!(version == 2 || !whole, "seed {seed}: it was durable");
                seen[usize::from(version)] = true;
            }
            _ => lost += 1,
        }
    }
    (seen, lost)
}

#[tokio::test(start_paused = true)]
async fn without_a_ring_a_page_goes_home_before_its_record_voids_an_only_copy() {
    for misread in [false, true] {
        assert_eq!(over_an_only_copy(misread).await, ([false, true, true], 0), "{misread}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_damaged_older_copy_does_not_fail_the_write_of_a_sound_version() {
    let fixture = Fixture::new(0, SsdMode::WriteBack, Duration::ZERO).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Ssd);
    fixture.sync().await;
    for slot in 0..fixture.layout.slots {
        fixture.ssd.flip_bit(fixture.layout.slot_at(slot) + 900, 0);
    }
    let slots = fixture.layout.slot_at(0)..fixture.layout.end();
    fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(slots).times(1));
    assert_eq!(fixture.write(P, 2).await.expect("written"), Location::Hdd);
    fixture.sync().await;
    assert!(matches!(fixture.read(P).await, Ok(2)));
}

#[tokio::test(start_paused = true)]
async fn one_failed_home_write_of_a_discarded_page_does_not_stop_the_ring() {
    for errors in [1, u64::MAX] {
        let fixture = Fixture::new(8, SsdMode::ReadOnly, Duration::ZERO).await;
        let home = fixture.home_of(P);
        fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(home).times(errors));
        fixture.write(P, 1).await.expect_err("the home write fails");
        assert!(fixture.tier.discarded(page(P)));
        for no in 10..60 {
            fixture.write(no, 1).await.expect("the ring has room");
        }
        fixture.sync().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_home_write_is_mended_from_the_ring_when_its_place_is_wanted() {
    let fixture = Fixture::new(8, SsdMode::ReadOnly, Duration::ZERO).await;
    fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(fixture.home_of(P)).times(1));
    fixture.write(P, 1).await.expect_err("the home write fails");
    for no in 10..60 {
        fixture.write(no, 1).await.expect("the ring has room");
    }
    assert!(matches!(fixture.read(P).await, Ok(1)));
    // The repair has ended: the page can be written and discarded again.
    fixture.write(P, 2).await.expect("written");
    assert!(matches!(fixture.read(P).await, Ok(2)));
    assert!(fixture.tier.discarded(page(P)));
}

/// The home of page `P` cannot be written for some time, and the ring fills up behind its image. Returns
/// whether writes succeed afterwards.
async fn goes_on_after_a_home_that_could_not_be_repaired() -> bool {
    let fixture = Fixture::new(8, SsdMode::ReadOnly, Duration::ZERO).await;
    fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(fixture.home_of(P)));
    fixture.write(P, 1).await.expect_err("the home write fails");
    let mut failed = 0;
    for no in 10..60 {
        failed += u32::from(fixture.write(no, 1).await.is_err());
    }
    assert!(failed > 40, "its image is all that can repair the home: {failed} writes failed");
    for seed in 0..8 {
        let version = fixture.after_power_cut_and(seed, SimDevice::clear_faults).await.read(P).await;
        assert!(matches!(version, Ok(1)), "seed {seed}: {version:?}");
    }
    fixture.hdd.clear_faults();
    let mut written = true;
    for no in 10..60 {
        written &= fixture.write(no, 2).await.is_ok();
    }
    written && matches!(fixture.read(P).await, Ok(1)) && fixture.tier.flush().await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_home_that_cannot_be_mended_keeps_its_image_and_stops_the_ring_until_it_can() {
    assert!(goes_on_after_a_home_that_could_not_be_repaired().await);
}

/// Another cache device.
async fn other_cache(layout: Layout) -> NewCacheDevice {
    let device = Arc::new(SimDevice::new("other", 1 << 20, 3, &SimPower::new()));
    formatted(&device, layout).await;
    let policy = policy(if layout.slots > 0 { "lru2" } else { "none" }, layout);
    NewCacheDevice { device, layout, ring_on_hdd: false, policy, zone_percent: 50.0 }
}

#[tokio::test(start_paused = true)]
async fn a_ring_is_given_up_only_when_it_has_repaired_what_it_alone_can_repair() {
    for (errors, accept_loss) in [(1, false), (u64::MAX, false), (u64::MAX, true)] {
        let fixture = Fixture::new(8, SsdMode::ReadOnly, Duration::ZERO).await;
        fixture
            .hdd
            .inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(fixture.home_of(P)).times(errors));
        fixture.write(P, 1).await.expect_err("the home write fails");
        let ring_only = other_cache(Layout::ring_only(PageSize::MIN, 8)).await;
        let accepts = |_, _| true;
        let accepts_loss = accept_loss.then_some(&accepts as &(dyn Fn(PageId, Lsn) -> bool + Sync));
        let exchange = fixture.tier.exchange(ring_only, accepts_loss, |_| ready(Ok::<(), String>(())));
        let exchanged = timeout(LONG, exchange).await.expect("it ends");
        match (errors, accept_loss) {
            (1, _) => {
                exchanged.expect("exchanged");
                assert!(matches!(fixture.read(P).await, Ok(1)), "repaired");
                fixture.write(P, 2).await.expect("written");
            }
            (_, false) => {
                assert!(matches!(exchanged, Err(ExchangeError::Refusing { .. })), "{exchanged:?}");
            }
            (_, true) => drop(exchanged.expect("the loss was accepted")),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_whose_copy_waits_for_its_home_is_written_through_like_any_other() {
    let fixture = Fixture::new(0, SsdMode::WriteThrough, Duration::ZERO).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Hdd);
    let _ = fixture.tier.evicted(page(P), 1, image(P, 1).as_slice());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.tier.stats().dirty_pages, 1, "no flush has made the home durable");
    assert_eq!(fixture.write(P, 2).await.expect("written"), Location::Hdd);
    fixture.sync().await;
    assert!(matches!(fixture.read(P).await, Ok(2)));
}

#[tokio::test(start_paused = true)]
async fn an_ssd_that_a_read_finds_gone_is_degraded_and_one_bad_read_is_not_enough() {
    for (effect, state) in [(FaultEffect::Gone, SsdState::Degraded), (FaultEffect::Eio, SsdState::Active)] {
        let fixture = Fixture::new(8, SsdMode::WriteBack, Duration::ZERO).await;
        assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Ssd);
        fixture.sync().await;
        let slots = fixture.layout.slot_at(0)..fixture.layout.end();
        fixture.ssd.inject(Fault::new(effect).on(IoOp::Read).within(slots).times(1));
        assert!(matches!(fixture.read(P).await, Err(TierError::Device { .. })));
        assert_eq!(fixture.tier.ssd_state(), state);
    }
}

#[tokio::test(start_paused = true)]
async fn an_ssd_that_takes_no_ring_image_or_no_checkpoint_is_degraded() {
    for mode in [SsdMode::ReadOnly, SsdMode::WriteBack] {
        let fixture = Fixture::new(8, mode, Duration::ZERO).await;
        let area = match mode {
            SsdMode::ReadOnly => fixture.layout.ring_at(0)..fixture.layout.slot_at(0),
            _ => fixture.layout.map_at(0)..fixture.layout.map_at(2),
        };
        fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(area));
        for no in 0..200 {
            let _ = fixture.write(no, 1).await;
        }
        assert_eq!(fixture.tier.ssd_state(), SsdState::Degraded, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_exchange_waits_for_copies_on_their_way_and_one_given_up_stops_none() {
    for given_up in [false, true] {
        let fixture = Fixture::new(8, SsdMode::WriteThrough, Duration::ZERO).await;
        for no in [P, P + 1] {
            assert_eq!(fixture.write(no, 1).await.expect("written"), Location::Hdd);
        }
        let slots = fixture.layout.slot_at(0)..fixture.layout.end();
        let slow = Fault::new(FaultEffect::Slow(Duration::from_secs(5)));
        fixture.ssd.inject(slow.on(IoOp::Write).within(slots).times(1));
        let _ = fixture.tier.evicted(page(P), 1, image(P, 1).as_slice());
        let begun = Instant::now();
        let exchange =
            fixture.tier.exchange(other_cache(fixture.layout).await, None, |_| ready(Ok::<(), String>(())));
        let patience = if given_up { Duration::from_secs(1) } else { LONG };
        let exchanged = timeout(patience, exchange).await;
        if given_up {
            assert!(exchanged.is_err(), "a copy is on its way to the old SSD");
            sleep(Duration::from_secs(10)).await;
            assert_eq!(fixture.tier.location(page(P)), Location::Ssd, "it has arrived there");
        } else {
            exchanged.expect("it ends").expect("exchanged");
            assert!(begun.elapsed() >= Duration::from_secs(5));
            assert_eq!(fixture.tier.location(page(P)), Location::Hdd, "it was on the old SSD");
        }
        fixture.tier.validate().expect("sound slots");
        // The SSD in use takes copies.
        let _ = fixture.tier.evicted(page(P + 1), 1, image(P + 1, 1).as_slice());
        sleep(Duration::from_secs(1)).await;
        assert_eq!(fixture.tier.location(page(P + 1)), Location::Ssd);
    }
}

#[tokio::test(start_paused = true)]
async fn two_writes_of_a_page_reach_its_home_in_their_order() {
    let fixture = Fixture::new(8, SsdMode::ReadOnly, Duration::ZERO).await;
    let slow = Fault::new(FaultEffect::Slow(Duration::from_secs(5)));
    fixture.hdd.inject(slow.on(IoOp::Write).within(fixture.home_of(P)).times(1));
    let second = async {
        sleep(Duration::from_millis(1)).await;
        fixture.write(P, 2).await
    };
    let (first, second) = tokio::join!(fixture.write(P, 1), second);
    assert_eq!((first.expect("written"), second.expect("written")), (Location::Hdd, Location::Hdd));
    // From here on only the home itself determines the version.
    fixture.tier.flush_home().await.expect("flushed");
    assert!(matches!(fixture.read(P).await, Ok(2)));
}

#[tokio::test(start_paused = true)]
async fn a_damaged_copy_that_waits_for_its_home_is_read_from_there() {
    let fixture = Fixture::new(0, SsdMode::WriteThrough, Duration::ZERO).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Hdd);
    let _ = fixture.tier.evicted(page(P), 1, image(P, 1).as_slice());
    sleep(Duration::from_secs(1)).await;
    assert_eq!((fixture.tier.location(page(P)), fixture.tier.stats().dirty_pages), (Location::Ssd, 1));
    (0..fixture.layout.slots).for_each(|slot| fixture.ssd.flip_bit(fixture.layout.slot_at(slot) + 900, 0));
    assert!(matches!(fixture.read(P).await, Ok(1)));
    assert_eq!(fixture.tier.location(page(P)), Location::Hdd);
}

#[tokio::test(start_paused = true)]
async fn a_bad_copy_is_kept_while_the_home_is_bad_too() {
    for home_is_bad in [false, true] {
        let fixture = Fixture::new(8, SsdMode::WriteThrough, Duration::ZERO).await;
        assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Hdd);
        let _ = fixture.tier.evicted(page(P), 1, image(P, 1).as_slice());
        sleep(Duration::from_secs(1)).await;
        fixture.sync().await;
        let rot = |device: &SimDevice, at: u64| device.flip_bit(at + 900, 0);
        (0..fixture.layout.slots).for_each(|slot| rot(&fixture.ssd, fixture.layout.slot_at(slot)));
        if home_is_bad {
            rot(&fixture.hdd, fixture.home_of(P).start);
        }
        let mut found = Vec::new();
        for slot in 0..fixture.layout.slots {
            found.extend(fixture.tier.scrub_slot(slot, true).await);
        }
        assert_eq!(found.len(), 1);
        assert!(found[0].error.is_some());
        assert_eq!(found[0].repaired, !home_is_bad);
        assert_eq!(fixture.tier.location(page(P)), if home_is_bad { Location::Ssd } else { Location::Hdd });
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_being_drained_is_not_discarded_before_it_is_home() {
    let fixture = Fixture::new(8, SsdMode::WriteBack, Duration::from_millis(2)).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Ssd);
    fixture.sync().await;
    fixture.hdd.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(5))).on(IoOp::Write).times(1));
    let tier = Arc::clone(&fixture.tier);
    let drain = tokio::spawn(async move { tier.drain(None, None, None).await });
    sleep(Duration::from_secs(1)).await;
    assert!(!fixture.tier.discarded(page(P)), "a crash could tear its home, which the slot repairs");
    timeout(LONG, fixture.tier.settled(page(P))).await.expect("it ends");
    assert!(fixture.tier.discarded(page(P)));
    assert_eq!(drain.await.expect("drained").written, 1);
}

#[tokio::test(start_paused = true)]
async fn a_torn_home_is_mended_from_the_slot_that_backed_it_and_a_sound_one_is_not_written() {
    let fixture = Fixture::with_policy("doublewrite", 8, SsdMode::WriteBack, Duration::ZERO).await;
    fixture.write(P, 1).await.expect("written");
    fixture.sync().await;
    let whole = fixture.at_home(P);
    assert_eq!(whole[2000], 1);
    let mut compared = 0;
    for (seed, torn) in (0..16).flat_map(|seed| [(seed, false), (seed, true)]) {
        let home = fixture.home_of(P);
        let cut = fixture.after_power_cut_and(seed, |hdd| {
            hdd.implant(home.start, &whole);
            if torn {
                hdd.flip_bit(home.start + 900, 0);
            }
        });
        let cut = cut.await;
        assert!(cut.at_home(P) == whole, "seed {seed}: the home is torn still");
        assert_eq!(cut.tier.recovery().repaired, u64::from(torn), "seed {seed}");
        compared += 1;
    }
    assert_eq!(compared, 32);
}

#[tokio::test(start_paused = true)]
async fn a_page_whose_slot_backs_its_way_home_is_not_discarded_before_that_is_durable() {
    let fixture = Fixture::with_policy("doublewrite", 8, SsdMode::WriteBack, Duration::ZERO).await;
    fixture.write(P, 1).await.expect("written");
    assert!(!fixture.tier.discarded(page(P)), "a crash could tear its home, which the slot repairs");
    timeout(LONG, fixture.tier.settled(page(P))).await.expect("it ends");
    assert!(fixture.tier.discarded(page(P)));
}

#[tokio::test(start_paused = true)]
async fn a_space_is_forgotten_when_its_pages_are_home_whatever_goes_home_of_others() {
    for (space, waits) in [(SpaceId(1), true), (SpaceId(2), false)] {
        let fixture = Fixture::new(8, SsdMode::WriteBack, Duration::ZERO).await;
        assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Ssd);
        fixture.sync().await;
        let slots = fixture.layout.slot_at(0)..fixture.layout.end();
        let slow = Fault::new(FaultEffect::Slow(Duration::from_secs(5)));
        fixture.ssd.inject(slow.on(IoOp::Read).within(slots).times(1));
        let tier = Arc::clone(&fixture.tier);
        let drain = tokio::spawn(async move { tier.drain(None, None, None).await });
        sleep(Duration::from_secs(1)).await;
        let begun = Instant::now();
        timeout(LONG, fixture.tier.discard_space(space)).await.expect("it ends").expect("forgotten");
        assert_eq!(begun.elapsed() >= Duration::from_secs(4), waits, "{space:?}: {:?}", begun.elapsed());
        assert_eq!(drain.await.expect("drained").written, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_is_given_up_before_it_begins_writes_nothing() {
    let fixture = Fixture::new(8, SsdMode::WriteBack, Duration::ZERO).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Ssd);
    let report = fixture.tier.drain(Some(Duration::ZERO), None, None).await;
    assert_eq!((report.written, report.left), (0, 1));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(fixture.tier.stats().dirty_pages, 1);
}

#[tokio::test(start_paused = true)]
async fn a_drain_counts_pages_that_fail_among_those_that_are_left() {
    let fixture = Fixture::new(8, SsdMode::WriteBack, Duration::ZERO).await;
    // Not adjacent, since adjacent pages are written as one.
    for no in [P, P + 10] {
        assert_eq!(fixture.write(no, 1).await.expect("written"), Location::Ssd);
    }
    fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(fixture.home_of(P)));
    let told = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&told);
    let progress = move |p: DrainProgress| notes.lock().expect("told").push((p.written, p.left));
    let report = fixture.tier.drain(None, None, Some(Box::new(progress))).await;
    assert_eq!((report.written, report.left, report.failed.len()), (1, 1, 1));
    assert_eq!(*told.lock().expect("told"), [(0, 2), (1, 1), (1, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_recovery_counts_the_copies_that_newer_homes_make_obsolete() {
    let fixture = Fixture::new(8, SsdMode::WriteBack, Duration::ZERO).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Ssd);
    fixture.sync().await;
    let slots = fixture.layout.slot_at(0)..fixture.layout.end();
    fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(slots).times(1));
    assert_eq!(fixture.write(P, 2).await.expect("written"), Location::Hdd);
    fixture.sync().await;
    let again = fixture.after_power_cut(1).await;
    assert_eq!(again.tier.recovery().superseded, 1);
    assert!(matches!(again.read(P).await, Ok(2)));
}

#[tokio::test(start_paused = true)]
async fn a_drain_flushes_the_ssd_for_its_records_only_when_the_slots_are_durable() {
    for synced in [true, false] {
        let fixture = Fixture::new(8, SsdMode::WriteBack, Duration::ZERO).await;
        assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Ssd);
        if synced {
            fixture.sync().await;
        }
        let flush = Duration::from_secs(5);
        fixture.ssd.inject(Fault::new(FaultEffect::Slow(flush)).on(IoOp::Flush));
        let begun = Instant::now();
        assert_eq!(fixture.tier.drain(None, None, None).await.written, 1);
        assert_eq!(begun.elapsed(), if synced { flush } else { 2 * flush });
    }
}

/// What an engine keeps its log for: a page that the HDD refuses to keep whole waits in the ring, with the
/// oldest change that the HDD may lack. With `before`, its slot had another.
#[tokio::test(start_paused = true)]
async fn a_page_that_the_hdd_refuses_needs_the_log_until_it_is_home() {
    for (policy, mode, before) in [
        ("lru2", SsdMode::ReadOnly, None),
        ("lru2", SsdMode::WriteBack, Some(Lsn(5))),
        ("doublewrite", SsdMode::WriteBack, None),
    ] {
        let power = SimPower::new();
        let [hdd, ssd] = ["hdd", "ssd"].map(|name| SimDevice::new(name, 1 << 20, 1, &power));
        let (hdd, ssd, layout) = (Arc::new(hdd.with_atomic_writes(PAGE)), Arc::new(ssd), layout(8));
        formatted(&ssd, layout).await;
        let fixture = Fixture::open(hdd, ssd, layout, mode, 1, policy).await;
        let write = async |version, recovery_lsn| {
            let change = DirtyPage { recovery_lsn, ..dirty(P, version) };
            let done = |written: WrittenPage| assert!(written.result.is_ok(), "{written:?}");
            let written = fixture.tier.write(vec![change], IoClass::Clean, &done);
            timeout(LONG, written).await.expect("written at last");
        };
        if let Some(lsn) = before {
            write(1, lsn).await;
            // A slot write fails: from now on changed pages go home.
            let slots = layout.slot_at(0)..layout.end();
            fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(slots).times(1));
        }
        fixture.hdd.inject(Fault::new(FaultEffect::NotWhole).on(IoOp::Write));
        write(2, Lsn(9)).await;
        assert_eq!(fixture.tier.stats().home_writes, HomeWrites::Ringed, "{policy}");
        assert_eq!(fixture.tier.oldest_lsn(), before.or(Some(Lsn(9))), "{policy}, {before:?}");
        fixture.tier.flush_home().await.expect("flushed");
        assert_eq!(fixture.tier.oldest_lsn(), None, "{policy}, {before:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_hdd_is_flushed_before_the_ring_is_full() {
    let fixture = Fixture::new(8, SsdMode::ReadOnly, Duration::ZERO).await;
    for no in 10..17 {
        fixture.write(no, 1).await.expect("written");
    }
    sleep(Duration::from_secs(10)).await;
    assert!(fixture.hdd.unflushed() < 7, "the next writer but one would have to wait for a flush");
}
