//! The suite that judges default policies: many workloads, each at three sizes of the tiers, under the
//! policies in question and under fixed settings.
//!
//! A pair of policies is judged by its *regret*: the cost of its I/O relative to that of the best fixed
//! setting for the same references, chosen in hindsight. Generated workloads and their parameters depend on a
//! seed, so settings tuned on one seed can be tested on another.

mod chart;
mod generators;
mod judge;
mod regret;
mod stack;

pub use chart::chart;
pub use judge::{Judged, judge};

use crate::{Trace, TraceError};
use pagetier_ghost::{Reference, TierParams, Tiers};
use pagetier_policy::{Costs, FramePolicyParams, PageId, SlotPolicyParams};
use pagetier_tpcc::args::PolicyPair;
use regret::{RegretPool, RegretSsd};
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

/// The fixed settings, each the best one for some workload: those of the papers, and combinations of this
/// project's parts.
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

/// The name of the experts weighted by regret, in rows and tables; see [`Suite::regret`].
pub const REGRET: &str = "regret+regret";

/// The sizes of pool and SSD, in per cent of the pages of a workload.
const SIZES: [(u32, u32); 3] = [(2, 10), (4, 25), (8, 50)];

/// The number of parameter sets of a generator.
const SETS: usize = 3;

/// The share of the references that are replayed before costs count.
const WARMUP: f64 = 0.4;

/// The workloads and policies to replay.
#[derive(Clone, Debug)]
pub struct Suite {
    /// The seed of the generators and of their parameters.
    pub seed: u64,
    /// The number of references of a workload, including the warm-up.
    pub references: usize,
    /// Whether to replay one size of the tiers instead of three.
    pub quick: bool,
    /// Selects the workloads whose names contain this.
    pub only: Option<String>,
    /// The folder of the page traces (`*.ptr`), each of which is a workload.
    pub traces: Option<PathBuf>,
    /// The pairs of policies to replay.
    pub pairs: Vec<PolicyPair>,
    /// Whether to also replay the second family of adaptive policies: experts weighted by regret (LeCaR),
    /// which a store cannot select.
    pub regret: bool,
    /// Rows of the same seed and number of references, which are reused instead of replayed.
    pub known: Vec<Row>,
}

/// The result of one replay.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The workload, and its parameter set.
    pub workload: String,
    /// The size of the pool, in pages.
    pub pool_pages: u32,
    /// The size of the SSD, in pages.
    pub ssd_pages: u32,
    /// The policies.
    pub pair: String,
    /// The cost of I/O after the warm-up, in milliseconds per 1,000 references.
    pub cost_ms: f64,
}

impl Row {
    /// The workload and the sizes, as named in tables.
    #[must_use]
    pub fn case(&self) -> String {
        format!("{} {}:{}", self.workload, self.pool_pages, self.ssd_pages)
    }

    /// Whether `other` has the same workload and sizes.
    #[must_use]
    pub fn is_beside(&self, other: &Self) -> bool {
        self.ssd_pages == other.ssd_pages
            && self.pool_pages == other.pool_pages
            && self.workload == other.workload
    }
}

/// The origin of a workload's references.
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
    /// The whole suite with this seed, without traces.
    #[must_use]
    pub fn new(seed: u64, pairs: Vec<PolicyPair>) -> Self {
        Self {
            seed,
            references: 400_000,
            quick: false,
            only: None,
            traces: None,
            pairs,
            regret: false,
            known: Vec::new(),
        }
    }

    /// The names of the workloads.
    ///
    /// # Errors
    /// The directory of the traces cannot be read.
    pub fn names(&self) -> std::io::Result<Vec<String>> {
        Ok(self.workloads()?.into_iter().map(|workload| workload.name).collect())
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

    /// Replays every size and pair of a workload.
    fn replay(&self, workload: &Workload) -> Result<Vec<Row>, SuiteError> {
        let references = self.references(workload)?;
        let pages = references.iter().map(|r| r.page).collect::<FxHashSet<PageId>>().len() as u32;
        let sizes = if self.quick { &SIZES[1..2] } else { &SIZES[..] };
        let rows = sizes.iter().flat_map(|&(pool, ssd)| {
            let (pool_pages, ssd_pages) = ((pages * pool / 100).max(8), (pages * ssd / 100).max(8));
            let references = &references;
            self.pairs.iter().map(Some).chain(self.regret.then_some(None)).map(move |policies| {
                let workload = workload.name.clone();
                let pair = policies.map_or_else(|| REGRET.to_owned(), ToString::to_string);
                let row = Row { workload, pool_pages, ssd_pages, pair, cost_ms: 0.0 };
                let known = self.known.iter().find(|known| known.pair == row.pair && known.is_beside(&row));
                let replay = || cost_ms(references, pool_pages, ssd_pages, policies);
                Row { cost_ms: known.map_or_else(replay, |known| known.cost_ms), ..row }
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

/// The cost of the references after a warm-up, in milliseconds per 1,000, under these policies or, without
/// any, under the experts weighted by regret.
fn cost_ms(references: &[Reference], pool_pages: u32, ssd_pages: u32, policies: Option<&PolicyPair>) -> f64 {
    let costs = Costs::PAPER;
    let frames =
        FramePolicyParams { slots: ssd_pages as usize, ..FramePolicyParams::new(pool_pages as usize, costs) };
    let slots = SlotPolicyParams::new(costs, ssd_pages as usize, pool_pages as usize);
    let params = TierParams::new(pool_pages, ssd_pages);
    let mut tiers = match policies {
        Some(pair) => Tiers::new(params, pair.pool.build(&frames), pair.ssd.build(&slots)),
        None => {
            let pool = RegretPool::new(&frames, costs, pool_pages as usize);
            Tiers::new(params, Box::new(pool), Box::new(RegretSsd::new(&slots)))
        }
    };
    let (warmup, counted) = references.split_at((references.len() as f64 * WARMUP) as usize);
    warmup.iter().for_each(|&reference| tiers.apply(reference));
    let before = *tiers.counts();
    counted.iter().for_each(|&reference| tiers.apply(reference));
    let counts = tiers.counts().since(&before);
    (counts.hdd_ms(&costs) + counts.ssd_ms(&costs)) * 1000.0 / counted.len().max(1) as f64
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

/// The default directory of the traces, if it exists.
#[must_use]
pub fn default_traces() -> Option<PathBuf> {
    let folder = Path::new("../shared/traces");
    folder.is_dir().then(|| folder.to_owned())
}
