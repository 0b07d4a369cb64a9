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
//!   wake-up remains. When the runtime ends before the device, a thread takes over (`uring_reap`).
//!
//! An idle device takes no CPU time either way.
//!
//! Measured and rejected alternatives: submission by the reaper (single issuer, deferred task work) costs a
//! wake-up before each submission, and had 10 % fewer operations at depth 32 and 5 % more latency at depth 1.
//! Cooperative task running made no difference in an idle process, but lets completions wait for a submitting
//! thread that computes.
//!
//! **Ownership.** An operation (buffers, segment list, promise) stays in the table from submission to
//! completion, even if no task waits for it, so the kernel never writes to freed memory. The kernel has at
//! most `queue_depth` operations; others wait in order of class, and the reaper submits them as slots become
//! free. The backlog holds callers' buffers, so the callers' memory bounds it.
//!
//! **End.** Dropping the device waits until all outstanding operations are finished. If the kernel refuses
//! the ring for good (which should not happen), waiting tasks get [`DeviceErrorKind::Gone`] without their
//! buffers, which are leaked: the kernel may still write to them.
//!
//! **Locking.** Submitters and the reaper take the state lock; promises are completed after its release. The
//! reaping lock (`uring_reap`) comes before it.

use crate::device::IoBufs;
use crate::file::RawFile;
use crate::transfer::Transfer;
use crate::uring_core::{Pass, Shared};
use crate::uring_reap::{Reap, Reaping};
use crate::uring_ring::Ring;
use crate::{Completion, Device, DeviceError, DeviceStats, IoClass, IoFuture, IoOp, Occupancy, RecentCosts};
use std::future::{Future, ready};
use std::io;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;

/// A file served by io_uring. See the module.
#[derive(Debug)]
pub(crate) struct UringDevice {
    shared: Arc<Shared>,
    reaping: Reaping,
}

impl UringDevice {
    /// Serves `file`, or returns it with the reason why io_uring cannot.
    pub(crate) fn new(file: RawFile, depth: u32, reap: Reap) -> Result<Self, Box<(RawFile, io::Error)>> {
        let depth = depth.clamp(1, 4096);
        let ring = match Ring::new(depth, &file) {
            Ok(ring) => ring,
            Err(error) => return Err(Box::new((file, error))),
        };
        let shared = Arc::new(Shared::new(ring, file, depth));
        match Reaping::start(&shared, Pass::new(), reap) {
            Ok(reaping) => Ok(Self { shared, reaping }),
            Err(error) => match Arc::try_unwrap(shared) {
                Ok(Shared { file, .. }) => Err(Box::new((file, error))),
                Err(_) => unreachable!("what held the other handle was dropped with the failed start"),
            },
        }
    }

    fn start_or(&self, prepared: Result<Transfer, Completion>) -> IoFuture {
        match prepared {
            Ok(transfer) => Box::pin(self.shared.start(transfer)),
            Err(completion) => Box::pin(ready(completion)),
        }
    }
}

impl Drop for UringDevice {
    fn drop(&mut self) {
        self.shared.close(false);
        self.reaping.end(&self.shared);
    }
}

impl Device for UringDevice {
    fn read(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        self.start_or(self.shared.file.prepare(IoOp::Read, offset, bufs, class))
    }

    fn write(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        self.start_or(self.shared.file.prepare(IoOp::Write, offset, bufs, class))
    }

    fn flush(&self, class: IoClass) -> Pin<Box<dyn Future<Output = Result<(), DeviceError>> + Send>> {
        let ticket = self.shared.start(self.shared.file.prepare_flush(class));
        Box::pin(async move { ticket.await.result })
    }

    fn size(&self) -> u64 {
        self.shared.file.size()
    }

    fn grow(&self, bytes: u64) -> Result<(), DeviceError> {
        self.shared.file.grow(bytes)
    }

    fn discard(
        &self,
        offset: u64,
        len: u64,
    ) -> Pin<Box<dyn Future<Output = Result<(), DeviceError>> + Send>> {
        match self.shared.file.prepare_discard(offset, len) {
            Ok(transfer) => {
                let ticket = self.shared.start(transfer);
                Box::pin(async move { ticket.await.result })
            }
            Err(error) => Box::pin(ready(Err(error))),
        }
    }

    fn register(&self, regions: &[(NonNull<u8>, usize)]) -> bool {
        self.shared.ring.register(regions)
    }

    fn occupancy(&self) -> &Occupancy {
        &self.shared.file.occupancy
    }

    fn alignment(&self) -> usize {
        self.shared.file.alignment
    }

    fn stats(&self) -> DeviceStats {
        self.shared.file.recorder.snapshot()
    }

    fn track_costs(&self, points: usize) {
        self.shared.file.recorder.track_costs(points);
    }

    fn recent_costs(&self) -> Option<RecentCosts> {
        self.shared.file.recorder.recent_costs()
    }

    fn backend(&self) -> &'static str {
        "uring"
    }

    fn name(&self) -> &str {
        &self.shared.file.name
    }
}
