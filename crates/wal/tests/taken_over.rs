//! An engine whose store another machine has taken over writes nothing to the log any more, although nothing
//! keeps its operations out.

use pagetier::device::SharedDevice;
use pagetier::{Builder, Lsn, PageId, PageMut, PageSize, PageStore, SpaceId, options::OnHdd, pool_bytes_for};
use pagetier_devio::{Device, IoOp};
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower, SimSeat};
use pagetier_wal::{Keep, LoggedStore, Wal, WalError, WalOptions};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

const SSD_BYTES: u64 = 200 * 4096;
const LEASE: Duration = Duration::from_secs(1);

struct Volumes {
    homes: Arc<SimDevice>,
    log: Arc<SimDevice>,
}

impl Volumes {
    fn new() -> Self {
        let power = SimPower::new();
        let [homes, log] = ["homes", "log"].map(|name| Arc::new(SimDevice::new(name, 0, 1, &power)));
        log.grow(64 << 20).unwrap();
        Self { homes, log }
    }

    fn builder(&self) -> Builder {
        let ssd = SimDevice::new("ssd", 0, 7, &SimPower::new());
        PageStore::builder()
            .manifest(OnHdd { bytes_max: 256 << 10, ..OnHdd::default() }.lease(LEASE))
            .hdd(Arc::new(SimSeat::new(&self.homes)) as SharedDevice)
            .ssd(Arc::new(ssd) as SharedDevice)
            .page_size(PageSize::MIN)
            .ssd_bytes(SSD_BYTES)
            .ring_pages(8)
            .pool_bytes(pool_bytes_for(120, SSD_BYTES, PageSize::MIN))
            .accept_ssd_loss(true)
    }

    /// The log, on another machine.
    async fn wal(&self) -> Wal {
        let log = Arc::new(SimSeat::new(&self.log)) as SharedDevice;
        let options = WalOptions::new().capacity_bytes(256 << 10).keep(Keep::ForSsdLoss);
        Wal::on_device(log, options).await.unwrap()
    }

    /// Opens the store, with its log, on another machine.
    async fn take(&self) -> LoggedStore {
        LoggedStore::on(self.builder(), self.wal().await).await.unwrap()
    }

    /// The same, with an archive.
    async fn take_with(&self, archive: &Path) -> LoggedStore {
        let wal = self.wal().await;
        wal.archive_to(archive).unwrap();
        LoggedStore::on(self.builder(), wal).await.unwrap()
    }
}

async fn put(db: &LoggedStore, page: PageId, value: u8) -> Result<(), WalError> {
    let mut change = db.begin::<PageMut<'_>>().await?;
    let at = change.add(db.get_or_create(page).await.unwrap());
    let filled = vec![value; change.payload(at).len()];
    change.write(at, 0, &filled);
    db.commit(change).await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn a_former_owner_commits_nothing_once_its_lease_is_over() {
    let volumes = Volumes::new();
    let former = volumes.take().await;
    let space: SpaceId = former.spaces().create("t").await.unwrap();
    let page = |no| PageId::new(space, no);
    for no in 0..8 {
        put(&former, page(no), 1).await.unwrap();
    }
    former.checkpoint().await.unwrap();
    // One that is under way when the other machine takes over.
    let mut change = former.begin::<PageMut<'_>>().await.unwrap();
    let at = change.add(former.get_mut(page(7)).await.unwrap());
    change.write(at, 0, &[9]);
    let taker = volumes.take().await;
    put(&taker, page(0), 2).await.unwrap();
    tokio::time::sleep(LEASE).await;
    let before = volumes.log.snapshot();
    assert!(matches!(former.commit(change).await, Err(WalError::Fenced)));
    assert!(former.sync().await.is_err());
    assert!(former.shutdown().await.is_err());
    tokio::time::sleep(LEASE).await;
    assert!(volumes.log.snapshot() == before, "it wrote to the other one's log");
    put(&taker, page(1), 2).await.unwrap();
    drop(taker);
    let next = volumes.take().await;
    for (no, value) in [(0, 2), (1, 2), (7, 1)] {
        assert_eq!(next.get(page(no)).await.unwrap()[0], value, "page {no}");
    }
    next.shutdown().await.unwrap();
}

/// Schedule: the archive is unreachable when another machine takes the store over. Unless it checks that it
/// still owns the store, the former owner tries forever, and reports a failing archive.
#[tokio::test(start_paused = true)]
async fn a_former_owner_looks_for_its_archive_no_longer() {
    let volumes = Volumes::new();
    let looks = Arc::new(AtomicU64::new(0));
    let wal = volumes.wal().await;
    let counted = Arc::clone(&looks);
    let opens = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Err(std::io::ErrorKind::HostUnreachable.into())
    };
    wal.archive_on("/archive".into(), opens, SystemTime::now, Duration::from_secs(60)).unwrap();
    let former = LoggedStore::on(volumes.builder(), wal).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let failure = |db: &LoggedStore| db.wal().archived().unwrap().failure;
    assert!(looks.load(Ordering::Relaxed) > 5 && matches!(failure(&former), Some(WalError::Archive(_))));
    let _taker = volumes.take().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(matches!(failure(&former), Some(WalError::Fenced)), "{:?}", failure(&former));
    let before = looks.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(looks.load(Ordering::Relaxed), before);
}

/// Schedule: the volume does not answer a request of the owner, whose claim lapses; another machine takes the
/// store over, and the owner shuts down, which fails. Its claim was unlimited then, and until the log was
/// closed a flush wrote into the other one's.
#[tokio::test(start_paused = true)]
async fn a_shutdown_that_fails_lets_no_lapsed_claim_hold_again() {
    let volumes = Volumes::new();
    let former = volumes.take().await;
    let space = former.spaces().create("t").await.unwrap();
    put(&former, PageId::new(space, 0), 1).await.unwrap();
    former.checkpoint().await.unwrap();
    let mut change = former.begin::<PageMut<'_>>().await.unwrap();
    let at = change.add(former.get_mut(PageId::new(space, 0)).await.unwrap());
    change.write(at, 0, &[9]);
    let lsn = change.commit().unwrap();
    volumes.homes.inject(Fault::new(FaultEffect::Slow(60 * LEASE)).on(IoOp::Read).times(1));
    tokio::time::sleep(LEASE).await;
    let taker = volumes.take().await;
    tokio::time::sleep(LEASE).await;
    let (before, former) = (volumes.log.snapshot(), Arc::new(former));
    let ending = Arc::clone(&former);
    let shutdown = tokio::spawn(async move { ending.shutdown().await });
    while !shutdown.is_finished() {
        assert!(!former.is_owner());
        former.wal().flush(lsn).await.unwrap_err();
        tokio::time::sleep(LEASE / 100).await;
    }
    shutdown.await.unwrap().unwrap_err();
    assert!(volumes.log.snapshot() == before, "it wrote to the other one's log");
    assert!(!former.is_owner(), "a log that is not closed yet would be written");
    put(&taker, PageId::new(space, 0), 2).await.unwrap();
    taker.shutdown().await.unwrap();
}

/// Commits until the log has another segment.
async fn fill_segment(db: &LoggedStore, space: SpaceId) {
    let before = db.wal().segment_starts().len();
    while db.wal().segment_starts().len() == before {
        put(db, PageId::new(space, 0), 1).await.unwrap();
    }
}

/// Schedule: the archive is away, then the owner's volume does not answer for longer than its lease. Both
/// return, and the log completes no segment, perhaps since its changes wait for the space that only the
/// archive can give back. Nothing was archived any more.
#[tokio::test(start_paused = true)]
async fn an_owner_that_is_confirmed_again_archives_what_it_has() {
    let (volumes, archive) = (Volumes::new(), pagetier_testing::scratch());
    // Another process has it.
    let away = File::create(archive.path().join("lock")).unwrap();
    away.lock().unwrap();
    let db = volumes.take_with(archive.path()).await;
    let space = db.spaces().create("t").await.unwrap();
    fill_segment(&db, space).await;
    let archived = || db.wal().archived().unwrap();
    assert!(archived().up_to == Lsn(0) && matches!(archived().failure, Some(WalError::Archive(_))));
    let blocked = FaultEffect::Blocked { time: Duration::from_secs(60), fails: false };
    volumes.homes.inject(Fault::new(blocked).times(1));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(!db.is_owner() && matches!(archived().failure, Some(WalError::Fenced)));
    drop(away);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(db.is_owner());
    assert!(archived().up_to > Lsn(0) && archived().failure.is_none(), "{:?}", archived());
    db.shutdown().await.unwrap();
}

/// Schedule: the owner's archive works, and has all segments, when another machine takes the store over.
#[tokio::test(start_paused = true)]
async fn a_former_owner_that_has_nothing_to_archive_leaves_the_archive_to_the_next() {
    let (volumes, archive) = (Volumes::new(), pagetier_testing::scratch());
    let former = volumes.take_with(archive.path()).await;
    let space = former.spaces().create("t").await.unwrap();
    fill_segment(&former, space).await;
    former.wal().archive_now().await.unwrap();
    tokio::time::sleep(LEASE).await;
    let taker = volumes.take_with(archive.path()).await;
    assert!(taker.wal().archived().unwrap().failure.is_some(), "the former owner has the lock");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let archived = taker.wal().archived().unwrap();
    assert!(archived.failure.is_none(), "{archived:?}");
    taker.wal().archive_now().await.unwrap();
    assert!(matches!(former.wal().archived().unwrap().failure, Some(WalError::Fenced)));
    former.shutdown().await.unwrap_err();
    taker.shutdown().await.unwrap();
}

/// The power of the volumes fails, too, in the middle of their writes, and the SSD is gone with its machine.
#[tokio::test(start_paused = true)]
async fn a_store_on_a_volume_that_tears_is_taken_over_again_and_again() {
    const PAGES: usize = 160;
    let device = |name, seed| SimDevice::new(name, 0, seed, &SimPower::new());
    let mut volumes = Volumes { homes: Arc::new(device("homes", 1)), log: Arc::new(device("log", 2)) };
    volumes.log.grow(64 << 20).unwrap();
    let known = Arc::new(Mutex::new([(0_u8, 0_u8); PAGES]));
    let mut repaired = 0;
    for takeover in 0..60 {
        let db = Arc::new(volumes.take().await);
        repaired += db.recovery().repaired;
        let space = match db.spaces().find("t") {
            Some(space) => space,
            None => db.spaces().create("t").await.unwrap(),
        };
        let page = move |no: usize| PageId::new(space, no as u32);
        for no in 0..PAGES {
            let (acknowledged, begun) = known.lock().unwrap()[no];
            if begun > 0 {
                let found = db.get_or_create(page(no)).await.unwrap();
                assert!(found.iter().all(|byte| *byte == found[0]), "page {no} is mixed");
                assert!([acknowledged, begun].contains(&found[0]), "page {no} at takeover {takeover}");
                known.lock().unwrap()[no] = (found[0], found[0]);
            }
        }
        let (writer, noted) = (Arc::clone(&db), Arc::clone(&known));
        let writes = tokio::spawn(async move {
            for no in (0..).map(|n| (n * 7 + takeover) % PAGES) {
                let value = {
                    let (_, begun) = &mut noted.lock().unwrap()[no];
                    *begun = begun.wrapping_add(1).max(1);
                    *begun
                };
                put(&writer, page(no), value).await.unwrap();
                tokio::time::sleep(Duration::from_micros(200)).await;
                noted.lock().unwrap()[no].0 = value;
            }
        });
        tokio::time::sleep(Duration::from_millis(30 + 7 * takeover as u64)).await;
        let (power, seed) = (SimPower::new(), 2 * takeover as u64);
        let homes = volumes.homes.after_power_cut(seed, &power).with_latency(Duration::from_millis(2));
        let log = volumes.log.after_power_cut(seed + 1, &power);
        // As of the power cut: the aborted task may get another acknowledgement.
        let heard = *known.lock().unwrap();
        writes.abort();
        let _ = writes.await;
        drop(db);
        *known.lock().unwrap() = heard;
        volumes = Volumes { homes: Arc::new(homes), log: Arc::new(log) };
    }
    assert!(repaired > 10, "{repaired} homes were torn");
}

/// Schedule: an owner's store is dropped, not shut down, while a handle of its log remains; another machine
/// takes the store over, and the handle flushes what it has.
#[tokio::test(start_paused = true)]
async fn a_log_that_outlasts_its_store_writes_nothing_once_the_claim_is_over() {
    let volumes = Volumes::new();
    let former = volumes.take().await;
    let page = PageId::new(former.spaces().create("t").await.unwrap(), 0);
    put(&former, page, 1).await.unwrap();
    former.checkpoint().await.unwrap();
    let mut change = former.begin::<PageMut<'_>>().await.unwrap();
    let at = change.add(former.get_mut(page).await.unwrap());
    change.write(at, 0, &[9]);
    let lsn = change.commit().unwrap();
    let log = former.wal().clone();
    drop(former);
    tokio::time::sleep(2 * LEASE).await;
    let taker = volumes.take().await;
    let before = volumes.log.snapshot();
    assert!(matches!(log.flush(lsn).await, Err(WalError::Fenced)));
    assert!(volumes.log.snapshot() == before, "it wrote to the other one's log");
    put(&taker, page, 2).await.unwrap();
    taker.shutdown().await.unwrap();
}
