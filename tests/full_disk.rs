//! A file system that fills up under the store, through the kernel: a small ext4 or xfs on a loop device. An
//! allocated page has its disk space and can be written; allocating more yields an error that says why. Once
//! there is room again, the store continues, and nothing was lost.
//!
//! Needs root, loop devices, `mkfs.ext4` and `mkfs.xfs`; without them the test reports so on standard error
//! and does nothing.

use crate::mounted::{KINDS, SmallDisk, check, grown, on_each, reports_a_full_disk, skip, word};
use pagetier::{
    Error, OpenError, PageId, PageStore, SpaceId,
    device::{Backend, DeviceErrorKind},
};
use pagetier_devio::{OpenOptions, open_file};
use pagetier_testing::newest_area;
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

/// Pages written before the disk is full.
const PAGES: u32 = 500;

async fn open(disk: &SmallDisk, io: Backend) -> PageStore {
    let builder =
        PageStore::builder().directory(disk.mount.join("store")).ssd_bytes(6 << 20).pool_bytes(3 << 20);
    builder.exhausted_after(Duration::from_secs(2)).io(io).open().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_file_system_loses_nothing_and_the_store_continues_once_there_is_room() {
    for (kind, io) in [("ext4", Backend::Auto), ("ext4", Backend::Threads), ("xfs", Backend::Auto)] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        match SmallDisk::mount(folder.path(), kind) {
            Ok(disk) => fill_up(&disk, io).await,
            Err(why) => skip(&why),
        }
    }
}

async fn fill_up(disk: &SmallDisk, io: Backend) {
    let store = open(disk, io).await;
    let space = store.spaces().create("t").await.unwrap();
    let mut pages = 0;
    let allocate = async |pages: &mut u32| {
        let mut page = store.allocate(space).await?;
        page[..8].copy_from_slice(&word(*pages, 1));
        *pages += 1;
        Ok::<(), Error>(())
    };

    // 1. Write pages, the last of them only in memory; then another file takes all remaining disk space.
    while pages < PAGES {
        allocate(&mut pages).await.unwrap();
    }
    disk.fill_up();
    // Allocated pages have their disk space on both tiers.
    store.sync().await.unwrap();
    let error = loop {
        assert!(pages < 2 * PAGES, "the file system does not fill up");
        if let Err(error) = allocate(&mut pages).await {
            break error;
        }
    };
    assert!(reports_a_full_disk(&error), "{error}");
    // Reads continue: from memory, and from the devices (clean pages make room).
    for no in (0..pages).rev().take(50) {
        match store.get(PageId::new(space, no)).await {
            Ok(page) => assert_eq!(page[..8], word(no, 1), "page {no}"),
            Err(error) => assert!(reports_a_full_disk(&error), "page {no}: {error}"),
        }
    }

    // 2. With room again, everything written before is there and can be made durable.
    disk.make_room();
    let synced = retry(|| store.sync()).await;
    assert!(synced.is_ok(), "{synced:?}: {:?}", store.stats().ssd);
    check(&store, space, pages, |_| 1).await;
    for no in (0..pages).step_by(3) {
        let mut page = store.get_mut(PageId::new(space, no)).await.unwrap();
        page[..8].copy_from_slice(&word(no, 2));
    }
    store.sync().await.unwrap();

    // 3. The same after a crash.
    drop(store);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let store = open(disk, io).await;
    check(&store, space, pages, |no| if no % 3 == 0 { 2 } else { 1 }).await;
    store.close().await.unwrap();
}

/// Retries: the cleaner backs off after a failure, so the first attempt may still report the earlier failure.
async fn retry<F: Future<Output = Result<(), Error>>>(attempt: impl Fn() -> F) -> Result<(), Error> {
    for _ in 0..20 {
        if attempt().await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    attempt().await
}

/// The directory's file system is full, the devices are elsewhere: pages are written as usual, changes of the
/// manifest fail with its error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_manifest_directory_stops_no_page_writes() {
    on_each(&KINDS, async |kind, disk, folder| {
        let open = async || {
            let builder = PageStore::builder().directory(disk.mount.join("store")).pool_bytes(3 << 20);
            let builder = builder.hdd(folder.join("hdd")).ssd(folder.join("ssd"));
            builder.ssd_bytes(6 << 20).open().await
        };
        let store = open().await.unwrap();
        let space = grown(&store, "t", PAGES, 1).await;
        disk.fill_up();
        // More spaces than the manifest's slack has room for.
        let mut created = Vec::new();
        let error = loop {
            assert!(created.len() < 20_000, "{kind}: the manifest's directory does not fill up");
            match store.spaces().create(&format!("{:0200}", created.len())).await {
                Ok(space) => created.push(space),
                Err(error) => break error,
            }
        };
        assert!(reports_a_full_disk(&error), "{kind}: {error}");
        for no in (0..PAGES).step_by(2) {
            store.get_mut(PageId::new(space, no)).await.unwrap()[..8].copy_from_slice(&word(no, 2));
        }
        store.sync().await.unwrap();
        drop(store);
        let store = open().await.unwrap();
        check(&store, space, PAGES, |no| if no % 2 == 0 { 2 } else { 1 }).await;
        assert_eq!(store.spaces().list().len(), created.len() + 1, "{kind}");
        store.spaces().drop(created[0]).await.unwrap();
        store.close().await.unwrap();
        open().await.unwrap().close().await.unwrap();
    })
    .await;
}

const MIB: u64 = 1 << 20;

/// The bytes free in the file system of `path`.
fn free_bytes(path: &Path) -> u64 {
    let system = rustix::fs::statvfs(path).unwrap();
    system.f_bavail * system.f_frsize
}

/// An SSD larger than the disk: the open fails, and takes nothing.
#[tokio::test]
async fn an_opening_that_does_not_fit_leaves_the_disk_as_it_was() {
    for io in [Backend::Auto, Backend::Threads] {
        on_each(&KINDS, async |kind, disk, _| {
            let builder = |bytes| {
                let builder = PageStore::builder().directory(disk.mount.join("store")).pool_bytes(3 << 20);
                builder.ssd_bytes(bytes).io(io)
            };
            let free = free_bytes(&disk.mount);
            for bytes in [free + MIB, 4 * free, 1 << 40] {
                let error = builder(bytes).open().await.map(drop).unwrap_err();
                let full = |error: &OpenError| match error {
                    OpenError::Device(device) => matches!(device.kind, DeviceErrorKind::NoSpace),
                    OpenError::PoolSize(_) => true,
                    _ => false,
                };
                assert!(full(&error), "{kind}: {error}");
                let left = free_bytes(&disk.mount);
                assert!(left + 3 * MIB > free, "{kind}: {left} of {free} bytes left for {bytes}");
            }
            builder(6 << 20).open().await.unwrap().close().await.unwrap();
        })
        .await;
    }
}

/// Free disk space in single blocks: reserving all of it needs more blocks for the file's map, so it fails
/// midway.
#[test]
fn a_growth_that_the_file_system_refuses_midway_keeps_nothing() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let disk = match SmallDisk::mount(folder.path(), "ext4") {
        Ok(disk) => disk,
        Err(why) => return skip(&why),
    };
    let comb = File::create(disk.mount.join("comb")).unwrap();
    rustix::fs::fallocate(&comb, FallocateFlags::empty(), 0, 32 * MIB).unwrap();
    let path = disk.mount.join("device");
    let device = open_file(&path, &OpenOptions { create: true, ..OpenOptions::default() }).unwrap().device;
    device.grow(4096).unwrap();
    disk.fill_up();
    for at in (0..32 * MIB).step_by(8192) {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&comb, mode, at, 4096).unwrap();
    }
    rustix::fs::fsync(&comb).unwrap();
    let free = free_bytes(&disk.mount);
    assert!(free > 14 * MIB, "{free}");
    let error = device.grow(4096 + free).unwrap_err();
    assert!(matches!(error.kind, DeviceErrorKind::NoSpace), "{error}");
    assert_eq!((device.size(), path.metadata().unwrap().len()), (4096, 4096));
    assert!(free_bytes(&disk.mount) + (64 << 10) > free, "{} of {free}", free_bytes(&disk.mount));
    device.grow(4096 + free / 2).unwrap();
    device.cut(8192).unwrap();
    assert_eq!((device.size(), path.metadata().unwrap().len()), (8192, 8192));
    assert!(free_bytes(&disk.mount) > free - MIB);
}

/// A store with one page, whose pages may lie any distance apart.
async fn sparse(disk: &SmallDisk) -> (PageStore, SpaceId) {
    let builder = PageStore::builder().directory(disk.mount.join("store")).ssd_bytes(4 << 20);
    let builder = builder.pool_bytes(3 << 20).page_size(pagetier::PageSize::MIN).page_gap_max(u32::MAX);
    let store = builder.open().await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    store.allocate(space).await.unwrap()[..8].copy_from_slice(&word(0, 1));
    store.sync().await.unwrap();
    (store, space)
}

/// On a disk that is nearly full, a growth takes what it needs and leaves the rest to others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_growth_on_a_nearly_full_disk_leaves_the_rest() {
    // btrfs counts free disk space by chunks of data and metadata, so its figures say nothing about single
    // files.
    on_each(&["ext4", "xfs"], async |kind, disk, _| {
        let (store, space) = sparse(disk).await;
        let file = File::create(disk.mount.join("others")).unwrap();
        let others = free_bytes(&disk.mount) - 24 * MIB;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, others).unwrap();
        let before = free_bytes(&disk.mount);
        let hdd = || disk.mount.join("store/hdd.vol").metadata().unwrap().len();
        let (size, needed) = (hdd(), 23 * MIB);
        store.overwrite(PageId::new(space, (needed / 4096) as u32 - 1)).await.unwrap();
        let (took, left) = (hdd() - size, free_bytes(&disk.mount));
        assert!(
            took <= needed + MIB && left >= MIB,
            "{kind}: {took} bytes for {needed}, {left} of {before} left"
        );
        store.close().await.unwrap();
    })
    .await;
}

/// Wrong numbers, while other tasks and other programs use the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_page_number_takes_nothing_of_the_disk() {
    on_each(&KINDS, async |kind, disk, _| {
        let (store, space) = sparse(disk).await;
        let other = store.spaces().create("u").await.unwrap();
        let wrong = [4_000_000_000, u32::MAX - 1, 1 << 20];
        let free = free_bytes(&disk.mount);
        let hdd = || disk.mount.join("store/hdd.vol").metadata().unwrap().len();
        let size = hdd();
        let refused = async |no| {
            let error = store.overwrite(PageId::new(space, no)).await.map(drop).unwrap_err();
            assert!(reports_a_full_disk(&error), "{kind}: {no}: {error}");
        };
        for no in wrong {
            refused(no).await;
        }
        assert_eq!((hdd(), free_bytes(&disk.mount)), (size, free), "{kind}");
        let used = async {
            for no in 0..PAGES {
                store.overwrite(PageId::new(other, no)).await.unwrap()[..8].copy_from_slice(&word(no, 1));
                std::fs::write(disk.mount.join("theirs"), [1; 8192]).unwrap();
            }
        };
        let misused = async {
            for no in wrong.into_iter().cycle().take(60) {
                refused(no).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::join!(used, misused);
        store.sync().await.unwrap();
        drop(store);
        let store = PageStore::builder().directory(disk.mount.join("store")).pool_bytes(3 << 20);
        let store = store.open().await.unwrap();
        check(&store, other, PAGES, |_| 1).await;
        check(&store, space, 1, |_| 1).await;
        store.close().await.unwrap();
    })
    .await;
}

/// Locks depend on the file system: on each, a second opener must be refused.
#[tokio::test]
async fn a_second_opener_is_refused_on_every_file_system() {
    on_each(&KINDS, async |kind, disk, _| {
        let store = open(disk, Backend::Auto).await;
        let second =
            PageStore::builder().directory(disk.mount.join("store")).pool_bytes(3 << 20).open().await;
        assert!(matches!(second, Err(OpenError::AlreadyOpen { .. })), "{kind}: {second:?}");
        store.close().await.unwrap();
        open(disk, Backend::Auto).await.close().await.unwrap();
    })
    .await;
}

/// The least slack of the manifest's area, in bytes, while spaces are created.
async fn least_slack() -> u64 {
    let folder = pagetier_testing::scratch();
    let builder =
        PageStore::builder().directory(folder.path()).ssd_bytes(0).pool_bytes(3 << 20).io(Backend::Threads);
    let store = builder.open().await.unwrap();
    let mut least = u64::MAX;
    // Beyond one step of the file's size.
    for no in 0..400 {
        let space = store.spaces().create(&format!("{no:0200}")).await.unwrap();
        if no % 40 == 0 {
            let _ = store.allocate(space).await.unwrap();
        }
        let file = std::fs::read(folder.path().join("manifest.json")).unwrap();
        // Contents, and two copies of each record.
        let lines =
            file[newest_area(&file)].split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"{"));
        let lengths: Vec<usize> = lines.map(<[u8]>::len).collect();
        let used = lengths[0] + lengths[1..].iter().sum::<usize>() / 2;
        least = least.min((file.len() as u64 - (64 << 10)) / 2 - used as u64);
    }
    least
}

#[tokio::test]
async fn growth_and_new_spaces_leave_the_manifest_its_slack() {
    assert!(least_slack().await >= 16 << 10);
}
