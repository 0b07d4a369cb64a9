//! `--compare`: the experiments of section 6 of the 2013 paper, scaled down, in virtual time, and a report
//! about them.
//!
//! [`matrix`] lists the runs, [`drive`] performs one, [`parallel`] several at once; [`results`] keeps the
//! finished ones, and [`page`] shows them.

mod charts;
mod drive;
mod gain;
mod machine;
mod observe;
mod page;
mod paper;
mod parallel;
mod progress;
mod results;
mod sections;
mod setting;
mod steady;
mod view;

use crate::command::cli::{Cli, Time};
use crate::command::matrix;
use crate::command::policies::Policies;
use crate::run::report::{self, End};
use machine::Machine;
use results::{Entry, Invocation, Outcome, Results};
use std::error::Error;
use std::path::Path;

/// Runs the unfinished cases and writes the report.
pub(crate) fn compare(cli: &Cli) -> Result<End, Box<dyn Error>> {
    let Some(dir) = &cli.comparison.report else { return Err("--compare needs --report DIR".into()) };
    std::fs::create_dir_all(dir).map_err(|source| results::ResultsError::Io { path: dir.clone(), source })?;
    let base = base(cli);
    let setting = cli.comparison.setting(&base);
    let mut results = Results::read(dir)?;
    let more = cli.policies.iter().flat_map(|pairs| &pairs.0).map(Policies::from);
    let cases = cli.comparison.cases(&more.collect::<Vec<_>>());
    let again = cli.comparison.again;
    let open: Vec<_> =
        cases.iter().filter(|case| again || results.finished(&setting, case).is_none()).cloned().collect();
    // Read at the start, since a build during the hours of a comparison replaces the program's file.
    let build = machine::build();
    if !open.is_empty() {
        let (date, command) = (machine::date(), machine::command());
        results.invocations.push(Invocation { date, command, machine: Machine::here() });
    }
    // Check that the report can be written before hours of work.
    write(&results, &setting, dir)?;
    if open.len() < cases.len() {
        eprintln!("{} of {} runs are already in {}", cases.len() - open.len(), cases.len(), dir.display());
    }
    let jobs = cli.comparison.jobs(open.len());
    let ended = parallel::run_all(&base, &setting, &open, jobs, &mut |case, outcome| {
        results.add(Entry { setting: setting.clone(), case, outcome, build: build.clone() });
        write(&results, &setting, dir)
    })?;
    summary(&results, &setting, &cases);
    println!("\n{}", dir.join("report.html").display());
    if ended.interrupted {
        println!("interrupted; the same command runs the missing cases");
    }
    Ok(End { is_sound: !ended.failed, was_interrupted: ended.interrupted })
}

/// The options that every run shares.
fn base(cli: &Cli) -> Cli {
    let mut base = cli.clone();
    base.time = Time::Virtual;
    // Suppress the progress bars and tables of the runs.
    base.json = true;
    base.warehouses = Some(cli.comparison.warehouses(cli));
    base
}

fn write(results: &Results, setting: &results::Setting, dir: &Path) -> Result<(), Box<dyn Error>> {
    // The results go first: chart and page can be drawn from them again.
    results.write(dir)?;
    if let Some(chart) = gain::chart(&view::View { results, setting }) {
        results::replace(&dir.join("gain.svg"), chart.as_bytes())?;
    }
    results::replace(&dir.join("report.html"), page::page(results, setting)?.as_bytes())?;
    Ok(())
}

fn summary(results: &Results, setting: &results::Setting, cases: &[matrix::Case]) {
    println!("{:<12}{}", "DB:SSD:pool", report::heading());
    for case in cases {
        match results.outcome(setting, case) {
            Some(Outcome::Finished(finished)) => {
                println!("{:<12}{}", case.shape.to_string(), report::table_row(&finished.row));
            }
            Some(Outcome::NotRun { error, .. }) => {
                println!(
                    "{:<12}{:<16} not run: {error}",
                    case.shape.to_string(),
                    case.policies().to_string()
                );
            }
            None => {}
        }
    }
}
