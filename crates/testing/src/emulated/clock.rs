//! The time source of an emulated device.

use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// The time source of an emulated device.
#[derive(Clone, Debug)]
pub enum EmulatedClock {
    /// `tokio::time`: virtual time under a paused clock, real time otherwise. Its timers tick in
    /// milliseconds: an operation completes at the first tick at or after its due time. Throughput and busy
    /// time stay exact as long as the device has a queue, since service continues between the ticks; a lone
    /// task that awaits each operation sees every latency rounded up.
    Tokio,
    /// Like `Tokio` but exact to the nanosecond, under a paused clock of a current-thread runtime that calls
    /// [`VirtualClock::idle`].
    Virtual(VirtualClock),
    /// Real time, from a thread of the device that sleeps with high-resolution timers: accurate to some tens
    /// of microseconds.
    Wall,
}

/// Virtual time with a finer resolution than tokio's timers, for devices faster than a millisecond. All
/// emulated devices of a run share one clock.
///
/// Whenever the runtime has nothing left to do, the clock advances the paused time to the next completion, if
/// that precedes the next millisecond tick. Otherwise it advances to the tick, so that tokio's own timers
/// fire in turn.
///
/// ```
/// use pagetier_devio::{Device, IoBuf, IoClass, MemoryDevice};
/// use pagetier_testing::{DeviceModel, EmulatedClock, EmulatedDevice, VirtualClock};
/// use std::{future::Future, pin::pin, sync::Arc, task::{Context, Waker}};
///
/// let clock = VirtualClock::new();
/// let idle = clock.clone();
/// let runtime = tokio::runtime::Builder::new_current_thread()
///     .enable_time()
///     .start_paused(true)
///     .on_thread_park(move || {
///         idle.idle(|by| {
///             // The clock moves on the first poll.
///             let _ = pin!(tokio::time::advance(by)).poll(&mut Context::from_waker(Waker::noop()));
///         });
///     })
///     .build()?;
/// runtime.block_on(async {
///     let memory = Arc::new(MemoryDevice::new("ssd", 1 << 20));
///     let ssd = EmulatedDevice::new(memory, DeviceModel::paper_ssd(), EmulatedClock::Virtual(clock));
///     let began = tokio::time::Instant::now();
///     for _ in 0..10 {
///         ssd.read(0, [IoBuf::zeroed(16 << 10)].into_iter().collect(), IoClass::Demand).await.result?;
///     }
///     assert_eq!(began.elapsed().as_micros(), 1_100);
///     Ok::<_, Box<dyn std::error::Error>>(())
/// })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct VirtualClock {
    agenda: Arc<Mutex<Agenda>>,
}

#[derive(Debug, Default)]
struct Agenda {
    /// An instant on tokio's tick grid: the first one seen, before the paused clock was advanced by less than
    /// a tick.
    tick: Option<Instant>,
    /// Deadlines, with the key of the waiting future.
    deadlines: BinaryHeap<Reverse<(Instant, u64)>>,
    wakers: BTreeMap<u64, Waker>,
    next_key: u64,
}

const TICK: Duration = Duration::from_millis(1);

impl VirtualClock {
    /// Creates a clock for one runtime.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Call this when the runtime has nothing to do, from `Builder::on_thread_park` of a current-thread
    /// runtime with a paused clock; `advance` advances that clock (see the example).
    pub fn idle(&self, advance: impl FnOnce(Duration)) {
        let now = Instant::now();
        let mut agenda = self.agenda.lock();
        let tick = *agenda.tick.get_or_insert(now);
        let into_tick = Duration::from_nanos((now.duration_since(tick).as_nanos() % TICK.as_nanos()) as u64);
        // Otherwise time would stop at deadlines for which no task waits.
        agenda.forget_cancelled();
        let to_next = agenda.deadlines.peek().map(|Reverse((at, _))| at.duration_since(now));
        let to_tick = TICK - into_tick;
        let by = match to_next {
            Some(by) if by < to_tick => by,
            // Return to the grid of tokio's own timers.
            _ if !into_tick.is_zero() => to_tick,
            _ => return,
        };
        // Taken before the clock moves, woken after it: a task that looks at the clock sees its deadline
        // reached.
        let due = agenda.take_due(now + by);
        drop(agenda);
        if !by.is_zero() {
            advance(by);
        }
        due.into_iter().for_each(Waker::wake);
    }

    pub(super) fn sleep_until(&self, at: Instant) -> ExactSleep {
        let mut agenda = self.agenda.lock();
        let key = agenda.next_key;
        agenda.next_key += 1;
        // Sleep until the last tick before the deadline (where `idle` takes over), if there is one.
        let now = Instant::now();
        let tick = *agenda.tick.get_or_insert(now);
        let whole = at.duration_since(tick).as_nanos() / TICK.as_nanos();
        let before = tick + Duration::from_millis(whole as u64);
        let coarse = (before > now).then(|| Box::pin(sleep_until(before)));
        // Without an idle hook, only this timer fires.
        let rounded = Box::pin(sleep_until(at));
        ExactSleep { clock: self.clone(), key, at, coarse, rounded, listed: false }
    }
}

impl Agenda {
    fn forget_cancelled(&mut self) {
        while let Some(Reverse((_, key))) = self.deadlines.peek() {
            if self.wakers.contains_key(key) {
                return;
            }
            self.deadlines.pop();
        }
    }

    fn take_due(&mut self, until: Instant) -> Vec<Waker> {
        let mut due = Vec::new();
        while let Some(Reverse((at, key))) = self.deadlines.peek().copied() {
            if at > until {
                break;
            }
            self.deadlines.pop();
            due.extend(self.wakers.remove(&key));
        }
        due
    }
}

/// Completes exactly at its deadline, or at tokio's next tick when the runtime does not call
/// [`VirtualClock::idle`].
pub(super) struct ExactSleep {
    clock: VirtualClock,
    key: u64,
    at: Instant,
    coarse: Option<Pin<Box<Sleep>>>,
    rounded: Pin<Box<Sleep>>,
    listed: bool,
}

impl Future for ExactSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        // The time decides, not the wake-up.
        if Instant::now() >= this.at || this.rounded.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        if this.coarse.as_mut().is_some_and(|coarse| coarse.as_mut().poll(cx).is_ready()) {
            this.coarse = None;
        }
        let mut agenda = this.clock.agenda.lock();
        agenda.wakers.insert(this.key, cx.waker().clone());
        if !this.listed {
            this.listed = true;
            agenda.deadlines.push(Reverse((this.at, this.key)));
        }
        Poll::Pending
    }
}

impl Drop for ExactSleep {
    fn drop(&mut self) {
        self.clock.agenda.lock().wakers.remove(&self.key);
    }
}
