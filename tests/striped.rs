//! Several SSDs as one, below a store under load: power cuts, a member that fails or disappears, and members
//! in another order.

use crate::changing::{check, known, load};
use crate::fixture::{Fixture, PAGE, expect_all, grown, write_all};
use pagetier::device::{StripeError, StripeOptions, StripedDevice};
use pagetier::{PageStore, ScrubOptions, SsdState};
use pagetier_devio::{Fault, FaultEffect, IoOp, SharedDevice, SimDevice, SimPower};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The bytes that the store uses of the set.
const BYTES: u64 = 200 * PAGE;

type Members = [Arc<SimDevice>; 3];

fn members(seed: u64) -> Members {
    let power = SimPower::new();
    [0, 1, 2].map(|n| {
        let device = SimDevice::new(&format!("ssd {n}"), 1 << 20, seed * 3 + n, &power);
        Arc::new(device.with_latency(Duration::from_micros(400)))
    })
}

fn after_power_cut(members: &Members, seed: u64) -> Members {
    let power = SimPower::new();
    members.each_ref().map(|device| Arc::new(device.after_power_cut(seed, &power)))
}

async fn striped(members: &[Arc<SimDevice>]) -> Result<SharedDevice, StripeError> {
    let devices = members.iter().map(|device| Arc::clone(device) as SharedDevice).collect();
    let options = StripeOptions { chunk_bytes: 64 << 10, create: true };
    Ok(Arc::new(StripedDevice::open(devices, options).await?))
}

async fn open(fixture: &Fixture, members: &[Arc<SimDevice>]) -> PageStore {
    let set = striped(members).await.unwrap();
    fixture.builder().ssd_device(set).ssd_bytes(BYTES).open().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_under_load_loses_nothing_synced_in_whatever_order_the_members_come_back() {
    for seed in 0..8_u64 {
        let (fixture, members) = (Fixture::new(), members(seed));
        let store = Arc::new(open(&fixture, &members).await);
        let space = grown(&store).await;
        store.sync().await.unwrap();
        let (known, stop) = (known(), Arc::new(AtomicBool::new(false)));
        let task = tokio::spawn(load(Arc::clone(&store), space, Arc::clone(&known), Arc::clone(&stop)));
        tokio::time::sleep(Duration::from_micros(60_000 + seed * 7_919)).await;
        let (later, mut back) = (fixture.after_power_cut(seed), after_power_cut(&members, seed));
        let at_cut = known.copy();
        stop.store(true, Ordering::Relaxed);
        task.await.unwrap();
        let used = members.iter().all(|device| device.ops() > 20);
        assert!(used && store.stats().ssd.dirty_pages > 0, "seed {seed}: a member is idle");
        drop(store);
        // Without a member there is no set.
        assert!(matches!(striped(&back[..2]).await, Err(StripeError::Mixed(_))));
        back.rotate_left(seed as usize % 3);
        let store = open(&later, &back).await;
        check(&store, space, &at_cut, &format!("seed {seed}")).await;
        let report = store.scrub(ScrubOptions::default().pages_per_second(None)).finished().await;
        assert!(report.findings.is_empty(), "seed {seed}: {report:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_that_fails_or_disappears_under_load_costs_nothing_synced() {
    for (seed, gone) in [(1, false), (2, true), (3, false), (4, true)] {
        let (fixture, members) = (Fixture::new(), members(seed));
        let store = Arc::new(open(&fixture, &members).await);
        let space = grown(&store).await;
        write_all(&store, space, 2).await;
        store.sync().await.unwrap();
        let member = &members[seed as usize % 3];
        if gone {
            member.set_present(false);
        } else {
            member.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).times(2));
        }
        // Reads and writes may fail meanwhile.
        for no in 0..crate::fixture::PAGES {
            let _ = crate::fixture::write(&store, space, no, 2).await;
        }
        let _ = store.sync().await;
        assert_eq!(store.ssd().state(), SsdState::Degraded, "{seed}");
        let error = store.stats().ssd.ssd_error.map(|error| error.to_string());
        assert!(
            error.as_ref().is_some_and(|error| error.contains(&format!("ssd {}", seed % 3))),
            "{error:?}"
        );
        member.set_present(true);
        member.clear_faults();
        let report = store.ssd().readmit().await.unwrap();
        assert!(report.lost.is_empty(), "{report:?}");
        store.sync().await.unwrap();
        expect_all(&store, space, 2).await;
        store.validate().unwrap();
        drop(store);
        let (later, back) = (fixture.after_power_cut(seed), after_power_cut(&members, seed));
        expect_all(&open(&later, &back).await, space, 2).await;
    }
}
