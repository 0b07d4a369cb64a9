//! redb on Pagetier and on a plain file: commits that a test kills, and a comparison of both.

use pagetier::blocking;
use pagetier::{PageStore, parse_bytes};
use pagetier_example_redb::{backend::Backend, file::File};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use redb::{Database, ReadableDatabase, TableDefinition};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("rows");

/// A row's value in bytes.
const ROW_BYTES: usize = 400;

const USAGE: &str = "usage:
  pagetier-example-redb commit DIR
      commits rows 0, 1, .. to a store in DIR, and prints each number once it is durable
  pagetier-example-redb measure --slow DIR --fast DIR [--memory SIZE] [--ssd SIZE] [--rows N] [--seconds N]
      measures redb on a plain file in the slow folder, and on a store with its HDD there and its SSD in the fast
      one, with equal memory (64MiB), an SSD of 1GiB, 400,000 rows, 10 seconds for each figure";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", pagetier::errors::Causes(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["commit", dir] => commit(Path::new(dir)),
        ["measure", options @ ..] => measure(options),
        ["one", subject, options @ ..] => one(subject, &Options::read(options)?),
        _ => Err(USAGE.into()),
    }
}

/// Opens a database in a store at `dir`, with this memory for pages of the store and of redb.
fn open(
    builder: pagetier::Builder,
    redb_bytes: usize,
) -> Result<(Arc<blocking::PageStore>, Database), Failure> {
    let store = Arc::new(blocking::PageStore::open(builder)?);
    let file = Arc::new(File::open(Arc::clone(&store), "redb")?);
    let database = Database::builder().set_cache_size(redb_bytes).create_with_backend(Backend(file))?;
    Ok((store, database))
}

fn row(no: u64) -> Vec<u8> {
    no.to_le_bytes().into_iter().cycle().take(ROW_BYTES).collect()
}

/// Checks the rows that an earlier run left, then goes on until it is killed.
fn commit(dir: &Path) -> Result<(), Failure> {
    let builder = PageStore::builder().directory(dir).ssd_bytes(8 << 20).pool_bytes(4 << 20);
    let (_store, mut database) = open(builder, 1 << 20)?;
    if !database.check_integrity()? {
        println!("repaired");
    }
    let mut next = 0;
    {
        let change = database.begin_write()?;
        let table = change.open_table(TABLE)?;
        for entry in redb::ReadableTable::iter(&table)? {
            let (no, value) = entry?;
            if no.value() != next || value.value() != row(next) {
                return Err(format!("row {} in place of {next}", no.value()).into());
            }
            next += 1;
        }
    }
    println!("found {next}");
    loop {
        let change = database.begin_write()?;
        change.open_table(TABLE)?.insert(next, row(next).as_slice())?;
        change.commit()?;
        // Flushed: a line that the parent has seen is of a commit that has returned.
        let mut out = std::io::stdout().lock();
        writeln!(out, "committed {next}")?;
        out.flush()?;
        next += 1;
    }
}

/// What is measured.
struct Options {
    slow: PathBuf,
    fast: PathBuf,
    memory: u64,
    ssd: u64,
    rows: u64,
    seconds: u64,
}

impl Options {
    fn read(given: &[&str]) -> Result<Self, Failure> {
        let mut options = Self {
            slow: PathBuf::new(),
            fast: PathBuf::new(),
            memory: 64 << 20,
            ssd: 1 << 30,
            rows: 400_000,
            seconds: 10,
        };
        for pair in given.chunks(2) {
            match pair {
                ["--slow", dir] => options.slow = dir.into(),
                ["--fast", dir] => options.fast = dir.into(),
                ["--ssd", size] => options.ssd = parse_bytes(size)?,
                ["--memory", size] => options.memory = parse_bytes(size)?,
                ["--rows", rows] => options.rows = rows.parse()?,
                ["--seconds", seconds] => options.seconds = seconds.parse()?,
                other => return Err(format!("{other:?}\n{USAGE}").into()),
            }
        }
        if options.slow.as_os_str().is_empty() || options.fast.as_os_str().is_empty() {
            return Err(USAGE.into());
        }
        Ok(options)
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

fn measure(options: &[&str]) -> Result<(), Failure> {
    Options::read(options)?;
    let plain = in_a_process("plain", options)?;
    print("the plain file", &plain, &plain);
    print("Pagetier", &in_a_process("pagetier", options)?, &plain);
    Ok(())
}

/// Measures a subject, and prints its figures for [`in_a_process`].
fn one(subject: &str, options: &Options) -> Result<(), Failure> {
    let memory = usize::try_from(options.memory)?;
    if subject == "plain" {
        let path = options.slow.join("plain.redb");
        figures(&Database::builder().set_cache_size(memory).create(&path)?, options)?;
        return Ok(std::fs::remove_file(path)?);
    }
    let (dir, hdd) = (options.fast.join("store"), options.slow.join("hdd.vol"));
    // Most of the memory is the store's: redb's own cache holds what the pool has, too.
    let builder = PageStore::builder().directory(&dir).hdd(&hdd).ssd_bytes(options.ssd);
    let (store, database) = open(builder.pool_bytes(options.memory / 4 * 3), memory / 4)?;
    figures(&database, options)?;
    drop(database);
    let store = Arc::into_inner(store).ok_or("the database still has the store")?;
    if std::env::var_os("PAGETIER_STATS").is_some() {
        eprintln!("{}", store.store().stats());
    }
    store.close()?;
    std::fs::remove_dir_all(dir)?;
    Ok(std::fs::remove_file(hdd)?)
}

fn print(on: &str, of: &Figures, plain: &Figures) {
    let ratio = |a: f64, b: f64| a / b;
    println!(
        "{on}: {:.0} durable commits a second ({:.1}x), {:.0} reads ({:.1}x)",
        of.commits,
        ratio(of.commits, plain.commits),
        of.reads,
        ratio(of.reads, plain.reads)
    );
}

fn figures(database: &Database, options: &Options) -> Result<(), Failure> {
    for first in (0..options.rows).step_by(5_000) {
        let change = database.begin_write()?;
        {
            let mut table = change.open_table(TABLE)?;
            for no in first..options.rows.min(first + 5_000) {
                table.insert(no, row(no).as_slice())?;
            }
        }
        change.commit()?;
    }
    let mut rng = SmallRng::seed_from_u64(1);
    // Nine of ten requests go to a fifth of the rows.
    let mut any = || {
        let of = if rng.random_bool(0.9) { options.rows / 5 } else { options.rows };
        rng.random_range(0..of.max(1))
    };
    let commits = per_second(options.seconds, || {
        let change = database.begin_write()?;
        let no = any();
        change.open_table(TABLE)?.insert(no, row(no).as_slice())?;
        Ok(change.commit()?)
    })?;
    let reads = per_second(options.seconds, || {
        let no = any();
        let read = database.begin_read()?.open_table(TABLE)?.get(no)?;
        let fine = read.is_some_and(|value| value.value() == row(no));
        if fine { Ok(()) } else { Err(format!("row {no} is not there").into()) }
    })?;
    println!("{commits} {reads}");
    Ok(())
}

/// How often `act` runs in a second; the first fifth of the time warms up.
fn per_second(seconds: u64, mut act: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    let warm = Instant::now() + Duration::from_secs(seconds) / 5;
    while Instant::now() < warm {
        act()?;
    }
    let (began, mut count) = (Instant::now(), 0_u64);
    while began.elapsed() < Duration::from_secs(seconds) {
        act()?;
        count += 1;
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}
