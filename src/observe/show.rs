//! The summary as text: at most a screen of 100 columns.

use super::summary::{ChoiceSummary, DeviceSummary, DirSummary, PoolSummary, SsdSummary, StatsSummary};
use crate::store::headroom::Headroom;
use crate::store::hot_state::HotSetStats;
use crate::store::stats::Stats;
use pagetier_ssdcache::HomeWrites;
use std::fmt::{Display, Formatter, Result};

/// How many settings of an adaptive policy are shown, the cheapest first.
const COSTS_MAX: usize = 3;

impl Display for Stats {
    /// Prints [`Stats::summary`]: a screenful.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.summary().fmt(f)
    }
}

impl Display for StatsSummary {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        pool(f, &self.pool)?;
        let m = &self.memory;
        writeln!(
            f,
            "memory  {} (pages {}, metadata {}, policy {}, staging {}, SSD tables {})",
            bytes(m.total),
            bytes(m.pool.frames),
            bytes(m.pool.metadata),
            bytes(m.pool.policy),
            bytes(m.pool.staging),
            bytes(m.ssd_tables)
        )?;
        ssd(f, &self.ssd)?;
        room(f, &self.room)?;
        hot_set(f, &self.hot_set)?;
        writeln!(
            f,
            "{:<24}{:>10}{:>11}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "device", "ops", "bytes", "mean", "p50", "p90", "p99", "p99.9"
        )?;
        device(f, "hdd", &self.hdd_device)?;
        device(f, "ssd", &self.ssd_device)
    }
}

fn pool(f: &mut Formatter<'_>, p: &PoolSummary) -> Result {
    let c = &p.counts;
    let ratio = p.hit_ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.2}%", ratio * 100.0));
    writeln!(f, "pool    {} frames, {} hits, {} misses, hit ratio {ratio}", p.frames, c.hits, c.misses)?;
    writeln!(
        f,
        "        loads: {} from the SSD, {} from the HDD, {} read ahead; {} created, {} evicted",
        c.loads_ssd, c.loads_hdd, c.prefetched, c.created, c.evictions
    )?;
    writeln!(
        f,
        "        writes: {} for replacement, {} for recoverability ({} to the SSD), {} failed",
        c.written_replacement, c.written_recoverability, c.written_ssd, c.write_errors
    )?;
    writeln!(
        f,
        "        {} requests waited for a frame, {} hits unseen by the policy",
        c.waited_for_frame, c.hits_lost
    )?;
    choice(f, p.choice.as_ref())
}

fn ssd(f: &mut Formatter<'_>, summary: &SsdSummary) -> Result {
    let (s, c) = (&summary.tier, &summary.tier.counts);
    writeln!(
        f,
        "ssd     {}, {} of {} slots hold pages, {} of them newer than the HDD",
        s.mode, s.pages, s.slots, s.dirty_pages
    )?;
    writeln!(
        f,
        "        free: {} now, {} after a checkpoint, {} after a flush; journal {} blocks",
        s.free.writable, s.free.waiting, s.free.retired, s.journal_used
    )?;
    writeln!(
        f,
        "        admitted: {} to free slots, {} over others, {} on read; rejected: {}, {} without a slot",
        c.admitted_free, c.admitted_over, c.admitted_on_read, c.rejected, c.rejected_no_slot
    )?;
    writeln!(
        f,
        "        {} rewritten, {} renewed, {} invalidated, {} evicted, {} written back, {} healed",
        c.rewritten, c.renewed, c.invalidated, c.evicted, c.written_back, c.healed
    )?;
    let oldest = s.oldest_lsn.map_or_else(|| "none".to_owned(), |lsn| lsn.0.to_string());
    writeln!(f, "        {} checkpoints; oldest LSN on the SSD alone: {oldest}", c.checkpoints)?;
    // Lines that say nothing in the usual case appear only when they do: the rest stays a screenful.
    if let Some(budget) = &s.write_budget {
        let (limit, written) = (bytes(budget.bytes_per_day), bytes(budget.written_per_day));
        let factor = budget.factor;
        writeln!(
            f,
            "        write budget {limit} per day, recently {written}; writes priced at {factor:.2}x"
        )?;
    }
    if s.leaving > 0 {
        writeln!(f, "        {} copies leave because of hints", s.leaving)?;
    }
    if s.home_writes != HomeWrites::Ringed {
        writeln!(f, "        pages go home {}", s.home_writes)?;
    }
    if let Some(error) = &s.ssd_error {
        writeln!(f, "        takes no new pages: {error}")?;
    }
    if let Some(cause) = &s.refusing {
        writeln!(f, "        THE STORE REFUSES WRITES: {cause}")?;
    }
    choice(f, summary.choice.as_ref())
}

fn room(f: &mut Formatter<'_>, r: &Headroom) -> Result {
    write!(f, "free    {} before the HDD grows", bytes(r.unallocated_bytes))?;
    let files = [("HDD", r.hdd_free_bytes), ("directory", r.directory_free_bytes), ("SSD", r.ssd_free_bytes)];
    for (what, free) in files {
        if let Some(free) = free {
            write!(f, "; {what}: {} free", bytes(free))?;
        }
    }
    if r.low.is_empty() { writeln!(f) } else { writeln!(f, "; LOW: {}", r.low.join(", ")) }
}

fn hot_set(f: &mut Formatter<'_>, h: &HotSetStats) -> Result {
    // A store that keeps none says nothing of it.
    if *h == HotSetStats::default() {
        return Ok(());
    }
    let warming = if h.warming { "warming up" } else { "warmed up" };
    let (to_memory, to_ssd) = (h.to_memory, h.to_ssd);
    writeln!(
        f,
        "hot set {} pages, listed {} times; {warming}: {to_memory} pages in memory, {to_ssd} to the SSD",
        h.listed, h.lists
    )
}

fn choice(f: &mut Formatter<'_>, choice: Option<&ChoiceSummary>) -> Result {
    let Some(choice) = choice else { return Ok(()) };
    let mut costs: Vec<(&String, &f64)> = choice.costs.iter().collect();
    costs.sort_by(|a, b| a.1.total_cmp(b.1));
    let costs: Vec<String> =
        costs.into_iter().take(COSTS_MAX).map(|(name, cost)| format!("{name} {cost:.3}")).collect();
    let (setting, changes) = (&choice.setting, choice.changes);
    let changes = if changes == 0 { "unchanged".to_owned() } else { format!("after {changes} changes") };
    writeln!(f, "        policy: setting {setting}, {changes}; costs: {}", costs.join(", "))
}

fn device(f: &mut Formatter<'_>, name: &str, d: &DeviceSummary) -> Result {
    line(f, &format!("{name} reads"), &d.read)?;
    line(f, &format!("{name} writes"), &d.write)?;
    line(f, &format!("{name} flushes"), &d.flush)?;
    for class in &d.classes {
        for (dir, of) in [("r", &class.read), ("w", &class.write)] {
            if of.ops > 0 {
                line(f, &format!("  {} {dir}", class.class), of)?;
            }
        }
    }
    writeln!(f, "  busy {} ms, {} errors, {} retries", d.busy_ms, d.errors, d.retries)
}

fn line(f: &mut Formatter<'_>, name: &str, d: &DirSummary) -> Result {
    let time = |us| if d.ops == 0 { "-".to_owned() } else { time(us) };
    writeln!(
        f,
        "{name:<24}{:>10}{:>11}{:>10}{:>10}{:>10}{:>10}{:>10}",
        d.ops,
        bytes(d.bytes),
        time(d.mean_us),
        time(d.p50_us),
        time(d.p90_us),
        time(d.p99_us),
        time(d.p999_us)
    )
}

/// A number of bytes with three digits and a binary unit.
fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A time with three digits and a unit.
fn time(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 1000.0 => (us, "us"),
        us if us < 1e6 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
#[test]
fn sizes_and_times_have_three_digits() {
    let sizes = [0, 1023, 1024, 1_048_576, 1_073_741_824, 1 << 50].map(bytes);
    assert_eq!(sizes, ["0 B", "1023 B", "1.00 KiB", "1.00 MiB", "1.00 GiB", "1.00 PiB"]);
    assert_eq!([1.5, 999.0, 12_345.0, 2e6].map(time), ["1.50 us", "999 us", "12.3 ms", "2.00 s"]);
}
