//! The queue and the servers of an emulated device: a state machine that takes the time as an argument.
//!
//! All arithmetic is in nanoseconds of the device's own clock. The moment of a call to [`Core::step`] does
//! not matter: an operation whose server became free at 7.2 ms begins at 7.2 ms, even if the step comes at 8
//! ms. Throughput and busy time are therefore exact however coarse the timer is. Only the wake-up is rounded
//! (up: nothing completes before its time).
//!
//! Data moves when service begins: a read sees every write that completed before then.

use super::model::{Task, Timing};
use pagetier_devio::InFlight;
use pagetier_devio::parts::Counter;
use pagetier_devio::parts::Promise;
use pagetier_devio::parts::Recorder;
use pagetier_devio::parts::Spot;
use pagetier_devio::parts::rank;
use pagetier_devio::{Completion, IoClass, IoFuture};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// An operation that has waited this long goes first, whatever its class.
const AGE_LIMIT_NS: u64 = 500_000_000;

/// Starts the inner operation.
pub(super) type Start = Box<dyn FnOnce() -> IoFuture + Send>;

/// An operation that waits for a server.
pub(super) struct Pending {
    pub(super) spot: Spot,
    pub(super) class: IoClass,
    pub(super) arrived_ns: u64,
    pub(super) start: Start,
    pub(super) promise: Promise<Completion>,
    pub(super) in_flight: InFlight,
}

/// An operation in service.
struct Active {
    counter: Counter,
    len: u64,
    arrived_ns: u64,
    began_ns: u64,
    finish_ns: u64,
    server: usize,
    inner: IoFuture,
    /// The inner operation's outcome, and when it arrived if the device had to wait for it.
    outcome: Option<(Completion, u64)>,
    promise: Promise<Completion>,
    _in_flight: InFlight,
}

/// Completed operations, to be delivered outside the lock.
pub(super) type Finished = Vec<(Promise<Completion>, Completion)>;

/// Delivers completions, outside any lock.
pub(super) fn hand_over(finished: Finished) {
    for (promise, completion) in finished {
        promise.complete(completion);
    }
}

/// What the device must do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Nothing is queued or in service.
    Idle,
    /// Step again at this time, or earlier if an inner operation or an arrival wakes the stepper.
    At(u64),
    /// Step again when an inner operation completes.
    OnWake,
}

pub(super) struct Core {
    timing: Timing,
    timed: bool,
    /// In order of arrival.
    queue: Vec<Pending>,
    active: Vec<Active>,
    /// The time until which each server is busy.
    busy_until_ns: Vec<u64>,
    /// The waker of the task or thread that calls [`Core::step`].
    pub(super) stepper: Option<Waker>,
    /// Whether a stepping task exists (clocks of the runtime).
    pub(super) pumped: bool,
}

impl Core {
    pub(super) fn new(timing: Timing, servers: u32) -> Self {
        Self {
            timing,
            timed: true,
            queue: Vec::new(),
            active: Vec::new(),
            busy_until_ns: vec![0; servers as usize],
            stepper: None,
            pumped: false,
        }
    }

    /// Queues an operation; wakes the stepper if a server is free.
    pub(super) fn arrive(&mut self, pending: Pending) {
        self.queue.push(pending);
        // With every server busy the stepper has a timer for the next one that becomes free.
        if self.active.len() < self.busy_until_ns.len() {
            self.wake();
        }
    }

    pub(super) const fn is_timed(&self) -> bool {
        self.timed
    }

    /// Switches the delays. Without them all queued operations are served at once.
    pub(super) fn set_timed(&mut self, timed: bool, now_ns: u64) {
        self.timed = timed;
        if !timed {
            for active in &mut self.active {
                // What is in service ends now; the step that follows serves what waits.
                active.finish_ns = active.finish_ns.min(now_ns);
                self.busy_until_ns[active.server] = active.finish_ns;
            }
            self.wake();
        }
    }

    pub(super) fn wake(&self) {
        if let Some(stepper) = &self.stepper {
            stepper.wake_by_ref();
        }
    }

    /// Advances the state to `now_ns`.
    pub(super) fn step(
        &mut self,
        now_ns: u64,
        cx: &mut Context<'_>,
        recorder: &Recorder,
        out: &mut Finished,
    ) -> Next {
        loop {
            // Until nothing changes: a completion frees a server, whose next operation may itself end by
            // now.
            self.poll_inner(now_ns, cx);
            let completed = self.complete(now_ns, recorder, out);
            if !self.begin_one(now_ns) && !completed {
                break;
            }
        }
        if self.active.is_empty() {
            debug_assert!(self.queue.is_empty(), "a free server and a waiting operation");
            return Next::Idle;
        }
        // Operations that are due but whose data has not arrived wake the stepper through their inner
        // future.
        let next = self.active.iter().map(|a| a.finish_ns).filter(|ns| *ns > now_ns).min();
        next.map_or(Next::OnWake, Next::At)
    }

    fn poll_inner(&mut self, now_ns: u64, cx: &mut Context<'_>) {
        for active in self.active.iter_mut().filter(|active| active.outcome.is_none()) {
            if let Poll::Ready(completion) = Pin::new(&mut active.inner).poll(cx) {
                active.outcome = Some((completion, now_ns));
            }
        }
    }

    /// Completes what is due, in order of completion times.
    fn complete(&mut self, now_ns: u64, recorder: &Recorder, out: &mut Finished) -> bool {
        let mut any = false;
        loop {
            let due =
                self.active.iter().enumerate().filter(|(_, a)| a.finish_ns <= now_ns && a.outcome.is_some());
            let Some(at) = due.min_by_key(|(_, a)| a.finish_ns).map(|(at, _)| at) else { return any };
            let active = self.active.remove(at);
            let Some((completion, ready_ns)) = active.outcome else { return any };
            match &completion.result {
                Ok(()) => {
                    let service_ns = active.finish_ns - active.began_ns;
                    // If the underlying device is slower than the model, the operation really took that
                    // long.
                    let latency_ns = active.finish_ns.max(ready_ns).saturating_sub(active.arrived_ns);
                    recorder.done(active.counter, active.len, service_ns, latency_ns);
                }
                Err(error) => recorder.failed(&error.kind),
            }
            out.push((active.promise, completion));
            any = true;
        }
    }

    /// Lets the first free server begin the operation that is next at that time.
    fn begin_one(&mut self, now_ns: u64) -> bool {
        // The server that became free first: the order of service is then the same however late the step
        // comes.
        let free =
            (0..self.busy_until_ns.len()).filter(|server| self.active.iter().all(|a| a.server != *server));
        let Some(server) = free.min_by_key(|server| self.busy_until_ns[*server]) else { return false };
        let Some(first) = self.queue.first() else { return false };
        // In the past, as a rule: the device went on while the timer was late.
        let began_ns = self.busy_until_ns[server].max(first.arrived_ns);
        let Pending { spot, class, arrived_ns, start, promise, in_flight } =
            self.queue.remove(self.pick(began_ns));
        let Spot { op, offset, len } = spot;
        let service_ns = if self.timed { self.timing.serve(Task::of(op), offset, len, began_ns) } else { 0 };
        let finish_ns = began_ns + service_ns;
        self.busy_until_ns[server] = finish_ns;
        let mut active = Active {
            counter: spot.counter(class),
            len,
            arrived_ns,
            began_ns,
            finish_ns,
            server,
            inner: start(),
            outcome: None,
            promise,
            _in_flight: in_flight,
        };
        // An inner operation that is ready at once was ready when service began.
        if let Poll::Ready(completion) =
            Pin::new(&mut active.inner).poll(&mut Context::from_waker(Waker::noop()))
        {
            active.outcome = Some((completion, began_ns));
        }
        self.active.push(active);
        debug_assert!(began_ns <= now_ns, "service in the future");
        true
    }

    /// The index of the operation to begin at `at_ns`: the oldest if it has waited too long; otherwise by
    /// class, and within a class the one that the device reaches soonest, or the oldest.
    fn pick(&self, at_ns: u64) -> usize {
        if at_ns.saturating_sub(self.queue[0].arrived_ns) > AGE_LIMIT_NS {
            return 0;
        }
        // Only what had arrived by then: the disk cannot choose an operation that it does not know yet.
        let arrived = self.queue.iter().enumerate().take_while(|(_, p)| p.arrived_ns <= at_ns);
        let key = |(at, p): &(usize, &Pending)| {
            let reach_ns = self.timing.reach_ns(Task::of(p.spot.op), p.spot.offset, at_ns);
            (rank(p.class), reach_ns.unwrap_or(0), *at)
        };
        arrived.min_by_key(key).map_or(0, |(at, _)| at)
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("queued", &self.queue.len())
            .field("active", &self.active.len())
            .finish_non_exhaustive()
    }
}
