//! Redo: repeats the pages' history from the log.
//!
//! A page never becomes older: a record applies only above the LSN that the page has. A page that is damaged
//! or missing is made anew from the record that formats it and the later ones. A free ends a life of its
//! page: earlier records need no redo, and the first one of the next life zeroes it. If no record describes
//! the next life, as in a bulk load, its pages have an LSN no smaller than that of the free: the store takes
//! it from the log's gate.

use crate::error::WalError;
use crate::log::Wal;
use crate::log::room::RedoSpan;
use crate::record::{self, Kind, Record, Records};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pagetier::errors::{Advice, Causes, PoolError, TierError};
use pagetier::{Error, Lsn, PageId, PageStore, SpaceId};
use std::collections::{BTreeMap, BTreeSet};

/// The most pages that are redone at the same time.
const PAGES_AT_ONCE: u64 = 32;

/// What a recovery did.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Recovered {
    /// What was read of the log.
    pub read: RedoSpan,
    /// Page records in it.
    pub records: u64,
    /// Changes applied again: a page record counts once per page that lacked it.
    pub applied: u64,
    /// Commits without an `Applied`, oldest first, for an engine that uses [`Wal::append_commit`]: execute
    /// their operations again, then call [`Wal::append_applied`].
    pub commits: BTreeMap<Lsn, Vec<u8>>,
    /// Pages whose records say that they are free, and that the store frees again.
    pub freed: u64,
    /// Pages that were listed as lost with an SSD, and that redo restored.
    pub lost_pages: u64,
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
    /// `None`: the record frees the page.
    ops: Option<&'a [u8]>,
}

impl Part<'_> {
    /// Whether redo of the page may begin here without its earlier contents.
    fn zeroes_page(&self) -> bool {
        self.ops.is_some_and(|ops| record::zeroes_page(ops, self.index))
    }
}

/// What redo knows so far besides the pages.
#[derive(Default)]
struct Seen {
    /// The pages whose newest record frees them, each with that record's LSN.
    frees: BTreeMap<PageId, u64>,
    /// Spaces that records remove, each with whether no later record changes one of its pages: the removal
    /// of such a space was given up, and its engine went on with it.
    removed: BTreeMap<SpaceId, bool>,
    /// Spaces that the store does not have, although records change their pages.
    missing: BTreeSet<SpaceId>,
    /// Pages for which the HDD has no space. They may have been freed later, and their disk space given to
    /// others: a record of a later segment may say so.
    full: BTreeMap<PageId, Error>,
}

/// Repeats the history of every page, segment by segment; within a segment page by page, since the records of
/// different pages are independent. Before anything else uses a page.
///
/// # Errors
/// The store or the log failed, or a record cannot be applied. Redo may be repeated, also after a crash or a
/// dropped future.
pub(crate) async fn redo(store: &PageStore, wal: &Wal) -> Result<Recovered, RedoError> {
    let (mut done, mut seen) = (Recovered::default(), Seen::default());
    let at_once = (store.frames() / 4).clamp(1, PAGES_AT_ONCE) as usize;
    let (from, starts) = wal.needed_starts();
    done.read.from = Lsn(from);
    for start in starts {
        let bytes = wal.segment(start)?;
        done.read.bytes += bytes.len() as u64;
        let mut parts = Vec::new();
        for record in Records::new(start, &bytes) {
            sort_out(&record, &mut parts, &mut done, &mut seen)?;
        }
        // A record may change a page and free it: the free comes last.
        parts.sort_unstable_by_key(|part| (part.page, part.lsn, part.ops.is_none()));
        let mut pages = parts.chunk_by(|a, b| a.page == b.page);
        // Several at a time: each may wait for a disk.
        let mut running = FuturesUnordered::new();
        loop {
            while running.len() < at_once
                && let Some(parts) = pages.next()
            {
                running.extend(seen.last_life(parts).map(|parts| redo_page(store, wal, parts)));
            }
            let Some((page, result)) = running.next().await else { break };
            match result {
                Ok(applied) => done.applied += applied,
                // A later record may say that the space was removed.
                Err(RedoError::Store(Error::NoSuchSpace { .. })) => drop(seen.missing.insert(page.space)),
                Err(RedoError::Store(error)) if error.advice() == Advice::FreeSpace => {
                    seen.full.insert(page, error);
                }
                Err(error) => return Err(error),
            }
        }
    }
    if let Some(&space) = seen.missing.iter().find(|space| !seen.removed.contains_key(space)) {
        return Err(Error::NoSuchSpace { space }.into());
    }
    for (space, _) in seen.removed.into_iter().filter(|(_, last)| *last) {
        match store.spaces().drop(space).await {
            Err(Error::NoSuchSpace { .. }) => {}
            removed => removed?,
        }
    }
    let in_use = |space| store.spaces().pages(space).is_ok();
    if let Some((_, error)) = seen.full.into_iter().find(|(page, _)| in_use(page.space)) {
        return Err(error.into());
    }
    let mut due = Vec::new();
    for (page, lsn) in seen.frees {
        if is_due(store, page, Lsn(lsn)).await {
            due.push((lsn, page));
        }
    }
    done.freed = due.len() as u64;
    wal.readopt(done.commits.keys().copied(), due.into_iter());
    Ok(done)
}

/// Whether the store has not made the free of `page` that the record at `lsn` made pending. A page with that
/// LSN or a later one is of the number's next life, in a version that no record describes.
async fn is_due(store: &PageStore, page: PageId, lsn: Lsn) -> bool {
    // Pending, it could be freed after its number is used again.
    if !store.exists(page) {
        return false;
    }
    match store.get(page).await {
        Ok(found) => found.lsn() < lsn,
        Err(Error::NoSuchPage { .. }) => true,
        // It may be the next life. A page that nothing refers to is the smaller harm.
        Err(error) => {
            tracing::warn!(%page, error = %Causes(&error), "a page that a record frees cannot be read, and is kept");
            false
        }
    }
}

fn sort_out<'a>(
    record: &Record<'a>,
    parts: &mut Vec<Part<'a>>,
    done: &mut Recovered,
    seen: &mut Seen,
) -> Result<(), RedoError> {
    let lsn = Lsn(record.lsn);
    let malformed = RedoError::Record(lsn);
    match record.kind {
        Kind::Pages | Kind::Freeing => {
            let mut body = record.body;
            if record.kind == Kind::Freeing {
                let (ids, rest) = record::split_freed(body).ok_or(RedoError::Record(lsn))?;
                parts.extend(ids.map(|page| Part { page, lsn: lsn.0, index: 0, ops: None }));
                body = rest;
            }
            let (ids, ops) = record::split_pages(body).ok_or(malformed)?;
            let part = |(index, page): (u8, PageId)| {
                if let Some(last) = seen.removed.get_mut(&page.space) {
                    *last = false;
                }
                Part { page, lsn: lsn.0, index, ops: Some(ops) }
            };
            parts.extend((0..).zip(ids).map(part));
            done.records += 1;
        }
        Kind::Commit => {
            done.commits.insert(lsn, record.body.to_vec());
        }
        Kind::Applied if record.body.len() == 8 => {
            done.commits.remove(&Lsn(record::u64_at(record.body, 0)));
        }
        Kind::Removal if record.body.len() == 8 => {
            seen.removed.insert(SpaceId(record::u64_at(record.body, 0) as u32), true);
        }
        // Of interest to those who look for a moment.
        Kind::Mark => {}
        Kind::Applied | Kind::Removal => return Err(malformed),
    }
    Ok(())
}

impl Seen {
    /// The records of a page since it was freed last; `None` if none can be redone.
    fn last_life<'p, 'a>(&mut self, parts: &'p [Part<'a>]) -> Option<&'p [Part<'a>]> {
        let page = parts[0].page;
        let freed = parts.iter().rposition(|part| part.ops.is_none());
        let parts = freed.map_or(parts, |last| {
            self.frees.insert(page, parts[last].lsn);
            self.full.remove(&page);
            &parts[last + 1..]
        });
        // Without its earlier records, only one that zeroes the page can be its first.
        if self.full.contains_key(&page) && !parts.iter().any(Part::zeroes_page) {
            return None;
        }
        self.full.remove(&page);
        if !parts.is_empty() {
            // A record after the free: the store had freed the page, and handed it out again.
            self.frees.remove(&page);
        }
        Some(parts).filter(|parts| !parts.is_empty())
    }
}

async fn redo_page(store: &PageStore, wal: &Wal, parts: &[Part<'_>]) -> (PageId, Result<u64, RedoError>) {
    let id = parts[0].page;
    (id, redone(store, wal, id, parts).await)
}

async fn redone(store: &PageStore, wal: &Wal, id: PageId, parts: &[Part<'_>]) -> Result<u64, RedoError> {
    let zeroed = parts.iter().rposition(Part::zeroes_page);
    let mut page = match store.get_mut(id).await {
        Ok(page) => page,
        // Allocated before the crash, and never written.
        Err(Error::NoSuchPage { .. }) if zeroed.is_none() => store.get_or_create(id).await?,
        // Damaged, or not there: its records have all of it.
        Err(Error::NoSuchPage { .. } | Error::Pool(PoolError::Tier(TierError::Corrupt { .. })))
            if zeroed.is_some() =>
        {
            store.overwrite(id).await?
        }
        Err(error) => return Err(error.into()),
    };
    let found = page.lsn();
    if found > wal.end() {
        return Err(WalError::Behind { page: found, log: wal.end() }.into());
    }
    // Never over a newer version: what came after it may have been written, and be in no record that is left.
    let first = zeroed.filter(|first| parts[*first].lsn > found.0).unwrap_or(0);
    let mut applied = 0;
    for part in &parts[first..] {
        if let Some(ops) = part.ops.filter(|_| part.lsn > page.lsn().0) {
            record::apply(ops, part.index, &mut page).ok_or(RedoError::Record(Lsn(part.lsn)))?;
            page.set_lsn(Lsn(part.lsn));
            applied += 1;
        }
    }
    Ok(applied)
}
