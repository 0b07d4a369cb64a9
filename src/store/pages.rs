//! The calls for single pages: read, change, create, discard and free them.

use super::guards::{PageMut, PageRef, Scan};
use super::page_store::PageStore;
use crate::error::Error;
use crate::manifest::page_runs::PageRuns;
use crate::volume::arriving::Mark;
use crate::volume::table::{Claimed, Taken};
use pagetier_bufpool::{Cursor, PoolError, TierError};
use pagetier_page::{PageId, SpaceId};
use pagetier_ssdcache::Homes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Pages to free: one, several of any spaces, or a range of one space. See [`PageStore::free`].
#[derive(Clone, Debug, Default)]
pub struct Pages(pub(crate) BTreeMap<SpaceId, Vec<Range<u32>>>);

impl FromIterator<PageId> for Pages {
    fn from_iter<I: IntoIterator<Item = PageId>>(pages: I) -> Self {
        let mut by_space: BTreeMap<SpaceId, Vec<Range<u32>>> = BTreeMap::new();
        for page in pages {
            // One record per space and 128 runs, instead of one flushed write per page.
            by_space.entry(page.space).or_default().push(page.no..page.no.saturating_add(1));
        }
        Self(by_space)
    }
}

impl From<PageId> for Pages {
    fn from(page: PageId) -> Self {
        Self::from_iter([page])
    }
}

impl From<&[PageId]> for Pages {
    fn from(pages: &[PageId]) -> Self {
        pages.iter().copied().collect()
    }
}

impl<const N: usize> From<&[PageId; N]> for Pages {
    fn from(pages: &[PageId; N]) -> Self {
        pages.iter().copied().collect()
    }
}

impl From<&Vec<PageId>> for Pages {
    fn from(pages: &Vec<PageId>) -> Self {
        pages.iter().copied().collect()
    }
}

impl From<(SpaceId, Range<u32>)> for Pages {
    fn from((space, range): (SpaceId, Range<u32>)) -> Self {
        Self(BTreeMap::from([(space, vec![range])]))
    }
}

/// The pool's future, and what wraps its guard.
struct Latching<F, W>(F, W);

impl<F: Future<Output = Result<T, PoolError>> + Unpin, W: Fn(T) -> G + Unpin, T, G> Future
    for Latching<F, W>
{
    type Output = Result<G, Error>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self(latching, wrap) = &mut *self;
        Pin::new(latching).poll(context).map_ok(wrap).map_err(Error::from)
    }
}

impl PageStore {
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
    /// (or the embedder's redo, see [`PageStore::get_or_create`]) covers it. Cancel-safe; an error, a
    /// cancellation or a crash may leave a page number unused. The redo of an engine with a log creates the
    /// page again, by its number. An engine that must account for every page keeps its own page count in a
    /// page, and creates pages by number: [`PageStore::overwrite`].
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
                // Then again from the start: another call may have used up the disk space that this one made.
                Taken::NoRoom(no) => self.shared.grow_space(space, no).await?,
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
    pub fn get(&self, page: PageId) -> impl Future<Output = Result<PageRef<'_>, Error>> + Send {
        Latching(self.pool.get(page), PageRef)
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
    pub fn get_mut(&self, page: PageId) -> impl Future<Output = Result<PageMut<'_>, Error>> + Send {
        Latching(self.pool.get_mut(page), PageMut)
    }

    /// Latches several pages in shared mode; returns their guards in the order of `pages`. Faster than one
    /// [`PageStore::get`] after the other: the CPU looks for them at the same time, and pages that are
    /// not in memory are read at the same time. A page may be named several times. Cancel-safe.
    ///
    /// If one of them is missing or busy, the call holds no latch while it reads, and then latches the pages
    /// in the order of their ids, whatever that of `pages`. So such calls and tasks that hold one page at a
    /// time never wait for each other without end. A caller that holds guards must hold those of smaller ids
    /// only, and one that asks for more pages while it holds the result, those of larger ids only. Leave
    /// frames for others: name at most a few per cent of the pages that fit into memory.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, ids: &[PageId])
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// for page in store.get_many(ids).await? {
    ///     println!("page {} begins with {}", page.id(), page[0]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`PageStore::get`], for any of the pages; none stays latched.
    pub async fn get_many(&self, pages: &[PageId]) -> Result<Vec<PageRef<'_>>, Error> {
        Ok(self.pool.get_many(pages).await?.into_iter().map(PageRef).collect())
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
    /// none; one too far beyond the space's disk space is an error
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
                Claimed::NoRoom => self.shared.grow_space(page.space, page.no).await?,
                // Its earlier copies must be gone before it exists again (I28). Redo meets this when it frees
                // and creates a page in one go.
                Claimed::Leaving => self.shared.left(page.space, PageRuns::from_iter([page.no])).await?,
                // Freed at once, so that its number can begin a new life, for which the same holds.
                Claimed::PendingFree => drop(self.shared.free_pages(page.into()).await?),
            }
        }
    }

    /// Whether the number of `page` is in use: it lies below the end of its space, and is not free. Looks up
    /// the number in memory; never waits, and reads no page. A number that
    /// [`overwrite`](PageStore::overwrite) skipped, or whose allocation was cut short, is in use, although
    /// [`get`](PageStore::get) finds no page there: free it like any other.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, space: SpaceId)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let page = store.allocate(space).await?.id();
    /// assert!(store.exists(page));
    /// store.free(page).await?;
    /// assert!(!store.exists(page));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn exists(&self, page: PageId) -> bool {
        self.shared.volume.exists(page)
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
        Scan { cursor: self.cursor(space, range), store: self }
    }

    pub(crate) fn cursor(&self, space: SpaceId, range: Range<u32>) -> Cursor {
        let end = range.end.min(self.shared.volume.pages(space).unwrap_or(0));
        Cursor::new(space, range.start..end)
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

    /// Frees those of `pages` whose numbers are in use, and returns how many these are: a page, several of
    /// any spaces, or a range of one space. A freed page ceases to exist, in this run and after a crash. Its
    /// contents are dropped from memory and the SSD without being written. [`PageStore::allocate`] reuses its
    /// number; [`PageStore::overwrite`] and [`PageStore::get_or_create`] make the page exist again under that
    /// number. Its earlier contents are never read again, in this run or later, unless the new page is
    /// discarded ([`PageStore::discard`]) or lost with the SSD. A crash before a [`PageStore::sync`] covers
    /// the new page leaves it free.
    ///
    /// What is freed is the number: a number below the end of its space is in use until it is freed, even if
    /// its page was never written, so that [`PageStore::get`] finds none (it was skipped by
    /// [`PageStore::overwrite`], or its allocation was cut short).
    ///
    /// The free is durable when the call returns: a small synchronous write to the manifest for every 128
    /// runs of consecutive pages in a space, which calls at the same time share. The numbers stay the
    /// space's, so [`Spaces::pages`](crate::Spaces::pages) is as before, until
    /// [`Spaces::shrink`](crate::Spaces::shrink) returns their disk space and ends the space earlier. The
    /// free is not part of the embedder's log: free a page only once the log record that frees it is durable.
    /// Waits for all guards of the pages, so the caller must hold none. Completes even if the future is
    /// dropped.
    /// [`guide`](crate::guide#free-a-page) compares the ways to end a page.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let temporary = tempfile::tempdir()?;
    /// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
    /// # let store = builder.open().await?;
    /// let space = store.spaces().create("t").await?;
    /// let page = store.allocate(space).await?.id();
    /// store.sync().await?;
    /// assert_eq!(store.free(page).await?, 1);
    /// assert!(matches!(store.get(page).await, Err(pagetier::Error::NoSuchPage { .. })));
    /// assert_eq!(store.allocate(space).await?.id(), page);
    /// // Several pages at once, and all from number 0 on.
    /// store.free(&[page]).await?;
    /// assert_eq!(store.free((space, 0..u32::MAX)).await?, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A space does not exist, or the manifest cannot be written: the pages still exist, but a crash before
    /// the next [`PageStore::sync`] may free them. Some of them may have been freed. A page that is free
    /// already, or lies beyond the end of its space, is none; redo of a record that frees it may ignore that.
    /// If another call is freeing it, it has left memory when this one returns.
    pub async fn free(&self, pages: impl Into<Pages>) -> Result<u32, Error> {
        self.shared.free_pages(pages.into()).await
    }

    /// As [`PageStore::free`], for pages of one space. Calls `recorded` with their number once a crash
    /// leaves them free, before it waits for their guards: from then on a log need not know of the free.
    #[doc(hidden)]
    pub async fn free_noting(
        &self,
        space: SpaceId,
        pages: &[u32],
        recorded: impl FnOnce(u32) + Send + 'static,
    ) -> Result<u32, Error> {
        let ranges = pages.iter().map(|no| *no..no.saturating_add(1)).collect();
        self.shared.free_noting(space, ranges, recorded).await
    }

    /// Lets the next [`PageStore::sync`] free `pages`: a free without a write of its own. Returns how many of
    /// them exist and had not been named before; skips the others. Takes effect in memory; never waits.
    ///
    /// The first `sync` that begins after this call (or [`Spaces::sync`](crate::Spaces::sync) of their space,
    /// or a clean close) frees them as [`PageStore::free`] does, with one manifest write for every 128 runs
    /// of a space, once everything else that it covers is durable. So an engine without a log may change what
    /// refers to a page, name the page here, and sync: a crash leaves a page that nothing refers to, never a
    /// reference to a page that is gone. This holds for a change whose guard still lives, too, whichever task
    /// syncs: a `sync` with pages to free first waits for the exclusive guards that it finds, of the spaces
    /// that it covers, and looks at every frame of the pool for them. After a crash before that `sync`
    /// returned, each page exists, in a version that the last `sync` allows, or is free. If the `sync` fails,
    /// the next one tries again.
    ///
    /// Until then the number is not available for [`PageStore::allocate`], and [`PageStore::exists`] is
    /// false; reads may still find the page. The caller must not use it any more: changes are lost with it.
    /// Once the `sync` has returned, reads report that the page does not exist, unless a guard of it lives or
    /// a write of it is in flight: then they find it until this has ended. Shared guards of it may stay; no
    /// `sync` waits for them, only the number's next use does. [`PageStore::overwrite`] and
    /// [`PageStore::get_or_create`] first free the page, durably, at the cost of a `free`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let temporary = tempfile::tempdir()?;
    /// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
    /// # let store = builder.open().await?;
    /// let space = store.spaces().create("t").await?;
    /// let (root, old) = (store.allocate(space).await?.id(), store.allocate(space).await?.id());
    /// let new = store.allocate(space).await?.id();
    /// store.get_mut(root).await?[..4].copy_from_slice(&new.no.to_le_bytes()); // instead of `old`
    /// assert_eq!(store.free_on_sync(&[old])?, 1);
    /// store.sync().await?; // the root is durable, then the page is free
    /// assert!(!store.exists(old));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A space does not exist ([`Error::NoSuchSpace`]; no page is noted), or the store is closed.
    pub fn free_on_sync(&self, pages: &[PageId]) -> Result<u32, Error> {
        self.shared.note_frees(pages)
    }
}
