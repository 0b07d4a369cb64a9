//! TPC-C on Pagetier: a small database engine on a page store, and the storage cost of each New-Order.
//!
//! [`main`] is the program of the example `tpcc_lite`. Reading order: `database::schema`, the trees
//! (`pagetier_btree`), the log (`pagetier_wal`), `database::engine`, `tx`, then in `run` `terminals`,
//! `report`, `location`, `session`. [`references`] generates only TPC-C's page references, for the replay.
//! [`args`] parses command lines.

#![allow(missing_docs, reason = "not published: a doc is written where a name does not say enough")]

pub mod args;
mod command;
mod compare;
mod database;
pub mod references;
mod run;
mod tx;

use clap::Parser;
use clap::error::ErrorKind;
use command::cli::{Cli, Time};
use pagetier::device::SharedDevice;
use pagetier_testing::VirtualClock;
use run::report::{self, End};
use run::runtime::runtime;
use run::session::{Session, SessionError};
use std::process::ExitCode;

/// Opens a device of the command line that is neither a file nor a block device, such as `rbd:POOL/IMAGE`,
/// given its name and the size with which to create it.
pub type OpenDevice = fn(&str, u64) -> Result<SharedDevice, Box<dyn std::error::Error + Send + Sync>>;

/// The program `tpcc_lite`: parses the command line, runs, reports.
#[must_use]
pub fn main(open: OpenDevice) -> ExitCode {
    // Before the command line is read: it and its help name policies.
    pagetier_rivals::register();
    let cli = Cli::parse();
    cli.log.install();
    if let Err(why) = cli.check() {
        <Cli as clap::CommandFactory>::command().error(ErrorKind::ArgumentConflict, why).exit();
    }
    match start(&cli, open) {
        Ok(End { is_sound: false, .. }) => ExitCode::FAILURE,
        Ok(End { was_interrupted: true, .. }) => INTERRUPTED.into(),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tpcc_lite: {}", pagetier::errors::Causes(&*error));
            match error.downcast_ref() {
                Some(SessionError::Interrupted) => INTERRUPTED.into(),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// The exit code after Ctrl-C, which a shell gives to a program that the signal ends.
const INTERRUPTED: u8 = 130;

/// Runs the session, and reports.
fn start(cli: &Cli, open: OpenDevice) -> Result<End, Box<dyn std::error::Error>> {
    if cli.comparison.is_asked() {
        return compare::compare(cli);
    }
    let clock = (cli.time == Time::Virtual).then(VirtualClock::new);
    let runtime = runtime(clock.as_ref())?;
    let session = {
        // Its tasks belong there, but opening a device may block.
        let _entered = runtime.enter();
        Session::new(cli, clock, open)?
    };
    let rows = runtime.block_on(session.run())?;
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
    Ok(End {
        // A run that broke a condition still prints its figures, so only the exit code tells a script.
        is_sound: rows.iter().all(|row| row.consistency == "ok"),
        was_interrupted: rows.iter().any(|row| row.interrupted),
    })
}
