//! One life of a store: it is opened on what the last crash left, checked, worked on by several tasks, and ends.

use super::coverage::State;
use super::faults::Planned;
use super::plan::Plan;
use super::probe::{Moment, Phase, Probe, Rate};
use super::totals::Totals;
use super::work::Worker;
use super::world::{Lenient, Outcome, check, crash_states, in_virtual_time, open};
use super::{coverage::States, model::Model};
use pagetier::{MemoryManifest, PageStore};
use pagetier_devio::{SimDevice, SimPower};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

/// Virtual time to let things settle before a store that is to be crashed at rest.
const REST: Duration = Duration::from_secs(2);

/// How a life is lived.
pub(super) struct Life<'a> {
    pub(super) plan: &'a Arc<Plan>,
    /// What it starts from; `None`: an empty store.
    pub(super) from: Option<(&'a Moment, Outcome)>,
    pub(super) rate: Rate,
    pub(super) seed: u64,
    pub(super) faults: Vec<Planned>,
    /// It ends with a close.
    pub(super) closes: bool,
}

impl Life<'_> {
    /// Lives it. The moments taken, the last one at its end.
    pub(super) fn live(self, totals: &mut Totals) -> Result<Vec<Moment>, String> {
        let (hdd, ssd, power) = match self.from {
            Some((moment, outcome)) => moment.crashed(outcome),
            None => {
                let power = SimPower::new();
                (
                    SimDevice::new("hdd", 0, self.seed, &power),
                    SimDevice::new("ssd", 0, self.seed + 1, &power),
                    power,
                )
            }
        };
        let latency = |us| Duration::from_micros(us);
        let devices =
            (hdd.with_latency(latency(self.plan.hdd_us)), ssd.with_latency(latency(self.plan.ssd_us)), power);
        let (manifest, model) = match self.from {
            Some((moment, _)) => (moment.manifest.fork(), moment.model.clone()),
            None => (MemoryManifest::default(), Model::default()),
        };
        let probe = Probe::new(self.plan, devices, manifest, model, self.seed);
        in_virtual_time(self.inside(&probe, totals))
    }

    async fn inside(&self, probe: &Arc<Probe>, totals: &mut Totals) -> Result<Vec<Moment>, String> {
        if let Some((moment, _)) = self.from {
            probe.set(self.rate, Phase::Recovering, moment.depth + 1);
        }
        let store = Arc::new(open(self.plan, probe.devices(), &probe.manifest).await?);
        probe.watch(&store);
        match self.from {
            Some((moment, outcome)) => {
                let mut checked = check(&store, &probe.model, Lenient::default()).await?;
                checked.states = checked.states.union(crash_states(moment, outcome));
                totals.crash(&checked);
            }
            None => self.first_space(probe, &store).await?,
        }
        probe.set(self.rate, Phase::Working, 0);
        for fault in &self.faults {
            fault.inject(&probe.hdd, &probe.ssd, totals);
        }
        self.work(probe, &store).await?;
        if !self.faults.is_empty() {
            self.after_faults(probe, &store).await?;
        }
        self.end(probe, store).await
    }

    async fn first_space(&self, probe: &Probe, store: &PageStore) -> Result<(), String> {
        let name = probe.model.lock().space_name();
        let id = store.create_space(&name).await.map_err(|e| e.to_string())?;
        probe.model.lock().created(id, name);
        Ok(())
    }

    async fn work(&self, probe: &Probe, store: &Arc<PageStore>) -> Result<(), String> {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..u64::from(self.plan.tasks) {
            let worker = Worker {
                store: Arc::clone(store),
                model: Arc::clone(&probe.model),
                plan: Arc::clone(self.plan),
                rng: SmallRng::seed_from_u64(self.seed ^ (task + 1) << 40),
                errors_allowed: !self.faults.is_empty(),
                stale_allowed: self.faults.iter().any(Planned::loses_home_writes),
            };
            tasks.spawn(worker.run(self.plan.ops));
        }
        while let Some(done) = tasks.join_next().await {
            done.map_err(|e| format!("a task panicked: {e}"))??;
        }
        if probe.power.is_cut() {
            return Err("does not come to rest".to_owned());
        }
        store.validate()
    }

    /// Once nothing fails any more, what stayed dirty is written, or the store has said that it refuses.
    async fn after_faults(&self, probe: &Probe, store: &PageStore) -> Result<(), String> {
        probe.hdd.clear_faults();
        probe.ssd.clear_faults();
        let promise = probe.model.lock().promise(u32::MAX);
        match store.sync().await {
            Ok(()) => probe.model.lock().keep(promise),
            Err(error) => {
                let ssd = store.stats().ssd;
                if ssd.refusing.is_none() && ssd.ssd_error.is_none() {
                    return Err(format!("the faults are over, but sync fails: {error}"));
                }
            }
        }
        Ok(())
    }

    async fn end(&self, probe: &Probe, store: Arc<PageStore>) -> Result<Vec<Moment>, String> {
        let mut rng = SmallRng::seed_from_u64(self.seed ^ 0xe4d);
        let mut closed = States::default();
        if self.closes {
            let promise = {
                let mut model = probe.model.lock();
                model.doing.closing = true;
                model.promise(u32::MAX)
            };
            let store = Arc::try_unwrap(store).map_err(|_| "somebody still has the store".to_owned())?;
            match store.close().await {
                Ok(()) => {
                    probe.model.lock().keep(promise);
                    closed.add(State::AfterClose);
                }
                Err(error) if self.faults.is_empty() => return Err(format!("close: {error}")),
                Err(_) => {}
            }
            probe.model.lock().doing.closing = false;
        } else if rng.random_bool(0.3) {
            tokio::time::sleep(REST).await;
        }
        let mut last = probe.now();
        last.states = last.states.union(closed);
        let mut moments = probe.take();
        moments.push(last);
        Ok(moments)
    }
}
