//! The parameters that pool policies are built from.

use crate::Costs;

/// The default number of pages per cluster.
pub const CLUSTER_PAGES: u32 = 64;
/// The maximum number of pages per cluster: products of sizes, distances and times then fit in 128 bits.
pub const CLUSTER_PAGES_MAX: u32 = 1 << 16;

/// The parameters that a pool policy is built from. Each policy uses those that apply to it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FramePolicyParams {
    /// Frames of the pool.
    pub frames: usize,
    /// Device costs.
    pub costs: Costs,
    /// Pages per cluster (REF: per block), at most [`CLUSTER_PAGES_MAX`](crate::CLUSTER_PAGES_MAX). Default:
    /// 64. With pages of 16 KiB that is 1 MiB: the size of a flash erase block, and of an extent that a disk
    /// writes in about the time of a seek.
    pub cluster_pages: u32,
}

impl FramePolicyParams {
    /// The defaults for a pool of `frames` frames.
    #[must_use]
    pub const fn new(frames: usize, costs: Costs) -> Self {
        Self { frames, costs, cluster_pages: CLUSTER_PAGES }
    }
}
