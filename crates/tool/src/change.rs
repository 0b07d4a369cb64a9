//! The commands that copy a store, or create one from a copy.

use crate::args::Place;
use crate::{Failure, show};
use pagetier::{Builder, PageStore, backup::BackupOptions, device::SharedDevice};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) async fn backup(
    place: &Place,
    to: &Path,
    full: bool,
    bytes_per_second: Option<u64>,
    json: bool,
) -> Result<ExitCode, Failure> {
    let store = place.builder().open().await?;
    let bar = show::bar("backing up", 0);
    let shown = bar.clone();
    let options =
        BackupOptions::new().full(full).bytes_per_second(bytes_per_second).on_progress(move |progress| {
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
    hdd: Option<(PathBuf, Option<SharedDevice>)>,
    ssd: Option<PathBuf>,
    ssd_mib: Option<u64>,
) -> Builder {
    let mut builder = PageStore::builder().directory(dir).ssd_bytes(ssd_mib.unwrap_or(0) << 20);
    builder = match hdd {
        // With its manifest: nothing of the store is to be on this machine alone.
        Some((_, Some(device))) => builder.hdd(device).manifest(pagetier::options::OnHdd::default()),
        Some((path, None)) => builder.hdd(path),
        None => builder,
    };
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
