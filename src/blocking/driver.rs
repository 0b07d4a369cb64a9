//! The runtime of a blocking store, and the thread that drives it.

use pagetier_bufpool::Waiter;
use pagetier_devio::Owner;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::{JoinHandle, ScopedJoinHandle};
use std::time::Duration;
use tokio::runtime::{EnterGuard, Handle, Runtime};
use tokio::sync::Notify;

/// A runtime with a thread of its own, on which a blocking store runs until this is dropped. For blocking
/// forms of crates that build on the asynchronous store, as `pagetier_wal::blocking` is.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let driver = pagetier::blocking::Driver::start()?;
/// assert_eq!(driver.block_on(async { 6 * 7 }), 42);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Driver {
    handle: Handle,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
    owner: Owner,
}

impl Driver {
    /// Starts runtime and thread.
    ///
    /// # Errors
    /// The system refuses one of them.
    pub fn start() -> io::Result<Self> {
        let runtime: Runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (handle, stop) = (runtime.handle().clone(), Arc::new(Notify::new()));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("pagetier-blocking".into())
            .spawn(move || runtime.block_on(stopped.notified()))?;
        Ok(Self { handle, stop, thread: Some(thread), owner: Owner::here() })
    }

    /// Runs `future` to its end while this thread waits, which may also run tasks of another runtime: it then
    /// stops that thread's other tasks.
    pub fn block_on<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        let mut outcome = None;
        self.run(std::pin::pin!(async { outcome = Some(future.await) }));
        outcome.expect("a future that ran to its end has an outcome")
    }

    /// The part of `block_on` that is compiled once, not for each method.
    fn run(&self, mut future: Pin<&mut (dyn Future<Output = ()> + Send)>) {
        if Handle::try_current().is_err() {
            return self.handle.block_on(future);
        }
        // tokio forbids a thread that runs tasks of a runtime to wait like this. Polling here without tokio's
        // `block_on` would hang: what the future defers, this thread's runtime would wake after the call.
        let waiter = Waiter::current();
        let mut wait = || {
            waiter.stand_in();
            self.handle.block_on(future.as_mut());
        };
        loop {
            let thread = std::thread::Builder::new().name("pagetier-waiting".into());
            let waited =
                std::thread::scope(|scope| thread.spawn_scoped(scope, &mut wait).map(ScopedJoinHandle::join));
            match waited {
                Ok(Ok(())) => return,
                Ok(Err(panic)) => std::panic::resume_unwind(panic),
                // No thread can be made at the moment. This call has to wait either way.
                Err(_) => std::thread::park_timeout(Duration::from_millis(10)),
            }
        }
    }

    /// Makes the runtime the current one of this thread.
    pub(super) fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            // The thread and its runtime exist in the parent process alone.
            std::mem::forget((self.handle.clone(), Arc::clone(&self.stop), self.thread.take()));
            return;
        }
        self.stop.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the blocking store's runtime panicked");
        }
    }
}
