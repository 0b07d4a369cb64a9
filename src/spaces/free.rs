//! Freed pages: a freed page does not exist until its number is reused.
//!
//! Calls that come together share a record: the first that gets the manifest's mutex records the pages of all
//! that wait for it, and each learns which of its own these are.
//!
//! Freeing a page takes four steps: (1) the manifest durably lists it as free; (2) reads report that it does
//! not exist; (3) its copies in memory and on the SSD are dropped, once no I/O of it is in flight; (4) its
//! number becomes available. A crash before (1) leaves the page as it was. A crash after (1) leaves a page
//! that does not exist, whatever versions of it remain in its home, in slots, in the ring and in the journal.
//!
//! Reusing its number takes four steps: (1) the page exists in memory, and every version below memory is
//! ignored; (2) a new version is written and flushed, as for any page; (3) the manifest durably removes the
//! page from its free list; (4) the `sync` that covers the page returns. A crash before (3) leaves a page
//! that does not exist. After (3), the version written in (2) is durable and newer than every version from
//! before the free. Those are never read again, so recovery need not distinguish the page's two lives.

use crate::error::Error;
use crate::manifest::changes::{CHANGE_RUNS_MAX, Change};
use crate::manifest::page_runs::PageRuns;
use crate::store::handles::Spaces;
use crate::store::pages::Pages;
use crate::store::record::manifest_state::ManifestState;
use crate::store::record::waiting_frees::{FreeCall, Recorded};
use crate::store::shared::Shared;
use crate::volume::table::{Volume, pages_of};
use pagetier_bufpool::Tier;
use pagetier_devio::listen;
use pagetier_devio::task;
use pagetier_page::{PageId, SpaceId};
use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

impl Spaces<'_> {
    /// Gives back the extents (64 pages each) of `space` in which every page is free, and those beyond its
    /// last number, but none that [`Spaces::reserve`] reserved. Any space can grow into them; until then, if
    /// the HDD is a file on a file system that can punch holes, their disk space returns to the file system,
    /// and so does that of dropped spaces. The file's length does not change. Then ends the space after the
    /// last of its pages that is not free: [`Spaces::pages`] falls, and a scan of all pages gets shorter. The
    /// pages stay free, and reusing one of their numbers makes the space grow. Returns the number of bytes
    /// given back. Completes even if the future is dropped.
    ///
    /// # Errors
    /// The space does not exist, the HDD cannot be flushed, or the manifest cannot be written. Some extents
    /// may have been given back, and the space may end earlier.
    pub async fn shrink(self, space: SpaceId) -> Result<u64, Error> {
        self.0.shared.in_task(move |shared| async move { shared.shrink(space).await }).await
    }
}

impl Shared {
    /// See [`PageStore::free`](crate::PageStore::free).
    pub(crate) async fn free_pages(self: &Arc<Self>, pages: Pages) -> Result<u32, Error> {
        let mut freed = 0;
        for (space, ranges) in pages.0 {
            freed += self.free_noting(space, ranges, |_| ()).await?;
        }
        Ok(freed)
    }

    /// See [`PageStore::free_on_sync`](crate::PageStore::free_on_sync).
    pub(crate) fn note_frees(&self, pages: &[PageId]) -> Result<u32, Error> {
        let _operation = self.ending.enter()?;
        let mut by_space: BTreeMap<SpaceId, Vec<u32>> = BTreeMap::new();
        for page in pages {
            by_space.entry(page.space).or_default().push(page.no);
        }
        if let Some(space) = by_space.keys().copied().find(|space| self.volume.pages(*space).is_none()) {
            return Err(Error::NoSuchSpace { space });
        }
        // A space that is dropped at this moment takes its pages with it.
        let noted =
            by_space.into_iter().map(|(space, pages)| self.volume.note_frees(space, pages.into_iter()));
        Ok(noted.flatten().sum())
    }

    /// Frees the pages that the `upto`-th call of `free_on_sync` or an earlier one named; of all spaces, or
    /// of `only` one. Call it once what these calls' callers had written before is durable: a crash after the
    /// record, with an older version of what refers to the page, would leave a reference to nothing (I28).
    pub(crate) async fn free_pending(
        self: &Arc<Self>,
        upto: Option<u64>,
        only: Option<SpaceId>,
    ) -> Result<(), Error> {
        let Some(upto) = upto else { return Ok(()) };
        let (done, recorded) = oneshot::channel();
        let shared = Arc::clone(self);
        // In a task of its own, as any free. Its caller waits for the record alone: the guards of the pages
        // may be the caller's, and a `sync` must not wait for them.
        task::spawn(&self.runtime, async move {
            let Ok(_operation) = shared.ending.enter() else { return };
            let (freed, recorded) = shared.record_pending(upto, only).await;
            // First those that nothing holds: once the caller knows, no read may find one of them.
            for (space, pages) in &freed {
                pages.numbers().for_each(|no| shared.pool.try_discard(PageId::new(*space, no)));
            }
            let _ = done.send(recorded);
            for (space, pages) in freed {
                if let Err(error) = shared.finish_free(space, &pages).await {
                    tracing::debug!(%space, %error, "freed pages have not left memory yet");
                }
            }
        });
        recorded.await.unwrap_or_else(|_| {
            Err(if self.ending.has_begun() { Error::Closed } else { Error::runtime_ended() })
        })
    }

    /// The same at the end of the store, when no operation is in progress.
    pub(crate) async fn free_pending_at_end(&self) -> Result<(), Error> {
        let pending = self.volume.last_pending();
        let Some(upto) = pending else { return Ok(()) };
        self.write_pages(pending, None).await?;
        let (freed, recorded) = self.record_pending(upto, None).await;
        for (space, pages) in freed {
            self.finish_free(space, &pages).await?;
        }
        recorded
    }

    /// Steps 1 and 2 of the pending frees. Returns, also after a failure, those that must leave.
    async fn record_pending(
        &self,
        upto: u64,
        only: Option<SpaceId>,
    ) -> (Vec<(SpaceId, PageRuns)>, Result<(), Error>) {
        let (mut all, mut meta) = (Vec::new(), self.meta.lock().await);
        let mut recorded = meta.settle(&self.volume).await;
        // Looked up under the lock: another call may have freed some of them, and their numbers may be in use
        // again. What another `sync` freed is durable by now.
        for (space, pages) in self.volume.pending_frees(upto, only) {
            let mut freed = PageRuns::default();
            if recorded.is_ok() {
                recorded = self.begin_free(space, pages, &mut meta, &mut freed).await;
            }
            all.push((space, freed));
        }
        (all, recorded)
    }

    /// Calls `recorded` with the number of pages once a crash leaves them free, before it waits for guards.
    pub(crate) async fn free_noting(
        self: &Arc<Self>,
        space: SpaceId,
        ranges: Vec<Range<u32>>,
        recorded: impl FnOnce(u32) + Send + 'static,
    ) -> Result<u32, Error> {
        // In a task of its own: a page that is only half freed could never be reused.
        self.in_task(move |shared| async move { shared.free(space, ranges, recorded).await }).await
    }

    /// Gives extents back in this order: free the rest of the last one; withhold their page numbers from
    /// reuse; flush what was written to them, so that no torn write remains; record it in the manifest;
    /// update the maps in memory; punch holes; lower the end of the space. Holds the manifest's lock to the
    /// end: a hole punched after a space has grown into the extents would destroy its pages.
    async fn shrink(&self, space: SpaceId) -> Result<u64, Error> {
        let _operation = self.ending.enter()?;
        let mut meta = self.meta.lock().await;
        if let Err(error) = self.free_rest(space, &mut meta).await {
            tracing::debug!(%space, %error, "the last extent stays");
        }
        let record = meta.manifest.spaces.iter().find(|record| record.id == space.0);
        let kept = record.map_or(0, |record| record.reserved_extents);
        let extents = self.volume.withhold_extents(space, kept).ok_or(Error::NoSuchSpace { space })?;
        let pages: Vec<(u32, u32)> = extents.iter().copied().filter_map(pages_of).collect();
        let pages = PageRuns::from_runs(&pages);
        // No copies of these pages exist: they left when the pages were freed.
        let withheld = Leaving { volume: &self.volume, space, pages: &pages, have_left: true };
        let mut given = Vec::new();
        let result = self.give_back(space, &extents, kept, &mut meta, &mut given).await;
        // The numbers can be used again: the pages have a hole for a home, and using one makes the space
        // grow.
        drop(withheld);
        // All that no space has: a crash, or a drop of a space, leaves some without a hole.
        self.punch(&self.volume.free_bytes()).await;
        result?;
        self.lower_end(space, &mut meta).await?;
        Ok(given.iter().map(|range| range.end - range.start).sum())
    }

    /// Frees the numbers that the last extent of `space` has beyond the end, if its others are free. They
    /// were never used, but they would keep the extent, and `allocate` prefers numbers that have disk space:
    /// the first one would make the space as long as it was.
    async fn free_rest(&self, space: SpaceId, meta: &mut ManifestState) -> Result<(), Error> {
        let Some(rest) = self.volume.withhold_rest(space) else { return Ok(()) };
        let pages = PageRuns::from_runs(&[rest]);
        // If the record fails, they are numbers again that were never used, or that `allocate` has skipped.
        let _withheld = Leaving { volume: &self.volume, space, pages: &pages, have_left: true };
        self.begin_free(space, (pages.clone(), pages.clone()), meta, &mut PageRuns::default()).await
    }

    /// Ends `space` after its last page that is not free, and lets the manifest say so: in its contents,
    /// since no record lowers a count.
    async fn lower_end(&self, space: SpaceId, meta: &mut ManifestState) -> Result<(), Error> {
        self.volume.lower_end(space, 0);
        let record = meta.manifest.spaces.iter().find(|record| record.id == space.0);
        let counted = record.map_or(0, |record| record.pages);
        let falls = self.volume.pages(space).is_some_and(|pages| pages < counted);
        if falls { meta.save(&self.volume).await } else { Ok(()) }
    }

    async fn give_back(
        &self,
        space: SpaceId,
        extents: &[(u64, u64)],
        kept: u64,
        meta: &mut ManifestState,
        given: &mut Vec<Range<u64>>,
    ) -> Result<(), Error> {
        // A write of such a page may still be in the HDD's cache. Unflushed, a crash could tear it over a
        // page of the space that gets the extent next.
        self.tier.flush_home().await?;
        for extents in extents {
            meta.append(&self.volume, &Change::GiveBack { space: space.0, extents: *extents }).await?;
            // Extent by extent, each after its own record: a failure half-way leaves manifest and memory in
            // agreement.
            given.extend(self.volume.give_back(space, *extents));
        }
        given.extend(self.cut_tail(space, kept, meta).await?);
        Ok(())
    }

    async fn free(
        &self,
        space: SpaceId,
        ranges: Vec<Range<u32>>,
        recorded: impl FnOnce(u32),
    ) -> Result<u32, Error> {
        let _operation = self.ending.enter()?;
        let call = self.frees.join(space, ranges);
        let mut meta = self.meta.lock().await;
        // The first of the calls that wait here records all of them.
        self.record_frees(&mut meta, self.frees.take()).await;
        // Dropping copies waits for guards, whose holders may need the manifest's mutex, for example to
        // allocate (I37).
        drop(meta);
        // The call that took this one along was cut short with the runtime.
        let Recorded { freed, leaving, result } = call.recorded().ok_or_else(Error::runtime_ended)?;
        if result.is_ok() {
            recorded(freed.pages());
        }
        self.finish_free(space, &freed).await?;
        result?;
        self.left(space, leaving).await?;
        Ok(freed.pages())
    }

    /// Steps 1 and 2 of freeing for calls that came together: one record for those of a space whose pages it
    /// can hold.
    async fn record_frees(&self, meta: &mut ManifestState, calls: Vec<Arc<FreeCall>>) {
        if calls.is_empty() {
            return;
        }
        let mut by_space: BTreeMap<SpaceId, Vec<Arc<FreeCall>>> = BTreeMap::new();
        for call in calls {
            by_space.entry(call.space).or_default().push(call);
        }
        for (space, calls) in by_space {
            let mut calls = calls.into_iter().peekable();
            while calls.peek().is_some() {
                // A save that failed may still have reached the disk and list a free page as reused.
                let settled = meta.settle(&self.volume).await;
                let (shares, of_all) = self.share_out(space, &mut calls);
                let mut freed = PageRuns::default();
                let result = match settled {
                    Ok(()) => self.begin_free(space, of_all, meta, &mut freed).await,
                    Err(error) => Err(error),
                };
                // Also after a failure each has what was recorded of it before: those pages must leave.
                shares.into_iter().for_each(|share| share.settle(&freed, &result));
            }
        }
    }

    /// Assigns each page to the first call that names it, for as many calls as one record holds. Returns the
    /// calls' shares, and the pages of all with those of them that the manifest does not yet list as free.
    fn share_out(
        &self,
        space: SpaceId,
        calls: &mut Peekable<impl Iterator<Item = Arc<FreeCall>>>,
    ) -> (Vec<Share>, (PageRuns, PageRuns)) {
        let (mut pages, mut unlisted) = <(PageRuns, PageRuns)>::default();
        let mut shares = Vec::new();
        while let Some(call) = calls.peek().cloned() {
            let (mut own, mut others, mut leaving) = <(PageRuns, PageRuns, PageRuns)>::default();
            let mut unlisted_too = PageRuns::default();
            let mut exists = true;
            for range in &call.ranges {
                // Another call may be freeing some of them. The caller may rely on their being gone, so we
                // wait for those, too.
                add(&mut leaving, &self.volume.leaving(space, range.clone()));
                let Some((some, of_these)) = self.volume.existing(space, range.clone()) else {
                    exists = false;
                    continue;
                };
                some.numbers().for_each(|no| {
                    let _ = if pages.contains(no) { others.insert(no, 1) } else { own.insert(no, 1) };
                });
                add(&mut unlisted_too, &of_these);
            }
            // A call that has room in one record does not get two because of others: its caller may repeat
            // it after a failure, and must not find some of its pages free and in use again (I28).
            let runs = unlisted.iter().count() + unlisted_too.iter().count();
            if !shares.is_empty() && runs > CHANGE_RUNS_MAX {
                break;
            }
            let _ = calls.next();
            add(&mut unlisted, &unlisted_too);
            add(&mut pages, &own);
            shares.push(Share { call, exists, own, others, leaving });
        }
        (shares, (pages, unlisted))
    }

    /// Waits until `pages`, which other calls are freeing, have left memory.
    pub(crate) async fn left(&self, space: SpaceId, mut pages: PageRuns) -> Result<(), Error> {
        loop {
            // Registered before the look, so that no end of a free is missed.
            listen!(left = self.volume.left);
            // The call that was freeing them may have been cut short.
            let stranded = self.volume.take_stranded(space, &pages);
            self.finish_free(space, &stranded).await?;
            self.volume.keep_leaving(space, &mut pages);
            if pages.is_empty() {
                return Ok(());
            }
            self.ending.or_shutdown(left).await.ok_or(Error::Closed)?;
        }
    }

    /// Steps 1 and 2 of freeing `pages`, of which the manifest does not yet list `unlisted` as free.
    async fn begin_free(
        &self,
        space: SpaceId,
        (pages, unlisted): (PageRuns, PageRuns),
        meta: &mut ManifestState,
        freed: &mut PageRuns,
    ) -> Result<(), Error> {
        // Recorded first: if the copies were dropped first, a crash before the record would leave a page that
        // exists, in an older version (I28).
        let runs: Vec<(u32, u32)> = unlisted.iter().collect();
        for pages in runs.chunks(CHANGE_RUNS_MAX) {
            let change = Change::Free { space: space.0, pages: pages.to_vec() };
            let recorded = meta.append(&self.volume, &change).await;
            recorded.inspect_err(|_| self.doubtful.store(true, Ordering::Release))?;
            // Before the next record is attempted, which may fail: what is recorded must not be found any
            // more.
            self.take_out(space, &PageRuns::from_runs(pages), freed);
        }
        // Reused pages that the manifest still lists as free need no record, only to be taken out.
        let mut listed = pages;
        for (first, count) in unlisted.iter() {
            let _ = listed.remove(first, count);
        }
        self.take_out(space, &listed, freed);
        Ok(())
    }

    /// Step 2 of freeing.
    fn take_out(&self, space: SpaceId, pages: &PageRuns, freed: &mut PageRuns) {
        self.volume.begin_free(space, pages);
        for (first, count) in pages.iter() {
            let _ = freed.insert(first, count);
        }
    }

    /// Steps 3 and 4 of freeing. If they fail, or are cut short by the end of the runtime, the next call that
    /// waits for one of the pages continues here.
    async fn finish_free(&self, space: SpaceId, pages: &PageRuns) -> Result<(), Error> {
        if pages.is_empty() {
            return Ok(());
        }
        // Also if this future is dropped below: the numbers are then stranded, not lost.
        let mut leaving = Leaving { volume: &self.volume, space, pages, have_left: false };
        self.drop_copies(space, pages).await?;
        leaving.have_left = true;
        Ok(())
    }

    /// Step 3 of freeing.
    async fn drop_copies(&self, space: SpaceId, pages: &PageRuns) -> Result<(), Error> {
        for no in pages.numbers() {
            let page = PageId::new(space, no);
            // An allocation may hold the number and wait for a frame. Without this wait, its page would
            // appear after we had found nothing to drop.
            self.volume.arriving.ended(page).await;
            self.pool.discard(page).await?;
        }
        Ok(())
    }

    /// Flushes the versions of reused pages that have been written, and records that these pages exist: steps
    /// 2 and 3 of reuse.
    pub(crate) async fn record_reused(&self) -> Result<(), Error> {
        // Read before the flush, which covers exactly the first writes so far. A page written for the first
        // time during the flush waits for the next one (I28).
        let upto = self.volume.first_writes();
        let reused = || self.volume.reused(upto);
        if reused().is_empty() {
            return Ok(());
        }
        // The new version must be durable before the record that the page exists: after a crash in between,
        // the page would read as before it was freed (I28).
        self.tier.flush().await?;
        let mut meta = self.meta.lock().await;
        // Computed again under the lock: some may have been freed or discarded meanwhile.
        for (space, pages) in reused() {
            let runs: Vec<(u32, u32)> = pages.iter().collect();
            for pages in runs.chunks(CHANGE_RUNS_MAX) {
                meta.append(&self.volume, &Change::Reuse { space: space.0, pages: pages.to_vec() }).await?;
                self.volume.settle_reused(space, &PageRuns::from_runs(pages));
            }
        }
        Ok(())
    }
}

/// A call's part of what is recorded for several.
struct Share {
    call: Arc<FreeCall>,
    /// Whether the space does.
    exists: bool,
    /// The pages that this call frees, and those that an earlier one of these calls does.
    own: PageRuns,
    others: PageRuns,
    /// Pages that calls from before are freeing.
    leaving: PageRuns,
}

impl Share {
    /// Tells the call which of its pages are among those that were `freed`.
    fn settle(self, freed: &PageRuns, result: &Result<(), Error>) {
        let Self { call, exists, own, others, mut leaving } = self;
        let of = |pages: &PageRuns| -> PageRuns {
            // One call alone, which may free a million pages.
            let all = pages == freed;
            if all { pages.clone() } else { pages.numbers().filter(|no| freed.contains(*no)).collect() }
        };
        let (mine, theirs) = (of(&own), of(&others));
        let result = match result {
            _ if !exists => Err(Error::NoSuchSpace { space: call.space }),
            // That of a record concerns the calls whose pages it has. Before the first one, what the manifest
            // says of any page is unverified.
            Err(error) if freed.is_empty() || mine != own || theirs != others => Err(error.clone()),
            _ => Ok(()),
        };
        add(&mut leaving, &theirs);
        call.settle(Recorded { freed: mine, leaving, result });
    }
}

/// Numbers that cannot be reused. When this is dropped, they can be, if all copies of their pages have left;
/// otherwise the next call that waits for one of them takes over.
struct Leaving<'a> {
    volume: &'a Volume,
    space: SpaceId,
    pages: &'a PageRuns,
    have_left: bool,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if self.have_left {
            self.volume.end_free(self.space, self.pages);
        } else {
            self.volume.strand(self.space, self.pages);
        }
    }
}

/// Adds pages, some of which `to` may contain already.
fn add(to: &mut PageRuns, pages: &PageRuns) {
    for no in pages.numbers() {
        let _ = to.insert(no, 1);
    }
}
