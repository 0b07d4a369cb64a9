//! Follows the cheapest of several settings, once chance no longer explains its lead.
//!
//! Settings are compared over *stretches*, runs of consecutive accesses. All settings serve the same
//! accesses, so their costs are paired: the difference of two costs varies less than either cost. A change to
//! another setting requires that the mean difference exceeds its standard error, that the gain is large
//! enough as a share of the cost, and that the sum saved over the remembered stretches exceeds the cost of
//! the change. There are two memories of past stretches: a short one for large gains, a long one for small
//! gains that last. A change by the short memory that the long one contradicts must gain and save several
//! times as much: most of these changes follow a part of the workload that soon ends, and the change back
//! costs as much again.
//!
//! Stretches before the first decision are only noted. If a setting was clearly the cheapest in them, with a
//! gain as large as the short memory requires, it is the initial setting, or one in its place. They are then
//! forgotten.

/// How fast a memory forgets, and which gains it accepts.
#[derive(Clone, Copy, Debug)]
struct Terms {
    /// The factor by which each new stretch multiplies the weight of the earlier ones.
    kept: f64,
    /// The total weight of stretches required before any change.
    weight_min: f64,
    /// The required saving, as a share of the cost of the setting in force.
    gain_min: f64,
}

/// Large gains over the last few stretches: for a workload that changes.
const SHORT: Terms = Terms { kept: 0.8, weight_min: 1.9, gain_min: 0.02 };

/// The short memory before the first decision: nothing has to be exchanged yet.
const NOTED: Terms = Terms { kept: 0.7, ..SHORT };

/// Small gains that last.
const LONG: Terms = Terms { kept: 0.97, weight_min: 3.0, gain_min: 0.002 };

/// How many times the gain and the cost of a change must be exceeded if the setting was the more expensive
/// one in the long memory.
const AGAINST_LONG: f64 = 4.0;

/// The number of standard errors by which the mean difference must exceed 0.
const ERRORS_MIN: f64 = 1.5;

/// The setting that an adaptive policy follows, and why.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Choice {
    /// The setting in force.
    pub setting: &'static str,
    /// The setting in force before the last change, if there was one.
    pub before: Option<&'static str>,
    /// The number of changes so far.
    pub changes: u64,
    /// Every setting with its recent simulated cost, relative to the cheapest.
    pub costs: Vec<(&'static str, f64)>,
}

/// The costs of past stretches; older stretches weigh less.
#[derive(Clone, Copy, Debug)]
struct Past<const N: usize> {
    terms: Terms,
    costs_ms: [f64; N],
    /// The sum of products for each pair of costs.
    products: [[f64; N]; N],
    weight: f64,
    squared_weight: f64,
}

impl<const N: usize> Past<N> {
    const fn new(terms: Terms) -> Self {
        Self { terms, costs_ms: [0.0; N], products: [[0.0; N]; N], weight: 0.0, squared_weight: 0.0 }
    }

    fn add(&mut self, costs_ms: &[f64; N]) {
        let kept = self.terms.kept;
        for (at, cost) in costs_ms.iter().enumerate() {
            self.costs_ms[at] = self.costs_ms[at] * kept + cost;
            for (product, other) in self.products[at].iter_mut().zip(costs_ms) {
                *product = *product * kept + cost * other;
            }
        }
        self.weight = self.weight * kept + 1.0;
        self.squared_weight = self.squared_weight * kept * kept + 1.0;
    }

    fn cheapest(&self) -> usize {
        (1..N).fold(0, |best, at| if self.costs_ms[at] < self.costs_ms[best] { at } else { best })
    }

    /// Returns the setting to follow instead of `chosen`, if one is cheaper by enough and saved more than
    /// `change_ms` of it. Both requirements are multiplied by `times`, which may depend on the setting.
    fn better_than(
        &self,
        chosen: usize,
        times: impl Fn(usize) -> f64,
        change_ms: &mut dyn FnMut(usize) -> f64,
    ) -> Option<usize> {
        let other = self.cheapest();
        let times = times(other);
        let saved = self.costs_ms[chosen] - self.costs_ms[other];
        if self.weight < self.terms.weight_min || saved <= times * self.terms.gain_min * self.costs_ms[chosen]
        {
            return None;
        }
        let mean = saved / self.weight;
        let p = &self.products;
        let square = (p[chosen][chosen] - 2.0 * p[chosen][other] + p[other][other]) / self.weight;
        // The effective sample size: the number of equally weighted stretches of the same variance.
        let stretches = self.weight * self.weight / self.squared_weight;
        let error = ((square - mean * mean).max(0.0) / (stretches - 1.0)).sqrt();
        (mean > ERRORS_MIN * error && saved > times * change_ms(other)).then_some(other)
    }
}

/// Which of `N` settings is followed, and the recent cost of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chooser<const N: usize> {
    long: Past<N>,
    short: Past<N>,
    pub(crate) chosen: usize,
    /// The setting chosen before the last change.
    before: Option<usize>,
    changes: u64,
}

impl<const N: usize> Chooser<N> {
    pub(crate) const fn new(first: usize) -> Self {
        Self { long: Past::new(LONG), short: Past::new(SHORT), chosen: first, before: None, changes: 0 }
    }

    /// Notes stretches until [`Chooser::start`].
    pub(crate) const fn noting(first: usize) -> Self {
        Self { short: Past::new(NOTED), ..Self::new(first) }
    }

    /// Records the cost of each setting in the stretch that ended. Returns the setting to change to, if any.
    /// `change_ms` returns the cost of a change to a setting; it is called only for a setting that is
    /// otherwise worth following.
    pub(crate) fn compare(
        &mut self,
        costs_ms: [f64; N],
        change_ms: &mut dyn FnMut(usize) -> f64,
    ) -> Option<usize> {
        self.note(&costs_ms);
        let long = self.long.better_than(self.chosen, |_| 1.0, change_ms);
        let times = |other: usize| {
            let agrees = self.long.costs_ms[other] <= self.long.costs_ms[self.chosen];
            if agrees { 1.0 } else { AGAINST_LONG }
        };
        let other = long.or_else(|| self.short.better_than(self.chosen, times, change_ms))?;
        self.change_to(other);
        Some(other)
    }

    /// Records the cost of each setting in a stretch before the first decision.
    pub(crate) fn note(&mut self, costs_ms: &[f64; N]) {
        self.long.add(costs_ms);
        self.short.add(costs_ms);
    }

    /// If a setting was clearly the cheapest in the noted stretches, starts with what `instead` returns for
    /// it. Forgets these stretches.
    pub(crate) fn start(&mut self, instead: impl Fn(usize) -> usize) {
        let terms = [LONG, NOTED].map(|terms| Terms { gain_min: SHORT.gain_min, ..terms });
        let noted = [self.long, self.short].into_iter().zip(terms);
        let clear =
            noted.map(|(past, terms)| Past { terms, ..past }.better_than(self.chosen, |_| 1.0, &mut |_| 0.0));
        if let Some(other) = clear.flatten().next().map(instead).filter(|&other| other != self.chosen) {
            self.change_to(other);
        }
        (self.long, self.short) = (Past::new(LONG), Past::new(SHORT));
    }

    fn change_to(&mut self, other: usize) {
        self.before = Some(std::mem::replace(&mut self.chosen, other));
        self.changes += 1;
    }

    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// The choice, for reports.
    pub(crate) fn choice(&self, names: [&'static str; N]) -> Choice {
        let costs_ms = self.long.costs_ms;
        let least = costs_ms.iter().copied().fold(f64::INFINITY, f64::min);
        let over = |cost: f64| if least > 0.0 { cost / least } else { 1.0 };
        let costs = names.into_iter().zip(costs_ms.map(over)).collect();
        Choice {
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

    #[test]
    fn a_large_gain_is_followed_after_a_few_stretches() {
        let mut chooser = Chooser::new(0);
        let steps = (0..).find(|_| chooser.compare([10.0, 8.0], &mut free).is_some()).unwrap();
        assert!((1..=4).contains(&steps), "{steps}");
        assert_eq!((chooser.chosen, chooser.changes), (1, 1));
    }

    #[test]
    fn a_gain_is_followed_once_it_has_made_up_for_the_change() {
        let steps = |change_ms: f64| {
            let mut chooser = Chooser::new(0);
            (1..200).find(|_| chooser.compare([10.0, 8.0], &mut |_| change_ms).is_some())
        };
        assert!(steps(0.0) < steps(20.0) && steps(20.0) < steps(40.0), "{:?}", steps(20.0));
        // The weights of the long memory sum to 33 stretches.
        assert_eq!(steps(70.0), None);
    }

    #[test]
    fn noted_stretches_choose_the_start_and_are_forgotten() {
        let started = |other: f64| {
            let mut chooser = Chooser::noting(0);
            (0..20).for_each(|_| chooser.note(&[10.0, other]));
            assert_eq!((chooser.chosen, chooser.changes), (0, 0));
            chooser.start(|cheapest| cheapest);
            chooser
        };
        assert_eq!((started(9.9).chosen, started(9.7).chosen), (0, 1));
        // Nothing but the choice remains: the change back takes as long as a new chooser's.
        let steps = |mut chooser: Chooser<2>, costs: [f64; 2]| {
            (1..100).find(|_| chooser.compare(costs, &mut free).is_some())
        };
        assert_eq!(steps(started(2.0), [9.0, 10.0]), steps(Chooser::new(0), [10.0, 9.0]));
    }

    #[test]
    fn a_start_may_replace_the_cheapest_setting() {
        let started = |instead: usize| {
            let mut chooser = Chooser::noting(0);
            (0..20).for_each(|_| chooser.note(&[10.0, 9.0, 12.0]));
            chooser.start(|cheapest| if cheapest == 1 { instead } else { cheapest });
            (chooser.chosen, chooser.changes)
        };
        assert_eq!([1, 2, 0].map(started), [(1, 1), (2, 1), (0, 0)]);
    }

    #[test]
    fn what_chance_explains_is_not_followed() {
        let mut chooser = Chooser::new(0);
        for at in 0..200 {
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
    fn what_the_long_memory_contradicts_must_save_the_change_several_times() {
        let followed = |other: f64, change_ms: f64| {
            let mut chooser = Chooser::new(0);
            (0..40).for_each(|_| assert_eq!(chooser.compare([10.0, 12.0], &mut |_| change_ms), None));
            (0..6).any(|_| chooser.compare([other, 10.0], &mut |_| change_ms).is_some())
        };
        // After six stretches the short memory has saved 10 * (1 - 2 * 0.8^6) = 4.8 ms, and the long one
        // still contradicts it.
        assert_eq!([0.0, 1.0, 2.0, 5.0].map(|ms| followed(12.0, ms)), [true, true, false, false]);
        // Without a cost, the gain must be four times 2 %.
        assert_eq!([10.5, 11.0, 12.0].map(|other| followed(other, 0.0)), [false, false, true]);
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
        let steps = (0..).find(|_| chooser.compare([12.0, 10.0], &mut free).is_some()).unwrap();
        assert!(steps < 8, "{steps}");
    }
}
