//! Small file systems on loop devices, for tests that fill them up or take them away.

#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod slow;

use futures_util::future::join_all;
use pagetier::{
    Error, PageId, PageStore, SpaceId,
    device::DeviceErrorKind,
    errors::{PoolError, TierError},
};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The file systems under test.
pub(crate) const KINDS: [&str; 3] = ["ext4", "xfs", "btrfs"];

pub(crate) fn skip(why: &str) {
    pagetier_testing::skipped("mounts", why);
}

/// The content of a page.
pub(crate) fn word(no: u32, version: u32) -> [u8; 8] {
    (u64::from(version) << 32 | u64::from(no)).to_le_bytes()
}

/// A space of so many pages, each of this version.
pub(crate) async fn grown(store: &PageStore, name: &str, pages: u32, version: u32) -> SpaceId {
    let space = store.spaces().create(name).await.unwrap();
    for no in 0..pages {
        store.allocate(space).await.unwrap()[..8].copy_from_slice(&word(no, version));
    }
    space
}

pub(crate) async fn check(store: &PageStore, space: SpaceId, pages: u32, version: impl Fn(u32) -> u32) {
    for no in 0..pages {
        assert_eq!(store.get(PageId::new(space, no)).await.unwrap()[..8], word(no, version(no)), "page {no}");
    }
}

/// Whether the error says, directly or through a page that could not be written, that the device is full or
/// that no frame became free.
pub(crate) fn reports_a_full_disk(error: &Error) -> bool {
    match error {
        Error::Pool(PoolError::Exhausted { .. }) => true,
        Error::Manifest { source } => source.kind() == std::io::ErrorKind::StorageFull,
        Error::Device(device)
        | Error::Pool(PoolError::Tier(
            TierError::Device { source: device, .. } | TierError::Flush { source: device },
        )) => {
            matches!(device.kind, DeviceErrorKind::NoSpace)
        }
        _ => false,
    }
}

/// Runs a test on an empty file system of each kind, below a folder, at once: each waits for its own device
/// most of the time.
pub(crate) async fn on_each(kinds: &[&str], test: impl AsyncFn(&str, &SmallDisk, &Path)) {
    join_all(kinds.iter().map(async |kind| {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        match SmallDisk::mount(folder.path(), kind) {
            Ok(disk) => test(kind, &disk, folder.path()).await,
            Err(why) => skip(&why),
        }
    }))
    .await;
}

/// A mounted file system; unmounted when dropped.
pub(crate) struct SmallDisk {
    pub(crate) mount: PathBuf,
    /// The loop device, unless it goes with the mount.
    device: Option<PathBuf>,
    /// Where the file that takes all free space is.
    ballast_in: PathBuf,
    /// The file system below this one.
    _below: Option<Box<SmallDisk>>,
}

impl SmallDisk {
    /// Creates and mounts a file system of `kind` below `folder`. An error says what this machine lacks.
    pub(crate) fn mount(folder: &Path, kind: &str) -> Result<Self, String> {
        let (image, mount) = image(folder, kind)?;
        make(kind, &image)?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mount))?;
        Ok(Self::at(mount, None))
    }

    /// Like [`SmallDisk::mount`], on a device with sectors of this size, mounted with `options`.
    pub(crate) fn with_sectors(
        folder: &Path,
        kind: &str,
        sector_bytes: u32,
        options: &str,
    ) -> Result<Self, String> {
        let (image, mount) = image(folder, kind)?;
        let sectors = format!("--sector-size={sector_bytes}");
        let found = Command::new("losetup").args(["-f", "--show", &sectors]).arg(&image).output();
        let found = found.map_err(|e| format!("losetup: {e}"))?;
        let device = PathBuf::from(String::from_utf8_lossy(&found.stdout).trim());
        if device.as_os_str().is_empty() {
            return Err(format!("losetup: {}", String::from_utf8_lossy(&found.stderr)));
        }
        let disk = Self::at(mount.clone(), Some(device.clone()));
        make(kind, &device)?;
        run(Command::new("mount").args(["-o", options]).arg(&device).arg(&mount))?;
        Ok(disk)
    }

    /// A file system without a device, mounted by `mount -t kind -o options`.
    pub(crate) fn without_device(folder: &Path, kind: &str, options: &str) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("mounting needs root".into());
        }
        let mount = folder.join("mnt");
        std::fs::create_dir(&mount).map_err(|e| e.to_string())?;
        run(Command::new("mount").args(["-t", kind, "-o", options, "none"]).arg(&mount))?;
        Ok(Self::at(mount, None))
    }

    fn at(mount: PathBuf, device: Option<PathBuf>) -> Self {
        Self { ballast_in: mount.clone(), mount, device, _below: None }
    }

    /// Takes the free space of a part with a limit.
    pub(crate) fn with_ballast_in(mut self, folder: PathBuf) -> Self {
        self.ballast_in = folder;
        self
    }

    /// Keeps the file system below mounted.
    pub(crate) fn over(mut self, below: Self) -> Self {
        self._below = Some(Box::new(below));
        self
    }

    /// Takes all free space; [`SmallDisk::make_room`] frees it.
    pub(crate) fn fill_up(&self) {
        let mut file = File::create(self.ballast()).unwrap();
        let mut bytes = 1_u64 << 30;
        let mut end = 0;
        // Large pieces first, then the rest in small ones.
        while bytes >= 4096 {
            let mode = rustix::fs::FallocateFlags::empty();
            match rustix::fs::fallocate(&file, mode, end, bytes) {
                Ok(()) => end += bytes,
                Err(_) => bytes /= 2,
            }
        }
        while file.write_all(&[1; 512]).is_ok() && end < 1 << 20 {
            end += 512;
        }
    }

    pub(crate) fn make_room(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }

    fn ballast(&self) -> PathBuf {
        self.ballast_in.join("ballast")
    }
}

/// Creates the file that a file system of `kind` will be in, and the folder where it will be mounted.
fn image(folder: &Path, kind: &str) -> Result<(PathBuf, PathBuf), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("mounting needs root".into());
    }
    let (image, mount) = (folder.join("disk.img"), folder.join("mnt"));
    let file = File::create(&image).map_err(|e| e.to_string())?;
    file.set_len(smallest(kind)).map_err(|e| e.to_string())?;
    std::fs::create_dir(&mount).map_err(|e| e.to_string())?;
    Ok((image, mount))
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A lazy unmount, since a store that was just dropped may hold its files briefly. The loop device
        // goes with the mount.
        let _ = Command::new("umount").args(["-l"]).arg(&self.mount).stderr(Stdio::null()).status();
        if let Some(device) = &self.device {
            let _ = Command::new("losetup").arg("-d").arg(device).status();
        }
    }
}

/// The smallest file system of `kind`, in bytes.
pub(crate) fn smallest(kind: &str) -> u64 {
    match kind {
        "xfs" => 320 << 20,
        "btrfs" => 128 << 20,
        _ => 64 << 20,
    }
}

/// Creates a file system of `kind` on a file or device.
pub(crate) fn make(kind: &str, on: &Path) -> Result<(), String> {
    match kind {
        "btrfs" => run(Command::new("mkfs.btrfs").args(["-q", "-f"]).arg(on)),
        "xfs" => run(Command::new("mkfs.xfs").args(["-q", "-f"]).arg(on)),
        _ => run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(on)),
    }
}

pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let done = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let why = || format!("{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    if done.status.success() { Ok(()) } else { Err(why()) }
}
