//! Runs several cases at once, one per core, each on its own thread and runtime.

use super::drive::{Loaded, Step, load, run_case};
use super::progress::Progress;
use super::results::{Outcome, Setting};
use super::steady::spread;
use crate::command::cli::Cli;
use crate::command::matrix::Case;
use crate::run::session::SessionError;
use crate::run::terminals::Stop;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

/// How the comparison ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ended {
    /// The user ended it early.
    pub(crate) interrupted: bool,
    /// A run failed, other than by a refusal of its policies, or left an inconsistent database.
    pub(crate) failed: bool,
}

/// The state that runs share.
struct Common<'a> {
    base: &'a Cli,
    setting: &'a Setting,
    stop: Arc<Stop>,
    queue: Mutex<VecDeque<Case>>,
    loads: Vec<Load>,
    progress: Progress,
}

/// A database and the number of runs that still need it. The lock is held while it is loaded.
struct Load {
    db: u32,
    ssd: u32,
    loaded: Mutex<(usize, Option<Arc<Loaded>>)>,
}

/// Runs `cases`, `jobs` at a time, and passes each outcome to `keep`, whose error ends the comparison.
pub(crate) fn run_all(
    base: &Cli,
    setting: &Setting,
    cases: &[Case],
    jobs: usize,
    keep: &mut dyn FnMut(Case, Outcome) -> Result<(), Box<dyn Error>>,
) -> Result<Ended, Box<dyn Error>> {
    if cases.is_empty() {
        return Ok(Ended::default());
    }
    // Each run has a runtime of its own, whose clock stands still while it works. Signals need one in real
    // time.
    let signals = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let stop = {
        let _context = signals.enter();
        Stop::on_ctrl_c()
    };
    let common = Common {
        base,
        setting,
        stop,
        queue: Mutex::new(cases.iter().cloned().collect()),
        loads: loads(cases),
        progress: Progress::new(cases.len(), jobs),
    };
    let mut ended = Ended::default();
    let (sender, outcomes) = channel();
    let kept = std::thread::scope(|scope| {
        for worker in 0..jobs {
            let (common, sender) = (&common, sender.clone());
            scope.spawn(move || common.work(worker, &sender));
        }
        // Otherwise the loop below would wait for further outcomes for ever.
        drop(sender);
        outcomes.iter().try_for_each(|(case, outcome)| {
            ended.failed |= is_failure(&outcome);
            // After an error the runs that have begun end, and no other begins.
            keep(case, outcome).inspect_err(|_| common.queue.lock().clear())
        })
    });
    common.progress.clear();
    ended.interrupted = common.stop.is_asked();
    kept?;
    Ok(ended)
}

fn loads(cases: &[Case]) -> Vec<Load> {
    let mut loads: Vec<Load> = Vec::new();
    for case in cases {
        let shape = case.shape;
        match loads.iter_mut().find(|load| (load.db, load.ssd) == (shape.db, shape.ssd)) {
            Some(load) => load.loaded.get_mut().0 += 1,
            None => loads.push(Load { db: shape.db, ssd: shape.ssd, loaded: Mutex::new((1, None)) }),
        }
    }
    loads
}

fn is_failure(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Finished(finished) => finished.row.consistency != "ok",
        Outcome::NotRun { refused, .. } => !refused,
    }
}

impl Common<'_> {
    fn work(&self, worker: usize, outcomes: &Sender<(Case, Outcome)>) {
        let line = self.progress.line();
        while !self.stop.is_asked() {
            let Some(case) = self.queue.lock().pop_front() else { break };
            line.set_message(format!("{:<14} {:<8} loading", case.policies(), case.shape));
            let ran = self.loaded(&case).and_then(|loaded| {
                let see = |step: &Step<'_>| self.progress.step(worker, &line, &case, step);
                run_case(self.base, &case, self.setting, &loaded, &self.stop, &see)
            });
            // Also after a failure: its database must not stay in memory.
            self.let_go(&case);
            let (outcome, windows) = match ran {
                Ok(Some(finished)) => {
                    let windows = finished.warmup.len() + finished.measured.len();
                    (Outcome::Finished(Box::new(finished)), windows)
                }
                Ok(None) | Err(SessionError::Interrupted) => break,
                Err(error) => {
                    // A store may refuse policies for its sizes: the table says so, and nothing has failed.
                    let refused = matches!(error, SessionError::Open(_));
                    (Outcome::NotRun { error: pagetier::errors::Causes(&error).to_string(), refused }, 0)
                }
            };
            self.progress.ended(worker, windows, &summary_of(&case, &outcome));
            if outcomes.send((case, outcome)).is_err() {
                break;
            }
        }
        line.finish_and_clear();
    }

    fn load_of(&self, case: &Case) -> Option<&Load> {
        self.loads.iter().find(|load| (load.db, load.ssd) == (case.shape.db, case.shape.ssd))
    }

    fn loaded(&self, case: &Case) -> Result<Arc<Loaded>, SessionError> {
        let Some(of_case) = self.load_of(case) else { unreachable!("every case has its database") };
        // Held while it loads: the other workers of this database wait, instead of loading it as well.
        let (_, loaded) = &mut *of_case.loaded.lock();
        match loaded {
            Some(loaded) => Ok(Arc::clone(loaded)),
            None => Ok(Arc::clone(loaded.insert(Arc::new(load(self.base, case, &self.stop)?)))),
        }
    }

    /// Frees a database's memory after its last run.
    fn let_go(&self, case: &Case) {
        if let Some(of_case) = self.load_of(case) {
            let (left, loaded) = &mut *of_case.loaded.lock();
            *left -= 1;
            if *left == 0 {
                *loaded = None;
            }
        }
    }
}

/// Summarises an outcome in one line.
fn summary_of(case: &Case, outcome: &Outcome) -> String {
    let zone =
        if case.zone_percent == 10.0 { String::new() } else { format!(" zone {}%", case.zone_percent) };
    let what = match outcome {
        Outcome::NotRun { error, .. } => format!("not run: {error}"),
        Outcome::Finished(finished) => format!(
            "{:.1} ms per New-Order, {:.0} tpmC, {} after {} windows, within {:.1}% ({:.0} s)",
            finished.row.total_ms_per_new_order,
            finished.row.tpmc,
            if finished.steady { "steady" } else { "not steady (a longer run would give another figure)" },
            finished.warmup.len(),
            100.0 * spread(&finished.measured),
            finished.wall_seconds
        ),
    };
    format!("{} {}{zone}: {what}", case.policies(), case.shape)
}
