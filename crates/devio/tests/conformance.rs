//! The conformance suite over every device of the crate, and over one as another crate might implement it.

use crate::common::{self, Subject, arena, bufs_of, every_subject, run};
use pagetier_devio::{
    Device, DeviceErrorKind, IoBuf, IoBufs, IoClass, Metered, RawDevice, RawDone, RawTransfer, SharedDevice,
};
use pagetier_testing::conformance::{Growth, check_device};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn every_device_conforms() {
    for subject in every_subject() {
        eprintln!("- {}", subject.name);
        assert_eq!(subject.device.backend(), subject.backend);
        let growth = if subject.fixed_size { Growth::Fixed } else { Growth::Grows };
        run(&subject, check_device(&subject.device, growth));
        let stats = subject.device.stats();
        let busy_ns = stats.totals().busy_ns() + stats.flush.busy_ns;
        // Memory and simulated devices take no time; the others do.
        assert_eq!(busy_ns > 0, !matches!(subject.backend, "memory" | "sim"), "{}", subject.name);
    }
}

#[test]
fn outstanding_operations_end_before_the_device_does() {
    for subject in every_subject() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&dropped);
        let give_back = Arc::new(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        let mut arena = arena(64 * 4096);
        let base = arena.ptr();
        let Subject { device, keep, paused, .. } = subject;
        common::runtime(paused).block_on(async move {
            for i in 0..64_usize {
                // SAFETY: within the arena.
                let at = unsafe { base.add(i * 4096) };
                // SAFETY: disjoint parts of the arena, which is not touched before all were given back.
                let lease = unsafe { IoBuf::lease(at, 4096, Arc::clone(&give_back) as _, 0) };
                drop(device.read(i as u64 * 4096, [lease].into_iter().collect(), IoClass::Recovery));
            }
            drop(device);
            tokio::time::sleep(Duration::from_millis(1)).await;
        });
        assert_eq!(dropped.load(Ordering::SeqCst), 64);
        arena.as_mut_slice().fill(0xEE);
        drop(ManuallyDrop::into_inner(arena));
        drop(keep);
    }
}

/// A device of another crate: only what [`RawDevice`] requires, with operations that take time and start when
/// first polled.
#[derive(Clone, Debug)]
struct Remote {
    bytes: Arc<Mutex<Vec<u8>>>,
    failing: Arc<AtomicUsize>,
    kept: Arc<AtomicUsize>,
}

impl Remote {
    fn new() -> Self {
        Self { bytes: Arc::new(Mutex::new(vec![0; 8 << 20])), failing: Arc::default(), kept: Arc::default() }
    }

    fn fails(&self) -> bool {
        self.failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

impl RawDevice for Remote {
    fn read(&self, offset: u64, mut bufs: IoBufs, _class: IoClass) -> RawTransfer {
        let this = self.clone();
        Box::pin(async move {
            tokio::time::sleep(Duration::from_micros(300)).await;
            let mut at = offset as usize;
            for buf in &mut bufs {
                let len = buf.len();
                buf.as_mut_slice().copy_from_slice(&this.bytes.lock().expect("bytes")[at..at + len]);
                at += len;
            }
            (bufs, if this.fails() { Err(DeviceErrorKind::Gone) } else { Ok(()) })
        })
    }

    fn write(&self, offset: u64, bufs: IoBufs, _class: IoClass) -> RawTransfer {
        let this = self.clone();
        Box::pin(async move {
            tokio::time::sleep(Duration::from_micros(500)).await;
            let mut at = offset as usize;
            for buf in &bufs {
                this.bytes.lock().expect("bytes")[at..at + buf.len()].copy_from_slice(buf.as_slice());
                at += buf.len();
            }
            (bufs, if this.fails() { Err(DeviceErrorKind::NoSpace) } else { Ok(()) })
        })
    }

    fn flush(&self) -> RawDone {
        Box::pin(async {
            tokio::time::sleep(Duration::from_micros(100)).await;
            Ok(())
        })
    }

    fn size(&self) -> u64 {
        self.bytes.lock().expect("bytes").len() as u64
    }

    fn keep_whole(&self, bytes: usize) {
        self.kept.store(bytes, Ordering::SeqCst);
    }

    fn name(&self) -> &str {
        "remote"
    }
}

#[test]
fn what_is_to_be_kept_whole_reaches_a_device_of_another_crate() {
    let remote = Remote::new();
    Metered::over(remote.clone()).keep_whole(4096);
    assert_eq!(remote.kept.load(Ordering::SeqCst), 4096);
}

#[test]
fn a_device_of_another_crate_conforms() {
    common::runtime(false).block_on(async {
        let device: SharedDevice = Arc::new(Metered::over(Remote::new()));
        assert_eq!((device.backend(), device.name(), device.alignment()), ("custom", "remote", 512));
        check_device(&device, Growth::Fixed).await;
        let stats = device.stats();
        assert!(stats.busy_ns() > 0, "it takes time");
        assert!(stats.totals().read.mean_latency_ns() >= 300_000, "a read sleeps for 300 us");
    });
}

#[test]
fn its_errors_name_device_and_operation_and_are_counted() {
    common::runtime(false).block_on(async {
        let remote = Remote::new();
        let device: SharedDevice = Arc::new(Metered::over(remote.clone()));
        remote.failing.store(1, Ordering::SeqCst);
        let completion = device.write(8192, bufs_of(&[4096]), IoClass::Clean).await;
        let error = completion.result.expect_err("planned to fail");
        assert_eq!(error.to_string(), "remote: Write of 4096 bytes at 8192: no space left");
        assert_eq!(completion.bufs.len(), 1);
        let stats = device.stats();
        assert_eq!((stats.errors.no_space, stats.totals().write.ops), (1, 0));
        assert_eq!(device.occupancy().in_flight(), 0);
    });
}

/// Drops the last handle with an operation in flight: a leaving store waits for its end.
#[test]
fn a_dropped_operation_counts_as_in_flight_until_it_ends() {
    common::runtime(true).block_on(async {
        let remote = Remote::new();
        let device = Metered::over(remote.clone());
        let mut bufs = bufs_of(&[512]);
        bufs[0].as_mut_slice().fill(7);
        drop(device.write(0, bufs, IoClass::Clean));
        assert_eq!(device.occupancy().in_flight(), 1);
        assert_eq!(remote.bytes.lock().expect("bytes")[0], 0, "the write sleeps first");
        while device.occupancy().in_flight() > 0 {
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        assert_eq!(remote.bytes.lock().expect("bytes")[..512], [7; 512]);
        assert_eq!(device.stats().totals().write.ops, 1);
    });
}
