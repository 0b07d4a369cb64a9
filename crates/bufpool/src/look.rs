//! What reports say of the pages in memory, and how a pool is filled before it is used.

use crate::frame::{Frame, NO_LSN};
use crate::guard::PageRef;
use crate::pool::Pool;
use crate::tier::Tier;
use pagetier_page::{Lsn, PageId};
use pagetier_policy::{Access, FramePolicy};
use std::sync::atomic::Ordering;

/// Pages that [`Pool::warm`] requests at a time.
const WARM_PAGES: usize = 32;

/// The state of a page in memory.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct Residence {
    /// It has changes that are not written yet.
    pub dirty: bool,
    /// It is being written.
    pub being_written: bool,
    /// Guards and waiting requests that hold its frame.
    pub pins: u32,
    /// H above the present inflation, in milliseconds, under policies that have it.
    pub worth_ms: Option<f64>,
    /// The log position of the first change that is not written yet.
    pub recovery_lsn: Option<Lsn>,
}

impl<T: Tier> Pool<T> {
    /// The state of `page` in memory; `None`: it is not there. Neither pins the page nor counts as a use.
    #[must_use]
    pub fn residence(&self, page: PageId) -> Option<Residence> {
        let frames = &self.inner.frames;
        let policy = self.inner.policy.lock();
        // Under the lock, so that the frame cannot change hands.
        let bucket = frames.table.lock(page);
        let frame = bucket.find(&frames.all)?;
        let f = frames.at(frame);
        let lsn = f.recovery_lsn.load(Ordering::Acquire);
        Some(Residence {
            dirty: f.word.is_dirty(),
            being_written: f.word.is_cleaning(),
            pins: f.word.pins(),
            worth_ms: policy.worth_ms(frame),
            recovery_lsn: (lsn != NO_LSN).then_some(Lsn(lsn)),
        })
    }

    /// At most `max` pages in memory, those that the policy would keep longest first.
    #[must_use]
    pub fn hottest(&self, max: usize) -> Vec<PageId> {
        let mut order = Vec::new();
        self.inner.policy.lock().first_to_go(&mut |frame| {
            order.push(frame);
            false
        });
        let pages = order.into_iter().rev().filter_map(|frame| self.inner.frames.at(frame).page());
        pages.take(max).collect()
    }

    /// Reads `pages` into memory, neighbours together, and waits for them. The policy takes them for
    /// read-ahead: they are evicted before pages in use. Returns how many are in memory; pages that cannot be
    /// read are skipped. Cancel-safe.
    pub async fn warm(&self, pages: &[PageId]) -> u64 {
        let mut warm = 0;
        // As many as read-ahead takes at once.
        let most = (self.inner.params().frames / 8).clamp(1, WARM_PAGES);
        for some in pages.chunks(most) {
            self.prefetch(some);
            for page in some {
                warm += u64::from(
                    self.inner.get_scanned(*page).await.map(|frame| PageRef::new(&self.inner, frame)).is_ok(),
                );
            }
        }
        warm
    }

    /// Replaces the policy. The new one learns of the pages in memory in the order in which the one before
    /// would evict them.
    pub fn set_policy(&self, mut new: Box<dyn FramePolicy>) {
        let inner = &self.inner;
        // Held to the end: no event is lost between the two.
        let mut policy = inner.policy.lock();
        // The pool's size may have changed since it was built.
        new.set_frames(inner.params().frames);
        let mut order = Vec::new();
        policy.first_to_go(&mut |frame| {
            order.push(frame);
            false
        });
        for frame in order {
            // A frame that has just lost its page is not tracked again: its removal, which is about to be
            // told, has no effect then.
            let f = inner.frames.at(frame);
            let Some(page) = f.page() else { continue };
            new.insert(frame, page, inner.tier.home(page), Access::Random);
            // A page whose first change, or whose write, is about to be told may be told of twice.
            if f.word.is_dirty() {
                new.dirtied(frame);
            }
        }
        *policy = new;
    }

    /// The pages in memory, in no order, without those whose eviction has begun. Takes no lock. A page that
    /// comes or goes meanwhile may be missing.
    #[must_use]
    pub fn resident(&self) -> Vec<PageId> {
        self.inner.frames.all.iter().filter(|f| !f.word.is_gone()).filter_map(Frame::page).collect()
    }
}
