//! `replay suite`: judges policies by many workloads.

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use pagetier_policy::SsdSetting;
use pagetier_sim::options::progress_bar;
use pagetier_sim::suite::{
    CLASSICS, Class, Contender, Contenders, EXTENDED, FIXED, Half, Judged, Part, Row, Suite, chart, judge,
    pool_peers, ssd_peers,
};
use pagetier_tpcc::args;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Judges policies by their cost beyond the best fixed setting of each workload
///
/// Replays generated workloads, real traces, and pairs of them joined, under the policies in question and
/// under every fixed setting. Each seed draws lengths (60,000 to 1,000,000 references; a trace's come from
/// any part of it), pools (32 frames to a tenth of the pages), SSDs (3 to 12 times as many pages) and the
/// generators' parameters. Costs are device time, of the whole run, after the first two fifths, and of the
/// first 4 and 10 device operations per slot after the SSD is full. Every HDD read costs a random one, also a
/// scan's, unless --run-read-ms says otherwise.
#[derive(Parser, Debug)]
#[command(name = "replay suite")]
pub(crate) struct SuiteArgs {
    /// The pairs of policies to judge, such as auto+auto,gd2l+auto
    #[arg(long, value_name = "PAIRS", default_value = "auto+auto")]
    compare: Contenders,
    /// Also judge the default pinned to each of its SSD settings
    #[arg(long)]
    pins: bool,
    /// Also judge eviction policies of the literature: as SSD policies below the default's pool, beside the
    /// fixed settings, or as pool policies without an SSD, instead of them. A pair names them peer-NAME or,
    /// on the SSD, peer-NAME:ADMISSION
    #[arg(long, value_name = "TIER")]
    peers: Option<Tier>,
    /// The half of the workloads: what is tuned on one is reported by the other. A workload's name says which
    /// half it is in
    #[arg(long, value_name = "HALF", default_value = "report")]
    half: Half,
    /// Replay only workloads whose names contain this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// The seeds, each of which draws other cases
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 2, 3])]
    seeds: Vec<u64>,
    /// The most references of a workload; the fewest are 60,000, or as many
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = RangedU64ValueParser::<usize>::new().range(1000..=100_000_000))]
    longest: usize,
    /// The folder of page traces (*.ptr), each of which is a workload; without it, only generated ones are
    /// replayed
    #[arg(long, value_name = "DIR", env = "PAGETIER_TRACES")]
    traces: Option<PathBuf>,
    /// The cost of an HDD read that continues a scan's run, such as 0.1 for the transfer alone [default: that
    /// of a random read]
    #[arg(long, value_name = "MS", value_parser = args::not_negative)]
    run_read_ms: Option<f64>,
    /// Number of cases to replay at a time [default: the number of CPUs]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    jobs: Option<usize>,
    /// Keep the costs of the fixed settings in this file: those of the same cases are reused, and new ones
    /// are added as each case ends
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Write suite.json (every cost), suite.md (the tables) and suite.svg (the chart) to this folder
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Also print the costs of every case
    #[arg(long, short)]
    verbose: bool,
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Debug)]
enum Tier {
    Pool,
    Ssd,
}

/// The conditions under which rows are comparable.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, Debug)]
struct Conditions {
    longest: usize,
    run_read_ms: Option<f64>,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    conditions: Conditions,
    fixed: Vec<String>,
    judged: Vec<Judged>,
    rows: Vec<Row>,
}

/// The costs of the fixed settings, kept between runs: they change only if those policies do.
#[derive(Serialize, Deserialize, Debug)]
struct Baseline {
    #[serde(flatten)]
    conditions: Conditions,
    rows: Vec<Row>,
}

impl Conditions {
    fn of(suite: &Suite) -> Self {
        let Suite { longest, run_read_ms, .. } = *suite;
        Self { longest, run_read_ms }
    }
}

impl Baseline {
    /// Reads the baseline for `suite` from `path`; empty if there is no such file.
    fn read(path: &Path, suite: &Suite) -> Result<Self, Box<dyn Error>> {
        let conditions = Conditions::of(suite);
        if !path.exists() {
            return Ok(Self { conditions, rows: Vec::new() });
        }
        let kept: Self = serde_json::from_str(&std::fs::read_to_string(path)?)
            .map_err(|error| format!("--baseline {}: {error}", path.display()))?;
        // Rows of other lengths have the same names but other references, so reusing them would compare
        // different cases.
        if kept.conditions != conditions {
            let differs = "the file was written with another --longest or --run-read-ms";
            return Err(format!("--baseline {}: {differs}", path.display()).into());
        }
        Ok(kept)
    }

    /// Adds the missing rows of fixed settings.
    fn add(&mut self, rows: &[Row], fixed: &[String]) {
        for row in rows.iter().filter(|row| fixed.contains(&row.pair)) {
            if !self.rows.iter().any(|kept| kept.pair == row.pair && kept.is_beside(row)) {
                self.rows.push(row.clone());
            }
        }
    }

    /// Replaces the file atomically: an interrupted run leaves a complete one.
    fn write(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        let beside = path.with_extension("partial");
        std::fs::write(&beside, serde_json::to_string(self)?)?;
        Ok(std::fs::rename(beside, path)?)
    }
}

fn parsed(names: &[impl AsRef<str>]) -> Result<Vec<Contender>, String> {
    names.iter().map(|name| name.as_ref().parse()).collect()
}

fn pins() -> Vec<String> {
    SsdSetting::all().map(|setting| format!("auto+auto:pin={}", setting.name())).collect()
}

pub(crate) fn run(args: &SuiteArgs) -> Result<(), Box<dyn Error>> {
    let mut asked = args.compare.0.clone();
    if args.pins {
        asked.extend(parsed(&pins())?);
    }
    let mut fixed = parsed(&FIXED)?;
    match args.peers {
        // The settings of an SSD say nothing about a pool alone, so its own list replaces them and the
        // pairs in question.
        Some(Tier::Pool) => (asked, fixed) = (Vec::new(), parsed(&pool_peers())?),
        // A peer may be the best of a case.
        Some(Tier::Ssd) => fixed.extend(parsed(&ssd_peers())?),
        None => {}
    }
    let mut suite = Suite::new(args.seeds.clone(), asked.clone());
    suite.half = args.half;
    suite.longest = args.longest;
    suite.only.clone_from(&args.only);
    suite.run_read_ms = args.run_read_ms;
    suite.traces = args.traces.clone();
    // A pair both in question and fixed is replayed once: its cases would otherwise count twice.
    suite.pairs.extend(fixed.iter().filter(|pair| !asked.contains(pair)));
    let fixed: Vec<String> = fixed.iter().map(ToString::to_string).collect();
    let rows = replay(&mut suite, &fixed, args)?;
    let judged = judge(&rows, &fixed);
    let report = Report { conditions: Conditions::of(&suite), fixed, judged, rows };
    let tables = tables(&report, args);
    if let Some(folder) = &args.report {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("suite.json"), serde_json::to_string(&report)?)?;
        std::fs::write(folder.join("suite.md"), &tables)?;
        std::fs::write(folder.join("suite.svg"), chart(&charted(&report, args))?)?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{tables}");
    }
    Ok(())
}

/// Replays what the baseline lacks, with a progress bar.
fn replay(suite: &mut Suite, fixed: &[String], args: &SuiteArgs) -> Result<Vec<Row>, Box<dyn Error>> {
    let path = args.baseline.as_deref();
    let mut baseline = path.map(|path| Baseline::read(path, suite)).transpose()?;
    if let Some(baseline) = &baseline {
        suite.known.clone_from(&baseline.rows);
    }
    let template = "{msg:20} {wide_bar} {pos}/{len} {elapsed} (left: {eta})";
    let bar = progress_bar(suite.cases()? as u64, template);
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let (stop, mut failed) = (AtomicBool::new(false), None);
    let rows = suite.run(jobs, &stop, |rows| {
        bar.inc(1);
        bar.set_message(rows.first().map_or_else(String::new, |row| row.workload.clone()));
        if let (Some(path), Some(baseline)) = (path, &mut baseline) {
            baseline.add(rows, fixed);
            if let Err(error) = baseline.write(path) {
                // The baseline is what a long run is for: end it if that cannot be kept.
                failed = Some(error);
                stop.store(true, Ordering::Relaxed);
            }
        }
    })?;
    bar.finish_and_clear();
    failed.map_or(Ok(rows), Err)
}

/// The names of the pairs in question.
fn asked(args: &SuiteArgs) -> Vec<String> {
    args.compare.0.iter().map(ToString::to_string).collect()
}

/// The pairs to draw: those in question, the best fixed setting, and the papers'.
fn charted(report: &Report, args: &SuiteArgs) -> Vec<Judged> {
    let asked = asked(args);
    // The results are sorted by their means, so the first one not in question is the best of the others.
    let best = report.judged.iter().find(|one| !asked.contains(&one.pair)).map(|one| one.pair.clone());
    let shown = |one: &&Judged| {
        asked.contains(&one.pair) || CLASSICS.contains(&one.pair.as_str()) || Some(&one.pair) == best.as_ref()
    };
    report.judged.iter().filter(shown).cloned().collect()
}

/// A pool of at most so many frames is small.
const SMALL_FRAMES: u32 = 64;

/// The tables, in groups of parts.
const GROUPS: [(&str, &[Part]); 5] = [
    ("whole run", &[Part::Whole]),
    ("after warm-up", &[Part::Steady]),
    ("young: first 4 and 10 operations per slot", &[Part::First4, Part::First10]),
    ("joined: after the change", &[Part::Joined]),
    ("joined: the last two fifths of it", &[Part::JoinedLate]),
];

fn tables(report: &Report, args: &SuiteArgs) -> String {
    if args.peers == Some(Tier::Pool) {
        return pool_tables(report, args);
    }
    let mut out = format!(
        "Half {:?}, seeds {:?}, {} references each at most: I/O beyond that of the best fixed setting of each \
         case, in per cent (in brackets the lowest and the highest mean of a seed), and bytes written to the \
         SSD per 1,000 references\n",
        args.half, args.seeds, report.conditions.longest
    );
    let small = |row: &Row| row.pool_pages <= SMALL_FRAMES;
    let of_class = |class| move |row: &Row| row.class == class;
    type Set<'a> = (&'a str, &'a dyn Fn(&Row) -> bool);
    let sets: [Set<'_>; 4] = [
        ("all", &|_| true),
        ("real", &of_class(Class::Real)),
        ("synthetic", &of_class(Class::Synthetic)),
        ("pools of 32 to 64 frames", &small),
    ];
    for (name, in_set) in sets {
        for (group, parts) in GROUPS {
            let wanted = |row: &&Row| in_set(row) && parts.contains(&row.part);
            let rows: Vec<Row> = report.rows.iter().filter(wanted).cloned().collect();
            by_pair(&mut out, &format!("{name}, {group}"), &judge(&rows, &report.fixed), args);
        }
    }
    for pair in asked(args) {
        if args.pins {
            worse_than_pins(&mut out, report, &pair);
        }
        by_workload(&mut out, report, &pair, args.verbose);
    }
    out
}

/// The pool alone: device cost, and misses, beyond the best of the pool policies in each case.
fn pool_tables(report: &Report, args: &SuiteArgs) -> String {
    let whole = || report.rows.iter().filter(|row| row.part == Part::Whole).cloned();
    let misses = |row: Row| Row { cost_ms: row.misses, ..row };
    // The default adapts itself, so it is judged by the others and is no yardstick.
    let best: Vec<String> = report.fixed.iter().filter(|pair| !pair.starts_with("auto+")).cloned().collect();
    let mut out = String::new();
    // Misses take the place of costs, because most of the literature judges by them and not by what a
    // miss costs.
    let (costs, misses): (Vec<Row>, Vec<Row>) = (whole().collect(), whole().map(misses).collect());
    for (title, rows) in [("device cost", costs), ("misses", misses)] {
        by_pair(&mut out, &format!("pool alone, {title}"), &judge(&rows, &best), args);
    }
    out
}

fn by_pair(out: &mut String, title: &str, judged: &[Judged], args: &SuiteArgs) {
    let Some(cases) = judged.first().map(|one| one.cases) else { return };
    let _ = writeln!(
        out,
        "\n| {title}: {cases} cases | mean (seeds) | worst | over 2 | over 10 | MiB to the SSD | worst case |\n\
         | --- | --- | --- | --- | --- | --- | --- |"
    );
    let asked = asked(args);
    let best = judged.iter().find(|one| !asked.contains(&one.pair)).map(|one| &one.pair);
    for one in judged {
        let pair = &one.pair;
        let shown = asked.contains(pair)
            || pair == EXTENDED
            || best == Some(pair)
            || pair.contains(":pin=")
            || args.peers.is_some();
        if shown || args.verbose {
            let Judged { mean_percent, worst_percent, over_2_percent, over_10_percent, ssd_mib, .. } = one;
            let [low, high] = one.spread_percent;
            let _ = writeln!(
                out,
                "| {pair} | {mean_percent:.1} ({low:.1} to {high:.1}) | {worst_percent:.1} | {over_2_percent} | \
                 {over_10_percent} | {ssd_mib:.2} | {} |",
                one.worst_case
            );
        }
    }
}

/// Appends the cases in which `pair` costs over 2% more than each of the default's settings, pinned.
fn worse_than_pins(out: &mut String, report: &Report, pair: &str) {
    let pins = pins();
    let mut cases = 0;
    for row in report.rows.iter().filter(|row| row.pair == pair) {
        let pinned = report.rows.iter().filter(|other| pins.contains(&other.pair) && other.is_beside(row));
        let highest = pinned.map(|other| other.cost_ms).fold(0.0, f64::max);
        // A policy that chooses pays for wrong choices, up to the cost of the worst one. Beyond that it
        // loses by switching.
        if highest > 0.0 && row.cost_ms > 1.02 * highest {
            cases += 1;
            let percent = 100.0 * (row.cost_ms / highest - 1.0);
            let _ = writeln!(out, "\n{}: {percent:.1}% over the most expensive setting", row.case());
        }
    }
    let _ = writeln!(out, "\n{cases} cases in which {pair} costs 2% more than every setting, pinned");
}

/// Appends the cases in which `pair` exceeds the best fixed setting by more than 2%, or, with `all`, every
/// case.
fn by_workload(out: &mut String, report: &Report, pair: &str, all: bool) {
    let _ = writeln!(out, "\n| case | {pair} | beyond the best | the best |\n| --- | --- | --- | --- |");
    let is_fixed = |row: &&Row| report.fixed.contains(&row.pair);
    for row in report.rows.iter().filter(|row| row.pair == pair) {
        let best = report.rows.iter().filter(is_fixed).filter(|other| other.is_beside(row));
        let Some(best) = best.min_by(|a, b| a.cost_ms.total_cmp(&b.cost_ms)) else { continue };
        let regret = 100.0 * (row.cost_ms / best.cost_ms - 1.0);
        if all || regret > 2.0 {
            let _ =
                writeln!(out, "| {} | {:.0} ms | {regret:+.1}% | {} |", row.case(), row.cost_ms, best.pair);
        }
    }
}
