//! `replay --suite`: judges policies by many workloads.

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use pagetier_sim::options::progress_bar;
use pagetier_sim::suite::{CLASSICS, FIXED, Judged, REGRET, Row, Suite, chart, default_traces, judge};
use pagetier_tpcc::args::{PolicyPair, PolicyPairs};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Judges policies by their cost beyond the best fixed setting of each workload
///
/// Replays generated workloads and real traces, each at three sizes of pool and SSD (2:10, 4:25 and 8:50 per
/// cent of its pages), under the policies in question and under every fixed setting. Costs are device time;
/// the first two fifths of the references are warm-up.
#[derive(Parser, Debug)]
#[command(name = "replay --suite")]
pub(crate) struct SuiteArgs {
    /// Run the suite
    #[arg(long)]
    suite: bool,
    /// The pairs of policies to judge, such as auto+auto,gd2l+auto
    #[arg(long, value_name = "PAIRS", default_value = "auto+auto")]
    compare: PolicyPairs,
    /// Also judge experts weighted by regret (LeCaR), the second family of adaptive policies, which no store
    /// can select
    #[arg(long)]
    regret: bool,
    /// Replay a third of the references, at one size
    #[arg(long)]
    quick: bool,
    /// Replay only workloads whose names contain this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// The seed of the generators and their parameters
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of references of a workload; of a trace, at most twice as many [default: 400000, with --quick
    /// 130000]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1000..=100_000_000))]
    references: Option<usize>,
    /// The folder of the page traces (*.ptr), each of which is a workload [default: ../shared/traces, if it
    /// exists]
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    /// Number of workloads to replay at a time [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    jobs: Option<usize>,
    /// Keep the costs of the fixed settings in this file: costs of the same seed and number of references are
    /// reused, and new ones are added as each workload ends
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

#[derive(Serialize)]
struct Report {
    seed: u64,
    references: usize,
    quick: bool,
    fixed: Vec<String>,
    judged: Vec<Judged>,
    rows: Vec<Row>,
}

/// The costs of the fixed settings, kept between runs: they change only if those policies do.
#[derive(Serialize, Deserialize, Debug)]
struct Baseline {
    seed: u64,
    references: usize,
    quick: bool,
    rows: Vec<Row>,
}

impl SuiteArgs {
    /// The names of the pairs in question.
    fn asked(&self) -> Vec<String> {
        let pairs = self.compare.0.iter().map(ToString::to_string);
        pairs.chain(self.regret.then(|| REGRET.to_owned())).collect()
    }
}

impl Baseline {
    /// Reads the baseline for `suite` from `path`; empty if there is no such file.
    fn read(path: &Path, suite: &Suite) -> Result<Self, Box<dyn Error>> {
        let Suite { seed, references, quick, .. } = *suite;
        if !path.exists() {
            return Ok(Self { seed, references, quick, rows: Vec::new() });
        }
        let kept: Self = serde_json::from_str(&std::fs::read_to_string(path)?)
            .map_err(|error| format!("--baseline {}: {error}", path.display()))?;
        if (kept.seed, kept.references, kept.quick) != (seed, references, quick) {
            let differs = "the file was written with another --seed, --references or --quick";
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

pub(crate) fn run(args: &SuiteArgs) -> Result<(), Box<dyn Error>> {
    let fixed: Vec<PolicyPair> = FIXED.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
    let mut suite = Suite::new(args.seed, args.compare.0.clone());
    (suite.quick, suite.regret) = (args.quick, args.regret);
    suite.references = args.references.unwrap_or(if args.quick { 130_000 } else { suite.references });
    suite.only.clone_from(&args.only);
    suite.traces = args.traces.clone().or_else(default_traces);
    suite.pairs.extend(fixed.iter().filter(|pair| !args.compare.0.contains(pair)));
    let fixed: Vec<String> = fixed.iter().map(ToString::to_string).collect();
    let rows = replay(&mut suite, &fixed, args)?;
    let judged = judge(&rows, &fixed);
    let report =
        Report { seed: suite.seed, references: suite.references, quick: suite.quick, fixed, judged, rows };
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
    let bar = progress_bar(suite.names()?.len() as u64, template);
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let (stop, mut failed) = (AtomicBool::new(false), None);
    let rows = suite.run(jobs, &stop, |rows| {
        bar.inc(1);
        bar.set_message(rows.first().map_or_else(String::new, |row| row.workload.clone()));
        if let (Some(path), Some(baseline)) = (path, &mut baseline) {
            baseline.add(rows, fixed);
            if let Err(error) = baseline.write(path) {
                failed = Some(error);
                stop.store(true, Ordering::Relaxed);
            }
        }
    })?;
    bar.finish_and_clear();
    failed.map_or(Ok(rows), Err)
}

/// The pairs to draw: those in question, the best fixed setting, and the papers'.
fn charted(report: &Report, args: &SuiteArgs) -> Vec<Judged> {
    let asked = args.asked();
    let best = report.judged.iter().find(|one| !asked.contains(&one.pair)).map(|one| one.pair.clone());
    let shown = |one: &&Judged| {
        asked.contains(&one.pair) || CLASSICS.contains(&one.pair.as_str()) || Some(&one.pair) == best.as_ref()
    };
    report.judged.iter().filter(shown).cloned().collect()
}

fn tables(report: &Report, args: &SuiteArgs) -> String {
    let cases = report.judged.first().map_or(0, |one| one.cases);
    let mut out = format!(
        "{cases} cases, seed {}, {} references each: I/O beyond that of the best fixed setting of each case\n\n\
         | policies | mean | worst | cases over 2 % | over 10 % | worst case |\n| --- | --- | --- | --- | \
         --- | --- |\n",
        report.seed, report.references
    );
    for one in &report.judged {
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "| {} | {:.1} % | {:.0} % | {} | {} | {} |",
            one.pair,
            one.mean_percent,
            one.worst_percent,
            one.over_2_percent,
            one.over_10_percent,
            one.worst_case
        );
    }
    for pair in args.asked() {
        let _ = writeln!(out, "\n| {pair} beyond | worst | cases over 3 % |\n| --- | --- | --- |");
        for classic in CLASSICS {
            let beside = [classic.to_owned()];
            if let Some(one) = judge(&report.rows, &beside).into_iter().find(|one| one.pair == pair) {
                let over = one.regrets.iter().filter(|regret| **regret > 3.0).count();
                let _ =
                    writeln!(out, "| {classic} | {:.1} % ({}) | {over} |", one.worst_percent, one.worst_case);
            }
        }
        by_workload(&mut out, report, &pair, args.verbose);
    }
    out
}

/// Appends the cases in which `pair` exceeds the best fixed setting by more than 2 %, or, with `all`, every
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
                writeln!(out, "| {} | {:.0} ms | {regret:+.1} % | {} |", row.case(), row.cost_ms, best.pair);
        }
    }
}
