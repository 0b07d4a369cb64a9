//! The I/O of a dropped store: no operation starts, and the device is free once the last one in flight has
//! ended.

use crate::common::{every_subject, runtime};
use pagetier_devio::{
    Backend, Device, DeviceError, DeviceErrorKind, DeviceStats, DoneFuture, Fence, IoBuf, IoBufs, IoClass,
    IoFuture, Kept, MemoryDevice, Occupancy, Occupied, OpenOptions, SharedDevice, open_file,
};
use pagetier_testing::{DeviceModel, EmulatedClock, EmulatedDevice, SimDevice, SimPower, SimSeat};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

fn page() -> IoBufs {
    IoBufs::from_iter([IoBuf::zeroed(4096)])
}

fn sim() -> SharedDevice {
    let device = SimDevice::new("sim", 1 << 20, 1, &SimPower::new());
    Arc::new(device.with_latency(Duration::from_millis(5)))
}

fn emulated() -> SharedDevice {
    Arc::new(EmulatedDevice::new(
        Arc::new(MemoryDevice::new("disk", 1 << 20)),
        DeviceModel::paper_hdd(),
        EmulatedClock::Tokio,
    ))
}

#[tokio::test(start_paused = true)]
async fn behind_a_closed_fence_nothing_starts() {
    let (device, fence) = (sim(), Fence::default());
    let fenced = fence.guard(Arc::clone(&device));
    fenced.write(0, page(), IoClass::Clean).await.result.unwrap();
    assert_eq!((fenced.alignment(), fenced.size()), (device.alignment(), device.size()));
    fence.close();
    let ops = device.stats().class(IoClass::Clean).write.ops;
    let closed = |kind: &DeviceErrorKind| matches!(kind, DeviceErrorKind::Closed);
    let done = fenced.write(0, page(), IoClass::Clean).await;
    assert!(closed(&done.result.unwrap_err().kind));
    assert_eq!(done.bufs.len(), 1, "the buffers come back");
    assert!(closed(&fenced.read(0, page(), IoClass::Demand).await.result.unwrap_err().kind));
    assert!(closed(&fenced.flush(IoClass::Meta).await.unwrap_err().kind));
    assert!(closed(&fenced.discard(0, 4096).await.unwrap_err().kind));
    assert!(closed(&fenced.grow(2 << 20).unwrap_err().kind));
    assert_eq!((device.size(), device.stats().class(IoClass::Clean).write.ops), (1 << 20, ops));
    assert_eq!(fence.while_open(|| ()), None);
}

#[tokio::test(start_paused = true)]
async fn a_device_is_free_when_the_last_operation_has_ended_though_its_future_was_dropped() {
    for device in [sim(), emulated()] {
        let occupancy = device.occupancy();
        occupancy.occupy().unwrap();
        assert_eq!(occupancy.occupy(), Err(Occupied::Running));
        {
            let mut write = pin!(device.write(4096, page(), IoClass::Clean));
            let _ = write.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        drop(device.flush(IoClass::Meta));
        let locks: Kept = Arc::new(());
        occupancy.leave(Arc::clone(&locks));
        assert_eq!((occupancy.occupy(), Arc::strong_count(&locks)), (Err(Occupied::Leaving), 2));
        assert!(occupancy.in_flight() > 0);
        occupancy.vacated().await;
        assert_eq!((occupancy.in_flight(), Arc::strong_count(&locks)), (0, 1));
        occupancy.occupy().unwrap();
        occupancy.leave(locks);
        occupancy.occupy().unwrap();
    }
}

#[tokio::test]
async fn files_know_when_their_operations_have_ended() {
    let directory = tempfile::tempdir().unwrap();
    for backend in [Backend::Auto, Backend::Threads] {
        let options = OpenOptions { backend, create: true, ..OpenOptions::default() };
        let device = open_file(&directory.path().join("file"), &options).unwrap().device;
        device.grow(1 << 20).unwrap();
        device.occupancy().occupy().unwrap();
        for at in 0..64 {
            drop(device.write(at * 4096, page(), IoClass::Clean));
            drop(device.read(at * 4096, page(), IoClass::Demand));
        }
        drop(device.flush(IoClass::Meta));
        device.occupancy().leave(Arc::new(()));
        device.occupancy().vacated().await;
        assert_eq!(device.occupancy().in_flight(), 0, "{backend:?}");
    }
}

#[test]
fn every_change_is_counted_on_every_device_whichever_handle_it_takes() {
    for subject in every_subject() {
        runtime(subject.paused).block_on(async {
            let guard = || Fence::default().guard(Arc::clone(&subject.device));
            let (one, other) = (guard(), guard());
            assert_eq!(subject.device.settled(), None, "{}: only the fence counts", subject.name);
            for by in [&one, &other] {
                let counted = async |what: &str, act: &dyn Fn() -> DoneFuture| {
                    let before = one.settled();
                    let _ = act().await;
                    let after = one.settled();
                    assert!(after.is_some() && after != before, "{}: {what}", subject.name);
                };
                let write = |at| {
                    let write = by.write(at, page(), IoClass::Clean);
                    Box::pin(async { write.await.result }) as DoneFuture
                };
                let at_once = |done| Box::pin(std::future::ready(done)) as DoneFuture;
                counted("write", &|| write(0)).await;
                counted("failed write, which may have landed in part", &|| write(by.size())).await;
                counted("discard", &|| by.discard(0, 4096)).await;
                counted("growth", &|| at_once(by.grow(by.size()))).await;
                counted("cut", &|| at_once(by.cut(by.size()))).await;
                let before = one.settled();
                by.read(0, page(), IoClass::Demand).await.result.unwrap();
                by.flush(IoClass::Meta).await.unwrap();
                assert_eq!(one.settled(), before, "{}: reads and flushes change nothing", subject.name);
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_is_not_settled_while_it_is_in_flight_or_its_future_was_dropped() {
    for device in [sim(), emulated()] {
        let fenced = Fence::default().guard(Arc::clone(&device));
        assert_eq!(fenced.settled(), Some(0));
        let write = fenced.write(0, page(), IoClass::Clean);
        assert_eq!(fenced.settled(), None);
        write.await.result.unwrap();
        assert_eq!(fenced.settled(), Some(1));
        {
            let mut write = pin!(fenced.write(4096, page(), IoClass::Clean));
            let _ = write.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        assert_eq!(fenced.settled(), None, "its end is not seen");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(fenced.settled(), Some(2));
    }
}

/// A device of another crate: it knows nothing of counts.
#[derive(Debug)]
struct Foreign(MemoryDevice, Occupancy);

impl Device for Foreign {
    fn occupancy(&self) -> &Occupancy {
        &self.1
    }

    fn backend(&self) -> &'static str {
        "foreign"
    }

    pagetier_devio::delegate! { self => self.0;
        fn read(offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture;
        fn write(offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture;
        fn flush(class: IoClass) -> DoneFuture;
        fn size() -> u64;
        fn grow(bytes: u64) -> Result<(), DeviceError>;
        fn discard(offset: u64, len: u64) -> DoneFuture;
        fn alignment() -> usize;
        fn stats() -> DeviceStats;
        fn name() -> &str;
    }
}

#[tokio::test]
async fn changes_of_a_device_that_does_not_count_them_are_counted_in_front_of_it() {
    let foreign: SharedDevice =
        Arc::new(Foreign(MemoryDevice::new("foreign", 1 << 20), Occupancy::default()));
    assert_eq!(foreign.settled(), None);
    let fenced = Fence::default().guard(foreign);
    fenced.write(0, page(), IoClass::Clean).await.result.unwrap();
    assert_eq!(fenced.settled(), Some(1));
    fenced.discard(0, 4096).await.unwrap();
    fenced.grow(2 << 20).unwrap();
    assert_eq!(fenced.settled(), Some(3));
}

/// Two machines' seats at one volume.
#[tokio::test(start_paused = true)]
async fn behind_a_fence_operations_wait_for_a_claim_that_has_lapsed_and_a_banned_seat_is_refused() {
    let volume = Arc::new(SimDevice::new("sim", 1 << 20, 1, &SimPower::new()));
    let (seat, other) = (Arc::new(SimSeat::new(&volume)), Arc::new(SimSeat::new(&volume)));
    let fenced = Fence::default().guard(Arc::clone(&seat) as SharedDevice);
    let claim = fenced.claim().unwrap();
    claim.limit(claim.now(), Duration::from_secs(1));
    fenced.write(0, page(), IoClass::Clean).await.result.unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    let mut waiting = pin!(fenced.write(4096, page(), IoClass::Clean));
    let soon = tokio::time::timeout(Duration::from_secs(5), &mut waiting).await;
    assert!(soon.is_err() && volume.stats().class(IoClass::Clean).write.ops == 1);
    claim.renew(claim.now(), Duration::from_secs(1));
    waiting.await.result.unwrap();
    assert_eq!(volume.stats().class(IoClass::Clean).write.ops, 2);
    tokio::time::advance(Duration::from_secs(1)).await;
    let waiting = fenced.flush(IoClass::Clean);
    seat.ban(true);
    // An operation that is not behind the fence learns of the ban.
    let refused = seat.read(0, page(), IoClass::Meta).await.result.unwrap_err();
    assert!(matches!(refused.kind, DeviceErrorKind::Fenced) && claim.has_ended());
    assert!(matches!(waiting.await.unwrap_err().kind, DeviceErrorKind::Fenced));
    seat.ban(false);
    let refused = fenced.read(0, page(), IoClass::Meta).await.result.unwrap_err();
    assert!(matches!(refused.kind, DeviceErrorKind::Fenced), "a claim that has ended stays so");
    assert!(other.claim().unwrap().holds());
    other.read(0, page(), IoClass::Meta).await.result.unwrap();
}
