//! A slow disk, through the kernel: the HDD is a file that the kernel serves one request at a time, each
//! taking milliseconds.
//!
//! Needs root and FUSE; without them the test reports so on standard error and does nothing.

use crate::mounted::slow::{Known, LoopDevice, SlowDisk, write_until_refused};
use crate::mounted::{check, grown, word};
use pagetier::{PageId, PageStore, device::Backend};
use std::path::Path;
use std::time::Duration;

const SERVICE_MS: f64 = 4.0;
const PAGES: u32 = 700;

fn skip(why: &str) {
    pagetier_testing::skipped("slow disk", why);
}

async fn open(folder: &Path, disk: &SlowDisk, io: Backend) -> PageStore {
    let builder = PageStore::builder().directory(folder.join("store")).hdd(disk.file());
    builder.pool_bytes(3 << 20).ssd_bytes(5 << 20).ring_pages(16).io(io).open().await.unwrap()
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
        let space = match store.spaces().find("t") {
            Some(space) => space,
            None => store.spaces().create("t").await.unwrap(),
        };
        for no in 0..PAGES {
            let mut page = match no < store.spaces().pages(space).unwrap() {
                true => store.get_mut(PageId::new(space, no)).await.unwrap(),
                false => store.allocate(space).await.unwrap(),
            };
            page[..8].copy_from_slice(&word(no, version));
        }
        store.sync().await.unwrap();
        check(&store, space, PAGES, |_| version).await;
        let stats = store.stats();
        let disk_reads = stats.hdd_device.totals_without(&[]).read;
        assert!(disk_reads.ops > 50 && stats.ssd.pages > 50, "{stats:?}");
        let mean_ms = stats.hdd_device.busy_ns() as f64 / 1e6 / disk_reads.ops as f64;
        assert!(mean_ms >= SERVICE_MS * 0.9, "{mean_ms} ms a read: this is not a slow disk");
        // Once after a crash, once after a clean close.
        if version == 1 {
            drop(store);
            tokio::time::sleep(Duration::from_millis(100)).await;
        } else {
            store.close().await.unwrap();
        }
        let store = open(folder.path(), &disk, io).await;
        check(&store, space, PAGES, |_| version).await;
        store.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_device_that_goes_away_under_load_fails_its_operations_and_loses_nothing() {
    // At once: each waits for its own dead device most of the time.
    tokio::join!(
        goes_away("ssd", Backend::Auto),
        goes_away("ssd", Backend::Threads),
        goes_away("hdd", Backend::Auto),
        goes_away("hdd", Backend::Threads),
    );
}

async fn goes_away(tier: &str, io: Backend) {
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
    let space = grown(&store, "t", PAGES, 0).await;
    store.sync().await.unwrap();
    write_until_refused(&store, space, &mut known, 1, true).await;

    eprintln!("{tier} {io:?} dies");
    let dying = std::thread::spawn(move || {
        std::thread::park_timeout(Duration::from_millis(150));
        disk.vanish();
    });
    write_until_refused(&store, space, &mut known, 2, false).await;
    dying.join().unwrap();
    // Pages in memory are served at once. Each other page may wait for a frame: one failure is enough.
    let (mut served, mut failed) = (0, 0);
    for no in 0..PAGES {
        if let Some(page) = store.try_get(PageId::new(space, no)) {
            served += 1;
            assert_eq!(page[..8], word(no, known[no as usize].newest), "{tier} {io:?}: page {no}");
        }
    }
    for no in 0..PAGES {
        match store.get(PageId::new(space, no)).await {
            Ok(page) => {
                assert_eq!(page[..8], word(no, known[no as usize].newest), "{tier} {io:?}: page {no}")
            }
            Err(_) => failed += 1,
        }
        if failed > 0 {
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
        assert!(allowed.contains(&version), "{tier} {io:?}: page {no} reads as {version}, not {allowed:?}");
    }
    store.close().await.unwrap();
}
