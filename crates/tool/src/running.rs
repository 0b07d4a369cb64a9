//! The commands on a store that another process has open: they ask it through its control socket.

use crate::args::{Command, Devices};
use crate::{FOUND, Failure, show};
use pagetier::SsdMode;
use pagetier_control::{Answer, Client, Report, Request};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// What to do if another process has the store of `command` open, and did not answer.
pub(crate) fn if_in_use(command: &Command) -> &'static str {
    match command {
        Command::Verify(_) => {
            "no process serves verify for others; scrub --no-heal asks it to read every copy, through its control \
             socket"
        }
        Command::Repair { .. } => {
            "no process serves repair for others; scrub asks it to repair what has another good copy, through its \
             control socket"
        }
        Command::Why { .. } | Command::ExportHot { .. } => {
            "no process serves this command for others; its program has the calls"
        }
        _ => {
            "it takes no requests: a program does that once it has a control socket (--control-socket of kv and \
             tpcc_lite, or pagetier_control::listen in an engine)"
        }
    }
}

/// What to ask, and of which store, if `command` can be asked of a running one.
fn request(command: &Command) -> Result<Option<(&Devices, Request)>, Failure> {
    let bytes = |mib: Option<u64>| match mib.map(|mib| mib.checked_mul(1 << 20)) {
        Some(None) => Err(Failure::from("--ssd-mib: there is no such size")),
        some => Ok(some.flatten()),
    };
    Ok(Some(match command {
        Command::Stat { at: Some(at), live: None, .. } => (at, Request::Stat {}),
        Command::Drain { place, off } => (&place.at, Request::Drain { off: *off }),
        Command::Attach { at, ssd_mib } => {
            // Where the SSD is, if it is not that of the program's options.
            let ssd = at.ssd.as_deref().map(absolute).transpose()?;
            (at, Request::Attach { ssd, bytes: bytes(*ssd_mib)? })
        }
        Command::Readmit(at) => (at, Request::Readmit {}),
        Command::ReplaceSsd { at, with, ssd_mib } => {
            (at, Request::ReplaceSsd { with: absolute(with)?, bytes: bytes(*ssd_mib)? })
        }
        Command::SetMode { place, mode } => (&place.at, Request::SetMode { mode: SsdMode::from(*mode) }),
        Command::Shrink { place, space, all } => {
            (&place.at, Request::Shrink { space: space.clone(), all: *all })
        }
        Command::Scrub { at, pages_per_second, no_heal } => {
            (at, Request::Scrub { pages_per_second: *pages_per_second, heal: !no_heal })
        }
        Command::Backup { place, to, full, bytes_per_second } => {
            let (full, bytes_per_second) = (*full, *bytes_per_second);
            (&place.at, Request::Backup { to: absolute(to)?, full, bytes_per_second })
        }
        Command::SetPolicy { at, pool, ssd_policy } => {
            (at, Request::SetPolicy { pool: pool.clone(), ssd: ssd_policy.clone() })
        }
        Command::SetBudget { at, per_day } => (at, Request::SetBudget { bytes_per_day: per_day.0 }),
        Command::ResizePool { at, to } => (at, Request::ResizePool { bytes: *to }),
        _ => return Ok(None),
    }))
}

/// The process that has the store open has another working directory.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// Asks the process that has the store of `command` open; `None` if none listens there, or the command is not
/// one to ask.
pub(crate) async fn asked(command: &Command, json: bool) -> Result<Option<ExitCode>, Failure> {
    let Some((at, request)) = request(command)? else { return Ok(None) };
    let Some(mut client) = Client::connect(&at.dir).await? else { return Ok(None) };
    let bar = show::bar("asking", 0);
    let answer = client.ask(&request, |now| {
        bar.set_message(now.what);
        bar.set_length(now.total);
        bar.set_position(now.done);
    });
    let answer = answer.await;
    bar.finish_and_clear();
    show_answer(&answer?, json).map(Some)
}

/// Prints an answer; returns the exit code that says whether it is complete.
pub(crate) fn show_answer(answer: &Answer, json: bool) -> Result<ExitCode, Failure> {
    show::result(json, &answer.value, &answer.text)?;
    Ok(if answer.complete { ExitCode::SUCCESS } else { FOUND.into() })
}

/// Shows the progress of a request that this process performs itself.
pub(crate) fn report(bar: &indicatif::ProgressBar) -> Report {
    let bar = bar.clone();
    Arc::new(move |now| {
        bar.set_message(now.what);
        bar.set_length(now.total);
        bar.set_position(now.done);
    })
}

/// Why a command that needs a running store cannot be fulfilled.
pub(crate) async fn needs_a_running_store(at: &Devices, instead: &str) -> Failure {
    match at.builder().open_read_only().await {
        // If another process has it open, the remedy names that one, and how to make it listen.
        Err(error) => error.into(),
        Ok(_) => format!("{}: no process has the store open; {instead}", at.dir.display()).into(),
    }
}
