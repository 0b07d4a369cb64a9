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
use crate::queue::RankQueue;
use crate::ticket::{Promise, ticket};
use crate::transfer::Transfer;
use crate::uring_reap::Reaping;
use crate::uring_ring::{Pusher, Reaper, Ring, Segments, WAKE};
use crate::{
    Completion, Device, DeviceError, DeviceErrorKind, DeviceStats, IoClass, IoFuture, IoOp, Occupancy, Reap,
    RecentCosts,
};
use parking_lot::Mutex;
use std::future::{Future, ready};
use std::io;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// The number of consecutive refused waits after which the ring is given up (the pauses between them add up
/// to several seconds).
const REFUSALS_MAX: u32 = 200;

/// A file served by io_uring. See the module.
#[derive(Debug)]
pub(crate) struct UringDevice {
    shared: Arc<Shared>,
    reaping: Reaping,
}

#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    pub(crate) ring: Ring,
    pub(crate) file: RawFile,
}

struct State {
    pusher: Pusher,
    /// The kernel's operations, by slot.
    table: Vec<Option<Op>>,
    free: Vec<u32>,
    backlog: RankQueue<Op>,
    closing: bool,
    dead: bool,
}

pub(crate) struct Op {
    transfer: Transfer,
    segments: Segments,
    promise: Promise<Completion>,
}

/// Operations to complete outside the lock, with their results; `None` for a read that was abandoned before
/// it was issued.
pub(crate) type Ended = Vec<(Op, Option<Result<(), DeviceErrorKind>>)>;

/// The working memory of one reaping pass; its vectors are empty between passes.
pub(crate) struct Pass {
    reaper: Reaper,
    results: Vec<(u64, i32)>,
    ended: Ended,
}

impl UringDevice {
    /// Serves `file`, or returns it with the reason why io_uring cannot.
    pub(crate) fn new(file: RawFile, depth: u32, reap: Reap) -> Result<Self, Box<(RawFile, io::Error)>> {
        let depth = depth.clamp(1, 4096);
        let ring = match Ring::new(depth, &file) {
            Ok(ring) => ring,
            Err(error) => return Err(Box::new((file, error))),
        };
        let state = State {
            pusher: Pusher::new(),
            table: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            backlog: RankQueue::default(),
            closing: false,
            dead: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), ring, file });
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

impl Pass {
    /// The pass of a new device.
    pub(crate) fn new() -> Self {
        Self { reaper: Reaper::new(), results: Vec::new(), ended: Ended::new() }
    }
}

impl State {
    /// Passes `op` to the kernel; returns it when no slot is free.
    fn push(&mut self, ring: &Ring, mut op: Op) -> Option<Op> {
        let Some(slot) = self.free.pop() else { return Some(op) };
        // SAFETY: the operation stays in the table until its completion is reaped (or is leaked when the ring
        // is given up), and no other code touches its buffers there.
        let pushed =
            unsafe { ring.push(&mut self.pusher, u64::from(slot), &mut op.transfer, &mut op.segments) };
        if !pushed {
            self.free.push(slot);
            return Some(op);
        }
        self.table[slot as usize] = Some(op);
        None
    }

    fn is_idle(&self) -> bool {
        self.backlog.is_empty() && self.free.len() == self.table.len()
    }
}

impl Shared {
    fn start(&self, transfer: Transfer) -> impl Future<Output = Completion> + Send + use<> {
        let (promise, ticket) = ticket();
        let class = transfer.class;
        let op = Op { transfer, segments: Segments::default(), promise };
        let mut state = self.state.lock();
        if state.dead {
            drop(state);
            self.complete(op, Some(Err(DeviceErrorKind::Gone)));
            return ticket;
        }
        match state.push(&self.ring, op) {
            None => {
                drop(state);
                self.submit();
            }
            // Every operation that occupies a slot completes, and the reaper then takes the next one from
            // here.
            Some(op) => state.backlog.push(class, op),
        }
        ticket
    }

    /// Submits what is queued. Returns false if the kernel does not accept everything; the reaper then
    /// retries.
    fn submit(&self) -> bool {
        loop {
            match self.ring.submit() {
                Ok(_) => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::debug!(device = %self.file.name, %error, "submission is deferred");
                    self.ring.wake();
                    return false;
                }
            }
        }
    }

    /// Reaps until the device is closing and everything is done; blocks while there is nothing to reap.
    pub(crate) fn serve(&self, mut pass: Pass) {
        let mut refusals = 0;
        self.ring.arm(&mut self.state.lock().pusher);
        loop {
            match self.ring.wait(&pass.reaper) {
                Ok(_) => refusals = 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    refusals += 1;
                    if refusals > REFUSALS_MAX {
                        return self.give_up(&error);
                    }
                    std::thread::park_timeout(Duration::from_millis(u64::from(refusals.min(50))));
                }
            }
            let finished = self.reap(&mut pass);
            self.complete_all(&mut pass.ended);
            if finished {
                return;
            }
        }
    }

    /// Reaps what has completed so far; returns whether the device is closing and everything is done. Leaves
    /// ended operations to [`Shared::complete_all`], to run outside any lock.
    fn reap(&self, pass: &mut Pass) -> bool {
        self.ring.reap(&mut pass.reaper, &mut pass.results);
        self.digest(&mut pass.results, &mut pass.ended)
    }

    /// Like [`Shared::reap`], but for a caller that does not block afterwards: submits what the pass queued
    /// and returns what has ended. Also says whether the kernel accepts submissions.
    pub(crate) fn reap_now(&self, pass: &mut Pass) -> (Ended, bool) {
        self.ring.awake();
        self.reap(pass);
        let accepted = self.submit();
        (std::mem::take(&mut pass.ended), accepted)
    }

    pub(crate) fn complete_all(&self, ended: &mut Ended) {
        for (op, result) in ended.drain(..) {
            self.complete(op, result);
        }
    }

    /// Refuses further operations; [`Shared::serve`] returns once none is left.
    pub(crate) fn close(&self, dead: bool) {
        let mut state = self.state.lock();
        state.closing = true;
        state.dead |= dead;
        drop(state);
        self.ring.wake();
    }

    /// Processes completions, and queues retries and the backlog; returns whether the device is closing and
    /// everything is done.
    fn digest(&self, results: &mut Vec<(u64, i32)>, ended: &mut Ended) -> bool {
        let mut state = self.state.lock();
        for (slot, result) in results.drain(..) {
            if slot == WAKE {
                self.ring.awake();
                self.ring.arm(&mut state.pusher);
            } else if let Some(op) = state.table.get_mut(slot as usize).and_then(Option::take) {
                state.free.push(slot as u32);
                self.digest_one(&mut state, op, result, ended);
            }
        }
        while !state.free.is_empty() {
            let Some(op) = state.backlog.pop() else { break };
            if op.transfer.spot.op == IoOp::Read && op.promise.is_abandoned() {
                ended.push((op, None));
                continue;
            }
            if let Some(op) = state.push(&self.ring, op) {
                state.backlog.push(op.transfer.class, op);
                break;
            }
        }
        state.closing && state.is_idle()
    }

    fn digest_one(&self, state: &mut State, mut op: Op, result: i32, ended: &mut Ended) {
        let answer = u64::try_from(result).map_err(|_| -result);
        match self.file.answer(&mut op.transfer, answer) {
            Some(result) => ended.push((op, Some(result))),
            None => {
                if let Some(op) = state.push(&self.ring, op) {
                    state.backlog.push(op.transfer.class, op);
                }
            }
        }
    }

    fn complete(&self, op: Op, result: Option<Result<(), DeviceErrorKind>>) {
        let Op { transfer, promise, .. } = op;
        promise.complete(match result {
            Some(result) => self.file.finish(transfer, result),
            None => self.file.abandon(transfer),
        });
    }

    /// Gives up the ring: fails everything, and leaks the memory that the kernel may still write to.
    #[cold]
    fn give_up(&self, error: &io::Error) {
        tracing::error!(device = %self.file.name, %error, "io_uring has stopped working; the device is gone");
        let mut state = self.state.lock();
        state.dead = true;
        let with_kernel: Vec<Op> = state.table.iter_mut().filter_map(Option::take).collect();
        let waiting: Vec<Op> = std::iter::from_fn(|| state.backlog.pop()).collect();
        drop(state);
        for mut op in with_kernel {
            std::mem::forget(std::mem::take(&mut op.transfer.bufs));
            std::mem::forget(std::mem::take(&mut op.segments));
            self.complete(op, Some(Err(DeviceErrorKind::Gone)));
        }
        for op in waiting {
            self.complete(op, Some(Err(DeviceErrorKind::Gone)));
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

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let in_kernel = self.table.len() - self.free.len();
        f.debug_struct("State")
            .field("in_kernel", &in_kernel)
            .field("closing", &self.closing)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.transfer.fmt(f)
    }
}
