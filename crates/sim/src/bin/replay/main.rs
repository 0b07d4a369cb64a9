//! Replays page references under any pool policy with any SSD policy, and reports their cost.

mod report;
mod run;
mod suite;
mod table;
mod what_if;

use clap::Parser;
use pagetier_rivals::{POOL_POLICIES, SSD_POLICIES};
use pagetier_sim::options::{Input, SourceArgs, TierArgs, exit_code, pages};
use pagetier_tpcc::args::{self, PolicyPair, PolicyPairs};
use report::Report;
use run::Run;
use std::error::Error;
use std::process::ExitCode;
use suite::SuiteArgs;
use what_if::WhatIfArgs;

/// Replays page references over a buffer pool and an SSD cache without devices, and reports the cost of their
/// I/O
///
/// The references come from a page trace or a generator (TPC-C, Zipf). Costs are the devices' time: reads and
/// writes times --costs. `replay what-if` estimates the cost of other sizes of pool and SSD, and `replay
/// suite` judges policies by many workloads at once; both have --help.
#[derive(Parser, Debug)]
#[command(name = "replay", after_help = table::LEGEND)]
struct Args {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    tiers: TierArgs,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "The run")]
struct RunArgs {
    /// Run several pairs of policies instead: a list such as lru+cc,gd2l+cac, in any letter case; or `all`:
    /// every pool policy with every SSD policy
    #[arg(long, value_name = "PAIRS", value_parser = pairs)]
    compare: Option<PolicyPairs>,
    /// Batches before counting starts. A batch is one transaction of --tpcc, 1,024 references of --trace, or
    /// 64 references of --zipf
    #[arg(long, value_name = "BATCHES", default_value_t = 0)]
    warmup: u64,
    /// Batches to count, of the same size as those of --warmup [default: the rest of the trace, or 10000]
    #[arg(long, value_name = "BATCHES", value_parser = clap::value_parser!(u64).range(1..))]
    batches: Option<u64>,
    /// The eviction zone in per cent of the SSD's pages [default: the policy's, as in lru2:zone=5]
    #[arg(long, value_name = "PERCENT", value_parser = args::positive_percent)]
    zone_percent: Option<f64>,
    /// Entries of CAC's and CC's outqueue, one page each [default: as many as the SSD has pages]
    #[arg(long, value_name = "ENTRIES", value_parser = pages(0))]
    outqueue: Option<u32>,
    /// Width of CAC's subranges, in logical reads per minute [default: 1]
    #[arg(long, value_name = "READS", value_parser = args::positive)]
    group_width: Option<f64>,
    /// Bounds of CAC's α, a ratio of miss rates [default: 0.001,1000]
    #[arg(long, value_name = "MIN,MAX", value_parser = args::bounds)]
    alpha: Option<(f64, f64)>,
    /// Subtract the reads of pages that drop out of the outqueue from those of their group [default: keep
    /// them]
    #[arg(long)]
    subtract_dropped: bool,
    /// Number of next victims that the cleaner examines when one of them is dirty
    #[arg(long, value_name = "PAGES", default_value_t = 64, value_parser = pages(1))]
    look_ahead: u32,
    /// Maximum share of dirty pages, in per cent of the pool; beyond it recoverability writes clean the
    /// oldest
    #[arg(long, value_name = "PERCENT", default_value_t = 100.0, value_parser = args::percent)]
    dirty_percent_max: f64,
    /// CPU time per reference, in microseconds, up to a second; it advances the clock behind CAC's rates
    #[arg(long, value_name = "US", default_value_t = 2.0, value_parser = cpu_us)]
    cpu_us: f64,
    /// The cost of an HDD read that continues a scan's run, such as 0.1 for the transfer alone [default: that
    /// of a random read, also for a scan's pages]
    #[arg(long, value_name = "MS", value_parser = args::not_negative)]
    run_read_ms: Option<f64>,
    /// Also report what the best static placements would have cost, with pages chosen by the accesses of the
    /// same run, and each run's ratio to them
    #[arg(long)]
    bound: bool,
    /// Also print counts, memory, and α by group for every run
    #[arg(long, short)]
    verbose: bool,
    /// Print one JSON object (with --compare: an array of them) with everything; `cost` and every `_ms` are
    /// milliseconds
    #[arg(long)]
    json: bool,
}

fn pairs(list: &str) -> Result<PolicyPairs, String> {
    if list.eq_ignore_ascii_case("all") {
        let pair = |pool| SSD_POLICIES.iter().map(move |&ssd| PolicyPair { pool, ssd });
        return Ok(PolicyPairs(POOL_POLICIES.iter().flat_map(|&pool| pair(pool)).collect()));
    }
    list.parse()
}

fn cpu_us(text: &str) -> Result<f64, String> {
    let expected = "expected a number from 0 to 1000000";
    args::not_negative(text).ok().filter(|us| *us <= 1e6).ok_or_else(|| expected.into())
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let input = Input::new(&args.source)?;
    let run = Run { args, sizes: input.sizes(&args.tiers)? };
    // The placements depend on the references alone, so one computation serves all pairs.
    let bounds = if args.run.bound { run.bounds(&mut *input.source())? } else { Vec::new() };
    let one = [PolicyPair { pool: args.tiers.pool_policy, ssd: args.tiers.ssd_policy }];
    let pairs = args.run.compare.as_ref().map_or(&one[..], |pairs| &pairs.0);
    let replay = |pair: &PolicyPair| {
        let report = run.replay(&mut *input.source(), pair)?;
        Ok(report.beside(&bounds))
    };
    let reports = pairs.iter().map(replay).collect::<Result<Vec<Report>, Box<dyn Error>>>()?;
    match (args.run.json, &reports[..]) {
        // The option decides the shape and not the number of pairs: a script that passes a list of one
        // gets an array.
        (true, [report]) if args.run.compare.is_none() => {
            println!("{}", serde_json::to_string_pretty(report)?);
        }
        (true, reports) => println!("{}", serde_json::to_string_pretty(reports)?),
        (false, reports) => print!("{}", table::table(reports, args.run.verbose)),
    }
    Ok(())
}

fn main() -> ExitCode {
    pagetier_rivals::register();
    // Options that one of the three requires do not apply to the others, so each has a parser of its own.
    let rest = || std::env::args_os().skip(1);
    let done = match rest().next().as_deref().and_then(|word| word.to_str()) {
        Some("suite") => suite::run(&SuiteArgs::parse_from(rest())),
        Some("what-if") => what_if::run(&WhatIfArgs::parse_from(rest())),
        _ => run(&Args::parse()),
    };
    exit_code("replay", done)
}
