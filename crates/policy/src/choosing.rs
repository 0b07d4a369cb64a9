//! Following the cheapest of some settings, with hysteresis.

/// What of the cost of earlier stretches counts in the next.
const REMEMBERED: f64 = 0.92;

/// By how much another setting must have been cheaper, as a share, over as long as costs are remembered.
const HYSTERESIS: f64 = 0.02;

/// The stretches that are waited for, in terms of their weights.
const WEIGHT_MIN: f64 = 3.0;

/// What an adapting policy follows, and why.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// The setting in force.
    pub setting: &'static str,
    /// How often another was followed so far.
    pub changes: u64,
    /// Every setting with its cost in the simulations of late, over that of the cheapest.
    pub costs: Vec<(&'static str, f64)>,
}

/// Which of `N` settings is followed, and what each cost lately.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chooser<const N: usize> {
    costs_ms: [f64; N],
    weight: f64,
    pub(crate) chosen: usize,
    changes: u64,
}

impl<const N: usize> Chooser<N> {
    pub(crate) const fn new(first: usize) -> Self {
        Self { costs_ms: [0.0; N], weight: 0.0, chosen: first, changes: 0 }
    }

    /// What each setting cost in the stretch that is over. Returns the one that is to be followed from here
    /// on, if that is another than before.
    pub(crate) fn compare(&mut self, costs_ms: [f64; N]) -> Option<usize> {
        for (sum, cost) in self.costs_ms.iter_mut().zip(costs_ms) {
            *sum = *sum * REMEMBERED + cost;
        }
        self.weight = self.weight * REMEMBERED + 1.0;
        let mut best = 0;
        for at in 1..N {
            if self.costs_ms[at] < self.costs_ms[best] {
                best = at;
            }
        }
        let now = self.costs_ms[self.chosen];
        let margin = HYSTERESIS * now / (self.weight * (1.0 - REMEMBERED));
        if self.weight < WEIGHT_MIN || self.costs_ms[best] + margin >= now {
            return None;
        }
        self.chosen = best;
        self.changes += 1;
        Some(best)
    }

    /// For a report.
    pub(crate) fn choice(&self, names: [&'static str; N]) -> Choice {
        let least = self.costs_ms.iter().copied().fold(f64::INFINITY, f64::min);
        let over = |cost: f64| if least > 0.0 { cost / least } else { 1.0 };
        let costs = names.into_iter().zip(self.costs_ms.map(over)).collect();
        Choice { setting: names[self.chosen], changes: self.changes, costs }
    }
}
