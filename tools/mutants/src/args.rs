//! The options of a run: which mutants, and which judges.

use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct SampleArgs {
    /// The instrumented copy.
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// The number of mutants to judge.
    #[arg(long, default_value_t = 200)]
    pub(crate) sample: usize,
    /// The seed of the sample.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Draws only mutants of these files and folders, relative to the repository's root.
    #[arg(long = "in", value_delimiter = ',')]
    pub(crate) within: Vec<PathBuf>,
    /// Judges these mutants instead of a sample.
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<u32>,
    /// The file of verdicts in the copy; mutants with a verdict are not judged again.
    #[arg(long, default_value = "verdicts.jsonl")]
    pub(crate) verdicts: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) sample: SampleArgs,
    /// The number of mutants judged at once.
    #[arg(long, default_value_t = 1)]
    pub(crate) jobs: usize,
    /// The number of threads of a judge.
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
    /// Integration tests of the store that judge, in addition to all tests of page, devio, bufpool, ssdcache
    /// and wal.
    #[arg(long, value_delimiter = ',', default_value = "all,drops")]
    pub(crate) tests: Vec<String>,
    /// Arguments of a run of the campaign; repeat the option for several runs. `--campaign ""`: no run.
    #[arg(long, allow_hyphen_values = true, default_values = ["--mode random --crashes 3000 --jobs 1 --no-shrink --violations-max 1"])]
    pub(crate) campaign: Vec<String>,
    /// Excludes tests that take longer.
    #[arg(long, default_value_t = 20.0)]
    pub(crate) seconds_max: f64,
    /// Runs the judges without a mutant again, even if the copy has a record of that.
    #[arg(long)]
    pub(crate) measure: bool,
}
