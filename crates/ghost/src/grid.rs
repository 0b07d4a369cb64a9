//! A grid of ghosts: tiers of other sizes, scaled down to a sample of the pages.

use crate::counts::{Counts, TierParams};
use crate::reference::Reference;
use crate::tiers::Tiers;
use crate::what_if::{SampleSummary, WhatIf, WhatIfCost};
use pagetier_page::Sampling;
use pagetier_policy::{CLUSTER_PAGES, Costs, FramePolicyParams, PoolPolicy, SlotPolicyParams, SsdPolicy};

/// The maximum number of ghosts in a grid.
const GHOSTS_MAX: usize = 256;

/// The parameters of a grid.
#[derive(Clone, PartialEq, Debug)]
pub struct GhostParams {
    /// The pool's policy.
    pub pool_policy: PoolPolicy,
    /// The SSD's policy.
    pub ssd_policy: SsdPolicy,
    /// The cost of an I/O.
    pub costs: Costs,
    /// The pool's present size in frames.
    pub pool_pages: u32,
    /// The SSD's present size in slots.
    pub ssd_pages: u32,
    /// Pages per cluster, for policies that write in clusters and whose names say no other number.
    pub cluster_pages: u32,
    /// The size of a page, in bytes, for reports.
    pub page_bytes: u64,
    /// The sample of pages that the ghosts see.
    pub sampling: Sampling,
    /// Sizes of the pool as multiples of its present size, which is always included.
    pub pool_factors: Vec<f64>,
    /// Sizes of the SSD as multiples of its present size, which is always included.
    pub ssd_factors: Vec<f64>,
}

impl GhostParams {
    /// The default policies with the paper's costs, for all pages: half to four times the pool, zero to four
    /// times the SSD.
    #[must_use]
    pub fn new(pool_pages: u32, ssd_pages: u32) -> Self {
        Self {
            pool_policy: PoolPolicy::default(),
            ssd_policy: SsdPolicy::default(),
            costs: Costs::PAPER,
            pool_pages,
            ssd_pages,
            cluster_pages: CLUSTER_PAGES,
            page_bytes: 16 << 10,
            sampling: Sampling::ALL,
            pool_factors: vec![0.5, 1.0, 2.0, 4.0],
            ssd_factors: vec![0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0],
        }
    }
}

/// Why a grid cannot be built.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GhostError {
    /// A factor is negative or not a number, or leaves no page of the pool.
    #[error("{0} is not a multiple of a size")]
    Factor(f64),
    /// A size beyond 2^32 pages.
    #[error("{0:.0} pages are too many")]
    TooLarge(f64),
    /// There are too many ghosts.
    #[error("{0} sizes are too many: at most {GHOSTS_MAX}")]
    TooMany(usize),
}

#[derive(Debug)]
struct Ghost {
    pool_pages: u32,
    ssd_pages: u32,
    tiers: Tiers,
    /// The counts at the last two marks.
    marks: [Counts; 2],
}

/// Ghosts of every size of a grid, fed by one stream of references.
#[derive(Debug)]
pub struct Ghosts {
    params: GhostParams,
    all: Vec<Ghost>,
}

impl Ghosts {
    /// Creates empty ghosts.
    ///
    /// # Errors
    /// An unknown policy, or invalid sizes.
    pub fn new(params: GhostParams) -> Result<Self, GhostError> {
        let pools = sizes(params.pool_pages, &params.pool_factors, 1)?;
        let ssds = sizes(params.ssd_pages, &params.ssd_factors, 0)?;
        // Checked before any is built: the memory of a mistyped grid grows with the product of its lists.
        if pools.len() * ssds.len() > GHOSTS_MAX {
            return Err(GhostError::TooMany(pools.len() * ssds.len()));
        }
        let sizes = pools.iter().flat_map(|&pool| ssds.iter().map(move |&ssd| (pool, ssd)));
        let all = sizes.map(|(pool, ssd)| ghost(&params, pool, ssd)).collect::<Result<_, _>>()?;
        Ok(Self { params, all })
    }

    /// The sample of pages whose references the ghosts need.
    pub fn sampling(&self) -> Sampling {
        self.params.sampling
    }

    /// Applies a reference to a sampled page; the caller filters out all others.
    pub fn apply(&mut self, reference: Reference) {
        debug_assert!(self.params.sampling.takes(reference.page));
        self.all.iter_mut().for_each(|ghost| ghost.tiers.apply(reference));
    }

    /// Sets a mark: counting restarts here, and references before it count as warm-up. The previous mark is
    /// kept.
    pub fn mark(&mut self) {
        for ghost in &mut self.all {
            ghost.marks = [*ghost.tiers.counts(), ghost.marks[0]];
        }
    }

    /// Reports the counts since the last mark, or with `earlier` since the previous one. `sampled.requests`
    /// is the number of references of the whole stream in that interval.
    #[must_use]
    pub fn report(&self, sampled: SampleSummary, earlier: bool) -> WhatIf {
        let params = &self.params;
        // Divide by the references that the sample should have, not by those that it has. Whether a few of
        // the hottest pages are in the sample changes its references by much, and its misses hardly.
        // SHARDS-adj makes the same correction.
        let scale = 1000.0 / (sampled.requests.max(1) as f64 * params.sampling.rate());
        let cost = |ghost: &Ghost| {
            let counts = ghost.tiers.counts().since(&ghost.marks[usize::from(earlier)]);
            WhatIfCost {
                pool_pages: ghost.pool_pages,
                ssd_pages: ghost.ssd_pages,
                hdd_ms: counts.hdd_ms(&params.costs) * scale,
                ssd_ms: counts.ssd_ms(&params.costs) * scale,
                misses: counts.pool_misses as f64 * scale,
                ssd_hits: counts.ssd_hits as f64 * scale,
            }
        };
        WhatIf {
            pool_policy: params.pool_policy.to_string(),
            ssd_policy: params.ssd_policy.to_string(),
            pool_pages: params.pool_pages,
            ssd_pages: params.ssd_pages,
            page_bytes: params.page_bytes,
            rate: params.sampling.rate(),
            sampled,
            costs: self.all.iter().map(cost).collect(),
        }
    }

    /// Recounts every ghost; for tests.
    ///
    /// # Errors
    /// A description of the first inconsistency.
    pub fn validate(&self) -> Result<(), String> {
        self.all.iter().try_for_each(|ghost| ghost.tiers.validate())
    }
}

/// The sizes of the grid in pages, ascending.
fn sizes(present: u32, factors: &[f64], least: u32) -> Result<Vec<u32>, GhostError> {
    let mut sizes = vec![present.max(least)];
    for &factor in factors {
        let pages = (f64::from(present) * factor).round();
        match pages {
            // The first arm must exclude NaN: the comparisons below are false for it, and the last arm
            // would take it for zero pages.
            _ if !(factor.is_finite() && factor >= 0.0) => return Err(GhostError::Factor(factor)),
            pages if pages >= f64::from(u32::MAX) => return Err(GhostError::TooLarge(pages)),
            pages if pages < f64::from(least) => return Err(GhostError::Factor(factor)),
            pages => sizes.push(pages as u32),
        }
    }
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes)
}

/// Creates tiers of these sizes, scaled down to the sample. It scales every number of pages except clusters,
/// which are ranges of page numbers. The clock runs faster, because the omitted references take time too.
fn ghost(params: &GhostParams, pool_pages: u32, ssd_pages: u32) -> Result<Ghost, GhostError> {
    let rate = params.sampling.rate();
    let scaled = |pages: u32, least: u32| ((f64::from(pages) * rate).round() as u32).max(least);
    // Any SSD keeps at least one slot: with none, the report would show the cost without an SSD under its
    // size.
    let (frames, slots) = (scaled(pool_pages, 1), scaled(ssd_pages, u32::from(ssd_pages > 0)));
    let defaults = TierParams::new(frames, slots);
    // The look-ahead is a number of pages, too. Unscaled, it would reach through most of a small ghost's
    // pool, and clean pages that are far from eviction in the store.
    let look_ahead = ((defaults.look_ahead as f64 * rate).round() as usize).max(1);
    let costs = params.costs;
    let zone_share = params.ssd_policy.zone().get() / 100.0;
    let tiers = TierParams { costs, look_ahead, clock_rate: 1.0 / rate, zone_share, ..defaults };
    let defaults = FramePolicyParams::new(frames as usize, costs);
    let pool = FramePolicyParams { cluster_pages: params.cluster_pages, ..defaults };
    let pool = params.pool_policy.build(&pool);
    let ssd_policy = params.ssd_policy.for_share(rate);
    let ssd = ssd_policy.build(&SlotPolicyParams::new(params.costs, slots as usize, frames as usize));
    Ok(Ghost { pool_pages, ssd_pages, tiers: Tiers::new(tiers, pool, ssd), marks: Default::default() })
}
