//! What the report's sections show, one value for each, which the template lays out.

use super::charts::{self, Bar, COLORS, Series, css};
use super::observe::{Observed, PagePoint};
use super::paper::printed;
use super::results::Outcome;
use super::view::{Pair, View, pair_name};
use crate::command::matrix::{ANALYSIS, Case, DATABASES, POOLS, RIVALS, Shape, ZONES};
use crate::run::report::Row;
use minijinja::context;
use minijinja::value::{Serde, Value};
use plotters::style::RGBColor;
use std::collections::BTreeSet;

/// The main findings, next to the paper's.
pub(crate) fn claims(view: &View<'_>) -> Vec<String> {
    let [lru_cc, gd2l_cc, gd2l_cac] = ANALYSIS;
    let [lru_mv_fifo, lru_lru2, gd2l_lru2, _] = RIVALS;
    // The ratio of two pairs with each pool for which both are known.
    let ratios = |of: Pair<'_>, to: Pair<'_>, value: &dyn Fn(u32, Pair<'_>) -> Option<f64>| {
        let ratio = |&pool: &u32| Some(format!("{:.2}", value(pool, of)? / value(pool, to)?));
        Some(POOLS.iter().filter_map(ratio).collect::<Vec<_>>().join(", ")).filter(|all| !all.is_empty())
    };
    let measured = |db: u32, value: fn(&Row) -> f64| {
        move |pool, pair: Pair<'_>| Some(value(&view.finished(&Case::of(Shape::of(db, pool), pair))?.row))
    };
    let throughput = |(db, of, to, detail, paper): (u32, Pair<'_>, Pair<'_>, &str, &str)| {
        let here = ratios(of, to, &measured(db, |row| row.tpmc))?;
        let (of, to) = (pair_name(of), pair_name(to));
        Some(format!(
            "Throughput of {of} relative to {to} at {db}:10{detail}: {here} times. The paper: {paper}."
        ))
    };
    let io = |(db, of, to): (u32, Pair<'_>, Pair<'_>)| {
        let here = ratios(of, to, &measured(db, |row| row.total_ms_per_new_order))?;
        let paper = |pool, pair: Pair<'_>| Some(printed(&Case::of(Shape::of(db, pool), pair))?.total_ms);
        let paper = ratios(of, to, &paper).unwrap_or_default();
        let (of, to) = (pair_name(of), pair_name(to));
        Some(format!("I/O per New-Order of {of} relative to {to} at {db}:10: {here}. The paper: {paper}."))
    };
    let first = [
        (30, gd2l_cc, lru_cc, ", by pool", "1.4 to 1.75 times"),
        (30, gd2l_cac, lru_cc, "", "about 2 times"),
    ];
    let all_io = [(30, lru_cc), (30, lru_lru2), (30, lru_mv_fifo), (30, gd2l_lru2), (15, lru_cc)];
    let last = [
        (8, gd2l_cac, gd2l_cc, ", where the SSD holds everything", "no gain"),
        (8, gd2l_cac, lru_lru2, "", "indistinguishable"),
    ];
    let io = all_io.into_iter().filter_map(|(db, to)| io((db, gd2l_cac, to)));
    first
        .into_iter()
        .filter_map(throughput)
        .chain(io)
        .chain(last.into_iter().filter_map(throughput))
        .collect()
}

/// Figures 7 to 11, without those of which nothing was run.
pub(crate) fn figures(view: &View<'_>) -> Vec<Value> {
    [
        throughput(view, "Figure 7", &ANALYSIS),
        io(view, "Figure 8", 30, &ANALYSIS, ANALYSIS[0]),
        io(view, "Figure 9", 15, &ANALYSIS, ANALYSIS[0]),
        throughput(view, "Figure 10", &RIVALS),
        io(view, "Figure 11", 30, &RIVALS, RIVALS[3]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn cases(databases: &[u32], pair: Pair<'_>) -> impl Iterator<Item = Case> {
    let shapes = databases.iter().flat_map(|&db| POOLS.map(|pool| Shape::of(db, pool)));
    shapes.map(move |shape| Case::of(shape, pair))
}

fn has_any(view: &View<'_>, databases: &[u32], pairs: &[Pair<'_>]) -> bool {
    pairs.iter().any(|&pair| cases(databases, pair).any(|case| view.outcome(&case).is_some()))
}

/// The pairs of a figure and those that were run in addition, if any run is the figure's own: GD2L+CAC is in
/// all of them.
fn shown<'a>(view: &View<'a>, databases: &[u32], pairs: &[Pair<'a>]) -> Option<Vec<Pair<'a>>> {
    let own: Vec<_> = pairs.iter().copied().filter(|pair| *pair != ANALYSIS[2]).collect();
    has_any(view, databases, &own).then(|| view.pairs(pairs))
}

/// A pair's colour in a chart of `pairs`. Each of the papers' pairs has its own in all charts; another one
/// has a colour that none of those in the chart has.
pub(super) fn color(pair: Pair<'_>, pairs: &[Pair<'_>]) -> RGBColor {
    let known = [ANALYSIS[2], ANALYSIS[0], ANALYSIS[1], RIVALS[0], RIVALS[2], RIVALS[1]];
    let own = |pair: &Pair<'_>| known.iter().position(|known| known == pair);
    let taken: Vec<_> = pairs.iter().filter_map(own).collect();
    // Grey first: no pair of the papers has it in any chart.
    let free = (0..COLORS.len()).rev().filter(|color| !taken.contains(color));
    let nth = pairs.iter().filter(|pair| own(pair).is_none()).position(|other| *other == pair);
    COLORS[own(&pair).or_else(|| free.cycle().nth(nth.unwrap_or(0))).unwrap_or(COLORS.len() - 1)]
}

/// Figures 7 and 10: a chart per database, and the same numbers as a table.
fn throughput(view: &View<'_>, name: &str, pairs: &[Pair<'static>]) -> Option<Value> {
    let pairs = shown(view, &DATABASES, pairs)?;
    let databases: Vec<u32> = DATABASES.into_iter().filter(|&db| has_any(view, &[db], &pairs)).collect();
    let bar = |case: Case| {
        let finished = view.finished(&case)?;
        Some(Bar { value: finished.row.tpmc, steady: finished.steady })
    };
    let chart = |&db: &u32| {
        let series = pairs
            .iter()
            .map(|&pair| Series { color: color(pair, &pairs), bars: cases(&[db], pair).map(bar).collect() });
        let groups = POOLS.map(|pool| Shape::of(db, pool).to_string());
        charts::bars(&format!("DB:SSD = {db}:10"), "tpmC", &groups, &series.collect::<Vec<_>>())
    };
    let row = |&pair: &Pair<'_>| {
        context! {
            name => pair_name(pair),
            css => css(color(pair, &pairs)),
            bars => Serde(cases(&databases, pair).map(bar).collect::<Vec<_>>()),
            errors => Serde(errors(view, pair)),
        }
    };
    let shapes = databases.iter().flat_map(|&db| POOLS.map(|pool| Shape::of(db, pool).to_string()));
    Some(context! {
        name,
        charts => databases.iter().map(chart).collect::<Vec<_>>(),
        shapes => shapes.collect::<Vec<_>>(),
        pairs => pairs.iter().map(row).collect::<Vec<_>>(),
    })
}

/// What prevented runs of a pair: each error once, not once per size.
fn errors<'a>(view: &View<'a>, pair: Pair<'_>) -> BTreeSet<&'a str> {
    cases(&DATABASES, pair).filter_map(|case| error(view.outcome(&case)?)).collect()
}

fn error(outcome: &Outcome) -> Option<&str> {
    match outcome {
        Outcome::NotRun { error, .. } => Some(error),
        Outcome::Finished(_) => None,
    }
}

/// Figures 8, 9 and 11: the runs of a table that includes the paper's numbers.
fn io(view: &View<'_>, name: &str, db: u32, pairs: &[Pair<'static>], base: Pair<'_>) -> Option<Value> {
    let case = |pool, pair| Case::of(Shape::of(db, pool), pair);
    let run = |pair, pool| {
        let (outcome, paper) = (view.outcome(&case(pool, pair))?, printed(&case(pool, pair)));
        let (finished, first) = (view.finished(&case(pool, pair)), view.finished(&case(pool, base)));
        let total = |row: &Row| row.total_ms_per_new_order;
        Some(context! {
            pair => pair_name(pair),
            shape => Shape::of(db, pool).to_string(),
            error => error(outcome),
            row => Serde(finished.map(|finished| &finished.row)),
            steady => finished.map(|finished| finished.steady),
            paper => Serde(paper),
            of_base => finished.zip(first).map(|(run, first)| total(&run.row) / total(&first.row)),
            paper_of_base =>
                paper.zip(printed(&case(pool, base))).map(|(paper, first)| paper.total_ms / first.total_ms),
        })
    };
    let pairs = shown(view, &[db], pairs)?;
    let runs = pairs.iter().flat_map(|&pair| POOLS.map(|pool| run(pair, pool)));
    Some(context! { name, db, base => pair_name(base), runs => runs.flatten().collect::<Vec<_>>() })
}

const POINTS_MAX: usize = 1_500;

/// The minimum number of pages of a group in Figure 6: the rates of smaller groups are chance.
const GROUP_PAGES_MIN: u64 = 5;

/// The last subrange has no upper end.
const SUBRANGE_LAST: u32 = 999;

/// Figures 4 and 6, from one run of GD2L+CAC.
pub(crate) fn observed(view: &View<'_>) -> Option<Value> {
    // The zone of all other experiments: the only run that is observed.
    let case = Case::zone(ZONES[3]);
    let observed = view.finished(&case)?.observed.as_ref()?;
    let pages = &observed.pages;
    let rates = |page: &PagePoint| (100.0 * page.miss_hdd, 100.0 * page.miss_ssd);
    let writes = |page: &PagePoint| (page.writes_hdd_per_min, page.writes_ssd_per_min);
    let chart = |title, of: fn(&PagePoint) -> (f64, f64)| {
        // Thousands of circles make a page slow; the shares below the charts count every page.
        let some = pages.iter().step_by(pages.len().div_ceil(POINTS_MAX).max(1));
        charts::points(title, "while off the SSD", "while on the SSD", &some.map(of).collect::<Vec<_>>())
    };
    let above = |of: fn(&PagePoint) -> (f64, f64)| {
        let more = pages.iter().map(of).filter(|(off, on)| on > off).count();
        100.0 * more as f64 / pages.len().max(1) as f64
    };
    let charts = [chart("Miss rate of pages, %", rates), chart("Writes of pages a minute", writes)];
    Some(context! {
        pair => case.policies().to_string(),
        pages => pages.len(),
        minutes => observed.seconds / 60.0,
        drawn_max => POINTS_MAX,
        points => (!pages.is_empty()).then_some(charts),
        missed_more => above(rates),
        written_more => above(writes),
        group_pages_min => GROUP_PAGES_MIN,
        tables => TABLES.map(|(name, color)| context! { name, css => css(color) }),
        expansion => expansion(observed),
    })
}

/// The tables whose groups Figure 6 shows.
const TABLES: [(&str, RGBColor); 3] =
    [("stock", COLORS[0]), ("customer", COLORS[1]), ("order_line", COLORS[2])];

/// Figure 6.
fn expansion(observed: &Observed) -> String {
    let lines = TABLES.map(|(table, color)| {
        let shown = observed.groups.iter().filter(|group| {
            // Without misses on both devices, no ratio of miss rates has been measured.
            let missed = group.miss_hdd.is_some_and(|m| m > 0.0) && group.miss_ssd.is_some_and(|m| m > 0.0);
            let wide = group.pages >= GROUP_PAGES_MIN && group.logical_reads_per_min < SUBRANGE_LAST;
            group.table == table && wide && missed
        });
        (color, shown.map(|group| (f64::from(group.logical_reads_per_min), group.alpha)).collect())
    });
    charts::lines("Miss rate expansion factor", ("logical reads a minute", "α"), &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_additional_pair_has_a_colour_of_a_named_one_in_its_chart() {
        let more = ["casa", "cfdc", "cflru"].map(|pool| (pool, "cac"));
        for named in [&ANALYSIS[..], &RIVALS] {
            let pairs = [named, &more].concat();
            let colors: BTreeSet<_> = pairs.iter().map(|&pair| css(color(pair, &pairs))).collect();
            assert_eq!(colors.len(), pairs.len(), "{colors:?}");
            assert_eq!(color(ANALYSIS[2], &pairs), COLORS[0]);
            assert_eq!(color(more[0], &pairs), COLORS[6], "grey");
        }
    }
}
