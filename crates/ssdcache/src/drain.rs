//! Copies from slots to the HDD: the write-back of victims, the healing of homes, and the drain, which leaves
//! no only copy behind.
//!
//! Every copy goes the way of a write-back: the slot is durable and backs the home write, the journal voids
//! older copies, and the slot is clean only after a flush of the HDD.

use crate::core::Core;
use crate::home::{Arrived, HomeBound};
use crate::journal::Backing;
use crate::mutation::Mutation;
use crate::read::read_one;
use crate::slots::WriteBack;
use futures_util::future::join_all;
use pagetier_bufpool::TierError;
use pagetier_devio::{DeviceError, IoClass};
use pagetier_page::{Lsn, PageId};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Pages of one batch, at most: how much is still written after a drain was given up.
const BATCH_MAX: usize = 32;

/// How far a drain is, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DrainProgress {
    /// Pages written home so far.
    pub written: u64,
    /// Pages whose newest version is still on the SSD alone.
    pub left: u64,
}

/// How a drain ended.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DrainReport {
    /// Pages written home.
    pub written: u64,
    /// Pages whose newest version is still on the SSD alone: the deadline passed, the HDD takes no writes, or
    /// they are in `failed`.
    pub left: u64,
    /// Pages that could not be copied, each with its error: their only copy is damaged or cannot be read.
    pub failed: Vec<(PageId, TierError)>,
}

/// A batch's end.
pub(crate) struct Copied {
    /// The ones that are home, durably.
    pub(crate) home: Vec<WriteBack>,
    /// The ones whose slot or home failed, each by its own error.
    pub(crate) failed: Vec<(PageId, TierError)>,
    /// What failed for all of them.
    pub(crate) result: Result<(), DeviceError>,
}

/// While it lives, the SSD gets no only copies.
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

/// Shared between who waits for a drain and the task that does it.
#[derive(Default)]
struct Course {
    given_up: AtomicBool,
    written: AtomicU64,
    failed: Mutex<Vec<(PageId, TierError)>>,
}

/// Who waits has gone: the task ends after its batch.
struct Waiting(Arc<Course>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.given_up.store(true, Ordering::Release);
    }
}

impl Core {
    /// Copies held slots home; they are let go of.
    pub(crate) async fn copy_home(&self, batch: Vec<WriteBack>, class: IoClass) -> Copied {
        let held = Held { core: self, batch, class, home: Vec::new() };
        held.copy().await
    }

    /// Writes every page home whose newest version is on the SSD alone, until `deadline` from now. Runs in a
    /// task of its own, which ends after its batch when this is dropped.
    pub(crate) async fn drain(
        self: &Arc<Self>,
        deadline: Option<Duration>,
        progress: Option<Box<dyn Fn(DrainProgress) + Send + Sync>>,
    ) -> DrainReport {
        let course = Arc::new(Course::default());
        let waiting = Waiting(Arc::clone(&course));
        let draining = Draining::new(self);
        let (core, task_course) = (Arc::clone(self), Arc::clone(&course));
        let task = self.runtime.spawn(async move {
            core.drain_all(&task_course, progress).await;
            drop(draining);
        });
        match deadline {
            // A task that panicked or was aborted has drained what it has drained.
            None => drop(task.await),
            Some(deadline) => drop(tokio::time::timeout(deadline, task).await),
        }
        drop(waiting);
        let failed = std::mem::take(&mut *course.failed.lock());
        let left = self.state.lock().slots.dirty_pages() as u64;
        DrainReport { written: course.written.load(Ordering::Relaxed), left, failed }
    }

    async fn drain_all(&self, course: &Course, progress: Option<Box<dyn Fn(DrainProgress) + Send + Sync>>) {
        // Those that were on their way to a slot when the drain began end up there.
        drop(self.gate.write().await);
        // Slots that back home writes have nothing more to do than to wait for it.
        let settles = {
            let state = self.state.lock();
            state.backed.can_settle() || state.slots.wants_home_flush(&|_| false)
        };
        if settles && let Err(source) = self.flush_hdd(self.hdd_flush.next()).await {
            let page = PageId::default();
            course.failed.lock().push((page, TierError::Device { page, source }));
            return;
        }
        let mut skip = FxHashSet::default();
        loop {
            let left: Vec<PageId> = {
                let state = self.state.lock();
                let only = state.slots.only_copies().into_iter().map(|(page, _)| page);
                only.filter(|page| !skip.contains(page)).collect()
            };
            let written = course.written.load(Ordering::Relaxed);
            if let Some(progress) = &progress {
                progress(DrainProgress { written, left: (left.len() + skip.len()) as u64 });
            }
            let stopped = course.given_up.load(Ordering::Acquire) || self.stopping.load(Ordering::Acquire);
            if left.is_empty() || stopped || self.refusing.cause().is_some() {
                return;
            }
            for pages in left.chunks(BATCH_MAX) {
                let copied = self.copy_pages_home(pages).await;
                course.written.fetch_add(copied.home.len() as u64, Ordering::Relaxed);
                for (page, error) in copied.failed {
                    skip.insert(page);
                    course.failed.lock().push((page, error));
                }
                if let Err(source) = copied.result {
                    let page = pages.first().copied().unwrap_or_default();
                    course.failed.lock().push((page, TierError::Device { page, source }));
                    return;
                }
                if let Some(progress) = &progress {
                    let written = course.written.load(Ordering::Relaxed);
                    progress(DrainProgress { written, left: self.state.lock().slots.dirty_pages() as u64 });
                }
                if course.given_up.load(Ordering::Acquire) {
                    return;
                }
            }
        }
    }

    /// Without a ring nothing backs `pages` on their way home, and their records void the copies that the SSD
    /// alone has of the versions before: those go home first, durably. Gives back the pages that may follow,
    /// and those that may not. A copy that is damaged is not worth waiting for.
    pub(crate) async fn only_copies_first(
        &self,
        pages: Vec<HomeBound>,
    ) -> (Vec<HomeBound>, Vec<(HomeBound, TierError)>) {
        if self.doublewrite() || !self.has_slots() || self.broken.is(Mutation::OnlyCopyVoided) {
            return (pages, Vec::new());
        }
        let mut failed: FxHashMap<PageId, TierError> = FxHashMap::default();
        let mut damaged = FxHashSet::default();
        loop {
            let (left, flush) = {
                let slots = &self.state.lock().slots;
                let only = pages.iter().map(|b| b.page).filter(|page| slots.is_only_copy(*page));
                let only = only.filter(|page| !failed.contains_key(page) && !damaged.contains(page));
                let left: Vec<PageId> = only.take(BATCH_MAX).collect();
                let flush = left.iter().any(|page| slots.waits_for_home(*page) || slots.is_backing(*page));
                (left, flush)
            };
            if left.is_empty() {
                break;
            }
            let result = if flush {
                self.flush_hdd(self.hdd_flush.next()).await
            } else {
                let copied = self.copy_pages_home(&left).await;
                for (page, error) in copied.failed {
                    match error {
                        TierError::Corrupt { .. } => drop(damaged.insert(page)),
                        error => drop(failed.insert(page, error)),
                    }
                }
                copied.result
            };
            if let Err(source) = result {
                let error = |page: PageId| TierError::Device { page, source: source.clone() };
                failed.extend(left.iter().map(|page| (*page, error(*page))));
            }
            if let Some(refusal) = self.refusal() {
                failed.extend(left.iter().map(|page| (*page, refusal.clone())));
            }
        }
        let (mut ready, mut not) = (Vec::with_capacity(pages.len()), Vec::new());
        for b in pages {
            match failed.remove(&b.page) {
                Some(error) => not.push((b, error)),
                None => ready.push(b),
            }
        }
        (ready, not)
    }

    /// Copies of `pages`, whatever they are, home. Waits for readers of their slots; those without a copy are
    /// left out.
    pub(crate) async fn copy_pages_home(&self, pages: &[PageId]) -> Copied {
        let _duty = self.home_duty.lock().await;
        let batch =
            pages.iter().filter_map(|page| self.state.lock().slots.hold_copy(*page)).collect::<Vec<_>>();
        if batch.is_empty() {
            // All are being read, or gone: a read ends soon.
            tokio::time::sleep(Duration::from_millis(1)).await;
            return Copied { home: Vec::new(), failed: Vec::new(), result: Ok(()) };
        }
        self.copy_home(batch, IoClass::WriteBack).await
    }
}

/// Held slots; let go of also when the copying is dropped.
struct Held<'a> {
    core: &'a Core,
    batch: Vec<WriteBack>,
    /// Of the home writes.
    class: IoClass,
    home: Vec<WriteBack>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        for one in self.batch.drain(..) {
            state.slots.end_write_back(one, self.home.contains(&one));
        }
        // From now on a checkpoint names these slots as what they are.
        state.journal.write_back = None;
        drop(state);
        self.core.changed.notify_waiters();
        self.core.wake.slots.notify_one();
    }
}

impl Held<'_> {
    async fn copy(mut self) -> Copied {
        let mut failed = Vec::new();
        let result = self.all(&mut failed).await;
        if result.is_err() {
            self.home.clear();
        }
        let home = self.home.clone();
        drop(self);
        Copied { home, failed, result }
    }

    async fn all(&mut self, failed: &mut Vec<(PageId, TierError)>) -> Result<(), DeviceError> {
        let core = self.core;
        let durable_at = self.batch.iter().map(|w| w.durable_at).max().unwrap_or(0);
        let flushes = !core.broken.is(Mutation::WriteBackBeforeFlush);
        if core.side().flush.completed() < durable_at && flushes {
            core.flush_ssd(durable_at).await?;
        }
        let pages = self.read(failed).await;
        let arrived = Mutex::new(Vec::with_capacity(pages.len()));
        let errors = Mutex::new(Vec::new());
        let each = |a: Arrived| {
            core.give_back(a.image);
            match a.result {
                Ok(()) => arrived.lock().push(a.page),
                // Its space is being dropped: the copy is not worth another try.
                Err(TierError::NoSuchPage { page }) if core.homes.offset(page).is_none() => {
                    core.state.lock().slots.discard(page);
                }
                // Another version took its place meanwhile.
                Err(TierError::NoSuchPage { .. }) => {}
                Err(error) => errors.lock().push((a.page, error)),
            }
        };
        core.write_home(pages, self.class, &each).await;
        let errors = errors.into_inner();
        if !(errors.is_empty() && arrived.lock().is_empty()) {
            core.state.lock().slots.note_home(!arrived.lock().is_empty());
        }
        failed.extend(errors);
        if !core.broken.is(Mutation::CleanBeforeFlush) {
            core.flush_hdd(core.hdd_flush.next()).await?;
        }
        let arrived = arrived.into_inner();
        self.home = self.batch.iter().filter(|one| arrived.contains(&one.page)).copied().collect();
        Ok(())
    }

    async fn read(&self, failed: &mut Vec<(PageId, TierError)>) -> Vec<HomeBound> {
        let core = self.core;
        let ssd = core.ssd();
        let reads = self.batch.iter().map(|one| {
            let ssd = &ssd;
            async move {
                let (buf, result) =
                    read_one(ssd, core.slot_at(one.slot), core.buffer(), IoClass::WriteBack).await;
                (one, buf, result)
            }
        });
        let mut pages = Vec::with_capacity(self.batch.len());
        for (one, image, result) in join_all(reads).await {
            let error = match result {
                Err(source) => {
                    core.ssd_failed(&source);
                    TierError::Device { page: one.page, source }
                }
                Ok(()) => match core.check(image.as_slice(), one.page, Some(one.stamp)) {
                    Ok(_) => {
                        let (page, lsn) = (one.page, Lsn(0));
                        pages.push(HomeBound {
                            page,
                            image,
                            backing: Backing::WriteBack,
                            lsn,
                            over_only_copy: false,
                        });
                        continue;
                    }
                    Err(defect) => core.corrupt(one.page, &ssd, core.slot_at(one.slot), defect),
                },
            };
            tracing::error!(%error, "a copy on the SSD cannot be written home");
            core.state.lock().slots.cannot_be_read(*one);
            failed.push((one.page, error));
        }
        pages
    }
}
