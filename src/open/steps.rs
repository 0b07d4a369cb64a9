//! Opens a store: the checks, and the order in which the store becomes usable.

use super::check::MANIFEST;
use crate::config::builder::Builder;
use crate::config::choices::{CostSource, OnHdd, Place};
use crate::config::sizes::{COST_POINTS_MAX, RING_PAGES, pool_for, ring_pages_for, tables_bytes};
use crate::config::store_config::Config;
use crate::error::OpenError;
use crate::manifest::areas::Areas;
use crate::manifest::changes::Change;
use crate::manifest::contents::Manifest;
use crate::manifest::file::{FILE, SPARE};
use crate::manifest::id::{id_text, new_id};
use crate::manifest::manifest_store::ManifestStore;
use crate::manifest::medium::Medium;
use crate::manifest::saver::{Saver, in_thread};
use crate::manifest::superblock::{AREA_BYTES_MAX, AREA_UNIT};
use crate::ownership::gate::Gate;
use crate::ownership::held_dir::HeldDir;
use crate::ownership::lock::{Leave, Ownership};
use crate::store::devices::Devices;
use crate::store::lease::{Lease, Owner};
use crate::store::page_store::PageStore;
use crate::store::record::manifest_state::ManifestState;
use crate::store::record::unverified::InManifest;
use crate::store::shared::Shared;
use crate::volume::table::{SpaceInfo, Volume};
use pagetier_bufpool::{Pool, PoolParams};
use pagetier_devio::files::{RealDir, create_durably};
use pagetier_devio::task::Boxed;
use pagetier_devio::{
    DeviceError, DeviceErrorKind, IoOp, Joint, Kept, MemoryDevice, OpenOptions, Reap, SharedDevice,
};
use pagetier_page::PageSize;
use pagetier_policy::{Costs, FramePolicyParams, SlotPolicyParams};
use pagetier_ssdcache::{Layout, OpenParams, RING_PAGES_MAX, SsdMode, SsdTier};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// The shortest lease in milliseconds: its renewals are reads of the HDD.
const LEASE_MS_MIN: u64 = 100;

/// The lease on a device that other machines may take over, unless the options name another.
const LEASE_MS: u64 = 10_000;

/// How long a failed open waits for its operations in flight.
const LEAVE_MAX: Duration = Duration::from_secs(30);

impl Builder {
    /// Opens the store, or creates it.
    ///
    /// After a crash this recovers the SSD's map from the last checkpoint and the eviction zone, and repairs
    /// torn pages. Dropping the future is equivalent to a crash, and safe. Waits up to 30 s for the locks of
    /// a store that was dropped or whose process died; a store in use is an error at once. The locks do not
    /// cover the embedder's log: see [`Builder::log_gate`].
    ///
    /// An engine with a log then redoes it before anything else reads a page:
    /// [`guide`](crate::guide#write-a-log-yourself) has the order.
    ///
    /// # Errors
    /// [`OpenError`], which names the fault and the remedy. An open that is refused changes nothing on
    /// disk: it removes the directory and the files that it created.
    ///
    /// # Panics
    /// Outside a tokio runtime, or in one without timers: use `enable_all()`. The store's tasks and
    /// completions run on that runtime, which must keep running while other runtimes use the store. A thread
    /// reaps completions where the runtime's I/O is not enabled, and in programs built with `panic =
    /// "abort"`.
    pub async fn open(mut self) -> Result<PageStore, OpenError> {
        self.check_options()?;
        self.config.hold_directories()?;
        // From here on whatever ends this future, a failure or the caller, releases the locks by dropping
        // `leave`.
        let (ownership, leave) = Ownership::new(std::mem::take(&mut self.read_locks));
        let left = ownership.left();
        let opened = self.open_for(ownership, leave).await;
        if opened.is_err() {
            // Wait until nothing of the failed open is left to block the next one.
            let _ = tokio::time::timeout(LEAVE_MAX, left).await;
        }
        opened
    }

    /// Opens the store for the ownership that `leave` ends.
    fn open_for(
        self,
        ownership: Arc<Ownership>,
        leave: Leave,
    ) -> Boxed<'static, Result<PageStore, OpenError>> {
        Box::pin(self.open_places(ownership, leave))
    }

    async fn open_places(self, ownership: Arc<Ownership>, leave: Leave) -> Result<PageStore, OpenError> {
        let Builder { mut config, gate, progress, .. } = self;
        let in_directory = config.manifest_store(&ownership).await?;
        let config = Arc::new(config);
        let devices = Devices::new(Arc::clone(&config), Arc::clone(&ownership));
        let (manifests, hdd) = match in_directory {
            Some(manifests) => (Arc::new(manifests), None),
            None => devices.open_hdd_with_manifest().await?,
        };
        let (unused, known) = config.load(&manifests).await?;
        let page_size = config.settle_page_size(known.as_ref())?;
        // Opened and locked before anything is judged: another opener could otherwise change what we judge.
        let hdd = devices.open_hdd(hdd).await?;
        let fresh = known.is_none();
        let ring = || manifests.areas_end().map(|at| (at, config.ring_pages_on_hdd(page_size)));
        let manifest = known.unwrap_or_else(|| first_manifest(unused, page_size, ring()));
        devices.find_ring(&manifest, &hdd)?;
        let (ssd, alone) = devices.open_ssd(Some(&manifest).filter(|_| !fresh), page_size).await?;
        config.check_known(&manifest, known_costs(&manifest).is_some())?;
        config.warn_of_unused_ssd(fresh, &manifest);
        config.check_hdd(&hdd, &manifest, fresh).await?;
        // Nothing is written up to `commit`: a refused open leaves everything as it was.
        let prepared = config.check_ssd(&ssd, &manifest, page_size, fresh, alone).await?;
        let ssd = devices.take_ssd(ssd, &prepared.layout);
        let lost = config.what_is_lost(&manifest, &prepared);
        config.check_log(gate.as_deref(), &manifest, lost.as_ref())?;
        // Check the pool before the manifest is saved: one too small must refuse the open, not cut it short.
        let params = config.pool_params(page_size, &prepared.layout)?;
        let was_clean = manifest.is_clean();
        let mut meta =
            config.commit(&manifests, &ownership, manifest, lost, (&hdd, &ssd), &prepared, page_size).await?;
        let (volume, counted) = volume_of(&meta.manifest, page_size, was_clean);
        let costs =
            config.options.costs.named().or_else(|| known_costs(&meta.manifest)).unwrap_or(Costs::PAPER);
        let slots = prepared.layout.slots as usize;
        let ssd_params = SlotPolicyParams::new(costs, slots, params.frames);
        let seed = config.seed(&meta.manifest.store);
        let opening = OpenParams {
            hdd: Arc::clone(&hdd),
            ssd: Arc::clone(&ssd),
            seed,
            layout: prepared.layout,
            ring_on_hdd: devices.hdd_ring.get().is_some(),
            homes: Arc::clone(&volume) as Arc<dyn pagetier_ssdcache::Homes>,
            policy: config.options.ssd_policy.build(&ssd_params),
            zone_percent: config.options.ssd_policy.zone().get(),
            epoch: meta.manifest.epoch,
            admissions_max: (params.frames / 64).clamp(2, 64),
            mode: config.options.ssd_mode,
            closed: was_clean,
            remember: InManifest::of(&manifests, &ownership),
            progress,
            #[cfg(feature = "probes")]
            map_piece: config.map_piece,
        };
        let tier = Arc::new(SsdTier::open(opening).await?);
        end_drops(&volume, &mut meta)?;
        if !was_clean {
            // Now recovery has told which pages the SSD has, and the true ends can be found (I23).
            config.find_space_ends(&volume, &counted, &tier, &hdd, page_size, seed).await?;
        }
        let lease = config.lease(&manifests, &hdd, &meta, &ownership).await?;
        let policy = config.options.pool_policy.build(&FramePolicyParams::new(params.frames, costs));
        let gate = Gate::new(gate, ownership.present());
        let pool = Pool::start(params, policy, Arc::clone(&tier), Some(Arc::clone(&gate) as _))?;
        tier.set_redo_from(Box::new(pool.redo_source()));
        let shared = Shared::start(pool, tier, volume, meta, hdd, devices, costs, gate, lease);
        shared.log_opening();
        Ok(PageStore::new(leave, shared))
    }

    fn check_manifest_place(&self) -> Result<(), OpenError> {
        let bad = |why| Err(OpenError::BadOption { option: MANIFEST, why });
        let Some(OnHdd { bytes_max: bytes, lease_ms }) = self.config.options.manifest.on_hdd() else {
            return Ok(());
        };
        if !(4 * AREA_UNIT..=AREA_BYTES_MAX).contains(&bytes) || !bytes.is_multiple_of(AREA_UNIT) {
            let (from, to) = (4 * AREA_UNIT, AREA_BYTES_MAX);
            return bad(format!("bytes_max: {bytes} is not a multiple of {AREA_UNIT} from {from} to {to}"));
        }
        if let Some(length) = lease_ms.filter(|length| (1..LEASE_MS_MIN).contains(length)) {
            return bad(format!("lease_ms: {length} is neither 0 nor at least {LEASE_MS_MIN}"));
        }
        if self.config.memory.is_some() {
            return bad("the store has a manifest in memory".into());
        }
        Ok(())
    }

    fn check_options(&self) -> Result<(), OpenError> {
        let options = &self.config.options;
        // Check all options before the first lock: a wrong one must not even create the directory.
        options.page_bytes.map(PageSize::new).transpose()?;
        self.check_policies()?;
        let bad = |option, why: String| Err(OpenError::BadOption { option, why });
        if options.costs.named().is_some_and(|costs| !costs.is_valid()) {
            return bad("costs", "every cost must be a positive number of milliseconds".into());
        }
        if matches!(options.costs, CostSource::Online { points, .. } if points > COST_POINTS_MAX) {
            return bad("costs", format!("at most {COST_POINTS_MAX} points"));
        }
        if options.ring_pages.is_some_and(|pages| pages > RING_PAGES_MAX) {
            return bad("ring_pages", format!("at most {RING_PAGES_MAX}"));
        }
        if options.ssd_mode == SsdMode::Off {
            return bad(
                "ssd_mode",
                "open the store in another mode and switch the SSD off afterwards".into(),
            );
        }
        self.check_manifest_place()?;
        if self.config.memory.is_some() && self.config.hdd_device.is_none() {
            return bad("in_memory", "a store in memory needs its HDD as a ready-made device".into());
        }
        self.config.refuse_same_devices()
    }
}

impl Devices {
    /// Opens the HDD, which has the store's manifest at its head. Returns both, the HDD as
    /// [`Self::open_place`] does.
    async fn open_hdd_with_manifest(&self) -> Result<(Arc<ManifestStore>, Option<SharedDevice>), OpenError> {
        let OnHdd { bytes_max, .. } = self.config.options.manifest.on_hdd().unwrap_or_default();
        let create = self.config.creates();
        let hdd = self.open_own(&self.config.hdd_place(), "hdd.vol", "hdd", create).await?;
        let joint = Joint::of(hdd);
        // The manifest is not behind the fence: a save keeps the locks until it ends, and a failed flush must
        // be recorded even when the store was dropped meanwhile (I14). No save begins after the drop (I18).
        let hdd = self.ownership.guard_joint(&joint);
        let claim = hdd.claim().unwrap_or_default();
        let areas = Areas::new(Medium::Hdd(joint, claim), bytes_max);
        Ok((Arc::new(ManifestStore::areas(areas, Saver::of_tasks(Handle::current()))), Some(hdd)))
    }

    /// The HDD, unless it is open already.
    async fn open_hdd(&self, hdd: Option<SharedDevice>) -> Result<SharedDevice, OpenError> {
        match hdd {
            Some(hdd) => Ok(hdd),
            None => {
                let create = self.config.creates();
                self.open_place(&self.config.hdd_place(), "hdd.vol", "hdd", create).await
            }
        }
    }

    /// Opens the device of `option`; with `create`, makes a file that does not exist. Returns it behind this
    /// open's fence from its first use on: a dropped open must not write either (I18).
    pub(crate) async fn open_place(
        &self,
        place: &Place,
        default: &str,
        option: &'static str,
        create: bool,
    ) -> Result<SharedDevice, OpenError> {
        self.open_own(place, default, option, create).await.map(|device| self.ownership.guard(device))
    }

    /// Opens the device and takes it exclusively.
    async fn open_own(
        &self,
        place: &Place,
        default: &str,
        option: &'static str,
        create: bool,
    ) -> Result<SharedDevice, OpenError> {
        if let Place::Device(device) = place {
            self.ownership.take(device, None).await?;
            return Ok(Arc::clone(device));
        }
        let Some(at) = self.config.at(place, default) else {
            let why = "a store without a directory needs a path or a ready-made device".into();
            return Err(OpenError::BadOption { option, why });
        };
        // Compare before locking: a file that is given twice would be locked against itself, and reported as
        // in use by another store.
        self.in_use.lock().used.refuse_twice(&at, option)?;
        let options = OpenOptions {
            direct: self.config.options.direct_io,
            backend: self.config.options.io,
            create,
            reap: Reap::Reactor,
            kept: Some(Arc::new(self.ownership.present()) as Kept),
            ..OpenOptions::default()
        };
        // Open on a thread of its own: a file system may take as long as it likes, and a running store
        // continues while its SSD is replaced.
        let (ownership, place, runtime) = (Arc::clone(&self.ownership), at.clone(), Handle::current());
        let opening = move || {
            // Its reactor reaps the device's completions.
            let _in = runtime.enter();
            let opened = place.open_device(&options);
            if opened.as_ref().is_ok_and(|opened| opened.created) {
                // If the open is refused, or dropped meanwhile, its empty file goes again.
                ownership.created_file(&place);
            }
            opened
        };
        let opened = in_thread(opening).await.unwrap_or_else(|| {
            let kind = DeviceErrorKind::Unusable("opening it panicked".into());
            let device = Arc::from(at.shown.display().to_string());
            Err(DeviceError { device, op: IoOp::Open, offset: 0, len: 0, kind }.into())
        })?;
        self.note_opened(option, &opened);
        if !opened.block_device {
            self.config.check_file_system(option, &at.shown, at.file_system());
        }
        self.ownership.take(&opened.device, Some(&at)).await?;
        self.in_use.lock().used.note(&at, option);
        Ok(opened.device)
    }

    /// The SSD, or the ring of a store without one; and whether it is the ring.
    async fn open_ssd(
        &self,
        known: Option<&Manifest>,
        page_size: PageSize,
    ) -> Result<(SharedDevice, bool), OpenError> {
        // A new store follows the options, an existing one its manifest: `ssd_bytes(0)` does not silently
        // leave out an SSD that may hold newer pages.
        let mut without = known.map_or(self.config.ssd_size() == 0, |m| m.ssd.is_none());
        if let Some(known) = known.filter(|m| m.ssd.is_some() && self.config.ssd_size() == 0) {
            if !self.config.options.accept_ssd_loss {
                return Err(known.ssd_missing("is not given".into(), ""));
            }
            without = true;
        }
        if without {
            // The ring takes the place of an SSD that is given up.
            let given_up = known.is_some_and(|manifest| manifest.ssd.is_some());
            self.open_ring(self.config.creates() || given_up, page_size).await.map(|ring| (ring, true))
        } else {
            // One that is given up may be gone, and a blank one takes its place.
            let create = self.config.creates() || self.config.options.accept_ssd_loss;
            if let (Some(known), Some(path), false) = (known, self.config.missing_ssd(), create) {
                let path = path.display().to_string();
                return Err(known.ssd_missing(format!("is missing ({path})"), &path));
            }
            let ssd = self.open_place(&self.config.ssd_place(), "ssd.cache", "ssd", create).await;
            ssd.map(|ssd| (ssd, false))
        }
    }

    /// The device for the ring of a store without an SSD; with `create`, makes a file that does not exist.
    pub(crate) async fn open_ring(
        &self,
        create: bool,
        page_size: PageSize,
    ) -> Result<SharedDevice, OpenError> {
        if let Some(ring) = self.hdd_ring.get() {
            return Ok(ring.alone(page_size));
        }
        if self.config.memory.is_some() && self.config.ring_device.is_none() {
            // A store in memory has no place for a file. Its ring ends with the process, as its manifest
            // does.
            let ring: SharedDevice = Arc::new(MemoryDevice::new("ring", 0));
            self.ownership.take(&ring, None).await?;
            return Ok(self.ownership.guard(ring));
        }
        self.open_place(&self.config.ring_place(), "ring", "ring_device", create).await
    }
}

impl Config {
    /// A store keeps to its manifest: an SSD that only the options name is not put into use by itself.
    fn warn_of_unused_ssd(&self, fresh: bool, manifest: &Manifest) {
        if !fresh && manifest.ssd.is_none() && self.names_ssd() {
            tracing::warn!(
                "the store has no SSD; `ssd().readmit()` puts the one that the options name into use"
            );
        }
    }

    /// The manifest that an unfinished first open left, or else that of an existing store.
    async fn load(
        &self,
        manifests: &ManifestStore,
    ) -> Result<(Option<Manifest>, Option<Manifest>), OpenError> {
        match manifests.load().await? {
            Some(manifest) if !manifest.is_unused() && !self.starts_over => Ok((None, Some(manifest))),
            // Only a restoration's own directory is known to have nothing but what it began.
            Some(manifest) if !manifest.is_unused() && self.options.manifest.is_on_hdd() => {
                let why =
                    format!("the HDD has the store {}; name another, or blank its first MiB", manifest.store);
                Err(OpenError::BadOption { option: "hdd", why })
            }
            // A first open that a crash cut short begins again under the same id, which its devices may
            // bear already.
            unused if self.creates() => Ok((unused, None)),
            None => Err(self.no_manifest()),
            Some(_) => Err(self.not_found()),
        }
    }

    pub(crate) fn not_found(&self) -> OpenError {
        OpenError::NotFound { path: self.options.directory.clone().unwrap_or_default() }
    }

    /// There is no manifest: there is no store, or its manifest is missing.
    pub(crate) fn no_manifest(&self) -> OpenError {
        match &self.held {
            Some(_) if self.has_parts() => self.manifest_missing(),
            _ => self.not_found(),
        }
    }

    pub(super) fn manifest_missing(&self) -> OpenError {
        OpenError::ManifestMissing { path: self.options.directory.clone().unwrap_or_default() }
    }

    /// Whether the directory, which has no manifest, holds parts of a store that had one.
    pub(super) fn has_parts(&self) -> bool {
        self.has_data("hdd.vol") || self.has_data(SPARE)
    }

    /// Whether the directory has a file of that name with data: one of zero bytes is what a refused open
    /// may leave.
    pub(super) fn has_data(&self, name: &str) -> bool {
        self.held.as_ref().is_some_and(|held| held.size_of(name).is_ok_and(|bytes| bytes > 0))
    }

    /// Refuses a ready-made device that is given twice.
    fn refuse_same_devices(&self) -> Result<(), OpenError> {
        // With `ssd_bytes(0)` the SSD is not used, so it may be the ring's device.
        let ssd = self.ssd_device.as_ref().filter(|_| self.ssd_size() > 0);
        let given =
            [("hdd", self.hdd_device.as_ref()), ("ssd", ssd), ("ring_device", self.ring_device.as_ref())];
        for (nth, (other, first)) in given.iter().enumerate() {
            for (option, second) in &given[nth + 1..] {
                if let (Some(first), Some(second)) = (first, second)
                    && std::ptr::eq(first.occupancy(), second.occupancy())
                {
                    return Err(OpenError::SameDevice { device: second.name().into(), option, other });
                }
            }
        }
        Ok(())
    }

    /// Locates the manifest and locks it against other openers. `None`: it is on the HDD, which has a lock of
    /// its own.
    async fn manifest_store(&mut self, ownership: &Ownership) -> Result<Option<ManifestStore>, OpenError> {
        if let Some(cell) = &self.memory {
            if let Some(hdd) = &self.hdd_device {
                // There is no directory to lock. The HDD stands for the store: a second opener needs it, too.
                ownership.take(hdd, None).await?;
            }
            return Ok(Some(ManifestStore::memory(Arc::clone(cell))));
        }
        if self.options.directory.is_none() {
            if self.options.manifest.is_on_hdd() {
                return Ok(None);
            }
            return Err(OpenError::BadOption {
                option: "directory",
                why: "a store needs a directory, or to have its manifest on the HDD or in memory".into(),
            });
        }
        let held = self.held_directory(ownership)?;
        // Look for a manifest before anything is written: the lock is a file.
        let found = held.identity_of(FILE);
        if self.options.manifest.is_on_hdd() {
            if !matches!(found, Ok(None)) {
                return Err(OpenError::BadOption {
                    option: MANIFEST,
                    why: "the directory has a manifest".into(),
                });
            }
        } else if !self.creates() && matches!(found, Ok(None)) {
            return Err(self.no_manifest());
        }
        ownership.lock_directory(&held).await?;
        self.check_file_system("directory", held.path(), held.file_system());
        self.warn_of_system();
        let in_directory = !self.options.manifest.is_on_hdd();
        Ok(in_directory.then(|| ManifestStore::areas(Areas::in_directory(held), self.saver())))
    }

    /// The store's directory, which is created if it does not exist.
    fn held_directory(&mut self, ownership: &Ownership) -> Result<Arc<HeldDir>, OpenError> {
        let path = self.options.directory.clone().unwrap_or_default();
        let failed = |e| OpenError::directory(&path, "cannot be created", e);
        // A killed open may have made the directory, and left its name volatile.
        let is_complete = |held: &Arc<HeldDir>| matches!(held.identity_of(FILE), Ok(Some(_)));
        // With the manifest on the HDD, the directory has nothing that the machine before this one had.
        let create = self.creates() || self.options.manifest.is_on_hdd();
        if !create || self.held.as_ref().is_some_and(is_complete) {
            return self.held.clone().ok_or_else(|| self.not_found());
        }
        // Durably, with its parents: the manifest is of no use in a directory that a crash takes away.
        ownership.created_directories(create_durably(&RealDir::working(), &path).map_err(failed)?);
        if self.held.is_none() {
            self.held = Some(HeldDir::open(&path).map_err(failed)?);
        }
        self.held.clone().ok_or_else(|| self.not_found())
    }

    /// What saves the manifest in a directory.
    fn saver(&self) -> Saver {
        let saver = Saver::of_threads(Handle::current());
        #[cfg(feature = "probes")]
        let saver = saver.probed(self.before_saves.clone());
        saver
    }

    fn settle_page_size(&self, known: Option<&Manifest>) -> Result<PageSize, OpenError> {
        let asked = self.options.page_bytes;
        match known.map(|manifest| manifest.page_bytes) {
            Some(store) => match asked.filter(|asked| *asked != store) {
                Some(asked) => Err(OpenError::OtherPageSize { store, asked }),
                None => Ok(PageSize::new(store)?),
            },
            None => Ok(asked.map(PageSize::new).transpose()?.unwrap_or_default()),
        }
    }

    /// The layout of the SSD that the options name, with `ring_pages` if they are known.
    pub(super) fn layout(&self, page_size: PageSize, ring_pages: Option<u32>) -> Result<Layout, OpenError> {
        self.layout_of(self.ssd_size(), page_size, ring_pages)
    }

    /// The layout of an SSD of `bytes`.
    pub(crate) fn layout_of(
        &self,
        bytes: u64,
        page_size: PageSize,
        ring_pages: Option<u32>,
    ) -> Result<Layout, OpenError> {
        let ring_pages = ring_pages.or(self.options.ring_pages);
        if bytes == 0 {
            return Ok(Layout::ring_only(page_size, ring_pages.unwrap_or(RING_PAGES)));
        }
        let ring = ring_pages.unwrap_or_else(|| ring_pages_for(bytes, page_size));
        Ok(Layout::for_bytes(bytes, page_size, ring)?)
    }

    /// Begins the lease of a store that another machine can open.
    async fn lease(
        &self,
        manifests: &ManifestStore,
        hdd: &SharedDevice,
        meta: &ManifestState,
        ownership: &Ownership,
    ) -> Result<Option<Lease>, DeviceError> {
        let Some(device) = manifests.volume_device() else { return Ok(None) };
        let asked = self.options.manifest.on_hdd().and_then(|on_hdd| on_hdd.lease_ms);
        // A device that knows of no other owners, such as a disk of this machine, gets a lease if it is asked
        // for.
        let usual = if device.claim().is_some() { LEASE_MS } else { 0 };
        let length = Duration::from_millis(asked.unwrap_or(usual));
        if length.is_zero() {
            return Ok(None);
        }
        let Manifest { store, epoch, .. } = &meta.manifest;
        let claim = hdd.claim().unwrap_or_default();
        let owner = Owner { device: Arc::clone(device), claim, store: store.clone(), epoch: *epoch };
        Lease::begin(owner, length, ownership.present()).await.map(Some)
    }

    fn pool_params(&self, page_size: PageSize, layout: &Layout) -> Result<PoolParams, OpenError> {
        let slots = u64::from(layout.slots);
        let tables = tables_bytes(slots, self.options.ssd_policy.outqueue_entries(slots));
        let mut params = pool_for(self.options.pool_bytes, tables, page_size)?;
        params.redo_span_max = self.options.redo_span_max;
        params.exhausted_after = Duration::from_millis(self.options.exhausted_after_ms);
        if !self.options.read_ahead {
            params.read_ahead_pages = 0;
        }
        Ok(params)
    }
}

/// The costs that a calibration recorded in the manifest.
fn known_costs(manifest: &Manifest) -> Option<Costs> {
    let ms = manifest.costs_ms.as_ref()?;
    // Costs that cannot be read are as good as none: the paper's apply.
    let all: Vec<f64> = ms.iter().filter_map(|text| text.parse().ok()).collect();
    let [hdd_read_ms, hdd_write_ms, ssd_read_ms, ssd_write_ms] = all.try_into().ok()?;
    Some(Costs { hdd_read_ms, hdd_write_ms, ssd_read_ms, ssd_write_ms }).filter(Costs::is_valid)
}

/// The manifest of a new store; `ring`: where on the HDD its ring is, and the ring's pages.
fn first_manifest(unused: Option<Manifest>, page_size: PageSize, ring: Option<(u64, u32)>) -> Manifest {
    let mut manifest = match unused {
        // An earlier open that did not complete may have written this id to the devices. Its stamps are
        // older than those of the next epoch.
        Some(Manifest { store, epoch, generation, .. }) => {
            Manifest { epoch, generation, ..Manifest::new(store, page_size) }
        }
        None => Manifest::new(id_text(new_id()), page_size),
    };
    if let Some((at, pages)) = ring {
        manifest.place_ring(at, page_size, pages);
    }
    manifest
}

/// Completes the drops of spaces that an earlier process began.
fn end_drops(volume: &Volume, meta: &mut ManifestState) -> Result<(), OpenError> {
    // Recovery has left no write to them in flight, and its checkpoint names none of their pages. The record
    // may wait for the next save: until then, every open comes to the same result.
    for space in volume.dropping() {
        let mut ended = Ok(());
        meta.change_in_memory(|manifest| ended = manifest.apply(&Change::EndDrop { space: space.0 }));
        ended.map_err(|why| OpenError::BadManifest { why: why.to_owned() })?;
        volume.end_drop(space);
    }
    Ok(())
}

/// The volume, and its spaces as the manifest counts their pages. `was_clean`: it counts them exactly.
fn volume_of(manifest: &Manifest, page_size: PageSize, was_clean: bool) -> (Arc<Volume>, Vec<SpaceInfo>) {
    let volume = Arc::new(Volume::new(manifest, page_size));
    let counted = volume.list();
    if !was_clean {
        count_all_reserved(&volume, &counted);
    }
    (volume, counted)
}

/// Counts every page that the extents hold. The manifest's counts may be too small after a crash, and
/// recovery would take pages beyond them for pages that do not exist.
fn count_all_reserved(volume: &Volume, spaces: &[SpaceInfo]) {
    for space in spaces {
        volume.set_pages(space.id, volume.reserved(space.id).min(u64::from(u32::MAX)) as u32);
    }
}
