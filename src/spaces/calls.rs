//! Creates and drops spaces. A failure or crash between two steps leaves nothing half-done.
//!
//! A new space takes effect in memory last, after the manifest. A drop is marked in the manifest first;
//! the extents are free once the manifest has ceased to name the space.

use crate::error::Error;
use crate::manifest::changes::Change;
use crate::manifest::contents::Manifest;
use crate::manifest::only_copies::{OnlyCopies, RUNS_MAX, RUNS_MAX_WHEN_FULL};
use crate::manifest::superblock::HddSuperblock;
use crate::store::handles::Spaces;
use crate::store::shared::Shared;
use crate::volume::table::SpaceInfo;
use pagetier_bufpool::PoolError;
use pagetier_page::SpaceId;
use pagetier_ssdcache::{OpeningMarks, Slots, Superblock, mark};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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

    /// The number of pages of `space`, free ones included: it falls only by [`Spaces::shrink`], which ends
    /// the space after its last page that is not free. If none is free, this is also the number of the next
    /// page to be allocated.
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
    /// open after a crash may find it, empty.
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
        // Held until the name is in the table: two calls with one name must not both succeed.
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
        // The manifest first: pages of a space that a crash forgets would be lost, while an empty space harms
        // nothing.
        meta.append(&shared.volume, &Change::Add { space: id.0, name: name.to_owned() }).await?;
        shared.volume.add(id, name);
        Ok(id)
    }

    /// Makes every change of pages of `space` durable, as [`PageStore::sync`](crate::PageStore::sync) does
    /// for all pages: writes the dirty pages of that space alone, then flushes the devices. For an engine
    /// that keeps several files in one store, of which one is to be durable now. The flush is the devices',
    /// so what was written of other spaces becomes durable, too; with few dirty pages elsewhere `sync` costs
    /// the same. Cancel-safe.
    ///
    /// It frees the pages of `space` that [`PageStore::free_on_sync`](crate::PageStore::free_on_sync) named.
    /// If pages of other spaces refer to these, use [`PageStore::sync`](crate::PageStore::sync): it writes
    /// them first.
    ///
    /// # Errors
    /// The space does not exist; otherwise as [`PageStore::sync`](crate::PageStore::sync).
    pub async fn sync(self, space: SpaceId) -> Result<(), Error> {
        let shared = &self.0.shared;
        shared.ending.here()?;
        shared.volume.pages(space).ok_or(Error::NoSuchSpace { space })?;
        shared.sync(Some(space)).await
    }

    /// Drops `space` with all its pages. Waits for writes of these pages that are in flight, and for their
    /// guards to be dropped: the caller must hold none. Tasks that hold some may call the store meanwhile;
    /// the space does not exist for them any more. Durable when it returns.
    ///
    /// A call that is cancelled before the manifest lists the drop leaves the space unchanged, though a crash
    /// may drop it until the next `sync`. Later, the drop goes on to its end.
    ///
    /// # Errors
    /// The space does not exist, the HDD cannot be flushed, or the manifest cannot be written. If
    /// [`Spaces::list`] still has the space, it is unchanged, though a crash may drop it; otherwise
    /// it is gone, as after a cancellation.
    pub async fn drop(self, space: SpaceId) -> Result<(), Error> {
        let shared = &self.0.shared;
        {
            let _operation = shared.ending.enter()?;
            // Two calls may meet: both wait for the pages, and the second finds the space gone.
            shared.begin_drop(space).await?;
        }
        // In a task of its own: its pages in memory are found without a look at the space, so a caller that
        // gave up here would leave pages that can be written, and whose changes no `sync` makes durable.
        shared.in_task(move |shared| async move { shared.finish_drop(space).await }).await
    }
}

impl Shared {
    /// Discards the pages of a space that is being dropped, then frees its extents.
    async fn finish_drop(&self, space: SpaceId) -> Result<(), Error> {
        let _operation = self.ending.enter()?;
        self.discard_space(space).await?;
        self.end_drop(space).await
    }

    /// Discards the pages of a space that is being dropped, in memory and on the SSD. The manifest's mutex
    /// is free meanwhile: a task that holds a guard of these pages may need it before it drops the guard, to
    /// allocate in another space, to sync, to shut the store down (I37).
    async fn discard_space(&self, space: SpaceId) -> Result<(), Error> {
        // A page whose number was taken before would enter memory behind the search.
        self.volume.arriving.ended_in(space).await;
        self.pool.discard_where(|page| page.space == space).await?;
        // Other spaces may get the extents next: no write to them may be in flight, nor torn there by a
        // crash.
        Ok(self.tier.discard_space(space).await?)
    }

    /// Marks the space as to be dropped, durably. No page of it is found, created or written afterwards.
    async fn begin_drop(&self, space: SpaceId) -> Result<(), Error> {
        let mut meta = self.meta.lock().await;
        match self.volume.is_dropping(space) {
            None => return Err(Error::NoSuchSpace { space }),
            // An earlier call marked it, and was dropped, failed, or still waits.
            Some(true) => return Ok(()),
            Some(false) => {}
        }
        let marked = meta.append(&self.volume, &Change::BeginDrop { space: space.0 }).await;
        // The mark may be in force after a crash: see `ManifestState::doubtful`.
        marked.inspect_err(|_| self.doubtful.store(true, Ordering::Release))?;
        self.volume.begin_drop(space);
        Ok(())
    }

    /// Frees the extents of the space, of whose pages nothing is in memory or in flight.
    async fn end_drop(&self, space: SpaceId) -> Result<(), Error> {
        let mut meta = self.meta.lock().await;
        // Two calls waited for the same pages; the other one was first.
        if self.volume.is_dropping(space).is_none() {
            return Ok(());
        }
        // Memory follows: a growth into extents that the manifest does not list as free cannot be recorded.
        meta.append(&self.volume, &Change::EndDrop { space: space.0 }).await?;
        self.forget_hints(space);
        self.volume.end_drop(space);
        Ok(())
    }
}

impl Shared {
    /// See [`PageStore::sync`](crate::PageStore::sync) and, for `only` one space, [`Spaces::sync`].
    pub(crate) async fn sync(self: &Arc<Self>, only: Option<SpaceId>) -> Result<(), Error> {
        let _operation = self.ending.enter()?;
        // Read first: what the caller of a later `free_on_sync` wrote before need not be part of this flush.
        let pending = self.volume.last_pending();
        // A save that failed may have freed a page or dropped a space in the file alone: what is written
        // there now would be lost by a crash (I28).
        self.settle_manifest().await?;
        self.write_pages(pending, only).await?;
        self.free_pending(pending, only).await
    }

    /// Makes the pages of all spaces, or of `only` one, durable; with `pending` frees also the changes under
    /// guards that still lived at the last of these calls.
    pub(crate) async fn write_pages(&self, pending: Option<u64>, only: Option<SpaceId>) -> Result<(), Error> {
        if pending.is_some() {
            // The page that ceases to refer to a freed one may be under its guard still, and clean as far
            // as the pool knows: the flush would not write it. A crash after the frees would then leave a
            // reference to nothing (I28).
            self.pool.guards_dropped(|page| only.is_none_or(|only| only == page.space)).await?;
        }
        self.unless_taken_back(async {
            match only {
                Some(space) => self.pool.flush_space(space).await,
                None => self.pool.flush_all().await,
            }
        })
        .await?;
        // After the flush: a page under a freed number exists after a crash only once the manifest says so,
        // and it may say so only once the page's new version is durable (I28).
        self.record_reused().await
    }

    /// Performs a flush, which fails if a readmission takes pages back meanwhile, or has done so and not yet
    /// returned its report: of these pages the versions that were to be made durable are gone (I31).
    pub(crate) async fn unless_taken_back(
        &self,
        flush: impl Future<Output = Result<(), PoolError>>,
    ) -> Result<(), Error> {
        let before = self.tier.reversions();
        flush.await?;
        // What was written while this process was stopped may be lost to another owner.
        if self.hdd.claim().is_some_and(|claim| !claim.holds()) {
            return Err(Error::Fenced);
        }
        if before % 2 == 1 || self.tier.reversions() != before {
            let cause = Arc::from("the SSD was readmitted meanwhile, and pages read as older versions");
            return Err(Error::Refusing { cause });
        }
        Ok(())
    }

    /// Saves the manifest again after a failed save that may have marked a space as dropped, or pages as
    /// free: writes to them would otherwise be lost after a crash.
    pub(crate) async fn settle_manifest(&self) -> Result<(), Error> {
        if !self.doubtful.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut meta = self.meta.lock().await;
        // Checked again under the lock: another `sync` may have saved it meanwhile.
        if self.doubtful.load(Ordering::Acquire) { meta.save(&self.volume).await } else { Ok(()) }
    }

    /// Records a clean close once everything is durable: on the devices first, then in the manifest. A
    /// manifest that records the close therefore proves that the devices must record it too.
    pub(crate) async fn note_close(&self) -> Result<(), Error> {
        let mut meta = self.meta.lock().await;
        // The close may make durable what followed the loss, and then nothing would find the loss again
        // (I21).
        self.list_unlisted(&mut meta).await?;
        let epoch = meta.manifest.epoch;
        let marks = OpeningMarks { opened: epoch, closed: epoch, manifest: meta.durable_generation };
        // Devices first: if a crash comes in between, they are ahead of the manifest by one, which an open
        // accepts. A manifest ahead of its devices would look like older copies of them (I20).
        mark::<Superblock>(&self.tier.ssd_device(), marks).await?;
        mark::<HddSuperblock>(&self.hdd, marks).await?;
        let only = self.tier.ask(Slots::only_copies);
        // Listed so that, if the SSD is missing at the next open, the loss is known page by page.
        let exact = self.tier.ask(|slots| slots.are_only_copies(&only));
        // Every page has been written by now.
        let reused = self.volume.reused(u64::MAX);
        let closed = |runs_max| {
            let (list, reused) = (OnlyCopies::of(&only, exact, runs_max), &reused);
            move |manifest: &mut Manifest| {
                manifest.closed = epoch;
                manifest.ssd_pages = Some(list);
                manifest.list_reused(reused);
            }
        };
        match meta.change(&self.volume, closed(RUNS_MAX)).await {
            // The list may need disk space that a full disk does not have. A coarser one of at most
            // `RUNS_MAX_WHEN_FULL` runs fits (I36).
            Err(Error::Manifest { source }) if source.kind() == ErrorKind::StorageFull => {
                meta.change(&self.volume, closed(RUNS_MAX_WHEN_FULL)).await
            }
            other => other,
        }
    }
}
