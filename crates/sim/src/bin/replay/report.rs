//! The results of a replay; the fields are those of the JSON object. Times are in milliseconds.

use pagetier_policy::{GroupStats, PolicyChoice};
use pagetier_sim::{Bound, Counts};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) pool_policy: String,
    pub(crate) ssd_policy: String,
    pub(crate) pool_pages: u32,
    pub(crate) ssd_pages: u32,
    #[serde(flatten)]
    pub(crate) counts: Counts,
    /// The sum of the four costs.
    pub(crate) cost: f64,
    pub(crate) cost_unit: &'static str,
    pub(crate) hdd_ms: f64,
    pub(crate) ssd_ms: f64,
    pub(crate) hit_ratio: f64,
    pub(crate) cluster_switch_factor: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) new_orders: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) total_ms_per_new_order: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hdd_ms_per_new_order: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ssd_ms_per_new_order: Option<f64>,
    /// HDD reads and writes per New-Order, or per 1,000 requests for other sources.
    pub(crate) hdd_accesses_per_unit: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) db_pages: Option<u64>,
    pub(crate) ssd_used: usize,
    pub(crate) policy_memory_bytes: usize,
    /// The settings that adaptive policies follow, and the simulated cost of each setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pool_choice: Option<Chosen>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ssd_choice: Option<Chosen>,
    pub(crate) requests_per_second: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) alpha: Vec<Alpha>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) bounds: Vec<Beside>,
}

/// The setting that an adaptive policy follows at the end.
#[derive(Serialize)]
pub(crate) struct Chosen {
    pub(crate) setting: &'static str,
    pub(crate) changes: u64,
    /// Recent costs relative to the cheapest setting's, by setting.
    pub(crate) costs: BTreeMap<&'static str, f64>,
}

impl From<PolicyChoice> for Chosen {
    fn from(choice: PolicyChoice) -> Self {
        let PolicyChoice { setting, changes, costs, .. } = choice;
        // A sorted map keeps the order of JSON fields stable between runs, so that reports can be
        // compared by text.
        Self { setting, changes, costs: costs.into_iter().collect() }
    }
}

impl Report {
    /// The number of New-Orders, or of thousands of requests for other sources.
    pub(crate) fn units(&self) -> f64 {
        units(self.new_orders, self.counts.requests)
    }

    /// The share of misses that the SSD served.
    pub(crate) fn ssd_hit_share(&self) -> f64 {
        // A run without misses has a share of 0 rather than a NaN, which would print as such.
        self.counts.ssd_hits as f64 / self.counts.pool_misses.max(1) as f64
    }

    /// Adds a comparison with these bounds.
    pub(crate) fn beside(self, bounds: &[StaticReport]) -> Self {
        // The bound is 0 where the tiers hold every page, and then no ratio exists. JSON has no infinity
        // either.
        let times = |run: f64, bound: f64| (bound > 0.0).then(|| run / bound);
        let beside = |bound: &StaticReport| Beside {
            bound: bound.clone(),
            times_hdd_accesses: times(self.hdd_accesses_per_unit, bound.hdd_accesses_per_unit),
            times_cost: times(self.cost, bound.bound.cost_ms),
        };
        let bounds = bounds.iter().map(beside).collect();
        Self { bounds, ..self }
    }
}

/// The number of New-Orders, or of thousands of requests for other sources.
pub(crate) fn units(orders: Option<u64>, requests: u64) -> f64 {
    // Other sources have no transactions to count by, so their unit is one that does not depend on the
    // length of the run.
    orders.map_or(requests as f64 / 1000.0, |n| n as f64)
}

/// The cost of a static placement.
#[derive(Clone, Serialize)]
pub(crate) struct StaticReport {
    pub(crate) placement: &'static str,
    #[serde(flatten)]
    pub(crate) bound: Bound,
    pub(crate) hdd_accesses_per_unit: f64,
    pub(crate) hdd_reads_per_unit: f64,
    pub(crate) ms_per_unit: f64,
}

impl StaticReport {
    pub(crate) fn new(placement: &'static str, bound: Bound, units: f64) -> Self {
        Self {
            placement,
            hdd_accesses_per_unit: bound.hdd_accesses as f64 / units,
            hdd_reads_per_unit: bound.hdd_reads as f64 / units,
            ms_per_unit: bound.cost_ms / units,
            bound,
        }
    }
}

/// A static placement, and the ratios of the run to it; `None` where the placement's figure is 0.
#[derive(Clone, Serialize)]
pub(crate) struct Beside {
    #[serde(flatten)]
    pub(crate) bound: StaticReport,
    pub(crate) times_hdd_accesses: Option<f64>,
    pub(crate) times_cost: Option<f64>,
}

/// CAC's α of a group.
#[derive(Serialize)]
pub(crate) struct Alpha {
    pub(crate) space: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<&'static str>,
    pub(crate) subrange: u32,
    pub(crate) alpha: f64,
    pub(crate) miss_rate_ssd: Option<f64>,
    pub(crate) miss_rate_hdd: Option<f64>,
    pub(crate) pages: u64,
}

impl From<GroupStats> for Alpha {
    fn from(group: GroupStats) -> Self {
        Self {
            space: group.space.0,
            name: None,
            subrange: group.subrange,
            alpha: group.alpha,
            miss_rate_ssd: group.miss_rate_ssd,
            miss_rate_hdd: group.miss_rate_hdd,
            pages: group.pages,
        }
    }
}
