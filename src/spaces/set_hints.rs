//! The hints of an engine for single spaces.

use crate::error::Error;
use crate::store::handles::Spaces;
use crate::store::shared::Shared;
use crate::volume::space_hints::SpaceHints;
use crate::volume::table::SpaceInfo;
use pagetier_page::SpaceId;
use pagetier_policy::pool::Retention;

impl Spaces<'_> {
    /// Replaces the hints of `space`. Pool and SSD apply them at once; copies of a space that is kept off
    /// the SSD are removed in the background, until [`crate::stats::TierStats::leaving`] is 0. The call
    /// blocks misses for a few milliseconds per 10,000 resident pages.
    ///
    /// Hints do not affect what is durable. They hold under every policy, for any size of the pool and any
    /// SSD, until the space is dropped or the store is closed: an engine sets them after each open. A
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
    /// let hints = SpaceHints::new().retention(Retention::ScanOnly).never_to_ssd(true);
    /// store.spaces().set_hints(archive, hints)?;
    ///
    /// assert_eq!(store.spaces().list()[0].hints, hints);
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
        // Under the lock: a drop that has begun forgets the hints later.
        self.pages(space)?;
        if hints == SpaceHints::default() {
            all.remove(&space);
        } else {
            all.insert(space, hints);
        }
        // Under the lock: of two calls at once, pool, SSD and the table must all end with the same one.
        shared.pool.set_retention(space, hints.retention);
        shared.tier.keep_off(space, hints.never_to_ssd);
        drop(all);
        tracing::info!(%space, ?hints, "the space has new hints");
        Ok(())
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
            self.pool.set_retention(space, Retention::Usual);
            self.tier.keep_off(space, false);
        }
    }

    /// The spaces, each with its hints.
    pub(crate) fn spaces_with_hints(&self) -> Vec<SpaceInfo> {
        let mut spaces = self.volume.list();
        for space in &mut spaces {
            space.hints = self.hints_of(space.id);
        }
        spaces
    }
}
