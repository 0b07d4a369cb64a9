//! One seed: several lives of a store, each crashed at many moments.

use super::faults::Planned;
use super::life::Life;
use super::plan::Plan;
use super::probe::{Moment, Rate};
use super::totals::Totals;
use super::world::{Lenient, Outcome, examine};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the contract does not allow, and where it happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Violation {
    /// What is wrong.
    pub what: String,
    /// The scenario that shows it.
    pub plan: Box<Plan>,
    /// Which life, which boundary, which outcome.
    pub place: String,
    /// Crashes examined in this scenario before.
    pub after_crashes: u64,
}

/// Runs the scenario. Ends early when `stop` is set.
///
/// # Errors
/// The first [`Violation`].
pub fn run_seed(plan: &Plan, stop: &AtomicBool, totals: &mut Totals) -> Result<(), Violation> {
    let mut run = Run { plan: Arc::new(plan.clone()), stop, totals: Totals::default(), place: String::new() };
    run.totals.seeds = 1;
    let ended = catch_unwind(AssertUnwindSafe(|| run.lives()));
    let ended = ended.unwrap_or_else(|panic| Err(format!("panicked: {}", panic_text(&*panic))));
    totals.add(&run.totals);
    let Run { place, totals: Totals { crashes, .. }, .. } = run;
    ended.map_err(|what| Violation { what, plan: Box::new(plan.clone()), place, after_crashes: crashes })
}

/// What a panic said.
pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_else(|| "?".to_owned())
}

struct Run<'a> {
    plan: Arc<Plan>,
    stop: &'a AtomicBool,
    totals: Totals,
    place: String,
}

impl Run<'_> {
    fn lives(&mut self) -> Result<(), String> {
        let mut rng = SmallRng::seed_from_u64(self.plan.seed);
        let mut from: Option<(Moment, Outcome)> = None;
        for life in 0..self.plan.lives {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.place = format!("life {life}");
            let moments = self.life(life, from.as_ref(), &mut rng)?;
            // Each moment has choices of its own, so that fewer of them (a shrunk replay) mean the same crashes.
            for (at, moment) in moments.iter().enumerate() {
                let mut rng =
                    SmallRng::seed_from_u64(self.plan.seed ^ u64::from(life) << 50 ^ (at as u64) << 30);
                self.crash(life, moment, &mut rng)?;
            }
            let next = rng.random_range(0..moments.len());
            let outcome = Outcome::Cut(rng.random());
            from = moments.into_iter().nth(next).map(|moment| (moment, outcome));
        }
        Ok(())
    }

    fn life(
        &mut self,
        life: u32,
        from: Option<&(Moment, Outcome)>,
        rng: &mut SmallRng,
    ) -> Result<Vec<Moment>, String> {
        let plan = &self.plan;
        let random = plan.faults && rng.random_bool(0.6);
        let faults = if random { Planned::some(rng) } else { plan.steer.faults(plan, rng) };
        let images = plan.images as usize;
        let share = images as f64 / (f64::from(plan.tasks * plan.ops) * 2.5).max(1.0);
        let one = Life {
            plan,
            from: from.map(|(moment, outcome)| (moment, *outcome)),
            rate: Rate::Some { share, max: images * 3 },
            seed: plan.seed.wrapping_mul(1_000_003) ^ u64::from(life) << 32,
            faults,
            closes: plan.has("close") && rng.random_ratio(1, 5),
        };
        self.totals.lives += 1;
        one.live(&mut self.totals)
    }

    /// Every outcome of a crash at this moment, some with crashes of their recovery.
    fn crash(&mut self, life: u32, moment: &Moment, rng: &mut SmallRng) -> Result<(), String> {
        for _ in 0..self.plan.outcomes {
            let killed = rng.random_ratio(1, 20);
            let outcome = if killed { Outcome::Killed } else { Outcome::Cut(rng.random()) };
            self.place = format!("life {life}, crash at boundary {} ({outcome:?})", moment.boundary);
            self.recover(moment, outcome, 0, rng)?;
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn recover(
        &mut self,
        moment: &Moment,
        outcome: Outcome,
        nesting: u32,
        rng: &mut SmallRng,
    ) -> Result<(), String> {
        let again = nesting < 3 && rng.random_ratio(1, 12);
        let rate = if again { Rate::Some { share: 0.02, max: 6 } } else { Rate::Never };
        let done = examine(&self.plan, moment, outcome, Lenient::default(), rate)?;
        self.totals.crash(&done.checked);
        self.totals.crashes_in_recovery += u64::from(nesting > 0);
        for inner in &done.moments {
            let outcome = Outcome::Cut(rng.random());
            let before = self.place.clone();
            self.place =
                format!("{before}, then at boundary {} of the recovery ({outcome:?})", inner.boundary);
            self.recover(inner, outcome, nesting + 1, rng)?;
            self.place = before;
        }
        Ok(())
    }
}
