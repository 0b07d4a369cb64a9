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
//! // 8 MiB of memory over 64 MiB of SSD cache. Here SSD and HDD are files in `dir`.
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
//! store.close().await?; // keeps the caches warm for the next open
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
//! | hold a guard that does not borrow the store | [`PageRef::into_owned`], also of [`PageMut`] and [`Scan`] |
//! | create a page | [`PageStore::allocate`] (with a table of its siblings), [`PageStore::overwrite`] |
//! | free pages, give their disk space back | [`PageStore::free`] (truncates, too), [`Spaces::shrink`]; [`guide`](guide#free-a-page) compares the ways |
//! | free pages without a write of its own | [`PageStore::free_on_sync`] |
//! | take disk space before it is needed, ask for a number | [`Spaces::reserve`], [`PageStore::exists`] |
//! | read many pages in order | [`PageStore::scan`], [`PageStore::prefetch`] |
//! | make everything durable, or one space | [`PageStore::sync`], [`Spaces::sync`] |
//! | connect your log | [`Builder::log_gate`], [`LogGate`], [`PageMut::set_lsn`] |
//! | redo after a crash | [`PageStore::get_or_create`], [`PageStore::overwrite`], [`PageRef::lsn`] |
//! | make a checkpoint, shorten the log | [`PageStore::flush_to`], then [`PageStore::redo_from`] with [`Loss::Crash`] |
//! | keep the log that the loss of the SSD would need | [`PageStore::redo_from`] with [`Loss::Ssd`] |
//! | stop cleanly, with warm caches | [`PageStore::close`], [`PageStore::shutdown`] of a shared store; dropping the store is safe, but counts as a crash |
//! | wait until a dropped store is gone | [`PageStore::wait_closed`] |
//! | copy a running store | [`PageStore::backup`], [`Builder::restore`] |
//! | list, verify and purge backups, take a page out of one | [`backup::Backups`] |
//! | know what to do about an error | [`Error::advice`], [`OpenError::advice`], [`BackupError::advice`](backup::BackupError::advice) |
//! | empty the SSD, take it out of use and back | [`Ssd::drain`], [`Ssd::set_mode`], [`Ssd::readmit`], [`Ssd::abandon`] |
//! | watch the SSD, limit the writes to it | [`Ssd::events`], [`PageStore::stats`], [`Ssd::set_write_budget`] |
//! | see what the store does | [`PageStore::stats`] (prints a screen), [`PageStore::why`], [`Policies::groups`], [`PageStore::recovery`] |
//! | warm up after the loss of the SSD | [`HotSet::keep`] |
//! | export statistics | [`PageStore::export_stats`]; `PageStore::export_metrics` with the feature `metrics` |
//! | estimate what more memory or SSD would save | [`PageStore::what_if`] |
//! | verify and heal every copy | [`PageStore::scrub`] |
//! | change a running store | [`PageStore::resize_pool`], [`Ssd::replace`], [`Policies::set_pool`], [`Policies::set_ssd`] |
//! | keep the pool's contents across a restart | [`HotSet::export`], [`HotSet::import`] |
//! | examine a store without writing | [`Builder::open_read_only`], [`Builder::inspect`] |
//! | size the tiers | [`frames_for`], [`pool_bytes_for`], [`ssd_bytes_for`]; [`parse_bytes`] reads `64MiB` |
//! | add a device, a policy | [`device`], [`policy`] |
//!
//! # Glossary
//!
//! - **Checkpoint**: the SSD's map, which page each slot holds, as of one moment, written to the SSD.
//! - **Discard**: to give up a page's contents without writing them, [`PageStore::discard`]. The page goes on
//!   to exist.
//! - **Drop**: to end a space with all its pages, [`Spaces::drop`].
//! - **Epoch**: the number of an open session of the store. It is durable before the session writes a page.
//! - **Evict**: to take a page out of memory, or a copy off the SSD, to make room for another.
//! - **Extent**: 64 neighbouring homes on the HDD, the unit in which spaces grow.
//! - **Frame**: the memory of one page in the pool.
//! - **Free**: to end a single page, [`PageStore::free`]. Its number may be reused.
//! - **Gate**: the embedder's log as the store calls it, [`LogGate`].
//! - **Home**: a page's place on the HDD. A page is *written home* when its newest version goes there.
//! - **Journal**: records on the SSD of pages on their way home, so that a recovery trusts no older copy.
//! - **Latch**: the lock on a page in memory that a guard holds; *pinned* means that its frame cannot be
//!   reused.
//! - **LSN**: the place of a record in the embedder's log, [`Lsn`].
//! - **Manifest**: what the store records of itself: spaces, extents, free pages, devices, epoch.
//! - **Only copy**: a slot whose version the HDD does not have.
//! - **Outqueue**: the list of pages that recently left the SSD or were not admitted. CAC keeps their access
//!   counts, to estimate what an SSD copy would save.
//! - **Recovery LSN**: the first LSN that a page got since it was last clean; redo needs the log from there.
//! - **Retired**: of a slot: given up, and free once a newer version of its page is durable elsewhere.
//! - **Ring**: the doublewrite ring, a small area on the SSD, in a file of its own, or on the HDD beside the
//!   manifest. Pages pass through it on their way home, so that a torn write can be repaired.
//! - **Slot**: the place of one page on the SSD.
//! - **Space**: a named group of pages, numbered from 0.
//! - **Stamp**: the number of a physical write of a page, larger than that of each earlier one. Of two copies
//!   of a page, the one with the larger stamp is newer.
//! - **Tier**: memory, SSD or HDD.
//! - **Zone**: the part of the SSD whose slots are evicted and written next. A recovery reads it, because
//!   only its slots may differ from the last checkpoint of the SSD's map.

#![forbid(unsafe_code)]

pub mod backup;
pub mod blocking;
mod config;
pub mod device;
mod error;
mod hot;
pub mod inspect;
mod manifest;
mod observe;
mod open;
mod ownership;
mod spaces;
mod ssd;
mod store;
mod tuning;
mod volume;

#[doc = include_str!("../docs/embedding.md")]
pub mod guide {}

#[doc = include_str!("../docs/operating.md")]
pub mod operating {}

/// The types of [`LogGate`]'s methods and of [`PageStore::record_log`].
pub mod log {
    pub use pagetier_bufpool::{GateError, GateFuture};
    pub use pagetier_page::{LogMark, LogNeeds};
}

/// What errors are made of: their causes, and what to do about them.
pub mod errors {
    pub use crate::config::bytes::BytesError;
    pub use crate::error::{Advice, HotSetError, PoolSizeError};
    pub use crate::ownership::gate::GatePanic;
    pub use pagetier_bufpool::{Exhausted, PoolError, TierError};
    pub use pagetier_devio::Causes;
    pub use pagetier_page::{Defect, PageSizeError};
    pub use pagetier_ssdcache::{OpenError as SsdOpenError, ReadmitError, SsdTooSmall};
}

/// The policies: their options, and how to add one of your own.
///
/// A policy decides which page leaves memory ([`FramePolicy`](policy::FramePolicy)) or which pages the SSD
/// holds ([`SlotPolicy`](policy::SlotPolicy)). Choose one with [`Builder::pool_policy`] and
/// [`Builder::ssd_policy`], by name or by value. For one of your own, implement the trait and a factory,
/// check it with `pagetier_testing::conformance`, and pass [`PoolPolicy::Custom`] or
/// [`SsdPolicy::Custom`]. A bad policy costs speed, never data. `examples/own_policy.rs` is a whole one.
pub mod policy {
    pub use pagetier_policy::pool::Gd2lOptions;
    pub use pagetier_policy::ssd::{Alpha, AutoOptions, CacOptions, SsdSetting};
    pub use pagetier_policy::{
        Access, Catalogue, Cause, CleanReason, FrameId, FramePolicy, FramePolicyParams, FrameState,
        GroupStats, GroupWidth, Millis, NotANumber, PageCounts, PolicyChoice, PoolPolicyFactory, SlotId,
        SlotPolicy, SlotPolicyParams, SlotReport, SsdPolicyFactory, StateOf, UnknownPolicy, Usable, Verdict,
        ZonePercent, register,
    };
}

/// Options that are one of several: where devices and manifest are, what a creation may overwrite, where
/// costs come from. Each is an argument of a method of [`Builder`].
pub mod options {
    pub use crate::config::choices::{CostSource, Create, ManifestPlace, OnHdd, Place};
}

/// Reading every copy of every page, and repairing what can be: [`PageStore::scrub`].
pub mod scrub {
    pub use crate::observe::scrub::{Scrub, ScrubFinding, ScrubOptions, ScrubProgress, ScrubReport};
}

/// What a running store tells of itself: [`PageStore::stats`], [`PageStore::why`] and their exports.
pub mod stats {
    #[cfg(feature = "metrics")]
    pub use crate::observe::MetricsExport;
    pub use crate::observe::{
        ChoiceSummary, ClassSummary, DeviceSummary, DirSummary, GroupFactor, LiveStats, MemorySummary,
        PageWhy, PoolSummary, SpacePages, SsdSummary, StatsExport, StatsExportError, StatsSummary,
    };
    pub use crate::store::headroom::Headroom;
    pub use crate::store::hot_state::HotSetStats;
    pub use crate::store::stats::Stats;
    pub use pagetier_bufpool::{PoolMemory, PoolResidency, PoolStats};
    pub use pagetier_ssdcache::{BudgetStats, FreeSlots, HomeWrites, SlotCounts, SsdState, TierStats};
}

/// What more memory or SSD would save: [`PageStore::what_if`] and [`PageStore::trace`].
pub mod what_if {
    pub use crate::store::handles::{Estimates, Trace};
    pub use crate::tuning::what_if::WhatIfOptions;
    pub use pagetier_bufpool::TraceSummary;
    pub use pagetier_ghost::{SampleSummary, WhatIf, WhatIfCost};
}

pub use config::builder::Builder;
pub use config::bytes::parse_bytes;
pub use config::calibrate::calibrate;
pub use config::options::Options;
pub use config::sizes::{frames_for, pool_bytes_for, ssd_bytes_for};
pub use error::{Error, OpenError};
pub use hot::HotSetReport;
pub use manifest::memory::MemoryManifest;
/// The embedder's log, as the store calls it. Its contract stands below this example: a log with group
/// commit, which its engine and the store share. The [`guide`] continues with segments, redo, checkpoints and
/// backups.
///
#[doc = include_str!("log_gate.md")]
pub use pagetier_bufpool::LogGate;
pub use pagetier_page::{Lsn, PageId, PageSize, SpaceId};
pub use pagetier_policy::pool::Retention;
pub use pagetier_policy::{Costs, Location, PoolPolicy, SsdPolicy};
#[cfg(feature = "probes")]
#[doc(hidden)]
pub use pagetier_ssdcache::Moment;
pub use pagetier_ssdcache::{
    DrainProgress, DrainReport, ReadmitReport, RecoveryProgress, RecoveryReport, SsdEvent, SsdMode,
};
pub use ssd::exchange::{DrainOptions, SsdEvents};
pub use store::guards::{PageMut, PageRef, Scan};
pub use store::handles::{HotSet, Policies, Spaces, Ssd};
pub use store::owned::{OwnedPageMut, OwnedPageRef, OwnedScan};
pub use store::page_store::PageStore;
pub use store::pages::Pages;
pub use store::store_wide::Loss;
pub use volume::loss::{LostPages, SsdLoss};
pub use volume::space_hints::SpaceHints;
pub use volume::table::SpaceInfo;

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
