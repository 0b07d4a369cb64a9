//! The loss of an SSD is reported exactly and durably, wherever a crash or a cancelled call comes, until it
//! is acknowledged.

use crate::fixture::{self, Fixture, PAGES, expect_all, grown, polled, read, synced, write, write_all};
use pagetier::{
    Builder, DrainOptions, Error, OpenError, PageId, PageStore, SpaceId, SsdLoss, SsdMode, errors::PoolError,
    stats::SsdState,
};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Shorter than most device operations.
const SHORT: Duration = Duration::from_micros(150);

/// Checks that every page older than `synced` is listed; returns their number.
async fn expect_listed(store: &PageStore, space: SpaceId, synced: u32, when: &str) -> u32 {
    let loss = store.ssd().loss();
    let mut missing = 0;
    for no in 0..PAGES {
        let listed = loss.as_ref().is_some_and(|loss| loss.contains(PageId::new(space, no)));
        match read(store, space, no).await {
            Ok(version) if version >= synced => {}
            found if listed => {
                assert!(!matches!(found, Err(Error::Pool(PoolError::Exhausted { .. }))), "{when}: {found:?}");
                missing += 1;
            }
            found => panic!(
                "{when}: page {no} reads as {found:?}, version {synced} was synced, and no list names it"
            ),
        }
    }
    missing
}

/// A store with version 1 at home, and version 2 synced, much of it on the SSD alone.
async fn with_only_copies(builder: Builder) -> (PageStore, SpaceId) {
    let store = builder.open().await.unwrap();
    let space = grown(&store).await;
    let _ = store.ssd().drain(DrainOptions::new()).await;
    store.sync().await.unwrap();
    write_all(&store, space, 2).await;
    store.sync().await.unwrap();
    assert!(store.stats().ssd.dirty_pages > 20);
    (store, space)
}

#[tokio::test(start_paused = true)]
async fn an_ssd_given_up_is_listed_wherever_a_crash_comes() {
    for ring in [8, 0] {
        let (mut polls, mut listed, mut before) = (0_u32, 0, 0);
        loop {
            let fixture = Fixture::new();
            let (store, space) = with_only_copies(fixture.builder().ring_pages(ring)).await;
            let over = timeout(SHORT * polls, store.ssd().abandon()).await.is_ok();
            let crashed = fixture.after_power_cut(polls.into());
            match crashed.builder().ring_pages(ring).ssd_bytes(0).open().await {
                // The abandonment has not happened: nothing is lost with the SSD.
                Err(OpenError::SsdMissing { .. }) => {
                    let after = crashed.builder().ring_pages(ring).open().await.unwrap();
                    assert_eq!(
                        (expect_listed(&after, space, 2, "before").await, after.ssd().loss()),
                        (0, None)
                    );
                    before += 1;
                }
                opened => {
                    let after = opened.unwrap();
                    listed += u32::from(expect_listed(&after, space, 2, "after").await > 0);
                    // The next open reports the same.
                    let loss = after.ssd().loss();
                    drop(after);
                    let again = crashed.after_power_cut(u64::from(polls) + 7);
                    let again = again.builder().ring_pages(ring).open().await.unwrap();
                    assert_eq!(again.ssd().loss(), loss);
                }
            }
            // After a cancellation the abandonment continues.
            while store.stats().ssd.state() != SsdState::Off {
                tokio::time::sleep(SHORT).await;
            }
            expect_listed(&store, space, 2, "in the same run").await;
            if over {
                break;
            }
            polls += 1 + polls / 6;
        }
        assert!(listed > 0 && before > 0, "ring {ring}: {listed} crashes after, {before} before");
    }
}

/// A store without an SSD loses its ring, which has the newest versions of pages, and the opens that
/// accept this are dropped at each of their awaits.
#[tokio::test(start_paused = true)]
async fn a_ring_given_up_is_listed_wherever_its_opening_is_dropped() {
    for polls in 1_u64.. {
        let fixture = Fixture::new();
        let store = fixture.builder().ssd_bytes(0).open().await.unwrap();
        let space = synced(&store, 2).await;
        let mut after = fixture.after_power_cut(polls);
        drop(store);
        after.ring = Arc::new(SimDevice::new("blank", 0, 9, &SimPower::new()).with_latency(SHORT));
        let accepting = || after.builder().ssd_bytes(0).accept_ssd_loss(true);
        let over = polled(polls, accepting().open()).await.is_some();
        let store = accepting().open().await.unwrap();
        assert!(store.ssd().loss().is_some(), "dropped after {polls} polls");
        expect_listed(&store, space, 2, "given up").await;
        if over {
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn pages_in_memory_leave_the_list_once_they_are_durable_at_home() {
    let fixture = Fixture::new();
    let (store, space) = with_only_copies(fixture.builder()).await;
    let loss = store.ssd().abandon().await.unwrap();
    assert_eq!(store.ssd().loss(), Some(loss.clone()));
    let missing = expect_listed(&store, space, 2, "given up").await;
    assert!(loss.exact && u64::from(missing) == loss.pages(), "the list is exact");
    drop(store);
    let after = fixture.after_power_cut(1).open().await;
    assert_eq!(u64::from(expect_listed(&after, space, 2, "after a crash").await), loss.pages());
    // Pages that cannot be made durable stay listed.
    let fixture = Fixture::new();
    let (store, _) = with_only_copies(fixture.builder()).await;
    fixture.ring.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).within(16384..u64::MAX));
    let all = store.ssd().abandon().await;
    let reported = store.ssd().loss();
    if let Ok(all) = all {
        assert!(all.pages() > loss.pages(), "{all:?}");
        assert_eq!(reported, Some(all));
    }
}

/// Gives the SSD up at 30 moments of a `sync` whose pages are all in memory; returns how many pages are lost.
async fn lost_though_in_memory() -> u64 {
    let (mut on_their_way, mut lost, over) = (0, 0, Cell::new(false));
    for step in 0..30 {
        let (fixture, store, space) = Fixture::with_space().await;
        for no in 0..20 {
            fixture::fill(&mut store.allocate(space).await.unwrap(), no, 1);
        }
        store.sync().await.unwrap();
        assert_eq!(store.ssd().drain(DrainOptions::new()).await.left, 0);
        for no in 0..20 {
            write(&store, space, no, 2).await.unwrap();
        }
        over.set(false);
        let sync = async {
            store.sync().await.unwrap();
            over.set(true);
        };
        let abandon = async {
            tokio::time::sleep(SHORT * step).await;
            on_their_way += u32::from(!over.get());
            store.ssd().abandon().await.unwrap()
        };
        let ((), loss) = tokio::join!(sync, abandon);
        lost += loss.pages();
        if loss.pages() > 0 {
            continue;
        }
        store.sync().await.unwrap();
        drop(store);
        let after = fixture.after_power_cut(1).open().await;
        for no in 0..20 {
            assert_eq!(read(&after, space, no).await.unwrap(), 2);
        }
    }
    assert!(on_their_way >= 10, "{on_their_way}");
    lost
}

#[tokio::test(start_paused = true)]
async fn pages_in_memory_are_saved_though_they_were_on_their_way_to_the_ssd() {
    assert_eq!(lost_though_in_memory().await, 0);
}

/// Loses an SSD whose pages are all home, although no checkpoint records that. Returns the reported list, or
/// with `closes` that of the next open.
async fn list_of_pages_that_the_hdd_has(closes: bool) -> SsdLoss {
    let fixture = Fixture::new();
    let (store, space) = with_only_copies(fixture.builder()).await;
    assert_eq!(store.ssd().drain(DrainOptions::new()).await.left, 0);
    let fixture = fixture.after_power_cut(1);
    let store = fixture.open().await;
    if closes {
        store.close().await.unwrap();
        let store = fixture.builder().ssd_bytes(0).accept_ssd_loss(true).open().await.unwrap();
        expect_all(&store, space, 2).await;
        store.ssd().loss().unwrap()
    } else {
        let loss = store.ssd().abandon().await.unwrap();
        expect_all(&store, space, 2).await;
        assert_eq!(store.ssd().loss(), Some(loss.clone()));
        loss
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_of_what_a_recovery_found_and_the_hdd_has_too_does_not_say_that_it_is_exact() {
    for closes in [false, true] {
        let loss = list_of_pages_that_the_hdd_has(closes).await;
        assert!(loss.pages() > 0 && !loss.exact, "{loss:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn pages_changed_while_the_ssd_is_given_up_are_at_home_or_listed() {
    for ring in [8, 0] {
        for seed in 0..12 {
            let fixture = Fixture::new();
            let (store, space) = with_only_copies(fixture.builder().ring_pages(ring)).await;
            let store = std::sync::Arc::new(store);
            let going = tokio::spawn({
                let store = std::sync::Arc::clone(&store);
                async move {
                    tokio::time::sleep(Duration::from_millis(seed)).await;
                    store.ssd().abandon().await.unwrap()
                }
            });
            let mut version = 3;
            while !going.is_finished() {
                for no in 0..40 {
                    let _ = write(&store, space, no, version).await;
                }
                tokio::time::sleep(Duration::from_micros(100)).await;
                version += 1;
            }
            going.await.unwrap();
            store.sync().await.unwrap();
            expect_listed(&store, space, 2, "in the same run").await;
            drop(store);
            let after =
                fixture.after_power_cut(seed).builder().ring_pages(ring).ssd_bytes(0).open().await.unwrap();
            expect_listed(&after, space, 2, "after a crash").await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn given_up_twice_at_once_it_is_given_up_once() {
    let fixture = Fixture::new();
    let (store, space) = with_only_copies(fixture.builder()).await;
    fixture.ssd.set_present(false);
    // The store's own watch may try as well.
    let _ = write(&store, space, 0, 2).await;
    let (one, two) = futures_util::future::join(store.ssd().abandon(), store.ssd().abandon()).await;
    assert!(one.unwrap().pages() > 0);
    assert_eq!(two.unwrap().pages(), 0);
    let loss = store.ssd().loss().unwrap();
    assert!(store.ssd().abandon().await.unwrap().pages() == 0 && store.ssd().loss() == Some(loss));
    write_all(&store, space, 3).await;
    store.sync().await.unwrap();
    drop(store);
    expect_all(&fixture.after_power_cut(5).open().await, space, 3).await;
}

/// How the last run ended, which determines what is known of the SSD.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Close,
    Crash,
}

#[tokio::test(start_paused = true)]
async fn an_accepted_loss_is_reported_by_every_later_opening() {
    for end in [End::Close, End::Crash] {
        let fixture = Fixture::new();
        let (store, space) = with_only_copies(fixture.builder()).await;
        match end {
            End::Close => store.close().await.unwrap(),
            End::Crash => drop(store),
        }
        let (mut polls, mut refused) = (1, 0);
        loop {
            let lost = fixture.after_power_cut(3).with_blank_ssd();
            let over = polled(polls, lost.builder().accept_ssd_loss(true).open()).await.is_some();
            let crashed = lost.after_power_cut(polls);
            match crashed.try_open().await {
                Ok(store) => {
                    assert!(expect_listed(&store, space, 2, "accepted").await > 0);
                    let loss = store.ssd().loss().unwrap();
                    assert_eq!(loss.exact, end == End::Close);
                    drop(store);
                    let again = crashed.after_power_cut(polls + 1).open().await;
                    assert_eq!(again.ssd().loss(), Some(loss));
                }
                Err(OpenError::SsdMissing { .. }) => refused += 1,
                Err(other) => panic!("after {polls} polls: {other}"),
            }
            if over {
                break;
            }
            polls += 1 + polls / 6;
        }
        assert!(refused > 2, "{end:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn losses_add_up_until_they_are_acknowledged() {
    let fixture = Fixture::new();
    let (store, space) = with_only_copies(fixture.builder()).await;
    let first = store.ssd().abandon().await.unwrap();
    store.ssd().readmit().await.unwrap();
    write_all(&store, space, 3).await;
    store.sync().await.unwrap();
    let second = store.ssd().abandon().await.unwrap();
    let covers = |all: &SsdLoss, part: &SsdLoss| {
        let all_of = |r: &std::ops::Range<u32>| r.clone().all(|no| all.contains(PageId::new(space, no)));
        part.spaces.iter().flat_map(|s| &s.ranges).all(all_of)
    };
    let both = store.ssd().loss().unwrap();
    assert!(covers(&both, &first) && covers(&both, &second) && both.exact);
    assert_eq!(both.redo_from, first.redo_from.min(second.redo_from));
    fixture.manifest.fail_saves(0, 1, false);
    assert!(matches!(store.ssd().acknowledge_loss().await, Err(Error::Manifest { .. })));
    assert_eq!(store.ssd().loss(), Some(both.clone()));
    store.close().await.unwrap();
    let store = fixture.open().await;
    assert_eq!(store.ssd().loss(), Some(both));
    store.ssd().acknowledge_loss().await.unwrap();
    assert_eq!(store.ssd().loss(), None);
    drop(store);
    assert_eq!(fixture.after_power_cut(1).open().await.ssd().loss(), None);
}

/// An acknowledgement that could not be recorded: this run reports the complete list, and after a crash the
/// list is complete or gone.
#[tokio::test(start_paused = true)]
async fn an_acknowledgement_whose_save_fails_leaves_the_list_or_takes_it_away() {
    for replaced in [false, true] {
        for flush_fails in [false, true] {
            let fixture = Fixture::new();
            let (store, space) = with_only_copies(fixture.builder()).await;
            let loss = store.ssd().abandon().await.unwrap();
            fixture.manifest.fail_saves(0, 2, replaced);
            for _ in 0..2 {
                assert!(matches!(store.ssd().acknowledge_loss().await, Err(Error::Manifest { .. })));
                assert_eq!(store.ssd().loss(), Some(loss.clone()));
            }
            let kept = (!replaced).then(|| loss.clone());
            assert_eq!(fixture.after_power_cut(1).open().await.ssd().loss(), kept);
            if flush_fails {
                // The record goes into the manifest on disk.
                fixture.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
                for no in 0..PAGES {
                    let _ = write(&store, space, no, 5).await;
                }
                let _ = store.sync().await;
                fixture.hdd.clear_faults();
                let reported = fixture.after_power_cut(2).open().await.ssd().loss();
                assert!(reported.is_none() && replaced || reported == Some(loss), "{reported:?}");
                continue;
            }
            // Any later save records this run's state.
            store.spaces().create("u").await.unwrap();
            assert_eq!(fixture.after_power_cut(3).open().await.ssd().loss(), Some(loss));
            store.ssd().acknowledge_loss().await.unwrap();
            assert_eq!(store.ssd().loss(), None);
            assert_eq!(fixture.after_power_cut(4).open().await.ssd().loss(), None);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_readmission_finds_damaged_is_listed() {
    let fixture = Fixture::new();
    let (store, space) = with_only_copies(fixture.builder()).await;
    fixture.ssd.set_present(false);
    for no in 0..PAGES {
        let _ = read(&store, space, no).await;
    }
    let _ = store.sync().await;
    fixture.ssd.set_present(true);
    for at in fixture.slots().step_by(fixture::PAGE as usize).step_by(3) {
        fixture.ssd.flip_bit(at + 900, 3);
    }
    fixture.manifest.fail_saves(0, 1, false);
    assert!(matches!(store.ssd().readmit().await, Err(Error::Readmit(_))), "it could not be recorded");
    let report = store.ssd().readmit().await.unwrap();
    assert!(!report.lost.is_empty());
    let loss = store.ssd().loss().unwrap();
    for page in &report.lost {
        let found = read(&store, space, page.no).await;
        assert!(loss.contains(*page) || matches!(found, Ok(2)), "{page}: {found:?}");
    }
    assert!(expect_listed(&store, space, 2, "readmitted").await > 0);
    drop(store);
    assert_eq!(fixture.after_power_cut(1).open().await.ssd().loss(), Some(loss));
}

#[tokio::test(start_paused = true)]
async fn mode_changes_dropped_at_any_await_lose_nothing_and_end_in_one_of_the_modes() {
    let mut polls = 0_u32;
    loop {
        let fixture = Fixture::new();
        let (store, space) = with_only_copies(fixture.builder()).await;
        let off = timeout(SHORT * polls, store.ssd().set_mode(SsdMode::Off)).await.is_ok();
        assert!(
            off || matches!(
                store.stats().ssd.mode,
                SsdMode::WriteBack | SsdMode::WriteThrough | SsdMode::Off
            )
        );
        expect_all(&fixture.after_power_cut(polls.into()).open().await, space, 2).await;
        expect_all(&store, space, 2).await;
        // An exchange that has begun continues; this waits for it.
        store.ssd().set_mode(SsdMode::Off).await.unwrap();
        let on = timeout(SHORT * polls, store.ssd().set_mode(SsdMode::WriteBack)).await.is_ok();
        expect_all(&fixture.after_power_cut(u64::from(polls) + 1).open().await, space, 2).await;
        store.ssd().readmit().await.unwrap();
        store.ssd().set_mode(SsdMode::WriteBack).await.unwrap();
        assert_eq!(
            (store.stats().ssd.state(), store.stats().ssd.mode),
            (SsdState::Active, SsdMode::WriteBack)
        );
        write_all(&store, space, 3).await;
        store.sync().await.unwrap();
        store.validate().unwrap();
        expect_all(&fixture.after_power_cut(u64::from(polls) + 2).open().await, space, 3).await;
        assert_eq!(store.ssd().loss(), None);
        if off && on {
            break;
        }
        polls += 1 + polls / 5;
    }
    assert!(polls > 10);
}

#[tokio::test(start_paused = true)]
async fn an_ssd_whose_return_may_be_recorded_is_not_formatted_once_more() {
    let fixture = Fixture::new();
    let (store, space) = with_only_copies(fixture.builder()).await;
    store.ssd().set_mode(SsdMode::Off).await.unwrap();
    // The save takes effect but reports a failure.
    fixture.manifest.fail_saves(0, 1, true);
    assert!(matches!(store.ssd().readmit().await, Err(Error::Manifest { .. })));
    for _ in 0..2 {
        assert!(matches!(store.ssd().readmit().await, Err(Error::Refusing { .. })));
        assert!(matches!(store.ssd().set_mode(SsdMode::WriteBack).await, Err(Error::Refusing { .. })));
    }
    drop(store);
    let store = fixture.after_power_cut(1).open().await;
    assert_eq!((store.stats().ssd.state(), store.ssd().loss()), (SsdState::Active, None));
    expect_all(&store, space, 2).await;
}

#[tokio::test(start_paused = true)]
async fn with_nothing_to_acknowledge_nothing_is_saved() {
    let fixture = Fixture::new();
    let store = fixture.open().await;
    fixture.manifest.fail_saves(0, 1, false);
    store.ssd().acknowledge_loss().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_loss_acknowledged_while_the_rest_is_saved_is_not_reported_again() {
    let fixture = Fixture::new();
    let (store, space) = with_only_copies(fixture.builder()).await;
    // Pages in memory are rewritten, and so are not lost.
    for no in 0..20 {
        let _ = read(&store, space, no).await.unwrap();
    }
    fixture.hdd.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(1))).on(IoOp::Write));
    let abandon = async {
        let lost = store.ssd().abandon().await.unwrap();
        assert!(lost.pages() > 0, "nothing was lost");
    };
    let acknowledge = async {
        while store.ssd().loss().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        store.ssd().acknowledge_loss().await.unwrap();
        assert_eq!(store.ssd().loss(), None);
    };
    tokio::join!(abandon, acknowledge);
    assert_eq!(store.ssd().loss(), None);
    drop(store);
    assert_eq!(fixture.after_power_cut(1).open().await.ssd().loss(), None);
}
