//! Failing devices: faults in the random lives, and the failure of the n-th operation of each device, for
//! every n.

use super::life::{Life, Start};
use super::plan::Plan;
use super::probe::{Moment, Probe, Rate};
use super::records::{self, Saves};
use super::seed::{Violation, panic_text};
use super::steer::Steer;
use super::totals::Totals;
use super::world::{Lenient, Outcome, check, examine, in_virtual_time, open};
use pagetier::MemoryManifest;
use pagetier_devio::{Fault, FaultEffect, IoOp, SharedDevice, SimDevice};
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::SmallRng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

const EIO_ON_A_HOME: &str = "EIO on a home write";

/// The homes' range on the HDD.
const HOMES: std::ops::Range<u64> = 1 << 20..u64::MAX;

/// A fault of a device or of the manifest.
#[derive(Clone, Debug)]
pub(super) struct Planned {
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
    pub(super) fn some(rng: &mut SmallRng) -> Vec<Self> {
        (0..rng.random_range(1..=3)).map(|_| Self::random(rng)).collect()
    }

    /// A fault on this device, after `skip` operations that it would apply to.
    pub(super) fn after(ssd: bool, kind: &'static str, fault: Fault, skip: u64) -> Self {
        Self { kind, on: On::Device { ssd, fault, skip } }
    }

    fn device(ssd: bool, kind: &'static str, fault: Fault) -> Self {
        Self::after(ssd, kind, fault, 0)
    }

    /// A fault on the SSD.
    pub(super) fn ssd(kind: &'static str, fault: Fault) -> Self {
        Self::device(true, kind, fault)
    }

    /// Saves of the manifest fail.
    pub(super) fn saves(saves: Saves) -> Self {
        let kind = if saves.replaced { "manifest saved, told as a failure" } else { "manifest not saved" };
        Self { kind, on: On::Manifest(saves) }
    }

    fn fault(&self) -> Option<&Fault> {
        match &self.on {
            On::Device { fault, .. } => Some(fault),
            On::Manifest(_) => None,
        }
    }

    /// One home write fails, after this many operations.
    pub(super) fn home(after: u64) -> Self {
        let fault = Fault::new(FaultEffect::Eio).on(IoOp::Write).within(HOMES).times(1);
        Self::device(false, EIO_ON_A_HOME, fault.from_op(after))
    }

    /// One or a few home writes take this much longer.
    pub(super) fn slow_home(extra: Duration) -> Self {
        let fault = Fault::new(FaultEffect::Slow(extra)).on(IoOp::Write).within(HOMES).times(3);
        Self::device(false, "slow home write", fault)
    }

    /// Whether the store must accept writes again by itself once the fault has passed.
    pub(super) fn passes(&self) -> bool {
        let grows = self.fault().is_some_and(|fault| fault.op == Some(IoOp::Grow));
        self.kind == EIO_ON_A_HOME || grows || matches!(self.on, On::Manifest(_))
    }

    /// Injects the fault without counting it.
    pub(super) fn inject_now(&self, probe: &Probe) {
        self.inject(probe, &mut Totals::default());
    }

    /// Flushes of one of the devices fail.
    pub(super) fn flushes(plan: &Plan, rng: &mut SmallRng) -> Vec<Self> {
        let fault = Fault::new(FaultEffect::Eio).on(IoOp::Flush).times([1, 1, 1, 3][rng.random_range(0..4)]);
        let fault = fault.from_op(rng.random_range(1..=2 * u64::from(plan.ops)));
        vec![Self::device(rng.random_bool(0.5), "EIO on a flush", fault)]
    }

    /// The HDD cannot grow.
    pub(super) fn growth(rng: &mut SmallRng) -> Vec<Self> {
        let (kind, effect) = if rng.random_bool(0.7) {
            ("ENOSPC on growth", FaultEffect::NoSpace)
        } else {
            ("EIO on growth", FaultEffect::Eio)
        };
        let times = [1, 2, 3, u64::MAX][rng.random_range(0..4)];
        let fault = Fault::new(effect).on(IoOp::Grow).from_op(rng.random_range(1..=2)).times(times);
        vec![Self::device(false, kind, fault)]
    }

    /// Whether it makes flushes fail.
    pub(super) fn fails_flushes(&self) -> bool {
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
        let op = [Some(IoOp::Read), Some(IoOp::Write), Some(IoOp::Write), Some(IoOp::Flush), None]
            [rng.random_range(0..5)];
        let times = [1, 1, 3, 20][rng.random_range(0..4)];
        let mut fault = Fault::new(effect).from_op(rng.random_range(1..2000)).times(times);
        fault.op = op;
        Self::device(rng.random_bool(0.5), kind, fault)
    }

    /// Whether it may lose a home write without a trace.
    pub(super) fn loses_home_writes(&self) -> bool {
        let loses = |fault: &Fault| matches!(fault.effect, FaultEffect::Lost | FaultEffect::Misdirected(_));
        matches!(&self.on, On::Device { ssd: false, fault, .. } if loses(fault))
    }

    /// Whether it may fail a home write that the store retries, and the retry too.
    fn tears_homes(&self) -> bool {
        let On::Device { ssd: false, fault, .. } = &self.on else { return false };
        let writes = matches!(fault.op, None | Some(IoOp::Write));
        writes && fault.effect == FaultEffect::Eio && fault.times > 1
    }

    pub(super) fn inject(&self, probe: &Probe, totals: &mut Totals) {
        probe.model.lock().torn_homes |= self.tears_homes();
        if let On::Manifest(saves) = self.on {
            probe.note_failed_saves(saves);
        }
        self.inject_into(&probe.hdd, &probe.ssd, &probe.manifest, totals);
    }

    pub(super) fn inject_into(
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
                    // Fault numbers count from the opening of the device.
                    fault.from_op += device.ops();
                }
                if *skip > 0 {
                    // The first applicable fault takes effect: this one lets `skip` operations pass unharmed.
                    let passes = FaultEffect::Slow(Duration::ZERO);
                    device.inject(Fault { effect: passes, times: *skip, ..fault.clone() });
                }
                device.inject(fault);
            }
        }
    }
}

/// Whether an opening reports that it cannot determine the newest map: the correct response to map blocks
/// that were reported as written but were not.
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
    /// Data reported as written is missing: the store can only detect this, not everywhere, and cannot repair
    /// it.
    corrupts: bool,
}

const fn kind(name: &'static str, effect: FaultEffect, op: Option<IoOp>, times: u64) -> Kind {
    let corrupts = matches!(effect, FaultEffect::Misdirected(_) | FaultEffect::Lost | FaultEffect::BitFlip)
        && matches!(op, Some(IoOp::Write));
    Kind { name, effect, op, times, corrupts }
}

const KINDS: [Kind; 15] = [
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
    kind("short transfer", FaultEffect::Short, None, 1),
    kind("misdirected write", FaultEffect::Misdirected(3 * 4096), Some(IoOp::Write), 1),
    kind("lost write", FaultEffect::Lost, Some(IoOp::Write), 1),
    kind("bit rot in a write", FaultEffect::BitFlip, Some(IoOp::Write), 1),
    kind("bit flipped in a read", FaultEffect::BitFlip, Some(IoOp::Read), 1),
];

/// The store's error when it cannot determine the contents of its SSD.
const NO_MAP: &str = "neither of the two map checkpoints is sound";

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

/// Runs `run` and reports its failure, or its panic, as a violation.
fn judged(
    plan: &Plan,
    place: String,
    totals: &mut Totals,
    run: impl FnOnce(&mut Totals) -> Result<(), String>,
) -> Result<(), Violation> {
    let before = totals.crashes;
    let ended = catch_unwind(AssertUnwindSafe(|| run(totals)));
    let ended = ended.unwrap_or_else(|panic| Err(format!("panicked: {}", panic_text(&*panic))));
    let after_crashes = totals.crashes - before;
    ended.map_err(|what| Violation { what, plan: Box::new(plan.clone()), place, after_crashes })
}

impl FaultBase {
    /// Builds the base, deterministically for a seed and SSD policy.
    ///
    /// # Errors
    /// What went wrong while building it.
    pub fn new(seed: u64, ssd_policy: &'static str) -> Result<Self, String> {
        let mut plan = Plan::steered(seed, Steer::Free);
        (plan.pages, plan.frames, plan.slots, plan.ring) = (80, 20, 36, 5);
        (plan.ssd_policy, plan.pool_policy, plan.zone_percent, plan.outqueue) = (ssd_policy, "gd2l", 40, 40);
        (plan.hdd_us, plan.ssd_us, plan.tasks, plan.ops) = (3000, 300, 2, 250);
        plan.without = Plan::ORDINARY;
        let made = Arc::new(plan.clone());
        let life = Life::new(&made, Start::Blank, Rate::Never, seed);
        let moment = life.live(&mut Totals::default())?.pop().ok_or("no moment")?;
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
        judged(&self.plan, place, totals, |totals| {
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
        let plan = Plan { steer: Steer::Records, pages: 500, ..(*self.plan).clone() };
        let place = format!("fault case {index}: {}", case.name());
        judged(&plan, place, totals, |totals| case.run(&Arc::new(plan.clone()), &self.moment, index, totals))
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
        let lenient = Lenient { corrupt: kind.corrupts, stale: kind.corrupts, ..Lenient::default() };
        for (at, moment) in moments.iter().enumerate() {
            let outcome = Outcome::Cut(n << 8 | at as u64);
            match examine(&self.plan, moment, outcome, lenient, Rate::Never) {
                Ok(done) => totals.crash(&done.checked),
                // A checkpoint never landed, and a crash interrupted the next one: the store reports that,
                // and shows no old pages.
                Err(what) if kind.corrupts && is_about_the_map(&what) => {}
                Err(what) => return Err(what),
            }
        }
        Ok(())
    }

    /// The store opens, or reports why not and opens once the fault has passed; nothing is lost either way.
    fn opening(&self, kind: Kind, planned: &Planned, totals: &mut Totals) -> Result<(), String> {
        let (hdd, ssd, _power) = self.moment.crashed(Outcome::Cut(4));
        let manifest = Arc::new(self.moment.manifest.fork());
        planned.inject_into(&hdd, &ssd, &manifest, totals);
        let model = Mutex::new(self.moment.model.clone());
        let (hdd, ssd) = (Arc::new(hdd), Arc::new(ssd));
        let devices = || (Arc::clone(&hdd) as SharedDevice, Arc::clone(&ssd) as SharedDevice);
        let lenient = Lenient { corrupt: kind.corrupts, stale: kind.corrupts, ..Lenient::default() };
        let checked = in_virtual_time(async {
            let first = open(&self.plan, devices(), &manifest).await;
            hdd.clear_faults();
            ssd.clear_faults();
            let store = match first {
                Ok(store) => store,
                Err(_) => match open(&self.plan, devices(), &manifest).await {
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
