//! The io_uring backend.
//!
//! **One ring per device.** The rings of the HDD and the SSD share nothing: neither's completions wait behind
//! the other's, and each has its own short lock. The calling task submits with one system call outside the
//! lock, so a read is on its way without a hand-over; if another thread has submitted the entry meanwhile,
//! the call is saved. Completions are then reaped, and each waiting task is woken through the slot that its
//! future shares with the operation. [`Reap`] selects who reaps:
//!
//! - **A thread** per ring blocks in `io_uring_enter` until something completes. It needs no executor's help,
//!   so it works under any. But one read takes three consecutive wake-ups: the kernel finishes it on the
//!   submitting thread, the reaper wakes, and the reaper wakes the task.
//! - **The tokio reactor** of the runtime that opened the device: the ring announces completions through an
//!   eventfd, and a task of the runtime reaps. The submitting thread usually waits in that reactor, so one
//!   wake-up remains. When the runtime ends before the device, a thread takes over (`reap`).
//!
//! An idle device takes no CPU time either way.
//!
//! **Ownership.** An operation (buffers, segment list, promise) stays in the table from submission to
//! completion, even if no task waits for it, so the kernel never writes to freed memory. The kernel has at
//! most `queue_depth` operations; others wait in order of class, and the reaper submits them as slots become
//! free. The backlog holds callers' buffers, so the callers' memory bounds it.
//!
//! **Refusals.** The kernel may refuse to take operations for a while (no memory for a request, completions
//! to be reaped first): the reaper tries again for up to a minute. If that does not help, or the ring cannot
//! be used any more, for example because a filter of system calls was installed meanwhile, a pool of threads
//! takes over. What the kernel has taken still completes, and everything else goes to the threads, so no
//! operation is lost, and none is carried out twice.
//!
//! **End.** Dropping the device waits until all outstanding operations are finished. A process forked from
//! the one that opened the device shares its ring, and leaves it alone.
//!
//! **Locking.** Submitters and the reaper take the lock on the operations; promises are completed after its
//! release. The reaping lock (`reap`) comes before it.

mod core;
mod reap;
mod ring;

use crate::handover::ticket::Ticket;
use crate::kernel::file::{Issuer, RawFile};
use crate::kernel::transfer::Transfer;
use crate::kernel::uring::core::{Pass, UringCore};
use crate::kernel::uring::reap::Reaping;
use crate::kernel::uring::ring::Ring;
use crate::{Completion, OpenOptions};
use std::cell::RefCell;
use std::io;
use std::sync::Arc;

/// A transfer of as many bytes goes at once: the call is little of its cost, and other threads' operations
/// wait for the call.
const LONG_BYTES: u64 = 64 << 10;

thread_local! {
    /// The rings with operations that are not submitted, while this thread starts several.
    static HELD: RefCell<Option<Vec<Arc<UringCore>>>> = const { RefCell::new(None) };
}

/// Runs `start`, which starts operations. When it returns, one call passes those on a ring to the kernel, and
/// the block layer sees them together. `start` must not block until one of them ends.
pub fn together<T>(start: impl FnOnce() -> T) -> T {
    /// Submits when it is dropped, so also if `start` panics.
    struct Submit;
    impl Drop for Submit {
        fn drop(&mut self) {
            for core in HELD.take().into_iter().flatten() {
                core.submit();
            }
        }
    }
    let begin = |held: &RefCell<Option<Vec<_>>>| {
        let mut held = held.borrow_mut();
        held.is_none().then(|| *held = Some(Vec::new()))
    };
    let _submit = HELD.try_with(begin).ok().flatten().map(|()| Submit);
    start()
}

/// Serves a file by io_uring. See the module.
#[derive(Debug)]
pub(crate) struct Uring {
    core: Arc<UringCore>,
    reaping: Reaping,
}

impl Uring {
    /// Serves `file`, or returns the reason why io_uring cannot.
    pub(crate) fn new(file: &Arc<RawFile>, options: &OpenOptions) -> io::Result<Self> {
        let depth = options.queue_depth.clamp(1, 4096);
        // All that can fail comes before the first operation: afterwards there is no fall-back to threads
        // for the opener to choose, only `take_over`.
        let ring = Ring::new(depth, file)?;
        let core = Arc::new(UringCore::new(ring, Arc::clone(file), depth, options.threads));
        let reaping = Reaping::start(&core, Pass::new(), options.reap)?;
        Ok(Self { core, reaping })
    }
}

#[cfg(test)]
impl Uring {
    pub(crate) fn refused(&self) -> &ring::Refused {
        &self.core.ring.refused
    }
}

impl Issuer for Uring {
    fn backend(&self) -> &'static str {
        if self.core.is_usable() { "uring" } else { "threads" }
    }

    fn file(&self) -> &RawFile {
        &self.core.file
    }

    fn start(&self, transfer: Transfer) -> Ticket<Completion> {
        let is_long = transfer.spot.len >= LONG_BYTES;
        let (ticket, queued) = self.core.start(transfer);
        if !queued {
            return ticket;
        }
        let hold = |held: &mut Vec<Arc<UringCore>>| {
            if !held.iter().any(|core| Arc::ptr_eq(core, &self.core)) {
                held.push(Arc::clone(&self.core));
            }
        };
        // It is gone in a thread that ends.
        let held =
            !is_long && HELD.try_with(|held| held.borrow_mut().as_mut().map(hold).is_some()).unwrap_or(false);
        if !held {
            self.core.submit();
        }
        ticket
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        if !self.core.file.owner.is_here() {
            // The ring, its reaper and the operations in flight belong to the parent process. The ring's
            // memory is not even mapped here.
            std::mem::forget(Arc::clone(&self.core));
            self.reaping.leak();
            return;
        }
        // Before the reaping is ended: `serve` returns only once the device is closing and idle.
        self.core.close();
        self.reaping.end(&self.core);
        // A reactor's task may keep the core, and so the threads, until its runtime runs again.
        self.core.end_threads();
    }
}
