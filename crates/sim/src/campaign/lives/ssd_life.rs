//! The SSD's life while the store works: the SSD is given up, fails and is readmitted, is switched off and
//! on, and its loss is accepted and acknowledged, with crashes and dropped calls in between, and with saves
//! of the manifest that fail. The report of the loss must list every page that reads as older than allowed;
//! the report persists until it is acknowledged, and is gone afterwards.

use crate::campaign::contract::content::version_in;
use crate::campaign::contract::model::{Model, PageModel};
use crate::campaign::draw::hazard::Hazard;
use crate::campaign::draw::plan::Plan;
use crate::campaign::polls::up_to;
use crate::campaign::report::coverage::{State, States};
use crate::campaign::report::totals::{Checked, Totals};
use crate::campaign::work::ssd_calls::{Act, Outcomes};
use crate::campaign::work::worker::{LONG, Terms, Worker};
use crate::campaign::world::crash::{Crash, bounded_power};
use crate::campaign::world::disks::Disks;
use crate::campaign::world::examine::{check_spaces, in_virtual_time, is_busy, look, read};
use crate::campaign::world::planned::Planned;
use crate::campaign::world::probe::{Phase, Probe, Rate};
use crate::campaign::world::saves::Saves;
use pagetier::{Builder, MemoryManifest, PageId, PageStore, SsdLoss, SsdMode, stats::SsdState};
use pagetier_devio::SharedDevice;
use pagetier_testing::SimDevice;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

/// How an open treats a lost SSD whose loss the embedder accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Accepts {
    /// The SSD is there after all.
    Nothing,
    /// A blank SSD is in its place.
    Blank,
    /// There is no SSD.
    Without,
}

/// The losses that the store has reported, and what the next open may report instead.
#[derive(Debug, Default)]
struct Reported {
    loss: Option<SsdLoss>,
    /// A call that may add to the loss has begun.
    may_grow: bool,
    /// A save that adds to the loss may have taken effect although it failed.
    unverified: bool,
    /// A save that acknowledges the loss, or removes pages that were saved, may have taken effect although it
    /// failed.
    may_be_gone: bool,
}

struct World {
    plan: Arc<Plan>,
    probe: Arc<Probe>,
    rng: SmallRng,
    reported: Reported,
    accepts: Option<Accepts>,
    /// A dropped call may still be running.
    background: bool,
    /// The SSD has failed since the store was opened.
    failed: bool,
    /// The newest version when the store was opened: the store may not know which older versions are at home.
    opened_at: u32,
    /// Some slots have become corrupt since the last readmission.
    corrupted: bool,
    /// The power stayed on at the last crash.
    killed: bool,
    states: States,
    story: Vec<String>,
}

/// Runs lives of a crashed store.
pub(crate) fn examine(crash: Crash<'_>, rng: &mut SmallRng, totals: &mut Totals) -> Result<(), String> {
    if crash.plan.slots == 0 {
        return Ok(());
    }
    let mut world = World::new(crash, rng.random());
    let ended = in_virtual_time(world.lives(totals));
    ended.map_err(|wrong| format!("the SSD's life ({}): {wrong}", world.story.join(", ")))
}

impl World {
    fn new(crash: Crash<'_>, seed: u64) -> Self {
        let Crash { moment, outcome, .. } = crash;
        let plan = Plan { hazard: Hazard::SsdLife, tasks: 1, ..crash.plan.clone() };
        let disks = plan.with_latencies(crash.devices());
        let (manifest, mut model) = (moment.manifest.fork(), moment.model.clone());
        model.strict = plan.has("readmit-spares");
        // Until a call gives the SSD up, only a readmission can lose pages, and it must spare those that
        // a `sync` covered (I31).
        model.loss_spares_synced = true;
        let probe = Probe::new(&plan, disks, manifest, model, seed);
        let mut states = States::default();
        states.add_if(outcome.keeps_power(), State::Killed);
        Self {
            plan: Arc::new(plan),
            probe,
            rng: SmallRng::seed_from_u64(seed),
            reported: Reported::default(),
            accepts: None,
            background: false,
            failed: false,
            opened_at: 0,
            corrupted: false,
            killed: outcome.keeps_power(),
            states,
            story: Vec::new(),
        }
    }

    fn model(&self) -> parking_lot::MutexGuard<'_, Model> {
        self.probe.model.lock()
    }

    fn pages(&self) -> Vec<PageId> {
        self.model().live_pages()
    }

    /// Allows the loss of everything written so far, if it is reported.
    fn all_may_be_lost(&self) {
        let mut model = self.model();
        (model.lost_to, model.loss_spares_synced) = (model.last_version, false);
    }

    async fn lives(&mut self, totals: &mut Totals) -> Result<(), String> {
        for life in 0..self.rng.random_range(2..=4) {
            let store = self.opened(totals).await?;
            // The life ends within an I/O, within a call, between calls, or not before its steps end.
            let limits = [20_000, 100_000, 500_000, LONG.as_micros() as u64];
            let most = limits[self.rng.random_range(0..4)];
            let patience = Duration::from_micros(self.rng.random_range(1..most));
            if life > 0 || self.rng.random_bool(0.8) {
                let steps = self.rng.random_range(1..=5);
                // An interruption is a crash at that moment.
                if let Ok(ended) = tokio::time::timeout(patience, self.steps(&store, steps)).await {
                    ended?;
                    self.end(&store).await?;
                }
            }
            self.probe.violation()?;
            // No readmission has verified the SSD since slots became corrupt: a crash may cost what no
            // report lists.
            if self.corrupted {
                return Ok(());
            }
            self.crash();
            self.accepts = self
                .rng
                .random_bool(0.2)
                .then(|| [Accepts::Nothing, Accepts::Blank, Accepts::Without][self.rng.random_range(0..3)]);
            // The next open gets other devices.
            drop(store);
            if self.accepts == Some(Accepts::Blank) {
                self.exchange_ssd();
            }
        }
        let store = self.opened(totals).await?;
        drop(store);
        self.probe.violation()
    }

    fn builder(&self) -> Builder {
        let builder = self.probe.builder(&self.plan);
        let builder = match self.probe.on_hdd {
            true => builder,
            false => builder.ring_device(Arc::clone(&self.probe.ring) as SharedDevice),
        };
        match self.accepts {
            None => builder,
            Some(Accepts::Without) => builder.accept_ssd_loss(true).ssd_bytes(0),
            Some(_) => builder.accept_ssd_loss(true),
        }
    }

    /// Opens the store and checks its contents and its reported losses.
    async fn opened(&mut self, totals: &mut Totals) -> Result<Arc<PageStore>, String> {
        self.story.push(format!("open({:?}, killed: {})", self.accepts, self.killed));
        if matches!(self.accepts, Some(Accepts::Blank | Accepts::Without)) {
            self.reported.may_grow = true;
            self.all_may_be_lost();
            self.states.add(State::SsdLossAccepted);
            // An open that gives the SSD up can be repeated, wherever the one before was dropped.
            for _ in 0..self.rng.random_range(0..3) {
                let polls = self.rng.random_range(1..30);
                drop(up_to(polls, self.builder().open()).await);
                self.probe.released();
            }
        }
        let until = tokio::time::Instant::now() + LONG;
        let store = loop {
            match self.builder().open().await {
                Ok(store) => break Arc::new(store),
                Err(error) if is_busy(&error) && tokio::time::Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => return Err(format!("does not open: {error}")),
            }
        };
        self.probe.watch(&store);
        self.probe.set(Rate::Never, Phase::Working, 0);
        let mut checked = self.settle(&store, true).await?;
        self.compare(&store)?;
        self.reported = Reported { loss: store.ssd().loss(), ..Reported::default() };
        if self.reported.loss.is_none() {
            self.model().settle_loss(false);
        }
        checked.states = self.states;
        checked.states.add_if(self.reported.loss.is_some(), State::LossReported);
        totals.crash(&checked);
        (self.states, self.background, self.failed) = (States::default(), false, false);
        self.opened_at = self.probe.model.lock().last_version;
        Ok(store)
    }

    /// Checks that every page reads as the contract allows, or that the report of the loss lists it.
    async fn settle(&self, store: &PageStore, crashed: bool) -> Result<Checked, String> {
        if crashed {
            check_spaces(store, &mut self.model())?;
        }
        let mut checked = Checked::default();
        for page in self.pages() {
            checked.pages += 1;
            let (found, error) = match look(store, page).await? {
                Ok(found) => (Some(found), String::new()),
                Err(error) => (None, error.to_string()),
            };
            let reported = store.ssd().loss().is_some_and(|loss| loss.contains(page));
            let mut model = self.model();
            let Some(p) = model.page(page) else { continue };
            let fine = match found {
                Some(found) if crashed => p.may_be(found),
                Some(found) => p.reads_as(found.unwrap_or(0)),
                None if crashed => p.fails(),
                None => p.gone,
            };
            if fine {
                if let Some(found) = found.filter(|_| crashed) {
                    p.was_found(found, !self.killed);
                }
                continue;
            }
            let found = found.map(|found| found.unwrap_or(0));
            let wrong = format!("page {page} reads as version {found:?} {error}, allowed is {}", p.allowed());
            if !reported || !model.lost(page, found, !crashed) {
                return Err(format!(
                    "{wrong}, and the report of the loss omits it: {:?}",
                    store.ssd().loss()
                ));
            }
        }
        store.validate()?;
        Ok(checked)
    }

    /// Checks that the store still reports what it reported, and nothing else.
    fn compare(&self, store: &PageStore) -> Result<(), String> {
        let now = store.ssd().loss();
        let Reported { loss, may_be_gone, .. } = &self.reported;
        let may_grow = self.reported.may_grow || self.reported.unverified;
        let lists = |loss: &Option<SsdLoss>, page| loss.as_ref().is_some_and(|loss| loss.contains(page));
        for page in self.pages() {
            // The list stays until it is acknowledged (I21), also across crashes and opens.
            if lists(loss, page) && !lists(&now, page) && !may_be_gone {
                return Err(format!("page {page} was reported lost, and now is not: {loss:?}, {now:?}"));
            }
            if lists(&now, page) && !lists(loss, page) && !may_grow {
                return Err(format!(
                    "page {page} is reported lost, though nothing was given up: {loss:?}, {now:?}"
                ));
            }
        }
        // The pages alone do not show that: a list may name only pages that the model no longer has,
        // since their spaces were dropped.
        if loss.is_some() && now.is_none() && !may_be_gone {
            return Err(format!("{loss:?} was not acknowledged, but is not reported"));
        }
        if now.is_some() && loss.is_none() && !may_grow {
            return Err(format!("{now:?} is reported, though it was acknowledged or never occurred"));
        }
        Ok(())
    }

    /// Replaces the devices by their state after a crash at this moment.
    fn crash(&mut self) {
        self.killed = self.rng.random_bool(0.3);
        let (power, seed) = (bounded_power(), self.rng.random::<u64>());
        let back = |device: &SimDevice, seed: u64| {
            if self.killed { device.after_kill(seed, &power) } else { device.after_power_cut(seed, &power) }
        };
        let [hdd, ssd, ring] = [(&self.probe.hdd, 0), (&self.probe.ssd, 1), (&self.probe.ring, 2)]
            .map(|(device, at)| back(device, seed ^ at));
        self.restart(Disks { hdd, ssd, ring, power });
    }

    /// Replaces the SSD by a blank one.
    fn exchange_ssd(&mut self) {
        let (seed, power) = (self.rng.random(), bounded_power());
        let hdd = self.probe.hdd.fork(seed, &power);
        let ring = self.probe.ring.fork(seed ^ 1, &power);
        let ssd =
            SimDevice::new("ssd", 0, seed ^ 2, &power).with_latency(Duration::from_micros(self.plan.ssd_us));
        self.restart(Disks { hdd, ssd, ring, power });
    }

    fn restart(&mut self, disks: Disks) {
        let mut model = self.model().clone();
        if let Some(log) = &self.probe.log {
            // The log survives the crash: a gate that began at the model's older position would find
            // pages ahead of it.
            model.log_durable = log.durable();
        }
        let manifest: MemoryManifest = self.probe.manifest.fork();
        self.probe = Probe::new(&self.plan, disks, manifest, model, self.rng.random());
    }

    async fn end(&mut self, store: &Arc<PageStore>) -> Result<(), String> {
        if self.rng.random_bool(0.3) {
            tokio::time::sleep(Duration::from_secs(2)).await;
        } else if self.rng.random_bool(0.5) {
            let promise = self.model().promise(u32::MAX);
            if store.sync().await.is_ok() {
                self.model().keep(promise);
            }
        }
        Ok(())
    }

    async fn steps(&mut self, store: &Arc<PageStore>, steps: u32) -> Result<(), String> {
        for _ in 0..steps {
            let ops = self.rng.random_range(1..60);
            self.worker(store).run(ops).await?;
            match self.rng.random_range(0..8) {
                0 | 1 => self.act(store, Act::Abandon).await?,
                2 => self.act(store, Act::Off).await?,
                3 => {
                    let modes =
                        [SsdMode::WriteBack, SsdMode::WriteBack, SsdMode::WriteThrough, SsdMode::ReadOnly];
                    let mode = modes[self.rng.random_range(0..4)];
                    self.act(store, Act::On(mode)).await?;
                }
                4 | 5 => {
                    self.fail(store).await?;
                    self.act(store, Act::Readmit).await?;
                }
                6 => self.act(store, Act::Drain).await?,
                _ => self.acknowledge(store).await?,
            }
            // Half of the time the next open has to end the refusal, and no call of this life.
            if store.stats().ssd.refusing.is_some() && self.rng.random_bool(0.5) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn worker(&mut self, store: &Arc<PageStore>) -> Worker {
        let rng = SmallRng::seed_from_u64(self.rng.random());
        let terms = Terms { errors_allowed: true, ..Terms::usual(false) };
        Worker::new((store, &self.probe, &self.plan), rng, terms)
    }

    /// Makes the SSD vanish for a while; some of its slots may become corrupt meanwhile.
    async fn fail(&mut self, store: &Arc<PageStore>) -> Result<(), String> {
        self.story.push("SSD gone".to_owned());
        self.probe.ssd.set_present(false);
        self.failed = true;
        let ops = self.rng.random_range(0..20);
        self.worker(store).run(ops).await?;
        // A readmission that still runs could have judged a slot before its bit flips, and would vouch
        // for it afterwards.
        if self.rng.random_bool(0.4) && !self.background {
            let layout = self.plan.layout();
            for _ in 0..self.rng.random_range(1..8) {
                let slot = self.rng.random_range(0..layout.slots);
                // In the payload: the header still names page and stamp, and only the checksum shows the
                // damage.
                self.probe.ssd.flip_bit(layout.slot_at(slot) + 900, 3);
            }
            self.story.push("rot".to_owned());
            self.model().loss_spares_synced = false;
            self.corrupted = true;
        }
        self.probe.ssd.set_present(true);
        Ok(())
    }

    /// Performs a call, which may be dropped, with or without concurrent work, and with saves of the manifest
    /// that may fail.
    async fn act(&mut self, store: &Arc<PageStore>, act: Act) -> Result<(), String> {
        let polls = if self.rng.random_bool(0.3) { self.rng.random_range(1..6) } else { u32::MAX };
        let beside = if self.rng.random_bool(0.5) { self.rng.random_range(1..40) } else { 0 };
        let saves = self.rng.random_bool(0.15);
        if !self.background {
            self.compare(store)?;
        }
        let alone = !self.background;
        // An SSD that has not failed is not verified.
        let verified = store.stats().ssd.state() != SsdState::Active;
        let waits = waits(act, store);
        {
            let mut model = self.model();
            // While the call runs, it may lose what is written beside it, too.
            model.lost_to = u32::MAX;
            model.loss_spares_synced &= act != Act::Abandon;
        }
        self.reported.may_grow = true;
        self.story.push(format!("({act:?}"));
        if saves {
            let saves = Saves::some(1, &mut self.rng);
            // Even if the call is dropped. On a device, a write that failed may have landed.
            let in_force = saves.replaced || self.probe.on_hdd;
            self.reported.unverified |= in_force;
            self.reported.may_be_gone |= in_force;
            self.story.push(format!("{saves:?}"));
            Planned::saves(saves).inject_now(&self.probe);
        }
        let worker = self.worker(store);
        let called = async {
            if polls < u32::MAX {
                up_to(polls, act.carry_out(store)).await
            } else {
                Some(act.carry_out(store).await)
            }
        };
        let called = tokio::time::timeout(LONG, called);
        let (called, worked) = tokio::join!(called, worker.run(beside));
        worked?;
        let called = called.map_err(|_| format!("{act:?} hangs: {:?}", store.stats().ssd))?;
        self.story.push(match &called {
            None => format!("dropped after {polls} polls)"),
            Some(Ok(_)) => "done)".to_owned(),
            Some(Err(error)) => format!("{error})"),
        });
        self.probe.clear_faults();
        self.states.add(match act {
            Act::Abandon => State::SsdGivenUp,
            Act::Readmit => State::SsdReadmitted,
            Act::Off | Act::On(_) | Act::Drain | Act::DrainUpTo(_) => State::SsdOff,
        });
        let Some(done) = called else {
            self.states.add(State::SsdCallDropped);
            self.background = true;
            return Ok(());
        };
        // A call that waits for its turn has outlasted the one that was dropped.
        self.background &= !waits;
        if act == Act::Readmit && done.is_ok() && verified && !self.background {
            self.corrupted = false;
        }
        if self.background {
            return Ok(());
        }
        {
            let mut model = self.model();
            // From here on, a loss that the call reported covers no new version.
            model.lost_to = model.last_version;
        }
        // A readmission that could not list what it found lost leaves that to the next save.
        let unlisted = act == Act::Readmit && done.is_err() && saves;
        self.acted(store, &done.unwrap_or_default(), alone && beside == 0 && !saves).await?;
        self.reported.may_grow |= unlisted;
        Ok(())
    }

    /// Checks what a call that ended reports; `alone`: nothing else went on.
    async fn acted(&mut self, store: &Arc<PageStore>, done: &Outcomes, alone: bool) -> Result<(), String> {
        let Reported { unverified, may_be_gone, .. } = self.reported;
        self.reported = Reported { loss: store.ssd().loss(), may_grow: false, unverified, may_be_gone };
        self.model().ssd_call_reports(done);
        if let (Some(loss), true) = (&done.loss, alone) {
            self.is_exact(store, loss).await?;
        }
        if store.stats().ssd.refusing.is_none() && !self.corrupted {
            let _ = self.settle(store, false).await?;
        }
        Ok(())
    }

    /// Checks that no page of an exact report reads as its newest version. Every report is exact about pages
    /// written since the store was opened, unless the SSD has failed since.
    async fn is_exact(&self, store: &PageStore, loss: &SsdLoss) -> Result<(), String> {
        for page in self.pages().into_iter().filter(|page| loss.contains(*page)) {
            let Ok(guard) = store.get(page).await else { continue };
            let found = version_in(&guard, page)?;
            let known = loss.exact || (found > self.opened_at && !self.failed);
            let newest = |p: &mut PageModel| p.published == found && p.reads_as(found);
            if known && self.model().page(page).is_some_and(newest) {
                return Err(format!("page {page} is reported lost, but reads as its newest version {found}"));
            }
        }
        Ok(())
    }

    async fn acknowledge(&mut self, store: &Arc<PageStore>) -> Result<(), String> {
        if self.background {
            return Ok(());
        }
        self.compare(store)?;
        let reported = store.ssd().loss();
        for page in self.pages() {
            if reported.as_ref().is_some_and(|loss| loss.contains(page)) {
                let found = read(store, page).await?.ok();
                // The model goes on from the version that the embedder sees: once the list is gone,
                // nothing else excuses the missing ones.
                self.model().dealt_with(page, found);
            }
        }
        let fails = self.rng.random_bool(0.3);
        let replaced = self.rng.random_bool(0.5);
        let saves = self.probe.manifest.saves();
        if fails {
            Planned::saves(Saves { skip: 0, count: 1, replaced }).inject_now(&self.probe);
        }
        let acknowledged = up_to(self.rng.random_range(1..3), store.ssd().acknowledge_loss()).await;
        self.probe.clear_faults();
        self.story.push(format!("acknowledge: {acknowledged:?}"));
        let now = store.ssd().loss();
        match acknowledged {
            Some(Ok(())) if now.is_some() => Err(format!("{now:?} was acknowledged, but is still reported")),
            // Without a save, a call that was dropped has saved it.
            Some(Ok(())) if fails && self.probe.manifest.saves() == saves + 1 => {
                Err("the acknowledgement succeeded without being saved".to_owned())
            }
            Some(Ok(())) => {
                // Without a loss nothing is saved.
                self.reported = Reported {
                    unverified: self.reported.unverified && reported.is_none(),
                    ..Reported::default()
                };
                self.states.add(State::LossAcknowledged);
                Ok(())
            }
            _ if now != reported => {
                Err(format!("the acknowledgement failed, but {now:?} is reported instead of {reported:?}"))
            }
            _ => {
                // On a device, the save of a dropped call goes on, and one that failed may have landed.
                self.reported.may_be_gone |= fails && replaced || self.probe.on_hdd;
                self.states.add_if(fails, State::AckFailed);
                Ok(())
            }
        }
    }
}

/// Whether calls like this one run one at a time: once one has ended, so have all earlier ones.
fn waits(act: Act, store: &PageStore) -> bool {
    match act {
        Act::Abandon | Act::Readmit => true,
        Act::Off | Act::On(_) => (store.stats().ssd.mode == SsdMode::Off) != (act == Act::Off),
        Act::Drain | Act::DrainUpTo(_) => false,
    }
}
