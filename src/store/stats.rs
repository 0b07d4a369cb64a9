//! A snapshot of all counters.

use super::headroom::Headroom;
use super::hot_state::HotSetStats;
use super::shared::Shared;
use crate::config::sizes::FRAME_POLICY_BYTES;
use pagetier_bufpool::{PoolMemory, PoolStats};
use pagetier_devio::DeviceStats;
use pagetier_policy::PolicyChoice;
use pagetier_ssdcache::TierStats;

/// Counters since the store was opened, and current sizes. The difference of two snapshots describes the
/// interval between them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The buffer pool; `hits + misses` is the number of lookups.
    pub pool: PoolStats,
    /// The pool's memory by part, in bytes.
    pub pool_memory: PoolMemory,
    /// The SSD cache.
    pub ssd: TierStats,
    /// The HDD, by class of I/O.
    pub hdd_device: DeviceStats,
    /// The SSD (or the ring's file), by class of I/O.
    pub ssd_device: DeviceStats,
    /// The backend that serves the HDD: `uring`, `threads`, `emulated`, …
    pub io_backend: &'static str,
    /// The number of frames in the pool.
    pub frames: u64,
    /// The store's space for growth, and which parts of it are low.
    pub room: Headroom,
    /// The hot set that the store keeps, and how far it has warmed up from it.
    pub hot_set: HotSetStats,
    /// The setting that the pool's policy follows, and the simulated cost of each setting; `None` if the
    /// policy does not adapt.
    pub pool_choice: Option<PolicyChoice>,
    /// The same for the SSD's policy.
    pub ssd_choice: Option<PolicyChoice>,
}

impl Stats {
    pub(crate) fn of(shared: &Shared) -> Self {
        let frames = shared.pool.params().frames as u64;
        let mut pool_memory = shared.pool.memory();
        pool_memory.policy = frames * FRAME_POLICY_BYTES as u64;
        Self {
            pool: shared.pool.stats(),
            pool_memory,
            ssd: shared.tier.stats(),
            hdd_device: shared.tier.hdd_device().stats(),
            ssd_device: shared.tier.ssd_device().stats(),
            io_backend: shared.hdd.backend(),
            frames,
            room: shared.room(),
            hot_set: shared.hot.stats(),
            pool_choice: shared.pool.choice(),
            ssd_choice: shared.tier.ask(|slots| slots.policy().choice()),
        }
    }

    /// The memory that the store's budget covers, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let pool = &self.pool_memory;
        pool.frames + pool.metadata + pool.staging + pool.policy + self.ssd.memory_bytes
    }
}
