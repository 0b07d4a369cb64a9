//! turso on Pagetier and on a plain file: commits that a test kills, and a comparison of both.

use pagetier::{Builder, PageSize, PageStore, blocking};
use pagetier_example_redb::measure::{self, Engine, Failure, Options, ROW_BYTES, row};
use pagetier_example_turso::Spaces;
use std::io::Write;
use std::num::NonZero;
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use turso_core::{Connection, Database, IO, OpenOptions, PlatformIO, SqliteDialect, Statement, Value};

const USAGE: &str = "usage:
  pagetier-example-turso commit DIR
      commits rows 0, 1, .. to a database in a store in DIR, and prints each number once it is durable
  pagetier-example-turso measure --slow DIR --fast DIR [--memory SIZE] [--ssd SIZE] [--page SIZE] [--rows N]
          [--seconds N]
      measures turso on a plain file in the slow folder, and on a store with its HDD there and its SSD in the fast
      one, with equal memory (64MiB), an SSD of 1GiB, 400,000 rows, 10 seconds for each figure";

fn main() -> ExitCode {
    measure::main(run)
}

fn run() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["commit", dir] => commit(Path::new(dir)),
        ["measure", options @ ..] => {
            let subjects = [
                ("plain", "the plain file"),
                ("slow-journal", "Pagetier, journal on the slow disk, as the plain file's"),
                ("fast-journal", "Pagetier, journal beside the SSD"),
            ];
            measure::measure(&subjects, options)
        }
        ["one", subject, options @ ..] => one(subject, &Options::read(options)?),
        _ => Err(USAGE.into()),
    }
}

/// Opens a database with durable commits, a cache of this size, and the table.
fn open(io: Arc<dyn IO>, path: &str, cache_bytes: u64) -> Result<Arc<Connection>, Failure> {
    let database = Database::open(io, path, OpenOptions::new(Arc::new(SqliteDialect)))?;
    let connection = database.connect()?;
    connection.execute("pragma synchronous = full")?;
    connection.execute(format!("pragma cache_size = -{}", cache_bytes / 1024))?;
    connection.execute("create table if not exists rows (no integer primary key, value blob)")?;
    Ok(connection)
}

/// Opens a store, and the database "rows.db" in it with its WAL in `wals`.
fn open_in_store(
    builder: Builder,
    wals: &Path,
    cache_bytes: u64,
) -> Result<(Arc<blocking::PageStore>, Arc<Connection>), Failure> {
    let store = Arc::new(blocking::PageStore::open(builder)?);
    let spaces = Spaces::new(Arc::clone(&store), wals)?;
    let connection = open(Arc::new(spaces), "rows.db", cache_bytes)?;
    Ok((store, connection))
}

/// Checks the rows that an earlier run left, then goes on until it is killed.
fn commit(dir: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(dir)?;
    let builder = PageStore::builder().directory(dir.join("store")).page_size(PageSize::MIN);
    let (_store, connection) = open_in_store(builder.ssd_bytes(8 << 20).pool_bytes(4 << 20), dir, 1 << 20)?;
    let fine = connection.prepare("pragma integrity_check")?.run_collect_rows()?;
    if fine != [[Value::build_text("ok")]] {
        return Err(format!("{fine:?}").into());
    }
    let mut next = 0;
    for found in connection.prepare("select no, value from rows order by no")?.run_collect_rows()? {
        if found[0].as_int() != Some(next) || found[1].to_blob() != Some(&row(next as u64)) {
            return Err(format!("row {:?} in place of {next}", found[0]).into());
        }
        next += 1;
    }
    println!("found {next}");
    let mut insert = connection.prepare("insert into rows values (?, ?)")?;
    loop {
        execute(&mut insert, &[Value::from_i64(next), Value::from_slice(&row(next as u64))?])?;
        // Flushed: a line that the parent has seen is of a commit that has returned.
        let mut out = std::io::stdout().lock();
        writeln!(out, "committed {next}")?;
        out.flush()?;
        next += 1;
    }
}

/// Runs a statement with these values.
fn execute(statement: &mut Statement, values: &[Value]) -> Result<Vec<Vec<Value>>, Failure> {
    statement.reset()?;
    for (no, value) in (1..).zip(values) {
        statement.bind_at(NonZero::new(no).ok_or("numbers begin at 1")?, value.clone())?;
    }
    Ok(statement.run_collect_rows()?)
}

/// Measures one subject, and prints its figures for [`measure::measure`].
fn one(subject: &str, options: &Options) -> Result<(), Failure> {
    if subject == "plain" {
        let path = options.slow.join("plain.db");
        let name = path.to_str().ok_or("the folder's name is not UTF-8")?;
        let connection = open(Arc::new(PlatformIO::new()?), name, options.memory)?;
        measure::figures(&mut Rows::new(connection)?, options, None)?;
        std::fs::remove_file(path.with_extension("db-wal"))?;
        return Ok(std::fs::remove_file(path)?);
    }
    let wals = if subject == "slow-journal" { &options.slow } else { &options.fast };
    let (store, connection) = open_in_store(options.store(), wals, options.engine_memory())?;
    measure::figures(&mut Rows::new(connection)?, options, Some(&store))?;
    std::fs::remove_file(wals.join("rows.db-wal"))?;
    Arc::into_inner(store).ok_or("the database still has the store")?.close()?;
    Ok(options.remove_store()?)
}

/// What is measured.
struct Rows {
    connection: Arc<Connection>,
    insert: Statement,
    update: Statement,
    read: Statement,
}

impl Rows {
    fn new(connection: Arc<Connection>) -> Result<Self, Failure> {
        let insert = connection.prepare("insert into rows values (?, ?)")?;
        let update = connection.prepare("update rows set value = ? where no = ?")?;
        let read = connection.prepare("select value from rows where no = ?")?;
        Ok(Self { connection, insert, update, read })
    }
}

impl Engine for Rows {
    fn insert(&mut self, rows: Range<u64>) -> Result<(), Failure> {
        self.connection.execute("begin")?;
        for no in rows {
            execute(&mut self.insert, &[Value::from_i64(i64::try_from(no)?), Value::from_slice(&row(no))?])?;
        }
        Ok(self.connection.execute("commit")?)
    }

    fn update(&mut self, no: u64, version: u64) -> Result<(), Failure> {
        let value: Vec<u8> = row(no).into_iter().take(ROW_BYTES - 8).chain(version.to_le_bytes()).collect();
        execute(&mut self.update, &[Value::from_slice(&value)?, Value::from_i64(i64::try_from(no)?)])?;
        Ok(())
    }

    fn read(&mut self, no: u64) -> Result<(), Failure> {
        let found = execute(&mut self.read, &[Value::from_i64(i64::try_from(no)?)])?;
        let value = found.first().and_then(|row| row[0].to_blob()).ok_or("a row is not there")?;
        let fine = value.len() == ROW_BYTES && value[..ROW_BYTES - 8] == row(no)[..ROW_BYTES - 8];
        if fine { Ok(()) } else { Err(format!("row {no} is another").into()) }
    }
}
