//! The state that the device shares with the task or thread that steps its core.

use super::clock::EmulatedClock;
use super::core::{Core, Finished, Next, hand_over};
use pagetier_devio::parts::Counter;
use pagetier_devio::parts::Recorder;
use pagetier_devio::{DeviceError, SharedDevice};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use std::task::Context;
use std::time::Duration;

/// A delay longer than any run.
pub(super) const FOREVER: Duration = Duration::from_secs(86_400 * 365);

#[derive(Debug)]
pub(super) struct Emulation {
    pub(super) name: Arc<str>,
    pub(super) inner: SharedDevice,
    pub(super) clock: EmulatedClock,
    /// The zero of the device's time: its first operation.
    pub(super) origin: OnceLock<tokio::time::Instant>,
    pub(super) wall_origin: std::time::Instant,
    pub(super) core: Mutex<Core>,
    pub(super) recorder: Recorder,
}

impl Emulation {
    pub(super) fn now_ns(&self) -> u64 {
        let elapsed = match self.clock {
            EmulatedClock::Wall => self.wall_origin.elapsed(),
            EmulatedClock::Tokio | EmulatedClock::Virtual(_) => {
                let now = tokio::time::Instant::now();
                now.duration_since(*self.origin.get_or_init(|| now))
            }
        };
        u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn instant_of(&self, ns: u64) -> tokio::time::Instant {
        let origin = *self.origin.get_or_init(tokio::time::Instant::now);
        origin.checked_add(Duration::from_nanos(ns)).unwrap_or(origin + FOREVER)
    }

    pub(super) fn wall_instant_of(&self, ns: u64) -> std::time::Instant {
        self.wall_origin.checked_add(Duration::from_nanos(ns)).unwrap_or(self.wall_origin + FOREVER)
    }

    /// Counts an operation that takes no modelled time.
    pub(super) fn count(&self, counter: Counter, len: u64, result: &Result<(), DeviceError>) {
        match result {
            Ok(()) => self.recorder.done(counter, len, 0, 0),
            Err(error) => self.recorder.failed(&error.kind),
        }
    }

    pub(super) fn step(&self, cx: &mut Context<'_>) -> Next {
        let mut finished = Finished::new();
        let next = {
            let mut core = self.core.lock();
            // Before the step: an arrival right after it must find a stepper to wake.
            core.stepper = Some(cx.waker().clone());
            let next = core.step(self.now_ns(), cx, &self.recorder, &mut finished);
            if next == Next::Idle && !matches!(self.clock, EmulatedClock::Wall) {
                // Under the core's lock: a caller that queues an operation after this starts a new task.
                core.pumped = false;
                core.stepper = None;
            }
            next
        };
        // Outside the lock: a task that is woken may start its next operation on this thread.
        hand_over(finished);
        next
    }
}
