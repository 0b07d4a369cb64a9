//! One seed: several lives of a store, each crashed at many moments.

use super::life::{Life, Start};
use super::{ssd_life, upkeep};
use crate::campaign::between::{loss, past, read_only, rot};
use crate::campaign::draw::hazard::Hazard;
use crate::campaign::draw::plan::Plan;
use crate::campaign::log;
use crate::campaign::report::coverage::State;
use crate::campaign::report::totals::Totals;
use crate::campaign::report::violation::{Violation, judged};
use crate::campaign::world::crash::{Crash, Moment, Outcome};
use crate::campaign::world::desk::Folder;
use crate::campaign::world::examine::{Lenient, examine};
use crate::campaign::world::planned::{self, Planned, When};
use crate::campaign::world::probe::Rate;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first version number of another store, above those of any store under test.
const STRANGE_VERSIONS: u32 = 1 << 24;

/// Runs the scenario. Ends early when `stop` is set.
///
/// # Errors
/// The first [`Violation`].
pub fn run_seed(plan: &Plan, stop: &AtomicBool, totals: &mut Totals) -> Result<(), Violation> {
    totals.seeds += 1;
    judged(plan, String::new(), totals, |place, totals| {
        if plan.hazard == Hazard::Log {
            return log::run(plan, stop, totals, place);
        }
        Run { plan: Arc::new(plan.clone()), stop, totals, place }.lives()
    })
}

struct Run<'a> {
    plan: Arc<Plan>,
    stop: &'a AtomicBool,
    totals: &'a mut Totals,
    place: &'a mut String,
}

impl Run<'_> {
    fn lives(&mut self) -> Result<(), String> {
        let mut rng = SmallRng::seed_from_u64(self.plan.seed);
        let folder = self.plan.makes_files().then(Folder::new);
        // An HDD with a manifest is its store: force does not make another one of it.
        let stranger = self.stranger(&mut rng)?.filter(|_| self.plan.on_hdd == 0);
        // The crashes before the next life, each in the past of the following one: a linear history.
        let mut line: Vec<Moment> = Vec::new();
        let mut crashed: Option<Outcome> = None;
        for life in 0..self.plan.lives {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            *self.place = format!("life {life}");
            let start = match (line.last().zip(crashed), &stranger) {
                (Some((moment, outcome)), _) => Start::Crash(moment, outcome),
                (None, Some((moment, outcome))) => Start::Stranger(moment, *outcome),
                (None, None) => Start::Blank,
            };
            let moments = self.life(life, start, folder.as_ref(), &mut rng)?;
            // Each moment has its own random choices, so that fewer moments (in a shrunk replay) still mean
            // the same crashes.
            for (at, moment) in moments.iter().enumerate() {
                let mut rng =
                    SmallRng::seed_from_u64(self.plan.seed ^ u64::from(life) << 50 ^ (at as u64) << 30);
                self.crash(life, moment, &mut rng)?;
            }
            self.past(life, &line, moments.last(), &mut rng)?;
            let last = moments.len() - 1;
            let reopens =
                self.plan.hazard == Hazard::FlushFails && moments[last].states.any(&State::FLUSH_FAILED);
            let ends = rng.random_bool(if reopens { 0.9 } else { 0.3 });
            let next = if ends { last } else { rng.random_range(0..moments.len()) };
            crashed = Some(self.outcome(&moments[next], &mut rng));
            line.extend(moments.into_iter().nth(next));
        }
        Ok(())
    }

    /// The devices of another store, if the seed starts on such: in a state that a crash left, after enough
    /// opens to put its epochs ahead of a new store's.
    fn stranger(&mut self, rng: &mut SmallRng) -> Result<Option<(Moment, Outcome)>, String> {
        if !rng.random_bool(self.plan.share("past", 0.06)) {
            return Ok(None);
        }
        *self.place = "the life of another store".to_owned();
        let plan = Plan { ops: self.plan.ops.min(160), hazard: Hazard::Free, ..(*self.plan).clone() };
        let plan = Arc::new(plan);
        let life = Life {
            reopenings: 4,
            first_version: STRANGE_VERSIONS,
            ..Life::new(&plan, Start::Blank, Rate::Never, self.plan.seed ^ 0x5777)
        };
        let moment = life.live(self.totals)?.pop();
        Ok(moment.map(|moment| (moment, self.outcome_of(0.3, rng))))
    }

    fn life(
        &mut self,
        life: u32,
        start: Start<'_>,
        folder: Option<&Folder>,
        rng: &mut SmallRng,
    ) -> Result<Vec<Moment>, String> {
        let plan = &self.plan;
        let flush_fails =
            if plan.hazard == Hazard::DroppedFlush { 1.0 } else { plan.share("flush-fails", 0.08) };
        let faults = if plan.has("flush-fails") && rng.random_bool(flush_fails) {
            Planned::flushes(plan, rng)
        } else if rng.random_bool(plan.share("growth-fails", 0.06)) {
            Planned::growth(rng)
        } else if plan.faults && rng.random_bool(0.6) {
            Planned::some(rng)
        } else {
            plan.hazard.faults(plan, rng)
        };
        let reopenings = if rng.random_bool(plan.reopening()) { rng.random_range(1..=3) } else { 0 };
        let images = plan.images as usize;
        // An operation has some 2.5 boundaries.
        let share = images as f64 / (f64::from(plan.tasks * plan.ops) * 2.5).max(1.0);
        // A generator of its own keeps the rest of the life independent of these draws.
        let mut apart = SmallRng::seed_from_u64(plan.seed ^ u64::from(life) << 44 ^ 0x7ec0_4d5f);
        let records_fail = apart.random_bool(plan.share("records-fail", 0.1));
        let faults = if records_fail && faults.is_empty() {
            vec![planned::some(When::AtWork, &mut apart)]
        } else {
            faults
        };
        let troubled = plan.is_whole() && plan.has("trouble") && apart.random_bool(0.3);
        let lost = matches!(start, Start::Crash(..)) && plan.is_whole() && plan.has("ssd");
        let bereft = lost && apart.random_bool(0.12);
        let one = Life {
            faults,
            bereft,
            reopenings,
            records_fail,
            intruded: apart.random_bool(plan.share("openers", 0.1)),
            folder,
            troubled,
            closes: plan.has("close") && rng.random_bool(self.plan.closing()),
            ..Life::new(
                plan,
                start,
                Rate::Some { share, max: images * 3 },
                plan.seed.wrapping_mul(1_000_003) ^ u64::from(life) << 32,
            )
        };
        self.totals.lives += 1;
        one.live(self.totals)
    }

    /// The outcome: a power cut or a kill. After a failed flush, kills are more likely, so the store is more
    /// often reopened without a reboot.
    fn outcome(&self, moment: &Moment, rng: &mut SmallRng) -> Outcome {
        let usual = if moment.states.any(&State::FLUSH_FAILED) { 0.6 } else { 0.2 };
        self.outcome_of(self.plan.share("kill", usual), rng)
    }

    fn outcome_of(&self, killed: f64, rng: &mut SmallRng) -> Outcome {
        if rng.random_bool(killed) { Outcome::Killed(rng.random()) } else { Outcome::Cut(rng.random()) }
    }

    /// Examines the outcomes of a crash at this moment, some with crashes of their recovery.
    fn crash(&mut self, life: u32, moment: &Moment, rng: &mut SmallRng) -> Result<(), String> {
        let plan = Arc::clone(&self.plan);
        for _ in 0..self.plan.outcomes {
            let outcome = self.outcome(moment, rng);
            *self.place = format!("life {life}, crash at boundary {} ({outcome:?})", moment.boundary);
            let crash = Crash { plan: &plan, moment, outcome };
            self.recover(crash, 0, rng)?;
            if plan.is_whole() && rng.random_bool(0.01) {
                read_only::examine(crash, self.totals)?;
            }
            if moment.model.ssd_touched {
                // The examinations expect the SSD that the plan has.
                continue;
            }
            if rng.random_bool(self.plan.share("rot", 0.04)) {
                rot::examine(crash, rng, self.totals)?;
            }
            if rng.random_bool(self.plan.share("past", 0.03).min(0.1)) {
                loss::examine(crash, rng, self.totals)?;
            }
            // A generator of its own, as in `life`.
            let mut apart = SmallRng::seed_from_u64(rng.random());
            if apart.random_bool(self.plan.share("ssd-life", 0.01).min(0.15)) {
                ssd_life::examine(crash, &mut apart, self.totals)?;
            }
            if apart.random_bool(self.plan.share("upkeep", 0.0).min(0.03)) {
                upkeep::examine(crash, &mut apart, self.totals)?;
            }
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Tests devices with a past, after a life that ended with a close. `line` has the moments that precede
    /// this life, each from an earlier open. Work done after the moment from which the next life starts
    /// never happened, so copies from that period are not in the store's past.
    fn past(
        &mut self,
        life: u32,
        line: &[Moment],
        newer: Option<&Moment>,
        rng: &mut SmallRng,
    ) -> Result<(), String> {
        let newer = newer.filter(|newer| newer.states.has(State::AfterClose) && !newer.model.ssd_touched);
        // An older HDD brings its older manifest along.
        let newer = newer.filter(|_| self.plan.on_hdd == 0);
        let (Some(newer), false) = (newer, line.is_empty()) else { return Ok(()) };
        let times = if self.plan.hazard == Hazard::Past { 12 } else { 3 };
        for _ in 0..times {
            if rng.random_bool(self.plan.share("past", 0.5)) {
                *self.place = format!("life {life}, after its close");
                let older = &line[rng.random_range(0..line.len())];
                past::examine(&self.plan, (older, newer), rng, self.totals)?;
            }
        }
        Ok(())
    }

    fn recover(&mut self, crash: Crash<'_>, nesting: u32, rng: &mut SmallRng) -> Result<(), String> {
        // A recovery from a kill writes over data that is still volatile.
        let often = if crash.outcome.keeps_power() { 4 } else { 12 };
        let again = nesting < 3 && rng.random_ratio(1, often);
        let rate = if again { Rate::Some { share: 0.02, max: 6 } } else { Rate::Never };
        let done = examine(crash, Lenient::default(), rate)?;
        self.totals.crash(&done.checked);
        self.totals.crashes_in_recovery += u64::from(nesting > 0);
        for inner in &done.moments {
            let outcome = self.outcome_of(self.plan.share("kill", 0.2).min(0.4), rng);
            let before = self.place.clone();
            *self.place =
                format!("{before}, then at boundary {} of the recovery ({outcome:?})", inner.boundary);
            self.recover(Crash { moment: inner, outcome, ..crash }, nesting + 1, rng)?;
            *self.place = before;
        }
        Ok(())
    }
}
