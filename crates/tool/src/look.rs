//! The commands that write nothing to the store.

use crate::args::Place;
use crate::{FOUND, Failure, show};
use pagetier::{
    Location, PageId, PageStore, RecoveryReport,
    scrub::{Scrub, ScrubOptions, ScrubReport},
};
use pagetier_control::findings;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

pub(crate) async fn inspect(place: &Place, json: bool) -> Result<ExitCode, Failure> {
    let all = place.builder().inspect().await?;
    show::result(json, &all, &all)?;
    Ok(ExitCode::SUCCESS)
}

/// The interval at which progress is shown.
const INTERVAL: Duration = Duration::from_millis(100);

/// Shows the progress of a scrub until it ends.
pub(crate) async fn watch(scrub: Scrub, what: &'static str) -> ScrubReport {
    let bar = show::bar(what, scrub.progress().total);
    loop {
        let progress = scrub.progress();
        bar.set_position(progress.done);
        if progress.done >= progress.total {
            break;
        }
        tokio::time::sleep(INTERVAL).await;
    }
    let report = scrub.finished().await;
    bar.finish_and_clear();
    report
}

pub(crate) fn recovery(r: &RecoveryReport) -> Value {
    json!({
        "clean": r.clean, "trusted": r.trusted, "found": r.found, "damaged": r.damaged, "superseded": r.superseded,
        "repaired": r.repaired, "rewritten": r.rewritten, "zone_slots": r.zone_slots,
    })
}

pub(crate) async fn verify(place: &Place, json: bool) -> Result<ExitCode, Failure> {
    let store = place.builder().open_read_only().await?;
    let options = ScrubOptions::default().pages_per_second(None).heal(false);
    let report = watch(store.scrub(options), "verifying").await;
    let (list, mut text) = findings(&report, &store.spaces().list());
    let recovered = store.recovery();
    let lost = store.ssd().loss().map_or(0, |loss| loss.pages());
    let damaged = report.progress.found;
    let _ = writeln!(
        text,
        "{} slots and homes checked, {damaged} damaged, {lost} pages listed as lost with an SSD",
        report.progress.done
    );
    if recovered.damaged > 0 {
        let _ = writeln!(text, "recovery: the only copies of {} pages are damaged", recovered.damaged);
    }
    if recovered.repaired > 0 {
        let _ = writeln!(text, "recovery: the next open repairs {} torn pages", recovered.repaired);
    }
    let value = json!({
        "complete": report.complete, "checked": report.progress.done, "damaged": damaged,
        "findings": list, "lost_pages": lost, "recovery": recovery(&recovered),
    });
    show::result(json, &value, text)?;
    let sound = report.complete && damaged == 0 && recovered.damaged == 0 && lost == 0;
    Ok(if sound { ExitCode::SUCCESS } else { FOUND.into() })
}

pub(crate) async fn stat(place: &Place, json: bool) -> Result<ExitCode, Failure> {
    let store = place.builder().open_read_only().await?;
    let summary = store.stats().summary();
    let spaces = store.spaces().list();
    let page_bytes = store.page_size().bytes() as u64;
    let mut text = String::new();
    for space in &spaces {
        let (id, name) = (space.id.0, &space.name);
        let _ = writeln!(text, "space   {id} \"{name}\": {} pages, {} of them free", space.pages, space.free);
    }
    let free_pages: u64 = spaces.iter().map(|space| u64::from(space.free)).sum();
    let lost_pages = store.ssd().loss().map_or(0, |loss| loss.pages());
    let space = disk_space(place, free_pages * page_bytes).await?;
    let _ = writeln!(
        text,
        "        {} bytes for new pages: {} in free pages, {} before the HDD grows{}",
        space["bytes"],
        space["free_pages_bytes"],
        space["unallocated_bytes"],
        space["file_system_bytes"]
            .as_u64()
            .map(|free| format!(", {free} in its file system"))
            .unwrap_or_default()
    );
    if lost_pages > 0 {
        let _ = writeln!(text, "        LISTS {lost_pages} PAGES AS LOST with an SSD that was given up");
    }
    // The mode is that of this open; the store's is the choice of the program that opens it.
    let shown = summary.to_string().replacen("ssd     read-only, ", "ssd     ", 1);
    // Of the devices it has only what this command has read.
    let shown = shown.split_once("\ndevice ").map_or(&*shown, |(rest, _)| rest);
    let _ = writeln!(text, "{shown}");
    let list = spaces.iter().map(|s| json!({"id": s.id.0, "name": s.name, "pages": s.pages, "free": s.free}));
    let list: Vec<Value> = list.collect();
    let mut stats = serde_json::to_value(&summary)?;
    stats["hdd_device"] = Value::Null;
    stats["ssd_device"] = Value::Null;
    if stats["ssd"]["mode"] == "read-only" {
        stats["ssd"]["mode"] = Value::Null;
    }
    let value = json!({
        "page_bytes": page_bytes, "spaces": list, "room": space, "lost_pages": lost_pages, "stats": stats,
        "recovery": recovery(&store.recovery()),
    });
    show::result(json, &value, text)?;
    Ok(ExitCode::SUCCESS)
}

/// The disk space for new pages, in bytes, of which `free` are in pages that are free already. The statistics
/// of a read-only open do not have it: they describe copies in memory of what the files are.
async fn disk_space(place: &Place, free: u64) -> Result<Value, Failure> {
    let hdd = place.at.hdd_path();
    let unallocated = place.builder().inspect().await?.hdd.map_or(0, |hdd| hdd.unallocated_bytes);
    // Of a block device the size is the end.
    let is_file = std::fs::metadata(&hdd).is_ok_and(|meta| meta.is_file());
    let system = is_file.then(|| rustix::fs::statvfs(&hdd).ok()).flatten();
    let grows = system.map(|system| system.f_bavail.saturating_mul(system.f_frsize));
    Ok(json!({
        "bytes": free.saturating_add(unallocated).saturating_add(grows.unwrap_or(0)),
        "free_pages_bytes": free, "unallocated_bytes": unallocated, "file_system_bytes": grows,
    }))
}

pub(crate) async fn why(place: &Place, space: &str, no: u32, json: bool) -> Result<ExitCode, Failure> {
    let store = place.builder().open_read_only().await?;
    let space = store.spaces().find(space).ok_or_else(|| format!("there is no space called \"{space}\""))?;
    let why = store.why(PageId::new(space, no))?;
    // As for `stat`, the mode is that of this open.
    show::result(json, &why, why.to_string().replacen(" (mode read-only)", "", 1))?;
    Ok(ExitCode::SUCCESS)
}

/// The pages with a copy on the SSD, ordered by space and number.
fn on_ssd(store: &PageStore) -> Vec<PageId> {
    let spaces = store.spaces().list();
    let all = spaces.iter().flat_map(|s| (0..s.pages).map(|no| PageId::new(s.id, no)));
    all.filter(|page| store.location(*page) == Location::Ssd).collect()
}

pub(crate) async fn export_hot(place: &Place, to: &Path, json: bool) -> Result<ExitCode, Failure> {
    let store = place.builder().open_read_only().await?;
    let pages = on_ssd(&store);
    let mut text = "pagetier hot set 1\n".to_owned();
    for page in &pages {
        let _ = writeln!(text, "{} {}", page.space.0, page.no);
    }
    std::fs::write(to, text).map_err(|error| format!("{}: {error}", to.display()))?;
    let listed = pages.len();
    show::result(json, &json!({"pages": listed}), format!("{listed} pages with a copy on the SSD\n"))?;
    Ok(ExitCode::SUCCESS)
}
