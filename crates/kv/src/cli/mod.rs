//! The program `kv`, for the binary of this crate and for others that know more kinds of devices.

mod args;
mod bench;
mod commands;
mod load;
mod show;

use crate::Kv;
use args::{Cli, Command};
use clap::Parser;
use pagetier::SsdMode;
use pagetier::device::SharedDevice;
use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::sync::watch;

/// Why a command failed.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A device of the command line that is neither a file nor a block device, such as `rbd:POOL/IMAGE`.
#[derive(Clone, Debug)]
pub struct AskedDevice {
    /// Its name, with the kind before a colon.
    pub name: String,
    /// Whether to take it over from another owner.
    pub take_over: bool,
    /// The size with which to create it if it is missing, in bytes; `None`: it must exist.
    pub new_bytes: Option<u64>,
}

/// Opens a device of the command line.
pub type OpenDevice = fn(&AskedDevice) -> Result<SharedDevice, Failure>;

/// The exit code of a command that was asked to stop.
pub(crate) const STOPPED: u8 = 130;

/// A request to stop, from Ctrl-C or SIGTERM.
#[derive(Clone, Default)]
pub(crate) struct Stop(watch::Sender<bool>);

impl Stop {
    pub(crate) fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Runs a command that can be dropped at any await.
    async fn or(
        &self,
        command: impl Future<Output = Result<ExitCode, Failure>>,
    ) -> Result<ExitCode, Failure> {
        let mut asked = self.0.subscribe();
        tokio::select! {
            // If the command has ended when the signal arrives, its own exit code counts.
            biased;
            ended = command => ended,
            _ = asked.wait_for(|asked| *asked) => Ok(STOPPED.into()),
        }
    }

    /// The first signal asks the command to end, after which the store is closed. The second one ends the
    /// process at once, which loses nothing that was confirmed.
    async fn watch(self) {
        for first in [true, false] {
            asked_to_stop().await;
            if !first {
                std::process::exit(STOPPED.into());
            }
            eprintln!("stopping; a second signal stops at once");
            self.0.send_replace(true);
        }
    }
}

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

/// Runs the program; `open` opens what is neither a file nor a block device.
#[must_use]
pub fn main(open: OpenDevice) -> ExitCode {
    // An operator may choose them by name, over the control socket.
    pagetier_rivals::register();
    let cli = Cli::parse();
    cli.log.install();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("kv: {}", pagetier::errors::Causes(&error));
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(cli, open)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("kv: {}", pagetier::errors::Causes(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli, open: OpenDevice) -> Result<ExitCode, Failure> {
    let stop = Stop::default();
    let watcher = tokio::spawn(stop.clone().watch());
    // Opening a cluster's device blocks for as long as the cluster does not answer. The watcher must run
    // meanwhile, or a signal would not stop the command.
    let options = tokio::task::block_in_place(|| cli.options(open))?;
    let kv = Arc::new(Kv::open(&options).await?);
    if kv.store().stats().ssd.mode == SsdMode::Off
        && let Some(note) = cli.note_of_unused_ssd()
    {
        eprintln!("kv: {note}");
    }
    let result = command(&kv, cli.command, &stop).await;
    // Close the store even if the command failed, to keep what it did before.
    let closed = kv.shutdown().await;
    // Only now: a second signal during a slow close must still end the process.
    watcher.abort();
    let code = result?;
    closed?;
    Ok(code)
}

async fn command(kv: &Arc<Kv>, command: Command, stop: &Stop) -> Result<ExitCode, Failure> {
    match command {
        Command::Put { key, value } => commands::put(kv, &key, value.as_deref()).await,
        Command::Get { key } => commands::get(kv, &key).await,
        Command::Delete { key } => commands::delete(kv, &key).await,
        Command::Scan(scan) => commands::scan(kv, &scan, stop).await,
        Command::Load(load) => load::load(kv, &load, stop).await,
        Command::Check => stop.or(commands::check(kv)).await,
        Command::Bench(bench) => bench::bench(kv, &bench, stop).await,
        Command::Backup { to } => stop.or(commands::backup(kv, &to)).await,
    }
}
