//! One flush for many waiters.
//!
//! Flushes of a device are numbered. A completed write is durable once a flush that *started* afterwards has
//! completed: [`GroupFlush::next`] returns that flush's number, and [`GroupFlush::cover`] waits for it,
//! starting it if none runs. A flush runs in a task of its own, so its result is kept even if every waiter is
//! dropped. A failed flush is final: what it should have made durable may be lost, so nothing may rely on it.
//! The failure is noted durably ([`Remember`]) before any waiter learns of it (I14).

use crate::exec::unflushed::UnflushedHomes;
use crate::protocol::flushes::FlushNumber;
use crate::remember::{Flushed, Remember, Unproved};
use crate::seam::Seam;
use pagetier_devio::listen;
use pagetier_devio::{DeviceError, DeviceErrorKind, IoClass, IoOp, SharedDevice};
use parking_lot::Mutex;
use std::any::Any;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// Where a failed flush is noted before anything else learns of it (I14).
pub(crate) struct Failures {
    pub(crate) remember: Arc<dyn Remember>,
    pub(crate) unflushed: Arc<UnflushedHomes>,
    pub(crate) seam: Seam,
}

impl Failures {
    /// Notes the failure of a flush of `which`. Returns the error to report, which also says so if the note
    /// could not be made.
    async fn note(&self, which: Flushed, error: DeviceError) -> DeviceError {
        // The store was dropped before the flush began, so nothing failed.
        if matches!(error.kind, DeviceErrorKind::Closed) {
            return error;
        }
        let unproved = match which {
            Flushed::Hdd => Unproved { hdd: true, ssd: false, homes: self.unflushed.fail(&error) },
            Flushed::Ssd => Unproved { hdd: false, ssd: true, homes: Vec::new() },
        };
        match self.remember.note(&unproved).await {
            Ok(()) => error,
            Err(cause) => {
                // The next opening will know nothing of the failure, and would trust pages that are in the
                // operating system's cache alone. Only a reboot empties that cache, so the caller must tell
                // the operator.
                tracing::error!(
                    %error,
                    %cause,
                    "a flush failed and could not be recorded in the manifest: reboot before you open the store again"
                );
                let what = format!(
                    "{}; the flush failed, which could not be recorded in the manifest ({cause}): reboot before you \
                     open the store again",
                    error.kind
                );
                DeviceError { kind: DeviceErrorKind::Io(Arc::new(io::Error::other(what))), ..error }
            }
        }
    }
}

impl std::fmt::Debug for Failures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Failures").finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Numbers {
    started: u64,
    completed: u64,
    running: bool,
    failed: Option<DeviceError>,
}

/// The flushes of one device.
#[derive(Debug)]
pub(crate) struct GroupFlush<N>(Arc<Shared>, PhantomData<N>);

#[derive(Debug)]
struct Shared {
    device: SharedDevice,
    which: Flushed,
    failures: Arc<Failures>,
    /// The runtime on which flushes run.
    runtime: Handle,
    numbers: Mutex<Numbers>,
    over: Notify,
}

enum Next {
    Run(u64),
    Wait,
    Done(Result<u64, DeviceError>),
}

impl<N: FlushNumber> GroupFlush<N> {
    pub(crate) fn new(
        device: SharedDevice,
        which: Flushed,
        failures: &Arc<Failures>,
        runtime: &Handle,
    ) -> Self {
        let (failures, runtime) = (Arc::clone(failures), runtime.clone());
        let (numbers, over) = (Mutex::default(), Notify::new());
        Self(Arc::new(Shared { device, which, failures, runtime, numbers, over }), PhantomData)
    }

    /// The first flush that will cover every write completed so far.
    pub(crate) fn next(&self) -> N {
        N::nth(self.0.numbers.lock().started + 1)
    }

    /// The newest completed flush.
    pub(crate) fn completed(&self) -> N {
        N::nth(self.0.numbers.lock().completed)
    }

    /// The failure after which no flush counts.
    pub(crate) fn failed(&self) -> Option<DeviceError> {
        self.0.numbers.lock().failed.clone()
    }

    /// The same flushes, numbered on, without the failure: what the failed one covered must be written again
    /// first.
    pub(crate) fn without_failure(&self) -> Self {
        let Shared { device, which, failures, runtime, numbers, .. } = &*self.0;
        let (started, completed) = {
            let numbers = numbers.lock();
            (numbers.started, numbers.completed)
        };
        let fresh = Self::new(SharedDevice::clone(device), *which, failures, runtime);
        *fresh.0.numbers.lock() = Numbers { started, completed, ..Numbers::default() };
        fresh
    }

    /// Waits until flush `number` (or a later one) has completed. Returns the newest completed flush.
    /// Cancel-safe: a started flush continues, and its result counts for every later caller.
    pub(crate) async fn cover(&self, number: N) -> Result<N, DeviceError> {
        loop {
            listen!(over = self.0.over);
            match self.0.turn(number.get()) {
                Next::Done(result) => return result.map(N::nth),
                Next::Wait => over.await,
                Next::Run(mine) => self.run(mine).await,
            }
        }
    }

    /// Starts flush `number`. One flush runs at a time, so that it serves all waiters. The device's operation
    /// begins here instead of in the flush's task, so a dropped store begins none.
    async fn run(&self, number: u64) {
        // If the store is dropped while the flush runs, a failure must still reach the manifest, so its locks
        // stay held until the flush has ended (I18).
        let hold = self.0.failures.remember.hold();
        let running = Running { shared: Arc::clone(&self.0), number, outcome: None, _hold: hold };
        let flush = self.0.device.flush(IoClass::Meta);
        let run = async move { running.end(flush.await).await };
        self.0.failures.seam.run_flush(&self.0.runtime, run).await;
    }
}

impl Shared {
    fn turn(&self, number: u64) -> Next {
        let mut n = self.numbers.lock();
        // Look at this before the failure: what an earlier flush made durable stays so, whatever failed
        // later.
        if n.completed >= number {
            return Next::Done(Ok(n.completed));
        }
        if let Some(error) = &n.failed {
            return Next::Done(Err(error.clone()));
        }
        if n.running {
            return Next::Wait;
        }
        n.running = true;
        n.started += 1;
        Next::Run(n.started)
    }

    /// The error of a flush whose result is unknown.
    fn unknown(&self) -> DeviceError {
        let why = io::Error::other("the runtime ended during the flush, so its outcome is unknown");
        let (device, kind) = (Arc::from(self.device.name()), DeviceErrorKind::Io(Arc::new(why)));
        DeviceError { device, op: IoOp::Flush, offset: 0, len: 0, kind }
    }
}

struct Running {
    shared: Arc<Shared>,
    number: u64,
    outcome: Option<Result<(), DeviceError>>,
    _hold: Option<Box<dyn Any + Send>>,
}

impl Running {
    async fn end(mut self, result: Result<(), DeviceError>) {
        let Shared { failures, which, .. } = &*self.shared;
        let outcome = match result {
            Ok(()) => Ok(()),
            Err(error) => Err(failures.note(*which, error).await),
        };
        self.outcome = Some(outcome);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut n = self.shared.numbers.lock();
        n.running = false;
        match self.outcome.take() {
            Some(Ok(())) => n.completed = self.number,
            Some(Err(error)) => n.failed = Some(error),
            // The task was cut short, so whether the flush failed is unknown. Counting it as good could break
            // a promise (I14).
            None => n.failed = self.shared.failures.seam.unfinished_flush(self.shared.unknown()),
        }
        drop(n);
        self.shared.over.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::flushes::HddFlush;
    use crate::remember::RememberInMemory;
    use pagetier_devio::{Fault, FaultEffect, SimDevice, SimPower};
    use std::time::Duration;
    use tokio::time::{sleep, timeout};

    fn slow_device() -> Arc<SimDevice> {
        let device = SimDevice::new("hdd", 1 << 20, 1, &SimPower::new());
        device.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(1))).on(IoOp::Flush).times(1));
        Arc::new(device)
    }

    fn flushes(device: &Arc<SimDevice>) -> (Arc<RememberInMemory>, GroupFlush<HddFlush>) {
        let remember = Arc::new(RememberInMemory::default());
        let failures = Arc::new(Failures {
            remember: Arc::clone(&remember) as Arc<dyn Remember>,
            unflushed: Arc::default(),
            seam: Seam::default(),
        });
        let device = Arc::clone(device) as SharedDevice;
        (remember, GroupFlush::new(device, Flushed::Hdd, &failures, &Handle::current()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_whose_callers_are_dropped_still_counts() {
        let device = slow_device();
        let (_, flush) = flushes(&device);
        timeout(Duration::from_millis(10), flush.cover(HddFlush(1))).await.expect_err("it takes a second");
        sleep(Duration::from_secs(2)).await;
        assert_eq!(flush.completed(), HddFlush(1));
        let ops = device.ops();
        assert_eq!(flush.cover(HddFlush(1)).await.expect("covered"), HddFlush(1));
        assert_eq!(device.ops(), ops, "no second flush");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_flush_whose_callers_are_dropped_fails_all_that_follow_and_is_noted() {
        let device = Arc::new(
            SimDevice::new("hdd", 1 << 20, 1, &SimPower::new()).with_latency(Duration::from_secs(1)),
        );
        device.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
        let (remember, flush) = flushes(&device);
        timeout(Duration::from_nanos(1), flush.cover(HddFlush(1))).await.expect_err("it takes longer");
        sleep(Duration::from_secs(2)).await;
        assert!(remember.recall().hdd);
        assert!(matches!(flush.cover(HddFlush(1)).await, Err(DeviceError { op: IoOp::Flush, .. })));
        assert!(
            flush.cover(HddFlush(2)).await.is_err(),
            "the next flush would succeed without what the first one lost"
        );
    }

    #[test]
    fn a_flush_that_ended_with_its_runtime_counts_as_failed() {
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let (first, second) = (runtime().expect("a runtime"), runtime().expect("a runtime"));
        let device = slow_device();
        let flush = first.block_on(async {
            let (_, flush) = flushes(&device);
            timeout(Duration::from_millis(10), flush.cover(HddFlush(1)))
                .await
                .expect_err("it takes a second");
            flush
        });
        drop(first);
        assert!(second.block_on(flush.cover(HddFlush(2))).is_err());
    }
}
