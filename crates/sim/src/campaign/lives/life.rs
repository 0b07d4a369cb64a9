//! One life of a store: it opens on what the last crash left, is checked, is used by several tasks, is
//! dropped and opened again, and ends.

use super::openers;
use crate::campaign::contract::model::{Model, Promise};
use crate::campaign::draw::plan::Plan;
use crate::campaign::polls::up_to;
use crate::campaign::report::coverage::State;
use crate::campaign::report::totals::Totals;
use crate::campaign::work::operator;
use crate::campaign::work::worker::{LONG, Reads, Terms, Worker};
use crate::campaign::world::crash::{Crash, Moment, Outcome};
use crate::campaign::world::desk::{Backups, Folder};
use crate::campaign::world::disks::Disks;
use crate::campaign::world::examine::{Lenient, check, in_virtual_time, is_busy, names_the_record};
use crate::campaign::world::planned::{self, Planned, When};
use crate::campaign::world::probe::{Phase, Probe, Rate};
use pagetier::{MemoryManifest, PageStore};
use pagetier_devio::{Device, IoOp};
use pagetier_testing::{Fault, FaultEffect, FlushFailure, SimDevice};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

/// Virtual time for a store to settle before a crash at rest.
const REST: Duration = Duration::from_secs(2);

/// The maximum duration of a write that is in flight when its store is dropped.
const SLOW: Duration = Duration::from_secs(5);

/// The session number after passing faults.
const AFTER_FAULTS: u32 = 99;

/// How long an open may be refused because operations of a dropped store are in flight.
const BUSY_MAX: Duration = Duration::from_secs(3600);

/// The starting point of a life.
#[derive(Clone, Copy)]
pub(super) enum Start<'a> {
    Blank,
    /// The state that a crash left.
    Crash(&'a Moment, Outcome),
    /// The devices of another store, in any state; the new store overwrites them by force.
    Stranger(&'a Moment, Outcome),
}

/// The parameters of a life.
pub(crate) struct Life<'a> {
    pub(crate) plan: &'a Arc<Plan>,
    pub(crate) start: Start<'a>,
    /// The version numbers of a new store start after this one.
    pub(super) first_version: u32,
    pub(crate) rate: Rate,
    pub(crate) seed: u64,
    pub(crate) faults: Vec<Planned>,
    /// How often the store is dropped and reopened on the same devices.
    pub(crate) reopenings: u32,
    /// Whether it ends with a close.
    pub(crate) closes: bool,
    /// Whether writes of the manifest or a superblock occasionally fail while it is opened or closed.
    pub(super) records_fail: bool,
    /// The fault of the close at its end.
    pub(super) closing_fails: Option<Planned>,
    /// Whether others try to open the store while it is open, or at the same time.
    pub(super) intruded: bool,
    /// Where its backups and other files go, if it makes any.
    pub(crate) folder: Option<&'a Folder>,
    /// Whether its tasks make devices fail.
    pub(crate) troubled: bool,
    /// Whether the SSD, or the ring of a store without one, is lost before it begins.
    pub(crate) bereft: bool,
}

impl<'a> Life<'a> {
    /// A life without faults and reopenings.
    pub(crate) fn new(plan: &'a Arc<Plan>, start: Start<'a>, rate: Rate, seed: u64) -> Self {
        Self {
            plan,
            start,
            first_version: 0,
            rate,
            seed,
            faults: Vec::new(),
            reopenings: 0,
            closes: false,
            records_fail: false,
            closing_fails: None,
            intruded: false,
            folder: None,
            troubled: false,
            bereft: false,
        }
    }

    /// Runs the life; returns the moments taken, the last one at its end.
    pub(crate) fn live(self, totals: &mut Totals) -> Result<Vec<Moment>, String> {
        let disks = match self.start {
            Start::Crash(moment, outcome) => moment.crashed(outcome),
            Start::Stranger(moment, outcome) => {
                let disks = moment.crashed(outcome);
                // The ring is the new store's own: only HDD and SSD have another's past.
                let ring = SimDevice::new("ring", 0, self.seed, &disks.power);
                Disks { ring, ..disks }
            }
            Start::Blank => self.plan.blank_disks(self.seed),
        };
        let disks = if self.bereft { disks.bereft(self.seed) } else { disks };
        let disks = self.plan.with_latencies(disks);
        let (manifest, mut model) = match self.start {
            Start::Crash(moment, _) => (moment.manifest.fork(), moment.model.clone()),
            Start::Stranger(..) | Start::Blank => {
                (MemoryManifest::default(), Model::starting_at(self.first_version))
            }
        };
        model.home_first = self.plan.homes_are_whole();
        if self.bereft {
            model.bereft();
        }
        let probe = Probe::new(self.plan, disks, manifest, model, self.seed);
        self.refuse_whole(&probe);
        let ended = in_virtual_time(self.inside(&probe, totals));
        totals.drawn.add(&probe.take_drawn());
        ended
    }

    /// Has the HDD refuse to keep a page whole although it offers that, once or from then on. No call may
    /// fail for it.
    fn refuse_whole(&self, probe: &Probe) {
        let mut rng = SmallRng::seed_from_u64(self.seed ^ 0x3e60_51d5);
        let offers = probe.hdd.writes_whole(self.plan.page_bytes() as usize);
        if self.plan.homes_are_whole() && !offers {
            probe.mark(State::NoLongerWhole);
        } else if offers && self.plan.ring > 0 && rng.random_ratio(1, 3) {
            let fault = Fault::new(FaultEffect::NotWhole).from_op(rng.random_range(1..600));
            probe.hdd.inject(fault.times([1, u64::MAX][rng.random_range(0..2)]));
        }
    }

    async fn inside(&self, probe: &Arc<Probe>, totals: &mut Totals) -> Result<Vec<Moment>, String> {
        let mut rng = SmallRng::seed_from_u64(self.seed ^ 0xe4d);
        let rng = &mut rng;
        match self.start {
            Start::Crash(moment, outcome) => {
                if !self.bereft {
                    // A crash before a loss is recorded requires that it is accepted again.
                    probe.set(self.rate, Phase::Recovering, moment.depth + 1);
                }
                probe.follow(outcome);
            }
            Start::Stranger(..) => probe.overwrite_by_force(),
            Start::Blank => {}
        }
        if self.bereft {
            probe.mark(State::SsdLossAccepted);
            probe.accept_loss(true);
        }
        let mut store = self.opened(probe, rng, totals).await?;
        // Accepted once: the loss is recorded now, and later opens must do without.
        probe.accept_loss(false);
        match self.start {
            Start::Crash(moment, outcome) => {
                let lenient = Lenient { volatile: outcome.keeps_power(), ..Lenient::default() };
                let mut checked = check(&store, &probe.model, lenient).await?;
                checked.meet(&Crash { plan: self.plan, moment, outcome });
                totals.crash(&checked);
            }
            _ => self.first_space(probe, &store).await?,
        }
        self.keep_hot_set(&store).await?;
        for session in 0..=self.reopenings {
            probe.set(self.rate, Phase::Working, 0);
            if session == 0 {
                self.faults.iter().for_each(|fault| fault.inject(probe, totals));
            }
            self.work(probe, &store, session).await?;
            if self.troubled {
                self.after_trouble(probe, &store).await?;
            }
            if session == 0 && !self.faults.is_empty() {
                self.after_faults(probe, &store).await?;
                if self.passes(probe) {
                    // The store must work as if nothing had failed.
                    self.work(probe, &store, AFTER_FAULTS).await?;
                }
            }
            if session < self.reopenings {
                store = self.reopened(probe, store, rng, totals).await?;
                totals.reopenings += 1;
            }
        }
        let moments = self.end(probe, store, rng, totals).await?;
        probe.violation()?;
        Ok(moments)
    }

    /// Opens the store, possibly after opens that are dropped at an await or fail.
    async fn opened(
        &self,
        probe: &Arc<Probe>,
        rng: &mut SmallRng,
        totals: &mut Totals,
    ) -> Result<Arc<PageStore>, String> {
        let dropped =
            if rng.random_bool(self.plan.share("drop-open", 0.1)) { rng.random_range(1..=3) } else { 0 };
        probe.unmark(State::AfterClose);
        let mut failing = if self.records_fail { self.fail_open(probe, totals) } else { 0 };
        let until = tokio::time::Instant::now() + BUSY_MAX;
        let mut attempts = 0;
        loop {
            let polls = if attempts < dropped { rng.random_range(1..=40) } else { u32::MAX };
            attempts += 1;
            let opening = async {
                if self.intruded {
                    openers::at_once(probe, self.plan).await
                } else {
                    Ok(probe.builder(self.plan).open().await)
                }
            };
            let Some(opened) = up_to(polls, opening).await else {
                probe.released();
                probe.mark(State::DroppedOpen);
                continue;
            };
            match opened? {
                Ok(store) => {
                    if failing > 0 {
                        probe.clear_faults();
                    }
                    let store = Arc::new(store);
                    probe.watch(&store);
                    return Ok(store);
                }
                // The last operations of the store before still hold its locks.
                Err(error) if is_busy(&error) && tokio::time::Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                // An open may fail only for the record that was made to fail, and has to name it.
                Err(error) if failing > 0 && names_the_record(&error) => {
                    probe.released();
                    probe.mark(State::OpenFailed);
                    failing -= 1;
                    if failing == 0 {
                        probe.clear_faults();
                    }
                }
                Err(error) => return Err(format!("does not open: {error}")),
            }
        }
    }

    /// Possibly makes a record of the next open fail. Returns how many opens may fail.
    fn fail_open(&self, probe: &Probe, totals: &mut Totals) -> u32 {
        // The count of saves makes each open of the life draw anew.
        let mut rng = SmallRng::seed_from_u64(self.seed ^ probe.manifest.saves() << 20 ^ 0x0be2);
        if rng.random_bool(0.3) {
            return 0;
        }
        planned::some(When::Opening, &mut rng).inject(probe, totals);
        rng.random_range(1..=3)
    }

    /// Makes a record of the close fail, if the life requires it.
    fn fail_closing(&self, probe: &Probe, totals: &mut Totals) -> bool {
        let mut rng = SmallRng::seed_from_u64(self.seed ^ probe.manifest.saves() << 20 ^ 0xc105);
        let drawn =
            (self.records_fail && rng.random_bool(0.7)).then(|| planned::some(When::Closing, &mut rng));
        let planned = self.closing_fails.clone().or(drawn);
        planned.iter().for_each(|planned| planned.inject(probe, totals));
        planned.is_some()
    }

    /// Where records may fail, so may that of the space; where reads may, so may those of its pages.
    async fn keep_hot_set(&self, store: &PageStore) -> Result<(), String> {
        let kept = self.plan.keep_hot_set(store).await;
        if self.records_fail || !self.faults.is_empty() { Ok(()) } else { kept }
    }

    async fn first_space(&self, probe: &Probe, store: &PageStore) -> Result<(), String> {
        let name = probe.model.lock().space_name();
        let id = store.spaces().create(&name).await.map_err(|e| e.to_string())?;
        probe.model.lock().created(id, name);
        Ok(())
    }

    async fn work(&self, probe: &Arc<Probe>, store: &Arc<PageStore>, session: u32) -> Result<(), String> {
        let mut tasks = tokio::task::JoinSet::new();
        let faulty = session == 0 && !self.faults.is_empty();
        let taken = Backups::default();
        // What a fault may have lost is missing in a backup, too.
        let backups = self.faults.is_empty().then(|| Arc::clone(&taken));
        let terms = Terms {
            errors_allowed: faulty || self.troubled,
            reads: self.reads(),
            frees: self.plan.frees(),
            troubled: self.troubled,
            desk: self.folder.map(|folder| folder.desk(backups)),
        };
        for task in 0..u64::from(self.plan.tasks) {
            let rng = SmallRng::seed_from_u64(self.seed ^ (task + 1) << 40 ^ u64::from(session) << 56);
            let worker = Worker::new((store, probe, self.plan), rng, terms.clone());
            tasks.spawn(worker.run(self.plan.ops / (1 + self.reopenings)));
        }
        if self.intruded {
            let rng = SmallRng::seed_from_u64(self.seed ^ 0x1217 ^ u64::from(session) << 56);
            tasks.spawn(openers::intrude(Arc::clone(probe), Arc::clone(self.plan), rng));
        }
        while let Some(done) = tasks.join_next().await {
            done.map_err(|e| format!("a task panicked: {e}"))??;
        }
        if let Some(folder) = self.folder {
            operator::compare(self.plan, folder, &taken, probe).await?;
        }
        // The power ends by itself after more operations than any life needs.
        if probe.power.is_cut() {
            return Err("does not come to rest".to_owned());
        }
        probe.violation()?;
        store.validate()
    }

    /// What reads may return while the store lives.
    fn reads(&self) -> Reads {
        let reverts = self.plan.flush_failures.contains(&FlushFailure::Reverted);
        let fails = self.troubled || self.faults.iter().any(Planned::fails_flushes);
        if self.faults.iter().any(Planned::loses_home_writes) {
            Reads::Anything
        } else if reverts && fails {
            Reads::NothingOlderThanSynced
        } else {
            Reads::TheNewest
        }
    }

    /// Whether the store must recover from every fault of the life by itself.
    fn passes(&self, probe: &Probe) -> bool {
        // An exchange of the SSD that a fault prevents leaves the store refusing.
        let exchanged = probe.model.lock().ssd_touched;
        !self.troubled && !exchanged && !self.faults.is_empty() && self.faults.iter().all(Planned::passes)
    }

    /// Checks that, once nothing fails, the pages that stayed dirty are written, or the store has reported
    /// that it refuses.
    async fn after_faults(&self, probe: &Probe, store: &PageStore) -> Result<(), String> {
        probe.clear_faults();
        let reports = || {
            let ssd = store.stats().ssd;
            !self.passes(probe) && (ssd.refusing.is_some() || ssd.ssd_error.is_some())
        };
        // A call of the life that was dropped may still be switching the SSD off: the error that a `sync` met
        // before that is no longer reported after it, and the next one succeeds. And what began while a
        // device blocked still waits, and may fail.
        let blocked = self.faults.iter().any(Planned::blocks);
        for ends_with_it in [reports() || blocked, false] {
            let promise = probe.model.lock().promise(u32::MAX);
            match store.sync().await {
                Ok(()) => {
                    probe.model.lock().keep(promise);
                    break;
                }
                Err(_) if reports() => break,
                Err(_) if ends_with_it => tokio::time::sleep(Duration::from_secs(60)).await,
                Err(error) => return Err(format!("the faults are over, but sync fails: {error}")),
            }
        }
        Ok(())
    }

    /// Checks that, once nothing fails, the SSD can be readmitted or given up, and that a `sync` then
    /// succeeds, or the store has reported that it refuses.
    async fn after_trouble(&self, probe: &Probe, store: &PageStore) -> Result<(), String> {
        probe.clear_faults();
        let promise = probe.model.lock().promise(u32::MAX);
        match tokio::time::timeout(LONG, store.sync()).await {
            Err(_) => Err(format!("the trouble is over, but sync hangs: {:?}", store.stats().ssd)),
            Ok(Ok(())) => {
                probe.model.lock().keep(promise);
                Ok(())
            }
            Ok(Err(error)) => {
                let ssd = store.stats().ssd;
                // Without its ring or SSD the store refuses until it is readmitted, or opened again.
                if ssd.refusing.is_none() && ssd.ssd_error.is_none() {
                    return Err(format!("the trouble is over, but sync fails: {error}"));
                }
                Ok(())
            }
        }
    }

    /// Drops the store with operations in flight, and opens it again on the same devices at once.
    async fn reopened(
        &self,
        probe: &Arc<Probe>,
        store: Arc<PageStore>,
        rng: &mut SmallRng,
        totals: &mut Totals,
    ) -> Result<Arc<PageStore>, String> {
        let longest = [10_000, 100_000, 1_000_000, SLOW.as_micros() as u64][rng.random_range(0..4)];
        let pause = Duration::from_micros(rng.random_range(1..longest));
        // Some writes outlast their store, and meet the next one's open.
        for device in [&probe.hdd, &probe.ssd] {
            if rng.random_bool(0.5) {
                let slow = Fault::new(FaultEffect::Slow(pause)).on(IoOp::Write);
                device.inject(slow.from_op(device.ops()).times(rng.random_range(1..=12)));
            }
        }
        // Leave a `sync` in flight.
        let polls = rng.random_range(1..=20);
        let _ = up_to(polls, store.sync()).await;
        match rng.random_range(0..3) {
            0 => drop(store),
            1 => self.close_dropped(probe, store, rng).await?,
            _ => self.close(probe, store, totals).await?,
        }
        probe.released();
        probe.mark(State::Reopened);
        probe.clear_faults();
        let store = self.opened(probe, rng, totals).await?;
        let lenient = Lenient { volatile: true, ..Lenient::default() };
        let _ = check(&store, &probe.model, lenient).await.map_err(|what| format!("reopened: {what}"))?;
        self.keep_hot_set(&store).await?;
        Ok(store)
    }

    async fn close_dropped(
        &self,
        probe: &Probe,
        store: Arc<PageStore>,
        rng: &mut SmallRng,
    ) -> Result<(), String> {
        let promise = self.closing(probe);
        let store = alone(store)?;
        let polls = [1, 2, 4, 8, 30, 100][rng.random_range(0..6)];
        let closed = up_to(rng.random_range(1..=polls), store.close()).await;
        match closed {
            Some(Ok(())) => probe.model.lock().keep(promise),
            _ => probe.mark(State::DroppedClose),
        }
        probe.model.lock().doing.closing = false;
        Ok(())
    }

    async fn close(&self, probe: &Probe, store: Arc<PageStore>, totals: &mut Totals) -> Result<(), String> {
        let fails = self.fail_closing(probe, totals);
        let promise = self.closing(probe);
        match alone(store)?.close().await {
            Ok(()) => {
                probe.model.lock().keep(promise);
                probe.mark(State::AfterClose);
            }
            Err(error) if self.faults.is_empty() && !fails && !self.troubled => {
                return Err(format!("close: {error}"));
            }
            Err(_) => probe.mark(State::CloseFailed),
        }
        probe.model.lock().doing.closing = false;
        Ok(())
    }

    fn closing(&self, probe: &Probe) -> Promise {
        let mut model = probe.model.lock();
        model.doing.closing = true;
        model.promise(u32::MAX)
    }

    async fn end(
        &self,
        probe: &Probe,
        store: Arc<PageStore>,
        rng: &mut SmallRng,
        totals: &mut Totals,
    ) -> Result<Vec<Moment>, String> {
        let mut kept = None;
        if !self.closes {
            if rng.random_bool(0.3) {
                tokio::time::sleep(REST).await;
            }
            kept = Some(store);
        } else if rng.random_bool(self.plan.share("drop-future", 0.2)) {
            self.close_dropped(probe, store, rng).await?;
            probe.released();
        } else {
            self.close(probe, store, totals).await?;
            probe.released();
        }
        // Taken while the store is still open: its background work has not ended.
        let last = probe.now();
        let mut moments = probe.take();
        moments.push(last);
        let left = kept.as_ref().map(|store| store.wait_closed());
        drop(kept);
        probe.released();
        if let Some(left) = left {
            tokio::time::timeout(LONG, left).await.map_err(|_| "the store does not leave".to_owned())?;
        }
        // Operations in flight end; no others begin.
        tokio::time::sleep(SLOW).await;
        Ok(moments)
    }
}

fn alone(store: Arc<PageStore>) -> Result<PageStore, String> {
    Arc::try_unwrap(store).map_err(|_| "a task still holds the store".to_owned())
}
