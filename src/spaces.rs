//! Creates, grows and drops spaces. A failure or crash between two steps leaves nothing half-done.
//!
//! Additions take effect in memory last: a growth reaches the HDD (durably), then the manifest, then the
//! table that pages are allocated from. Removals are marked in the manifest first; the extents are free once
//! the manifest has ceased to name the space.

use crate::changes::Change;
use crate::error::Error;
use crate::manifest::Manifest;
use crate::meta::Meta;
use crate::rules::{GrowthStep, Rules};
use crate::runs::{OnlyCopies, RUNS_MAX, RUNS_MIN};
use crate::shared::Shared;
use crate::store::PageStore;
use crate::superblock::HddSuperblock;
use crate::volume::SpaceInfo;
use pagetier_devio::locks::OwnedMutexGuard;
use pagetier_devio::{DeviceError, SharedDevice, task};
use pagetier_page::{PageId, SpaceId};
use pagetier_ssdcache::Marks;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The number of bytes of the HDD blanked per write.
const BLANK_BYTES: u64 = 1 << 20;

/// The spaces of a store. See [`PageStore::spaces`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let temporary = tempfile::tempdir()?;
/// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
/// use pagetier::{SpaceHints, SpaceId};
///
/// let store = builder.open().await?;
/// let space = match store.spaces().find("orders") {
///     Some(space) => space,
///     None => store.spaces().create("orders").await?,
/// };
/// assert_eq!(store.spaces().pages(space)?, 0);
/// assert_eq!(store.spaces().list()[0].name, "orders");
/// // Say how the space is used, free pages, and return their room.
/// store.spaces().set_hints(space, SpaceHints::new().frames_max(64))?;
/// assert_eq!(store.spaces().hints(space)?.frames_max, Some(64));
/// store.allocate(space).await?;
/// assert_eq!(store.spaces().free(space, 0..u32::MAX).await?, 1);
/// store.spaces().shrink(space).await?;
/// store.spaces().remove(space).await?;
/// // A restored engine's log names pages by the number of their space.
/// store.spaces().create_as(SpaceId(7), "customers").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Spaces<'a>(pub(crate) &'a PageStore);

impl PageStore {
    /// The spaces: named sequences of pages.
    #[must_use]
    pub fn spaces(&self) -> Spaces<'_> {
        Spaces(self)
    }
}

impl Spaces<'_> {
    /// The space called `name`, if it exists.
    #[must_use]
    pub fn find(self, name: &str) -> Option<SpaceId> {
        self.0.shared.volume.by_name(name)
    }

    /// Every space, in id order, with its hints.
    #[must_use]
    pub fn list(self) -> Vec<SpaceInfo> {
        self.0.shared.spaces_with_hints()
    }

    /// The number of pages of `space`, free ones included. If none is free, this is also the number of the
    /// next page to be allocated.
    ///
    /// # Errors
    /// The space does not exist.
    pub fn pages(self, space: SpaceId) -> Result<u32, Error> {
        self.0.shared.volume.pages(space).ok_or(Error::NoSuchSpace { space })
    }

    /// Creates a space called `name`. Durable when it returns. Cancel-safe: it takes full effect or none.
    ///
    /// # Errors
    /// The name is taken, or the manifest cannot be written. The space does not exist then, though the next
    /// opening after a crash may find it, empty.
    pub async fn create(self, name: &str) -> Result<SpaceId, Error> {
        self.add(None, name).await
    }

    /// Creates a space called `name` with the number `id`, to restore a backup whose log names pages by it.
    /// Numbers are never reused: `id` must be above the number of every space that this store ever had, so
    /// restore spaces in ascending order. Durable when it returns. Cancel-safe, as [`Spaces::create`].
    ///
    /// # Errors
    /// As [`Spaces::create`]; [`Error::SpaceIdUsed`] when `id` is too small.
    pub async fn create_as(self, id: SpaceId, name: &str) -> Result<(), Error> {
        self.add(Some(id), name).await.map(drop)
    }

    async fn add(self, wanted: Option<SpaceId>, name: &str) -> Result<SpaceId, Error> {
        let shared = &self.0.shared;
        let _operation = shared.ending.enter()?;
        let mut meta = shared.meta.lock().await;
        if shared.volume.by_name(name).is_some() {
            return Err(Error::SpaceExists { name: name.to_owned() });
        }
        let free_from = SpaceId(meta.manifest.next_space);
        let id = wanted.unwrap_or(free_from);
        // A copy of a dropped space's page may still be on the SSD: the page must not exist again.
        if id < free_from || id.0 == u32::MAX {
            return Err(Error::SpaceIdUsed { space: id, free_from });
        }
        meta.append(&shared.volume, &Change::Add { space: id.0, name: name.to_owned() })?;
        shared.volume.add(id, name);
        Ok(id)
    }

    /// Drops `space` with all its pages. Waits for writes of these pages that are in flight, and for their
    /// guards to be dropped. Durable when it returns.
    ///
    /// After a cancellation the space is either gone or unchanged. If it is gone, a second call or the next
    /// opening frees its room on the HDD.
    ///
    /// # Errors
    /// The space does not exist, the HDD cannot be flushed, or the manifest cannot be written. If
    /// [`Spaces::list`] still has the space, it is unchanged, though a crash may remove it; otherwise
    /// it is gone, as after a cancellation.
    pub async fn remove(self, space: SpaceId) -> Result<(), Error> {
        let shared = &self.0.shared;
        let _operation = shared.ending.enter()?;
        let mut meta = shared.meta.lock().await;
        let noted = shared.builder.rules().notes_drop();
        match shared.volume.is_dropping(space) {
            None => return Err(Error::NoSuchSpace { space }),
            Some(true) => {}
            Some(false) => {
                let marked = meta.change(&shared.volume, |manifest| {
                    manifest.spaces.iter_mut().filter(|s| s.id == space.0).for_each(|s| s.dropping = noted);
                });
                if marked.is_err() {
                    shared.doubtful.store(true, Ordering::Release);
                }
                marked?;
                shared.volume.begin_drop(space);
            }
        }
        shared.pool.discard_where(|page| page.space == space).await?;
        // Other spaces may get the extents next: no write to them may be in flight, nor torn there by a
        // crash.
        shared.tier.forget_space(space).await?;
        meta.change(&shared.volume, |manifest| shared.volume.record_dropped(space, manifest))?;
        shared.forget_hints(space);
        shared.volume.end_drop(space);
        Ok(())
    }
}

impl PageStore {
    /// Gives `space` room for page `no`.
    pub(crate) async fn grow(&self, space: SpaceId, no: u32) -> Result<(), Error> {
        if no == u32::MAX {
            return Err(Error::SpaceFull { space });
        }
        let _operation = self.shared.ending.enter()?;
        let mut meta = self.shared.meta.lock_owned().await;
        let page = PageId::new(space, no);
        if self.shared.volume.has_room(page) {
            return Ok(());
        }
        let leftovers_to = meta.manifest.leftovers_to;
        let growth =
            self.shared.volume.plan_growth(page, leftovers_to).ok_or(Error::NoSuchSpace { space })?;
        let (end, used_before) = (growth.end, growth.used_before.then(|| growth.bytes.clone()));
        let change = growth.change();
        let mut growth = Some(growth);
        for step in self.shared.builder.rules().growth() {
            match step {
                GrowthStep::Hdd => self.grow_hdd(&mut meta, end).await?,
                GrowthStep::Blank => {
                    if let Some(range) = used_before.clone() {
                        meta = self.blank(meta, range).await?;
                        self.shared.tier.flush_home().await?;
                    }
                }
                GrowthStep::Manifest => meta.append(&self.shared.volume, &change)?,
                GrowthStep::Memory => growth.take().into_iter().for_each(|g| self.shared.volume.grow(g)),
            }
        }
        self.shared.watch_room();
        Ok(())
    }

    /// Grows the HDD to `end`, durably.
    async fn grow_hdd(&self, meta: &mut Meta, end: u64) -> Result<(), Error> {
        if meta.hdd_bytes_durable >= end {
            return Ok(());
        }
        if self.shared.hdd.size() < end {
            // Grow in steps of an eighth, so that the file grows rarely.
            let ahead = (end / 8).clamp(1 << 20, 256 << 20);
            if self.shared.hdd.grow(end + ahead).is_err() {
                self.shared.hdd.grow(end)?;
            }
        }
        let bytes = self.shared.hdd.size();
        self.shared.tier.flush_home().await?;
        meta.hdd_bytes_durable = bytes;
        Ok(())
    }

    /// Blanks `range` of the HDD, so that a page that is never written there does not read as damaged. Holds
    /// the manifest's lock to the end, even if the caller is dropped, so that no space grows meanwhile: the
    /// blanking writes would overwrite the pages of the next growth.
    async fn blank(
        &self,
        meta: OwnedMutexGuard<Meta>,
        range: Range<u64>,
    ) -> Result<OwnedMutexGuard<Meta>, Error> {
        let (hdd, rules) = (Arc::clone(&self.shared.hdd), self.shared.builder.rules());
        let blanked = task::outcome(&self.shared.runtime, async move {
            blank(&hdd, range, rules).await?;
            Ok(meta)
        });
        blanked.await.unwrap_or_else(|| Err(Error::runtime_ended()))
    }

    /// Saves the manifest again after a failed save that may have marked a space as dropped, or pages as
    /// free: writes to them would otherwise be lost after a crash.
    pub(crate) async fn settle_manifest(&self) -> Result<(), Error> {
        if !self.shared.doubtful.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut meta = self.shared.meta.lock().await;
        if self.shared.doubtful.load(Ordering::Acquire) { meta.save(&self.shared.volume) } else { Ok(()) }
    }
}

impl Shared {
    /// Records a clean close once everything is durable: on the devices first, then in the manifest. A
    /// manifest that records the close therefore proves that the devices must record it too.
    pub(crate) async fn note_close(&self) -> Result<(), Error> {
        let mut meta = self.meta.lock().await;
        let epoch = meta.manifest.epoch;
        let marks = Marks { opened: epoch, closed: epoch, manifest: meta.durable_generation };
        self.tier.mark(marks).await?;
        HddSuperblock::mark(&self.hdd, marks).await?;
        let only = self.tier.only_copies();
        let exact = self.tier.are_only_copies(&only);
        // Every page has been written by now.
        let reused = self.volume.reused(u64::MAX, false);
        let closed = |runs_max| {
            let (list, reused) = (OnlyCopies::of(&only, exact, runs_max), &reused);
            move |manifest: &mut Manifest| {
                manifest.closed = epoch;
                manifest.ssd_pages = Some(list);
                manifest.list_reused(reused);
            }
        };
        match meta.change(&self.volume, closed(RUNS_MAX)) {
            Err(Error::Manifest { source }) if source.kind() == ErrorKind::StorageFull => {
                meta.change(&self.volume, closed(RUNS_MIN))
            }
            other => other,
        }
    }
}

/// Writes zeroes regardless of what reads return: after a failed flush, zeroes from an earlier growth may be
/// readable and never become durable.
async fn blank(hdd: &SharedDevice, range: Range<u64>, rules: Rules) -> Result<(), DeviceError> {
    let mut at = range.start;
    while at < range.end {
        let bytes = (range.end - at).min(BLANK_BYTES);
        rules.blank(hdd, at, bytes).await?;
        at += bytes;
    }
    Ok(())
}
