//! Which tasks hold guards. Only debug builds know, since recording it makes every hit slower.

use pagetier_page::PageId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Identifies a task, or a thread that blocks on a future outside any task. Empty in release builds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TaskId(#[cfg(debug_assertions)] (Option<tokio::task::Id>, std::thread::ThreadId));

impl TaskId {
    #[cfg(debug_assertions)]
    pub(crate) fn current() -> Self {
        // A thread that waits for a task may run others meanwhile.
        if let Some(task) = tokio::task::try_id() {
            // A task may move between threads.
            return Self((Some(task), *FIRST_THREAD));
        }
        WAITS_FOR.get().unwrap_or_else(|| Self((None, std::thread::current().id())))
    }

    #[cfg(not(debug_assertions))]
    #[inline]
    pub(crate) fn current() -> Self {
        Self()
    }
}

/// A task that lets another thread wait in its place: guards that this one gets are the task's, so a wait of
/// the task for itself is found all the same.
#[derive(Clone, Copy, Debug)]
pub struct Waiter(TaskId);

impl Waiter {
    /// The current task, or thread outside any task.
    #[must_use]
    pub fn current() -> Self {
        Self(TaskId::current())
    }

    /// From here on this thread waits for the task; what it does outside of other tasks is the task's.
    pub fn stand_in(self) {
        #[cfg(debug_assertions)]
        WAITS_FOR.set(Some(self.0));
    }
}

#[cfg(debug_assertions)]
static FIRST_THREAD: std::sync::LazyLock<std::thread::ThreadId> =
    std::sync::LazyLock::new(|| std::thread::current().id());

#[cfg(debug_assertions)]
thread_local! {
    static WAITS_FOR: std::cell::Cell<Option<TaskId>> = const { std::cell::Cell::new(None) };
}

/// The tasks that hold guards, by page. Empty in release builds.
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

    pub(crate) fn holds(&self, page: PageId, task: TaskId) -> bool {
        self.pages.lock().get(&page).is_some_and(|tasks| tasks.contains(&task))
    }
}

#[cfg(all(test, not(loom), debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_runs_on_a_thread_that_waits_for_another_one_is_itself() {
        let waiter = Waiter::current();
        let waits = std::thread::spawn(move || {
            waiter.stand_in();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let inside = runtime.block_on(async { tokio::spawn(async { TaskId::current() }).await.unwrap() });
            (runtime.block_on(async { TaskId::current() }), inside)
        });
        let (outside, inside) = waits.join().unwrap();
        assert_eq!(outside, TaskId::current(), "what is no task's is done for the one that waits");
        assert_ne!(inside, outside);
    }
}
