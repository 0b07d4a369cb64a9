//! The hot set: the pages that a pool holds, saved and loaded again so that a restart does not begin cold.

use super::background::{blocking, put_file};
use super::shared::Shared;
use crate::error::HotSetError;
use pagetier_page::{PageId, SpaceId};
use std::fmt::Write as _;
use std::path::PathBuf;

/// The first line of a file.
const TITLE: &str = "pagetier hot set 1";

/// The result of [`PageStore::import_hot`](crate::PageStore::import_hot).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HotSetReport {
    /// Pages in the file.
    pub listed: u64,
    /// The pages requested: the hottest of those listed, as many as fill seven eighths of the pool.
    pub wanted: u64,
    /// The requested pages that were read or already in memory; others may have displaced some of them
    /// since.
    pub loaded: u64,
}

impl Shared {
    /// See [`PageStore::export_hot`](crate::PageStore::export_hot).
    pub(crate) async fn export_hot(&self, path: PathBuf) -> Result<u64, HotSetError> {
        let pages = self.pool.hottest(usize::MAX);
        let mut text = format!("{TITLE}\n");
        for page in &pages {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{} {}", page.space.0, page.no);
        }
        let saved = put_file(path.clone(), text.into_bytes()).await;
        saved.map_err(|source| HotSetError::Io { path, source })?;
        Ok(pages.len() as u64)
    }

    /// See [`PageStore::import_hot`](crate::PageStore::import_hot).
    pub(crate) async fn import_hot(&self, path: PathBuf) -> Result<HotSetReport, HotSetError> {
        let named = path.clone();
        let read = blocking(move || std::fs::read_to_string(&path)).await;
        let text = read.map_err(|source| HotSetError::Io { path: named.clone(), source })?;
        let all = parse(&text).map_err(|line| HotSetError::Malformed { path: named, line })?;
        let pages = self.in_disk_order(&all);
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
