//! Regret: the cost of a pair of policies beyond that of the best fixed setting of each case.

use super::Row;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

/// The results of a pair of policies over all cases.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Judged {
    pub pair: String,
    /// The number of cases: workloads times seeds and parts.
    pub cases: usize,
    /// The geometric mean of the cost ratios to the best fixed setting, minus 1, in per cent.
    pub mean_percent: f64,
    /// The lowest and the highest of such means over the cases of one seed.
    pub spread_percent: [f64; 2],
    /// The highest regret, in per cent.
    pub worst_percent: f64,
    /// The case of the highest regret: its workload, the sizes of pool and SSD in pages, the seed, the part.
    pub worst_case: String,
    /// The number of cases with a regret above 2%.
    pub over_2_percent: usize,
    /// The number of cases with a regret above 10%.
    pub over_10_percent: usize,
    /// The bytes written to the SSD per 1,000 references, in MiB: the mean over the cases.
    pub ssd_mib: f64,
    /// The regret of every case in per cent, ascending: the cost relative to that of the best fixed setting,
    /// minus 1.
    pub regrets: Vec<f64>,
}

/// A page of 16 KiB, in MiB.
const PAGE_MIB: f64 = 1.0 / 64.0;

/// Judges every pair in `rows` against the cheapest of `fixed` in each case. Skips cases without a cost.
#[must_use]
pub fn judge(rows: &[Row], fixed: &[String]) -> Vec<Judged> {
    let mut best: FxHashMap<String, f64> = FxHashMap::default();
    for row in rows.iter().filter(|row| fixed.contains(&row.pair) && row.cost_ms > 0.0) {
        let least = best.entry(row.case()).or_insert(f64::INFINITY);
        *least = least.min(row.cost_ms);
    }
    let mut order: Vec<&str> = Vec::new();
    let mut by_pair: FxHashMap<&str, Vec<(f64, &Row)>> = FxHashMap::default();
    let mut writes: FxHashMap<&str, f64> = FxHashMap::default();
    for row in rows {
        let Some(least) = best.get(&row.case()) else { continue };
        if !by_pair.contains_key(row.pair.as_str()) {
            // The sort below is stable, so pairs with equal means stay in the order in which they were
            // asked for, not in that of a hash map.
            order.push(&row.pair);
        }
        by_pair.entry(&row.pair).or_default().push((row.cost_ms / least, row));
        *writes.entry(&row.pair).or_default() += row.ssd_writes;
    }
    let judged = |pair: &str| Some(of_pair(pair, by_pair.remove(pair)?, writes.remove(pair)?));
    let mut judged: Vec<Judged> = order.into_iter().filter_map(judged).collect();
    judged.sort_by(|a, b| a.mean_percent.total_cmp(&b.mean_percent));
    judged
}

fn of_pair(pair: &str, mut ratios: Vec<(f64, &Row)>, ssd_writes: f64) -> Judged {
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let percent = |ratio: f64| 100.0 * (ratio - 1.0);
    let over = |limit: f64| ratios.iter().filter(|(ratio, _)| percent(*ratio) > limit).count();
    // Ratios have a geometric mean: twice and half the cost cancel out.
    let mean = |of: &mut dyn Iterator<Item = f64>| {
        let (logs, cases) = of.fold((0.0, 0_u32), |(logs, cases), ratio| (logs + ratio.ln(), cases + 1));
        percent((logs / f64::from(cases.max(1))).exp())
    };
    // Seeds draw all cases anew, so the spread of their means shows how much of a mean is the luck of the
    // draw.
    let of_seed =
        |seed| mean(&mut ratios.iter().filter(|(_, row)| row.seed == seed).map(|(ratio, _)| *ratio));
    let means = ratios.iter().map(|(_, row)| row.seed).collect::<FxHashSet<u64>>().into_iter().map(of_seed);
    let spread = means.fold([f64::MAX, f64::MIN], |[low, high], mean| [low.min(mean), high.max(mean)]);
    Judged {
        pair: pair.to_owned(),
        cases: ratios.len(),
        mean_percent: mean(&mut ratios.iter().map(|(ratio, _)| *ratio)),
        spread_percent: spread,
        worst_percent: ratios.last().map_or(0.0, |(ratio, _)| percent(*ratio)),
        worst_case: ratios.last().map_or_else(String::new, |(_, row)| row.case()),
        over_2_percent: over(2.0),
        over_10_percent: over(10.0),
        ssd_mib: ssd_writes / ratios.len().max(1) as f64 * PAGE_MIB,
        regrets: ratios.iter().map(|(ratio, _)| percent(*ratio)).collect(),
    }
}
