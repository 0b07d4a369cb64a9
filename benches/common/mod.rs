//! What the benches share: how long they run, the devices that they run on, the devices' limits, and tables.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `PAGETIER_HDD`, `PAGETIER_SSD` | a block device, a file or a folder to run on |
//! | `PAGETIER_OVERWRITE=1` | allow a device or file that holds data to be overwritten |
//! | `PAGETIER_BENCH_SHORT=1` | check in seconds that the bench runs; its figures mean nothing |

// Each bench is a crate of its own and uses a part of this module.
#![allow(dead_code)]

pub(crate) mod bare;
pub(crate) mod board;
pub(crate) mod claim;
pub(crate) mod describe;
pub(crate) mod limit;
pub(crate) mod report;
pub(crate) mod target;

use tokio::runtime::{Builder, Runtime};

/// How long a bench runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Length {
    /// Only to check that it runs: small data, one round, no limit is asserted.
    Short,
    /// Fewer rounds.
    Quick,
    Full,
}

impl Length {
    /// The length that the environment and the arguments select. `--test` is what cargo and criterion call
    /// a short run.
    pub(crate) fn selected() -> Self {
        let argument = |name: &str| std::env::args().any(|arg| arg == name);
        if std::env::var_os("PAGETIER_BENCH_SHORT").is_some_and(|value| value != "0") || argument("--test") {
            Self::Short
        } else if argument("--quick") {
            Self::Quick
        } else {
            Self::Full
        }
    }

    /// The value for this length.
    pub(crate) fn pick<T>(self, short: T, quick: T, full: T) -> T {
        match self {
            Self::Short => short,
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

/// The threads of a runtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Workers {
    One,
    Two,
}

/// A runtime whose reactor reaps the devices' completions.
pub(crate) fn runtime(workers: Workers) -> Runtime {
    let mut builder = match workers {
        Workers::One => Builder::new_current_thread(),
        Workers::Two => Builder::new_multi_thread(),
    };
    if workers == Workers::Two {
        builder.worker_threads(2);
    }
    builder.enable_all().build().expect("a runtime")
}

/// Whether valgrind is installed.
pub(crate) fn has_valgrind() -> bool {
    let version = std::process::Command::new("valgrind").arg("--version").output();
    version.is_ok_and(|out| out.status.success())
}

/// The median of `values`; NaN if there are none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
