//! Exports the store's statistics to a file for tools in other processes: replaces the file atomically once
//! per interval while the export lives.

use super::summary::StatsSummary;
use crate::store::background::put_file;
use crate::store::shared::Shared;
use crate::store::stats::Stats;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::JoinHandle;

/// The shortest interval between two exports.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// The contents of an export, as JSON. `pagetier top` displays them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LiveStats {
    /// The time of the export, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// The number of this export, from 1.
    pub number: u64,
    /// The interval between exports, in milliseconds.
    pub every_ms: u64,
    /// The id of the store's process.
    pub pid: u32,
    /// The page size in bytes.
    pub page_bytes: u64,
    /// Every space with its size, in id order.
    pub spaces: Vec<SpacePages>,
    /// The statistics since the store was opened.
    pub stats: StatsSummary,
}

/// A space's name and size in an export.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SpacePages {
    /// Its id, which page ids bear.
    pub id: u32,
    /// Its name, unique in the store.
    pub name: String,
    /// The number of its pages.
    pub pages: u32,
}

/// Why an export cannot begin.
#[derive(Debug, thiserror::Error)]
#[error("{path}: statistics cannot be exported there", path = .path.display())]
pub struct StatsExportError {
    path: PathBuf,
    #[source]
    source: std::io::Error,
}

/// Writes the statistics to a file until this, or the store, is dropped. The file then keeps the last
/// figures.
#[derive(Debug)]
#[must_use = "dropping it ends the export"]
pub struct StatsExport(JoinHandle<()>);

impl Drop for StatsExport {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) async fn start(
    shared: &Arc<Shared>,
    path: &Path,
    every: Duration,
) -> Result<StatsExport, StatsExportError> {
    // The working directory may change between two exports.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let every = every.max(INTERVAL_MIN);
    let first = live(shared, 1, every);
    put(path.clone(), first).await.map_err(|source| StatsExportError { path: path.clone(), source })?;
    let weak = Arc::downgrade(shared);
    Ok(StatsExport(tokio::spawn(export_periodically(weak, path, every))))
}

async fn export_periodically(shared: Weak<Shared>, path: PathBuf, every: Duration) {
    let mut failed = false;
    for number in 2.. {
        tokio::time::sleep(every).await;
        // Weak: the export ends with the store.
        let Some(now) = shared.upgrade().map(|shared| live(&shared, number, every)) else { return };
        let result = put(path.clone(), now).await;
        if let Err(error) = &result
            // Once per failure, not ten times a second on a full disk.
            && !failed
        {
            tracing::warn!(path = %path.display(), %error, "statistics cannot be exported");
        }
        failed = result.is_err();
    }
}

fn live(shared: &Shared, number: u64, every: Duration) -> LiveStats {
    let spaces = shared.volume.list().into_iter();
    LiveStats {
        at_unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |at| at.as_millis() as u64),
        number,
        every_ms: every.as_millis() as u64,
        pid: std::process::id(),
        page_bytes: shared.page_size().bytes() as u64,
        spaces: spaces.map(|s| SpacePages { id: s.id.0, name: s.name, pages: s.pages }).collect(),
        stats: Stats::of(shared).summary(),
    }
}

async fn put(path: PathBuf, live: LiveStats) -> std::io::Result<()> {
    put_file(path, serde_json::to_vec(&live)?).await
}
