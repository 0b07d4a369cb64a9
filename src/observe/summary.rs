//! [`Stats`] reduced to what fits on a screen and into a line of JSON: histograms become quantiles, and
//! classes of I/O without operations are left out.

use crate::store::headroom::Headroom;
use crate::store::stats::Stats;
use pagetier_bufpool::PoolStats;
use pagetier_devio::{DeviceStats, DirStats, IoClass};
use pagetier_policy::PolicyChoice;
use pagetier_ssdcache::{SlotCounts, SsdMode};
use serde::{Deserialize, Serialize, Serializer};

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
    /// The room for growth.
    #[serde(default)]
    pub room: Headroom,
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
    /// What happened in the pool since the opening.
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
    /// The frames themselves, without their metadata.
    pub frames: u64,
    /// Metadata, page table and hit buffers.
    pub metadata: u64,
    /// Staged copies of dirty pages, at most.
    pub staging: u64,
    /// The SSD's tables and policy.
    pub ssd_tables: u64,
    /// The sum of the parts.
    pub total: u64,
}

/// The SSD cache's state, and its counters since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SsdSummary {
    /// `write-back`, `write-through`, `read-only` or `off`.
    pub mode: String,
    /// The number of slots, whether or not they hold pages.
    pub slots: u64,
    /// Pages that have a copy.
    pub pages: u64,
    /// Copies that are newer than the HDD's version.
    pub dirty_pages: u64,
    /// Copies of pages whose space is kept off the SSD: they are being removed.
    #[serde(default)]
    pub leaving: u64,
    /// Free slots that may be written at once.
    pub free_writable: u64,
    /// Free slots that may be written after the next checkpoint.
    pub free_waiting: u64,
    /// Slots that wait for a flush of the SSD.
    pub free_retired: u64,
    /// Blocks of the journal that the next checkpoint will free.
    pub journal_used: u64,
    /// The oldest log position that redo would need if the SSD were lost; `None`: it holds no only copy.
    pub oldest_lsn: Option<u64>,
    /// The write budget in bytes per day, if there is one.
    #[serde(default)]
    pub budget_per_day: Option<u64>,
    /// With a budget: the recent rate of writes, in bytes per day.
    #[serde(default)]
    pub written_per_day: Option<u64>,
    /// With a budget: the factor on the cost of a write; 1 within the budget.
    #[serde(default)]
    pub write_factor: Option<f64>,
    /// What happened in the cache since the opening.
    #[serde(flatten)]
    pub counts: SlotCounts,
    /// Why the SSD takes no new pages, if it does not.
    pub error: Option<String>,
    /// Why the store refuses writes, if it does.
    pub refusing: Option<String>,
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
    pub costs: Vec<(String, f64)>,
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
                frames: self.pool_memory.frames,
                metadata: self.pool_memory.metadata,
                staging: self.pool_memory.staging,
                ssd_tables: self.ssd.memory_bytes,
                total: self.memory_bytes(),
            },
            ssd: ssd_of(self),
            room: self.room.clone(),
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

fn ssd_of(stats: &Stats) -> SsdSummary {
    let ssd = &stats.ssd;
    SsdSummary {
        mode: mode_name(ssd.mode).to_owned(),
        slots: ssd.slots,
        pages: ssd.pages,
        dirty_pages: ssd.dirty_pages,
        leaving: ssd.leaving,
        free_writable: ssd.free.writable as u64,
        free_waiting: ssd.free.waiting as u64,
        free_retired: ssd.free.retired as u64,
        journal_used: ssd.journal_used,
        oldest_lsn: ssd.oldest_lsn.map(|lsn| lsn.0),
        budget_per_day: ssd.write_budget.map(|budget| budget.bytes_per_day),
        written_per_day: ssd.write_budget.map(|budget| budget.written_per_day),
        write_factor: ssd.write_budget.map(|budget| budget.factor),
        counts: ssd.counts,
        error: ssd.ssd_error.as_deref().map(str::to_owned),
        refusing: ssd.refusing.as_deref().map(str::to_owned),
        choice: stats.ssd_choice.as_ref().map(choice_of),
    }
}

pub(super) fn mode_name(mode: SsdMode) -> &'static str {
    match mode {
        SsdMode::WriteBack => "write-back",
        SsdMode::WriteThrough => "write-through",
        SsdMode::ReadOnly => "read-only",
        SsdMode::Off => "off",
        _ => "unknown",
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
