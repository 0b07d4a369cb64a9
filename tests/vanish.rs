//! The file system under a store loses its device under load, and comes back: ext4 and xfs on a loop device
//! whose backing disk dies. Operations fail with typed errors, nothing synced is lost, and a second opener is
//! refused before, during and after the outage.
//!
//! Needs root, FUSE, loop devices, `mkfs.ext4` and `mkfs.xfs`; without them the test reports so on standard
//! error and does nothing.

use crate::mounted::slow::{Known, LoopDevice, Mounted, SlowDisk, write_until_refused};
use crate::mounted::{KINDS, grown, make, skip, smallest, word};
use futures_util::future::join_all;
use pagetier::{
    Builder, Error, OpenError, PageId, PageStore, SpaceId,
    device::DeviceErrorKind,
    errors::{PoolError, TierError},
};
use std::path::Path;
use std::time::Duration;

const PAGES: u32 = 700;
const SERVICE_MS: f64 = 0.05;

/// The disk, a block device on it, and the file system there; dropped in field order.
struct Below {
    mounted: Mounted,
    device: LoopDevice,
    disk: SlowDisk,
}

impl Below {
    /// Starts the stack with its previous contents, or with a new file system.
    fn start(folder: &Path, kind: &str) -> Result<Self, String> {
        let image = folder.join("back.img");
        let fresh = !image.exists();
        if fresh {
            let file = std::fs::File::create(&image).map_err(|e| e.to_string())?;
            file.set_len(smallest(kind)).map_err(|e| e.to_string())?;
        }
        let disk = SlowDisk::start(folder, SERVICE_MS)?;
        let device = LoopDevice::on(&disk)?;
        if fresh {
            make(kind, &device.0)?;
        }
        let mounted = Mounted::at(&device, &folder.join("fs"))?;
        Ok(Self { mounted, device, disk })
    }
}

/// Both device files are on the file system; with `whole` the store's directory is too, otherwise it is
/// elsewhere.
fn builder(folder: &Path, whole: bool) -> Builder {
    let fs = folder.join("fs");
    let builder = if whole {
        PageStore::builder().directory(fs.join("store"))
    } else {
        PageStore::builder().directory(folder.join("store")).hdd(fs.join("hdd")).ssd(fs.join("ssd"))
    };
    let builder = builder.pool_bytes(3 << 20).ssd_bytes(5 << 20).ring_pages(16);
    builder.exhausted_after(Duration::from_secs(3))
}

async fn is_refused(folder: &Path, whole: bool) -> bool {
    match builder(folder, whole).open().await {
        Ok(_) => false,
        Err(OpenError::AlreadyOpen { .. }) => true,
        // Not even the lock's file is accessible.
        Err(OpenError::Directory { .. } | OpenError::NotFound { .. }) => whole,
        Err(_) => false,
    }
}

/// Whether the error names a device, or a lack of frames that a device caused.
fn is_typed(error: &Error) -> bool {
    match error {
        Error::Pool(PoolError::Exhausted { .. }) => true,
        Error::Pool(PoolError::Tier(TierError::Refusing { .. })) => true,
        Error::Pool(PoolError::Tier(TierError::Device { source, .. } | TierError::Flush { source }))
        | Error::Device(source) => !matches!(source.kind, DeviceErrorKind::NoSpace),
        _ => false,
    }
}

/// Reads while the device is gone; returns the numbers of pages served and not served.
async fn read_meanwhile(store: &PageStore, space: SpaceId, known: &[Known]) -> (u32, u32) {
    let (mut served, mut failed) = (0, 0);
    for no in (0..PAGES).rev() {
        match store.get(PageId::new(space, no)).await {
            Ok(page) => {
                served += 1;
                assert_eq!(page[..8], word(no, known[no as usize].newest), "page {no}");
            }
            Err(error) => {
                failed += 1;
                assert!(is_typed(&error), "page {no}: {error}");
            }
        }
        // It may have waited for a frame.
        if failed > 0 {
            break;
        }
    }
    (served, failed)
}

async fn goes_away_and_comes_back(folder: &Path, kind: &str, whole: bool, below: Below) {
    let mut known = vec![Known::default(); PAGES as usize];
    let store = builder(folder, whole).open().await.unwrap();
    let space = grown(&store, "t", PAGES, 0).await;
    store.sync().await.unwrap();
    write_until_refused(&store, space, &mut known, 1, true).await;
    assert!(known.iter().any(|k| k.synced > 0), "something was synced");
    assert!(is_refused(folder, whole).await, "{kind}: before");

    let Below { mounted, device, disk } = below;
    let dying = std::thread::spawn(move || {
        std::thread::park_timeout(Duration::from_millis(100));
        disk.vanish();
    });
    write_until_refused(&store, space, &mut known, 2, false).await;
    dying.join().unwrap();
    let synced = store.sync().await;
    assert!(synced.as_ref().is_err_and(is_typed), "{kind}: {synced:?}");
    let (_, failed) = read_meanwhile(&store, space, &known).await;
    assert!(failed > 0, "{kind}: the device is still there");
    assert!(is_refused(folder, whole).await, "{kind}: meanwhile");
    drop(store);
    drop(mounted);
    drop(device);

    let below = Below::start(folder, kind).unwrap();
    let store = builder(folder, whole).open().await.unwrap();
    assert!(is_refused(folder, whole).await, "{kind}: afterwards");
    for (no, known) in (0..PAGES).zip(&known) {
        let page = store.get(PageId::new(space, no)).await;
        let page = page.unwrap_or_else(|error| panic!("{kind}: page {no}: {error}"));
        let version = u32::from_le_bytes([page[4], page[5], page[6], page[7]]);
        assert_eq!(page[..8], word(no, version), "{kind}: page {no}");
        let allowed = known.synced..=known.newest;
        assert!(allowed.contains(&version), "{kind}: page {no} reads as {version}, not {allowed:?}");
    }
    store.close().await.unwrap();
    drop(below);
}

async fn on_every_file_system(whole: bool) {
    // At once: each waits for its own dead device most of the time.
    join_all(KINDS.map(async |kind| {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        match Below::start(folder.path(), kind) {
            Ok(below) => goes_away_and_comes_back(folder.path(), kind, whole, below).await,
            Err(why) => skip(&why),
        }
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_whose_file_system_loses_its_device_loses_nothing() {
    on_every_file_system(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_does_one_with_only_its_devices_on_it() {
    on_every_file_system(false).await;
}
