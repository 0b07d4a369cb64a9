//! The fallback backend: positioned vectored system calls on a few threads of the device.
//!
//! The device starts threads as needed up to a bound. They wait on a condition variable while there is
//! nothing to do, and end with the device, after its last operation. Operations wait in order of class; the
//! queue holds callers' buffers, so the callers' memory bounds it.

use crate::device::IoBufs;
use crate::file::RawFile;
use crate::queue::RankQueue;
use crate::ticket::{Promise, ticket};
use crate::transfer::Transfer;
use crate::{
    Completion, Device, DeviceError, DeviceErrorKind, DeviceStats, IoClass, IoFuture, IoOp, Occupancy,
    RecentCosts,
};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use rustix::io::{preadv, pwritev};
use std::future::{Future, ready};
use std::io::{IoSlice, IoSliceMut};
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A file served by threads. See the module.
#[derive(Debug)]
pub(crate) struct ThreadPoolDevice {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    file: RawFile,
    threads_max: usize,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: RankQueue<Job>,
    waiting: usize,
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    closing: bool,
}

struct Job {
    transfer: Transfer,
    promise: Promise<Completion>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.transfer.fmt(f)
    }
}

impl ThreadPoolDevice {
    pub(crate) fn new(file: RawFile, threads_max: u32) -> Self {
        let threads_max = threads_max.clamp(1, 256) as usize;
        Self { shared: Arc::new(Shared { file, threads_max, state: Mutex::default(), work: Condvar::new() }) }
    }

    fn start(&self, transfer: Transfer) -> impl Future<Output = Completion> + Send + use<> {
        let (promise, ticket) = ticket();
        let class = transfer.class;
        let mut state = self.shared.state.lock();
        state.queue.push(class, Job { transfer, promise });
        state.waiting += 1;
        if state.idle < state.waiting && state.threads.len() < self.shared.threads_max {
            self.spawn(&mut state);
        }
        if state.threads.is_empty() {
            // No thread could be started: fail all waiting operations.
            while let Some(job) = state.queue.pop() {
                state.waiting -= 1;
                let completion = self.shared.file.finish(job.transfer, Err(DeviceErrorKind::Gone));
                job.promise.complete(completion);
            }
        }
        drop(state);
        self.shared.work.notify_one();
        ticket
    }

    fn spawn(&self, state: &mut State) {
        let shared = Arc::clone(&self.shared);
        match std::thread::Builder::new().name("pagetier-io".into()).spawn(move || shared.serve()) {
            Ok(thread) => state.threads.push(thread),
            Err(error) => {
                tracing::warn!(device = %self.shared.file.name, %error, "cannot start an I/O thread")
            }
        }
    }

    fn start_or(&self, prepared: Result<Transfer, Completion>) -> IoFuture {
        match prepared {
            Ok(transfer) => Box::pin(self.start(transfer)),
            Err(completion) => Box::pin(ready(completion)),
        }
    }
}

impl Shared {
    fn serve(&self) {
        while let Some(job) = self.next() {
            let Job { mut transfer, promise } = job;
            if transfer.spot.op == IoOp::Read && promise.is_abandoned() {
                promise.complete(self.file.abandon(transfer));
                continue;
            }
            let result = self.carry_out(&mut transfer);
            promise.complete(self.file.finish(transfer, result));
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.queue.pop() {
                state.waiting -= 1;
                return Some(job);
            }
            if state.closing {
                return None;
            }
            state.idle += 1;
            self.work.wait(&mut state);
            state.idle -= 1;
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
        let (spot, at) = (transfer.spot, transfer.position());
        match spot.op {
            IoOp::Flush => fdatasync(fd).map(|()| 0),
            IoOp::Discard => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(fd, flags, spot.offset, spot.len).map(|()| 0)
            }
            IoOp::Write => {
                let mut slices = Vec::new();
                transfer.rest(|buf, from, to| slices.push(IoSlice::new(&buf.as_slice()[from..to])));
                pwritev(fd, &slices, at).map(|n| n as u64)
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

impl Drop for ThreadPoolDevice {
    fn drop(&mut self) {
        let threads = {
            let mut state = self.shared.state.lock();
            state.closing = true;
            std::mem::take(&mut state.threads)
        };
        self.shared.work.notify_all();
        for thread in threads {
            // A completion may drop the last handle on one of these threads; that thread ends by itself.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!(device = %self.shared.file.name, "an I/O thread panicked");
            }
        }
    }
}

impl Device for ThreadPoolDevice {
    fn read(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        self.start_or(self.shared.file.prepare(IoOp::Read, offset, bufs, class))
    }

    fn write(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        self.start_or(self.shared.file.prepare(IoOp::Write, offset, bufs, class))
    }

    fn flush(&self, class: IoClass) -> Pin<Box<dyn Future<Output = Result<(), DeviceError>> + Send>> {
        let ticket = self.start(self.shared.file.prepare_flush(class));
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
                let ticket = self.start(transfer);
                Box::pin(async move { ticket.await.result })
            }
            Err(error) => Box::pin(ready(Err(error))),
        }
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
        "threads"
    }

    fn name(&self) -> &str {
        &self.shared.file.name
    }
}
