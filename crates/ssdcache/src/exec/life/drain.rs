//! The drain: writes every page home whose newest version is on the SSD alone, so that the SSD holds no only
//! copies.

use crate::exec::Core;
use crate::exec::tier::SsdTier;
use crate::protocol::slots::Slots;
use pagetier_bufpool::TierError;
use pagetier_devio::DeviceError;
use pagetier_devio::task::{self, Boxed};
use pagetier_page::{Lsn, PageId};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The progress of a drain, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DrainProgress {
    /// Pages written home so far.
    pub written: u64,
    /// Pages whose newest version is still on the SSD alone.
    pub left: u64,
}

/// The outcome of a drain.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DrainReport {
    /// Pages written home.
    pub written: u64,
    /// Pages whose newest version is still on the SSD alone: because the deadline passed, the HDD rejects
    /// writes, or they are in `failed`.
    pub left: u64,
    /// Pages that could not be copied, each with its error: their only copy is damaged or cannot be read.
    pub failed: Vec<(PageId, TierError)>,
    /// The error that stopped the drain for all pages.
    pub stopped_by: Option<DeviceError>,
}

/// While it exists, the SSD gets no new only copies.
struct Draining(Arc<Core>);

impl Draining {
    fn new(core: &Arc<Core>) -> Self {
        core.state.lock().drains += 1;
        Self(Arc::clone(core))
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        self.0.state.lock().drains -= 1;
        self.0.changed.notify_waiters();
    }
}

/// Shared by the caller of a drain and its task.
#[derive(Default)]
struct DrainState {
    given_up: AtomicBool,
    written: AtomicU64,
    failed: Mutex<Vec<(PageId, TierError)>>,
    stopped_by: Mutex<Option<DeviceError>>,
}

/// Held by the caller. When it is dropped, the task ends after its current batch.
struct Waiting(Arc<DrainState>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.given_up.store(true, Ordering::Release);
    }
}

impl SsdTier {
    /// Writes every page home whose newest version is on the SSD alone, for at most `deadline`. Meanwhile the
    /// SSD gets no new only copies. With `only` no more pages than that, and those that redo would need the
    /// log up to there for; until all of them were copied once, the SSD gets what it always gets: changes
    /// since then are newer. Runs in a task of its own. Cancel-safe: that task ends after its current batch
    /// when this future is dropped.
    pub fn drain(
        &self,
        deadline: Option<Duration>,
        only: Option<(Lsn, u64)>,
        progress: Option<Box<dyn Fn(DrainProgress) + Send + Sync>>,
    ) -> Boxed<'_, DrainReport> {
        Box::pin(async move {
            let drain = Arc::new(DrainState::default());
            let waiting = Waiting(Arc::clone(&drain));
            // Stop new only copies first, then list the old ones. The other way round, the list would never
            // be empty under load.
            let draining = only.is_none().then(|| Draining::new(&self.core));
            let (core, task_drain) = (Arc::clone(&self.core), Arc::clone(&drain));
            let task = task::spawn(&self.core.runtime, async move {
                core.drain_pages(only, &task_drain, progress).await;
                drop(draining);
            });
            match deadline {
                // If the task panicked or was aborted, its progress still counts.
                None => drop(task.await),
                Some(deadline) => drop(tokio::time::timeout(deadline, task).await),
            }
            drop(waiting);
            let failed = std::mem::take(&mut *drain.failed.lock());
            let stopped_by = drain.stopped_by.lock().take();
            let left = self.ask(Slots::dirty_pages) as u64;
            DrainReport { written: drain.written.load(Ordering::Relaxed), left, failed, stopped_by }
        })
    }
}

impl Core {
    /// Slots that back home writes need only an HDD flush.
    async fn settle_backing(self: &Arc<Self>) -> Result<(), DeviceError> {
        let settles = {
            let state = self.state.lock();
            state.home.flush_would_settle() || state.slots.wants_home_flush(&|_| false)
        };
        if settles { self.flush_hdd().await } else { Ok(()) }
    }

    async fn drain_pages(
        self: &Arc<Self>,
        only: Option<(Lsn, u64)>,
        drain: &DrainState,
        progress: Option<Box<dyn Fn(DrainProgress) + Send + Sync>>,
    ) {
        // Wait for the slot writes that were in flight when the drain began.
        drop(self.writers.write().await);
        if let Err(source) = self.settle_backing().await {
            *drain.stopped_by.lock() = Some(source);
            return;
        }
        let (up_to, pages_max) = only.unzip();
        let pages_max = pages_max.map_or(usize::MAX, |pages| usize::try_from(pages).unwrap_or(usize::MAX));
        let mut skip = FxHashSet::default();
        let report = |left: usize| {
            if let Some(progress) = &progress {
                let written = drain.written.load(Ordering::Relaxed);
                progress(DrainProgress { written, left: left as u64 });
            }
        };
        let mut draining = None;
        loop {
            // While a version is copied home, its page may be rewritten on the SSD (without a ring it must
            // be), so look again until no only copy is left.
            let mut left: Vec<PageId> = {
                let state = self.state.lock();
                let mut only = state.slots.only_copies();
                only.retain(|(page, lsn)| up_to.is_none_or(|up_to| *lsn <= up_to) && !skip.contains(page));
                only.into_iter().map(|(page, _)| page).collect()
            };
            report(left.len() + skip.len());
            let tried = drain.written.load(Ordering::Relaxed) as usize + skip.len();
            left.truncate(pages_max.saturating_sub(tried));
            let stopped = drain.given_up.load(Ordering::Acquire) || self.stopping.load(Ordering::Acquire);
            if stopped || self.refusing.cause().is_some() {
                return;
            }
            if left.is_empty() {
                // Images in the ring need only an HDD flush, too. If nothing was copied, none has followed:
                // the log would be kept for them, and writers that wait for its space bring none about.
                let ringed = self.state.lock().home.oldest_lsn();
                let due = ringed.is_some_and(|lsn| up_to.is_none_or(|up_to| lsn <= up_to));
                if due && let Err(source) = self.flush_hdd().await {
                    *drain.stopped_by.lock() = Some(source);
                }
                return;
            }
            let max = self.state.lock().write_back_max();
            for pages in left.chunks(max) {
                let copied = self.copy_pages_home(pages).await;
                drain.written.fetch_add(copied.home.len() as u64, Ordering::Relaxed);
                for (page, error) in copied.failed {
                    // A copy that cannot be read would be tried forever.
                    skip.insert(page);
                    drain.failed.lock().push((page, error));
                }
                if let Err(source) = copied.result {
                    *drain.stopped_by.lock() = Some(source);
                    return;
                }
                if progress.is_some() {
                    let left = self.state.lock().slots.dirty_pages();
                    report(left);
                }
                if drain.given_up.load(Ordering::Acquire) {
                    return;
                }
            }
            // What is left was rewritten meanwhile, and its older changes still count: pages that are written
            // as fast as the HDD takes them would go on for ever.
            if pages_max == usize::MAX {
                draining.get_or_insert_with(|| Draining::new(self));
            }
        }
    }
}
