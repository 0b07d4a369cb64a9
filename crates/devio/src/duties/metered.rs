//! The entry point for devices of other crates: [`RawDevice`] moves bytes, [`Metered`] adds everything else.
//!
//! An implementation provides reads, writes, flushes and its size. [`Metered`] checks ranges and alignment,
//! names the device in errors, counts operations and times, measures costs, and tracks operations in flight
//! ([`Occupancy`]), so that a store can wait for the last operation of its predecessor.
//!
//! Two rules of [`Device`] hold for every implementation. An operation has started when the call returns,
//! because its future is polled once inside the call. It continues when its future is dropped, because a task
//! of the runtime finishes it.

use crate::device::IoBufs;
use crate::duties::check::{Spot, check, check_range, refused, total_len};
use crate::duties::meter::Meter;
use crate::{
    Claim, Completion, Device, DeviceError, DeviceErrorKind, DeviceStats, DoneFuture, InFlight, IoClass,
    IoFuture, IoOp, Occupancy, RecentCosts,
};
use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::runtime::Handle;

/// The result of a transfer by a [`RawDevice`]: its buffers, in the same order, and whether every byte was
/// moved.
pub type RawTransfer = Pin<Box<dyn Future<Output = (IoBufs, Result<(), DeviceErrorKind>)> + Send>>;

/// The result of an operation of a [`RawDevice`] without buffers.
pub type RawDone = Pin<Box<dyn Future<Output = Result<(), DeviceErrorKind>> + Send>>;

/// The methods that a device implementation provides. [`Metered::over`] turns it into a [`Device`];
/// `pagetier_testing::conformance::check_device` checks it.
///
/// Offsets, lengths and buffer addresses are multiples of [`RawDevice::alignment`], and ranges lie within
/// [`RawDevice::size`] and are not empty: [`Metered`] refuses all others. Operations may overlap and may
/// complete in any order.
///
/// An implementation that passes buffers to code outside Rust's ownership rules (a kernel, a C library) must
/// keep them until that code is done with them, even if the future is dropped with the runtime.
pub trait RawDevice: Send + Sync + fmt::Debug + 'static {
    /// Reads from `offset` on into `bufs`.
    fn read(&self, offset: u64, bufs: IoBufs, class: IoClass) -> RawTransfer;

    /// Writes `bufs` from `offset` on. A completed write is readable, not durable: see [`RawDevice::flush`].
    fn write(&self, offset: u64, bufs: IoBufs, class: IoClass) -> RawTransfer;

    /// Makes every write that completed before this call durable. After an error, any of them may be lost.
    fn flush(&self) -> RawDone;

    /// The size in bytes.
    fn size(&self) -> u64;

    /// Grows to at least `bytes`; new bytes read as zeros. May block briefly. Default: cannot grow.
    ///
    /// # Errors
    /// The space is not available; the size is unchanged.
    fn grow(&self, _bytes: u64) -> Result<(), DeviceErrorKind> {
        Err(DeviceErrorKind::NoSpace)
    }

    /// Allows the device to drop the contents of a range: reads of it return arbitrary bytes until it is
    /// written again. Default: no effect.
    fn discard(&self, _offset: u64, _len: u64) -> RawDone {
        Box::pin(ready(Ok(())))
    }

    /// The granularity of offsets, lengths and buffer addresses, in bytes: a power of two, at most
    /// [`BUF_ALIGN`](crate::BUF_ALIGN). Default: 512.
    fn alignment(&self) -> usize {
        512
    }

    /// See [`Device::writes_whole`]. Without [`RawDevice::keep_whole`], true means always. Default: no.
    fn writes_whole(&self, _bytes: usize) -> bool {
        false
    }

    /// See [`Device::keep_whole`]. A device around another one passes it on. Default: nothing changes.
    fn keep_whole(&self, _bytes: usize) {}

    /// See [`Device::claim`]. Default: none.
    fn claim(&self) -> Option<Claim> {
        None
    }

    /// The backend's name for reports. Default: `custom`.
    fn backend(&self) -> &'static str {
        "custom"
    }

    /// The name of this device in errors, such as a path or an address.
    fn name(&self) -> &str;
}

/// A [`RawDevice`] as a [`Device`]. Clones share one device.
///
/// Transfers take wall-clock time in the statistics; one that completes inside its call takes none. If a
/// future is dropped before its operation has ended, a task of the tokio runtime that started the operation
/// finishes it; without a runtime the implementation's future is dropped.
pub struct Metered<D>(Arc<Inner<D>>);

struct Inner<D> {
    raw: D,
    meter: Arc<Meter>,
}

impl<D: RawDevice> Metered<D> {
    /// Wraps `raw` as a device.
    #[must_use]
    pub fn over(raw: D) -> Self {
        let meter = Arc::new(Meter::new(raw.name().into()));
        Self(Arc::new(Inner { raw, meter }))
    }

    /// The implementation that this device wraps.
    #[must_use]
    pub fn get_ref(&self) -> &D {
        &self.0.raw
    }

    /// Admits a transfer, or returns its refusal.
    fn admit(&self, op: IoOp, class: IoClass, offset: u64, bufs: IoBufs) -> Result<(Run, IoBufs), IoFuture> {
        let Inner { raw, meter } = &*self.0;
        let spot = Spot { op, offset, len: total_len(&bufs) };
        if let Err(kind) = check(offset, &bufs, raw.alignment(), raw.size()) {
            return Err(refused(bufs, meter.fail(spot, kind)));
        }
        // Not passed on: an implementation is promised ranges that are not empty.
        if spot.len == 0 {
            return Err(Box::pin(ready(Completion { bufs, result: Ok(()) })));
        }
        Ok((Run::begin(meter, spot, class), bufs))
    }
}

fn transfer(run: Run, raw: RawTransfer) -> IoFuture {
    started(raw, move |(bufs, result), at_once| Completion { bufs, result: run.end(result, at_once) })
}

fn done(run: Run, raw: RawDone) -> DoneFuture {
    started(raw, move |result, at_once| run.end(result, at_once))
}

impl<D: RawDevice> Device for Metered<D> {
    fn read(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        match self.admit(IoOp::Read, class, offset, bufs) {
            Ok((run, bufs)) => transfer(run, self.0.raw.read(offset, bufs, class)),
            Err(answer) => answer,
        }
    }

    fn write(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        match self.admit(IoOp::Write, class, offset, bufs) {
            Ok((run, bufs)) => transfer(run, self.0.raw.write(offset, bufs, class)),
            Err(answer) => answer,
        }
    }

    fn flush(&self, class: IoClass) -> DoneFuture {
        let spot = Spot { op: IoOp::Flush, offset: 0, len: 0 };
        done(Run::begin(&self.0.meter, spot, class), self.0.raw.flush())
    }

    fn grow(&self, bytes: u64) -> Result<(), DeviceError> {
        let size = self.size();
        if bytes <= size {
            return Ok(());
        }
        let spot = Spot { op: IoOp::Grow, offset: size, len: bytes - size };
        self.0.raw.grow(bytes).map_err(|kind| self.0.meter.fail(spot, kind))
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture {
        let spot = Spot { op: IoOp::Discard, offset, len };
        match check_range(offset, len, self.size()) {
            Ok(()) => done(Run::begin(&self.0.meter, spot, IoClass::Meta), self.0.raw.discard(offset, len)),
            Err(kind) => Box::pin(ready(Err(self.0.meter.fail(spot, kind)))),
        }
    }

    fn occupancy(&self) -> &Occupancy {
        &self.0.meter.occupancy
    }

    delegate! { self => self.0.raw;
        fn size() -> u64;
        fn alignment() -> usize;
        fn claim() -> Option<Claim>;
        fn writes_whole(bytes: usize) -> bool;
        fn keep_whole(bytes: usize);
        fn backend() -> &'static str;
    }

    delegate! { self => self.0.meter.recorder;
        fn stats() -> DeviceStats;
        fn track_costs(points: usize);
        fn recent_costs() -> Option<RecentCosts>;
    }

    fn name(&self) -> &str {
        &self.0.meter.name
    }
}

impl<D> Clone for Metered<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<D: fmt::Debug> fmt::Debug for Metered<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Metered").field(&self.0.raw).finish()
    }
}

/// One operation in flight.
struct Run {
    meter: Arc<Meter>,
    spot: Spot,
    class: IoClass,
    began_ns: u64,
    /// True until [`Run::end`].
    open: bool,
    _in_flight: InFlight,
}

impl Run {
    fn begin(meter: &Arc<Meter>, spot: Spot, class: IoClass) -> Self {
        let (began_ns, in_flight) = meter.begin();
        Self { meter: Arc::clone(meter), spot, class, began_ns, open: true, _in_flight: in_flight }
    }

    /// Counts the operation. One that completed inside its call has taken no time.
    fn end(mut self, result: Result<(), DeviceErrorKind>, at_once: bool) -> Result<(), DeviceError> {
        self.open = false;
        if !at_once {
            return self.meter.end((self.spot, self.class), self.began_ns, result);
        }
        // Memory would otherwise show the time of a memcpy as that of a device, and virtual-time runs would
        // differ from one to the next.
        let recorder = &self.meter.recorder;
        if let Err(kind) = result {
            recorder.end(self.began_ns);
            return Err(self.meter.fail(self.spot, kind));
        }
        recorder.end_done(self.began_ns, self.spot.counter(self.class), self.spot.len, None);
        Ok(())
    }
}

impl Drop for Run {
    /// Without [`Run::end`], the runtime has dropped the operation.
    fn drop(&mut self) {
        if self.open {
            self.meter.recorder.end(self.meter.now_ns());
        }
    }
}

/// Polls `raw` once, so that its operation has started. `end` builds the result; its flag says whether that
/// one poll was sufficient.
fn started<R: Send + 'static, T: Send + 'static>(
    mut raw: Pin<Box<dyn Future<Output = R> + Send>>,
    end: impl FnOnce(R, bool) -> T + Send + 'static,
) -> Pin<Box<dyn Future<Output = T> + Send>> {
    // With a waker that does nothing: the first poll by the caller registers its own, and every future is
    // polled again then.
    match raw.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Box::pin(ready(end(result, true))),
        Poll::Pending => {
            let rest = Box::pin(async move { end(raw.await, false) });
            Box::pin(Detached { rest: Some(rest), runtime: Handle::try_current().ok() })
        }
    }
}

/// An operation that continues when its future is dropped.
struct Detached<T: Send + 'static> {
    /// `None` once the operation has ended.
    rest: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    runtime: Option<Handle>,
}

impl<T: Send + 'static> Future for Detached<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(rest) = &mut self.rest else { return Poll::Pending };
        // Taken out only when it is ready, so that a drop before then finds it.
        let result = std::task::ready!(rest.as_mut().poll(cx));
        self.rest = None;
        Poll::Ready(result)
    }
}

impl<T: Send + 'static> Drop for Detached<T> {
    fn drop(&mut self) {
        if let (Some(rest), Some(runtime)) = (self.rest.take(), &self.runtime) {
            // Outside a runtime there is nothing to finish it, and the implementation has to keep its
            // buffers itself (`RawDevice`).
            drop(runtime.spawn(rest));
        }
    }
}
