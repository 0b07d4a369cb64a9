//! `report.html`: a self-contained page.

use super::html::{Html, Table, escape};
use super::matrix::{ANALYSIS, Case, RIVALS};
use super::results::{Finished, Outcome, Results, Setting};
use super::sections;
use super::steady::{MEANING, spread};
use super::view::{View, pair_name};
use crate::report::bytes;
use std::collections::BTreeSet;

/// Renders the page.
pub(crate) fn page(results: &Results, setting: &Setting) -> String {
    let view = View { results, setting };
    let mut body = Html::default();
    body.text("h1", "Pagetier compared with Liu & Salem 2013");
    body.text(
        "p",
        "TPC-C on the whole store in virtual time: the experiments of section 6 of “Hybrid Storage \
         Management for Database Systems” (VLDB 2013), \
         scaled down with their ratios kept.",
    );
    sections::in_short(&mut body, &view);
    sections::throughput(&mut body, &view, "Figure 7", &ANALYSIS);
    sections::io(&mut body, &view, "Figure 8", 30, &ANALYSIS, ANALYSIS[0]);
    sections::io(&mut body, &view, "Figure 9", 15, &ANALYSIS, ANALYSIS[0]);
    sections::throughput(&mut body, &view, "Figure 10", &RIVALS);
    sections::io(&mut body, &view, "Figure 11", 30, &RIVALS, RIVALS[3]);
    sections::behaviour(&mut body, &view);
    sections::zones(&mut body, &view);
    how(&mut body, &view);
    every_run(&mut body, &view);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
         <title>Pagetier compared with Liu &amp; Salem \
         2013</title>\n<style>{STYLE}</style></head>\n<body><main>\n{}</main></body></html>\n",
        body.into_string()
    )
}

fn how(body: &mut Html, view: &View<'_>) {
    let Setting { version, warehouses, terminals, seed, row_overhead, page_bytes, hdd_model, .. } =
        view.setting;
    body.text("h2", "How it was run");
    for run in &view.results.invocations {
        body.raw(format_args!("<p>{}: <code>{}</code><br/>", escape(&run.date), escape(&run.command)));
        let machine = &run.machine;
        let memory =
            machine.memory_bytes.map_or_else(String::new, |all| format!("{} of memory, ", bytes(all)));
        let machine_line = format!("{}, {} cores, {memory}{}", machine.cpu, machine.cores, machine.kernel);
        body.raw(format_args!("<small>{}</small></p>\n", escape(&machine_line)));
    }
    let Setting { window, windows_max, windows_measured, ratio_of, .. } = view.setting;
    body.text(
        "p",
        format_args!(
            "Pagetier {version}. Warehouses in every database: {warehouses}; terminals: {terminals} (two per \
         warehouse by default, as in section 6.1); pages \
         of {}, {row_overhead} bytes of overhead per row, seed {seed}. The SSD has 10/30, 10/15 or 10/8 of \
         the loaded database and the pool 10, 20 or 40% of \
         the SSD (counted as --ratio-of {ratio_of} says); the paper has an SSD of 10 GB and databases of 30, \
         15 and 8 GB. The outqueue has as many \
         entries as the SSD has pages and is taken from the pool; the eviction zone is 10% of the SSD \
         unless said otherwise.",
            bytes(*page_bytes),
        ),
    );
    body.text("p", format_args!(
        "The devices are emulated: the SSD takes 0.11 ms to read a page and 0.27 ms to write one, the HDD \
         {}, as --hdd-model {hdd_model}. \
         Figures count page I/O only: doublewrite ring, map checkpoints and journal, which the paper's \
         system does not have, are in report.json (all_…).",
        if hdd_model == "paper" { "7.2 ms and 4.96 ms" } else { "what its arm and its rotation need" },
    ));
    body.text(
        "p",
        format_args!(
            "A run is cut into windows of {window} New-Orders. Steady means: {MEANING}. After at most \
         {windows_max} windows it is measured anyway and marked *, not \
         steady. The measurement takes {windows_measured} windows.",
        ),
    );
    let builds: BTreeSet<_> = view.entries().map(|entry| entry.build.as_deref()).collect();
    if builds.len() > 1 {
        let names: Vec<&str> = builds.iter().map(|build| build.unwrap_or("not noted")).collect();
        body.text(
            "p",
            format_args!(
                "The rows come from {} builds of the program (checksums {}); --again repeats all of them.",
                builds.len(),
                names.join(", ")
            ),
        );
    }
    let others = view.results.entries.iter().filter(|entry| entry.setting != *view.setting).count();
    if others > 0 {
        body.text(
            "p",
            format_args!("report.json has {others} more rows, of other settings, that are not shown."),
        );
    }
}

fn every_run(body: &mut Html, view: &View<'_>) {
    const HEAD: [&str; 10] = [
        "run",
        "tpmC",
        "ms per New-Order",
        "all I/O ms",
        "by windows",
        "steady",
        "warm-up",
        "SSD full %",
        "consistency",
        "took",
    ];
    body.text("h2", "Every run");
    let mut table = Table::new(&HEAD);
    let mut rows: Vec<_> = view.rows().collect();
    rows.sort_by_key(|(case, _)| (std::cmp::Reverse(case.shape), case.policies().to_string()));
    for (case, outcome) in &rows {
        let pair = pair_name((&case.pool_policy, &case.ssd_policy));
        let name = format!("<b>{}</b> {}{}{}", escape(&pair), case.shape, zone(case), chosen(outcome));
        match outcome {
            Outcome::NotRun { error, .. } => table.note(&name, &format!("not run: {error}"), HEAD.len()),
            Outcome::Finished(finished) => table.row(&run_cells(name, finished)),
        }
    }
    body.raw(table);
    body.text(
        "p",
        "“By windows” lists the measured windows' milliseconds per New-Order, then their largest deviation \
         from the mean. “Took” is the run's \
         wall-clock time. Each run on its own, with the same warm-up and measurement:",
    );
    let commands: Vec<String> =
        rows.iter().filter_map(|(case, outcome)| command(view, case, outcome)).collect();
    body.raw(format_args!("<pre>{}</pre>\n", escape(&commands.join("\n"))));
}

fn zone(case: &Case) -> String {
    if *case == Case::of(case.shape, (&case.pool_policy, &case.ssd_policy)) {
        return String::new();
    }
    format!(" zone {}%", case.zone_percent)
}

/// The settings that adaptive policies followed at the end.
fn chosen(outcome: &Outcome) -> String {
    let Outcome::Finished(finished) = outcome else { return String::new() };
    let by_tier = finished.row.choices.iter();
    let chosen: Vec<String> = by_tier.map(|(tier, choice)| format!("{tier}: {}", choice.setting)).collect();
    if chosen.is_empty() { String::new() } else { format!("<br/>{}", escape(&chosen.join(", "))) }
}

fn run_cells(name: String, finished: &Finished) -> [String; 10] {
    let row = &finished.row;
    let windows: Vec<String> =
        finished.measured.iter().map(|w| format!("{:.1}", w.ms_per_new_order)).collect();
    let full = 100.0 * row.ssd_pages as f64 / row.ssd_slots.max(1) as f64;
    [
        name,
        format!("{:.0}", row.tpmc),
        format!("{:.1}", row.total_ms_per_new_order),
        format!("{:.1}", row.all_total_ms_per_new_order),
        format!("{} (± {:.1}%)", windows.join(", "), 100.0 * spread(&finished.measured)),
        if finished.steady { "yes".into() } else { "<b>no *</b>".into() },
        format!("{} windows, {:.0} s", finished.warmup.len(), finished.warmup_seconds()),
        format!("{full:.0}"),
        escape(&row.consistency),
        format!("{:.0} s", finished.wall_seconds),
    ]
}

fn command(view: &View<'_>, case: &Case, outcome: &Outcome) -> Option<String> {
    let Outcome::Finished(finished) = outcome else { return None };
    let Setting { warehouses, terminals, seed, row_overhead, hdd_model, ratio_of, .. } = view.setting;
    Some(format!(
        "tpcc_lite --time virtual --warehouses {warehouses} --terminals {terminals} --seed {seed} \
         --row-overhead {row_overhead} --hdd-model \
         {hdd_model} --db-ratio {} --ratio-of {ratio_of} --zone-percent {} --pool-policy {} --ssd-policy {} \
         --warmup {:.1} --seconds {:.1}",
        case.shape,
        case.zone_percent,
        case.pool_policy,
        case.ssd_policy,
        finished.warmup_seconds(),
        finished.row.seconds,
    ))
}

const STYLE: &str = include_str!("style.css");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::html::unsound;
    use crate::compare::machine::Machine;
    use crate::compare::matrix::{Figure, cases};
    use crate::compare::results::{Entry, Invocation};
    use crate::report::Chosen;
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
        assert_eq!(unsound(&page(&results, &setting)), None);
        assert_eq!(unsound(&page(&Results::default(), &setting)), None);
    }

    #[test]
    fn every_run_is_on_it() {
        let (results, setting) = full();
        let page = page(&results, &setting);
        for entry in &results.entries {
            let case = &entry.case;
            let name = format!("<b>{}</b> {}", pair_name((&case.pool_policy, &case.ssd_policy)), case.shape);
            assert!(page.contains(&name), "{name}");
            match &entry.outcome {
                Outcome::Finished(f) => assert!(page.contains(&format!("<td>{:.0}", f.row.tpmc)), "{name}"),
                Outcome::NotRun { .. } => {
                    assert!(page.contains("not run: it &lt;cannot&gt; do &quot;that&quot; &amp; more"));
                }
            }
        }
        for shown in [
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
    fn rows_of_another_setting_are_omitted() {
        let (results, mut setting) = full();
        setting.seed += 1;
        let page = page(&results, &setting);
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
}
