//! The operations of a ring: which the kernel has, which wait for a slot, and how they end.

use crate::handover::ticket::{Promise, Ticket, ticket};
use crate::kernel::file::RawFile;
use crate::kernel::queue::RankQueue;
use crate::kernel::threads::{Job, ThreadPool};
use crate::kernel::transfer::Transfer;
use crate::kernel::uring::ring::{Pusher, Reaper, Ring, Segments, WAKE};
use crate::{Completion, DeviceErrorKind, IoOp};
use parking_lot::{Mutex, RwLock};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What it means that the kernel refuses a call on the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    /// Repeat the call.
    Interrupted,
    /// Repeat the call later: the cause passes.
    Temporary,
    /// No further call will succeed.
    Final,
}

/// The refusals of `io_uring_enter` that are not final. A final one is, for example, EPERM or ENOSYS after
/// the process has installed a filter of system calls, or EBADF after it has closed descriptors that are not
/// its.
const REFUSALS: [(i32, Refusal); 5] = [
    (libc::EINTR, Refusal::Interrupted),
    // No memory for a request.
    (libc::EAGAIN, Refusal::Temporary),
    (libc::ENOMEM, Refusal::Temporary),
    (libc::ENOBUFS, Refusal::Temporary),
    // Completions must be reaped first.
    (libc::EBUSY, Refusal::Temporary),
];

fn refusal(error: &io::Error) -> Refusal {
    let of = |(errno, _): &&(i32, Refusal)| error.raw_os_error() == Some(*errno);
    REFUSALS.iter().find(of).map_or(Refusal::Final, |(_, refusal)| *refusal)
}

/// The longest pause between two attempts, in milliseconds. What the kernel has taken completes meanwhile.
const PAUSE_MS_MAX: u32 = if cfg!(test) { 5 } else { 50 };

/// The number of consecutive refusals (some five seconds) after which a warning names the cause; the next one
/// follows after twice as many.
const WARN_AFTER: u32 = 128;

/// The number of consecutive refusals (a minute) after which the threads take over all the same: they need
/// none of what the kernel lacks for a ring.
const REFUSALS_MAX: u32 = 1200;

/// See the module.
#[derive(Debug)]
pub(crate) struct UringCore {
    operations: Mutex<Operations>,
    pub(crate) ring: Ring,
    /// Whether the ring may be called. A submission holds it shared, so that none is under way once it is
    /// false.
    usable: RwLock<bool>,
    /// Serve the operations once the ring is unusable, and those for which the kernel has no thread.
    threads: OnceLock<ThreadPool>,
    threads_max: u32,
    pub(crate) file: Arc<RawFile>,
}

struct Operations {
    pusher: Pusher,
    /// The kernel's operations, by slot.
    table: Vec<Option<Op>>,
    free: Vec<u32>,
    /// The slots that were pushed and that the kernel may not have taken, in order.
    pushed: VecDeque<u64>,
    backlog: RankQueue<Op>,
    closing: bool,
    /// Who takes new operations.
    to: To,
}

#[derive(Clone, Debug)]
enum To {
    Ring,
    /// The ring is unusable: see [`UringCore::threads`].
    Threads,
    /// There is no thread to reap completions.
    None(Arc<io::Error>),
}

pub(crate) struct Op {
    transfer: Transfer,
    segments: Segments,
    promise: Promise<Completion>,
}

/// Operations to complete outside the lock.
pub(crate) type Ended = Vec<(Op, End)>;

/// How an operation leaves the ring.
pub(crate) enum End {
    Done(Result<(), DeviceErrorKind>),
    /// A read that was abandoned before it was issued.
    Abandoned,
    /// Its rest is for the threads.
    ToThreads,
}

/// The working memory of one reaping pass; its vector is empty between passes.
pub(crate) struct Pass {
    reaper: Reaper,
    results: Vec<(u64, i32)>,
}

impl Pass {
    /// The pass of a new device.
    pub(crate) fn new() -> Self {
        Self { reaper: Reaper::new(), results: Vec::new() }
    }
}

impl Operations {
    /// Passes `op` to the kernel; returns it when no slot is free.
    fn push(&mut self, ring: &Ring, mut op: Op) -> Option<Op> {
        // Slots bound what the kernel has: its completion queue then has room for every answer and drops
        // none.
        let Some(slot) = self.free.pop() else { return Some(op) };
        // SAFETY: the operation stays in the table until its completion is reaped, or until the kernel can no
        // longer take its entry (`take_untaken`), and no other code touches its buffers there.
        let untaken =
            unsafe { ring.push(&mut self.pusher, u64::from(slot), &mut op.transfer, &mut op.segments) };
        let Some(untaken) = untaken else {
            self.free.push(slot);
            return Some(op);
        };
        // After the push, which borrows the operation; before the lock is released, so before its
        // completion can be looked up. The structure moves, the buffers that the entry points to do not.
        self.table[slot as usize] = Some(op);
        self.note_pushed(u64::from(slot), untaken);
        None
    }

    fn arm(&mut self, ring: &Ring) {
        if let Some(untaken) = ring.arm(&mut self.pusher) {
            self.note_pushed(WAKE, untaken);
        }
    }

    fn note_pushed(&mut self, slot: u64, untaken: usize) {
        self.pushed.push_back(slot);
        // The kernel takes entries in order, so what it has taken are the first ones of the list.
        while self.pushed.len() > untaken {
            self.pushed.pop_front();
        }
    }

    /// Removes the operations that the kernel has not taken. The caller has made the ring unusable: nothing
    /// submits their entries any more.
    fn take_untaken(&mut self, ring: &Ring) -> Vec<Op> {
        // The last ones pushed. Those before them are with the kernel: to carry them out a second time
        // could overwrite newer data with older.
        let untaken = ring.untaken(&mut self.pusher).min(self.pushed.len());
        let slots = self.pushed.split_off(self.pushed.len() - untaken);
        let mut ops = Vec::new();
        for slot in slots {
            // `WAKE` has no place in the table: the wake-up poll is dropped.
            if let Some(op) = self.table.get_mut(slot as usize).and_then(Option::take) {
                self.free.push(slot as u32);
                ops.push(op);
            }
        }
        ops
    }

    fn is_idle(&self) -> bool {
        self.backlog.is_empty() && self.free.len() == self.table.len()
    }
}

impl UringCore {
    /// At most `depth` operations are with the kernel at once.
    pub(crate) fn new(ring: Ring, file: Arc<RawFile>, depth: u32, threads_max: u32) -> Self {
        let operations = Operations {
            pusher: Pusher::new(),
            table: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            pushed: VecDeque::new(),
            backlog: RankQueue::default(),
            closing: false,
            to: To::Ring,
        };
        let (operations, usable, threads) = (Mutex::new(operations), RwLock::new(true), OnceLock::new());
        Self { operations, ring, usable, threads, threads_max, file }
    }

    /// Starts a transfer. Also returns whether the ring has it, to be submitted.
    pub(crate) fn start(&self, transfer: Transfer) -> (Ticket<Completion>, bool) {
        let (promise, ticket) = ticket();
        let class = transfer.class;
        let op = Op { transfer, segments: Segments::default(), promise };
        let mut operations = self.operations.lock();
        let end = match &operations.to {
            To::Ring => None,
            To::Threads => Some(End::ToThreads),
            To::None(error) => Some(End::Done(Err(DeviceErrorKind::NoThread(Arc::clone(error))))),
        };
        if let Some(end) = end {
            // Outside the lock: the completion of a refused operation may run code of its waker.
            drop(operations);
            self.complete(op, end);
            return (ticket, false);
        }
        let refused = operations.push(&self.ring, op);
        let queued = refused.is_none();
        // Every operation that occupies a slot completes, and the reaper then takes the next one from here.
        refused.into_iter().for_each(|op| operations.backlog.push(class, op));
        (ticket, queued)
    }

    /// Submits what is queued. Returns false if the kernel does not accept everything; the reaper then
    /// retries.
    pub(crate) fn submit(&self) -> bool {
        // Held for the call: `take_over` waits for it, and can then trust the number of entries that the
        // kernel has not taken.
        let usable = self.usable.read();
        if !*usable {
            return true;
        }
        loop {
            match self.ring.submit() {
                Ok(_) => return true,
                Err(error) if refusal(&error) == Refusal::Interrupted => {}
                // Entries that were not accepted stay queued: the next call, by any thread, submits them.
                Err(error) => {
                    tracing::debug!(device = %self.file.meter.name, %error, "the kernel did not accept an operation yet; it is submitted again");
                    self.ring.wake();
                    return false;
                }
            }
        }
    }

    /// Reaps until the device is closing and everything is done; blocks while there is nothing to reap. If
    /// the ring becomes unusable, returns once everything that the kernel has taken is done.
    pub(crate) fn serve(&self, mut pass: Pass) {
        let (mut refusals, mut ended) = (0_u32, Ended::new());
        // Without this entry nothing could end a wait for completions while there are none to come.
        self.operations.lock().arm(&self.ring);
        loop {
            match self.wait(&pass) {
                // Only consecutive refusals count: one that passes after a second is no reason to give up
                // the ring.
                Ok(()) => refusals = 0,
                Err(error) => {
                    refusals = refusals.saturating_add(1);
                    self.refused(&error, refusals);
                }
            }
            // Even after a refusal: what the kernel has taken completes without a further call, and that
            // may free what it lacks.
            let (finished, _) = self.reap(&mut pass, &mut ended);
            self.complete_all(&mut ended);
            if finished {
                return;
            }
        }
    }

    /// Submits what is queued, and waits until there is something to reap, but only for a moment if the ring
    /// is unusable.
    fn wait(&self, pass: &Pass) -> io::Result<()> {
        // Not held during the wait: only this thread makes the ring unusable.
        if !self.is_usable() {
            std::thread::park_timeout(Duration::from_millis(1));
            return Ok(());
        }
        match self.ring.wait(&pass.reaper) {
            Err(error) if refusal(&error) != Refusal::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// Pauses after a refusal that may pass; makes the ring unusable after another one, or too many.
    #[cold]
    fn refused(&self, error: &io::Error, refusals: u32) {
        if refusal(error) == Refusal::Final || refusals >= REFUSALS_MAX {
            return self.take_over(error);
        }
        // At doubling intervals: one line per pause would fill the log of a machine that is in trouble
        // already.
        if refusals >= WARN_AFTER && refusals.is_power_of_two() {
            tracing::warn!(
                device = %self.file.meter.name, %error, refusals,
                "the kernel refuses I/O for lack of resources; trying again until it has them"
            );
        }
        std::thread::park_timeout(Duration::from_millis(u64::from(refusals.min(PAUSE_MS_MAX))));
    }

    /// Leaves everything that the kernel has not taken, and all later operations, to a pool of threads.
    #[cold]
    fn take_over(&self, error: &io::Error) {
        let device = &self.file.meter.name;
        tracing::error!(%device, %error, "io_uring cannot be used any more; a pool of threads takes over");
        // Waits for submissions under way. After this the kernel takes no further entry, so an operation that
        // it has not taken by then is carried out by the threads alone.
        *self.usable.write() = false;
        let mut operations = self.operations.lock();
        operations.to = To::Threads;
        let mut left = operations.take_untaken(&self.ring);
        left.extend(std::iter::from_fn(|| operations.backlog.pop()));
        drop(operations);
        left.into_iter().for_each(|op| self.complete(op, End::ToThreads));
    }

    /// Reaps what has completed so far; returns whether the device is closing and everything is done, and how
    /// many entries the kernel has not taken. Leaves ended operations to [`UringCore::complete_all`], to run
    /// outside any lock.
    fn reap(&self, pass: &mut Pass, ended: &mut Ended) -> (bool, usize) {
        self.ring.reap(&mut pass.reaper, &mut pass.results);
        self.digest(&mut pass.results, ended)
    }

    /// Like [`UringCore::reap`], but for a caller that does not block afterwards: submits what the pass
    /// queued. Returns whether the kernel accepts submissions.
    pub(crate) fn reap_now(&self, pass: &mut Pass, ended: &mut Ended) -> bool {
        // The announcement stays in the descriptor: the reactor hears of each completion, not of the value.
        let (_, untaken) = self.reap(pass, ended);
        // A pass queues retries and what waited for a slot, mostly nothing: that would be a call for nothing.
        untaken == 0 || self.submit()
    }

    pub(crate) fn complete_all(&self, ended: &mut Ended) {
        for (op, result) in ended.drain(..) {
            self.complete(op, result);
        }
    }

    /// Whether the ring serves the operations.
    pub(crate) fn is_usable(&self) -> bool {
        *self.usable.read()
    }

    /// Ends the device: [`UringCore::serve`] returns once no operation is left.
    pub(crate) fn close(&self) {
        self.operations.lock().closing = true;
        self.ring.wake();
    }

    /// Waits for what the threads have taken over, and ends them.
    pub(crate) fn end_threads(&self) {
        self.threads.get().into_iter().for_each(ThreadPool::close);
    }

    /// As [`UringCore::close`], and refuses further operations: no thread can be started to reap them.
    pub(crate) fn refuse(&self, error: io::Error) {
        self.operations.lock().to = To::None(Arc::new(error));
        self.close();
    }

    /// Processes completions, and queues retries and the backlog. Returns what [`UringCore::reap`] does.
    fn digest(&self, results: &mut Vec<(u64, i32)>, ended: &mut Ended) -> (bool, usize) {
        let mut operations = self.operations.lock();
        for (slot, result) in results.drain(..) {
            if slot == WAKE {
                self.ring.awake();
                // A poll fires once: queue the next one.
                operations.arm(&self.ring);
            } else if let Some(op) = operations.table.get_mut(slot as usize).and_then(Option::take) {
                // Free before the operation is digested, which may push its rest and needs a slot: its own
                // is certain.
                operations.free.push(slot as u32);
                self.digest_one(&mut operations, op, result, ended);
            }
        }
        while !operations.free.is_empty() {
            let Some(op) = operations.backlog.pop() else { break };
            // No task waits for the bytes, so the device is spared the read. A write is carried out all
            // the same: its caller was promised that a dropped future does not stop it.
            if op.transfer.spot.op == IoOp::Read && op.promise.is_abandoned() {
                ended.push((op, End::Abandoned));
                continue;
            }
            if let Some(op) = operations.push(&self.ring, op) {
                operations.backlog.push(op.transfer.class, op);
                break;
            }
        }
        // Idle means that the kernel has nothing of ours: only then may buffers, ring and file be freed.
        let finished = operations.is_idle() && (operations.closing || matches!(operations.to, To::Threads));
        (finished, self.ring.untaken(&mut operations.pusher))
    }

    fn digest_one(&self, operations: &mut Operations, mut op: Op, result: i32, ended: &mut Ended) {
        // The kernel answers with a count of bytes, or with a negative error number.
        let answer = u64::try_from(result).map_err(|_| -result);
        match self.file.answer(&mut op.transfer, answer) {
            // Cancelled each time: the kernel has no thread for it, which it needs for a flush, for example.
            Some(Err(_)) if answer == Err(libc::ECANCELED) => {
                op.transfer.begin_anew();
                ended.push((op, End::ToThreads));
            }
            Some(result) => ended.push((op, End::Done(result))),
            None if matches!(operations.to, To::Threads) => ended.push((op, End::ToThreads)),
            None => {
                if let Some(op) = operations.push(&self.ring, op) {
                    operations.backlog.push(op.transfer.class, op);
                }
            }
        }
    }

    fn complete(&self, op: Op, end: End) {
        let Op { transfer, promise, .. } = op;
        let completion = match end {
            End::Done(result) => self.file.finish(transfer, result),
            End::Abandoned => self.file.abandon(transfer),
            End::ToThreads => {
                let pool = || ThreadPool::new(Arc::clone(&self.file), self.threads_max);
                // Made on first use: a ring that works never starts a thread of this pool.
                return self.threads.get_or_init(pool).enqueue(Job { transfer, promise });
            }
        };
        promise.complete(completion);
    }
}

impl std::fmt::Debug for Operations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let in_kernel = self.table.len() - self.free.len();
        f.debug_struct("Operations")
            .field("in_kernel", &in_kernel)
            .field("closing", &self.closing)
            .field("to", &self.to)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.transfer.fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::device::IoBufs;
    use crate::{Device, IoBuf, IoClass, OpenOptions, Reap, open_file};
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    const PAGE: usize = 4096;
    const PAGES: u64 = 64;

    #[test]
    fn refusals_are_classified() {
        let of = |errno| refusal(&io::Error::from_raw_os_error(errno));
        assert_eq!(of(libc::EINTR), Refusal::Interrupted);
        for errno in [libc::EAGAIN, libc::EBUSY, libc::ENOMEM] {
            assert_eq!(of(errno), Refusal::Temporary);
        }
        for errno in [libc::EPERM, libc::ENOSYS, libc::EBADF, libc::EINVAL, libc::ENXIO] {
            assert_eq!(of(errno), Refusal::Final);
        }
    }

    type UringDevice = crate::kernel::file::FileDevice<crate::kernel::uring::Uring>;

    /// A device over a ring of its own; `None` without io_uring.
    fn uring(depth: u32) -> Option<(tempfile::TempDir, UringDevice)> {
        reaped_by(Reap::Thread, depth)
    }

    fn reaped_by(reap: Reap, depth: u32) -> Option<(tempfile::TempDir, UringDevice)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device");
        let options = OpenOptions { create: true, queue_depth: depth, threads: 3, ..OpenOptions::default() };
        open_file(&path, &options).unwrap().device.grow(PAGES * PAGE as u64).unwrap();
        let fd = std::fs::File::options().read(true).write(true).open(&path).unwrap().into();
        let file = Arc::new(RawFile::new(fd, "device".into(), 512, false, PAGES * PAGE as u64, None));
        let options = OpenOptions { reap, ..options };
        let uring = crate::kernel::uring::Uring::new(&file, &options).ok()?;
        let device = crate::kernel::file::FileDevice(Arc::new(uring));
        Some((folder, device))
    }

    fn wait<T>(mut future: std::pin::Pin<Box<dyn Future<Output = T> + Send>>) -> T {
        loop {
            match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(done) => return done,
                Poll::Pending => std::thread::park_timeout(Duration::from_micros(100)),
            }
        }
    }

    fn page(fill: u8) -> IoBufs {
        [IoBuf::copy_of(&[fill; PAGE])].into_iter().collect()
    }

    fn write_and_read_all(device: &impl Device) {
        let writes: Vec<_> =
            (0..PAGES).map(|no| device.write(no * PAGE as u64, page(no as u8), IoClass::Clean)).collect();
        writes.into_iter().for_each(|write| wait(write).result.unwrap());
        let reads: Vec<_> =
            (0..PAGES).map(|no| device.read(no * PAGE as u64, page(255), IoClass::Demand)).collect();
        for (no, read) in reads.into_iter().enumerate() {
            let read = wait(read);
            read.result.unwrap();
            assert!(read.bufs[0].as_slice() == [no as u8; PAGE], "page {no}: {}", read.bufs[0].as_slice()[0]);
        }
        wait(device.flush(IoClass::Meta)).unwrap();
    }

    #[test]
    fn operations_that_are_started_together_reach_the_kernel_at_the_end() {
        // While the runtime does not run, no task of it submits.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let Some((_folder, device)) = reaped_by(Reap::Reactor, 8) else { return };
        let core = &device.0.core;
        let untaken = || core.ring.untaken(&mut core.operations.lock().pusher);
        let writes = crate::together(|| {
            let write = |no| device.write(no * PAGE as u64, page(no as u8), IoClass::Clean);
            let writes: Vec<_> = crate::together(|| (0..PAGES).map(write).collect());
            assert!(untaken() > 0, "an inner call is part of the outer one");
            writes
        });
        assert_eq!(untaken(), 0);
        for write in writes {
            runtime.block_on(write).result.unwrap();
        }
    }

    #[test]
    fn a_ring_that_the_kernel_refuses_for_a_while_goes_on() {
        let Some((_folder, device)) = uring(8) else { return };
        for errno in [libc::EAGAIN, libc::EBUSY] {
            // More refusals than the ring used to survive, at pauses of up to 50 ms.
            device.0.refused().set(errno, 250);
            write_and_read_all(&device);
            assert_eq!(device.0.refused().calls(), 0);
        }
        assert_eq!(device.backend(), "uring");
    }

    #[test]
    fn threads_take_over_from_a_ring_that_is_refused_for_ever() {
        let Some((_folder, device)) = uring(8) else { return };
        device.0.refused().set(libc::EAGAIN, u64::MAX);
        write_and_read_all(&device);
        assert_eq!(device.backend(), "threads");
    }

    #[test]
    fn threads_take_over_from_a_ring_that_cannot_be_used_any_more() {
        for round in 0..20 {
            let Some((_folder, device)) = uring(8) else { return };
            let writes: Vec<_> =
                (0..PAGES).map(|no| device.write(no * PAGE as u64, page(7), IoClass::Clean)).collect();
            // In some rounds while the kernel has taken some of them.
            std::thread::park_timeout(Duration::from_micros(50 * round));
            device.0.refused().set(libc::EPERM, u64::MAX);
            // One write of a page at a time: the device does not order them.
            writes.into_iter().for_each(|write| wait(write).result.unwrap());
            // A write that was carried out again after its completion would show in these.
            write_and_read_all(&device);
            assert_eq!(device.backend(), "threads");
            assert_eq!(device.occupancy().in_flight(), 0);
        }
    }

    #[test]
    fn a_dropped_device_has_finished_what_the_threads_took_over() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        for _ in 0..10 {
            let Some((_folder, device)) = reaped_by(Reap::Reactor, 8) else { return };
            device.0.refused().set(libc::EPERM, u64::MAX);
            let writes: Vec<_> =
                (0..PAGES).map(|no| device.write(no * PAGE as u64, page(7), IoClass::Clean)).collect();
            // The runtime does not run, so its task keeps its part of the device.
            drop(device);
            for mut write in writes {
                let done = write.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert!(matches!(done, Poll::Ready(done) if done.result.is_ok()), "still in flight");
            }
        }
    }
}
