//! The simulated device's guarantees to crash and fault tests.

use crate::common::{bufs_of, runtime};
use pagetier_devio::{Device, DeviceErrorKind, IoBuf, IoClass, IoOp};
use pagetier_testing::{Fault, FaultEffect, FlushFailure, SimDevice, SimPower};
use std::collections::BTreeSet;
use std::time::Duration;

const PAGE: usize = 4096;

async fn write(device: &SimDevice, page: u64, fill: u8) -> Result<(), DeviceErrorKind> {
    let bufs = [IoBuf::copy_of(&[fill; PAGE])].into_iter().collect();
    device.write(page * PAGE as u64, bufs, IoClass::Clean).await.result.map_err(|error| error.kind)
}

async fn read(device: &SimDevice, page: u64) -> Result<Vec<u8>, DeviceErrorKind> {
    let completion = device.read(page * PAGE as u64, bufs_of(&[PAGE]), IoClass::Demand).await;
    completion.result.map_err(|error| error.kind)?;
    Ok(completion.bufs[0].as_slice().to_vec())
}

fn sim(seed: u64) -> SimDevice {
    SimDevice::new("sim", 1 << 20, seed, &SimPower::new())
}

#[tokio::test(flavor = "current_thread")]
async fn flushed_writes_survive_and_others_may_be_torn() {
    let device = sim(1);
    write(&device, 0, 1).await.expect("written");
    write(&device, 1, 1).await.expect("written");
    device.flush(IoClass::Meta).await.expect("flushed");
    write(&device, 1, 2).await.expect("written");
    write(&device, 1, 3).await.expect("written");
    assert_eq!((device.unflushed(), read(&device, 1).await.expect("read")), (2, vec![3; PAGE]));
    let mut outcomes = BTreeSet::new();
    for seed in 0..300 {
        let after = device.after_power_cut(seed, &SimPower::new());
        assert_eq!(read(&after, 0).await.expect("read"), vec![1; PAGE]);
        let page = read(&after, 1).await.expect("read");
        assert!(page.chunks(512).all(|sector| sector.iter().all(|b| *b == sector[0])), "sectors are whole");
        outcomes.insert(page.chunks(512).map(|sector| sector[0]).collect::<Vec<_>>());
        assert_eq!(after.unflushed(), 0);
        assert_eq!(after.snapshot(), device.after_power_cut(seed, &SimPower::new()).snapshot(), "by seed");
    }
    for whole in [1, 2, 3] {
        assert!(outcomes.contains(&vec![whole; 8]), "all {whole}");
    }
    assert!(outcomes.len() > 10, "{}", outcomes.len());
    let killed = device.after_kill(0, &SimPower::new());
    assert_eq!(read(&killed, 1).await.expect("read"), vec![3; PAGE]);
}

/// The first byte of each sector of page 0 after each of many power cuts.
fn sectors_after_power_cuts(device: &SimDevice) -> BTreeSet<Vec<u8>> {
    let sectors = |seed| {
        let bytes = device.after_power_cut(seed, &SimPower::new()).snapshot();
        bytes[..PAGE].chunks(512).map(|sector| sector[0]).collect()
    };
    (0..300).map(sectors).collect()
}

#[tokio::test(flavor = "current_thread")]
async fn a_discard_is_volatile_until_a_flush() {
    let device = sim(1);
    write(&device, 0, 1).await.expect("written");
    device.flush(IoClass::Meta).await.expect("flushed");
    device.discard(0, PAGE as u64).await.expect("discarded");
    assert_eq!((device.unflushed(), read(&device, 0).await.expect("read")), (1, vec![0; PAGE]));
    let outcomes = sectors_after_power_cuts(&device);
    assert!(outcomes.contains(&vec![0; 8]) && outcomes.contains(&vec![1; 8]) && outcomes.len() > 10);

    // A write before or after it may be on either side of it.
    write(&device, 0, 2).await.expect("written");
    let outcomes = sectors_after_power_cuts(&device);
    assert!((0..3).all(|whole| outcomes.contains(&vec![whole; 8])), "{outcomes:?}");

    let killed = device.after_kill(0, &SimPower::new());
    assert_eq!(read(&killed, 0).await.expect("read"), vec![2; PAGE]);
    assert_eq!(sectors_after_power_cuts(&killed), outcomes, "a kill changes nothing about it");

    device.discard(0, PAGE as u64).await.expect("discarded");
    device.flush(IoClass::Meta).await.expect("flushed");
    assert_eq!((device.unflushed(), sectors_after_power_cuts(&device)), (0, [vec![0; 8]].into()));
}

#[tokio::test(flavor = "current_thread")]
async fn a_failed_discard_may_have_happened_in_part() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..50 {
        let device = sim(seed);
        write(&device, 0, 1).await.expect("written");
        device.inject(Fault::new(FaultEffect::Eio).on(IoOp::Discard).times(1));
        device.discard(0, PAGE as u64).await.expect_err("failed");
        device.flush(IoClass::Meta).await.expect("flushed");
        outcomes.extend(sectors_after_power_cuts(&device));
        // Damage to a volatile discard is not undone when it becomes durable.
        device.discard(0, PAGE as u64).await.expect("discarded");
        device.implant(1024, &[9; 512]);
        device.flush(IoClass::Meta).await.expect("flushed");
        assert_eq!(sectors_after_power_cuts(&device), [vec![0, 0, 9, 0, 0, 0, 0, 0]].into());
    }
    assert!(outcomes.len() > 10, "{outcomes:?}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_device_without_power_is_not_cut() {
    let power = SimPower::new();
    let device = SimDevice::new("a", 2 * PAGE as u64, 1, &power);
    write(&device, 1, 1).await.expect("written");
    device.flush(IoClass::Meta).await.expect("flushed");
    power.cut_now();
    device.cut(PAGE as u64).expect_err("no power");
    let returned = device.after_power_cut(1, &SimPower::new());
    assert_eq!(returned.size(), 2 * PAGE as u64);
    assert_eq!(read(&returned, 1).await.expect("read"), vec![1; PAGE]);
}

#[tokio::test(flavor = "current_thread")]
async fn the_power_is_cut_for_all_at_an_operation() {
    let power = SimPower::new();
    let (hdd, ssd) = (SimDevice::new("hdd", 1 << 20, 1, &power), SimDevice::new("ssd", 1 << 20, 2, &power));
    power.cut_at(3);
    write(&hdd, 0, 1).await.expect("first");
    write(&ssd, 0, 1).await.expect("second");
    hdd.flush(IoClass::Meta).await.expect("third");
    assert!(power.is_cut());
    for device in [&hdd, &ssd] {
        assert!(matches!(write(device, 0, 2).await, Err(DeviceErrorKind::Gone)));
        assert!(matches!(read(device, 0).await, Err(DeviceErrorKind::Gone)));
        assert!(device.flush(IoClass::Meta).await.is_err());
        assert!(device.grow(2 << 20).is_err());
    }
    assert_eq!(power.ops(), 3);
    let after = hdd.after_power_cut(5, &SimPower::new());
    assert_eq!(read(&after, 0).await.expect("read"), vec![1; PAGE]);
}

#[test]
fn operations_in_flight_at_a_power_cut_may_land() {
    runtime(true).block_on(async {
        let power = SimPower::new();
        let device = SimDevice::new("sim", 1 << 20, 3, &power).with_latency(Duration::from_millis(10));
        let bufs = [IoBuf::copy_of(&[7; PAGE])].into_iter().collect();
        let write = device.write(0, bufs, IoClass::Clean);
        power.cut_now();
        assert!(matches!(write.await.result.expect_err("cut").kind, DeviceErrorKind::Gone));
        let landed: BTreeSet<usize> = (0..100)
            .map(|seed| {
                device.after_power_cut(seed, &SimPower::new()).snapshot()[..PAGE]
                    .iter()
                    .filter(|b| **b == 7)
                    .count()
            })
            .collect();
        assert!(landed.contains(&0) && landed.contains(&PAGE) && landed.len() > 4, "{landed:?}");
    });
}

#[test]
fn latency_shuffles_completions_by_seed() {
    let run = |seed| {
        runtime(true).block_on(async move {
            let device = std::sync::Arc::new(
                SimDevice::new("sim", 1 << 20, seed, &SimPower::new()).with_latency(Duration::from_secs(1)),
            );
            let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
            let tasks: Vec<_> = (0..20)
                .map(|page| {
                    let (device, order) = (device.clone(), order.clone());
                    tokio::spawn(async move {
                        write(&device, page, 1).await.expect("written");
                        order.lock().expect("no panic").push(page);
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("no panic");
            }
            order.lock().expect("no panic").clone()
        })
    };
    assert_eq!(run(4), run(4));
    assert_ne!(run(4), run(5));
    assert_ne!(run(4), (0..20).collect::<Vec<_>>());
}

#[tokio::test(flavor = "current_thread")]
async fn faults_hit_where_and_as_often_as_planned() {
    let device = sim(6);
    let page = PAGE as u64;
    device.inject(Fault::new(FaultEffect::Eio).on(IoOp::Read).within(2 * page..3 * page).times(2));
    for _ in 0..2 {
        assert!(matches!(read(&device, 2).await, Err(DeviceErrorKind::Io(_))));
        assert!(read(&device, 1).await.is_ok() && read(&device, 3).await.is_ok());
    }
    assert!(read(&device, 2).await.is_ok());
    let next = device.ops() + 1;
    device.inject(Fault::new(FaultEffect::NoSpace).on(IoOp::Write).from_op(next + 1));
    assert!(write(&device, 0, 1).await.is_ok());
    for _ in 0..3 {
        assert!(matches!(write(&device, 0, 2).await, Err(DeviceErrorKind::NoSpace)));
    }
    device.clear_faults();
    assert_eq!(read(&device, 0).await.expect("read"), vec![1; PAGE]);
    device.set_present(false);
    assert!(matches!(read(&device, 0).await, Err(DeviceErrorKind::Gone)));
    device.set_present(true);
    assert_eq!(read(&device, 0).await.expect("read"), vec![1; PAGE]);
    let errors = device.stats().errors;
    assert_eq!((errors.io, errors.no_space, errors.gone), (2, 3, 1));
}

#[tokio::test(flavor = "current_thread")]
async fn quiet_faults() {
    let device = sim(8);
    write(&device, 0, 1).await.expect("written");
    device.inject(Fault::new(FaultEffect::Lost).on(IoOp::Write).times(1));
    write(&device, 0, 2).await.expect("it says so");
    assert_eq!(read(&device, 0).await.expect("read"), vec![1; PAGE]);

    device.inject(Fault::new(FaultEffect::Misdirected(PAGE as u64)).on(IoOp::Write).times(1));
    write(&device, 0, 3).await.expect("it says so");
    assert_eq!(read(&device, 0).await.expect("read"), vec![1; PAGE]);
    assert_eq!(read(&device, 1).await.expect("read"), vec![3; PAGE]);

    device.inject(Fault::new(FaultEffect::BitFlip).on(IoOp::Read).times(1));
    let flipped = read(&device, 0).await.expect("read");
    assert_eq!(flipped.iter().map(|b| (b ^ 1).count_ones()).sum::<u32>(), 1);
    assert_eq!(read(&device, 0).await.expect("read"), vec![1; PAGE]);

    device.flip_bit(10, 3);
    let corrupt = read(&device, 0).await.expect("read");
    assert_eq!((corrupt[10], corrupt[9]), (1 ^ 8, 1));

    device.inject(Fault::new(FaultEffect::Short).times(1));
    write(&device, 0, 4).await.expect("continued");
    assert_eq!((read(&device, 0).await.expect("read"), device.stats().retries.short), (vec![4; PAGE], 1));
}

/// A device on which version 1 of page 0 is durable and the flush of version 2 has failed.
async fn after_failed_flush(seed: u64, model: FlushFailure) -> SimDevice {
    let device = sim(seed).with_flush_failure(model);
    write(&device, 0, 1).await.expect("written");
    device.flush(IoClass::Meta).await.expect("flushed");
    write(&device, 0, 2).await.expect("written");
    device.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
    assert!(device.flush(IoClass::Meta).await.is_err());
    device
}

/// The fills of the page's sectors after power cuts.
async fn fills(device: &SimDevice, cuts: u64) -> BTreeSet<u8> {
    let mut found = BTreeSet::new();
    for seed in 0..cuts {
        found.extend(read(&device.after_power_cut(seed, &SimPower::new()), 0).await.expect("read"));
    }
    found
}

#[tokio::test(flavor = "current_thread")]
async fn writes_whose_flush_failed_may_stay_in_the_cache() {
    for seed in 0..20 {
        let device = after_failed_flush(seed, FlushFailure::Cached).await;
        assert_eq!(read(&device, 0).await.expect("read"), vec![2; PAGE]);
        assert_eq!(fills(&device, 50).await, [1, 2].into());
        device.flush(IoClass::Meta).await.expect("flushed");
        assert_eq!(fills(&device, 20).await, [2].into());
    }
}

#[tokio::test(flavor = "current_thread")]
async fn writes_whose_flush_failed_may_be_readable_and_never_durable() {
    let mut lost = 0;
    for seed in 0..20 {
        let device = after_failed_flush(seed, FlushFailure::NeverDurable).await;
        device.flush(IoClass::Meta).await.expect("flushed");
        assert_eq!(read(&device, 0).await.expect("read"), vec![2; PAGE]);
        lost += usize::from(fills(&device, 20).await.contains(&1));
        // The death of the process does not change that.
        let killed = device.after_kill(seed, &SimPower::new());
        killed.flush(IoClass::Meta).await.expect("flushed");
        assert_eq!(read(&killed, 0).await.expect("read"), vec![2; PAGE]);
        assert_eq!(fills(&killed, 20).await.contains(&1), fills(&device, 20).await.contains(&1));
        // Once rewritten, the page behaves like any other write.
        write(&device, 0, 3).await.expect("written");
        device.flush(IoClass::Meta).await.expect("flushed");
        assert_eq!(fills(&device, 20).await, [3].into());
    }
    assert!(lost > 10, "{lost}");
}

#[tokio::test(flavor = "current_thread")]
async fn writes_whose_flush_failed_may_be_gone_at_once() {
    let mut gone = 0;
    for seed in 0..20 {
        let device = after_failed_flush(seed, FlushFailure::Reverted).await;
        let page = read(&device, 0).await.expect("read");
        assert_eq!(device.unflushed(), 0);
        gone += usize::from(page == vec![1; PAGE]);
        let fills_of_page: BTreeSet<u8> = page.into_iter().collect();
        assert_eq!(fills(&device, 20).await, fills_of_page, "what can be read is durable");
    }
    assert!(gone > 5, "{gone}");
    // A write that the flush did not cover stays.
    let power = SimPower::new();
    let device = SimDevice::new("sim", 1 << 20, 1, &power).with_flush_failure(FlushFailure::Reverted);
    write(&device, 0, 1).await.expect("written");
    device.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
    let flush = device.flush(IoClass::Meta);
    write(&device, 1, 2).await.expect("written");
    assert!(flush.await.is_err());
    assert_eq!(read(&device, 1).await.expect("read"), vec![2; PAGE]);
}

#[tokio::test(flavor = "current_thread")]
async fn a_kill_is_not_a_flush() {
    let device = sim(12);
    write(&device, 0, 1).await.expect("written");
    device.flush(IoClass::Meta).await.expect("flushed");
    write(&device, 0, 2).await.expect("written");
    let killed = device.after_kill(0, &SimPower::new());
    assert_eq!((read(&killed, 0).await.expect("read"), killed.unflushed()), (vec![2; PAGE], 1));
    assert_eq!(fills(&killed, 50).await, [1, 2].into());
    // A second kill changes nothing; only a flush makes it durable.
    let again = killed.after_kill(1, &SimPower::new());
    assert_eq!(fills(&again, 50).await, [1, 2].into());
    again.flush(IoClass::Meta).await.expect("flushed");
    assert_eq!(fills(&again, 50).await, [2].into());
    assert_eq!(fills(&killed, 50).await, [1, 2].into(), "a copy of its own");
}

#[test]
fn operations_in_flight_at_a_kill_land_whole_torn_or_not() {
    runtime(true).block_on(async {
        let device = sim(13).with_latency(Duration::from_millis(10));
        let bufs = [IoBuf::copy_of(&[7; PAGE])].into_iter().collect();
        let _in_flight = device.write(0, bufs, IoClass::Clean);
        let mut sectors = BTreeSet::new();
        for seed in 0..100 {
            let killed = device.after_kill(seed, &SimPower::new());
            let landed = killed.snapshot()[..PAGE].iter().filter(|b| **b == 7).count();
            assert_eq!(landed > 0, killed.unflushed() > 0, "what landed is volatile");
            sectors.insert(landed / 512);
        }
        assert!(sectors.contains(&0) && sectors.contains(&8) && sectors.len() > 4, "{sectors:?}");
    });
}

#[test]
fn an_operation_whose_future_is_dropped_is_carried_out() {
    runtime(true).block_on(async {
        let device = sim(14).with_latency(Duration::from_millis(10));
        device.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(5))).on(IoOp::Write).times(1));
        let bufs = [IoBuf::copy_of(&[7; PAGE])].into_iter().collect();
        drop(device.write(0, bufs, IoClass::Clean));
        write(&device, 0, 8).await.expect("written");
        assert_eq!(read(&device, 0).await.expect("read"), vec![8; PAGE]);
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(read(&device, 0).await.expect("read"), vec![7; PAGE], "the older write came later");
    });
}

#[tokio::test(flavor = "current_thread")]
async fn growth_fails_as_planned_and_is_undone_by_a_power_cut() {
    let device = sim(15);
    let (small, big) = (1_u64 << 20, 2_u64 << 20);
    device.inject(Fault::new(FaultEffect::NoSpace).on(IoOp::Grow).from_op(2).times(1));
    device.inject(Fault::new(FaultEffect::Eio).on(IoOp::Grow).from_op(3).times(1));
    device.grow(small + 4096).expect("the first");
    assert!(matches!(device.grow(big).expect_err("the second").kind, DeviceErrorKind::NoSpace));
    assert!(matches!(device.grow(big).expect_err("the third").kind, DeviceErrorKind::Io(_)));
    assert_eq!(device.size(), small + 4096);
    device.grow(big).expect("the fourth");
    write(&device, 300, 1).await.expect("written");
    let sizes = |device: &SimDevice| -> BTreeSet<u64> {
        (0..20).map(|seed| device.after_power_cut(seed, &SimPower::new()).size()).collect()
    };
    assert_eq!((sizes(&device), device.after_kill(0, &SimPower::new()).size()), ([small, big].into(), big));
    for seed in 0..50 {
        let after = device.after_power_cut(seed, &SimPower::new());
        if after.size() < big {
            after.grow(big).expect("grown again");
            assert_eq!(read(&after, 300).await.expect("read"), vec![0; PAGE]);
        }
    }
    device.flush(IoClass::Meta).await.expect("flushed");
    assert_eq!(sizes(&device), [big].into());
}

#[tokio::test(flavor = "current_thread")]
async fn atomic_writes_are_never_torn() {
    let device = sim(17).with_atomic_writes(PAGE);
    device.keep_whole(PAGE);
    write(&device, 0, 1).await.expect("written");
    write(&device, 1, 1).await.expect("written");
    let mut outcomes = BTreeSet::new();
    for seed in 0..50 {
        let after = device.after_power_cut(seed, &SimPower::new());
        let pages = [read(&after, 0).await.expect("read"), read(&after, 1).await.expect("read")];
        assert!(pages.iter().all(|page| page.iter().all(|b| *b == page[0])));
        outcomes.insert(pages.map(|page| page[0]));
    }
    assert_eq!(outcomes.len(), 4);
}

#[tokio::test(flavor = "current_thread")]
async fn of_several_pages_that_are_refused_some_may_land() {
    let device = sim(19).with_atomic_writes(PAGE);
    device.keep_whole(PAGE);
    let mut landed = BTreeSet::new();
    for version in 1..50 {
        device.inject(Fault::new(FaultEffect::NotWhole).times(1));
        let pages = [version; 2].map(|version| IoBuf::copy_of(&[version; PAGE])).into_iter().collect();
        let refused = device.write(0, pages, IoClass::Clean).await.result.expect_err("refused");
        assert!(matches!(refused.kind, DeviceErrorKind::NotWhole(_)), "{refused}");
        let pages = [read(&device, 0).await.expect("read"), read(&device, 1).await.expect("read")];
        assert!(pages.iter().all(|page| page.iter().all(|b| *b == page[0])), "none is torn");
        landed.insert(pages.map(|page| page[0] == version));
    }
    assert!(landed.len() > 2, "{landed:?}");
}

#[tokio::test(flavor = "current_thread")]
#[should_panic(expected = "operations without end")]
async fn a_caller_that_asks_for_ever_is_stopped() {
    let power = SimPower::new();
    let device = SimDevice::new("sim", 1 << 20, 1, &power);
    power.cut_now();
    power.panic_after_refusals(1000);
    while read(&device, 0).await.is_err() {}
}

#[tokio::test(flavor = "current_thread")]
async fn devices_are_copied_cut_short_and_rot() {
    let device = sim(16);
    write(&device, 0, 1).await.expect("written");
    write(&device, 9, 1).await.expect("written");
    let copy = device.fork(1, &SimPower::new());
    write(&device, 0, 2).await.expect("written");
    assert_eq!((read(&copy, 0).await.expect("read"), copy.unflushed()), (vec![1; PAGE], 2));
    let short = device.truncated(8 * PAGE as u64, 1, &SimPower::new());
    assert_eq!((short.size(), device.size()), (8 * PAGE as u64, 1 << 20));
    assert!(read(&short, 9).await.is_err());
    short.grow(1 << 20).expect("grown");
    assert_eq!(read(&short, 9).await.expect("read"), vec![0; PAGE]);
    // Corruption is visible to reads, and after a power cut whether or not the write was durable.
    device.flush(IoClass::Meta).await.expect("flushed");
    write(&device, 0, 3).await.expect("written");
    device.rot(512..1024, 4);
    for after in [device.fork(2, &SimPower::new()), device.after_power_cut(3, &SimPower::new())] {
        let page = read(&after, 0).await.expect("read");
        assert!(page[512..1024].iter().any(|b| *b > 3), "the sector is random");
        assert!(page[..512].iter().chain(&page[1024..]).all(|b| *b == 2 || *b == 3));
    }
    device.implant((1 << 20) - 2, &[9; 4]);
    assert_eq!(device.snapshot()[(1 << 20) - 3..], [0, 9, 9]);
}

#[tokio::test(flavor = "current_thread")]
async fn a_failed_write_may_have_landed_in_part() {
    let outcomes: BTreeSet<usize> = {
        let mut outcomes = BTreeSet::new();
        for seed in 0..50 {
            let device = sim(seed);
            device.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write).times(1));
            assert!(write(&device, 0, 5).await.is_err());
            outcomes.insert(read(&device, 0).await.expect("read").iter().filter(|b| **b == 5).count());
        }
        outcomes
    };
    assert!(outcomes.len() > 4 && outcomes.iter().all(|n| n % 512 == 0), "{outcomes:?}");
}

#[test]
fn slow_operations_take_virtual_time() {
    runtime(true).block_on(async {
        let device = sim(10);
        device.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(30))).on(IoOp::Read).times(1));
        let began = tokio::time::Instant::now();
        read(&device, 0).await.expect("read");
        assert_eq!(began.elapsed(), Duration::from_secs(30));
        read(&device, 0).await.expect("read");
        assert_eq!(began.elapsed(), Duration::from_secs(30));
    });
}
