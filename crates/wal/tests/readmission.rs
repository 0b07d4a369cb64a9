//! An SSD that is readmitted under a log, after a flush that failed and took its writes back: what was
//! committed is read, or reading it is an error, and an open has all of it.

use pagetier::device::SharedDevice;
use pagetier::errors::Advice;
use pagetier::{Builder, Error, Location, Loss, MemoryManifest, PageId, PageStore, SpaceId};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect, FlushFailure, SimDevice, SimPower};
use pagetier_wal::{Keep, LoggedStore, MiniTx, Wal, WalError, WalOptions};
use std::sync::Arc;
use std::time::Duration;

const PAGE: u64 = 4096;
/// More pages than memory and the SSD hold.
const PAGES: u32 = 300;
const LOG_BYTES: u64 = 16 << 20;

struct Devices {
    hdd: Arc<SimDevice>,
    ssd: Arc<SimDevice>,
    ring: Arc<SimDevice>,
    log: Arc<SimDevice>,
    manifest: Arc<MemoryManifest>,
    accepts_loss: bool,
}

impl Devices {
    fn new() -> Self {
        let power = SimPower::new();
        let device = |name, bytes, seed| SimDevice::new(name, bytes, seed, &power);
        Self {
            hdd: Arc::new(device("hdd", 0, 1)),
            ssd: Arc::new(device("ssd", 0, 2).with_flush_failure(FlushFailure::Reverted)),
            ring: Arc::new(device("ring", 0, 3)),
            log: Arc::new(device("log", LOG_BYTES, 4)),
            manifest: Arc::default(),
            accepts_loss: false,
        }
    }

    /// The devices after a crash, with or without the power.
    fn after_crash(&self, kill: bool, seed: u64) -> Self {
        let power = SimPower::new();
        let after = |device: &SimDevice, n| match kill {
            true => Arc::new(device.after_kill(seed + n, &power)),
            false => Arc::new(device.after_power_cut(seed + n, &power)),
        };
        Self {
            hdd: after(&self.hdd, 0),
            ssd: after(&self.ssd, 1),
            ring: after(&self.ring, 2),
            log: after(&self.log, 3),
            manifest: Arc::new(self.manifest.fork()),
            accepts_loss: false,
        }
    }

    fn builder(&self) -> Builder {
        let device = |device: &Arc<SimDevice>| Arc::clone(device) as SharedDevice;
        let builder = PageStore::builder().in_memory(Arc::clone(&self.manifest));
        let builder = builder.hdd(device(&self.hdd)).ssd(device(&self.ssd));
        // Which pages leave memory, and when, is a part of the schedule.
        let builder = builder.ring_device(device(&self.ring)).pool_policy("gd2l:frequency");
        let builder = builder.page_size(pagetier::PageSize::MIN).pool_bytes(84 * PAGE).ssd_bytes(600 * PAGE);
        builder.ring_pages(8).ssd_policy("auto:zone=70").accept_ssd_loss(self.accepts_loss)
    }

    async fn open(&self, keep: Keep) -> LoggedStore {
        let options = WalOptions::new().capacity_bytes(4 << 20).keep(keep);
        let wal = Wal::on_device(Arc::clone(&self.log) as SharedDevice, options).await.unwrap();
        LoggedStore::on(self.builder(), wal).await.unwrap()
    }
}

async fn put(db: &LoggedStore, page: PageId, version: u32) -> Result<(), Error> {
    let mut change = db.begin().await.unwrap();
    let at = change.add(db.get_or_create(page).await?);
    // A part of the page: redo needs the rest.
    change.write(at, 8 * version as usize, &u64::from(version).to_le_bytes());
    // So long that the log has segments to give up.
    change.write(at, 1000, &[version as u8; 500]);
    db.commit(change).await.unwrap();
    Ok(())
}

/// The newest version, which comes with all earlier ones.
async fn get(db: &LoggedStore, page: PageId) -> Result<u32, Error> {
    let found = db.get(page).await?;
    let has = |version: u32| found[8 * version as usize] == version as u8;
    Ok((1..).take_while(|version| has(*version)).count() as u32)
}

/// All pages have version 2; some get a third one, which leaves memory for the SSD, where the flush fails and
/// readmits it. Returns these pages; `in_memory`: a few, which have been read again meanwhile.
async fn third_versions_are_taken_back(
    devices: &Devices,
    db: &LoggedStore,
    in_memory: bool,
) -> (SpaceId, Vec<PageId>) {
    let space = db.spaces().create("t").await.unwrap();
    let page = |no| PageId::new(space, no);
    for version in 1..=2 {
        for no in 0..PAGES {
            put(db, page(no), version).await.unwrap();
        }
    }
    db.sync().await.unwrap();
    db.checkpoint().await.unwrap();
    let later: Vec<PageId> = (0..PAGES)
        .map(page)
        .filter(|page| db.location(*page) == Location::Ssd)
        .take(if in_memory { 8 } else { 40 })
        .collect();
    assert!(later.len() >= 8);
    devices.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
    let mut written = Vec::new();
    for page in later {
        // Once the flush has failed, no page leaves memory.
        written.extend(put(db, page, 3).await.ok().map(|()| page));
    }
    let later = written;
    for no in 0..PAGES {
        if !later.contains(&page(no)) {
            let _ = get(db, page(no)).await;
        }
    }
    if in_memory {
        for page in &later {
            assert_eq!(get(db, *page).await.unwrap(), 3);
        }
    }
    assert!(db.sync().await.is_err(), "no flush failed");
    (space, later)
}

#[tokio::test(start_paused = true)]
async fn an_ssd_that_took_writes_back_costs_no_commit() {
    let ways = [(Keep::ForCrash, false), (Keep::ForCrash, true), (Keep::ForSsdLoss, false)];
    for (seed, (keep, kill)) in (0..).step_by(4).zip(ways) {
        let devices = Devices::new();
        let db = devices.open(keep).await;
        let (space, later) = third_versions_are_taken_back(&devices, &db, false).await;
        // Twice: a refused readmission changes nothing.
        for _ in 0..2 {
            let error = db.ssd().readmit().await.expect_err("pages are older than what was committed");
            assert_eq!(error.advice(), Advice::Reopen, "{error}");
        }
        assert!(db.ssd().loss().is_none() && db.sync().await.is_err());
        let mut errors = 0;
        for no in 0..PAGES {
            let page = PageId::new(space, no);
            let newest = 2 + u32::from(later.contains(&page));
            match get(&db, page).await {
                Ok(found) => assert_eq!(found, newest, "{page}"),
                Err(_) => errors += 1,
            }
        }
        assert!(errors > 3, "{errors} pages were taken back");
        // No checkpoint takes the records away that these pages need.
        let _ = db.checkpoint().await;
        drop(db);
        let devices = devices.after_crash(kill, seed);
        let db = devices.open(keep).await;
        assert!(db.ssd().loss().is_none() && db.recovered().applied > 0);
        for no in 0..PAGES {
            let page = PageId::new(space, no);
            let newest = 2 + u32::from(later.contains(&page));
            assert_eq!(get(&db, page).await.unwrap(), newest, "{page}, {keep:?}, kill: {kill}");
        }
        db.shutdown().await.unwrap();
    }
}

/// Engines that share store and log may go on while one of them closes the store: they are refused, and their
/// pages are as they were.
#[tokio::test(start_paused = true)]
async fn a_crash_in_a_shutdown_loses_no_commit_and_has_none_that_was_refused() {
    for (seed, keep) in [(0, Keep::ForCrash), (4, Keep::ForSsdLoss)] {
        let devices = Devices::new();
        let db = Arc::new(devices.open(keep).await);
        let space = db.spaces().create("t").await.unwrap();
        let page = |no| PageId::new(space, no);
        for no in 0..PAGES {
            put(&db, page(no), 1).await.unwrap();
        }
        db.sync().await.unwrap();
        let commit = async |no, version: u32| {
            let mut change = MiniTx::new(Some(db.wal()));
            let at = change.add(db.get_mut(page(no)).await.unwrap());
            change.write(at, 8 * version as usize, &u64::from(version).to_le_bytes());
            change.write(at, 1000, &[version as u8; 500]);
            db.commit(change).await
        };
        for version in 2..8 {
            for no in 1..PAGES {
                commit(no, version).await.unwrap();
            }
        }
        // The page is dirty, so that the shutdown waits for this guard before it ends the store.
        commit(0, 2).await.unwrap();
        let guard = db.get_mut(page(0)).await.unwrap().into_owned(db.store());
        let closing = tokio::spawn({
            let db = Arc::clone(&db);
            async move { db.shutdown().await }
        });
        tokio::time::sleep(Duration::from_millis(10)).await;
        for no in 1..30 {
            assert!(matches!(commit(no, 9).await, Err(WalError::Stopped)));
            assert_eq!(get(&db, page(no)).await.unwrap(), 7, "{no}");
        }
        assert!(!closing.is_finished());
        let devices = devices.after_crash(false, seed);
        drop(guard);
        // Its devices have no power any more.
        let _ = closing.await.unwrap();
        let db = devices.open(keep).await;
        for no in 1..PAGES {
            assert_eq!(get(&db, page(no)).await.unwrap(), 7, "{no}");
        }
    }
}

/// What memory still has is no loss: a crash before it is written again needs the log for crashes alone.
#[tokio::test(start_paused = true)]
async fn pages_that_memory_has_are_readmitted_and_not_listed() {
    let devices = Devices::new();
    let db = devices.open(Keep::ForCrash).await;
    let (_, later) = third_versions_are_taken_back(&devices, &db, true).await;
    assert!(!db.wal().is_whole());
    // The list, if any, is not shortened again.
    devices.manifest.fail_saves(1, 1, false);
    let report = db.ssd().readmit().await.unwrap();
    assert!(report.reverted.is_empty() && db.ssd().loss().is_none(), "{report:?}");
    drop(db);
    let db = devices.after_crash(false, 1).open(Keep::ForCrash).await;
    for page in later {
        assert_eq!(get(&db, page).await.unwrap(), 3, "{page}");
    }
    db.shutdown().await.unwrap();
}

/// The SSD is given up under a log by an open, not by a running engine.
#[tokio::test(start_paused = true)]
async fn a_running_engine_gives_up_no_page_that_its_log_has() {
    let devices = Devices::new();
    let db = devices.open(Keep::ForSsdLoss).await;
    let (space, later) = third_versions_are_taken_back(&devices, &db, false).await;
    let refused = db.ssd().abandon().await;
    assert!(matches!(refused, Err(Error::SsdOnlyCopies { pages }) if pages > 0), "{refused:?}");
    assert!(db.ssd().loss().is_none());
    let _ = db.checkpoint().await;
    drop(db);
    let mut devices = devices.after_crash(false, 1);
    devices.ssd = Arc::new(SimDevice::new("blank", 0, 9, &SimPower::new()));
    devices.accepts_loss = true;
    let db = devices.open(Keep::ForSsdLoss).await;
    assert!(db.recovered().lost_pages > 0 && db.ssd().loss().is_none());
    for no in 0..PAGES {
        let page = PageId::new(space, no);
        assert_eq!(get(&db, page).await.unwrap(), 2 + u32::from(later.contains(&page)), "{page}");
    }
    db.shutdown().await.unwrap();
}

/// A store that can write no page, with a log so long that each checkpoint writes pages.
async fn without_writes(devices: &Devices) -> LoggedStore {
    let options = WalOptions::new().capacity_bytes(256 << 10);
    let wal = Wal::on_device(Arc::clone(&devices.log) as SharedDevice, options).await.unwrap();
    let db = LoggedStore::on(devices.builder(), wal).await.unwrap();
    let space = db.spaces().create("t").await.unwrap();
    // Room, which is written once when a space gets it.
    db.spaces().reserve(space, 20).await.unwrap();
    db.sync().await.unwrap();
    devices.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write));
    devices.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write));
    for no in (0..20).cycle() {
        if db.wal().to_redo(Loss::Crash).unwrap().bytes > 210 << 10 {
            break;
        }
        put(&db, PageId::new(space, no), 1).await.unwrap();
    }
    db.wal().signal_grown();
    tokio::time::sleep(Duration::from_secs(60)).await;
    db
}

/// Without any caller.
#[tokio::test(start_paused = true)]
async fn failing_checkpoints_are_tried_again_ever_more_rarely() {
    let db = without_writes(&Devices::new()).await;
    let before = db.stats().pool.write_errors;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let errors = db.stats().pool.write_errors - before;
    assert!((100..60_000).contains(&errors), "{errors} failed writes");
}

/// As by changes that wait for space: each asks for a checkpoint.
#[tokio::test(start_paused = true)]
async fn failing_checkpoints_pause_however_often_they_are_asked_for() {
    let db = without_writes(&Devices::new()).await;
    let before = db.stats().pool.write_errors;
    for _ in 0..10_000 {
        db.wal().signal_grown();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let errors = db.stats().pool.write_errors - before;
    assert!((100..20_000).contains(&errors), "{errors} failed writes");
}
