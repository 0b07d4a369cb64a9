//! Lookups of several pages at once.

use crate::guard::PageRef;
use crate::inner::PoolInner;
use crate::memory::prefetch;
use crate::params::PoolError;
use crate::pool::Pool;
use crate::tier::Tier;
use crate::word::Mode;
use futures_util::future::try_join_all;
use pagetier_page::PageId;

/// The number of pages whose cache misses overlap: as many as a core has in flight, roughly.
const GROUP: usize = 16;

impl<T: Tier> Pool<T> {
    /// Latches `pages` in shared mode, and reads those that are not in memory at the same time; returns the
    /// guards in the order of `pages`. A page may be named several times. Cancel-safe: a dropped call leaves
    /// no latch.
    ///
    /// # Errors
    /// As [`Pool::get`], for any of the pages; the other pages' latches are released.
    pub async fn get_many(&self, pages: &[PageId]) -> Result<Vec<PageRef<'_, T>>, PoolError> {
        let inner = &self.inner;
        let mut found = Vec::with_capacity(pages.len());
        for group in pages.chunks(GROUP) {
            inner.look_up(group);
            for &page in group {
                inner.note(page, false, false);
                found.push(inner.hit(page, Mode::Shared).map(|frame| PageRef::new(&**inner, frame)));
            }
        }
        if found.iter().any(Option::is_none) {
            self.get_missing(pages, &mut found).await?;
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Waits for those of `pages` that are not found yet.
    #[cold]
    async fn get_missing<'a>(
        &'a self,
        pages: &[PageId],
        found: &mut [Option<PageRef<'a, T>>],
    ) -> Result<(), PoolError> {
        let inner = &self.inner;
        let first_of = |at: usize| pages.iter().position(|page| *page == pages[at]).unwrap_or(at);
        let missing: Vec<usize> = (0..pages.len()).filter(|&at| found[at].is_none()).collect();
        let first = missing.iter().copied().filter(|&at| first_of(at) == at);
        let loads = first.map(async |at| {
            let frame = inner.get_cold(pages[at], Mode::Shared).await?;
            Ok::<_, PoolError>((at, PageRef::new(&**inner, frame)))
        });
        for (at, page) in try_join_all(loads).await? {
            found[at] = Some(page);
        }
        // A page that is named again is not waited for: a writer may have queued up behind the first guard.
        for at in missing {
            if found[at].is_none() {
                let again = found[first_of(at)].as_ref().and_then(PageRef::share);
                found[at] = Some(again.ok_or(PoolError::Deadlock { page: pages[at] })?);
            }
        }
        Ok(())
    }
}

impl<T: Tier> PoolInner<T> {
    /// Fetches what a lookup of each page needs into the processor's cache, all at the same time. One after
    /// the other, each lookup would wait for three cache misses: bucket, frame, page.
    fn look_up(&self, pages: &[PageId]) {
        let frames = &self.frames;
        pages.iter().for_each(|page| frames.table.prefetch(*page));
        for frame in pages.iter().filter_map(|page| frames.table.likely(*page)) {
            if let Some(meta) = frames.all.get(frame.at()) {
                prefetch(meta);
                frames.arena.prefetch(frame.at());
            }
        }
    }
}
