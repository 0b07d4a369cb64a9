//! Draws the regrets of every pair as curves, in SVG.

use super::Judged;
use pagetier_ghost::LineChart;
use std::error::Error;

/// The highest regret that the chart shows, in per cent.
const TOP_PERCENT: f64 = 60.0;

/// Draws one curve per pair, its regrets in ascending order, and returns an SVG file.
///
/// # Errors
/// The drawing failed.
pub fn chart(judged: &[Judged]) -> Result<String, Box<dyn Error>> {
    let curve = |one: &Judged| {
        let last = (one.regrets.len().max(2) - 1) as f64;
        // The top is cut: one case of several hundred per cent would flatten every curve.
        let at = |(no, &regret): (usize, &f64)| (100.0 * no as f64 / last, regret.min(TOP_PERCENT));
        (one.pair.clone(), one.regrets.iter().enumerate().map(at).collect())
    };
    let chart = LineChart {
        title: "Cost beyond the best fixed setting of each case".into(),
        x: ("cases, in per cent, the best first", 0.0..100.0),
        // The axis reaches below 0, because a pair can beat every fixed setting of a case.
        y: ("per cent beyond the best", -5.0..TOP_PERCENT),
        lines: judged.iter().map(curve).collect(),
        dots: false,
        circled: None,
    };
    chart.svg()
}
