//! One run: load, warm up until steady, measure.

use super::observe::{LOOK_EVERY, Observer};
use super::results::{Finished, Setting};
use super::steady::{Window, is_steady};
use crate::command::cli::{Cli, Ratio};
use crate::command::matrix::Case;
use crate::database::engine::Database;
use crate::database::error::DbError;
use crate::run::location::{Location, Notes};
use crate::run::report::page_io_ms;
use crate::run::runtime::runtime;
use crate::run::session::{Session, SessionError};
use crate::run::terminals::{Measured, Slice, Stop, Terminals};
use pagetier::stats::Stats;
use pagetier_testing::{EmulatedClock, VirtualClock};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How often a window checks whether it has its New-Orders.
const TICK: Duration = Duration::from_millis(100);

/// A loaded database that many runs start from.
pub(crate) struct Loaded {
    location: Location,
    notes: Notes,
}

/// The state of a run, for the progress bar.
pub(crate) struct Step<'a> {
    pub(crate) warmup: &'a [Window],
    pub(crate) measured: &'a [Window],
}

/// The options of a single run of `case`.
fn options(base: &Cli, case: &Case) -> Cli {
    let mut cli = base.clone();
    // Through text, since a checked percentage has no other way in.
    cli.zone_percent = case.zone_percent.to_string().parse().ok();
    cli.db_ratio = Some(Ratio::new(case.shape.db, case.shape.ssd, case.shape.pool));
    cli
}

/// Loads the database that `case`, with its SSD, needs.
pub(crate) fn load(base: &Cli, case: &Case, stop: &Arc<Stop>) -> Result<Loaded, SessionError> {
    let (cli, clock) = (options(base, case), VirtualClock::new());
    let runtime = runtime(Some(&clock)).map_err(no_runtime)?;
    runtime.block_on(async {
        let session = Session::at(&cli, Location::new(&cli, Some(clock.clone()))?, Arc::clone(stop));
        let notes = session.load().await?;
        Ok(Loaded { location: session.into_location(), notes })
    })
}

/// Runs `case`; `None` when the user ended it early.
pub(crate) fn run_case(
    base: &Cli,
    case: &Case,
    setting: &Setting,
    loaded: &Loaded,
    stop: &Arc<Stop>,
    see: &dyn Fn(&Step<'_>),
) -> Result<Option<Finished>, SessionError> {
    let (cli, clock) = (options(base, case), VirtualClock::new());
    let began = std::time::Instant::now();
    let runtime = runtime(Some(&clock)).map_err(no_runtime)?;
    runtime.block_on(async {
        let location = loaded.location.share(EmulatedClock::Virtual(clock.clone()));
        let location = location.ok_or_else(|| SessionError::Usage("a comparison runs in memory".into()))?;
        let session = Session::at(&cli, location, Arc::clone(stop));
        let mut notes = loaded.notes;
        // One load serves every pool size of its SSD, and the notes have that of its first case.
        notes.pool_bytes = cli.pool_bytes(notes.loaded_bytes, notes.ssd_bytes);
        // `false`: each run is on a copy of a database that was closed, so there is no recovery to check.
        let opened = session.open(&case.policies(), &notes, false).await?;
        let mut run = Run::start(&opened.database, setting, stop, case.is_observed());
        let measured = run.finish(see).await;
        let Run { terminals, warmup, measured: windows, steady, observer, .. } = run;
        // The terminals end even if the run has failed: they use the store, which is closed next.
        let counts = terminals.end(measured.as_ref().map(|_| ()).map_err(|_| DbError::Stopped)).await;
        let mut measured = measured?;
        measured.counts = counts?;
        if measured.interrupted {
            return Ok(None);
        }
        let observed = observer.map(|observer| observer.finish(&opened.database.store));
        let row = session.close_and_report(opened, &case.policies(), &notes, &measured).await?;
        let wall_seconds = (began.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        Ok(Some(Finished { row, steady, warmup, measured: windows, wall_seconds, observed }))
    })
}

fn no_runtime(error: std::io::Error) -> SessionError {
    SessionError::Usage(format!("the runtime does not start: {error}"))
}

struct Run<'d> {
    terminals: Terminals<'d>,
    setting: &'d Setting,
    stop: &'d Stop,
    warmup: Vec<Window>,
    measured: Vec<Window>,
    steady: bool,
    observer: Option<Observer>,
    looked: Instant,
}

impl<'d> Run<'d> {
    fn start(database: &'d Arc<Database>, setting: &'d Setting, stop: &'d Stop, observed: bool) -> Self {
        Self {
            terminals: Terminals::start(database, setting.terminals, setting.seed, true),
            setting,
            stop,
            warmup: Vec::new(),
            measured: Vec::new(),
            steady: false,
            observer: observed.then(Observer::default),
            looked: Instant::now(),
        }
    }

    /// Runs warm-up and measurement. The terminals' counts are added when they end.
    async fn finish(&mut self, see: &dyn Fn(&Step<'_>)) -> Result<Measured, DbError> {
        while !self.steady && self.warmup.len() < self.setting.windows_max && !self.stop.is_asked() {
            let (window, _) = self.window().await?;
            self.warmup.push(window);
            self.steady = is_steady(&self.warmup);
            see(&Step { warmup: &self.warmup, measured: &[] });
        }
        self.terminals.measure(true);
        // The runtime has one thread, and nothing awaits here: all counts begin at one instant.
        let (began, before, base) = (Instant::now(), self.stats(), self.terminals.new_orders());
        let mut slices = Vec::new();
        while self.measured.len() < self.setting.windows_measured && !self.stop.is_asked() {
            let (window, end) = self.window().await?;
            self.measured.push(window);
            slices.push(Slice { end, new_orders: self.terminals.new_orders() - base });
            see(&Step { warmup: &self.warmup, measured: &self.measured });
        }
        self.terminals.measure(false);
        Ok(Measured {
            elapsed: began.elapsed(),
            before,
            slices,
            counts: crate::run::terminals::Counts::default(),
            recorded_warmup: None,
            interrupted: self.stop.is_asked(),
        })
    }

    fn stats(&self) -> Stats {
        self.terminals.database.store.stats()
    }

    /// Runs one window; returns it and the state at its end.
    async fn window(&mut self) -> Result<(Window, Stats), DbError> {
        let (began, before, base) = (Instant::now(), self.stats(), self.terminals.new_orders());
        // A window is an amount of work, not of time: a slow pair is measured over as many New-Orders as
        // a fast one. It may end a tick late, and its cost is divided by the New-Orders that it has had.
        while self.terminals.new_orders() < base + self.setting.window && !self.stop.is_asked() {
            self.terminals.wait(TICK, self.stop, |_| ()).await?;
            if let Some(observer) = self.observer.as_mut().filter(|_| self.looked.elapsed() >= LOOK_EVERY) {
                observer.look(&self.terminals.database.store, self.looked.elapsed().as_secs_f64());
                self.looked = Instant::now();
            }
        }
        let (after, new_orders) = (self.stats(), self.terminals.new_orders() - base);
        let window = Window {
            seconds: began.elapsed().as_secs_f64(),
            new_orders,
            ms_per_new_order: page_io_ms(&before, &after) / new_orders.max(1) as f64,
            ssd_filled: after.ssd.pages as f64 / after.ssd.slots.max(1) as f64,
        };
        Ok((window, after))
    }
}
