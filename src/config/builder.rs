//! The options for opening a store; `open` executes them.

use super::options::{Options, option_table};
use crate::error::OpenError;
use crate::manifest::memory::MemoryManifest;
use crate::seam::Seam;
use crate::tenure::held_dir::{At, HeldDir, Identity};
use crate::tenure::lock::{ReadLocks, Tenure};
use pagetier_bufpool::LogGate;
use pagetier_devio::{Backend, DirectIo, SharedDevice};
use pagetier_page::{PageSize, StoreSeed};
use pagetier_policy::{Costs, PoolPolicy, SsdPolicy, UnknownPolicy};
use pagetier_ssdcache::{RecoveryProgress, SsdMode};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// In the store's directory, under the option's default name.
    Default,
    Path(PathBuf),
    Device(SharedDevice),
}

impl Place {
    fn of(device: Option<&SharedDevice>, path: Option<&PathBuf>) -> Self {
        match (device, path) {
            (Some(device), _) => Self::Device(Arc::clone(device)),
            (None, Some(path)) => Self::Path(path.clone()),
            (None, None) => Self::Default,
        }
    }
}

/// Options for opening a store with [`Builder::open`]: [`Options`], and what is not plain data.
///
/// ```no_run
/// # async fn open() -> Result<(), pagetier::OpenError> {
/// use pagetier::{Builder, PageSize, PageStore, PoolPolicy};
///
/// let builder = PageStore::builder()
///     .directory("/var/lib/db")
///     .hdd("/dev/sdb")
///     .ssd("/dev/nvme0n1")
///     .ssd_bytes(100 << 30)
///     .pool_bytes(8 << 30)
///     .page_size(PageSize::DEFAULT)
///     .pool_policy(PoolPolicy::Auto);
/// // Options are plain data: another store with the same ones, on files in its directory.
/// let mut options = builder.options().clone();
/// (options.hdd, options.ssd) = (None, None);
/// let other = Builder::from_options(options).directory("/var/lib/other").open().await?;
/// let store = builder.open().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
#[must_use]
pub struct Builder {
    pub(crate) options: Options,
    /// The unknown names that were set as policies of the pool and the SSD.
    unknown_policies: [Option<UnknownPolicy>; 2],
    pub(crate) memory: Option<Arc<MemoryManifest>>,
    pub(crate) hdd_device: Option<SharedDevice>,
    pub(crate) ssd_device: Option<SharedDevice>,
    pub(crate) ring_device: Option<SharedDevice>,
    pub(crate) gate: Option<Arc<dyn LogGate>>,
    pub(crate) progress: Option<Box<dyn Fn(RecoveryProgress) + Send + Sync>>,
    #[cfg(feature = "mutations")]
    pub(crate) mutation: Option<pagetier_ssdcache::Mutation>,
    /// The I/O backend chosen for each device path, keyed by option name.
    pub(crate) served: parking_lot::Mutex<std::collections::BTreeMap<&'static str, String>>,
    /// The pool's policy if it was replaced since the opening.
    pub(crate) switched_pool_policy: parking_lot::Mutex<Option<PoolPolicy>>,
    /// The SSD's policy if it was replaced since the opening.
    pub(crate) switched_ssd_policy: parking_lot::Mutex<Option<SsdPolicy>>,
    /// The SSD and its bytes if it was replaced since the opening.
    pub(crate) replaced_ssd: parking_lot::Mutex<Option<(Place, u64)>>,
    /// Whether the store is opened for reading only.
    pub(crate) read_only: bool,
    /// The store's directory, from the opening on.
    pub(crate) held: Option<Arc<HeldDir>>,
    /// The working directory at the opening: relative paths of the options lead from it.
    working: Option<Arc<HeldDir>>,
    /// The file or block device of each option that the store uses.
    used: parking_lot::Mutex<Vec<(&'static str, Identity)>>,
    #[cfg(feature = "mutations")]
    pub(crate) slow_saves: Option<Duration>,
    /// The locks of a read-only opening, until its tenure begins.
    pub(crate) read_locks: ReadLocks,
    /// The directory is a restoration's: a store in it is unfinished, and begins again as a new one under the
    /// same id, so that devices formatted for it are its own.
    pub(crate) starts_over: bool,
    /// What the opening holds until the store ends.
    pub(crate) tenure: Option<Arc<Tenure>>,
}

/// A setter for each option that has a type in parentheses.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident $(($set:ty))?: $type:ty = $default:expr;)*) => {
        impl Builder {
            $(setter! { [$(#[$doc])*] $name $(($set))? })*
        }
    };
}

macro_rules! setter {
    ([$(#[$doc:meta])*] $name:ident) => {};
    ([$(#[$doc:meta])*] $name:ident ($set:ty)) => {
        $(#[$doc])*
        pub fn $name(mut self, $name: $set) -> Self {
            self.options.$name = $name.into();
            self
        }
    };
}

option_table!(setters);

impl Builder {
    /// A builder with these options, and with files as devices.
    pub fn from_options(options: Options) -> Self {
        Self { options, ..Self::default() }
    }

    /// The options set so far.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The store's directory: manifest, lock, and by default the files of both devices. Required unless the
    /// store is [in memory](Builder::in_memory).
    pub fn directory(mut self, path: impl AsRef<Path>) -> Self {
        self.options.directory = Some(path.as_ref().to_owned());
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
        self.options.hdd = Some(path.as_ref().to_owned());
        self.hdd_device = None;
        self
    }

    /// The HDD as a device; [`device`](crate::device) says how to write one.
    pub fn hdd_device(mut self, device: SharedDevice) -> Self {
        self.hdd_device = Some(device);
        self
    }

    /// The SSD: a file or block device. Default: `ssd.cache` in the directory.
    pub fn ssd(mut self, path: impl AsRef<Path>) -> Self {
        self.options.ssd = Some(path.as_ref().to_owned());
        self.ssd_device = None;
        self
    }

    /// The SSD as a device; [`device`](crate::device) says how to write one.
    pub fn ssd_device(mut self, device: SharedDevice) -> Self {
        self.ssd_device = Some(device);
        self
    }

    /// The page size of a new store; it must match an existing one. Default: 16 KiB, or the existing store's.
    pub fn page_size(mut self, size: PageSize) -> Self {
        self.options.page_bytes = Some(size.bytes() as u64);
        self
    }

    /// The pool's replacement policy: a value such as [`PoolPolicy::Lru`], or a name such as
    /// `"gd2l:frequency"`. Default: [`PoolPolicy::Auto`]. CASA and GD2L weigh the devices' costs: see
    /// [`Builder::online_costs`]. An unknown name makes [`Builder::open`] fail.
    pub fn pool_policy(mut self, policy: impl TryInto<PoolPolicy, Error: Into<UnknownPolicy>>) -> Self {
        let [unknown, _] = &mut self.unknown_policies;
        choose(&mut self.options.pool_policy, unknown, policy);
        self
    }

    /// The SSD's policy: a value such as [`SsdPolicy::None`], or a name such as `"cac:ageing"`. Default:
    /// [`SsdPolicy::Auto`]. The policy may change between openings: the SSD's contents stay in use. An
    /// unknown name makes [`Builder::open`] fail.
    pub fn ssd_policy(mut self, policy: impl TryInto<SsdPolicy, Error: Into<UnknownPolicy>>) -> Self {
        let [_, unknown] = &mut self.unknown_policies;
        choose(&mut self.options.ssd_policy, unknown, policy);
        self
    }

    /// Measures the devices for about `budget` each ([`calibrate`](crate::calibrate)) when the store is
    /// created, unless [`Builder::costs`] gives their costs. The store keeps the result; an existing store
    /// without one cannot be measured later ([`OpenError::BadOption`](crate::OpenError::BadOption)). Default:
    /// off.
    pub fn calibrate(mut self, budget: Duration) -> Self {
        self.options.calibrate_ms = Some(millis(budget));
        self
    }

    /// The embedder's log. The store asks it to be durable up to a page's LSN before it writes the page
    /// anywhere; [`LogGate`] has the contract and an example. The gate must exist before the opening, but the
    /// opening does not call it: it may recover the log afterwards, before redo changes a page.
    ///
    /// **Lock the log too.** A store that was dropped, here or in another process, releases its directory
    /// once its last device operation has ended, while a call of its gate may still run and write the log.
    /// Either hold a lock on the log for as long as the log exists in memory
    /// ([`guide`](crate::guide#recovery-order) says how), or await
    /// [`PageStore::wait_closed`](crate::PageStore::wait_closed) before you open the log. A store releases
    /// its gate, the `Arc`, when it is shut down or dropped and the last call has ended.
    pub fn log_gate(mut self, gate: Arc<dyn LogGate>) -> Self {
        self.gate = Some(gate);
        self
    }

    /// How long a request waits for a frame when all are pinned or dirty before it fails. Default: 10 s.
    pub fn exhausted_after(mut self, wait: Duration) -> Self {
        self.options.exhausted_after_ms = millis(wait);
        self
    }

    /// Test-only: disables a rule of the protocol.
    #[cfg(feature = "mutations")]
    #[doc(hidden)]
    pub fn mutation(mut self, rule: Option<pagetier_ssdcache::Mutation>) -> Self {
        self.mutation = rule;
        self
    }

    /// Test-only: delays every save of a manifest in a directory, as a slow fsync does.
    #[cfg(feature = "mutations")]
    #[doc(hidden)]
    pub fn slow_saves(mut self, delay: Duration) -> Self {
        self.slow_saves = Some(delay);
        self
    }

    /// A ready-made device for the doublewrite ring while the store has no SSD. Default: the file `ring` in
    /// the directory. A store without a directory keeps the ring in memory: it does not outlive the process,
    /// and if such a store has an SSD, it does not switch to operation without the SSD by itself.
    pub fn ring_device(mut self, device: SharedDevice) -> Self {
        self.ring_device = Some(device);
        self
    }

    /// Calls `report` while a recovery reads the SSD's zone.
    pub fn on_recovery_progress(mut self, report: impl Fn(RecoveryProgress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(report));
        self
    }
}

impl Builder {
    /// The seed of all checksums in the store with this id.
    pub(crate) fn seed(&self, store: &str) -> StoreSeed {
        self.seam().seed(StoreSeed::of_store(crate::manifest::id::id_bytes(store)))
    }

    /// The bytes of the SSD to use.
    pub(crate) fn ssd_size(&self) -> u64 {
        self.options.ssd_bytes.unwrap_or(256 << 20)
    }

    /// The seam, which does nothing in a normal build.
    pub(crate) fn seam(&self) -> Seam {
        Seam(pagetier_ssdcache::Seam(
            #[cfg(feature = "mutations")]
            self.mutation,
        ))
    }

    /// The policies of pool and SSD.
    pub(crate) fn policies(&self) -> Result<(PoolPolicy, SsdPolicy), UnknownPolicy> {
        match self.unknown_policies.iter().flatten().next() {
            Some(unknown) => Err(unknown.clone()),
            None => Ok((self.options.pool_policy, self.options.ssd_policy)),
        }
    }

    /// Looks the directory up: the working directory, and the store's if it exists. From here on they stay
    /// the same ones.
    pub(crate) fn hold_directories(&mut self) -> Result<(), OpenError> {
        let seam = self.seam();
        let is_relative = |path: &Option<PathBuf>| path.as_deref().is_some_and(Path::is_relative);
        // Only if needed: a process without a working directory can still open a store by absolute paths.
        if is_relative(&self.options.hdd) || is_relative(&self.options.ssd) {
            let working = HeldDir::working(seam);
            let failed = |e| OpenError::directory(Path::new("."), "cannot be opened", e);
            self.working = Some(working.map_err(failed)?);
        }
        if let (Some(path), None) = (&self.options.directory, &self.memory) {
            self.held = match HeldDir::open(path, seam) {
                Ok(held) => Some(held),
                // It may be created later, once nothing else refuses the opening.
                Err(e) if e.kind() == ErrorKind::NotFound => None,
                Err(e) if e.kind() == ErrorKind::NotADirectory && path.exists() => {
                    return Err(OpenError::NotADirectory { path: path.clone() });
                }
                Err(e) => return Err(OpenError::directory(path, "cannot be opened", e)),
            };
        }
        Ok(())
    }

    /// Where the file or block device of `place` is; `None` for a device of the embedder, or if the file
    /// would be in the directory of a store that has none.
    pub(crate) fn at(&self, place: &Place, default: &str) -> Option<At> {
        match place {
            Place::Path(path) => Some(At::named(path.clone(), self.working.as_ref())),
            Place::Default => self.held.as_ref().map(|held| At::within(held, default)),
            Place::Device(_) => None,
        }
    }

    /// Refuses what another option names already.
    pub(crate) fn refuse_twice(&self, at: &At, option: &'static str) -> Result<(), OpenError> {
        let Some(found) = at.identity() else { return Ok(()) };
        let used = self.used.lock();
        // By identity: two paths may lead to one file, by a link or a bind mount.
        match used.iter().find(|(other, used)| *other != option && *used == found) {
            Some((other, _)) => Err(OpenError::SameDevice { device: at.shown.clone(), option, other }),
            None => Ok(()),
        }
    }

    /// Notes what `option` uses from here on.
    pub(crate) fn note_used(&self, at: &At, option: &'static str) {
        let mut used = self.used.lock();
        used.retain(|(other, _)| *other != option);
        used.extend(at.identity().map(|found| (option, found)));
    }

    /// Performs an exchange of the cache device, whose options then use what it has opened. If it fails, they
    /// use what they did.
    pub(crate) async fn exchanging<T, E>(
        &self,
        exchange: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        // A failed exchange has opened the new device and noted it. The old one stays in use, so its note
        // comes back.
        let before = self.used.lock().clone();
        exchange.await.inspect_err(|_| *self.used.lock() = before)
    }

    /// Whether the device that `option` uses is at `path`.
    pub(crate) fn is_used(&self, path: &Path, option: &str) -> bool {
        let found = At::named(path.to_owned(), None).identity();
        self.used.lock().iter().any(|(other, used)| *other == option && Some(*used) == found)
    }

    pub(crate) fn hdd_place(&self) -> Place {
        Place::of(self.hdd_device.as_ref(), self.options.hdd.as_ref())
    }

    pub(crate) fn ssd_place(&self) -> Place {
        Place::of(self.ssd_device.as_ref(), self.options.ssd.as_ref())
    }

    pub(crate) fn ring_place(&self) -> Place {
        Place::of(self.ring_device.as_ref(), None)
    }

    /// The SSD's policy in use: the one switched to last, or the options'.
    pub(crate) fn ssd_policy_in_use(&self) -> Result<SsdPolicy, UnknownPolicy> {
        let switched = *self.switched_ssd_policy.lock();
        switched.map_or_else(|| Ok(self.policies()?.1), Ok)
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Sets the option `chosen`, or records in `unknown` that there is no such policy.
fn choose<P>(
    chosen: &mut P,
    unknown: &mut Option<UnknownPolicy>,
    policy: impl TryInto<P, Error: Into<UnknownPolicy>>,
) {
    match policy.try_into() {
        Ok(policy) => (*chosen, *unknown) = (policy, None),
        Err(error) => *unknown = Some(error.into()),
    }
}

/// The duration in whole milliseconds, rounded up.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
