//! The rows of one setting, as page and charts show them.

use super::results::{Entry, Finished, Outcome, Results, Setting};
use crate::command::matrix::{ANALYSIS, Case, RIVALS};
use std::collections::BTreeSet;

/// A pool policy and an SSD policy.
pub(crate) type Pair<'a> = (&'a str, &'a str);

/// The rows that a page shows.
pub(crate) struct View<'a> {
    pub(crate) results: &'a Results,
    pub(crate) setting: &'a Setting,
}

impl<'a> View<'a> {
    pub(crate) fn outcome(&self, case: &Case) -> Option<&'a Outcome> {
        self.results.outcome(self.setting, case)
    }

    /// The outcome of `case`, if it was measured.
    pub(crate) fn finished(&self, case: &Case) -> Option<&'a Finished> {
        self.results.finished(self.setting, case)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &'a Entry> {
        self.results.entries.iter().filter(|entry| entry.setting == *self.setting)
    }

    /// Every row of the setting.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&'a Case, &'a Outcome)> {
        self.entries().map(|entry| (&entry.case, &entry.outcome))
    }

    /// `pairs`, and those that were run in addition to the paper's.
    pub(crate) fn pairs(&self, pairs: &[Pair<'a>]) -> Vec<Pair<'a>> {
        let own = |pair: &Pair<'_>| ANALYSIS.contains(pair) || RIVALS.contains(pair);
        let all = self.rows().map(|(case, _)| (case.pool_policy.as_str(), case.ssd_policy.as_str()));
        // Sorted, since rows stand in the order in which concurrent runs have ended.
        let more: BTreeSet<_> = all.filter(|pair| !own(pair)).collect();
        pairs.iter().copied().chain(more).collect()
    }
}

/// A policy pair in the paper's notation.
pub(crate) fn pair_name((pool, ssd): Pair<'_>) -> String {
    format!("{pool}+{ssd}").to_uppercase()
}
