//! Runs the saves of the manifest one after another, in the order in which they begin, and to their end: if
//! its caller is dropped, a save must not land after the next one and bring an older manifest back (I41).
//!
//! Each runs in a task of its own. A save to a file blocks, so it also gets a thread: an fsync may take a
//! second, and the tasks of the runtime must not wait for it.

use futures_util::FutureExt;
use pagetier_devio::task::{Boxed, spawn};
use parking_lot::Mutex;
use std::io::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

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

#[derive(Debug)]
pub(crate) struct Saver {
    runtime: Handle,
    /// Saves block, and wait for no task.
    blocks: bool,
    /// Ends with the last save that began.
    last: Mutex<Option<oneshot::Receiver<()>>>,
    #[cfg(feature = "probes")]
    before: Option<BeforeSaves>,
}

impl Saver {
    /// Saves to the HDD.
    pub(crate) fn of_tasks(runtime: Handle) -> Self {
        let last = Mutex::default();
        Self {
            runtime,
            blocks: false,
            last,
            #[cfg(feature = "probes")]
            before: None,
        }
    }

    /// Saves to a file.
    pub(crate) fn of_threads(runtime: Handle) -> Self {
        Self { blocks: true, ..Self::of_tasks(runtime) }
    }

    #[cfg(feature = "probes")]
    pub(crate) fn probed(self, before: Option<BeforeSaves>) -> Self {
        Self { before, ..self }
    }

    /// Begins `save`, which runs once all earlier ones have ended.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        save: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Boxed<'static, Result<T>> {
        let (ended, this) = oneshot::channel();
        let (done, result) = oneshot::channel();
        let before = self.last.lock().replace(this);
        let blocks = self.blocks;
        #[cfg(feature = "probes")]
        let probe = self.before.clone();
        spawn(&self.runtime, async move {
            // An error: the runtime ends, and a write of the save before this one may be in flight.
            if let Some(before) = before
                && before.await.is_err()
            {
                return;
            }
            let saved = if blocks {
                // Until the result has arrived.
                #[cfg(feature = "probes")]
                let _clock = probe.as_ref().map(|_| hold_clock());
                let saving = move || {
                    #[cfg(feature = "probes")]
                    if let Some(BeforeSaves(before)) = &probe {
                        before();
                    }
                    at_once(save)
                };
                in_thread(saving).await
            } else {
                AssertUnwindSafe(save).catch_unwind().await.ok()
            };
            let _ = ended.send(());
            let _ = done.send(saved.unwrap_or_else(|| Err(Error::other("a save panicked"))));
        });
        Box::pin(async { result.await.unwrap_or_else(|_| Err(Error::other("a save did not end"))) })
    }
}

/// The result of a save that waits for nothing: in memory, or to a file by a thread that may block.
pub(super) fn at_once<T>(save: impl Future<Output = Result<T>>) -> Result<T> {
    save.now_or_never().unwrap_or_else(|| Err(Error::other("a save waits for a device")))
}

/// Runs what blocks in a thread of its own, and to its end, also if the caller is dropped. `None`: it
/// panicked.
pub(crate) async fn in_thread<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = oneshot::channel();
    let job = Arc::new(Mutex::new(Some(move || {
        // The caller learns of a panic by the missing result.
        if let Ok(acted) = catch_unwind(AssertUnwindSafe(act)) {
            let _ = done.send(acted);
        }
    })));
    let work = move || {
        let job = job.lock().take();
        job.into_iter().for_each(|job| job());
    };
    let thread = std::thread::Builder::new().name("pagetier-save".into());
    // The process may start no more threads. Late is better than never: the runtime's thread does it.
    if let Err(error) = thread.spawn(work.clone()) {
        tracing::warn!(%error, "no thread can be started: the runtime waits for the disk instead");
        work();
    }
    result.await.ok()
}

/// Keeps a paused clock from advancing until the result is dropped: it stands still while a blocking task
/// runs. Otherwise hours would pass in virtual time before a save in real time ends.
#[cfg(feature = "probes")]
fn hold_clock() -> Option<std::sync::mpsc::Sender<()>> {
    let runtime = Handle::try_current().ok()?;
    let (held, dropped) = std::sync::mpsc::channel();
    drop(runtime.spawn_blocking(move || dropped.recv()));
    Some(held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// The schedule: the callers of two of three saves are gone, and each save takes another time.
    #[tokio::test]
    async fn saves_run_in_order_to_their_end_whether_or_not_their_callers_wait() {
        for saver in [Saver::of_tasks(Handle::current()), Saver::of_threads(Handle::current())] {
            let (blocks, running) = (saver.blocks, Arc::new(Mutex::new((None, Vec::new()))));
            let save = |no: u64| {
                let running = Arc::clone(&running);
                saver.begin(async move {
                    assert_eq!(running.lock().0.replace(no), None, "two saves at once");
                    let wait = Duration::from_millis(if no.is_multiple_of(2) { 2 } else { 0 });
                    if blocks {
                        std::thread::park_timeout(wait);
                    } else {
                        tokio::time::sleep(wait).await;
                    }
                    let mut ended = running.lock();
                    ended.0 = None;
                    ended.1.push(no);
                    Ok(no)
                })
            };
            for no in 0..20 {
                if no % 3 == 0 {
                    assert_eq!(save(no).await.unwrap(), no);
                } else {
                    drop(save(no));
                }
            }
            assert_eq!(save(20).await.unwrap(), 20);
            assert_eq!(running.lock().1, (0..=20).collect::<Vec<_>>());
            let panics = saver.begin::<()>(async { std::panic::resume_unwind(Box::new(())) });
            assert!(panics.await.is_err());
            assert_eq!(save(21).await.unwrap(), 21);
        }
    }

    #[tokio::test]
    async fn the_runtimes_thread_does_not_wait_for_a_save_to_a_file() {
        let (saver, (go, gone)) = (Saver::of_threads(Handle::current()), std::sync::mpsc::channel::<()>());
        let save = saver.begin(async move { Ok(gone.recv().is_ok()) });
        tokio::task::yield_now().await;
        go.send(()).unwrap();
        assert!(save.await.unwrap());
    }
}
