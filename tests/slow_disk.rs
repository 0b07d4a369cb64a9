//! The kernel in the path of a slow disk: the HDD is a file that the kernel serves one request at a time, each taking milliseconds.
//!
//! Needs the helper `slow-disk` beside the project, root and FUSE; without them the test says so on standard error and does nothing.

use pagetier::{Backend, PageId, PageStore, SpaceId};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const HELPER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/tools/slow-disk");
const DISK_BYTES: usize = 64 << 20;
const SERVICE_MS: f64 = 4.0;
const PAGES: u32 = 700;

/// Past the test harness, which keeps what passing tests print to itself.
fn skip(why: &str) {
    let _ = std::io::stderr().write_all(format!("\nSKIPPED: no slow disk: {why}\n").as_bytes());
}

/// The mounted disk; unmounted when dropped, which ends the helper.
struct SlowDisk {
    helper: Child,
    mount: PathBuf,
}

impl SlowDisk {
    /// With what it held before, if it was started in this folder before.
    fn start(folder: &Path, service_ms: f64) -> Result<Self, String> {
        if !Path::new(HELPER).join("Cargo.toml").exists() {
            return Err("the helper is not there".into());
        }
        if !Path::new("/dev/fuse").exists() {
            return Err("there is no /dev/fuse".into());
        }
        if !rustix::process::geteuid().is_root() {
            return Err("mounting needs root".into());
        }
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("slow-disk");
        let built = Command::new(env!("CARGO"))
            .args(["build", "--release", "--locked", "--quiet", "--manifest-path"])
            .arg(Path::new(HELPER).join("Cargo.toml"))
            .arg("--target-dir")
            .arg(&target)
            .status();
        if !built.as_ref().is_ok_and(|status| status.success()) {
            return Err(format!("the helper does not build: {built:?}"));
        }
        let (backing, mount) = (folder.join("back.img"), folder.join("mnt"));
        if !backing.exists() {
            // Written, not sparse: unwritten ranges would be read without any I/O.
            std::fs::write(&backing, vec![0; DISK_BYTES]).map_err(|e| e.to_string())?;
        }
        let helper = Command::new(target.join("release/slow-disk"))
            .arg("--backing")
            .arg(&backing)
            .arg("--mount")
            .arg(&mount)
            .args(["--model", "fixed", "--svc-ms", &service_ms.to_string()])
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

    fn file(&self) -> PathBuf {
        self.mount.join("disk")
    }
}

impl SlowDisk {
    /// Dies at this moment: whatever is under way on it fails, and all that comes.
    fn vanish(mut self) {
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
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn on(disk: &SlowDisk) -> Result<Self, String> {
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

async fn open(folder: &Path, disk: &SlowDisk, io: Backend) -> PageStore {
    let builder = PageStore::builder().directory(folder.join("store")).hdd(disk.file());
    builder.pool_bytes(3 << 20).ssd_bytes(5 << 20).ring_pages(16).io(io).open().await.unwrap()
}

fn word(no: u32, version: u32) -> [u8; 8] {
    (u64::from(version) << 32 | u64::from(no)).to_le_bytes()
}

async fn check(store: &PageStore, space: SpaceId, version: u32) {
    for no in 0..PAGES {
        assert_eq!(store.get(PageId::new(space, no)).await.unwrap()[..8], word(no, version), "page {no}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_on_a_slow_disk_keeps_its_promises_and_waits_for_the_disk_alone() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let disk = match SlowDisk::start(folder.path(), SERVICE_MS) {
        Ok(disk) => disk,
        Err(why) => return skip(&why),
    };
    for (version, io) in [(1, Backend::Auto), (2, Backend::Threads)] {
        let store = open(folder.path(), &disk, io).await;
        let space = match store.space("t") {
            Some(space) => space,
            None => store.create_space("t").await.unwrap(),
        };
        for no in 0..PAGES {
            let mut page = match no < store.pages(space).unwrap() {
                true => store.get_mut(PageId::new(space, no)).await.unwrap(),
                false => store.allocate(space).await.unwrap(),
            };
            page[..8].copy_from_slice(&word(no, version));
        }
        store.sync().await.unwrap();
        check(&store, space, version).await;
        let stats = store.stats();
        let disk_reads = stats.hdd_device.totals_without(&[]).read;
        assert!(disk_reads.ops > 50 && stats.ssd.pages > 50, "{stats:?}");
        let mean_ms = stats.hdd_device.busy_ns() as f64 / 1e6 / disk_reads.ops as f64;
        assert!(mean_ms >= SERVICE_MS * 0.9, "{mean_ms} ms a read: this is no slow disk");
        // Once as after a crash, once in order.
        if version == 1 {
            drop(store);
            tokio::time::sleep(Duration::from_millis(100)).await;
        } else {
            store.close().await.unwrap();
        }
        let store = open(folder.path(), &disk, io).await;
        check(&store, space, version).await;
        store.close().await.unwrap();
    }
}

/// A page as the test knows it: the version of the last `sync`, and the newest.
#[derive(Clone, Copy, Default)]
struct Known {
    synced: u32,
    newest: u32,
}

/// Changes pages at random until the store refuses; syncs now and then.
async fn write_until_refused(store: &PageStore, space: SpaceId, known: &mut [Known], seed: u64, calm: bool) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut failures = 0;
    for turn in 1..=3 * PAGES {
        let no = rng.random_range(0..PAGES);
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
        if failures > 3 {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_device_that_goes_away_under_load_fails_its_operations_and_loses_nothing() {
    for (tier, io) in
        [("ssd", Backend::Auto), ("ssd", Backend::Threads), ("hdd", Backend::Auto), ("hdd", Backend::Threads)]
    {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let started = SlowDisk::start(folder.path(), 0.2).and_then(|disk| Ok((LoopDevice::on(&disk)?, disk)));
        let (device, disk) = match started {
            Ok(both) => both,
            Err(why) => return skip(&why),
        };
        let open = async |device: &LoopDevice| {
            let builder = PageStore::builder().directory(folder.path().join("store")).io(io);
            let builder = if tier == "ssd" { builder.ssd(&device.0) } else { builder.hdd(&device.0) };
            let builder = builder.pool_bytes(3 << 20).ssd_bytes(5 << 20).ring_pages(16);
            builder.exhausted_after(Duration::from_secs(3)).open().await
        };
        let mut known = vec![Known::default(); PAGES as usize];
        let store = open(&device).await.unwrap();
        let space = store.create_space("t").await.unwrap();
        for no in 0..PAGES {
            store.allocate(space).await.unwrap()[..8].copy_from_slice(&word(no, 0));
        }
        store.sync().await.unwrap();
        write_until_refused(&store, space, &mut known, 1, true).await;

        eprintln!("{tier} {io:?} dies");
        let dying = std::thread::spawn(move || {
            std::thread::park_timeout(Duration::from_millis(150));
            disk.vanish();
        });
        write_until_refused(&store, space, &mut known, 2, false).await;
        dying.join().unwrap();
        let (mut served, mut failed) = (0, 0);
        for no in 0..PAGES {
            match store.get(PageId::new(space, no)).await {
                Ok(page) => {
                    served += 1;
                    assert_eq!(page[..8], word(no, known[no as usize].newest), "{tier} {io:?}: page {no}");
                }
                Err(_) => failed += 1,
            }
            // Each may have waited for a frame.
            if failed > 3 && served > 20 {
                break;
            }
        }
        assert!(served > 20 && failed > 0, "{tier} {io:?}: {served} pages served without it, {failed} not");
        drop(store);
        drop(device);
        tokio::time::sleep(Duration::from_millis(200)).await;

        eprintln!("{tier} {io:?} back");
        let disk = SlowDisk::start(folder.path(), 0.2).unwrap();
        let device = LoopDevice::on(&disk).unwrap();
        let store = open(&device).await.unwrap();
        for (no, known) in (0..PAGES).zip(&known) {
            let page = store.get(PageId::new(space, no)).await.unwrap();
            let version = u32::from_le_bytes([page[4], page[5], page[6], page[7]]);
            assert_eq!(page[..8], word(no, version), "{tier} {io:?}: page {no}");
            let allowed = known.synced..=known.newest;
            assert!(
                allowed.contains(&version),
                "{tier} {io:?}: page {no} reads as {version}, not {allowed:?}"
            );
        }
        store.close().await.unwrap();
    }
}
