//! Measures the costs of devices, and estimates what other sizes would cost.

use crate::{Failure, show};
use pagetier::device::{OpenOptions, SharedDevice, open_file};
use pagetier::{PageSize, PoolPolicy, SsdPolicy};
use pagetier_ghost::{GhostParams, Ghosts, Reference, SampleSummary, Use};
use pagetier_page::{TRACE_RECORD_BYTES, TraceRecord};
use serde_json::json;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The size of a scratch file: the figures describe random access within this range.
const SCRATCH_BYTES: u64 = 256 << 20;

/// A scratch file, which is removed when dropped.
struct Scratch {
    path: PathBuf,
    device: SharedDevice,
}

impl Scratch {
    fn create(dir: &Path, name: &str) -> Result<Self, Failure> {
        let path = dir.join(format!("pagetier-calibrate-{name}-{}", std::process::id()));
        let options = OpenOptions { create: true, ..OpenOptions::default() };
        let opened = open_file(&path, &options)?;
        let scratch = Self { path, device: opened.device };
        if !opened.direct {
            eprintln!(
                "pagetier: {}: no direct I/O there, so this measures the page cache",
                scratch.path.display()
            );
        }
        scratch.device.grow(SCRATCH_BYTES)?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            eprintln!("pagetier: {}: {error}", self.path.display());
        }
    }
}

pub(crate) async fn calibrate(
    hdd: &Path,
    ssd: &Path,
    page_bytes: u64,
    seconds: f64,
    json: bool,
) -> Result<ExitCode, Failure> {
    let page = PageSize::new(page_bytes)?;
    let budget = Duration::try_from_secs_f64(seconds).map_err(|error| format!("--seconds: {error}"))?;
    let (hdd, ssd) = (Scratch::create(hdd, "hdd")?, Scratch::create(ssd, "ssd")?);
    let costs = pagetier::calibrate(&hdd.device, 0, &ssd.device, 0, page, budget).await?;
    let value = json!({
        "hdd_read_ms": costs.hdd_read_ms, "hdd_write_ms": costs.hdd_write_ms,
        "ssd_read_ms": costs.ssd_read_ms, "ssd_write_ms": costs.ssd_write_ms,
    });
    let text = format!(
        "a page of {page_bytes} bytes, in milliseconds (one request at a time):\n\
         hdd  read {:.4}  write {:.4}\nssd  read {:.4}  write {:.4}\n",
        costs.hdd_read_ms, costs.hdd_write_ms, costs.ssd_read_ms, costs.ssd_write_ms
    );
    show::result(json, &value, text)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn what_if(
    trace: &Path,
    (pool_pages, ssd_pages, page_bytes): (u32, u32, u64),
    pool_policy: &str,
    ssd_policy: &str,
    json: bool,
) -> Result<ExitCode, Failure> {
    let mut ghosts = Ghosts::new(GhostParams {
        pool_policy: pool_policy.parse::<PoolPolicy>()?,
        ssd_policy: ssd_policy.parse::<SsdPolicy>()?,
        page_bytes,
        ..GhostParams::new(pool_pages, ssd_pages)
    })?;
    let failed = |error: std::io::Error| format!("{}: {error}", trace.display());
    let file = File::open(trace).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    let records = bytes / TRACE_RECORD_BYTES as u64;
    if bytes % TRACE_RECORD_BYTES as u64 != 0 {
        return Err(format!("{}: it ends within record {records}", trace.display()).into());
    }
    let (mut file, bar) = (BufReader::new(file), show::bar("replaying", records));
    // The first half warms the tiers up.
    let mut sampled = SampleSummary::default();
    for number in 0..records {
        let mut record = [0; TRACE_RECORD_BYTES];
        file.read_exact(&mut record).map_err(failed)?;
        let Some(TraceRecord { page, write, sequential }) = TraceRecord::decode(&record) else {
            return Err(format!("{}: record {number} is malformed", trace.display()).into());
        };
        if number == records / 2 {
            ghosts.mark();
            sampled = SampleSummary::default();
        }
        let used = if write { Use::Write } else { Use::Read };
        ghosts.apply(Reference { page, used, sequential });
        (sampled.requests, sampled.references) = (sampled.requests + 1, sampled.references + 1);
        if number % 65_536 == 0 {
            bar.set_position(number);
        }
    }
    bar.finish_and_clear();
    let report = ghosts.report(sampled, false);
    show::result(json, &report, &report)?;
    Ok(ExitCode::SUCCESS)
}
