//! Failing devices: faults in the random lives, and the failure of the n-th operation of each device, for
//! every n.

use super::life::{Life, Start};
use super::records;
use crate::campaign::draw::hazard::Hazard;
use crate::campaign::draw::plan::Plan;
use crate::campaign::report::totals::Totals;
use crate::campaign::report::violation::{Violation, judged};
use crate::campaign::world::crash::{Crash, Moment, Outcome};
use crate::campaign::world::disks::{Disks, SharedDisks};
use crate::campaign::world::examine::{Lenient, check, examine, in_virtual_time};
use crate::campaign::world::planned::Planned;
use crate::campaign::world::probe::Rate;
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Whether an open reports that it cannot determine the newest map, which is correct if map blocks were
/// reported as written but were not.
fn is_about_the_map(what: &str) -> bool {
    what.contains(NO_MAP) || what.contains("map checkpoint")
}

/// A fault of the n-th operation of a device.
#[derive(Clone, Copy, Debug)]
struct Kind {
    name: &'static str,
    effect: FaultEffect,
    op: Option<IoOp>,
    times: u64,
    /// Data reported as written is missing: the store cannot repair this, and cannot detect it everywhere.
    corrupts: bool,
}

const fn kind(name: &'static str, effect: FaultEffect, op: Option<IoOp>, times: u64) -> Kind {
    let corrupts = matches!(effect, FaultEffect::Misdirected(_) | FaultEffect::Lost | FaultEffect::BitFlip)
        && matches!(op, Some(IoOp::Write));
    Kind { name, effect, op, times, corrupts }
}

/// The whole device hangs, for longer than requests wait for a frame.
const fn blocked(fails: bool) -> FaultEffect {
    FaultEffect::Blocked { time: Duration::from_secs(30), fails }
}

const KINDS: [Kind; 18] = [
    kind("EIO on a read or write", FaultEffect::Eio, None, 1),
    kind("EIO three times", FaultEffect::Eio, None, 3),
    kind("EIO for ever", FaultEffect::Eio, None, u64::MAX),
    kind("EIO on writes for ever", FaultEffect::Eio, Some(IoOp::Write), u64::MAX),
    kind("EIO on reads for ever", FaultEffect::Eio, Some(IoOp::Read), u64::MAX),
    kind("EIO on a flush", FaultEffect::Eio, Some(IoOp::Flush), 1),
    kind("ENOSPC once", FaultEffect::NoSpace, Some(IoOp::Write), 1),
    kind("ENOSPC for ever", FaultEffect::NoSpace, Some(IoOp::Write), u64::MAX),
    kind("device gone for a moment", FaultEffect::Gone, None, 5),
    kind("device gone for good", FaultEffect::Gone, None, u64::MAX),
    kind("fenced for good", FaultEffect::Fenced, None, u64::MAX),
    kind("blocks, then goes on", blocked(false), None, 1),
    kind("blocks, then fails", blocked(true), None, 1),
    kind("short transfer", FaultEffect::Short, None, 1),
    kind("misdirected write", FaultEffect::Misdirected(3 * 4096), Some(IoOp::Write), 1),
    kind("lost write", FaultEffect::Lost, Some(IoOp::Write), 1),
    kind("bit rot in a write", FaultEffect::BitFlip, Some(IoOp::Write), 1),
    kind("bit flipped in a read", FaultEffect::BitFlip, Some(IoOp::Read), 1),
];

/// The store's error when it cannot determine the contents of its SSD.
const NO_MAP: &str = "neither of the two map checkpoints";

/// The number of operations of each device that are made to fail, one per case.
const OPS_AT_WORK: u64 = 240;
const OPS_OF_OPENING: u64 = 60;

/// A store, with every way in which the n-th operation on one of its devices may fail, at work or while it
/// opens.
#[derive(Debug)]
pub struct FaultBase {
    plan: Arc<Plan>,
    moment: Moment,
}

impl FaultBase {
    /// Builds the base, deterministically for a seed and SSD policy.
    ///
    /// # Errors
    /// What went wrong while building it.
    pub fn new(seed: u64, ssd_policy: &'static str) -> Result<Self, String> {
        let mut plan = Plan::directed(seed, Hazard::Free);
        (plan.pages, plan.frames, plan.slots, plan.ring) = (80, 20, 36, 5);
        (plan.ssd_policy, plan.pool_policy, plan.zone_percent, plan.outqueue) = (ssd_policy, "gd2l", 40, 40);
        // Of a manifest on the HDD, or a ring there, the random lives have the faults.
        (plan.hdd_us, plan.ssd_us, plan.tasks, plan.ops, plan.on_hdd) = (3000, 300, 2, 250, 0);
        // No hazard beside the fault of the case, so that the case names the cause of a violation.
        plan.without = Plan::ORDINARY;
        let made = Arc::new(plan.clone());
        let life = Life::new(&made, Start::Blank, Rate::Never, seed);
        let moment = life.live(&mut Totals::default())?.pop().ok_or("no moment")?;
        // Each of some thousand cases goes on for as long after its fault.
        plan.ops = 60;
        Ok(Self { plan: Arc::new(plan), moment })
    }

    /// The number of cases.
    #[must_use]
    pub fn cases() -> u64 {
        Self::operations() + records::Case::all().len() as u64
    }

    /// The number of cases in which a device operation fails; those in which a record fails follow them.
    const fn operations() -> u64 {
        2 * KINDS.len() as u64 * (OPS_AT_WORK + OPS_OF_OPENING)
    }

    /// Runs case number `index`, and crashes the store occasionally.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn run(&self, index: u64, totals: &mut Totals) -> Result<(), Violation> {
        if index >= Self::operations() {
            return self.record(index, totals);
        }
        // Neighbouring cases differ in kind, so that a short range of cases has all of them.
        let kind = KINDS[(index % KINDS.len() as u64) as usize];
        let rest = index / KINDS.len() as u64;
        let (ssd, n) = (rest % 2 == 1, rest / 2 + 1);
        let opening = n > OPS_AT_WORK;
        let n = if opening { n - OPS_AT_WORK } else { n };
        let device = if ssd { "SSD" } else { "HDD" };
        let when = if opening { "opening" } else { "at work" };
        let place = format!("fault case {index}: {} at operation {n} of the {device}, {when}", kind.name);
        let mut fault = Fault::new(kind.effect).from_op(n).times(kind.times);
        fault.op = kind.op;
        let planned = Planned::device(ssd, kind.name, fault);
        judged(&self.plan, place, totals, |_, totals| {
            if opening {
                self.opening(kind, &planned, totals)
            } else {
                self.at_work(kind, planned, n, totals)
            }
        })
    }

    fn record(&self, index: u64, totals: &mut Totals) -> Result<(), Violation> {
        let cases = records::Case::all();
        let case = &cases[(index - Self::operations()) as usize % cases.len()];
        // The base has all of its 80 pages. Without a higher limit nothing would grow, and no growth
        // could fail.
        let plan = Plan { hazard: Hazard::Records, pages: 500, ..(*self.plan).clone() };
        let place = format!("fault case {index}: {}", case.name());
        judged(&plan, place, totals, |_, totals| {
            case.run(&Arc::new(plan.clone()), &self.moment, index, totals)
        })
    }

    fn at_work(&self, kind: Kind, planned: Planned, n: u64, totals: &mut Totals) -> Result<(), String> {
        let start = Start::Crash(&self.moment, Outcome::Cut(3));
        let life = Life {
            faults: vec![planned],
            closes: n.is_multiple_of(4),
            ..Life::new(&self.plan, start, Rate::Some { share: 0.005, max: 4 }, n)
        };
        totals.lives += 1;
        let moments = life.live(totals)?;
        // A home write that was reported and never landed leaves the older page there, which is sound:
        // reading cannot tell.
        let lenient = Lenient { corrupt: kind.corrupts, stale: kind.corrupts, ..Lenient::default() };
        for (at, moment) in moments.iter().enumerate() {
            let outcome = Outcome::Cut(n << 8 | at as u64);
            match examine(Crash { plan: &self.plan, moment, outcome }, lenient, Rate::Never) {
                Ok(done) => totals.crash(&done.checked),
                // A checkpoint was lost and a crash interrupted the next one: the store reports that and
                // returns no old pages.
                Err(what) if kind.corrupts && is_about_the_map(&what) => {}
                Err(what) => return Err(what),
            }
        }
        Ok(())
    }

    /// The store opens, or reports why not and opens once the fault has passed; nothing is lost either way.
    fn opening(&self, kind: Kind, planned: &Planned, totals: &mut Totals) -> Result<(), String> {
        let Disks { hdd, ssd, ring, .. } = self.moment.crashed(Outcome::Cut(4));
        let manifest = Arc::new(self.moment.manifest.fork());
        planned.inject_into(&hdd, &ssd, &manifest, totals);
        let model = Mutex::new(self.moment.model.clone());
        let (hdd, ssd, ring) = (Arc::new(hdd), Arc::new(ssd), Arc::new(ring));
        let devices = || SharedDisks { hdd: hdd.clone(), ssd: ssd.clone(), ring: ring.clone() };
        let lenient = Lenient { corrupt: kind.corrupts, stale: kind.corrupts, ..Lenient::default() };
        let checked = in_virtual_time(async {
            let first = self.plan.open(devices(), &manifest).await;
            hdd.clear_faults();
            ssd.clear_faults();
            let store = match first {
                Ok(store) => store,
                // The fault has passed: what the first open left behind must not stop the second.
                Err(_) => match self.plan.open(devices(), &manifest).await {
                    Ok(store) => store,
                    Err(what) if kind.corrupts && is_about_the_map(&what) => return Ok(None),
                    Err(what) => return Err(what),
                },
            };
            check(&store, &model, lenient).await.map(Some)
        })?;
        checked.iter().for_each(|checked| totals.crash(checked));
        Ok(())
    }
}
