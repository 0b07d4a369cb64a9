//! SQLite on Pagetier and on a plain file: commits that a test kills, and a comparison of both.

use pagetier::blocking;
use pagetier::{Builder, PageStore, parse_bytes};
use pagetier_example_sqlite::vfs::{Journals, Registered, register};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rusqlite::{Connection, OpenFlags};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

/// A row's value in bytes.
const ROW_BYTES: usize = 400;

const USAGE: &str = "usage:
  pagetier-example-sqlite commit DIR JOURNAL_MODE
      commits rows 0, 1, .. to a database in a store in DIR, and prints each number once it is durable
  pagetier-example-sqlite measure --slow DIR --fast DIR [--memory SIZE] [--ssd SIZE] [--rows N] [--seconds N] [--mode JOURNAL_MODE]
      measures SQLite on a plain file in the slow folder, and on a store with its HDD there and its SSD in the fast
      one, with equal memory (64MiB), an SSD of 1GiB, 400,000 rows, 10 seconds for each figure, journal mode wal";

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
        ["commit", dir, mode] => commit(Path::new(dir), mode),
        ["measure", options @ ..] => measure(options),
        ["one", subject, options @ ..] => one(subject, &Options::read(options)?),
        _ => Err(USAGE.into()),
    }
}

/// Opens the database "rows" in a store; its journal is in `journals`.
fn open(
    builder: Builder,
    journals: &Path,
) -> Result<(Arc<blocking::PageStore>, Registered, Connection), Failure> {
    let store = Arc::new(blocking::PageStore::open(builder)?);
    let registered = register("pagetier", Arc::clone(&store), Journals::In(journals.to_owned()))?;
    let connection = Connection::open_with_flags_and_vfs("rows.db", OpenFlags::default(), "pagetier")?;
    Ok((store, registered, connection))
}

/// Prepares a connection: the mode of the journal, durable commits, a cache of this size, and the table.
fn prepare(connection: &Connection, mode: &str, cache_bytes: u64) -> Result<(), Failure> {
    connection.pragma_update(None, "journal_mode", mode)?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "cache_size", -i64::try_from(cache_bytes / 1024)?)?;
    connection.execute("create table if not exists rows (no integer primary key, value blob)", [])?;
    Ok(())
}

fn row(no: u64) -> Vec<u8> {
    no.to_le_bytes().into_iter().cycle().take(ROW_BYTES).collect()
}

/// Checks the rows that an earlier run left, then goes on until it is killed.
fn commit(dir: &Path, mode: &str) -> Result<(), Failure> {
    std::fs::create_dir_all(dir)?;
    let builder = PageStore::builder().directory(dir.join("store")).ssd_bytes(8 << 20).pool_bytes(4 << 20);
    let (_store, _registered, connection) = open(builder, dir)?;
    prepare(&connection, mode, 1 << 20)?;
    let fine: String = connection.query_row("pragma integrity_check", [], |row| row.get(0))?;
    if fine != "ok" {
        return Err(fine.into());
    }
    let mut next = 0;
    {
        let mut all = connection.prepare("select no, value from rows order by no")?;
        let mut all = all.query([])?;
        while let Some(found) = all.next()? {
            let (no, value): (u64, Vec<u8>) = (found.get::<_, i64>(0)?.try_into()?, found.get(1)?);
            if no != next || value != row(next) {
                return Err(format!("row {no} in place of {next}").into());
            }
            next += 1;
        }
    }
    println!("found {next}");
    loop {
        connection.execute("insert into rows values (?, ?)", (i64::try_from(next)?, row(next)))?;
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
    mode: String,
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
            mode: "wal".to_owned(),
        };
        for pair in given.chunks(2) {
            match pair {
                ["--slow", dir] => options.slow = dir.into(),
                ["--fast", dir] => options.fast = dir.into(),
                ["--ssd", size] => options.ssd = parse_bytes(size)?,
                ["--memory", size] => options.memory = parse_bytes(size)?,
                ["--rows", rows] => options.rows = rows.parse()?,
                ["--seconds", seconds] => options.seconds = seconds.parse()?,
                ["--mode", mode] => options.mode = (*mode).to_owned(),
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
    for (subject, place) in
        [("slow-journal", "on the slow disk, as the plain file's"), ("fast-journal", "beside the SSD")]
    {
        print(&format!("Pagetier, journal {place}"), &in_a_process(subject, options)?, &plain);
    }
    Ok(())
}

/// Measures a subject, and prints its figures for [`in_a_process`].
fn one(subject: &str, options: &Options) -> Result<(), Failure> {
    if subject == "plain" {
        let path = options.slow.join("plain.db");
        let connection = Connection::open(&path)?;
        prepare(&connection, &options.mode, options.memory)?;
        figures(&connection, options)?;
        drop(connection);
        return Ok(std::fs::remove_file(path)?);
    }
    let journals = if subject == "slow-journal" { &options.slow } else { &options.fast };
    let (dir, hdd) = (options.fast.join("store"), options.slow.join("hdd.vol"));
    // Most of the memory is the store's: SQLite's own cache holds what the pool has, too.
    let builder = PageStore::builder().directory(&dir).hdd(&hdd).ssd_bytes(options.ssd);
    let (store, registered, connection) = open(builder.pool_bytes(options.memory / 4 * 3), journals)?;
    prepare(&connection, &options.mode, options.memory / 4)?;
    figures(&connection, options)?;
    drop((connection, registered));
    let store = Arc::into_inner(store).ok_or("the database still has the store")?;
    if std::env::var_os("PAGETIER_STATS").is_some() {
        eprintln!("{}", store.store().stats());
    }
    store.close()?;
    std::fs::remove_dir_all(dir)?;
    Ok(std::fs::remove_file(hdd)?)
}

fn print(on: &str, of: &Figures, plain: &Figures) {
    println!(
        "{on}: {:.0} durable commits a second ({:.1}x), {:.0} reads ({:.1}x)",
        of.commits,
        of.commits / plain.commits,
        of.reads,
        of.reads / plain.reads
    );
}

fn figures(connection: &Connection, options: &Options) -> Result<(), Failure> {
    for first in (0..options.rows).step_by(5_000) {
        let change = connection.unchecked_transaction()?;
        for no in first..options.rows.min(first + 5_000) {
            connection
                .prepare_cached("insert into rows values (?, ?)")?
                .execute((i64::try_from(no)?, row(no)))?;
        }
        change.commit()?;
    }
    let mut rng = SmallRng::seed_from_u64(1);
    // Nine of ten requests go to a fifth of the rows.
    let mut any = || {
        let of = if rng.random_bool(0.9) { options.rows / 5 } else { options.rows };
        rng.random_range(0..of.max(1))
    };
    let mut version = 0_u64;
    let commits = per_second(options.seconds, || {
        let no = any();
        // Another value each time: SQLite writes nothing for a change that changes nothing.
        version += 1;
        let value: Vec<u8> = row(no).into_iter().take(ROW_BYTES - 8).chain(version.to_le_bytes()).collect();
        let change = "update rows set value = ? where no = ?";
        connection.prepare_cached(change)?.execute((value, i64::try_from(no)?))?;
        Ok(())
    })?;
    let reads = per_second(options.seconds, || {
        let no = any();
        let mut read = connection.prepare_cached("select value from rows where no = ?")?;
        let value: Vec<u8> = read.query_row([i64::try_from(no)?], |found| found.get(0))?;
        let fine = value.len() == ROW_BYTES && value[..ROW_BYTES - 8] == row(no)[..ROW_BYTES - 8];
        if fine { Ok(()) } else { Err(format!("row {no} is another").into()) }
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
