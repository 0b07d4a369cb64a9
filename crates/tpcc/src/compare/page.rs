//! `report.html`: a self-contained page, the template filled with the runs of one setting.

use super::gain;
use super::results::{Outcome, Results, Setting};
use super::sections;
use super::steady::{MEANING, spread};
use super::view::{Pair, View};
use crate::command::matrix::{ANALYSIS, Case, RIVALS, Shape, ZONES};
use crate::run::report::bytes;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, UndefinedBehavior, context};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Renders the page.
///
/// # Errors
/// The template names what it was not given.
pub(crate) fn page(results: &Results, setting: &Setting) -> Result<String, Error> {
    let view = View { results, setting };
    let builds: BTreeSet<&str> =
        view.entries().map(|entry| entry.build.as_deref().unwrap_or("not noted")).collect();
    let mut template = Environment::new();
    // A misspelt name fails the tests instead of leaving a gap in the page.
    template.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    template.add_filter("bytes", bytes);
    // The name's ending makes every text escaped.
    template.render_named_str(
        "report.html",
        include_str!("report.html"),
        context! {
            style => include_str!("style.css"),
            claims => sections::claims(&view),
            gain => gain::section(&view),
            figures => sections::figures(&view),
            observed => sections::observed(&view),
            small => Shape::SMALL.to_string(),
            zones => zones(&view),
            invocations => Serde(&results.invocations),
            setting => Serde(setting),
            overview => setting.is_overview(),
            steady => MEANING,
            builds => Serde(builds),
            others => results.entries.iter().filter(|entry| entry.setting != *setting).count(),
            runs => runs(&view),
        },
    )
}

/// The finished runs of section 6.5.
fn zones(view: &View<'_>) -> Vec<Value> {
    let cases = ZONES.map(Case::zone);
    let outcome = |case: &Case| view.finished(case).and_then(|_| view.outcome(case));
    cases.iter().filter_map(|case| Some(run(case, outcome(case)?))).collect()
}

/// Every run, in the order of the figures: the largest databases first, then pair by pair, from the smallest
/// pool to the largest. (They are kept in the order in which they ended.)
fn runs(view: &View<'_>) -> Vec<Value> {
    let own: Vec<Pair<'_>> = ANALYSIS.into_iter().chain(RIVALS).collect();
    let pairs = view.pairs(&own);
    let mut rows: Vec<_> = view.rows().collect();
    rows.sort_by(|(a, _), (b, _)| {
        let key = |case: &Case| {
            let pair = (case.pool_policy.as_str(), case.ssd_policy.as_str());
            let nth = pairs.iter().position(|one| *one == pair);
            (Reverse(case.shape.db), case.shape.ssd, nth, case.shape.pool)
        };
        key(a).cmp(&key(b)).then(a.zone_percent.total_cmp(&b.zone_percent))
    });
    rows.into_iter().map(|(case, outcome)| run(case, outcome)).collect()
}

/// A run, with what the template cannot calculate.
fn run(case: &Case, outcome: &Outcome) -> Value {
    let finished = match outcome {
        Outcome::Finished(finished) => Some(finished),
        Outcome::NotRun { .. } => None,
    };
    context! {
        pair => case.policies().to_string(),
        shape => case.shape.to_string(),
        zone => *case != Case::of(case.shape, (&case.pool_policy, &case.ssd_policy)),
        choices => Serde(finished.map(|finished| &finished.row.choices)),
        spread => finished.map(|finished| spread(&finished.measured)),
        warmup_seconds => finished.map(|finished| finished.warmup_seconds()),
        case => Serde(case),
        outcome => Serde(outcome),
    }
}

#[cfg(test)]
pub(super) use tests::unsound;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::matrix::{Figure, cases};
    use crate::compare::machine::Machine;
    use crate::compare::results::{Entry, Invocation};
    use crate::run::report::Chosen;
    use std::collections::BTreeMap;

    /// Every run of every figure, including one that the store refused, one that was not steady, and the
    /// observed one.
    fn full() -> (Results, Setting) {
        let sample: Entry = serde_json::from_str(include_str!("sample.json")).unwrap();
        let (cpu, kernel) = ("A <fast> & 'quoted' CPU".into(), "linux".into());
        let machine = Machine { cpu, cores: 2, kernel, memory_bytes: Some(8 << 30) };
        let (date, command) = ("2026-11-21 14:05 UTC".into(), "tpcc_lite --report 'a \"b\"'".into());
        let mut results =
            Results { invocations: vec![Invocation { date, command, machine }], entries: Vec::new() };
        for (nth, case) in cases(&[Figure::All], &[]).into_iter().enumerate() {
            let mut outcome = sample.outcome.clone();
            if let Outcome::Finished(finished) = &mut outcome {
                (finished.row.tpmc, finished.steady) = (1_001.0 + nth as f64, nth != 7);
                if nth == 5 {
                    let chosen = Chosen { setting: "half-life-4".into(), changes: 2, costs: BTreeMap::new() };
                    finished.row.choices = BTreeMap::from([("SSD".into(), chosen)]);
                }
                if !case.is_observed() {
                    finished.observed = None;
                }
            }
            if case.ssd_policy == "mv-fifo" {
                outcome = Outcome::NotRun { error: "it <cannot> do \"that\" & more".into(), refused: true };
            }
            let build = Some(if nth == 3 { "00000001" } else { "00000002" }.into());
            results.add(Entry { case, outcome, setting: sample.setting.clone(), build });
        }
        (results, sample.setting)
    }

    #[test]
    fn the_page_is_well_formed_and_needs_nothing_else() {
        let (results, setting) = full();
        assert_eq!(unsound(&page(&results, &setting).unwrap()), None);
        assert_eq!(unsound(&page(&Results::default(), &setting).unwrap()), None);
    }

    /// `PAGETIER_DRAW=1` writes the page to the folder of temporary files, to look at it in a browser.
    #[test]
    fn every_run_is_on_it() {
        let (results, setting) = full();
        let page = page(&results, &setting).unwrap();
        if std::env::var_os("PAGETIER_DRAW").is_some() {
            std::fs::write(std::env::temp_dir().join("pagetier-report.html"), &page).unwrap();
        }
        for entry in &results.entries {
            let case = &entry.case;
            let name = format!("<b>{}</b> {}", case.policies(), case.shape);
            assert!(page.contains(&name), "{name}");
            match &entry.outcome {
                Outcome::Finished(f) => assert!(page.contains(&format!("<td>{:.0}", f.row.tpmc)), "{name}"),
                Outcome::NotRun { .. } => {
                    assert!(page.contains("not run: it &lt;cannot&gt; do &quot;that&quot; &amp; more"));
                }
            }
        }
        for shown in [
            "What the paper's policies gain",
            "GD2L+CAC in the paper",
            "Figure 7",
            "Figure 8",
            "Figure 9",
            "Figure 10",
            "Figure 11",
            "Figures 4 and 6",
            "Section 6.5",
            "99.7",
            "no *",
            "<br/>SSD: half-life-4</td>",
            "8.00 GiB of memory",
            "2 builds of the program (checksums 00000001, 00000002)",
        ] {
            assert!(page.contains(shown), "{shown}");
        }
    }

    #[test]
    fn a_quick_comparison_says_how_far_it_may_be_off() {
        let setting = full().1;
        let said = |windows_measured| {
            let setting = Setting { windows_measured, ..setting.clone() };
            page(&Results::default(), &setting).unwrap().contains("may be a fifth off")
        };
        assert!(said(3) && !said(8));
    }

    #[test]
    fn the_rows_have_one_order_in_whichever_one_the_runs_ended() {
        let (mut results, setting) = full();
        let in_order = page(&results, &setting).unwrap();
        results.entries.reverse();
        assert!(page(&results, &setting).unwrap() == in_order);
        let all = in_order.split("<h2>Every run</h2>").nth(1).unwrap();
        let rows = [
            "<b>LRU+CC</b> 30:10:1",
            "<b>LRU+CC</b> 30:10:4",
            "<b>GD2L+CC</b> 30:10:1",
            "<b>GD2L+LRU2</b> 30:10:4",
            "<b>LRU+CC</b> 15:10:1",
            "<b>GD2L+CAC</b> 10:4:2 zone 1%",
            "<b>GD2L+CAC</b> 10:4:2 zone 5%",
            "<b>LRU+CC</b> 8:10:1",
        ];
        let places: Vec<_> = rows.iter().map(|row| all.find(row)).collect();
        assert!(places.is_sorted() && places.iter().all(Option::is_some), "{places:?}");
    }

    #[test]
    fn rows_of_another_setting_are_omitted() {
        let (results, mut setting) = full();
        setting.seed += 1;
        let page = page(&results, &setting).unwrap();
        assert!(!page.contains("<b>LRU+CC</b>") && page.contains("58 more rows, of other settings"));
    }

    #[test]
    fn a_finished_run_is_found_again() {
        let (results, mut setting) = full();
        let read: Results = serde_json::from_str(&serde_json::to_string(&results).unwrap()).unwrap();
        assert_eq!(read.entries.len(), results.entries.len());
        let case = Case::zone(10.0);
        assert!(read.finished(&setting, &case).is_some_and(|finished| finished.observed.is_some()));
        assert!(
            read.finished(&setting, &cases(&[Figure::Fig10], &[])[0]).is_none(),
            "failed runs are repeated"
        );
        setting.window += 1;
        assert!(read.outcome(&setting, &case).is_none());
    }

    #[test]
    fn unsound_pages_are_found_out() {
        for bad in [
            "<p>",
            "</p>",
            "<p><b></p></b>",
            "a & b",
            "a > b",
            "<img src=\"x\"/>",
            "<a href=\"http://x\"></a>",
            "<p class=\"x></p>",
            "<style>@import 'x';</style>",
        ] {
            assert!(unsound(&format!("<!DOCTYPE html>{bad}")).is_some(), "{bad}");
        }
    }

    /// What is wrong with `page`: unmatched tags, an unescaped attribute or text, or a reference to something
    /// outside.
    pub(in crate::compare) fn unsound(page: &str) -> Option<String> {
        let mut open: Vec<&str> = Vec::new();
        let mut rest = page.strip_prefix("<!DOCTYPE html>")?;
        while let Some(at) = rest.find(['<', '>', '&']) {
            let (found, after) = rest[at..].split_at(1);
            rest = after;
            if found == "&" {
                let known = ["amp;", "lt;", "gt;", "quot;", "#x27;", "#x2f;"]
                    .iter()
                    .any(|name| rest.starts_with(name));
                if !known {
                    return Some(format!("a bare & before {:?}", rest.get(..20)));
                }
                continue;
            }
            let end = rest.find('>').filter(|_| found == "<");
            let Some(end) = end else { return Some(format!("a bare {found} before {:?}", rest.get(..20))) };
            let (tag, after) = rest.split_at(end);
            rest = &after[1..];
            if let Some(name) = tag.strip_prefix('/') {
                if open.pop() != Some(name) {
                    return Some(format!("</{name}> closes nothing"));
                }
            } else if !tag.ends_with('/') {
                open.push(tag.split_ascii_whitespace().next().unwrap_or(""));
            }
            if tag.matches('"').count() % 2 == 1
                || ["src=", "href=", "url("].iter().any(|out| tag.contains(out))
            {
                return Some(format!("<{tag}>"));
            }
            if open.last() == Some(&"style") {
                let end = rest.find("</style>").unwrap_or(0);
                if rest[..end].contains("url(") || rest[..end].contains("@import") {
                    return Some("the style refers to something outside".into());
                }
                rest = &rest[end..];
            }
        }
        (!open.is_empty()).then(|| format!("not closed: {open:?}"))
    }
}
