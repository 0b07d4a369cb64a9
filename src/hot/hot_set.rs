//! The hot set: the pages that a pool holds, saved and loaded again so that a restart does not begin cold.

use crate::error::{Error, HotSetError};
use crate::store::background::{blocking, put_file};
use crate::store::handles::HotSet;
use crate::store::shared::Shared;
use pagetier_page::{PageId, SpaceId};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The first line of a file. It ends with the version of the format.
const TITLE: &str = "pagetier hot set 1";
/// What the first line begins with in every version.
const KIND: &str = "pagetier hot set ";

/// The result of [`HotSet::import`].
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

impl HotSet<'_> {
    /// At most `max` of the pages in memory, first those that the pool's policy would keep longest.
    #[must_use]
    pub fn pages(self, max: usize) -> Vec<PageId> {
        self.0.pool.hottest(max)
    }

    /// Saves [`HotSet::pages`] to the file `path`: one line per page, the hottest first, with the
    /// space's number and the page's. The file is replaced as a whole.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, reopened: &PageStore)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// println!("the hottest: {:?}", store.hot_set().pages(10));
    /// store.hot_set().export("/var/lib/db.hot").await?;
    /// // After a restart:
    /// let report = reopened.hot_set().import("/var/lib/db.hot").await?;
    /// println!("{} of {} pages are in memory", report.loaded, report.listed);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn export(self, path: impl AsRef<Path>) -> Result<u64, HotSetError> {
        self.0.shared.export_hot(path.as_ref().to_owned()).await
    }

    /// Reads the pages that a file of [`HotSet::export`] lists into memory, in disk order, and waits
    /// for them. Like a scan, it does not displace pages in use, and the SSD's policy does not count its
    /// reads. Skips pages that do not exist or cannot be read. Cancel-safe.
    ///
    /// # Errors
    /// The file cannot be read, or is not a hot set.
    pub async fn import(self, path: impl AsRef<Path>) -> Result<HotSetReport, HotSetError> {
        self.0.shared.import_hot(path.as_ref().to_owned()).await
    }

    /// Keeps the hot set on the HDD from now on, until the store is closed: lists the pages in memory and
    /// those with copies on the SSD every `every` (at least 10 ms; some minutes suffice) and once more at a
    /// clean close, so that a store that lost its SSD, say with its machine, does not begin cold. Call it at
    /// every open, of an engine with a log after redo. Of several calls the last one holds.
    ///
    /// First it warms the store up, in the background, from the list of an earlier open: reads the
    /// hottest pages into memory, seven eighths of it, then the others as long as the SSD has free slots,
    /// which they fill. It reads as read-ahead does, so that requests come first, and displaces no page in
    /// use. [`Stats::hot_set`](crate::stats::Stats::hot_set) and the log report it. Until it has ended, the
    /// list stays as it is.
    ///
    /// The list is in a space of its own, `pagetier-hot-set`, which the first call creates: the space takes a
    /// number, appears in [`Spaces::list`](crate::Spaces::list) and in backups, and may be dropped, which
    /// ends the lists. (If you restore spaces by number, call this after that.) It takes 8 bytes on the HDD
    /// per page listed, at most 64 MiB for 8 million pages: of a larger SSD it lists the pages that the
    /// policy values most. Pages of the list that have changed are written in each round, at most 32 at a
    /// time, through the doublewrite ring like any page. While it cannot be written (a full disk, a store
    /// that refuses writes), the list before stays, a warning is logged, and the attempts become rarer, to
    /// one an hour. A `sync` or `flush_to` at the moment of such an attempt may fail because of the list's
    /// page alone, and succeeds when repeated. A close waits for the list for at most 2 s, and for a write of
    /// it that has begun.
    ///
    /// When the SSD fails, the list stays until one is active again, and the store warms that one up from it.
    /// An open without an SSD lists the pages in memory. An engine that no longer calls this should drop
    /// the space: nothing else repairs a page of it that a crash has torn, and backups fail with such a page.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let temporary = tempfile::tempdir()?;
    /// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
    /// use std::time::Duration;
    ///
    /// let store = builder.open().await?;
    /// // The engine's redo comes first.
    /// store.hot_set().keep(Duration::from_secs(300)).await?;
    /// println!("{:?}", store.stats().hot_set);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::SpaceExists`]: a space of that name has other contents. [`Error::Manifest`]: the space cannot
    /// be recorded. [`Error::ReadOnly`] on a read-only open.
    pub async fn keep(self, every: Duration) -> Result<(), Error> {
        self.0.begin_keeping(every).await
    }
}

impl Shared {
    /// See [`HotSet::export`].
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

    /// See [`HotSet::import`].
    pub(crate) async fn import_hot(&self, path: PathBuf) -> Result<HotSetReport, HotSetError> {
        let named = path.clone();
        let read = blocking(move || std::fs::read_to_string(&path)).await;
        let text = read.map_err(|source| HotSetError::Io { path: named.clone(), source })?;
        if let Some(title) = text.lines().next().filter(|line| line.starts_with(KIND) && *line != TITLE) {
            let why = format!("it begins with {title:?}, this version reads {TITLE:?}");
            let source = std::io::Error::new(std::io::ErrorKind::Unsupported, why);
            return Err(HotSetError::Io { path: named, source });
        }
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
