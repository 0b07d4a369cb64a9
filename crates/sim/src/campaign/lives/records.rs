//! Failures of the store's records: saves of the manifest, writes of superblocks, growth. The store
//! continues, retries, is closed, killed, opened again.

use super::life::{Life, Start};
use crate::campaign::draw::plan::Plan;
use crate::campaign::report::coverage::State;
use crate::campaign::report::totals::Totals;
use crate::campaign::work::worker::{Outcome as Done, Worker};
use crate::campaign::world::crash::{Crash, Moment, Outcome};
use crate::campaign::world::disks::{Disks, SharedDisks};
use crate::campaign::world::examine::{Lenient, check, examine, in_virtual_time, names_the_record};
use crate::campaign::world::planned::{Planned, When, superblock};
use crate::campaign::world::probe::Rate;
use crate::campaign::world::saves::Saves;
use pagetier_devio::IoOp;
use pagetier_testing::{Fault, FaultEffect};
use parking_lot::Mutex;
use rand::Rng;
use std::sync::Arc;

impl Worker {
    /// Changes the manifest: creates and drops spaces, and grows them by an extent.
    pub(crate) async fn change_records(&mut self) -> Done {
        match self.rng.random_range(0..6) {
            0 => self.dropped_drop_space().await,
            1 | 2 => self.drop_space().await,
            _ => {
                let full = self.model.lock().pages() >= self.plan.pages as usize;
                // Up to an extent of 64 pages and a few more, so that most runs make the space grow.
                for _ in 0..if full { 0 } else { self.rng.random_range(8..70) } {
                    self.allocated().await?;
                }
                Ok(())
            }
        }
    }
}

/// A failing record, by number: every kind, n-th attempt and repetition.
#[derive(Clone, Debug)]
pub(super) struct Case {
    when: When,
    planned: Planned,
    name: String,
}

/// The number of attempts that succeed first.
const SKIPS: [u64; 3] = [6, 12, 3];
const TIMES: [u64; 3] = [1, 2, u64::MAX];
const EFFECTS: [FaultEffect; 3] = [FaultEffect::Eio, FaultEffect::NoSpace, FaultEffect::Gone];

impl Case {
    /// All cases, in order.
    pub(crate) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |when: When, planned: Planned, what: String| {
            all.push(Self { when, planned, name: format!("{what}, {when:?}") });
        };
        for (when, skips) in [When::Opening, When::AtWork, When::Closing].into_iter().zip(SKIPS) {
            for (skip, count, replaced) in product(skips, &TIMES, &[false, true]) {
                // In force: the save takes effect although it fails, as a rename does whose fsync fails.
                // The store must then expect either manifest.
                let what = format!("{count} saves of the manifest fail after {skip}, in force: {replaced}");
                add(when, Planned::saves(Saves { skip, count, replaced }), what);
            }
        }
        for (skip, times, effect) in product(4, &TIMES, &EFFECTS) {
            for (when, ssd) in
                [(When::Opening, false), (When::Opening, true), (When::Closing, false), (When::Closing, true)]
            {
                let what = format!("{effect:?} of {times} superblock writes after {skip}, SSD: {ssd}");
                add(when, superblock(ssd, effect, skip, times), what);
            }
        }
        for (skip, times, effect) in product(4, &TIMES, &EFFECTS[..2]) {
            // Growths are counted apart from other operations, and from 1 on, so no fault has to let the
            // first ones pass.
            let fault = Fault::new(effect).on(IoOp::Grow).from_op(skip + 1).times(times);
            add(
                When::AtWork,
                Planned::after(false, "growth", fault, 0),
                format!("{effect:?} of {times} growths after {skip}"),
            );
        }
        all
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Applies the failure to the store of `moment`, and crashes it.
    pub(crate) fn run(
        &self,
        plan: &Arc<Plan>,
        moment: &Moment,
        seed: u64,
        totals: &mut Totals,
    ) -> Result<(), String> {
        if self.when == When::Opening {
            return self.opening(Crash { plan, moment, outcome: Outcome::Cut(seed) }, seed, totals);
        }
        let closing = self.when == When::Closing;
        let life = Life {
            faults: if closing { Vec::new() } else { vec![self.planned.clone()] },
            closing_fails: closing.then(|| self.planned.clone()),
            // A close has to write what the records that failed at work left unsaved, so some of those
            // lives end with one, too.
            closes: closing || seed.is_multiple_of(3),
            ..Life::new(plan, Start::Crash(moment, Outcome::Cut(3)), Rate::Some { share: 0.01, max: 4 }, seed)
        };
        totals.lives += 1;
        for (at, moment) in life.live(totals)?.iter().enumerate() {
            // Both outcomes: after a kill the next open reads a record that a power cut may still take.
            for outcome in [Outcome::Cut(seed << 8 | at as u64), Outcome::Killed(seed << 8 | at as u64)] {
                let crash = Crash { plan, moment, outcome };
                totals.crash(&examine(crash, Lenient::default(), Rate::Never)?.checked);
            }
        }
        Ok(())
    }

    /// The store opens, or reports why not. After a crash at that point, and once the failure has passed, it
    /// opens and nothing is lost.
    fn opening(&self, crash: Crash<'_>, seed: u64, totals: &mut Totals) -> Result<(), String> {
        let Crash { plan, moment, .. } = crash;
        let Disks { hdd, ssd, ring, .. } = crash.devices();
        let manifest = Arc::new(moment.manifest.fork());
        self.planned.inject_into(&hdd, &ssd, &manifest, totals);
        let (hdd, ssd, ring) = (Arc::new(hdd), Arc::new(ssd), Arc::new(ring));
        let devices = || SharedDisks { hdd: hdd.clone(), ssd: ssd.clone(), ring: ring.clone() };
        let mut after = Vec::new();
        let checked = in_virtual_time(async {
            // The second open meets what the failed first one has left.
            for _ in 0..2 {
                match plan.builder_on(devices(), &manifest).open().await {
                    Ok(_) => {}
                    Err(error) if names_the_record(&error) => {}
                    Err(error) => return Err(format!("the error does not say what failed: {error}")),
                }
                // An open that failed half-way is crashed, too: its leftovers must be as harmless as
                // those of a crash.
                after.push((hdd.moment(), ssd.moment(), ring.moment(), manifest.fork()));
            }
            hdd.clear_faults();
            ssd.clear_faults();
            manifest.fail_saves(0, 0, false);
            let store = plan.open(devices(), &manifest).await?;
            check(&store, &Mutex::new(moment.model.clone()), Lenient::default()).await
        })?;
        totals.crash(&checked);
        for (hdd, ssd, ring, manifest) in after {
            let states = moment.states;
            let then = Moment { hdd, ssd, ring, manifest, model: moment.model.clone(), states, ..*moment };
            for outcome in [Outcome::Cut(seed + 1), Outcome::Killed(seed + 1)] {
                let crash = Crash { plan, moment: &then, outcome };
                let mut checked = examine(crash, Lenient::default(), Rate::Never)?.checked;
                checked.states.add(State::OpenFailed);
                totals.crash(&checked);
            }
        }
        Ok(())
    }
}

fn product<A: Copy, B: Copy>(n: u64, a: &[A], b: &[B]) -> Vec<(u64, A, B)> {
    let of = |i: u64| a.iter().flat_map(move |a| b.iter().map(move |b| (i, *a, *b)));
    (0..n).flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<String> =
            Case::all().into_iter().map(|case| case.name).collect();
        assert_eq!(names.len(), Case::all().len());
    }
}
