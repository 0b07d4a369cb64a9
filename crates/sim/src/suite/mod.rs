//! The suite that judges default policies: many workloads at several sizes of the tiers, under the policies
//! in question, under fixed settings, and under peers from the literature.
//!
//! A pair of policies is judged by its *regret*: the cost of its I/O relative to that of the best fixed
//! setting for the same references, chosen in hindsight; and by what it writes to the SSD. Each replay is
//! costed in parts ([`Part`]): the whole run, the run after the warm-up, and the run of a young store.
//! Seeds draw the lengths, the sizes and the parameters of the generators, and one half of the workloads is
//! for tuning ([`Half`]): a policy must do well at sizes, and on workloads, that it was not tuned on.

mod chart;
mod contender;
mod generators;
mod judge;
mod replay;
mod stack;
mod workload;

pub use chart::chart;
pub use contender::{Contender, Contenders, pool_peers, ssd_peers};
pub use judge::{Judged, judge};
pub use workload::Half;

use crate::TraceError;
use replay::Replay;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use workload::Workload;

/// The fixed settings, each the best one for some workload: those of the papers, and combinations of this
/// project's parts.
pub const FIXED: [&str; 7] =
    ["gd2l+cac", "gd2l+cc", "gd2l+lru2", "lru+lru2", "lru+cc", "gd2l:frequency,write-back+lru2", EXTENDED];

/// The paper's pair with the pool's extensions: a default must not lose to it.
pub const EXTENDED: &str = "gd2l:frequency,write-back+cac";

/// The papers' settings: a default should never cost much more than any of them.
pub const CLASSICS: [&str; 3] = ["gd2l+cac", "gd2l+lru2", "lru+lru2"];

/// The workloads and policies to replay.
#[derive(Clone, Debug)]
pub struct Suite {
    /// The seeds that lengths, sizes and the parameters of the generators are drawn by.
    pub seeds: Vec<u64>,
    /// The half of the workloads to replay.
    pub half: Half,
    /// The most references of a workload that is not joined. The fewest are 60,000, or as many if that is
    /// fewer.
    pub longest: usize,
    /// Selects the workloads whose names contain this.
    pub only: Option<String>,
    /// The folder of the page traces (`*.ptr`), each of which is a workload.
    pub traces: Option<PathBuf>,
    /// The policies to replay.
    pub pairs: Vec<Contender>,
    /// The cost of an HDD read that continues a scan's run, in milliseconds; by default that of a random
    /// read.
    pub run_read_ms: Option<f64>,
    /// Rows of the same limit of references, which are reused instead of replayed.
    pub known: Vec<Row>,
}

/// The origin of a workload's references.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// A trace, or two traces joined.
    Real,
    /// Generated.
    Synthetic,
}

/// The part of a replay that a row costs. A device operation is a read or write of a page on either device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// All references, from empty tiers on.
    Whole,
    /// The references after the first two fifths.
    Steady,
    /// From empty tiers until 4 device operations per slot after the SSD is full.
    First4,
    /// The same, until 10.
    First10,
    /// The second of two workloads that were joined.
    Joined,
    /// The last two fifths of that.
    JoinedLate,
}

impl Part {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole run",
            Self::Steady => "after warm-up",
            Self::First4 => "first 4",
            Self::First10 => "first 10",
            Self::Joined => "joined",
            Self::JoinedLate => "joined, late",
        }
    }
}

/// The result of one replay, or of a part of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    pub seed: u64,
    /// The workload, and its parameter set.
    pub workload: String,
    /// Its origin.
    pub class: Class,
    /// The part of the replay.
    pub part: Part,
    /// The size of the pool, in pages.
    pub pool_pages: u32,
    /// The size of the SSD, in pages.
    pub ssd_pages: u32,
    pub pair: String,
    /// The cost of I/O in milliseconds per 1,000 references.
    pub cost_ms: f64,
    /// The pages written to the SSD per 1,000 references.
    pub ssd_writes: f64,
    /// The pages read from either device per 1,000 references: the pool's misses.
    pub misses: f64,
}

impl Row {
    /// The workload, the sizes and the part, as named in tables.
    pub fn case(&self) -> String {
        let Self { workload, seed, pool_pages, ssd_pages, part, .. } = self;
        format!("{workload} {pool_pages}:{ssd_pages}, seed {seed}, {}", part.name())
    }

    /// Whether `other` has the same seed, workload, sizes and part.
    pub fn is_beside(&self, other: &Self) -> bool {
        // The numbers come first, because the search for known rows compares each row with all kept ones.
        self.ssd_pages == other.ssd_pages
            && self.pool_pages == other.pool_pages
            && self.part == other.part
            && self.seed == other.seed
            && self.workload == other.workload
    }
}

impl Suite {
    /// The suite with these seeds, without traces: the half to report.
    #[must_use]
    pub fn new(seeds: Vec<u64>, pairs: Vec<Contender>) -> Self {
        Self {
            seeds,
            half: Half::Report,
            longest: 1_000_000,
            only: None,
            traces: None,
            pairs,
            run_read_ms: None,
            known: Vec::new(),
        }
    }

    /// The number of cases: workloads times seeds.
    ///
    /// # Errors
    /// The directory of the traces cannot be read.
    pub fn cases(&self) -> std::io::Result<usize> {
        Ok(self.workloads()?.len())
    }

    /// Replays all workloads, `jobs` at a time, and passes each workload's rows to `done` when it is
    /// finished. Returns the rows in the order of the workloads, which need not finish in that order. Ends
    /// early once `stop` is set.
    ///
    /// # Errors
    /// A trace cannot be read.
    pub fn run(
        &self,
        jobs: usize,
        stop: &AtomicBool,
        mut done: impl FnMut(&[Row]),
    ) -> Result<Vec<Row>, SuiteError> {
        let workloads = self.workloads()?;
        let next = AtomicUsize::new(0);
        let mut finished: Vec<Option<Vec<Row>>> = vec![None; workloads.len()];
        std::thread::scope(|scope| {
            let (sender, rows) = mpsc::channel();
            for _ in 0..jobs.max(1) {
                let (sender, next, workloads) = (sender.clone(), &next, &workloads);
                scope.spawn(move || {
                    while let at = next.fetch_add(1, Ordering::Relaxed)
                        && let Some(workload) = workloads.get(at)
                        && !stop.load(Ordering::Relaxed)
                        && sender.send((at, self.replay(workload))).is_ok()
                    {}
                });
            }
            // Otherwise the loop below would wait for further rows for ever.
            drop(sender);
            for (at, rows) in rows {
                // An error drops the receiver. The next send of each worker then fails, which ends it, so
                // the scope does not wait for the remaining workloads.
                let rows = rows?;
                done(&rows);
                finished[at] = Some(rows);
            }
            Ok(finished.into_iter().flatten().flatten().collect())
        })
    }

    fn workloads(&self) -> std::io::Result<Vec<Workload>> {
        let mut workloads = Vec::new();
        for &seed in &self.seeds {
            workloads.extend(workload::all(self.traces.as_deref(), self.half, seed)?);
        }
        workloads.retain(|workload| self.only.as_ref().is_none_or(|only| workload.name.contains(only)));
        Ok(workloads)
    }

    /// Replays every pair of a workload.
    fn replay(&self, workload: &Workload) -> Result<Vec<Row>, SuiteError> {
        // Known rows do not spare the draw, because only the drawn sizes say whether a row is of this
        // case.
        let drawn = workload.draw(self.longest)?;
        let empty = |pair: &Contender| Row {
            seed: workload.seed,
            workload: workload.name.clone(),
            class: workload.class(),
            part: Part::Whole,
            pool_pages: drawn.pool_pages,
            ssd_pages: drawn.ssd_pages,
            pair: pair.to_string(),
            cost_ms: 0.0,
            ssd_writes: 0.0,
            misses: 0.0,
        };
        // To find where the parts end takes a replay of its own, which a workload whose rows are all
        // known does not need.
        let mut replay = None;
        let mut rows = Vec::new();
        for pair in &self.pairs {
            let row = empty(pair);
            // The part is left out of the comparison: one replay yields all parts of a case, so either
            // all of them are known or none.
            let same = |known: &&Row| {
                known.pair == row.pair && known.is_beside(&Row { part: known.part, ..row.clone() })
            };
            let known: Vec<Row> = self.known.iter().filter(same).cloned().collect();
            if known.is_empty() {
                // The parts end at the same references under every pair.
                let replay = replay.get_or_insert_with(|| Replay::new(&drawn, self.run_read_ms));
                rows.extend(replay.rows(pair, &row));
            } else {
                rows.extend(known);
            }
        }
        Ok(rows)
    }
}

/// Why a suite failed.
#[derive(Debug, thiserror::Error)]
pub enum SuiteError {
    /// The directory of the traces cannot be read.
    #[error("the directory of the traces cannot be read")]
    Folder(#[from] std::io::Error),
    /// A trace cannot be read.
    #[error("{}: {}", .0.display(), .1)]
    Trace(PathBuf, TraceError),
}
