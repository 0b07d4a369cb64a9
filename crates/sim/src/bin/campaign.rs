//! The seeded fault campaign over the whole store: crashes at I/O boundaries, failing devices.
//!
//! Exit code 0: no violation of the contract, no blind spot; 2: invalid arguments; 1: otherwise.

use clap::{Parser, ValueEnum};
use pagetier_sim::campaign::{
    Base, Drawn, FaultBase, Hazard, Plan, Totals, Violation, run_seed, run_takeovers, run_threads, shrink,
    ssd_policy,
};
use pagetier_sim::options::progress_bar;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// The number of crashes in random lives below which unreached states do not count as blind spots.
const CRASHES_FOR_COVERAGE: u64 = 100_000;

/// The most lives of engines with a log beside the other lives of a seed.
const LOGS_MAX: u64 = 8;

/// Threads: the number of seeds.
const THREADED: u64 = 10;

/// Takeovers: the number of seeds.
const TAKEN: u64 = 100;

/// The command that runs this program.
const CAMPAIGN: &str = "cargo run --release -p pagetier-sim --bin campaign --";

/// The maximum number of scenarios tried to shrink a failing one.
const SHRINK_TRIES: u32 = 150;

/// Crashes simulated stores at the boundaries of their I/O and compares every page with what the contract
/// allows.
#[derive(Parser, Debug)]
#[command(name = "campaign")]
struct Args {
    /// What to run; `all` runs every mode with small budgets, for some minutes on two cores.
    #[arg(long, value_enum, default_value_t = Mode::All)]
    mode: Mode,
    /// Random: the number of seeds.
    #[arg(long, conflicts_with = "crashes")]
    seeds: Option<u64>,
    /// Random: runs seeds until this many crashes were checked. Default: 25,000; in `all`, 15,000.
    #[arg(long)]
    crashes: Option<u64>,
    /// The first seed; without a count, the only one.
    #[arg(long)]
    seed: Option<u64>,
    /// Overrides a part of the seed's scenario, such as lives=2, without=scan+hold or hazard=SlowMap; the
    /// report of a failing seed has the overrides. `hazard=Upkeep` directs every life at the running
    /// operations: frees with reuse of the numbers, shrinks, resizes, policies, write budgets, backups,
    /// shutdowns, another SSD. Other seeds draw these for a small share of their crashes. `hazard=Log` is an
    /// engine with a log; `twist=StaleLog` and others let the adversary do that after every crash. Exhaustive
    /// and faults: only policy=.
    #[arg(long, value_name = "PART=VALUE")]
    with: Vec<String>,
    /// Exhaustive: the maximum number of operations in a workload.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4))]
    depth: u32,
    /// Exhaustive and faults: runs one case in this many. Default: 1; in `all`, some hundred cases.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    stride: Option<u64>,
    /// Exhaustive and faults: runs only this case.
    #[arg(long)]
    case: Option<u64>,
    /// Threads. Default: one per core.
    #[arg(long, default_value_t = cpus(), value_parser = clap::value_parser!(u64).range(1..=256))]
    jobs: u64,
    /// Stops after this many violations.
    #[arg(long, default_value_t = 5)]
    violations_max: usize,
    /// Does not search for a smaller failing scenario.
    #[arg(long)]
    no_shrink: bool,
    /// Prints the report as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// Random lives, crashed at random boundaries, also during recovery.
    Random,
    /// Engines with a log, crashed likewise, and given wrong, older and damaged logs. Random lives come with
    /// as many crashes of these.
    Log,
    /// A store with a log on several threads, in real time.
    Threads,
    /// Stores with a log that other machines take over, in virtual time
    Takeovers,
    /// Every short workload, crashed at every boundary with every subset of few unflushed writes.
    Exhaustive,
    /// The n-th operation of each device fails, for every n.
    Faults,
    /// All modes.
    All,
}

fn cpus() -> u64 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u64).min(256)
}

#[derive(Serialize)]
struct Failure {
    what: String,
    place: String,
    replay: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VIOLATION: {}\n  at {}\n  replay: {}", self.what, self.place, self.replay)
    }
}

#[derive(Default, Serialize)]
struct Report {
    totals: Totals,
    coverage: Vec<(&'static str, u64)>,
    blind_spots: Vec<&'static str>,
    violations: Vec<Failure>,
    /// Wall-clock seconds, and crashes checked per second, over all threads.
    seconds: f64,
    crashes_per_second: f64,
    interrupted: bool,
}

fn main() -> ExitCode {
    pagetier_rivals::register();
    let args = Args::parse();
    // A bad override is refused here, before hours of seeds that would ignore it.
    let mut probe = Plan::from_seed(0);
    if let Some(error) = args.with.iter().find_map(|part| probe.set(part).err()) {
        eprintln!("campaign: {error}");
        return ExitCode::from(2);
    }
    // Panics are violations, and reported as such.
    std::panic::set_hook(Box::new(|_| {}));
    let campaign = Campaign { stop: stop_on_ctrl_c(), args, report: Mutex::default() };
    campaign.run()
}

/// The first Ctrl-C ends the campaign with a report; the second ends the process.
fn stop_on_ctrl_c() -> &'static AtomicBool {
    static STOP: AtomicBool = AtomicBool::new(false);
    let listen = || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            while tokio::signal::ctrl_c().await.is_ok() {
                // A second signal means that a seed does not end by itself: the report is given up.
                if STOP.swap(true, Ordering::Relaxed) {
                    std::process::exit(130);
                }
            }
        });
    };
    std::thread::spawn(listen);
    &STOP
}

struct Campaign {
    args: Args,
    stop: &'static AtomicBool,
    report: Mutex<Report>,
}

impl Campaign {
    fn run(self) -> ExitCode {
        let start = Instant::now();
        let mode = self.args.mode;
        let has = |m| mode == m || mode == Mode::All;
        if has(Mode::Random) || mode == Mode::Log {
            self.random();
        }
        let checks_coverage = has(Mode::Random) && self.args.seed.is_none();
        // Before the other modes: they would hide a state that random work does not reach.
        let covered = self.with(|r| r.totals.coverage.clone());
        let enough = self.with(|r| r.totals.crashes) >= CRASHES_FOR_COVERAGE;
        if has(Mode::Threads) {
            self.in_turn("threads", THREADED, run_threads);
        }
        if has(Mode::Takeovers) {
            self.in_turn("takeovers", TAKEN, run_takeovers);
        }
        if has(Mode::Exhaustive) {
            self.exhaustive();
        }
        if has(Mode::Faults) {
            self.faults();
        }
        let mut report = self.report.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        report.seconds = start.elapsed().as_secs_f64();
        report.crashes_per_second = report.totals.crashes as f64 / report.seconds;
        report.coverage = report.totals.coverage.rows().collect();
        report.interrupted = self.stop.load(Ordering::Relaxed);
        // A run that is directed by options leaves states out on purpose, and a short one by chance.
        // Neither is a blind spot of the campaign.
        if checks_coverage && enough && self.args.with.is_empty() {
            report.blind_spots = covered.blind_spots();
        }
        print(&report, self.args.json);
        let failed = !report.violations.is_empty() || !report.blind_spots.is_empty();
        ExitCode::from(u8::from(failed))
    }

    fn with<T>(&self, f: impl FnOnce(&mut Report) -> T) -> T {
        f(&mut self.report.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.with(|r| r.violations.len()) >= self.args.violations_max
    }

    fn plan(&self, seed: u64) -> Plan {
        let mut plan = match self.args.mode {
            Mode::Log => Plan::directed(seed, Hazard::Log),
            _ => Plan::from_seed(seed),
        };
        for part in &self.args.with {
            // The option was checked at the start.
            let _ = plan.set(part);
        }
        plan
    }

    /// The SSD policy of the modes that start from one store: the default, or that of `--with policy=`.
    fn policy(&self) -> &'static str {
        // The last override wins, as it does where a plan is set part by part.
        let given = self.args.with.iter().rev().find_map(|part| part.strip_prefix("policy="));
        given.and_then(ssd_policy).unwrap_or("auto")
    }

    fn random(&self) {
        let first = self.args.seed.unwrap_or(0);
        let alone = self.args.seed.is_some() && self.args.seeds.is_none() && self.args.crashes.is_none();
        let seeds = if alone { Some(1) } else { self.args.seeds };
        let usual = if self.args.mode == Mode::All { 15_000 } else { 25_000 };
        let crashes = self.args.crashes.unwrap_or(usual);
        let next = AtomicU64::new(first);
        let next_seed = || {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let wanted = seeds.map_or(self.with(|r| r.totals.crashes) < crashes, |n| seed - first < n);
            wanted.then_some(seed)
        };
        self.parallel("random lives", seeds.unwrap_or(crashes), next_seed, |seed| {
            let mut totals = Totals::default();
            self.seed(&self.plan(seed), &mut totals);
            if self.args.mode != Mode::Log && !alone && self.args.with.is_empty() {
                // As many crashes of engines with a log as of other lives.
                for nth in (1..=LOGS_MAX).take_while(|_| !self.over()) {
                    if totals.log_crashes * 2 < totals.crashes {
                        // The high bits differ, so these scenarios do not repeat those of seeds that the
                        // run counts up to.
                        self.seed(&Plan::directed(seed ^ nth << 40, Hazard::Log), &mut totals);
                    }
                }
            }
            // Totals are added once per seed: a lock per crash would serialize the threads.
            self.with(|r| r.totals.add(&totals));
            if seeds.is_some() { 1 } else { totals.crashes }
        });
    }

    /// Runs the seeds of a mode one after another.
    fn in_turn(&self, mode: &str, usual: u64, run: fn(u64, &mut Totals) -> Result<(), Violation>) {
        let first = self.args.seed.unwrap_or(0);
        let seeds = self.args.seeds.unwrap_or(usual);
        let mut totals = Totals::default();
        // A seed of these may run threads of its own in real time, and others beside it would change its
        // schedule.
        for seed in (first..first + seeds).take_while(|_| !self.over()) {
            if let Err(Violation { what, place, .. }) = run(seed, &mut totals) {
                let replay = format!("{CAMPAIGN} --mode {mode} --seed {seed} --seeds 1");
                self.report(Failure { what, place: format!("seed {seed}, {place}"), replay });
            }
        }
        self.with(|r| r.totals.add(&totals));
    }

    /// Runs a scenario, and reports its violation.
    fn seed(&self, plan: &Plan, totals: &mut Totals) {
        if let Err(violation) = run_seed(plan, self.stop, totals) {
            self.violation(violation);
        }
    }

    fn violation(&self, found: Violation) {
        let found = if self.args.no_shrink {
            found
        } else {
            // Said now: the search runs the scenario many times over, and would pass for a life without end.
            eprintln!("seed {}: {}; searching for a smaller scenario", found.plan.seed, found.what);
            shrink(found, SHRINK_TRIES, self.stop, |plan| run_seed(plan, self.stop, &mut Totals::default()))
        };
        // The mode is random even after a run of engines with a log: the overrides name the hazard where
        // the seed itself has another.
        let mut replay = format!("{CAMPAIGN} --mode random --seed {}", found.plan.seed);
        for part in found.plan.overrides() {
            replay += &format!(" --with {part}");
        }
        let place = format!("seed {}, {}", found.plan.seed, found.place);
        self.report(Failure { what: found.what, place, replay });
        eprintln!("  plan: {:?}", found.plan);
    }

    fn report(&self, failure: Failure) {
        eprintln!("{failure}");
        self.with(|r| r.violations.push(failure));
    }

    /// Runs `run` for every number that `next` yields, over all threads, until the campaign ends.
    fn parallel(
        &self,
        what: &'static str,
        len: u64,
        next: impl Fn() -> Option<u64> + Sync,
        run: impl Fn(u64) -> u64 + Sync,
    ) {
        let template = "{msg:20} {wide_bar} {human_pos}/{human_len} {elapsed} (left: {eta})";
        let bar = progress_bar(len, template).with_message(what);
        std::thread::scope(|scope| {
            for _ in 0..self.args.jobs {
                scope.spawn(|| {
                    while !self.over()
                        && let Some(number) = next()
                    {
                        bar.inc(run(number));
                    }
                });
            }
        });
        bar.finish_and_clear();
    }

    /// Runs cases `0..count` with the stride, over all threads.
    fn cases(
        &self,
        mode: &str,
        what: &'static str,
        count: u64,
        usual: u64,
        run: impl Fn(u64, &mut Totals) -> Result<(), Violation> + Sync,
    ) {
        // An odd stride: the lowest digit of a case's number is its first step, of which there are ten.
        let usual = if self.args.mode == Mode::All { (count / usual).max(1) | 1 } else { 1 };
        let stride = self.args.stride.unwrap_or(usual);
        let (first, end) = self.args.case.map_or((0, count), |case| (case, case + 1));
        let next = AtomicU64::new(first);
        let next_case = || Some(next.fetch_add(stride, Ordering::Relaxed)).filter(|case| *case < end);
        self.parallel(what, (end - first).div_ceil(stride), next_case, |case| {
            let mut totals = Totals::default();
            let ended = run(case, &mut totals);
            self.with(|r| r.totals.add(&totals));
            if let Err(Violation { what, place, .. }) = ended {
                let replay = format!(
                    "{CAMPAIGN} --mode {mode} --case {case} --depth {} --with policy={}",
                    self.args.depth,
                    self.policy()
                );
                self.report(Failure { what, place, replay });
            }
            1
        });
    }

    fn exhaustive(&self) {
        match Base::new(1, self.policy()) {
            Ok(base) => self.cases(
                "exhaustive",
                "short workloads",
                Base::cases(self.args.depth),
                80,
                |index, totals| base.run(index, self.args.depth, self.stop, totals),
            ),
            Err(what) => self.no_base(what),
        }
    }

    fn faults(&self) {
        match FaultBase::new(1, self.policy()) {
            Ok(base) => {
                self.cases("faults", "failing operations", FaultBase::cases(), 700, |index, totals| {
                    base.run(index, totals)
                })
            }
            Err(what) => self.no_base(what),
        }
    }

    fn no_base(&self, what: String) {
        self.report(Failure { what, place: "building the initial store".into(), replay: String::new() });
    }
}

fn print(report: &Report, json: bool) {
    if json {
        match serde_json::to_string_pretty(report) {
            Ok(text) => println!("{text}"),
            Err(error) => eprintln!("campaign: {error}"),
        }
        return;
    }
    let t = &report.totals;
    // Modes without crashes have no coverage, and a table of zeroes would look like a blind campaign.
    if t.crashes > 0 {
        print_drawn(&t.drawn);
        let coverage = report.coverage.iter().copied();
        section("crashes, by protocol state and by what recovery found:", coverage);
    }
    let counts = |map: &BTreeMap<String, u64>| map.clone().into_iter();
    section("rot, and outdated or foreign devices, by the outcome of the next open:", counts(&t.tampered));
    section("faults injected:", counts(&t.faults));
    println!(
        "{} seeds, {} lives, {} reopenings with I/O in flight, {} crashes recovered and checked ({} of them \
         in a recovery, {} of engines with a log), {} pages checked, {} refused as corrupt after faults",
        t.seeds,
        t.lives,
        t.reopenings,
        t.crashes,
        t.crashes_in_recovery,
        t.log_crashes,
        t.pages_checked,
        t.pages_refused
    );
    println!("{:.1} s, {:.0} crashes a second", report.seconds, report.crashes_per_second);
    if report.interrupted {
        println!("interrupted: the report is incomplete");
    }
    for name in &report.blind_spots {
        println!("BLIND SPOT: no crash was taken in: {name}");
    }
    for failure in &report.violations {
        println!("{failure}");
    }
    println!("{} violations", report.violations.len());
}

/// Prints how often each operation was drawn, the crashes during it, and how many others overlapped with it.
fn print_drawn(drawn: &Drawn) {
    println!("operations: drawn, crashes meanwhile, operations that overlapped with it:");
    for (name, drawn, crashed, others) in drawn.rows() {
        println!("{drawn:>10} {crashed:>9} {others:>4}  {name}");
    }
    let (met, pairs) = drawn.overlaps();
    println!("{met} of {pairs} pairs of operations overlapped");
}

/// Prints the counts below a title, if there are any.
fn section(title: &str, counts: impl Iterator<Item = (impl fmt::Display, u64)>) {
    let mut counts = counts.peekable();
    if counts.peek().is_some() {
        println!("{title}");
    }
    counts.for_each(|(name, count)| println!("{count:>10}  {name}"));
}
