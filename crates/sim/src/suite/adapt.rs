//! How long a pair takes to adapt to a change of workload.

use super::{Part, Row};
use rustc_hash::FxHashMap;
use serde::Serialize;

/// A window's cost is within this factor of the best fixed setting's once a pair has adapted.
const NEAR: f64 = 1.05;

/// Windows are compared over this many at a time: single ones vary by chance.
const TOGETHER: usize = 3;

/// The time that a pair takes to come near the best fixed setting after a change of workload, in device
/// operations per slot, medians over the joined workloads. A workload that never comes near counts as the
/// longest time.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Adapted {
    /// The number of joined workloads.
    pub cases: usize,
    /// Until the cost is near the best for the first time.
    pub first: f64,
    /// Until it stays near.
    pub for_good: f64,
}

/// The time that `pair` takes, relative to the cheapest of `fixed` in the same windows.
#[must_use]
pub fn adapted(rows: &[Row], pair: &str, fixed: &[String]) -> Option<Adapted> {
    let mut best: FxHashMap<String, Vec<f64>> = FxHashMap::default();
    let joined = || rows.iter().filter(|row| row.part == Part::Joined);
    for row in joined().filter(|row| fixed.contains(&row.pair)) {
        let costs = together(&row.windows_ms);
        let least = best.entry(row.case()).or_insert_with(|| costs.clone());
        least.iter_mut().zip(costs).for_each(|(least, cost)| *least = least.min(cost));
    }
    let (mut first, mut for_good) = (Vec::new(), Vec::new());
    for row in joined().filter(|row| row.pair == pair) {
        let Some(best) = best.get(&row.case()).filter(|best| !best.is_empty()) else { continue };
        let near: Vec<bool> =
            together(&row.windows_ms).iter().zip(best).map(|(cost, best)| *cost <= NEAR * best).collect();
        first.push(near.iter().position(|near| *near).unwrap_or(near.len()));
        for_good.push(near.iter().rposition(|near| !near).map_or(0, |at| at + 1));
    }
    let cases = first.len();
    Some(Adapted { cases, first: median(first)?, for_good: median(for_good)? })
}

fn together(windows: &[f64]) -> Vec<f64> {
    windows.windows(TOGETHER).map(|few| few.iter().sum()).collect()
}

fn median(mut of: Vec<usize>) -> Option<f64> {
    of.sort_unstable();
    let middle = of.len().checked_sub(1)? / 2;
    Some((of[middle] + of[of.len() / 2]) as f64 / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Class;

    fn row(pair: &str, windows_ms: &[f64]) -> Row {
        Row {
            seed: 1,
            workload: "a > b".into(),
            class: Class::Synthetic,
            part: Part::Joined,
            pool_pages: 1,
            ssd_pages: 10,
            pair: pair.into(),
            cost_ms: 1.0,
            ssd_writes: 0.0,
            misses: 0.0,
            windows_ms: windows_ms.to_vec(),
        }
    }

    #[test]
    fn the_best_of_each_window_is_the_measure() {
        let rows = [
            row("one", &[9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 1.0]),
            row("other", &[1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0]),
            row("default", &[2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ];
        let fixed = ["one".to_owned(), "other".to_owned()];
        // Sums of three: the fixed settings' least are 3, 11, 11, 3, 3; the default's are 5, 4, 3, 3, 3.
        let found = adapted(&rows, "default", &fixed).unwrap();
        assert_eq!((found.cases, found.first, found.for_good), (1, 1.0, 1.0));
        assert_eq!(adapted(&rows[..2], "default", &fixed), None);
    }
}
