//! The running operations on a crashed store: a few lives with frees, resizes, switches and backups; a
//! shutdown under load, which must lose nothing and refuse later operations; a replacement of the SSD under
//! load, where a crash at any moment must leave the SSD that the manifest names.

use super::life::{Life, Start};
use crate::campaign::contract::model::Model;
use crate::campaign::draw::hazard::Hazard;
use crate::campaign::draw::plan::Plan;
use crate::campaign::polls::up_to;
use crate::campaign::report::coverage::State;
use crate::campaign::report::totals::{Checked, Totals};
use crate::campaign::work::worker::{LONG, Terms, Worker};
use crate::campaign::world::crash::{Crash, Moment, Outcome, bounded_power};
use crate::campaign::world::desk::Folder;
use crate::campaign::world::disks::Disks;
use crate::campaign::world::examine::{Lenient, check, examine as recover, in_virtual_time};
use crate::campaign::world::planned::Planned;
use crate::campaign::world::probe::{Phase, Probe, Rate};
use crate::campaign::world::saves::Saves;
use pagetier::{Error, OpenError, PageStore, stats::SsdState};
use pagetier_devio::Device;
use pagetier_testing::{SimDevice, SimMoment};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The number of moments of a replacement that are crashed.
const MOMENTS_MAX: usize = 8;

/// Tests the running operations on a crashed store.
pub(crate) fn examine(crash: Crash<'_>, rng: &mut SmallRng, totals: &mut Totals) -> Result<(), String> {
    let mut rng = SmallRng::seed_from_u64(rng.random());
    // Without slots there is no SSD to replace.
    let act = rng.random_range(0..if crash.plan.slots == 0 { 3 } else { 5 });
    match act {
        0 | 1 => lives(crash, &mut rng, totals).map_err(|wrong| format!("upkeep: {wrong}")),
        2 => shut_down(crash, rng, totals).map_err(|wrong| format!("a shutdown under load: {wrong}")),
        _ => replace_ssd(crash, rng, totals).map_err(|wrong| format!("another SSD under load: {wrong}")),
    }
}

/// Crashes a store at `moment` in these ways, and checks it.
fn crash_at(
    plan: &Plan,
    moment: &Moment,
    outcomes: &[Outcome],
    state: Option<State>,
    totals: &mut Totals,
) -> Result<(), String> {
    for outcome in outcomes.iter().copied() {
        let done = recover(Crash { plan, moment, outcome }, Lenient::default(), Rate::Never);
        let mut checked = done.map_err(|wrong| format!("{wrong} ({outcome:?})"))?.checked;
        state.into_iter().for_each(|state| checked.states.add(state));
        totals.crash(&checked);
    }
    Ok(())
}

/// Lives with frees and an operator.
fn lives(crash: Crash<'_>, rng: &mut SmallRng, totals: &mut Totals) -> Result<(), String> {
    let plan = Arc::new(Plan {
        hazard: Hazard::Upkeep,
        tasks: rng.random_range(2..=4),
        ops: rng.random_range(30..120),
        // More than an extent, so that frees empty whole extents, which spaces give back.
        pages: crash.plan.pages.max(rng.random_range(100..=180)),
        ..crash.plan.clone()
    });
    let folder = Folder::new();
    let mut from: Option<(Moment, Outcome)> = None;
    for _ in 0..rng.random_range(1..=3) {
        let (moment, outcome) = from.as_ref().map_or((crash.moment, crash.outcome), |(m, o)| (m, *o));
        let rate = Rate::Some { share: 0.01, max: 6 };
        let life = Life {
            closes: rng.random_bool(0.2),
            folder: Some(&folder),
            ..Life::new(&plan, Start::Crash(moment, outcome), rate, rng.random())
        };
        let mut moments = life.live(totals)?;
        for moment in &moments {
            crash_at(&plan, moment, &[Outcome::Cut(rng.random())], None, totals)?;
        }
        let next = moments.swap_remove(rng.random_range(0..moments.len()));
        from = Some((next, outcome_of(rng)));
    }
    Ok(())
}

fn outcome_of(rng: &mut SmallRng) -> Outcome {
    if rng.random_bool(0.3) { Outcome::Killed(rng.random()) } else { Outcome::Cut(rng.random()) }
}

fn shut_down(crash: Crash<'_>, mut rng: SmallRng, totals: &mut Totals) -> Result<(), String> {
    let outcomes = [Outcome::Cut(rng.random()), Outcome::Killed(rng.random())];
    let mut ended = None;
    let checked = in_virtual_time(async {
        let in_use = InUse::open(crash, rng).await?;
        ended = Some(Arc::clone(&in_use.probe));
        in_use.shut_down().await
    });
    let (checked, closed) = checked?;
    totals.crash(&checked);
    crash_at(crash.plan, &closed, &outcomes, Some(State::ShutDown), totals)?;
    for moment in ended.map(|probe| probe.take()).unwrap_or_default() {
        crash_at(crash.plan, &moment, &outcomes, Some(State::ShuttingDown), totals)?;
    }
    Ok(())
}

fn replace_ssd(crash: Crash<'_>, mut rng: SmallRng, totals: &mut Totals) -> Result<(), String> {
    // Seldom of the old SSD's size, so that a mix-up of the two layouts shows.
    let then = Plan { slots: rng.random_range(32..=90), ..crash.plan.clone() };
    let (outcome, again) = (outcome_of(&mut rng), outcome_of(&mut rng));
    let samples = in_virtual_time(async { InUse::open(crash, rng).await?.replace_ssd(&then).await })?;
    for (at, sample) in samples.iter().enumerate() {
        let outcome = if at % 2 == 0 { outcome } else { again };
        totals.crash(&in_virtual_time(sample.crashed((crash.plan, &then), outcome))?);
    }
    Ok(())
}

/// A store in use.
struct InUse {
    plan: Arc<Plan>,
    probe: Arc<Probe>,
    store: Arc<PageStore>,
    rng: SmallRng,
}

impl InUse {
    async fn open(crash: Crash<'_>, mut rng: SmallRng) -> Result<Self, String> {
        let Crash { moment, outcome, .. } = crash;
        let mut plan = Plan { hazard: Hazard::Upkeep, tasks: 1, ..crash.plan.clone() };
        // A dropped call may still change the SSD's mode meanwhile.
        plan.disable("drop-future");
        let disks = plan.with_latencies(crash.devices());
        let (manifest, model) = (moment.manifest.fork(), moment.model.clone());
        let probe = Probe::new(&plan, disks, manifest, model, rng.random());
        probe.follow(outcome);
        let store = Arc::new(probe.open(&plan).await?);
        let lenient = Lenient { volatile: outcome.keeps_power(), ..Lenient::default() };
        let _ = check(&store, &probe.model, lenient).await?;
        probe.watch(&store);
        Ok(Self { plan: Arc::new(plan), probe, store, rng })
    }

    /// A task that works on the store. Errors are allowed if the store may fail or close meanwhile.
    fn worker(&mut self, errors_allowed: bool) -> Worker {
        let rng = SmallRng::seed_from_u64(self.rng.random());
        let terms = Terms { errors_allowed, ..Terms::usual(true) };
        Worker::new((&self.store, &self.probe, &self.plan), rng, terms)
    }

    /// Shuts the store down under load. Returns the check of a store that is opened at once, and the moment
    /// after the shutdown.
    async fn shut_down(mut self) -> Result<(Checked, Moment), String> {
        let ops = self.rng.random_range(1..200);
        let working = tokio::spawn(self.worker(true).run(ops));
        tokio::time::sleep(Duration::from_micros(self.rng.random_range(1..20 * self.plan.hdd_us))).await;
        // From here on only: crashes of the work before are those of every other life.
        self.probe.set(Rate::Some { share: 0.05, max: 6 }, Phase::Working, 0);
        self.probe.model.lock().doing.closing = true;
        if self.rng.random_bool(0.3) {
            // The shutdown continues without its caller.
            drop(up_to(self.rng.random_range(1..6), self.store.shutdown()).await);
        }
        let ended = tokio::time::timeout(LONG, self.store.shutdown()).await.map_err(|_| "hangs")?;
        ended.map_err(|error| format!("shutdown: {error}"))?;
        self.probe.model.lock().doing.closing = false;
        self.probe.set(Rate::Never, Phase::Working, 0);
        self.probe.released();
        working.await.map_err(|error| format!("the task panicked: {error}"))??;
        if !matches!(self.store.sync().await, Err(Error::Closed)) {
            return Err("a store that was shut down still syncs".to_owned());
        }
        // Nothing was changed after the shutdown, and it wrote everything.
        let promise = self.probe.model.lock().promise(u32::MAX);
        self.probe.model.lock().keep(promise);
        self.probe.violation()?;
        let closed = self.probe.now();
        // The old handle is still there: the shutdown frees the devices, not the last drop.
        let again = self.probe.builder(&self.plan).open().await;
        let again = again.map_err(|error| format!("does not open beside the handle: {error}"))?;
        let mut checked = check(&again, &self.probe.model, Lenient::default()).await?;
        checked.states.add(State::ShutDown);
        self.probe.violation()?;
        Ok((checked, closed))
    }

    /// Replaces the SSD under load with one of `then`'s size. Returns moments of the replacement.
    async fn replace_ssd(mut self, then: &Plan) -> Result<Vec<Sample>, String> {
        let new = SimDevice::new("new ssd", 0, self.rng.random(), &bounded_power());
        let new = Arc::new(new.with_latency(Duration::from_micros(self.plan.ssd_us)));
        // The save that names the new SSD is the exchange (I29). If it fails, the manifest may name
        // either of the two.
        let saves = self.rng.random_bool(0.2).then(|| Saves::some(1, &mut self.rng));
        if let Some(saves) = saves {
            Planned::saves(saves).inject_now(&self.probe);
        }
        let (worker, ops) = (self.worker(saves.is_some()), self.rng.random_range(1..100));
        let sampler = Arc::new(Sampler::new(&mut self, &new));
        let sampling = tokio::spawn(Arc::clone(&sampler).run());
        let replacing = async {
            let replaced = self.store.ssd().replace(Arc::clone(&new), then.ssd_bytes());
            let replaced = tokio::time::timeout(LONG, replaced).await;
            let replaced = replaced.map_err(|_| "hangs")?;
            sampler.replaced.store(replaced.is_ok(), Ordering::Relaxed);
            Ok::<_, String>(replaced)
        };
        let (replaced, worked) = tokio::join!(replacing, worker.run(ops));
        let replaced = replaced?;
        worked?;
        self.probe.clear_faults();
        match &replaced {
            Ok(()) => {
                // The old SSD is the operator's again, who may have it in use elsewhere.
                let written = self.probe.ssd.stats().totals().write.ops;
                self.worker(false).run(30).await?;
                if self.probe.ssd.stats().totals().write.ops > written {
                    return Err("the replaced SSD is written to".to_owned());
                }
            }
            // Without faults only copies that appeared during the drain excuse a failure.
            Err(Error::SsdOnlyCopies { .. }) => {}
            Err(_) if saves.is_some() => {}
            Err(error) => return Err(format!("replace_ssd: {error}")),
        }
        sampling.abort();
        self.probe.violation()?;
        self.store.validate()?;
        let names_new = match &replaced {
            Ok(()) => Some(true),
            Err(_) if saves.is_none() => Some(false),
            Err(_) => None,
        };
        let mut samples = std::mem::take(&mut *sampler.samples.lock());
        samples.push(sampler.sample(names_new));
        Ok(samples)
    }
}

/// Takes moments of a replacement.
struct Sampler {
    probe: Arc<Probe>,
    new: Arc<SimDevice>,
    every_us: u64,
    replaced: AtomicBool,
    rng: Mutex<SmallRng>,
    samples: Mutex<Vec<Sample>>,
}

impl Sampler {
    fn new(in_use: &mut InUse, new: &Arc<SimDevice>) -> Self {
        Self {
            probe: Arc::clone(&in_use.probe),
            new: Arc::clone(new),
            every_us: in_use.plan.ssd_us,
            replaced: AtomicBool::new(false),
            rng: Mutex::new(SmallRng::seed_from_u64(in_use.rng.random())),
            samples: Mutex::default(),
        }
    }

    /// Takes moments at intervals, most of them while the new SSD is being written.
    async fn run(self: Arc<Self>) {
        let mut ops = 0;
        while self.samples.lock().len() < MOMENTS_MAX {
            let pause = self.rng.lock().random_range(1..=2 * self.every_us);
            tokio::time::sleep(Duration::from_micros(pause)).await;
            let wanted = if self.new.ops() > ops { 0.3 } else { 0.005 };
            ops = self.new.ops();
            if self.rng.lock().random_bool(wanted) {
                let replaced = self.replaced.load(Ordering::Relaxed);
                let sample = self.sample(replaced.then_some(true));
                self.samples.lock().push(sample);
            }
        }
    }

    fn sample(&self, names_new: Option<bool>) -> Sample {
        Sample { moment: self.probe.now(), new: self.new.moment(), names_new }
    }
}

/// A moment of a replacement.
struct Sample {
    moment: Moment,
    new: SimMoment,
    /// Whether the manifest names the new SSD; `None`: it may name either.
    names_new: Option<bool>,
}

impl Sample {
    /// Crashes the store, and opens it with the SSD that the manifest names: the old or the new one.
    async fn crashed(&self, (old, then): (&Plan, &Plan), outcome: Outcome) -> Result<Checked, String> {
        let Disks { hdd, ssd, ring, .. } = self.moment.crashed(outcome);
        let power = bounded_power();
        let new = match outcome {
            Outcome::Killed(seed) => self.new.after_kill(seed ^ 0x99, &power),
            Outcome::Cut(seed) | Outcome::Landed(seed) => self.new.after_power_cut(seed ^ 0x99, &power),
        };
        // Each attempt gets copies, because an open writes to its devices.
        let open = async |plan: &Plan, ssd: &SimDevice| {
            let (hdd, ssd, ring) = (hdd.fork(1, &power), ssd.fork(2, &power), ring.fork(3, &power));
            let disks = Disks { hdd, ssd, ring, power: power.clone() };
            plan.builder_on(disks.shared(), &Arc::new(self.moment.manifest.fork())).open().await
        };
        let (with_old, with_new) = (open(old, &ssd).await, open(then, &new).await);
        // One of the two must be refused as the wrong device: the manifest names exactly one at every
        // moment (I29).
        let lacks_ssd = |store: &PageStore| store.stats().ssd.state() == SsdState::Off;
        let store = match (with_old, with_new) {
            // It names none, and neither is used: the store had gone on without its SSD, which failed.
            (Ok(one), Ok(other)) if self.names_new != Some(true) && lacks_ssd(&one) && lacks_ssd(&other) => {
                one
            }
            (Ok(_), Ok(_)) => return Err("it opens with either SSD".to_owned()),
            (Ok(_), _) if self.names_new == Some(true) => {
                return Err("it opens with the replaced SSD".to_owned());
            }
            (_, Ok(_)) if self.names_new == Some(false) => {
                return Err("it opens with an SSD that it refused".to_owned());
            }
            (Ok(store), Err(OpenError::SsdMissing { .. }))
            | (Err(OpenError::SsdMissing { .. }), Ok(store)) => store,
            (Err(old), Err(new)) => return Err(format!("does not open: {old}; with the new SSD: {new}")),
            (Ok(_), Err(other)) | (Err(other), Ok(_)) => {
                return Err(format!("the other SSD is refused for another reason: {other}"));
            }
        };
        let lenient = Lenient { volatile: outcome.keeps_power(), ..Lenient::default() };
        let model: Mutex<Model> = Mutex::new(self.moment.model.clone());
        let mut checked = check(&store, &model, lenient).await?;
        checked.states = checked.states.union(self.moment.states);
        let replaced = self.names_new == Some(true);
        checked.states.add(if replaced { State::SsdReplaced } else { State::Replacing });
        Ok(checked)
    }
}
