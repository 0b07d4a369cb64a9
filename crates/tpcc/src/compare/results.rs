//! `report.json`: the finished rows, so that a long comparison can be continued.

use super::machine::Machine;
use super::observe::Observed;
use super::steady::Window;
use crate::command::matrix::Case;
use crate::run::report::Row;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// The parameters that all rows of a report share. Rows of other settings are kept, but neither shown nor
/// counted as finished.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) version: String,
    pub(crate) warehouses: u16,
    pub(crate) terminals: u32,
    pub(crate) seed: u64,
    pub(crate) row_overhead: u16,
    pub(crate) page_bytes: u64,
    pub(crate) hdd_model: String,
    pub(crate) ratio_of: String,
    /// New-Orders per window.
    pub(crate) window: u64,
    /// The maximum number of warm-up windows, and the number of measured ones.
    pub(crate) windows_max: usize,
    pub(crate) windows_measured: usize,
}

/// A run that was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Finished {
    pub(crate) row: Row,
    /// Whether the run was steady before the measurement; otherwise the cap on windows ended its warm-up.
    pub(crate) steady: bool,
    pub(crate) warmup: Vec<Window>,
    pub(crate) measured: Vec<Window>,
    /// Wall-clock seconds of the run.
    pub(crate) wall_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) observed: Option<Observed>,
}

impl Finished {
    /// The warm-up's virtual seconds.
    pub(crate) fn warmup_seconds(&self) -> f64 {
        self.warmup.iter().map(|window| window.seconds).sum()
    }
}

/// The outcome of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub(crate) enum Outcome {
    /// The run was measured.
    Finished(Box<Finished>),
    /// The run failed with the store's error.
    NotRun {
        /// The store's error message.
        error: String,
        /// Whether the store refused these policies.
        refused: bool,
    },
}

/// A run and its outcome.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) setting: Setting,
    pub(crate) case: Case,
    pub(crate) outcome: Outcome,
    /// The program that ran it, as identified by [`super::machine::build`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) build: Option<String>,
}

/// An invocation that added rows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Invocation {
    pub(crate) date: String,
    pub(crate) command: String,
    pub(crate) machine: Machine,
}

/// The whole file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) invocations: Vec<Invocation>,
    pub(crate) entries: Vec<Entry>,
}

/// Why a report cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResultsError {
    /// An I/O error on the folder or a file in it.
    #[error("--report {path}: it cannot be read or written", path = .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not a report.
    #[error("{path} is not a report of tpcc_lite ({why}): move it away, or name another \
        directory", path = .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: serde_json::Error,
    },
}

impl Results {
    /// Reads the results in `dir`; empty if there is none.
    pub(crate) fn read(dir: &Path) -> Result<Self, ResultsError> {
        let path = file(dir);
        match std::fs::read(&path) {
            // A file that does not parse is an error: as an empty report, it would soon be overwritten.
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|why| ResultsError::Foreign { path, why }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(ResultsError::Io { path, source }),
        }
    }

    /// Replaces the results in `dir`.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), ResultsError> {
        let path = file(dir);
        let text = serde_json::to_vec_pretty(self)
            .map_err(|why| ResultsError::Foreign { path: path.clone(), why })?;
        replace(&path, &text)
    }

    /// The outcome of `case` under `setting`, if any.
    pub(crate) fn outcome(&self, setting: &Setting, case: &Case) -> Option<&Outcome> {
        // All of the setting has to agree, the version included: rows of other code or sizes do not
        // belong beside these.
        let entry = self.entries.iter().find(|entry| entry.setting == *setting && entry.case == *case);
        entry.map(|entry| &entry.outcome)
    }

    /// The outcome of `case` under `setting`, if it was measured.
    pub(crate) fn finished(&self, setting: &Setting, case: &Case) -> Option<&Finished> {
        match self.outcome(setting, case)? {
            Outcome::Finished(finished) => Some(finished),
            Outcome::NotRun { .. } => None,
        }
    }

    /// Adds an entry, replacing an earlier one of the same run.
    pub(crate) fn add(&mut self, entry: Entry) {
        self.entries.retain(|old| old.setting != entry.setting || old.case != entry.case);
        self.entries.push(entry);
    }
}

/// Writes `bytes` to a new file and renames it to `path`.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), ResultsError> {
    // An end of the program during the write must not cost the results of hours.
    let new = path.with_extension("new");
    std::fs::write(&new, bytes)
        .and_then(|()| std::fs::rename(&new, path))
        .map_err(|source| ResultsError::Io { path: path.to_path_buf(), source })
}

fn file(dir: &Path) -> PathBuf {
    dir.join("report.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_file_is_reported_as_such() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Results::read(dir.path()).unwrap().entries.is_empty());
        std::fs::write(file(dir.path()), "[1, 2]").unwrap();
        assert!(matches!(Results::read(dir.path()), Err(ResultsError::Foreign { .. })));
        let gone = dir.path().join("gone");
        assert!(matches!(Results::default().write(&gone), Err(ResultsError::Io { .. })));
    }
}
