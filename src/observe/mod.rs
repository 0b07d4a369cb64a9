//! What an operator sees of a running store: a summary of its statistics, exports of it, the reasons for a
//! page's place, and scrubs. The counters themselves are kept where they are counted (`store::stats`).
//!
//! Begin with `summary`.

mod export;
mod methods;
#[cfg(feature = "metrics")]
mod metrics;
pub(crate) mod scrub;
mod show;
mod summary;
mod why;

pub use export::{LiveStats, SpacePages, StatsExport, StatsExportError};
#[cfg(feature = "metrics")]
pub use metrics::MetricsExport;
pub use summary::{
    ChoiceSummary, ClassSummary, DeviceSummary, DirSummary, MemorySummary, PoolSummary, SsdSummary,
    StatsSummary,
};
pub use why::{GroupFactor, PageWhy};
