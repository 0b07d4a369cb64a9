//! The store that two operations meet on, and what its pages may read as.

use crate::fixture::{PAGE, fill, version_of};
use pagetier::{
    Builder, Error, Lsn, MemoryManifest, OpenError, PageId, PageSize, PageStore, SpaceId, SsdLoss, SsdMode,
    backup::BackupOptions,
    errors::{PoolError, TierError},
};
use pagetier_devio::{IoOp, SharedDevice};
use pagetier_testing::{Fault, FaultEffect, FlushFailure, SimDevice, SimPower};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Pages of the space that most operations use. All were written as version 1; those below `TWICE` as version
/// 2 as well, before the last close.
pub(crate) const PAGES: u32 = 128;
const TWICE: u32 = 64;
/// Of these, version 3 was synced by this run.
const SYNCED: [Range<u32>; 2] = [0..16, 56..64];
/// Of these, version 4 was written by this run, and not synced.
pub(crate) const DIRTY: u32 = 8;
/// Pages of a space whose extents are used up: the next one makes the HDD grow.
pub(crate) const FULL: u32 = 64;
/// Pages of the space that is dropped.
pub(crate) const DOOMED: u32 = 12;

const SSD_BYTES: u64 = 112 * PAGE;
/// Of the SSD that each side puts in its place.
const NEXT_BYTES: [u64; 2] = [SSD_BYTES, SSD_BYTES / 4 * 3];
const POOL_BYTES: u64 = 44 * PAGE;

/// The devices of a store, which outlive it.
pub(crate) struct Disks {
    hdd: Arc<SimDevice>,
    ssd: Arc<SimDevice>,
    ring: Arc<SimDevice>,
    /// What `replace_ssd` puts in its place: one for each side.
    next: [Arc<SimDevice>; 2],
    manifest: Arc<MemoryManifest>,
}

impl Disks {
    fn new() -> Self {
        let power = SimPower::new();
        let device = |name, seed, latency| {
            let device = SimDevice::new(name, 0, seed, &power).with_flush_failure(FlushFailure::Cached);
            Arc::new(device.with_latency(Duration::from_micros(latency)))
        };
        Self {
            hdd: device("hdd", 1, 4000),
            ssd: device("ssd", 2, 400),
            ring: device("ring", 3, 4000),
            next: [device("next-0", 4, 400), device("next-1", 5, 400)],
            manifest: Arc::default(),
        }
    }

    fn each(&self, seed: u64, copy: impl Fn(&SimDevice, u64, &SimPower) -> SimDevice) -> Self {
        let power = SimPower::new();
        let one = |device: &SimDevice, nth| Arc::new(copy(device, seed * 8 + nth, &power));
        Self {
            hdd: one(&self.hdd, 1),
            ssd: one(&self.ssd, 2),
            ring: one(&self.ring, 3),
            next: [one(&self.next[0], 4), one(&self.next[1], 5)],
            manifest: Arc::new(self.manifest.fork()),
        }
    }

    /// A copy of everything at this moment.
    pub(crate) fn fork(&self, seed: u64) -> Self {
        self.each(seed, SimDevice::fork)
    }

    /// The devices as they come back after a power cut at this moment.
    pub(crate) fn after_power_cut(&self, seed: u64) -> Self {
        self.each(seed, SimDevice::after_power_cut)
    }

    fn builder(&self, ssd: &Arc<SimDevice>, bytes: u64) -> Builder {
        pagetier_rivals::register();
        PageStore::builder()
            .in_memory(Arc::clone(&self.manifest))
            .hdd(Arc::clone(&self.hdd) as SharedDevice)
            .ssd(Arc::clone(ssd) as SharedDevice)
            .ring_device(Arc::clone(&self.ring) as SharedDevice)
            .page_size(PageSize::MIN)
            .ssd_bytes(bytes)
            .ring_pages(8)
            .ssd_policy("auto:zone=30")
            .exhausted_after(Duration::from_secs(2))
            .pool_bytes(POOL_BYTES)
    }

    /// Opens the store with the SSD that it uses, whichever that is.
    pub(crate) async fn open(&self) -> Result<PageStore, OpenError> {
        let mut wrong = None;
        let [one, other] = NEXT_BYTES;
        let ssds = [(&self.ssd, SSD_BYTES), (&self.next[0], one), (&self.next[1], other)];
        for (ssd, bytes) in ssds {
            match self.builder(ssd, bytes).open().await {
                Ok(store) => return Ok(store),
                Err(error) => drop(wrong.get_or_insert(error)),
            }
        }
        Err(wrong.expect("three were tried"))
    }

    /// A closed store with three spaces; every case begins with a copy of it.
    pub(crate) async fn closed_store() -> Self {
        let disks = Self::new();
        let store = disks.open().await.unwrap();
        let spaces = [("main", PAGES), ("full", FULL), ("doomed", DOOMED)];
        for (name, pages) in spaces {
            let space = store.spaces().create(name).await.unwrap();
            for no in 0..pages {
                fill(&mut store.allocate(space).await.unwrap(), no, 1);
            }
        }
        store.sync().await.unwrap();
        let main = store.spaces().find("main").unwrap();
        for no in 0..TWICE {
            put(&store, PageId::new(main, no), 2).await.unwrap();
        }
        store.close().await.unwrap();
        disks
    }

    pub(crate) fn next_ssd(&self, side: Side) -> (SharedDevice, u64) {
        (Arc::clone(&self.next[side as usize]) as SharedDevice, NEXT_BYTES[side as usize])
    }

    pub(crate) fn pool_bytes(&self) -> u64 {
        POOL_BYTES
    }
}

/// Which of the two operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    First,
    Second,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::First, Self::Second];

    /// The version that an operation of this side writes.
    pub(crate) fn version(self) -> u32 {
        11 + self as u32
    }
}

/// What is done to the store before the two operations begin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Setup {
    /// It is in use.
    InUse,
    /// Its SSD is off.
    Off,
    /// A flush of its SSD failed: it refuses writes.
    Failed,
}

/// An open store in use.
pub(crate) struct World {
    pub(crate) store: Arc<PageStore>,
    pub(crate) disks: Disks,
    pub(crate) main: SpaceId,
    pub(crate) full: SpaceId,
    pub(crate) doomed: SpaceId,
    pub(crate) setup: Setup,
    pub(crate) folder: TempDir,
}

impl World {
    /// With `backed_up`, a backup of the previous life's pages is there, which the next one continues.
    pub(crate) async fn open(disks: Disks, setup: Setup, backed_up: bool) -> Self {
        let store = disks.open().await.unwrap();
        let [main, full, doomed] = ["main", "full", "doomed"].map(|name| store.spaces().find(name).unwrap());
        // A memory disk where there is one: backups are synced.
        let folder = pagetier_testing::scratch();
        if backed_up {
            store.backup(folder.path().join("backup"), BackupOptions::new()).await.unwrap();
        }
        for no in SYNCED.into_iter().flatten() {
            put(&store, PageId::new(main, no), 3).await.unwrap();
        }
        store.sync().await.unwrap();
        for no in 0..DIRTY {
            put(&store, PageId::new(main, no), 4).await.unwrap();
        }
        match setup {
            Setup::InUse => {}
            Setup::Off => store.ssd().set_mode(SsdMode::Off).await.unwrap(),
            Setup::Failed => {
                disks.ssd.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
                assert!(store.sync().await.is_err(), "the flush fails");
                disks.ssd.clear_faults();
            }
        }
        Self { store: Arc::new(store), disks, main, full, doomed, setup, folder }
    }

    pub(crate) fn backup_folder(&self) -> PathBuf {
        self.folder.path().join("backup")
    }

    pub(crate) fn page(&self, no: u32) -> PageId {
        PageId::new(self.main, no)
    }

    /// The pages to check after an operation.
    pub(crate) fn pages(&self) -> impl Iterator<Item = PageId> + use<> {
        // A few of the space that no operation changes here.
        let spaces = [(self.main, PAGES), (self.full, 6), (self.doomed, DOOMED)];
        spaces.into_iter().flat_map(|(space, pages)| (0..pages).map(move |no| PageId::new(space, no)))
    }

    /// The newest version of `page` before the two operations, and the oldest that a crash may bring back.
    pub(crate) fn before(&self, page: PageId) -> (u32, u32) {
        match page.no {
            no if page.space != self.main || no >= TWICE => (1, 1),
            no if no < DIRTY => (4, 3),
            no if SYNCED.iter().any(|synced| synced.contains(&no)) => (3, 3),
            _ => (2, 2),
        }
    }
}

/// Writes `version` to `page`.
pub(crate) async fn put(store: &PageStore, page: PageId, version: u32) -> Result<(), Error> {
    let mut guard = store.get_mut(page).await?;
    fill(&mut guard, page.no, version);
    guard.set_lsn(Lsn(u64::from(version) * 1000 + u64::from(page.no)));
    Ok(())
}

/// What a page reads as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Version(u32),
    Absent,
    Failed(String),
}

pub(crate) async fn look(store: &PageStore, page: PageId) -> Found {
    match store.get(page).await {
        Ok(guard) => Found::Version(version_of(&guard, page.no)),
        Err(Error::NoSuchPage { .. }) => Found::Absent,
        Err(Error::Pool(PoolError::Tier(TierError::NoSuchPage { .. }))) => {
            Found::Failed("it does not exist, but the error is the tier's".into())
        }
        Err(error) => Found::Failed(format!("{error:?}")),
    }
}

/// What a page may read as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub(crate) versions: BTreeSet<u32>,
    pub(crate) absent: bool,
}

impl Allowed {
    pub(crate) fn permits(&self, found: &Found) -> bool {
        match found {
            Found::Version(version) => self.versions.contains(version),
            Found::Absent => self.absent,
            Found::Failed(_) => false,
        }
    }

    /// The page was lost with the SSD: any older version may be found, or none.
    pub(crate) fn lost(&mut self) {
        self.versions.extend(0..=4);
        self.absent = true;
    }
}

pub(crate) fn listed(loss: &[SsdLoss], page: PageId) -> bool {
    loss.iter().any(|loss| loss.contains(page))
}
