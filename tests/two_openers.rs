//! Two stores on one directory, or on the same devices by different paths: the second is refused while the
//! first runs, and waits while the first leaves or the kernel cleans up after it.

mod mounted;

use mounted::{KINDS, SmallDisk, skip};
use pagetier::{Builder, OpenError, PageId, PageSize, PageStore};
use pagetier_testing::skipped;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const DIRECTORY: &str = "PAGETIER_HOLDER_DIRECTORY";

fn builder(directory: &Path) -> Builder {
    PageStore::builder()
        .directory(directory)
        .page_size(PageSize::MIN)
        .pool_bytes(1 << 20)
        .ssd_bytes(2 << 20)
        .ring_pages(16)
}

fn is_refused(opened: &Result<PageStore, OpenError>) -> bool {
    matches!(opened, Err(OpenError::AlreadyOpen { .. }))
}

/// Runs `trial` in a directory of the file system of temporary files, and of a small file system of each kind
/// that can be mounted.
async fn everywhere(trial: impl AsyncFn(&Path)) {
    trial(tempfile::tempdir().unwrap().path()).await;
    for kind in KINDS {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        match SmallDisk::mount(folder.path(), kind) {
            Ok(disk) => trial(&disk.mount.join("store")).await,
            Err(why) => return skip(&why),
        }
    }
}

#[tokio::test]
async fn a_second_opener_in_this_process_is_refused_until_the_first_is_gone() {
    everywhere(async |directory: &Path| {
        let store = builder(directory).open().await.unwrap();
        let second = builder(directory).open().await;
        assert!(is_refused(&second), "{second:?}");
        drop(store);
        builder(directory).open().await.unwrap().close().await.unwrap();
        builder(directory).open().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_store_dropped_while_it_writes_can_be_opened_again_at_once() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..20_u8 {
        let store = builder(directory.path()).open().await.unwrap();
        let space = match store.spaces().find("t") {
            Some(space) => space,
            None => store.spaces().create("t").await.unwrap(),
        };
        for _ in store.spaces().pages(space).unwrap()..100 {
            let _ = store.allocate(space).await.unwrap();
        }
        for no in 0..100 {
            store.get_or_create(PageId::new(space, no)).await.unwrap()[0] = round;
        }
        let cut = Duration::from_micros(u64::from(round) * 300);
        if tokio::time::timeout(cut, store.sync()).await.is_ok() {
            assert_eq!(store.get(PageId::new(space, 7)).await.unwrap()[0], round);
        }
    }
}

/// Not a test by itself: a process that holds a store until it is killed.
#[tokio::test]
async fn the_holder() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let store = builder(Path::new(&directory)).open().await.unwrap();
    let space = match store.spaces().find("t") {
        Some(space) => space,
        None => store.spaces().create("t").await.unwrap(),
    };
    println!("\nholding");
    loop {
        let mut page = store.allocate(space).await.unwrap();
        page[0] = 1;
        drop(page);
        store.sync().await.unwrap();
    }
}

struct Holder(Child);

impl Holder {
    /// Starts another process that holds the store in `directory` and writes to it.
    fn of(directory: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_holder", "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let holding = lines.map_while(Result::ok).any(|line| line == "holding");
        let holder = Self(child);
        assert!(holding, "the holder could not open the store");
        holder
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_second_opener_in_another_process_is_refused_until_the_first_is_killed() {
    everywhere(async |directory: &Path| {
        for _ in 0..3 {
            let mut holder = Holder::of(directory);
            let second = builder(directory).open().await;
            assert!(is_refused(&second), "{second:?}");
            holder.0.kill().unwrap();
            holder.0.wait().unwrap();
            // The kernel may still be closing its files.
            builder(directory).open().await.unwrap();
        }
    })
    .await;
}

/// A copy of the store's directory that refers to the original's devices.
fn copy_of(directory: &Path) -> (tempfile::TempDir, [PathBuf; 2]) {
    let copy = tempfile::tempdir().unwrap();
    for file in ["manifest.json", "lock"] {
        std::fs::copy(directory.join(file), copy.path().join(file)).unwrap();
    }
    (copy, ["hdd.vol", "ssd.cache"].map(|file| directory.join(file)))
}

#[tokio::test]
async fn a_copied_directory_does_not_open_the_same_devices_a_second_time() {
    let directory = tempfile::tempdir().unwrap();
    let store = builder(directory.path()).open().await.unwrap();
    let (copy, [hdd, ssd]) = copy_of(directory.path());
    let both = || builder(copy.path()).hdd(&hdd).ssd(&ssd);
    let ssd_only = || builder(copy.path()).hdd(copy.path().join("other")).ssd(&ssd);
    for second in [both(), both().create(pagetier::options::Create::Overwriting), ssd_only()] {
        let second = second.open().await;
        assert!(is_refused(&second), "{second:?}");
    }
    // A new store on these devices is refused too.
    let other = tempfile::tempdir().unwrap();
    let forced =
        builder(other.path()).hdd(&hdd).ssd(&ssd).create(pagetier::options::Create::Overwriting).open().await;
    assert!(is_refused(&forced), "{forced:?}");
    store.close().await.unwrap();
    both().open().await.unwrap();
}

/// A loop device over a file in `directory`, if this machine supports them.
fn loop_device(directory: &Path) -> Option<(PathBuf, impl Drop)> {
    struct Detach(PathBuf);
    impl Drop for Detach {
        fn drop(&mut self) {
            let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
        }
    }
    let file = directory.join("disk");
    std::fs::File::create(&file).unwrap().set_len(64 << 20).unwrap();
    let made = Command::new("losetup").args(["-f", "--show"]).arg(&file).output().ok()?;
    if !made.status.success() {
        return None;
    }
    let path = PathBuf::from(String::from_utf8_lossy(&made.stdout).trim());
    Some((path.clone(), Detach(path)))
}

fn run(program: &str, args: &[&std::ffi::OsStr]) -> bool {
    let output = Command::new(program).args(args).output();
    output.is_ok_and(|output| output.status.success())
}

#[tokio::test]
async fn a_block_device_that_is_mounted_or_another_stores_is_refused_even_with_force() {
    let directory = tempfile::tempdir().unwrap();
    let Some((device, _detach)) = loop_device(directory.path()) else {
        skipped("loop devices", "a mounted device is not tried");
        return;
    };
    let mount = directory.path().join("mnt");
    std::fs::create_dir(&mount).unwrap();
    let store = |name: &str| {
        builder(&directory.path().join(name)).hdd(&device).create(pagetier::options::Create::Overwriting)
    };
    if run("mkfs.ext4", &["-q".as_ref(), device.as_ref()]) && run("mount", &[device.as_ref(), mount.as_ref()])
    {
        let opened = store("a").open().await;
        assert!(run("umount", &[mount.as_ref()]));
        assert!(matches!(opened, Err(OpenError::DeviceInUse { .. })), "{opened:?}");
    } else {
        skipped("mounts", "a mounted device is not tried");
    }
    let first = store("a").open().await.unwrap();
    let opened = store("b").open().await;
    assert!(matches!(opened, Err(OpenError::DeviceInUse { .. })), "{opened:?}");
    first.close().await.unwrap();
    store("b").open().await.unwrap();
}

/// Without a directory in common, only the device's own lock keeps readers and a writer apart.
#[tokio::test]
async fn a_block_device_is_not_read_while_it_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let Some((device, _detach)) = loop_device(directory.path()) else {
        skipped("loop devices", "one with a manifest is not tried");
        return;
    };
    let ssd = directory.path().join("ssd");
    let store = |name: &str| {
        let at = builder(&directory.path().join(name)).hdd(&device).ssd(&ssd);
        at.manifest(pagetier::options::OnHdd { bytes_max: 1 << 20, ..Default::default() })
    };
    let writer = store("a").open().await.unwrap();
    // The SSD, a file, has a lock of its own.
    let read = store("b").ssd(directory.path().join("other")).open_read_only().await;
    assert!(matches!(&read, Err(OpenError::AlreadyOpen { path, .. }) if *path == device), "{read:?}");
    writer.close().await.unwrap();
    let first = store("b").open_read_only().await.unwrap();
    let second = store("c").open_read_only().await.unwrap();
    let written = store("d")
        .ssd(directory.path().join("other"))
        .create(pagetier::options::Create::Overwriting)
        .open()
        .await;
    assert!(matches!(&written, Err(OpenError::AlreadyOpen { path, .. }) if *path == device), "{written:?}");
    first.close().await.unwrap();
    second.close().await.unwrap();
    store("a").open().await.unwrap().close().await.unwrap();
}
