//! What can go wrong, typed by who can act on it: every error of this crate, and the advice for each. Those
//! of the tiers (`PoolError`, `DeviceError`, ..) are their crates' own.
//!
//! Begin with [`Error`], which calls of an open store return, and [`OpenError`].

mod advice;
mod backup;
mod hot_set;

pub use advice::Advice;
pub use backup::BackupError;
pub use hot_set::HotSetError;

use pagetier_bufpool::{FENCED, GateError, PoolError, TierError};
use pagetier_devio::DeviceError;
use pagetier_page::{PageId, PageSizeError, SpaceId};
use pagetier_policy::Costs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a memory budget cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolSizeError {
    /// It is too small.
    #[error("a pool of {bytes} bytes is too small: at least {needed} are needed with this page size and SSD")]
    TooSmall {
        /// The budget given, in bytes.
        bytes: u64,
        /// The smallest budget that works, in bytes.
        needed: u64,
    },
    /// It exceeds the machine's memory.
    #[error("a pool of {bytes} bytes is too large: this machine has {machine} bytes of memory and swap")]
    TooLarge {
        /// The budget given, in bytes.
        bytes: u64,
        /// The machine's memory, swap included, in bytes.
        machine: u64,
    },
}

/// Why a store did not open. Nothing on disk was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The page size is not a power of two from 4 to 64 KiB.
    #[error(transparent)]
    PageSize(#[from] PageSizeError),
    /// The memory budget cannot be used.
    #[error(transparent)]
    PoolSize(#[from] PoolSizeError),
    /// The SSD cannot hold its metadata and the minimum number of slots.
    #[error(transparent)]
    SsdTooSmall(#[from] pagetier_ssdcache::SsdTooSmall),
    /// There is no policy of that name.
    #[error(transparent)]
    UnknownPolicy(#[from] pagetier_policy::UnknownPolicy),
    /// An option is out of its range.
    #[error("{option}: {why}")]
    BadOption {
        /// The builder's method.
        option: &'static str,
        /// What is wrong with the value.
        why: String,
    },
    /// The runtime of a [`blocking::PageStore`](crate::blocking::PageStore), or its thread, cannot be
    /// started.
    #[error("the store's runtime cannot be started")]
    Runtime {
        /// The system's reason.
        source: std::io::Error,
    },
    /// The store's directory cannot be used.
    #[error("{path}: the store's directory {what}", path = .path.display())]
    Directory {
        /// The directory, as the options name it.
        path: PathBuf,
        /// What could not be done.
        what: &'static str,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The store's path is a file.
    #[error("{path}: this is a file, but a store is a directory", path = .path.display())]
    NotADirectory {
        /// The path at which there is a file.
        path: PathBuf,
    },
    /// The store is already open, in this process or another.
    #[error("{path}: the store is open already, {by}; close it first", path = .path.display(), by = opener(*.owner))]
    AlreadyOpen {
        /// The directory or device that the other open has locked.
        path: PathBuf,
        /// The process of the other open, which may be this one; `None` if it is not known.
        owner: Option<u32>,
    },
    /// Two devices are one: the same path, two paths to one file, or two names of one block device.
    #[error("{device}: the options name it twice, as {option} and as {other}; each needs its own", device = .device.display())]
    SameDevice {
        /// Its path, or the name of a ready-made device.
        device: PathBuf,
        /// The option that names it.
        option: &'static str,
        /// The other option that names it.
        other: &'static str,
    },
    /// The store cannot have exclusive use of the file or block device, whatever
    /// [`Create`](crate::options::Create) allows: overwriting it would destroy its user's data.
    #[error("{device}: this store cannot use it exclusively: {why}; release it first", device = .device.display())]
    DeviceInUse {
        /// Its path, or the name of a ready-made device.
        device: PathBuf,
        /// The user of the device.
        why: String,
    },
    /// The manifest cannot be read.
    #[error("the manifest cannot be used: {why}; restore it from a backup of the store's directory")]
    BadManifest {
        /// What is wrong.
        why: String,
    },
    /// The store was created with another page size.
    #[error("the store has pages of {store} bytes, not of {asked}; omit the page size or pass {store}")]
    OtherPageSize {
        /// The store's page size, in bytes.
        store: u64,
        /// The requested page size, in bytes.
        asked: u64,
    },
    /// A device belongs to another store.
    #[error("{device}: it belongs to another store; put this store's back")]
    OtherStore {
        /// Its path, or the name of a ready-made device.
        device: String,
        /// The id of the store that it belongs to.
        found: String,
        /// The id of this store.
        expected: String,
    },
    /// The SSD is missing, or is not the one that the store last used; the right one may hold newer pages
    /// than the HDD. [`Builder::accept_ssd_loss`](crate::Builder::accept_ssd_loss) gives it up.
    #[error(
        "the SSD of this store {what}; it may hold newer pages than the HDD, so the store does \
         not open without it: bring it back, or accept the loss"
    )]
    SsdMissing {
        /// The SSD's id; `ring` if the store has a ring, but no SSD.
        expected: String,
        /// `is not given`, or what was found in its place; also where the SSD was last used, if elsewhere.
        what: String,
    },
    /// The manifest names an HDD, but the device holds no store.
    #[error("{device}: the HDD of this store is missing or blank")]
    HddMissing {
        /// Its path, or the name of a ready-made device.
        device: String,
    },
    /// The directory holds parts of a store, but no manifest, without which the rest cannot be read.
    #[error(
        "{path}: the store's manifest.json is missing, but its other files are here: put the manifest back, \
         restore a backup, or give a new store a directory of its own",
        path = .path.display()
    )]
    ManifestMissing {
        /// The directory that lacks it.
        path: PathBuf,
    },
    /// There is no store, and creating one was not allowed ([`Builder::create`](crate::Builder::create)).
    #[error("{path}: there is no store here", path = .path.display())]
    NotFound {
        /// The directory; empty for a store in memory.
        path: PathBuf,
    },
    /// A device is older than the manifest: an older copy of it was put in its place.
    #[error(
        "{device}: it is an older copy of this store's {tier}, which last took part in open {opened} \
         (last close: {closed}); the store's last open was {last} (last close: {last_closed}): put the \
         current {tier} back{}",
        if *.tier == "HDD" { "" } else { ", or accept the loss" }
    )]
    StaleDevice {
        /// Its path, or the name of a ready-made device.
        device: String,
        /// `HDD`, `SSD`, or `ring` for the file of a store without an SSD.
        tier: &'static str,
        /// The last open that the device took part in.
        opened: u32,
        /// The last close that it took part in.
        closed: u32,
        /// The store's last open.
        last: u32,
        /// The store's last close.
        last_closed: u32,
    },
    /// The manifest is older than a device: the store's directory was restored from an older copy.
    #[error(
        "the manifest is older than {device}: that {tier} took part in open {opened}, the manifest knows \
         of {known}; put the newest manifest back, or a copy of all devices that is as old as it"
    )]
    StaleManifest {
        /// Its path, or the name of a ready-made device.
        device: String,
        /// `HDD`, `SSD`, or `ring` for the file of a store without an SSD.
        tier: &'static str,
        /// The last open that the device took part in.
        opened: u32,
        /// The last open recorded in the manifest.
        known: u32,
    },
    /// A device ends before the end of the store's data.
    #[error("{device}: this {tier} was cut short: it has {bytes} bytes, the store uses {needed}; put the \
        whole one back{}",
        if *.tier == "HDD" { "" } else { ", or accept the loss" }
    )]
    TooShort {
        /// Its path, or the name of a ready-made device.
        device: String,
        /// `HDD`, `SSD`, or `ring` for the file of a store without an SSD.
        tier: &'static str,
        /// Its size, in bytes.
        bytes: u64,
        /// The size that the store needs, in bytes.
        needed: u64,
    },
    /// A device holds another program's data. Only
    /// an overwriting [`Create`](crate::options::Create) overwrites it.
    #[error("{device}: it holds data that is not Pagetier's; blank it, or name another one")]
    Foreign {
        /// Its path, or the name of a ready-made device.
        device: String,
    },
    /// A device is a member of a striped set of an earlier version.
    #[error(
        "{device}: it belongs to a striped set, which this version does not read: with the version that wrote \
         it, drain the SSD and switch it off, or back the store up"
    )]
    Striped {
        /// Its path, or the name of a ready-made device.
        device: String,
    },
    /// A device or the manifest has the format of another version: open the store with that version.
    #[error("{device}: it has format {found}, this version reads {reads}")]
    Format {
        /// Its path, or the name of a ready-made device; `the manifest` or `the manifest's areas`.
        device: String,
        /// The format number found.
        found: u32,
        /// The formats that this version reads.
        reads: String,
    },
    /// The log gate refused the open: the log is not the one that the pages need
    /// ([`LogGate::check`](crate::LogGate::check)). Nothing has changed.
    #[error("the log does not fit the pages")]
    Log {
        /// The gate's error.
        source: GateError,
    },
    /// The contents of the SSD cannot be determined.
    #[error(transparent)]
    Ssd(#[from] pagetier_ssdcache::OpenError),
    /// A device failed or cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The pool could not be set up.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

impl OpenError {
    pub(crate) fn directory(path: &Path, what: &'static str, source: std::io::Error) -> Self {
        Self::Directory { path: path.to_owned(), what, source }
    }
}

/// Why an operation on an open store failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store was shut down ([`PageStore::shutdown`](crate::PageStore::shutdown)): open it again.
    #[error("the store is closed")]
    Closed,
    /// The store was opened for reading only ([`Builder::open_read_only`](crate::Builder::open_read_only)):
    /// the call would write to a device, or promise that something is durable.
    #[error("the store is open for reading only")]
    ReadOnly,
    /// There is no space with this id: never created, or dropped.
    #[error("space {space} does not exist")]
    NoSuchSpace {
        /// The id that was asked for.
        space: SpaceId,
    },
    /// A space of this name exists already.
    #[error("a space called {name:?} exists already")]
    SpaceExists {
        /// The name that is taken.
        name: String,
    },
    /// The number for a new space is not above those of all spaces that the store ever had.
    #[error("space number {space} may have been used before: use {free_from} or a larger one")]
    SpaceIdUsed {
        /// The number that was asked for.
        space: SpaceId,
        /// The smallest number that may be used.
        free_from: SpaceId,
    },
    /// The page does not exist: it lies beyond the end of its space, is free, was skipped by the creation of
    /// a page with a larger number, or was allocated but never written before the store was last closed or
    /// crashed. Every method reports it so, and never as [`TierError::NoSuchPage`] within [`Error::Pool`].
    #[error("page {page} does not exist")]
    NoSuchPage {
        /// The page that was asked for.
        page: PageId,
    },
    /// A space has at most 2^32 - 1 pages.
    #[error("space {space} is full")]
    SpaceFull {
        /// The space that cannot grow further.
        space: SpaceId,
    },
    /// The page's number is too far beyond its space's extents: a wrong number would fill the whole disk.
    /// [`Builder::page_gap_max`](crate::Builder::page_gap_max) sets how far it may be. Nothing was taken.
    #[error("page {page} is {gap} pages beyond the space allocated to it; at most {gap_max} may be skipped")]
    PageGap {
        /// The page that was asked for.
        page: PageId,
        /// The number of pages between the end of the space's extents and the page.
        gap: u64,
        /// The maximum, as the options set it.
        gap_max: u32,
    },
    /// The manifest could not be written. Nothing has changed in this run; a later open may find either
    /// version.
    #[error("the manifest could not be written")]
    Manifest {
        /// The system's reason.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// The manifest in the store's directory is not the one that this store wrote: another store's, or a
    /// copy, was put in its place. Nothing was written over it. Put this store's back, and close the store.
    #[error("{path}: another manifest has taken the place of this store's; put this store's back", path = .path.display())]
    ForeignManifest {
        /// The manifest's path when the store was opened.
        path: PathBuf,
    },
    /// A device could not be grown, read or written.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The SSD holds the only copies of some pages, so the store does not continue without it: bring it back
    /// ([`Ssd::readmit`](crate::Ssd::readmit)), or accept the loss ([`Ssd::abandon`](crate::Ssd::abandon);
    /// with a log, [`Builder::accept_ssd_loss`](crate::Builder::accept_ssd_loss) at an open that redoes
    /// it).
    #[error("the SSD holds the only copies of {pages} pages: drain it, bring it back, or accept the loss")]
    SsdOnlyCopies {
        /// How many pages.
        pages: u64,
    },
    /// The store refuses writes, and exchanging the SSD does not help: close the store and open it again.
    #[error("the store refuses writes: {cause}; close it and open it again")]
    Refusing {
        /// The first error.
        cause: Arc<str>,
    },
    /// A cost is not a positive number of milliseconds.
    #[error("{costs:?}: every cost must be a positive number of milliseconds")]
    BadCosts {
        /// The costs given.
        costs: Costs,
    },
    /// The memory budget cannot be used.
    #[error(transparent)]
    PoolSize(#[from] PoolSizeError),
    /// This process was forked from the one that opened the store: it has neither its threads nor its locks.
    /// Open the store after the fork.
    #[error(
        "process {opened_by} opened the store, from which this process was forked; open it after the fork"
    )]
    Forked {
        /// The id of the process that opened the store.
        opened_by: u32,
    },
    /// Another owner has taken the volume with the pages' homes over, or may have: it did not confirm this
    /// one within its [lease](crate::options::OnHdd::lease). The store serves nothing, not even from memory,
    /// for good or until it is confirmed.
    #[error("{FENCED}")]
    Fenced,
    /// There is no policy of that name.
    #[error(transparent)]
    UnknownPolicy(#[from] pagetier_policy::UnknownPolicy),
    /// The SSD is not in use again; see [`Ssd::readmit`](crate::Ssd::readmit).
    #[error(transparent)]
    Readmit(#[from] pagetier_ssdcache::ReadmitError),
    /// The replacement device could not be opened or prepared.
    #[error(transparent)]
    Attach(Arc<OpenError>),
    /// The pool or the storage below it failed.
    #[error(transparent)]
    Pool(PoolError),
}

impl Error {
    /// A task of the store was dropped with its runtime.
    pub(crate) fn runtime_ended() -> Self {
        Self::Refusing { cause: Arc::from("the runtime is shutting down") }
    }
}

/// For code that speaks `std::io`: the kind says what can be acted on, the source is the error itself.
impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        use std::io::ErrorKind;
        let kind = match &error {
            Error::NoSuchPage { .. } | Error::NoSuchSpace { .. } => ErrorKind::NotFound,
            Error::SpaceExists { .. } => ErrorKind::AlreadyExists,
            Error::ReadOnly => ErrorKind::ReadOnlyFilesystem,
            Error::SpaceFull { .. } => ErrorKind::FileTooLarge,
            Error::PageGap { .. } | Error::PoolSize(_) | Error::BadCosts { .. } => ErrorKind::InvalidInput,
            Error::Manifest { source } => source.kind(),
            // A device without room, directly or below the pool.
            other if other.advice() == Advice::FreeSpace => ErrorKind::StorageFull,
            _ => ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// Who has opened a store that is open already.
fn opener(owner: Option<u32>) -> String {
    match owner {
        Some(pid) if pid == std::process::id() => "in this process".to_owned(),
        Some(pid) => format!("in process {pid}"),
        None => "here or in another process".to_owned(),
    }
}

impl From<PoolError> for Error {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Closed => Self::Closed,
            PoolError::Forked { opened_by } => Self::Forked { opened_by },
            PoolError::Fenced => Self::Fenced,
            PoolError::Tier(TierError::NoSuchPage { page }) => Self::NoSuchPage { page },
            other => Self::Pool(other),
        }
    }
}

impl From<TierError> for Error {
    fn from(error: TierError) -> Self {
        Self::from(PoolError::Tier(error))
    }
}
