//! The command that makes a store from a copy.

use crate::{Failure, show};
use pagetier::backup::Backups;
use pagetier::{Builder, PageStore, device::SharedDevice};
use pagetier_wal::copy_log;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

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
    let all = Backups::at(chain).list().await?;
    let number = upto.or_else(|| all.iter().map(|file| file.number).max());
    let number = number.ok_or_else(|| format!("{}: no backup is there", chain.display()))?;
    let (copy, made) = (log_of(chain, number), to.to_owned());
    let shown = copy.display().to_string();
    if !copy.is_dir() {
        return Err(format!("--log-to: backup {number} has no copy of a log ({shown})").into());
    }
    let copied = tokio::task::spawn_blocking(move || copy_log(&copy, &made)).await??;
    let needed = all.iter().find(|file| file.number == number).and_then(|file| file.log);
    if needed.is_some_and(|log| log != copied) {
        std::fs::remove_dir_all(to)?;
        return Err(format!("{shown}: it is not the log of backup {number}; put that one back").into());
    }
    Ok(())
}
