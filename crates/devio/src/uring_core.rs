//! The operations of a ring: which the kernel has, which wait for a slot, and how they end.

use crate::file::RawFile;
use crate::queue::RankQueue;
use crate::ticket::{Promise, Ticket, ticket};
use crate::transfer::Transfer;
use crate::uring_ring::{Pusher, Reaper, Ring, Segments, WAKE};
use crate::{Completion, DeviceErrorKind, IoOp};
use parking_lot::Mutex;
use std::io;
use std::time::Duration;

/// The number of consecutive refused waits after which the ring is given up (the pauses between them add up
/// to several seconds).
const REFUSALS_MAX: u32 = 200;

/// See the module.
#[derive(Debug)]
pub(crate) struct UringCore {
    operations: Mutex<Operations>,
    pub(crate) ring: Ring,
    pub(crate) file: RawFile,
}

struct Operations {
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

impl Pass {
    /// The pass of a new device.
    pub(crate) fn new() -> Self {
        Self { reaper: Reaper::new(), results: Vec::new(), ended: Ended::new() }
    }
}

impl Operations {
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

impl UringCore {
    /// At most `depth` operations are with the kernel at once.
    pub(crate) fn new(ring: Ring, file: RawFile, depth: u32) -> Self {
        let operations = Operations {
            pusher: Pusher::new(),
            table: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            backlog: RankQueue::default(),
            closing: false,
            dead: false,
        };
        Self { operations: Mutex::new(operations), ring, file }
    }

    pub(crate) fn start(&self, transfer: Transfer) -> Ticket<Completion> {
        let (promise, ticket) = ticket();
        let class = transfer.class;
        let op = Op { transfer, segments: Segments::default(), promise };
        let mut operations = self.operations.lock();
        if operations.dead {
            drop(operations);
            self.complete(op, Some(Err(DeviceErrorKind::Gone)));
            return ticket;
        }
        match operations.push(&self.ring, op) {
            None => {
                drop(operations);
                self.submit();
            }
            // Every operation that occupies a slot completes, and the reaper then takes the next one from
            // here.
            Some(op) => operations.backlog.push(class, op),
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
                    tracing::debug!(device = %self.file.meter.name, %error, "submission is deferred");
                    self.ring.wake();
                    return false;
                }
            }
        }
    }

    /// Reaps until the device is closing and everything is done; blocks while there is nothing to reap.
    pub(crate) fn serve(&self, mut pass: Pass) {
        let mut refusals = 0;
        self.ring.arm(&mut self.operations.lock().pusher);
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
    /// ended operations to [`UringCore::complete_all`], to run outside any lock.
    fn reap(&self, pass: &mut Pass) -> bool {
        self.ring.reap(&mut pass.reaper, &mut pass.results);
        self.digest(&mut pass.results, &mut pass.ended)
    }

    /// Like [`UringCore::reap`], but for a caller that does not block afterwards: submits what the pass
    /// queued and returns what has ended. Also says whether the kernel accepts submissions.
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

    /// Refuses further operations; [`UringCore::serve`] returns once none is left.
    pub(crate) fn close(&self, dead: bool) {
        let mut operations = self.operations.lock();
        operations.closing = true;
        operations.dead |= dead;
        drop(operations);
        self.ring.wake();
    }

    /// Processes completions, and queues retries and the backlog; returns whether the device is closing and
    /// everything is done.
    fn digest(&self, results: &mut Vec<(u64, i32)>, ended: &mut Ended) -> bool {
        let mut operations = self.operations.lock();
        for (slot, result) in results.drain(..) {
            if slot == WAKE {
                self.ring.awake();
                self.ring.arm(&mut operations.pusher);
            } else if let Some(op) = operations.table.get_mut(slot as usize).and_then(Option::take) {
                operations.free.push(slot as u32);
                self.digest_one(&mut operations, op, result, ended);
            }
        }
        while !operations.free.is_empty() {
            let Some(op) = operations.backlog.pop() else { break };
            if op.transfer.spot.op == IoOp::Read && op.promise.is_abandoned() {
                ended.push((op, None));
                continue;
            }
            if let Some(op) = operations.push(&self.ring, op) {
                operations.backlog.push(op.transfer.class, op);
                break;
            }
        }
        operations.closing && operations.is_idle()
    }

    fn digest_one(&self, operations: &mut Operations, mut op: Op, result: i32, ended: &mut Ended) {
        let answer = u64::try_from(result).map_err(|_| -result);
        match self.file.answer(&mut op.transfer, answer) {
            Some(result) => ended.push((op, Some(result))),
            None => {
                if let Some(op) = operations.push(&self.ring, op) {
                    operations.backlog.push(op.transfer.class, op);
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
        tracing::error!(device = %self.file.meter.name, %error, "io_uring has stopped working; the device is gone");
        let mut operations = self.operations.lock();
        operations.dead = true;
        let with_kernel: Vec<Op> = operations.table.iter_mut().filter_map(Option::take).collect();
        let waiting: Vec<Op> = std::iter::from_fn(|| operations.backlog.pop()).collect();
        drop(operations);
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

impl std::fmt::Debug for Operations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let in_kernel = self.table.len() - self.free.len();
        f.debug_struct("Operations")
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
