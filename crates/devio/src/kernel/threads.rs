//! The fallback backend: positioned vectored system calls on a few threads of the device.
//!
//! The device starts threads as needed up to a bound. They wait on a condition variable while there is
//! nothing to do, and end with the device, after its last operation. Operations wait in order of class; the
//! queue holds callers' buffers, so the callers' memory bounds it.

use crate::handover::ticket::{Promise, Ticket, ticket};
use crate::kernel::file::{Issuer, RawFile};
use crate::kernel::queue::RankQueue;
use crate::kernel::transfer::Transfer;
use crate::{Completion, DeviceErrorKind, IoOp};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use rustix::io::{ReadWriteFlags, preadv, pwritev, pwritev2};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Serves a file by threads. See the module.
#[derive(Debug)]
pub(crate) struct ThreadPool(Arc<Workers>);

/// What the threads share.
#[derive(Debug)]
struct Workers {
    file: Arc<RawFile>,
    threads_max: usize,
    jobs: Mutex<Jobs>,
    work: Condvar,
}

#[derive(Debug, Default)]
struct Jobs {
    queue: RankQueue<Job>,
    waiting: usize,
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    closing: bool,
}

/// An operation that waits for a thread.
pub(crate) struct Job {
    pub(crate) transfer: Transfer,
    pub(crate) promise: Promise<Completion>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.transfer.fmt(f)
    }
}

impl ThreadPool {
    pub(crate) fn new(file: Arc<RawFile>, threads_max: u32) -> Self {
        let threads_max = threads_max.clamp(1, 256) as usize;
        Self(Arc::new(Workers { file, threads_max, jobs: Mutex::default(), work: Condvar::new() }))
    }

    /// Adds `job`. If there is no thread and none can be started, everything that waits fails: a later
    /// operation tries again.
    pub(crate) fn enqueue(&self, job: Job) {
        let mut jobs = self.0.jobs.lock();
        jobs.queue.push(job.transfer.class, job);
        jobs.waiting += 1;
        let mut refused = None;
        // One thread per waiting job until the bound: a job behind a slow one would otherwise wait though
        // the device could serve both.
        if jobs.idle < jobs.waiting && jobs.threads.len() < self.0.threads_max {
            // With at least one thread alive the job waits for it; with none it would wait for ever.
            refused = self.spawn(&mut jobs).err().filter(|_| jobs.threads.is_empty());
        }
        let Some(error) = refused else {
            drop(jobs);
            self.0.work.notify_one();
            return;
        };
        let failed: Vec<Job> = std::iter::from_fn(|| jobs.queue.pop()).collect();
        jobs.waiting = 0;
        // A completion may drop the device's last handle, which takes the lock.
        drop(jobs);
        let error = Arc::new(error);
        for Job { transfer, promise } in failed {
            let kind = DeviceErrorKind::NoThread(Arc::clone(&error));
            promise.complete(self.0.file.finish(transfer, Err(kind)));
        }
    }

    fn spawn(&self, jobs: &mut Jobs) -> io::Result<()> {
        let workers = Arc::clone(&self.0);
        let started = std::thread::Builder::new().name("pagetier-io".into()).spawn(move || workers.serve());
        jobs.threads.push(started.inspect_err(|error| {
            tracing::warn!(device = %self.0.file.meter.name, %error, "cannot start an I/O thread");
        })?);
        Ok(())
    }
}

impl Issuer for ThreadPool {
    fn backend(&self) -> &'static str {
        "threads"
    }

    fn file(&self) -> &RawFile {
        &self.0.file
    }

    fn start(&self, transfer: Transfer) -> Ticket<Completion> {
        let (promise, ticket) = ticket();
        self.enqueue(Job { transfer, promise });
        ticket
    }
}

impl Workers {
    fn serve(&self) {
        while let Some(job) = self.next() {
            let Job { mut transfer, promise } = job;
            // Not for a write: a dropped future does not stop it.
            if transfer.spot.op == IoOp::Read && promise.is_abandoned() {
                promise.complete(self.file.abandon(transfer));
                continue;
            }
            let result = self.carry_out(&mut transfer);
            promise.complete(self.file.finish(transfer, result));
        }
    }

    fn next(&self) -> Option<Job> {
        let mut jobs = self.jobs.lock();
        loop {
            // Before the look at `closing`: what was accepted is carried out.
            if let Some(job) = jobs.queue.pop() {
                jobs.waiting -= 1;
                return Some(job);
            }
            if jobs.closing {
                return None;
            }
            jobs.idle += 1;
            self.work.wait(&mut jobs);
            jobs.idle -= 1;
        }
    }

    fn carry_out(&self, transfer: &mut Transfer) -> Result<(), DeviceErrorKind> {
        loop {
            let answer = self.issue(transfer).map_err(|errno| errno.raw_os_error());
            if let Some(result) = self.file.answer(transfer, answer) {
                return result;
            }
        }
    }

    fn issue(&self, transfer: &mut Transfer) -> rustix::io::Result<u64> {
        let fd = &self.file.fd;
        let (spot, at, whole) = (transfer.spot, transfer.position(), transfer.whole);
        match spot.op {
            // Not `fsync`: of the metadata only the size matters, which `fdatasync` makes durable too.
            IoOp::Flush => fdatasync(fd).map(|()| 0),
            IoOp::Discard => {
                // With the size kept: a hole at the end must not shorten the file.
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(fd, flags, spot.offset, spot.len).map(|()| 0)
            }
            IoOp::Write => {
                let mut slices = Vec::new();
                transfer.rest(|buf, from, to| slices.push(IoSlice::new(&buf.as_slice()[from..to])));
                match whole {
                    true => {
                        pwritev2(fd, &slices, at, ReadWriteFlags::from_bits_retain(libc::RWF_ATOMIC as u32))
                    }
                    false => pwritev(fd, &slices, at),
                }
                .map(|n| n as u64)
            }
            IoOp::Read | IoOp::Grow | IoOp::Open => {
                let mut slices = Vec::new();
                transfer
                    .rest(|buf, from, to| slices.push(IoSliceMut::new(&mut buf.as_mut_slice()[from..to])));
                preadv(fd, &mut slices, at).map(|n| n as u64)
            }
        }
    }
}

impl ThreadPool {
    /// Waits until every operation is finished, and ends the threads. An operation that is added later gets a
    /// thread of its own, which ends after it.
    pub(crate) fn close(&self) {
        let threads = {
            let mut jobs = self.0.jobs.lock();
            jobs.closing = true;
            std::mem::take(&mut jobs.threads)
        };
        // All of them: each has to see `closing` for itself.
        self.0.work.notify_all();
        for thread in threads {
            // A completion may drop the last handle on one of these threads; that thread ends by itself.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!(device = %self.0.file.meter.name, "an I/O thread panicked");
            }
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        if self.0.file.owner.is_here() {
            self.close();
        } else {
            // The threads, and what they were doing, exist in the parent process alone.
            std::mem::forget(Arc::clone(&self.0));
        }
    }
}
