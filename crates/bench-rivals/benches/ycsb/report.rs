//! The report of a run.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The result of one workload on one engine. Latencies are in microseconds.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Row {
    pub(crate) engine: String,
    pub(crate) workload: String,
    pub(crate) per_second: f64,
    pub(crate) median: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
    /// Bytes written per byte changed, if they were counted and the workload changes any.
    #[serde(default)]
    pub(crate) written: Option<f64>,
}

impl Row {
    pub(crate) fn new(engine: String, workload: String, times: &Histogram<u64>, took: Duration) -> Self {
        Self {
            engine,
            workload,
            per_second: times.len() as f64 / took.as_secs_f64(),
            median: times.value_at_quantile(0.5),
            p99: times.value_at_quantile(0.99),
            max: times.max(),
            written: None,
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { engine, workload, per_second, median, p99, max, written } = self;
        write!(
            f,
            "{engine}, {workload}: {per_second:.0} operations/s; µs: median {median}, 99% {p99}, max {max}"
        )?;
        written.map_or(Ok(()), |bytes| write!(f, "; {bytes:.1} bytes written per byte changed"))
    }
}

/// Prints one row per workload and one column per engine: operations per second, the 99% quantile, and the
/// bytes written per byte changed where they were counted.
pub(crate) fn print_table(rows: &[Row]) {
    let mut engines: Vec<&str> = Vec::new();
    let mut workloads: Vec<&str> = Vec::new();
    for row in rows {
        if !engines.contains(&row.engine.as_str()) {
            engines.push(&row.engine);
        }
        if !workloads.contains(&row.workload.as_str()) {
            workloads.push(&row.workload);
        }
    }
    let counted =
        if rows.iter().any(|row| row.written.is_some()) { "; bytes written per byte changed" } else { "" };
    println!("| operations/s (99% in ms){counted} | {} |", engines.join(" | "));
    println!("| --- |{}", " --- |".repeat(engines.len()));
    for workload in workloads {
        let cell = |engine: &&str| {
            let found = rows.iter().find(|row| row.engine == **engine && row.workload == workload);
            found.map_or("-".to_owned(), |row| {
                let written = row.written.map_or_else(String::new, |bytes| format!("; {bytes:.1}"));
                format!("{:.0} ({:.1}){written}", row.per_second, row.p99 as f64 / 1000.0)
            })
        };
        println!("| {workload} | {} |", engines.iter().map(cell).collect::<Vec<_>>().join(" | "));
    }
}
