//! The commands that put the SSD of a store at rest into use, exchange it or take it out of use.
//!
//! A store at rest is opened for each of them, so a crashed one is recovered first. The store's own calls do
//! the work, each of which a crash may interrupt at any moment: the manifest names one SSD or the other.

use crate::args::{Devices, Place, RestMode};
use crate::look::{findings, recovery, watch};
use crate::{FOUND, Failure, show};
use pagetier::{
    DrainOptions, DrainReport, OpenError, PageStore, SsdMode, SsdReplacement, errors::Causes,
    scrub::ScrubOptions,
};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{ErrorKind, Seek, SeekFrom};
use std::path::Path;
use std::process::ExitCode;

/// The size of a new SSD if nothing says another one, in MiB.
const NEW_MIB: u64 = 256;

/// The bytes of the file or block device at `path`; `None` if there is no file, or an empty one.
fn bytes_at(path: &Path) -> Result<Option<u64>, Failure> {
    let bytes = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        // The metadata of a block device have no size.
        file => file.and_then(|mut file| file.seek(SeekFrom::End(0))),
    };
    let bytes = bytes.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok((bytes > 0).then_some(bytes))
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
async fn closed<T>(store: PageStore, done: Result<T, Failure>) -> Result<T, Failure> {
    let closed = store.close().await;
    let done = done?;
    closed?;
    Ok(done)
}

pub(crate) async fn attach(at: &Devices, ssd_mib: Option<u64>, json: bool) -> Result<ExitCode, Failure> {
    let path = at.ssd_path();
    // Asked before the opening, which would refuse the size of a new SSD in other words.
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

/// Writes home what is on the SSD alone, and shows the progress.
async fn drained(store: &PageStore) -> Result<DrainReport, Failure> {
    // Otherwise new pages would become only copies as fast as the drain writes the old ones home.
    store.ssd().set_mode(SsdMode::WriteThrough).await?;
    let bar = show::bar("draining", store.stats().ssd.dirty_pages);
    let shown = bar.clone();
    let report = store
        .ssd()
        .drain(DrainOptions::new().on_progress(move |progress| {
            shown.set_length(progress.written + progress.left);
            shown.set_position(progress.written);
        }))
        .await;
    bar.finish_and_clear();
    Ok(report)
}

fn is_done(report: &DrainReport) -> bool {
    report.left == 0 && report.stopped_by.is_none()
}

/// Describes a drain as JSON and as lines of text.
fn drain_lines(report: &DrainReport) -> (Value, String) {
    let mut text = format!("{} pages written home, {} left\n", report.written, report.left);
    for (page, error) in &report.failed {
        let _ = writeln!(text, "page {} of space {}: {}", page.no, page.space.0, Causes(error));
    }
    if let Some(error) = &report.stopped_by {
        let _ = writeln!(text, "stopped by {error}");
    }
    let value = json!({
        "written": report.written, "left": report.left, "failed": report.failed.len(),
        "stopped_by": report.stopped_by.as_ref().map(|error| error.to_string()),
    });
    (value, text)
}

pub(crate) async fn drain(place: &Place, off: bool, json: bool) -> Result<ExitCode, Failure> {
    let store = place.writable().open().await?;
    if store.ssd().mode() == SsdMode::Off {
        store.close().await?;
        let value = json!({"written": 0, "left": 0, "failed": 0, "stopped_by": null, "off": true});
        show::result(json, &value, "the store has no SSD\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    let drained = async {
        let report = drained(&store).await?;
        if off && is_done(&report) {
            store.ssd().set_mode(SsdMode::Off).await?;
        }
        Ok(report)
    };
    let drained = drained.await;
    let report = closed(store, drained).await?;
    let done = is_done(&report);
    let (mut value, mut text) = drain_lines(&report);
    value["off"] = (off && done).into();
    if off && done {
        text.push_str("the SSD is out of use; the store opens without it\n");
    }
    show::result(json, &value, text)?;
    Ok(if done { ExitCode::SUCCESS } else { FOUND.into() })
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
    let replaced = async {
        let report = drained(&store).await?;
        if is_done(&report) {
            store.replace_ssd(SsdReplacement::path(with).bytes(bytes)).await?;
        }
        Ok(report)
    };
    let replaced = replaced.await;
    let report = closed(store, replaced).await?;
    if is_done(&report) {
        return in_use(with, bytes, json);
    }
    // Its SSD stays in use: the exchange would give up what is left there.
    let (value, text) = drain_lines(&report);
    show::result(json, &value, text)?;
    Ok(FOUND.into())
}

pub(crate) async fn set_mode(place: &Place, mode: RestMode, json: bool) -> Result<ExitCode, Failure> {
    match mode {
        RestMode::Off => drain(place, true, json).await,
        RestMode::WriteBack if place.at.has_ssd().await? => {
            let path = place.at.ssd_path();
            let value = json!({"ssd": path.to_string_lossy(), "bytes": null});
            show::result(json, &value, format!("{}: in use already\n", path.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        RestMode::WriteBack => attach(&place.at, None, json).await,
    }
}

pub(crate) async fn shrink(place: &Place, space: Option<&str>, json: bool) -> Result<ExitCode, Failure> {
    let store = place.writable().open().await?;
    let shrunk = async {
        let mut all = store.spaces().list();
        if let Some(name) = space {
            all.retain(|info| info.name == name);
            if all.is_empty() {
                return Err(format!("there is no space called \"{name}\"").into());
            }
        }
        let (bar, mut given) = (show::bar("shrinking", all.len() as u64), Vec::new());
        for info in all {
            given.push((store.spaces().shrink(info.id).await?, info));
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(given)
    };
    let shrunk = shrunk.await;
    let given = closed(store, shrunk).await?;
    let (mut text, mut list, mut total) = (String::new(), Vec::new(), 0);
    for (bytes, info) in &given {
        total += bytes;
        let _ = writeln!(text, "space {} \"{}\": {bytes} bytes given back", info.id.0, info.name);
        list.push(json!({"id": info.id.0, "name": info.name, "bytes": bytes}));
    }
    show::result(json, &json!({"bytes": total, "spaces": list}), text)?;
    Ok(ExitCode::SUCCESS)
}
