//! The runtime of a blocking store, and who drives it.
//!
//! A thread drives it, unless callers wait for something: they drive it themselves for as long as calls
//! come, so that a read's completion wakes the caller alone, not the thread and then the caller. Each of
//! these would wait for a core: on a machine that is busy, a read from fast storage took five times as long.
//! A call that need not wait is carried out where it is made.
//!
//! The price: in the pauses between calls that come quickly, background tasks wait, for at most [`LULL`].

use pagetier_bufpool::Waiter;
use pagetier_devio::Owner;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::thread::{JoinHandle, ScopedJoinHandle, Thread};
use std::time::Duration;
use tokio::runtime::{EnterGuard, Handle, Runtime};
use tokio::sync::Notify;

/// A runtime with a thread of its own, on which a blocking store runs until this is dropped; callers that
/// wait take the thread's place. For blocking
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
    /// The thread has it, too, and drops it: a runtime must not be dropped where another one's tasks run.
    runtime: Option<Arc<Runtime>>,
    turns: Arc<Turns>,
    thread: Option<JoinHandle<()>>,
    owner: Owner,
}

/// Whose turn it is to drive the runtime: the callers', or the thread's. tokio lets one of those drive that
/// block on it, and chooses another when that one is done. All is ordered sequentially: the thread says that
/// it waits and then looks for callers, and a caller leaves and then looks whether the thread waits.
#[derive(Debug, Default)]
struct Turns {
    /// Tells the thread, while it drives, to let go of the runtime.
    let_go: Notify,
    stopped: AtomicBool,
    thread_drives: AtomicBool,
    /// The thread waits, without a bound, for the last caller to leave.
    thread_waits: AtomicBool,
    /// The callers that drive the runtime, or wait to.
    callers: AtomicUsize,
    /// The calls so far that drove it.
    calls: AtomicU64,
}

/// How long the thread leaves the runtime to callers of which none comes.
const LULL: Duration = Duration::from_micros(500);

impl Turns {
    /// The thread's work.
    fn work(&self, runtime: &Runtime) {
        while !self.stopped.load(Ordering::SeqCst) {
            self.thread_drives.store(true, Ordering::SeqCst);
            runtime.block_on(self.let_go.notified());
            self.thread_drives.store(false, Ordering::SeqCst);
            self.leave_to_callers();
        }
    }

    /// Returns when no caller has come for a while, and none is there.
    fn leave_to_callers(&self) {
        while !self.stopped.load(Ordering::SeqCst) {
            let before = self.calls.load(Ordering::SeqCst);
            std::thread::park_timeout(LULL);
            if self.calls.load(Ordering::SeqCst) != before {
                continue;
            }
            // A caller drives, for longer than that: it says when it is done.
            self.thread_waits.store(true, Ordering::SeqCst);
            while self.callers.load(Ordering::SeqCst) > 0 && self.thread_waits.load(Ordering::SeqCst) {
                std::thread::park();
            }
            if !self.thread_waits.swap(false, Ordering::SeqCst) {
                continue;
            }
            return;
        }
    }

    /// Notes that a caller drives, until the guard is dropped.
    fn enter<'a>(&'a self, thread: &'a Thread) -> Entered<'a> {
        self.callers.fetch_add(1, Ordering::SeqCst);
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.thread_drives.load(Ordering::SeqCst) {
            self.let_go.notify_one();
        }
        Entered { turns: self, thread }
    }
}

struct Entered<'a> {
    turns: &'a Turns,
    thread: &'a Thread,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let was_last = self.turns.callers.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && self.turns.thread_waits.swap(false, Ordering::SeqCst) {
            self.thread.unpark();
        }
    }
}

impl Driver {
    /// Starts runtime and thread.
    ///
    /// # Errors
    /// The system refuses one of them.
    pub fn start() -> io::Result<Self> {
        let runtime = Arc::new(tokio::runtime::Builder::new_current_thread().enable_all().build()?);
        let turns = Arc::new(Turns::default());
        let (driven, theirs) = (Arc::clone(&runtime), Arc::clone(&turns));
        let thread = std::thread::Builder::new()
            .name("pagetier-blocking".into())
            .spawn(move || theirs.work(&driven))?;
        Ok(Self { runtime: Some(runtime), turns, thread: Some(thread), owner: Owner::here() })
    }

    /// Runs `future` to its end while this thread waits, which may also run tasks of another runtime: it
    /// then stops that thread's other tasks.
    pub fn block_on<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        let mut outcome = None;
        self.run(std::pin::pin!(async { outcome = Some(future.await) }));
        outcome.expect("a future that ran to its end has an outcome")
    }

    /// The part of `block_on` that is compiled once, not for each method.
    fn run(&self, mut future: Pin<&mut (dyn Future<Output = ()> + Send)>) {
        if Handle::try_current().is_err() {
            return self.drive(future);
        }
        // tokio forbids a thread that runs tasks of a runtime to wait like this. Polling here without
        // tokio's `block_on` would hang: what the future defers, this thread's runtime would wake after the
        // call.
        let waiter = Waiter::current();
        let mut wait = || {
            waiter.stand_in();
            self.drive(future.as_mut());
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

    /// Runs `future` to its end, and the runtime meanwhile, on this thread, which runs no other one's tasks.
    fn drive(&self, mut future: Pin<&mut (dyn Future<Output = ()> + Send)>) {
        // Most calls need not wait.
        {
            let _runtime = self.enter();
            let now = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if now.is_ready() {
                return;
            }
        }
        match &self.thread {
            Some(thread) if self.owner.is_here() => {
                let _driving = self.turns.enter(thread.thread());
                self.runtime().block_on(future);
            }
            _ => self.runtime().handle().block_on(future),
        }
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("only a drop takes the runtime")
    }

    /// Makes the runtime the current one of this thread.
    pub(super) fn enter(&self) -> EnterGuard<'_> {
        self.runtime().enter()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            // The thread and its runtime exist in the parent process alone.
            std::mem::forget((self.runtime.take(), Arc::clone(&self.turns), self.thread.take()));
            return;
        }
        drop(self.runtime.take());
        self.turns.stopped.store(true, Ordering::SeqCst);
        self.turns.let_go.notify_one();
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the blocking store's runtime panicked");
        }
    }
}
