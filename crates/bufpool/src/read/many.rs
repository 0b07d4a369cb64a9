//! Lookups of several pages at once.
//!
//! If every page is in memory and free, one pass latches them all without waiting. Otherwise a call (1) lets
//! go of what the pass latched; (2) reads the missing pages at the same time, holds no latch meanwhile, and
//! pins what it has read; (3) latches all pages in the order of their ids, and waits where it must.
//!
//! These waits end. A call that waits for page p holds latches of smaller pages only, and whatever is ahead
//! of it in the queue for p is either such a call or a task that holds no other page. So look at the largest
//! page for which a call waits: each holder of its latch, and each task ahead in its queue once it is
//! granted the latch, waits for no latch, and lets go. The call gets the latch, and by induction so does
//! every other call.
//!
//! - Without step 1 there would be a cycle: reader 1 has A and queues for B behind writer B; that one waits
//!   for reader 2, which has B and queues for A behind writer A; and that one waits for reader 1.
//! - Step 2 waits for frames and devices, but for no latch. Its reads end whatever becomes of the latches.
//!   They need a frame for each page: for more pages than frames the wait ends with
//!   [`PoolError::Exhausted`], as any wait for a frame does.
//! - A pinned page is not evicted. If it is discarded, or another task's read of it failed, step 3 reads it
//!   again while it holds smaller pages. This too is a wait for a frame and a device alone: the frame is
//!   entered with its latch held.
//! - A page that is named again is not waited for: it shares the guard that the call has.
//! - Nothing is promised to a caller that holds guards of its own: it must hold pages of smaller ids only,
//!   as the call does.

use crate::frames::memory::prefetch;
use crate::frames::set::Frames;
use crate::state::guard::PageRef;
use crate::state::handle::Pool;
use crate::state::inner::PoolInner;
use crate::state::params::PoolError;
use crate::tier::Tier;
use crate::word::Mode;
use futures_util::future::try_join_all;
use pagetier_page::PageId;
use pagetier_policy::FrameId;
use std::sync::Arc;

/// The number of pages whose cache misses overlap: as many as a core has in flight, roughly.
const GROUP: usize = 16;

impl<T: Tier> Pool<T> {
    /// Latches `pages` in shared mode, and reads those that are not in memory at the same time; returns the
    /// guards in the order of `pages`. A page may be named several times. If it has to wait, it latches the
    /// pages in the order of their ids: a caller that holds guards must hold those of smaller ids only.
    /// Cancel-safe: a dropped call leaves no latch.
    ///
    /// # Errors
    /// As [`Pool::get`], for any of the pages; the other pages' latches are released.
    pub async fn get_many(&self, pages: &[PageId]) -> Result<Vec<PageRef<'_, T>>, PoolError> {
        let (found, missing) = self.inner.latch_free(pages);
        // After the last latch, as for a single page.
        if missing.is_empty() && self.inner.claim.holds() {
            return Ok(found);
        }
        drop(found); // 1
        Box::pin(self.get_in_order(pages, missing)).await
    }

    /// Steps 2 and 3; the pass has not latched the pages `missing`.
    #[cold]
    async fn get_in_order(
        &self,
        pages: &[PageId],
        missing: Vec<PageId>,
    ) -> Result<Vec<PageRef<'_, T>>, PoolError> {
        let inner = &self.inner;
        // Before any wait for a guard: without the claim the pool serves no page.
        inner.here()?;
        let once = |mut pages: Vec<PageId>| {
            pages.sort_unstable();
            pages.dedup();
            pages
        };
        let pinned = try_join_all(once(missing).into_iter().map(|page| inner.pin(page))).await?; // 2
        let sorted = once(pages.to_vec());
        let mut latched = Vec::with_capacity(sorted.len());
        for &page in &sorted {
            // Counted already, as a hit or a miss, unless it has left since.
            let frame = match inner.latch_resident(page, Mode::Shared).await? {
                Some(frame) => frame,
                None => inner.get_cold(page, Mode::Shared).await?,
            };
            latched.push(PageRef::new(&**inner, frame)); // 3
        }
        drop(pinned);
        inner.here()?;
        let share = |page: &PageId| {
            let of = &latched[sorted.partition_point(|one| one < page)];
            of.share().ok_or(PoolError::Deadlock { page: *page })
        };
        pages.iter().map(share).collect()
    }
}

/// A frame whose page stays in memory while this lives, unless it is discarded.
struct Pinned<'a> {
    frames: &'a Frames,
    frame: FrameId,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.frames.unpin(self.frame);
    }
}

impl<T: Tier> PoolInner<T> {
    /// The pass: latches those pages that are in memory and free, and returns the others. No future, which
    /// would keep its variables in memory.
    fn latch_free(&self, pages: &[PageId]) -> (Vec<PageRef<'_, T>>, Vec<PageId>) {
        let (frames, mut found, mut missing) = (&*self.frames, Vec::with_capacity(pages.len()), Vec::new());
        // As for a single page: the reads of what is missing return the error.
        if !frames.owner.is_here() {
            return (found, pages.to_vec());
        }
        for group in pages.chunks(GROUP) {
            let buckets = self.look_up(group);
            let mut uncounted = 0;
            for (&page, bucket) in group.iter().zip(buckets) {
                self.note(page, false, false);
                let Some((frame, f)) = frames.hit(bucket, page, Mode::Shared) else {
                    missing.push(page);
                    continue;
                };
                uncounted += self.note_use(frame, f, Mode::Shared);
                found.push(PageRef::new(self, frame));
            }
            self.hits.count(uncounted);
        }
        (found, missing)
    }

    /// Pins the frame of `page`, and reads the page if it is not in memory. Waits for no latch.
    async fn pin(self: &Arc<Self>, page: PageId) -> Result<Pinned<'_>, PoolError> {
        self.here()?;
        let frames = &*self.frames;
        loop {
            // Under the bucket's lock, where a frame in the chain is not about to be evicted.
            let resident = frames.table.lock(page).find(&frames.all).filter(|f| frames.at(*f).word.pin());
            if let Some(frame) = resident {
                self.hits.count(self.note_use(frame, frames.at(frame), Mode::Shared));
                return Ok(Pinned { frames, frame });
            }
            if let Some(frame) = self.demand(page).await? {
                // While the latch is held, so that the page cannot leave in between.
                let _ = frames.at(frame).word.pin();
                frames.release(frame, Mode::Exclusive);
                return Ok(Pinned { frames, frame });
            }
        }
    }

    /// Fetches what a lookup of each page needs into the CPU's cache, all at the same time. One after
    /// the other, each lookup would wait for three cache misses: bucket, frame, page. Returns the buckets.
    #[inline]
    fn look_up(&self, pages: &[PageId]) -> [usize; GROUP] {
        let (table, all) = (&self.frames.table, &*self.frames.all);
        let mut buckets = [0; GROUP];
        for (bucket, page) in buckets.iter_mut().zip(pages) {
            *bucket = table.bucket(*page);
            table.prefetch(*bucket);
        }
        for frame in buckets[..pages.len()].iter().filter_map(|bucket| table.likely(*bucket)) {
            if let Some(meta) = all.get(frame) {
                prefetch(meta);
                self.frames.arena.prefetch(frame);
            }
        }
        buckets
    }
}
