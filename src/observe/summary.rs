//! [`Stats`] reduced to what fits on a screen and into a line of JSON: histograms become quantiles, and
//! classes of I/O without operations are left out.

use crate::store::headroom::Headroom;
use crate::store::hot_state::HotSetStats;
use crate::store::stats::Stats;
use pagetier_bufpool::{PoolMemory, PoolStats};
use pagetier_devio::{DeviceStats, DirStats, IoClass};
use pagetier_policy::PolicyChoice;
use pagetier_ssdcache::TierStats;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// The form in which [`Stats`] is printed and serialised. It also deserialises, for tools that read an
/// export.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StatsSummary {
    /// The buffer pool.
    pub pool: PoolSummary,
    /// Memory by part.
    pub memory: MemorySummary,
    /// The SSD cache.
    pub ssd: SsdSummary,
    /// The space for growth.
    #[serde(default)]
    pub room: Headroom,
    /// The hot set that the store keeps.
    #[serde(default)]
    pub hot_set: HotSetStats,
    /// The HDD's operations.
    pub hdd_device: DeviceSummary,
    /// The SSD, or the ring's file of a store without one.
    pub ssd_device: DeviceSummary,
}

/// The buffer pool, and its counters since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PoolSummary {
    /// Frames in the pool.
    pub frames: u64,
    /// What happened in the pool since the open.
    #[serde(flatten)]
    pub counts: PoolStats,
    /// Hits per lookup; `None` without lookups.
    pub hit_ratio: Option<f64>,
    /// The setting that an adaptive policy follows.
    pub choice: Option<ChoiceSummary>,
}

/// Memory in bytes. The sum of the parts is the share of the budget in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemorySummary {
    /// The pool's parts.
    #[serde(flatten)]
    pub pool: PoolMemory,
    /// The SSD's tables and policy.
    pub ssd_tables: u64,
    /// The sum of the parts.
    pub total: u64,
}

/// The SSD cache's state, and its counters since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SsdSummary {
    /// The state and the counters.
    #[serde(flatten)]
    pub tier: TierStats,
    /// The setting that an adaptive policy follows.
    pub choice: Option<ChoiceSummary>,
}

/// The setting that an adaptive policy follows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChoiceSummary {
    /// The setting in force.
    pub setting: String,
    /// How often the policy has changed it.
    pub changes: u64,
    /// Each setting's recent simulated cost over that of the cheapest.
    #[serde(deserialize_with = "named")]
    pub costs: BTreeMap<String, f64>,
}

/// Names with numbers: as an object, or as the pairs that earlier versions exported.
fn named<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Object(BTreeMap<String, f64>),
        Pairs(Vec<(String, f64)>),
    }
    Ok(match Either::deserialize(from)? {
        Either::Object(object) => object,
        Either::Pairs(pairs) => pairs.into_iter().collect(),
    })
}

/// A device's operations since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceSummary {
    /// The reads of all classes.
    pub read: DirSummary,
    /// The writes of all classes.
    pub write: DirSummary,
    /// Flushes, which belong to no class.
    pub flush: DirSummary,
    /// Discards; their bytes are those discarded.
    pub discard: DirSummary,
    /// Milliseconds during which at least one operation was in flight.
    pub busy_ms: u64,
    /// Operations that failed for good.
    pub errors: u64,
    /// Attempts repeated after an error that may pass.
    pub retries: u64,
    /// The classes of I/O that had operations.
    pub classes: Vec<ClassSummary>,
}

/// One class of I/O.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClassSummary {
    /// `demand`, `prefetch`, `clean`, …: see [`IoClass`].
    pub class: String,
    /// Reads of this class.
    pub read: DirSummary,
    /// Writes of this class.
    pub write: DirSummary,
}

/// Operations in one direction, with quantiles of their latency. A quantile is rounded up by at most an
/// eighth; all are 0 without operations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DirSummary {
    /// Operations that succeeded.
    pub ops: u64,
    /// The bytes that they moved.
    pub bytes: u64,
    /// Mean latency, in microseconds.
    pub mean_us: f64,
    /// Median latency, in microseconds.
    pub p50_us: f64,
    /// The latency that 9 of 10 operations do not exceed, in microseconds.
    pub p90_us: f64,
    /// The latency that 99 of 100 operations do not exceed, in microseconds.
    pub p99_us: f64,
    /// The latency that 999 of 1,000 operations do not exceed, in microseconds.
    pub p999_us: f64,
}

impl Stats {
    /// The statistics with quantiles in place of histograms: the form in which [`Stats`] is printed and
    /// serialised.
    #[must_use]
    pub fn summary(&self) -> StatsSummary {
        StatsSummary {
            pool: pool_of(self),
            memory: MemorySummary {
                pool: self.pool_memory,
                ssd_tables: self.ssd.memory_bytes,
                total: self.memory_bytes(),
            },
            ssd: SsdSummary { tier: self.ssd.clone(), choice: self.ssd_choice.as_ref().map(choice_of) },
            room: self.room.clone(),
            hot_set: self.hot_set,
            hdd_device: device_of(&self.hdd_device),
            ssd_device: device_of(&self.ssd_device),
        }
    }
}

impl Serialize for Stats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.summary().serialize(serializer)
    }
}

fn pool_of(stats: &Stats) -> PoolSummary {
    let counts = stats.pool;
    let lookups = counts.hits + counts.misses;
    PoolSummary {
        frames: stats.frames,
        counts,
        hit_ratio: (lookups > 0).then(|| counts.hits as f64 / lookups as f64),
        choice: stats.pool_choice.as_ref().map(choice_of),
    }
}

fn choice_of(choice: &PolicyChoice) -> ChoiceSummary {
    let costs = choice.costs.iter().map(|(name, cost)| ((*name).to_owned(), *cost)).collect();
    ChoiceSummary { setting: choice.setting.to_owned(), changes: choice.changes, costs }
}

/// The names of the classes of I/O in reports.
pub(super) fn class_name(class: IoClass) -> &'static str {
    match class {
        IoClass::Demand => "demand",
        IoClass::Prefetch => "prefetch",
        IoClass::Clean => "clean",
        IoClass::UrgentClean => "urgent-clean",
        IoClass::WriteBack => "write-back",
        IoClass::UrgentWriteBack => "urgent-write-back",
        IoClass::Ring => "ring",
        IoClass::Meta => "meta",
        IoClass::Recovery => "recovery",
    }
}

fn device_of(device: &DeviceStats) -> DeviceSummary {
    let totals = device.totals();
    let classes = IoClass::ALL.into_iter().filter_map(|class| {
        let stats = device.class(class);
        let used = stats.read.ops + stats.write.ops > 0;
        used.then(|| ClassSummary {
            class: class_name(class).to_owned(),
            read: dir_of(&stats.read),
            write: dir_of(&stats.write),
        })
    });
    DeviceSummary {
        read: dir_of(&totals.read),
        write: dir_of(&totals.write),
        flush: dir_of(&device.flush),
        discard: dir_of(&device.discard),
        busy_ms: device.busy_ns() / 1_000_000,
        errors: device.errors.total(),
        retries: device.retries.total(),
        classes: classes.collect(),
    }
}

fn dir_of(dir: &DirStats) -> DirSummary {
    let us = |ns: u64| ns as f64 / 1000.0;
    let quantile = |share| us(dir.latency.quantile_ns(share));
    DirSummary {
        ops: dir.ops,
        bytes: dir.bytes,
        mean_us: us(dir.mean_latency_ns()),
        p50_us: quantile(0.5),
        p90_us: quantile(0.9),
        p99_us: quantile(0.99),
        p999_us: quantile(0.999),
    }
}
