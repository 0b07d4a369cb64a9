//! Judges mutants: each runs the tests and the campaign of the instrumented build until one of them fails.

use crate::Mutant;
use crate::instrument::load;
use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The instrumented copy.
    #[arg(long)]
    dir: PathBuf,
    /// How many mutants to judge.
    #[arg(long, default_value_t = 200)]
    sample: usize,
    /// Chooses the sample.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Mutants judged at once.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Judge these mutants only.
    #[arg(long, value_delimiter = ',')]
    only: Vec<u32>,
    /// Integration tests of the root package that judge, beside the unit and integration tests of page, bufpool and ssdcache.
    #[arg(long, value_delimiter = ',', default_value = "store,crash,ssd_crash,ssd_life,scrub,bad_input")]
    tests: Vec<String>,
    /// Arguments of the campaign's run.
    #[arg(long, default_value = "--mode random --crashes 3000 --jobs 1")]
    campaign: String,
}

/// A program that judges.
#[derive(Clone, Debug)]
struct Judge {
    name: String,
    program: PathBuf,
    args: Vec<String>,
    /// Where it runs: tests expect their package's folder.
    folder: PathBuf,
    /// A mutant that takes longer hangs.
    limit: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    Hung,
}

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let dir = args.dir.canonicalize().with_context(|| format!("{}: no such folder", args.dir.display()))?;
    let mut mutants = load(&dir)?;
    let of = mutants.len();
    if args.only.is_empty() {
        mutants.shuffle(&mut SmallRng::seed_from_u64(args.seed));
        mutants.truncate(args.sample);
    } else {
        mutants.retain(|m| args.only.contains(&m.id));
    }
    let mut judges = build(&dir, args)?;
    eprintln!("{} judges; each runs once without a mutant", judges.len());
    for judge in &mut judges {
        let begun = Instant::now();
        let outcome = run_one(judge, 0)?;
        if outcome != Outcome::Passed {
            bail!("{} fails without any mutant: mend that first", judge.name);
        }
        // Mutants run beside one another: be generous.
        judge.limit = begun.elapsed() * (6 * args.jobs as u32) + Duration::from_secs(20);
    }
    let bar = ProgressBar::new(mutants.len() as u64).with_style(ProgressStyle::with_template(
        "{bar:30} {pos}/{len} mutants, {elapsed} gone, {eta} to go {msg}",
    )?);
    let (queue, verdicts) = (Mutex::new(mutants.into_iter()), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| -> Result<()> {
        let worker = || -> Result<()> {
            loop {
                let Some(mutant) = queue.lock().expect("no worker panics").next() else { return Ok(()) };
                let verdict = judged(&judges, &mutant)?;
                bar.println(line(&mutant, verdict.as_deref()));
                bar.inc(1);
                verdicts.lock().expect("no worker panics").insert(mutant.id, (mutant, verdict));
            }
        };
        let workers: Vec<_> = (0..args.jobs.max(1)).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|w| w.join().expect("a worker panicked"))
    })?;
    bar.finish_and_clear();
    report(&verdicts.into_inner().expect("no worker panics"), of);
    Ok(())
}

fn line(m: &Mutant, verdict: Option<&str>) -> String {
    let verdict = verdict.map_or("SURVIVES".into(), |by| format!("caught by {by}"));
    format!("{:5} {}:{} {}: {}: {verdict}", m.id, m.file, m.line, m.function, m.what)
}

fn report(verdicts: &BTreeMap<u32, (Mutant, Option<String>)>, of: usize) {
    let caught = verdicts.values().filter(|(_, v)| v.is_some()).count();
    let survivors: Vec<_> = verdicts.values().filter(|(_, v)| v.is_none()).collect();
    println!("\nsurvivors:");
    for (mutant, _) in &survivors {
        println!("{}", line(mutant, None));
    }
    let share = 100.0 * caught as f64 / verdicts.len().max(1) as f64;
    println!("\n{caught} of {} mutants caught ({share:.1} %), drawn from {of} viable ones", verdicts.len());
    let mut by: BTreeMap<&str, usize> = BTreeMap::new();
    for by_name in verdicts.values().filter_map(|(_, v)| v.as_deref()) {
        *by.entry(by_name).or_default() += 1;
    }
    for (name, count) in by {
        println!("  {count:4} by {name}");
    }
}

/// The judge that caught it.
fn judged(judges: &[Judge], mutant: &Mutant) -> Result<Option<String>> {
    for judge in judges {
        match run_one(judge, mutant.id)? {
            Outcome::Passed => {}
            Outcome::Failed => return Ok(Some(judge.name.clone())),
            Outcome::Hung => return Ok(Some(format!("{} (hangs)", judge.name))),
        }
    }
    Ok(None)
}

fn run_one(judge: &Judge, mutant: u32) -> Result<Outcome> {
    let child = Command::new(&judge.program)
        .args(&judge.args)
        .env("PAGETIER_MUTANT", mutant.to_string())
        .env("PROPTEST_CASES", "64")
        .current_dir(&judge.folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .with_context(|| format!("{} cannot be started", judge.program.display()))?;
    await_end(child, if mutant == 0 { Duration::from_secs(1800) } else { judge.limit })
}

fn await_end(mut child: Child, limit: Duration) -> Result<Outcome> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() { Outcome::Passed } else { Outcome::Failed });
        }
        if begun.elapsed() > limit {
            // The whole group: tests start processes of their own.
            let _ = Command::new("kill").args(["-9", "--", &format!("-{}", child.id())]).status();
            let _ = child.wait();
            return Ok(Outcome::Hung);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Builds the judges, fastest first.
fn build(dir: &Path, args: &RunArgs) -> Result<Vec<Judge>> {
    let mut judges = Vec::new();
    let crates = ["pagetier-page", "pagetier-bufpool", "pagetier-ssdcache"];
    let mut of_crates = vec!["test", "--no-run"];
    for name in &crates {
        of_crates.extend(["-p", name]);
    }
    of_crates.extend(["--lib", "--tests"]);
    judges.extend(built(dir, &of_crates)?);
    let mut of_root: Vec<&str> = vec!["test", "--no-run", "-p", "pagetier", "--lib"];
    for test in &args.tests {
        of_root.extend(["--test", test]);
    }
    judges.extend(built(dir, &of_root)?);
    let campaign = ["build", "--release", "-p", "pagetier-sim", "--bin", "campaign"];
    for mut judge in built(dir, &campaign)? {
        judge.args = args.campaign.split_whitespace().map(str::to_owned).collect();
        judge.folder = dir.to_owned();
        judges.push(judge);
    }
    Ok(judges)
}

fn built(dir: &Path, args: &[&str]) -> Result<Vec<Judge>> {
    eprintln!("cargo {}", args.join(" "));
    let output = Command::new("cargo")
        .args(args)
        .args(["--message-format=json", "--quiet"])
        .env("RUSTFLAGS", "--cap-lints=allow")
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
        let package = Path::new(manifest).parent().unwrap_or(dir);
        let short = package.file_name().unwrap_or_default().to_string_lossy();
        judges.push(Judge {
            name: format!("{short}:{}", value["target"]["name"].as_str().unwrap_or_default()),
            program: program.into(),
            args: Vec::new(),
            folder: package.to_owned(),
            limit: Duration::ZERO,
        });
    }
    Ok(judges)
}
