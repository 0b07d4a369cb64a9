//! Regret: the cost of a pair of policies beyond that of the best fixed setting of each case.

use super::Row;
use rustc_hash::FxHashMap;
use serde::Serialize;

/// The results of a pair of policies over all cases.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Judged {
    pub pair: String,
    /// The number of cases: workloads times sizes.
    pub cases: usize,
    /// The geometric mean of the cost ratios to the best fixed setting, minus 1, in per cent.
    pub mean_percent: f64,
    /// The highest regret, in per cent.
    pub worst_percent: f64,
    /// The case of the highest regret: its workload, and the sizes of pool and SSD in pages.
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
    let mut by_pair: FxHashMap<&str, Vec<(f64, String)>> = FxHashMap::default();
    let mut writes: FxHashMap<&str, f64> = FxHashMap::default();
    for row in rows {
        let Some(least) = best.get(&row.case()) else { continue };
        if !by_pair.contains_key(row.pair.as_str()) {
            order.push(&row.pair);
        }
        by_pair.entry(&row.pair).or_default().push((row.cost_ms / least, row.case()));
        *writes.entry(&row.pair).or_default() += row.ssd_writes;
    }
    let judged = |pair: &str| Some(of_pair(pair, by_pair.remove(pair)?, writes.remove(pair)?));
    let mut judged: Vec<Judged> = order.into_iter().filter_map(judged).collect();
    judged.sort_by(|a, b| a.mean_percent.total_cmp(&b.mean_percent));
    judged
}

fn of_pair(pair: &str, mut ratios: Vec<(f64, String)>, ssd_writes: f64) -> Judged {
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let percent = |ratio: f64| 100.0 * (ratio - 1.0);
    let over = |limit: f64| ratios.iter().filter(|(ratio, _)| percent(*ratio) > limit).count();
    let logs: f64 = ratios.iter().map(|(ratio, _)| ratio.ln()).sum();
    let (worst, case) = ratios.last().cloned().unwrap_or((1.0, String::new()));
    Judged {
        pair: pair.to_owned(),
        cases: ratios.len(),
        mean_percent: percent((logs / ratios.len().max(1) as f64).exp()),
        worst_percent: percent(worst),
        worst_case: case,
        over_2_percent: over(2.0),
        over_10_percent: over(10.0),
        ssd_mib: ssd_writes / ratios.len().max(1) as f64 * PAGE_MIB,
        regrets: ratios.iter().map(|(ratio, _)| percent(*ratio)).collect(),
    }
}
