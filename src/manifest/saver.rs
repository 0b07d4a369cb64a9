//! Runs the saves of the manifest in a thread of their own: an fsync may take a second, and the tasks of the
//! runtime must not wait for it.
//!
//! Saves run one after another, in the order in which they begin, and to their end: if its caller is dropped,
//! a save must not land after the next one and bring an older manifest back (I41). The thread exists only
//! while there are saves.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Whether a thread works on the jobs.
    running: bool,
}

/// Test-only: called in the saving thread before each save. A paused clock waits for such saves.
#[cfg(feature = "probes")]
#[derive(Clone)]
pub(crate) struct BeforeSaves(pub(crate) Arc<dyn Fn() + Send + Sync>);

#[cfg(feature = "probes")]
impl std::fmt::Debug for BeforeSaves {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BeforeSaves").finish_non_exhaustive()
    }
}

#[derive(Clone, Default)]
pub(crate) struct Saver {
    queue: Arc<Mutex<Queue>>,
    #[cfg(feature = "probes")]
    before: Option<BeforeSaves>,
}

impl std::fmt::Debug for Saver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Saver").finish_non_exhaustive()
    }
}

impl Saver {
    pub(crate) fn new(#[cfg(feature = "probes")] before: Option<BeforeSaves>) -> Self {
        Self {
            queue: Arc::default(),
            #[cfg(feature = "probes")]
            before,
        }
    }

    /// Begins `save`, which runs once all earlier ones have ended. The result is `None` if it panicked.
    pub(crate) fn begin<T: Send + 'static, S: FnOnce() -> T + Send + 'static>(
        &self,
        save: S,
    ) -> impl Future<Output = Option<T>> + Send + use<T, S> {
        let (done, result) = oneshot::channel();
        #[cfg(feature = "probes")]
        let holds_clock = self.before.as_ref().and_then(|_| hold_clock());
        // Queued under the lock, so that saves run in the order in which `begin` was called: a later save
        // must not land before an earlier one (I41).
        let mut queue = self.queue.lock();
        queue.jobs.push_back(Box::new(move || {
            let _ = done.send(save());
            #[cfg(feature = "probes")]
            drop(holds_clock);
        }));
        // One thread at most. It is told to exist under the same lock under which it decides to end, so no
        // job can be queued between its last look and its end.
        let starts = !std::mem::replace(&mut queue.running, true);
        drop(queue);
        if starts {
            let saver = self.clone();
            let thread = std::thread::Builder::new().name("pagetier-save".into());
            // The process may start no more threads. A save that no thread performs would keep its caller
            // waiting forever.
            if let Err(error) = thread.spawn(move || saver.work()) {
                // Late is better than never: the runtime's thread does it.
                tracing::warn!(%error, "no thread can be started to save the manifest: the runtime waits for the disk instead");
                self.work();
            }
        }
        async move { result.await.ok() }
    }

    fn work(&self) {
        loop {
            let job = {
                let mut queue = self.queue.lock();
                let Some(job) = queue.jobs.pop_front() else {
                    queue.running = false;
                    return;
                };
                job
            };
            #[cfg(feature = "probes")]
            if let Some(BeforeSaves(before)) = &self.before {
                before();
            }
            // The caller learns of a panic by the missing result; later saves must run even so.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }
}

/// Keeps a paused clock from advancing until the result is dropped: it stands still while a blocking task
/// runs. Otherwise hours would pass in virtual time before a save in real time ends.
#[cfg(feature = "probes")]
fn hold_clock() -> Option<std::sync::mpsc::Sender<()>> {
    let runtime = tokio::runtime::Handle::try_current().ok()?;
    let (held, dropped) = std::sync::mpsc::channel();
    drop(runtime.spawn_blocking(move || dropped.recv()));
    Some(held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn saves_run_in_order_to_their_end_whether_or_not_their_callers_wait() {
        let (saver, order) = (Saver::default(), Arc::new(Mutex::new(Vec::new())));
        let save = |no: usize| {
            let order = Arc::clone(&order);
            saver.begin(move || {
                std::thread::park_timeout(Duration::from_millis(if no.is_multiple_of(2) { 2 } else { 0 }));
                order.lock().push(no);
                no
            })
        };
        for no in 0..20 {
            if no % 3 == 0 {
                assert_eq!(save(no).await, Some(no));
            } else {
                drop(save(no));
            }
        }
        assert_eq!(save(20).await, Some(20));
        assert_eq!(*order.lock(), (0..=20).collect::<Vec<_>>());
        assert_eq!(saver.begin(|| std::panic::resume_unwind(Box::new(()))).await, None::<()>);
        assert_eq!(save(21).await, Some(21));
    }

    #[tokio::test]
    async fn the_runtimes_thread_does_not_wait_for_a_save() {
        let (saver, (go, gone)) = (Saver::default(), std::sync::mpsc::channel::<()>());
        let save = saver.begin(move || gone.recv().is_ok());
        tokio::task::yield_now().await;
        go.send(()).unwrap();
        assert_eq!(save.await, Some(true));
    }
}
