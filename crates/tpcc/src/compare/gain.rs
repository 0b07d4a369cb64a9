//! `gain.svg`, which the README shows: the gain of the paper's policies at 30:10, next to the paper's
//! figures.

use super::charts::{Bar, Series, bars, css, standalone};
use super::paper::printed;
use super::sections::color;
use super::view::{View, pair_name};
use crate::command::matrix::{ANALYSIS, Case, POOLS, Shape};
use minijinja::context;
use minijinja::value::Value;
use plotters::style::RGBColor;

const DB: u32 = 30;

/// The bars of a name, with their values at each pool size.
struct Named {
    name: String,
    color: RGBColor,
    bars: Vec<Bar>,
}

/// Draws the chart as a file; `None` unless LRU+CC and GD2L+CAC have finished at every pool size.
pub(crate) fn chart(view: &View<'_>) -> Option<String> {
    Some(drawn(&groups(), &series(view)?))
}

/// The same chart as a section of the page.
pub(crate) fn section(view: &View<'_>) -> Option<Value> {
    let series = series(view)?;
    let legend = series.iter().map(|one| context! { name => one.name.as_str(), css => css(one.color) });
    Some(context! { chart => plain(&groups(), &series), legend => legend.collect::<Vec<_>>() })
}

fn groups() -> [String; 3] {
    POOLS.map(|pool| Shape::of(DB, pool).to_string())
}

/// A pair's bars here, and in the paper: in the colour that the pair has in all charts, and a lighter one.
fn series(view: &View<'_>) -> Option<Vec<Named>> {
    let [lru_cc, _, gd2l_cac] = ANALYSIS;
    let mut all = Vec::new();
    for pair in [lru_cc, gd2l_cac] {
        let case = |pool: &u32| Case::of(Shape::of(DB, *pool), pair);
        let here = |pool| {
            let finished = view.finished(&case(pool))?;
            Some(Bar { value: finished.row.total_ms_per_new_order, steady: finished.steady })
        };
        // The paper does not say whether its runs were steady. A star would claim that they were not.
        let paper = |pool| Some(Bar { value: printed(&case(pool))?.total_ms, steady: true });
        // A missing bar drops the chart: a comparison under way must not replace the last complete one.
        all.push(named(pair_name(pair), POOLS.iter().map(here).collect::<Option<_>>()?));
        let paper_name = format!("{}{IN_PAPER}", pair_name(pair));
        all.push(named(paper_name, POOLS.iter().map(paper).collect::<Option<_>>()?));
    }
    Some(all)
}

const IN_PAPER: &str = " in the paper";

/// The bars called `name`, in the colour of their pair.
fn named(name: String, bars: Vec<Bar>) -> Named {
    let pair = name.trim_end_matches(IN_PAPER);
    let own = color(ANALYSIS.into_iter().find(|of| pair_name(*of) == pair).unwrap_or(ANALYSIS[0]), &[]);
    let lighter = |part: u8| part.midpoint(255);
    let color = if pair == name { own } else { RGBColor(lighter(own.0), lighter(own.1), lighter(own.2)) };
    Named { name, color, bars }
}

/// Groups of bars, one of each series, with the legend below.
fn drawn(groups: &[String], series: &[Named]) -> String {
    standalone(&plain(groups, series), series.iter().map(|one| (one.name.as_str(), one.color)))
}

/// The bars alone.
fn plain(groups: &[String], series: &[Named]) -> String {
    let bars_of = |one: &Named| one.bars.iter().copied().map(Some).collect();
    let all: Vec<Series> = series.iter().map(|one| Series { color: one.color, bars: bars_of(one) }).collect();
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
        let bar = |cell: &String| Bar { value: cell.parse().expect("a figure"), steady: true };
        let column = |at: usize| rows.iter().map(|row| bar(&row[at])).collect();
        let series: Vec<Named> = (1..head.len()).map(|at| named(head[at].clone(), column(at))).collect();
        let chart = drawn(&groups, &series);
        let file = root.join("docs/gain.svg");
        if std::env::var_os("PAGETIER_DRAW").is_some() {
            std::fs::write(&file, &chart).expect("docs/gain.svg is written");
        }
        let shown = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(shown == chart, "docs/gain.svg shows other figures than the README's table: PAGETIER_DRAW=1");
    }
}
