//! Pagetier: an embeddable async *hybrid page store* for authors of databases and key-value engines.
//!
//! It has three tiers: a buffer pool in memory, which evicts by the cost of fetching a page again; a
//! write-back cache on SSD, which admits by benefit and stays warm across a crash; and an HDD, the home of
//! every page. The policies follow GD2L and CAC (Liu & Salem 2013) and adapt by default.
//!
//! The store needs a tokio runtime for its background tasks and timers; device I/O completes under any
//! runtime.
//!
//! ```
//! use pagetier::PageStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let temporary = tempfile::tempdir()?;
//! # let dir = temporary.path();
//! // 8 MiB of memory over 64 MiB of SSD cache; the rest is on the HDD. Here all are files in `dir`.
//! let store = PageStore::builder().directory(dir).pool_bytes(8 << 20).ssd_bytes(64 << 20).open().await?;
//! let space = store.spaces().create("greetings").await?;
//!
//! let mut page = store.allocate(space).await?; // zeroed, latched exclusively until dropped
//! page[..5].copy_from_slice(b"hello");
//! let id = page.id();
//! drop(page);
//!
//! store.sync().await?; // survives a crash from here on
//! assert_eq!(&store.get(id).await?[..5], b"hello");
//! store.close().await?; // keeps the caches warm for the next opening
//! # Ok(())
//! # }
//! ```
//!
//! # Start here
//!
//! - Without a log: [`PageStore`], then the table below. [`PageStore::sync`] makes single pages durable.
//! - With a log: the [`guide`], from the first program to redo, checkpoints and backups of store and log.
//!   Then [`LogGate`], whose contract your log must meet; [`Lsn`]; [`PageStore::redo_from`].
//! - To watch, back up, change and repair a store: [`operating`].
//!
//! # Map
//!
//! | to do this | call |
//! | --- | --- |
//! | open or create a store | [`PageStore::builder`], [`Builder::open`]; [`blocking`] without a runtime |
//! | read options from a configuration file | [`Options`], [`Builder::from_options`] |
//! | name groups of pages | [`PageStore::spaces`]: [`Spaces::create`], [`Spaces::find`] |
//! | read a page, change a page | [`PageStore::get`], [`PageStore::get_mut`]: guards [`PageRef`], [`PageMut`] |
//! | hold a guard that does not borrow the store | [`PageStore::get_owned`], [`PageStore::get_mut_owned`] |
//! | create a page | [`PageStore::allocate`] (with a table of its siblings), [`PageStore::create`] |
//! | free pages, give their room back | [`PageStore::free`], [`Spaces::free`], [`Spaces::shrink`] |
//! | read many pages in order | [`PageStore::scan`], [`PageStore::prefetch`] |
//! | make everything durable | [`PageStore::sync`] |
//! | connect your log | [`Builder::log_gate`], [`LogGate`], [`PageMut::set_lsn`] |
//! | redo after a crash | [`PageStore::recreate`], [`PageStore::overwrite`], [`PageRef::lsn`] |
//! | make a checkpoint, shorten the log | [`PageStore::flush_to`], then [`PageStore::redo_from`] with [`Loss::Crash`] |
//! | keep the log that the loss of the SSD would need | [`PageStore::redo_from`] with [`Loss::Ssd`] |
//! | stop cleanly, with warm caches | [`PageStore::close`], [`PageStore::shutdown`]; a drop is a crash, and safe |
//! | wait until a dropped store is gone | [`PageStore::left`] |
//! | copy a running store | [`PageStore::backup`], [`Builder::restore`] |
//! | know what to do about an error | [`Error::advice`], [`OpenError::advice`], [`BackupError::advice`] |
//! | empty the SSD, take it out of use and back | [`Ssd::drain`], [`Ssd::set_mode`], [`Ssd::readmit`], [`Ssd::abandon`] |
//! | watch the SSD, limit the writes to it | [`Ssd::events`], [`Ssd::state`], [`Ssd::set_write_budget`] |
//! | see what the store does | [`PageStore::stats`], [`PageStore::why`], [`PageStore::recovery`] |
//! | estimate what more memory or SSD would save | [`PageStore::what_if`] |
//! | verify and heal every copy | [`PageStore::scrub`] |
//! | change a running store | [`PageStore::resize_pool`], [`PageStore::replace_ssd`], [`PageStore::set_pool_policy`] |
//! | keep the pool's contents across a restart | [`PageStore::export_hot`], [`PageStore::import_hot`] |
//! | examine a store without writing | [`Builder::open_read_only`], [`Builder::inspect`] |
//! | size the tiers | [`frames_for`], [`pool_bytes_for`], [`ssd_bytes_for`] |
//! | add a device | [`device`] |
//!
//! # Glossary
//!
//! - **Frame**: the room of one page in the pool.
//! - **Gate**: the embedder's log as the store calls it, [`LogGate`].
//! - **Home**: a page's place on the HDD. A page is *written home* when its newest version goes there.
//! - **Latch**: the lock on a page in memory that a guard holds; *pinned* means that its frame cannot be
//!   reused.
//! - **LSN**: the place of a record in the embedder's log, [`Lsn`].
//! - **Outqueue**: the list of pages that recently left the SSD or were not admitted. CAC keeps their access
//!   counts, to estimate what an SSD copy would save.
//! - **Recovery LSN**: the first LSN that a page got since it was last clean; redo needs the log from there.
//! - **Ring**: the doublewrite ring, a small area on the SSD, or in a file of its own. Pages pass through it
//!   on their way home, so that a torn write can be repaired.
//! - **Slot**: the room of one page on the SSD.
//! - **Space**: a named group of pages, numbered from 0.
//! - **Tier**: memory, SSD or HDD.
//! - **Zone**: the part of the SSD whose slots are evicted and written next. A recovery reads it, because
//!   only its slots may differ from the last checkpoint of the SSD's map.

#![forbid(unsafe_code)]

mod backup;
pub mod blocking;
mod config;
pub mod device;
mod error;
mod manifest;
mod observe;
mod open;
mod seam;
mod spaces;
mod ssd;
mod store;
mod tenure;
mod tuning;
mod volume;

#[doc = include_str!("../docs/embedding.md")]
pub mod guide {}

#[doc = include_str!("../docs/operating.md")]
pub mod operating {}

pub use backup::{BackupOptions, BackupProgress, BackupReport, RestoreProgress, RestoreReport};
pub use config::builder::Builder;
pub use config::calibrate::calibrate;
pub use config::options::Options;
pub use config::sizes::{frames_for, pool_bytes_for, ssd_bytes_for};
pub use error::Advice;
pub use error::{BackupError, Error, HotSetError, OpenError};
pub use manifest::memory::MemoryManifest;
#[cfg(feature = "metrics")]
pub use observe::MetricsExport;
pub use observe::scrub::{Finding, Scrub, ScrubOptions, ScrubProgress, ScrubReport};
pub use observe::{
    ChoiceSummary, ClassSummary, DeviceSummary, DirSummary, GroupFactor, LiveStats, MemorySummary, PageWhy,
    PoolSummary, SpacePages, SsdSummary, StatsExport, StatsExportError, StatsSummary,
};
pub use open::inspect::{
    HddInspection, Inspection, JournalInspection, ManifestInspection, MapInspection, SpaceInspection,
    SsdInspection,
};
/// The embedder's log, as the store calls it. Its contract stands below this example: a log with group
/// commit, which its engine and the store share. The [`guide`] continues with segments, redo, checkpoints and
/// backups.
///
#[doc = include_str!("log_gate.md")]
pub use pagetier_bufpool::LogGate;
pub use pagetier_bufpool::{
    Exhausted, GateError, GateFuture, InMemory, PoolError, PoolMemory, PoolStats, Recorded, TierError,
};
pub use pagetier_devio::{
    Backend, COST_POINTS, Causes, ClassStats, Clock, Device, DeviceError, DeviceErrorKind, DeviceStats,
    DirStats, DirectIo, EmulatedDevice, ErrorCounts, IoClass, IoOp, MemoryDevice, Model, RetryCounts,
    SharedDevice, TimeHistogram,
};
pub use pagetier_ghost::{Cost, Sampled, WhatIf};
pub use pagetier_page::{Defect, Lsn, PageId, PageSize, PageSizeError, SpaceId};
pub use pagetier_policy::pool::{Gd2lOptions, Retention};
pub use pagetier_policy::rivals::{RivalPool, RivalSsd, WindowPercent};
pub use pagetier_policy::ssd::{Ageing, Alpha, CacOptions, EvictionCost};
pub use pagetier_policy::{Catalogue, PoolPolicyFactory, SsdPolicyFactory, register};
pub use pagetier_policy::{
    Choice, Costs, GroupStats, Location, PageCounts, PoolPolicy, SsdPolicy, UnknownPolicy,
};
pub use pagetier_ssdcache::{
    BudgetStats, DrainProgress, DrainReport, FreeSlots, Marks, OpenError as SsdOpenError, Progress,
    ReadmitError, ReadmitReport, RecoveryReport, SlotCounts, SsdEvent, SsdMode, SsdState, TierStats,
    TooSmall,
};
#[cfg(feature = "mutations")]
#[doc(hidden)]
pub use pagetier_ssdcache::{Moment, Mutation};
pub use spaces::calls::Spaces;
pub use ssd::calls::Ssd;
pub use ssd::exchange::{Drain, SsdEvents};
pub use ssd::replace::NewSsd;
pub use store::guards::{PageMut, PageRef, Scan};
pub use store::headroom::Room;
pub use store::owned::{OwnedPageMut, OwnedPageRef};
pub use store::page_store::{Loss, PageStore};
pub use store::stats::Stats;
pub use tenure::gate::GatePanic;
pub use tuning::hot_set::HotSetReport;
pub use tuning::policies::Policies;
pub use tuning::trace::Trace;
pub use tuning::what_if::{Estimates, WhatIfOptions};
pub use volume::loss::{LostPages, SsdLoss};
pub use volume::space_hints::SpaceHints;
pub use volume::table::SpaceInfo;

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
