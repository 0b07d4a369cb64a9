//! Power cuts while the SSD is drained, changes modes, is taken out of use and put back, fails and is
//! readmitted: every page reads as a version that the contract allows.
//!
//! `PAGETIER_CRASH_SEEDS=N` runs more seeds, `PAGETIER_CRASH_SEED=S` replays one.

use pagetier::{
    DrainOptions, Error, MemoryManifest, PageId, PageSize, PageStore, SpaceId, SsdMode, SsdPolicy,
    scrub::ScrubOptions,
};
use pagetier_devio::{IoOp, SharedDevice};
use pagetier_rivals::SSD_POLICIES;
use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const PAGE: u64 = 4096;
const PAGES: u32 = 140;
const SOON: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, Default)]
struct Allowed {
    synced: u32,
    newest: u32,
}

struct World {
    devices: [Arc<SimDevice>; 3],
    manifest: Arc<MemoryManifest>,
    pages: BTreeMap<u32, Allowed>,
    version: u32,
    /// Drawn for each life: the SSD's contents remain, whichever policy admitted them.
    ssd_policy: SsdPolicy,
}

impl World {
    /// Restarts the devices, on `power`.
    fn restart(&mut self, rng: &mut SmallRng, power: &SimPower) {
        for (device, latency_ms) in self.devices.iter_mut().zip([6, 2, 4]) {
            let back = device.after_power_cut(rng.random(), power);
            *device = Arc::new(back.with_latency(Duration::from_millis(latency_ms)));
        }
    }

    async fn open(&self) -> Result<PageStore, String> {
        let [hdd, ssd, ring] = self.devices.each_ref().map(|d| Arc::clone(d) as SharedDevice);
        let builder = PageStore::builder().in_memory(Arc::clone(&self.manifest));
        let builder = builder.hdd(hdd).ssd(ssd).ring_device(ring).page_size(PageSize::MIN);
        let builder = builder.ssd_bytes(80 * PAGE).ring_pages(4).pool_bytes(44 * PAGE);
        let builder = builder.ssd_policy(format!("{}:zone=40", self.ssd_policy));
        builder.open().await.map_err(|e| e.to_string())
    }
}

fn fill(page: &mut [u8], no: u32, version: u32) {
    let word = (u64::from(version) << 32 | u64::from(no)).to_le_bytes();
    page.copy_from_slice(&word.repeat(page.len() / 8));
}

fn version_of(page: &[u8], no: u32) -> Result<u32, String> {
    let word = u64::from_le_bytes(page[..8].try_into().unwrap());
    let whole = page.starts_with(&word.to_le_bytes()) && page[8..] == page[..page.len() - 8];
    match (whole, word) {
        (true, 0) => Ok(0),
        (true, word) if word as u32 == no => Ok((word >> 32) as u32),
        _ => Err(format!("page {no} mixes versions or pages")),
    }
}

async fn check(store: &PageStore, space: SpaceId, world: &mut World) -> Result<(), String> {
    for (no, allowed) in &mut world.pages {
        let found = match store.get(PageId::new(space, *no)).await {
            Ok(page) => version_of(&page, *no)?,
            Err(Error::NoSuchPage { .. }) => 0,
            Err(other) => return Err(format!("page {no}: {other}")),
        };
        if found < allowed.synced || found > allowed.newest {
            return Err(format!("page {no} reads as version {found}, allowed is {allowed:?}"));
        }
        allowed.newest = found;
    }
    Ok(())
}

async fn sync(store: &PageStore, world: &mut World) -> Result<(), String> {
    let before: Vec<_> = world.pages.iter().map(|(no, a)| (*no, a.newest)).collect();
    let synced = tokio::time::timeout(SOON, store.sync())
        .await
        .map_err(|_| format!("sync hangs: {:?} {:?}", store.stats().ssd, store.stats().pool))?;
    if synced.is_ok() {
        for (no, newest) in before {
            world.pages.entry(no).or_default().synced = newest;
        }
    }
    Ok(())
}

/// A random event in the SSD's life.
async fn life(store: &PageStore, world: &World, rng: &mut SmallRng) {
    let ssd = &world.devices[1];
    match rng.random_range(0..10) {
        0 => drop(store.ssd().set_mode(SsdMode::Off).await),
        1 => drop(store.ssd().set_mode(SsdMode::WriteBack).await),
        2 => drop(store.ssd().set_mode(SsdMode::WriteThrough).await),
        3 => drop(store.ssd().set_mode(SsdMode::ReadOnly).await),
        4 => drop(
            store
                .ssd()
                .drain(DrainOptions::new().deadline(Duration::from_millis(rng.random_range(1..200))))
                .await,
        ),
        5 => {
            let op = [IoOp::Write, IoOp::Flush, IoOp::Read][rng.random_range(0..3)];
            ssd.inject(Fault::new(FaultEffect::Eio).on(op).times(1));
        }
        6 | 7 => {
            let policy = SSD_POLICIES[rng.random_range(0..SSD_POLICIES.len())];
            drop(store.policies().set_ssd(policy).await);
        }
        8 => drop(store.scrub(ScrubOptions::default().pages_per_second(None)).finished().await),
        _ => drop(store.ssd().readmit().await),
    }
}

async fn work(
    store: &PageStore,
    space: SpaceId,
    world: &mut World,
    power: &SimPower,
    rng: &mut SmallRng,
) -> Result<(), String> {
    while !power.is_cut() {
        let no = rng.random_range(0..PAGES);
        match rng.random_range(0..200) {
            0..3 => {
                let some = tokio::time::timeout(SOON, life(store, world, rng)).await;
                some.map_err(|_| "the SSD's life stands still".to_owned())?;
            }
            3..10 => sync(store, world).await?,
            10..110 => {
                if let Ok(mut page) = store.get_mut(PageId::new(space, no)).await {
                    world.version += 1;
                    fill(&mut page, no, world.version);
                    world.pages.entry(no).or_default().newest = world.version;
                }
            }
            _ => {
                if let Ok(page) = store.get(PageId::new(space, no)).await {
                    let found = version_of(&page, no)?;
                    let newest = world.pages.get(&no).map_or(0, |a| a.newest);
                    if found != newest {
                        return Err(format!("page {no} reads as {found} while running, not as {newest}"));
                    }
                } else if store.stats().ssd.refusing.is_some() {
                    let back = tokio::time::timeout(SOON, store.ssd().readmit()).await;
                    match back {
                        Err(_) => return Err(format!("taking the SSD back hangs: {:?}", store.stats().ssd)),
                        // This store cannot continue.
                        Ok(Err(Error::Refusing { .. })) => power.cut_now(),
                        Ok(_) => {}
                    }
                }
            }
        }
    }
    Ok(())
}

async fn one_life(world: &mut World, rng: &mut SmallRng) -> Result<bool, String> {
    let power = SimPower::new();
    world.restart(rng, &power);
    if rng.random_bool(0.3) {
        world.ssd_policy = SSD_POLICIES[rng.random_range(0..SSD_POLICIES.len() - 1)];
    }
    power.cut_at(rng.random_range(100..3000));
    let store = match world.open().await {
        Ok(store) => store,
        Err(_) if power.is_cut() => return Ok(false),
        Err(error) => return Err(format!("does not open: {error}")),
    };
    let space = store.spaces().find("t").ok_or("the space is gone")?;
    let checked = check(&store, space, world).await;
    if !power.is_cut() {
        checked?;
        let worked = work(&store, space, world, &power, rng).await;
        if !power.is_cut() {
            worked?;
        }
    }
    drop(store);
    tokio::time::sleep(Duration::from_secs(60)).await;
    for device in &world.devices {
        device.clear_faults();
    }
    Ok(true)
}

fn run(seed: u64) -> Result<u32, String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut rng = SmallRng::seed_from_u64(seed);
        let power = SimPower::new();
        let device = |name, seed| Arc::new(SimDevice::new(name, 0, seed, &power));
        let mut world = World {
            devices: [device("hdd", seed), device("ssd", seed + 1), device("ring", seed + 2)],
            manifest: Arc::new(MemoryManifest::default()),
            pages: BTreeMap::new(),
            version: 0,
            // All policies except the last, `none`.
            ssd_policy: SSD_POLICIES[seed as usize % (SSD_POLICIES.len() - 1)],
        };
        let store = world.open().await?;
        let space = store.spaces().create("t").await.map_err(|e| e.to_string())?;
        for no in 0..PAGES {
            let mut page = store.allocate(space).await.map_err(|e| e.to_string())?;
            world.version += 1;
            fill(&mut page, no, world.version);
            world.pages.insert(no, Allowed { synced: world.version, newest: world.version });
        }
        store.close().await.map_err(|e| e.to_string())?;
        let mut lives = 0;
        for _ in 0..4 {
            lives += u32::from(one_life(&mut world, &mut rng).await?);
        }
        Ok(lives)
    })
}

#[test]
fn whatever_happens_to_the_ssd_nothing_synced_is_lost_and_nothing_old_comes_back() {
    let one = std::env::var("PAGETIER_CRASH_SEED").ok().map(|s| s.parse::<u64>().unwrap());
    let seeds = std::env::var("PAGETIER_CRASH_SEEDS").map_or(60, |s| s.parse::<u64>().unwrap());
    for seed in one.map_or(0..seeds, |s| s..s + 1) {
        if let Err(error) = run(seed) {
            panic!(
                "seed {seed}: {error}; replay with PAGETIER_CRASH_SEED={seed} cargo test --test all ssd_crash"
            );
        }
    }
}
