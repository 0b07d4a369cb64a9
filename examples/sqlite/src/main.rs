//! SQLite on Pagetier and on a plain file: commits that a test kills, and a comparison of both.

use pagetier::blocking;
use pagetier::{Builder, PageStore};
use pagetier_example_redb::measure::{self, Engine, Failure, Options, ROW_BYTES, row};
use pagetier_example_sqlite::vfs::{Journals, Registered, register};
use rusqlite::{Connection, OpenFlags};
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

const USAGE: &str = "usage:
  pagetier-example-sqlite commit DIR JOURNAL_MODE
      commits rows 0, 1, .. to a database in a store in DIR, and prints each number once it is durable
  pagetier-example-sqlite measure --slow DIR --fast DIR [--memory SIZE] [--ssd SIZE] [--page SIZE] [--rows N]
          [--seconds N] [--mode JOURNAL_MODE]
      measures SQLite on a plain file in the slow folder, and on a store with its HDD there and its SSD in the fast
      one, with equal memory (64MiB), an SSD of 1GiB, 400,000 rows, 10 seconds for each figure, journal mode wal";

fn main() -> ExitCode {
    measure::main(run)
}

fn run() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["commit", dir, mode] => commit(Path::new(dir), mode),
        ["measure", options @ ..] => measure::measure(
            &[
                ("plain", "the plain file"),
                ("slow-journal", "Pagetier, journal on the slow disk, as the plain file's"),
                ("fast-journal", "Pagetier, journal beside the SSD"),
            ],
            options,
        ),
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

/// Measures one subject, and prints its figures for [`measure::measure`].
fn one(subject: &str, options: &Options) -> Result<(), Failure> {
    if subject == "plain" {
        let path = options.slow.join("plain.db");
        let connection = Connection::open(&path)?;
        prepare(&connection, &options.mode, options.memory)?;
        measure::figures(&mut Rows(connection), options, None)?;
        return Ok(std::fs::remove_file(path)?);
    }
    let journals = if subject == "slow-journal" { &options.slow } else { &options.fast };
    let (store, registered, connection) = open(options.store(), journals)?;
    prepare(&connection, &options.mode, options.engine_memory())?;
    measure::figures(&mut Rows(connection), options, Some(&store))?;
    drop(registered);
    Arc::into_inner(store).ok_or("the database still has the store")?.close()?;
    Ok(options.remove_store()?)
}

/// What is measured.
struct Rows(Connection);

impl Engine for Rows {
    fn insert(&mut self, rows: Range<u64>) -> Result<(), Failure> {
        let change = self.0.unchecked_transaction()?;
        for no in rows {
            let insert = "insert into rows values (?, ?)";
            change.prepare_cached(insert)?.execute((i64::try_from(no)?, row(no)))?;
        }
        Ok(change.commit()?)
    }

    fn update(&mut self, no: u64, version: u64) -> Result<(), Failure> {
        // Another value each time: SQLite writes nothing for a change that changes nothing.
        let value: Vec<u8> = row(no).into_iter().take(ROW_BYTES - 8).chain(version.to_le_bytes()).collect();
        let change = "update rows set value = ? where no = ?";
        self.0.prepare_cached(change)?.execute((value, i64::try_from(no)?))?;
        Ok(())
    }

    fn read(&mut self, no: u64) -> Result<(), Failure> {
        let mut read = self.0.prepare_cached("select value from rows where no = ?")?;
        let value: Vec<u8> = read.query_row([i64::try_from(no)?], |found| found.get(0))?;
        let fine = value.len() == ROW_BYTES && value[..ROW_BYTES - 8] == row(no)[..ROW_BYTES - 8];
        if fine { Ok(()) } else { Err(format!("row {no} is another").into()) }
    }
}
