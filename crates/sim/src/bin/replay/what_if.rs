//! `replay what-if`: estimates the cost of other sizes of pool and SSD for a stream of page references, from
//! a sample of its pages.

use clap::Parser;
use pagetier_ghost::{GhostParams, Ghosts, SampleSummary, WhatIf, chart};
use pagetier_page::Sampling;
use pagetier_sim::Reference;
use pagetier_sim::options::{Input, PAGES_MAX, SourceArgs, TierArgs, progress_bar};
use pagetier_tpcc::args;
use std::error::Error;
use std::path::PathBuf;

/// Estimates the I/O cost of other sizes of pool and SSD, from a sampled simulation of a page trace or of
/// generated references
///
/// Pages are sampled by hash, as in SHARDS (Waldspurger et al., FAST 2015), and the tiers are scaled down by
/// the same factor. The first half of the references warms them up (--warmup-percent); the rest is counted.
/// Costs are in milliseconds of I/O per 1,000 requests.
#[derive(Parser, Debug)]
#[command(name = "replay what-if")]
pub(crate) struct WhatIfArgs {
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
    /// References to generate, with --tpcc or --zipf; a trace is always used as a whole
    #[arg(long, value_name = "REFERENCES", default_value_t = 4_000_000, value_parser = clap::value_parser!(u64).range(1..=REQUESTS_MAX))]
    requests: u64,
    /// Warm-up references in per cent of all (below 100); the rest is counted
    #[arg(long, value_name = "PERCENT", default_value_t = 50.0, value_parser = args::percent)]
    warmup_percent: f64,
    /// The share of pages to sample, above 0 and at most 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = args::share)]
    sample: f64,
    /// Sizes of the SSD as multiples of --ssd-pages; 1 is always included
    #[arg(long, value_name = "FACTORS", value_delimiter = ',', value_parser = args::not_negative, default_value = "0,0.25,0.5,0.75,1,1.25,1.5,2,3,4")]
    ssd_factors: Vec<f64>,
    /// Sizes of the pool as multiples of --pool-pages; 1 is always included
    #[arg(long, value_name = "FACTORS", value_delimiter = ',', value_parser = args::positive, default_value = "0.5,1,2")]
    pool_factors: Vec<f64>,
    /// The size of a page in bytes, used to report sizes in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 10, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    page_bytes: u64,
    /// Also simulate all pages, and report the sample's error on standard error
    #[arg(long)]
    check: bool,
    /// Draw the costs to this SVG file
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
}

/// The maximum number of references kept in memory, some 16 bytes each.
const REQUESTS_MAX: u64 = 1_000_000_000;

/// The references: the whole trace, or the requested number from a generator.
fn references(args: &WhatIfArgs, input: &Input<'_>) -> Vec<Reference> {
    let most = if args.source.which.trace.is_some() { u64::MAX } else { args.run.requests };
    // The references are kept, because --check replays them and the warm-up is a share of their number.
    let (mut source, mut all) = (input.source(), Vec::new());
    while (all.len() as u64) < most && source.batch(&mut all) {}
    all
}

/// Refuses sizes whose tables would not fit in memory.
fn check_factors(args: &WhatIfArgs, (pool_pages, ssd_pages): (u32, u32)) -> Result<(), String> {
    for (name, pages, factors) in [
        ("--pool-factors", pool_pages, &args.run.pool_factors),
        ("--ssd-factors", ssd_pages, &args.run.ssd_factors),
    ] {
        // The fold starts at 1, since that size is always simulated.
        let most = factors.iter().copied().fold(1.0, f64::max) * f64::from(pages);
        if most > f64::from(PAGES_MAX) {
            return Err(format!("{name}: {most:.0} pages are too many: at most {PAGES_MAX} are simulated"));
        }
    }
    Ok(())
}

fn simulate(
    args: &WhatIfArgs,
    (pool_pages, ssd_pages): (u32, u32),
    sampling: Sampling,
    references: &[Reference],
) -> Result<WhatIf, Box<dyn Error>> {
    let mut ghosts = Ghosts::new(GhostParams {
        pool_policy: args.tiers.pool_policy,
        ssd_policy: args.tiers.ssd_policy,
        costs: args.tiers.costs,
        cluster_pages: args.tiers.cluster_pages,
        page_bytes: args.run.page_bytes,
        sampling,
        pool_factors: args.run.pool_factors.clone(),
        ssd_factors: args.run.ssd_factors.clone(),
        ..GhostParams::new(pool_pages, ssd_pages)
    })?;
    let bar = progress_bar(references.len() as u64, "{msg} [{bar:40}] {percent}%, {eta} left");
    bar.set_message(format!("{:.2}% of the pages", 100.0 * sampling.rate()));
    let warmup = (references.len() as f64 * args.run.warmup_percent / 100.0) as usize;
    let mut sampled =
        SampleSummary { requests: (references.len() - warmup) as u64, ..SampleSummary::default() };
    for (at, &reference) in references.iter().enumerate() {
        if at == warmup {
            ghosts.mark();
            // Costs count from here on, so the references that produced them do, too.
            sampled.references = 0;
        }
        if sampling.takes(reference.page) {
            ghosts.apply(reference);
            sampled.references += 1;
        }
        // To move the bar for each reference would take longer than the simulation.
        if at % 16_384 == 0 {
            bar.set_position(at as u64);
        }
    }
    bar.finish_and_clear();
    Ok(ghosts.report(sampled, false))
}

/// The relative error of the sample's costs against those of all pages: the mean over all sizes, and the
/// maximum.
fn errors(sample: &WhatIf, all: &WhatIf) -> (f64, f64) {
    let off = sample.costs.iter().zip(&all.costs).map(|(here, there)| {
        // Both costs are 0 where everything fits in memory. The smallest divisor makes their error 0
        // instead of a NaN.
        (here.total_ms() - there.total_ms()).abs() / there.total_ms().max(f64::MIN_POSITIVE)
    });
    let off: Vec<f64> = off.collect();
    (off.iter().sum::<f64>() / off.len().max(1) as f64, off.iter().copied().fold(0.0, f64::max))
}

pub(crate) fn run(args: &WhatIfArgs) -> Result<(), Box<dyn Error>> {
    if args.run.warmup_percent >= 100.0 {
        return Err("--warmup-percent: some references have to count".into());
    }
    let input = Input::new(&args.source)?;
    let sizes = input.sizes(&args.tiers)?;
    check_factors(args, sizes)?;
    let references = references(args, &input);
    let started = std::time::Instant::now();
    let what_if = simulate(args, sizes, Sampling::new(args.run.sample), &references)?;
    let took = started.elapsed();
    if args.run.json {
        println!("{}", serde_json::to_string_pretty(&what_if)?);
    } else {
        print!("{what_if}");
    }
    if args.run.check {
        let started = std::time::Instant::now();
        let all = simulate(args, sizes, Sampling::ALL, &references)?;
        let (mean, most) = errors(&what_if, &all);
        let full = started.elapsed();
        if !args.run.json {
            // The second table would make the JSON on standard output unreadable.
            print!("\nthe same from all pages\n{all}");
        }
        eprintln!(
            "the sample is off by {:.1}% on average, {:.1}% at most; it took {took:.1?}, all pages {full:.1?}",
            100.0 * mean,
            100.0 * most
        );
    }
    if let Some(path) = &args.run.chart {
        let svg = chart(&what_if)?;
        std::fs::write(path, svg).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}
