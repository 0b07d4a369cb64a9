//! The store: spaces and pages over the pool, the SSD and the HDD.

use super::guards::{PageMut, PageRef, Scan};
use super::shared::Shared;
use super::stats::Stats;
use crate::config::builder::Builder;
use crate::error::{Error, OpenError};
use crate::manifest::page_runs::PageRuns;
use crate::tenure::gate::ReleaseGate;
use crate::tenure::lock::Leave;
use crate::volume::arriving::Mark;
use crate::volume::table::{Claimed, Taken};
use pagetier_bufpool::{Pool, PoolError, Tier, TierError};
use pagetier_ghost::Stream;
use pagetier_page::{Lsn, PageId, PageSize, SpaceId};
use pagetier_policy::Location;
use pagetier_ssdcache::{Homes, RecoveryReport, SsdTier};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// An open page store. Share it in an `Arc`; every method takes `&self`.
///
/// Dropping it without [`PageStore::close`] is equivalent to a crash: nothing that [`PageStore::sync`]
/// promised is lost. Its directory and devices stay locked until its last operation has ended, for which the
/// runtime that it was opened on must run or shut down; an opening waits for that for at most 30 s.
///
/// A process that is forked while the store is open has no part in it: calls there fail with
/// [`Error::Forked`], and dropping the copy changes nothing. A program that becomes a daemon opens its stores
/// after the fork.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let temporary = tempfile::tempdir()?;
/// # let directory = temporary.path();
/// use pagetier::PageStore;
///
/// let store = PageStore::builder().directory(directory).ssd_bytes(64 << 20).open().await?;
/// let space = store.spaces().create("greetings").await?;
///
/// let mut page = store.allocate(space).await?;
/// page[..5].copy_from_slice(b"hello");
/// let id = page.id();
/// drop(page); // releases the latch
///
/// store.sync().await?; // durable once this returns
/// assert_eq!(&store.get(id).await?[..5], b"hello");
/// store.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// What a store reports about itself:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let temporary = tempfile::tempdir()?;
/// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
/// let store = builder.open().await?;
/// println!("recovery read {} bytes from the SSD", store.recovery().bytes_read);
/// println!("{} frames of {} bytes, by {}", store.frames(), store.page_size().bytes(), store.io_backend());
///
/// let space = store.spaces().create("orders").await?;
/// let mut page = store.allocate(space).await?;
/// page[0] = 1;
/// page.set_lsn(pagetier::Lsn(7));
/// let id = page.id();
/// drop(page);
/// assert_eq!(store.min_recovery_lsn(), Some(pagetier::Lsn(7))); // of a change in memory alone
/// store.sync().await?;
/// assert_eq!(store.min_recovery_lsn(), None);
/// store.flush().await?; // makes durable what the store wrote by itself meanwhile
/// println!("below memory, page {id} is on the {:?}", store.location(id));
/// store.validate()?; // recounts its tables
/// # Ok(())
/// # }
/// ```
///
/// Tasks that hold several guards at once must all latch in one order (parent before child, left before
/// right), as with any latch. A guard held while its task waits for another page keeps its frame in memory.
#[derive(Debug)]
pub struct PageStore {
    /// Dropped first: no I/O starts after that.
    pub(crate) leave: Leave,
    _gate: ReleaseGate,
    /// A second handle to the pool, so that a hit reaches it without an indirection through `shared`.
    pub(crate) pool: Pool<SsdTier>,
    pub(crate) shared: Arc<Shared>,
    /// The running ghosts, shared with the thread that drives them.
    pub(crate) ghosts: parking_lot::Mutex<Option<Arc<parking_lot::Mutex<Stream>>>>,
}

/// A loss that the embedder's log must cover. See [`PageStore::redo_from`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Loss {
    /// The loss of what is in memory.
    Crash,
    /// The loss of memory and of the SSD.
    Ssd,
}

impl Drop for PageStore {
    fn drop(&mut self) {
        if !self.shared.ending.is_here() {
            // In a forked process the store is the parent's: the copy is given up as it is, because its locks
            // may be held by threads that do not exist here.
            let parts = (self.pool.clone(), Arc::clone(&self.shared), Arc::clone(&self._gate.0));
            std::mem::forget(parts);
        }
    }
}

impl PageStore {
    /// Opens the store in directory `path` with the default options; creates it if it does not exist.
    ///
    /// ```
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = pagetier::PageStore::open("/var/lib/db").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::builder().directory(path).open().await
    }

    /// Returns a builder, to open a store with options other than the defaults.
    ///
    /// ```
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = pagetier::PageStore::builder().directory("/var/lib/db").pool_bytes(1 << 30).open().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn new(leave: Leave, shared: Arc<Shared>) -> Self {
        let gate = ReleaseGate(Arc::clone(&shared.gate));
        Self { leave, _gate: gate, pool: shared.pool.clone(), shared, ghosts: Default::default() }
    }

    // ---- pages ----

    /// Allocates a page of `space`, all zeroes and latched exclusively. The store chooses the number:
    ///
    /// | method | number | if the page exists | use |
    /// | --- | --- | --- | --- |
    /// | `allocate` | the store's choice | never does | engines that let the store count |
    /// | [`overwrite`](PageStore::overwrite) | yours | zeroes it, without a read | a new page, with a log; redo of a full image; repair of a corrupt page |
    /// | [`get_or_create`](PageStore::get_or_create) | yours | returns its contents, clean | redo of a partial change; a page that may be new |
    ///
    /// Each method returns a page that it has made as zeroes, dirty, with LSN 0, and grows the space to hold
    /// it.
    ///
    /// Reuses a freed page ([`PageStore::free`]), the lowest that has room on the HDD if there is one;
    /// otherwise adds a page at the end. The page is permanently part of the space once a [`PageStore::sync`]
    /// (or the embedder's redo, see [`PageStore::get_or_create`]) covers it. Cancel-safe; a cancellation or a
    /// crash may leave a page number unused. An engine with a log keeps its own page count in a page, and
    /// creates pages by number: [`PageStore::overwrite`].
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, space: SpaceId)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let mut page = store.allocate(space).await?;
    /// page[..4].copy_from_slice(&1_u32.to_le_bytes());
    /// println!("{} has {} pages", space, store.spaces().pages(space)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The space does not exist or is full, the HDD cannot grow, or no frame becomes available;
    /// [`Error::PageGap`] from the methods that take a number.
    pub async fn allocate(&self, space: SpaceId) -> Result<PageMut<'_>, Error> {
        self.shared.ending.here()?;
        loop {
            // The number is taken at once, under the space's lock: two calls never get the same one, however
            // long each waits for a frame.
            match self.shared.volume.take_page(space).ok_or(Error::NoSuchSpace { space })? {
                Taken::Page(no, _arrives) => {
                    return Ok(PageMut(self.pool.create(PageId::new(space, no)).await?));
                }
                // Then again from the start: another call may have used up the room that this one made.
                Taken::NoRoom(no) => self.grow(space, no).await?,
            }
        }
    }

    /// Latches `page` in shared mode and pins it until the guard is dropped. A hit neither allocates nor
    /// yields. Waiters are served first come, first served. Cancel-safe.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, id: PageId)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let page = store.get(id).await?;
    /// println!("page {} begins with {}", page.id(), page[0]);
    /// drop(page); // writers may enter
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchPage`]: the page does not exist. [`Error::Pool`]: it cannot be read, its only copy is
    /// corrupt, or no frame becomes available in time.
    #[inline]
    pub async fn get(&self, page: PageId) -> Result<PageRef<'_>, Error> {
        Ok(PageRef(self.pool.get(page).await?))
    }

    /// Latches `page` exclusively; otherwise like [`PageStore::get`].
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, id: PageId)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let mut page = store.get_mut(id).await?;
    /// page[0] += 1; // marks the page dirty
    /// let page = page.downgrade(); // readers may enter
    /// assert_eq!(page.id(), id);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`PageStore::get`].
    #[inline]
    pub async fn get_mut(&self, page: PageId) -> Result<PageMut<'_>, Error> {
        Ok(PageMut(self.pool.get_mut(page).await?))
    }

    /// The page if it is in memory and its latch is free; never waits.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, id: PageId)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let page = match store.try_get(id) {
    ///     Some(page) => page,
    ///     None => store.get(id).await?,
    /// };
    /// # drop(page);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn try_get(&self, page: PageId) -> Option<PageRef<'_>> {
        self.pool.try_get(page).map(PageRef)
    }

    /// The page, latched exclusively, if it is in memory and its latch is free; never waits.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, id: PageId)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(mut page) = store.try_get_mut(id) {
    ///     page[0] = 1;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn try_get_mut(&self, page: PageId) -> Option<PageMut<'_>> {
        self.pool.try_get_mut(page).map(PageMut)
    }

    /// Returns the page exclusively, as [`PageStore::get_mut`] does if it exists; reading it does not make it
    /// dirty. Otherwise (it was never written, is free, or lies beyond the space's end) creates it, all
    /// zeroes and dirty. For redo of a record that changes part of a page, and in normal operation for a page
    /// that may be new. A corrupt page is an error; [`PageStore::overwrite`] replaces it. The space grows to
    /// hold the page. Cancel-safe.
    ///
    /// ```
    /// use pagetier::{Error, Lsn, PageId, PageStore};
    ///
    /// /// Applies the log record at `lsn`, which sets bytes of a page. A record with several changes of one
    /// /// page applies them all before `set_lsn`.
    /// async fn redo(store: &PageStore, id: PageId, lsn: Lsn, at: usize, bytes: &[u8]) -> Result<(), Error> {
    ///     let mut page = store.get_or_create(id).await?;
    ///     if page.lsn() < lsn {
    ///         page[at..at + bytes.len()].copy_from_slice(bytes);
    ///         page.set_lsn(lsn);
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`PageStore::get_mut`] and [`PageStore::allocate`].
    pub async fn get_or_create(&self, page: PageId) -> Result<PageMut<'_>, Error> {
        self.shared.ending.here()?;
        // A page that is being freed may still be in memory: it is created anew, once it has left.
        if self.shared.volume.exists(page) {
            match self.pool.get_mut(page).await {
                // Counted but without a version: skipped by a larger number, or freed since the check.
                Err(PoolError::Tier(TierError::NoSuchPage { .. })) => {}
                other => return Ok(PageMut(other?)),
            }
        }
        let _arrives = self.extend_to(page).await?;
        Ok(PageMut(self.pool.get_or_create(page).await?))
    }

    /// Makes `page` anew: returns it exclusively, all zeroes and dirty, without reading its current contents.
    ///
    /// - *A new page*, for an embedder that keeps its own page count: it knows the number. The embedder's log
    ///   decides whether the page exists after a crash, so page numbers stay exact: see
    ///   [`PageStore::allocate`].
    /// - *Redo* of a record with a full page image.
    /// - *Repair* of a page whose only copy is corrupt or unreadable.
    ///
    /// The page need not exist or be in memory. The space grows to hold it and all pages before it: those
    /// that were never created have room, and do not exist. A number for which the HDD has no room takes
    /// none; one too far beyond the space's room is an error
    /// ([`Builder::page_gap_max`](crate::Builder::page_gap_max)). The next [`PageStore::sync`] writes the
    /// page and invalidates its older copies. Cancel-safe: a dropped future changes nothing but the space's
    /// size.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, space: SpaceId, pages: u32, image: &[u8], lsn: Lsn)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// // The engine's own count of pages, which its log covers, gives the number.
    /// let mut page = store.overwrite(PageId::new(space, pages)).await?;
    /// page.copy_from_slice(image);
    /// page.set_lsn(lsn);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`PageStore::allocate`].
    #[doc(alias = "create")]
    pub async fn overwrite(&self, page: PageId) -> Result<PageMut<'_>, Error> {
        let _arrives = self.extend_to(page).await?;
        Ok(PageMut(self.pool.create(page).await?))
    }

    /// Makes `page` exist. The caller keeps the mark until it has latched the page's frame.
    pub(crate) async fn extend_to(&self, page: PageId) -> Result<Mark<'_>, Error> {
        self.shared.ending.here()?;
        loop {
            match self.shared.volume.claim(page).ok_or(Error::NoSuchSpace { space: page.space })? {
                Claimed::Yes(arrives) => return Ok(arrives),
                Claimed::NoRoom => self.grow(page.space, page.no).await?,
                // Its earlier copies must be gone before it exists again (I28). Redo meets this when it frees
                // and creates a page in one go.
                Claimed::Leaving => self.shared.left(page.space, PageRuns::from_iter([page.no])).await?,
            }
        }
    }

    /// Reads the pages `range` of `space` in order, with read-ahead in large requests, without displacing the
    /// hot pages in memory. Skips pages that were never written.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, space: SpaceId)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let mut scan = store.scan(space, 0..u32::MAX);
    /// while let Some(page) = scan.next().await {
    ///     let page = page?;
    ///     println!("{} {}", page.id(), page[0]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn scan(&self, space: SpaceId, range: Range<u32>) -> Scan<'_> {
        let end = range.end.min(self.shared.volume.pages(space).unwrap_or(0));
        Scan(self.pool.scan(space, range.start..end))
    }

    /// Starts reading `pages` into memory and returns at once. A hint: pages that do not exist or do not fit
    /// are skipped.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, space: SpaceId)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use pagetier::PageId;
    ///
    /// store.prefetch(&[PageId::new(space, 3), PageId::new(space, 4)]);
    /// let page = store.get(PageId::new(space, 3)).await?;
    /// # drop(page);
    /// # Ok(())
    /// # }
    /// ```
    pub fn prefetch(&self, pages: &[PageId]) {
        self.pool.prefetch(pages);
    }

    /// Discards the page's contents: drops it from memory and the SSD without writing it. Unlike with
    /// [`PageStore::free`], the page continues to exist. A later `get` returns an earlier version, possibly
    /// from before the page was freed and reused, or fails. Waits for all guards of the page, so the caller
    /// must hold none. Cancel-safe.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, id: PageId)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// store.discard(id).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The page does not exist.
    pub async fn discard(&self, page: PageId) -> Result<(), Error> {
        let _operation = self.shared.ending.enter()?;
        if self.shared.volume.offset(page).is_none() {
            return Err(Error::NoSuchPage { page });
        }
        Ok(self.pool.discard(page).await?)
    }

    // ---- durability ----

    /// Makes every change durable whose guard was dropped before this call. A change under a guard that still
    /// lives is not covered: the next `sync` after the guard is dropped covers it. (Nor is it written half:
    /// a page is copied for its write only while no exclusive guard of it exists.) If the page of such a
    /// guard was dirty before, `sync` waits until the guard is dropped, so the caller must hold no exclusive
    /// guard. Writes no map checkpoint, and needs no HDD flush for pages that go to the HDD. Cancel-safe:
    /// writes in flight complete.
    ///
    /// | method | pages that it writes | use |
    /// | --- | --- | --- |
    /// | `sync` | all dirty ones, in which a guard that was dropped left a change | commit without a log |
    /// | [`flush_to`](PageStore::flush_to) | those with changes up to an LSN | checkpoint, first step |
    /// | [`redo_from`](PageStore::redo_from) | none; makes durable what was written | checkpoint: which log may be removed |
    /// | [`flush`](PageStore::flush) | none; makes durable what was written | included in the others |
    /// | [`min_recovery_lsn`](PageStore::min_recovery_lsn) | none; nothing becomes durable | inspect the oldest change in memory |
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, id: PageId)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// store.get_mut(id).await?[0] = 1;
    /// store.sync().await?; // the change is durable
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first failure; pages that could not be written stay dirty in memory.
    pub async fn sync(&self) -> Result<(), Error> {
        let _operation = self.shared.ending.enter()?;
        // A save that failed may have freed a page or dropped a space in the file alone: what is written
        // there now would be lost by a crash (I28).
        self.settle_manifest().await?;
        self.pool.flush_all().await?;
        // Last: a page under a freed number exists after a crash only once the manifest says so, and it may
        // say so only once the page's new version is durable (I28).
        self.shared.record_reused().await
    }

    /// Writes every page whose recovery LSN is at most `lsn` and makes it durable. Redo then needs no record
    /// up to and including `lsn` that was on its pages when the call began. To find out which log may be
    /// removed, call [`PageStore::redo_from`] afterwards.
    ///
    /// This holds only if no page gets an LSN that was assigned before the call, so assign an LSN and set it
    /// on the record's pages in one critical section, and read `lsn` in it: see [`LogGate`](crate::LogGate).
    /// Waits for exclusive guards of these pages: the caller must hold none. Cancel-safe.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, lsn: Lsn)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// store.flush_to(lsn).await?;
    /// assert!(store.min_recovery_lsn().is_none_or(|oldest| oldest > lsn));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`PageStore::sync`].
    pub async fn flush_to(&self, lsn: Lsn) -> Result<(), Error> {
        let _operation = self.shared.ending.enter()?;
        self.settle_manifest().await?;
        self.pool.flush_to(lsn).await?;
        self.shared.record_reused().await
    }

    /// Makes durable what has been written so far, for example by evictions or to bound redo. Writes no page
    /// itself. [`PageStore::flush_to`] and [`PageStore::redo_from`] include it. Cancel-safe.
    ///
    /// # Errors
    /// As [`PageStore::sync`].
    pub async fn flush(&self) -> Result<(), Error> {
        let _operation = self.shared.ending.enter()?;
        self.settle_manifest().await?;
        self.shared.tier.flush().await?;
        self.shared.record_reused().await
    }

    /// The LSN from which redo would need the embedder's log after `loss`, the record at that LSN included:
    /// all records with smaller LSNs may be removed. (If your LSNs are ends of records, keep the record that
    /// *ends* there: see [`Lsn`].) Makes durable what has been written, but writes no page itself: to advance
    /// the position, call [`PageStore::flush_to`] first, and [`Ssd::drain`](crate::Ssd::drain) for
    /// [`Loss::Ssd`].
    ///
    /// A position for [`Loss::Ssd`] is recorded in the manifest before it is returned, unless a later one is:
    /// after the loss, [`SsdLoss::redo_from`](crate::SsdLoss::redo_from) is never older than it, so a log
    /// that was shortened by such positions alone suffices. LSNs must never start again from smaller values
    /// during the store's life.
    ///
    /// `log_end` is the end of the log, the LSN that the next record will get, read before this call and in
    /// the critical section in which LSNs are assigned and set on pages (see [`LogGate`](crate::LogGate)). It
    /// is the result when nothing is needed. Cancel-safe.
    ///
    /// A change counts from its [`set_lsn`](crate::PageMut::set_lsn) on, even while its guard is held, with
    /// the first LSN that the page got since it was clean. A change without `set_lsn` counts from the drop of
    /// its guard, with the LSN that the page had. If it had none, the result is 0 until the page is written,
    /// for example by [`PageStore::flush_to`]. A page that was created and not changed since is dirty, but
    /// does not count: no record describes it.
    ///
    /// ```
    /// use pagetier::{Error, Loss, Lsn, PageStore};
    ///
    /// /// Returns the position before which the log may be removed.
    /// async fn checkpoint(store: &PageStore, log_end: Lsn) -> Result<Lsn, Error> {
    ///     store.flush_to(log_end).await?;
    ///     store.redo_from(log_end, Loss::Crash).await
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`PageStore::sync`]: remove no log then. [`Error::ReadOnly`] on a read-only opening.
    pub async fn redo_from(&self, log_end: Lsn, loss: Loss) -> Result<Lsn, Error> {
        self.shared.refuse_read_only()?;
        self.shared.ending.here()?;
        // No page can slip through: one written back after step 1 was seen dirty in step 1, or is on the SSD
        // in step 3; one written earlier was made durable by step 2.
        let in_memory = self.pool.min_recovery_lsn(); // 1
        self.flush().await?; // 2
        let on_ssd = if loss == Loss::Ssd { self.shared.tier.oldest_lsn() } else { None }; // 3
        let from = [in_memory, on_ssd].into_iter().flatten().fold(log_end, Lsn::min);
        if loss == Loss::Ssd {
            // Once the engine has removed the log before it, nothing else would say after a crash that the
            // rest suffices.
            self.shared.record_redo_from(from).await?;
        }
        Ok(from)
    }

    /// The oldest log position that redo would need for pages that are dirty in memory at this moment; `None`
    /// when no change is. A page that was created and not changed since needs none. Pages that have left
    /// memory are written but perhaps not durable: [`PageStore::redo_from`] includes them. 0 after a shutdown
    /// that could not write everything.
    #[must_use]
    pub fn min_recovery_lsn(&self) -> Option<Lsn> {
        self.pool.min_recovery_lsn()
    }

    /// Closes the store cleanly: writes everything, makes it durable, and checkpoints the SSD's map exactly,
    /// so that the next opening is warm and reads little. Dropping the future half-way is equivalent to a
    /// crash, and safe. [`PageStore::shutdown`] does the same for a store that is shared. When it returns,
    /// every descriptor of the store is closed, so that its file systems can be unmounted.
    ///
    /// # Errors
    /// The first failure. The store is closed even so, as by a crash.
    pub async fn close(self) -> Result<(), Error> {
        self.close_owned().await
    }

    // ---- views ----

    /// Counters, sizes and device statistics at this moment.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let stats = store.stats();
    /// println!("{stats}"); // a screenful
    /// println!("{}", serde_json::to_string(&stats)?);
    /// println!("{} pages on the SSD", stats.ssd.pages);
    /// # Ok(())
    /// # }
    /// ```
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

    /// The device that the page would be read from if it were not in memory.
    #[must_use]
    pub fn location(&self, page: PageId) -> Location {
        self.shared.tier.ask(|slots| slots.location(page))
    }

    /// What recovery found when the store was opened.
    #[must_use]
    pub fn recovery(&self) -> RecoveryReport {
        self.shared.tier.recovery()
    }

    /// The backend that serves the HDD: `uring`, `threads`, `emulated`, …
    #[must_use]
    pub fn io_backend(&self) -> &'static str {
        self.shared.hdd.backend()
    }

    /// The number of frames: the pages that memory holds at this moment. [`PageStore::resize_pool`] changes
    /// it; [`frames_for`](crate::frames_for) computes it before the store is opened.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.shared.frames() as u64
    }

    /// The size of a page, its header included. [`PageSize::payload_bytes`] is the part that a guard gives
    /// you.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.shared.page_size()
    }

    /// Recounts the internal structures and compares; for tests.
    ///
    /// # Errors
    /// A description of the first inconsistency.
    pub fn validate(&self) -> Result<(), String> {
        self.pool.validate()?;
        self.shared.tier.validate()
    }
}
