//! Reads single pages out of a directory of backups, for the repair of a store.

use super::backups::Backups;
use super::file::Reader;
use super::report::blocking;
use super::restore::{batch, chain};
use crate::error::BackupError;
use pagetier_page::{Lsn, PageId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::path::Path;

/// A page as a backup has it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BackedUpPage {
    /// The page.
    pub page: PageId,
    /// Its LSN: redo from there brings it up to date.
    pub lsn: Lsn,
    /// What a guard of it shows.
    pub contents: Vec<u8>,
}

/// The result of [`Backups::pages`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BackedUpPages {
    /// The number of the backup.
    pub number: u32,
    /// The id of the store that was backed up.
    pub store: String,
    /// The pages that exist in the backup, in the order in which they were asked for.
    pub pages: Vec<BackedUpPage>,
}

impl Backups {
    /// Reads `wanted` from the newest backup, or from the one of number `upto`: for pages that a store has
    /// no good copy of. A page that does not exist in the backup, or was never written, is left out. Holds
    /// all of them in memory.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, bad: PageId) -> Result<(), Box<dyn std::error::Error>> {
    /// use pagetier::backup::Backups;
    ///
    /// for old in Backups::at("/backup/db").pages(&[bad], None).await?.pages {
    ///     let mut page = store.overwrite(old.page).await?;
    ///     page.copy_from_slice(&old.contents);
    ///     page.set_lsn(old.lsn); // the engine redoes its log from there
    /// }
    /// store.sync().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The backup is damaged, or one that it continues is missing.
    pub async fn pages(&self, wanted: &[PageId], upto: Option<u32>) -> Result<BackedUpPages, BackupError> {
        let (dir, asked) = (self.dir.clone(), wanted.iter().copied().collect::<FxHashSet<_>>());
        let (number, store, mut found) = blocking(move || read(&dir, &asked, upto)).await?;
        let pages = wanted.iter().filter_map(|page| found.remove(page)).collect();
        Ok(BackedUpPages { number, store, pages })
    }
}

fn read(
    dir: &Path,
    asked: &FxHashSet<PageId>,
    upto: Option<u32>,
) -> Result<(u32, String, FxHashMap<PageId, BackedUpPage>), BackupError> {
    let links = chain(dir, upto)?;
    let mut found = FxHashMap::default();
    for link in &links {
        let mut reader = Reader::open(&link.path)?;
        loop {
            let (pages, more) = batch(&mut reader)?;
            for copied in pages.into_iter().filter(|copied| asked.contains(&copied.page)) {
                // Of several files, the newest has the newest version.
                let page = BackedUpPage { page: copied.page, lsn: copied.lsn, contents: copied.payload };
                found.insert(copied.page, page);
            }
            if !more {
                break;
            }
        }
    }
    let last = links.last();
    let none = || BackupError::NoChain { path: dir.to_owned(), why: "it has no backup".into() };
    let last = last.ok_or_else(none)?;
    found.retain(|page, _| last.tail.has(*page));
    Ok((last.number, last.store.clone(), found))
}
