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
        let mut missing = Vec::new();
        for (at, group) in (0..).step_by(GROUP).zip(pages.chunks(GROUP)) {
            inner.look_up(group);
            for (at, &page) in (at..).zip(group) {
                inner.note(page, false, false);
                match inner.hit(page, Mode::Shared) {
                    Some(frame) => found.push(PageRef::new(&**inner, frame)),
                    None => missing.push(at),
                }
            }
        }
        if missing.is_empty() { Ok(found) } else { self.get_missing(pages, found, &missing).await }
    }

    /// Waits for the pages at `missing`; `found` has the guards of all others.
    #[cold]
    async fn get_missing<'a>(
        &'a self,
        pages: &[PageId],
        found: Vec<PageRef<'a, T>>,
        missing: &[usize],
    ) -> Result<Vec<PageRef<'a, T>>, PoolError> {
        let inner = &self.inner;
        let mut all: Vec<Option<PageRef<'a, T>>> = Vec::with_capacity(pages.len());
        let mut found = found.into_iter();
        all.extend(
            (0..pages.len()).map(|at| if missing.binary_search(&at).is_ok() { None } else { found.next() }),
        );
        let first_of = |at: usize| pages.iter().position(|page| *page == pages[at]).unwrap_or(at);
        let loads = missing.iter().filter(|&&at| first_of(at) == at).map(async |&at| {
            let frame = inner.get_cold(pages[at], Mode::Shared).await?;
            Ok::<_, PoolError>((at, PageRef::new(&**inner, frame)))
        });
        for (at, page) in try_join_all(loads).await? {
            all[at] = Some(page);
        }
        // A page that is named again is not waited for: a writer may have queued up behind the first guard.
        for &at in missing {
            if all[at].is_none() {
                let again = all[first_of(at)].as_ref().and_then(PageRef::share);
                all[at] = Some(again.ok_or(PoolError::Deadlock { page: pages[at] })?);
            }
        }
        Ok(all.into_iter().flatten().collect())
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
