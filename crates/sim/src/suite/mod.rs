//! The suite that default policies are judged by: many workloads, each at three sizes of the tiers, under the
//! policies in question and under settings that never change.
//!
//! A pair of policies is judged by its *regret*: what its I/O cost beyond that of the best of the fixed
//! settings on the same references, chosen in hindsight for each. Generated workloads depend on a seed, and
//! so do their parameters: settings tuned on one seed are tested on another.

mod chart;
mod generators;
mod judge;
mod stack;

pub use chart::chart;
pub use judge::{Judged, judge};

use crate::{Trace, TraceError};
use pagetier_ghost::{Reference, TierParams, Tiers};
use pagetier_policy::{Costs, FramePolicyParams, PageId, SlotPolicyParams};
use pagetier_tpcc::args::PolicyPair;
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

/// Settings that never change, each the best one somewhere: the papers', and this project's parts.
pub const FIXED: [&str; 13] = [
    "gd2l+cac",
    "gd2l+cc",
    "gd2l+lru2",
    "lru+lru2",
    "lru+cc",
    "lru+cac:ageing=5,write-at-hand,rewrite,sketch",
    "gd2l+cac:ageing=5",
    "gd2l+cac:ageing=5,write-at-hand,rewrite,sketch",
    "gd2l:frequency,write-back+lru2",
    "gd2l:frequency,write-back+cac:ageing,write-at-hand,rewrite,sketch",
    "gd2l:frequency,write-back+cac:ageing=40,write-at-hand,rewrite,sketch",
    "gd2l:frequency,write-back+cac:ageing=10,write-at-hand,rewrite,sketch",
    "gd2l:frequency,write-back+cac:ageing=5,write-at-hand,rewrite,sketch",
];

/// The papers' settings: a default should never cost much more than any of them.
pub const CLASSICS: [&str; 3] = ["gd2l+cac", "gd2l+lru2", "lru+lru2"];

/// Pool and SSD, in per cent of the pages of a workload.
const SIZES: [(u32, u32); 3] = [(2, 10), (4, 25), (8, 50)];

/// Parameter sets of a generator.
const SETS: usize = 3;

/// The references that are replayed before costs count, as a share.
const WARMUP: f64 = 0.4;

/// What a suite is made of.
#[derive(Clone, Debug)]
pub struct Suite {
    /// The seed of the generators and of their parameters.
    pub seed: u64,
    /// References of a workload, warm-up included.
    pub references: usize,
    /// Whether one size of the tiers is enough.
    pub quick: bool,
    /// Only workloads whose names contain this.
    pub only: Option<String>,
    /// Where page traces (`*.ptr`) are; each is a workload.
    pub traces: Option<PathBuf>,
    /// The pairs to replay.
    pub pairs: Vec<PolicyPair>,
}

/// One replay.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The workload, and its parameter set.
    pub workload: String,
    /// Pages of the pool.
    pub pool_pages: u32,
    /// Pages of the SSD.
    pub ssd_pages: u32,
    /// The policies.
    pub pair: String,
    /// I/O of the references that count, in milliseconds per 1,000 of them.
    pub cost_ms: f64,
}

impl Row {
    /// Workload and sizes, as tables name them.
    #[must_use]
    pub fn case(&self) -> String {
        format!("{} {}:{}", self.workload, self.pool_pages, self.ssd_pages)
    }

    /// Whether `other` is of the same workload and sizes.
    #[must_use]
    pub fn is_beside(&self, other: &Self) -> bool {
        self.ssd_pages == other.ssd_pages
            && self.pool_pages == other.pool_pages
            && self.workload == other.workload
    }
}

/// Where a workload's references come from.
#[derive(Clone, Debug)]
enum Origin {
    Generated { kind: usize, set: usize },
    Trace(PathBuf),
}

#[derive(Clone, Debug)]
struct Workload {
    name: String,
    origin: Origin,
}

impl Suite {
    /// All of it, with this seed.
    #[must_use]
    pub fn new(seed: u64, pairs: Vec<PolicyPair>) -> Self {
        Self { seed, references: 400_000, quick: false, only: None, traces: None, pairs }
    }

    /// The names of the workloads.
    ///
    /// # Errors
    /// The folder of the traces cannot be read.
    pub fn names(&self) -> std::io::Result<Vec<String>> {
        Ok(self.workloads()?.into_iter().map(|workload| workload.name).collect())
    }

    /// Replays everything, `jobs` workloads at a time, and passes each workload's rows to `done` when it is
    /// finished. The rows are in the order of the workloads, whatever the order they are finished in. Ends
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
            drop(sender);
            for (at, rows) in rows {
                let rows = rows?;
                done(&rows);
                finished[at] = Some(rows);
            }
            Ok(finished.into_iter().flatten().flatten().collect())
        })
    }

    fn workloads(&self) -> std::io::Result<Vec<Workload>> {
        let generated = generators::KINDS.iter().enumerate().flat_map(|(kind, (name, _))| {
            (0..SETS).map(move |set| Workload {
                name: format!("{name}/{}", set + 1),
                origin: Origin::Generated { kind, set },
            })
        });
        let mut traces = Vec::new();
        if let Some(folder) = &self.traces {
            for entry in std::fs::read_dir(folder)? {
                let path = entry?.path();
                if path.extension().is_some_and(|extension| extension == "ptr") {
                    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                    traces.push(Workload { name, origin: Origin::Trace(path) });
                }
            }
            traces.sort_by(|a, b| a.name.cmp(&b.name));
        }
        let wanted = |workload: &Workload| self.only.as_ref().is_none_or(|only| workload.name.contains(only));
        Ok(generated.chain(traces).filter(wanted).collect())
    }

    /// Every size and pair of a workload.
    fn replay(&self, workload: &Workload) -> Result<Vec<Row>, SuiteError> {
        let references = self.references(workload)?;
        let pages = references.iter().map(|r| r.page).collect::<FxHashSet<PageId>>().len() as u32;
        let sizes = if self.quick { &SIZES[1..2] } else { &SIZES[..] };
        let rows = sizes.iter().flat_map(|&(pool, ssd)| {
            let (pool_pages, ssd_pages) = ((pages * pool / 100).max(8), (pages * ssd / 100).max(8));
            let references = &references;
            self.pairs.iter().map(move |pair| Row {
                workload: workload.name.clone(),
                pool_pages,
                ssd_pages,
                pair: pair.to_string(),
                cost_ms: cost_ms(references, pool_pages, ssd_pages, pair),
            })
        });
        Ok(rows.collect())
    }

    fn references(&self, workload: &Workload) -> Result<Vec<Reference>, SuiteError> {
        match &workload.origin {
            Origin::Generated { kind, set } => {
                Ok(generators::Stream::generate(*kind, *set, self.seed, self.references))
            }
            Origin::Trace(path) => {
                let trace = Trace::read(path).map_err(|error| SuiteError::Trace(path.clone(), error))?;
                let all = trace.references();
                Ok(all[..all.len().min(2 * self.references)].to_vec())
            }
        }
    }
}

/// What the references cost after a warm-up, in milliseconds per 1,000.
fn cost_ms(references: &[Reference], pool_pages: u32, ssd_pages: u32, pair: &PolicyPair) -> f64 {
    let costs = Costs::PAPER;
    let frames = FramePolicyParams::new(pool_pages as usize, costs);
    let slots = SlotPolicyParams::new(costs, ssd_pages as usize, pool_pages as usize);
    let params = TierParams::new(pool_pages, ssd_pages);
    let mut tiers = Tiers::new(params, pair.pool.build(&frames), pair.ssd.build(&slots));
    let (warmup, counted) = references.split_at((references.len() as f64 * WARMUP) as usize);
    warmup.iter().for_each(|&reference| tiers.apply(reference));
    let before = *tiers.counts();
    counted.iter().for_each(|&reference| tiers.apply(reference));
    let counts = tiers.counts().since(&before);
    (counts.hdd_ms(&costs) + counts.ssd_ms(&costs)) * 1000.0 / counted.len().max(1) as f64
}

/// Why a suite ended early.
#[derive(Debug, thiserror::Error)]
pub enum SuiteError {
    /// The folder of the traces cannot be read.
    #[error("the traces: {0}")]
    Folder(#[from] std::io::Error),
    /// A trace cannot be read.
    #[error("{}: {}", .0.display(), .1)]
    Trace(PathBuf, TraceError),
}

/// The default folder of the traces, if it exists.
#[must_use]
pub fn default_traces() -> Option<PathBuf> {
    let folder = Path::new("../shared/traces");
    folder.is_dir().then(|| folder.to_owned())
}
