//! A session: loads if necessary; then, per policy pair, opens, recovers, runs, checks, closes, and reports.

use crate::OpenDevice;
use crate::command::cli::{Cli, Time};
use crate::command::policies::Policies;
use crate::database::catalog::{Catalog, Scale};
use crate::database::consistency;
use crate::database::engine::{Database, Recovered};
use crate::database::error::DbError;
use crate::database::load::{estimate_bytes, load, steps};
use crate::run::location::{Location, LocationError, Notes};
use crate::run::report::{self, Reopened, Row, Setup};
use crate::run::terminals::{Measured, Plan, Stop, run};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pagetier::{PageStore, Retention, device::COST_POINTS, options::CostSource, what_if::WhatIfOptions};
use pagetier_control::Control;
use pagetier_ghost::chart;
use pagetier_testing::VirtualClock;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The current date in virtual time: 2023-11-14 22:13:20 UTC.
const VIRTUAL_NOW_MS: i64 = 1_700_000_000_000;

/// How often the store lists its hot set, if another machine could open it.
const HOT_SET_EVERY: Duration = Duration::from_secs(300);

/// Why a session ended without a report.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The options contradict each other, or the database.
    #[error("{0}")]
    Usage(String),
    /// The database's location failed.
    #[error(transparent)]
    Location(#[from] LocationError),
    /// The store did not open.
    #[error(transparent)]
    Open(#[from] pagetier::OpenError),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DbError),
    /// Operators cannot reach the store.
    #[error(transparent)]
    Control(#[from] pagetier_control::ListenError),
    /// Ctrl-C was pressed during the load.
    #[error("interrupted during the load: nothing was measured; the next run loads again")]
    Interrupted,
}

impl From<pagetier::Error> for SessionError {
    fn from(error: pagetier::Error) -> Self {
        Self::Database(error.into())
    }
}

/// An open database.
pub(crate) struct Opened {
    control: Option<Control>,
    pub(crate) database: Arc<Database>,
    delays: Box<dyn Fn(bool) + Send + Sync>,
    backend: &'static str,
    reopened: Option<Reopened>,
}

impl Opened {
    fn warehouses(&self) -> u16 {
        self.database.catalog.scale.warehouses
    }
}

/// One invocation of the program.
pub(crate) struct Session<'c> {
    cli: &'c Cli,
    location: Location,
    stop: Arc<Stop>,
}

impl<'c> Session<'c> {
    /// Prepares the location. `clock` is that of virtual time.
    pub(crate) fn new(
        cli: &'c Cli,
        clock: Option<VirtualClock>,
        open: OpenDevice,
    ) -> Result<Self, SessionError> {
        let location = Location::new(cli, clock)?.with_devices(cli, open)?;
        Ok(Self { cli, location, stop: Stop::on_ctrl_c() })
    }

    /// A session at an existing location.
    pub(crate) fn at(cli: &'c Cli, location: Location, stop: Arc<Stop>) -> Self {
        Self { cli, location, stop }
    }

    /// Returns the location, for another session.
    pub(crate) fn into_location(self) -> Location {
        self.location
    }

    /// Runs the session; prints progress unless JSON was requested.
    pub(crate) async fn run(&self) -> Result<Vec<Row>, SessionError> {
        let (notes, kept) = match self.location.notes()? {
            Some(notes) => (self.adapt(notes)?, true),
            None => (self.load().await?, false),
        };
        let mut rows = Vec::new();
        for policies in self.cli.runs() {
            // The rows so far are reported: each pair is measured by itself.
            if self.stop.is_asked() {
                break;
            }
            let row = self.measure(&policies, &notes, kept).await?;
            if !self.cli.json {
                if rows.is_empty() {
                    println!("\n{}", report::heading());
                }
                println!("{}", report::table_row(&row));
            }
            rows.push(row);
        }
        Ok(rows)
    }

    /// The notes of an earlier run, updated with this run's options.
    fn adapt(&self, mut notes: Notes) -> Result<Notes, SessionError> {
        if let Some(given) = self.cli.ssd_bytes.filter(|given| *given != notes.ssd_bytes) {
            let (given, is) = (report::bytes(given), report::bytes(notes.ssd_bytes));
            return Err(SessionError::Usage(format!(
                "the database's SSD has {is}, not {given}, and its size cannot change"
            )));
        }
        if self.cli.calibrate.is_some() {
            let why = "--calibrate measures before a new database is loaded, but this one is already loaded";
            return Err(SessionError::Usage(why.into()));
        }
        // The ratio is of the loaded size, not of today's: otherwise the pool would grow with the
        // database from run to run.
        if self.cli.pool_bytes.is_some() || self.cli.db_ratio.is_some() {
            notes.pool_bytes = self.cli.pool_bytes(notes.loaded_bytes, notes.ssd_bytes);
        }
        notes.log_bytes = self.cli.log_bytes.unwrap_or(notes.log_bytes);
        Ok(notes)
    }

    /// Loads the database at the empty location.
    pub(crate) async fn load(&self) -> Result<Notes, SessionError> {
        let cli = self.cli;
        let scale = Scale::full(cli.warehouses(), cli.row_overhead);
        let estimated = estimate_bytes(scale, cli.page_size());
        // The SSD gets its size when the store is created, before the load, and so by the estimate. The
        // pool can wait for the real size.
        let ssd_bytes = cli.ssd_bytes(estimated);
        self.announce(scale);
        self.location.begin_load()?;
        let bar = self.bar(steps(scale.warehouses), "loading", "districts and warehouses");
        let prepared = self.location.for_load(cli.page_size(), ssd_bytes, estimated, cli.calibration())?;
        let delays = prepared.delays();
        let store = Arc::new(prepared.builder.open().await?);
        // Calibration needs the delays; the load runs without them.
        delays(false);
        let loading = load(&store, scale, cli.seed, self.now_ms(), || bar.inc(1));
        tokio::select! {
            biased;
            // The store is dropped as it is. The marker stays, and the next load removes what this one
            // has left.
            () = self.stop.asked() => return Err(SessionError::Interrupted),
            loaded = loading => loaded?,
        };
        let loaded_bytes = db_bytes(&store);
        close(store).await?;
        bar.finish_and_clear();
        let notes = Notes {
            page_bytes: cli.page_size().bytes() as u64,
            loaded_bytes,
            ssd_bytes,
            pool_bytes: cli.pool_bytes(loaded_bytes, ssd_bytes),
            log_bytes: cli.log_bytes(loaded_bytes),
        };
        self.location.write_notes(&notes)?;
        Ok(notes)
    }

    fn announce(&self, scale: Scale) {
        if self.cli.json {
            return;
        }
        let (hdd, ssd) = self.location.describe();
        let size = report::bytes(estimate_bytes(scale, self.cli.page_size()));
        println!("TPC-C with {} warehouses, {size}\nHDD: {hdd}\nSSD: {ssd}", scale.warehouses);
        if self.cli.time == Time::Virtual {
            println!(
                "{} s of virtual time, after {} s to warm up",
                self.cli.seconds().as_secs(),
                self.cli.warmup().as_secs()
            );
        } else {
            let all = self.cli.seconds() + self.cli.warmup();
            println!(
                "takes about {} s plus the load{}",
                all.as_secs(),
                if self.location.is_temporary() { "; leaves nothing behind" } else { "" }
            );
        }
    }

    async fn measure(&self, policies: &Policies, notes: &Notes, kept: bool) -> Result<Row, SessionError> {
        let cli = self.cli;
        let opened = self.open(policies, notes, kept).await?;
        let database = &opened.database;
        let plan = Plan {
            terminals: cli.terminals(opened.warehouses()),
            warmup: cli.warmup(),
            seconds: cli.seconds(),
            seed: cli.seed,
            virtual_time: cli.time == Time::Virtual,
        };
        let bar = self.bar((plan.warmup + plan.seconds).as_secs(), "running", "s");
        if let Some(path) = &cli.record {
            database.store.trace().start(path).map_err(|e| trace_error(path, &e))?;
        }
        if cli.what_if.is_some() {
            database.store.what_if().start(&WhatIfOptions::new()).map_err(|why| what_if_error(&why))?;
        }
        let measured = run(database, plan, &self.stop, &bar, &opened.delays).await?;
        // Estimate and trace end before the final check, which reads whole tables.
        let what_if = database.store.what_if().stop().await;
        if let Some(path) = &cli.record {
            let recorded = database.store.trace().stop().await.map_err(|e| trace_error(path, &e))?;
            let warmup = measured.recorded_warmup.unwrap_or(0);
            bar.println(format!(
                "{}: {} requests, {warmup} of them to warm up{}",
                path.display(),
                recorded.records,
                if recorded.lost > 0 { format!("; {} are missing", recorded.lost) } else { String::new() }
            ));
        }
        bar.finish_and_clear();
        if let (Some(path), Some(what_if)) = (&cli.what_if, what_if) {
            // The report goes to standard output, which --json reserves for itself.
            eprintln!("\n{what_if}");
            if !path.as_os_str().is_empty() {
                let svg = chart(&what_if).map_err(|why| what_if_error(&why))?;
                std::fs::write(path, svg).map_err(|e| trace_error(path, &e))?;
            }
        }
        self.close_and_report(opened, policies, notes, &measured).await
    }

    /// Opens the loaded database under these policies, and recovers it if it was `kept` from an earlier run.
    pub(crate) async fn open(
        &self,
        policies: &Policies,
        notes: &Notes,
        kept: bool,
    ) -> Result<Opened, SessionError> {
        let cli = self.cli;
        let wal = self.location.wal(notes).await?;
        let policies = policies.with_sizes(cli.zone_percent, cli.outqueue, cli.cluster_pages);
        let mut prepared = self.location.for_run(&policies, notes)?;
        prepared.builder = prepared.builder.log_gate(wal.gate());
        if let Some(costs) = cli.costs {
            prepared.builder = prepared.builder.costs(costs);
        }
        // What a page costs on a device of another kind is anyone's guess, and changes with a cluster's load.
        let unknown = (self.location.is_on_a_device() && cli.costs.is_none()).then_some(COST_POINTS);
        if let Some(points) = cli.online_costs.map(NonZeroUsize::get).or(unknown) {
            prepared.builder = prepared.builder.costs(CostSource::Online { points, start: cli.costs });
        }
        // The default is not passed on: a kept store has its own page size, and refuses another.
        if let Some(size) = cli.page_size {
            prepared.builder = prepared.builder.page_size(size);
        }
        let (delays, file_backend) = (prepared.delays(), prepared.backend);
        // In real time, recovery, warm-up and checks run without the delays of emulated devices, unless the
        // delays are to be measured.
        delays(cli.time == Time::Virtual || cli.online_costs.is_some());
        let store = Arc::new(prepared.builder.open().await?);
        let control = match &cli.dir {
            Some(dir) if cli.control_socket => Some(pagetier_control::listen(&store, dir).await?),
            _ => None,
        };
        let backend = file_backend.unwrap_or_else(|| store.stats().io_backend);
        let catalog = Catalog::read(&store).await?.ok_or_else(|| {
            SessionError::Usage("the directory's notes describe a database, but the store holds none".into())
        })?;
        let warehouses = catalog.scale.warehouses;
        if cli.warehouses.is_some_and(|given| given != warehouses) {
            return Err(SessionError::Usage(format!(
                "the database has {warehouses} warehouses; omit --warehouses"
            )));
        }
        // Before redo, whose reads and writes bring pages to the SSD: the report says how warm the SSD
        // has stayed by itself.
        let warm = store.stats().ssd;
        let (database, recovered) = Database::open(store, wal, catalog, self.now_ms()).await?;
        let database = Arc::new(database);
        let reopened = kept.then(|| reopened(recovered, warm.pages, warm.slots));
        if kept {
            self.check_recovered(&database, reopened.as_ref()).await?;
        }
        if cli.hints {
            database.hint()?;
        }
        if self.location.is_on_a_device() {
            // The next one to open it has a blank SSD.
            database.store.hot_set().keep(HOT_SET_EVERY).await?;
        }
        Ok(Opened { control, database, delays: Box::new(delays), backend, reopened })
    }

    async fn check_recovered(
        &self,
        database: &Database,
        reopened: Option<&Reopened>,
    ) -> Result<(), SessionError> {
        // Else the policies would take the check's reads for the workload's: the SSD's would follow a setting
        // that suits them, and the pages that they read would have a use each.
        consistency::hint(database, Retention::ScanOnly)?;
        let checked = consistency::check(database).await?;
        consistency::hint(database, Retention::Usual)?;
        checked.map_err(|why| SessionError::Usage(format!("after recovery: {why}")))?;
        if let Some(reopened) = reopened.filter(|_| !self.cli.json) {
            println!(
                "recovered: {} page changes and {} commits; {} pages on the SSD ({:.0}% warm); consistent",
                reopened.redone_changes, reopened.repeated_commits, reopened.ssd_pages, reopened.ssd_warm_pct
            );
        }
        Ok(())
    }

    /// Checks the database, closes it, and builds the report.
    pub(crate) async fn close_and_report(
        &self,
        opened: Opened,
        policies: &Policies,
        notes: &Notes,
        measured: &Measured,
    ) -> Result<Row, SessionError> {
        let warehouses = opened.warehouses();
        let Opened { control, database, backend, reopened, delays } = opened;
        // A request in progress shares the store, and `close` needs the only handle.
        if let Some(control) = control {
            control.end().await;
        }
        drop(delays);
        // Exclude the check's reads from the measurement.
        let costs = database.store.policies().costs();
        let consistency = consistency::check(&database).await?;
        let setup = self.setup(policies, notes, warehouses, self.cli.terminals(warehouses));
        let bytes = db_bytes(&database.store);
        let row = Row::new(setup, measured, bytes, costs, backend, reopened, consistency);
        // The last pages are written once their records are durable: the store's gate does not keep the log.
        let (store, log) = (Arc::clone(&database.store), database.wal.clone());
        drop(database);
        close(store).await?;
        drop(log);
        Ok(row)
    }

    fn setup(&self, policies: &Policies, notes: &Notes, warehouses: u16, terminals: u32) -> Setup {
        let (hdd, ssd) = self.location.describe();
        Setup {
            pool_policy: policies.pool.clone(),
            ssd_policy: policies.ssd.clone(),
            warehouses,
            terminals,
            page_bytes: notes.page_bytes,
            pool_bytes: notes.pool_bytes,
            ssd_bytes: notes.ssd_bytes,
            log_bytes: notes.log_bytes,
            seed: self.cli.seed,
            time: if self.cli.time == Time::Virtual { "virtual" } else { "real" }.into(),
            hdd,
            ssd,
        }
    }

    fn now_ms(&self) -> i64 {
        if self.cli.time == Time::Virtual {
            // Rows have dates: with today's, two runs of one seed would give two databases.
            return VIRTUAL_NOW_MS;
        }
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(VIRTUAL_NOW_MS, |since| since.as_millis() as i64)
    }

    /// A progress bar: hidden with `--json` and where there is no terminal.
    fn bar(&self, len: u64, what: &'static str, unit: &str) -> ProgressBar {
        let target = if self.cli.json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(len), target);
        let template = format!("{{msg:16}} [{{bar:40}}] {{pos}}/{{len}} {unit}");
        bar.set_style(
            ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        bar.set_message(what);
        bar
    }
}

fn trace_error(path: &std::path::Path, error: &std::io::Error) -> SessionError {
    SessionError::Usage(format!("{}: {error}", path.display()))
}

fn what_if_error(why: &dyn std::fmt::Display) -> SessionError {
    SessionError::Usage(format!("--what-if: {why}"))
}

fn reopened(recovered: Recovered, pages: u64, slots: u64) -> Reopened {
    Reopened {
        log_records: recovered.records,
        redone_changes: recovered.applied,
        repeated_commits: recovered.commits,
        ssd_pages: pages,
        ssd_warm_pct: 100.0 * pages as f64 / slots.max(1) as f64,
    }
}

fn db_bytes(store: &PageStore) -> u64 {
    let pages: u64 = store.spaces().list().iter().map(|space| u64::from(space.pages)).sum();
    pages * store.page_size().bytes() as u64
}

/// Closes the store; drops it if another handle is left, which is equivalent to a crash.
async fn close(store: Arc<PageStore>) -> Result<(), pagetier::Error> {
    match Arc::try_unwrap(store) {
        Ok(store) => store.close().await,
        Err(_shared) => Ok(()),
    }
}
