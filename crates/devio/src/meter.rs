//! A device's name, counters and operations in flight.

use crate::check::Spot;
use crate::recorder::Recorder;
use crate::{DeviceError, DeviceErrorKind, Occupancy};
use std::sync::Arc;
use std::time::Instant;

/// See the module.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) name: Arc<str>,
    pub(crate) recorder: Recorder,
    pub(crate) occupancy: Occupancy,
    epoch: Instant,
}

impl Meter {
    pub(crate) fn new(name: Arc<str>) -> Self {
        Self { name, recorder: Recorder::new(1), occupancy: Occupancy::default(), epoch: Instant::now() }
    }

    /// Nanoseconds since the device was opened.
    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Counts a failure, and builds its error.
    pub(crate) fn fail(&self, spot: Spot, kind: DeviceErrorKind) -> DeviceError {
        self.recorder.failed(&kind);
        spot.error(&self.name, kind)
    }
}
