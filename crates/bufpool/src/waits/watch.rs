//! Wakes the task that checks the waits (`stalls`), at the cost of one load while that task is awake.

use crate::sync::AtomicBool;
use std::sync::atomic::Ordering;
use tokio::sync::Notify;

/// Whether the task checks the waits, or rests because there are none.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The task checks the waits, or has been woken to.
    awake: AtomicBool,
    woken: Notify,
}

impl Watch {
    /// The task starts at rest.
    pub(crate) fn new() -> Self {
        Self { awake: AtomicBool::new(false), woken: Notify::new() }
    }

    /// Wakes the task if it rests. The caller has just entered a wait into a list, under the list's lock.
    #[inline]
    pub(crate) fn wake(&self) {
        if !self.awake.load(Ordering::Relaxed) && !self.awake.swap(true, Ordering::Relaxed) {
            self.woken.notify_one();
        }
    }

    /// Lets the task rest unless `any` finds a wait in the lists, each under its lock. Returns whether it
    /// may rest.
    pub(crate) fn rest(&self, any: impl FnOnce() -> bool) -> bool {
        self.awake.store(false, Ordering::Relaxed);
        // No wait is missed while it begins. If it locks its list before `any` does, `any` finds it. If it
        // locks it afterwards, the lock orders the store above before the load in its `wake`.
        !any() || self.awake.swap(true, Ordering::Relaxed)
    }

    /// Returns once [`Watch::wake`] has woken the task.
    pub(crate) async fn woken(&self) {
        self.woken.notified().await;
    }

    /// Wakes the task so that it finds the pool gone.
    pub(crate) fn end(&self) {
        self.woken.notify_one();
    }

    #[cfg(all(test, loom))]
    pub(crate) fn is_awake(&self) -> bool {
        self.awake.load(Ordering::Relaxed)
    }
}
