//! An HDD that writes pages whole: their homes need no ring as long as it does.

use crate::fixture::{Fixture, PAGE, PAGES, expect_all, grown, read, synced, write, write_all};
use pagetier::stats::HomeWrites;
use pagetier::{Builder, DrainOptions, PageStore, inspect::Caveat, options::OnHdd};
use pagetier_devio::{Device, IoClass, IoOp, SharedDevice};
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
use std::sync::Arc;
use std::time::Duration;

/// The fixture with an HDD that offers to keep writes of `bytes` whole.
fn offering(bytes: u64, on_hdd: bool) -> Fixture {
    let power = SimPower::new();
    let hdd = Arc::new(SimDevice::new("hdd", 0, 1, &power).with_atomic_writes(bytes as usize));
    if on_hdd { Fixture { hdd, ..Fixture::on_hdd(&power) } } else { Fixture { hdd, ..Fixture::new() } }
}

/// The device at this moment, on another one that offers `bytes`.
fn copied(hdd: &SimDevice, bytes: u64) -> Arc<SimDevice> {
    Arc::new(hdd.fork(5, &SimPower::new()).with_atomic_writes(bytes as usize))
}

fn builder(fixture: &Fixture) -> Builder {
    fixture.builder().ssd_bytes(0)
}

async fn opened(fixture: &Fixture) -> PageStore {
    builder(fixture).open().await.unwrap()
}

fn ringed(store: &PageStore) -> u64 {
    let stats = store.stats();
    [stats.hdd_device, stats.ssd_device].iter().map(|device| device.class(IoClass::Ring).write.ops).sum()
}

fn homes(store: &PageStore) -> HomeWrites {
    store.stats().ssd.home_writes
}

#[tokio::test(start_paused = true)]
async fn no_page_goes_through_the_ring_and_a_power_cut_tears_none() {
    for on_hdd in [false, true] {
        let fixture = offering(4 * PAGE, on_hdd);
        let store = opened(&fixture).await;
        let space = synced(&store, 2).await;
        assert_eq!((homes(&store), ringed(&store)), (HomeWrites::Whole, 0));
        let shown = store.stats().to_string();
        assert!(shown.contains("pages go home whole, by the HDD"), "{shown}");
        write_all(&store, space, 3).await;
        for seed in 0..20 {
            let after = fixture.after_power_cut(seed);
            let store = opened(&after).await;
            for no in 0..PAGES {
                assert!(matches!(read(&store, space, no).await, Ok(2 | 3)), "page {no}");
            }
        }
        store.close().await.unwrap();
        let found = builder(&fixture).inspect().await.unwrap();
        assert_eq!(found.home_writes, HomeWrites::Whole);
        assert!(!found.not_promised.contains(&Caveat::NoRing), "{found}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_whose_hdd_no_longer_writes_pages_whole_uses_its_ring() {
    for on_hdd in [false, true] {
        let fixture = offering(PAGE, on_hdd);
        let space = synced(&opened(&fixture).await, 2).await;
        let mut fixture = fixture.after_power_cut(3);
        fixture.hdd = copied(&fixture.hdd, 512);
        let store = opened(&fixture).await;
        assert_eq!(homes(&store), HomeWrites::Ringed);
        expect_all(&store, space, 2).await;
        write_all(&store, space, 3).await;
        store.sync().await.unwrap();
        let mut repaired = 0;
        for seed in 0..30 {
            let after = fixture.after_power_cut(seed);
            let store = opened(&after).await;
            repaired += store.recovery().repaired;
            expect_all(&store, space, 3).await;
        }
        // On the HDD the flush of the ring covers the homes, too.
        assert!((on_hdd || repaired > 0) && ringed(&store) > 0, "{repaired} repaired");
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_that_the_hdd_refuses_goes_through_the_ring_before_sync_returns() {
    for (on_hdd, nth, times) in [(false, 0, 1), (false, 70, u64::MAX), (true, 20, 1), (true, 0, u64::MAX)] {
        let fixture = offering(PAGE, on_hdd);
        let store = opened(&fixture).await;
        let space = synced(&store, 2).await;
        let refused = Fault::new(FaultEffect::NotWhole).on(IoOp::Write).from_op(fixture.hdd.ops() + nth);
        fixture.hdd.inject(refused.times(times));
        write_all(&store, space, 3).await;
        store.sync().await.unwrap();
        assert_eq!(homes(&store), HomeWrites::Ringed);
        assert!(ringed(&store) > 0);
        for seed in 0..20 {
            let after = fixture.after_power_cut(seed);
            expect_all(&opened(&after).await, space, 3).await;
        }
        // The next open trusts what the device offers, and writes nothing that could be refused.
        store.close().await.unwrap();
        let store = opened(&fixture).await;
        assert_eq!(homes(&store), HomeWrites::Whole);
        write_all(&store, space, 4).await;
        store.sync().await.unwrap();
        assert_eq!(homes(&store), if times > 1 { HomeWrites::Ringed } else { HomeWrites::Whole });
    }
}

/// The ring has so many places that no flush for them follows.
#[tokio::test(start_paused = true)]
async fn homes_from_before_the_ring_is_used_are_durable_when_sync_returns() {
    for nth in 0..10 {
        let fixture = offering(PAGE, false);
        let opened = async |fixture: &Fixture| builder(fixture).ring_pages(64).open().await.unwrap();
        let store = opened(&fixture).await;
        let space = synced(&store, 2).await;
        for no in 0..10 {
            write(&store, space, no, 3).await.unwrap();
        }
        let refused = Fault::new(FaultEffect::NotWhole).on(IoOp::Write).from_op(fixture.hdd.ops() + nth);
        fixture.hdd.inject(refused.times(1));
        store.sync().await.unwrap();
        for seed in 0..10 {
            let after = opened(&fixture.after_power_cut(seed)).await;
            for no in 0..10 {
                assert_eq!(read(&after, space, no).await.unwrap(), 3, "page {no}, write {nth} refused");
            }
        }
    }
}

/// With an SSD: pages on it alone are copied home by a drain, and by the background task for others.
#[tokio::test(start_paused = true)]
async fn copies_on_the_ssd_go_home_although_the_hdd_refuses_them() {
    let fixture = offering(PAGE, false);
    let store = fixture.open().await;
    let space = grown(&store).await;
    write_all(&store, space, 2).await;
    store.sync().await.unwrap();
    fixture.hdd.inject(Fault::new(FaultEffect::NotWhole).on(IoOp::Write));
    let report = store.ssd().drain(DrainOptions::new()).await;
    assert_eq!((report.left, report.failed.len()), (0, 0), "{report:?}");
    assert_eq!(homes(&store), HomeWrites::Ringed);
    write_all(&store, space, 3).await;
    store.sync().await.unwrap();
    expect_all(&store, space, 3).await;
}

/// The ring has one place, which write-backs that the HDD refuses took again and again from the writers that
/// had to leave before it could be put into use.
#[tokio::test(start_paused = true)]
async fn a_ring_of_one_page_is_put_into_use_beside_writers_and_write_backs() {
    for (on_hdd, policy) in [(true, "doublewrite"), (false, "doublewrite"), (true, "cac"), (true, "lru2")] {
        for nth in 0..12 {
            let power = SimPower::new();
            let device =
                |name, micros| SimDevice::new(name, 0, 1, &power).with_latency(Duration::from_micros(micros));
            let hdd = Arc::new(device("hdd", 3000).with_atomic_writes(PAGE as usize));
            let fixture = if on_hdd { Fixture::on_hdd(&power) } else { Fixture::new() };
            let fixture = Fixture { hdd, ssd: Arc::new(device("ssd", 300)), ..fixture };
            let opened = fixture.builder().ssd_policy(policy).ssd_bytes(56 * PAGE).ring_pages(1).open().await;
            let store = opened.unwrap();
            let space = grown(&store).await;
            let refused = Fault::new(FaultEffect::NotWhole).on(IoOp::Write);
            fixture.hdd.inject(refused.from_op(fixture.hdd.ops() + 3 * nth));
            let write = async |from: u32| {
                for no in (from..PAGES).step_by(4) {
                    write(&store, space, no, 3).await.unwrap();
                }
            };
            futures_util::future::join4(write(0), write(1), write(2), write(3)).await;
            store.sync().await.unwrap();
            expect_all(&store, space, 3).await;
            assert_eq!(homes(&store), HomeWrites::Ringed, "{policy}, write {nth}");
        }
    }
}

/// Its repairs and what it wipes are not asked to be whole, wherever the ring is.
#[tokio::test(start_paused = true)]
async fn a_recovery_needs_no_write_that_could_be_refused() {
    for on_hdd in [false, true] {
        let fixture = offering(512, on_hdd);
        let store = opened(&fixture).await;
        let space = synced(&store, 2).await;
        write_all(&store, space, 3).await;
        store.sync().await.unwrap();
        for seed in 0..20 {
            let mut after = fixture.after_power_cut(seed);
            after.hdd = copied(&after.hdd, PAGE);
            after.hdd.inject(Fault::new(FaultEffect::NotWhole).on(IoOp::Write));
            let store = opened(&after).await;
            assert_eq!(homes(&store), HomeWrites::Whole);
            expect_all(&store, space, 3).await;
        }
    }
}

/// The ring has images from a life that needed it; then homes get newer versions without it, and rot.
#[tokio::test(start_paused = true)]
async fn an_image_of_an_earlier_life_does_not_stand_for_a_newer_home() {
    for on_hdd in [false, true] {
        let mut fixture = offering(512, on_hdd);
        let store = opened(&fixture).await;
        let space = synced(&store, 2).await;
        store.close().await.unwrap();
        fixture.hdd = copied(&fixture.hdd, PAGE);
        let store = opened(&fixture).await;
        write_all(&store, space, 3).await;
        store.sync().await.unwrap();
        drop(store);
        // The lists in the ring, which also void the images, need not outlast a power cut.
        for seed in 0..10 {
            let after = fixture.after_power_cut(seed);
            let end = after.hdd.size();
            (1 << 20..end).step_by(PAGE as usize).for_each(|at| after.hdd.rot(at + 512..at + 1024, at));
            // The manifest's areas rot, too, if it is there.
            let Ok(store) = builder(&after).open().await else { continue };
            for no in 0..PAGES {
                let found = read(&store, space, no).await;
                assert!(found.is_err(), "page {no} reads as {found:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_without_a_ring_opens_with_a_caveat_where_pages_may_be_torn() {
    let mut fixture = offering(PAGE, true);
    let store = builder(&fixture).ring_pages(0).open().await.unwrap();
    let space = grown(&store).await;
    store.close().await.unwrap();
    let without = |fixture: &Fixture| {
        let hdd = Arc::clone(&fixture.hdd) as SharedDevice;
        PageStore::builder()
            .manifest(OnHdd { bytes_max: 256 << 10, ..OnHdd::default() })
            .ssd_bytes(0)
            .hdd(hdd)
    };
    assert_eq!(homes(&without(&fixture).open().await.unwrap()), HomeWrites::Whole);
    fixture.hdd = copied(&fixture.hdd, 512);
    assert!(without(&fixture).inspect().await.unwrap().not_promised.contains(&Caveat::NoRing));
    let store = without(&fixture).open().await.unwrap();
    assert_eq!((homes(&store), read(&store, space, 0).await.unwrap()), (HomeWrites::InPlace, 1));
}
