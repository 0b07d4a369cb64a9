//! The builder: options, and what is not plain data. It is consumed by the open (`open::steps`).

use super::choices::{CostSource, Create, ManifestPlace, Place, millis};
use super::options::{Options, option_table};
use super::store_config::Config;
use crate::manifest::memory::MemoryManifest;
use crate::ownership::lock::ReadLocks;
use pagetier_bufpool::LogGate;
use pagetier_devio::{Backend, DirectIo, SharedDevice};
use pagetier_page::PageSize;
use pagetier_policy::{PoolPolicy, SsdPolicy, UnknownPolicy};
use pagetier_ssdcache::{RecoveryProgress, SsdMode};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

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
    pub(crate) config: Config,
    /// The unknown names that were set as policies of the pool and the SSD.
    unknown_policies: [Option<UnknownPolicy>; 2],
    pub(crate) gate: Option<Arc<dyn LogGate>>,
    pub(crate) progress: Option<Box<dyn Fn(RecoveryProgress) + Send + Sync>>,
    /// The locks of a read-only open, until its ownership begins.
    pub(crate) read_locks: ReadLocks,
}

/// A setter for each option that has a type in parentheses.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident $(($set:ty))? $([$read:literal])?: $type:ty = $default:expr;)*) => {
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
            self.config.options.$name = $name.into();
            self
        }
    };
}

option_table!(setters);

impl Builder {
    /// A builder with these options, and with files as devices.
    pub fn from_options(options: Options) -> Self {
        Self { config: Config { options, ..Config::default() }, ..Self::default() }
    }

    /// The options set so far.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.config.options
    }

    /// The store's directory: manifest, lock, and by default the files of both devices. Required unless the
    /// store is [in memory](Builder::in_memory). [`operating`](crate::operating#supported-systems) lists the
    /// file systems, kernels and limits on which a store keeps its promises. **Not promised:** that a store
    /// notices when all of it was restored to an earlier state, outside of [`Builder::restore`].
    pub fn directory(mut self, path: impl AsRef<Path>) -> Self {
        self.config.options.directory = Some(path.as_ref().to_owned());
        self
    }

    /// Keeps the manifest in `manifest` instead of a directory: for stores on emulated or simulated devices,
    /// which must be given as well.
    pub fn in_memory(mut self, manifest: Arc<MemoryManifest>) -> Self {
        self.config.memory = Some(manifest);
        self
    }

    /// The HDD: a file, block device or ready-made device. Default: `hdd.vol` in the directory.
    pub fn hdd(mut self, place: impl Into<Place>) -> Self {
        (self.config.options.hdd, self.config.hdd_device) = parts(place.into());
        self
    }

    /// The SSD: a file, block device or ready-made device. Default: `ssd.cache` in the directory.
    pub fn ssd(mut self, place: impl Into<Place>) -> Self {
        (self.config.options.ssd, self.config.ssd_device) = parts(place.into());
        self
    }

    /// The page size of a new store; it must match an existing one. Default: 16 KiB, or the existing store's.
    pub fn page_size(mut self, size: PageSize) -> Self {
        self.config.options.page_bytes = Some(size.bytes() as u64);
        self
    }

    /// The pool's replacement policy: a value such as [`PoolPolicy::Lru`], or a name such as
    /// `"gd2l:frequency"` or `"cfdc-75:cluster=16"`. Default: [`PoolPolicy::Auto`]. CASA and GD2L weigh the
    /// devices' costs: see [`Builder::costs`]. An unknown name makes [`Builder::open`] fail.
    pub fn pool_policy(mut self, policy: impl TryInto<PoolPolicy, Error: Into<UnknownPolicy>>) -> Self {
        let [unknown, _] = &mut self.unknown_policies;
        choose(&mut self.config.options.pool_policy, unknown, policy);
        self
    }

    /// The SSD's policy: a value such as [`SsdPolicy::None`], or a name such as `"cac:strict-zone"` or
    /// `"auto:zone=5,outqueue=5000"`. Default: `auto`. The policy may change between opens: the SSD's
    /// contents stay in use. An unknown name makes [`Builder::open`] fail.
    pub fn ssd_policy(mut self, policy: impl TryInto<SsdPolicy, Error: Into<UnknownPolicy>>) -> Self {
        let [_, unknown] = &mut self.unknown_policies;
        choose(&mut self.config.options.ssd_policy, unknown, policy);
        self
    }

    /// The embedder's log. The store asks it to be durable up to a page's LSN before it writes the page
    /// anywhere; [`LogGate`] has the contract and an example. The gate must exist before the open, but the
    /// open does not call it: it may recover the log afterwards, before redo changes a page.
    ///
    /// **Lock the log too.** A store that was dropped, here or in another process, releases its directory
    /// once its last device operation has ended, while a call of its gate may still run and write the log.
    /// Either hold a lock on the log for as long as the log exists in memory
    /// ([`guide`](crate::guide#write-a-log-yourself) says how), or await
    /// [`PageStore::wait_closed`](crate::PageStore::wait_closed) before you open the log. A store releases
    /// its gate, the `Arc`, when it is shut down or dropped and the last call has ended.
    pub fn log_gate(mut self, gate: Arc<dyn LogGate>) -> Self {
        self.gate = Some(gate);
        self
    }

    /// How long a request waits for a frame when all are pinned or dirty before it fails. Time in which the
    /// process was stopped does not count. Default: 10 s.
    pub fn exhausted_after(mut self, wait: Duration) -> Self {
        self.config.options.exhausted_after_ms = millis(wait);
        self
    }

    /// Test-only: called in the saving thread before each save of a manifest in a directory, which may take
    /// as long as a slow fsync.
    #[cfg(feature = "probes")]
    #[doc(hidden)]
    pub fn before_saves(mut self, before: impl Fn() + Send + Sync + 'static) -> Self {
        self.config.before_saves = Some(crate::manifest::saver::BeforeSaves(std::sync::Arc::new(before)));
        self
    }

    /// Test-only: the number of slots whose entries a checkpoint of the SSD's map captures at a time; 0: as
    /// in a store in use, where a small SSD's are captured at once.
    #[cfg(feature = "probes")]
    #[doc(hidden)]
    pub fn map_piece(mut self, slots: u32) -> Self {
        self.config.map_piece = slots;
        self
    }

    /// A ready-made device for the doublewrite ring while the store has no SSD; not with a manifest
    /// [on the HDD](crate::options::OnHdd). Default: the file `ring` in the directory. A store without
    /// a directory keeps the ring in memory: it does not outlive the process, and if such a store has an SSD,
    /// it does not switch to operation without the SSD by itself.
    pub fn ring_device(mut self, device: SharedDevice) -> Self {
        self.config.ring_device = Some(device);
        self
    }

    /// Calls `report` while a recovery reads the SSD's zone.
    pub fn on_recovery_progress(mut self, report: impl Fn(RecoveryProgress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(report));
        self
    }
}

impl Builder {
    /// Refuses names that are no policies.
    pub(crate) fn check_policies(&self) -> Result<(), UnknownPolicy> {
        self.unknown_policies.iter().flatten().next().map_or(Ok(()), |unknown| Err(unknown.clone()))
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("options", &self.config.options).finish_non_exhaustive()
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

/// The path and the device of `place`, of which there is at most one.
fn parts(place: Place) -> (Option<PathBuf>, Option<SharedDevice>) {
    match place {
        Place::Default => (None, None),
        Place::Path(path) => (Some(path), None),
        Place::Device(device) => (None, Some(device)),
    }
}
