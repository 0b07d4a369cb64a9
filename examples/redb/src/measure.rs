//! Measures an engine on a plain file and on a store: what the programs of this example and of SQLite's
//! share.

use pagetier::blocking::PageStore;
use pagetier::stats::Stats;
use pagetier::{Builder, PageSize, parse_bytes};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Whatever ends a measurement.
pub type Failure = Box<dyn std::error::Error>;

/// A row's value in bytes.
pub const ROW_BYTES: usize = 400;

/// The options of `measure`, for usage texts.
pub const OPTIONS: &str = "--slow DIR --fast DIR [--memory SIZE] [--ssd SIZE] [--page SIZE] [--rows N] \
                           [--seconds N] [--mode JOURNAL_MODE]";

/// A row's value.
pub fn row(no: u64) -> Vec<u8> {
    no.to_le_bytes().into_iter().cycle().take(ROW_BYTES).collect()
}

/// An engine with a table of rows.
pub trait Engine {
    /// Inserts rows in one durable commit.
    ///
    /// # Errors
    /// The engine's.
    fn insert(&mut self, rows: Range<u64>) -> Result<(), Failure>;

    /// Changes a row to another value, durably; `version` differs each time.
    ///
    /// # Errors
    /// The engine's.
    fn update(&mut self, no: u64, version: u64) -> Result<(), Failure>;

    /// Reads a row, and checks its value.
    ///
    /// # Errors
    /// The engine's; the row is another.
    fn read(&mut self, no: u64) -> Result<(), Failure>;
}

/// What is measured, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder of the plain file, or of the store's HDD.
    pub slow: PathBuf,
    /// The folder of the store and its SSD.
    pub fast: PathBuf,
    /// The memory for pages, in bytes.
    pub memory: u64,
    /// SQLite's journal mode.
    pub mode: String,
    ssd: u64,
    page: PageSize,
    rows: u64,
    seconds: u64,
}

impl Options {
    /// Reads pairs of names and values.
    ///
    /// # Errors
    /// A name or a value is not known; a folder is missing.
    pub fn read(given: &[&str]) -> Result<Self, Failure> {
        let mut options = Self {
            slow: PathBuf::new(),
            fast: PathBuf::new(),
            memory: 64 << 20,
            mode: "wal".to_owned(),
            ssd: 1 << 30,
            // The engines' own: a page of theirs is then one of the store's.
            page: PageSize::MIN,
            rows: 400_000,
            seconds: 10,
        };
        for pair in given.chunks(2) {
            match pair {
                ["--slow", dir] => options.slow = dir.into(),
                ["--fast", dir] => options.fast = dir.into(),
                ["--memory", size] => options.memory = parse_bytes(size)?,
                ["--ssd", size] => options.ssd = parse_bytes(size)?,
                ["--page", size] => options.page = PageSize::new(parse_bytes(size)?)?,
                ["--rows", rows] => options.rows = rows.parse()?,
                ["--seconds", seconds] => options.seconds = seconds.parse()?,
                ["--mode", mode] => options.mode = (*mode).to_owned(),
                other => return Err(format!("{other:?}: expected {OPTIONS}").into()),
            }
        }
        if options.slow.as_os_str().is_empty() || options.fast.as_os_str().is_empty() {
            return Err(format!("expected {OPTIONS}").into());
        }
        Ok(options)
    }

    /// A new store with its HDD in the slow folder. Three quarters of the memory are its pool's, the rest is
    /// the engine's: what the engine's own cache holds, the pool holds, too.
    pub fn store(&self) -> Builder {
        pagetier::PageStore::builder()
            .directory(self.fast.join("store"))
            .hdd(self.slow.join("hdd.vol"))
            .ssd_bytes(self.ssd)
            .page_size(self.page)
            .pool_bytes(self.memory / 4 * 3)
    }

    /// The memory for the cache of an engine on a store, in bytes.
    pub fn engine_memory(&self) -> u64 {
        self.memory / 4
    }

    /// Removes the store, which is closed.
    ///
    /// # Errors
    /// The system's.
    pub fn remove_store(&self) -> std::io::Result<()> {
        std::fs::remove_dir_all(self.fast.join("store"))?;
        std::fs::remove_file(self.slow.join("hdd.vol"))
    }
}

/// Operations in a second.
struct Figures {
    commits: f64,
    reads: f64,
}

/// Measures one subject in a process of its own: an allocator keeps the memory that another one had.
fn in_a_process(subject: &str, options: &[&str]) -> Result<Figures, Failure> {
    let mut child = Command::new(std::env::current_exe()?);
    let out = child.arg("one").arg(subject).args(options).stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let figures = text.trim().split_once(' ').filter(|_| out.status.success());
    let (commits, reads) = figures.ok_or_else(|| format!("{subject} was not measured: {}", out.status))?;
    Ok(Figures { commits: commits.parse()?, reads: reads.parse()? })
}

/// Runs a program, and prints with its causes why it fails.
pub fn main(run: fn() -> Result<(), Failure>) -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", pagetier::errors::Causes(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Measures the subjects, which this program measures as `one SUBJECT OPTIONS`, and prints their figures and
/// the ratio to those of the first. A subject is its name and what is printed of it.
///
/// # Errors
/// An option is wrong; a subject fails.
pub fn measure(subjects: &[(&str, &str)], options: &[&str]) -> Result<(), Failure> {
    Options::read(options)?;
    let mut first = None;
    for (subject, text) in subjects {
        let of = in_a_process(subject, options)?;
        let to = first.get_or_insert(Figures { ..of });
        println!(
            "{text}: {:.0} durable commits a second ({:.1}x), {:.0} reads ({:.1}x)",
            of.commits,
            of.commits / to.commits,
            of.reads,
            of.reads / to.reads
        );
    }
    Ok(())
}

/// Fills the table, then counts durable commits and reads a second, and prints them for [`measure`]. With
/// `PAGETIER_STATS` it also prints what the store did for each operation.
///
/// # Errors
/// The engine's.
pub fn figures(
    engine: &mut impl Engine,
    options: &Options,
    store: Option<&PageStore>,
) -> Result<(), Failure> {
    let mut counted = Counted::new(store.filter(|_| std::env::var_os("PAGETIER_STATS").is_some()));
    for first in (0..options.rows).step_by(5_000) {
        engine.insert(first..options.rows.min(first + 5_000))?;
    }
    counted.print("row of the load", options.rows);
    let mut rng = SmallRng::seed_from_u64(1);
    // Nine of ten requests go to a fifth of the rows.
    let mut any = || {
        let of = if rng.random_bool(0.9) { options.rows / 5 } else { options.rows };
        rng.random_range(0..of.max(1))
    };
    let mut version = 0;
    let commits = per_second(options.seconds, &mut counted, "commit", || {
        version += 1;
        engine.update(any(), version)
    })?;
    let reads = per_second(options.seconds, &mut counted, "read", || engine.read(any()))?;
    println!("{commits} {reads}");
    Ok(())
}

/// How often `act` runs in a second; the first fifth of the time warms up.
fn per_second(
    seconds: u64,
    counted: &mut Counted<'_>,
    name: &str,
    mut act: impl FnMut() -> Result<(), Failure>,
) -> Result<f64, Failure> {
    let warm = Instant::now() + Duration::from_secs(seconds) / 5;
    while Instant::now() < warm {
        act()?;
    }
    counted.restart();
    let (began, mut count) = (Instant::now(), 0_u64);
    while began.elapsed() < Duration::from_secs(seconds) {
        act()?;
        count += 1;
    }
    let figure = count as f64 / began.elapsed().as_secs_f64();
    counted.print(name, count);
    Ok(figure)
}

/// What a store has done since a moment.
struct Counted<'a>(Option<(&'a PageStore, Stats)>);

impl<'a> Counted<'a> {
    fn new(store: Option<&'a PageStore>) -> Self {
        Self(store.map(|store| (store, store.stats())))
    }

    fn restart(&mut self) {
        if let Some((store, at)) = &mut self.0 {
            *at = store.stats();
        }
    }

    /// Prints what each of `count` operations took.
    fn print(&mut self, name: &str, count: u64) {
        let Some((store, from)) = &mut self.0 else { return };
        let now = store.stats();
        let each = |now: u64, from: u64| (now - from) as f64 / count.max(1) as f64;
        let (p, q) = (&now.pool, &from.pool);
        eprintln!(
            "each {name}, of {count}: {:.2} hits, {:.2} misses, {:.3} loads from the SSD, {:.3} from the \
             HDD, {:.3} read ahead, {:.3} created, {:.2} pages written, {:.2} of these to the SSD",
            each(p.hits, q.hits),
            each(p.misses, q.misses),
            each(p.loads_ssd, q.loads_ssd),
            each(p.loads_hdd, q.loads_hdd),
            each(p.prefetched, q.prefetched),
            each(p.created, q.created),
            each(
                p.written_replacement + p.written_recoverability,
                q.written_replacement + q.written_recoverability
            ),
            each(p.written_ssd, q.written_ssd)
        );
        let (s, t) = (&now.ssd.counts, &from.ssd.counts);
        eprintln!(
            "    SSD: {} of {} slots used, {} dirty; {} admitted, {} rejected ({} without a slot), {} \
             evicted, {} written back, {} checkpoints",
            now.ssd.pages,
            now.ssd.slots,
            now.ssd.dirty_pages,
            s.admitted_free + s.admitted_over - t.admitted_free - t.admitted_over,
            s.rejected - t.rejected,
            s.rejected_no_slot - t.rejected_no_slot,
            s.evicted - t.evicted,
            s.written_back - t.written_back,
            s.checkpoints - t.checkpoints
        );
        for (device, now, from) in
            [("HDD", &now.hdd_device, &from.hdd_device), ("SSD", &now.ssd_device, &from.ssd_device)]
        {
            let all = now.since(from);
            let (read, write) = (all.totals().read, all.totals().write);
            eprintln!(
                "    {device}: {:.2} reads of {} KiB, {:.2} writes of {} KiB, {:.2} flushes",
                each(read.ops, 0),
                read.bytes.checked_div(read.ops).unwrap_or(0) >> 10,
                each(write.ops, 0),
                write.bytes.checked_div(write.ops).unwrap_or(0) >> 10,
                each(all.flush.ops, 0)
            );
        }
        *from = now;
    }
}
