//! Opens stores on simulated devices, and checks every page after a crash.

use super::content::version_in;
use super::coverage::{State, States};
use super::model::{Model, SpaceState};
use super::plan::Plan;
use super::probe::{Moment, Phase, Probe, Rate};
use pagetier::{Builder, Error, MemoryManifest, PageId, PageStore, SpaceId};
use pagetier_devio::{SharedDevice, SimDevice, SimPower};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// More operations than any life has: beyond this, something loops.
const OPS_MAX: u64 = 400_000;

/// The number of refused operations after that before the caller is stopped.
const REFUSALS_MAX: u64 = 50_000;

/// The maximum duration of a life, in virtual time.
const LIFE_MAX: Duration = Duration::from_secs(24 * 3600);

/// A power supply that stops a caller which retries forever.
pub(super) fn bounded_power() -> SimPower {
    let power = SimPower::new();
    power.cut_at(OPS_MAX);
    power.panic_after_refusals(REFUSALS_MAX);
    power
}

/// What a crash does to the volatile writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// Each is present, absent or torn, as this seed determines.
    Cut(u64),
    /// The process died and the power stayed on. Operations in flight landed or not, as this seed determines.
    Killed(u64),
    /// Exactly these are present, whole: a bit for each, the SSD's first.
    Landed(u64),
}

impl Outcome {
    /// Whether volatile writes stay volatile.
    pub(super) const fn keeps_power(self) -> bool {
        matches!(self, Self::Killed(_))
    }
}

impl Moment {
    /// The devices after a crash at this moment.
    pub(super) fn crashed(&self, outcome: Outcome) -> (SimDevice, SimDevice, SimPower) {
        let power = bounded_power();
        let (hdd, ssd) = match outcome {
            Outcome::Cut(seed) => {
                (self.hdd.after_power_cut(seed, &power), self.ssd.after_power_cut(seed ^ 0x55, &power))
            }
            Outcome::Killed(seed) => {
                (self.hdd.after_kill(seed, &power), self.ssd.after_kill(seed ^ 0x55, &power))
            }
            Outcome::Landed(bits) => {
                let ssd = self.ssd.after_landing(&|at| bits >> at & 1 == 1, 1, &power);
                let first = self.ssd.unflushed();
                (self.hdd.after_landing(&|at| bits >> (first + at) & 1 == 1, 2, &power), ssd)
            }
        };
        (hdd, ssd, power)
    }
}

/// Tolerated defects after faults that cannot be detected, or not repaired.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Lenient {
    /// A page's only copy may be bad: reading it yields an error.
    pub(super) corrupt: bool,
    /// A home write may have been lost without a trace: any version may be read.
    pub(super) stale: bool,
    /// The power stayed on: readable data need not be durable.
    pub(super) volatile: bool,
}

/// Runs `work` in virtual time on its own runtime.
pub(super) fn in_virtual_time<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(|e| e.to_string())?;
    runtime.block_on(async move {
        tokio::time::timeout(LIFE_MAX, work).await.unwrap_or_else(|_| Err("hangs".to_owned()))
    })
}

pub(super) async fn open(
    plan: &Plan,
    (hdd, ssd): (SharedDevice, SharedDevice),
    manifest: &Arc<MemoryManifest>,
) -> Result<PageStore, String> {
    builder(plan, (hdd, ssd), manifest).open().await.map_err(|e| format!("does not open: {e}"))
}

/// The store's options, including its devices.
pub(super) fn builder(
    plan: &Plan,
    (hdd, ssd): (SharedDevice, SharedDevice),
    manifest: &Arc<MemoryManifest>,
) -> Builder {
    let builder = plan.builder().in_memory(Arc::clone(manifest)).hdd_device(hdd);
    // Without slots the device holds the ring.
    if plan.ssd_bytes() == 0 { builder.ring_device(ssd) } else { builder.ssd_device(ssd) }
}

/// The results of a check.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Checked {
    pub(super) pages: u64,
    pub(super) corrupt: u64,
    pub(super) states: States,
}

/// Checks that every page reads as the contract allows, and records each version found.
pub(super) async fn check(
    store: &PageStore,
    model: &Mutex<Model>,
    lenient: Lenient,
) -> Result<Checked, String> {
    check_spaces(store, &mut model.lock())?;
    let pages: Vec<PageId> = {
        let model = model.lock();
        let live = model.spaces.iter().filter(|(_, s)| s.state == SpaceState::Live);
        live.flat_map(|(id, s)| s.pages.keys().map(|no| PageId::new(SpaceId(*id), *no))).collect()
    };
    let mut checked = Checked::default();
    for page in pages {
        checked.pages += 1;
        let found = match store.get(page).await {
            Ok(guard) => version_in(&guard, page)?,
            Err(Error::NoSuchPage { .. }) => 0,
            Err(error) if is_torn_discard(model, page, &error) => 0,
            Err(error) if lenient.corrupt && error.to_string().contains("corrupt") => {
                checked.corrupt += 1;
                continue;
            }
            Err(error) => return Err(format!("page {page}: {error}")),
        };
        let mut model = model.lock();
        let Some(p) = model.page(page) else { continue };
        if !p.allows(found) && !lenient.stale {
            return Err(format!("page {page} reads as version {found}, allowed is {}", p.allowed()));
        }
        checked.states.add_if(found < p.published(), State::FoundOlder);
        p.found(found, !lenient.volatile);
    }
    store.validate()?;
    let recovery = store.recovery();
    checked.states.add_if(recovery.trusted > 0, State::FoundTrusted);
    checked.states.add_if(recovery.found > 0, State::FoundZone);
    checked.states.add_if(recovery.superseded > 0, State::FoundSuperseded);
    checked.states.add_if(recovery.repaired > 0, State::FoundRepaired);
    Ok(checked)
}

/// Whether the error may concern a discarded page whose home was torn for good.
pub(super) fn is_torn_discard(model: &Mutex<Model>, page: PageId, error: &Error) -> bool {
    let mut model = model.lock();
    let torn = model.torn_homes && error.to_string().contains("corrupt on hdd");
    torn && model.page(page).is_some_and(|p| p.may_be_torn())
}

/// Checks that created spaces exist and dropped ones do not.
pub(super) fn check_spaces(store: &PageStore, model: &mut Model) -> Result<(), String> {
    model.rest();
    let there = store.spaces().list();
    let spaces: Vec<(u32, String, SpaceState)> =
        model.spaces.iter().map(|(id, space)| (*id, space.name.clone(), space.state)).collect();
    for (id, name, state) in spaces {
        let found = there.iter().any(|s| s.id.0 == id && s.name == name);
        match (state, found) {
            (SpaceState::Live, false) if model.settle_doubt(id) => {}
            (SpaceState::Live, false) => return Err(format!("space {name} is gone")),
            (SpaceState::Dropped, true) => return Err(format!("space {name} was dropped, but is there")),
            // The space is unchanged.
            (SpaceState::Dropping | SpaceState::Live, true) => model.found_space(id),
            (SpaceState::Dropping, false) => model.dropped(id),
            (SpaceState::Dropped, false) => {}
        }
    }
    Ok(())
}

/// The results of one crash.
pub(super) struct Examined {
    pub(super) checked: Checked,
    /// The moments taken during the recovery and the check.
    pub(super) moments: Vec<Moment>,
}

/// Recovers the state that `outcome` leaves of `moment`, and checks it. Takes up to `moments` moments
/// meanwhile, for further crashes.
pub(super) fn examine(
    plan: &Plan,
    moment: &Moment,
    outcome: Outcome,
    lenient: Lenient,
    rate: Rate,
) -> Result<Examined, String> {
    let (mut hdd, mut ssd, power) = moment.crashed(outcome);
    let lenient = Lenient { volatile: outcome.keeps_power(), ..lenient };
    let seed = match outcome {
        Outcome::Cut(seed) | Outcome::Landed(seed) | Outcome::Killed(seed) => seed,
    };
    in_virtual_time(async {
        let model = moment.model.clone();
        if matches!(rate, Rate::Never) {
            let manifest = Arc::new(moment.manifest.fork());
            let store = open(plan, (Arc::new(hdd), Arc::new(ssd)), &manifest).await?;
            let mut checked = check(&store, &Mutex::new(model), lenient).await?;
            checked.states = checked.states.union(crash_states(moment, outcome));
            return Ok(Examined { checked, moments: Vec::new() });
        }
        hdd = hdd.with_latency(Duration::from_micros(plan.hdd_us));
        ssd = ssd.with_latency(Duration::from_micros(plan.ssd_us));
        let probe = Probe::new(plan, (hdd, ssd, power), moment.manifest.fork(), model, seed ^ 0x77);
        probe.set(rate, Phase::Recovering, moment.depth + 1);
        probe.follow(outcome);
        let store = Arc::new(probe.open(plan).await?);
        probe.watch(&store);
        let mut checked = check(&store, &probe.model, lenient).await?;
        checked.states = checked.states.union(crash_states(moment, outcome));
        // A moment right after the check, too.
        let last = probe.now();
        let mut moments = probe.take();
        moments.push(last);
        probe.violation()?;
        Ok(Examined { checked, moments })
    })
}

/// The states to count for a crash at this moment.
pub(super) fn crash_states(moment: &Moment, outcome: Outcome) -> States {
    let mut states = moment.states;
    states.add_if(outcome.keeps_power(), State::Killed);
    states.add_if(moment.killed && !outcome.keeps_power(), State::KilledThenCut);
    states.add_if(moment.killed && outcome.keeps_power(), State::KilledTwice);
    let failed = moment.states.any(&State::FLUSH_FAILED);
    states.add_if(failed && outcome.keeps_power(), State::ReopenedAfterFlush);
    states.add_if(moment.depth == 1, State::Twice);
    states.add_if(moment.depth > 1, State::Thrice);
    states
}
