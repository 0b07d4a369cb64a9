//! What an engine hints for a space.

use pagetier_page::SpaceId;
use pagetier_policy::pool::{PoolHints, Retention};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// Hints for a space: the store treats its pages differently from what the policies would decide. See
/// [`Spaces::set_hints`](crate::Spaces::set_hints). By default there are none.
///
/// ```
/// use pagetier::{Retention, SpaceHints};
///
/// // A tree's inner pages; an archive that reports read from end to end, in a bounded part of the pool.
/// let inner = SpaceHints::new().retention(Retention::KeepInMemory);
/// let archive = SpaceHints::new().retention(Retention::ScanOnly).never_to_ssd(true).frames_max(256);
/// assert_eq!(archive.frames_max, Some(256));
/// # let _ = inner;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SpaceHints {
    /// How long its pages stay in memory, compared with others.
    pub retention: Retention,
    /// Whether its pages get no copies on the SSD.
    pub never_to_ssd: bool,
    /// The maximum number of frames that hold its pages, at least 1; `None`: any number.
    pub frames_max: Option<u64>,
}

impl SpaceHints {
    /// No hints: the policies decide.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How long its pages stay in memory, compared with others. Default: as the pool's policy decides.
    #[must_use]
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Keeps its pages off the SSD: changed ones go home, and clean ones that leave memory get no copy.
    /// Existing copies are removed in the background; only copies are written home first. On their way home,
    /// changed pages pass through the doublewrite ring, which is also on the SSD. Default: the SSD's policy
    /// decides.
    #[must_use]
    pub fn never_to_ssd(mut self, never: bool) -> Self {
        self.never_to_ssd = never;
        self
    }

    /// A quota: at most `frames` frames hold its pages, or one if that is 0. A frame is a page of the pool
    /// ([`crate::stats::Stats::frames`]). At the quota, the page of the space that was used longest ago
    /// makes room for the next. No request fails because of it. If all of those pages are dirty or being
    /// read, a request waits up to 100 ms for one. After that, or if writes fail, or if guards pin all
    /// pages, it takes a frame beyond the quota. Threads that request pages of the space at the same instant
    /// may also exceed it. Later requests give such frames back. Default: no quota.
    #[must_use]
    pub fn frames_max(mut self, frames: u64) -> Self {
        self.frames_max = Some(frames);
        self
    }

    pub(crate) fn for_pool(self) -> PoolHints {
        let Self { retention, frames_max, .. } = self;
        PoolHints { retention, frames_max: frames_max.map(|max| usize::try_from(max).unwrap_or(usize::MAX)) }
    }
}

/// The hints of all spaces. Its lock precedes all others that are not held across an `.await`: pool and tier
/// are informed of the hints under it.
pub(crate) type AllHints = parking_lot::Mutex<FxHashMap<SpaceId, SpaceHints>>;
