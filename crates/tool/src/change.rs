//! The commands that copy a store, create one from a copy, or repair one.

use crate::args::Place;
use crate::look::{recovery, watch};
use crate::{FOUND, Failure, show};
use pagetier::{Builder, PageStore, SsdMode, backup::BackupOptions, scrub::ScrubOptions};
use pagetier_control::findings;
use serde_json::json;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) async fn backup(place: &Place, to: &Path, full: bool, json: bool) -> Result<ExitCode, Failure> {
    let store = place.writable().open().await?;
    let bar = show::bar("backing up", 0);
    let shown = bar.clone();
    let options = BackupOptions::new().full(full).on_progress(move |progress| {
        shown.set_length(progress.total);
        shown.set_position(progress.done);
    });
    let made = store.backup(to, options).await;
    bar.finish_and_clear();
    // Close the store even if the backup failed.
    store.close().await?;
    let report = made?;
    let kind = report.full_because.map_or_else(|| "incremental".to_owned(), |why| format!("full: {why}"));
    let text = format!(
        "{} ({kind}): {} of {} pages, {} bytes\n",
        report.path.display(),
        report.pages,
        report.looked_at,
        report.bytes
    );
    show::result(json, &report, text)?;
    Ok(ExitCode::SUCCESS)
}

/// Options of the store that a restore makes.
pub(crate) fn new_store(
    dir: &Path,
    hdd: Option<PathBuf>,
    ssd: Option<PathBuf>,
    ssd_mib: Option<u64>,
) -> Builder {
    let mut builder = PageStore::builder().directory(dir).ssd_bytes(ssd_mib.unwrap_or(0) << 20);
    if let Some(hdd) = hdd {
        builder = builder.hdd(hdd);
    }
    if let Some(ssd) = ssd {
        builder = builder.ssd(ssd);
    }
    builder
}

pub(crate) async fn restore(
    from: &Path,
    to: &Path,
    upto: Option<u32>,
    store: Builder,
    json: bool,
) -> Result<ExitCode, Failure> {
    let bar = show::bar("restoring", 0);
    let restored = store
        .restore(from, upto, |progress| {
            bar.set_length(progress.files as u64);
            bar.set_position(progress.file as u64);
        })
        .await;
    bar.finish_and_clear();
    let report = restored?;
    let text = format!(
        "{}: {} pages in {} spaces from {} files, the last of them number {}\n",
        to.display(),
        report.pages,
        report.spaces,
        report.files,
        report.number
    );
    show::result(json, &report, text)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn repair(place: &Place, write: bool, json: bool) -> Result<ExitCode, Failure> {
    if !write {
        let found = crate::look::verify(place, json).await?;
        eprintln!("pagetier: nothing was written; --write recovers the store and repairs what it can");
        return Ok(found);
    }
    let store = place.writable().open().await?;
    let recovered = store.recovery();
    let has_ssd = store.ssd().mode() != SsdMode::Off;
    let options = ScrubOptions::default().pages_per_second(None).heal(true);
    let report = watch(store.scrub(options), "repairing").await;
    // Pages rewritten from memory must be durable before they count as repaired.
    store.sync().await?;
    let spaces = store.spaces().list();
    store.close().await?;
    let (list, mut text) = findings(&report, &spaces);
    let left = report.progress.found - report.progress.healed;
    let _ = writeln!(
        text,
        "{} checked, {} damaged, {} repaired, {left} not; recovery repaired {} torn pages",
        report.progress.done, report.progress.found, report.progress.healed, recovered.repaired
    );
    if place.accept_ssd_loss && !has_ssd {
        text.push_str("the store goes on without an SSD\n");
    }
    let value = json!({
        "complete": report.complete, "checked": report.progress.done, "damaged": report.progress.found,
        "healed": report.progress.healed, "findings": list, "recovery": recovery(&recovered),
        "has_ssd": has_ssd,
    });
    show::result(json, &value, text)?;
    Ok(if report.complete && left == 0 { ExitCode::SUCCESS } else { FOUND.into() })
}
