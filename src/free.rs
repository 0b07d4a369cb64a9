//! Freed pages: they do not exist until their numbers are used again.
//!
//! A page is freed in this order: (1) the manifest lists it as free, durably; (2) reads do not find it; (3)
//! its copies in memory and on the SSD are dropped, once nothing of it is in flight; (4) its number can be
//! used again. A crash after (1) leaves a page that does not exist, whatever homes, slots, ring and journal
//! hold of it; one before leaves the page as it was.
//!
//! Its number is used again in this order: (1) the page exists in memory, and nothing below counts as it; (2)
//! a version of it is written and flushed, as of any page; (3) the manifest lists it as free no longer,
//! durably; (4) the `sync` that covers the page returns. A crash before (3) leaves a page that does not
//! exist. After (3), the version of (2) is durable and newer than everything from before the page was freed.
//! So that is never read again, and no recovery needs to tell the two lives of a page apart.

use crate::changes::{CHANGE_RUNS_MAX, Change};
use crate::error::Error;
use crate::meta::Meta;
use crate::page_runs::PageRuns;
use crate::shared::Shared;
use crate::spaces::Spaces;
use crate::store::PageStore;
use crate::volume::pages_of;
use pagetier_bufpool::Tier;
use pagetier_page::{PageId, SpaceId};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl PageStore {
    /// Frees `page`: it does not exist from then on, in this run and after a crash, and its contents are
    /// dropped from memory and the SSD without being written. [`PageStore::allocate`] uses its number again;
    /// [`PageStore::create`], [`PageStore::overwrite`] and [`PageStore::recreate`] of that number make the
    /// page exist again. Nothing of its earlier contents can be read then, in this run or later; a crash
    /// before a [`PageStore::sync`] covers the page leaves it free.
    ///
    /// Durable when it returns, by a small synchronous write to the manifest: free several pages with
    /// [`PageStore::free_pages`], or a range with [`Spaces::free`]. It is no part of the embedder's log: free
    /// a page when the record that frees it is durable. Waits for all guards of the page: the caller must
    /// hold none. It completes even if the future is dropped.
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
    /// store.free(page).await?;
    /// assert!(matches!(store.get(page).await, Err(pagetier::Error::NoSuchPage { .. })));
    /// assert_eq!(store.allocate(space).await?.id(), page);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The page does not exist, or is free already: redo of a record that frees it may ignore that. The
    /// manifest cannot be written: the page exists, and a crash before the next [`PageStore::sync`] may free
    /// it.
    pub async fn free(&self, page: PageId) -> Result<(), Error> {
        match self.free_pages(&[page]).await? {
            0 => Err(Error::NoSuchPage { page }),
            _ => Ok(()),
        }
    }

    /// Frees those of `pages` that exist, as [`PageStore::free`] does, with one write to the manifest for
    /// some hundred of them. Returns their number.
    ///
    /// # Errors
    /// A space does not exist, or the manifest cannot be written; some of the pages may be free then.
    pub async fn free_pages(&self, pages: &[PageId]) -> Result<u32, Error> {
        let mut by_space: BTreeMap<SpaceId, Vec<Range<u32>>> = BTreeMap::new();
        for page in pages {
            by_space.entry(page.space).or_default().push(page.no..page.no.saturating_add(1));
        }
        let mut freed = 0;
        for (space, ranges) in by_space {
            freed += self.free_ranges(space, ranges).await?;
        }
        Ok(freed)
    }

    pub(crate) async fn free_ranges(&self, space: SpaceId, ranges: Vec<Range<u32>>) -> Result<u32, Error> {
        // In a task of its own: a page that has been freed half-way could not be used again.
        let shared = Arc::clone(&self.shared);
        let task = self.shared.runtime.spawn(async move { shared.free(space, ranges).await });
        task.await.unwrap_or_else(|_| Err(Error::runtime_ended()))
    }
}

impl Spaces<'_> {
    /// Frees the pages of `space` in `range` that exist, as [`PageStore::free`] does. Returns their number.
    ///
    /// # Errors
    /// As [`PageStore::free_pages`].
    pub async fn free(self, space: SpaceId, range: Range<u32>) -> Result<u32, Error> {
        self.0.free_ranges(space, vec![range]).await
    }
}

impl Spaces<'_> {
    /// Gives the room of the free pages of `space` back, where all pages of an extent (64 pages) are free:
    /// the next growth of any space uses it, and until then the file system has it, if the HDD is a file and
    /// holes can be punched into it. The file's size stays. The pages stay free: using such a number again
    /// makes the space grow. Returns the number of bytes given back. Cancel-safe: it goes on if the future is
    /// dropped.
    ///
    /// # Errors
    /// The space does not exist, the HDD cannot be flushed, or the manifest cannot be written; a part may
    /// have been given back.
    pub async fn shrink(self, space: SpaceId) -> Result<u64, Error> {
        let shared = Arc::clone(&self.0.shared);
        let task = self.0.shared.runtime.spawn(async move { shared.shrink(space).await });
        task.await.unwrap_or_else(|_| Err(Error::runtime_ended()))
    }
}

impl Shared {
    /// Extents are given back in this order: no number of theirs can be used again; nothing written to them
    /// can be torn; the manifest; memory; holes. The manifest's lock is held to the end: a hole punched after
    /// the next growth would take its pages.
    async fn shrink(&self, space: SpaceId) -> Result<u64, Error> {
        let _operation = self.ending.enter()?;
        let mut meta = self.meta.lock().await;
        let extents = self.volume.withhold_extents(space).ok_or(Error::NoSuchSpace { space })?;
        let pages: Vec<(u32, u32)> = extents.iter().copied().filter_map(pages_of).collect();
        let pages = PageRuns::from_runs(&pages);
        if self.builder.rules().gives_back_in_use() {
            self.volume.end_free(space, &pages);
        }
        let mut given = Vec::new();
        let result = self.give_back(space, &extents, &mut meta, &mut given).await;
        self.volume.end_free(space, &pages);
        for range in &given {
            // A hint.
            if let Err(error) = self.hdd.discard(range.start, range.end - range.start).await {
                tracing::debug!(%error, "no hole was punched");
            }
        }
        result.map(|()| given.iter().map(|range| range.end - range.start).sum())
    }

    async fn give_back(
        &self,
        space: SpaceId,
        extents: &[(u64, u64)],
        meta: &mut Meta,
        given: &mut Vec<Range<u64>>,
    ) -> Result<(), Error> {
        self.tier.flush_home().await?;
        for extents in extents {
            meta.append(&self.volume, &Change::GiveBack { space: space.0, extents: *extents })?;
            given.extend(self.volume.give_back(space, *extents));
        }
        Ok(())
    }

    async fn free(&self, space: SpaceId, ranges: Vec<Range<u32>>) -> Result<u32, Error> {
        let _operation = self.ending.enter()?;
        let mut meta = self.meta.lock().await;
        // A failed save may have recorded that a page is not free.
        meta.settle(&self.volume)?;
        let (mut pages, mut unlisted, mut freed) = Default::default();
        for range in ranges {
            let (some, of_these) = self.volume.existing(space, range).ok_or(Error::NoSuchSpace { space })?;
            add(&mut pages, &some);
            add(&mut unlisted, &of_these);
        }
        let result = self.begin_free(space, (pages, unlisted), &mut meta, &mut freed).await;
        drop(meta);
        self.drop_copies(space, &freed).await?;
        self.volume.end_free(space, &freed);
        result.map(|()| freed.pages())
    }

    /// Steps 1 and 2, for pages and for those of them that the manifest does not list as free.
    async fn begin_free(
        &self,
        space: SpaceId,
        (pages, unlisted): (PageRuns, PageRuns),
        meta: &mut Meta,
        freed: &mut PageRuns,
    ) -> Result<(), Error> {
        if self.builder.rules().drops_before_record() {
            self.drop_copies(space, &pages).await?;
        }
        let runs: Vec<(u32, u32)> = unlisted.iter().collect();
        for pages in runs.chunks(CHANGE_RUNS_MAX) {
            let change = Change::Free { space: space.0, pages: pages.to_vec() };
            let recorded = self.builder.rules().frees(|| meta.append(&self.volume, &change));
            recorded.inspect_err(|_| self.doubtful.store(true, Ordering::Release))?;
            self.take_out(space, &PageRuns::from_runs(pages), freed);
        }
        let mut listed = pages;
        for (first, count) in unlisted.iter() {
            let _ = listed.remove(first, count);
        }
        self.take_out(space, &listed, freed);
        Ok(())
    }

    /// Step 2.
    fn take_out(&self, space: SpaceId, pages: &PageRuns, freed: &mut PageRuns) {
        self.volume.begin_free(space, pages);
        for (first, count) in pages.iter() {
            let _ = freed.insert(first, count);
        }
    }

    /// Step 3.
    async fn drop_copies(&self, space: SpaceId, pages: &PageRuns) -> Result<(), Error> {
        for no in pages.numbers() {
            let page = PageId::new(space, no);
            self.volume.arriving.ended(page).await;
            self.pool.discard(page).await?;
        }
        Ok(())
    }

    /// Records that pages exist again, versions of which have been written: steps 2 and 3.
    pub(crate) async fn record_reused(&self) -> Result<(), Error> {
        let rules = self.builder.rules();
        let upto = self.volume.first_writes();
        let reused = || rules.reused(|unwritten| self.volume.reused(upto, unwritten));
        if reused().is_empty() {
            return Ok(());
        }
        self.tier.flush().await?;
        let mut meta = self.meta.lock().await;
        // Some may have been freed or discarded meanwhile.
        for (space, pages) in reused() {
            let runs: Vec<(u32, u32)> = pages.iter().collect();
            for pages in runs.chunks(CHANGE_RUNS_MAX) {
                meta.append(&self.volume, &Change::Reuse { space: space.0, pages: pages.to_vec() })?;
                self.volume.settle_reused(space, &PageRuns::from_runs(pages));
            }
        }
        Ok(())
    }
}

/// Adds pages, some of which may be there.
fn add(to: &mut PageRuns, pages: &PageRuns) {
    for no in pages.numbers() {
        let _ = to.insert(no, 1);
    }
}
