//! Says what other sizes of pool and SSD would cost for a stream of page references, from a sample of its pages.

use clap::{ArgGroup, Parser};
use indicatif::{ProgressBar, ProgressStyle};
use pagetier_ghost::{GhostParams, Ghosts, Sampled, WhatIf, chart};
use pagetier_page::Sampling;
use pagetier_policy::{Costs, POOL_POLICIES, PoolPolicyParams, SSD_POLICIES};
use pagetier_sim::{Reference, Source, Tpcc, Trace, Zipf, parse};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

/// Says what I/O costs against the sizes of pool and SSD, from a sampled simulation of a page trace or of generated references.
///
/// Pages are sampled by hash, as in SHARDS (Waldspurger et al., FAST 2015), and the tiers scaled down by as much. The first half of the
/// references warms them up; the second is counted.
#[derive(Parser, Debug)]
#[command(name = "whatif", group = ArgGroup::new("source").required(true).args(["trace", "tpcc", "zipf"]))]
struct Args {
    /// A page trace (.ptr).
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// TPC-C page references of this many warehouses.
    #[arg(long, value_name = "WAREHOUSES")]
    tpcc: Option<u32>,
    /// Zipf-distributed references to this many pages.
    #[arg(long, value_name = "PAGES")]
    zipf: Option<u32>,
    /// The skew of --zipf.
    #[arg(long, default_value_t = 0.9)]
    skew: f64,
    /// The share of writes of --zipf, in per cent.
    #[arg(long, default_value_t = 0.0, value_parser = parse::percent)]
    write_percent: f64,
    /// Generated references.
    #[arg(long, value_name = "N", default_value_t = 4_000_000)]
    requests: usize,
    /// The generators' seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Pages that the pool holds.
    #[arg(long)]
    pool_pages: u32,
    /// Pages that the SSD holds.
    #[arg(long)]
    ssd_pages: u32,
    /// The pool's policy.
    #[arg(long, default_value = POOL_POLICIES[0], value_parser = pool_policy)]
    pool_policy: String,
    /// The SSD's policy.
    #[arg(long, default_value = SSD_POLICIES[0], value_parser = clap::builder::PossibleValuesParser::new(SSD_POLICIES))]
    ssd_policy: String,
    /// Milliseconds of an SSD read, HDD read, SSD write and HDD write.
    #[arg(long, value_name = "R_S,R_D,W_S,W_D", value_parser = parse::costs, default_value = "0.11,7.2,0.27,4.96")]
    costs: Costs,
    /// The size of a page in bytes.
    #[arg(long, value_name = "B", default_value_t = 16 << 10)]
    page_bytes: u64,

    /// The share of pages that is looked at.
    #[arg(long, default_value_t = 0.05, value_parser = parse_share)]
    sample: f64,
    /// The references that warm up, in per cent of all.
    #[arg(long, default_value_t = 50.0, value_parser = parse::percent)]
    warmup_percent: f64,
    /// Sizes of the SSD, as multiples of --ssd-pages.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0])]
    ssd_factors: Vec<f64>,
    /// Sizes of the pool, as multiples of --pool-pages.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [0.5, 1.0, 2.0])]
    pool_factors: Vec<f64>,
    /// Also look at all pages, and say how far the sample is off.
    #[arg(long)]
    check: bool,
    /// Draw the costs to this SVG file.
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
}

fn pool_policy(name: &str) -> Result<String, String> {
    let known = PoolPolicyParams::new(0, Costs::PAPER).policy(name).is_some();
    if known { Ok(name.into()) } else { Err(format!("one of {}", POOL_POLICIES.join(", "))) }
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| "a number above 0, up to 1".into())
}

/// The references: a trace, or as many as asked for of a generator.
fn references(args: &Args) -> Result<Vec<Reference>, Box<dyn Error>> {
    if let Some(path) = &args.trace {
        let trace = Trace::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        return Ok(trace.references().to_vec());
    }
    let mut source: Box<dyn Source> = match args.tpcc {
        Some(warehouses) => Box::new(Tpcc::new(warehouses, args.seed)),
        None => {
            let (pages, share) = (args.zipf.unwrap_or(1), args.write_percent / 100.0);
            Box::new(Zipf::new(pages, args.skew, share, args.seed))
        }
    };
    let mut all = Vec::with_capacity(args.requests + 1024);
    while all.len() < args.requests && source.batch(&mut all) {}
    Ok(all)
}

fn simulate(args: &Args, sampling: Sampling, references: &[Reference]) -> Result<WhatIf, Box<dyn Error>> {
    let mut ghosts = Ghosts::new(GhostParams {
        pool_policy: args.pool_policy.clone(),
        ssd_policy: args.ssd_policy.clone(),
        costs: args.costs,
        page_bytes: args.page_bytes,
        sampling,
        pool_factors: args.pool_factors.clone(),
        ssd_factors: args.ssd_factors.clone(),
        ..GhostParams::new(args.pool_pages, args.ssd_pages)
    })?;
    let bar = ProgressBar::new(references.len() as u64);
    let template = "{msg} [{bar:40}] {percent} %, {eta} left";
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(format!("{:.2} % of the pages", 100.0 * sampling.rate()));
    let warmup = (references.len() as f64 * args.warmup_percent / 100.0) as usize;
    let mut sampled = Sampled { requests: (references.len() - warmup) as u64, ..Sampled::default() };
    for (at, &reference) in references.iter().enumerate() {
        if at == warmup {
            ghosts.mark();
            sampled.references = 0;
        }
        if sampling.takes(reference.page) {
            ghosts.apply(reference);
            sampled.references += 1;
        }
        if at % 16_384 == 0 {
            bar.set_position(at as u64);
        }
    }
    bar.finish_and_clear();
    Ok(ghosts.report(sampled, false))
}

/// How far the sample's costs are from those of all pages: the mean over all sizes, and the largest.
fn errors(sample: &WhatIf, all: &WhatIf) -> (f64, f64) {
    let off = sample.costs.iter().zip(&all.costs).map(|(here, there)| {
        (here.total_ms() - there.total_ms()).abs() / there.total_ms().max(f64::MIN_POSITIVE)
    });
    let off: Vec<f64> = off.collect();
    (off.iter().sum::<f64>() / off.len().max(1) as f64, off.iter().copied().fold(0.0, f64::max))
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    if args.pool_pages == 0 || args.warmup_percent >= 100.0 {
        return Err("the pool needs at least one page, and some references have to count".into());
    }
    let references = references(args)?;
    let started = std::time::Instant::now();
    let what_if = simulate(args, Sampling::new(args.sample), &references)?;
    let took = started.elapsed();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&what_if)?);
    } else {
        print!("{what_if}");
    }
    if args.check {
        let started = std::time::Instant::now();
        let all = simulate(args, Sampling::ALL, &references)?;
        let (mean, most) = errors(&what_if, &all);
        let full = started.elapsed();
        if !args.json {
            print!("\nthe same from all pages\n{all}");
        }
        eprintln!(
            "the sample is off by {:.1} % on average, {:.1} % at most; it took {took:.1?}, all pages {full:.1?}",
            100.0 * mean,
            100.0 * most
        );
    }
    if let Some(path) = &args.chart {
        let svg = chart(&what_if)?;
        std::fs::write(path, svg).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("whatif: {error}");
            ExitCode::FAILURE
        }
    }
}
