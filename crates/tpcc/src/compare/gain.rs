//! `gain.svg`, which the README shows: the gain of the paper's policies at 30:10, next to the paper's
//! figures.

use super::charts::{Bar, COLORS, Series, bars, css, standalone};
use super::paper::printed;
use super::view::{View, pair_name};
use crate::command::matrix::{ANALYSIS, Case, POOLS, Shape};
use minijinja::context;
use minijinja::value::Value;
use plotters::style::RGBColor;

const DB: u32 = 30;

const COLOR: [RGBColor; 3] = [COLORS[3], COLORS[0], COLORS[6]];

/// Draws the chart as a file; `None` unless LRU+CC and GD2L+CAC have finished at every pool size.
pub(crate) fn chart(view: &View<'_>) -> Option<String> {
    Some(drawn(&groups(), &series(view)?))
}

/// The same chart as a section of the page.
pub(crate) fn section(view: &View<'_>) -> Option<Value> {
    let series = series(view)?;
    let legend = series.iter().zip(COLOR).map(|((name, _), color)| context! { name, css => css(color) });
    Some(context! { chart => plain(&groups(), &series), legend => legend.collect::<Vec<_>>() })
}

fn groups() -> [String; 3] {
    POOLS.map(|pool| Shape::of(DB, pool).to_string())
}

/// The names of the bars, and their heights at each pool size.
fn series(view: &View<'_>) -> Option<[(String, Vec<f64>); 3]> {
    let [lru_cc, _, gd2l_cac] = ANALYSIS;
    let case = |pool, pair| Case::of(Shape::of(DB, pool), pair);
    let here = |pair| -> Option<Vec<f64>> {
        let total = |pool: &u32| Some(view.finished(&case(*pool, pair))?.row.total_ms_per_new_order);
        POOLS.iter().map(total).collect()
    };
    let paper: Option<Vec<f64>> =
        POOLS.iter().map(|&pool| Some(printed(&case(pool, gd2l_cac))?.total_ms)).collect();
    let paper_name = format!("{} in the paper", pair_name(gd2l_cac));
    Some([(pair_name(lru_cc), here(lru_cc)?), (pair_name(gd2l_cac), here(gd2l_cac)?), (paper_name, paper?)])
}

/// Groups of bars, one of each series, with the legend below.
fn drawn(groups: &[String], series: &[(String, Vec<f64>)]) -> String {
    standalone(&plain(groups, series), series.iter().map(|(name, _)| name.as_str()).zip(COLOR))
}

/// The bars alone.
fn plain(groups: &[String], series: &[(String, Vec<f64>)]) -> String {
    let bar = |&value: &f64| Some(Bar { value, steady: true });
    let all: Vec<Series> = series
        .iter()
        .zip(COLOR)
        .map(|((_, values), color)| Series { color, bars: values.iter().map(bar).collect() })
        .collect();
    bars("Device time per New-Order, by database : SSD : pool", "ms", groups, &all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The header's cells, and the rows' below it, of the first table of `text` that has a column LRU+CC.
    fn table(text: &str) -> (Vec<String>, Vec<Vec<String>>) {
        let cells =
            |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
        let lines = text.lines().skip_while(|line| !line.starts_with('|') || !line.contains("LRU+CC"));
        let mut rows = lines.take_while(|line| line.starts_with('|')).map(cells);
        let head = rows.next().expect("a table");
        (head, rows.skip(1).collect())
    }

    /// `PAGETIER_DRAW=1` redraws it.
    #[test]
    fn the_readmes_chart_shows_the_readmes_table() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let readme = std::fs::read_to_string(root.join("README.md")).expect("a README");
        let (head, rows) = table(&readme);
        let groups: Vec<String> = rows.iter().map(|row| row[0].clone()).collect();
        let column = |at: usize| rows.iter().map(|row| row[at].parse().expect("a figure")).collect();
        let series: Vec<(String, Vec<f64>)> =
            (1..head.len()).map(|at| (head[at].clone(), column(at))).collect();
        let chart = drawn(&groups, &series);
        let file = root.join("docs/gain.svg");
        if std::env::var_os("PAGETIER_DRAW").is_some() {
            std::fs::write(&file, &chart).expect("docs/gain.svg is written");
        }
        let shown = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(shown == chart, "docs/gain.svg shows other figures than the README's table: PAGETIER_DRAW=1");
    }
}
