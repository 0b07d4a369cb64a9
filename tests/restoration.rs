//! Restorations of chains of backups: interrupted anywhere, on devices that fail, from damaged chains, into
//! places that are taken.

use crate::fixture::{Fixture, expect_all, write_all};
use pagetier::{
    Builder, OpenError, PageStore, SpaceId,
    backup::{BackupError, BackupOptions, RestoreReport},
    device::{MemoryDevice, SharedDevice},
    errors::Advice,
};
use pagetier_devio::{IoBuf, IoBufs, IoClass, IoOp};
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

fn plain() -> BackupOptions {
    BackupOptions::new()
}

/// The location of a restored store: a directory, with devices in memory that follow the paused clock.
pub(crate) struct Destination {
    pub(crate) dir: tempfile::TempDir,
    devices: [SharedDevice; 2],
}

impl Destination {
    pub(crate) fn new() -> Self {
        let device = |name| Arc::new(MemoryDevice::new(name, 0)) as SharedDevice;
        Self { dir: pagetier_testing::scratch(), devices: [device("hdd"), device("ring")] }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("restored")
    }

    pub(crate) fn builder(&self) -> Builder {
        let [hdd, ring] = self.devices.clone();
        let builder = PageStore::builder().directory(self.path()).hdd(hdd).ring_device(ring);
        builder.pool_bytes(60 * crate::fixture::PAGE).ssd_bytes(0)
    }

    pub(crate) async fn hdd_write(&self, at: u64, bytes: &[u8]) {
        let bufs = IoBufs::from_iter([IoBuf::copy_of(bytes)]);
        self.devices[0].write(at, bufs, IoClass::Meta).await.result.unwrap();
    }

    pub(crate) async fn restore(&self, from: &Path, upto: Option<u32>) -> Result<RestoreReport, BackupError> {
        loop {
            let restored = self.builder().restore(from, upto, |_| ()).await;
            // A save of an earlier attempt runs in real time, which the paused clock does not wait for.
            if !matches!(&restored, Err(BackupError::Open(OpenError::AlreadyOpen { .. }))) {
                return restored;
            }
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }
}

pub(crate) async fn restored(from: &Path, upto: Option<u32>) -> (Destination, PageStore, SpaceId) {
    let to = Destination::new();
    to.restore(from, upto).await.unwrap();
    let store = to.builder().create(pagetier::options::Create::Never).open().await.unwrap();
    let space = store.spaces().find("t").unwrap();
    (to, store, space)
}

/// A chain of two backups, all of whose pages are in version 2.
pub(crate) async fn chain_of_two() -> tempfile::TempDir {
    let (_fixture, store, space) = Fixture::grown().await;
    let dir = pagetier_testing::scratch();
    store.backup(dir.path(), plain()).await.unwrap();
    write_all(&store, space, 2).await;
    assert_eq!(store.backup(dir.path(), plain()).await.unwrap().full_because, None);
    store.close().await.unwrap();
    dir
}

#[tokio::test(start_paused = true)]
async fn a_damaged_or_incomplete_chain_is_refused_before_anything_is_made() {
    let (_fixture, store, space) = Fixture::grown().await;
    let dir = pagetier_testing::scratch();
    for version in 2..5 {
        write_all(&store, space, version).await;
        store.backup(dir.path(), plain()).await.unwrap();
    }
    let path = |number: u32| dir.path().join(format!("{number:06}.backup"));
    let to = Destination::new();
    let restore = |upto| to.restore(dir.path(), upto);
    let sound = std::fs::read(path(2)).unwrap();
    let flipped = |at: usize| {
        let mut bytes = sound.clone();
        bytes[at] ^= 4;
        bytes
    };
    // The first record's length follows magic, format and kind.
    let mut endless = sound.clone();
    endless[16..20].fill(0xff);
    let damages = [
        (sound[..sound.len() - 1].to_vec(), "ends within a record"),
        (sound[..10].to_vec(), ""),
        (Vec::new(), ""),
        (flipped(0), ""),
        (flipped(9), ""),
        (endless, "impossible length"),
        (flipped(40), "checksum"),
        (flipped(sound.len() / 2), ""),
        (flipped(sound.len() - 5), "checksum"),
    ];
    for (bytes, why) in damages {
        std::fs::write(path(2), bytes).unwrap();
        let refused = restore(None).await.unwrap_err();
        assert!(matches!(refused, BackupError::Damaged { .. }), "{refused:?}");
        assert!(refused.to_string().contains(why), "{why}: {refused}");
        assert_eq!(std::fs::read_dir(to.dir.path()).unwrap().count(), 0);
    }
    std::fs::remove_file(path(2)).unwrap();
    let refused = restore(None).await.unwrap_err();
    assert!(matches!(&refused, BackupError::NoChain { why, .. } if why.contains("number 3")), "{refused:?}");
    assert!(matches!(restore(Some(2)).await, Err(BackupError::NoChain { .. })));
    let nothing = pagetier_testing::scratch();
    let empty = to.restore(nothing.path(), None).await;
    assert!(matches!(empty, Err(BackupError::NoChain { .. })));
    let larger = to
        .builder()
        .page_size(pagetier::PageSize::new(8192).unwrap())
        .restore(dir.path(), Some(1), |_| ())
        .await
        .unwrap_err();
    assert!(matches!(larger, BackupError::OtherPageSize { backup: 4096, asked: 8192 }), "{larger:?}");
    assert_eq!(larger.advice(), Advice::FixConfiguration);
    assert!(larger.to_string().contains("pass 4096"), "{larger}");
    assert_eq!(std::fs::read_dir(to.dir.path()).unwrap().count(), 0);
    to.builder().page_size(pagetier::PageSize::MIN).restore(dir.path(), Some(1), |_| ()).await.unwrap();
    assert!(matches!(restore(Some(1)).await, Err(BackupError::Exists { .. })));
    let memory = Fixture::new().builder().restore(dir.path(), None, |_| ()).await;
    assert!(matches!(memory, Err(BackupError::NoDirectory)));
}

#[tokio::test(start_paused = true)]
async fn a_restoration_dropped_at_any_moment_leaves_no_store_and_can_be_repeated() {
    let chain = chain_of_two().await;
    let (mut polls, mut dropped) = (1, 0);
    loop {
        let to = Destination::new();
        let over = crate::fixture::polled(polls, to.restore(chain.path(), None)).await.is_some();
        if !over {
            dropped += 1;
            assert!(!to.path().exists(), "after {polls} polls");
            // On the same devices.
            to.restore(chain.path(), None).await.unwrap();
        }
        assert_eq!(std::fs::read_dir(to.dir.path()).unwrap().count(), 1);
        assert!(!to.path().join("restoration").exists());
        let copy = to.builder().create(pagetier::options::Create::Never).open().await.unwrap();
        expect_all(&copy, copy.spaces().find("t").unwrap(), 2).await;
        copy.close().await.unwrap();
        if over {
            break;
        }
        polls += 1 + polls / 2;
    }
    assert!(dropped >= 6, "{dropped}");
}

/// Each operation of the new store's devices in turn fails, or the power fails after it.
#[tokio::test(start_paused = true)]
async fn a_restoration_on_devices_that_fail_is_an_error_and_a_finished_one_is_durable() {
    let chain = chain_of_two().await;
    let (mut failed, mut finished) = (0, 0);
    for nth in 0..24 {
        let (mut to, power) = (Destination::new(), SimPower::new());
        let devices = ["hdd", "ring"].map(|name| Arc::new(SimDevice::new(name, 0, nth, &power)));
        to.devices = devices.each_ref().map(|device| Arc::clone(device) as SharedDevice);
        let (op, effect) = [
            (IoOp::Write, FaultEffect::Eio),
            (IoOp::Write, FaultEffect::NoSpace),
            (IoOp::Flush, FaultEffect::Eio),
            (IoOp::Grow, FaultEffect::NoSpace),
        ][nth as usize % 4];
        // The last ones never come to that.
        let fault = Fault::new(effect).on(op).from_op(if op == IoOp::Grow { 1 } else { nth * nth });
        devices[nth as usize / 4 % 2].inject(fault);
        match to.restore(chain.path(), None).await {
            Ok(_) => finished += 1,
            Err(error) => {
                failed += 1;
                assert!(!to.path().exists() && !error.to_string().is_empty(), "{nth}: {error}");
                devices.iter().for_each(|device| device.clear_faults());
                to.restore(chain.path(), None).await.unwrap();
            }
        }
        to.devices = devices
            .each_ref()
            .map(|device| Arc::new(device.after_power_cut(nth, &SimPower::new())) as SharedDevice);
        let copy = to.builder().create(pagetier::options::Create::Never).open().await.unwrap();
        expect_all(&copy, copy.spaces().find("t").unwrap(), 2).await;
    }
    assert!(failed >= 8 && finished >= 3, "{failed} failed, {finished} finished");
}

/// The power fails at any operation on the new store's devices, which lie outside of its directory, or the
/// process is killed there. The next restoration uses them as they are then.
#[tokio::test(start_paused = true)]
async fn a_restoration_interrupted_at_any_operation_starts_over_by_itself() {
    let chain = chain_of_two().await;
    let (mut at, mut repeated) = (1, 0);
    loop {
        let (mut to, power) = (Destination::new(), SimPower::new());
        let devices = ["hdd", "ring"].map(|name| Arc::new(SimDevice::new(name, 0, at, &power)));
        to.devices = devices.each_ref().map(|device| Arc::clone(device) as SharedDevice);
        power.cut_at(at);
        let over = to.restore(chain.path(), None).await.is_ok();
        power.cut_at(u64::MAX);
        if !over {
            repeated += 1;
            assert!(!to.path().exists(), "operation {at}");
            let later = |device: &Arc<SimDevice>| {
                let power = SimPower::new();
                let killed = at % 2 == 0;
                if killed { device.after_kill(at, &power) } else { device.after_power_cut(at, &power) }
            };
            let after = devices.each_ref().map(|device| Arc::new(later(device)));
            to.devices = after.each_ref().map(|device| Arc::clone(device) as SharedDevice);
            let again = to.restore(chain.path(), None).await;
            assert!(again.is_ok(), "operation {at}: {again:?}");
            to.devices = after
                .each_ref()
                .map(|device| Arc::new(device.after_power_cut(at, &SimPower::new())) as SharedDevice);
        }
        let copy = to.builder().create(pagetier::options::Create::Never).open().await.unwrap();
        expect_all(&copy, copy.spaces().find("t").unwrap(), 2).await;
        if over {
            break;
        }
        // Each operation at the beginning, where devices are formatted.
        at += 1 + at.saturating_sub(60) / 8;
    }
    assert!(repeated >= 70, "{repeated}");
}

/// Killed between its last steps: the store is complete, and its directory has no name yet or a name and the
/// file that says so.
#[tokio::test(start_paused = true)]
async fn a_restoration_that_was_complete_is_ended_and_a_store_in_use_is_never_taken_for_one() {
    let chain = chain_of_two().await;
    let to = Destination::new();
    let (path, partial) = (to.path(), to.dir.path().join("restored.partial"));
    let report = to.restore(chain.path(), None).await.unwrap();
    let epoch = 1;
    let done = |backup: &str| {
        let report = serde_json::to_value(&report).unwrap();
        serde_json::json!({"backup": backup, "epoch": epoch, "report": report}).to_string()
    };
    let head = std::fs::read(chain.path().join("000002.backup")).unwrap();
    let text = String::from_utf8_lossy(&head[..400]).into_owned();
    let id = text.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap();
    for name in [&partial, &path] {
        std::fs::rename(&path, name).unwrap();
        std::fs::write(name.join("restoration"), done(id)).unwrap();
        assert_eq!(to.restore(chain.path(), None).await.unwrap(), report);
        assert!(path.exists() && !partial.exists() && !path.join("restoration").exists());
    }
    // Another backup is asked for: what is there stays.
    std::fs::write(path.join("restoration"), done(id)).unwrap();
    assert!(matches!(to.restore(chain.path(), Some(1)).await, Err(BackupError::Exists { .. })));
    // Or pages for a log of their own: those that are there would refuse it.
    let for_a_log = to.builder().restore_with_log(chain.path(), None, Some(7), |_| ()).await;
    assert!(matches!(for_a_log, Err(BackupError::Exists { .. })), "{for_a_log:?}");
    // The store was opened since.
    to.builder().create(pagetier::options::Create::Never).open().await.unwrap().close().await.unwrap();
    assert!(matches!(to.restore(chain.path(), None).await, Err(BackupError::Exists { .. })));
    std::fs::rename(&path, &partial).unwrap();
    let refused = to.restore(chain.path(), None).await.unwrap_err();
    assert!(matches!(&refused, BackupError::InTheWay { path } if *path == partial), "{refused:?}");
    // A store that never was a restoration's.
    std::fs::remove_file(partial.join("restoration")).unwrap();
    assert!(matches!(to.restore(chain.path(), None).await, Err(BackupError::InTheWay { .. })));
}

/// The schedule: another restoration into the same place runs, and is given up after a while.
#[tokio::test]
async fn a_restoration_waits_for_another_one_in_its_place() {
    let chain = chain_of_two().await;
    let to = Destination::new();
    let partial = to.dir.path().join("restored.partial");
    std::fs::create_dir(&partial).unwrap();
    let other = std::fs::File::create(partial.join("restoration")).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let ends = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!to.path().exists());
        drop(other);
    };
    let (restored, ()) = tokio::join!(to.builder().restore(chain.path(), None, |_| ()), ends);
    restored.unwrap();
    let copy = to.builder().create(pagetier::options::Create::Never).open().await.unwrap();
    expect_all(&copy, copy.spaces().find("t").unwrap(), 2).await;
}

#[tokio::test(start_paused = true)]
async fn the_destination_is_checked_before_anything_is_made() {
    let chain = chain_of_two().await;
    let to = Destination::new();
    let into = |path: PathBuf| {
        let to = &to;
        let from = chain.path();
        async move { to.builder().directory(path).restore(from, None, |_| ()).await }
    };
    let entries = || std::fs::read_dir(to.dir.path()).unwrap().count();
    std::os::unix::fs::symlink("nowhere", to.dir.path().join("link")).unwrap();
    for path in ["link", "..", ".", ""] {
        let refused = into(to.dir.path().join(path)).await.unwrap_err();
        assert!(matches!(refused, BackupError::Exists { .. }), "{path}: {refused:?}");
        assert_eq!(entries(), 1);
    }
    std::fs::remove_file(to.dir.path().join("link")).unwrap();
    // A slash at the end is part of no name.
    let mut slashed = to.path().into_os_string();
    slashed.push("/");
    into(slashed.into()).await.unwrap();
    assert_eq!(entries(), 1);
    let copy = to.builder().create(pagetier::options::Create::Never).open().await.unwrap();
    expect_all(&copy, copy.spaces().find("t").unwrap(), 2).await;
}
