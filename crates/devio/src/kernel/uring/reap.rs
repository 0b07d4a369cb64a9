//! Who reaps a ring: a thread, or a task of the runtime whose reactor the ring announces itself to.
//!
//! There is exactly one [`Pass`]: the right to reap, with its working memory. The thread or the task starts
//! with it. If the task loses its runtime while the device lives, it starts the thread and passes it on. If
//! the device is dropped while the task lives, the device takes the pass and finishes the outstanding
//! operations itself. It does not wait for the task, which may be scheduled on the very thread that drops the
//! device.
//!
//! **Locking.** The lock on [`ReapedBy`] is held while a pass reaps, but not while operations are completed:
//! a completion may drop the device's last handle, and thereby end the reaping that it is part of.

use crate::kernel::uring::core::{Ended, Pass, UringCore};
use crate::{Kept, Owner, Reap};
use parking_lot::Mutex;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The device's half; ends the reaping.
#[derive(Debug)]
pub(crate) struct Reaping(Arc<Mutex<ReapedBy>>);

enum ReapedBy {
    Task(Pass),
    Thread(JoinHandle<()>),
    Ended,
}

impl Reaping {
    pub(crate) fn start(core: &Arc<UringCore>, pass: Pass, reap: Reap) -> io::Result<Self> {
        // Only a panic reveals that a runtime has no reactor, so the check requires that a panic does not end
        // the process.
        let asked = reap == Reap::Reactor && panics_unwind() && !std::thread::panicking();
        let runtime = tokio::runtime::Handle::try_current().ok().filter(|_| asked);
        let announced = if runtime.is_some() { announced(core)? } else { None };
        // Whatever is missing for the reactor, a thread can do it.
        let (Some(runtime), Some(announced)) = (runtime, announced) else {
            let thread = start_thread(core, pass)?;
            return Ok(Self(Arc::new(Mutex::new(ReapedBy::Thread(thread)))));
        };
        let reaped_by = Arc::new(Mutex::new(ReapedBy::Task(pass)));
        let duty = Duty { core: Arc::clone(core), reaped_by: Arc::clone(&reaped_by) };
        let announced =
            Announced { fd: Some(announced), owner: core.file.owner, _kept: core.file.kept.clone() };
        runtime.spawn(async move { duty.run(announced).await });
        Ok(Self(reaped_by))
    }

    /// In a forked process: leaves the reaper to the parent, which alone has its thread.
    pub(crate) fn leak(&self) {
        std::mem::forget(Arc::clone(&self.0));
    }

    /// Closes the device: finishes everything outstanding.
    pub(crate) fn end(&self, core: &UringCore) {
        // Taken out under the lock: from here on the task, if it still runs, finds no pass and returns.
        let reaped_by = std::mem::replace(&mut *self.0.lock(), ReapedBy::Ended);
        match reaped_by {
            ReapedBy::Task(pass) => {
                // This thread blocks in the ring itself, so announcements would only wake a task that must
                // not reap.
                core.ring.stop_announcing();
                core.serve(pass);
                // The task still waits, and holds the ring and the file.
                core.ring.wake();
            }
            // A completion may drop the last handle on the thread itself; the thread then ends by itself.
            ReapedBy::Thread(thread) if thread.thread().id() != std::thread::current().id() => {
                if thread.join().is_err() {
                    tracing::error!(device = %core.file.meter.name, "the thread that reaps io_uring's completions panicked");
                }
            }
            ReapedBy::Thread(_) | ReapedBy::Ended => {}
        }
    }
}

/// Whether a panic can be caught.
fn panics_unwind() -> bool {
    #[cfg(test)]
    if tests::PANICS_ABORT.get() {
        return false;
    }
    cfg!(panic = "unwind")
}

/// The descriptor registered with the runtime's reactor; `None` when the runtime has no reactor.
fn announced(core: &UringCore) -> io::Result<Option<AsyncFd<OwnedFd>>> {
    let fd = core.ring.announce()?;
    // Tokio offers no query for the reactor, and panics without one.
    let registered = unreported(|| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // This deprecated call exists in every supported tokio version. Its successor, which requires a
            // descriptor that stays the same, as an `OwnedFd` does, is missing in the older ones.
            #[allow(deprecated)]
            AsyncFd::with_interest(fd, Interest::READABLE)
        }))
    });
    match registered {
        Ok(registered) => registered.map(Some),
        Err(_panic) => {
            core.ring.stop_announcing();
            tracing::warn!(
                device = %core.file.meter.name,
                "the runtime has I/O disabled, so a thread reaps completions; enable_io() or enable_all() \
                 makes it faster"
            );
            Ok(None)
        }
    }
}

/// Runs `act` without a report of its panics on this thread: the program's hook would print one, or count it,
/// though all is well. Panics of other threads are reported meanwhile as ever.
fn unreported<T>(act: impl FnOnce() -> T) -> T {
    /// One replacement at a time: each puts back what it found.
    static REPLACED: Mutex<()> = Mutex::new(());
    let _replaced = REPLACED.lock();
    let before = Arc::new(std::panic::take_hook());
    let (others, me) = (Arc::clone(&before), std::thread::current().id());
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().id() != me {
            others(info);
        }
    }));
    let done = act();
    // Also drops the other handle on the hook, so that the hook itself is put back. Wrapped once more each
    // time, it would become a chain as long as the number of devices ever opened.
    drop(std::panic::take_hook());
    let before = Arc::try_unwrap(before).unwrap_or_else(|before| Box::new(move |info| before(info)));
    std::panic::set_hook(before);
    done
}

fn start_thread(core: &Arc<UringCore>, pass: Pass) -> io::Result<JoinHandle<()>> {
    let core = Arc::clone(core);
    std::thread::Builder::new().name("pagetier-reap".into()).spawn(move || core.serve(pass))
}

/// The number of consecutive refused submissions after which the task leaves the ring to a thread.
const REFUSALS_MAX: u32 = 8;

/// The descriptor in the runtime's reactor.
struct Announced {
    fd: Option<AsyncFd<OwnedFd>>,
    owner: Owner,
    /// Dropped after the descriptor.
    _kept: Option<Kept>,
}

impl Drop for Announced {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            // A forked process shares the reactor's epoll instance: a descriptor that it removes there would
            // be missing in the parent, which would never reap again.
            std::mem::forget(self.fd.take());
        }
    }
}

/// The task's half.
struct Duty {
    core: Arc<UringCore>,
    reaped_by: Arc<Mutex<ReapedBy>>,
}

impl Duty {
    async fn run(self, announced: Announced) {
        let Some(announced) = &announced.fd else { return };
        let (mut refusals, mut ended) = (0, Ended::new());
        // An error means that the runtime is ending.
        // Not `readable`, which enters a list for each wait: no other task waits for this descriptor.
        while let Ok(mut ready) = poll_fn(|cx| announced.poll_read_ready(cx)).await {
            if !self.core.file.owner.is_here() {
                // The ring is the parent's, and its memory is not mapped here.
                return;
            }
            // Clear before reaping, or a completion in between would not be announced.
            ready.clear_ready();
            let mut reaped_by = self.reaped_by.lock();
            // The device was dropped and finishes its operations itself.
            let ReapedBy::Task(pass) = &mut *reaped_by else { return };
            let accepted = self.core.reap_now(pass, &mut ended);
            drop(reaped_by);
            self.core.complete_all(&mut ended);
            refusals = if accepted { 0 } else { refusals + 1 };
            if refusals > REFUSALS_MAX {
                // A thread can pause between its attempts, and gives up after enough of them.
                return;
            }
        }
    }
}

impl Drop for Duty {
    /// The runtime or the device is gone. If the device is alive, its operations need another reaper.
    fn drop(&mut self) {
        if !self.core.file.owner.is_here() {
            std::mem::forget((Arc::clone(&self.core), Arc::clone(&self.reaped_by)));
            return;
        }
        let mut reaped_by = self.reaped_by.lock();
        match std::mem::replace(&mut *reaped_by, ReapedBy::Ended) {
            ReapedBy::Task(pass) => {
                // The reactor that would hear the announcements is gone, or going.
                self.core.ring.stop_announcing();
                match start_thread(&self.core, pass) {
                    Ok(thread) => *reaped_by = ReapedBy::Thread(thread),
                    Err(error) => {
                        drop(reaped_by);
                        self.shut_down(error);
                    }
                }
            }
            other => *reaped_by = other,
        }
    }
}

impl Duty {
    /// No other reaper is left: finishes the outstanding operations and refuses further ones.
    #[cold]
    fn shut_down(&self, error: io::Error) {
        let device = &self.core.file.meter.name;
        tracing::error!(%device, %error, "no thread can be started to reap completions; the device ends");
        // In this order: refused first, so that nothing is added to what has to be finished.
        self.core.refuse(error);
        // Blocks this thread, the runtime's last act for this device: to return would leave buffers to a
        // kernel that still writes to them.
        self.core.serve(Pass::new());
    }
}

impl std::fmt::Debug for ReapedBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Task(_) => "Task",
            Self::Thread(_) => "Thread",
            Self::Ended => "Ended",
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::{Backend, IoBuf, IoClass, OpenOptions, Reap, open_file};
    use std::cell::Cell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    thread_local! {
        /// Makes devices opened on this thread assume a program built with `panic = "abort"`.
        pub(super) static PANICS_ABORT: Cell<bool> = const { Cell::new(false) };
    }

    /// Held by the tests that replace the panic hook.
    static HOOK: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

    /// Opens a device in a runtime without I/O, writes and reads. Returns the number of panics reported on
    /// this thread, caught ones included; `None` without io_uring. Calls `around` before and after.
    fn panics_while_opening(around: impl Fn()) -> Option<usize> {
        let panics = Arc::new(AtomicUsize::new(0));
        let (counted, me) = (Arc::clone(&panics), std::thread::current().id());
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().id() == me {
                counted.fetch_add(1, Ordering::Relaxed);
            } else {
                before(info);
            }
        }));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().ok()?;
        let folder = tempfile::tempdir().ok()?;
        let options = OpenOptions {
            create: true,
            backend: Backend::Uring,
            reap: Reap::Reactor,
            ..OpenOptions::default()
        };
        around();
        runtime.block_on(async {
            let device = open_file(&folder.path().join("device"), &options).ok()?.device;
            device.grow(1 << 20).ok()?;
            let buf = || [IoBuf::copy_of(&[7; 4096])].into_iter().collect();
            device.write(0, buf(), IoClass::Clean).await.result.ok()?;
            let read = device.read(0, [IoBuf::zeroed(4096)].into_iter().collect(), IoClass::Demand).await;
            read.bufs.iter().all(|buf| buf.as_slice() == [7; 4096]).then_some(())
        })?;
        around();
        Some(panics.load(Ordering::Relaxed))
    }

    #[test]
    fn a_runtime_without_io_is_served_and_no_panic_is_reported() {
        let _hook = HOOK.lock();
        PANICS_ABORT.set(true);
        let aborting = panics_while_opening(|| ());
        PANICS_ABORT.set(false);
        // The hook is the same before and after it was replaced.
        let counted = || assert!(std::panic::catch_unwind(|| panic!("counted")).is_err());
        let unwinding = panics_while_opening(counted);
        assert!(
            matches!((aborting, unwinding), (Some(0), Some(2)) | (None, None)),
            "{aborting:?} {unwinding:?}"
        );
    }

    #[test]
    fn panics_of_other_threads_are_reported_while_one_is_unreported() {
        let _hook = HOOK.lock();
        let reported = Arc::new(AtomicUsize::new(0));
        let (counted, before) = (Arc::clone(&reported), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        super::unreported(|| {
            assert!(std::panic::catch_unwind(|| panic!("unreported")).is_err());
            assert!(std::thread::spawn(|| panic!("reported")).join().is_err());
        });
        std::panic::set_hook(before);
        assert_eq!(reported.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_hook_that_is_put_back_is_the_one_that_was_there() {
        let _hook = HOOK.lock();
        let before = std::panic::take_hook();
        // A hook that has captured something has an address of its own.
        let mark = 7_u8;
        let ours: Box<dyn Fn(&std::panic::PanicHookInfo<'_>) + Send + Sync> = Box::new(move |_| {
            std::hint::black_box(mark);
        });
        let address = std::ptr::addr_of!(*ours).cast::<()>();
        std::panic::set_hook(ours);
        (0..3).for_each(|_| super::unreported(|| ()));
        let put_back = std::panic::take_hook();
        std::panic::set_hook(before);
        assert_eq!(std::ptr::addr_of!(*put_back).cast::<()>(), address);
    }
}
