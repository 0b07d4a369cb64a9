//! The commands that put the SSD of a store at rest into use, exchange it or take it out of use.
//!
//! A store at rest is opened for each of them, so a crashed one is recovered first. The store's own calls do
//! the work, each of which a crash may interrupt at any moment: the manifest names one SSD or the other.

use crate::args::{Devices, Mode, Place};
use crate::look::{recovery, watch};
use crate::running::{report, show_answer};
use crate::{FOUND, Failure, Usage, show};
use pagetier::{OpenError, PageStore, scrub::ScrubOptions};
use pagetier_control::{Answer, AtRest, Request, findings, perform, ssd_bytes_at};
use serde_json::json;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// The size of a new SSD if nothing says another one, in MiB.
const NEW_MIB: u64 = 256;

/// The bytes of the file or block device at `path`; `None` if there is no file, or an empty one.
fn bytes_at(path: &Path) -> Result<Option<u64>, Failure> {
    ssd_bytes_at(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// The bytes to use of an SSD: as asked for, or else all of it.
fn size(asked_mib: Option<u64>, path: &Path) -> Result<Option<u64>, Failure> {
    // A size beyond the address space would wrap around to a small one.
    let asked = asked_mib.map(|mib| mib.checked_mul(1 << 20).ok_or("--ssd-mib: there is no such size"));
    match asked.transpose()? {
        Some(0) => Err("--ssd-mib: 0 is no SSD; drain --off takes it out of use".into()),
        Some(bytes) => Ok(Some(bytes)),
        None => bytes_at(path),
    }
}

/// Ends a command: the store is closed even if it failed, and its failure comes first.
pub(crate) async fn closed<T>(store: PageStore, done: Result<T, Failure>) -> Result<T, Failure> {
    let closed = store.close().await;
    let done = done?;
    closed?;
    Ok(done)
}

pub(crate) async fn attach(at: &Devices, ssd_mib: Option<u64>, json: bool) -> Result<ExitCode, Failure> {
    let path = at.ssd_path();
    // Asked before the open, which would refuse the size of a new SSD in other words.
    if at.has_ssd().await? {
        return Err("the store has an SSD: replace-ssd exchanges it, drain --off takes it out of use".into());
    }
    let bytes = size(ssd_mib, &path)?.unwrap_or(NEW_MIB << 20);
    let store = at.builder().ssd_bytes(bytes).open().await?;
    let attached = store.ssd().readmit().await;
    closed(store, attached.map_err(Failure::from)).await?;
    in_use(&path, bytes, json)
}

/// Reports which SSD the store has from here on.
fn in_use(path: &Path, bytes: u64, json: bool) -> Result<ExitCode, Failure> {
    let value = json!({"ssd": path.to_string_lossy(), "bytes": bytes});
    let text = format!("{}: in use as the store's SSD, {bytes} bytes of it\n", path.display());
    show::result(json, &value, text)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn readmit(at: &Devices, json: bool) -> Result<ExitCode, Failure> {
    let path = at.ssd_path();
    let had_ssd = at.has_ssd().await?;
    let mut builder = at.builder();
    if !had_ssd {
        // Of the size that it had: the manifest has not kept it.
        let bytes = bytes_at(&path)?;
        let none = || format!("{}: there is no SSD; attach makes a new one", path.display());
        builder = builder.ssd_bytes(bytes.ok_or_else(none)?);
    }
    let store = builder.open().await?;
    let readmitted = async {
        store.ssd().readmit().await?;
        // Recovery reads the map and the zone. An SSD that has failed is trusted once every copy was read.
        let options = ScrubOptions::default().pages_per_second(None).homes(false).heal(true);
        let report = watch(store.scrub(options), "reading copies").await;
        store.sync().await?;
        Ok(report)
    };
    let (readmitted, recovered, spaces) = (readmitted.await, store.recovery(), store.spaces().list());
    let report = closed(store, readmitted).await?;
    let left = report.progress.found - report.progress.healed;
    let (list, mut text) = findings(&report, &spaces);
    let _ = writeln!(
        text,
        "{}: in use; {} copies read, {} damaged, {left} of them without another copy",
        path.display(),
        report.progress.done,
        report.progress.found
    );
    let value = json!({
        "ssd": path.to_string_lossy(), "formatted": !had_ssd, "checked": report.progress.done,
        "damaged": report.progress.found, "healed": report.progress.healed, "findings": list,
        "recovery": recovery(&recovered),
    });
    show::result(json, &value, text)?;
    Ok(if report.complete && left == 0 { ExitCode::SUCCESS } else { FOUND.into() })
}

/// Performs a request as a running store would, shows the progress, and closes the store.
async fn performed(store: PageStore, request: Request) -> Result<Answer, Failure> {
    let (bar, store) = (show::bar("opened", 0), AtRest(store));
    let done = perform(&store, request, report(&bar)).await;
    bar.finish_and_clear();
    closed(store.0, done.map_err(Failure::from)).await
}

/// Opens a store, and performs a request on it as a running store would.
pub(crate) async fn perform_at(place: &Place, request: Request, json: bool) -> Result<ExitCode, Failure> {
    let store = place.builder().open().await?;
    show_answer(&performed(store, request).await?, json)
}

pub(crate) async fn replace(
    at: &Devices,
    with: &Path,
    ssd_mib: Option<u64>,
    json: bool,
) -> Result<ExitCode, Failure> {
    let bytes = match size(ssd_mib, with)? {
        Some(bytes) => bytes,
        None => bytes_at(&at.ssd_path())?.unwrap_or(NEW_MIB << 20),
    };
    if !at.has_ssd().await? {
        return Err("the store has no SSD to replace; attach puts one into use".into());
    }
    let store = match at.builder().open().await {
        Ok(store) => store,
        // A call that was stopped may have done it. Without this, the operator would be told to bring the old
        // SSD back, or to accept a loss that did not happen.
        Err(OpenError::SsdMissing { .. } | OpenError::StaleDevice { .. }) if at.opens_with(with).await => {
            return Err(format!("{}: it is the store's SSD already", with.display()).into());
        }
        Err(error) => return Err(error.into()),
    };
    let with = std::path::absolute(with).map_err(|error| format!("{}: {error}", with.display()))?;
    show_answer(&performed(store, Request::ReplaceSsd { with, bytes: Some(bytes) }).await?, json)
}

pub(crate) async fn set_mode(place: &Place, mode: Mode, json: bool) -> Result<ExitCode, Failure> {
    match mode {
        Mode::Off => perform_at(place, Request::Drain { off: true }, json).await,
        Mode::WriteBack if place.at.has_ssd().await? => {
            let path = place.at.ssd_path();
            let value = json!({"ssd": path.to_string_lossy(), "bytes": null});
            show::result(json, &value, format!("{}: in use already\n", path.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        Mode::WriteBack => attach(&place.at, None, json).await,
        Mode::WriteThrough | Mode::ReadOnly => {
            let why = "--mode: it lasts until the store is closed, and no process that has it open takes requests; \
                       the program that opens it sets it";
            Err(Usage(why).into())
        }
    }
}
