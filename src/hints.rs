//! The hints of an engine for single spaces.

use crate::error::Error;
use crate::shared::Shared;
use crate::spaces::Spaces;
use crate::volume::SpaceInfo;
use pagetier_page::SpaceId;
use pagetier_policy::pool::{PoolHints, Retention};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// Hints for a space: the store treats its pages differently from what the policies would decide. See
/// [`Spaces::set_hints`]. By default there are none.
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
    /// No hints.
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
    /// ([`crate::Stats::frames`]). At the quota, the page of the space that was used longest ago makes room
    /// for the next.  No request fails because of it. If all of those pages are dirty or being read, a
    /// request waits up to 100 ms for one. After that, or if writes fail, or if guards pin all pages, it
    /// takes a frame beyond the quota. Threads that request pages of the space at the same instant may also
    /// exceed it. Later requests give such frames back. Default: no quota.
    #[must_use]
    pub fn frames_max(mut self, frames: u64) -> Self {
        self.frames_max = Some(frames);
        self
    }

    fn for_pool(self) -> PoolHints {
        let Self { retention, frames_max, .. } = self;
        PoolHints { retention, frames_max: frames_max.map(|max| usize::try_from(max).unwrap_or(usize::MAX)) }
    }
}

/// The hints of all spaces. Its lock precedes all others that are not held across an `.await`: pool and tier
/// are informed of the hints under it.
pub(crate) type AllHints = parking_lot::Mutex<FxHashMap<SpaceId, SpaceHints>>;

impl Spaces<'_> {
    /// Replaces the hints of `space`. Pool and SSD apply them at once; copies of a space that is kept off the
    /// SSD are removed in the background, until [`crate::TierStats::leaving`] is 0. Misses wait meanwhile,
    /// some milliseconds per ten thousand pages in memory.
    ///
    /// Hints do not affect what is durable. They hold under every policy, for any size of the pool and any
    /// SSD, until the space is removed or the store is closed: an engine sets them after each opening. A
    /// recovery may find copies that had been removed from the SSD; they are then removed again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let temporary = tempfile::tempdir()?;
    /// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
    /// use pagetier::{Retention, SpaceHints};
    ///
    /// let store = builder.open().await?;
    /// let archive = store.spaces().create("archive").await?;
    /// let hints = SpaceHints::new().retention(Retention::ScanOnly).never_to_ssd(true).frames_max(100);
    /// store.spaces().set_hints(archive, hints)?;
    ///
    /// let listed = &store.spaces().list()[0];
    /// assert_eq!((listed.hints, listed.frames), (hints, Some(0)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The space does not exist, or the store is closed.
    pub fn set_hints(self, space: SpaceId, hints: SpaceHints) -> Result<(), Error> {
        let shared = &self.0.shared;
        let _operation = shared.ending.enter()?;
        let mut all = shared.hints.lock();
        // Under the lock: a removal that has begun forgets the hints later.
        self.pages(space)?;
        if hints == SpaceHints::default() {
            all.remove(&space);
        } else {
            all.insert(space, hints);
        }
        shared.pool.set_hints(space, hints.for_pool());
        shared.tier.keep_off(space, hints.never_to_ssd);
        drop(all);
        tracing::info!(%space, ?hints, "the space's hints");
        Ok(())
    }

    /// The hints of `space`.
    ///
    /// # Errors
    /// The space does not exist.
    pub fn hints(self, space: SpaceId) -> Result<SpaceHints, Error> {
        self.pages(space)?;
        Ok(self.0.shared.hints_of(space))
    }
}

impl Shared {
    pub(crate) fn hints_of(&self, space: SpaceId) -> SpaceHints {
        self.hints.lock().get(&space).copied().unwrap_or_default()
    }

    /// Forgets the hints of `space`, which is being dropped and has no page in memory or on the SSD.
    pub(crate) fn forget_hints(&self, space: SpaceId) {
        let mut all = self.hints.lock();
        if all.remove(&space).is_some() {
            self.pool.set_hints(space, PoolHints::default());
            self.tier.keep_off(space, false);
        }
    }

    /// The spaces, each with its hints.
    pub(crate) fn spaces_with_hints(&self) -> Vec<SpaceInfo> {
        let mut spaces = self.volume.list();
        for space in &mut spaces {
            space.hints = self.hints_of(space.id);
            space.frames = self.pool.frames_of(space.id).map(|frames| frames as u64);
        }
        spaces
    }
}
