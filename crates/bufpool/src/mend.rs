//! What the pool can do for the storage below when that has lost something: pages in memory are still whole.

use crate::guard::PageMut;
use crate::pool::Pool;
use crate::tier::{Displaced, Tier};
use crate::word::Mode;
use pagetier_page::{Lsn, PageId};
use std::sync::atomic::Ordering;

impl<T: Tier> Pool<T> {
    /// The storage below has lost its newest version of `page`: when the page is in memory it becomes dirty,
    /// so that it is written again, with the recovery LSN `lsn` (or an older one that it has). False when it
    /// is not in memory. Waits for the page's latch. Cancel-safe.
    pub async fn rewrite(&self, page: PageId, lsn: Lsn) -> bool {
        let inner = &self.inner;
        let Some(frame) = inner.latch_resident(page, Mode::Exclusive).await else { return false };
        inner.frames.at(frame).recovery_lsn.fetch_min(lsn.0, Ordering::AcqRel);
        drop(PageMut::new(inner, frame, true));
        true
    }

    /// Whether memory has a version of `page` that the storage below has not taken yet.
    #[must_use]
    pub fn is_unwritten(&self, page: PageId) -> bool {
        let frames = &self.inner.frames;
        frames.table.find(&frames.all, page).is_some_and(|frame| {
            let word = &frames.at(frame).word;
            word.is_dirty() || word.is_cleaning()
        })
    }

    /// [`Pool::min_recovery_lsn`] for the storage below, which must not keep the pool alive: 0 (anything may
    /// be dirty) once it is gone.
    pub fn redo_source(&self) -> impl Fn() -> Option<Lsn> + Send + Sync + use<T> {
        let inner = std::sync::Arc::downgrade(&self.inner);
        move || match inner.upgrade() {
            Some(inner) => Self { inner }.min_recovery_lsn(),
            None => Some(Lsn(0)),
        }
    }

    /// The copies of `pages` on the SSD are gone: the replacement policy is told of those that are in memory.
    pub fn copies_gone(&self, pages: &[PageId]) {
        let mut policy = self.inner.policy.lock();
        for page in pages {
            self.inner.displaced(&mut policy, Displaced(Some(*page)));
        }
    }
}
