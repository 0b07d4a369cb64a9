//! A run: terminals in a closed loop, a warm-up, and a measured interval between two snapshots.

use crate::database::engine::Database;
use crate::database::error::DbError;
use crate::tx::{Kind, Outcome, Terminal};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use pagetier::stats::Stats;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) terminals: u32,
    pub(crate) warmup: Duration,
    pub(crate) seconds: Duration,
    pub(crate) seed: u64,
    /// In virtual time a transaction without I/O takes a millisecond, which represents its CPU time.
    pub(crate) virtual_time: bool,
}

/// The number of equal slices of the measured interval: in a steady state their costs are equal.
const SLICES: u32 = 5;

/// The results of a run.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) elapsed: Duration,
    /// The start of the measured interval.
    pub(crate) before: Stats,
    /// The ends of its slices; the last is the interval's end.
    pub(crate) slices: Vec<Slice>,
    pub(crate) counts: Counts,
    /// Requests recorded before the measured interval began.
    pub(crate) recorded_warmup: Option<u64>,
    /// The user ended it early.
    pub(crate) interrupted: bool,
}

/// The end of a slice.
#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) end: Stats,
    /// New-Orders committed since the measured interval began.
    pub(crate) new_orders: u64,
}

impl Measured {
    /// The end of the measured interval.
    pub(crate) fn after(&self) -> &Stats {
        self.slices.last().map_or(&self.before, |last| &last.end)
    }
}

/// The terminals' counts during the measured interval.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    /// By [`Kind`].
    pub(crate) committed: [u64; 5],
    pub(crate) rolled_back: u64,
    /// Response times of New-Orders, in microseconds.
    pub(crate) new_order_us: Histogram<u64>,
}

impl Default for Counts {
    fn default() -> Self {
        let new_order_us = Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits are allowed"));
        Self { committed: [0; 5], rolled_back: 0, new_order_us }
    }
}

impl Counts {
    fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.committed.iter_mut().zip(other.committed) {
            *mine += theirs;
        }
        self.rolled_back += other.rolled_back;
        // Both histograms resize themselves.
        let _fits = self.new_order_us.add(&other.new_order_us);
    }

    fn record(&mut self, kind: Kind, outcome: Outcome, took: Duration) {
        match outcome {
            Outcome::Committed => self.committed[kind as usize] += 1,
            Outcome::RolledBack => self.rolled_back += 1,
        }
        if kind == Kind::NewOrder {
            // The histogram resizes itself.
            let _fits = self.new_order_us.record(took.as_micros() as u64);
        }
    }
}

/// Requests an early end of a run or a load.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    asked: AtomicBool,
    notify: Notify,
}

impl Stop {
    /// A stop that Ctrl-C requests. A second Ctrl-C ends the process at once; a kept database recovers.
    pub(crate) fn on_ctrl_c() -> Arc<Self> {
        let stop = Arc::new(Self::default());
        let asked = Arc::clone(&stop);
        tokio::spawn(async move {
            while tokio::signal::ctrl_c().await.is_ok() {
                if asked.asked.swap(true, Ordering::AcqRel) {
                    std::process::exit(130);
                }
                asked.notify.notify_waiters();
                eprintln!("\nending the run (press Ctrl-C again to quit at once)");
            }
        });
        stop
    }

    /// Whether the end was requested.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Waits for the request. Cancel-safe.
    pub(crate) async fn asked(&self) {
        loop {
            // Register before looking, so that a request in between still wakes this task.
            let notified = self.notify.notified();
            if self.is_asked() {
                return;
            }
            notified.await;
        }
    }
}

#[derive(Debug, Default)]
struct Phase {
    measuring: AtomicBool,
    /// New-Orders committed so far.
    new_orders: AtomicU64,
    ended: AtomicBool,
}

/// The running terminals, and the task that keeps the log short.
pub(crate) struct Terminals<'d> {
    pub(crate) database: &'d Arc<Database>,
    phase: Arc<Phase>,
    tasks: JoinSet<Result<Counts, DbError>>,
    checkpoints: JoinHandle<Result<(), DbError>>,
}

impl<'d> Terminals<'d> {
    pub(crate) fn start(database: &'d Arc<Database>, terminals: u32, seed: u64, virtual_time: bool) -> Self {
        let phase = Arc::new(Phase::default());
        let mut tasks = JoinSet::new();
        for number in 0..terminals {
            let terminal = Terminal::new(Arc::clone(database), number, seed);
            tasks.spawn(work(terminal, Arc::clone(&phase), virtual_time));
        }
        let checkpoints = tokio::spawn(Arc::clone(database).keep_log_short());
        Self { database, phase, tasks, checkpoints }
    }

    /// Switches counting of transactions on or off.
    pub(crate) fn measure(&self, on: bool) {
        self.phase.measuring.store(on, Ordering::Release);
    }

    /// New-Orders committed so far, including those before the measurement.
    pub(crate) fn new_orders(&self) -> u64 {
        self.phase.new_orders.load(Ordering::Relaxed)
    }

    /// Waits until an interval has passed, the user stops the run, or an error occurs. Calls `tick` every
    /// second with the elapsed time.
    pub(crate) async fn wait(
        &mut self,
        duration: Duration,
        stop: &Stop,
        mut tick: impl FnMut(Duration),
    ) -> Result<(), DbError> {
        let until = Instant::now() + duration;
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                // Branches that are ready together are otherwise taken at random, and virtual time must
                // follow from the seed.
                biased;
                () = stop.asked() => return Ok(()),
                () = tokio::time::sleep_until(until) => {
                    tick(duration);
                    return Ok(());
                }
                // A terminal ends by itself only with an error.
                Some(Ok(Err(error))) = self.tasks.join_next() => return Err(error),
                Ok(Err(error)) = &mut self.checkpoints => return Err(error),
                _ = ticks.tick() => {
                    tick(duration.saturating_sub(until.saturating_duration_since(Instant::now())));
                }
            }
        }
    }

    /// Lets every terminal finish its transaction, and returns their measured counts. `failed` is the error
    /// that ended the run, if any.
    pub(crate) async fn end(mut self, mut failed: Result<(), DbError>) -> Result<Counts, DbError> {
        self.phase.ended.store(true, Ordering::Release);
        let mut counts = Counts::default();
        while let Some(ended) = self.tasks.join_next().await {
            match ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())) {
                Ok(theirs) => counts.add(&theirs),
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        self.database.end_checkpoints();
        // `wait` has taken the result of a task that has finished, and must not be followed by another poll.
        if !self.checkpoints.is_finished() {
            failed = failed.and(self.checkpoints.await.unwrap_or(Ok(())));
        }
        failed.map(|()| counts)
    }
}

/// Runs the plan. Calls `measuring` with true when the warm-up ends and with false when the measured interval
/// ends. Every transaction that was begun is finished.
pub(crate) async fn run(
    database: &Arc<Database>,
    plan: Plan,
    stop: &Stop,
    bar: &ProgressBar,
    measuring: impl Fn(bool),
) -> Result<Measured, DbError> {
    let mut terminals = Terminals::start(database, plan.terminals, plan.seed, plan.virtual_time);
    let show = |base: Duration| move |over: Duration| bar.set_position((base + over).as_secs());

    bar.set_message("warming up");
    let mut failed = terminals.wait(plan.warmup, stop, show(Duration::ZERO)).await;
    // Delays begin before counting does, so that no counted transaction runs without them.
    measuring(true);
    terminals.measure(true);
    let (began, before, new_orders_before) = (Instant::now(), database.store.stats(), terminals.new_orders());
    let recorded_warmup = database.store.trace().progress().map(|so_far| so_far.records);
    bar.set_message("measuring");
    let mut slices = Vec::new();
    for slice in 0..SLICES {
        // An error waits until the terminals have ended: they use the store.
        if failed.is_ok() {
            let base = plan.warmup + plan.seconds / SLICES * slice;
            failed = terminals.wait(plan.seconds / SLICES, stop, show(base)).await;
        }
        let new_orders = terminals.new_orders() - new_orders_before;
        slices.push(Slice { end: database.store.stats(), new_orders });
    }
    terminals.measure(false);
    let elapsed = began.elapsed();
    measuring(false);
    bar.set_message("ending the last transactions");
    let counts = terminals.end(failed).await?;
    Ok(Measured { elapsed, before, slices, counts, recorded_warmup, interrupted: stop.is_asked() })
}

async fn work(mut terminal: Terminal, phase: Arc<Phase>, virtual_time: bool) -> Result<Counts, DbError> {
    let mut counts = Counts::default();
    while !phase.ended.load(Ordering::Acquire) {
        let began = Instant::now();
        // No keying or think times (clause 5.2.5): with them, a warehouse has a dozen New-Orders a minute,
        // and the few warehouses of a test would not keep a disk busy.
        let (kind, outcome) = terminal.next().await?;
        // The clock moves only while no task can run. Terminals whose pages are all in the pool would
        // otherwise run for ever at one instant.
        if virtual_time && began.elapsed().is_zero() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let counts_here = kind == Kind::NewOrder && outcome == Outcome::Committed;
        phase.new_orders.fetch_add(u64::from(counts_here), Ordering::Relaxed);
        if phase.measuring.load(Ordering::Acquire) {
            counts.record(kind, outcome, began.elapsed());
        }
        // Let other tasks run after a transaction that never waited.
        tokio::task::yield_now().await;
    }
    Ok(counts)
}
