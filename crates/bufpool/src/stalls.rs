//! Logs waits that take long, so that a hang explains itself.
//!
//! Every wait for a latch, a frame, the log or the storage below registers here; a hit never does. While
//! there are waits, a task checks them once a second and warns of each one that is old, again whenever its
//! age has doubled. In debug builds it also refuses a wait for a latch that the waiting task itself holds.

use pagetier_page::PageId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The age of a wait at the first warning.
const LONG: Duration = Duration::from_secs(5);
/// The interval between two checks of the waits.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a request or a write waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum On {
    Latch,
    Frame,
    Log,
    Read,
    Write,
}

impl fmt::Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Latch => "its latch: a task holds a guard of it",
            Self::Frame => "a frame: all are pinned or dirty",
            Self::Log => "the log gate, before the page may be written",
            Self::Read => "a device to read it",
            Self::Write => "a device to write it",
        })
    }
}

#[derive(Debug)]
struct Waiting {
    on: On,
    page: PageId,
    since: Instant,
    /// The age at which to warn next.
    warn_at: Duration,
    task: TaskId,
    refused: Option<Arc<Notify>>,
}

/// The waits at this moment.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    waits: Mutex<FxHashMap<u64, Waiting>>,
    ids: AtomicU64,
    /// The task checks the waits, or has been woken to.
    watched: AtomicBool,
    woken: Arc<Notify>,
    pub(crate) holders: Holders,
}

/// A registered wait; ends when dropped.
pub(crate) struct Registered<'a> {
    stalls: &'a Stalls,
    id: u64,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.stalls.waits.lock().remove(&self.id);
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        // Wake the task: it finds the pool gone and ends.
        self.woken.notify_one();
    }
}

impl Stalls {
    /// Registers a wait on behalf of `page`.
    pub(crate) fn wait(&self, on: On, page: PageId) -> Registered<'_> {
        self.register(on, page, None)
    }

    /// Registers a wait for the latch of `page`; `refused` is notified if it cannot end.
    pub(crate) fn wait_for_latch(&self, page: PageId, refused: &Arc<Notify>) -> Registered<'_> {
        self.register(On::Latch, page, Some(Arc::clone(refused)))
    }

    fn register(&self, on: On, page: PageId, refused: Option<Arc<Notify>>) -> Registered<'_> {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let task = TaskId::current();
        let waiting = Waiting { on, page, since: Instant::now(), warn_at: LONG, task, refused };
        self.waits.lock().insert(id, waiting);
        if !self.watched.swap(true, Ordering::AcqRel) {
            self.woken.notify_one();
        }
        Registered { stalls: self, id }
    }

    pub(crate) fn woken(&self) -> Arc<Notify> {
        Arc::clone(&self.woken)
    }

    /// Warns of old waits, and refuses those that cannot end. Returns whether there is any wait.
    fn look(&self) -> bool {
        let mut waits = self.waits.lock();
        for waiting in waits.values_mut() {
            let age = waiting.since.elapsed();
            if age < waiting.warn_at {
                continue;
            }
            waiting.warn_at = age * 2;
            let Waiting { on, page, .. } = waiting;
            tracing::warn!(page = %page, waited = ?age, "page {page} has waited {age:.0?} for {on}");
            if let Some(refused) = &waiting.refused
                && self.holders.holds(*page, waiting.task)
            {
                refused.notify_one();
            }
        }
        !waits.is_empty()
    }

    /// Stops the checks unless a wait has begun in the meantime. Returns whether it did.
    fn rest(&self) -> bool {
        self.watched.store(false, Ordering::Release);
        self.waits.lock().is_empty() || self.watched.swap(true, Ordering::AcqRel)
    }
}

/// The task that checks the waits. Ends with the pool.
pub(crate) async fn run(stalls: Weak<Stalls>, woken: Arc<Notify>) {
    loop {
        woken.notified().await;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some(stalls) = stalls.upgrade() else { return };
            if !stalls.look() && stalls.rest() {
                break;
            }
        }
        if stalls.strong_count() == 0 {
            return;
        }
    }
}

/// Identifies a task, or a thread that blocks on a future outside any task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TaskId(#[cfg(debug_assertions)] (Option<tokio::task::Id>, std::thread::ThreadId));

impl TaskId {
    #[cfg(debug_assertions)]
    pub(crate) fn current() -> Self {
        let task = tokio::task::try_id();
        // A task may move between threads.
        let thread = if task.is_some() { *FIRST_THREAD } else { std::thread::current().id() };
        Self((task, thread))
    }

    #[cfg(not(debug_assertions))]
    #[inline]
    pub(crate) fn current() -> Self {
        Self()
    }
}

#[cfg(debug_assertions)]
static FIRST_THREAD: std::sync::LazyLock<std::thread::ThreadId> =
    std::sync::LazyLock::new(|| std::thread::current().id());

/// The tasks that hold guards, by page. Only debug builds fill it, since that makes every hit slower.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    pages: Mutex<FxHashMap<PageId, Vec<TaskId>>>,
}

impl Holders {
    pub(crate) fn add(&self, page: PageId) -> TaskId {
        let task = TaskId::current();
        self.pages.lock().entry(page).or_default().push(task);
        task
    }

    pub(crate) fn remove(&self, page: PageId, task: TaskId) {
        let mut pages = self.pages.lock();
        if let Some(tasks) = pages.get_mut(&page) {
            if let Some(at) = tasks.iter().position(|one| *one == task) {
                tasks.swap_remove(at);
            }
            if tasks.is_empty() {
                pages.remove(&page);
            }
        }
    }

    fn holds(&self, page: PageId, task: TaskId) -> bool {
        self.pages.lock().get(&page).is_some_and(|tasks| tasks.contains(&task))
    }
}
