//! Reports on the pages in memory, warms a pool, and replaces its policy.

use crate::frames::frame::Frame;
use crate::state::guard::PageRef;
use crate::state::handle::Pool;
use crate::tier::Tier;
use pagetier_page::{Lsn, PageId};
use pagetier_policy::{Access, FrameId, FramePolicy, Location};
use serde::Serialize;
use std::sync::atomic::Ordering;

/// The maximum number of pages that [`Pool::warm`] requests at a time.
const WARM_PAGES: usize = 32;

/// A page's state in memory.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct PoolResidency {
    /// Whether it has unwritten changes.
    pub dirty: bool,
    /// Whether it is being written.
    pub being_written: bool,
    /// Guards and waiting requests that hold its frame.
    pub pins: u32,
    /// GD2L's H above the current inflation L, in milliseconds: the cost of losing the page from memory. The
    /// page with the smallest H is evicted first. `None` under policies without H.
    pub h_ms: Option<f64>,
    /// The log position of the first unwritten change; `None` for a page without one.
    pub recovery_lsn: Option<u64>,
}

/// What became of pages that were read for the tier below: see [`Pool::pass_below`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Passed {
    /// The pages that were read.
    pub read: u64,
    /// Those of them that the tier keeps.
    pub kept: u64,
    /// The tier takes no more.
    pub is_full: bool,
}

impl<T: Tier> Pool<T> {
    /// The state of `page` in memory; `None` if it is not in memory. Neither pins the page nor counts as a
    /// use.
    pub fn residence(&self, page: PageId) -> Option<PoolResidency> {
        let frames = &self.inner.frames;
        let policy = self.inner.policy.lock();
        // Look up under the bucket's lock, so that the frame cannot change hands.
        let bucket = frames.table.lock(page);
        let frame = bucket.find(&frames.all)?;
        let f = frames.at(frame);
        let lsn = f.recovery_lsn.load(Ordering::Acquire);
        Some(PoolResidency {
            dirty: f.word.is_dirty(),
            being_written: f.word.is_cleaning(),
            pins: f.word.pins(),
            h_ms: policy.worth_ms(frame),
            recovery_lsn: (lsn < Lsn::BLANK.0).then_some(lsn),
        })
    }

    /// At most `max` pages in memory, those that the policy would keep longest first.
    pub fn hottest(&self, max: usize) -> Vec<PageId> {
        let order = eviction_order(&*self.inner.policy.lock(), &self.inner.frames.all);
        let pages = order.into_iter().rev().filter_map(|frame| self.inner.frames.at(frame).page());
        pages.take(max).collect()
    }

    /// Reads `pages` into memory, neighbours together, and waits for them. The policy treats them as read
    /// ahead: they are evicted before pages in use. Returns how many are in memory; pages that cannot be read
    /// are skipped. Cancel-safe.
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

    /// Reads those of `pages` that are neither in memory nor on the SSD, neighbours together, and lets each
    /// leave memory again, so that the tier may keep a copy. Takes a few frames, the same ones again and
    /// again. Pages that cannot be read are skipped. Cancel-safe.
    pub async fn pass_below(&self, pages: &[PageId]) -> Passed {
        let (inner, mut passed) = (&self.inner, Passed::default());
        let most = (inner.params().frames / 8).clamp(1, WARM_PAGES);
        for some in pages.chunks(most) {
            // Before the reads, too: a tier that takes nothing is no reason to read.
            if !inner.tier.fills_up().await {
                passed.is_full = true;
                return passed;
            }
            let cold = |page: &&PageId| {
                let absent = inner.frames.table.find(&inner.frames.all, **page).is_none();
                absent && inner.tier.location(**page) == Location::Hdd
            };
            let some: Vec<PageId> = some.iter().filter(cold).copied().collect();
            self.prefetch(&some);
            for page in some {
                let Ok(frame) = inner.get_scanned(page).await else { continue };
                drop(PageRef::new(&**inner, frame));
                // The tier copies few pages at a time, and forgets one that comes when it cannot.
                if !inner.tier.fills_up().await {
                    passed.is_full = true;
                    return passed;
                }
                inner.evict_page(page, frame);
                passed.read += 1;
                passed.kept += u64::from(inner.tier.location(page) == Location::Ssd);
            }
        }
        passed
    }

    /// Replaces the policy. The new one learns of the pages in memory in the order in which the previous one
    /// would evict them. Hints stay in force.
    pub fn set_policy(&self, mut new: Box<dyn FramePolicy>) {
        let inner = &self.inner;
        // Hold the lock to the end, so that neither policy misses an event.
        let mut policy = inner.policy.lock();
        // The pool's size may have changed since the policy was built.
        new.set_frames(inner.params().frames);
        // The order carries over what the old policy knew: the new one would otherwise begin with a random
        // order, and evict hot pages first.
        for frame in eviction_order(policy.inner(), &inner.frames.all) {
            // Do not track a frame that has just lost its page: the pending notification of its removal then
            // has no effect.
            let f = inner.frames.at(frame);
            let Some(page) = f.page() else { continue };
            new.insert(frame, page, inner.tier.location(page), Access::Random);
            // The policy may be notified twice of a first change or a write: here, and by its own
            // notification, which may still be pending.
            if f.word.is_dirty() {
                new.dirtied(frame);
            }
        }
        inner.periods.set_seen(new.uses_seen());
        policy.set_inner(new);
    }

    /// Calls `see` with the pages in memory, the next victim first. Until it returns, no page leaves memory,
    /// and the tier learns of no discard. Pages that are being loaded are not among them. `see` runs under
    /// the policy's lock: it may take locks that follow it in the order.
    pub fn with_pages<R>(&self, see: impl FnOnce(&[PageId]) -> R) -> R {
        let policy = self.inner.policy.lock();
        let order = eviction_order(&*policy, &self.inner.frames.all);
        let pages: Vec<PageId> =
            order.into_iter().filter_map(|frame| self.inner.frames.at(frame).page()).collect();
        see(&pages)
    }
}

/// The frames with pages, the next victim first. Skips indices from an embedder's policy that are no frames.
fn eviction_order(policy: &dyn FramePolicy, frames: &[Frame]) -> Vec<FrameId> {
    let mut order = Vec::new();
    policy.first_to_go(&mut |frame| {
        if frame.at() < frames.len() {
            order.push(frame);
        }
        false
    });
    order
}
