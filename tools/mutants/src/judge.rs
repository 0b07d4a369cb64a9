//! Judges mutants: runs the tests and campaigns that reach a mutant, fastest first, until one of them fails.

use crate::Mutant;
use crate::args::{RunArgs, SampleArgs};
use crate::bench::judges;
use crate::instrument::load;
use crate::judges::Judge;
use crate::process::{Ended, Job};
use crate::verdicts::{Verdict, Verdicts, line};
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A judge hangs if it takes more than this many times as long as without the mutant, plus [`HANGS_AFTER`].
const SLOWER_MAX: u32 = 10;
const HANGS_AFTER: Duration = Duration::from_secs(12);
/// A judge runs its tests in batches of about this many seconds, the quick ones first, so that neither a late
/// failure nor a hang waits for the slow ones.
const BATCH_SECONDS: f64 = 5.0;

impl SampleArgs {
    /// The mutants to judge, and the number of those from which they are drawn.
    fn mutants(&self) -> Result<(Vec<Mutant>, usize)> {
        let mut mutants = within(load(&self.dir)?, &self.within);
        let of = mutants.len();
        if self.only.is_empty() {
            mutants = drawn(mutants, self.sample, self.seed);
        } else {
            mutants.retain(|m| self.only.contains(&m.id));
        }
        Ok((mutants, of))
    }

    /// Prints the verdicts so far.
    pub(crate) fn report(&self) -> Result<()> {
        let (mutants, of) = self.mutants()?;
        Verdicts::open(&self.dir.join(&self.verdicts))?.report(&mutants, of);
        Ok(())
    }
}

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let dir = &args.sample.dir;
    let dir = dir.canonicalize().with_context(|| format!("{}: no such folder", dir.display()))?;
    let (mutants, _) = args.sample.mutants()?;
    let verdicts = Verdicts::open(&dir.join(&args.sample.verdicts))?;
    let judges = judges(&dir, args)?;
    let bar = ProgressBar::new(mutants.len() as u64).with_style(ProgressStyle::with_template(
        "{bar:30} {pos}/{len} mutants, {elapsed} elapsed, {eta} left {msg}",
    )?);
    let left: Vec<_> = mutants.into_iter().filter(|m| !verdicts.has(m.id)).collect();
    bar.inc(bar.length().unwrap_or(0) - left.len() as u64);
    let (queue, verdicts) = (Mutex::new(left.into_iter()), Mutex::new(verdicts));
    std::thread::scope(|scope| -> Result<()> {
        let worker = || -> Result<()> {
            loop {
                let Some(mutant) = queue.lock().expect("no worker panics").next() else { return Ok(()) };
                let verdict = judged(&judges, &mutant, args.threads)?;
                let shown = line(&mutant, &verdict);
                bar.println(&shown);
                if bar.is_hidden() {
                    println!("{shown}");
                }
                bar.inc(1);
                verdicts.lock().expect("no worker panics").add(verdict)?;
            }
        };
        let workers: Vec<_> = (0..args.jobs.max(1)).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|w| w.join().expect("a worker panicked"))
    })?;
    bar.finish_and_clear();
    args.sample.report()
}

/// Runs the judges that reach the mutant: those of its own package first, then the others, in both cases the
/// fastest first.
fn judged(judges: &[Judge], mutant: &Mutant, threads: usize) -> Result<Verdict> {
    let begun = Instant::now();
    let reaching = judges.iter().map(|judge| (judge, batches(judge, mutant.id)));
    let reaching: Vec<_> = reaching.filter(|(_, batches)| !batches.is_empty()).collect();
    let mut verdict = Verdict { id: mutant.id, judges: reaching.len(), ..Verdict::default() };
    let mut turns: Vec<(&Judge, Vec<&str>, Duration)> = reaching
        .into_iter()
        .flat_map(|(judge, batches)| batches.into_iter().map(move |(tests, takes)| (judge, tests, takes)))
        .collect();
    turns.sort_by_key(|(judge, _, takes)| (!mutant.file.starts_with(&judge.package), *takes));
    for (judge, tests, takes) in turns {
        let limit = takes * SLOWER_MAX + HANGS_AFTER;
        let job = Job { judge, tests: &tests, mutant: mutant.id, reached: None, threads, limit };
        match job.run()? {
            Ended::Passed => continue,
            Ended::Failed(test) => verdict.test = test,
            Ended::Hung => verdict.hung = true,
        }
        verdict.by = Some(judge.name.clone());
        break;
    }
    verdict.seconds = begun.elapsed().as_secs_f64();
    Ok(verdict)
}

/// The tests of `judge` that reach the mutant, the fastest first, and how long each batch takes.
fn batches(judge: &Judge, mutant: u32) -> Vec<(Vec<&str>, Duration)> {
    let mut tests: Vec<_> = judge.tests.iter().filter(|t| t.reached.contains(&mutant)).collect();
    tests.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let mut batches: Vec<(Vec<&str>, f64)> = Vec::new();
    for test in tests {
        match batches.last_mut() {
            Some((names, takes)) if *takes + test.seconds <= BATCH_SECONDS => {
                names.push(&test.name);
                *takes += test.seconds;
            }
            _ => batches.push((vec![&test.name], test.seconds)),
        }
    }
    batches.into_iter().map(|(names, takes)| (names, Duration::from_secs_f64(takes))).collect()
}

/// The mutants of files at or below `paths`; all mutants if there are no paths.
pub(crate) fn within(mut mutants: Vec<Mutant>, paths: &[PathBuf]) -> Vec<Mutant> {
    if !paths.is_empty() {
        mutants.retain(|m| paths.iter().any(|path| Path::new(&m.file).starts_with(path)));
    }
    mutants
}

/// Draws a sample of `count` mutants.
pub(crate) fn drawn(mut mutants: Vec<Mutant>, count: usize, seed: u64) -> Vec<Mutant> {
    mutants.shuffle(&mut SmallRng::seed_from_u64(seed));
    mutants.truncate(count);
    mutants
}
