//! An idle device takes no CPU time. Runs alone in its process, because it observes all threads of the
//! process.

#[path = "common/mod.rs"]
#[allow(dead_code)]
mod common;

use common::{bufs_of, folder, runtime};
use pagetier_devio::{Backend, IoClass, MemoryDevice, OpenOptions, SharedDevice, open_file};
use pagetier_testing::{DeviceModel, EmulatedClock, EmulatedDevice};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn nothing_wakes_while_there_is_nothing_to_do() {
    let folder = folder();
    let mut devices: Vec<SharedDevice> = Vec::new();
    for (name, backend) in [("a", Backend::Uring), ("b", Backend::Threads)] {
        let options = OpenOptions { create: true, backend, ..OpenOptions::default() };
        let device = open_file(&folder.path().join(name), &options).expect("opened").device;
        device.grow(1 << 20).expect("grown");
        devices.push(device);
    }
    let memory = Arc::new(MemoryDevice::new("memory", 1 << 20));
    devices.push(Arc::new(EmulatedDevice::new(memory, DeviceModel::nvme(), EmulatedClock::Wall)));
    runtime(false).block_on(async {
        for device in &devices {
            device.read(0, bufs_of(&[4096]), IoClass::Demand).await.result.expect("read");
        }
        // The threads go to sleep when the machine lets them, and then stay asleep: a polling thread would
        // never be asleep throughout.
        let mut before = wakeups();
        assert!(before.1 >= 3, "a thread of each device: {before:?}");
        for _ in 0..50 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let now = wakeups();
            if now == before {
                return;
            }
            before = now;
        }
        panic!("some thread never rests");
    });
}

/// The number of voluntary context switches of this crate's threads so far, and the number of these threads.
fn wakeups() -> (u64, usize) {
    let (mut switches, mut threads) = (0, 0);
    for task in std::fs::read_dir("/proc/self/task").expect("procfs").flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).expect("a name");
        if name.starts_with("pagetier-") {
            let status = std::fs::read_to_string(task.path().join("status")).expect("a status");
            let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            switches += count.expect("counted").trim().parse::<u64>().expect("a number");
            threads += 1;
        }
    }
    (switches, threads)
}
