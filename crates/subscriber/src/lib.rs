//! What the command lines of this repository's programs have in common: how the store's events (`tracing`)
//! are printed, to standard error, so that results on standard output stay as they are, and what names a
//! device. A library must not install a subscriber, so no published package depends on this one.

#![forbid(unsafe_code)]

use clap::{Args, ValueEnum};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Whether `name` is that of a device which is neither a file nor a block device, such as `rbd:POOL/IMAGE`. A
/// path with a colon has a slash before it, as `./a:b`.
#[must_use]
pub fn names_a_device(name: &str) -> bool {
    name.split_once(':').is_some_and(|(kind, _)| !kind.is_empty() && !kind.contains('/'))
}

/// The form of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LogFormat {
    /// A line for people
    Text,
    /// A JSON object on a line of its own
    Json,
}

/// The option `--log`; the environment variable `RUST_LOG` selects events.
#[derive(Args, Clone, Debug)]
pub struct LogArgs {
    /// How events are printed to standard error; RUST_LOG selects them, such as info or pagetier=debug
    /// [default selection: warn]
    #[arg(long, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT", global = true)]
    log: LogFormat,
}

impl LogArgs {
    /// Prints the events of this process from here on. A second call has no effect.
    pub fn install(&self) {
        self.install_or("warn");
    }

    /// The same, with another selection for when `RUST_LOG` has none.
    pub fn install_or(&self, usual: &str) {
        // A directive that cannot be parsed is reported on standard error, and the others hold: a wrong
        // variable of the environment must not keep a store from being repaired.
        let selection = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
        let selection = if selection.is_empty() { usual } else { &selection };
        let builder = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::builder().parse_lossy(selection))
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal());
        // An error means that the program has a subscriber already, which is as good.
        let _ = match self.log {
            LogFormat::Text => builder.try_init(),
            LogFormat::Json => builder.json().flatten_event(true).try_init(),
        };
    }
}
