//! A moment of a store, and what a crash there leaves of its devices.

use super::disks::Disks;
use crate::campaign::contract::model::Model;
use crate::campaign::draw::plan::Plan;
use crate::campaign::report::coverage::{State, States};
use pagetier::MemoryManifest;
use pagetier_testing::{SimMoment, SimPower};
use std::ops::Range;

/// The range of both copies of a superblock, on either device.
pub(super) const SUPERBLOCKS: Range<u64> = 0..2 * 4096;

/// More operations than any life has: beyond this, something loops.
const OPS_MAX: u64 = 400_000;

/// The number of operations refused after that before the caller is stopped with a panic.
const REFUSALS_MAX: u64 = 50_000;

/// A moment of a store: the possible outcomes of a crash there, and its guarantees.
#[derive(Debug)]
pub(crate) struct Moment {
    pub(crate) hdd: SimMoment,
    pub(crate) ssd: SimMoment,
    pub(crate) ring: SimMoment,
    pub(crate) manifest: MemoryManifest,
    pub(crate) model: Model,
    pub(crate) states: States,
    /// The boundary's number, for messages.
    pub(crate) boundary: u64,
    /// The number of consecutive crashes before this moment without work in between.
    pub(crate) depth: u32,
    /// The last of them left the power on: volatile writes of an earlier life may still exist.
    pub(crate) killed: bool,
}

/// A power supply that stops a caller which retries forever.
pub(crate) fn bounded_power() -> SimPower {
    let power = SimPower::new();
    power.cut_at(OPS_MAX);
    power.panic_after_refusals(REFUSALS_MAX);
    power
}

/// What a crash does to the volatile writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Each is present, absent or torn, as this seed determines.
    Cut(u64),
    /// The process died and the power stayed on. Operations in flight landed or not, as this seed determines.
    Killed(u64),
    /// Exactly these are present, whole: a bit for each, the SSD's first.
    Landed(u64),
}

impl Outcome {
    /// Whether volatile writes stay volatile.
    pub(crate) const fn keeps_power(self) -> bool {
        matches!(self, Self::Killed(_))
    }
}

/// A crash of a store.
#[derive(Clone, Copy)]
pub(crate) struct Crash<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) moment: &'a Moment,
    pub(crate) outcome: Outcome,
}

impl Crash<'_> {
    /// The devices after the crash.
    pub(crate) fn devices(&self) -> Disks {
        self.moment.crashed(self.outcome)
    }

    /// The states to count for the crash.
    pub(crate) fn states(&self) -> States {
        let Moment { mut states, killed, depth, .. } = *self.moment;
        let keeps_power = self.outcome.keeps_power();
        states.add_if(keeps_power, State::Killed);
        // A recovery has read, and perhaps relied on, versions that only this cut takes (I13).
        states.add_if(killed && !keeps_power, State::KilledThenCut);
        states.add_if(killed && keeps_power, State::KilledTwice);
        states.add_if(states.any(&State::FLUSH_FAILED) && keeps_power, State::ReopenedAfterFlush);
        states.add_if(depth == 1, State::Twice);
        states.add_if(depth > 1, State::Thrice);
        states
    }
}

impl Moment {
    /// The devices after a crash at this moment.
    pub(crate) fn crashed(&self, outcome: Outcome) -> Disks {
        let power = bounded_power();
        let (hdd, ssd, ring) = match outcome {
            // Other seeds for the other devices: each loses its volatile writes independently.
            Outcome::Cut(seed) => (
                self.hdd.after_power_cut(seed, &power),
                self.ssd.after_power_cut(seed ^ 0x55, &power),
                self.ring.after_power_cut(seed ^ 0xaa, &power),
            ),
            Outcome::Killed(seed) => (
                self.hdd.after_kill(seed, &power),
                self.ssd.after_kill(seed ^ 0x55, &power),
                self.ring.after_kill(seed ^ 0xaa, &power),
            ),
            Outcome::Landed(bits) => {
                let ssd = self.ssd.after_landing(&|at| bits >> at & 1 == 1, 1, &power);
                let first = self.ssd.unflushed();
                let hdd = self.hdd.after_landing(&|at| bits >> (first + at) & 1 == 1, 2, &power);
                // The short workloads never use this device: their ring is on the SSD's.
                (hdd, ssd, self.ring.fork(3, &power))
            }
        };
        Disks { hdd, ssd, ring, power }
    }
}
