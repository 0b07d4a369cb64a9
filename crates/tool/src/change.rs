//! The commands that copy a store, or create one from a copy.

use crate::args::Place;
use crate::{Failure, show};
use pagetier::backup::{BackupOptions, Backups};
use pagetier::{Builder, PageStore, device::SharedDevice};
use pagetier_wal::copy_log;
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
    let mut text = format!(
        "{} ({kind}): {} of {} pages, {} bytes\n",
        report.path.display(),
        report.pages,
        report.looked_at,
        report.bytes
    );
    if report.lacks_log {
        text += "the engine's log is not in it, and a restored store needs it: keep a copy of the log, or let the \
                 engine make its backups\n";
    }
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
    log: Option<&Path>,
    store: Builder,
    json: bool,
) -> Result<ExitCode, Failure> {
    // Before the pages: their store counts as restored once it has its name, and must have its log then.
    if let Some(log) = log {
        restore_log(from, upto, log).await?;
    }
    let bar = show::bar("restoring", 0);
    let restored = store
        .restore(from, upto, |progress| {
            bar.set_length(progress.files as u64);
            bar.set_position(progress.file as u64);
        })
        .await;
    bar.finish_and_clear();
    if let (Err(_), Some(log)) = (&restored, log) {
        // It would be in the way of the next attempt.
        let _ = std::fs::remove_dir_all(log);
    }
    let report = restored?;
    let mut text = format!(
        "{}: {} pages in {} spaces from {} files, the last of them number {}\n",
        to.display(),
        report.pages,
        report.spaces,
        report.files,
        report.number
    );
    let copy = Some(log_of(from, report.number)).filter(|copy| copy.is_dir());
    text += &match (log, &copy) {
        (Some(log), _) => format!("{}: its log, which the engine needs\n", log.display()),
        (None, Some(copy)) => {
            format!("the engine needs its log: --log-to DIR restores it from {}\n", copy.display())
        }
        (None, None) if report.needs_log => {
            "the engine needs its log, of which the backup has no copy: give it one that was kept\n"
                .to_owned()
        }
        (None, None) => String::new(),
    };
    let shown = |path: Option<&Path>| path.map(|path| path.to_string_lossy().into_owned());
    let mut value = serde_json::to_value(&report)?;
    value["log"] = shown(log).into();
    value["log_copy"] = shown(copy.as_deref()).into();
    show::result(json, &value, text)?;
    Ok(ExitCode::SUCCESS)
}

/// Where the backup `number` has its copy of the engine's log, if it was made with one.
fn log_of(chain: &Path, number: u32) -> PathBuf {
    chain.join(format!("log-{number:06}"))
}

/// Copies the log of the backup `upto`, or of the newest one, to the new directory `to`.
async fn restore_log(chain: &Path, upto: Option<u32>, to: &Path) -> Result<(), Failure> {
    let number = match upto {
        Some(number) => Some(number),
        None => Backups::at(chain).list().await?.iter().map(|file| file.number).max(),
    };
    let number = number.ok_or_else(|| format!("{}: no backup is there", chain.display()))?;
    let (copy, to) = (log_of(chain, number), to.to_owned());
    if !copy.is_dir() {
        return Err(format!("--log-to: backup {number} has no copy of a log ({})", copy.display()).into());
    }
    Ok(tokio::task::spawn_blocking(move || copy_log(&copy, &to)).await??)
}
