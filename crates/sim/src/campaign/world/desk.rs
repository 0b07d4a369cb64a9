//! The backups and other files of a session, and the folder that holds them.

use crate::campaign::contract::model::Model;
use pagetier::SsdLoss;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// A backup, and the model at its beginning and at its end.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) number: u32,
    pub(crate) full: bool,
    pub(crate) before: Model,
    pub(crate) after: Model,
    /// The losses reported at its beginning and at its end.
    pub(crate) losses: [Option<SsdLoss>; 2],
}

/// The backups of a session.
pub(crate) type Backups = Arc<Mutex<Vec<Taken>>>;

/// Where the files of a session go.
#[derive(Clone, Debug)]
pub(crate) struct Desk {
    pub(crate) dir: PathBuf,
    /// Where to list the backups; `None`: none are taken.
    pub(crate) backups: Option<Backups>,
}

/// A folder for backups and restored stores.
#[derive(Debug)]
pub(crate) struct Folder {
    dir: TempDir,
    restored: AtomicU32,
}

impl Folder {
    /// The contents need not outlive the run.
    pub(crate) fn new() -> Self {
        Self { dir: pagetier_testing::scratch(), restored: AtomicU32::new(0) }
    }

    /// Where the backups go.
    pub(crate) fn chain(&self) -> PathBuf {
        self.dir.path().join("chain")
    }

    /// A place in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Where the files of a session go.
    pub(crate) fn desk(&self, backups: Option<Backups>) -> Desk {
        Desk { dir: self.dir.path().to_owned(), backups }
    }

    pub(crate) fn next_restored(&self) -> PathBuf {
        self.dir.path().join(format!("restored-{}", self.restored.fetch_add(1, Ordering::Relaxed)))
    }
}
