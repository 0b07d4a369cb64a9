//! The store: spaces and pages over the pool, the SSD and the HDD.

use crate::builder::Builder;
use crate::error::{Error, OpenError};
use crate::lock::Leave;
use crate::shared::Shared;
use crate::stats::Stats;
use crate::volume::SpaceInfo;
use pagetier_bufpool::{Pool, PoolError, Recorded, TierError};
use pagetier_ghost::Stream;
use pagetier_page::{Lsn, PageId, PageSize, SpaceId};
use pagetier_policy::{Costs, GroupStats, Home, PageCounts};
use pagetier_ssdcache::{Homes, RecoveryReport, SsdTier};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A page latched in shared mode; derefs to its payload. See [`PageStore::get`].
pub type PageRef<'a> = pagetier_bufpool::PageRef<'a, SsdTier>;

/// A page latched exclusively; derefs to its payload, and the first mutable access marks it dirty. See
/// [`PageStore::get_mut`].
pub type PageMut<'a> = pagetier_bufpool::PageMut<'a, SsdTier>;

/// A sequential read of a space. See [`PageStore::scan`].
pub type Scan<'a> = pagetier_bufpool::Scan<'a, SsdTier>;

/// An open page store. Share it in an `Arc`; every method takes `&self`.
///
/// Dropping it without [`PageStore::close`] is equivalent to a crash: nothing that [`PageStore::sync`]
/// promised is lost. Its directory and devices stay locked until its last operation has ended, for which the
/// runtime that it was opened on must run or shut down; an opening waits for that for at most 30 s.
///
/// Tasks that hold several guards at once must all latch in one order (parent before child, left before
/// right), as with any latch. A guard held while its task waits for another page keeps its frame in memory.
#[derive(Debug)]
pub struct PageStore {
    /// Dropped first: no I/O starts after that.
    _leave: Leave,
    /// A second handle to the pool, so that a hit reaches it without a hop through `shared`.
    pub(crate) pool: Pool<SsdTier>,
    pub(crate) shared: Arc<Shared>,
    /// The running ghosts, shared with the thread that drives them.
    pub(crate) ghostly: parking_lot::Mutex<Option<Arc<parking_lot::Mutex<Stream>>>>,
}

impl PageStore {
    /// Opens the store in directory `path` with the default options; creates it if it does not exist.
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::builder().directory(path).open().await
    }

    /// Returns a builder, to open a store with other options than the defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn new(leave: Leave, shared: Arc<Shared>) -> Self {
        Self { _leave: leave, pool: shared.pool.clone(), shared, ghostly: Default::default() }
    }

    // ---- spaces
    // ---------------------------------------------------------------------------------------------

    /// The space called `name`, if it exists.
    #[must_use]
    pub fn space(&self, name: &str) -> Option<SpaceId> {
        self.shared.volume.by_name(name)
    }

    /// Every space, in id order.
    #[must_use]
    pub fn spaces(&self) -> Vec<SpaceInfo> {
        self.shared.volume.list()
    }

    /// The number of pages of `space`, which is also the number of the next page allocated.
    ///
    /// # Errors
    /// The space does not exist.
    pub fn pages(&self, space: SpaceId) -> Result<u32, Error> {
        self.shared.volume.pages(space).ok_or(Error::NoSuchSpace { space })
    }

    // ---- pages
    // ----------------------------------------------------------------------------------------------

    /// Allocates a page at the end of `space`: all zeroes and latched exclusively. It is permanently part of
    /// the space once a [`PageStore::sync`] (or the embedder's redo, see [`PageStore::recreate`]) covers it.
    /// Cancel-safe; cancelling may leave a page number unused.
    ///
    /// # Errors
    /// The space does not exist or is full, the HDD cannot grow, or no frame becomes available.
    pub async fn allocate(&self, space: SpaceId) -> Result<PageMut<'_>, Error> {
        loop {
            match self.shared.volume.take_page(space).ok_or(Error::NoSuchSpace { space })? {
                Some(no) => return Ok(self.pool.create(PageId::new(space, no)).await?),
                None => self.grow(space, self.pages(space)?).await?,
            }
        }
    }

    /// Latches `page` in shared mode and pins it until the guard is dropped. A hit neither allocates nor
    /// yields. Waiters are served first come, first served. Cancel-safe.
    ///
    /// # Errors
    /// The page does not exist, cannot be read, or its only copy is corrupt; or no frame becomes available in
    /// time.
    #[inline]
    pub async fn get(&self, page: PageId) -> Result<PageRef<'_>, Error> {
        Ok(self.pool.get(page).await?)
    }

    /// Latches `page` exclusively; otherwise like [`PageStore::get`].
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

    /// For redo: returns the page exclusively. A page that was allocated before a crash but never written is
    /// created anew, all zeroes. A corrupt page is an error; [`PageStore::overwrite`] replaces it. The space
    /// grows to hold the page. Cancel-safe.
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

    /// For redo with full page images, and to repair a page whose only copy is corrupt or unreadable: returns
    /// the page exclusively, all zeroes and dirty, without reading its current contents. The page need not
    /// exist or be in memory; the space grows to hold it. The next [`PageStore::sync`] writes it and
    /// invalidates its older copies. Cancel-safe: a dropped future changes nothing but the space's size.
    ///
    /// # Errors
    /// As [`PageStore::allocate`].
    pub async fn overwrite(&self, page: PageId) -> Result<PageMut<'_>, Error> {
        if page.no >= self.pages(page.space)? {
            self.extend_to(page).await?;
        }
        Ok(self.pool.overwrite(page).await?)
    }

    pub(crate) async fn extend_to(&self, page: PageId) -> Result<(), Error> {
        while !self.shared.volume.extend_to(page).ok_or(Error::NoSuchSpace { space: page.space })? {
            self.grow(page.space, page.no).await?;
        }
        Ok(())
    }

    /// Reads the pages `range` of `space` in order, ahead in large requests, without displacing the hot pages
    /// in memory. Skips pages that were never written.
    #[must_use]
    pub fn scan(&self, space: SpaceId, range: Range<u32>) -> Scan<'_> {
        let end = range.end.min(self.shared.volume.pages(space).unwrap_or(0));
        self.pool.scan(space, range.start..end)
    }

    /// Starts reading `pages` into memory and returns at once. A hint: pages that do not exist or do not fit
    /// are skipped.
    pub fn prefetch(&self, pages: &[PageId]) {
        self.pool.prefetch(pages);
    }

    /// Discards the page's contents: drops it from memory and the SSD without writing it. A later `get`
    /// returns an earlier version or fails. Cancel-safe.
    ///
    /// # Errors
    /// The page does not exist.
    pub async fn discard(&self, page: PageId) -> Result<(), Error> {
        if self.shared.volume.offset(page).is_none() {
            return Err(Error::NoSuchPage { page });
        }
        Ok(self.pool.discard(page).await?)
    }

    // ---- durability
    // -----------------------------------------------------------------------------------------

    /// Makes everything written before this call durable. Writes no map checkpoint, and needs no HDD flush
    /// for pages that go to the HDD. Cancel-safe: writes in flight complete.
    ///
    /// # Errors
    /// The first failure; pages that could not be written stay dirty in memory.
    pub async fn sync(&self) -> Result<(), Error> {
        self.settle_manifest().await?;
        Ok(self.pool.flush_all().await?)
    }

    /// Writes every page whose recovery LSN is at most `lsn` and makes it durable: redo may start after `lsn`
    /// once this returns. Cancel-safe.
    ///
    /// # Errors
    /// As [`PageStore::sync`].
    pub async fn flush_to(&self, lsn: Lsn) -> Result<(), Error> {
        self.settle_manifest().await?;
        Ok(self.pool.flush_to(lsn).await?)
    }

    /// The oldest log position that redo would need after a crash at this moment; `None` when nothing is
    /// dirty.
    #[must_use]
    pub fn min_recovery_lsn(&self) -> Option<Lsn> {
        self.pool.min_recovery_lsn()
    }

    /// Closes the store cleanly: writes everything, makes it durable, and checkpoints the SSD's map exactly,
    /// so that the next opening is warm and reads little. Dropping the future half-way is equivalent to a
    /// crash, and safe.
    ///
    /// # Errors
    /// The first failure. The store is closed all the same, as by a crash.
    pub async fn close(self) -> Result<(), Error> {
        self.pool.flush_all().await?;
        self.pool.shutdown().await;
        self.shared.tier.shutdown().await?;
        self.note_close().await
    }

    // ---- traces
    // ---------------------------------------------------------------------------------------------

    /// Starts recording every page request to the file `path` as a page trace (`.ptr`, see
    /// [`TraceRecord`](pagetier_page::TraceRecord)), which `replay` of `pagetier-sim` reads. Overwrites an
    /// existing file.
    ///
    /// # Errors
    /// The file cannot be created, or a recording is already in progress
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

    /// The state of the recording in progress.
    #[must_use]
    pub fn recorded(&self) -> Option<Recorded> {
        self.pool.recorded()
    }

    /// Stops the recording; the file is complete when this returns. The recording stops even if the future is
    /// dropped.
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
        Stats::of(&self.shared)
    }

    /// Test-only: the protocol step in progress.
    #[cfg(feature = "mutations")]
    #[doc(hidden)]
    #[must_use]
    pub fn moment(&self) -> Option<pagetier_ssdcache::Moment> {
        self.shared.tier.moment()
    }

    /// CAC's α and the miss rates behind it, per group.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupStats> {
        self.shared.tier.groups()
    }

    /// What CAC (or CC, without logical reads) has counted for the page since it began to track it; `None`
    /// under other policies, and for a page that it does not track.
    #[must_use]
    pub fn page_counts(&self, page: PageId) -> Option<PageCounts> {
        self.shared.tier.counts(page)
    }

    /// Whether the page has a copy on the SSD.
    #[must_use]
    pub fn home(&self, page: PageId) -> Home {
        self.shared.tier.home(page)
    }

    /// What recovery found when the store was opened.
    #[must_use]
    pub fn recovery(&self) -> RecoveryReport {
        self.shared.tier.recovery()
    }

    /// The device costs that the policies use.
    #[must_use]
    pub fn costs(&self) -> Costs {
        self.shared.costs()
    }

    /// Sets the device costs for both policies. With [`crate::Builder::online_costs`] they hold until the
    /// next measurement.
    ///
    /// # Errors
    /// [`Error::BadCosts`] when a cost is not a positive number; the policies keep their costs then.
    pub fn set_costs(&self, costs: Costs) -> Result<(), Error> {
        if !costs.is_valid() {
            return Err(Error::BadCosts { costs });
        }
        self.shared.set_costs(costs);
        Ok(())
    }

    /// The backend that serves the HDD: `uring`, `threads`, `emulated`, …
    #[must_use]
    pub fn io_backend(&self) -> &'static str {
        self.shared.hdd.backend()
    }

    /// The size of a page, its header included.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.shared.page_size()
    }

    /// Recounts what can be recounted; for tests.
    ///
    /// # Errors
    /// A description of the first inconsistency.
    pub fn validate(&self) -> Result<(), String> {
        self.pool.validate()?;
        self.shared.tier.validate()
    }
}
