//! The view of a running store through the file that it exports.

use crate::{Failure, show};
use pagetier::stats::{DeviceSummary, LiveStats};
use serde_json::json;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Clears the terminal and moves to its first line.
const CLEAR: &str = "\x1b[2J\x1b[H";
/// An export is stale after this many of its intervals.
const STALE_INTERVALS: u64 = 5;

fn read(file: &Path) -> Result<LiveStats, Failure> {
    let bytes = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let live = serde_json::from_slice(&bytes);
    live.map_err(|error| format!("{}: not an export of a store: {error}", file.display()).into())
}

pub(crate) fn once(file: &Path, json: bool) -> Result<ExitCode, Failure> {
    let live = read(file)?;
    let mut text = format!("process {}, {}\n", live.pid, age(&live));
    for space in &live.spaces {
        let _ = writeln!(text, "space   {} \"{}\": {} pages", space.id, space.name, space.pages);
    }
    let _ = write!(text, "{}", live.stats);
    show::result(json, &live, text)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn top(
    file: &Path,
    every: f64,
    count: Option<u64>,
    json: bool,
) -> Result<ExitCode, Failure> {
    let every = Duration::from_secs_f64(every);
    let clear = if std::io::stdout().is_terminal() && !json { CLEAR } else { "" };
    let mut before = read(file)?;
    let mut views = 0;
    while count.is_none_or(|count| views < count) {
        tokio::time::sleep(every).await;
        let now = read(file)?;
        let text = format!("{clear}{}", view(&before, &now));
        if !show::view(json, &rates(&before, &now), text)? {
            break;
        }
        // Rates need two different exports.
        if now.number != before.number {
            before = now;
        }
        views += 1;
    }
    Ok(ExitCode::SUCCESS)
}

fn age(live: &LiveStats) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64);
    let old = now.saturating_sub(live.at_unix_ms);
    let stale =
        if old > STALE_INTERVALS * live.every_ms.max(1) { ": THE STORE HAS STOPPED EXPORTING" } else { "" };
    format!("{:.1} s old{stale}", old as f64 / 1000.0)
}

/// Events per second between two exports.
struct Rates<'a> {
    seconds: f64,
    before: &'a LiveStats,
    now: &'a LiveStats,
}

impl<'a> Rates<'a> {
    fn between(before: &'a LiveStats, now: &'a LiveStats) -> Self {
        let ms = now.at_unix_ms.saturating_sub(before.at_unix_ms).max(1);
        // Another process has the counters of another store, or of the same store since its latest open.
        let before = if before.pid == now.pid && before.number <= now.number { before } else { now };
        Self { seconds: ms as f64 / 1000.0, before, now }
    }

    fn of(&self, count: impl Fn(&LiveStats) -> u64) -> f64 {
        count(self.now).saturating_sub(count(self.before)) as f64 / self.seconds
    }

    fn device(&self, of: impl Fn(&LiveStats) -> &DeviceSummary) -> [f64; 5] {
        [
            self.of(|l| of(l).read.ops),
            self.of(|l| of(l).read.bytes) / 1e6,
            self.of(|l| of(l).write.ops),
            self.of(|l| of(l).write.bytes) / 1e6,
            (self.of(|l| of(l).busy_ms) / 10.0).min(100.0),
        ]
    }

    /// The hit ratio between the exports, in per cent.
    fn hit_percent(&self) -> Option<f64> {
        let (hits, misses) = (self.of(|l| l.stats.pool.counts.hits), self.of(|l| l.stats.pool.counts.misses));
        (hits + misses > 0.0).then(|| 100.0 * hits / (hits + misses))
    }
}

fn rates(before: &LiveStats, now: &LiveStats) -> serde_json::Value {
    let r = Rates::between(before, now);
    let device = |[reads, read_mb, writes, write_mb, busy]: [f64; 5]| {
        json!({
            "reads_per_s": reads, "read_mb_per_s": read_mb, "writes_per_s": writes,
            "write_mb_per_s": write_mb, "busy_percent": busy,
        })
    };
    json!({
        "at_unix_ms": now.at_unix_ms,
        "requests_per_s": r.of(|l| l.stats.pool.counts.hits + l.stats.pool.counts.misses),
        "hit_percent": r.hit_percent(),
        "ssd_pages": now.stats.ssd.tier.pages, "ssd_dirty_pages": now.stats.ssd.tier.dirty_pages,
        "refusing": now.stats.ssd.tier.refusing,
        "hdd": device(r.device(|l| &l.stats.hdd_device)),
        "ssd": device(r.device(|l| &l.stats.ssd_device)),
    })
}

/// One view: the rates between two exports, and the current state.
fn view(before: &LiveStats, now: &LiveStats) -> String {
    let r = Rates::between(before, now);
    let (pool, ssd) = (&now.stats.pool, &now.stats.ssd.tier);
    let mut text = format!("pagetier top: process {}, export {}, {}\n", now.pid, now.number, age(now));
    let hits = r.hit_percent().map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}%"));
    let requests = r.of(|l| l.stats.pool.counts.hits + l.stats.pool.counts.misses);
    let _ = writeln!(text, "pool    {requests:.0} requests/s, {hits} hits, {} frames", pool.frames);
    let _ = writeln!(
        text,
        "        per second: {:.1} loads from the SSD, {:.1} from the HDD, {:.1} evictions, {:.1} waits",
        r.of(|l| l.stats.pool.counts.loads_ssd),
        r.of(|l| l.stats.pool.counts.loads_hdd),
        r.of(|l| l.stats.pool.counts.evictions),
        r.of(|l| l.stats.pool.counts.waited_for_frame)
    );
    let share = |pages: u64| 100.0 * pages as f64 / ssd.slots.max(1) as f64;
    let _ = writeln!(
        text,
        "ssd     {}, {} pages ({:.1}%), {} newer than the HDD ({:.1}%)",
        ssd.mode,
        ssd.pages,
        share(ssd.pages),
        ssd.dirty_pages,
        share(ssd.dirty_pages)
    );
    let _ = writeln!(
        text,
        "        per second: {:.1} admitted, {:.1} rejected, {:.1} evicted, {:.1} written back",
        r.of(|l| l.stats.ssd.tier.counts.admitted_free
            + l.stats.ssd.tier.counts.admitted_over
            + l.stats.ssd.tier.counts.admitted_on_read),
        r.of(|l| l.stats.ssd.tier.counts.rejected + l.stats.ssd.tier.counts.rejected_no_slot),
        r.of(|l| l.stats.ssd.tier.counts.evicted),
        r.of(|l| l.stats.ssd.tier.counts.written_back)
    );
    if let Some(error) = &ssd.ssd_error {
        let _ = writeln!(text, "        takes no new pages: {error}");
    }
    if let Some(cause) = &ssd.refusing {
        let _ = writeln!(text, "        THE STORE REFUSES WRITES: {cause}");
    }
    let _ =
        writeln!(text, "device   reads/s     MB/s  writes/s     MB/s    busy  read p99  write p99  errors");
    for (name, rates, device) in [
        ("hdd", r.device(|l| &l.stats.hdd_device), &now.stats.hdd_device),
        ("ssd", r.device(|l| &l.stats.ssd_device), &now.stats.ssd_device),
    ] {
        let [reads, read_mb, writes, write_mb, busy] = rates;
        let (read, write) = (device.read.p99_us / 1000.0, device.write.p99_us / 1000.0);
        let _ = writeln!(
            text,
            "{name:<6}{reads:>10.0}{read_mb:>9.2}{writes:>10.0}{write_mb:>9.2}{busy:>7.0}%{read:>7.2} ms{write:>8.2} ms{:>8}",
            device.errors
        );
    }
    for space in &now.spaces {
        let grown = before.spaces.iter().find(|s| s.id == space.id).map_or(0, |s| s.pages);
        let grown = space.pages.saturating_sub(grown);
        let _ = writeln!(text, "space   \"{}\": {} pages (+{grown})", space.name, space.pages);
    }
    text
}
