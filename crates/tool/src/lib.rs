//! The program `pagetier`, for the binary of this crate and for others that know more kinds of devices.

mod args;
mod chain;
mod change;
mod live;
mod look;
mod measure;
mod repair;
mod running;
mod show;
mod ssd;

use args::{Cli, Command, OfBackups, Place};
use clap::Parser;
use pagetier::{
    OpenError,
    backup::BackupError,
    device::DeviceErrorKind,
    device::SharedDevice,
    errors::{Causes, PoolSizeError},
};
use pagetier_control::{AskError, Request};
use std::error::Error;
use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

/// Why a command failed.
pub type Failure = Box<dyn Error + Send + Sync>;

/// A device of the command line that is neither a file nor a block device, such as `rbd:POOL/IMAGE`.
#[derive(Clone, Debug)]
pub struct AskedDevice {
    /// Its name, with the kind before a colon.
    pub name: String,
    /// Whether the command only reads it.
    pub read_only: bool,
}

/// Opens a device of the command line.
pub type OpenDevice = fn(&AskedDevice) -> Result<SharedDevice, Failure>;

/// Why a command cannot mean anything, as its options are.
#[derive(Debug)]
struct Usage(&'static str);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for Usage {}

/// The exit code of wrong usage.
const USAGE: u8 = 2;
/// The exit code when damage was found or work is left.
const FOUND: u8 = 3;
/// The exit code after a signal that asks the command to stop.
const INTERRUPTED: u8 = 130;
/// The maximum time that a stopped command takes to clean up.
const STOP_MAX: Duration = Duration::from_secs(2);

/// Runs the program; `open` opens what is neither a file nor a block device.
#[must_use]
pub fn main(open: OpenDevice) -> ExitCode {
    pagetier_rivals::register();
    let cli = Cli::try_parse().unwrap_or_else(|error| {
        // No options are known then, but a program that asked for JSON reads nothing else.
        if error.use_stderr() && std::env::args_os().any(|option| option == "--json") {
            let why = error.to_string();
            print_failure(why.lines().next().unwrap_or_default().trim_start_matches("error: "), None);
        }
        error.exit()
    });
    // What a scrub finds is the result of the command, which it prints once.
    cli.log.install_or("warn,pagetier_ssdcache::exec::read::scrub=off");
    let (json, in_use) = (cli.json, running::if_in_use(&cli.command));
    let is_one_result = !matches!(cli.command, Command::Top { .. });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let ended = match &runtime {
        Ok(runtime) => runtime.block_on(until_stopped(run(cli, open))),
        Err(error) => Some(Err(error.to_string().into())),
    };
    // Blocking work, such as a read from a pipe, may never end.
    let _ = runtime.map(Runtime::shutdown_background);
    match ended {
        Some(Ok(code)) => code,
        Some(Err(error)) => {
            let (why, remedy) = (Causes(&*error).to_string(), remedy(&*error, in_use));
            eprintln!("pagetier: {why}");
            if let Some(remedy) = &remedy {
                eprintln!("pagetier: {remedy}");
            }
            if json {
                print_failure(&why, remedy.as_deref());
            }
            if error.is::<Usage>() { USAGE.into() } else { ExitCode::FAILURE }
        }
        None => {
            if json && is_one_result {
                print_failure("stopped by a signal", None);
            }
            INTERRUPTED.into()
        }
    }
}

/// Prints a failure as JSON.
fn print_failure(why: &str, remedy: Option<&str>) {
    // A reader that is gone reads nothing.
    let _ = show::result(true, &serde_json::json!({"error": why, "remedy": remedy}), "");
}

/// Runs a command until it ends, or until Ctrl-C or SIGTERM: then it is dropped, which removes scratch files
/// and leaves the store as a crash does. `None`: it was stopped.
async fn until_stopped(
    command: impl Future<Output = Result<ExitCode, Failure>> + Send + 'static,
) -> Option<Result<ExitCode, Failure>> {
    let signals = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
    let [Ok(mut interrupted), Ok(mut terminated)] = signals else { return Some(command.await) };
    // In a task of its own, since some commands compute without an await.
    let mut task = tokio::spawn(command);
    tokio::select! {
        biased;
        ended = &mut task => Some(ended.unwrap_or_else(|panic| Err(panic.into()))),
        _ = interrupted.recv() => stop(task).await,
        _ = terminated.recv() => stop(task).await,
    }
}

async fn stop(task: JoinHandle<Result<ExitCode, Failure>>) -> Option<Result<ExitCode, Failure>> {
    task.abort();
    let _ = tokio::time::timeout(STOP_MAX, task).await;
    None
}

/// The options that help against `error`, which the library knows under other names; `in_use` is what helps
/// against a store that another process has open.
fn remedy(error: &(dyn Error + 'static), in_use: &str) -> Option<String> {
    let asked = error.downcast_ref::<AskError>();
    let refused = asked.and_then(|error| if let AskError::Refused(why) = error { Some(why) } else { None });
    if let Some(why) = refused.or_else(|| error.downcast_ref()) {
        return why.advice.clone();
    }
    if let Some(OpenError::AlreadyOpen { .. }) = error.downcast_ref() {
        return Some(in_use.to_owned());
    }
    if let Some(OpenError::NotFound { path }) = error.downcast_ref() {
        // A program may have its store in a folder, beside other files of its own.
        let folders = std::fs::read_dir(path).ok()?.filter_map(Result::ok).map(|entry| entry.path());
        let within = folders.into_iter().find(|folder| folder.join("manifest.json").exists());
        return within.map(|store| format!("there is one in {}", store.display()));
    }
    known_remedy(error).map(str::to_owned)
}

fn known_remedy(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let backup = error.downcast_ref::<BackupError>();
    let inner =
        backup.and_then(|error| if let BackupError::Open(inner) = error { Some(inner) } else { None });
    match inner.or_else(|| error.downcast_ref::<OpenError>())? {
        OpenError::SsdMissing { .. } | OpenError::Ssd(_) => Some(
            "--ssd names the SSD if it is elsewhere; repair --write --accept-ssd-loss gives up the pages that it alone \
             holds",
        ),
        OpenError::StaleDevice { tier, .. } | OpenError::TooShort { tier, .. } if *tier != "HDD" => {
            Some("--accept-ssd-loss gives up the pages that the SSD alone held")
        }
        OpenError::Device(error) if matches!(error.kind, DeviceErrorKind::Unusable(_)) => Some(
            "--hdd and --ssd name devices that are elsewhere; --accept-ssd-loss opens without the SSD, and gives \
             up the pages that it alone holds",
        ),
        OpenError::HddMissing { .. } => Some("--hdd names the HDD if it is elsewhere"),
        OpenError::PoolSize(PoolSizeError::TooSmall { .. }) => {
            Some("--memory-mib gives the command more memory")
        }
        _ => None,
    }
}

async fn run(mut cli: Cli, open: OpenDevice) -> Result<ExitCode, Failure> {
    let json = cli.json;
    if let Some(code) = running::asked(&cli.command, json).await? {
        return Ok(code);
    }
    let read_only = cli.command.reads_only();
    if let Some(devices) = cli.command.devices() {
        tokio::task::block_in_place(|| devices.open_hdd(read_only, open))?;
    }
    match cli.command {
        Command::Inspect(place) => look::inspect(&place, json).await,
        Command::Verify(place) => look::verify(&place, json).await,
        Command::Stat { live: Some(file), .. } => live::once(&file, json),
        Command::Stat { at: Some(at), accept_ssd_loss, .. } => {
            look::stat(&Place { at, accept_ssd_loss }, json).await
        }
        Command::Stat { .. } => Err("name the store's directory, or --live and a file".into()),
        Command::Why { place, space, page } => look::why(&place, &space, page, json).await,
        Command::Top { file, every, count } => live::top(&file, every, count, json).await,
        Command::Drain { place, off } => ssd::perform_at(&place, Request::Drain { off }, json).await,
        Command::Attach { at, ssd_mib } => ssd::attach(&at, ssd_mib, json).await,
        Command::Readmit(at) => ssd::readmit(&at, json).await,
        Command::ReplaceSsd { at, with, ssd_mib } => ssd::replace(&at, &with, ssd_mib, json).await,
        Command::SetMode { place, mode } => ssd::set_mode(&place, mode, json).await,
        Command::Shrink { place, space, all } => {
            ssd::perform_at(&place, Request::Shrink { space, all }, json).await
        }
        Command::Scrub { at, .. } => {
            let instead = "verify reads every copy of a store at rest, and repair --write repairs";
            Err(running::needs_a_running_store(&at, instead).await)
        }
        Command::SetPolicy { at, .. } | Command::SetBudget { at, .. } | Command::ResizePool { at, .. } => {
            let instead = "the program that opens it sets this, and it lasts until the store is closed";
            Err(running::needs_a_running_store(&at, instead).await)
        }
        Command::Calibrate { hdd, ssd, page_bytes, seconds } => {
            measure::calibrate(&hdd, &ssd, page_bytes, seconds, json).await
        }
        Command::WhatIf { trace, pool_pages, ssd_pages, page_bytes, pool_policy, ssd_policy } => {
            let sizes = (pool_pages, ssd_pages, page_bytes);
            measure::what_if(&trace, sizes, &pool_policy, &ssd_policy, json)
        }
        Command::ExportHot { place, to } => look::export_hot(&place, &to, json).await,
        Command::Backup { place, to, full, bytes_per_second } => {
            let request = Request::Backup { to: running::absolute(&to)?, full, bytes_per_second };
            ssd::perform_at(&place, request, json).await
        }
        Command::Backups { what: OfBackups::List { chain, archive } } => {
            chain::list(&chain, archive.as_deref(), json).await
        }
        Command::Backups { what: OfBackups::Verify { chain } } => chain::verify(&chain, json).await,
        Command::Backups { what: OfBackups::Purge { chain, keep } } => chain::purge(&chain, keep, json).await,
        Command::Restore { from, to, upto, space: Some(space), page, .. } => {
            chain::extract(&from, (&space, page), upto, &to, json).await
        }
        Command::Restore { from, to, upto, log_to, hdd, ssd, ssd_mib, .. } => {
            let opened = |hdd: PathBuf| {
                tokio::task::block_in_place(|| args::device(&hdd, false, open)).map(|device| (hdd, device))
            };
            let hdd = hdd.map(opened).transpose()?;
            let store = change::new_store(&to, hdd, ssd, ssd_mib);
            change::restore(&from, &to, upto, log_to.as_deref(), store, json).await
        }
        Command::Repair { place, write, from } => repair::repair(&place, write, from.as_deref(), json).await,
    }
}
