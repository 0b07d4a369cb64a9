//! What passes over the socket: requests, and the server's lines.

use pagetier::SsdMode;
use pagetier::backup::BackupError;
use pagetier::errors::{Advice, Causes};
use pagetier_wal::LoggedBackupError;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::error::Error;
use std::path::PathBuf;

/// The version of the protocol, in the greeting.
pub(crate) const PROTOCOL: u32 = 1;
/// The longest request, in bytes. Paths are the longest part of any, and have at most 4,096 bytes.
pub(crate) const REQUEST_BYTES_MAX: u64 = 64 << 10;

/// What an operator asks of a running store.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Request {
    /// Sizes and statistics.
    Stat {},
    /// Write home what is newer on the SSD.
    Drain {
        /// Take the SSD out of use afterwards, if nothing is left on it alone.
        #[serde(default)]
        off: bool,
    },
    /// Put an SSD into use in a store that has none.
    Attach {
        /// The SSD, by an absolute path; `None`: that of the store's options.
        #[serde(default)]
        ssd: Option<PathBuf>,
        /// The bytes of it to use; `None`: its size, or 256 MiB of a new file. Only with `ssd`.
        #[serde(default)]
        bytes: Option<u64>,
    },
    /// Readmit the SSD after a failure.
    Readmit {},
    /// Drain the SSD, then put another one in its place.
    ReplaceSsd {
        /// The new SSD, by an absolute path.
        with: PathBuf,
        /// The bytes of it to use; `None`: its size if it exists, otherwise as many as the old one has.
        #[serde(default)]
        bytes: Option<u64>,
    },
    /// Change what the SSD is used for, until the store is closed; to or from off, for good.
    SetMode {
        /// The mode.
        mode: SsdMode,
    },
    /// Return the disk space of free pages to other spaces and the file system.
    Shrink {
        /// This space, by name.
        #[serde(default)]
        space: Option<String>,
        /// Every space instead.
        #[serde(default)]
        all: bool,
    },
    /// Read and verify every copy.
    Scrub {
        /// The maximum number of pages read per second; 0: unlimited.
        #[serde(default = "scrub_rate")]
        pages_per_second: f64,
        /// Whether to repair what has another good copy.
        #[serde(default = "yes")]
        heal: bool,
    },
    /// Add a backup to a chain, with the engine's log if that is served. If its client goes away, the chain
    /// is as it was, or has the whole backup.
    Backup {
        /// The directory of the chain, by an absolute path.
        to: PathBuf,
        /// Begin a new chain.
        #[serde(default)]
        full: bool,
        /// The maximum number of bytes read per second; `None`: unlimited.
        #[serde(default)]
        bytes_per_second: Option<u64>,
    },
    /// Change policies, until the store is closed.
    SetPolicy {
        /// The pool's, by name.
        #[serde(default)]
        pool: Option<String>,
        /// The SSD's, by name.
        #[serde(default)]
        ssd: Option<String>,
    },
    /// Limit the bytes written to the SSD per day, until the store is closed.
    SetBudget {
        /// The limit; `None`: no limit.
        bytes_per_day: Option<u64>,
    },
    /// Change the memory budget, until the store is closed.
    ResizePool {
        /// The whole budget, as for the builder's `pool_bytes`.
        bytes: u64,
    },
}

/// The store's own default: gentle enough for a store that is in use.
fn scrub_rate() -> f64 {
    100.0
}

fn yes() -> bool {
    true
}

/// How far a request is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Progress {
    /// What the store does at the moment.
    pub what: String,
    /// Steps done.
    pub done: u64,
    /// Steps in all; 0: not known.
    pub total: u64,
}

impl Progress {
    pub(crate) fn new(what: &str, done: u64, total: u64) -> Self {
        Self { what: what.to_owned(), done, total }
    }
}

/// What a request led to.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Answer {
    /// Whether all of it was done; otherwise pages are left, or damage was found.
    pub complete: bool,
    /// The result in words, in lines.
    pub text: String,
    /// The result as data, with the fields that `pagetier --json` prints.
    pub value: Value,
}

/// Why a request was refused, or failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct Refused {
    /// The error with its causes.
    pub error: String,
    /// What to do about it, if the store knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Refused {
    pub(crate) fn because(error: impl Into<String>) -> Self {
        Self { error: error.into(), advice: None }
    }

    fn advised(error: &(dyn Error + 'static), advice: Advice) -> Self {
        let advice = match advice {
            Advice::Retry => Some("repeat it later"),
            Advice::FreeSpace => Some("free space on the device or in the directory, then repeat it"),
            Advice::Reopen => Some("close the store and open it again"),
            Advice::FixDevice => Some("attach the right device, or replace it"),
            Advice::Restore => Some("restore the page, or the store, from a backup or the log"),
            _ => None,
        };
        Self { error: Causes(error).to_string(), advice: advice.map(str::to_owned) }
    }
}

impl From<pagetier::Error> for Refused {
    fn from(error: pagetier::Error) -> Self {
        Self::advised(&error, error.advice())
    }
}

impl From<BackupError> for Refused {
    fn from(error: BackupError) -> Self {
        Self::advised(&error, error.advice())
    }
}

impl From<LoggedBackupError> for Refused {
    fn from(error: LoggedBackupError) -> Self {
        Self::advised(&error, error.advice())
    }
}

/// A line of the server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Line {
    /// The first line of a connection.
    Hello {
        protocol: u32,
        pid: u32,
    },
    Progress(Progress),
    Answer(Answer),
    Refused(Refused),
}

impl Line {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        // The types above have no map with other keys than text, so nothing can fail here.
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}
