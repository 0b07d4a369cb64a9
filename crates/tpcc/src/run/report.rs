//! The cost of a run: the columns of Figures 8, 9 and 11 of the 2013 paper, as JSON or as a table.

use crate::command::policies::Policies;
use crate::run::terminals::{Measured, Slice};
use crate::tx::Kind;
use pagetier::{
    Costs,
    device::{DeviceStats, IoClass},
    policy::PolicyChoice,
    stats::Stats,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Traffic that the paper's system does not have; the main figures exclude it.
const EXTRA: [IoClass; 2] = [IoClass::Ring, IoClass::Meta];

/// The configuration of a run, as its report shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) pool_policy: String,
    pub(crate) ssd_policy: String,
    pub(crate) warehouses: u16,
    pub(crate) terminals: u32,
    pub(crate) page_bytes: u64,
    pub(crate) pool_bytes: u64,
    pub(crate) ssd_bytes: u64,
    pub(crate) log_bytes: u64,
    pub(crate) seed: u64,
    pub(crate) time: String,
    pub(crate) hdd: String,
    pub(crate) ssd: String,
}

impl Setup {
    /// The name that the paper would list it under.
    pub(crate) fn name(&self) -> String {
        format!("{}+{}", self.pool_policy.to_uppercase(), self.ssd_policy.to_uppercase())
    }
}

/// The recovery of a database that an earlier run left.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Reopened {
    /// Log records of page changes that recovery read.
    pub(crate) log_records: u64,
    /// Page changes that recovery applied again.
    pub(crate) redone_changes: u64,
    /// Commits that recovery executed again.
    pub(crate) repeated_commits: u64,
    /// Pages on the SSD after the store's recovery, before that of the log.
    pub(crate) ssd_pages: u64,
    /// The same in per cent of the slots.
    pub(crate) ssd_warm_pct: f64,
}

/// One run's report; its fields are those of the JSON object. Times per New-Order are in milliseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) setup: Setup,
    pub(crate) tpmc: f64,
    pub(crate) new_orders: u64,
    pub(crate) rolled_back: u64,
    pub(crate) transactions: u64,
    pub(crate) new_order_p50_ms: f64,
    pub(crate) new_order_p95_ms: f64,
    pub(crate) hdd_util_pct: f64,
    pub(crate) hdd_ms_per_new_order: f64,
    pub(crate) ssd_util_pct: f64,
    pub(crate) ssd_ms_per_new_order: f64,
    pub(crate) total_ms_per_new_order: f64,
    /// The same for each fifth of the measured interval: equal in a steady state.
    pub(crate) total_ms_by_slice: Vec<f64>,
    pub(crate) all_hdd_ms_per_new_order: f64,
    pub(crate) all_ssd_ms_per_new_order: f64,
    pub(crate) all_total_ms_per_new_order: f64,
    pub(crate) pool_miss_rate_pct: f64,
    pub(crate) pool_hits: u64,
    pub(crate) pool_misses: u64,
    pub(crate) hdd_reads: u64,
    pub(crate) hdd_writes: u64,
    pub(crate) ssd_reads: u64,
    pub(crate) ssd_writes: u64,
    pub(crate) ring_writes: u64,
    pub(crate) meta_writes: u64,
    pub(crate) ssd_pages: u64,
    pub(crate) ssd_slots: u64,
    pub(crate) map_checkpoints: u64,
    pub(crate) db_bytes: u64,
    pub(crate) flows: Flows,
    /// The policies' costs at the end.
    // Rows of earlier builds have none, and one row that does not parse fails its whole report.
    #[serde(default)]
    pub(crate) costs: Option<CostsMs>,
    /// The choices of adaptive policies at the end, by tier: `pool` and `SSD`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) choices: BTreeMap<String, Chosen>,
    pub(crate) io_backend: String,
    pub(crate) seconds: f64,
    pub(crate) interrupted: bool,
    pub(crate) reopened: Option<Reopened>,
    pub(crate) consistency: String,
}

/// How the program ended.
pub(crate) struct End {
    /// Whether every run succeeded, and left a consistent database.
    pub(crate) is_sound: bool,
    pub(crate) was_interrupted: bool,
}

/// What an adaptive policy follows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Chosen {
    pub(crate) setting: String,
    /// The number of changes of setting since the store was opened.
    pub(crate) changes: u64,
    /// The recent simulated cost of every setting, relative to the cheapest.
    pub(crate) costs: BTreeMap<String, f64>,
}

impl From<&PolicyChoice> for Chosen {
    fn from(choice: &PolicyChoice) -> Self {
        let costs = choice.costs.iter().map(|(name, cost)| ((*name).to_owned(), round(*cost)));
        Self { setting: choice.setting.to_owned(), changes: choice.changes, costs: costs.collect() }
    }
}

/// The devices' costs, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct CostsMs {
    pub(crate) ssd_read_ms: f64,
    pub(crate) hdd_read_ms: f64,
    pub(crate) ssd_write_ms: f64,
    pub(crate) hdd_write_ms: f64,
}

impl From<Costs> for CostsMs {
    fn from(costs: Costs) -> Self {
        let Costs { hdd_read_ms, hdd_write_ms, ssd_read_ms, ssd_write_ms } = costs;
        Self { ssd_read_ms, hdd_read_ms, ssd_write_ms, hdd_write_ms }
    }
}

/// The flow of pages between the tiers, in pages.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Flows {
    pub(crate) pool_frames: u64,
    pub(crate) pool_evictions: u64,
    pub(crate) waited_for_frame: u64,
    pub(crate) written_replacement: u64,
    pub(crate) written_recoverability: u64,
    pub(crate) admitted_free: u64,
    pub(crate) admitted_over: u64,
    pub(crate) rejected: u64,
    pub(crate) rejected_no_slot: u64,
    pub(crate) rewritten: u64,
    pub(crate) invalidated: u64,
    pub(crate) written_back: u64,
}

impl Flows {
    fn between(before: &Stats, after: &Stats) -> Self {
        let (pool, was) = (&after.pool, &before.pool);
        let (ssd, ssd_was) = (&after.ssd.counts, &before.ssd.counts);
        Self {
            pool_frames: after.frames,
            pool_evictions: pool.evictions - was.evictions,
            waited_for_frame: pool.waited_for_frame - was.waited_for_frame,
            written_replacement: pool.written_replacement - was.written_replacement,
            written_recoverability: pool.written_recoverability - was.written_recoverability,
            admitted_free: ssd.admitted_free - ssd_was.admitted_free,
            admitted_over: ssd.admitted_over - ssd_was.admitted_over,
            rejected: ssd.rejected - ssd_was.rejected,
            rejected_no_slot: ssd.rejected_no_slot - ssd_was.rejected_no_slot,
            rewritten: ssd.rewritten - ssd_was.rewritten,
            invalidated: ssd.invalidated - ssd_was.invalidated,
            written_back: ssd.written_back - ssd_was.written_back,
        }
    }
}

/// One device's share of a run.
struct Share {
    util_pct: f64,
    ms_per_new_order: f64,
    all_ms_per_new_order: f64,
    reads: u64,
    writes: u64,
}

/// The milliseconds of page I/O on both devices between two snapshots.
pub(crate) fn page_io_ms(before: &Stats, after: &Stats) -> f64 {
    let cost =
        |now: &DeviceStats, then: &DeviceStats| now.since(then).totals_without(&EXTRA).busy_ns() as f64 / 1e6;
    cost(&after.hdd_device, &before.hdd_device) + cost(&after.ssd_device, &before.ssd_device)
}

impl Share {
    fn of(stats: &DeviceStats, elapsed: Duration, new_orders: f64) -> Self {
        let counted = stats.totals_without(&EXTRA);
        let busy_ms = counted.busy_ns() as f64 / 1e6;
        // A device that serves several requests at once is fully used only when all of its servers are
        // busy.
        let servers = f64::from(stats.servers.max(1));
        Self {
            util_pct: 100.0 * busy_ms / (elapsed.as_secs_f64() * 1e3 * servers).max(1e-9),
            ms_per_new_order: busy_ms / new_orders,
            all_ms_per_new_order: stats.busy_ns() as f64 / 1e6 / new_orders,
            reads: counted.read.ops,
            writes: counted.write.ops,
        }
    }
}

impl Row {
    /// The report of a measured interval; without New-Orders, times are per one New-Order.
    pub(crate) fn new(
        setup: Setup,
        measured: &Measured,
        db_bytes: u64,
        costs: Costs,
        io_backend: &str,
        reopened: Option<Reopened>,
        consistency: Result<(), String>,
    ) -> Self {
        let Measured { elapsed, before, slices, counts, interrupted, .. } = measured;
        let after = measured.after();
        let new_orders = counts.committed[Kind::NewOrder as usize];
        let per = new_orders.max(1) as f64;
        let hdd_stats = after.hdd_device.since(&before.hdd_device);
        let ssd_stats = after.ssd_device.since(&before.ssd_device);
        let (hdd, ssd) = (Share::of(&hdd_stats, *elapsed, per), Share::of(&ssd_stats, *elapsed, per));
        let hits = after.pool.hits - before.pool.hits;
        let misses = after.pool.misses - before.pool.misses;
        let extra_writes = |class| hdd_stats.class(class).write.ops + ssd_stats.class(class).write.ops;
        let percentile_ms = |q| counts.new_order_us.value_at_quantile(q) as f64 / 1e3;
        Self {
            setup,
            // A run that is interrupted as its measurement begins has measured no time.
            tpmc: round(new_orders as f64 * 60.0 / elapsed.as_secs_f64().max(1e-9)),
            new_orders,
            rolled_back: counts.rolled_back,
            transactions: counts.committed.iter().sum::<u64>() + counts.rolled_back,
            new_order_p50_ms: round(percentile_ms(0.5)),
            new_order_p95_ms: round(percentile_ms(0.95)),
            hdd_util_pct: round(hdd.util_pct),
            hdd_ms_per_new_order: round(hdd.ms_per_new_order),
            ssd_util_pct: round(ssd.util_pct),
            ssd_ms_per_new_order: round(ssd.ms_per_new_order),
            total_ms_per_new_order: round(hdd.ms_per_new_order + ssd.ms_per_new_order),
            total_ms_by_slice: by_slice(before, slices),
            all_hdd_ms_per_new_order: round(hdd.all_ms_per_new_order),
            all_ssd_ms_per_new_order: round(ssd.all_ms_per_new_order),
            all_total_ms_per_new_order: round(hdd.all_ms_per_new_order + ssd.all_ms_per_new_order),
            pool_miss_rate_pct: round(100.0 * misses as f64 / (hits + misses).max(1) as f64),
            pool_hits: hits,
            pool_misses: misses,
            hdd_reads: hdd.reads,
            hdd_writes: hdd.writes,
            ssd_reads: ssd.reads,
            ssd_writes: ssd.writes,
            ring_writes: extra_writes(IoClass::Ring),
            meta_writes: extra_writes(IoClass::Meta),
            ssd_pages: after.ssd.pages,
            ssd_slots: after.ssd.slots,
            map_checkpoints: after.ssd.counts.checkpoints - before.ssd.counts.checkpoints,
            db_bytes,
            flows: Flows::between(before, after),
            costs: Some(costs.into()),
            choices: choices(after),
            io_backend: io_backend.to_owned(),
            seconds: round(elapsed.as_secs_f64()),
            interrupted: *interrupted,
            reopened,
            consistency: consistency.err().unwrap_or_else(|| "ok".into()),
        }
    }
}

fn choices(stats: &Stats) -> BTreeMap<String, Chosen> {
    let by_tier = [("pool", &stats.pool_choice), ("SSD", &stats.ssd_choice)];
    let chosen =
        by_tier.into_iter().filter_map(|(tier, choice)| Some((tier.to_owned(), choice.as_ref()?.into())));
    chosen.collect()
}

/// The total milliseconds per New-Order in each slice.
fn by_slice(before: &Stats, slices: &[Slice]) -> Vec<f64> {
    let (mut was, mut counted) = (before, 0);
    let mut costs = Vec::with_capacity(slices.len());
    for Slice { end, new_orders } in slices {
        let per = (new_orders - counted).max(1) as f64;
        costs.push(round(page_io_ms(was, end) / per));
        (was, counted) = (end, *new_orders);
    }
    costs
}

fn round(x: f64) -> f64 {
    (x * 1e3).round() / 1e3
}

/// Explains the columns.
pub(crate) const LEGEND: &str =
    "ms: device time per New-Order; all I/O: with doublewrite ring, metadata and flushes";

/// The table's head.
pub(crate) fn heading() -> String {
    let columns = [
        "policies",
        "HDD util %",
        "HDD ms",
        "SSD util %",
        "SSD ms",
        "total ms",
        "all I/O ms",
        "miss %",
        "tpmC",
    ];
    line(&columns.map(String::from))
}

/// Formats a row of the table.
pub(crate) fn table_row(row: &Row) -> String {
    let cells = [
        row.setup.name(),
        format!("{:.0}", row.hdd_util_pct),
        format!("{:.1}", row.hdd_ms_per_new_order),
        format!("{:.0}", row.ssd_util_pct),
        format!("{:.2}", row.ssd_ms_per_new_order),
        format!("{:.1}", row.total_ms_per_new_order),
        format!("{:.1}", row.all_total_ms_per_new_order),
        format!("{:.1}", row.pool_miss_rate_pct),
        format!("{:.0}", row.tpmc),
    ];
    line(&cells)
}

/// Details that the table has no space for.
pub(crate) fn details(row: &Row) -> String {
    let mut out = format!(
        "{} New-Orders ({} rolled back) of {} transactions in {:.1} s; response p50 {:.1} ms, p95 {:.1} ms\n\
         total ms per New-Order by fifths of the run: {}\n\
         HDD {} reads, {} writes; SSD {} reads, {} writes; {} ring writes, {} metadata writes, {} map checkpoints\n\
         SSD holds {} of {} pages; database {}; I/O by {}; consistency: {}",
        row.new_orders,
        row.rolled_back,
        row.transactions,
        row.seconds,
        row.new_order_p50_ms,
        row.new_order_p95_ms,
        row.total_ms_by_slice.iter().map(|ms| format!("{ms:.1}")).collect::<Vec<_>>().join(", "),
        row.hdd_reads,
        row.hdd_writes,
        row.ssd_reads,
        row.ssd_writes,
        row.ring_writes,
        row.meta_writes,
        row.map_checkpoints,
        row.ssd_pages,
        row.ssd_slots,
        bytes(row.db_bytes),
        row.io_backend,
        row.consistency,
    );
    if let Some(costs) = &row.costs {
        out += &format!(
            "\nthe policies' costs at the end: SSD read {:.3} ms, HDD read {:.3} ms, SSD write {:.3} ms, HDD \
             write {:.3} ms",
            costs.ssd_read_ms, costs.hdd_read_ms, costs.ssd_write_ms, costs.hdd_write_ms,
        );
    }
    for (tier, Chosen { setting, changes, costs }) in &row.choices {
        let costs: Vec<String> = costs.iter().map(|(name, cost)| format!("{name} {cost:.3}")).collect();
        out += &format!(
            "\n{tier}: follows {setting} after {changes} changes; recent simulated costs, relative: {}",
            costs.join(", ")
        );
    }
    if let Some(reopened) = &row.reopened {
        out += &format!(
            "\nreopened: {} page changes and {} commits recovered; the SSD was {:.0}% warm ({} pages)",
            reopened.redone_changes, reopened.repeated_commits, reopened.ssd_warm_pct, reopened.ssd_pages,
        );
    }
    if row.interrupted {
        out += "\ninterrupted; nothing is lost";
    }
    out
}

fn line(cells: &[String; 9]) -> String {
    let mut out = format!("{:<16}", cells[0]);
    for cell in &cells[1..] {
        out += &format!("{cell:>12}");
    }
    out
}

/// A number of bytes in human-readable form.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        0..1_048_576 => format!("{:.0} KiB", n as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", n as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", n as f64 / 1_073_741_824.0),
    }
}

impl std::fmt::Display for Policies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}+{}", self.pool.to_uppercase(), self.ssd.to_uppercase())
    }
}
