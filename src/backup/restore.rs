//! Restoring a chain of backups as a new store.
//!
//! The store is built in `<directory>.partial` ([`site`](super::site)) and renamed once it is complete,
//! closed and durable: a directory under the final name is always a complete store.

use super::file::{Head, Next, Reader, Tail, name_of, numbers};
use super::logs::newest_removed;
use super::report::{RestoreProgress, RestoreReport, blocking};
use super::site::{Begun, Done, Target};
use crate::config::builder::Builder;
use crate::config::choices::Create;
use crate::error::{BackupError, Error};
use crate::manifest::changes::LogRecord;
use crate::manifest::contents::Manifest;
use crate::manifest::extents::EXTENT_PAGES;
use crate::store::page_store::PageStore;
use pagetier_devio::files::RealDir;
use pagetier_page::{LogMark, PageId, PageSize, SpaceId};
use pagetier_ssdcache::Homes;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The number of pages read from a file at a time.
const BATCH_PAGES: usize = 64;

impl Builder {
    /// Creates a new store in the builder's directory from the chain of backups in `from`: the last full
    /// backup and the incremental ones after it, or with `upto` the chain that ends with that number. Spaces
    /// keep their ids, pages their numbers and LSNs. Afterwards, open the store with the same options and
    /// redo the log that was copied after the backup ([`PageStore::backup`]). Give this builder no log gate:
    /// it would be asked for the LSNs of the backup's pages. The engine's log must continue above them: a log
    /// that starts again at 1 would skip its records in redo, because the pages have larger LSNs.
    ///
    /// The page size is the backup's: omit [`Builder::page_size`], or pass that one. Directory, devices,
    /// `ssd_bytes`, `ring_pages`, costs and `calibrate` have their usual meaning for a new store, and need
    /// not be those of the original. The options of a running store (the pool's size, policies, modes) apply
    /// while it is restored. `create` is implied. The HDD needs space for all numbers below the ends of the
    /// spaces, free ones among them; [`Spaces::shrink`](crate::Spaces::shrink) gives theirs back.
    ///
    /// ```
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let builder = || pagetier::PageStore::builder().directory("/var/lib/db").ssd_bytes(1 << 30);
    /// builder().restore("/backup/db", None, |progress| println!("{} pages", progress.pages)).await?;
    /// let store = builder().open().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The directory appears under its name once the store is complete, closed and durable. An interrupted
    /// restoration leaves `<directory>.partial`. The next one into the same directory starts over there, and
    /// takes devices elsewhere that were formatted for it; if all but the new name was done, it renames the
    /// directory.
    ///
    /// # Errors
    /// [`BackupError`]: the destination exists, the chain is damaged or has a gap, the newest backup was
    /// removed without its log (name the number of an earlier one), the builder's page size is another one,
    /// or the store cannot be created.
    pub async fn restore(
        self,
        from: impl AsRef<Path>,
        upto: Option<u32>,
        progress: impl Fn(RestoreProgress) + Send,
    ) -> Result<RestoreReport, BackupError> {
        self.restore_with_log(from, upto, None, progress).await
    }

    /// As [`Builder::restore`], for a log that continues that of the backup under the identity `log_id`.
    ///
    /// # Errors
    /// As there.
    #[doc(hidden)]
    pub async fn restore_with_log(
        mut self,
        from: impl AsRef<Path>,
        upto: Option<u32>,
        log_id: Option<u64>,
        progress: impl Fn(RestoreProgress) + Send,
    ) -> Result<RestoreReport, BackupError> {
        let (Some(to), None) = (self.config.options.directory.take(), &self.config.memory) else {
            return Err(BackupError::NoDirectory);
        };
        let to = Target::of(Arc::new(RealDir::working()), &to)?;
        let dir = from.as_ref().to_owned();
        // The whole chain is read before anything is created: a damaged file must not leave half a store.
        let chain = blocking(move || chain(&dir, upto)).await?;
        let Some((tail, page_bytes, last, log)) =
            chain.last().map(|link| (link.tail.clone(), link.page_bytes, link.id.clone(), link.log))
        else {
            return Err(BackupError::NoChain {
                path: from.as_ref().to_owned(),
                why: "it has no backup".into(),
            });
        };
        // Pages are copied byte by byte, so the size cannot change.
        if let Some(asked) = self.config.options.page_bytes.filter(|asked| *asked != page_bytes) {
            return Err(BackupError::OtherPageSize { backup: page_bytes, asked });
        }
        let size = PageSize::new(page_bytes).map_err(crate::OpenError::from)?;
        // Pages that were made for another log do not count as restored: they would refuse this one.
        let made = log_id.map_or_else(|| last.clone(), |log| format!("{last}, log {log:016x}"));
        let site = match to.begin(&made).await? {
            Begun::Restored(report) => return Ok(report),
            Begun::Site(site) => site,
        };
        self.config.starts_over = true;
        // The pages existed, wherever they are: the gap guards against wrong numbers of an embedder.
        let builder = self.directory(site.directory()).page_size(size).page_gap_max(u32::MAX);
        let create = builder.options().create.max(Create::OnBlank);
        let store = builder.create(create).open().await?;
        // First: pages without it would take any log for theirs.
        if let Some(log) = log {
            let mark = LogMark::from(log.restored());
            store.shared.record_log(LogMark { id: log_id.unwrap_or(mark.id), ..mark }).await?;
        }
        take_spaces(&store, &tail).await?;
        let pages = take_pages(&store, &chain, progress).await?;
        let epoch = store.shared.meta.lock().await.manifest.epoch;
        // Closed before the name is given: the store that appears under it is complete and durable.
        store.close().await?;
        let (files, number) = (chain.len(), chain.last().map_or(0, |link| link.number));
        site.finish(Done {
            backup: made,
            epoch,
            report: RestoreReport {
                files,
                number,
                pages,
                spaces: tail.spaces.len(),
                needs_log: log.is_some(),
            },
        })
        .await
    }
}

/// Creates the backup's spaces under their original ids, with the pages that exist.
async fn take_spaces(store: &PageStore, tail: &Tail) -> Result<(), Error> {
    let mut meta = store.shared.meta.lock().await;
    let add = |manifest: &mut Manifest| {
        // Under their old ids, since the engine's log names pages by them; and no id below is given out
        // later.
        tail.spaces.iter().for_each(|(id, name, _)| manifest.add_space(*id, name));
        manifest.next_space = manifest.next_space.max(tail.next_space);
    };
    meta.change(&store.shared.volume, add).await?;
    tail.spaces.iter().for_each(|(id, name, _)| store.shared.volume.add(SpaceId(*id), name));
    drop(meta);
    for (id, _, pages) in &tail.spaces {
        if let Some(last) = pages.checked_sub(1) {
            // Takes the space for all pages at once: one growth instead of one per extent.
            drop(store.extend_to(PageId::new(SpaceId(*id), last)).await?);
        }
        // Freed before the pages are read: those that the chain still has from earlier are then skipped.
        let free = tail.free_in(*id, *pages);
        if !free.is_empty() {
            let ranges = free.iter().map(|(first, count)| first..first + count).collect();
            store.shared.free_noting(SpaceId(*id), ranges, |_| ()).await?;
        }
    }
    // Redo may make pages anew that were freed, and whose space was shrunk: it must know their numbers, or
    // they are too far away, or take the disk space of all before them.
    let end = |id| tail.free_end(id).min(u32::MAX - EXTENT_PAGES).next_multiple_of(EXTENT_PAGES);
    let far = tail.spaces.iter().filter(|(id, _, pages)| tail.free_end(*id) > *pages);
    let ends: HashMap<u32, u32> = far.map(|(id, ..)| (*id, end(*id))).collect();
    if ends.is_empty() {
        return Ok(());
    }
    let list = |manifest: &mut Manifest| {
        for space in &mut manifest.spaces {
            ends.get(&space.id).into_iter().for_each(|end| space.list_free(*end));
        }
    };
    store.shared.meta.lock().await.change(&store.shared.volume, list).await?;
    ends.iter().for_each(|(id, end)| store.shared.volume.list_free(SpaceId(*id), *end));
    Ok(())
}

/// Writes the pages of all files, the oldest first. Returns their number.
async fn take_pages(
    store: &PageStore,
    chain: &[Link],
    progress: impl Fn(RestoreProgress) + Send,
) -> Result<u64, BackupError> {
    let mut pages = 0;
    for (index, link) in chain.iter().enumerate() {
        let mut reader = Some(Reader::open(&link.path)?);
        while let Some(mut open) = reader.take() {
            let (batch, back) =
                blocking(move || batch(&mut open).map(|(batch, more)| (batch, more.then_some(open)))).await?;
            for copied in batch {
                // A page that was freed after this file was written is in the chain and must not come
                // back (I35).
                if store.shared.volume.offset(copied.page).is_some() {
                    let mut page = store.overwrite(copied.page).await?;
                    page.copy_from_slice(&copied.payload);
                    page.set_lsn(copied.lsn);
                    pages += 1;
                }
            }
            progress(RestoreProgress { file: index + 1, files: chain.len(), pages });
            reader = back;
        }
    }
    Ok(pages)
}

/// One file of a chain, read to its end.
pub(super) struct Link {
    pub(super) path: PathBuf,
    pub(super) number: u32,
    id: String,
    /// The id of the store that was backed up.
    pub(super) store: String,
    pub(super) page_bytes: u64,
    log: Option<LogRecord>,
    pub(super) tail: Tail,
}

/// Finds the chain that ends with number `upto`, or with the last file. Reads every file to its end, so that
/// a restoration begins with a sound chain.
pub(super) fn chain(dir: &Path, upto: Option<u32>) -> Result<Vec<Link>, BackupError> {
    let none = |why: String| BackupError::NoChain { path: dir.to_owned(), why };
    if let Some((_, removed)) = newest_removed(dir)?.filter(|_| upto.is_none()) {
        return Err(removed);
    }
    let mut numbers = numbers(dir)?;
    if let Some(upto) = upto {
        if !numbers.contains(&upto) {
            return Err(none(format!("it has no backup of number {upto}")));
        }
        numbers.retain(|number| *number <= upto);
    }
    let (mut links, mut wanted) = (Vec::new(), None);
    // Backwards from the newest: each file names the one before it, whatever else lies in the directory.
    for number in numbers.iter().copied().rev() {
        let path = dir.join(name_of(number));
        let mut reader = Reader::open(&path)?;
        let head = reader.head.clone();
        // By id, not by number: a file of another chain may have filled the gap.
        if wanted.as_ref().is_some_and(|wanted| *wanted != head.id) {
            let after = links.last().map_or(number, |link: &Link| link.number);
            return Err(none(format!("the backup before number {after} is missing")));
        }
        let tail = loop {
            if let Next::Tail(tail) = reader.next()? {
                break tail;
            }
        };
        let Head { id, store, page_bytes, log, after, .. } = head;
        let own = store.clone();
        links.push(Link { path, number, id, store, page_bytes, log, tail });
        wanted = after;
        if wanted.is_none() {
            if upto.is_none() {
                let earlier = numbers.iter().filter(|earlier| **earlier < number);
                one_store(dir, earlier, &own).map_err(none)?;
            }
            links.reverse();
            return Ok(links);
        }
    }
    Err(none(if links.is_empty() { "it has no backup".into() } else { "its full backup is missing".into() }))
}

/// The next pages, and whether more may follow.
pub(super) fn batch(reader: &mut Reader) -> Result<(Vec<super::file::Copied>, bool), BackupError> {
    let mut pages = Vec::new();
    while pages.len() < BATCH_PAGES {
        match reader.next()? {
            Next::Page(copied) => pages.push(copied),
            Next::Tail(_) => return Ok((pages, false)),
        }
    }
    Ok((pages, true))
}

/// Checks that the backups of these numbers are of `store` too: otherwise the newest chain may be the wrong
/// store's.
fn one_store<'a>(dir: &Path, numbers: impl Iterator<Item = &'a u32>, store: &str) -> Result<(), String> {
    for number in numbers {
        // A file that cannot be read is of an older chain, which nothing needs.
        let Ok(reader) = Reader::open(&dir.join(name_of(*number))) else { continue };
        let other = reader.head.store;
        if other != store {
            return Err(format!(
                "it has backups of two stores, {other} and {store}: name the last one to restore"
            ));
        }
    }
    Ok(())
}
