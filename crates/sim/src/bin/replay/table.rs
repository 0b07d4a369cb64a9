//! Reports in human-readable form: a line per run, about 140 columns wide.

use crate::report::{Alpha, Beside, Chosen, Report};
use std::fmt::Write;

/// Explains the headings.
pub(crate) const LEGEND: &str = "\
The table's columns:
  hit %      requests served by the pool (pool_hits / requests; the others are pool_misses)
  SSD %      misses served by the SSD (ssd_hits / pool_misses)
  HDD/SSD rd, wr   pages read from and written to the device
  CSF        cluster switch factor: cluster_switches of the HDD writes / request_switches of the references
  cost s     time of both devices, in seconds (`cost` in JSON is in milliseconds)
  ms, HDD ms, SSD ms   time of both devices and of each, per New-Order with --tpcc, else per 1,000 requests
  HDD acc    reads and writes of the HDD, per the same
  M req/s    requests simulated per second of real time, in millions
  x stat, x warm, x thru   with --bound: HDD accesses over those of each static placement; - where that has none";

const HEADINGS: [&str; 14] = [
    "pool+ssd", "hit %", "SSD %", "HDD rd", "HDD wr", "SSD rd", "SSD wr", "CSF", "cost s", "ms", "HDD ms",
    "SSD ms", "HDD acc", "M req/s",
];
const BOUND_HEADINGS: [&str; 3] = ["x stat", "x warm", "x thru"];

/// The table of runs, followed by the bounds to compare them with.
pub(crate) fn table(reports: &[Report], verbose: bool) -> String {
    let Some(first) = reports.first() else { return String::new() };
    let (unit, orders) = match first.new_orders {
        Some(orders) => ("New-Order", format!(", {orders} New-Orders")),
        None => ("1,000 requests", String::new()),
    };
    let mut out = format!(
        "{} requests counted{orders}; pool {} pages, SSD {} pages; costs per {unit}\n",
        first.counts.requests, first.pool_pages, first.ssd_pages
    );
    let mut headings = HEADINGS.map(String::from).to_vec();
    headings.extend(BOUND_HEADINGS.iter().take(first.bounds.len()).map(ToString::to_string));
    let rows: Vec<Vec<String>> = reports.iter().map(cells).collect();
    let widest = |column: usize| {
        let cells = rows.iter().chain([&headings]).filter_map(|row| row.get(column));
        cells.map(String::len).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(widest).collect();
    line(&mut out, &headings, &widths);
    for (report, row) in reports.iter().zip(&rows) {
        line(&mut out, row, &widths);
        if verbose {
            details(&mut out, report);
        }
    }
    // Every run has the same placements beside it, so those of the first stand for all.
    for Beside { bound, .. } in &first.bounds {
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{:<32} {:.2} HDD accesses per {unit}, {:.2} of them reads; {:.1} ms",
            bound.placement, bound.hdd_accesses_per_unit, bound.hdd_reads_per_unit, bound.ms_per_unit
        );
    }
    let _ = writeln!(out, "\n{LEGEND}");
    out
}

/// Aligns the first cell left and the others right.
fn line(out: &mut String, cells: &[String], widths: &[usize]) {
    for (at, (cell, &width)) in cells.iter().zip(widths).enumerate() {
        let _ = if at == 0 { write!(out, "{cell:<width$}") } else { write!(out, "  {cell:>width$}") };
    }
    out.push('\n');
}

fn cells(r: &Report) -> Vec<String> {
    let (c, units) = (&r.counts, r.units());
    let mut cells = vec![
        format!("{}+{}", r.pool_policy, r.ssd_policy),
        format!("{:.2}", 100.0 * r.hit_ratio),
        format!("{:.2}", 100.0 * r.ssd_hit_share()),
        c.hdd_reads.to_string(),
        c.hdd_writes.to_string(),
        c.ssd_reads.to_string(),
        c.ssd_writes.to_string(),
        format!("{:.4}", r.cluster_switch_factor),
        format!("{:.1}", r.cost / 1000.0),
        format!("{:.2}", r.cost / units),
        format!("{:.2}", r.hdd_ms / units),
        format!("{:.2}", r.ssd_ms / units),
        format!("{:.2}", r.hdd_accesses_per_unit),
        format!("{:.2}", r.requests_per_second / 1e6),
    ];
    let times = |beside: &Beside| {
        beside.times_hdd_accesses.map_or_else(|| "-".to_owned(), |times| format!("{times:.2}"))
    };
    cells.extend(r.bounds.iter().map(times));
    cells
}

/// Prints the details that a line has no space for.
fn details(out: &mut String, r: &Report) {
    let c = &r.counts;
    let _ = writeln!(
        out,
        "  {} pool hits, {} misses, {} of them SSD hits; {} cluster switches, {} of the references",
        c.pool_hits, c.pool_misses, c.ssd_hits, c.cluster_switches, c.request_switches
    );
    let _ = writeln!(
        out,
        "  {} write-backs, {} invalidations, {} zones, {} second chances; {} SSD pages in use; the SSD's \
         policy takes {} bytes",
        c.write_backs, c.invalidations, c.zones, c.second_chances, r.ssd_used, r.policy_memory_bytes
    );
    for (tier, chosen) in [("pool", &r.pool_choice), ("SSD", &r.ssd_choice)] {
        if let Some(Chosen { setting, changes, costs }) = chosen {
            let costs: Vec<String> = costs.iter().map(|(name, cost)| format!("{name} {cost:.3}")).collect();
            let _ = writeln!(
                out,
                "  {tier}: follows {setting} after {changes} changes; recent simulated costs: {}",
                costs.join(", ")
            );
        }
    }
    if !r.alpha.is_empty() {
        let groups: Vec<String> = r.alpha.iter().map(group).collect();
        let _ = writeln!(out, "  α by space/subrange (pages): {}", groups.join(", "));
    }
}

fn group(a: &Alpha) -> String {
    let space = a.name.map_or_else(|| a.space.to_string(), str::to_owned);
    format!("{space}/{} {:.3} ({})", a.subrange, a.alpha, a.pages)
}
