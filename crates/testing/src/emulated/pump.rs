//! Steps the core: from a task of the runtime in which operations were started, or from a thread.
//!
//! The task lives while operations are queued or in service; the thread lives as long as the device.

use super::clock::VirtualClock;
use super::core::Next;
use super::shared::Emulation;
use parking_lot::{Condvar, Mutex};
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

/// The stepping task.
pub(super) struct Pump {
    shared: Arc<Emulation>,
    /// The task found nothing to do and has recorded its end.
    ended: bool,
    exact: Option<VirtualClock>,
    timer: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    due_ns: u64,
}

impl Pump {
    pub(super) fn new(shared: Arc<Emulation>, exact: Option<VirtualClock>) -> Self {
        Self { shared, ended: false, exact, timer: None, due_ns: 0 }
    }

    fn set_timer(&mut self, at_ns: u64) {
        // Most steps leave the next deadline as it is, and a timer is not free.
        if at_ns == self.due_ns && self.timer.is_some() {
            return;
        }
        self.due_ns = at_ns;
        let at = self.shared.instant_of(at_ns);
        self.timer = Some(match &self.exact {
            Some(clock) => Box::pin(clock.sleep_until(at)),
            None => Box::pin(tokio::time::sleep_until(at)),
        });
    }
}

impl Future for Pump {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        loop {
            match this.shared.step(cx) {
                Next::Idle => {
                    this.ended = true;
                    return Poll::Ready(());
                }
                Next::OnWake => return Poll::Pending,
                Next::At(at_ns) => this.set_timer(at_ns),
            }
            match &mut this.timer {
                Some(timer) => std::task::ready!(timer.as_mut().poll(cx)),
                None => return Poll::Pending,
            }
            this.timer = None;
        }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        // The task's runtime went away: the next operation starts another task.
        if !self.ended {
            self.shared.core.lock().pumped = false;
        }
    }
}

/// Wakes the thread.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    state: Mutex<AlarmState>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct AlarmState {
    rung: bool,
    closing: bool,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Kept as a flag: a ring while the thread is stepping must end its next wait.
        self.state.lock().rung = true;
        self.rung.notify_one();
    }
}

impl Alarm {
    /// Lets the thread end when everything is done.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closing = true;
        state.rung = true;
        drop(state);
        self.rung.notify_one();
    }

    fn wait(&self, until: Option<Instant>) {
        let mut state = self.state.lock();
        while !state.rung {
            match until {
                None => self.rung.wait(&mut state),
                Some(until) => {
                    if self.rung.wait_until(&mut state, until).timed_out() {
                        return;
                    }
                }
            }
        }
        state.rung = false;
    }

    fn is_closing(&self) -> bool {
        self.state.lock().closing
    }
}

/// The thread's main function.
pub(super) fn run(shared: &Arc<Emulation>, alarm: &Arc<Alarm>) {
    // The kernel may otherwise delay a wake-up by 50 µs to save power.
    if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1)) {
        tracing::debug!(%error, "the timer slack cannot be lowered, so delays may be 50 µs too long");
    }
    let waker = Waker::from(Arc::clone(alarm));
    let mut cx = Context::from_waker(&waker);
    loop {
        let until = match shared.step(&mut cx) {
            Next::Idle if alarm.is_closing() => return,
            Next::Idle | Next::OnWake => None,
            Next::At(at_ns) => Some(shared.wall_instant_of(at_ns)),
        };
        alarm.wait(until);
    }
}
