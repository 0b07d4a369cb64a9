//! The options of `--compare`.

use crate::command::matrix::{DATABASES, Figure};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// What to compare, and where to write the report.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Comparing as the 2013 paper does")]
pub(crate) struct CompareArgs {
    /// Run the experiments behind these figures of the paper (section 6), scaled down and in virtual time,
    /// several at once, each until it is steady; write report.html and report.json. Skip runs that are
    /// already in report.json
    // A comparison sets these options itself, run by run: one that is given would be ignored in silence.
    #[arg(long, value_enum, value_name = "FIGURES", value_delimiter = ',', requires = "report", conflicts_with_all = [
        "dir", "hdd", "ssd", "ssd_bytes", "pool_bytes", "db_ratio", "pool_policy", "ssd_policy", "zone_percent", "devices", "time", "warmup",
        "seconds", "record", "what_if", "json",
    ])]
    pub(crate) compare: Vec<Figure>,
    /// The directory for the report of --compare; created if missing
    #[arg(long, value_name = "DIR", requires = "compare")]
    pub(crate) report: Option<PathBuf>,
    /// Compare on one warehouse with short windows: an overview in a few minutes, whose figures may be a
    /// fifth off those of the whole run
    #[arg(long, requires = "compare")]
    pub(crate) quick: bool,
    /// Run only these databases of the paper, by their size in GB relative to an SSD of 10 GB: any of 30, 15
    /// and 8. Figures 4 and 6 and the zones always run, on a database of their own [default: all]
    #[arg(long, value_name = "GB", value_delimiter = ',', requires = "compare", value_parser = database)]
    pub(crate) databases: Vec<u32>,
    /// Windows of 250 New-Orders per warehouse after which a run is measured even if it is not steady: its
    /// cost was still changing, so a longer run would give another figure [default: 60; 40 of 300 with
    /// --quick]. A database grows by an eighth in 24 windows: if its hot part barely fits on the SSD, a run
    /// never becomes steady, and a later measurement has a larger ratio
    #[arg(long, value_name = "N", requires = "compare", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) windows: Option<u16>,
    /// Repeat all runs, including those in report.json
    #[arg(long, requires = "compare")]
    pub(crate) again: bool,
    /// Runs at once [default: one per core]
    #[arg(long, value_name = "N", requires = "compare")]
    pub(crate) jobs: Option<NonZeroUsize>,
}

impl CompareArgs {
    /// Whether a comparison was requested.
    pub(crate) fn is_asked(&self) -> bool {
        !self.compare.is_empty()
    }
}

fn database(text: &str) -> Result<u32, String> {
    let known = text.parse().ok().filter(|gb| DATABASES.contains(gb));
    known.ok_or_else(|| {
        format!("the paper has databases of {} GB", DATABASES.map(|gb| gb.to_string()).join(", "))
    })
}
