//! A disk in its own process, which serves one request at a time and can die: `tools/slow-disk`. Needs root
//! and FUSE.

use super::{run, word};
use pagetier::{PageId, PageStore, SpaceId};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const HELPER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tools/slow-disk");
const DISK_BYTES: usize = 64 << 20;

/// The mounted disk; dropping it unmounts it, which ends the helper.
pub(crate) struct SlowDisk {
    helper: Child,
    mount: PathBuf,
}

impl SlowDisk {
    /// Starts the disk, with its previous contents if it was started in this folder before.
    pub(crate) fn start(folder: &Path, service_ms: f64) -> Result<Self, String> {
        if !Path::new("/dev/fuse").exists() {
            return Err("there is no /dev/fuse".into());
        }
        if !rustix::process::geteuid().is_root() {
            return Err("mounting needs root".into());
        }
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("slow-disk");
        let built = Command::new(env!("CARGO"))
            .args(["build", "--locked", "--quiet", "--manifest-path"])
            .arg(Path::new(HELPER).join("Cargo.toml"))
            .arg("--target-dir")
            .arg(&target)
            .status();
        if !built.as_ref().is_ok_and(|status| status.success()) {
            return Err(format!("the helper does not build: {built:?}"));
        }
        let (backing, mount) = (folder.join("back.img"), folder.join("mnt"));
        if !backing.exists() {
            // Written, not sparse: reads of unwritten ranges would cause no I/O.
            std::fs::write(&backing, vec![0; DISK_BYTES]).map_err(|e| e.to_string())?;
        }
        let helper = Command::new(target.join("debug/slow-disk"))
            .arg("--backing")
            .arg(&backing)
            .arg("--mount")
            .arg(&mount)
            .args(["--service-ms", &service_ms.to_string()])
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| e.to_string())?;
        let disk = Self { helper, mount };
        for _ in 0..100 {
            if disk.file().exists() {
                return Ok(disk);
            }
            std::thread::park_timeout(Duration::from_millis(50));
        }
        Err("the disk does not appear".into())
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.mount.join("disk")
    }
}

impl SlowDisk {
    /// Kills the disk at this moment: all operations in flight and all later ones fail.
    pub(crate) fn vanish(mut self) {
        let _ = self.helper.kill();
        let _ = self.helper.wait();
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.mount).status();
        let _ = self.helper.kill();
        let _ = self.helper.wait();
    }
}

/// A block device on the slow disk; detached when dropped.
pub(crate) struct LoopDevice(pub(crate) PathBuf);

impl LoopDevice {
    pub(crate) fn on(disk: &SlowDisk) -> Result<Self, String> {
        let done = Command::new("losetup").args(["-f", "--show"]).arg(disk.file()).output();
        let done = done.map_err(|e| format!("losetup: {e}"))?;
        let device = String::from_utf8_lossy(&done.stdout).trim().to_owned();
        if device.is_empty() {
            return Err(format!("losetup: {}", String::from_utf8_lossy(&done.stderr)));
        }
        Ok(Self(device.into()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

/// A mounted file system on a block device; unmounted when dropped.
pub(crate) struct Mounted(pub(crate) PathBuf);

impl Mounted {
    /// Mounts the file system on `device` at `at`, which is created if necessary.
    pub(crate) fn at(device: &LoopDevice, at: &Path) -> Result<Self, String> {
        std::fs::create_dir_all(at).map_err(|e| e.to_string())?;
        run(Command::new("mount").arg(&device.0).arg(at))?;
        Ok(Self(at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A lazy unmount, since the device may be dead.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// The first word of page `no`'s payload in `version`.
/// The expected versions of a page: that of the last `sync`, and the newest.
#[derive(Clone, Copy, Default)]
pub(crate) struct Known {
    pub(crate) synced: u32,
    pub(crate) newest: u32,
}

/// Changes random pages until the store refuses; syncs occasionally.
pub(crate) async fn write_until_refused(
    store: &PageStore,
    space: SpaceId,
    known: &mut [Known],
    seed: u64,
    calm: bool,
) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut failures = 0;
    let pages = known.len() as u32;
    for turn in 1..=3 * pages {
        let no = rng.random_range(0..pages);
        match store.get_mut(PageId::new(space, no)).await {
            Ok(mut page) => {
                let version = known[no as usize].newest + 1;
                page[..8].copy_from_slice(&word(no, version));
                known[no as usize].newest = version;
            }
            Err(error) => {
                assert!(!calm, "page {no}: {error}");
                failures += 1;
            }
        }
        if turn % 200 == 0 && store.sync().await.is_ok() {
            known.iter_mut().for_each(|k| k.synced = k.newest);
        }
        // Each may have waited for a frame.
        if failures > 1 {
            return;
        }
    }
}
