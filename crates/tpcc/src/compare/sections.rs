//! The report's sections, one per figure.

use super::charts::{self, Bar, COLORS, Series};
use super::html::{Html, Table, escape};
use super::matrix::{ANALYSIS, Case, DATABASES, POOLS, RIVALS, Shape, ZONES};
use super::paper::printed;
use super::view::{View, pair_name};
use crate::policies::Policies;
use plotters::style::RGBColor;

type Pair<'a> = (&'a str, &'a str);

fn color(pair: Pair<'_>, at: usize) -> RGBColor {
    let known = [
        ("gd2l", "cac"),
        ("lru", "cc"),
        ("gd2l", "cc"),
        ("lru", "mv-fifo"),
        ("gd2l", "lru2"),
        ("lru", "lru2"),
    ];
    COLORS[known.iter().position(|known| *known == pair).unwrap_or(6 + at) % COLORS.len()]
}

fn has_any(view: &View<'_>, databases: &[u32], pairs: &[Pair<'_>]) -> bool {
    let mut shapes = databases.iter().flat_map(|&db| POOLS.map(|pool| Shape::of(db, pool)));
    shapes.any(|shape| pairs.iter().any(|&pair| view.outcome(&Case::of(shape, pair)).is_some()))
}

/// The pairs that a figure does not share with another one. A figure without runs of these is omitted.
fn own<'a>(pairs: &[Pair<'a>]) -> Vec<Pair<'a>> {
    pairs.iter().copied().filter(|pair| *pair != ANALYSIS[2]).collect()
}

/// The main findings, next to the paper's.
pub(crate) fn in_short(body: &mut Html, view: &View<'_>) {
    let at = |db: u32, pair: Pair<'_>| POOLS.map(|pool| view.finished(&Case::of(Shape::of(db, pool), pair)));
    let ratios =
        |db: u32, of: Pair<'_>, to: Pair<'_>, value: fn(&crate::report::Row) -> f64| -> Option<String> {
            let both = at(db, of).into_iter().zip(at(db, to));
            let values: Vec<String> = both
                .filter_map(|(of, to)| Some(format!("{:.2}", value(&of?.row) / value(&to?.row))))
                .collect();
            (!values.is_empty()).then(|| values.join(", "))
        };
    let [lru_cc, gd2l_cc, gd2l_cac] = ANALYSIS;
    let mut lines = Vec::new();
    let mut say = |line: Option<String>| lines.extend(line);
    let throughput = |db: u32, of: Pair<'_>, to: Pair<'_>, detail: &str, paper: &str| {
        let here = ratios(db, of, to, |row| row.tpmc)?;
        let (of, to) = (pair_name(of), pair_name(to));
        let claim = format!("Throughput of {of} relative to {to} at {db}:10{detail}: {here} times.");
        Some(format!("{claim} The paper: {paper}."))
    };
    say(throughput(30, gd2l_cc, lru_cc, ", by pool", "1.4 to 1.75 times"));
    say(throughput(30, gd2l_cac, lru_cc, "", "about 2 times"));
    let printed_ratios = |db: u32, of: Pair<'_>, to: Pair<'_>| {
        let ratio = |&pool: &u32| {
            let total = |pair| printed(&Case::of(Shape::of(db, pool), pair)).map(|row| row.total_ms);
            Some(format!("{:.2}", total(of)? / total(to)?))
        };
        POOLS.iter().filter_map(ratio).collect::<Vec<_>>().join(", ")
    };
    for (db, of, to) in [
        (30, gd2l_cac, lru_cc),
        (30, gd2l_cac, RIVALS[1]),
        (30, gd2l_cac, RIVALS[0]),
        (30, gd2l_cac, RIVALS[2]),
        (15, gd2l_cac, lru_cc),
    ] {
        let here = ratios(db, of, to, |row| row.total_ms_per_new_order);
        say(here.map(|here| {
            let (paper, of, to) = (printed_ratios(db, of, to), pair_name(of), pair_name(to));
            format!("I/O per New-Order of {of} relative to {to} at {db}:10: {here}. The paper: {paper}.")
        }));
    }
    say(throughput(8, gd2l_cac, gd2l_cc, ", where the SSD holds everything", "no gain"));
    say(throughput(8, gd2l_cac, RIVALS[1], "", "indistinguishable"));
    if !lines.is_empty() {
        let items: String = lines.iter().map(|line| format!("<li>{}</li>\n", escape(line))).collect();
        body.raw(format_args!("<ul>\n{items}</ul>\n"));
    }
}

/// Figures 7 and 10: a chart per database.
pub(crate) fn throughput(body: &mut Html, view: &View<'_>, figure: &str, pairs: &[Pair<'static>]) {
    if !has_any(view, &DATABASES, &own(pairs)) {
        return;
    }
    let pairs = view.pairs(pairs);
    let names: Vec<String> = pairs.iter().map(|&pair| pair_name(pair)).collect();
    body.text("h2", format_args!("{figure}: throughput of {}", names.join(", ")));
    body.text(
        "p",
        "New-Orders per minute (tpmC), by the pool's share of the SSD: more is better. The paper gives its \
         bars' heights only as a drawing, so they are \
         not shown here.",
    );
    let colors: Vec<RGBColor> = pairs.iter().enumerate().map(|(at, &pair)| color(pair, at)).collect();
    body.raw(charts::legend(names.iter().map(String::as_str).zip(colors.iter().copied())));
    let mut drawn = String::new();
    let (mut head, mut table_rows) =
        (vec!["tpmC".to_owned()], names.iter().map(|name| vec![cell(name)]).collect::<Vec<_>>());
    for db in DATABASES.into_iter().filter(|&db| has_any(view, &[db], &pairs)) {
        let groups = POOLS.map(|pool| format!("pool {}%", pool * 10));
        head.extend(POOLS.map(|pool| format!("{}", Shape::of(db, pool))));
        let series: Vec<Series> = pairs
            .iter()
            .zip(&colors)
            .map(|(&pair, &color)| {
                let bar = |pool| {
                    let finished = view.finished(&Case::of(Shape::of(db, pool), pair))?;
                    Some(Bar { value: finished.row.tpmc, steady: finished.steady })
                };
                Series { color, bars: POOLS.map(bar).to_vec() }
            })
            .collect();
        for (row, one) in table_rows.iter_mut().zip(&series) {
            let label = |bar: &Option<Bar>| match bar {
                Some(bar) => format!("{:.0}{}", bar.value, star(bar.steady)),
                None => "–".into(),
            };
            row.extend(one.bars.iter().map(label));
        }
        drawn +=
            &format!("<div>{}</div>\n", charts::bars(&format!("DB:SSD = {db}:10"), "tpmC", &groups, &series));
    }
    body.class("div", "charts", drawn);
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let mut table = Table::new(&head);
    table_rows.iter().for_each(|row| table.row(row));
    body.raw(table);
    not_run(body, view, &DATABASES, &pairs);
}

/// Lists what the store refused, once per pair and error.
fn not_run(body: &mut Html, view: &View<'_>, databases: &[u32], pairs: &[Pair<'_>]) {
    for &pair in pairs {
        let cases = databases.iter().flat_map(|&db| POOLS.map(|pool| Case::of(Shape::of(db, pool), pair)));
        let errors = cases.filter_map(|case| match view.outcome(&case)? {
            super::results::Outcome::NotRun { error, .. } => Some(error.clone()),
            super::results::Outcome::Finished(_) => None,
        });
        let errors: std::collections::BTreeSet<String> = errors.collect();
        for error in errors {
            body.text("p", format_args!("{} was not run: {error}", pair_name(pair)));
        }
    }
}

/// Figures 8, 9 and 11: a table that includes the paper's numbers.
pub(crate) fn io(
    body: &mut Html,
    view: &View<'_>,
    figure: &str,
    db: u32,
    pairs: &[Pair<'static>],
    base: Pair<'_>,
) {
    let beside = format!("of {}", pair_name(base));
    let head =
        ["policies", "pool", "HDD util %", "HDD ms", "SSD util %", "SSD ms", "total ms", &beside, "miss %"];
    if !has_any(view, &[db], &own(pairs)) {
        return;
    }
    let pairs = view.pairs(pairs);
    body.text("h2", format_args!("{figure}: device time per New-Order, DB:SSD = {db}:10"));
    body.raw(format_args!(
        "<p>Milliseconds of each device per New-Order; below, <span class=\"dim\">grey, what the paper \
         printed</span>. “Of {}” is the total relative to its \
         total with the same pool. Miss rates are of the buffer pool.</p>\n",
        escape(&pair_name(base))
    ));
    let mut table = Table::new(&head);
    for &pair in &pairs {
        for pool in POOLS {
            let case = |pair| Case::of(Shape::of(db, pool), pair);
            let (first, paper, paper_first) =
                (view.finished(&case(base)), printed(&case(pair)), printed(&case(base)));
            let name = cell(&pair_name(pair));
            let Some(finished) = view.finished(&case(pair)) else {
                if let Some(super::results::Outcome::NotRun { error, .. }) = view.outcome(&case(pair)) {
                    table.note(&name, &format!("pool {}%: not run: {error}", pool * 10), head.len());
                }
                continue;
            };
            let row = &finished.row;
            let beside = |total: f64, first: Option<f64>| first.map(|first| total / first);
            let of_first =
                beside(row.total_ms_per_new_order, first.map(|first| first.row.total_ms_per_new_order));
            let paper_of_first =
                paper.and_then(|p| beside(p.total_ms, paper_first.map(|first| first.total_ms)));
            table.row(&[
                name,
                format!("{}%{}", pool * 10, star(finished.steady)),
                both(row.hdd_util_pct, paper.map(|p| p.hdd_util), 0),
                both(row.hdd_ms_per_new_order, paper.map(|p| p.hdd_ms), 1),
                both(row.ssd_util_pct, paper.map(|p| p.ssd_util), 0),
                both(row.ssd_ms_per_new_order, paper.map(|p| p.ssd_ms), 1),
                format!("<b>{}</b>", both(row.total_ms_per_new_order, paper.map(|p| p.total_ms), 1)),
                of_first.map_or_else(String::new, |here| both(here, paper_of_first, 2)),
                both(row.pool_miss_rate_pct, paper.map(|p| p.miss), 1),
            ]);
        }
    }
    body.raw(table);
}

fn cell(name: &str) -> String {
    format!("<b>{}</b>", escape(name))
}

fn star(steady: bool) -> &'static str {
    if steady { "" } else { "<span class=\"star\" title=\"not steady\">*</span>" }
}

/// A number with the paper's below it.
fn both(here: f64, paper: Option<f64>, digits: usize) -> String {
    let paper =
        paper.map_or_else(String::new, |paper| format!("<span class=\"paper\">{paper:.digits$}</span>"));
    format!("{here:.digits$}{paper}")
}

/// Figures 4 and 6, from one run of GD2L+CAC.
pub(crate) fn behaviour(body: &mut Html, view: &View<'_>) {
    let case = Case::zone(10.0);
    let Some(observed) = view.finished(&case).and_then(|finished| finished.observed.as_ref()) else { return };
    let Policies { pool, ssd } = case.policies();
    body.text(
        "h2",
        format_args!(
            "Figures 4 and 6: what the SSD does to pages, {} at {}",
            pair_name((&pool, &ssd)),
            case.shape
        ),
    );
    body.text("p", format_args!(
        "Each of the {} points is a page that spent at least a third of {:.0} minutes on the SSD and as much \
         off it (section 4: 20 of 60 minutes, about 2,500 \
         pages). A page on the line behaves the same on both devices; above it, pages are missed, or \
         written, more often while they are on the SSD.{}",
        observed.pages.len(),
        observed.seconds / 60.0,
        if observed.pages.len() > POINTS_MAX { format!(" {POINTS_MAX} of them are drawn.") } else { String::new() },
    ));
    let step = observed.pages.len().div_ceil(POINTS_MAX).max(1);
    let some = || observed.pages.iter().step_by(step);
    let misses: Vec<(f64, f64)> = some().map(|p| (100.0 * p.miss_hdd, 100.0 * p.miss_ssd)).collect();
    let writes: Vec<(f64, f64)> = some().map(|p| (p.writes_hdd_per_min, p.writes_ssd_per_min)).collect();
    if misses.is_empty() {
        return expansion(body, observed);
    }
    let above = |of: fn(&super::observe::PagePoint) -> (f64, f64)| {
        let more = observed.pages.iter().map(of).filter(|(off, on)| on > off).count();
        100.0 * more as f64 / observed.pages.len().max(1) as f64
    };
    let charts = [
        charts::points("Miss rate of pages, %", "while off the SSD", "while on the SSD", &misses),
        charts::points("Writes of pages a minute", "while off the SSD", "while on the SSD", &writes),
    ];
    body.class("div", "charts", charts.map(|chart| format!("<div>{chart}</div>\n")).concat());
    body.text(
        "p",
        format_args!(
            "{:.0}% of the pages are missed more often on the SSD, and {:.0}% are written more often.",
            above(|p| (p.miss_hdd, p.miss_ssd)),
            above(|p| (p.writes_hdd_per_min, p.writes_ssd_per_min)),
        ),
    );
    expansion(body, observed);
}

const POINTS_MAX: usize = 1_500;

/// The minimum number of pages of a group in Figure 6: the rates of smaller groups are chance.
const GROUP_PAGES_MIN: u64 = 5;

/// The last subrange has no upper end.
const SUBRANGE_LAST: u32 = 999;

/// Figure 6.
fn expansion(body: &mut Html, observed: &super::observe::Observed) {
    let tables = [("stock", COLORS[0]), ("customer", COLORS[1]), ("order_line", COLORS[2])];
    body.text(
        "p",
        format_args!(
            "The miss rate expansion factor α of groups of pages, as CAC's final value: how many times more \
         often pages are missed while they are on the \
         SSD. Groups of fewer than {GROUP_PAGES_MIN} pages, groups without misses on one of the devices, and \
         the last subrange, which has no upper end, are omitted.",
        ),
    );
    body.raw(charts::legend(tables.iter().copied()));
    let lines = tables.map(|(table, color)| {
        let of_table = observed.groups.iter().filter(|group| {
            let missed = group.miss_hdd.is_some_and(|m| m > 0.0) && group.miss_ssd.is_some_and(|m| m > 0.0);
            group.table == table && group.pages >= GROUP_PAGES_MIN && missed
        });
        let of_table = of_table.filter(|group| group.logical_reads_per_min < SUBRANGE_LAST);
        (color, of_table.map(|group| (f64::from(group.logical_reads_per_min), group.alpha)).collect())
    });
    let chart = charts::lines("Miss rate expansion factor", ("logical reads a minute", "α"), &lines);
    body.class("div", "charts", format_args!("<div>{chart}</div>"));
}

/// Section 6.5.
pub(crate) fn zones(body: &mut Html, view: &View<'_>) {
    let rows: Vec<_> =
        ZONES.iter().filter_map(|&zone| Some((zone, view.finished(&Case::zone(zone))?))).collect();
    if rows.is_empty() {
        return;
    }
    body.text("h2", format_args!("Section 6.5: the size of the eviction zone, GD2L+CAC at {}", Shape::SMALL));
    body.text(
        "p",
        "The paper finds no impact of zones of 1, 2, 5 and 10% of the SSD on throughput, and fewer than \
         three map checkpoints a second with the smallest; it prints \
         no other numbers.",
    );
    let mut table =
        Table::new(&["zone", "tpmC", "ms per New-Order", "all I/O ms", "map checkpoints a second"]);
    for (zone, finished) in rows {
        let row = &finished.row;
        table.row(&[
            format!("<b>{zone}%</b>"),
            format!("{:.0}{}", row.tpmc, star(finished.steady)),
            format!("{:.1}", row.total_ms_per_new_order),
            format!("{:.1}", row.all_total_ms_per_new_order),
            format!("{:.3}", row.map_checkpoints as f64 / row.seconds.max(1e-9)),
        ]);
    }
    body.raw(table);
}
