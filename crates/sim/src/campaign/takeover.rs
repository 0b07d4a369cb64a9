//! A store with a log whose owners follow one another, in virtual time. Each next owner is another machine,
//! with a blank SSD. It bans the one before, which runs on, is stopped meanwhile, or is let through again
//! later.
//!
//! What any owner acknowledged, the next ones must have. A former owner acknowledges nothing more, and serves
//! pages for the length of its lease at most.

use super::contract::content::{fill, version_in};
use super::draw::plan::Plan;
use super::report::violation::{Violation, judged};
use super::world::examine::in_virtual_time;
use super::{Hazard, Totals};
use pagetier::{Builder, Error, PageId, PageSize, PageStore, SpaceId, options::OnHdd, pool_bytes_for};
use pagetier_devio::{Device, SharedDevice};
use pagetier_testing::{SimDevice, SimSeat};
use pagetier_wal::{Keep, LoggedStore, MiniTx, Wal, WalOptions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const PAGES: u32 = 60;
const OWNERS: u64 = 6;
const SSD_BYTES: u64 = 200 * 4096;

/// Runs the scenario of a seed.
///
/// # Errors
/// The first [`Violation`].
pub fn run_takeovers(seed: u64, totals: &mut Totals) -> Result<(), Violation> {
    totals.seeds += 1;
    let plan = Plan { pages: 0, ..Plan::directed(seed, Hazard::Log) };
    judged(&plan, "of owners one after another".to_owned(), totals, |_, totals| {
        totals.lives += OWNERS;
        totals.pages_checked += in_virtual_time(run(seed))?;
        Ok(())
    })
}

/// The volumes, and what is known of their contents.
struct World {
    homes: Arc<SimDevice>,
    log: Arc<SimDevice>,
    /// The newest version of each page that an owner has acknowledged.
    acked: Vec<AtomicU32>,
    last: AtomicU32,
    checked: AtomicU64,
    is_over: AtomicBool,
}

struct Machine {
    world: Arc<World>,
    homes: Arc<SimSeat>,
    log: Arc<SimSeat>,
    db: LoggedStore,
    space: SpaceId,
    lease: Duration,
    /// When the next owner banned this one.
    banned: OnceLock<Instant>,
    is_stopped: watch::Sender<bool>,
}

fn builder(homes: &Arc<SimSeat>, lease: Duration, seed: u64) -> Builder {
    let ssd = SimDevice::new("ssd", 0, seed, &super::world::crash::bounded_power());
    PageStore::builder()
        .manifest(OnHdd { bytes_max: 256 << 10, ..OnHdd::default() }.lease(lease))
        .hdd(Arc::clone(homes) as SharedDevice)
        .ssd(Arc::new(ssd.with_latency(Duration::from_micros(100))) as SharedDevice)
        .page_size(PageSize::MIN)
        .ssd_bytes(SSD_BYTES)
        .ring_pages(8)
        .pool_bytes(pool_bytes_for(40, SSD_BYTES, PageSize::MIN))
        .accept_ssd_loss(true)
}

async fn run(seed: u64) -> Result<u64, String> {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x7a6e_0ce5);
    let power = super::world::crash::bounded_power();
    // The log's device completes at once: it is written by threads that virtual time would not wait for.
    let log = SimDevice::new("log", 0, seed, &power);
    log.grow(64 << 20).map_err(|error| error.to_string())?;
    let homes = SimDevice::new("hdd", 0, seed + 1, &power);
    let latency = Duration::from_micros(rng.random_range(100..20_000));
    let world = Arc::new(World {
        homes: Arc::new(homes.with_latency(latency)),
        log: Arc::new(log),
        acked: (0..PAGES).map(|_| AtomicU32::new(0)).collect(),
        last: AtomicU32::new(0),
        checked: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    });
    let mut tasks = JoinSet::new();
    let mut owner: Option<Arc<Machine>> = None;
    for _ in 0..OWNERS {
        if let Some(former) = &owner {
            // Stopped before the ban, a former owner learns of it only when it goes on.
            former.is_stopped.send_replace(rng.random_bool(0.4));
            sleep(Duration::from_millis(rng.random_range(0..100))).await;
            former.ban(true);
            let _ = former.banned.set(Instant::now());
        }
        let lease = Duration::from_millis(rng.random_range(300..3000));
        let next = Machine::take(&world, lease, rng.random()).await?;
        if let Some(former) = owner.replace(Arc::clone(&next)) {
            // An earlier end of the ban lets two owners write.
            let after = former.lease + Duration::from_millis(rng.random_range(0..4000));
            let lifts = rng.random_bool(0.7);
            tasks.spawn(async move {
                sleep(after).await;
                // One that was stopped asks before it does anything else.
                former.ban(!lifts);
                former.is_stopped.send_replace(false);
                Ok(())
            });
        }
        for _ in 0..3 {
            let rng = SmallRng::seed_from_u64(rng.random());
            tasks.spawn(Arc::clone(&next).work(rng));
        }
        sleep(Duration::from_millis(rng.random_range(1..1500))).await;
    }
    // By now each former owner has noticed.
    sleep(Duration::from_secs(8)).await;
    world.is_over.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.map_err(|error| format!("a task panicked: {error}"))??;
    }
    let last = owner.ok_or("no owner")?;
    for no in 0..PAGES {
        last.read(no).await?;
    }
    last.db.shutdown().await.map_err(|error| format!("shutdown: {error}"))?;
    Ok(world.checked.load(Ordering::Relaxed))
}

impl Machine {
    async fn take(world: &Arc<World>, lease: Duration, seed: u64) -> Result<Arc<Self>, String> {
        let failed = |error: &dyn std::error::Error| format!("does not open: {error}");
        let [homes, log] = [&world.homes, &world.log].map(|volume| Arc::new(SimSeat::new(volume)));
        let options = WalOptions::new().capacity_bytes(256 << 10).keep(Keep::ForSsdLoss);
        let wal = Wal::on_device(Arc::clone(&log) as SharedDevice, options).await.map_err(|e| failed(&e))?;
        let db = LoggedStore::on(builder(&homes, lease, seed), wal).await.map_err(|e| failed(&e))?;
        let space = match db.spaces().find("t") {
            Some(space) => space,
            None => db.spaces().create("t").await.map_err(|e| failed(&e))?,
        };
        let (world, is_stopped) = (Arc::clone(world), watch::Sender::new(false));
        Ok(Arc::new(Self { world, homes, log, db, space, lease, banned: OnceLock::new(), is_stopped }))
    }

    fn ban(&self, banned: bool) {
        self.homes.ban(banned);
        self.log.ban(banned);
    }

    /// Reads and changes pages until another owner has taken over, or the scenario ends.
    async fn work(self: Arc<Self>, mut rng: SmallRng) -> Result<(), String> {
        let mut stopped = self.is_stopped.subscribe();
        while !self.world.is_over.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(rng.random_range(0..20))).await;
            stopped.wait_for(|stopped| !stopped).await.map_err(|error| error.to_string())?;
            let no = rng.random_range(0..PAGES);
            let goes_on = if rng.random_bool(0.6) { self.read(no).await? } else { self.change(no).await? };
            if !goes_on {
                // It stays so, whether it is let through or not.
                sleep(2 * self.lease).await;
                return match self.db.get(PageId::new(self.space, no)).await {
                    Err(Error::Fenced) => Ok(()),
                    Ok(_) => Err("a fenced owner serves a page".to_owned()),
                    Err(error) => Err(format!("a fenced owner says {error}")),
                };
            }
        }
        if self.banned.get().is_some() { Err("a former owner never noticed".to_owned()) } else { Ok(()) }
    }

    /// What the failure of a call means: the end of this owner, or a violation.
    fn refused(&self, what: &str, error: &dyn std::error::Error) -> Result<bool, String> {
        if self.banned.get().is_some() { Ok(false) } else { Err(format!("{what}: {error}")) }
    }

    /// Returns whether this owner still serves pages.
    async fn read(&self, no: u32) -> Result<bool, String> {
        let page = PageId::new(self.space, no);
        // Before the read: a version that is acknowledged during it need not be seen.
        let floor = self.world.acked[no as usize].load(Ordering::Relaxed);
        let begun = Instant::now();
        let found = match self.db.get(page).await {
            Ok(guard) => version_in(&guard, page)?,
            Err(Error::NoSuchPage { .. }) => 0,
            Err(error) => return self.refused("get", &error),
        };
        self.world.checked.fetch_add(1, Ordering::Relaxed);
        match self.banned.get() {
            Some(at) if begun > *at + self.lease => {
                Err(format!("a former owner serves a page {:?} after its lease", begun - *at - self.lease))
            }
            None if found < floor => Err(format!("page {page} reads as {found}, acknowledged is {floor}")),
            _ => Ok(true),
        }
    }

    async fn change(&self, no: u32) -> Result<bool, String> {
        if let Err(error) = self.db.admit(Duration::from_secs(30)).await {
            return self.refused("admit", &error);
        }
        let page = PageId::new(self.space, no);
        let guard = match self.db.get_or_create(page).await {
            Ok(guard) => guard,
            Err(error) => return self.refused("get_or_create", &error),
        };
        let mut change = MiniTx::new(Some(self.db.wal()));
        let at = change.add(guard);
        let version = self.world.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut bytes = vec![0; change.payload(at).len()];
        fill(&mut bytes, page, version);
        change.write(at, 0, &bytes);
        // Before the commit: one that was in flight when the ban came may still be acknowledged.
        let was_banned = self.banned.get().is_some();
        match self.db.commit(change).await {
            Ok(_) if was_banned => Err("a former owner acknowledged a change".to_owned()),
            Ok(_) => {
                self.world.acked[no as usize].fetch_max(version, Ordering::Relaxed);
                Ok(true)
            }
            Err(error) => self.refused("commit", &error),
        }
    }
}
