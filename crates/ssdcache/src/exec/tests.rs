//! The state while a write is under way, and after a future is dropped or a batch has nothing left to write.

/// The harness of the integration tests.
#[path = "../../tests/common/mod.rs"]
mod common;

use crate::exec::io::single::{ATTEMPTS_MAX, read_agreed};
use crate::exec::open::{OpenParams, open};
use crate::exec::write::write_home::{HomeBound, Outcome};
use crate::exec::{Core, Homes, RefusedBy, Refusing};
use crate::format::journal::Backing;
use crate::format::layout::Layout;
use crate::protocol::slots::Located;
use crate::remember::Unverified;
use common::{LONG, dirty, formatted, image, layout, page, params, seed};
use pagetier_bufpool::{TierError, WrittenPage};
use pagetier_devio::{DeviceError, DeviceErrorKind, IoClass, IoOp, SharedDevice};
use pagetier_page::{Flags, Lsn, PageId, Stamp};
use pagetier_policy::{Access, Location};
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// A tier without its maintenance, over a new SSD.
async fn core(policy: &str) -> (Arc<Core>, Arc<SimDevice>) {
    core_with(policy, layout(8), None).await
}

async fn core_with(
    policy: &str,
    layout: Layout,
    homes: Option<Arc<dyn Homes>>,
) -> (Arc<Core>, Arc<SimDevice>) {
    let power = SimPower::new();
    let device = |name, seed| Arc::new(SimDevice::new(name, 1 << 20, seed, &power));
    let (hdd, ssd) = (device("hdd", 1), device("ssd", 2));
    formatted(&ssd, layout).await;
    let mut params = params(&hdd, &ssd, layout, policy);
    params.homes = homes.unwrap_or(params.homes);
    let opened = open(params);
    (Arc::new(opened.await.expect("it opens").0), ssd)
}

impl Core {
    async fn write_one(self: &Arc<Self>, no: u32) {
        timeout(LONG, self.write_patiently(no)).await.expect("it ends");
    }

    /// As `write_one`, however long it takes.
    async fn write_patiently(self: &Arc<Self>, no: u32) {
        let done = |written: WrittenPage| assert!(written.result.is_ok(), "{written:?}");
        self.write_dirty(vec![dirty(no, 0)], IoClass::Clean, &done).await;
    }
}

#[tokio::test(start_paused = true)]
async fn second_chances_that_are_dropped_end_and_their_new_slots_are_not_used_again() {
    let (core, ssd) = core("mv-fifo-gsc").await;
    let mut dropped = false;
    let bad = |core: &Core| core.state.lock().slots.count_bad();
    for no in 0..2000 {
        ssd.inject(Fault::new(FaultEffect::Slow(LONG)).on(IoOp::Write).times(1));
        dropped = timeout(LONG / 2, core.give_second_chances()).await.is_err();
        ssd.clear_faults();
        if dropped {
            break;
        }
        core.write_one(no).await;
        core.state.lock().slots.note_read(page(no), Some(Location::Ssd), Access::Random, core.now());
        while core.state.lock().slots.map_work(false, core.now()).is_some() {
            core.checkpoint().await.expect("written");
            core.flush_ssd().await.expect("flushed");
        }
        let now = core.now();
        let batch = core.state.lock().begin_write_back(32, now);
        core.copy_home(batch, IoClass::WriteBack).await.result.expect("written back");
    }
    assert!(dropped, "nothing got a second chance");
    assert!(bad(&core) > 0, "the slot of a dropped write may be written at any time");
    let mut state = core.state.lock();
    state.slots.validate().expect("sound slots");
    assert_eq!(state.slots.readers(), 0, "no slot is held");
    for no in state.slots.copies() {
        assert!(matches!(state.slots.begin_read(no), Located::Slot { .. }), "the old copy counts");
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_whose_pages_are_all_superseded_wakes_those_that_wait_for_them() {
    let (core, _) = core("doublewrite").await;
    core.write_one(1).await;
    core.flush_hdd().await.expect("flushed");
    // A version that the page's slot does not hold.
    let mut image = image(1, 0);
    pagetier_page::seal(seed(), image.as_mut_slice(), Stamp::from_bits(5), Flags::NONE);
    core.state.lock().home.plan_appended(page(1), Stamp::from_bits(5));
    let waiting = Arc::clone(&core);
    let waiter = tokio::spawn(async move { waiting.when(|state| !state.home.must_keep_copy(page(1))).await });
    tokio::task::yield_now().await;
    let each = |_, _, outcome| {
        assert!(matches!(outcome, Outcome::Superseded), "{outcome:?}");
        core.state.lock().home.cancel_appended(page(1), Stamp::from_bits(5));
    };
    let pages = vec![HomeBound::new(page(1), image, Lsn(0))];
    core.write_home(Backing::Appended, pages, IoClass::Clean, &each).await;
    timeout(LONG, waiter).await.expect("it is woken").expect("it ends");
}

/// Otherwise the write would wait for the slot's page to be written home, and the slot has none any more.
#[tokio::test(start_paused = true)]
async fn a_write_that_waits_for_the_slot_of_a_discarded_page_is_woken() {
    let (core, _) = core("mv-fifo").await;
    let wait = || core.state.lock().slots.map_work(false, core.now()).is_none();
    let mut next = 0;
    let writing = loop {
        let (writer, no) = (Arc::clone(&core), next);
        let mut writing = tokio::spawn(async move { writer.write_patiently(no).await });
        match timeout(LONG, &mut writing).await {
            Ok(ended) => ended.expect("written"),
            Err(_) if wait() => break writing,
            Err(_) => {
                while !wait() {
                    core.checkpoint().await.expect("written");
                    core.flush_ssd().await.expect("flushed");
                }
                writing.await.expect("written");
            }
        }
        next += 1;
    };
    let before: Vec<u32> = (0..next).filter(|no| core.state.lock().slots.is_only_copy(page(*no))).collect();
    assert!(before.contains(&0), "the front has reached the slot of the first page, which is not home");
    while timeout(LONG, core.wake.slots.notified()).await.is_ok() {}
    assert!(before.into_iter().all(|no| core.discarded(page(no))), "no home write is in flight");
    // The slots can be written after a checkpoint: the write asks for it.
    timeout(LONG, core.wake.slots.notified()).await.expect("it is woken");
    core.checkpoint().await.expect("written");
    timeout(LONG, writing).await.expect("it goes on").expect("written");
}

/// A write-back would make the slot clean, and the front could give it away while the home write is under way
/// that it backs (I4).
#[tokio::test(start_paused = true)]
async fn a_slot_is_kept_for_its_pages_home_write_before_that_begins() {
    let (core, _) = core("doublewrite").await;
    // Without room in the journal no home write begins.
    let mut others = 100..;
    while core.state.lock().home.fits(Backing::Appended, 1).is_ok() {
        let version = (page(others.next().expect("endless")), Stamp::from_bits(1));
        core.state.lock().home.begin(Backing::WriteBack, vec![version], version.1, None);
    }
    let writer = Arc::clone(&core);
    let writing = tokio::spawn(async move { writer.write_one(1).await });
    sleep(Duration::from_secs(1)).await;
    {
        let state = core.state.lock();
        assert!(state.slots.is_only_copy(page(1)), "the slot is written");
        assert!(!state.home.is_writing(page(1)), "the home write has not begun");
        assert!(state.home.must_keep_copy(page(1)));
    }
    writing.abort();
}

/// A flush of the HDD has failed, and its note is not written yet.
#[tokio::test(start_paused = true)]
async fn a_page_that_may_not_go_home_over_its_only_copy_is_not_left_on_its_way() {
    let (core, ssd) = core_with("lru2", layout(0), None).await;
    core.write_one(1).await;
    // A slot write fails: from now on changed pages go home.
    let slots = layout(0).slot_at(0)..layout(0).end();
    ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(slots).times(1));
    let (device, kind) = ("hdd".into(), DeviceErrorKind::Gone);
    core.unflushed.fail(&DeviceError { device, op: IoOp::Flush, offset: 0, len: 0, kind });
    let done = |written: WrittenPage| {
        assert!(matches!(written.result, Err(TierError::Refusing { .. })), "{written:?}");
    };
    timeout(LONG, core.write_dirty(vec![dirty(1, 1)], IoClass::Clean, &done)).await.expect("it ends");
    let state = core.state.lock();
    assert!(state.slots.is_only_copy(page(1)), "its copy counts");
    assert_eq!(state.home.pages_with(|claims| claims.writing), 0, "a drop of its space would wait for ever");
}

#[tokio::test(start_paused = true)]
async fn an_exchange_waits_for_the_reads_of_slots() {
    let (core, _) = core("lru2").await;
    core.write_one(1).await;
    let located = core.state.lock().slots.begin_read(page(1));
    let Located::Slot { slot, .. } = located else { panic!("{located:?}") };
    let quiet = core.quiesce().await;
    assert!(timeout(LONG, quiet.vacant()).await.is_err(), "a slot is being read");
    core.state.lock().slots.end_read(slot);
    drop(timeout(LONG, quiet.vacant()).await.expect("none is being read"));
}

/// Homes without a place for any page.
struct Homeless {
    given_up: bool,
}

impl Homes for Homeless {
    fn offset(&self, _: PageId) -> Option<u64> {
        None
    }

    fn is_given_up(&self, _: PageId) -> bool {
        self.given_up
    }
}

/// A page without a home is dropped only if it was given up. Otherwise its write fails, whether it comes from
/// the pool or from its slot, which keeps the only copy.
#[tokio::test(start_paused = true)]
async fn a_page_that_lost_its_home_is_not_dropped() {
    for given_up in [false, true] {
        let homes: Arc<dyn Homes> = Arc::new(Homeless { given_up });
        let (core, _) = core_with("lru2", layout(8), Some(Arc::clone(&homes))).await;
        core.write_one(1).await;
        let batch = vec![core.state.lock().slots.hold_copy(page(1)).expect("a copy")];
        let copied = core.copy_home(batch, IoClass::WriteBack).await;
        copied.result.expect("flushed");
        let failed: Vec<_> = copied.failed.into_iter().map(|(page, _)| page).collect();
        assert_eq!(failed, if given_up { vec![] } else { vec![page(1)] });
        assert_eq!(core.state.lock().slots.is_only_copy(page(1)), !given_up);

        let (core, _) = core_with("none", layout(8), Some(homes)).await;
        let done = |written: WrittenPage| match written.result {
            Ok(_) => assert!(given_up),
            Err(error) => assert!(!given_up && matches!(error, TierError::NoSuchPage { .. }), "{error}"),
        };
        timeout(LONG, core.write_dirty(vec![dirty(2, 0)], IoClass::Clean, &done)).await.expect("it ends");
    }
}

/// The note of a failed flush outlives a clean close: another one may not have written what that one lost.
#[tokio::test]
async fn after_a_close_only_what_the_manifest_notes_is_unverified() {
    let power = SimPower::new();
    let device = |name, seed| Arc::new(SimDevice::new(name, 1 << 20, seed, &power));
    let params = params(&device("hdd", 1), &device("ssd", 2), layout(8), "lru2");
    let closed = OpenParams { closed: true, ..params };
    for (hdd, ssd) in [(false, false), (true, false), (false, true)] {
        let noted = Unverified { hdd, ssd, homes: Vec::new() };
        assert_eq!(closed.unverified(&noted), noted);
    }
}

/// An SSD that spoils every transfer must not hold up an open for ever.
#[tokio::test(start_paused = true)]
async fn what_reads_otherwise_each_time_is_given_up_after_some_reads() {
    let ssd = Arc::new(SimDevice::new("ssd", 1 << 20, 1, &SimPower::new()));
    ssd.inject(Fault::new(FaultEffect::BitFlip).on(IoOp::Read));
    let device = Arc::clone(&ssd) as SharedDevice;
    let (_, reads) = read_agreed(&device, 0, 1 << 16, &|_| false).await.expect("read");
    assert_eq!(reads, ATTEMPTS_MAX as u64);
}

#[test]
fn a_full_journal_hides_no_failure_of_the_ssd_and_that_none_of_the_hdd() {
    let refusing = Refusing::default();
    let causes = [
        ("map", RefusedBy::Map),
        ("ssd", RefusedBy::Ssd),
        ("again", RefusedBy::Ssd),
        ("hdd", RefusedBy::Hdd),
    ];
    let then = causes.map(|(cause, by)| (refusing.set(cause, by), refusing.cause().unwrap().to_string()));
    let then = then.each_ref().map(|(first, cause)| (*first, cause.as_str()));
    assert_eq!(then, [(true, "map"), (false, "ssd"), (false, "ssd"), (false, "hdd")]);
    refusing.set("map", RefusedBy::Map);
    refusing.clear_ssd();
    assert_eq!(refusing.by_hdd().as_deref(), Some("hdd"));
}
