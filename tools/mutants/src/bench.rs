//! The judges of an instrumented copy, how long they take, and which mutants they reach.

use crate::args::RunArgs;
use crate::instrument::PACKAGES;
use crate::judges::{Judge, Test, reached};
use crate::process::{Ended, Job};
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than any judge takes.
const UNMUTATED_MAX: Duration = Duration::from_secs(1800);
/// The integration tests that test one crate, and its sources. They belong to the package `pagetier-tests`,
/// except the first.
const TESTS_OF_CRATES: [(&str, &str); 5] = [
    ("fixture", "crates/page/src"),
    ("devio", "crates/devio/src"),
    ("testing", "crates/devio/src"),
    ("bufpool", "crates/bufpool/src"),
    ("ssdcache", "crates/ssdcache/src"),
];
/// The file of measurements in a copy.
const RECORD: &str = "judges.json";

/// Builds the judges and runs each test once without a mutant, which it must pass.
pub(crate) fn judges(dir: &Path, args: &RunArgs) -> Result<Vec<Judge>> {
    let mut judges = build(dir, args)?;
    let known = if args.measure { Vec::new() } else { recorded(dir)? };
    for judge in &mut judges {
        judge.tests = listed(judge)?;
        let same = known.iter().find(|k| bare(k) == bare(judge));
        for test in &mut judge.tests {
            let measured = same.and_then(|k| k.tests.iter().find(|t| t.name == test.name));
            *test = measured.cloned().unwrap_or_else(|| std::mem::take(test));
        }
    }
    let bar = ProgressBar::new(judges.iter().map(|j| j.tests.len() as u64).sum()).with_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} tests without a mutant, {elapsed} elapsed {msg}")?,
    );
    for at in 0..judges.len() {
        for test in 0..judges[at].tests.len() {
            if judges[at].tests[test].seconds == 0.0 {
                judges[at].tests[test] = measured(dir, &judges[at], &judges[at].tests[test].name)?;
            }
            bar.inc(1);
        }
        std::fs::write(dir.join(RECORD), serde_json::to_string(&[&judges[..=at], &known].concat())?)?;
    }
    bar.finish_and_clear();
    for judge in &mut judges {
        for test in judge.tests.extract_if(.., |t| t.seconds > args.seconds_max) {
            eprintln!("{} {} takes {:.1} s: it does not judge", judge.name, test.name, test.seconds);
        }
    }
    for judge in &judges {
        let seconds: f64 = judge.tests.iter().map(|t| t.seconds).sum();
        let (tests, args) = (judge.tests.len(), judge.args.join(" "));
        eprintln!("{seconds:7.1} s  {tests:4} tests  {} {args}", judge.name);
    }
    eprintln!("they reach {} mutants", reached(&judges).len());
    Ok(judges)
}

fn bare(judge: &Judge) -> Judge {
    Judge { tests: Vec::new(), ..judge.clone() }
}

fn recorded(dir: &Path) -> Result<Vec<Judge>> {
    let path = dir.join(RECORD);
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(Vec::new()) };
    serde_json::from_str(&text)
        .with_context(|| format!("{}: not a record of judges; remove it", path.display()))
}

/// The judge's tests, not yet measured.
fn listed(judge: &Judge) -> Result<Vec<Test>> {
    if !judge.by_name {
        return Ok(vec![Test { name: "all".into(), ..Test::default() }]);
    }
    let program = judge.program.display();
    let output = Command::new(&judge.program)
        .args(["--list", "--format", "terse"])
        .current_dir(&judge.folder)
        .stderr(Stdio::null())
        .output()
        .with_context(|| format!("{program} cannot be started"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = text.lines().filter_map(|l| l.strip_suffix(": test"));
    Ok(names.map(|name| Test { name: name.to_owned(), ..Test::default() }).collect())
}

fn measured(dir: &Path, judge: &Judge, name: &str) -> Result<Test> {
    let list = dir.join("reached");
    let _ = std::fs::remove_file(&list);
    let begun = Instant::now();
    let job =
        Job { judge, tests: &[name], mutant: 0, reached: Some(&list), threads: 1, limit: UNMUTATED_MAX };
    if job.run()? != Ended::Passed {
        bail!("{} {name} fails without a mutant: fix that first", judge.name);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let text = std::fs::read_to_string(&list).unwrap_or_default();
    let reached = text.lines().filter_map(|l| l.parse().ok()).collect();
    Ok(Test { name: name.to_owned(), seconds, reached })
}

fn build(dir: &Path, args: &RunArgs) -> Result<Vec<Judge>> {
    let mut unit_tests = vec!["test", "--no-run", "--lib"];
    for name in PACKAGES {
        unit_tests.extend(["-p", name]);
    }
    let mut judges = built(dir, &unit_tests)?;
    let mut integration_tests = vec!["test", "--no-run", "-p", "pagetier-page", "-p", "pagetier-tests"];
    for test in TESTS_OF_CRATES.iter().map(|(test, _)| *test).chain(args.tests.iter().map(String::as_str)) {
        integration_tests.extend(["--test", test]);
    }
    judges.extend(built(dir, &integration_tests)?);
    judges.extend(built(dir, &["test", "--no-run", "-p", "pagetier-wal", "--test", "*"])?);
    let runs: Vec<_> = args.campaign.iter().filter(|run| !run.is_empty()).collect();
    if runs.is_empty() {
        return Ok(judges);
    }
    for campaign in built(dir, &["build", "--release", "-p", "pagetier-sim", "--bin", "campaign"])? {
        for (at, run) in runs.iter().enumerate() {
            let number = if at == 0 { String::new() } else { format!(" {}", at + 1) };
            judges.push(Judge {
                name: format!("{}{number}", campaign.name),
                args: run.split_whitespace().map(str::to_owned).collect(),
                folder: dir.to_owned(),
                by_name: false,
                ..campaign.clone()
            });
        }
    }
    Ok(judges)
}

fn built(dir: &Path, args: &[&str]) -> Result<Vec<Judge>> {
    eprintln!("cargo {}", args.join(" "));
    let output = Command::new("cargo")
        .args(args)
        .args(["--message-format=json", "--quiet"])
        .env("CARGO_INCREMENTAL", "0")
        .current_dir(dir)
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        bail!("the build failed");
    }
    let mut judges = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(value) = serde_json::from_str::<Value>(line) else { continue };
        let (Some(program), Some(manifest)) = (value["executable"].as_str(), value["manifest_path"].as_str())
        else {
            continue;
        };
        let folder = Path::new(manifest).parent().unwrap_or(dir).to_owned();
        let short = folder.file_name().unwrap_or_default().to_string_lossy();
        let target = value["target"]["name"].as_str().unwrap_or_default();
        let sources = match TESTS_OF_CRATES.iter().find(|(test, _)| *test == target) {
            Some((_, sources)) => PathBuf::from(sources),
            // The other tests of that package are those of the root.
            None if folder == dir.join("tests") => "src".into(),
            None => folder.strip_prefix(dir).unwrap_or(&folder).join("src"),
        };
        judges.push(Judge {
            name: format!("{}:{target}", if folder == dir { "pagetier".into() } else { short }),
            program: program.into(),
            args: Vec::new(),
            package: sources.to_string_lossy().into_owned(),
            folder,
            by_name: true,
            tests: Vec::new(),
        });
    }
    Ok(judges)
}
