//! The devices under test, and helpers that tests share.

use pagetier_devio::{
    Backend, DirectIo, IoBuf, IoBufs, MemoryDevice, OpenOptions, Reap, SharedDevice, open_file,
};
use pagetier_testing::{DeviceModel, EmulatedClock, EmulatedDevice, SimDevice, SimPower, VirtualClock};
use std::future::Future;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;

const SIZE: u64 = 8 << 20;

/// A device under test.
pub(crate) struct Subject {
    /// The name in messages.
    pub(crate) name: &'static str,
    /// The expected [`pagetier_devio::Device::backend`].
    pub(crate) backend: &'static str,
    /// The device.
    pub(crate) device: SharedDevice,
    /// Whether it takes its time from a paused clock.
    pub(crate) paused: bool,
    /// Whether it cannot grow.
    pub(crate) fixed_size: bool,
    /// What must outlive the device: folder, loop device.
    pub(crate) keep: Vec<Box<dyn std::any::Any>>,
}

impl Subject {
    fn new(name: &'static str, backend: &'static str, device: SharedDevice) -> Self {
        Self { name, backend, device, paused: false, fixed_size: false, keep: Vec::new() }
    }
}

/// Every device available on this machine.
pub(crate) fn every_subject() -> Vec<Subject> {
    let mut subjects = vec![file("uring", Backend::Uring), file("threads", Backend::Threads), reactor()];
    subjects.push(Subject::new("memory", "memory", Arc::new(MemoryDevice::new("memory", SIZE))));
    for (name, model) in [
        ("paper hdd", DeviceModel::paper_hdd()),
        ("paper ssd", DeviceModel::paper_ssd()),
        ("7200 rpm", DeviceModel::disk_7200rpm(SIZE).with_write_cache(true)),
        ("nvme", DeviceModel::nvme()),
    ] {
        let memory = Arc::new(MemoryDevice::new(name, SIZE));
        let device = EmulatedDevice::new(memory, model, EmulatedClock::Tokio);
        subjects.push(Subject { paused: true, ..Subject::new(name, "emulated", Arc::new(device)) });
    }
    let memory = Arc::new(MemoryDevice::new("exact", SIZE));
    let exact =
        EmulatedDevice::new(memory, DeviceModel::paper_ssd(), EmulatedClock::Virtual(VirtualClock::new()));
    subjects
        .push(Subject { paused: true, ..Subject::new("virtual without hook", "emulated", Arc::new(exact)) });
    let memory = Arc::new(MemoryDevice::new("wall", SIZE));
    let wall = EmulatedDevice::new(memory, DeviceModel::nvme(), EmulatedClock::Wall);
    subjects.push(Subject::new("wall clock", "emulated", Arc::new(wall)));
    let sim = SimDevice::new("sim", SIZE, 7, &SimPower::new());
    subjects.push(Subject::new("sim", "sim", Arc::new(sim)));
    let slow = SimDevice::new("slow sim", SIZE, 7, &SimPower::new())
        .with_latency(std::time::Duration::from_millis(20))
        .with_alignment(4096);
    subjects.push(Subject { paused: true, ..Subject::new("slow sim", "sim", Arc::new(slow)) });
    subjects.extend(loop_device());
    subjects
}

/// A folder on the file system of the build, which, unlike many a /tmp, supports direct I/O.
pub(crate) fn folder() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder")
}

fn file(name: &'static str, backend: Backend) -> Subject {
    let folder = folder();
    let path = folder.path().join("device");
    let options =
        OpenOptions { create: true, backend, queue_depth: 32, threads: 3, ..OpenOptions::default() };
    let opened = open_file(&path, &options).expect("opened");
    assert_eq!((opened.backend, opened.block_device, opened.fallback), (backend, false, None));
    if !opened.direct {
        pagetier_testing::skipped("direct I/O", "the page cache is tested instead");
    }
    opened.device.grow(SIZE).expect("grown");
    Subject { keep: vec![Box::new(folder)], ..Subject::new(name, name, opened.device) }
}

/// A file whose completions another runtime's reactor reaps.
fn reactor() -> Subject {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_io().build();
    let runtime = runtime.expect("a runtime");
    let folder = folder();
    let options = OpenOptions {
        create: true,
        backend: Backend::Uring,
        reap: Reap::Reactor,
        queue_depth: 32,
        ..OpenOptions::default()
    };
    let entered = runtime.enter();
    let device = open_file(&folder.path().join("device"), &options).expect("opened").device;
    drop(entered);
    device.grow(SIZE).expect("grown");
    let keep: Vec<Box<dyn std::any::Any>> = vec![Box::new(runtime), Box::new(folder)];
    Subject { keep, ..Subject::new("uring by a reactor", "uring", device) }
}

/// Detaches the loop device when dropped.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let done = Command::new("losetup").args(["-d", &self.0]).status();
        if !done.is_ok_and(|status| status.success()) {
            eprintln!("! {} could not be detached", self.0);
        }
    }
}

fn loop_device() -> Option<Subject> {
    let folder = folder();
    let image = folder.path().join("image");
    std::fs::File::create(&image).expect("created").set_len(SIZE).expect("sized");
    let Some(attached) = attach(&image) else {
        pagetier_testing::skipped("loop devices", "that takes root, losetup and a free /dev/loop*");
        return None;
    };
    let options = OpenOptions { direct: DirectIo::Required, ..OpenOptions::default() };
    let opened = open_file(Path::new(&attached.0), &options).expect("opened");
    assert!(opened.block_device && opened.direct);
    assert_eq!(opened.device.size(), SIZE);
    let backend = opened.device.backend();
    Some(Subject {
        fixed_size: true,
        keep: vec![Box::new(attached), Box::new(folder)],
        ..Subject::new("loop", backend, opened.device)
    })
}

fn attach(image: &Path) -> Option<Loop> {
    let out = Command::new("losetup").args(["-f", "--show"]).arg(image).output().ok()?;
    let name = String::from_utf8(out.stdout).ok()?.trim().to_owned();
    (out.status.success() && !name.is_empty()).then_some(Loop(name))
}

/// A runtime with a paused or a running clock.
pub(crate) fn runtime(paused: bool) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(paused)
        .build()
        .expect("a runtime")
}

/// Runs a test in the runtime that suits its subject.
pub(crate) fn run(subject: &Subject, test: impl Future<Output = ()>) {
    runtime(subject.paused).block_on(test);
}

/// Zeroed buffers of these lengths.
pub(crate) fn bufs_of(lens: &[usize]) -> IoBufs {
    lens.iter().map(|len| IoBuf::zeroed(*len)).collect()
}

/// Memory to lease buffers from. Only a test that runs to its end frees it: a test that fails half-way must
/// not free it while the kernel uses it.
pub(crate) fn arena(len: usize) -> ManuallyDrop<IoBuf> {
    ManuallyDrop::new(IoBuf::zeroed(len))
}
