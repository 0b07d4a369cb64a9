//! The commands that write nothing to the store.

use crate::args::Place;
use crate::{FOUND, Failure, show};
use pagetier::{
    Location, PageId, PageStore, RecoveryReport,
    errors::Causes,
    scrub::{Scrub, ScrubOptions, ScrubReport},
};
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

/// Returns the findings of a scrub as JSON and as lines of text.
pub(crate) fn findings(report: &ScrubReport) -> (Vec<Value>, String) {
    let mut text = String::new();
    let mut all = Vec::new();
    for found in &report.findings {
        let healed = if found.healed { " (repaired)" } else { "" };
        let (page, error) = (found.page, Causes(&found.error));
        let _ = writeln!(text, "page {} of space {}: {error}{healed}", page.no, page.space.0);
        all.push(json!({
            "space": found.page.space.0, "page": found.page.no,
            "error": error.to_string(), "healed": found.healed,
        }));
    }
    let more = report.progress.found.saturating_sub(report.findings.len() as u64);
    if more > 0 {
        let _ = writeln!(text, "and {more} more");
    }
    (all, text)
}

pub(crate) async fn verify(place: &Place, json: bool) -> Result<ExitCode, Failure> {
    let store = place.builder().open_read_only().await?;
    let options = ScrubOptions::default().pages_per_second(None).heal(false);
    let report = watch(store.scrub(options), "verifying").await;
    let (list, mut text) = findings(&report);
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
        let _ = writeln!(text, "recovery: the next opening repairs {} torn pages", recovered.repaired);
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
        let _ = writeln!(text, "space   {} \"{}\": {} pages", space.id.0, space.name, space.pages);
    }
    let _ = write!(text, "{summary}");
    let list: Vec<Value> =
        spaces.iter().map(|s| json!({"id": s.id.0, "name": s.name, "pages": s.pages})).collect();
    let value = json!({
        "page_bytes": page_bytes, "spaces": list, "stats": summary,
        "recovery": recovery(&store.recovery()),
    });
    show::result(json, &value, text)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn why(place: &Place, space: &str, no: u32, json: bool) -> Result<ExitCode, Failure> {
    let store = place.builder().open_read_only().await?;
    let space = store.spaces().find(space).ok_or_else(|| format!("there is no space called \"{space}\""))?;
    let why = store.why(PageId::new(space, no))?;
    show::result(json, &why, &why)?;
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
