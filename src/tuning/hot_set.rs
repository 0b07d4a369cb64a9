//! The hot set: the pages that a pool holds, saved and loaded again so that a restart does not begin cold.

use crate::error::HotSetError;
use crate::store::background::{blocking, put_file};
use crate::store::page_store::PageStore;
use pagetier_page::{PageId, SpaceId};
use pagetier_ssdcache::Homes;
use std::fmt::Write as _;
use std::path::Path;

/// The first line of a file.
const TITLE: &str = "pagetier hot set 1";

/// The result of [`PageStore::import_hot`].
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

impl PageStore {
    /// At most `max` of the pages in memory, first those that the pool's policy would keep longest.
    /// [`PageStore::export_hot`] saves them.
    #[must_use]
    pub fn hot_set(&self, max: usize) -> Vec<PageId> {
        self.pool.hottest(max)
    }

    /// Saves [`PageStore::hot_set`] to the file `path`: one line per page, the hottest first, with the
    /// space's number and the page's. The file is replaced as a whole.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, reopened: &PageStore)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// println!("the hottest: {:?}", store.hot_set(10));
    /// store.export_hot("/var/lib/db.hot").await?;
    /// // After a restart:
    /// let report = reopened.import_hot("/var/lib/db.hot").await?;
    /// println!("{} of {} pages are in memory", report.loaded, report.listed);
    /// # Ok(())
    /// # }
    /// ```
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
        let saved = put_file(path.clone(), text.into_bytes()).await;
        saved.map_err(|source| HotSetError::Io { path, source })?;
        Ok(pages.len() as u64)
    }

    /// Reads the pages that a file of [`PageStore::export_hot`] lists into memory, in disk order, and waits
    /// for them. Like a scan, it does not displace pages in use, and the SSD's policy does not count its
    /// reads. Skips pages that do not exist or cannot be read. Cancel-safe.
    ///
    /// # Errors
    /// The file cannot be read, or is not a hot set.
    pub async fn import_hot(&self, path: impl AsRef<Path>) -> Result<HotSetReport, HotSetError> {
        let path = path.as_ref().to_owned();
        let named = path.clone();
        let read = blocking(move || std::fs::read_to_string(&path)).await;
        let text = read.map_err(|source| HotSetError::Io { path: named.clone(), source })?;
        let all = parse(&text).map_err(|line| HotSetError::Malformed { path: named, line })?;
        let frames = self.pool.params().frames;
        let mut wanted: Vec<(u64, PageId)> = all
            .iter()
            .filter_map(|page| Some((self.shared.volume.offset(*page)?, *page)))
            // An eighth stays free for the requests that come meanwhile.
            .take(frames - frames / 8)
            .collect();
        // In disk order: the file is in order of heat, which would move the arm at each page.
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
