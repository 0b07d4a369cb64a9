//! How home writes end: what was claimed for them is let go of, what stopped them is reported, and homes that
//! they left torn are repaired and counted.

use crate::common::{LONG, PAGE, formatted, image, layout, page, params, read, write};
use pagetier_bufpool::{Tier, TierError};
use pagetier_devio::IoOp;
use pagetier_page::{Lsn, PageSize, SpaceId};
use pagetier_policy::Location;
use pagetier_ssdcache::{Layout, OpenParams, SsdMode, SsdState, SsdTier};
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The page under test.
const P: u32 = 3;

struct Fixture {
    tier: Arc<SsdTier>,
    hdd: Arc<SimDevice>,
    ssd: Arc<SimDevice>,
    layout: Layout,
    policy: &'static str,
}

impl Fixture {
    /// A new store.
    async fn new(policy: &'static str, ring_pages: u32, mode: SsdMode) -> Self {
        let power = SimPower::new();
        let device = |name, seed| Arc::new(SimDevice::new(name, 1 << 20, seed, &power));
        let (hdd, ssd, layout) = (device("hdd", 1), device("ssd", 2), layout(ring_pages));
        formatted(&ssd, layout).await;
        let tier = SsdTier::open(OpenParams { mode, ..params(&hdd, &ssd, layout, policy) });
        Self { tier: Arc::new(tier.await.expect("it opens")), hdd, ssd, layout, policy }
    }

    async fn write(&self, no: u32, version: u8) -> Result<Location, TierError> {
        write(&self.tier, no, version).await
    }

    async fn sync(&self) {
        timeout(LONG, self.tier.flush()).await.expect("flushed at last").expect("flushed");
    }

    /// The next slot write fails, so its page goes home, and changed pages from then on.
    fn fail_a_slot_write(&self) {
        let slots = self.layout.slot_at(0)..self.layout.end();
        self.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(slots).times(1));
    }

    /// The store reopened, with the home of `P` as it is, or torn: one bit of it differs. Returns how many
    /// homes the recovery repaired.
    async fn repaired_after(&self, closed: bool, torn: bool) -> u64 {
        let (home, power) = (u64::from(P) * PAGE as u64, SimPower::new());
        let whole = self.hdd.snapshot()[home as usize..home as usize + PAGE].to_vec();
        let after = |device: &SimDevice| match closed {
            true => device.after_kill(1, &power),
            false => device.after_power_cut(1, &power),
        };
        let (hdd, ssd) = (Arc::new(after(&self.hdd)), Arc::new(after(&self.ssd)));
        hdd.implant(home, &whole);
        if torn {
            hdd.flip_bit(home + 900, 0);
        }
        let params = params(&hdd, &ssd, self.layout, self.policy);
        let again = SsdTier::open(OpenParams { epoch: 2, closed, ..params }).await.expect("it opens");
        assert!(hdd.snapshot()[home as usize..home as usize + PAGE] == whole, "it is torn still");
        again.recovery().repaired
    }
}

#[tokio::test(start_paused = true)]
async fn a_home_that_is_repaired_from_the_ring_is_counted() {
    let fixture = Fixture::new("lru2", 8, SsdMode::ReadOnly).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Hdd);
    fixture.sync().await;
    assert_eq!(fixture.repaired_after(false, true).await, 1);
}

/// Its slot, from which the newer version was written back, can no longer be read: an error is better than
/// the version before.
#[tokio::test(start_paused = true)]
async fn an_image_in_the_ring_repairs_no_home_to_which_a_newer_version_was_written_back() {
    let fixture = Fixture::new("lru2", 8, SsdMode::WriteBack).await;
    let limit = fixture.tier.at_most(SsdMode::ReadOnly);
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Hdd);
    drop(limit);
    assert_eq!(fixture.write(P, 2).await.expect("written"), Location::Ssd);
    assert_eq!(fixture.tier.drain(None, None, None).await.written, 1);
    for (slots_rot, reads_as) in [(false, Some(2)), (true, None)] {
        let power = SimPower::new();
        let [hdd, ssd] = [&fixture.hdd, &fixture.ssd].map(|device| Arc::new(device.after_kill(1, &power)));
        hdd.flip_bit(u64::from(P) * PAGE as u64 + 900, 0);
        if slots_rot {
            (0..fixture.layout.slots).for_each(|slot| ssd.flip_bit(fixture.layout.slot_at(slot) + 900, 0));
        }
        let params = params(&hdd, &ssd, fixture.layout, fixture.policy);
        let again = SsdTier::open(OpenParams { epoch: 2, ..params }).await.expect("it opens");
        assert_eq!(read(&again, P).await.ok(), reads_as);
    }
}

/// After a crash it is unknown whether a flush covered what the recovery relies on.
#[tokio::test(start_paused = true)]
async fn a_recovery_rewrites_headers_journal_and_ring_as_far_as_there_are_any() {
    let whole = layout(8);
    let headers_and_marks = 2 * 3;
    let parts = headers_and_marks + u64::from(whole.journal_blocks + whole.ring_pages);
    for (layout, parts) in [(whole, parts), (Layout::ring_only(PageSize::MIN, 8), 8)] {
        let power = SimPower::new();
        let device = |name, seed| Arc::new(SimDevice::new(name, 1 << 20, seed, &power));
        let (hdd, ssd) = (device("hdd", 1), device("ssd", 2));
        formatted(&ssd, layout).await;
        let opened = SsdTier::open(params(&hdd, &ssd, layout, "lru2")).await.expect("it opens");
        assert_eq!(opened.recovery().rewritten, parts, "{layout:?}");
    }
}

/// A crash has undone the growth of the HDD.
#[tokio::test(start_paused = true)]
async fn a_home_beyond_the_end_of_the_hdd_is_repaired() {
    let fixture = Fixture::new("lru2", 8, SsdMode::ReadOnly).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Hdd);
    fixture.sync().await;
    let power = SimPower::new();
    let hdd = Arc::new(SimDevice::new("hdd", 0, 1, &power));
    let ssd = Arc::new(fixture.ssd.after_power_cut(1, &power));
    let params = params(&hdd, &ssd, fixture.layout, fixture.policy);
    let again = SsdTier::open(OpenParams { epoch: 2, ..params }).await.expect("it opens");
    assert_eq!(again.recovery().repaired, 1);
    assert!(matches!(read(&again, P).await, Ok(1)));
}

#[tokio::test(start_paused = true)]
async fn a_home_that_is_as_its_image_in_the_ring_is_not_repaired() {
    let fixture = Fixture::new("lru2", 8, SsdMode::ReadOnly).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Hdd);
    fixture.sync().await;
    assert_eq!(fixture.repaired_after(false, false).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_home_that_rotted_while_the_store_was_closed_is_repaired_from_the_slot_written_back_last() {
    let fixture = Fixture::new("lru2", 8, SsdMode::WriteBack).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Ssd);
    assert_eq!(fixture.tier.drain(None, None, None).await.written, 1);
    timeout(LONG, fixture.tier.shutdown()).await.expect("it ends").expect("closed");
    assert_eq!(fixture.repaired_after(true, true).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_page_whose_slot_could_not_be_written_can_be_discarded() {
    let fixture = Fixture::new("doublewrite", 8, SsdMode::WriteBack).await;
    fixture.fail_a_slot_write();
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Hdd);
    timeout(LONG, fixture.tier.settled(page(P))).await.expect("nothing needs a copy that is not there");
    assert!(fixture.tier.discarded(page(P)));
    timeout(LONG, fixture.tier.discard_space(SpaceId(1))).await.expect("it ends").expect("discarded");
    fixture.tier.validate().expect("sound");
}

#[tokio::test(start_paused = true)]
async fn a_page_that_went_home_over_its_only_copy_can_go_home_again() {
    let fixture = Fixture::new("lru2", 0, SsdMode::WriteBack).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Ssd);
    fixture.fail_a_slot_write();
    for version in 2..4 {
        assert_eq!(fixture.write(P, version).await.expect("written"), Location::Hdd);
    }
    assert!(matches!(read(&fixture.tier, P).await, Ok(3)));
    timeout(LONG, fixture.tier.discard_space(SpaceId(1))).await.expect("it ends").expect("discarded");
}

/// Without a record there is nothing to flush on the SSD, and a flush that failed would stop all writes.
#[tokio::test(start_paused = true)]
async fn a_page_that_could_not_go_home_over_its_only_copy_leaves_the_ssd_alone() {
    let fixture = Fixture::new("lru2", 0, SsdMode::WriteBack).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Ssd);
    fixture.sync().await;
    fixture.fail_a_slot_write();
    fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).times(1));
    fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
    fixture.write(P, 2).await.expect_err("the home write fails");
    assert_eq!(fixture.tier.stats().refusing, None);
    assert!(matches!(read(&fixture.tier, P).await, Ok(1)), "its copy counts");
}

#[tokio::test(start_paused = true)]
async fn a_drain_says_what_stopped_it() {
    let fixture = Fixture::new("lru2", 8, SsdMode::WriteBack).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Ssd);
    fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
    let report = fixture.tier.drain(None, None, None).await;
    assert_eq!((report.written, report.left), (0, 1), "without a flush no page counts as home");
    let stopped_by = report.stopped_by.expect("the flush failed");
    assert_eq!((&*stopped_by.device, stopped_by.op), ("hdd", IoOp::Flush));
}

/// Its slot cannot be held meanwhile. Reads end by themselves, and the drain looks again.
#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_the_read_of_a_copy() {
    let fixture = Fixture::new("lru2", 8, SsdMode::WriteBack).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Ssd);
    fixture.ssd.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(1))).on(IoOp::Read).times(1));
    let drain = async {
        sleep(Duration::from_millis(1)).await;
        fixture.tier.drain(None, None, None).await.written
    };
    let (found, written) = tokio::join!(read(&fixture.tier, P), drain);
    assert_eq!((found.ok(), written), (Some(1), 1));
}

/// Their older changes still count while copies of newer versions replace each other.
#[tokio::test(start_paused = true)]
async fn a_drain_up_to_a_change_ends_although_its_pages_are_written_again_and_again() {
    let fixture = Fixture::new("lru2", 8, SsdMode::WriteBack).await;
    for no in 0..8 {
        assert_eq!(fixture.write(no, 1).await.expect("written"), Location::Ssd);
    }
    fixture.hdd.inject(Fault::new(FaultEffect::Slow(Duration::from_millis(50))).on(IoOp::Write));
    let drain = timeout(LONG, fixture.tier.drain(None, Some((Lsn(0), u64::MAX)), None));
    let writes = async {
        for version in (2..200).cycle() {
            for no in 0..8 {
                fixture.write(no, version).await.expect("written");
            }
            sleep(Duration::from_millis(1)).await;
        }
    };
    let report = tokio::select! {
        report = drain => report.expect("it ends"),
        () = writes => unreachable!(),
    };
    assert!(report.written >= 8 && report.failed.is_empty(), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_is_given_up_ends_after_its_current_batch() {
    let fixture = Fixture::new("lru2", 8, SsdMode::WriteBack).await;
    for no in 0..70 {
        assert_eq!(fixture.write(no, 1).await.expect("written"), Location::Ssd);
    }
    fixture.hdd.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(5))).on(IoOp::Write));
    let report = fixture.tier.drain(Some(Duration::from_secs(1)), None, None).await;
    assert_eq!((report.written, report.left), (0, 70));
    sleep(LONG).await;
    let left = fixture.tier.stats().dirty_pages;
    assert!((30..70).contains(&left), "{left} pages are left: it wrote none, or more than a batch");
}

/// The pool limits how many of the pages that it writes wait for the disk, if others need not.
#[tokio::test(start_paused = true)]
async fn a_page_goes_home_alone_only_while_others_go_to_the_ssd() {
    let fixture = Fixture::new("lru2", 8, SsdMode::WriteBack).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Ssd);
    let goes_home = |no| fixture.tier.goes_home(page(no));
    assert_eq!((goes_home(P), goes_home(P + 1)), (false, true));
    for mode in [SsdMode::WriteThrough, SsdMode::ReadOnly] {
        let limit = fixture.tier.at_most(mode);
        assert_eq!((goes_home(P), goes_home(P + 1)), (false, false), "{mode:?}: all wait for the disk");
        drop(limit);
    }
    assert!(goes_home(P + 1));
}

/// What it holds is looked at by a readmission alone.
#[tokio::test(start_paused = true)]
async fn an_ssd_that_failed_gets_no_checkpoint_for_discarded_pages() {
    let fixture = Fixture::new("lru2", 8, SsdMode::WriteBack).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Ssd);
    fixture.sync().await;
    fixture.fail_a_slot_write();
    fixture.write(P + 1, 1).await.expect("written");
    assert!(fixture.tier.discarded(page(P)));
    sleep(Duration::from_secs(10)).await;
    let ops = fixture.ssd.ops();
    assert!(!fixture.tier.finalize_discards().await, "its old version may come back");
    assert_eq!(fixture.ssd.ops(), ops);
}

/// The caller learns that the discards are not final; the failure of the SSD concerns all requests.
#[tokio::test(start_paused = true)]
async fn an_ssd_that_takes_no_checkpoint_for_discarded_pages_has_failed() {
    let fixture = Fixture::new("lru2", 8, SsdMode::WriteBack).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Ssd);
    fixture.sync().await;
    sleep(Duration::from_secs(10)).await;
    assert!(fixture.tier.discarded(page(P)));
    fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).times(1));
    assert!(!fixture.tier.finalize_discards().await);
    assert_eq!(fixture.tier.ssd_state(), SsdState::Degraded);
}

/// It waits for a checkpoint, which a slow SSD holds up. The HDD takes its page at once.
#[tokio::test(start_paused = true)]
async fn a_write_that_waits_for_a_slot_goes_home_once_the_mode_says_so() {
    let fixture = Fixture::new("mv-fifo", 8, SsdMode::WriteBack).await;
    let maps = 0..fixture.layout.map_at(2);
    fixture.ssd.inject(Fault::new(FaultEffect::Slow(LONG)).on(IoOp::Write).within(maps));
    let mut numbers = 0..;
    let waiting = loop {
        let (tier, no) = (Arc::clone(&fixture.tier), numbers.next().expect("endless"));
        let mut writing = tokio::spawn(async move { write(&tier, no, 1).await });
        if timeout(LONG / 4, &mut writing).await.is_err() {
            break writing;
        }
    };
    fixture.tier.set_mode(SsdMode::ReadOnly);
    let written = timeout(LONG / 4, waiting).await.expect("it is woken").expect("it ends");
    assert_eq!(written.expect("written"), Location::Hdd);
}

/// The last checkpoint would not name it.
#[tokio::test(start_paused = true)]
async fn a_copy_on_its_way_is_there_after_a_shutdown() {
    let fixture = Fixture::new("lru2", 8, SsdMode::WriteBack).await;
    let limit = fixture.tier.at_most(SsdMode::ReadOnly);
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Hdd);
    drop(limit);
    let slots = fixture.layout.slot_at(0)..fixture.layout.end();
    let slow = Fault::new(FaultEffect::Slow(Duration::from_secs(10))).on(IoOp::Write);
    fixture.ssd.inject(slow.within(slots).times(1));
    let displaced = fixture.tier.evicted(page(P), 1, image(P, 1).as_slice());
    assert_eq!(displaced.0, None, "there are free slots");
    timeout(LONG, fixture.tier.shutdown()).await.expect("it ends").expect("closed");
    let power = SimPower::new();
    let [hdd, ssd] = [&fixture.hdd, &fixture.ssd].map(|device| Arc::new(device.after_kill(1, &power)));
    let params = params(&hdd, &ssd, fixture.layout, fixture.policy);
    let again = SsdTier::open(OpenParams { epoch: 2, closed: true, ..params }).await.expect("it opens");
    assert_eq!(again.location(page(P)), Location::Ssd);
}

/// The bad copy that was read is not what counts by then.
#[tokio::test(start_paused = true)]
async fn a_scrub_of_a_copy_that_is_replaced_meanwhile_finds_nothing() {
    let fixture = Fixture::new("lru2", 8, SsdMode::WriteBack).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Ssd);
    let slots = 0..fixture.layout.slots;
    slots.clone().for_each(|slot| fixture.ssd.flip_bit(fixture.layout.slot_at(slot) + 900, 0));
    fixture.ssd.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(10))).on(IoOp::Read));
    let scrub = async {
        let mut found = Vec::new();
        for slot in slots {
            found.extend(fixture.tier.scrub_slot(slot, true).await);
        }
        found
    };
    let rewrite = async {
        sleep(Duration::from_secs(1)).await;
        fixture.write(P, 2).await.expect("written")
    };
    let (found, written) = tokio::join!(scrub, rewrite);
    assert_eq!(written, Location::Ssd);
    assert!(!found.is_empty() && found.iter().all(|checked| checked.error.is_none()), "{found:?}");
}

/// The copy is of the version that the HDD has, and the slot can be used for another page at once.
#[tokio::test(start_paused = true)]
async fn a_change_in_memory_gives_up_the_copy_that_is_as_the_home() {
    let fixture = Fixture::new("lru2", 8, SsdMode::WriteBack).await;
    assert_eq!(fixture.write(P, 1).await.expect("written"), Location::Ssd);
    assert!(!fixture.tier.dirtied(page(P), 1), "the only copy stays");
    assert_eq!(fixture.tier.drain(None, None, None).await.written, 1);
    assert!(fixture.tier.dirtied(page(P), 1));
    assert!(!fixture.tier.dirtied(page(P), 1), "it has none any more");
}

/// A backup would take the version that the page shows now for the newest.
#[tokio::test(start_paused = true)]
async fn an_image_in_the_ring_may_bring_back_a_page_that_was_discarded() {
    let fixture = Fixture::new("lru2", 8, SsdMode::ReadOnly).await;
    assert!(fixture.tier.finalize_discards().await);
    fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).times(1));
    fixture.write(P, 1).await.expect_err("the home write fails");
    assert!(fixture.tier.discarded(page(P)));
    assert!(!fixture.tier.finalize_discards().await);
}

/// Otherwise each read of such a page would try the SSD first.
#[tokio::test(start_paused = true)]
async fn after_a_close_copies_that_cannot_be_read_are_given_up_if_they_are_as_their_homes() {
    let fixture = Fixture::new("lru2", 8, SsdMode::WriteBack).await;
    for no in 0..fixture.layout.slots {
        fixture.write(no, 1).await.expect("written");
    }
    fixture.tier.drain(None, None, None).await;
    timeout(LONG, fixture.tier.shutdown()).await.expect("it ends").expect("closed");
    let copies = async |unreadable: bool| {
        let power = SimPower::new();
        let [hdd, ssd] = [&fixture.hdd, &fixture.ssd].map(|device| Arc::new(device.after_kill(1, &power)));
        if unreadable {
            let slots = fixture.layout.slot_at(0)..fixture.layout.end();
            ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Read).within(slots));
        }
        let params = params(&hdd, &ssd, fixture.layout, fixture.policy);
        let again = SsdTier::open(OpenParams { epoch: 2, closed: true, ..params }).await.expect("it opens");
        let is_copied = |no: &u32| again.location(page(*no)) == Location::Ssd;
        (0..fixture.layout.slots).filter(is_copied).count()
    };
    // The open looks at the slots of the zone alone.
    assert!(copies(true).await < copies(false).await);
}
