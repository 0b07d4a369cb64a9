//! Completions reaped by a runtime's reactor, whichever ends first: the device, its operations or the
//! runtime.

#[path = "common/mod.rs"]
#[allow(dead_code)]
mod common;

use common::{bufs_of, folder};
use pagetier_devio::{Backend, IoBuf, IoClass, OpenOptions, Reap, SharedDevice, open_file};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

const PAGE: usize = 16 << 10;
const PAGES: u64 = 64;

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn two_workers() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn open(runtime: &Runtime, path: &Path) -> SharedDevice {
    let options = OpenOptions {
        create: true,
        backend: Backend::Uring,
        reap: Reap::Reactor,
        queue_depth: 8,
        ..OpenOptions::default()
    };
    let _entered = runtime.enter();
    let device = open_file(path, &options).expect("opened").device;
    device.grow(PAGES * PAGE as u64).expect("grown");
    device
}

async fn write_all(device: &SharedDevice) {
    for page in 0..PAGES {
        let bufs = [IoBuf::copy_of(&[page as u8; PAGE])].into_iter().collect();
        device.write(page * PAGE as u64, bufs, IoClass::Clean).await.result.expect("written");
    }
}

/// Reads more pages at once than the ring takes.
async fn read_all(device: &SharedDevice) {
    let reads = (0..PAGES).map(|page| {
        let read = device.read(page * PAGE as u64, bufs_of(&[PAGE]), IoClass::Demand);
        tokio::spawn(async move { (page, read.await) })
    });
    for read in reads.collect::<Vec<_>>() {
        let (page, completion) = read.await.expect("no panic");
        completion.result.expect("read");
        assert!(completion.bufs[0].as_slice().iter().all(|byte| *byte == page as u8));
    }
}

fn start_reads(device: &SharedDevice) {
    for page in 0..PAGES {
        drop(device.read(page * PAGE as u64, bufs_of(&[PAGE]), IoClass::Demand));
    }
}

#[test]
fn the_runtime_that_opened_it_reads() {
    for runtime in [one_thread(), two_workers()] {
        let folder = folder();
        let device = open(&runtime, &folder.path().join("device"));
        runtime.block_on(async {
            write_all(&device).await;
            for _ in 0..20 {
                read_all(&device).await;
            }
        });
    }
}

#[test]
fn the_device_ends_first_with_reads_in_flight() {
    for runtime in [one_thread(), two_workers()] {
        let folder = folder();
        for _ in 0..100 {
            let device = open(&runtime, &folder.path().join("device"));
            // On a thread of the runtime, where the reaping task may be scheduled.
            runtime.block_on(async move {
                start_reads(&device);
                tokio::task::yield_now().await;
                drop(device);
            });
        }
    }
}

#[test]
fn a_device_that_has_ended_lets_go_of_its_file() {
    let runtime = one_thread();
    let folder = folder();
    let path = folder.path().join("device");
    let device = open(&runtime, &path);
    let is_open = || {
        let links = std::fs::read_dir("/proc/self/fd").expect("procfs").flatten();
        links.filter_map(|entry| std::fs::read_link(entry.path()).ok()).any(|target| target == path)
    };
    runtime.block_on(async {
        start_reads(&device);
        drop(device);
        for _ in 0..1000 {
            if !is_open() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the file is still open");
    });
}

#[test]
fn the_last_handle_goes_with_a_completion() {
    for runtime in [one_thread(), two_workers()] {
        let folder = folder();
        for _ in 0..100 {
            let device = open(&runtime, &folder.path().join("device"));
            let memory = common::arena(PAGE);
            let base = memory.ptr();
            let last = SharedDevice::clone(&device);
            let give_back = Arc::new(move |_| _ = last.size());
            // SAFETY: the memory is not touched during the operation and never freed.
            let lease = unsafe { IoBuf::lease(base, PAGE, give_back, 0) };
            runtime.block_on(async move {
                drop(device.read(0, [lease].into_iter().collect(), IoClass::Demand));
                drop(device);
                tokio::time::sleep(Duration::from_micros(500)).await;
            });
        }
    }
}

#[test]
fn the_runtime_ends_first() {
    for runtime in [one_thread(), two_workers()] {
        let folder = folder();
        let device = open(&runtime, &folder.path().join("device"));
        runtime.block_on(write_all(&device));
        start_reads(&device);
        drop(runtime);
        one_thread().block_on(read_all(&device));
        start_reads(&device);
    }
}

#[test]
fn both_end_at_once() {
    let folder = folder();
    for _ in 0..100 {
        let runtime = two_workers();
        let device = open(&runtime, &folder.path().join("device"));
        start_reads(&device);
        let dropped = std::thread::spawn(move || drop(device));
        drop(runtime);
        dropped.join().expect("no panic");
    }
}

#[test]
fn without_a_runtime_a_thread_does_it() {
    let folder = folder();
    let options =
        OpenOptions { create: true, backend: Backend::Uring, reap: Reap::Reactor, ..OpenOptions::default() };
    let device = open_file(&folder.path().join("device"), &options).expect("opened").device;
    device.grow(PAGES * PAGE as u64).expect("grown");
    one_thread().block_on(async {
        write_all(&device).await;
        read_all(&device).await;
    });
}

#[test]
fn a_runtime_without_io_still_reads() {
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    let folder = folder();
    let device = open(&runtime, &folder.path().join("device"));
    runtime.block_on(async {
        write_all(&device).await;
        read_all(&device).await;
    });
}
