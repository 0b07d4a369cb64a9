//! A consistent copy of a running store.
//!
//! The pages are copied one by one while they change: a fuzzy copy, in which each page is whole. The log is
//! retained from the beginning of the copy to its end, and copied last. Redo over the copied log brings every
//! copied page to the log's end, so the copy is the store as it was at that moment. Redo also creates the
//! pages that did not exist when the copy began.
//!
//! The copy is made beside its destination, recovered, checked, closed, and renamed: a directory with the
//! destination's name is a complete backup.

use crate::durable;
use crate::error::KvError;
use crate::kv::Kv;
use crate::open::SPACE;
use crate::options::Options;
use pagetier::log::LogMark;
use pagetier::{Lsn, PageId, PageStore};
use pagetier_btree::Tree;
use std::path::{Path, PathBuf};

/// The pool of the copy while it is made, in bytes.
const COPY_POOL_BYTES: u64 = 16 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BackupProgress {
    /// Copying pages: the number copied, and their total.
    Pages(u64, u64),
    /// Copying the log and recovering the copy.
    Recovering,
    /// Checking the copy: the number of pages checked, and their total.
    Checking(u64, u64),
}

/// What a backup contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BackupReport {
    /// The log position of the last change in the backup.
    pub lsn: Lsn,
    /// Pages copied.
    pub pages: u64,
    /// Keys in the backup.
    pub entries: u64,
}

impl Kv {
    /// Copies the store to the new directory `to` while it is in use. The copy has every change that was
    /// confirmed before this call, and is the store as it was at one moment before the call returned. It
    /// opens like any other store. `to` exists only once the copy is complete, checked and durable.
    ///
    /// The log is not truncated while the backup runs. If the future is dropped, it leaves `<to>.partial`.
    ///
    /// # Errors
    /// `to` or `<to>.partial` exists or cannot be written, a page cannot be read, or the copy is not sound.
    pub async fn backup(
        &self,
        to: &Path,
        mut progress: impl FnMut(BackupProgress) + Send,
    ) -> Result<BackupReport, KvError> {
        // With a slash at the end, the copy would be made inside of its destination.
        let to: PathBuf = std::path::absolute(to).map_err(KvError::io(to))?.components().collect();
        let partial = partial_name(&to);
        for taken in [&to, &partial] {
            if taken.exists() {
                return Err(KvError::io(taken)(std::io::ErrorKind::AlreadyExists.into()));
            }
        }
        // Retain the log from here on: its copy then has every later change.
        let (hold, _) = self.wal().hold();
        let options = Options::new(&partial).pool_bytes(COPY_POOL_BYTES).ssd_bytes(0).create(false);
        let pages = self.copy_pages(&options, &mut progress).await?;
        progress(BackupProgress::Recovering);
        // All of it: redo skips the records that the copied pages already have.
        self.wal().copy_to(&options.log_dir()).await?;
        drop(hold);

        let copy = Self::open(&options).await?;
        let lsn = copy.wal().end();
        let report = copy.check(|seen, of| progress(BackupProgress::Checking(seen, of))).await?;
        copy.shutdown().await?;
        if let Some(problem) = report.listed.into_iter().next() {
            return Err(KvError::BadCopy { problem });
        }
        std::fs::rename(&partial, &to).map_err(KvError::io(&to))?;
        durable::sync_parent(&to)?;
        Ok(BackupReport { lsn, pages, entries: report.entries })
    }

    async fn copy_pages(
        &self,
        options: &Options,
        progress: &mut (impl FnMut(BackupProgress) + Send),
    ) -> Result<u64, KvError> {
        let source = self.tree.store();
        let builder = PageStore::builder().directory(options.pages_dir()).ssd_bytes(0);
        let builder = builder.pool_bytes(COPY_POOL_BYTES).page_size(source.page_size());
        let copy = builder.open().await?;
        // The copy of the log goes on beyond what is known of it now.
        copy.record_log(LogMark { restored: true, ..self.wal().mark() }).await?;
        // Log records name pages by the number of their space.
        let space = self.tree.space();
        copy.spaces().create_as(space, SPACE).await?;
        let end = Tree::meta(source, space).await?.map_or(0, |meta| meta.end);
        let mut scan = source.scan(space, 0..end);
        let mut pages = 0_u64;
        while let Some(page) = scan.next().await {
            let page = page?;
            let (no, lsn, payload) = (page.id().no, page.lsn(), page.to_vec());
            // Otherwise writers of this page would wait for the copy.
            drop(page);
            let mut to = copy.overwrite(PageId::new(space, no)).await?;
            to.copy_from_slice(&payload);
            to.set_lsn(lsn);
            pages += 1;
            if pages.is_multiple_of(256) || pages == u64::from(end) {
                progress(BackupProgress::Pages(pages, end.into()));
            }
        }
        copy.shutdown().await?;
        Ok(pages)
    }
}

fn partial_name(to: &Path) -> PathBuf {
    let mut name = to.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}
