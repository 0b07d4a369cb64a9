//! The I/O of a dropped store: no operation starts, and the device is free once the last one in flight has
//! ended.

use pagetier_devio::{
    Backend, DeviceErrorKind, DeviceModel, EmulatedClock, EmulatedDevice, Fence, IoBuf, IoBufs, IoClass,
    Kept, MemoryDevice, Occupied, OpenOptions, SharedDevice, SimDevice, SimPower, open_file,
};
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
