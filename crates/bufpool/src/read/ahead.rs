//! Read-ahead: scans and explicit prefetches.
//!
//! Read-ahead uses only frames that are free or evictable at once, and keeps at most an eighth of the pool in
//! flight. Its pages enter the policy as sequential: only a later demand read promotes them.
//!
//! A scan begins with one read-ahead in flight. Whenever it has to wait for a page, it reads further ahead,
//! until several large reads are in flight: a device with a queue needs them, and one that keeps up does not.

use crate::state::guard::PageRef;
use crate::state::handle::Pool;
use crate::state::inner::{PoolInner, bump};
use crate::state::params::PoolError;
use crate::tier::Tier;
use crate::word::Mode;
use pagetier_devio::{IoBuf, task};
use pagetier_page::{PageId, SpaceId};
use pagetier_policy::{Access, FrameId, FramePolicy};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<T: Tier> Pool<T> {
    /// Starts reading the pages of `pages` that are not in memory, neighbours together, and returns at once.
    /// Skips pages that do not exist or for which no frame is available.
    pub fn prefetch(&self, pages: &[PageId]) {
        if self.inner.here().is_err() {
            return;
        }
        for run in pages.chunk_by(|a, b| a.space == b.space && a.no.checked_add(1) == Some(b.no)) {
            if let Some(first) = run.first() {
                self.inner.read_ahead(*first, run.len() as u32);
            }
        }
    }

    /// Reads the pages `range` of `space` in order, with read-ahead, without displacing the hot pages in
    /// memory.
    pub fn scan(&self, space: SpaceId, range: Range<u32>) -> Scan<'_, T> {
        Scan { pool: self, cursor: Cursor::new(space, range) }
    }
}

/// A sequential read of a space's pages. Pages that do not exist are skipped.
#[derive(Debug)]
pub struct Scan<'a, T: Tier> {
    pool: &'a Pool<T>,
    cursor: Cursor,
}

impl<'a, T: Tier> Scan<'a, T> {
    /// As [`Cursor::next`].
    ///
    /// # Errors
    /// As there.
    pub async fn next(&mut self) -> Option<Result<PageRef<'a, T>, PoolError>> {
        self.cursor.next(self.pool).await
    }
}

/// The position of a sequential read, apart from its pool.
#[derive(Clone, Debug)]
pub struct Cursor {
    space: SpaceId,
    next: u32,
    end: u32,
    /// The end of the requested read-ahead.
    ahead: u32,
    /// The number of times that the scan has waited for a page.
    waits: u32,
}

/// The most bytes that a scan reads ahead.
const REACH_BYTES_MAX: usize = 8 << 20;

/// The most bytes of a scan's single read.
const READ_BYTES_MAX: usize = 1 << 20;

impl Cursor {
    /// A read of the pages `range` of `space`.
    #[must_use]
    pub fn new(space: SpaceId, range: Range<u32>) -> Self {
        Self { space, next: range.start, end: range.end, ahead: range.start, waits: 0 }
    }

    /// The next page of `pool`, or `None` after the last. Cancel-safe: after a dropped call the next one
    /// returns the same page.
    ///
    /// # Errors
    /// The page cannot be read; the next call continues with the page after it. [`PoolError::Forked`] and
    /// [`PoolError::Fenced`] hold for all of them, and end the read.
    pub async fn next<'a, T: Tier>(
        &mut self,
        pool: &'a Pool<T>,
    ) -> Option<Result<PageRef<'a, T>, PoolError>> {
        while self.next < self.end {
            if let Err(error) = pool.inner.here() {
                self.next = self.end;
                return Some(Err(error));
            }
            self.look_ahead(&pool.inner);
            let page = PageId::new(self.space, self.next);
            pool.inner.note(page, false, true);
            let result = match pool.inner.try_latch_resident(page, Mode::Shared) {
                Some(frame) => {
                    bump(&pool.inner.counters.hits);
                    Ok(frame)
                }
                None => {
                    self.waits = self.waits.saturating_add(1);
                    pool.inner.get_scanned(page).await
                }
            };
            // After the wait, so that a dropped call returns the same page again; before the result, so
            // that a page that cannot be read does not stop the scan.
            self.next += 1;
            // The wait may have been long.
            let owned = |frame| match pool.inner.here() {
                Ok(()) => Ok(frame),
                Err(error) => {
                    self.next = self.end;
                    pool.inner.frames.release(frame, Mode::Shared);
                    Err(error)
                }
            };
            match result.and_then(owned) {
                Err(PoolError::Tier(crate::tier::TierError::NoSuchPage { .. })) => {}
                other => return Some(other.map(|frame| PageRef::new(&*pool.inner, frame))),
            }
        }
        None
    }

    fn look_ahead<T: Tier>(&mut self, inner: &Arc<PoolInner<T>>) {
        let params = inner.params();
        let window = params.read_ahead_pages as u32;
        if window == 0 {
            return;
        }
        let in_bytes = |bytes: usize| bytes / params.page_size.bytes();
        let least = window + window / 2;
        let most = (in_bytes(REACH_BYTES_MAX).min(params.frames / 16) as u32).max(least);
        let reach = least.saturating_add(window.saturating_mul(self.waits)).min(most);
        // Beyond the first few reads, four of them make up the reach: fewer and larger ones cost less.
        let count = (reach / 4).min(in_bytes(READ_BYTES_MAX) as u32).max(window);
        self.ahead = self.ahead.max(self.next);
        // While the scan uses what has been read, the device reads the next part.
        while self.ahead < self.end && self.ahead - self.next <= reach - count {
            let count = count.min(self.end - self.ahead);
            inner.read_ahead(PageId::new(self.space, self.ahead), count);
            self.ahead += count;
        }
    }
}

impl<T: Tier> PoolInner<T> {
    /// Gets a page for a scan. The policy does not see a hit, so the page stays where read-ahead put it.
    pub(crate) async fn get_scanned(&self, page: PageId) -> Result<FrameId, PoolError> {
        loop {
            if let Some(frame) = self.latch_resident(page, Mode::Shared).await? {
                bump(&self.counters.hits);
                return Ok(frame);
            }
            let Some(frame) = self.miss(page, Some(Access::Sequential)).await? else { continue };
            if self.frames.at(frame).word.downgrade() {
                self.frames.waiters.grant(frame, &self.frames.at(frame).word);
            }
            return Ok(frame);
        }
    }

    /// Reads `count` pages from `first` on, as long as frames are available at once.
    pub(crate) fn read_ahead(self: &Arc<Self>, first: PageId, count: u32) {
        let mut run: Vec<(FrameId, IoBuf)> = Vec::new();
        let mut from = first;
        for no in first.no..first.no.saturating_add(count) {
            let page = PageId::new(first.space, no);
            match self.lease_ahead(page) {
                Some(leased) => {
                    if run.is_empty() {
                        from = page;
                    }
                    run.push(leased);
                }
                // A page in memory splits the run: one operation reads neighbours only.
                None => self.fetch_ahead(from, std::mem::take(&mut run)),
            }
        }
        self.fetch_ahead(from, run);
    }

    fn lease_ahead(&self, page: PageId) -> Option<(FrameId, IoBuf)> {
        let in_flight_max = self.params().frames / 8;
        if self.frames.table.find(&self.frames.all, page).is_some()
            || self.ahead_in_flight.load(Ordering::Relaxed) >= in_flight_max
        {
            return None;
        }
        // Never waits: a frame that must be cleaned first is worth more to a request than to a guess.
        if self.is_barren() {
            return None;
        }
        let frame = self.frames.take_free().or_else(|| self.evict())?;
        if !self.enter(frame, page) {
            self.frames.give_back(frame);
            return None;
        }
        self.ahead_in_flight.fetch_add(1, Ordering::Relaxed);
        Some((frame, self.lease(frame)))
    }

    fn fetch_ahead(self: &Arc<Self>, first: PageId, run: Vec<(FrameId, IoBuf)>) {
        if run.is_empty() {
            return;
        }
        let flight = InFlight { pool: Arc::clone(self), pages: run.len() };
        task::spawn(&self.runtime, async move {
            let inner = Arc::clone(&flight.pool);
            let (frames, bufs): (Vec<FrameId>, Vec<IoBuf>) = run.into_iter().unzip();
            let pages = (first.no..).map(|no| PageId::new(first.space, no));
            let fetched = inner.tier.fetch_run(first, bufs).await;
            drop(flight);
            for ((frame, page), one) in frames.into_iter().zip(pages).zip(fetched) {
                // A failed read frees its frame; the next request for the page reads it and reports the
                // error.
                let Ok(location) = one.result else { continue };
                one.buf.keep();
                bump(&inner.counters.prefetched);
                inner.policy.lock().insert(frame, page, location, Access::Sequential);
                inner.frames.release(frame, Mode::Exclusive);
            }
        });
    }
}

/// Subtracts pages from those in flight, even if their task is dropped half-way.
struct InFlight<T: Tier> {
    pool: Arc<PoolInner<T>>,
    pages: usize,
}

impl<T: Tier> Drop for InFlight<T> {
    fn drop(&mut self) {
        self.pool.ahead_in_flight.fetch_sub(self.pages, Ordering::Relaxed);
    }
}
