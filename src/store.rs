//! The store: spaces and pages over pool, SSD and HDD.

use crate::builder::Builder;
use crate::error::{Error, OpenError};
use crate::life::Life;
use crate::lock::Leave;
use crate::manifest::{Manifest, ManifestStore};
use crate::replace::Slack;
use crate::stats::Stats;
use crate::volume::{SpaceInfo, Volume};
use crate::what_if::Ghostly;
use pagetier_bufpool::{Pool, PoolError, Recorded, TierError};
use pagetier_devio::{Fence, SharedDevice};
use pagetier_page::{Lsn, PageId, PageSize, SpaceId};
use pagetier_policy::{Costs, GroupStats, Home, PageCounts};
use pagetier_ssdcache::{Broken, Homes, Mutation, RecoveryReport, SsdTier};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Mutex;

/// A page, shared with other readers; derefs to its payload. See [`PageStore::get`].
pub type PageRef<'a> = pagetier_bufpool::PageRef<'a, SsdTier>;

/// A page, exclusively; derefs to its payload, and the first mutable access makes it dirty. See
/// [`PageStore::get_mut`].
pub type PageMut<'a> = pagetier_bufpool::PageMut<'a, SsdTier>;

/// An ordered read of a space. See [`PageStore::scan`].
pub type Scan<'a> = pagetier_bufpool::Scan<'a, SsdTier>;

/// An open page store. Share it in an `Arc`; every method takes `&self`.
///
/// Dropped without [`PageStore::close`] it stops as in a crash: nothing that [`PageStore::sync`] promised is
/// lost.
///
/// Holding several guards at once: latch in an order that all tasks keep (parent before child, left before
/// right), as with any latch; a guard held while waiting for another page keeps its frame in memory.
#[derive(Debug)]
pub struct PageStore {
    /// The first to be dropped: no I/O starts after it.
    _leave: Leave,
    pub(crate) pool: Pool<SsdTier>,
    pub(crate) tier: Arc<SsdTier>,
    pub(crate) volume: Arc<Volume>,
    /// Serialises changes of the manifest; held across the writing of it.
    pub(crate) meta: Arc<Mutex<Meta>>,
    pub(crate) hdd: SharedDevice,
    page_size: PageSize,
    pub(crate) life: Arc<Life>,
    pub(crate) ghostly: Ghostly,
    /// See [`Meta`].
    pub(crate) doubtful: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(crate) struct Meta {
    pub(crate) manifests: Arc<ManifestStore>,
    /// As it was last replaced, but for its generation: the one that was last attempted.
    pub(crate) manifest: Manifest,
    /// A store that was dropped writes no manifest.
    pub(crate) fence: Fence,
    /// The generation that is certainly durable.
    pub(crate) durable_generation: u64,
    /// How far the HDD is known to reach after a crash, in bytes. Its size may be more: a growth is durable
    /// only after a flush.
    pub(crate) hdd_bytes_durable: u64,
    /// A save failed that may have taken effect and would take a space away: `sync` promises nothing before
    /// the next one succeeds.
    pub(crate) doubtful: Arc<AtomicBool>,
    broken: Broken,
}

impl Meta {
    pub(crate) fn new(
        manifests: Arc<ManifestStore>,
        manifest: Manifest,
        fence: Fence,
        broken: Broken,
    ) -> Self {
        let durable_generation = manifest.generation;
        let doubtful = Arc::default();
        Self { manifests, manifest, fence, durable_generation, hdd_bytes_durable: 0, doubtful, broken }
    }

    /// Replaces the manifest by one with the volume as it is in memory.
    pub(crate) fn save(&mut self, volume: &Volume) -> Result<(), Error> {
        self.change(volume, |_| ())
    }

    /// The same after `edit`. When it fails, nothing has changed in memory; which of the two the disk has is
    /// not known.
    pub(crate) fn change(&mut self, volume: &Volume, edit: impl FnOnce(&mut Manifest)) -> Result<(), Error> {
        self.replace(|manifest| {
            volume.record(manifest);
            edit(manifest);
        })
    }

    /// The same without a volume, which an opening does not have yet.
    pub(crate) fn replace(&mut self, edit: impl FnOnce(&mut Manifest)) -> Result<(), Error> {
        let mut next = self.manifest.clone();
        edit(&mut next);
        next.generation = self.manifest.generation + 1;
        self.manifest.generation = next.generation;
        let closed = || Err(std::io::Error::other("the store was closed or dropped"));
        let given_away = self.broken.is(Mutation::SlackGivenAway);
        let slack = if given_away { Slack::Use } else { next.slack_after(&self.manifest) };
        let saved = self.fence.while_open(|| self.manifests.save(&next, slack)).unwrap_or_else(closed);
        saved.map_err(|source| Error::Manifest { source })?;
        self.durable_generation = next.generation;
        self.manifest = next;
        self.doubtful.store(false, Ordering::Release);
        Ok(())
    }
}

pub(crate) struct Parts {
    pub(crate) leave: Leave,
    pub(crate) pool: Pool<SsdTier>,
    pub(crate) tier: Arc<SsdTier>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) meta: Meta,
    pub(crate) hdd: SharedDevice,
    pub(crate) page_size: PageSize,
    pub(crate) builder: Builder,
    pub(crate) costs: Costs,
}

impl PageStore {
    /// Opens the store in directory `path` with the default options, or creates it there.
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::builder().directory(path).open().await
    }

    /// Options other than the defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { leave, pool, tier, volume, meta, hdd, page_size, builder, costs } = parts;
        let cost_points = builder.cost_points;
        let loss = parking_lot::Mutex::new(meta.manifest.loss.as_ref().map(|loss| loss.report(&volume)));
        let doubtful = Arc::clone(&meta.doubtful);
        let meta = Arc::new(Mutex::new(meta));
        let life = Arc::new(Life {
            pool: pool.clone(),
            tier: Arc::clone(&tier),
            volume: Arc::clone(&volume),
            meta: Arc::clone(&meta),
            builder,
            costs: parking_lot::Mutex::new(costs),
            page_size,
            loss,
            going: Arc::default(),
            runtime: tokio::runtime::Handle::current(),
        });
        life.watch();
        if let Some(points) = cost_points {
            life.follow_costs(Arc::clone(&hdd), points);
        }
        Self {
            _leave: leave,
            pool,
            tier,
            volume,
            meta,
            hdd,
            page_size,
            life,
            ghostly: Ghostly::default(),
            doubtful,
        }
    }

    // ---- spaces
    // ---------------------------------------------------------------------------------------------

    /// The space called `name`, if there is one.
    #[must_use]
    pub fn space(&self, name: &str) -> Option<SpaceId> {
        self.volume.by_name(name)
    }

    /// Every space, by id.
    #[must_use]
    pub fn spaces(&self) -> Vec<SpaceInfo> {
        self.volume.list()
    }

    /// The number of pages of `space`: the next allocation gets this number.
    ///
    /// # Errors
    /// There is no such space.
    pub fn pages(&self, space: SpaceId) -> Result<u32, Error> {
        self.volume.pages(space).ok_or(Error::NoSuchSpace { space })
    }

    // ---- pages
    // ----------------------------------------------------------------------------------------------

    /// A new page at the end of `space`, all zeroes, latched exclusively. It is part of the space for good
    /// once a [`PageStore::sync`] (or the embedder's redo, see [`PageStore::recreate`]) covers it.
    /// Cancel-safe; a page number may be left unused.
    ///
    /// # Errors
    /// There is no such space, it is full, the HDD cannot grow, or no frame is to be had.
    pub async fn allocate(&self, space: SpaceId) -> Result<PageMut<'_>, Error> {
        loop {
            match self.volume.take_page(space).ok_or(Error::NoSuchSpace { space })? {
                Some(no) => return Ok(self.pool.create(PageId::new(space, no)).await?),
                None => self.grow(space, self.pages(space)?).await?,
            }
        }
    }

    /// The page, shared: latched against writers and pinned until the guard is dropped. A hit neither
    /// allocates nor yields. Waiting is first come, first served. Cancel-safe.
    ///
    /// # Errors
    /// The page does not exist, cannot be read, or is corrupt in its only copy; or no frame is to be had in
    /// time.
    #[inline]
    pub async fn get(&self, page: PageId) -> Result<PageRef<'_>, Error> {
        Ok(self.pool.get(page).await?)
    }

    /// The page, exclusively. Otherwise as [`PageStore::get`].
    ///
    /// # Errors
    /// As [`PageStore::get`].
    #[inline]
    pub async fn get_mut(&self, page: PageId) -> Result<PageMut<'_>, Error> {
        Ok(self.pool.get_mut(page).await?)
    }

    /// The page if it is in memory and its latch is free; never waits.
    #[must_use]
    pub fn try_get(&self, page: PageId) -> Option<PageRef<'_>> {
        self.pool.try_get(page)
    }

    /// For redo: the page exclusively, as it is or, when it was allocated before a crash but never written,
    /// anew and all zeroes. A page that is corrupt is an error; [`PageStore::overwrite`] replaces it. The
    /// space grows to hold it. Cancel-safe.
    ///
    /// # Errors
    /// As [`PageStore::get_mut`] and [`PageStore::allocate`].
    pub async fn recreate(&self, page: PageId) -> Result<PageMut<'_>, Error> {
        if page.no < self.pages(page.space)? {
            match self.pool.get_mut(page).await {
                Err(PoolError::Tier(TierError::NoSuchPage { .. })) => {}
                other => return Ok(other?),
            }
        }
        self.extend_to(page).await?;
        Ok(self.pool.get_or_create(page).await?)
    }

    /// For redo with full page images, and to repair a page whose only copy is corrupt or cannot be read: the
    /// page exclusively, all zeroes and dirty, without reading what is there. It may exist or not, in memory
    /// or not; the space grows to hold it. The next [`PageStore::sync`] writes it anew, and its older copies
    /// count for nothing from then on. Cancel-safe: dropped, it changed nothing but the space's size.
    ///
    /// # Errors
    /// As [`PageStore::allocate`].
    pub async fn overwrite(&self, page: PageId) -> Result<PageMut<'_>, Error> {
        if page.no >= self.pages(page.space)? {
            self.extend_to(page).await?;
        }
        Ok(self.pool.overwrite(page).await?)
    }

    async fn extend_to(&self, page: PageId) -> Result<(), Error> {
        while !self.volume.extend_to(page).ok_or(Error::NoSuchSpace { space: page.space })? {
            self.grow(page.space, page.no).await?;
        }
        Ok(())
    }

    /// The pages `range` of `space` in order, read ahead in large reads, without disturbing what is hot in
    /// memory. Pages that were never written are skipped.
    #[must_use]
    pub fn scan(&self, space: SpaceId, range: Range<u32>) -> Scan<'_> {
        let end = range.end.min(self.volume.pages(space).unwrap_or(0));
        self.pool.scan(space, range.start..end)
    }

    /// Starts reading `pages` into memory; returns at once. A hint: pages that do not exist or do not fit are
    /// left out.
    pub fn prefetch(&self, pages: &[PageId]) {
        self.pool.prefetch(pages);
    }

    /// The page's contents are of no value any more: it leaves memory and SSD without being written. A later
    /// `get` finds an earlier version or fails. Cancel-safe.
    ///
    /// # Errors
    /// The page does not exist.
    pub async fn discard(&self, page: PageId) -> Result<(), Error> {
        if self.volume.offset(page).is_none() {
            return Err(Error::NoSuchPage { page });
        }
        Ok(self.pool.discard(page).await?)
    }

    // ---- durability
    // -----------------------------------------------------------------------------------------

    /// Makes everything that was written before this call durable. Writes no map checkpoint, and for pages
    /// that go to the HDD needs no HDD flush. Cancel-safe: writes under way finish.
    ///
    /// # Errors
    /// The first failure; pages that could not be written stay dirty in memory.
    pub async fn sync(&self) -> Result<(), Error> {
        self.settle_manifest().await?;
        Ok(self.pool.flush_all().await?)
    }

    /// Writes every page whose recovery LSN is at most `lsn`, and makes it durable: afterwards the embedder's
    /// redo starts after `lsn`. Cancel-safe.
    ///
    /// # Errors
    /// As [`PageStore::sync`].
    pub async fn flush_to(&self, lsn: Lsn) -> Result<(), Error> {
        self.settle_manifest().await?;
        Ok(self.pool.flush_to(lsn).await?)
    }

    /// The oldest log position that redo would need after a crash now; `None` when nothing is dirty.
    #[must_use]
    pub fn min_recovery_lsn(&self) -> Option<Lsn> {
        self.pool.min_recovery_lsn()
    }

    /// Ends in order: everything is written and durable, the SSD's map is checkpointed exactly, the next
    /// opening is warm and reads little. Dropped half-way, it is a crash, and safe.
    ///
    /// # Errors
    /// The first failure. The store is closed all the same, as by a crash.
    pub async fn close(self) -> Result<(), Error> {
        self.pool.flush_all().await?;
        self.pool.shutdown().await;
        self.tier.shutdown().await?;
        self.note_close().await
    }

    // ---- traces
    // ---------------------------------------------------------------------------------------------

    /// Records every page request from now on to the file `path` as a page trace (`.ptr`, see
    /// [`TraceRecord`](pagetier_page::TraceRecord)), which `replay` of `pagetier-sim` reads. A file that
    /// exists is overwritten.
    ///
    /// # Errors
    /// The file cannot be created, or a recording is under way already
    /// ([`std::io::ErrorKind::ResourceBusy`]).
    pub fn start_recording(&self, path: impl AsRef<Path>) -> std::io::Result<()> {
        if self.pool.recorded().is_some() {
            return Err(std::io::ErrorKind::ResourceBusy.into());
        }
        let file = std::fs::File::create(path)?;
        if self.pool.start_recording(Box::new(file))? {
            Ok(())
        } else {
            Err(std::io::ErrorKind::ResourceBusy.into())
        }
    }

    /// What the recording under way has come to.
    #[must_use]
    pub fn recorded(&self) -> Option<Recorded> {
        self.pool.recorded()
    }

    /// Ends the recording; when it returns the file is complete. Dropped, the recording ends all the same.
    ///
    /// # Errors
    /// The file could not be written.
    pub async fn stop_recording(&self) -> std::io::Result<Recorded> {
        let pool = self.pool.clone();
        let stopped = tokio::task::spawn_blocking(move || pool.stop_recording()).await;
        stopped.unwrap_or_else(|_| Err(std::io::Error::other("the runtime is shutting down")))
    }

    // ---- views
    // ----------------------------------------------------------------------------------------------

    /// Counters, sizes and device statistics at this moment.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            pool: self.pool.stats(),
            pool_memory: self.pool.memory(),
            ssd: self.tier.stats(),
            hdd_device: self.hdd.stats(),
            ssd_device: self.tier.ssd_device().stats(),
            frames: self.pool.params().frames as u64,
        }
    }

    /// Test-only: what the protocol is in the middle of.
    #[cfg(feature = "mutations")]
    #[doc(hidden)]
    #[must_use]
    pub fn moment(&self) -> Option<pagetier_ssdcache::Moment> {
        self.tier.moment()
    }

    /// CAC's α and the miss rates behind it, by group.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupStats> {
        self.tier.groups()
    }

    /// What CAC (or CC, without logical reads) has counted of the page since it began to track it; `None` for
    /// other policies, and when it has forgotten the page.
    #[must_use]
    pub fn page_counts(&self, page: PageId) -> Option<PageCounts> {
        self.tier.counts(page)
    }

    /// Whether the page has a copy on the SSD.
    #[must_use]
    pub fn home(&self, page: PageId) -> Home {
        self.tier.home(page)
    }

    /// What recovery found when the store was opened.
    #[must_use]
    pub fn recovery(&self) -> RecoveryReport {
        self.tier.recovery()
    }

    /// The device costs that the policies go by.
    #[must_use]
    pub fn costs(&self) -> Costs {
        self.life.costs()
    }

    /// New device costs for both policies. With [`crate::Builder::online_costs`] they last until the next
    /// measurement.
    ///
    /// # Errors
    /// [`Error::BadCosts`] when one of them is not a positive number; the policies keep those that they have.
    pub fn set_costs(&self, costs: Costs) -> Result<(), Error> {
        if !costs.is_valid() {
            return Err(Error::BadCosts { costs });
        }
        self.life.set_costs(costs);
        Ok(())
    }

    /// Which backend serves the HDD: `uring`, `threads`, `emulated`, …
    #[must_use]
    pub fn io_backend(&self) -> &'static str {
        self.hdd.backend()
    }

    /// The size of a page with its header.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// Recounts what can be recounted; for tests.
    ///
    /// # Errors
    /// What does not add up.
    pub fn validate(&self) -> Result<(), String> {
        self.pool.validate()?;
        self.tier.validate()
    }
}
