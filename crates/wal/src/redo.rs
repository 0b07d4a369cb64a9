//! Redo: repeats the pages' history from the log.
//!
//! A page that a record formats is overwritten without being read, whatever the store has of it: an older
//! version, none, or a damaged one. That record and the later ones give it its newest contents.

use crate::error::WalError;
use crate::log::Wal;
use crate::record::{self, Kind, Record, Records};
use pagetier::{Lsn, PageId, PageMut, PageStore};
use std::collections::BTreeMap;

/// The results of redo.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Redone {
    /// Page records read.
    pub records: u64,
    /// Changes applied: a page record counts once per page that lacked it.
    pub applied: u64,
    /// Commits without an `Applied`, oldest first: the engine must execute their operations again.
    pub commits: BTreeMap<Lsn, Vec<u8>>,
}

/// Why redo stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedoError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] pagetier::Error),
    /// The log failed.
    #[error(transparent)]
    Log(#[from] WalError),
    /// A record with a valid checksum is malformed.
    #[error("the log record that ends at {0} cannot be applied")]
    Record(Lsn),
}

/// One page's part of one record.
struct Part<'a> {
    page: PageId,
    lsn: u64,
    index: u8,
    ops: &'a [u8],
}

/// Repeats the history of every page, segment by segment; within a segment page by page, since the records of
/// different pages are independent.
///
/// # Errors
/// The store or the log failed, or a record cannot be applied. Redo may be repeated.
pub async fn redo(store: &PageStore, wal: &Wal) -> Result<Redone, RedoError> {
    let mut done = Redone::default();
    for start in wal.segment_starts() {
        let bytes = wal.segment(start)?;
        let mut parts = Vec::new();
        for record in Records::new(start, &bytes) {
            sort_out(&record, &mut parts, &mut done)?;
        }
        parts.sort_unstable_by_key(|part| (part.page, part.lsn));
        for of_page in parts.chunk_by(|a, b| a.page == b.page) {
            done.applied += redo_page(store, of_page).await?;
        }
    }
    for &commit in done.commits.keys() {
        wal.readopt(commit);
    }
    Ok(done)
}

fn sort_out<'a>(record: &Record<'a>, parts: &mut Vec<Part<'a>>, done: &mut Redone) -> Result<(), RedoError> {
    let lsn = Lsn(record.lsn);
    match record.kind {
        Kind::Pages => {
            let (ids, ops) = record::split_pages(record.body).ok_or(RedoError::Record(lsn))?;
            parts.extend((0..).zip(ids).map(|(index, page)| Part { page, lsn: lsn.0, index, ops }));
            done.records += 1;
        }
        Kind::Commit => {
            done.commits.insert(lsn, record.body.to_vec());
        }
        Kind::Applied if record.body.len() == 8 => {
            done.commits.remove(&Lsn(record::u64_at(record.body, 0)));
        }
        Kind::Applied => return Err(RedoError::Record(lsn)),
    }
    Ok(())
}

async fn redo_page(store: &PageStore, parts: &[Part<'_>]) -> Result<u64, RedoError> {
    let zeroed = parts.iter().rposition(|part| record::zeroes_page(part.ops, part.index));
    let (mut page, parts) = match zeroed {
        Some(first) => (store.overwrite(parts[0].page).await?, &parts[first..]),
        None => (get_or_recreate(store, parts[0].page).await?, parts),
    };
    let mut applied = 0;
    for part in parts {
        if part.lsn > page.lsn().0 {
            record::apply(part.ops, part.index, &mut page).ok_or(RedoError::Record(Lsn(part.lsn)))?;
            page.set_lsn(Lsn(part.lsn));
            applied += 1;
        }
    }
    Ok(applied)
}

/// Gets the page, or creates it empty if it was allocated before the crash and never written.
async fn get_or_recreate(store: &PageStore, id: PageId) -> Result<PageMut<'_>, pagetier::Error> {
    match store.get_mut(id).await {
        Err(pagetier::Error::NoSuchPage { .. }) => store.get_or_create(id).await,
        other => other,
    }
}
