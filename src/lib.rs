//! Pagetier: an embeddable async *hybrid page store* for authors of databases and key-value engines.
//!
//! It has three tiers: a buffer pool in memory (GD2L evicts by the cost of fetching a page again), a
//! write-back cache on SSD (CAC admits by expected benefit and stays warm across a crash), and an HDD, the
//! home of every page.
//!
//! The store needs a tokio runtime for its background tasks and timers; device I/O completes under any
//! runtime.

#![forbid(unsafe_code)]

mod advice;
mod arriving;
mod background;
mod backup;
pub mod blocking;
mod builder;
mod calibrate;
mod changes;
pub mod device;
mod ending;
mod error;
mod free;
mod gate;
mod guards;
mod hints;
mod hot;
mod id;
mod inspect;
mod life;
mod lock;
mod loss;
mod manifest;
mod memory_manifest;
mod meta;
mod observe;
mod online;
mod owned;
mod page_runs;
mod placement;
mod policies;
mod read_only;
mod replace;
mod replace_ssd;
mod resize;
mod room;
mod rules;
mod runs;
mod scrub;
mod shared;
mod shutdown;
mod sizes;
mod spaces;
mod ssd;
mod stats;
mod store;
mod superblock;
mod switch;
mod tail;
mod trace;
mod unproved;
mod volume;
mod what_if;

pub use advice::Advice;
pub use backup::{BackupError, BackupOptions, BackupProgress, BackupReport, RestoreProgress, RestoreReport};
pub use builder::{Builder, Options};
pub use calibrate::calibrate;
pub use error::{Error, OpenError};
pub use guards::{PageMut, PageRef, Scan};
pub use hints::SpaceHints;
pub use hot::{HotSetError, HotSetReport};
pub use inspect::{
    HddInspection, Inspection, JournalInspection, ManifestInspection, MapInspection, SpaceInspection,
    SsdInspection,
};
pub use life::{Drain, SsdEvents};
pub use loss::{LostPages, SsdLoss};
pub use memory_manifest::MemoryManifest;
#[cfg(feature = "metrics")]
pub use observe::MetricsExport;
pub use observe::{
    ChoiceSummary, ClassSummary, DeviceSummary, DirSummary, GroupFactor, LiveStats, MemorySummary, PageWhy,
    PoolSummary, SpacePages, SsdSummary, StatsExport, StatsExportError, StatsSummary,
};
pub use owned::{OwnedPageMut, OwnedPageRef};
pub use pagetier_bufpool::{
    Exhausted, GateError, GateFuture, InMemory, LogGate, PoolError, PoolMemory, PoolStats, Recorded,
    TierError,
};
pub use pagetier_devio::{
    Backend, COST_POINTS, ClassStats, Clock, Device, DeviceError, DeviceErrorKind, DeviceStats, DirStats,
    DirectIo, EmulatedDevice, ErrorCounts, IoClass, IoOp, MemoryDevice, Model, RetryCounts, SharedDevice,
    TimeHistogram,
};
pub use pagetier_ghost::{Cost, Sampled, WhatIf};
pub use pagetier_page::{Defect, Lsn, PageId, PageSize, PageSizeError, SpaceId};
pub use pagetier_policy::pool::{Gd2lOptions, Retention, WindowPercent};
pub use pagetier_policy::ssd::{Ageing, Alpha, CacOptions, EvictionCost};
pub use pagetier_policy::{
    Choice, Costs, GroupStats, Home, PageCounts, PoolPolicy, SsdPolicy, UnknownPolicy,
};
pub use pagetier_ssdcache::{
    BudgetStats, DrainProgress, DrainReport, FreeSlots, Marks, OpenError as SsdOpenError, Progress,
    ReadmitError, ReadmitReport, RecoveryReport, SlotCounts, SsdEvent, SsdMode, SsdState, TierStats,
    TooSmall,
};
#[cfg(feature = "mutations")]
#[doc(hidden)]
pub use pagetier_ssdcache::{Moment, Mutation};
pub use policies::Policies;
pub use replace_ssd::NewSsd;
pub use room::Room;
pub use scrub::{Finding, Scrub, ScrubOptions, ScrubProgress, ScrubReport};
pub use sizes::{frames_for, pool_bytes_for, ssd_bytes_for};
pub use spaces::Spaces;
pub use ssd::Ssd;
pub use stats::Stats;
pub use store::{Loss, PageStore};
pub use trace::Trace;
pub use volume::SpaceInfo;
pub use what_if::{Estimates, WhatIfOptions};

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Compiles and runs the programs of the embedders' guide.
#[cfg(doctest)]
#[doc = include_str!("../docs/embedding.md")]
struct Embedding;

/// Compiles and runs the programs of the operators' guide.
#[cfg(doctest)]
#[doc = include_str!("../docs/operating.md")]
struct Operating;
