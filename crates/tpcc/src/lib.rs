//! TPC-C on Pagetier: a small but honest database engine on a page store, and the storage cost of each
//! New-Order.
//!
//! [`main`] is the program of the example `tpcc_lite`. Reading order: `schema`, `btree`, the log
//! (`pagetier_wal`), `database`, `tx`, then `run`, `report`, `location`, `session`. [`references`] generates
//! only TPC-C's page references, for the replay. [`args`] parses command lines.

pub mod args;
mod btree;
mod catalog;
mod cli;
mod compare;
mod consistency;
mod database;
mod load;
mod location;
mod locks;
mod operations;
mod random;
pub mod references;
mod report;
mod run;
mod schema;
mod session;
mod tx;

use clap::Parser;
use clap::error::ErrorKind;
use cli::{Cli, Time};
use pagetier_devio::VirtualClock;
use session::Session;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::process::ExitCode;
use std::task::{Context, Waker};
use tokio::runtime::{Builder, Runtime};

/// The program `tpcc_lite`: parses the command line, runs, reports.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(why) = cli.check() {
        <Cli as clap::CommandFactory>::command().error(ErrorKind::ArgumentConflict, why).exit();
    }
    match start(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tpcc_lite: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the session; true when every report is consistent.
fn start(cli: &Cli) -> Result<bool, Box<dyn std::error::Error>> {
    if cli.comparison.is_asked() {
        return compare::compare(cli);
    }
    let clock = (cli.time == Time::Virtual).then(VirtualClock::new);
    let runtime = runtime(clock.as_ref())?;
    let rows = runtime.block_on(async { Session::new(cli, clock)?.run().await })?;
    if cli.json && cli.policies.is_none() {
        println!("{}", serde_json::to_string_pretty(&rows.first())?);
    } else if cli.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        println!("{}", report::LEGEND);
        for row in &rows {
            println!("\n{}\n{}", row.setup.name(), report::details(row));
        }
    }
    Ok(rows.iter().all(|row| row.consistency == "ok"))
}

/// A multi-threaded runtime, or for virtual time a single-threaded one whose clock advances only when nothing
/// else can run.
pub(crate) fn runtime(clock: Option<&VirtualClock>) -> io::Result<Runtime> {
    let Some(clock) = clock.cloned() else {
        return Builder::new_multi_thread().enable_all().build();
    };
    Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .on_thread_park(move || {
            clock.idle(|by| {
                // The clock advances on the first poll.
                let _ = pin!(tokio::time::advance(by)).poll(&mut Context::from_waker(Waker::noop()));
            });
        })
        .build()
}
