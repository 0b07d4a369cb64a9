//! Follows the cheapest of several settings, once it has saved what following it costs.
//!
//! Settings are compared over *stretches*, runs of consecutive accesses. All settings serve the same
//! accesses, so their costs are paired: the difference of two costs varies less than either cost. Each
//! setting has an account (a cumulative sum, Page 1954): the sum of what it would have saved over the setting
//! in force, less a part of what its stretches usually differ, and never below 0. So an account grows only
//! while its setting leads, and a lead that chance explains ends before it grows. A setting is followed when
//! its account covers several usual differences and the cost of the change; then all accounts begin anew. A
//! large lead is followed after a few stretches, a small one that lasts later.

/// The account must cover this many usual differences: a steady lead is followed after as many stretches and
/// a third. Fewer, and settings that lead in turns are followed; more, and a changed workload is followed
/// late.
const DIFFERENCES_MIN: f64 = 3.0;

/// The part of a usual difference by which an account shrinks in each stretch. Without it, the sum of
/// differences that chance makes would exceed any bound in time.
const SHRINKS: f64 = 0.25;

/// The weight, in each stretch, of the usual difference so far. It makes the usual difference reach back as
/// many stretches as it takes [`SHRINKS`] to empty an account of [`DIFFERENCES_MIN`].
const KEPT: f64 = 1.0 - SHRINKS / DIFFERENCES_MIN;

/// The setting that an adaptive policy follows, and why.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct PolicyChoice {
    /// The setting in force.
    pub setting: &'static str,
    /// The setting in force before the last change, if there was one.
    pub before: Option<&'static str>,
    /// The number of changes so far.
    pub changes: u64,
    /// Every setting with its recent simulated cost, relative to the cheapest.
    pub costs: Vec<(&'static str, f64)>,
}

/// Which of `N` settings is followed, and the recent cost of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chooser<const N: usize> {
    /// Each setting's account, in milliseconds.
    saved_ms: [f64; N],
    /// The usual difference of a stretch's cost from that of the setting in force.
    usual_ms: [f64; N],
    /// The recent costs, for reports.
    recent_ms: [f64; N],
    pub(crate) chosen: usize,
    /// The setting chosen before the last change.
    before: Option<usize>,
    changes: u64,
}

impl<const N: usize> Chooser<N> {
    pub(crate) const fn new(first: usize) -> Self {
        let none = [0.0; N];
        Self { saved_ms: none, usual_ms: none, recent_ms: none, chosen: first, before: None, changes: 0 }
    }

    /// Records the cost of each setting in the stretch that ended. Returns the setting to change to, if any.
    /// `change_ms` returns the cost of a change to a setting; it is called only for a setting that is
    /// otherwise worth following.
    pub(crate) fn compare(
        &mut self,
        costs_ms: [f64; N],
        change_ms: &mut dyn FnMut(usize) -> f64,
    ) -> Option<usize> {
        for (at, cost) in costs_ms.into_iter().enumerate() {
            let saved = costs_ms[self.chosen] - cost;
            let usual = &mut self.usual_ms[at];
            // The first stretch has no past to average with: its own difference is the best guess.
            *usual = if *usual == 0.0 { saved.abs() } else { KEPT * *usual + (1.0 - KEPT) * saved.abs() };
            // Never below 0 (Page 1954): a setting that was worse for hours must not first make up for them.
            self.saved_ms[at] = (self.saved_ms[at] + saved - SHRINKS * *usual).max(0.0);
            self.recent_ms[at] = KEPT * self.recent_ms[at] + cost;
        }
        let saved = &self.saved_ms;
        // Starts from the setting in force, whose account is 0: among equals nothing changes.
        let other = (0..N).fold(self.chosen, |best, at| if saved[at] > saved[best] { at } else { best });
        let by_chance = DIFFERENCES_MIN * self.usual_ms[other];
        // The cost of the change takes time to compute.
        if saved[other] <= by_chance || saved[other] <= by_chance + change_ms(other) {
            return None;
        }
        // Savings over the old setting say nothing about the new one.
        self.saved_ms = [0.0; N];
        self.before = Some(std::mem::replace(&mut self.chosen, other));
        self.changes += 1;
        Some(other)
    }

    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// The choice, for reports.
    pub(crate) fn choice(&self, names: [&'static str; N]) -> PolicyChoice {
        let costs_ms = self.recent_ms;
        let least = costs_ms.iter().copied().fold(f64::INFINITY, f64::min);
        // Before the first stretch all costs are 0: all settings are alike.
        let over = |cost: f64| if least > 0.0 { cost / least } else { 1.0 };
        let costs = names.into_iter().zip(costs_ms.map(over)).collect();
        PolicyChoice {
            setting: names[self.chosen],
            before: self.before.map(|at| names[at]),
            changes: self.changes,
            costs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change that costs nothing.
    fn free(_other: usize) -> f64 {
        0.0
    }

    /// The number of stretches of these costs until the second setting is followed.
    fn steps(chooser: &mut Chooser<2>, costs: [f64; 2], change_ms: f64) -> Option<usize> {
        (1..1000).find(|_| chooser.compare(costs, &mut |_| change_ms).is_some())
    }

    #[test]
    fn a_steady_lead_is_followed_after_a_few_stretches_whatever_its_size() {
        for other in [8.0, 9.9, 0.0] {
            let mut chooser = Chooser::new(0);
            // Three usual differences, at three quarters of one in each stretch.
            let steps = steps(&mut chooser, [10.0, other], 0.0).unwrap();
            assert!((4..=5).contains(&steps), "{other}: {steps}");
            assert_eq!((chooser.chosen, chooser.changes()), (1, 1));
        }
    }

    #[test]
    fn a_lead_is_followed_once_it_has_made_up_for_the_change() {
        // Two a stretch, less a half: the account holds 1.5 n, and must exceed 6 and the change.
        let steps = |change_ms: f64| steps(&mut Chooser::new(0), [10.0, 8.0], change_ms);
        assert_eq!([1.0, 14.5, 149.0].map(steps), [Some(5), Some(14), Some(104)]);
    }

    #[test]
    fn what_chance_explains_is_not_followed() {
        let mut chooser = Chooser::new(0);
        for at in 0..2000 {
            let other = if at % 2 == 0 { 60.0 } else { 140.0 };
            assert_eq!(chooser.compare([100.0, other], &mut free), None, "stretch {at}");
        }
    }

    #[test]
    fn a_small_gain_that_lasts_is_followed() {
        let mut chooser = Chooser::new(0);
        for at in 0..100 {
            let (noise, other) = (f64::from(at % 3), f64::from(at % 2));
            chooser.compare([100.0 + noise, 99.0 + other], &mut free);
        }
        assert_eq!((chooser.chosen, chooser.changes()), (1, 1));
    }

    #[test]
    fn settings_that_lead_in_turns_are_followed_only_if_a_turn_makes_up_for_the_change() {
        let changes = |turn: usize| {
            let mut chooser = Chooser::new(0);
            for at in 0..100 * turn {
                let costs = if (at / turn).is_multiple_of(2) { [8.0, 10.0] } else { [10.0, 8.0] };
                chooser.compare(costs, &mut |_| 14.5);
            }
            chooser.changes()
        };
        assert_eq!([10, 20, 200].map(changes), [0, 99, 99]);
    }

    #[test]
    fn settings_that_cost_the_same_are_all_alike() {
        let mut chooser = Chooser::new(1);
        assert!((0..100).all(|_| chooser.compare([5.0; 3], &mut free).is_none()));
        let costs = chooser.choice(["a", "b", "c"]).costs;
        assert!(costs.iter().all(|(_, cost)| (cost - 1.0).abs() < 1e-12), "{costs:?}");
    }

    #[test]
    fn a_change_of_workload_is_followed_whatever_was_long_before() {
        let mut chooser = Chooser::new(0);
        for _ in 0..1000 {
            chooser.compare([10.0, 12.0], &mut free);
        }
        assert_eq!(chooser.chosen, 0);
        assert_eq!(steps(&mut chooser, [12.0, 10.0], 1.0), Some(5));
    }
}
