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

pub use clock::{EmulatedClock, VirtualClock};
pub use model::DeviceModel;

use self::core::{Core, Pending, Start};
use self::model::Timing;
use self::pump::{Alarm, Pump};
use self::shared::Emulation;
use pagetier_devio::IoBufs;
use pagetier_devio::parts::Counter;
use pagetier_devio::parts::Recorder;
use pagetier_devio::parts::ticket;
use pagetier_devio::parts::{Spot, check, refused, total_len};
use pagetier_devio::{
    Claim, Completion, Device, DeviceError, DeviceStats, DoneFuture, IoClass, IoFuture, IoOp, Occupancy,
    Owner, RecentCosts, SharedDevice,
};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// A device with the timing of another one. Operations queue for the servers of a [`DeviceModel`] in order
/// of class and take its service times; their data moves through the underlying device when their service
/// begins. Busy time in the statistics is the model's service time. Dropping the device executes what is
/// outstanding without further delay.
///
/// With [`EmulatedClock::Tokio`] and [`EmulatedClock::Virtual`], operations must be started inside a tokio
/// runtime with timers enabled, and panic otherwise.
#[derive(Debug)]
pub struct EmulatedDevice {
    shared: Arc<Emulation>,
    /// [`EmulatedClock::Wall`]: the thread and its alarm.
    thread: Option<(JoinHandle<()>, Arc<Alarm>)>,
    owner: Owner,
}

impl EmulatedDevice {
    /// Wraps `inner` with the timing of `model`, by `clock`.
    ///
    /// # Panics
    /// With [`EmulatedClock::Wall`], when no thread can be started.
    #[must_use]
    pub fn new(inner: SharedDevice, model: DeviceModel, clock: EmulatedClock) -> Self {
        let servers = model.servers();
        let shared = Arc::new(Emulation {
            name: inner.name().into(),
            inner,
            origin: OnceLock::new(),
            wall_origin: std::time::Instant::now(),
            core: Mutex::new(Core::new(Timing::new(model), servers)),
            recorder: Recorder::new(servers),
            clock,
        });
        let thread = matches!(shared.clock, EmulatedClock::Wall).then(|| start_thread(&shared));
        Self { shared, thread, owner: Owner::here() }
    }

    /// Switches the delays on (the default) or off, for bulk loads. Without them operations go straight to
    /// the underlying device and count no busy time; waiting operations are served at once.
    pub fn set_timing(&self, on: bool) {
        let now_ns = self.shared.now_ns();
        self.shared.core.lock().set_timed(on, now_ns);
    }

    fn start(
        &self,
        spot: Spot,
        class: IoClass,
        start: impl FnOnce(&dyn Device) -> IoFuture + Send + 'static,
    ) -> IoFuture {
        let shared = &self.shared;
        let arrived_ns = shared.now_ns();
        let mut core = shared.core.lock();
        if !core.is_timed() {
            drop(core);
            return Box::pin(untimed(Arc::clone(shared), spot, class, start(&*shared.inner)));
        }
        let (promise, ticket) = ticket();
        let inner = SharedDevice::clone(&shared.inner);
        let start: Start = Box::new(move || start(&*inner));
        // From the arrival on, though the inner operation starts later: a leaving store must wait for what
        // is queued here.
        let in_flight = shared.inner.occupancy().enter();
        core.arrive(Pending { spot, class, arrived_ns, start, promise, in_flight });
        let exact = match &shared.clock {
            EmulatedClock::Wall => return Box::pin(ticket),
            EmulatedClock::Tokio => None,
            EmulatedClock::Virtual(clock) => Some(clock.clone()),
        };
        // Marked under the core's lock: of two first operations only one starts the task.
        if !std::mem::replace(&mut core.pumped, true) {
            drop(core);
            tokio::spawn(Pump::new(Arc::clone(shared), exact));
        }
        Box::pin(ticket)
    }

    fn transfer(
        &self,
        op: IoOp,
        offset: u64,
        bufs: IoBufs,
        class: IoClass,
        start: impl FnOnce(&dyn Device, IoBufs) -> IoFuture + Send + 'static,
    ) -> IoFuture {
        let spot = Spot { op, offset, len: total_len(&bufs) };
        if let Err(kind) = check(offset, &bufs, self.alignment(), self.size()) {
            self.shared.recorder.failed(&kind);
            return refused(bufs, spot.error(&self.shared.name, kind));
        }
        self.start(spot, class, move |inner| start(inner, bufs))
    }
}

fn start_thread(shared: &Arc<Emulation>) -> (JoinHandle<()>, Arc<Alarm>) {
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
async fn untimed(shared: Arc<Emulation>, spot: Spot, class: IoClass, inner: IoFuture) -> Completion {
    let completion = inner.await;
    shared.count(spot.counter(class), spot.len, &completion.result);
    completion
}

impl Drop for EmulatedDevice {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            // The thread, and what it was doing, exist in the parent process alone.
            std::mem::forget((Arc::clone(&self.shared), self.thread.take()));
            return;
        }
        // What waits is served at once: a drop must not last as long as a modelled disk has work.
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
        self.transfer(IoOp::Read, offset, bufs, class, move |inner, bufs| inner.read(offset, bufs, class))
    }

    fn write(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        self.transfer(IoOp::Write, offset, bufs, class, move |inner, bufs| inner.write(offset, bufs, class))
    }

    fn flush(&self, class: IoClass) -> DoneFuture {
        let spot = Spot { op: IoOp::Flush, offset: 0, len: 0 };
        let flushed = self.start(spot, class, move |inner| {
            let flushed = inner.flush(class);
            Box::pin(async move { Completion { bufs: IoBufs::new(), result: flushed.await } })
        });
        Box::pin(async move { flushed.await.result })
    }

    /// Takes no modelled time.
    fn discard(&self, offset: u64, len: u64) -> DoneFuture {
        let shared = Arc::clone(&self.shared);
        let discarded = self.shared.inner.discard(offset, len);
        Box::pin(async move {
            let result = discarded.await;
            shared.count(Counter::Discard, len, &result);
            result
        })
    }

    fn backend(&self) -> &'static str {
        "emulated"
    }

    fn name(&self) -> &str {
        &self.shared.name
    }

    pagetier_devio::delegate! { self => self.shared.inner;
        fn size() -> u64;
        fn grow(bytes: u64) -> Result<(), DeviceError>;
        fn cut(bytes: u64) -> Result<(), DeviceError>;
        fn occupancy() -> &Occupancy;
        fn alignment() -> usize;
        fn claim() -> Option<Claim>;
        fn writes_whole(bytes: usize) -> bool;
        fn keep_whole(bytes: usize);
    }

    pagetier_devio::delegate! { self => self.shared.recorder;
        fn stats() -> DeviceStats;
        fn track_costs(points: usize);
        fn recent_costs() -> Option<RecentCosts>;
    }
}
