//! Repairs a store: recovers it, rewrites every bad copy that has a good one, and takes the rest from a
//! backup if there is one.

use crate::args::Place;
use crate::look::{recovery, watch};
use crate::ssd::closed;
use crate::{FOUND, Failure, show};
use pagetier::scrub::{ScrubOptions, ScrubReport};
use pagetier::{Lsn, PageId, PageStore, SsdMode, backup::Backups};
use pagetier_control::findings;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

pub(crate) async fn repair(
    place: &Place,
    write: bool,
    from: Option<&Path>,
    json: bool,
) -> Result<ExitCode, Failure> {
    if !write {
        let found = crate::look::verify(place, json).await?;
        eprintln!("pagetier: nothing was written; --write recovers the store and repairs what it can");
        return Ok(found);
    }
    let store = place.builder().open().await?;
    let recovered = store.recovery();
    let has_ssd = store.stats().ssd.mode != SsdMode::Off;
    let repaired = async {
        let first = scrubbed(&store).await?;
        let fetched = match from {
            Some(chain) => fetch(&store, place, chain, &first).await?,
            None => Fetched::default(),
        };
        // What was fetched counts only once its new copies were read.
        let last = if fetched.pages.is_empty() { first.clone() } else { scrubbed(&store).await? };
        Ok((first, fetched, last))
    };
    let (repaired, spaces) = (repaired.await, store.spaces().list());
    // They read as what the HDD has, which no scrub finds fault with.
    let lost = store.ssd().loss().map_or(0, |loss| loss.pages());
    let (report, fetched, last) = closed(store, repaired).await?;
    let (list, mut text) = findings(&report, &spaces);
    let left = last.progress.found - last.progress.healed;
    let _ = writeln!(
        text,
        "{} checked, {} damaged, {} repaired, {left} not; recovery repaired {} torn pages",
        report.progress.done, report.progress.found, report.progress.healed, recovered.repaired
    );
    for (page, lsn) in &fetched.pages {
        let _ = writeln!(
            text,
            "page {} of space {}: from backup {}, with LSN {lsn}",
            page.no, page.space.0, fetched.number
        );
    }
    if lost > 0 {
        let _ = writeln!(text, "{lost} pages listed as lost with an SSD, which repair does not bring back");
    }
    if !fetched.pages.is_empty() {
        text.push_str("these pages are as old as the backup: the engine's log must be redone over them\n");
    }
    if place.accept_ssd_loss && !has_ssd {
        text.push_str("the store goes on without an SSD\n");
    }
    let fetched: Vec<Value> = fetched
        .pages
        .iter()
        .map(|(page, lsn)| {
            json!({"space": page.space.0, "page": page.no, "lsn": lsn.0, "backup": fetched.number})
        })
        .collect();
    let value = json!({
        "complete": report.complete, "checked": report.progress.done, "damaged": report.progress.found,
        "healed": report.progress.healed, "findings": list, "recovery": recovery(&recovered),
        "has_ssd": has_ssd, "fetched": fetched, "left": left,
        "lost_pages": lost,
    });
    show::result(json, &value, text)?;
    Ok(if last.complete && left == 0 && lost == 0 { ExitCode::SUCCESS } else { FOUND.into() })
}

async fn scrubbed(store: &PageStore) -> Result<ScrubReport, Failure> {
    let options = ScrubOptions::default().pages_per_second(None).heal(true);
    let report = watch(store.scrub(options), "repairing").await;
    // Pages rewritten from memory must be durable before they count as repaired.
    store.sync().await?;
    Ok(report)
}

/// Pages that were taken from a backup.
#[derive(Default)]
struct Fetched {
    number: u32,
    pages: Vec<(PageId, Lsn)>,
}

/// Writes the pages that `report` could not repair as the newest backup in `chain` has them.
async fn fetch(
    store: &PageStore,
    place: &Place,
    chain: &Path,
    report: &ScrubReport,
) -> Result<Fetched, Failure> {
    let bad: BTreeSet<PageId> =
        report.findings.iter().filter(|found| !found.healed).map(|found| found.page).collect();
    let mut wanted = Vec::new();
    for page in bad {
        // Whatever is readable is newer than a backup.
        if store.get(page).await.is_err() {
            wanted.push(page);
        }
    }
    if wanted.is_empty() {
        return Ok(Fetched::default());
    }
    let bar = show::bar("reading the backups", 0);
    let found = Backups::at(chain).pages(&wanted, None).await;
    bar.finish_and_clear();
    let found = found?;
    let own = place.at.builder().inspect().await?.manifest.store;
    if found.store != own {
        let why = format!("{}: its backups are of store {}, this is {own}", chain.display(), found.store);
        return Err(why.into());
    }
    let mut fetched = Fetched { number: found.number, pages: Vec::new() };
    for old in found.pages {
        let mut page = store.overwrite(old.page).await?;
        if page.len() != old.contents.len() {
            return Err(format!("{}: its pages have another size", chain.display()).into());
        }
        page.copy_from_slice(&old.contents);
        page.set_lsn(old.lsn);
        fetched.pages.push((old.page, old.lsn));
    }
    store.sync().await?;
    Ok(fetched)
}
