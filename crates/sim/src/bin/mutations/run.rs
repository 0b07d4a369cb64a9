//! Builds the mutated copy, and runs what should catch a mutation.

use crate::patch::{Catcher, Mutation};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The environment variable that names the mutation of a process.
const VARIABLE: &str = "PAGETIER_MUTATION";

/// A test that takes longer hangs, which counts as noticed.
const TEST_MAX: Duration = Duration::from_secs(120);

/// A search of the campaign that takes longer is given up.
const SEARCH_MAX: Duration = Duration::from_secs(900);

/// The packages whose tests are built, and the libraries among their targets.
const TESTS: &str = "--lib -p pagetier -p pagetier-ssdcache -p pagetier-tests";
const LIBRARIES: [&str; 3] = ["pagetier", "pagetier_ssdcache", "pagetier_wal"];

/// The executables of the copy, by target.
pub(crate) struct Built {
    executables: BTreeMap<String, (PathBuf, PathBuf)>,
}

/// Builds the campaign of the copy in `tree`, and the tests that are to catch `all`, with the test profile,
/// whose libraries are optimised.
pub(crate) fn build(tree: &Path, dir: &Path, all: &[Mutation]) -> Result<Built, String> {
    let mut executables = BTreeMap::new();
    let targets: BTreeSet<&str> = all
        .iter()
        .filter_map(|one| match &one.caught_by {
            Catcher::Test { target, .. } => Some(target.as_str()),
            Catcher::Campaign(_) => None,
        })
        .filter(|target| !LIBRARIES.contains(target))
        .collect();
    let mut tests: Vec<&str> = ["test", "--no-run"].into_iter().chain(TESTS.split(' ')).collect();
    tests.extend(targets.into_iter().flat_map(|target| ["--test", target]));
    let campaign = vec!["build", "--profile", "test", "-p", "pagetier-sim", "--bin", "campaign"];
    // Apart: its other target has the name of another package's.
    let log = vec!["test", "--no-run", "--lib", "-p", "pagetier-wal"];
    for args in [tests, log, campaign] {
        let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
        cargo
            .args(args)
            .args(["--quiet", "--message-format", "json"])
            .current_dir(tree)
            .env_remove("RUSTFLAGS");
        cargo.env("CARGO_TARGET_DIR", std::path::absolute(dir.join("build")).map_err(|e| e.to_string())?);
        let output = cargo.stderr(Stdio::inherit()).output().map_err(|error| format!("cargo: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        for message in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            if let Some(error) = message["message"]["rendered"].as_str().filter(|_| !output.status.success())
            {
                eprintln!("{error}");
            }
            let (name, path) = (&message["target"]["name"], &message["executable"]);
            if let (Some(name), Some(path), Some(manifest)) =
                (name.as_str(), path.as_str(), message["manifest_path"].as_str())
            {
                let package = Path::new(manifest).parent().unwrap_or(tree);
                executables.insert(name.to_owned(), (path.into(), package.to_owned()));
            }
        }
        if !output.status.success() {
            return Err(format!("the mutated copy in {} does not build", tree.display()));
        }
    }
    Ok(Built { executables })
}

impl Built {
    /// How `one` was caught.
    ///
    /// # Errors
    /// Why it was not.
    pub(crate) fn catch(&self, one: &Mutation, seeds: u64) -> Result<String, String> {
        match &one.caught_by {
            Catcher::Test { target, name } => self.by_test(&one.name, target, name),
            Catcher::Campaign(with) => self.by_campaign(&one.name, with, seeds),
        }
    }

    fn by_test(&self, mutation: &str, target: &str, name: &str) -> Result<String, String> {
        let run = |mutation| self.run(target, &["--exact", name], mutation, TEST_MAX);
        let (ended, text) = run(None)?;
        // A test that has another name by now "passes", too: none is run.
        if ended != Some(0) || !text.contains("1 passed") {
            return Err(format!("{name} does not pass without it"));
        }
        match run(Some(mutation))?.0 {
            Some(0) => Err(format!("{name} passes")),
            Some(_) => Ok(format!("{name} fails")),
            None => Ok(format!("{name} hangs")),
        }
    }

    fn by_campaign(&self, mutation: &str, with: &[String], seeds: u64) -> Result<String, String> {
        let run = |first: u64, seeds: u64, mutation| {
            let (first, seeds) = (first.to_string(), seeds.to_string());
            let mut args =
                vec!["--mode", "random", "--seed", &first, "--seeds", &seeds, "--violations-max", "1"];
            args.extend(["--no-shrink", "--jobs", "1", "--json"]);
            // The rules hold wherever the manifest is, and the list of hot pages would be written and read
            // between the pages that the seed has chosen.
            let usual = ["on_hdd=0", "hot_ms=0"].map(str::to_owned);
            let (hazard, others): (Vec<&String>, Vec<_>) =
                with.iter().partition(|part| part.starts_with("hazard="));
            // A hazard comes first, because it determines all other parts.
            let all: Vec<&String> = hazard.into_iter().chain(&usual).chain(others).collect();
            args.extend(all.iter().flat_map(|part| ["--with", part.as_str()]));
            let (ended, text) = self.run("campaign", &args, mutation, SEARCH_MAX)?;
            let report: Value = serde_json::from_str(&text).unwrap_or_default();
            match ended {
                Some(0) => Ok(None),
                Some(1) => Ok(Some(report)),
                Some(_) => Err(format!("campaign {} fails", args.join(" "))),
                None => Err(format!("no violation after {} s", SEARCH_MAX.as_secs())),
            }
        };
        let Some(report) = run(0, seeds, Some(mutation))? else {
            return Err(format!("no violation in {seeds} seeds"));
        };
        let violation = &report["violations"][0];
        let text = |of: &str| violation[of].as_str().unwrap_or_default().to_owned();
        let (what, place) = (text("what"), text("place"));
        let seed = place.strip_prefix("seed ").and_then(|rest| rest.split(',').next()?.parse().ok());
        let seed: u64 = seed.ok_or_else(|| format!("no seed in the report: {report}"))?;
        // What the intact store shows as well is not due to the mutation.
        if run(seed, 1, None)?.is_some() {
            return Err(format!("seed {seed} fails without it: {what}"));
        }
        Ok(format!("seed {seed}, {} crashes: {what:.70}", report["totals"]["crashes"]))
    }

    /// Runs an executable, for at most `limit`. Returns its exit code, unless it was stopped, and its output.
    fn run(
        &self,
        target: &str,
        args: &[&str],
        mutation: Option<&str>,
        limit: Duration,
    ) -> Result<(Option<i32>, String), String> {
        let (program, folder) =
            self.executables.get(target).ok_or_else(|| format!("{target} was not built"))?;
        let mut command = Command::new(program);
        command
            .args(args)
            // A test may read files by a path relative to its package, as under `cargo test`.
            .current_dir(folder)
            .env_remove(VARIABLE)
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if let Some(mutation) = mutation {
            command.env(VARIABLE, mutation);
        }
        let failed = |error: std::io::Error| format!("{}: {error}", program.display());
        let mut child = command.spawn().map_err(failed)?;
        let mut output = child.stdout.take();
        // The output is read while the process runs: a full pipe would stop it, and look like a hang.
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            output.as_mut().map(|output| output.read_to_end(&mut bytes));
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let begun = Instant::now();
        let ended = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                // By a signal: noticed, too.
                break Some(status.code().unwrap_or(-1));
            }
            if begun.elapsed() > limit {
                child.kill().and_then(|()| child.wait()).map_err(failed)?;
                break None;
            }
            pause(Duration::from_millis(20));
        };
        Ok((ended, reader.join().unwrap_or_default()))
    }
}

/// Waits, where no runtime runs.
#[expect(clippy::disallowed_methods, reason = "no task of a runtime waits here")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}
