//! The background scrub: reads every copy at a given rate, verifies it, and repairs what it can.

use crate::store::pace::Pace;
use crate::store::shared::Shared;
use pagetier_bufpool::TierError;
use pagetier_devio::task;
use pagetier_page::PageId;
use pagetier_ssdcache::Checked;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// The maximum number of findings in a report; further ones are only counted.
const FINDINGS_MAX: usize = 1024;

/// Options of a scrub; see [`PageStore::scrub`](crate::PageStore::scrub).
#[derive(Clone, Copy, PartialEq, Debug)]
#[must_use]
pub struct ScrubOptions {
    pages_per_second: Option<f64>,
    slots: bool,
    homes: bool,
    heal: bool,
}

impl Default for ScrubOptions {
    fn default() -> Self {
        Self { pages_per_second: Some(100.0), slots: true, homes: true, heal: true }
    }
}

impl ScrubOptions {
    /// The maximum number of pages read per second; `None`, or not above 0: unlimited. Default: 100.
    pub fn pages_per_second(mut self, pages: Option<f64>) -> Self {
        self.pages_per_second = pages.filter(|pages| *pages > 0.0 && pages.is_finite());
        self
    }

    /// Whether to read the copies on the SSD. Default: yes.
    pub fn slots(mut self, on: bool) -> Self {
        self.slots = on;
        self
    }

    /// Whether to read the pages' homes on the HDD. Default: yes.
    pub fn homes(mut self, on: bool) -> Self {
        self.homes = on;
        self
    }

    /// Whether to repair damage where another good copy is known, or only report it. Default: repair.
    pub fn heal(mut self, on: bool) -> Self {
        self.heal = on;
        self
    }
}

/// The progress of a scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ScrubProgress {
    /// Slots and homes checked so far.
    pub done: u64,
    /// Slots and homes to check, as counted at the start.
    pub total: u64,
    /// Damaged copies found so far.
    pub found: u64,
    /// Damaged copies repaired so far.
    pub healed: u64,
}

/// A damaged copy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScrubFinding {
    /// The page.
    pub page: PageId,
    /// What is wrong; names page, device and offset.
    pub error: TierError,
    /// Whether it was repaired: dropped, rewritten from the other copy, or, for a page in memory, scheduled
    /// to be written again.
    pub healed: bool,
}

/// The result of a scrub.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ScrubReport {
    /// The final progress.
    pub progress: ScrubProgress,
    /// The damaged copies, the first 1,024 of them.
    pub findings: Vec<ScrubFinding>,
    /// Whether the scrub checked everything; if not, it was aborted, or the store was dropped.
    pub complete: bool,
}

#[derive(Debug, Default)]
struct ScrubState {
    stop: AtomicBool,
    complete: AtomicBool,
    done: AtomicU64,
    total: AtomicU64,
    healed: AtomicU64,
    found: AtomicU64,
    findings: Mutex<Vec<ScrubFinding>>,
}

impl ScrubState {
    fn progress(&self) -> ScrubProgress {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ScrubProgress {
            done: of(&self.done),
            total: of(&self.total),
            found: of(&self.found),
            healed: of(&self.healed),
        }
    }
}

/// A scrub in progress in the background. Dropping this stops the scrub after the current page.
#[derive(Debug)]
pub struct Scrub {
    state: Arc<ScrubState>,
    task: Option<JoinHandle<()>>,
}

impl Scrub {
    /// The current progress.
    #[must_use]
    pub fn progress(&self) -> ScrubProgress {
        self.state.progress()
    }

    /// Whether the scrub has ended: everything was checked, it was aborted, or the store was closed.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.task.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops the scrub after the current page.
    pub fn abort(&self) {
        self.state.stop.store(true, Ordering::Release);
    }

    /// Waits for the end. Dropping the future drops the scrub, which then stops after the current page.
    pub async fn finished(mut self) -> ScrubReport {
        let task = self.task.take();
        if let Some(task) = task {
            let _ = task.await;
        }
        let complete = self.state.complete.load(Ordering::Acquire);
        let findings = std::mem::take(&mut *self.state.findings.lock());
        ScrubReport { progress: self.state.progress(), findings, complete }
    }
}

impl Drop for Scrub {
    fn drop(&mut self) {
        self.abort();
    }
}

pub(super) fn start(shared: &Arc<Shared>, options: ScrubOptions) -> Scrub {
    let state = Arc::new(ScrubState::default());
    let total = u64::from(shared.tier.slots()) * u64::from(options.slots);
    let homes: u64 = shared.volume.list().iter().map(|s| u64::from(s.pages)).sum();
    state.total.store(total + homes * u64::from(options.homes), Ordering::Relaxed);
    // Weak: a scrub may take days, and must not keep a dropped store alive.
    let (shared, its) = (Arc::downgrade(shared), Arc::clone(&state));
    let scrub = task::spawn(&Handle::current(), async move {
        let complete = go(shared, options, &its).await;
        its.complete.store(complete, Ordering::Release);
    });
    Scrub { state, task: Some(scrub) }
}

/// Runs the scrub; true when it checked everything.
async fn go(shared: Weak<Shared>, options: ScrubOptions, state: &ScrubState) -> bool {
    let mut pace = Pace::new(options.pages_per_second);
    let Some(start) = shared.upgrade() else { return false };
    let slots = if options.slots { start.tier.slots() } else { 0 };
    let spaces = if options.homes { start.volume.list() } else { Vec::new() };
    // Not held while it waits for its pace.
    drop(start);
    let homes = spaces.iter().flat_map(|s| (0..s.pages).map(|no| Place::Home(PageId::new(s.id, no))));
    for place in (0..slots).map(Place::Slot).chain(homes) {
        if !pace.wait().await {
            // Without a limit, too, other tasks get their turn between two pages.
            tokio::task::yield_now().await;
        }
        let Some(shared) = shared.upgrade().filter(|_| !state.stop.load(Ordering::Acquire)) else {
            return false;
        };
        // Per page: a shutdown waits for one read, not for the whole scrub.
        let Ok(_operation) = shared.ending.enter() else { return false };
        let checked = match place {
            Place::Slot(slot) => shared.tier.scrub_slot(slot, options.heal).await,
            Place::Home(page) => Some(shared.tier.scrub_home(page, options.heal).await),
        };
        if let Some(checked) = checked {
            note(&shared, state, checked, options.heal).await;
        }
        state.done.fetch_add(1, Ordering::Relaxed);
    }
    true
}

enum Place {
    Slot(u32),
    Home(PageId),
}

async fn note(shared: &Shared, state: &ScrubState, checked: Checked, heal: bool) {
    let Checked { page, error: Some(error), repaired: mut healed, redo_from, .. } = checked else { return };
    // The tier knows no other copy. Memory may have one.
    if heal && !healed {
        healed = shared.pool.rewrite(page, redo_from).await;
    }
    state.found.fetch_add(1, Ordering::Relaxed);
    state.healed.fetch_add(u64::from(healed), Ordering::Relaxed);
    let mut findings = state.findings.lock();
    if findings.len() < FINDINGS_MAX {
        findings.push(ScrubFinding { page, error, healed });
    }
}
