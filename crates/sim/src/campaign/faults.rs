//! Devices that fail: faults for the random lives, and the n-th operation of each device failing, for every n.

use super::totals::Totals;
use pagetier_devio::{Fault, FaultEffect, IoOp, SimDevice};
use rand::Rng;
use rand::rngs::SmallRng;
use std::time::Duration;

/// A fault on one of the devices.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    ssd: bool,
    kind: &'static str,
    fault: Fault,
}

impl Planned {
    /// One to three faults that a store survives without losing anything.
    pub(super) fn some(rng: &mut SmallRng) -> Vec<Self> {
        (0..rng.random_range(1..=3)).map(|_| Self::random(rng)).collect()
    }

    fn random(rng: &mut SmallRng) -> Self {
        let (kind, effect) = match rng.random_range(0..8) {
            0..3 => ("EIO", FaultEffect::Eio),
            3 => ("ENOSPC", FaultEffect::NoSpace),
            4 => ("device gone", FaultEffect::Gone),
            5 => ("short transfer", FaultEffect::Short),
            _ => ("slow operation", FaultEffect::Slow(Duration::from_millis(rng.random_range(1..2000)))),
        };
        let op = [Some(IoOp::Read), Some(IoOp::Write), Some(IoOp::Write), Some(IoOp::Flush), None]
            [rng.random_range(0..5)];
        let times = [1, 1, 3, 20][rng.random_range(0..4)];
        let mut fault = Fault::new(effect).from_op(rng.random_range(1..2000)).times(times);
        fault.op = op;
        Self { ssd: rng.random_bool(0.5), kind, fault }
    }

    pub(super) fn inject(&self, hdd: &SimDevice, ssd: &SimDevice, totals: &mut Totals) {
        totals.fault(self.kind);
        let device = if self.ssd { ssd } else { hdd };
        // Numbers count from the opening of the device.
        let mut fault = self.fault.clone();
        fault.from_op += device.ops();
        device.inject(fault);
    }
}
