//! The kernel in the path of a slow disk: the HDD is a file that the kernel serves one request at a time, each taking milliseconds.
//!
//! Needs the helper `slow-disk` beside the project, root and FUSE; without them the test says so on standard error and does nothing.

use pagetier::{Backend, PageId, PageStore, SpaceId};
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
    fn start(folder: &Path) -> Result<Self, String> {
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
        // Written, not sparse: unwritten ranges would be read without any I/O.
        std::fs::write(&backing, vec![0; DISK_BYTES]).map_err(|e| e.to_string())?;
        let helper = Command::new(target.join("release/slow-disk"))
            .arg("--backing")
            .arg(&backing)
            .arg("--mount")
            .arg(&mount)
            .args(["--model", "fixed", "--svc-ms", &SERVICE_MS.to_string()])
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

impl Drop for SlowDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.mount).status();
        let _ = self.helper.kill();
        let _ = self.helper.wait();
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
    let disk = match SlowDisk::start(folder.path()) {
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
