//! redb on Pagetier and on a plain file: commits that a test kills, and a comparison of both.

use pagetier::blocking;
use pagetier::{PageSize, PageStore};
use pagetier_example_redb::measure::{self, Engine, Failure, Options, row};
use pagetier_example_redb::{backend::Backend, file::File};
use redb::{Database, ReadableDatabase, TableDefinition};
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("rows");

const USAGE: &str = "usage:
  pagetier-example-redb commit DIR
      commits rows 0, 1, .. to a store in DIR, and prints each number once it is durable
  pagetier-example-redb measure --slow DIR --fast DIR [--memory SIZE] [--ssd SIZE] [--page SIZE] [--rows N]
          [--seconds N]
      measures redb on a plain file in the slow folder, and on a store with its HDD there and its SSD in the fast
      one, with equal memory (64MiB), an SSD of 1GiB, 400,000 rows, 10 seconds for each figure";

fn main() -> ExitCode {
    measure::main(run)
}

fn run() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["commit", dir] => commit(Path::new(dir)),
        ["measure", options @ ..] => {
            measure::measure(&[("plain", "the plain file"), ("pagetier", "Pagetier")], options)
        }
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

/// Checks the rows that an earlier run left, then goes on until it is killed.
fn commit(dir: &Path) -> Result<(), Failure> {
    let builder =
        PageStore::builder().directory(dir).ssd_bytes(8 << 20).pool_bytes(4 << 20).page_size(PageSize::MIN);
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

/// Measures one subject, and prints its figures for [`measure::measure`].
fn one(subject: &str, options: &Options) -> Result<(), Failure> {
    if subject == "plain" {
        let path = options.slow.join("plain.redb");
        let database = Database::builder().set_cache_size(usize::try_from(options.memory)?).create(&path)?;
        measure::figures(&mut Rows(database), options, None)?;
        return Ok(std::fs::remove_file(path)?);
    }
    let (store, database) = open(options.store(), usize::try_from(options.engine_memory())?)?;
    measure::figures(&mut Rows(database), options, Some(&store))?;
    Arc::into_inner(store).ok_or("the database still has the store")?.close()?;
    Ok(options.remove_store()?)
}

/// What is measured.
struct Rows(Database);

impl Engine for Rows {
    fn insert(&mut self, rows: Range<u64>) -> Result<(), Failure> {
        let change = self.0.begin_write()?;
        {
            let mut table = change.open_table(TABLE)?;
            for no in rows {
                table.insert(no, row(no).as_slice())?;
            }
        }
        Ok(change.commit()?)
    }

    fn update(&mut self, no: u64, _version: u64) -> Result<(), Failure> {
        // redb writes a value that has not changed, too.
        self.insert(no..no + 1)
    }

    fn read(&mut self, no: u64) -> Result<(), Failure> {
        let read = self.0.begin_read()?.open_table(TABLE)?.get(no)?;
        let fine = read.is_some_and(|value| value.value() == row(no));
        if fine { Ok(()) } else { Err(format!("row {no} is not there").into()) }
    }
}
