//! Progress of concurrent runs: a bar for all, with the remaining time, and a line for each active run.

use super::drive::Step;
use crate::command::matrix::Case;
use indicatif::{MultiProgress, ProgressBar, ProgressState, ProgressStyle};
use parking_lot::Mutex;
use std::fmt::Write;
use std::time::Duration;

/// Steps per run on the bar.
const WHOLE: u64 = 1000;

/// The expected number of windows per run before the first has ended.
const WINDOWS_EXPECTED: f64 = 20.0;

/// The bars.
pub(crate) struct Progress {
    bars: MultiProgress,
    all: ProgressBar,
    cases: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Steps of active runs, by worker.
    under_way: Vec<u64>,
    finished: usize,
    windows: usize,
}

impl Progress {
    /// Creates the bars for `cases` runs, `workers` at a time.
    pub(crate) fn new(cases: usize, workers: usize) -> Self {
        let bars = MultiProgress::new();
        let all = bars.add(ProgressBar::new(cases as u64 * WHOLE));
        let style = ProgressStyle::with_template("{msg:16} [{bar:40}] {elapsed} so far, {left} left");
        let left = |state: &ProgressState, out: &mut dyn Write| {
            let (at, len) = (state.pos(), state.len().unwrap_or(0));
            let left = state.elapsed().as_secs_f64() * len.saturating_sub(at) as f64 / at.max(1) as f64;
            let written = match at {
                0 => write!(out, "unknown time"),
                _ => write!(out, "about {}", indicatif::HumanDuration(Duration::from_secs_f64(left))),
            };
            debug_assert!(written.is_ok(), "a string takes everything");
        };
        all.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).with_key("left", left));
        all.set_message(format!("0 of {cases} runs"));
        all.enable_steady_tick(Duration::from_secs(1));
        Self {
            bars,
            all,
            cases,
            state: Mutex::new(State { under_way: vec![0; workers], ..State::default() }),
        }
    }

    /// Adds a line for a worker.
    pub(crate) fn line(&self) -> ProgressBar {
        let line = self.bars.add(ProgressBar::new_spinner());
        line.set_style(
            ProgressStyle::with_template("  {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        line
    }

    /// Records that a worker has reached `step` of its run.
    pub(crate) fn step(&self, worker: usize, line: &ProgressBar, case: &Case, step: &Step<'_>) {
        let windows = step.warmup.len() + step.measured.len();
        let last = step.measured.last().or(step.warmup.last());
        let doing = if step.measured.is_empty() { "warming up" } else { "measuring" };
        if let Some(last) = last {
            line.set_message(format!(
                "{:<14} {:<8} {doing}, window {windows}: {:.1} ms per New-Order, SSD {:.0}% full",
                case.policies(),
                case.shape,
                last.ms_per_new_order,
                100.0 * last.ssd_filled
            ));
        }
        let mut state = self.state.lock();
        let expected =
            if state.finished == 0 { WINDOWS_EXPECTED } else { state.windows as f64 / state.finished as f64 };
        // A run may take longer than those before it: the bar must not say that it has ended.
        let share = (windows as f64 / expected.max(1.0)).min(0.98);
        state.under_way[worker] = (share * WHOLE as f64) as u64;
        self.show(&state);
    }

    /// Records the end of a worker's run after `windows` windows, and prints `summary`.
    pub(crate) fn ended(&self, worker: usize, windows: usize, summary: &str) {
        let mut state = self.state.lock();
        state.under_way[worker] = 0;
        state.finished += 1;
        state.windows += windows;
        self.show(&state);
        let line = format!("[{}/{}] {summary}", state.finished, self.cases);
        // A hidden bar prints nothing, but a log of the comparison wants a line for each run.
        if self.all.is_hidden() {
            eprintln!("{line}");
        } else {
            self.all.println(line);
        }
    }

    fn show(&self, state: &State) {
        self.all.set_message(format!("{} of {} runs", state.finished, self.cases));
        self.all.set_position(state.finished as u64 * WHOLE + state.under_way.iter().sum::<u64>());
    }

    /// Removes the bars.
    pub(crate) fn clear(&self) {
        self.all.finish_and_clear();
        // Without a terminal, there is nowhere to report the failure.
        let _gone = self.bars.clear();
    }
}
