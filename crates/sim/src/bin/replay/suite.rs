//! `replay --suite`: a default judged by many workloads at once.

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use indicatif::{ProgressBar, ProgressStyle};
use pagetier_sim::suite::{CLASSICS, FIXED, Judged, Row, Suite, chart, default_traces, judge};
use pagetier_tpcc::args::{self, PolicyPair};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// Judges policies by what they cost beyond the best fixed setting of each workload
///
/// Generators and real traces, each at three sizes of pool and SSD (2:10, 4:25 and 8:50 per cent of its
/// pages), under the policies in question and under every fixed setting. Costs are the devices' time; two
/// fifths of the references warm the tiers up.
#[derive(Parser, Debug)]
#[command(name = "replay --suite")]
pub(crate) struct SuiteArgs {
    /// Run the suite
    #[arg(long)]
    suite: bool,
    /// The pairs of policies in question, as auto+auto,gd2l+auto
    #[arg(long, value_name = "PAIRS", value_parser = pairs, default_value = "auto+auto")]
    compare: Pairs,
    /// A third of the references, at one size
    #[arg(long)]
    quick: bool,
    /// Only workloads whose names contain this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// The seed of the generators and of their parameters
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// References of a workload [default: 400000, with --quick 130000]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1000..=100_000_000))]
    references: Option<usize>,
    /// The folder of the page traces (*.ptr), each of which is a workload [default: ../shared/traces, if it
    /// is there]
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    /// Workloads replayed at a time [default: as many as there are processors]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    jobs: Option<usize>,
    /// Take costs of the fixed settings from this report of the same seed and size instead of replaying them
    #[arg(long, value_name = "FILE")]
    known: Option<PathBuf>,
    /// Write suite.json (every cost), suite.md (the tables) and suite.svg (the chart) there
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Also print the costs of every case
    #[arg(long, short)]
    verbose: bool,
}

#[derive(Clone, Debug)]
struct Pairs(Vec<PolicyPair>);

fn pairs(list: &str) -> Result<Pairs, String> {
    args::policy_pairs(list).map(Pairs)
}

#[derive(Serialize, Deserialize)]
struct Report {
    seed: u64,
    references: usize,
    quick: bool,
    fixed: Vec<String>,
    #[serde(skip_deserializing)]
    judged: Vec<Judged>,
    rows: Vec<Row>,
}

pub(crate) fn run(args: &SuiteArgs) -> Result<(), Box<dyn Error>> {
    let fixed: Vec<PolicyPair> = FIXED.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
    let known = args.known.as_ref().map(|path| -> Result<Report, Box<dyn Error>> {
        Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
    });
    let known = known.transpose()?;
    let mut suite = Suite::new(args.seed, args.compare.0.clone());
    suite.quick = args.quick;
    suite.references = args.references.unwrap_or(if args.quick { 130_000 } else { suite.references });
    suite.only.clone_from(&args.only);
    suite.traces = args.traces.clone().or_else(default_traces);
    if let Some(known) = &known {
        if (known.seed, known.references, known.quick) != (suite.seed, suite.references, suite.quick) {
            return Err("--known: that report is of another seed or size".into());
        }
    } else {
        suite.pairs.extend(fixed.iter().filter(|pair| !args.compare.0.contains(pair)));
    }
    let names = suite.names()?;
    let bar = ProgressBar::new(names.len() as u64);
    bar.set_style(ProgressStyle::with_template("{msg:20} {wide_bar} {pos}/{len} {elapsed} (left: {eta})")?);
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let mut rows = suite.run(jobs, &AtomicBool::new(false), |rows| {
        bar.inc(1);
        bar.set_message(rows.first().map_or_else(String::new, |row| row.workload.clone()));
    })?;
    bar.finish_and_clear();
    if let Some(known) = known {
        let (rows_of, compare) = (|row: &Row| row.workload.clone(), &args.compare.0);
        let compared: Vec<String> = compare.iter().map(ToString::to_string).collect();
        let kept = known
            .rows
            .into_iter()
            .filter(|row| names.contains(&rows_of(row)) && !compared.contains(&row.pair));
        rows.extend(kept);
    }
    let fixed: Vec<String> = fixed.iter().map(ToString::to_string).collect();
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

/// The pairs in question, and the fixed settings that come nearest or that every reader knows.
fn charted(report: &Report, args: &SuiteArgs) -> Vec<Judged> {
    let asked: Vec<String> = args.compare.0.iter().map(ToString::to_string).collect();
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
    for pair in &args.compare.0 {
        let pair = pair.to_string();
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

/// Each workload's worst size under `pair`, or with `all` every size, beside the setting that is best there.
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
