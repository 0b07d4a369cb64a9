//! A file system that fills up under the store, with the kernel in the path: a small ext4 on a loop device. A page that was allocated has its room
//! and can be written; allocating more is an error that says so. Once there is room again, the store goes on, and nothing was lost.
//!
//! Needs root, loop devices and `mkfs.ext4`; without them the test says so on standard error and does nothing.

use pagetier::{Backend, DeviceErrorKind, Error, PageId, PageStore, PoolError, SpaceId, TierError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const DISK_BYTES: u64 = 64 << 20;
/// Written before it is full.
const PAGES: u32 = 500;

/// Past the test harness, which keeps what passing tests print to itself.
fn skip(why: &str) {
    let _ = std::io::stderr().write_all(format!("\nSKIPPED: no small file system: {why}\n").as_bytes());
}

/// A mounted file system of its own; unmounted when dropped.
struct SmallDisk {
    mount: PathBuf,
}

impl SmallDisk {
    fn mount(folder: &Path) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("mounting needs root".into());
        }
        let (image, mount) = (folder.join("disk.img"), folder.join("mnt"));
        let file = std::fs::File::create(&image).map_err(|e| e.to_string())?;
        file.set_len(DISK_BYTES).map_err(|e| e.to_string())?;
        std::fs::create_dir(&mount).map_err(|e| e.to_string())?;
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mount))?;
        Ok(Self { mount })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The loop device goes with it, sooner or later.
        let _ = Command::new("umount").args(["-d"]).arg(&self.mount).status();
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let done = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let why = || format!("{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    if done.status.success() { Ok(()) } else { Err(why()) }
}

async fn open(disk: &SmallDisk, io: Backend) -> PageStore {
    let builder =
        PageStore::builder().directory(disk.mount.join("store")).ssd_bytes(6 << 20).pool_bytes(3 << 20);
    builder.exhausted_after(Duration::from_secs(2)).io(io).open().await.unwrap()
}

fn word(no: u32, version: u32) -> [u8; 8] {
    (u64::from(version) << 32 | u64::from(no)).to_le_bytes()
}

async fn check(store: &PageStore, space: SpaceId, pages: u32, version: impl Fn(u32) -> u32) {
    for no in 0..pages {
        assert_eq!(store.get(PageId::new(space, no)).await.unwrap()[..8], word(no, version(no)), "page {no}");
    }
}

/// Whether it says, directly or through a page that could not be written, that the device is full or that no frame became free.
fn tells_of_a_full_disk(error: &Error) -> bool {
    match error {
        Error::Pool(PoolError::Exhausted { .. }) => true,
        Error::Manifest { source } => source.kind() == std::io::ErrorKind::StorageFull,
        Error::Device(device) | Error::Pool(PoolError::Tier(TierError::Device { source: device, .. })) => {
            matches!(device.kind, DeviceErrorKind::NoSpace)
        }
        _ => false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_file_system_loses_nothing_and_is_left_behind_when_there_is_room_again() {
    for io in [Backend::Auto, Backend::Threads] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let disk = match SmallDisk::mount(folder.path()) {
            Ok(disk) => disk,
            Err(why) => return skip(&why),
        };
        fill_up(&disk, io).await;
    }
}

async fn fill_up(disk: &SmallDisk, io: Backend) {
    let store = open(disk, io).await;
    let space = store.create_space("t").await.unwrap();
    let mut pages = 0;
    let allocate = async |pages: &mut u32| {
        let mut page = store.allocate(space).await?;
        page[..8].copy_from_slice(&word(*pages, 1));
        *pages += 1;
        Ok::<(), Error>(())
    };

    // 1. Pages, the last of them in memory only; then somebody else takes all the room that is left.
    while pages < PAGES {
        allocate(&mut pages).await.unwrap();
    }
    let ballast = disk.mount.join("ballast");
    let mut file = std::fs::File::create(&ballast).unwrap();
    for block in [1 << 20, 4096] {
        while file.write_all(&vec![1; block]).is_ok() {}
    }
    drop(file);
    // What was allocated has its room on both tiers.
    store.sync().await.unwrap();
    let error = loop {
        assert!(pages < 2 * PAGES, "the file system does not fill up");
        if let Err(error) = allocate(&mut pages).await {
            break error;
        }
    };
    assert!(tells_of_a_full_disk(&error), "{error}");
    // Reads go on: from memory, and (room for them is made of clean pages) from the devices.
    for no in (0..pages).rev().take(50) {
        match store.get(PageId::new(space, no)).await {
            Ok(page) => assert_eq!(page[..8], word(no, 1), "page {no}"),
            Err(error) => assert!(tells_of_a_full_disk(&error), "page {no}: {error}"),
        }
    }

    // 2. Room again: everything written before is there, and can be made durable.
    std::fs::remove_file(&ballast).unwrap();
    let synced = retry(|| store.sync()).await;
    assert!(synced.is_ok(), "{synced:?}: {:?}", store.stats().ssd);
    check(&store, space, pages, |_| 1).await;
    for no in (0..pages).step_by(3) {
        let mut page = store.get_mut(PageId::new(space, no)).await.unwrap();
        page[..8].copy_from_slice(&word(no, 2));
    }
    store.sync().await.unwrap();

    // 3. After a crash, too.
    drop(store);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let store = open(disk, io).await;
    check(&store, space, pages, |no| if no % 3 == 0 { 2 } else { 1 }).await;
    store.close().await.unwrap();
}

/// The cleaner backs off after a failure, so the first attempt may still tell of the time before.
async fn retry<F: Future<Output = Result<(), Error>>>(attempt: impl Fn() -> F) -> Result<(), Error> {
    for _ in 0..20 {
        if attempt().await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    attempt().await
}
