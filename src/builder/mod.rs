//! The options for opening a store. `open` carries them out.

mod blank;
mod check;
mod commit;
mod ends;
mod loss;
mod open;
mod side;

use crate::lock::{self, Leave, Tenure};
use crate::memory_manifest::MemoryManifest;
use pagetier_bufpool::LogGate;
use pagetier_devio::{Backend, DirectIo, SharedDevice};
use pagetier_page::{PageSize, StoreSeed};
use pagetier_policy::{CLUSTER_PAGES, Costs, PoolPolicy, SsdPolicy, UnknownPolicy};
use pagetier_ssdcache::{Broken, Mutation, Progress, SsdMode};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Memory that GD2L and the like take for a frame, in bytes: what the budget sets aside.
pub(crate) const POOL_POLICY_BYTES: usize = 24;
/// Memory for a slot: its entry, its place in the page map, and the policy's record.
const SLOT_BYTES: u64 = 40 + 24 + 72;
/// Memory for an entry of the outqueue.
const OUTQUEUE_BYTES: u64 = 72;

/// The most points of the moving averages of costs: 256 MiB for the two devices.
pub(crate) const COST_POINTS_MAX: usize = 1 << 24;

/// Memory for the tables of an SSD, in bytes.
pub(crate) fn tables_bytes(slots: u64, outqueue: u64) -> u64 {
    slots.saturating_mul(SLOT_BYTES).saturating_add(outqueue.saturating_mul(OUTQUEUE_BYTES))
}

/// The default size of the doublewrite ring.
pub(crate) fn ring_pages_for(ssd_bytes: u64, page_size: PageSize) -> u32 {
    (ssd_bytes / page_size.bytes() as u64 / 16).clamp(16, 256) as u32
}

#[cfg(test)]
#[test]
fn the_ring_is_a_sixteenth_of_the_ssd_within_bounds() {
    let pages = |ssd_pages: u64| ring_pages_for(ssd_pages * 4096, PageSize::MIN);
    assert_eq!([0, 16 * 16, 16 * 100, 16 * 256, 1 << 30].map(pages), [16, 16, 100, 256, 256]);
}

/// Where a tier lives.
#[derive(Clone, Debug)]
enum Place {
    /// Under the store's directory.
    Default,
    Path(PathBuf),
    Device(SharedDevice),
}

/// Options for opening a store, each with its default. [`Builder::open`] does it.
#[must_use]
pub struct Builder {
    directory: Option<PathBuf>,
    memory: Option<Arc<MemoryManifest>>,
    hdd: Place,
    ssd: Place,
    ssd_bytes: u64,
    ring_pages: Option<u32>,
    pool_bytes: u64,
    page_size: Option<PageSize>,
    page_bytes: Option<u64>,
    pool_policy: Result<PoolPolicy, UnknownPolicy>,
    ssd_policy: Result<SsdPolicy, UnknownPolicy>,
    pub(crate) cluster_pages: u32,
    zone_percent: f64,
    outqueue: Option<usize>,
    group_width_per_min: f64,
    costs: Option<Costs>,
    calibrate: Option<Duration>,
    pub(crate) cost_points: Option<usize>,
    io: Backend,
    direct_io: DirectIo,
    create: bool,
    force: bool,
    gate: Option<Arc<dyn LogGate>>,
    redo_span_max: Option<u64>,
    exhausted_after: Duration,
    read_ahead: bool,
    progress: Option<Box<dyn Fn(Progress) + Send + Sync>>,
    #[cfg(feature = "mutations")]
    mutation: Option<pagetier_ssdcache::Mutation>,
    ring: Place,
    ssd_mode: SsdMode,
    accept_ssd_loss: bool,
    /// What an opening holds; its end is the store's.
    pub(crate) tenure: Option<Arc<Tenure>>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            directory: None,
            memory: None,
            hdd: Place::Default,
            ssd: Place::Default,
            ssd_bytes: 256 << 20,
            ring_pages: None,
            pool_bytes: 64 << 20,
            page_size: None,
            page_bytes: None,
            pool_policy: Ok(PoolPolicy::default()),
            ssd_policy: Ok(SsdPolicy::default()),
            cluster_pages: CLUSTER_PAGES,
            zone_percent: 10.0,
            outqueue: None,
            group_width_per_min: 1.0,
            costs: None,
            calibrate: None,
            cost_points: None,
            io: Backend::Auto,
            direct_io: DirectIo::Preferred,
            create: true,
            force: false,
            gate: None,
            redo_span_max: None,
            exhausted_after: Duration::from_secs(10),
            read_ahead: true,
            progress: None,
            #[cfg(feature = "mutations")]
            mutation: None,
            ring: Place::Default,
            ssd_mode: SsdMode::WriteBack,
            accept_ssd_loss: false,
            tenure: None,
        }
    }
}

impl Builder {
    /// The store's directory: manifest, lock, and by default both tiers' files. Required, unless the store is
    /// [in memory](Builder::in_memory).
    pub fn directory(mut self, path: impl AsRef<Path>) -> Self {
        self.directory = Some(path.as_ref().to_owned());
        self
    }

    /// Keeps the manifest in `manifest` instead of a directory: for stores on emulated or simulated devices,
    /// which must then be given too.
    pub fn in_memory(mut self, manifest: Arc<MemoryManifest>) -> Self {
        self.memory = Some(manifest);
        self
    }

    /// The HDD: a file or block device. Default: `hdd.vol` in the directory.
    pub fn hdd(mut self, path: impl AsRef<Path>) -> Self {
        self.hdd = Place::Path(path.as_ref().to_owned());
        self
    }

    /// The HDD as a device; [`crate::device`] says how to write one.
    pub fn hdd_device(mut self, device: SharedDevice) -> Self {
        self.hdd = Place::Device(device);
        self
    }

    /// The SSD: a file or block device. Default: `ssd.cache` in the directory.
    pub fn ssd(mut self, path: impl AsRef<Path>) -> Self {
        self.ssd = Place::Path(path.as_ref().to_owned());
        self
    }

    /// The SSD as a device; [`crate::device`] says how to write one.
    pub fn ssd_device(mut self, device: SharedDevice) -> Self {
        self.ssd = Place::Device(device);
        self
    }

    /// How much of the SSD to use when the store is created, in bytes; 0: no SSD. An existing store keeps its
    /// size. Default: 256 MiB.
    pub fn ssd_bytes(mut self, bytes: u64) -> Self {
        self.ssd_bytes = bytes;
        self
    }

    /// Pages of the doublewrite ring when the store is created; 0 turns it off: torn pages on the HDD are
    /// then the embedder's to repair, and `sync` flushes the HDD. At most 65,536. Default: 256, fewer on a
    /// small SSD.
    pub fn ring_pages(mut self, pages: u32) -> Self {
        self.ring_pages = Some(pages);
        self
    }

    /// The memory that the store may take, in bytes: pages, their metadata, staging copies, the SSD's tables
    /// and outqueue. Default: 64 MiB.
    pub fn pool_bytes(mut self, bytes: u64) -> Self {
        self.pool_bytes = bytes;
        self
    }

    /// The page size of a new store; an existing one must have it. Default: 16 KiB, or the existing store's.
    pub fn page_size(mut self, size: PageSize) -> Self {
        self.page_size = Some(size);
        self
    }

    /// The page size in bytes, checked by [`Builder::open`].
    pub fn page_bytes(mut self, bytes: u64) -> Self {
        self.page_bytes = Some(bytes);
        self
    }

    /// The pool's replacement policy, as [`PoolPolicy::Lru`] or by its name, as `"gd2l:frequency"`. Default:
    /// [`PoolPolicy::Auto`]. CASA and GD2L go by the devices' costs: see [`Builder::online_costs`]. A name
    /// that there is not makes opening fail.
    pub fn pool_policy(mut self, policy: impl TryInto<PoolPolicy, Error: Into<UnknownPolicy>>) -> Self {
        self.pool_policy = policy.try_into().map_err(Into::into);
        self
    }

    /// The SSD's policy, as [`SsdPolicy::Lru2`] or by its name, as `"cac:ageing"`. Default:
    /// [`SsdPolicy::Auto`]. A store may be opened with another policy than it was closed with: what is on the
    /// SSD stays in use. A name that there is not makes opening fail.
    pub fn ssd_policy(mut self, policy: impl TryInto<SsdPolicy, Error: Into<UnknownPolicy>>) -> Self {
        self.ssd_policy = policy.try_into().map_err(Into::into);
        self
    }

    /// Pages of a cluster of the pool policies that write in clusters (CFDC, SAWC), and of a block of REF:
    /// neighbours in a space, from 1 to 65,536. Default: 64.
    pub fn cluster_pages(mut self, pages: u32) -> Self {
        self.cluster_pages = pages;
        self
    }

    /// The eviction zone, in per cent of the SSD's slots, above 0 and up to 100: what a recovery reads.
    /// Default: 10.
    pub fn zone_percent(mut self, percent: f64) -> Self {
        self.zone_percent = percent;
        self
    }

    /// Entries of the outqueue. Default: as many as the SSD has slots (2013 paper, section 6.1).
    pub fn outqueue(mut self, entries: usize) -> Self {
        self.outqueue = Some(entries);
        self
    }

    /// The width of CAC's subranges, in logical reads per minute. Default: 1 (2013 paper, section 5.2).
    pub fn group_width_per_min(mut self, width: f64) -> Self {
        self.group_width_per_min = width;
        self
    }

    /// The devices' costs. Default: the paper's (7.2, 4.96, 0.11 and 0.27 ms); [`crate::calibrate`] measures
    /// them.
    pub fn costs(mut self, costs: Costs) -> Self {
        self.costs = Some(costs);
        self
    }

    /// Measures the devices for about `budget` each ([`crate::calibrate`]) when the store is created, unless
    /// [`Builder::costs`] gives their costs. The store remembers the outcome. Default: not.
    pub fn calibrate(mut self, budget: Duration) -> Self {
        self.calibrate = Some(budget);
        self
    }

    /// Measures the devices while the store runs, by moving averages over the last `points` reads and writes
    /// of pages of each ([`crate::COST_POINTS`] in the paper: Ou et al., section 3.2.2), and tells the
    /// policies once a second. A merged write's time is shared by its pages; operations longer than 65 ms are
    /// left out. Until there are enough of a kind, [`Builder::costs`] or what a calibration found counts. 16
    /// bytes of memory for each point; at most 2^24 points. Default: not, so that a policy which weighs reads
    /// against writes (CASA, CAC, GD2L) goes by the costs that it was opened with.
    pub fn online_costs(mut self, points: usize) -> Self {
        self.cost_points = Some(points.max(1));
        self
    }

    /// How files are served. Default: io_uring where it can be had.
    pub fn io(mut self, backend: Backend) -> Self {
        self.io = backend;
        self
    }

    /// Whether the system's page cache is bypassed. Default: where the file system can.
    pub fn direct_io(mut self, direct: DirectIo) -> Self {
        self.direct_io = direct;
        self
    }

    /// Whether a store that does not exist is created. Default: yes.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Whether a new store may overwrite data on a device that is not Pagetier's, or another store's. Without
    /// it, a device must be zero where file systems, arrays and partition tables keep their labels: its first
    /// and last MiB, and btrfs' inner copies. A block device that is mounted or otherwise in use is refused
    /// in any case. Default: no.
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// The embedder's log: asked to be durable up to a page's LSN before the page is written anywhere.
    pub fn log_gate(mut self, gate: Arc<dyn LogGate>) -> Self {
        self.gate = Some(gate);
        self
    }

    /// The span of log, in LSN units, that redo may have to go through; older changes are written out.
    /// Default: no bound.
    pub fn redo_span_max(mut self, span: u64) -> Self {
        self.redo_span_max = Some(span);
        self
    }

    /// How long a request waits for a frame when all are pinned or dirty, before it fails. Default: 10 s.
    pub fn exhausted_after(mut self, wait: Duration) -> Self {
        self.exhausted_after = wait;
        self
    }

    /// Whether linear access is detected and read ahead. Default: yes.
    pub fn read_ahead(mut self, on: bool) -> Self {
        self.read_ahead = on;
        self
    }

    /// Test-only: leaves out a rule of the protocol.
    #[cfg(feature = "mutations")]
    #[doc(hidden)]
    pub fn mutation(mut self, rule: Option<pagetier_ssdcache::Mutation>) -> Self {
        self.mutation = rule;
        self
    }

    /// The device for the doublewrite ring while the store has no SSD, ready made. Default: the file `ring`
    /// in the directory; in memory, for a store without one (its ring then does not outlive the process, and
    /// a store with an SSD does not go on without it by itself).
    pub fn ring_device(mut self, device: SharedDevice) -> Self {
        self.ring = Place::Device(device);
        self
    }

    /// What the SSD is used for at first; [`crate::PageStore::set_ssd_mode`] changes it later.
    /// [`SsdMode::Off`] is refused here: open the store without an SSD, or switch it off once it is open.
    /// Default: [`SsdMode::WriteBack`].
    pub fn ssd_mode(mut self, mode: SsdMode) -> Self {
        self.ssd_mode = mode;
        self
    }

    /// Whether the store may open without its SSD (`ssd_bytes(0)`), or with a blank one or an older copy in
    /// its place, although the lost one may have held newer pages than the HDD; an older copy is formatted.
    /// The same goes for the file of the ring of a store without an SSD. [`crate::PageStore::ssd_loss`] then
    /// says which pages, also in later openings. When the store's own SSD is there after all, nothing is
    /// lost: if it has blocks that cannot be read and opening fails with
    /// [`pagetier_ssdcache::OpenError::Unreadable`], leave it out or put a blank one in its place to give it
    /// up. Default: no.
    pub fn accept_ssd_loss(mut self, accept: bool) -> Self {
        self.accept_ssd_loss = accept;
        self
    }

    /// Called while a recovery reads the SSD's zone.
    pub fn on_recovery_progress(mut self, report: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(report));
        self
    }
}

impl Builder {
    /// Begins the tenure of an opening.
    fn begin_tenure(&mut self) -> (Arc<Tenure>, Leave) {
        let mut broken = lock::Broken::default();
        #[cfg(feature = "mutations")]
        {
            broken.fence_open = self.mutation == Some(pagetier_ssdcache::Mutation::FenceOpen);
            broken.drain_not_awaited = self.mutation == Some(pagetier_ssdcache::Mutation::DrainNotAwaited);
        }
        let _ = &mut broken;
        let (tenure, leave) = Tenure::new(broken);
        self.tenure = Some(Arc::clone(&tenure));
        (tenure, leave)
    }

    /// What the checksums of the store with this id start from.
    pub(crate) fn seed(&self, store: &str) -> StoreSeed {
        if self.broken().is(Mutation::ChecksumsUnseeded) {
            return StoreSeed::NONE;
        }
        StoreSeed::of_store(open::id_bytes(store))
    }

    /// Which rule of the protocol is left out, if any.
    pub(crate) fn broken(&self) -> Broken {
        Broken(
            #[cfg(feature = "mutations")]
            self.mutation,
        )
    }

    /// The policies of pool and SSD.
    pub(crate) fn policies(&self) -> Result<(PoolPolicy, SsdPolicy), UnknownPolicy> {
        Ok((self.pool_policy.clone()?, self.ssd_policy.clone()?))
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("directory", &self.directory)
            .field("pool_policy", &self.pool_policy)
            .field("ssd_policy", &self.ssd_policy)
            .field("pool_bytes", &self.pool_bytes)
            .field("ssd_bytes", &self.ssd_bytes)
            .finish_non_exhaustive()
    }
}
