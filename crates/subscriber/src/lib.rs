//! What the command lines of this repository's programs have in common: how the store's events (`tracing`)
//! are printed, to standard error, so that results on standard output stay as they are, and what names a
//! device. A library must not install a subscriber, so no published package depends on this one.

#![forbid(unsafe_code)]

use clap::{Args, ValueEnum};
use std::io::IsTerminal;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

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
        let selection = std::env::var("RUST_LOG").unwrap_or_default();
        let selection = if selection.is_empty() { usual } else { &selection };
        let printed = tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal());
        let printed = match self.log {
            LogFormat::Text => printed.boxed(),
            LogFormat::Json => printed.json().flatten_event(true).boxed(),
        };
        // An error means that the program has a subscriber already, which is as good.
        let _ = tracing_subscriber::registry().with(printed.with_filter(selected(selection))).try_init();
    }
}

/// The events that `selection` names. A directive that cannot be parsed is reported on standard error, and
/// the others hold: a wrong variable of the environment must not keep a store from being repaired.
fn selected(selection: &str) -> Targets {
    let mut all = Targets::new();
    for directive in selection.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        match directive.parse::<Targets>() {
            Ok(one) => {
                all = match one.default_level() {
                    Some(level) => all.with_default(level),
                    None => all.with_targets(one),
                }
            }
            Err(error) => eprintln!("RUST_LOG: ignoring '{directive}': {error}"),
        }
    }
    all
}
