//! Repairs losses in the storage below with the pages in memory.

use crate::state::guard::PageMut;
use crate::state::handle::Pool;
use crate::tier::{Displaced, Tier};
use crate::word::{Attempt, Mode};
use pagetier_page::{Lsn, PageId};
use pagetier_policy::FrameId;
use std::sync::atomic::Ordering;

impl<T: Tier> Pool<T> {
    /// Marks `page` dirty if it is in memory, because the storage below has lost its newest version: the page
    /// is written again, with recovery LSN `lsn` or its own older one. Returns false when the page is not in
    /// memory. Waits for the page's latch. Cancel-safe.
    pub async fn rewrite(&self, page: PageId, lsn: Lsn) -> bool {
        let latched = self.inner.latch_resident(page, Mode::Exclusive).await;
        latched.ok().flatten().is_some_and(|frame| self.rewrite_latched(frame, lsn))
    }

    /// As [`Pool::rewrite`], but never waits: also returns false while the page is latched.
    pub fn try_rewrite(&self, page: PageId, lsn: Lsn) -> bool {
        // While the page table grows, only a lookup under the bucket's lock finds every page.
        let latched = {
            let frames = &self.inner.frames;
            let bucket = frames.table.lock(page);
            let latch = |frame: &FrameId| frames.at(*frame).word.try_latch(Mode::Exclusive);
            bucket.find(&frames.all).filter(|frame| latch(frame) == Attempt::Latched)
        };
        latched.is_some_and(|frame| self.rewrite_latched(frame, lsn))
    }

    fn rewrite_latched(&self, frame: FrameId, lsn: Lsn) -> bool {
        let frames = &self.inner.frames;
        frames.at(frame).recovery_lsn.fetch_min(lsn.0, Ordering::AcqRel);
        frames.unwritten.add(frame);
        drop(PageMut::dirty(&*self.inner, frame));
        true
    }

    /// Whether memory holds a version of `page` that the storage below lacks.
    pub fn is_unwritten(&self, page: PageId) -> bool {
        let frames = &self.inner.frames;
        // Under the lock, as above: a page that the lookup missed would be reported as lost.
        let bucket = frames.table.lock(page);
        bucket.find(&frames.all).is_some_and(|frame| frames.at(frame).word.is_unwritten())
    }

    /// [`Pool::min_recovery_lsn`] for the storage below, which must not keep the pool alive: returns 0
    /// (anything may be dirty) once the pool is gone.
    pub fn redo_source(&self) -> impl Fn() -> Option<Lsn> + Send + Sync + use<T> {
        let inner = std::sync::Arc::downgrade(&self.inner);
        move || match inner.upgrade() {
            Some(inner) => Self { inner }.min_recovery_lsn(),
            None => Some(Lsn(0)),
        }
    }

    /// Informs the policy that the SSD copies of those `pages` that are in memory are gone.
    pub fn copies_gone(&self, pages: &[PageId]) {
        let mut policy = self.inner.policy.lock();
        for page in pages {
            self.inner.displaced(&mut policy, Displaced(Some(*page)));
        }
    }
}
