//! Emulated devices in virtual and in real time.

use crate::common::{bufs_of, runtime};
use pagetier_devio::{Device, IoBuf, IoClass, MemoryDevice, SharedDevice};
use pagetier_testing::{DeviceModel, EmulatedClock, EmulatedDevice, VirtualClock};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::time::Instant;

const PAGE: usize = 16 << 10;

fn emulated(model: DeviceModel, clock: EmulatedClock) -> Arc<EmulatedDevice> {
    let memory: SharedDevice = Arc::new(MemoryDevice::new("disk", 64 << 20));
    Arc::new(EmulatedDevice::new(memory, model, clock))
}

async fn read(device: &EmulatedDevice, page: u64, class: IoClass) {
    device.read(page * PAGE as u64, bufs_of(&[PAGE]), class).await.result.expect("read");
}

/// A runtime with virtual time that is exact to the nanosecond.
fn exact_runtime(clock: &VirtualClock) -> tokio::runtime::Runtime {
    let idle = clock.clone();
    let advance = |by| {
        let _ = pin!(tokio::time::advance(by)).poll(&mut Context::from_waker(Waker::noop()));
    };
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .on_thread_park(move || idle.idle(advance))
        .build()
        .expect("a runtime")
}

#[test]
fn a_queued_disk_is_busy_all_the_time() {
    runtime(true).block_on(async {
        let device = emulated(DeviceModel::paper_hdd(), EmulatedClock::Tokio);
        let began = Instant::now();
        let tasks: Vec<_> = (0..4)
            .map(|task| {
                let device = Arc::clone(&device);
                tokio::spawn(async move {
                    for page in 0..250 {
                        read(&device, task * 250 + page, IoClass::Demand).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
        let elapsed = began.elapsed();
        // A thousand reads of 7.2 ms, exact except for the tick of the last.
        assert!(
            elapsed >= Duration::from_micros(7_200_000) && elapsed < Duration::from_millis(7_201),
            "{elapsed:?}"
        );
        let stats = device.stats();
        assert_eq!(stats.busy_ns(), 7_200_000_000);
        assert_eq!(stats.class(IoClass::Demand).read.mean_service_ns(), 7_200_000);
        assert!(stats.utilisation(elapsed) > 0.9998);
    });
}

#[test]
fn nothing_completes_before_its_time() {
    runtime(true).block_on(async {
        let device = emulated(DeviceModel::paper_ssd(), EmulatedClock::Tokio);
        for page in 0..20 {
            let began = Instant::now();
            read(&device, page, IoClass::Demand).await;
            let taken = began.elapsed();
            assert!(taken >= Duration::from_micros(110) && taken <= Duration::from_millis(1), "{taken:?}");
        }
        assert_eq!(device.stats().busy_ns(), 20 * 110_000);
    });
}

#[test]
fn a_virtual_clock_is_exact_and_keeps_tokios_timers_in_turn() {
    let clock = VirtualClock::new();
    exact_runtime(&clock).block_on(async {
        let hdd = emulated(DeviceModel::paper_hdd(), EmulatedClock::Virtual(clock.clone()));
        let ssd = emulated(DeviceModel::paper_ssd(), EmulatedClock::Virtual(clock));
        let began = Instant::now();
        let log = Arc::new(Mutex::new(Vec::new()));
        let noted =
            |what: &'static str| log.lock().expect("no panic").push((began.elapsed().as_micros(), what));
        let slow = async {
            read(&hdd, 0, IoClass::Demand).await;
            noted("hdd");
        };
        let fast = async {
            for _ in 0..30 {
                read(&ssd, 0, IoClass::Demand).await;
            }
            noted("ssd");
            hdd.write(0, bufs_of(&[PAGE]), IoClass::Clean).await.result.expect("written");
            noted("write");
        };
        let timers = async {
            tokio::time::sleep(Duration::from_millis(3)).await;
            noted("timer 3");
            tokio::time::sleep(Duration::from_millis(5)).await;
            noted("timer 8");
            tokio::time::sleep(Duration::from_millis(5)).await;
            noted("timer 13");
        };
        tokio::join!(slow, fast, timers);
        let expected = [
            (3_000, "timer 3"),
            (3_300, "ssd"),
            (7_200, "hdd"),
            (8_000, "timer 8"),
            (12_160, "write"),
            (13_000, "timer 13"),
        ];
        assert_eq!(*log.lock().expect("no panic"), expected);
    });
}

#[test]
fn demand_goes_first_and_background_is_not_starved() {
    runtime(true).block_on(async {
        let device = emulated(DeviceModel::paper_hdd(), EmulatedClock::Tokio);
        let order = Arc::new(Mutex::new(Vec::new()));
        let submit = |class: IoClass| {
            let (device, order) = (Arc::clone(&device), Arc::clone(&order));
            let future = device.read(0, bufs_of(&[PAGE]), class);
            tokio::spawn(async move {
                future.await.result.expect("read");
                order.lock().expect("no panic").push(class);
                drop(device);
            })
        };
        let mut tasks = vec![submit(IoClass::Clean), submit(IoClass::Prefetch)];
        tasks.extend((0..100).map(|_| submit(IoClass::Demand)));
        for task in tasks {
            task.await.expect("no panic");
        }
        let order = order.lock().expect("no panic");
        let at = |class| order.iter().position(|c| *c == class).expect("served");
        // Half a second of demand reads, then the old ones.
        assert!((69..75).contains(&at(IoClass::Clean)), "{}", at(IoClass::Clean));
        assert_eq!(at(IoClass::Prefetch), at(IoClass::Clean) + 1);
        assert_eq!(order[0], IoClass::Demand);
    });
}

#[test]
fn a_disk_serves_the_nearest_first() {
    let run = |shuffled: bool| {
        runtime(true).block_on(async move {
            let device = emulated(DeviceModel::disk_7200rpm(64 << 20), EmulatedClock::Tokio);
            let began = Instant::now();
            let pages = (0..256_u64).map(|i| i * 97 % 4096);
            if shuffled {
                for page in pages {
                    read(&device, page, IoClass::Demand).await;
                }
            } else {
                let all: Vec<_> =
                    pages.map(|p| device.read(p * PAGE as u64, bufs_of(&[PAGE]), IoClass::Demand)).collect();
                for future in all {
                    future.await.result.expect("read");
                }
            }
            began.elapsed()
        })
    };
    let (one_by_one, queued) = (run(true), run(false));
    assert!(queued * 3 < one_by_one, "{queued:?} {one_by_one:?}");
    assert_eq!(run(false), queued, "deterministic");
}

#[test]
fn channels_work_in_parallel() {
    runtime(true).block_on(async {
        let device = emulated(DeviceModel::nvme(), EmulatedClock::Tokio);
        let all: Vec<_> = (0..1_600_u64)
            .map(|page| device.read(page * PAGE as u64, bufs_of(&[PAGE]), IoClass::Demand))
            .collect();
        let began = Instant::now();
        for future in all {
            future.await.result.expect("read");
        }
        // 16 at a time, 85 µs or more each; each needs the bus for 5.12 µs.
        let elapsed = began.elapsed();
        assert!(
            elapsed >= Duration::from_micros(8_192) && elapsed <= Duration::from_millis(12),
            "{elapsed:?}"
        );
        assert!(device.stats().utilisation(elapsed) <= 1.0);
    });
}

#[test]
fn data_moves_in_the_order_of_service() {
    runtime(true).block_on(async {
        let device = emulated(DeviceModel::paper_hdd(), EmulatedClock::Tokio);
        let one = [IoBuf::copy_of(&[1; PAGE])].into_iter().collect();
        let write = device.write(0, one, IoClass::Demand);
        let read = device.read(0, bufs_of(&[PAGE]), IoClass::Demand);
        let completion = read.await;
        completion.result.expect("read");
        assert!(completion.bufs[0].as_slice().iter().all(|b| *b == 1));
        write.await.result.expect("written");
    });
}

#[test]
fn timing_can_be_switched_off() {
    runtime(true).block_on(async {
        let device = emulated(DeviceModel::paper_hdd(), EmulatedClock::Tokio);
        let began = Instant::now();
        let queued = device.write(0, bufs_of(&[PAGE]), IoClass::Clean);
        device.set_timing(false);
        queued.await.result.expect("written");
        for page in 0..100 {
            read(&device, page, IoClass::Demand).await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!((device.stats().totals().read.ops, device.stats().totals().read.busy_ns), (100, 0));
        device.set_timing(true);
        read(&device, 0, IoClass::Demand).await;
        assert_eq!(began.elapsed(), Duration::from_millis(8));
    });
}

#[test]
fn the_next_runtime_continues_where_one_ended() {
    let device = emulated(DeviceModel::paper_hdd(), EmulatedClock::Tokio);
    let first = runtime(true);
    let lost = {
        let _inside = first.enter();
        device.write(0, bufs_of(&[PAGE]), IoClass::Clean)
    };
    drop(first);
    runtime(true).block_on(async {
        read(&device, 0, IoClass::Demand).await;
        lost.await.result.expect("written");
    });
    assert_eq!(device.stats().totals().write.ops, 1);
}

#[test]
fn real_time_needs_no_runtime() {
    let device = emulated(DeviceModel::paper_ssd(), EmulatedClock::Wall);
    let began = std::time::Instant::now();
    let mut future = device.read(0, bufs_of(&[4 * PAGE]), IoClass::Demand);
    // Polled by hand, on a thread that is woken as by any executor.
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let completion = loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            std::task::Poll::Ready(completion) => break completion,
            std::task::Poll::Pending => std::thread::park(),
        }
    };
    completion.result.expect("read");
    assert!(began.elapsed() >= Duration::from_micros(440));
    assert_eq!(device.stats().busy_ns(), 440_000);
}
