//! `pagetier`: the command-line tool for Pagetier stores.

mod args;
mod change;
mod live;
mod look;
mod measure;
mod show;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

/// Why a command failed.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The exit code when damage was found or work is left.
const FOUND: u8 = 3;
/// The exit code after a signal that asks the command to stop.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("pagetier: {error}");
            return ExitCode::FAILURE;
        }
    };
    // A command that is stopped is dropped: the store is left as by a crash, scratch files are removed.
    let ended = runtime.block_on(async {
        tokio::select! {
            biased;
            ended = run(cli) => Some(ended),
            () = asked_to_stop() => None,
        }
    });
    // Blocking work, such as a read from a pipe, may never end.
    runtime.shutdown_background();
    match ended {
        Some(Ok(code)) => code,
        Some(Err(error)) => {
            eprintln!("pagetier: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
        None => {
            eprintln!("pagetier: interrupted");
            INTERRUPTED.into()
        }
    }
}

/// Waits for Ctrl-C or SIGTERM.
async fn asked_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    let interrupted = tokio::signal::ctrl_c();
    match signal(SignalKind::terminate()) {
        Ok(mut terminated) => tokio::select! {
            _ = interrupted => {}
            _ = terminated.recv() => {}
        },
        Err(_) => drop(interrupted.await),
    }
}

/// The error's text, with those of its causes that it does not include.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

async fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let json = cli.json;
    match cli.command {
        Command::Inspect(place) => look::inspect(&place, json).await,
        Command::Verify(place) => look::verify(&place, json).await,
        Command::Stat { place, live: None } => look::stat(&place, json).await,
        Command::Stat { live: Some(file), .. } => live::once(&file, json),
        Command::Why { place, space, page } => look::why(&place, &space, page, json).await,
        Command::Top { file, every, count } => live::top(&file, every, count, json).await,
        Command::Drain { place, off } => change::drain(&place, off, json).await,
        Command::Calibrate { hdd, ssd, page_bytes, seconds } => {
            measure::calibrate(&hdd, &ssd, page_bytes, seconds, json).await
        }
        Command::WhatIf { trace, pool_pages, ssd_pages, page_bytes, pool_policy, ssd_policy } => {
            let sizes = (pool_pages, ssd_pages, page_bytes);
            measure::what_if(&trace, sizes, &pool_policy, &ssd_policy, json)
        }
        Command::ExportHot { place, to } => look::export_hot(&place, &to, json).await,
        Command::Backup { place, to, full } => change::backup(&place, &to, full, json).await,
        Command::Restore { from, to, upto, ssd_mib } => {
            change::restore(&from, &to, upto, ssd_mib, json).await
        }
        Command::Repair { place, write } => change::repair(&place, write, json).await,
    }
}
