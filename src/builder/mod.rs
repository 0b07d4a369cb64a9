//! The options for opening a store; `open` executes them.

mod blank;
mod cache_device;
mod check;
mod commit;
mod kept;
mod loss;
mod open;
mod opening;
mod space_ends;

use crate::lock::{Leave, Tenure};
use crate::memory_manifest::MemoryManifest;
use crate::rules::Rules;
use pagetier_bufpool::LogGate;
use pagetier_devio::{Backend, DirectIo, SharedDevice};
use pagetier_page::{PageSize, StoreSeed};
use pagetier_policy::{CLUSTER_PAGES, Costs, PoolPolicy, SsdPolicy, UnknownPolicy};
use pagetier_ssdcache::{Progress, SsdMode};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The memory budget for a pool policy, in bytes per frame; covers GD2L and its relatives, and, except in
/// small pools, the simulations of the default.
pub(crate) const POOL_POLICY_BYTES: usize = 48;
/// Memory per slot in bytes: its entry, its entry in the page map, the policy's record, and the policy's
/// simulations.
const SLOT_BYTES: u64 = 72 + 24 + 72 + 12;
/// Memory per entry of the outqueue in bytes.
const OUTQUEUE_BYTES: u64 = 72;

/// The maximum length of the moving averages of costs, in points: 256 MiB for the two devices.
pub(crate) const COST_POINTS_MAX: usize = 1 << 24;

/// The memory for an SSD's tables in bytes.
pub(crate) fn tables_bytes(slots: u64, outqueue: u64) -> u64 {
    slots.saturating_mul(SLOT_BYTES).saturating_add(outqueue.saturating_mul(OUTQUEUE_BYTES))
}

/// The default size of the doublewrite ring in pages.
pub(crate) fn ring_pages_for(ssd_bytes: u64, page_size: PageSize) -> u32 {
    (ssd_bytes / page_size.bytes() as u64 / 16).clamp(16, 256) as u32
}

#[cfg(test)]
#[test]
fn the_ring_is_a_sixteenth_of_the_ssd_within_bounds() {
    let pages = |ssd_pages: u64| ring_pages_for(ssd_pages * 4096, PageSize::MIN);
    assert_eq!([0, 16 * 16, 16 * 100, 16 * 256, 1 << 30].map(pages), [16, 16, 100, 256, 256]);
}

/// Where a device is.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// In the store's directory.
    Default,
    Path(PathBuf),
    Device(SharedDevice),
}

/// Options for opening a store with [`Builder::open`].
#[must_use]
pub struct Builder {
    pub(crate) directory: Option<PathBuf>,
    pub(crate) memory: Option<Arc<MemoryManifest>>,
    pub(crate) hdd: Place,
    pub(crate) ssd: Place,
    /// `None`: the default of a new store, and whatever an existing one has.
    pub(crate) ssd_bytes: Option<u64>,
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
    pub(crate) io: Backend,
    pub(crate) direct_io: DirectIo,
    pub(crate) create: bool,
    pub(crate) force: bool,
    gate: Option<Arc<dyn LogGate>>,
    redo_span_max: Option<u64>,
    pub(crate) low_room_bytes: u64,
    ssd_write_budget: Option<u64>,
    exhausted_after: Duration,
    read_ahead: bool,
    progress: Option<Box<dyn Fn(Progress) + Send + Sync>>,
    #[cfg(feature = "mutations")]
    mutation: Option<pagetier_ssdcache::Mutation>,
    pub(crate) ring: Place,
    pub(crate) ssd_mode: SsdMode,
    accept_ssd_loss: bool,
    /// The back end of each device that the opening opened by path, by option.
    served: parking_lot::Mutex<std::collections::BTreeMap<&'static str, String>>,
    /// The pool's policy if it was replaced since the opening.
    pub(crate) switched_pool_policy: parking_lot::Mutex<Option<PoolPolicy>>,
    /// The SSD's policy if it was replaced since the opening.
    pub(crate) switched_ssd_policy: parking_lot::Mutex<Option<SsdPolicy>>,
    /// The SSD and its bytes if it was replaced since the opening.
    pub(crate) replaced_ssd: parking_lot::Mutex<Option<(Place, u64)>>,
    /// The locks of a read-only opening.
    pub(crate) read_locks: crate::lock::ReadLocks,
    /// What the opening holds until the store ends.
    pub(crate) tenure: Option<Arc<Tenure>>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            directory: None,
            memory: None,
            hdd: Place::Default,
            ssd: Place::Default,
            ssd_bytes: None,
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
            low_room_bytes: 256 << 20,
            ssd_write_budget: None,
            exhausted_after: Duration::from_secs(10),
            read_ahead: true,
            progress: None,
            #[cfg(feature = "mutations")]
            mutation: None,
            ring: Place::Default,
            ssd_mode: SsdMode::WriteBack,
            accept_ssd_loss: false,
            served: parking_lot::Mutex::default(),
            switched_pool_policy: parking_lot::Mutex::default(),
            switched_ssd_policy: parking_lot::Mutex::default(),
            replaced_ssd: parking_lot::Mutex::default(),
            read_locks: crate::lock::ReadLocks::default(),
            tenure: None,
        }
    }
}

impl Builder {
    /// The store's directory: manifest, lock, and by default the files of both devices. Required unless the
    /// store is [in memory](Builder::in_memory).
    pub fn directory(mut self, path: impl AsRef<Path>) -> Self {
        self.directory = Some(path.as_ref().to_owned());
        self
    }

    /// Keeps the manifest in `manifest` instead of a directory: for stores on emulated or simulated devices,
    /// which must be given as well.
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

    /// The number of bytes of the SSD to use; 0: no SSD. An existing store keeps its size, and any other
    /// value is [`OpenError::BadOption`](crate::OpenError::BadOption). A store that has no SSD, because it
    /// was created without one or gave it up, opens without one and logs a warning;
    /// [`Ssd::readmit`](crate::Ssd::readmit) puts the SSD of these options into use. Default: 256 MiB for a
    /// new store.
    pub fn ssd_bytes(mut self, bytes: u64) -> Self {
        self.ssd_bytes = Some(bytes);
        self
    }

    /// The number of pages in the doublewrite ring, at most 65,536. An existing store keeps its ring, and
    /// any other value is [`OpenError::BadOption`](crate::OpenError::BadOption). 0 turns the ring off: the
    /// embedder must then repair torn pages on the HDD, and `sync` flushes the HDD. Default: 256, fewer on a
    /// small SSD.
    pub fn ring_pages(mut self, pages: u32) -> Self {
        self.ring_pages = Some(pages);
        self
    }

    /// The store's memory budget in bytes: pages, their metadata, staging copies, the SSD's tables and
    /// outqueue. Default: 64 MiB.
    pub fn pool_bytes(mut self, bytes: u64) -> Self {
        self.pool_bytes = bytes;
        self
    }

    /// The page size of a new store; it must match an existing one. Default: 16 KiB, or the existing store's.
    pub fn page_size(mut self, size: PageSize) -> Self {
        self.page_size = Some(size);
        self
    }

    /// The page size in bytes, checked by [`Builder::open`].
    pub fn page_bytes(mut self, bytes: u64) -> Self {
        self.page_bytes = Some(bytes);
        self
    }

    /// The pool's replacement policy: a value such as [`PoolPolicy::Lru`], or a name such as
    /// `"gd2l:frequency"`. Default: [`PoolPolicy::Auto`]. CASA and GD2L weigh the devices' costs: see
    /// [`Builder::online_costs`]. An unknown name makes [`Builder::open`] fail.
    pub fn pool_policy(mut self, policy: impl TryInto<PoolPolicy, Error: Into<UnknownPolicy>>) -> Self {
        self.pool_policy = policy.try_into().map_err(Into::into);
        self
    }

    /// The SSD's policy: a value such as [`SsdPolicy::Lru2`], or a name such as `"cac:ageing"`. Default:
    /// [`SsdPolicy::Auto`]. The policy may change between openings: the SSD's contents stay in use. An
    /// unknown name makes [`Builder::open`] fail.
    pub fn ssd_policy(mut self, policy: impl TryInto<SsdPolicy, Error: Into<UnknownPolicy>>) -> Self {
        self.ssd_policy = policy.try_into().map_err(Into::into);
        self
    }

    /// Pages per cluster of the pool policies that write in clusters (CFDC, SAWC), and per block of REF:
    /// neighbours in a space, from 1 to 65,536. Default: 64.
    pub fn cluster_pages(mut self, pages: u32) -> Self {
        self.cluster_pages = pages;
        self
    }

    /// The eviction zone in per cent of the SSD's slots, above 0 and up to 100. A recovery reads the zone.
    /// Default: 10.
    pub fn zone_percent(mut self, percent: f64) -> Self {
        self.zone_percent = percent;
        self
    }

    /// Entries of the outqueue. Default: one per slot of the SSD (2013 paper, section 6.1).
    pub fn outqueue(mut self, entries: usize) -> Self {
        self.outqueue = Some(entries);
        self
    }

    /// The width of CAC's subranges, in logical reads per minute. Default: 1 (2013 paper, section 5.2).
    pub fn group_width_per_min(mut self, width: f64) -> Self {
        self.group_width_per_min = width;
        self
    }

    /// The devices' costs. Default: the 2013 paper's (7.2, 4.96, 0.11 and 0.27 ms); [`crate::calibrate`]
    /// measures them.
    pub fn costs(mut self, costs: Costs) -> Self {
        self.costs = Some(costs);
        self
    }

    /// Measures the devices for about `budget` each ([`crate::calibrate`]) when the store is created, unless
    /// [`Builder::costs`] gives their costs. The store keeps the result; an existing store without one
    /// cannot be measured later ([`OpenError::BadOption`](crate::OpenError::BadOption)). Default: off.
    pub fn calibrate(mut self, budget: Duration) -> Self {
        self.calibrate = Some(budget);
        self
    }

    /// Measures the devices while the store runs and passes the costs to the policies once a second. A cost
    /// is the moving average over the last `points` page reads or writes of a device ([`crate::COST_POINTS`]
    /// in the paper: Ou et al., section 3.2.2). The pages of a merged write share its time; operations longer
    /// than 65 ms are ignored. Until there are enough samples of a kind, [`Builder::costs`] or the
    /// calibration's result counts. Each point takes 16 bytes of memory; the maximum is 2^24 points. Default:
    /// off, so that a policy which weighs reads against writes (CASA, CAC, GD2L) uses the costs that it was
    /// opened with.
    pub fn online_costs(mut self, points: usize) -> Self {
        self.cost_points = Some(points.max(1));
        self
    }

    /// The I/O backend for files. Default: io_uring where available.
    pub fn io(mut self, backend: Backend) -> Self {
        self.io = backend;
        self
    }

    /// Whether to bypass the system's page cache. Default: where the file system supports it.
    pub fn direct_io(mut self, direct: DirectIo) -> Self {
        self.direct_io = direct;
        self
    }

    /// Whether to create a store that does not exist. Default: yes.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Whether a new store may overwrite data on a device, or another store's device. Without it, a device
    /// must be zero where file systems, arrays and partition tables keep their labels: its first and last
    /// MiB, and btrfs' inner copies. A block device that is mounted or otherwise in use is always refused.
    /// Default: no.
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// The embedder's log. The store asks it to be durable up to a page's LSN before it writes the page
    /// anywhere.
    pub fn log_gate(mut self, gate: Arc<dyn LogGate>) -> Self {
        self.gate = Some(gate);
        self
    }

    /// The maximum span of log, in LSN units, that redo may have to process; the store writes out older
    /// changes. Default: unbounded.
    pub fn redo_span_max(mut self, span: u64) -> Self {
        self.redo_span_max = Some(span);
        self
    }

    /// How many bytes may be written to the SSD per day: see
    /// [`Ssd::set_write_budget`](crate::Ssd::set_write_budget). Default: any number.
    pub fn ssd_write_budget(mut self, bytes_per_day: u64) -> Self {
        self.ssd_write_budget = Some(bytes_per_day);
        self
    }

    /// Room is low, and an alarm, when a file system with a file of the store has less than `bytes` free; for
    /// new pages the free part of the HDD counts too. The log tells when room becomes low at an opening or a
    /// growth, and [`Stats::room`](crate::Stats::room) at any time. 0: no alarms. Default: 256 MiB.
    pub fn low_room(mut self, bytes: u64) -> Self {
        self.low_room_bytes = bytes;
        self
    }

    /// How long a request waits for a frame when all are pinned or dirty before it fails. Default: 10 s.
    pub fn exhausted_after(mut self, wait: Duration) -> Self {
        self.exhausted_after = wait;
        self
    }

    /// Whether to detect sequential access and read ahead. Default: yes.
    pub fn read_ahead(mut self, on: bool) -> Self {
        self.read_ahead = on;
        self
    }

    /// Test-only: disables a rule of the protocol.
    #[cfg(feature = "mutations")]
    #[doc(hidden)]
    pub fn mutation(mut self, rule: Option<pagetier_ssdcache::Mutation>) -> Self {
        self.mutation = rule;
        self
    }

    /// A ready-made device for the doublewrite ring while the store has no SSD. Default: the file `ring` in
    /// the directory. A store without a directory keeps the ring in memory: it does not outlive the process,
    /// and if such a store has an SSD, it does not switch to operation without the SSD by itself.
    pub fn ring_device(mut self, device: SharedDevice) -> Self {
        self.ring = Place::Device(device);
        self
    }

    /// The initial mode of the SSD; [`crate::Ssd::set_mode`] changes it later. [`SsdMode::Off`] is
    /// refused here: open the store without an SSD, or switch the SSD off once the store is open. Default:
    /// [`SsdMode::WriteBack`].
    pub fn ssd_mode(mut self, mode: SsdMode) -> Self {
        self.ssd_mode = mode;
        self
    }

    /// Whether the store may open without its SSD (`ssd_bytes(0)`), or with a blank one or an older copy in
    /// its place, although the lost SSD may have held newer pages than the HDD; an older copy is formatted.
    /// The same holds for the ring's file of a store without an SSD. [`crate::Ssd::loss`] then
    /// lists the pages, in later openings too. If the store's own SSD is present, nothing is lost. If that
    /// SSD has unreadable blocks and opening fails with [`pagetier_ssdcache::OpenError::Unreadable`], leave
    /// it out or put a blank one in its place to give it up. Default: no.
    pub fn accept_ssd_loss(mut self, accept: bool) -> Self {
        self.accept_ssd_loss = accept;
        self
    }

    /// Calls `report` while a recovery reads the SSD's zone.
    pub fn on_recovery_progress(mut self, report: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(report));
        self
    }
}

impl Builder {
    /// Begins the tenure of an opening.
    fn begin_tenure(&mut self) -> (Arc<Tenure>, Leave) {
        let (tenure, leave) = Tenure::new(self.rules());
        self.tenure = Some(Arc::clone(&tenure));
        (tenure, leave)
    }

    /// The seed of all checksums in the store with this id.
    pub(crate) fn seed(&self, store: &str) -> StoreSeed {
        self.rules().seed(StoreSeed::of_store(crate::id::id_bytes(store)))
    }

    /// The bytes of the SSD to use.
    pub(crate) fn ssd_size(&self) -> u64 {
        self.ssd_bytes.unwrap_or(256 << 20)
    }

    /// The rules of the protocol in force.
    pub(crate) fn rules(&self) -> Rules {
        Rules(pagetier_ssdcache::Rules(
            #[cfg(feature = "mutations")]
            self.mutation,
        ))
    }

    /// The policies of pool and SSD.
    pub(crate) fn policies(&self) -> Result<(PoolPolicy, SsdPolicy), UnknownPolicy> {
        Ok((self.pool_policy.clone()?, self.ssd_policy.clone()?))
    }

    /// The SSD's policy: the one that it was switched to, or that of the options.
    pub(crate) fn ssd_policy_in_use(&self) -> Result<SsdPolicy, UnknownPolicy> {
        let switched = *self.switched_ssd_policy.lock();
        switched.map_or_else(|| self.ssd_policy.clone(), Ok)
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
