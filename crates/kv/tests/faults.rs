//! The log fails, the disk is full, the SSD is lost: the engine returns the right error and loses nothing
//! confirmed.

use crate::world::{World, contents, expect_sound};
use pagetier::{
    Error, SsdMode,
    device::{DeviceErrorKind, IoOp},
    errors::{PoolError, TierError},
};
use pagetier_kv::{Kv, KvError};
use pagetier_testing::{Fault, FaultEffect, SimDevice};
use pagetier_wal::{Keep, RecoverError, UnfitLog};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::sync::Arc;
use std::time::Duration;

fn key(number: u32) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

fn value(number: u32, version: u8) -> Vec<u8> {
    // One value in forty is stored in its own pages.
    let bytes = if number % 40 == 7 { 9_000 } else { 100 + number as usize % 200 };
    let mut value = vec![version; bytes];
    value[..4].copy_from_slice(&number.to_le_bytes());
    value
}

async fn put_all(kv: &Kv, numbers: std::ops::Range<u32>, version: u8) {
    for number in numbers {
        kv.put_unsynced(&key(number), &value(number, version)).await.unwrap();
    }
    kv.sync().await.unwrap();
}

async fn expect_all(kv: &Kv, numbers: std::ops::Range<u32>, version: u8) {
    for number in numbers {
        let found = kv.get(&key(number)).await.unwrap();
        assert!(found == Some(value(number, version)), "entry {number}");
    }
}

/// Each of the entries has version 3 if that change was confirmed, otherwise 2 or 3.
async fn expect_confirmed(kv: &Kv, confirmed: &[bool], numbers: std::ops::Range<u32>) {
    for number in numbers {
        let found = kv.get(&key(number)).await.unwrap();
        let is = |version| found == Some(value(number, version));
        let confirmed = confirmed[number as usize];
        assert!(is(3) || (!confirmed && is(2)), "entry {number}, confirmed: {confirmed}");
    }
}

/// Crashes the store: drops it and cuts the power. Waits until the operations in flight have ended.
async fn crash(world: &mut World, kv: Kv, seed: u64) {
    drop(kv);
    world.power.cut_now();
    tokio::time::sleep(Duration::from_secs(60)).await;
    world.restart(false, &mut SmallRng::seed_from_u64(seed));
}

#[tokio::test(start_paused = true)]
async fn a_log_that_fails_for_a_while_delays_changes_and_loses_none() {
    for seed in 0..4 {
        let mut world = World::new(seed);
        let kv = world.open().await.unwrap();
        put_all(&kv, 0..300, 1).await;
        world.fail_log(u64::MAX);
        assert!(matches!(kv.put(&key(7), b"late").await, Err(KvError::Log(_))));
        // Until the log works, a change is refused before it changes anything.
        let refused = kv.put(&key(8), b"refused").await;
        assert!(matches!(refused, Err(KvError::Log(_))), "{refused:?}");
        assert_eq!(kv.get(&key(8)).await.unwrap(), Some(value(8, 1)));
        assert!(matches!(kv.delete(&key(9)).await, Err(KvError::Log(_))));
        world.fail_log(0);
        // The disk has room again.
        put_all(&kv, 300..900, 1).await;
        assert_eq!(kv.get(&key(7)).await.unwrap().as_deref(), Some(&b"late"[..]));
        expect_sound(&kv).await;
        crash(&mut world, kv, seed).await;
        let kv = world.open().await.unwrap();
        assert_eq!(kv.get(&key(7)).await.unwrap().as_deref(), Some(&b"late"[..]));
        expect_all(&kv, 8..900, 1).await;
        expect_sound(&kv).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_while_the_log_fails_keeps_what_was_confirmed() {
    for seed in 0..6 {
        let mut world = World::new(seed);
        let kv = world.open().await.unwrap();
        put_all(&kv, 0..400, 1).await;
        world.fail_log(u64::MAX);
        assert!(kv.put(&key(5), b"lost").await.is_err());
        // The gate keeps changes that the log lacks in memory.
        assert!(kv.store().sync().await.is_err());
        crash(&mut world, kv, seed).await;
        let kv = world.open().await.unwrap();
        let five = kv.get(&key(5)).await.unwrap().unwrap();
        assert!(five == value(5, 1) || five == b"lost");
        expect_all(&kv, 6..400, 1).await;
        expect_sound(&kv).await;
    }
}

/// Whether the error reports a full disk, directly or because a page could not be written.
fn reports_a_full_disk(error: &KvError) -> bool {
    match error {
        KvError::Store(Error::Device(device)) => matches!(device.kind, DeviceErrorKind::NoSpace),
        KvError::Store(Error::Pool(PoolError::Tier(
            TierError::Device { source, .. } | TierError::Flush { source },
        ))) => matches!(source.kind, DeviceErrorKind::NoSpace),
        KvError::Store(Error::Pool(PoolError::Exhausted { .. })) => true,
        _ => false,
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_refuses_growth_serves_the_rest_and_takes_up_again_after_deletes() {
    let mut world = World::new(3);
    let power = world.power.clone();
    let small = SimDevice::new("hdd", 0, 3, &power).with_latency(Duration::from_millis(6));
    world.hdd = Arc::new(small.with_size_max(8 << 20));
    let kv = world.open().await.unwrap();
    let mut entries = 0;
    let error = loop {
        assert!(entries < 200_000, "the disk does not fill up");
        match kv.put_unsynced(&key(entries), &value(entries, 1)).await {
            Ok(_) => entries += 1,
            Err(error) => break error,
        }
    };
    assert!(reports_a_full_disk(&error), "{error}");
    kv.sync().await.unwrap();
    expect_all(&kv, 0..entries, 1).await;
    expect_sound(&kv).await;
    // Deleted entries make room for others.
    for number in 0..entries / 2 {
        assert!(kv.delete_unsynced(&key(number)).await.unwrap().is_some());
    }
    let report = kv.check(|_, _| ()).await.unwrap();
    assert!(report.free > 100, "{report:?}");
    put_all(&kv, 0..entries / 4, 2).await;
    crash(&mut world, kv, 5).await;
    let kv = world.open().await.unwrap();
    expect_all(&kv, 0..entries / 4, 2).await;
    expect_all(&kv, entries / 2..entries, 1).await;
    assert_eq!(contents(&kv).await.unwrap().len() as u32, entries / 4 + entries - entries / 2);
    expect_sound(&kv).await;
}

/// A store that was used, crashed and used again, and whose SSD is then replaced by a blank one.
async fn without_its_ssd(keep: Keep, clean: bool) -> World {
    let mut world = World::new(11);
    world.keep = keep;
    let kv = world.open().await.unwrap();
    put_all(&kv, 0..2_000, 1).await;
    crash(&mut world, kv, 1).await;
    let kv = world.open().await.unwrap();
    for round in 0..4 {
        // The last version of every entry is 5.
        put_all(&kv, 0..1_000, 2 + round).await;
    }
    assert!(kv.store().stats().ssd.oldest_lsn.is_some(), "nothing is on the SSD alone");
    if clean {
        kv.shutdown().await.unwrap();
        world.restart(false, &mut SmallRng::seed_from_u64(2));
    } else {
        crash(&mut world, kv, 2).await;
    }
    let blank = SimDevice::new("blank", 0, 9, &world.power);
    world.ssd = Arc::new(blank.with_latency(Duration::from_millis(1)));
    world
}

#[tokio::test(start_paused = true)]
async fn redo_restores_what_a_lost_ssd_had_if_the_log_was_kept_for_that() {
    for clean in [true, false] {
        let mut world = without_its_ssd(Keep::ForSsdLoss, clean).await;
        assert!(matches!(world.open().await, Err(KvError::Open(_))), "opened as if nothing were wrong");
        let kv = world.open_with(world.builder().accept_ssd_loss(true)).await.unwrap();
        assert!(kv.recovered().lost_pages > 0);
        expect_all(&kv, 0..1_000, 5).await;
        expect_all(&kv, 1_000..2_000, 1).await;
        expect_sound(&kv).await;
        // The open acknowledges the loss once the restored pages are durable.
        assert!(kv.store().ssd().loss().is_none());
        crash(&mut world, kv, 4).await;
        let kv = world.open().await.unwrap();
        expect_all(&kv, 0..1_000, 5).await;
        expect_sound(&kv).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_ssd_is_an_error_if_the_log_was_not_kept() {
    for clean in [true, false] {
        let world = without_its_ssd(Keep::ForCrash, clean).await;
        let opened = world.open_with(world.builder().accept_ssd_loss(true)).await;
        assert!(
            matches!(opened, Err(KvError::Recover(RecoverError::Unfit(UnfitLog::SsdLost { pages }))) if pages > 0),
            "{opened:?}"
        );
        // Opening again fails in the same way.
        let opened = world.open_with(world.builder().accept_ssd_loss(true)).await;
        assert!(
            matches!(opened, Err(KvError::Recover(RecoverError::Unfit(UnfitLog::SsdLost { .. })))),
            "{opened:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_log_of_another_store_is_refused_before_redo() {
    let mut other = World::new(2);
    let kv = other.open().await.unwrap();
    put_all(&kv, 0..500, 2).await;
    drop(kv);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut foreign = World::new(3);
    let kv = foreign.open().await.unwrap();
    put_all(&kv, 0..500, 3).await;
    drop(kv);
    tokio::time::sleep(Duration::from_secs(60)).await;
    std::mem::swap(&mut other.log, &mut foreign.log);
    let error = other.open().await.unwrap_err();
    assert!(matches!(error, KvError::Recover(RecoverError::Unfit(UnfitLog::Other { .. }))), "{error}");
    assert_eq!(error.to_string(), "the log is not the one of these pages: put the right one back");
    tokio::time::sleep(Duration::from_secs(60)).await;
    std::mem::swap(&mut other.log, &mut foreign.log);
    let kv = other.open().await.unwrap();
    expect_all(&kv, 0..500, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_log_that_cannot_be_shortened_refuses_changes_with_the_cause_until_the_disk_works() {
    let mut world = World::new(21);
    let kv = world.open().await.unwrap();
    // Every write of a page needs the HDD.
    kv.store().ssd().set_mode(SsdMode::WriteThrough).await.unwrap();
    put_all(&kv, 0..60, 1).await;
    world.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write));
    let (mut puts, mut confirmed) = (0, 0);
    let error = loop {
        assert!(puts < 20_000, "the log does not fill up");
        match kv.put(&key(puts % 40), &value(puts % 40, 2)).await {
            Ok(()) => confirmed += 1,
            Err(error) => break error,
        }
        puts += 1;
    };
    assert!(confirmed >= 40, "{confirmed} changes before {error}");
    assert!(matches!(&error, KvError::LogFull { cause: Some(_) }), "{error:?}");
    // Nothing is lost meanwhile, and reads continue.
    expect_all(&kv, 0..40, 2).await;
    world.hdd.clear_faults();
    put_all(&kv, 0..60, 3).await;
    expect_sound(&kv).await;
    crash(&mut world, kv, 7).await;
    let kv = world.open().await.unwrap();
    expect_all(&kv, 0..60, 3).await;
    expect_sound(&kv).await;
}

#[tokio::test(start_paused = true)]
async fn an_ssd_that_disappears_under_load_and_comes_back_costs_no_confirmed_change() {
    for (seed, keep) in [(31, Keep::ForCrash), (32, Keep::ForSsdLoss), (33, Keep::ForCrash)] {
        let mut world = World::new(seed);
        world.keep = keep;
        let kv = world.open().await.unwrap();
        put_all(&kv, 0..1_500, 1).await;
        kv.store().sync().await.unwrap();
        put_all(&kv, 0..1_500, 2).await;
        assert!(kv.store().stats().ssd.oldest_lsn.is_some(), "nothing is on the SSD alone");
        let mut confirmed = vec![false; 1_500];
        for number in 0..900 {
            if number == 300 {
                world.ssd.set_present(false);
            }
            confirmed[number as usize] = kv.put(&key(number), &value(number, 3)).await.is_ok();
        }
        assert!(confirmed[..300].iter().all(|confirmed| *confirmed));
        let stats = kv.store().stats().ssd;
        assert!(stats.ssd_error.is_some() || stats.refusing.is_some(), "the SSD is not missed");
        world.ssd.set_present(true);
        kv.store().ssd().readmit().await.unwrap();
        expect_confirmed(&kv, &confirmed, 0..1_500).await;
        expect_sound(&kv).await;
        // The store works again, and survives a crash.
        put_all(&kv, 0..400, 4).await;
        crash(&mut world, kv, seed).await;
        let kv = world.open().await.unwrap();
        expect_all(&kv, 0..400, 4).await;
        expect_confirmed(&kv, &confirmed, 400..1_500).await;
        expect_sound(&kv).await;
    }
}

/// The devices whose operations fail during a recovery.
#[derive(Clone, Copy, Debug)]
enum Failing {
    Hdd,
    Ssd,
    Log,
}

#[tokio::test(start_paused = true)]
async fn a_recovery_in_which_an_operation_fails_is_repeated_without_loss() {
    let mut world = World::new(41);
    let kv = world.open().await.unwrap();
    put_all(&kv, 0..1_200, 1).await;
    crash(&mut world, kv, 1).await;
    let mut failed = 0;
    let cases = [Failing::Hdd, Failing::Ssd, Failing::Log].into_iter().flat_map(|of| {
        let last = if matches!(of, Failing::Log) { 3 } else { 60 };
        (1..=last).step_by(if last > 3 { 3 } else { 1 }).map(move |n| (of, n))
    });
    for (case, (of, n)) in cases.enumerate() {
        let fault = |op| Fault::new(FaultEffect::Eio).on(op).from_op(n).times(1);
        let inject = |device: &SimDevice| {
            for op in [IoOp::Read, IoOp::Write, IoOp::Flush] {
                device.inject(fault(op));
            }
        };
        match of {
            Failing::Hdd => inject(&world.hdd),
            Failing::Ssd => inject(&world.ssd),
            Failing::Log => world.fail_log(n),
        }
        let opened = world.open().await;
        failed += u32::from(opened.is_err());
        drop(opened);
        for device in [&world.hdd, &world.ssd] {
            device.clear_faults();
        }
        world.fail_log(0);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let kv = world.open().await.unwrap_or_else(|error| panic!("{of:?} {n}: {error}"));
        let version = case as u8 + 1;
        expect_all(&kv, 0..1_200, version).await;
        expect_sound(&kv).await;
        put_all(&kv, 0..1_200, version + 1).await;
        crash(&mut world, kv, u64::from(version)).await;
    }
    assert!(failed >= 10, "only {failed} opens failed");
}
