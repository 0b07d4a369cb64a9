//! Mutation testing of the protocol, the latches and the log.
//!
//! Building the workspace once per mutant would take a minute each. So `instrument` copies the repository and
//! compiles every mutant into the copy, behind a switch that the environment variable `PAGETIER_MUTANT`
//! controls. `run` then judges a sample of the mutants, one process each, with the tests and the fault
//! campaign of that one build. `instrument` drops mutants that do not compile: they are not viable.

mod args;
mod bench;
mod instrument;
mod judge;
mod judges;
mod mutate;
mod process;
mod verdicts;

use anyhow::Result;
use clap::{Parser, Subcommand};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Mutation testing of Pagetier's protocol, latches and log.
#[derive(Debug, Parser)]
#[command(
    version,
    about,
    after_help = "Example:\n  mutants instrument --repo . --out /tmp/mutants\n  \
    mutants run --dir /tmp/mutants --sample 250 --seed 1"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Copies the repository and builds every viable mutant into the copy.
    Instrument {
        /// The repository to mutate; it is only read.
        #[arg(long, default_value = ".")]
        repo: PathBuf,
        /// The folder for the copy; must not exist.
        #[arg(long)]
        out: PathBuf,
        /// Mutates only lines that were added or changed after this revision.
        #[arg(long)]
        since: Option<String>,
    },
    /// Judges a sample of the mutants of an instrumented copy.
    Run(args::RunArgs),
    /// Prints the verdicts so far.
    Report(args::SampleArgs),
    /// Lists the mutants of an instrumented copy.
    List {
        /// The instrumented copy.
        #[arg(long)]
        dir: PathBuf,
        /// Lists only mutants of these files and folders, relative to the repository's root.
        #[arg(long = "in", value_delimiter = ',')]
        within: Vec<PathBuf>,
        /// Lists only a sample of this size, in the order in which `run` judges it.
        #[arg(long)]
        sample: Option<usize>,
        /// The seed of the sample.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
}

/// One change of the code.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Mutant {
    /// The value of `PAGETIER_MUTANT` that enables it.
    pub(crate) id: u32,
    /// The file, from the repository's root.
    pub(crate) file: String,
    /// The line in the original file.
    pub(crate) line: usize,
    /// The function it is in.
    pub(crate) function: String,
    /// The change, in words.
    pub(crate) what: String,
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Instrument { repo, out, since } => instrument::instrument(&repo, &out, since.as_deref()),
        Command::Run(args) => judge::run(&args),
        Command::Report(args) => args.report(),
        Command::List { dir, within, sample, seed } => {
            let all = judge::within(instrument::load(&dir)?, &within);
            for m in sample.map_or(all.clone(), |count| judge::drawn(all, count, seed)) {
                println!("{:5} {}:{} {}: {}", m.id, m.file, m.line, m.function, m.what);
            }
            Ok(())
        }
    }
}
