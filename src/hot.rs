//! The hot set: which pages a pool holds, saved and brought back, so that a restart does not begin cold.

use crate::store::PageStore;
use pagetier_page::{PageId, SpaceId};
use pagetier_ssdcache::Homes;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The first line of a file.
const TITLE: &str = "pagetier hot set 1";

/// Why a hot set cannot be saved or brought back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HotSetError {
    /// The file cannot be read or written.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The file is no hot set.
    #[error("{path}: line {line} is not part of a hot set", path = .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
}

/// What [`PageStore::import_hot`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HotSetReport {
    /// Pages in the file.
    pub listed: u64,
    /// Of these, the hottest that were asked for: as many as the pool holds with an eighth to spare.
    pub wanted: u64,
    /// Of these, the ones in memory afterwards, or that were until others displaced them.
    pub loaded: u64,
}

impl PageStore {
    /// At most `max` pages in memory, those first that the pool's policy would keep longest.
    #[must_use]
    pub fn hot_set(&self, max: usize) -> Vec<PageId> {
        self.pool.hottest(max)
    }

    /// Saves [`PageStore::hot_set`] to the file `path`: a line per page, the hottest first, with the numbers
    /// of its space and itself. The file is replaced as a whole.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn export_hot(&self, path: impl AsRef<Path>) -> Result<u64, HotSetError> {
        let pages = self.hot_set(usize::MAX);
        let mut text = format!("{TITLE}\n");
        for page in &pages {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{} {}", page.space.0, page.no);
        }
        let path = path.as_ref().to_owned();
        let named = path.clone();
        let saved = tokio::task::spawn_blocking(move || {
            let mut beside = path.clone().into_os_string();
            beside.push(format!(".{}", std::process::id()));
            std::fs::write(&beside, text)?;
            std::fs::rename(&beside, &path)
        });
        let saved =
            saved.await.unwrap_or_else(|_| Err(std::io::Error::other("the runtime is shutting down")));
        saved.map_err(|source| HotSetError::Io { path: named, source })?;
        Ok(pages.len() as u64)
    }

    /// Reads the pages of a file of [`PageStore::export_hot`] into memory in the order of the disk, and waits
    /// for them. It reads as a scan does: pages in use are not displaced, and the SSD's policy does not count
    /// the reads. Pages that do not exist any more or cannot be read are skipped. Cancel-safe.
    ///
    /// # Errors
    /// The file cannot be read, or is no hot set.
    pub async fn import_hot(&self, path: impl AsRef<Path>) -> Result<HotSetReport, HotSetError> {
        let path = path.as_ref().to_owned();
        let named = path.clone();
        let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(&path)).await;
        let read = read.unwrap_or_else(|_| Err(std::io::Error::other("the runtime is shutting down")));
        let text = read.map_err(|source| HotSetError::Io { path: named.clone(), source })?;
        let all = parse(&text).map_err(|line| HotSetError::Malformed { path: named, line })?;
        let frames = self.pool.params().frames;
        let mut wanted: Vec<(u64, PageId)> = all
            .iter()
            .filter_map(|page| Some((self.shared.volume.offset(*page)?, *page)))
            .take(frames - frames / 8)
            .collect();
        wanted.sort_unstable();
        let pages: Vec<PageId> = wanted.into_iter().map(|(_, page)| page).collect();
        let loaded = self.pool.warm(&pages).await;
        Ok(HotSetReport { listed: all.len() as u64, wanted: pages.len() as u64, loaded })
    }
}

/// The pages of a file, or the number of its first bad line.
fn parse(text: &str) -> Result<Vec<PageId>, usize> {
    let mut lines = text.lines();
    if lines.next() != Some(TITLE) {
        return Err(1);
    }
    let page = |line: &str| {
        let (space, no) = line.split_once(' ')?;
        Some(PageId::new(SpaceId(space.parse().ok()?), no.parse().ok()?))
    };
    lines.enumerate().map(|(at, line)| page(line).ok_or(at + 2)).collect()
}

#[cfg(test)]
#[test]
fn a_hot_set_names_its_first_bad_line() {
    let page = |space, no| PageId::new(SpaceId(space), no);
    assert_eq!(parse("pagetier hot set 1\n3 4\n1 0\n"), Ok(vec![page(3, 4), page(1, 0)]));
    assert_eq!(parse("pagetier hot set 1\n3 4\n1\n"), Err(3));
    assert_eq!((parse(""), parse("hot\n1 1\n")), (Err(1), Err(1)));
}
