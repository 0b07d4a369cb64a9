//! Home writes that never began, because the images and records before them could not be made durable: what
//! of these landed must do no harm once the SSD is in use again.

use crate::fixture::{self, Fixture, PAGES, grown, read, write, write_all};
use pagetier::{Builder, DrainOptions, Location, PageId, SsdMode};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect, FlushFailure, SimDevice, SimPower};
use std::sync::Arc;
use std::time::Duration;

fn builder(fixture: &Fixture) -> Builder {
    let builder = fixture.builder().pool_bytes(84 * fixture::PAGE);
    builder.ssd_bytes(600 * fixture::PAGE).ssd_policy("auto:zone=70")
}

/// Pages whose only copies are on the SSD are written again, and are to go home. The `nth` flush of the SSD
/// from then on fails. The SSD is readmitted, another page goes home, and the power is cut. Returns the pages
/// that show neither version afterwards; `None` if no flush failed.
async fn lost(nth: u64, model: FlushFailure) -> Option<Vec<(u32, String)>> {
    let ssd = SimDevice::new("ssd", 0, 2, &SimPower::new());
    let ssd = Arc::new(ssd.with_latency(Duration::from_micros(400)).with_flush_failure(model));
    let fixture = Fixture { ssd, ..Fixture::new() };
    let store = builder(&fixture).open().await.unwrap();
    let (space, other) = (grown(&store).await, store.spaces().create("other").await.unwrap());
    write_all(&store, space, 2).await;
    store.sync().await.unwrap();
    let on_ssd = (0..PAGES).filter(|no| store.location(PageId::new(space, *no)) == Location::Ssd);
    let later: Vec<u32> = on_ssd.take(12).collect();
    store.ssd().set_mode(SsdMode::WriteThrough).await.unwrap();
    fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).from_op(nth).times(1));
    for no in &later {
        let _ = write(&store, space, *no, 3).await;
    }
    if store.sync().await.is_ok() {
        return None;
    }
    // Kept from being written again.
    let held: Vec<_> = later.iter().filter_map(|no| store.try_get_mut(PageId::new(space, *no))).collect();
    store.ssd().readmit().await.unwrap();
    // Its record says which images a recovery may ignore.
    drop(store.allocate(other).await.unwrap());
    store.spaces().sync(other).await.unwrap();
    let mut lost = Vec::new();
    for seed in 0..4 {
        let fixture = fixture.after_power_cut(seed);
        let store = builder(&fixture).open().await.unwrap();
        for no in &later {
            match read(&store, space, *no).await {
                Ok(2 | 3) => {}
                found => lost.push((*no, format!("{found:?}"))),
            }
        }
    }
    drop(held);
    Some(lost)
}

#[tokio::test(start_paused = true)]
async fn a_home_write_that_never_began_costs_no_copy() {
    for model in [FlushFailure::Cached, FlushFailure::Reverted, FlushFailure::NeverDurable] {
        let mut failed = 0;
        for nth in 0..12 {
            let Some(lost) = lost(nth, model).await else { break };
            assert_eq!(lost, [], "{model:?}, flush {nth}");
            failed += 1;
        }
        assert!(failed > 1, "{model:?}: {failed} flushes failed");
    }
}

/// Pages whose homes are whole are to go home; the `nth` flush of the SSD fails, and the SSD is readmitted.
/// Other pages then need the ring's places. The power is cut at many moments meanwhile, after which every
/// page shows a version that was written to it, and none older than was synced.
async fn stuck(nth: u64, model: FlushFailure) -> bool {
    let ssd = SimDevice::new("ssd", 0, 2, &SimPower::new());
    let ssd = Arc::new(ssd.with_latency(Duration::from_micros(400)).with_flush_failure(model));
    let fixture = Fixture { ssd, ..Fixture::new() };
    let store = Arc::new(builder(&fixture).open().await.unwrap());
    let (space, other) = (grown(&store).await, store.spaces().create("other").await.unwrap());
    write_all(&store, space, 2).await;
    let _ = store.ssd().drain(DrainOptions::new()).await;
    store.sync().await.unwrap();
    store.ssd().set_mode(SsdMode::WriteThrough).await.unwrap();
    fixture.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).from_op(nth).times(1));
    for no in 0..12 {
        let _ = write(&store, space, no, 3).await;
    }
    if store.sync().await.is_ok() {
        return false;
    }
    let held: Vec<_> = (0..12).filter_map(|no| store.try_get_mut(PageId::new(space, no))).collect();
    store.ssd().readmit().await.unwrap();
    let task = tokio::spawn({
        let store = Arc::clone(&store);
        async move {
            for _ in 0..30 {
                drop(store.allocate(other).await.unwrap());
            }
            store.spaces().sync(other).await.unwrap();
        }
    });
    for cut in 0.. {
        let over = task.is_finished();
        let later = builder(&fixture.after_power_cut(cut)).open().await.unwrap();
        for no in 0..PAGES {
            let found = read(&later, space, no).await;
            let whole = matches!(found, Ok(2)) || (no < 12 && matches!(found, Ok(3)));
            assert!(whole, "{model:?}, flush {nth}, cut {cut}: page {no}: {found:?}");
        }
        if over {
            break;
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    task.await.unwrap();
    drop(held);
    true
}

#[tokio::test(start_paused = true)]
async fn images_of_home_writes_that_never_began_make_room_for_others_and_tear_no_home() {
    for model in [FlushFailure::Cached, FlushFailure::Reverted, FlushFailure::NeverDurable] {
        for nth in 0..3 {
            assert!(stuck(nth, model).await || nth > 0, "{model:?}: no flush failed");
        }
    }
}
