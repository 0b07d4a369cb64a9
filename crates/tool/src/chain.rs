//! The commands on a directory of backups, without a store.

use crate::{FOUND, Failure, show};
use indicatif::HumanBytes;
use pagetier::backup::{BackupError, BackupFile, Backups};
use pagetier::errors::Causes;
use pagetier_wal::{LoggedStore, Moment};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

/// Dates beyond have no common form.
const YEAR_10000_S: u64 = 253_402_300_800;

pub(crate) async fn list(dir: &Path, archive: Option<&Path>, json: bool) -> Result<ExitCode, Failure> {
    let all = Backups::at(dir).list().await?;
    let moments = archive.map(|archive| move |number| moments(dir, number, archive));
    let (value, text) = described(&all, moments);
    show::result(json, &value, text)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn verify(dir: &Path, json: bool) -> Result<ExitCode, Failure> {
    let bar = show::bar("verifying", 0);
    let backups = Backups::at(dir);
    let all = backups.verify(|progress| {
        bar.set_length(progress.files as u64);
        bar.set_position(progress.file as u64);
    });
    let all = all.await;
    bar.finish_and_clear();
    let all = all?;
    let (value, text) = described(&all, None::<fn(u32) -> _>);
    show::result(json, &value, text)?;
    let sound = all.iter().all(|file| file.is_restorable);
    Ok(if sound { ExitCode::SUCCESS } else { FOUND.into() })
}

/// To which moments a backup can be restored with an archive, as JSON and as a line of text.
fn moments(chain: &Path, number: u32, archive: &Path) -> (Value, String) {
    let described = |moment: Moment| {
        let time = moment.time.map(|at| humantime::format_rfc3339_millis(at).to_string());
        let text = time.as_ref().map_or_else(String::new, |time| format!("{time}, "));
        (json!({"lsn": moment.lsn.0, "time": time}), format!("{text}position {}", moment.lsn))
    };
    match LoggedStore::restorable(chain, number, archive) {
        Ok((first, last)) => {
            let ((first, from), (last, to)) = (described(first), described(last));
            (json!({"first": first, "last": last}), format!("        to moments from {from} to {to}\n"))
        }
        Err(error) => {
            let error = Causes(&error).to_string();
            (json!({"error": error}), format!("        to no moment with the archive: {error}\n"))
        }
    }
}

/// Describes backups as JSON and as lines of text, with the moments of each if `moments` says them.
fn described(all: &[BackupFile], moments: Option<impl Fn(u32) -> (Value, String)>) -> (Value, String) {
    let (mut list, mut text) = (Vec::new(), String::new());
    for file in all {
        let kind = match file.is_full {
            Some(true) => "full",
            Some(false) => "incremental",
            None => "unreadable",
        };
        let since_epoch = file.modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let written_s = since_epoch.map(|at| at.as_secs());
        let in_range = written_s.filter(|seconds| *seconds < YEAR_10000_S);
        let written = in_range.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
        let written = written.map(|at| humantime::format_rfc3339_seconds(at).to_string());
        let bytes = HumanBytes(file.bytes).to_string();
        let at = written.as_deref().unwrap_or("");
        let _ = write!(text, "{:>6}  {kind:<11}  {bytes:>10}  {at:<20}", file.number);
        if let Some(pages) = file.pages {
            let _ = write!(text, "  {pages} pages");
        }
        let _ = write!(text, "  of store {}", file.store.as_deref().unwrap_or("unknown"));
        let fault = file.fault.as_ref().map(|fault| Causes(fault).to_string());
        let _ = match &fault {
            Some(fault) => {
                let is_missing = matches!(file.fault, Some(BackupError::NoChain { .. }));
                let what = if is_missing { "NOT RESTORABLE" } else { "DAMAGED" };
                writeln!(text, "  {what}: {fault}")
            }
            None if !file.is_restorable => writeln!(text, "  NOT RESTORABLE: it continues a missing backup"),
            None => writeln!(text),
        };
        let of_log = moments.as_ref().filter(|_| file.is_restorable).map(|moments| moments(file.number));
        let (moments_json, line) = of_log.unwrap_or_default();
        text += &line;
        list.push(json!({
            "number": file.number, "kind": kind, "bytes": file.bytes, "pages": file.pages, "store": file.store,
            "written_s": written_s, "written": written, "restorable": file.is_restorable, "error": fault,
            "moments": moments_json,
        }));
    }
    (json!({"backups": list}), text)
}

pub(crate) async fn purge(dir: &Path, keep: u32, json: bool) -> Result<ExitCode, Failure> {
    let bar = show::bar("purging", 0);
    let purged = Backups::at(dir).purge(keep, |_| bar.inc(1)).await;
    bar.finish_and_clear();
    let report = purged?;
    let numbers = |all: &[u32]| all.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let mut text =
        format!("{} removed, {} kept: {}\n", report.removed.len(), report.kept.len(), numbers(&report.kept));
    if !report.left.is_empty() {
        let _ = writeln!(text, "not readable as backups, and left there: {}", numbers(&report.left));
    }
    show::result(json, &report, text)?;
    Ok(ExitCode::SUCCESS)
}

/// Takes a space, or one of its pages, out of a backup.
pub(crate) async fn extract(
    dir: &Path,
    (space, page): (&str, Option<u32>),
    upto: Option<u32>,
    to: &Path,
    json: bool,
) -> Result<ExitCode, Failure> {
    let bar = show::bar("extracting", 0);
    let backups = Backups::at(dir);
    let extracted = backups.extract(space, page, upto, to, |progress| {
        bar.set_length(progress.files as u64);
        bar.set_position(progress.file as u64);
    });
    let extracted = extracted.await;
    bar.finish_and_clear();
    let report = extracted?;
    let text = format!(
        "{}: {} of {} pages of {} bytes, from backup {}, with LSNs up to {}\n",
        to.display(),
        report.copied,
        report.pages,
        report.page_bytes,
        report.number,
        report.lsn.0
    );
    let value = json!({
        "number": report.number, "space": report.space, "page_bytes": report.page_bytes,
        "pages": report.pages, "copied": report.copied, "lsn": report.lsn.0,
    });
    show::result(json, &value, text)?;
    Ok(ExitCode::SUCCESS)
}
