//! Every decision of the page store: which frame the buffer pool replaces, which page is worth an SSD slot.
//!
//! Pure: no locks, clocks, I/O or async; time, costs and randomness are arguments. The same code runs in the
//! store, in the trace replay and in the property tests.

#![forbid(unsafe_code)]

mod ageing;
mod casa;
mod ccf_lru;
mod cfdc;
mod cflru;
mod clusters;
mod cost_based;
mod dirty_slots;
mod doublewrite;
mod gd2l;
mod gd2l_weighted;
mod greedy_dual;
mod groups;
#[cfg(feature = "hostile")]
mod hostile;
mod links;
mod lru;
mod lru2;
mod lru_wsr;
mod mv_fifo;
mod names;
mod no_ssd;
mod page_index;
mod page_stats;
pub mod parse;
mod placement;
mod pool;
mod queues;
mod ref_window;
mod sawc;
mod sketch;
mod slot_table;
mod ssd;
mod tac;
mod tournament;
mod types;
mod window;
mod zone;
mod zoned_slots;

pub use ageing::Ageing;
pub use casa::Casa;
pub use ccf_lru::CcfLru;
pub use cfdc::Cfdc;
pub use cflru::Cflru;
pub use clusters::{CLUSTER_PAGES, CLUSTER_PAGES_MAX};
pub use cost_based::{
    Anticipating, Cac, CacAged, CacAgedWrite, CacAgedWriteRewrite, CacAgedWriteRewriteSketch, CacDirty,
    CacParams, CacRewrite, CacSketch, CacWrite, Cc, CostBased, Observed,
};
pub use doublewrite::Doublewrite;
pub use gd2l::Gd2l;
pub use gd2l_weighted::Gd2lWeighted;
pub use greedy_dual::{FREQUENCY_MAX, GreedyDual, Weights};
pub use groups::Dropped;
#[cfg(feature = "hostile")]
#[doc(hidden)]
pub use hostile::{HostilePool, HostileSsd};
pub use lru::{Lru, MidpointLru, OneQueue};
pub use lru_wsr::LruWsr;
pub use lru2::Lru2;
pub use mv_fifo::{MvFifo, VersionQueue};
pub use names::{POOL_POLICIES, PoolPolicyParams, SSD_POLICIES, pool_policy, ssd_policy};
pub use no_ssd::NoSsd;
pub use placement::{PageLoad, Placed, Placement, optimal_placement, placed_cost_ms, two_step_placement};
pub use pool::{FrameState, LOOK_FACTOR, PoolPolicy};
pub use ref_window::Ref;
pub use sawc::Sawc;
pub(crate) use ssd::LOOK_MAX;
pub use ssd::{Cause, GroupStats, PageCounts, SsdPolicy, Verdict};
pub use tac::Tac;
pub use types::{Access, CleanReason, Costs, FrameId, Home, Millis, PageId, SlotId, SpaceId};
pub use window::WindowPercent;
