//! Sizes, errors and counters of a pool.

use crate::tier::TierError;
use pagetier_page::{HEADER_BYTES, PageId, PageSize};
use std::sync::Arc;
use std::time::Duration;

/// How a pool is made. Everything in it is bounded by these numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PoolParams {
    /// Pages in memory.
    pub frames: usize,
    /// The size of a page.
    pub page_size: PageSize,
    /// Copies of dirty pages being written, at most: each takes a page of memory.
    pub staging: usize,
    /// How many of the next victims are kept clean.
    pub clean_depth: usize,
    /// Pages of one cleaner batch, at most.
    pub clean_batch: usize,
    /// Cleaner batches in flight, at most.
    pub clean_batches: usize,
    /// Pages that one read-ahead brings, at most; 0 turns automatic read-ahead off.
    pub read_ahead_pages: usize,
    /// How long a request waits for a frame when all are pinned or dirty, before [`PoolError::Exhausted`].
    pub exhausted_after: Duration,
    /// The span of log, in LSN units, that redo may have to go through: older changes are written out.
    /// `None`: no bound beyond what `flush_to` is asked for.
    pub redo_span_max: Option<u64>,
}

/// Beside its page, a frame takes this much for its metadata and its place in the page table, in bytes.
pub const FRAME_OVERHEAD_BYTES: usize = size_of::<crate::frame::Frame>() + 16;

/// The fewest frames that a pool works with: a few guards held at once, and one to load into.
pub const FRAMES_MIN: usize = 16;

impl PoolParams {
    /// Sensible numbers for `frames` frames.
    #[must_use]
    pub fn new(frames: usize, page_size: PageSize) -> Self {
        Self {
            frames,
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

    /// For as many frames as fit into `bytes` with their metadata, `policy_bytes` each for the policy, and
    /// the staging copies.
    #[must_use]
    pub fn for_budget(bytes: u64, page_size: PageSize, policy_bytes: usize) -> Self {
        let per_frame = (page_size.bytes() + FRAME_OVERHEAD_BYTES + policy_bytes) as u64;
        let mut frames = (bytes / per_frame) as usize;
        while frames > 0 && Self::bytes_for(frames, page_size, policy_bytes) > bytes {
            let over = Self::bytes_for(frames, page_size, policy_bytes) - bytes;
            frames = frames.saturating_sub((over / per_frame).max(1) as usize);
        }
        Self::new(frames, page_size)
    }

    /// The memory that a pool of `frames` frames takes, in bytes.
    #[must_use]
    pub fn bytes_for(frames: usize, page_size: PageSize, policy_bytes: usize) -> u64 {
        let pages = (frames + staging_for(frames)) * page_size.bytes();
        (pages + frames * (FRAME_OVERHEAD_BYTES + policy_bytes)) as u64
    }

    /// The bytes of a page that the embedder sees.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.page_size.bytes() - HEADER_BYTES
    }
}

fn staging_for(frames: usize) -> usize {
    (frames / 32).clamp(4, 256)
}

/// Why the pool could not do it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The storage below failed.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// Every frame stayed pinned or dirty for the time allowed. Retry with fewer guards held, or give the
    /// pool more memory.
    #[error("no frame became free for page {page} in {waited:?}: all {frames} are pinned or dirty")]
    Exhausted {
        /// The page that was asked for.
        page: PageId,
        /// The pool's frames.
        frames: usize,
        /// How long the request waited.
        waited: Duration,
    },
    /// The embedder's log could not be made durable, so the page may not be written.
    #[error("the log could not be made durable for page {page}: {source}")]
    Log {
        /// A page that needed it.
        page: PageId,
        /// The gate's error.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The pool was shut down.
    #[error("the pool is closed")]
    Closed,
    /// The frames' memory could not be had.
    #[error("no memory for the pool: {0}")]
    Memory(Arc<std::io::Error>),
}

/// A snapshot of a pool's counters since it was made. `hits + misses` is the number of look-ups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PoolStats {
    /// Look-ups that found the page in memory (loaded, or being loaded by another task).
    pub hits: u64,
    /// Look-ups that had to read the page.
    pub misses: u64,
    /// Demand reads that came from the SSD.
    pub loads_ssd: u64,
    /// Demand reads that came from the HDD.
    pub loads_hdd: u64,
    /// Pages brought by read-ahead.
    pub prefetched: u64,
    /// Pages created.
    pub created: u64,
    /// Frames given up for other pages.
    pub evictions: u64,
    /// Dirty pages written because they were about to be replaced.
    pub written_replacement: u64,
    /// Dirty pages written for `sync`, `flush_to` or to bound redo.
    pub written_recoverability: u64,
    /// Of the pages written, those that went to the SSD.
    pub written_ssd: u64,
    /// Writes that failed; the pages stayed dirty.
    pub write_errors: u64,
    /// Hits that the policy was not told of, because its lock was taken.
    pub hits_lost: u64,
    /// Requests that waited for a frame.
    pub waited_for_frame: u64,
}

/// The memory of a pool by part, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PoolMemory {
    /// The pages.
    pub frames: u64,
    /// Metadata, page table and hit buffers.
    pub metadata: u64,
    /// Staging copies, at most.
    pub staging: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_frame_counts() {
        let bytes = |frames, policy| PoolParams::bytes_for(frames, PageSize::MIN, policy);
        for frames in [16, 1000] {
            let pages = (frames + staging_for(frames)) * PageSize::MIN.bytes();
            assert_eq!(bytes(frames, 0), (pages + frames * FRAME_OVERHEAD_BYTES) as u64);
            assert_eq!(bytes(frames, 24), bytes(frames, 0) + 24 * frames as u64);
        }
    }
}
