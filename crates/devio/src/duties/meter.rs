//! A device's name, counters and operations in flight.

use crate::duties::check::Spot;
use crate::duties::recorder::Recorder;
use crate::users::claim::now;
use crate::users::occupancy::InFlight;
use crate::{DeviceError, DeviceErrorKind, IoClass, Occupancy};
use rustix::time::ClockId::Monotonic;
use std::sync::Arc;

/// A device's name, counters and operations in flight.
#[derive(Debug)]
pub struct Meter {
    /// The device's name.
    pub name: Arc<str>,
    /// Its counters.
    pub recorder: Recorder,
    /// Its operations in flight.
    pub occupancy: Occupancy,
    epoch_ns: u64,
}

impl Meter {
    /// The meter of a new device.
    #[must_use]
    pub fn new(name: Arc<str>) -> Self {
        Self { name, recorder: Recorder::new(1), occupancy: Occupancy::default(), epoch_ns: now(Monotonic) }
    }

    /// Nanoseconds since the device was opened.
    pub(crate) fn now_ns(&self) -> u64 {
        now(Monotonic).saturating_sub(self.epoch_ns)
    }

    /// Registers an operation; returns its start, in nanoseconds.
    pub(crate) fn begin(&self) -> (u64, InFlight) {
        let began_ns = self.now_ns();
        self.recorder.begin(began_ns);
        (began_ns, self.occupancy.enter())
    }

    /// Counts an operation that has ended, and builds its result.
    pub(crate) fn end(
        &self,
        (spot, class): (Spot, IoClass),
        began_ns: u64,
        result: Result<(), DeviceErrorKind>,
    ) -> Result<(), DeviceError> {
        let now_ns = self.now_ns();
        if let Err(kind) = result {
            // Failed operations keep a device busy, too.
            self.recorder.end(now_ns);
            return Err(self.fail(spot, kind));
        }
        let latency_ns = now_ns.saturating_sub(began_ns);
        self.recorder.end_done(now_ns, spot.counter(class), spot.len, Some(latency_ns));
        Ok(())
    }

    /// Counts a failure, and builds its error.
    pub fn fail(&self, spot: Spot, kind: DeviceErrorKind) -> DeviceError {
        self.recorder.failed(&kind);
        spot.error(&self.name, kind)
    }
}
