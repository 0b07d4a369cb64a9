//! A log that is kept for the loss of the SSD, on a device with few places.
//!
//! The schedule that the checkpoints are against: a page is written to the SSD and never again. The log is
//! kept from its record on, grows until the device has no place left, and refuses every change from then on,
//! and the closing, although nothing has failed. Pages whose records wait cannot be written, so bringing the
//! other pages home would not help either, unless a place is left for those records.

use super::{SMALL, bodies, builder};
use crate::{DeviceMedia, Keep, LoggedStore, MiniTx, RecoverError, Wal, WalError, WalOptions};
use pagetier::errors::Advice;
use pagetier::{Builder, MemoryManifest, PageId, SpaceId, device::SharedDevice};
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
use std::sync::Arc;
use std::time::Duration;

const PAGE: u64 = 4096;
const LOG_BYTES: u64 = (64 << 10) + 8 * (256 << 10);
const OPTIONS: WalOptions =
    WalOptions { capacity_bytes: 128 << 10, keep: Keep::ForSsdLoss, ssd_log_bytes: None };
const SPACE: &str = "pages";
const PAGES: u32 = 40;
/// Changed again and again; the others once.
const HOT: u32 = 6;

/// The devices, and what of the pages is acknowledged.
struct World {
    power: SimPower,
    hdd: Arc<SimDevice>,
    ssd: Arc<SimDevice>,
    ring: Arc<SimDevice>,
    log: Arc<SimDevice>,
    manifest: Arc<MemoryManifest>,
    /// Of each page: the version that is acknowledged, and the newest.
    versions: Vec<[u32; 2]>,
}

impl World {
    fn new(seed: u64) -> Self {
        let power = SimPower::new();
        let device = |name, bytes| Arc::new(SimDevice::new(name, bytes, seed, &power));
        Self {
            hdd: device("hdd", 0),
            ssd: device("ssd", 0),
            ring: device("ring", 0),
            log: device("log", LOG_BYTES),
            power: power.clone(),
            manifest: Arc::default(),
            versions: vec![[0; 2]; PAGES as usize],
        }
    }

    fn builder(&self) -> Builder {
        builder(&self.manifest, [&self.hdd, &self.ssd, &self.ring]).pool_bytes(32 * PAGE)
    }

    async fn open(&self, builder: Builder) -> Result<LoggedStore, RecoverError> {
        let io = |error| WalError::Io { path: "log".into(), source: Arc::new(error) };
        let media = DeviceMedia::open(Arc::clone(&self.log) as SharedDevice, SMALL.segment_bytes());
        LoggedStore::on(builder, Wal::on(Box::new(media.map_err(io)?), OPTIONS)?).await
    }

    /// A new store whose pages were changed once, and are on the SSD.
    async fn filled(&mut self) -> LoggedStore {
        let db = self.open(self.builder()).await.unwrap();
        self.fill(&db).await;
        assert!(db.stats().ssd.oldest_lsn.is_some(), "no page is on the SSD alone");
        db
    }

    async fn fill(&mut self, db: &LoggedStore) {
        let space = db.spaces().create(SPACE).await.unwrap();
        for no in 0..PAGES {
            let mut change = MiniTx::on(Some(db.wal()), db.allocate(space).await.unwrap());
            change.write(0, 0, &[0; 8]);
            change.commit().unwrap();
            self.change(db, PageId::new(space, no), false).await.unwrap();
        }
        db.sync().await.unwrap();
    }

    /// A record of some 3 KiB; `admitted`: waits for space first.
    async fn change(&mut self, db: &LoggedStore, page: PageId, admitted: bool) -> Result<(), WalError> {
        if admitted {
            db.admit(Duration::from_secs(30)).await?;
        }
        let of = &mut self.versions[page.no as usize];
        of[1] += 1;
        let mut change = MiniTx::on(Some(db.wal()), db.get_mut(page).await.expect("the page"));
        change.write(0, 0, &of[1].to_le_bytes().repeat(750));
        db.commit(change).await?;
        of[0] = of[1];
        Ok(())
    }

    /// Changes the hot pages in turn until an error.
    async fn fill_up(&mut self, db: &LoggedStore, admitted: bool) -> WalError {
        let space = db.spaces().find(SPACE).unwrap();
        for no in 0..10_000 {
            if let Err(error) = self.change(db, PageId::new(space, no % HOT), admitted).await {
                return error;
            }
        }
        panic!("the log is never full");
    }

    async fn check(&mut self, db: &LoggedStore, space: SpaceId, case: &str) {
        for (no, of) in self.versions.iter_mut().enumerate() {
            let page = db.get(PageId::new(space, no as u32)).await;
            let page = page.unwrap_or_else(|error| panic!("{case}: page {no}: {error}"));
            let found = u32::from_le_bytes(*page.first_chunk().unwrap());
            assert!((of[0]..=of[1]).contains(&found), "{case}: page {no} has {found}, not {of:?}");
            *of = [found; 2];
        }
    }

    /// Opens what is there, looks for every acknowledged change, changes more than the log takes, and closes.
    async fn go_on(&mut self, builder: Builder, case: &str) {
        let db = self.open(builder).await.unwrap_or_else(|error| panic!("{case}: {error}"));
        let space = db.spaces().find(SPACE).unwrap();
        self.check(&db, space, case).await;
        for no in 0..800 {
            let changed = self.change(&db, PageId::new(space, no % HOT), true).await;
            changed.unwrap_or_else(|error| panic!("{case}: change {no}: {error}"));
        }
        self.check(&db, space, case).await;
        db.shutdown().await.unwrap_or_else(|error| panic!("{case}: closing: {error}"));
    }

    /// The devices after a power cut or a kill at this moment.
    fn restart(&mut self, kill: bool, seed: u64) {
        self.power = SimPower::new();
        for device in [&mut self.hdd, &mut self.ssd, &mut self.ring, &mut self.log] {
            let power = &self.power;
            let left =
                if kill { device.after_kill(seed, power) } else { device.after_power_cut(seed, power) };
            *device = Arc::new(left);
        }
    }
}

/// Drops the store like a process that ends.
async fn crash(db: LoggedStore) {
    let closed = db.wait_closed();
    drop(db);
    closed.await;
}

#[tokio::test]
async fn pages_go_home_before_the_device_has_no_place_left() {
    let mut world = World::new(1);
    let db = world.filled().await;
    let space = db.spaces().find(SPACE).unwrap();
    for no in 0..3_000 {
        world.change(&db, PageId::new(space, no % HOT), true).await.unwrap();
        assert!(db.wal().segment_starts().len() < 8, "the reserve is in use");
    }
    crash(db).await;
    world.restart(false, 1);
    world.ssd = Arc::new(SimDevice::new("blank", 0, 2, &world.power));
    world.go_on(world.builder().accept_ssd_loss(true), "without its SSD").await;
}

#[tokio::test]
async fn a_log_without_a_place_can_be_closed_and_loses_nothing() {
    for (n, closes) in [(0, true), (1, true), (2, false), (3, false)] {
        let mut world = World::new(n);
        let db = world.filled().await;
        // No checkpoint in the background, and no change waits for one.
        db.checkpoints.end();
        let error = world.fill_up(&db, false).await;
        assert_eq!(error.advice(), Advice::FreeSpace, "{error}");
        if closes {
            db.shutdown().await.unwrap();
        } else {
            crash(db).await;
        }
        world.restart(n % 2 == 1, n);
        world.go_on(world.builder(), &format!("closed: {closes}")).await;
    }
}

/// The power is cut at any moment of a checkpoint that makes space, and of the closing; after some the SSD is
/// gone, too.
#[tokio::test]
async fn a_power_cut_while_a_log_makes_room_loses_nothing() {
    let (mut cases, mut step) = (0, 1);
    for n in (0..).map(|n| n * 7) {
        let mut world = World::new(n);
        let db = world.filled().await;
        db.checkpoints.end();
        world.fill_up(&db, false).await;
        world.power.cut_at(world.power.ops() + n + 1);
        let done = db.checkpoint().await;
        let closed = db.wait_closed();
        let ended = db.shutdown().await;
        drop(db);
        closed.await;
        if !world.power.is_cut() {
            done.unwrap();
            ended.unwrap();
            break;
        }
        cases += 1;
        world.restart(false, n);
        let mut builder = world.builder();
        step += 1;
        if step % 3 == 0 {
            world.ssd = Arc::new(SimDevice::new("blank", 0, n, &world.power));
            builder = world.builder().accept_ssd_loss(true);
        }
        world.go_on(builder, &format!("cut at {n}")).await;
    }
    assert!(cases > 8, "{cases} cases");
}

/// While no page can go home, changes are refused before the device is full, and go on once they can.
#[tokio::test(start_paused = true)]
async fn a_log_that_cannot_be_shortened_refuses_changes_until_it_can() {
    let mut world = World::new(1);
    let db = world.filled().await;
    world.hdd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Write));
    let error = world.fill_up(&db, true).await;
    assert!(matches!(error, WalError::Full { cause: Some(_) }), "{error} names what keeps the log");
    assert!(db.wal().segment_starts().len() < 8, "the reserve is in use");
    let before = world.hdd.ops();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(world.hdd.ops() - before < 5_000, "it spins");
    world.hdd.clear_faults();
    let space = db.spaces().find(SPACE).unwrap();
    world.change(&db, PageId::new(space, 1), true).await.unwrap();
    db.shutdown().await.unwrap();
    world.restart(false, 1);
    world.go_on(world.builder(), "refused").await;
}

/// The last segment alone is longer than the log may be from now on.
#[tokio::test(start_paused = true)]
async fn slots_that_were_made_for_a_larger_log_refuse_no_change() {
    let mut world = World::new(1);
    world.log = Arc::new(SimDevice::new("log", 80 << 20, 1, &world.power));
    let media = DeviceMedia::open(Arc::clone(&world.log) as SharedDevice, 2 << 20).unwrap();
    let wal = Wal::on(Box::new(media), OPTIONS.capacity_bytes(32 << 20)).unwrap();
    let db = LoggedStore::on(world.builder(), wal).await.unwrap();
    world.fill(&db).await;
    let space = db.spaces().find(SPACE).unwrap();
    for no in 0..400 {
        world.change(&db, PageId::new(space, no % HOT), true).await.unwrap();
    }
    assert_eq!(db.wal().segment_starts().len(), 1);
    db.shutdown().await.unwrap();
    for life in 0..3 {
        world.restart(true, life);
        let db = world.open(world.builder()).await.unwrap();
        world.change(&db, PageId::new(space, 1), true).await.unwrap();
        db.shutdown().await.unwrap();
    }
    world.restart(true, 3);
    world.go_on(world.builder(), "with a smaller capacity").await;
}

/// A volume that is thinly provisioned and full.
#[tokio::test]
async fn a_device_without_space_is_a_full_disk() {
    let mut world = World::new(1);
    let db = world.filled().await;
    let space = db.spaces().find(SPACE).unwrap();
    world.log.inject(Fault::new(FaultEffect::NoSpace).on(IoOp::Write));
    let error = world.fill_up(&db, true).await;
    assert_eq!(error.advice(), Advice::FreeSpace, "{error}");
    world.log.clear_faults();
    world.change(&db, PageId::new(space, 1), true).await.unwrap();
    db.shutdown().await.unwrap();
    world.restart(false, 1);
    world.go_on(world.builder(), "full").await;
}

/// A log of commits that are not applied, which holds all of it, until the device has no place left.
async fn held(device: &Arc<SimDevice>) -> Wal {
    let media = DeviceMedia::open(Arc::clone(device) as SharedDevice, SMALL.segment_bytes()).unwrap();
    let wal = Wal::on(Box::new(media), OPTIONS).unwrap();
    loop {
        let lsn = wal.append_commit(&[7; 9_000]).unwrap();
        if let Err(error) = wal.flush(lsn).await {
            assert_eq!(error.advice(), Advice::FreeSpace, "{error}");
            return wal;
        }
    }
}

/// What must be durable before space can be given back has a place. An operation fails, or is the last one
/// before a power cut.
#[tokio::test]
async fn one_place_is_the_reserve() {
    let mut cases = 0;
    for (n, cut) in (0..).map(|n| (n / 2, n % 2 == 0)) {
        let power = SimPower::new();
        let device = Arc::new(SimDevice::new("log", LOG_BYTES, n, &power));
        let wal = held(&device).await;
        assert_eq!(wal.segment_starts().len(), 7);
        let (durable, end, before) = (wal.durable(), wal.end(), bodies(&wal));
        if cut {
            power.cut_at(power.ops() + n + 1);
        } else {
            device.inject(Fault::new(FaultEffect::Eio).from_op(device.ops() + n).times(1));
        }
        let reserved = wal.flush_or_reserve(end).await;
        if n < 5 && !cut {
            // Not lost to the failure, nor to records that come meanwhile.
            let later = wal.append_commit(&[8; 9_000]).unwrap();
            assert!(wal.flush(later).await.is_err(), "{n}");
            wal.flush_or_reserve(later).await.unwrap();
        }
        let least = if reserved.is_ok() { end } else { durable };
        drop(wal);
        let left = Arc::new(device.after_power_cut(n, &SimPower::new()));
        let media = DeviceMedia::open(Arc::clone(&left) as SharedDevice, SMALL.segment_bytes()).unwrap();
        let wal = Wal::on(Box::new(media), OPTIONS).unwrap();
        assert!(wal.end() >= least, "{n}: {:?} of {least:?}", wal.end());
        assert!(bodies(&wal).starts_with(&before), "{n}: other records");
        // With space again, there is one again.
        let all = wal.end();
        wal.truncate(all, all).await.unwrap();
        drop(wal);
        let wal = held(&left).await;
        wal.flush_or_reserve(wal.end()).await.unwrap();
        if reserved.is_ok() && cut && !power.is_cut() {
            break;
        }
        cases += 1;
    }
    assert!(cases >= 10, "{cases} cases");
}
