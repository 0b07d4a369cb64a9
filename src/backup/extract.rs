//! Takes one space, or one page of it, out of a directory of backups.

use super::backups::Backups;
use super::file::Reader;
use super::locked::locked;
use super::report::{RestoreProgress, blocking};
use super::restore::{Link, batch, chain};
use crate::error::BackupError;
use pagetier_devio::files::{DirFile, Directory, RealDir, beside};
use pagetier_page::{HEADER_BYTES, Lsn, PageId, SpaceId};
use rustc_hash::FxHashSet;
use std::path::{Path, PathBuf};

/// The result of [`Backups::extract`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ExtractReport {
    /// The number of the backup.
    pub number: u32,
    /// The id of the space.
    pub space: u32,
    /// The bytes of a page in the file: what a guard of it shows.
    pub page_bytes: u64,
    /// The length of the file in pages: those that the space had, or 1.
    pub pages: u64,
    /// How many of them exist in the backup. The others are zeroes.
    pub copied: u64,
    /// The largest LSN of a page in the file.
    pub lsn: Lsn,
}

impl Backups {
    /// Copies the pages of `space`, by name, from the newest backup, or from the one of number `upto`, to the
    /// new file `to`: the contents of page N begin at N times [`ExtractReport::page_bytes`], and a page that
    /// does not exist in the backup is zeroes. With `page`, the file has the contents of that page alone. Its
    /// owner alone may read the file.
    ///
    /// The file appears under its name once it is complete and durable. Until then `<file>.partial` is there,
    /// which is overwritten. `progress` is called at intervals. Cancel-safe: an extraction that is dropped
    /// leaves no file.
    ///
    /// # Errors
    /// The backup is damaged, or one that it continues is missing; it has no such space or page;
    /// [`BackupError::Exists`]; the file cannot be written.
    pub async fn extract(
        &self,
        space: &str,
        page: Option<u32>,
        upto: Option<u32>,
        to: impl AsRef<Path>,
        progress: impl Fn(RestoreProgress) + Send,
    ) -> Result<ExtractReport, BackupError> {
        let dir = self.dir.clone();
        // Every file is read to its end first, as for a restoration.
        let links = blocking(move || chain(&dir, upto)).await?;
        let wanted = Wanted::of(&links, &self.dir, space, page)?;
        let to = to.as_ref().to_owned();
        let mut out = blocking(move || Out::create(&to)).await?;
        let (mut pages, mut found) = (FxHashSet::default(), Lsn(0));
        for (index, link) in links.iter().enumerate() {
            let mut reader = Some(Reader::open(&link.path)?);
            while let Some(mut open) = reader.take() {
                // Both go to the blocking thread and come back: a dropped extraction removes its file there.
                let (file, wanted) = (out, wanted.clone());
                let (back, copied, more) = blocking(move || {
                    let (batch, more) = batch(&mut open)?;
                    let mut copied = Vec::new();
                    for page in batch.iter().filter(|page| wanted.has(page.page)) {
                        file.put(&page.payload, wanted.offset(page.page.no))?;
                        copied.push((page.page.no, page.lsn));
                    }
                    Ok((file, copied, more.then_some(open)))
                })
                .await?;
                (out, reader) = (back, more);
                found = copied.iter().map(|(_, lsn)| *lsn).fold(found, Lsn::max);
                pages.extend(copied.into_iter().map(|(no, _)| no));
                progress(RestoreProgress { file: index + 1, files: links.len(), pages: pages.len() as u64 });
            }
        }
        // It existed, but was never written, so that there is nothing to copy.
        if let Some(no) = page.filter(|_| pages.is_empty()) {
            return Err(wanted.no_such_page(no));
        }
        let report = ExtractReport {
            number: wanted.number,
            space: wanted.space.0,
            page_bytes: wanted.payload_bytes,
            pages: if page.is_some() { 1 } else { u64::from(wanted.pages) },
            copied: pages.len() as u64,
            lsn: found,
        };
        blocking(move || out.finish(report.pages.saturating_mul(report.page_bytes))).await?;
        Ok(report)
    }
}

/// What is to be copied from a chain.
#[derive(Clone)]
struct Wanted {
    path: PathBuf,
    number: u32,
    space: SpaceId,
    page: Option<u32>,
    pages: u32,
    /// Pages that do not exist, although an older file may have them (I35).
    free: std::sync::Arc<crate::manifest::page_runs::PageRuns>,
    payload_bytes: u64,
}

impl Wanted {
    fn of(links: &[Link], dir: &Path, space: &str, page: Option<u32>) -> Result<Self, BackupError> {
        let none = || BackupError::NoChain { path: dir.to_owned(), why: "it has no backup".into() };
        let last = links.last().ok_or_else(none)?;
        let found = last.tail.spaces.iter().find(|(_, name, _)| name == space);
        let Some((id, _, pages)) = found else {
            return Err(BackupError::NoSuchSpace { path: last.path.clone(), name: space.to_owned() });
        };
        let wanted = Self {
            path: last.path.clone(),
            number: last.number,
            space: SpaceId(*id),
            page,
            pages: *pages,
            free: last.tail.free_in(*id, *pages).into(),
            payload_bytes: last.page_bytes.saturating_sub(HEADER_BYTES as u64),
        };
        match page {
            Some(no) if !wanted.has(PageId::new(wanted.space, no)) => Err(wanted.no_such_page(no)),
            _ => Ok(wanted),
        }
    }

    fn has(&self, page: PageId) -> bool {
        let asked = self.page.is_none_or(|no| no == page.no);
        asked && page.space == self.space && page.no < self.pages && !self.free.contains(page.no)
    }

    fn offset(&self, no: u32) -> u64 {
        if self.page.is_some() { 0 } else { u64::from(no) * self.payload_bytes }
    }

    fn no_such_page(&self, no: u32) -> BackupError {
        BackupError::NoSuchPage { path: self.path.clone(), page: PageId::new(self.space, no) }
    }
}

/// A new file, which is removed unless it is finished.
struct Out {
    file: Box<dyn DirFile>,
    partial: Option<PathBuf>,
    to: PathBuf,
}

impl Out {
    fn create(to: &Path) -> Result<Self, BackupError> {
        let beside = beside(to, ".partial").map_err(BackupError::io(to))?;
        let Some((partial, to)) = beside else { return Err(BackupError::Exists { path: to.to_owned() }) };
        if to.symlink_metadata().is_ok() {
            return Err(BackupError::Exists { path: to });
        }
        // The lock refuses a second writer of the same file.
        let file = locked(&RealDir::working(), &partial).map_err(BackupError::io(&partial))?;
        let Some(file) = file else { return Err(BackupError::InTheWay { path: partial }) };
        file.set_len(0).map_err(BackupError::io(&partial))?;
        Ok(Self { file, partial: Some(partial), to })
    }

    fn put(&self, bytes: &[u8], at: u64) -> Result<(), BackupError> {
        self.file.write_at(at, bytes).map_err(BackupError::io(&self.to))
    }

    /// Makes the file durable, then gives it its name, durably.
    fn finish(mut self, bytes: u64) -> Result<(), BackupError> {
        let synced = self.file.set_len(bytes).and_then(|()| self.file.sync());
        synced.map_err(BackupError::io(&self.to))?;
        let Some(partial) = &self.partial else { return Ok(()) };
        let files = RealDir::working();
        files.rename(partial, &self.to).map_err(BackupError::io(&self.to))?;
        self.partial = None;
        let parent = self.to.parent().unwrap_or(Path::new("/"));
        files.directory(parent).and_then(|dir| dir.sync()).map_err(BackupError::io(parent))
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial
            && let Err(error) = std::fs::remove_file(partial)
        {
            tracing::warn!(path = %partial.display(), %error, "an unfinished file could not be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_finished_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let left = || std::fs::read_dir(directory.path()).unwrap().count();
        let to = directory.path().join("pages");
        let out = Out::create(&to).unwrap();
        out.put(b"half", 0).unwrap();
        assert_eq!(left(), 1);
        drop(out);
        assert_eq!(left(), 0);
        let out = Out::create(&to).unwrap();
        out.put(b"all of it", 0).unwrap();
        out.finish(9).unwrap();
        assert_eq!((left(), std::fs::read(&to).unwrap().as_slice()), (1, &b"all of it"[..]));
    }
}
