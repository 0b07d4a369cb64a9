//! A device with the timing of another one.
//!
//! Operations queue for the model's servers in order of class and take the model's service time. Their data
//! moves through the underlying device when their service begins. Busy time in the statistics is the model's
//! service time.
//!
//! With the runtime's clocks, operations must be started inside a tokio runtime with timers enabled; as with
//! `tokio::time::sleep`, they panic otherwise.
//!
//! An operation continues when its future is dropped, as on every device. Dropping the device executes what
//! is outstanding without further delay.
//!
//! Locking order: the core, then the locks of the underlying device. No operation is completed under the
//! core's lock.

mod clock;
mod core;
mod model;
mod pump;
mod shared;

pub use clock::{Clock, VirtualClock};
pub use model::Model;

use self::core::{Core, Pending, Start};
use self::model::Timing;
use self::pump::{Alarm, Pump};
use self::shared::Shared;
use crate::check::{Spot, check, refused, total_len};
use crate::class::Slot;
use crate::device::IoBufs;
use crate::recorder::Recorder;
use crate::ticket::ticket;
use crate::{
    Completion, Device, DeviceError, DeviceStats, IoClass, IoFuture, IoOp, Occupancy, RecentCosts,
    SharedDevice,
};
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// A device slowed down by a timing model. See the module.
#[derive(Debug)]
pub struct EmulatedDevice {
    shared: Arc<Shared>,
    /// [`Clock::Wall`]: the thread and its alarm.
    thread: Option<(JoinHandle<()>, Arc<Alarm>)>,
}

impl EmulatedDevice {
    /// Wraps `inner` with the timing of `model`, by `clock`.
    ///
    /// # Panics
    /// With [`Clock::Wall`], when no thread can be started.
    #[must_use]
    pub fn new(inner: SharedDevice, model: Model, clock: Clock) -> Self {
        let servers = model.servers();
        let shared = Arc::new(Shared {
            name: inner.name().into(),
            inner,
            origin: OnceLock::new(),
            wall_origin: std::time::Instant::now(),
            core: Mutex::new(Core::new(Timing::new(model), servers)),
            recorder: Recorder::new(servers),
            clock,
        });
        let thread = matches!(shared.clock, Clock::Wall).then(|| start_thread(&shared));
        Self { shared, thread }
    }

    /// Switches the delays on (the default) or off, for bulk loads. Without them operations go straight to
    /// the underlying device and count no busy time; waiting operations are served at once.
    pub fn set_timing(&self, on: bool) {
        let now_ns = self.shared.now_ns();
        self.shared.core.lock().set_timed(on, now_ns);
    }

    fn start(
        &self,
        op: IoOp,
        offset: u64,
        len: u64,
        class: IoClass,
        start: impl FnOnce(&dyn Device) -> IoFuture + Send + 'static,
    ) -> IoFuture {
        let shared = &self.shared;
        let arrived_ns = shared.now_ns();
        let mut core = shared.core.lock();
        if !core.is_timed() {
            drop(core);
            return Box::pin(untimed(Arc::clone(shared), op, len, class, start(&*shared.inner)));
        }
        let (promise, ticket) = ticket();
        let inner = SharedDevice::clone(&shared.inner);
        let start: Start = Box::new(move || start(&*inner));
        let in_flight = shared.inner.occupancy().enter();
        core.arrive(Pending { op, class, offset, len, arrived_ns, start, promise, in_flight });
        let exact = match &shared.clock {
            Clock::Wall => return Box::pin(ticket),
            Clock::Tokio => None,
            Clock::Virtual(clock) => Some(clock.clone()),
        };
        if !std::mem::replace(&mut core.pumped, true) {
            drop(core);
            tokio::spawn(Pump::new(Arc::clone(shared), exact));
        }
        Box::pin(ticket)
    }

    fn refused(&self, op: IoOp, offset: u64, bufs: &IoBufs) -> Option<DeviceError> {
        let kind = check(offset, bufs, self.alignment(), self.size()).err()?;
        self.shared.recorder.failed(&kind);
        Some(Spot { op, offset, len: total_len(bufs) }.error(&self.shared.name, kind))
    }
}

fn start_thread(shared: &Arc<Shared>) -> (JoinHandle<()>, Arc<Alarm>) {
    let alarm = Arc::new(Alarm::default());
    shared.core.lock().stepper = Some(Arc::clone(&alarm).into());
    let (for_thread, its_alarm) = (Arc::clone(shared), Arc::clone(&alarm));
    let started = std::thread::Builder::new()
        .name("pagetier-emulate".into())
        .spawn(move || pump::run(&for_thread, &its_alarm));
    match started {
        Ok(thread) => (thread, alarm),
        Err(error) => panic!("no thread for the emulated device: {error}"),
    }
}

/// Runs an operation without a modelled delay.
async fn untimed(shared: Arc<Shared>, op: IoOp, len: u64, class: IoClass, inner: IoFuture) -> Completion {
    let completion = inner.await;
    let slot = match op {
        IoOp::Write => Slot::Write(class),
        IoOp::Flush => Slot::Flush,
        _ => Slot::Read(class),
    };
    match &completion.result {
        Ok(()) => shared.recorder.done(slot, len, 0, 0),
        Err(error) => shared.recorder.failed(&error.kind),
    }
    completion
}

impl Drop for EmulatedDevice {
    fn drop(&mut self) {
        self.set_timing(false);
        let Some((thread, alarm)) = self.thread.take() else { return };
        alarm.close();
        // A completion may drop the last handle on the thread itself; the thread then ends by itself.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!(device = %self.shared.name, "the emulation's thread panicked");
        }
    }
}

impl Device for EmulatedDevice {
    fn read(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        if let Some(error) = self.refused(IoOp::Read, offset, &bufs) {
            return refused(bufs, error);
        }
        let len = total_len(&bufs);
        self.start(IoOp::Read, offset, len, class, move |inner| inner.read(offset, bufs, class))
    }

    fn write(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        if let Some(error) = self.refused(IoOp::Write, offset, &bufs) {
            return refused(bufs, error);
        }
        let len = total_len(&bufs);
        self.start(IoOp::Write, offset, len, class, move |inner| inner.write(offset, bufs, class))
    }

    fn flush(&self, class: IoClass) -> Pin<Box<dyn Future<Output = Result<(), DeviceError>> + Send>> {
        let flushed = self.start(IoOp::Flush, 0, 0, class, move |inner| {
            let flushed = inner.flush(class);
            Box::pin(async move { Completion { bufs: IoBufs::new(), result: flushed.await } })
        });
        Box::pin(async move { flushed.await.result })
    }

    fn size(&self) -> u64 {
        self.shared.inner.size()
    }

    fn grow(&self, bytes: u64) -> Result<(), DeviceError> {
        self.shared.inner.grow(bytes)
    }

    /// Takes no modelled time.
    fn discard(
        &self,
        offset: u64,
        len: u64,
    ) -> Pin<Box<dyn Future<Output = Result<(), DeviceError>> + Send>> {
        let shared = Arc::clone(&self.shared);
        let discarded = self.shared.inner.discard(offset, len);
        Box::pin(async move {
            let result = discarded.await;
            match &result {
                Ok(()) => shared.recorder.done(Slot::Discard, len, 0, 0),
                Err(error) => shared.recorder.failed(&error.kind),
            }
            result
        })
    }

    fn register(&self, regions: &[(NonNull<u8>, usize)]) -> bool {
        self.shared.inner.register(regions)
    }

    fn occupancy(&self) -> &Occupancy {
        self.shared.inner.occupancy()
    }

    fn alignment(&self) -> usize {
        self.shared.inner.alignment()
    }

    fn stats(&self) -> DeviceStats {
        self.shared.recorder.snapshot()
    }

    fn track_costs(&self, points: usize) {
        self.shared.recorder.track_costs(points);
    }

    fn recent_costs(&self) -> Option<RecentCosts> {
        self.shared.recorder.recent_costs()
    }

    fn backend(&self) -> &'static str {
        "emulated"
    }

    fn name(&self) -> &str {
        &self.shared.name
    }
}
