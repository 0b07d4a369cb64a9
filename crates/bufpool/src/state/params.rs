//! Sizes, errors and counters of a pool.

use crate::feed::hits::HitBuffers;
use crate::state::exhausted::Exhausted;
use crate::tier::TierError;
use pagetier_page::{HEADER_BYTES, PageId, PageSize};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The configuration of a pool. These numbers bound all its resources.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PoolParams {
    /// The number of frames.
    pub frames: usize,
    /// The number of frames to which [`Pool::resize`](crate::Pool::resize) can grow the pool. The pool
    /// reserves address space for them, but no memory. Default: as many as fit into the machine's memory.
    pub frames_max: usize,
    /// The size of a page.
    pub page_size: PageSize,
    /// The maximum number of staged copies of dirty pages: each takes a page of memory.
    pub staging: usize,
    /// The number of next victims that are kept clean.
    pub clean_depth: usize,
    /// The maximum number of pages in a cleaner batch.
    pub clean_batch: usize,
    /// The maximum number of cleaner batches in flight.
    pub clean_batches: usize,
    /// The maximum number of pages per read-ahead; 0 disables automatic read-ahead.
    pub read_ahead_pages: usize,
    /// How long a request waits for a frame when all are pinned or dirty, before [`PoolError::Exhausted`].
    /// Time in which the process was stopped does not count.
    pub exhausted_after: Duration,
    /// The maximum span of log, in LSN units, that redo may have to process: older changes are written out.
    /// `None`: only `flush_to` bounds it.
    pub redo_span_max: Option<u64>,
}

/// What [`PoolError::Fenced`] says.
pub const FENCED: &str = "another owner has the volume, or may have it";

/// The memory per frame besides its page, in bytes: its metadata, and at most four heads of chains in the
/// page table.
pub const FRAME_OVERHEAD_BYTES: usize = size_of::<crate::frames::frame::Frame>() + 16;

/// The memory of a pool of any size, in bytes: hit buffers, and the locks of the page table.
fn overhead_bytes() -> usize {
    HitBuffers::memory_bytes().next_multiple_of(4 << 10) + (4 << 10)
}

/// The minimum number of frames: a few guards held at once, and one frame to load into.
pub const FRAMES_MIN: usize = 16;

impl PoolParams {
    /// Default parameters for `frames` frames.
    #[must_use]
    pub fn new(frames: usize, page_size: PageSize) -> Self {
        Self {
            frames,
            frames_max: frames.max(machine_frames(page_size)),
            page_size,
            staging: staging_for(frames),
            clean_depth: (frames / 64).clamp(4, 256),
            clean_batch: (frames / 128).clamp(4, 64),
            clean_batches: staging_for(frames),
            read_ahead_pages: (frames / 16).clamp(4, 32),
            exhausted_after: Duration::from_secs(10),
            redo_span_max: None,
        }
    }

    /// Parameters for the number of frames that fit into `bytes`, including their metadata, `policy_bytes`
    /// each for the policy, and the staged copies.
    #[must_use]
    pub fn for_budget(bytes: u64, page_size: PageSize, policy_bytes: usize) -> Self {
        let per_frame = (page_size.bytes() + FRAME_OVERHEAD_BYTES + policy_bytes) as u64;
        let mut frames = usize::try_from(bytes / per_frame).unwrap_or(usize::MAX);
        while frames > 0 && Self::bytes_for(frames, page_size, policy_bytes) > bytes {
            let over = Self::bytes_for(frames, page_size, policy_bytes) - bytes;
            frames = frames.saturating_sub((over / per_frame).max(1) as usize);
        }
        Self::new(frames, page_size)
    }

    /// The parameters for a pool of another size. Each parameter that has its default for the present number
    /// of frames gets its default for the new one.
    #[must_use]
    pub(crate) fn resized(&self, frames: usize) -> Self {
        let (before, after) = (Self::new(self.frames, self.page_size), Self::new(frames, self.page_size));
        let follow = |size: fn(&Self) -> usize| {
            if size(self) == size(&before) { size(&after) } else { size(self) }
        };
        Self {
            frames,
            staging: follow(|p| p.staging),
            clean_depth: follow(|p| p.clean_depth),
            clean_batch: follow(|p| p.clean_batch),
            clean_batches: follow(|p| p.clean_batches),
            read_ahead_pages: follow(|p| p.read_ahead_pages),
            ..*self
        }
    }

    /// The number of evictions after which the cleaner looks for work. Each brings the dirty pages closer to
    /// their turn. At a quarter of the depth that is kept clean, the cleaner has time to restore it before a
    /// request meets a dirty victim.
    pub(crate) fn evictions_per_look(&self) -> u64 {
        (self.clean_depth as u64 / 4).max(1)
    }

    /// The memory of a pool of `frames` frames, in bytes.
    #[must_use]
    pub fn bytes_for(frames: usize, page_size: PageSize, policy_bytes: usize) -> u64 {
        let pages = frames.saturating_add(staging_for(frames)).saturating_mul(page_size.bytes());
        let rest = frames.saturating_mul(FRAME_OVERHEAD_BYTES + policy_bytes);
        let unwritten = crate::frames::unwritten::bytes_for(frames)
            + crate::frames::writing::bytes_for(staging_for(frames));
        pages.saturating_add(rest).saturating_add(unwritten).saturating_add(overhead_bytes()) as u64
    }

    /// The memory of the machine, in bytes, swap included: no larger pool can work.
    #[must_use]
    pub fn machine_bytes() -> u64 {
        let system = rustix::system::sysinfo();
        let units = u128::from(system.totalram) + u128::from(system.totalswap);
        u64::try_from(units * u128::from(system.mem_unit)).unwrap_or(u64::MAX)
    }

    /// The bytes of a page that the embedder can use.
    pub fn payload_bytes(&self) -> usize {
        self.page_size.bytes() - HEADER_BYTES
    }
}

/// The maximum of [`PoolParams::staging`] by default.
pub(crate) const STAGING_MAX: usize = 256;

/// The maximum number of frames: their ids leave a bit for a mark.
const FRAMES_MAX: usize = 1 << 30;

fn staging_for(frames: usize) -> usize {
    (frames / 32).clamp(4, STAGING_MAX)
}

/// The number of frames that fit into the machine's memory.
fn machine_frames(page_size: PageSize) -> usize {
    let system = rustix::system::sysinfo();
    let bytes = (system.totalram as usize).saturating_mul(system.mem_unit as usize);
    (bytes / page_size.bytes()).min(FRAMES_MAX)
}

/// Why a pool operation failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The storage below failed.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// Every frame stayed pinned or dirty for the allowed time.
    #[error("no frame available for page {page}: of {frames} frames none became free in {waited:.1?}: {why}")]
    Exhausted {
        /// The requested page.
        page: PageId,
        /// The number of frames in the pool.
        frames: usize,
        /// How long the request waited.
        waited: Duration,
        /// Why no frame became free.
        why: Box<Exhausted>,
    },
    /// The task waits for the latch of a page of which it holds a guard itself, and would wait forever. Only
    /// debug builds detect this, after 5 s.
    #[error("the task that waits for page {page} holds a guard of it itself: drop that one first")]
    Deadlock {
        /// The page of which the task already holds a guard.
        page: PageId,
    },
    /// The embedder's log could not be made durable, so the page may not be written.
    #[error("the log could not be made durable, so page {page} was not written")]
    Log {
        /// A page that required it.
        page: PageId,
        /// The gate's error.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The pool could not shrink further: the other frames stayed pinned or dirty for the allowed time. It
    /// keeps the size that it has reached.
    #[error(
        "the pool stays at {frames} frames instead of {wanted}: no other became free in {waited:.1?}: {why}"
    )]
    Shrink {
        /// The number of frames that the pool has.
        frames: usize,
        /// The number of frames requested.
        wanted: usize,
        /// How long it waited for the next frame.
        waited: Duration,
        /// Why no frame became free.
        why: Box<Exhausted>,
    },
    /// This process was forked from the one that opened the pool.
    #[error(
        "process {opened_by} opened the store, from which this process was forked; open it after the fork"
    )]
    Forked {
        /// The id of the process that opened the pool.
        opened_by: u32,
    },
    /// Another owner has taken the pages' volume over, or may have: what is in memory may be outdated.
    #[error("{FENCED}")]
    Fenced,
    /// The pool was shut down.
    #[error("the pool is closed")]
    Closed,
    /// The system did not provide the frames' memory.
    #[error("the system provides no memory for the pool's frames: {0}")]
    Memory(Arc<std::io::Error>),
}

/// Declares the counters of a pool once: as a snapshot, and as the atomics that the pool counts with.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A snapshot of a pool's counters since its creation. `hits + misses` is the number of lookups.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
        #[non_exhaustive]
        pub struct PoolStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The pool's counters, without what [`HitBuffers`](crate::feed::hits::HitBuffers) count.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> PoolStats {
                PoolStats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Lookups that found the page in memory (loaded, or being loaded by another task).
    hits,
    /// Lookups that had to read the page.
    misses,
    /// Demand reads that came from the SSD.
    loads_ssd,
    /// Demand reads that came from the HDD.
    loads_hdd,
    /// Pages read by read-ahead.
    prefetched,
    /// Pages created in memory, without a read.
    created,
    /// Frames taken from other pages.
    evictions,
    /// Dirty pages written because their replacement was near.
    written_replacement,
    /// Dirty pages written for `sync`, `flush_to` or to bound redo.
    written_recoverability,
    /// The written pages that went to the SSD.
    written_ssd,
    /// Writes that failed; the pages stayed dirty.
    write_errors,
    /// Hits that the policy missed because its lock was taken.
    hits_lost,
    /// Requests that waited for a frame.
    waited_for_frame,
}

/// The memory of a pool by part, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct PoolMemory {
    /// The pages themselves, one per frame.
    pub frames: u64,
    /// Metadata, page table and hit buffers, for the largest size that the pool ever had.
    pub metadata: u64,
    /// The maximum memory for staged copies.
    pub staging: u64,
    /// What the store's budget sets aside for the pool's policy. A pool does not know it.
    #[serde(default)]
    pub policy: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_number_of_frames_unless_they_were_set() {
        let params = PoolParams { clean_batch: 9, read_ahead_pages: 0, ..PoolParams::new(64, PageSize::MIN) };
        let large = params.resized(64_000);
        let default = PoolParams::new(64_000, PageSize::MIN);
        assert_eq!(large, PoolParams { clean_batch: 9, read_ahead_pages: 0, ..default });
        assert_eq!(large.resized(64), params);
    }

    #[test]
    fn every_part_of_a_frame_counts() {
        let bytes = |frames, policy| PoolParams::bytes_for(frames, PageSize::MIN, policy);
        for frames in [16, 1000] {
            let pages = (frames + staging_for(frames)) * PageSize::MIN.bytes();
            let rest = frames * FRAME_OVERHEAD_BYTES + crate::frames::unwritten::bytes_for(frames);
            let writing = crate::frames::writing::bytes_for(staging_for(frames));
            let all = pages + rest + writing + overhead_bytes();
            assert_eq!(bytes(frames, 0), all as u64);
            assert_eq!(bytes(frames, 24), bytes(frames, 0) + 24 * frames as u64);
        }
    }
}
