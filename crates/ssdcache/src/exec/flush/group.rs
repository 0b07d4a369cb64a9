//! One flush for many waiters.
//!
//! Flushes of a device are numbered. A completed write is durable once a flush that *started* afterwards has
//! completed: [`GroupFlush::next`] returns that flush's number, and [`GroupFlush::flush_if_needed`] waits for
//! it, starting it if none runs. A flush runs in a task of its own, so its result is kept even if all waiters
//! are dropped. A failed flush is final: what it should have made durable may be lost, so nothing may rely on
//! it. The failure is noted durably ([`Remember`]) before any waiter learns of it (I14).
//!
//! A flush that would have nothing to make durable gets its number, but does not reach the device (I42), so a
//! `sync` of nothing costs no I/O.

use crate::exec::flush::unflushed::UnflushedHomes;
use crate::protocol::flushes::FlushNumber;
use crate::remember::{Flushed, Remember, Unverified};
use pagetier_devio::listen;
use pagetier_devio::task;
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
    /// The HDD's name, if the ring is there.
    pub(crate) ring_on: Option<Arc<str>>,
}

impl Failures {
    /// Notes the failure of a flush of `which`. Returns the error to report, which also says so if the note
    /// could not be made.
    async fn note(&self, which: Flushed, error: DeviceError) -> DeviceError {
        // The store was dropped, or lost its volume, before the flush began, so nothing failed.
        if matches!(error.kind, DeviceErrorKind::Closed | DeviceErrorKind::Fenced) {
            return error;
        }
        let unverified = match which {
            Flushed::Hdd => Unverified { hdd: true, ssd: false, homes: self.unflushed.fail(&error) },
            // With the ring on the HDD a flush of both may have failed there, and lost homes, too.
            Flushed::Ssd if self.ring_on.as_ref() == Some(&error.device) => {
                Unverified { hdd: true, ssd: true, homes: self.unflushed.fail(&error) }
            }
            Flushed::Ssd => Unverified { hdd: false, ssd: true, homes: Vec::new() },
        };
        match self.remember.note(&unverified).await {
            Ok(()) => error,
            Err(cause) => {
                // The next open will know nothing of the failure, and would trust pages that are in the
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
    /// [`Device::settled`](pagetier_devio::Device::settled) when the newest flush that has completed began:
    /// while the device still says the same, all of its changes are durable. `None`: unknown.
    covered: Option<u64>,
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
    Run(Begun),
    Wait,
    Done(Result<u64, DeviceError>),
}

/// A flush that is about to start.
#[derive(Clone, Copy, Debug)]
struct Begun {
    number: u64,
    /// What it will cover: see [`Numbers::covered`].
    covers: Option<u64>,
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
    /// first. The next one reaches the device, whatever an earlier one covered.
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

    /// Sends the next flush to the device even if it has nothing to make durable: its success shows that the
    /// device still answers.
    pub(crate) fn forget_covered(&self) {
        self.0.numbers.lock().covered = None;
    }

    /// Waits until flush `number` (or a later one) has completed; starts it if none runs. Returns the newest
    /// completed flush. Skips the device if the flush would have nothing to make durable (I42). Cancel-safe:
    /// a started flush continues, and its result counts for every later caller.
    pub(crate) async fn flush_if_needed(&self, number: N) -> Result<N, DeviceError> {
        self.flush(number, true).await
    }

    /// As [`GroupFlush::flush_if_needed`], but never skips the device: for the store's internal loops, which
    /// flush until an operation in flight has ended, and would spin if their flushes took no time.
    pub(crate) async fn flush_always(&self, number: N) -> Result<N, DeviceError> {
        self.flush(number, false).await
    }

    async fn flush(&self, number: N, may_skip: bool) -> Result<N, DeviceError> {
        loop {
            listen!(over = self.0.over);
            match self.0.turn(number.get(), may_skip) {
                Next::Done(result) => return result.map(N::nth),
                Next::Wait => over.await,
                Next::Run(begun) => self.run(begun),
            }
        }
    }

    /// Starts a flush. One flush runs at a time, so that it serves all waiters. The device's operation
    /// begins here instead of in the flush's task, so a dropped store begins none.
    fn run(&self, begun: Begun) {
        // If the store is dropped while the flush runs, a failure must still reach the manifest, so its locks
        // stay held until the flush has ended (I18).
        let hold = self.0.failures.remember.hold();
        let running = Running { shared: Arc::clone(&self.0), begun, outcome: None, _hold: hold };
        let flush = self.0.device.flush(IoClass::Meta);
        task::spawn(&self.0.runtime, async move { running.end(flush.await).await });
    }
}

impl Shared {
    fn turn(&self, number: u64, may_skip: bool) -> Next {
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
        n.started += 1;
        // Ask under the lock, and before the device's flush begins. A write that completes later may miss
        // both: it must wait for the next number, and the device then names another count. Earlier writes
        // are in this count, since each is counted before its caller sees that it has ended.
        let settled = self.device.settled();
        if may_skip && settled.is_some() && settled == n.covered {
            // The caller may have asked for more than the next flush: this ends all of them.
            n.started = n.started.max(number);
            n.completed = n.started;
            return Next::Done(Ok(n.completed));
        }
        n.running = true;
        Next::Run(Begun { number: n.started, covers: settled })
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
    begun: Begun,
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
        n.covered = None;
        match self.outcome.take() {
            Some(Ok(())) => {
                n.completed = self.begun.number;
                // The present count may be larger: a change that began meanwhile may have missed it (I42).
                n.covered = self.begun.covers;
            }
            Some(Err(error)) => n.failed = Some(error),
            // The task was cut short, so whether the flush failed is unknown. Counting it as good could break
            // a promise (I14).
            None => n.failed = Some(self.shared.unknown()),
        }
        drop(n);
        self.shared.over.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::flushes::{HddFlush, SsdFlush};
    use crate::remember::RememberInMemory;
    use pagetier_devio::{Device, Fence, IoBuf, IoBufs};
    use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};
    use std::time::Duration;
    use tokio::time::{sleep, timeout};

    fn slow_device() -> Arc<SimDevice> {
        let device = SimDevice::new("hdd", 1 << 20, 1, &SimPower::new());
        device.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(1))).on(IoOp::Flush).times(1));
        Arc::new(device)
    }

    fn flushes(device: &Arc<SimDevice>) -> (Arc<RememberInMemory>, GroupFlush<HddFlush>) {
        flushes_of(Arc::clone(device) as SharedDevice)
    }

    fn flushes_of(device: SharedDevice) -> (Arc<RememberInMemory>, GroupFlush<HddFlush>) {
        let remember = Arc::new(RememberInMemory::default());
        let failures = Arc::new(Failures {
            remember: Arc::clone(&remember) as Arc<dyn Remember>,
            unflushed: Arc::default(),
            ring_on: None,
        });
        (remember, GroupFlush::new(device, Flushed::Hdd, &failures, &Handle::current()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_whose_callers_are_dropped_still_counts() {
        let device = slow_device();
        let (_, flush) = flushes(&device);
        timeout(Duration::from_millis(10), flush.flush_if_needed(HddFlush(1)))
            .await
            .expect_err("it takes a second");
        sleep(Duration::from_secs(2)).await;
        assert_eq!(flush.completed(), HddFlush(1));
        let ops = device.ops();
        assert_eq!(flush.flush_if_needed(HddFlush(1)).await.expect("covered"), HddFlush(1));
        assert_eq!(device.ops(), ops, "no second flush");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_flush_whose_callers_are_dropped_fails_all_that_follow_and_is_noted() {
        let device = Arc::new(
            SimDevice::new("hdd", 1 << 20, 1, &SimPower::new()).with_latency(Duration::from_secs(1)),
        );
        device.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
        let (remember, flush) = flushes(&device);
        timeout(Duration::from_nanos(1), flush.flush_if_needed(HddFlush(1)))
            .await
            .expect_err("it takes longer");
        sleep(Duration::from_secs(2)).await;
        assert!(remember.recall().hdd);
        assert!(matches!(flush.flush_if_needed(HddFlush(1)).await, Err(DeviceError { op: IoOp::Flush, .. })));
        assert!(
            flush.flush_if_needed(HddFlush(2)).await.is_err(),
            "the next flush would succeed without what the first one lost"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_of_the_ssd_that_fails_on_the_hdd_is_noted_of_both() {
        for (ring_on, hdd) in [(None, false), (Some("ssd"), false), (Some("hdd"), true)] {
            let device = slow_device();
            device.clear_faults();
            device.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
            let remember = Arc::new(RememberInMemory::default());
            let failures = Failures {
                remember: Arc::clone(&remember) as Arc<dyn Remember>,
                unflushed: Arc::default(),
                ring_on: ring_on.map(Arc::from),
            };
            let (failures, runtime) = (Arc::new(failures), Handle::current());
            let flush = GroupFlush::<SsdFlush>::new(device, Flushed::Ssd, &failures, &runtime);
            flush.flush_if_needed(SsdFlush(1)).await.expect_err("it fails");
            let noted = remember.recall();
            assert_eq!((noted.ssd, noted.hdd), (true, hdd), "the ring is on {ring_on:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_that_another_owner_keeps_out_is_not_noted() {
        let device = slow_device();
        device.clear_faults();
        device.inject(Fault::new(FaultEffect::Fenced).on(IoOp::Flush).times(1));
        let (remember, flush) = flushes(&device);
        flush.flush_if_needed(HddFlush(1)).await.expect_err("refused");
        assert!(remember.recall().is_empty() && flush.failed().is_some());
    }

    #[test]
    fn a_flush_that_ended_with_its_runtime_counts_as_failed() {
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let (first, second) = (runtime().expect("a runtime"), runtime().expect("a runtime"));
        let device = slow_device();
        let flush = first.block_on(async {
            let (_, flush) = flushes(&device);
            timeout(Duration::from_millis(10), flush.flush_if_needed(HddFlush(1)))
                .await
                .expect_err("it takes a second");
            flush
        });
        drop(first);
        assert!(second.block_on(flush.flush_if_needed(HddFlush(2))).is_err());
    }

    /// A device whose changes are counted, as those of every store, and the device behind the fence.
    fn counted() -> (Arc<SimDevice>, SharedDevice) {
        let device = SimDevice::new("hdd", 1 << 20, 1, &SimPower::new()).with_latency(Duration::from_secs(1));
        let device = Arc::new(device);
        let fenced = Fence::default().guard(Arc::clone(&device) as SharedDevice);
        (device, fenced)
    }

    async fn write(device: &SharedDevice) {
        let page = IoBufs::from_iter([IoBuf::zeroed(4096)]);
        device.write(0, page, IoClass::Clean).await.result.expect("written");
    }

    /// Covers everything so far; returns the number of flushes that reached the device.
    async fn reaching(flush: &GroupFlush<HddFlush>, device: &SimDevice) -> u64 {
        let (before, next) = (device.stats().flush.ops, flush.next());
        assert_eq!(flush.flush_if_needed(next).await.expect("covered"), next);
        device.stats().flush.ops - before
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_of_nothing_does_not_reach_the_device() {
        let (device, fenced) = counted();
        let (_, flush) = flushes_of(Arc::clone(&fenced));
        assert_eq!(reaching(&flush, &device).await, 1, "what an earlier open wrote is not known");
        for changes in [0, 1] {
            if changes > 0 {
                write(&fenced).await;
                fenced.discard(0, 4096).await.expect("discarded");
            }
            assert_eq!(reaching(&flush, &device).await, changes);
            assert_eq!(reaching(&flush, &device).await, 0);
        }
        fenced.grow(2 << 20).expect("room");
        assert_eq!(reaching(&flush, &device).await, 1, "its size is flushed");
        fenced.cut(1 << 20).expect("cut");
        assert_eq!(reaching(&flush, &device).await, 1);
        assert_eq!(reaching(&flush, &device).await, 0);
        flush.forget_covered();
        assert_eq!(reaching(&flush, &device).await, 1);
        let later = HddFlush(flush.next().0 + 3);
        assert_eq!(flush.flush_if_needed(later).await.expect("covered"), later);
        assert_eq!(flush.next(), HddFlush(later.0 + 1), "what is written now waits for another");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_written_during_a_flush_needs_another() {
        let (device, fenced) = counted();
        let (_, flush) = flushes_of(Arc::clone(&fenced));
        device.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(9))).on(IoOp::Flush).times(1));
        timeout(Duration::from_millis(10), flush.flush_if_needed(HddFlush(1)))
            .await
            .expect_err("it takes longer");
        write(&fenced).await;
        assert_eq!(flush.completed(), HddFlush(0), "the flush still runs");
        let before = device.stats().flush.ops;
        flush.flush_if_needed(flush.next()).await.expect("covered");
        // The one that was running, and one for what was written meanwhile.
        assert_eq!(device.stats().flush.ops - before, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_in_flight_when_a_flush_begins_is_not_covered_by_it() {
        let (device, fenced) = counted();
        let (_, flush) = flushes_of(Arc::clone(&fenced));
        let page = || IoBufs::from_iter([IoBuf::zeroed(4096)]);
        let slow = fenced.write(0, page(), IoClass::Clean);
        assert_eq!(reaching(&flush, &device).await, 1);
        slow.await.result.expect("written");
        assert_eq!(reaching(&flush, &device).await, 1);
        assert_eq!(reaching(&flush, &device).await, 0);
        // The same of one whose future is dropped, of which no caller sees the end.
        device.inject(Fault::new(FaultEffect::Slow(Duration::from_secs(9))).on(IoOp::Write).times(1));
        drop(fenced.write(0, page(), IoClass::Clean));
        for _ in 0..2 {
            assert_eq!(reaching(&flush, &device).await, 1);
        }
        sleep(Duration::from_secs(10)).await;
        assert_eq!(reaching(&flush, &device).await, 1);
        assert_eq!(reaching(&flush, &device).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_failed_flush_none_is_left_out_before_another_has_succeeded() {
        let (device, fenced) = counted();
        let (_, flush) = flushes_of(Arc::clone(&fenced));
        reaching(&flush, &device).await;
        flush.forget_covered();
        device.inject(Fault::new(FaultEffect::Eio).on(IoOp::Flush).times(1));
        flush.flush_if_needed(flush.next()).await.expect_err("it fails");
        flush.flush_if_needed(flush.next()).await.expect_err("the failure is final");
        let flush = flush.without_failure();
        assert_eq!(reaching(&flush, &device).await, 1);
        assert_eq!(reaching(&flush, &device).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn behind_a_closed_fence_even_a_flush_of_nothing_fails() {
        let fence = Fence::default();
        let device = SimDevice::new("hdd", 1 << 20, 1, &SimPower::new());
        let (_, flush) = flushes_of(fence.guard(Arc::new(device)));
        flush.flush_if_needed(flush.next()).await.expect("covered");
        fence.close();
        flush.flush_if_needed(flush.next()).await.expect_err("the store was dropped");
    }
}
