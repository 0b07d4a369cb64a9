//! An engine whose store another machine has taken over writes nothing to the log any more, although nothing
//! keeps its operations out.

use pagetier::device::SharedDevice;
use pagetier::{Builder, PageId, PageMut, PageSize, PageStore, SpaceId, options::OnHdd, pool_bytes_for};
use pagetier_devio::Device;
use pagetier_testing::{SimDevice, SimPower, SimSeat};
use pagetier_wal::{Keep, LoggedStore, Wal, WalError, WalOptions};
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
    let power = SimPower::new();
    let [homes, log] = ["homes", "log"].map(|name| Arc::new(SimDevice::new(name, 0, 1, &power)));
    log.grow(64 << 20).unwrap();
    let volumes = Volumes { homes, log };
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
    let power = SimPower::new();
    let [homes, log] = ["homes", "log"].map(|name| Arc::new(SimDevice::new(name, 0, 1, &power)));
    log.grow(64 << 20).unwrap();
    let volumes = Volumes { homes, log };
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
