//! What the programs share: the options of `replay` and `replay what-if` (the source of the references, and
//! the tiers), progress bars, exit codes.

use crate::{Source, Tpcc, Trace, Zipf};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use indicatif::{ProgressBar, ProgressStyle};
use pagetier_policy::{CLUSTER_PAGES, CLUSTER_PAGES_MAX, Costs, PoolPolicy, SsdPolicy};
use pagetier_tpcc::args;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

/// The maximum number of pages of a tier, of the outqueue, or of a generator: 1 TiB of 16 KiB each. Larger
/// tables would not fit in memory.
pub const PAGES_MAX: u32 = 1 << 26;

/// The maximum number of warehouses: a terabyte.
pub const WAREHOUSES_MAX: u32 = 10_000;

/// The maximum skew: beyond it, only the first page is ever requested.
const SKEW_MAX: f64 = 100.0;

/// The source of the references, exactly one.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct Which {
    /// Replay this page trace (.ptr, format in docs/format.md)
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Generate TPC-C's page references for this many warehouses (about 6,000 pages each)
    #[arg(long, value_name = "WAREHOUSES", value_parser = clap::value_parser!(u32).range(1..=i64::from(WAREHOUSES_MAX)))]
    pub tpcc: Option<u32>,
    /// Generate Zipf-distributed references to this many pages
    #[arg(long, value_name = "PAGES", value_parser = pages(1))]
    pub zipf: Option<u32>,
}

/// The source of the references and its options.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "References")]
pub struct SourceArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "a doc comment here would become the program's help")]
    pub which: Which,
    /// The skew of --zipf, from 0 (uniform) to 100: the page of rank r is requested in proportion to r^-skew
    #[arg(long, value_name = "SKEW", default_value_t = 0.9, value_parser = skew)]
    pub skew: f64,
    /// Share of --zipf references that write, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = args::percent)]
    pub write_percent: f64,
    /// Share of --zipf pages, in per cent, that exchange their ranks during as many references as there are
    /// pages
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = args::percent)]
    pub churn_percent: f64,
    /// Share of --zipf references, in per cent, made by a scan that does not declare itself
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = args::percent)]
    pub scan_percent: f64,
    /// Seed of --tpcc and --zipf; the same seed gives the same references
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// The tiers and their policies.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Tiers")]
pub struct TierArgs {
    /// Size of the pool in pages; required unless --ratio is given
    #[arg(long, value_name = "PAGES", required_unless_present = "ratio", value_parser = pages(1))]
    pub pool_pages: Option<u32>,
    /// Size of the SSD in pages, 0 for none; required unless --ratio is given
    #[arg(long, value_name = "PAGES", required_unless_present = "ratio", value_parser = pages(0))]
    pub ssd_pages: Option<u32>,
    /// The ratio of database, SSD and pool, such as 30:10:1, instead of pages; with --tpcc
    #[arg(long, value_name = "DB:SSD:POOL", conflicts_with_all = ["pool_pages", "ssd_pages"], requires = "tpcc", value_parser = args::ratio)]
    pub ratio: Option<[f64; 3]>,
    #[arg(long, value_name = "NAME", default_value_t)]
    #[arg(help = format!("The pool's policy, in any case: {}", PoolPolicy::known()))]
    #[expect(missing_docs, reason = "the help is made of the list of policies")]
    pub pool_policy: PoolPolicy,
    #[arg(long, value_name = "NAME", default_value_t)]
    #[arg(help = format!("The SSD's policy, in any case: {}", SsdPolicy::known()))]
    #[expect(missing_docs, reason = "the help is made of the list of policies")]
    pub ssd_policy: SsdPolicy,
    /// Milliseconds of an SSD read, HDD read, SSD write and HDD write; the default is the 2013 paper's
    #[arg(long, value_name = "R_S,R_D,W_S,W_D", value_parser = args::costs, default_value = "0.11,7.2,0.27,4.96")]
    pub costs: Costs,
    /// Pages per cluster, for policies that write in clusters (ref: per block), and for counting cluster
    /// switches
    #[arg(long, value_name = "PAGES", default_value_t = CLUSTER_PAGES, value_parser = clap::value_parser!(u32).range(1..=i64::from(CLUSTER_PAGES_MAX)))]
    pub cluster_pages: u32,
}

/// Parses a number of pages whose tables fit in memory.
#[must_use]
pub fn pages(least: u32) -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(u64::from(least)..=u64::from(PAGES_MAX))
}

fn skew(text: &str) -> Result<f64, String> {
    let expected = format!("expected a number from 0 to {SKEW_MAX}");
    args::not_negative(text).ok().filter(|skew| *skew <= SKEW_MAX).ok_or(expected)
}

/// References that can be replayed any number of times.
#[derive(Debug)]
pub struct Input<'a> {
    args: &'a SourceArgs,
    trace: Option<Trace>,
}

impl<'a> Input<'a> {
    /// Reads the trace, if there is one.
    ///
    /// # Errors
    /// The trace cannot be read, is malformed, or is empty.
    pub fn new(args: &'a SourceArgs) -> Result<Self, String> {
        let Some(path) = &args.which.trace else { return Ok(Self { args, trace: None }) };
        let trace = Trace::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        // An empty trace would fail later as if the warm-up had taken everything: the wrong cause.
        if trace.references().is_empty() {
            return Err(format!("{}: the trace is empty", path.display()));
        }
        Ok(Self { args, trace: Some(trace) })
    }

    /// All references, from the beginning.
    pub fn source(&self) -> Box<dyn Source + '_> {
        let args = self.args;
        match (&self.trace, args.which.tpcc) {
            (Some(trace), _) => Box::new(trace.source()),
            (None, Some(warehouses)) => Box::new(Tpcc::new(warehouses, args.seed)),
            (None, None) => {
                let pages = args.which.zipf.unwrap_or(1);
                let zipf = Zipf::new(pages, args.skew, args.write_percent / 100.0, args.seed);
                Box::new(zipf.churning(args.churn_percent / 100.0).scanned(args.scan_percent / 100.0))
            }
        }
    }

    /// The sizes of pool and SSD in pages.
    ///
    /// # Errors
    /// A ratio makes the pool empty, or a tier too large.
    pub fn sizes(&self, tiers: &TierArgs) -> Result<(u32, u32), String> {
        let Some([db, ssd, pool]) = tiers.ratio else {
            // The parser requires both sizes unless there is a ratio, so these defaults are never used.
            return Ok((tiers.pool_pages.unwrap_or(1), tiers.ssd_pages.unwrap_or(0)));
        };
        // The parser admits a ratio only with TPC-C, the source that knows the size of its database.
        let db_pages = self.source().db_pages().unwrap_or(0) as f64;
        let share = |name: &str, part: f64| match db_pages * part / db {
            // The check precedes the cast, which would saturate silently and simulate another ratio.
            pages if pages <= f64::from(PAGES_MAX) => Ok(pages as u32),
            pages => Err(format!(
                "--ratio: {pages:.0} pages of {name} are too many: at most {PAGES_MAX} are simulated"
            )),
        };
        let (pool_pages, ssd_pages) = (share("pool", pool)?, share("SSD", ssd)?);
        if pool_pages == 0 {
            return Err(format!("--ratio: the pool needs at least one page of the database's {db_pages}"));
        }
        Ok((pool_pages, ssd_pages))
    }
}

/// A progress bar of this style.
#[must_use]
pub fn progress_bar(len: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    // A malformed template is no reason to lose a run of hours: the bar then has the default style.
    ProgressBar::new(len).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The exit code of a program that ended so; prints its error.
#[must_use]
pub fn exit_code(program: &str, ended: Result<(), Box<dyn Error>>) -> ExitCode {
    ended.map_or_else(
        |error| {
            eprintln!("{program}: {error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}
