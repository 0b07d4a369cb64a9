//! What a backup must wait for, make durable and begin again for.

use crate::fixture::{Fixture, PAGE, PAGES, expect_all, fill, grown, read, synced, write, write_all, zoned};
use pagetier::{
    Error, Location, PageId, PageStore, SpaceId, SsdEvent, SsdMode,
    backup::{BackupOptions, BackupReport},
    device::{MemoryDevice, SharedDevice},
};
use pagetier_devio::{Fence, IoOp};
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// After this many pages a backup reports its progress.
const REPORTED: u64 = 256;

/// How long a read takes meanwhile.
const SLOW: Duration = Duration::from_secs(2);

async fn backup(store: &PageStore, dir: &Path) -> BackupReport {
    store.backup(dir, BackupOptions::new()).await.unwrap()
}

/// Takes a backup whose reads are slow, and does `meanwhile` once it has read the first 256 pages.
async fn backup_during<F: Future<Output = ()> + Send + 'static>(
    fixture: &Fixture,
    store: &Arc<PageStore>,
    dir: &Path,
    meanwhile: impl FnOnce(Arc<PageStore>) -> F,
) -> BackupReport {
    let reached = Arc::new(Notify::new());
    let (reaches, later) = (Arc::clone(&reached), meanwhile(Arc::clone(store)));
    let task = tokio::spawn(async move {
        reached.notified().await;
        later.await;
    });
    for device in [&fixture.hdd, &fixture.ssd] {
        device.inject(Fault::new(FaultEffect::Slow(SLOW)).on(IoOp::Read).times(100_000));
    }
    let options = BackupOptions::new().on_progress(move |progress| {
        if progress.done == REPORTED {
            reaches.notify_one();
        }
    });
    let report = store.backup(dir, options).await.unwrap();
    task.await.unwrap();
    [&fixture.hdd, &fixture.ssd].iter().for_each(|device| device.clear_faults());
    report
}

#[tokio::test(start_paused = true)]
async fn a_limited_backup_takes_as_long_as_its_rate_allows() {
    let fixture = Fixture::with_latency(Duration::ZERO, Duration::ZERO);
    let store = fixture.open().await;
    let space = grown(&store).await;
    write_all(&store, space, 2).await;
    let dir = pagetier_testing::scratch();
    for (rate, seconds) in [(Some(PAGE * 100), 2.9..3.3), (Some(0), 0.0..0.5), (None, 0.0..0.5)] {
        let began = tokio::time::Instant::now();
        let options = BackupOptions::new().full(true).bytes_per_second(rate);
        let report = store.backup(dir.path(), options).await.unwrap();
        assert_eq!(report.pages, u64::from(PAGES));
        let took = began.elapsed().as_secs_f64();
        assert!(seconds.contains(&took), "{rate:?}: {took} s");
    }
    // Slower than a page a second, it is still dropped at once.
    let slow = BackupOptions::new().bytes_per_second(Some(1));
    let began = tokio::time::Instant::now();
    assert!(tokio::time::timeout(Duration::from_secs(5), store.backup(dir.path(), slow)).await.is_err());
    assert_eq!(began.elapsed().as_secs(), 5);
    store.shutdown().await.unwrap();
}

/// A backup does not look at pages beyond the end that a space had when it began: they are not in it, even if
/// the chain has an earlier version of one.
#[tokio::test(start_paused = true)]
async fn pages_that_are_created_beyond_the_end_meanwhile_are_not_in_a_backup() {
    let fixture = Fixture::with_latency(Duration::ZERO, Duration::ZERO);
    let store = fixture.open().await;
    let space = grown(&store).await;
    let dir = pagetier_testing::scratch();
    let slowly = async || {
        let options = BackupOptions::new().full(true).bytes_per_second(Some(PAGE * 100));
        store.backup(dir.path(), options).await.unwrap()
    };
    let create = async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        fill(&mut store.allocate(space).await.unwrap(), PAGES, 2);
        store.sync().await.unwrap();
    };
    tokio::join!(slowly(), create());
    let (_dir, copy, space) = restored(dir.path()).await;
    assert!(!copy.exists(PageId::new(space, PAGES)) && copy.exists(PageId::new(space, PAGES - 1)));
    // The next one has it.
    assert_eq!(store.backup(dir.path(), BackupOptions::new()).await.unwrap().full_because, None);
    let (_dir, copy, space) = restored(dir.path()).await;
    assert_eq!(read(&copy, space, PAGES).await.unwrap(), 2);
}

async fn restored(from: &Path) -> (tempfile::TempDir, PageStore, SpaceId) {
    let dir = pagetier_testing::scratch();
    let device = |name| Arc::new(MemoryDevice::new(name, 0)) as SharedDevice;
    let (hdd, ring) = (device("hdd"), device("ring"));
    let builder = || {
        let builder = PageStore::builder().directory(dir.path().join("restored")).ssd_bytes(0);
        builder.hdd(Arc::clone(&hdd)).ring_device(Arc::clone(&ring)).pool_bytes(60 * 4096)
    };
    builder().restore(from, None, |_| ()).await.unwrap();
    let store = builder().create(pagetier::options::Create::Never).open().await.unwrap();
    let space = store.spaces().find("t").unwrap();
    (dir, store, space)
}

/// The pages of which the restored chain has another version than the store: number, here, there. 0: none.
async fn differences(store: &PageStore, space: SpaceId, chain: &Path) -> Vec<(u32, u32, u32)> {
    let (_dir, copy, copied) = restored(chain).await;
    let mut all = Vec::new();
    for no in 0..PAGES {
        let (here, there) = (read(store, space, no).await, read(&copy, copied, no).await);
        let (here, there) = (here.unwrap_or(0), there.unwrap_or(0));
        if here != there {
            all.push((no, here, there));
        }
    }
    copy.close().await.unwrap();
    all
}

/// A page's write to the ring is in flight, with a stamp below the one that the backup draws, when the backup
/// reads the page, which has an older copy on the SSD. Returns the page's version in the chain after the next
/// backup; the store has version 2.
async fn written_while_read() -> u32 {
    let fixture = Fixture::new();
    let store = Arc::new(fixture.builder().open().await.unwrap());
    let space = grown(&store).await;
    let dir = pagetier_testing::scratch();
    backup(&store, dir.path()).await;
    store.ssd().set_mode(SsdMode::WriteThrough).await.unwrap();
    let on_ssd = (0..PAGES).rfind(|no| store.location(PageId::new(space, *no)) == Location::Ssd).unwrap();
    let slow = |secs| Fault::new(FaultEffect::Slow(Duration::from_secs(secs))).on(IoOp::Write).times(1);
    // The backup's first sync waits for this page's home.
    write(&store, space, 3, 2).await.unwrap();
    fixture.hdd.inject(slow(5));
    let backing = tokio::spawn({
        let (store, dir) = (Arc::clone(&store), dir.path().to_owned());
        async move { backup(&store, &dir).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    write(&store, space, on_ssd, 2).await.unwrap();
    // This counts as a change: the backup's sync has something to flush, which takes a moment, and the other
    // page's write begins in it.
    let ssd = Fence::default().guard(Arc::clone(&fixture.ssd) as SharedDevice);
    ssd.grow(ssd.size()).unwrap();
    fixture.ssd.inject(slow(60));
    let syncing = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.sync().await }
    });
    assert_eq!(backing.await.unwrap().full_because, None);
    syncing.await.unwrap().unwrap();
    backup(&store, dir.path()).await;
    let (_dir, copy, copied) = restored(dir.path()).await;
    read(&copy, copied, on_ssd).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_page_that_is_being_written_when_a_backup_reads_it_is_in_the_chain() {
    assert_eq!(written_while_read().await, 2);
}

/// Pages are written, and not flushed, before a backup reads them. The power fails after the backup. Returns
/// the differences between the store and the chain after the next backup.
async fn unsynced() -> Vec<(u32, u32, u32)> {
    let fixture = Fixture::new();
    // Every page has a slot at once.
    let builder = fixture.builder().ssd_bytes(500 * PAGE).pool_bytes(72 * PAGE);
    let store = Arc::new(builder.open().await.unwrap());
    let space = grown(&store).await;
    let dir = pagetier_testing::scratch();
    backup(&store, dir.path()).await;
    let devices = [Arc::clone(&fixture.hdd), Arc::clone(&fixture.ssd)];
    let report = backup_during(&fixture, &store, dir.path(), |store| async move {
        for device in devices {
            device.inject(Fault::new(FaultEffect::Slow(5 * SLOW)).on(IoOp::Flush));
        }
        for no in (PAGES - 30..PAGES).rev() {
            fill(&mut store.overwrite(PageId::new(space, no)).await.unwrap(), no, 2);
        }
        // It writes them, and its flush takes longer than the rest of the backup.
        tokio::spawn(async move { store.sync().await });
    });
    assert_eq!(report.await.full_because, None);
    let mut all = Vec::new();
    for seed in 0..4 {
        let after = fixture.after_power_cut(seed * 3);
        let builder = after.builder().ssd_bytes(500 * PAGE).pool_bytes(72 * PAGE);
        let later = builder.open().await.unwrap();
        let chain = pagetier_testing::scratch();
        for file in ["000001.backup", "000002.backup"] {
            std::fs::copy(dir.path().join(file), chain.path().join(file)).unwrap();
        }
        assert_eq!(backup(&later, chain.path()).await.full_because, None);
        all.extend(differences(&later, space, chain.path()).await);
        later.close().await.unwrap();
    }
    all
}

#[tokio::test(start_paused = true)]
async fn what_a_backup_has_read_outlives_a_power_cut_in_the_store_too() {
    assert_eq!(unsynced().await, []);
}

/// Pages are free when a backup is made, their numbers are used again, and discards show the homes of their
/// earlier lives, with stamps from before that backup. Returns how the chain of the next one differs.
async fn shown_by_discards() -> Vec<(u32, u32, u32)> {
    let fixture = Fixture::new();
    pagetier_rivals::register();
    let Ok(policy) = "mv-fifo".parse::<pagetier::SsdPolicy>() else { panic!("no such policy") };
    let store = fixture.builder().ssd_policy(zoned(policy)).open().await.unwrap();
    let space = grown(&store).await;
    store.sync().await.unwrap();
    let page = |no| PageId::new(space, no);
    let at_home = |no: &u32| store.location(page(*no)) == Location::Hdd;
    let pages: Vec<PageId> = (0..PAGES).filter(at_home).take(20).map(page).collect();
    assert_eq!(store.free(&pages).await.unwrap(), 20);
    let dir = pagetier_testing::scratch();
    backup(&store, dir.path()).await;
    for _ in &pages {
        let mut page = store.allocate(space).await.unwrap();
        assert!(pages.contains(&page.id()), "a free number comes first");
        let no = page.id().no;
        fill(&mut page, no, 2);
    }
    // From here on the manifest does not list them as free.
    store.sync().await.unwrap();
    let mut shown = 0;
    for page in &pages {
        store.discard(*page).await.unwrap();
        shown += u32::from(read(&store, space, page.no).await.is_ok_and(|version| version == 1));
    }
    assert!(shown > 5, "{shown} pages show the earlier life");
    assert_eq!(backup(&store, dir.path()).await.full_because, None);
    let all = differences(&store, space, dir.path()).await;
    // The chain goes on.
    write(&store, space, PAGES - 1, 3).await.unwrap();
    assert_eq!(backup(&store, dir.path()).await.full_because, None);
    assert_eq!(differences(&store, space, dir.path()).await, []);
    all
}

#[tokio::test(start_paused = true)]
async fn a_page_that_a_discard_shows_as_before_its_free_is_in_the_chain() {
    assert_eq!(shown_by_discards().await, []);
}

/// A page, at version 2 and synced, is freed and created again while a backup reads other pages. Returns its
/// version in the chain; 0: it does not exist.
async fn freed_while_read() -> u32 {
    let fixture = Fixture::new();
    let store = Arc::new(fixture.builder().open().await.unwrap());
    let space = grown(&store).await;
    let dir = pagetier_testing::scratch();
    backup(&store, dir.path()).await;
    write(&store, space, PAGES - 1, 2).await.unwrap();
    store.sync().await.unwrap();
    let report = backup_during(&fixture, &store, dir.path(), |store| async move {
        let page = PageId::new(space, PAGES - 1);
        store.free(page).await.unwrap();
        fill(&mut store.overwrite(page).await.unwrap(), PAGES - 1, 9);
    });
    assert_eq!(report.await.full_because, None);
    let (_dir, copy, copied) = restored(dir.path()).await;
    let found = match read(&copy, copied, PAGES - 1).await {
        Ok(version) => version,
        Err(Error::NoSuchPage { .. }) => 0,
        Err(error) => panic!("{error}"),
    };
    copy.close().await.unwrap();
    // The next backup has it.
    backup(&store, dir.path()).await;
    assert_eq!(differences(&store, space, dir.path()).await, []);
    found
}

#[tokio::test(start_paused = true)]
async fn a_page_freed_and_created_again_during_a_backup_is_not_older_than_before_it() {
    let found = freed_while_read().await;
    assert!(found == 0 || found >= 2, "{found}");
}

#[tokio::test(start_paused = true)]
async fn a_page_that_has_a_new_life_when_a_backup_reads_it_is_in_the_chain() {
    let (fixture, store, space) = Fixture::grown().await;
    let store = Arc::new(store);
    let dir = pagetier_testing::scratch();
    let report = backup_during(&fixture, &store, dir.path(), |store| async move {
        let page = PageId::new(space, PAGES - 1);
        store.free(page).await.unwrap();
        fill(&mut store.overwrite(page).await.unwrap(), PAGES - 1, 9);
        store.sync().await.unwrap();
    });
    report.await;
    assert_eq!(differences(&store, space, dir.path()).await, []);
}

/// Pages are synced, which makes them durable in the ring, and backed up. The power fails, the ring is lost,
/// and the loss is accepted and acknowledged. Returns the report of the next backup, and the differences.
async fn ring_lost(seed: u64) -> (BackupReport, Vec<(u32, u32, u32)>) {
    let mut fixture = Fixture::new();
    // A torn home would be an error.
    let hdd = SimDevice::new("hdd", 0, 1, &SimPower::new()).with_atomic_writes(4096);
    fixture.hdd = Arc::new(hdd);
    let store = fixture.builder().ssd_bytes(0).open().await.unwrap();
    let space = grown(&store).await;
    let dir = pagetier_testing::scratch();
    backup(&store, dir.path()).await;
    for no in 0..6 {
        write(&store, space, no * 9, 2).await.unwrap();
    }
    assert_eq!(backup(&store, dir.path()).await.full_because, None);
    let mut after = fixture.after_power_cut(seed);
    drop(store);
    after.ring = Arc::new(SimDevice::new("blank", 0, 9, &SimPower::new()));
    let store = after.builder().ssd_bytes(0).accept_ssd_loss(true).open().await.unwrap();
    assert!(store.ssd().loss().is_some());
    store.ssd().acknowledge_loss().await.unwrap();
    let report = backup(&store, dir.path()).await;
    let all = differences(&store, space, dir.path()).await;
    // From here on the chain goes on.
    assert_eq!(backup(&store, dir.path()).await.full_because, None);
    store.close().await.unwrap();
    (report, all)
}

#[tokio::test(start_paused = true)]
async fn a_backup_after_an_acknowledged_loss_is_full() {
    for seed in 0..4 {
        let (report, all) = ring_lost(seed).await;
        assert!(report.full_because.is_some_and(|why| why.contains("pages were lost")), "{report:?}");
        assert_eq!(all, [], "seed {seed}");
    }
}

/// The SSD is given up while a backup runs: pages, all at version 2 and synced, are saved from memory, others
/// are lost. Returns the pages whose version in the chain is older than before the backup, and not the one
/// that a loss has left.
async fn given_up_while_read(ms: u64) -> Vec<(u32, u32, u32)> {
    let fixture = Fixture::new();
    let store = Arc::new(fixture.builder().open().await.unwrap());
    let space = synced(&store, 2).await;
    // Many of the pages that are on the SSD alone are in memory.
    for no in (0..PAGES).filter(|no| store.location(PageId::new(space, *no)) == Location::Ssd).rev().take(40)
    {
        read(&store, space, no).await.unwrap();
    }
    let slow = |op, ms| Fault::new(FaultEffect::Slow(Duration::from_millis(ms))).on(op);
    [&fixture.hdd, &fixture.ssd].iter().for_each(|device| device.inject(slow(IoOp::Read, 50)));
    // Once the SSD is out of use, what is saved from memory is written slowly.
    let (mut events, ring) = (store.ssd().events(), Arc::clone(&fixture.ring));
    tokio::spawn(async move {
        while events.next().await.is_some_and(|event| event != SsdEvent::Off) {}
        ring.inject(slow(IoOp::Write, 300));
    });
    let dir = pagetier_testing::scratch();
    let giving_up = tokio::spawn({
        let store = Arc::clone(&store);
        async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            store.ssd().abandon().await.unwrap()
        }
    });
    backup(&store, dir.path()).await;
    let lost = giving_up.await.unwrap();
    assert!(lost.pages() < u64::from(PAGES));
    for no in (0..PAGES).filter(|no| !lost.contains(PageId::new(space, *no))) {
        assert_eq!(read(&store, space, no).await.unwrap(), 2, "page {no} is lost and not listed");
    }
    // A loss after the copying leaves the chain ahead.
    let mut all = differences(&store, space, dir.path()).await;
    all.retain(|(_, _, there)| *there != 2);
    // Whether ahead or not, the next backup is what the store is.
    backup(&store, dir.path()).await;
    assert_eq!(differences(&store, space, dir.path()).await, []);
    all
}

#[tokio::test(start_paused = true)]
async fn a_backup_while_the_ssd_is_given_up_has_what_the_store_has() {
    for ms in (0..1200).step_by(60) {
        assert_eq!(given_up_while_read(ms).await, [], "given up after {ms} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_chain_goes_on_after_a_loss_once_there_is_a_full_backup() {
    let (_fixture, store, space) = Fixture::grown().await;
    let dir = pagetier_testing::scratch();
    backup(&store, dir.path()).await;
    write_all(&store, space, 2).await;
    store.sync().await.unwrap();
    store.ssd().abandon().await.unwrap();
    assert!(backup(&store, dir.path()).await.full_because.is_some());
    // Acknowledged or not, this loss is behind the chain.
    assert_eq!(backup(&store, dir.path()).await.full_because, None);
    store.ssd().acknowledge_loss().await.unwrap();
    for no in 0..PAGES {
        fill(&mut store.overwrite(PageId::new(space, no)).await.unwrap(), no, 3);
    }
    assert_eq!(backup(&store, dir.path()).await.full_because, None);
    let (_dir, copy, copied) = restored(dir.path()).await;
    expect_all(&copy, copied, 3).await;
}

/// The stamps of what an exchanged SSD had say nothing about the one that follows.
#[tokio::test(start_paused = true)]
async fn the_first_backup_after_the_ssd_is_exchanged_is_full() {
    let (_fixture, store, space) = Fixture::grown().await;
    let dir = pagetier_testing::scratch();
    backup(&store, dir.path()).await;
    assert_eq!(backup(&store, dir.path()).await.full_because, None);
    let next = crate::changing::blank_ssd("next", 7);
    store.ssd().replace(next, 200 * PAGE).await.unwrap();
    let because = backup(&store, dir.path()).await.full_because;
    assert!(because.is_some_and(|why| why.contains("exchanged")), "{because:?}");
    write_all(&store, space, 2).await;
    assert_eq!(backup(&store, dir.path()).await.full_because, None);
    store.ssd().set_mode(SsdMode::Off).await.unwrap();
    let because = backup(&store, dir.path()).await.full_because;
    assert!(because.is_some_and(|why| why.contains("exchanged")), "{because:?}");
    let (_dir, copy, copied) = restored(dir.path()).await;
    expect_all(&copy, copied, 2).await;
}
