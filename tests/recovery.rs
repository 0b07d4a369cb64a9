//! Recovery is idempotent, and harmless when dropped at any point. The entries that it takes from the
//! checkpoint are verified at their first read.

use crate::fixture::{self, Fixture, PAGES, read, write_all};
use pagetier::{
    Error, PageId, RecoveryReport, SpaceId,
    errors::{PoolError, TierError},
};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

/// Devices after a crash with work in flight.
async fn crashed(seed: u64) -> (Fixture, SpaceId) {
    let (fixture, store, space) = Fixture::synced(2).await;
    write_all(&store, space, 3).await;
    drop(store);
    (fixture.after_power_cut(seed), space)
}

async fn expect_allowed(fixture: &Fixture, space: SpaceId) -> RecoveryReport {
    let store = fixture.open().await;
    for no in 0..PAGES {
        let version = read(&store, space, no).await.unwrap();
        assert!((2..=3).contains(&version), "page {no} reads as version {version}");
    }
    store.validate().unwrap();
    store.recovery()
}

#[tokio::test(start_paused = true)]
async fn an_opening_dropped_at_any_await_is_like_a_crash() {
    let mut interrupted = 0;
    for seed in 1..4 {
        let (fixture, space) = crashed(seed).await;
        interrupted += drop_at_every_await(&fixture, space).await;
    }
    assert!(interrupted > 60, "three opens were interrupted {interrupted} times");
}

/// Opens after power cuts, dropping the open at its first await, then at its second, until it completes.
/// Returns how often it was dropped.
async fn drop_at_every_await(fixture: &Fixture, space: SpaceId) -> u64 {
    for polls in 1.. {
        // Latency makes every operation an await point.
        let again = fixture.after_power_cut(polls);
        let mut left = polls;
        let mut opening = Box::pin(again.try_open());
        let outcome = std::future::poll_fn(|cx| {
            if left == 0 {
                return Poll::Ready(None);
            }
            left -= 1;
            opening.as_mut().poll(cx).map(Some)
        })
        .await;
        drop(opening);
        let finished = outcome.is_some();
        drop(outcome);
        // Everything in flight is torn.
        let later = again.after_power_cut(polls * 3);
        expect_allowed(&later, space).await;
        if finished {
            return polls - 1;
        }
    }
    0
}

#[tokio::test(start_paused = true)]
async fn an_opening_whose_io_fails_at_any_operation_is_recoverable() {
    use pagetier_devio::IoOp;
    use pagetier_testing::{Fault, FaultEffect};
    let (fixture, space) = crashed(2).await;
    for op in 0..60 {
        for device in 0..2 {
            let again = fixture.after_power_cut(7);
            let target = if device == 0 { &again.ssd } else { &again.hdd };
            for kind in [IoOp::Read, IoOp::Write, IoOp::Flush] {
                target.inject(Fault::new(FaultEffect::Eio).on(kind).from_op(target.ops() + op).times(1));
            }
            drop(again.try_open().await);
            target.clear_faults();
            expect_allowed(&again.after_power_cut(op), space).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_recovery_finds_the_same() {
    let (fixture, space) = crashed(3).await;
    let one = fixture.after_power_cut(4);
    let first = expect_allowed(&one, space).await;
    let versions = |fixture: Fixture| async move {
        let store = fixture.open().await;
        let mut all = Vec::new();
        for no in 0..PAGES {
            all.push(read(&store, space, no).await.unwrap());
        }
        all
    };
    let before = versions(fixture.after_power_cut(4)).await;
    let after = versions(one.after_power_cut(5)).await;
    assert_eq!(before, after);
    assert!(first.found + first.trusted > 0);
}

#[tokio::test(start_paused = true)]
async fn recovery_reads_only_the_zone_and_reports_progress() {
    let (fixture, _) = crashed(5).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let store =
        fixture.builder().on_recovery_progress(move |p| sink.lock().unwrap().push(p)).open().await.unwrap();
    let report = store.recovery();
    let layout = fixture.layout();
    assert!(report.zone_slots <= u64::from(layout.slots) * 30 / 100 + 8, "{report:?}");
    let metadata = layout.slot_at(0) + u64::from(fixture::RING_PAGES) * fixture::PAGE;
    assert!(report.bytes_read <= metadata + report.zone_slots * fixture::PAGE, "{report:?}");
    for progress in seen.lock().unwrap().iter() {
        assert!(progress.done <= progress.total);
    }
}

#[tokio::test(start_paused = true)]
async fn entries_of_the_checkpoint_are_verified_at_the_first_read() {
    let (fixture, store, space) = Fixture::grown().await;
    write_all(&store, space, 2).await;
    store.close().await.unwrap();
    let later = fixture.after_power_cut(1);
    // Corruption outside the zone: the open does not see it.
    let rotten: Vec<PageId> = (0..PAGES)
        .map(|no| PageId::new(space, no))
        .filter(|page| !later.slots_of(*page).is_empty())
        .step_by(3)
        .collect();
    for at in rotten.iter().flat_map(|page| later.slots_of(*page)) {
        later.ssd.flip_bit(at + 900, 2);
    }
    let store = later.open().await;
    assert!(store.recovery().damaged > 0, "some in the zone, too");
    let (mut errors, mut sound) = (0, 0);
    for no in 0..PAGES {
        match read(&store, space, no).await {
            Ok(2) => sound += 1,
            Err(Error::Pool(PoolError::Tier(TierError::Corrupt { page, .. }))) => {
                assert!(rotten.contains(&page));
                errors += 1;
            }
            other => panic!("page {no}: {other:?}"),
        }
    }
    assert!(errors > 0 && sound > 100, "{errors} errors, {sound} sound");
}

#[tokio::test(start_paused = true)]
async fn reads_are_served_while_the_rest_is_unverified() {
    let (fixture, space) = crashed(6).await;
    let store = fixture.open().await;
    let before = pagetier_devio::Device::stats(&*fixture.ssd);
    let mut first = pin!(read(&store, space, 0));
    assert!((2..=3).contains(&first.as_mut().await.unwrap()));
    let reads = pagetier_devio::Device::stats(&*fixture.ssd).since(&before).totals_without(&[]).read.ops;
    assert!(reads <= 1, "the first read waits for no other: {reads}");
}
