//! Faults to inject: of a device, or of the saves of the manifest.

use super::builder::AREAS;
use super::crash::SUPERBLOCKS;
use super::probe::Probe;
use super::saves::Saves;
use crate::campaign::draw::plan::Plan;
use crate::campaign::report::totals::Totals;
use pagetier::MemoryManifest;
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect, SimDevice};
use rand::Rng;
use rand::rngs::SmallRng;
use std::time::Duration;

const EIO_ON_A_HOME: &str = "EIO on a home write";

/// A fault of a device or of the manifest.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    kind: &'static str,
    on: On,
}

#[derive(Clone, Debug)]
enum On {
    /// After `skip` operations that it would apply to.
    Device {
        ssd: bool,
        fault: Fault,
        skip: u64,
    },
    Manifest(Saves),
}

impl Planned {
    /// One to three faults that a store must survive without any loss.
    pub(crate) fn some(rng: &mut SmallRng) -> Vec<Self> {
        (0..rng.random_range(1..=3)).map(|_| Self::random(rng)).collect()
    }

    /// A fault on this device, after `skip` operations that it would apply to.
    pub(crate) fn after(ssd: bool, kind: &'static str, fault: Fault, skip: u64) -> Self {
        Self { kind, on: On::Device { ssd, fault, skip } }
    }

    pub(crate) fn device(ssd: bool, kind: &'static str, fault: Fault) -> Self {
        Self::after(ssd, kind, fault, 0)
    }

    /// Saves of the manifest fail.
    pub(crate) fn saves(saves: Saves) -> Self {
        let kind = if saves.replaced { "manifest saved, reported as failed" } else { "manifest not saved" };
        Self { kind, on: On::Manifest(saves) }
    }

    fn fault(&self) -> Option<&Fault> {
        match &self.on {
            On::Device { fault, .. } => Some(fault),
            On::Manifest(_) => None,
        }
    }

    /// One home write fails, after this many operations.
    pub(crate) fn home(plan: &Plan, after: u64) -> Self {
        let fault = Fault::new(FaultEffect::Eio).on(IoOp::Write).within(plan.homes()).times(1);
        Self::device(false, EIO_ON_A_HOME, fault.from_op(after))
    }

    /// Up to three home writes take this much longer.
    pub(crate) fn slow_home(plan: &Plan, extra: Duration) -> Self {
        let fault = Fault::new(FaultEffect::Slow(extra)).on(IoOp::Write).within(plan.homes()).times(3);
        Self::device(false, "slow home write", fault)
    }

    /// Whether the store must accept writes again by itself once the fault has passed.
    pub(crate) fn passes(&self) -> bool {
        let grows = self.fault().is_some_and(|fault| fault.op == Some(IoOp::Grow));
        self.kind == EIO_ON_A_HOME || grows || matches!(self.on, On::Manifest(_))
    }

    /// Injects the fault without counting it.
    pub(crate) fn inject_now(&self, probe: &Probe) {
        self.inject(probe, &mut Totals::default());
    }

    /// Flushes of one of the devices fail.
    pub(crate) fn flushes(plan: &Plan, rng: &mut SmallRng) -> Vec<Self> {
        let fault = Fault::new(FaultEffect::Eio).on(IoOp::Flush).times([1, 1, 1, 3][rng.random_range(0..4)]);
        let fault = fault.from_op(rng.random_range(1..=2 * u64::from(plan.ops)));
        vec![Self::device(rng.random_bool(0.5), "EIO on a flush", fault)]
    }

    /// The HDD cannot grow.
    pub(crate) fn growth(rng: &mut SmallRng) -> Vec<Self> {
        let (kind, effect) = if rng.random_bool(0.7) {
            ("ENOSPC on growth", FaultEffect::NoSpace)
        } else {
            ("EIO on growth", FaultEffect::Eio)
        };
        let times = [1, 2, 3, u64::MAX][rng.random_range(0..4)];
        let fault = Fault::new(effect).on(IoOp::Grow).from_op(rng.random_range(1..=2)).times(times);
        vec![Self::device(false, kind, fault)]
    }

    /// Whether the fault makes flushes fail.
    pub(crate) fn fails_flushes(&self) -> bool {
        self.fault().is_some_and(|fault| fault.op == Some(IoOp::Flush))
    }

    fn random(rng: &mut SmallRng) -> Self {
        let (kind, effect) = match rng.random_range(0..8) {
            0..3 => ("EIO", FaultEffect::Eio),
            3 => ("ENOSPC", FaultEffect::NoSpace),
            4 => ("device gone", FaultEffect::Gone),
            5 => ("short transfer", FaultEffect::Short),
            _ => ("slow operation", FaultEffect::Slow(Duration::from_millis(rng.random_range(1..2000)))),
        };
        if rng.random_bool(0.1) {
            // Another owner takes the volume over, at any read or write: from then on nothing lands. What the
            // new owner finds is what a crash here leaves, without the SSD.
            let fault =
                Fault { op: None, ..Fault::new(FaultEffect::Fenced).from_op(rng.random_range(1..2000)) };
            return Self::device(false, "the HDD is fenced", fault);
        }
        if rng.random_bool(0.1) {
            // The volume of a cluster that does not answer blocks, as a whole. Requests that the pool or the
            // SSD cannot serve wait meanwhile; then everything goes on, or has failed.
            let time = Duration::from_millis(rng.random_range(100..60_000));
            let effect = FaultEffect::Blocked { time, fails: rng.random_bool(0.3) };
            let fault = Fault { op: None, ..Fault::new(effect).from_op(rng.random_range(1..2000)).times(1) };
            return Self::device(false, "the HDD blocks", fault);
        }
        let op = [Some(IoOp::Read), Some(IoOp::Write), Some(IoOp::Write), Some(IoOp::Flush), None]
            [rng.random_range(0..5)];
        let times = [1, 1, 3, 20][rng.random_range(0..4)];
        let mut fault = Fault::new(effect).from_op(rng.random_range(1..2000)).times(times);
        fault.op = op;
        Self::device(rng.random_bool(0.5), kind, fault)
    }

    /// Whether the fault keeps operations waiting.
    pub(crate) fn blocks(&self) -> bool {
        let blocks = |fault: &Fault| matches!(fault.effect, FaultEffect::Blocked { .. });
        matches!(&self.on, On::Device { fault, .. } if blocks(fault))
    }

    /// Whether the fault may lose a home write without an error.
    pub(crate) fn loses_home_writes(&self) -> bool {
        let loses = |fault: &Fault| matches!(fault.effect, FaultEffect::Lost | FaultEffect::Misdirected(_));
        matches!(&self.on, On::Device { ssd: false, fault, .. } if loses(fault))
    }

    /// The maximum number of home writes that the fault fails.
    fn failed_home_writes(&self) -> u64 {
        let On::Device { ssd: false, fault, .. } = &self.on else { return 0 };
        let writes = matches!(fault.op, None | Some(IoOp::Write));
        match fault.effect {
            FaultEffect::Eio if writes => fault.times,
            // As many as begin while the device blocks.
            FaultEffect::Blocked { fails: true, .. } if writes => u64::MAX,
            _ => 0,
        }
    }

    pub(crate) fn inject(&self, probe: &Probe, totals: &mut Totals) {
        let mut model = probe.model.lock();
        model.failed_home_writes = model.failed_home_writes.saturating_add(self.failed_home_writes());
        drop(model);
        if let On::Manifest(saves) = self.on {
            if probe.on_hdd {
                // On the HDD, a save fails as any write does.
                let fault = Fault::new(FaultEffect::Eio).on(IoOp::Write).within(AREAS).times(saves.count);
                Self::after(false, "EIO on the manifest's areas", fault, saves.skip).inject_into(
                    &probe.hdd,
                    &probe.ssd,
                    &probe.manifest,
                    totals,
                );
                return;
            }
            probe.watch_saves(saves);
        }
        self.inject_into(&probe.hdd, &probe.ssd, &probe.manifest, totals);
    }

    pub(crate) fn inject_into(
        &self,
        hdd: &SimDevice,
        ssd: &SimDevice,
        manifest: &MemoryManifest,
        totals: &mut Totals,
    ) {
        totals.fault(self.kind);
        match &self.on {
            On::Manifest(saves) => saves.fail(manifest),
            On::Device { ssd: on_ssd, fault, skip } => {
                let device = if *on_ssd { ssd } else { hdd };
                let mut fault = fault.clone();
                if fault.op != Some(IoOp::Grow) {
                    // Fault numbers count from the open of the device.
                    fault.from_op += device.ops();
                }
                if *skip > 0 {
                    // The first applicable fault takes effect: this one lets `skip` operations succeed.
                    let passes = FaultEffect::Slow(Duration::ZERO);
                    device.inject(Fault { effect: passes, times: *skip, ..fault.clone() });
                }
                device.inject(fault);
            }
        }
    }
}

/// When a write of a record fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum When {
    Opening,
    AtWork,
    Closing,
}

/// A failure of a record that is written at that time.
pub(crate) fn some(when: When, rng: &mut SmallRng) -> Planned {
    match (when, rng.random_range(0..3)) {
        (When::AtWork, 0) => Planned::growth(rng).swap_remove(0),
        (When::AtWork, _) => Planned::saves(Saves::some(12, rng)),
        (When::Opening | When::Closing, 0) => Planned::saves(Saves::some(2, rng)),
        _ => {
            let effect = [FaultEffect::Eio, FaultEffect::Eio, FaultEffect::NoSpace, FaultEffect::Gone]
                [rng.random_range(0..4)];
            superblock(
                rng.random_bool(0.5),
                effect,
                rng.random_range(0..3),
                [1, 1, 3][rng.random_range(0..3)],
            )
        }
    }
}

/// Writes of a superblock fail, after `skip` others.
pub(crate) fn superblock(ssd: bool, effect: FaultEffect, skip: u64, times: u64) -> Planned {
    let fault = Fault::new(effect).on(IoOp::Write).within(SUPERBLOCKS).times(times);
    Planned::after(ssd, "superblock write", fault, skip)
}
