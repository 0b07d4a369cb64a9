//! Takes a backup.
//!
//! **What a backup contains.** Every page is whole, and at least as new as the `sync` that begins the
//! backup. Pages may date from different moments. The embedder's log, from the call to its return, turns the
//! backup into a point in time: redo brings every page to the end of the log, as after a crash. Without
//! concurrent writes the backup is an exact copy.
//!
//! **Incremental.** Every physical write of a page gets a fresh, larger stamp. A backup records the stamp
//! `upto` that it drew first, and the next one copies the pages whose stamps are larger. The order matters:
//! `sync`; draw `upto`; wait for every write in flight; read the pages; `sync` again. A write in flight when
//! `upto` is drawn has a smaller stamp: if its page were read before the write ended, this backup would have
//! the previous version, and the next one would skip the page. The last `sync` makes durable what was read:
//! otherwise a crash could revert a page to a version older than the chain's. Nor must a crash
//! bring back a version that was discarded before its page was read, and that the next backup would skip: if
//! a page was discarded since the last map checkpoint, the backup has one written before it is listed.
//!
//! **Freed meanwhile.** A page may be freed and created again while a backup reads other pages, and have no
//! version when its turn comes. The chain may have the page from before: it counts as free in this backup.
//!
//! **Free before.** A page that did not exist at the end of a backup is copied by the next one whatever its
//! stamp: its number may be in use again, and a discard may show what its home had before it was freed. That
//! version has a stamp that the backup covered, but the chain need not have it.
//!
//! **A chain** is a full backup and the incremental ones after it, each in a file of its own, in one
//! directory, which belongs to one store. A file gets its name once it is complete and durable. The store's
//! manifest lists the most recent backups by id, so that a store reset to an earlier state does not continue
//! a chain that is ahead of it: its next backup is full. So is the first one after the SSD is exchanged.
//!
//! **Losses.** A loss with the SSD or the ring takes pages back to versions that a chain may be ahead of,
//! with stamps that the next backup would skip. The manifest counts losses, and a backup records the count:
//! it continues only one with the present count. While an SSD is given up, pages that memory saves are on no
//! device, and reads find older versions. A backup during which the count changed therefore begins again.

use super::file::{
    Had, Head, Reader, TEXT_BYTES_MAX, Tail, encode_head, encode_page, encode_tail, name_of, numbers, united,
};
use super::locked::{DRAFT, LOOK_EVERY, locked};
use super::logs::{drafted, log_name_of, newest_log, remove_unfinished};
use super::report::{BACKUPS_LISTED, BackupOptions, BackupProgress, BackupReport, CopyLog, blocking};
use crate::error::{BackupError, Error};
use crate::manifest::contents::Manifest;
use crate::manifest::id::{id_text, new_id};
use crate::store::pace::Pace;
use crate::store::page_store::PageStore;
use crate::volume::table::{Freed, SpaceInfo};
use pagetier_bufpool::{LogGate, PoolError, TierError};
use pagetier_devio::files::{DirFile, Directory, RealDir, create_durably};
use pagetier_devio::{Causes, IoBuf};
use pagetier_page::{Header, Lsn, PageId, Stamp};
use rustc_hash::FxHashSet;
use std::fs::{FileType, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::task::JoinSet;

/// The maximum number of pages read at the same time.
const READS_MAX: usize = 16;
/// The number of bytes collected for a write.
const WRITE_BYTES: usize = 1 << 20;
/// The number of pages between two progress reports.
const REPORT_PAGES: u64 = 256;

/// A file being written. It gets its final name once it is complete.
///
/// Blocking calls outlive a backup that is dropped: one of them may still write the file, or rename it. So
/// the file is locked as long as it is open, and the next backup waits for that before it looks for the last
/// number in the directory.
pub(super) struct Draft {
    file: Option<Box<dyn DirFile>>,
    files: Arc<dyn Directory>,
    dir: PathBuf,
    partial: PathBuf,
    waiting: Vec<u8>,
    bytes: u64,
}

impl Draft {
    /// Creates the directory and an empty file in it, once no other backup has the file open. Cancel-safe.
    pub(super) async fn create(files: Arc<dyn Directory>, dir: &Path) -> Result<Self, BackupError> {
        let (dir, partial) = (dir.to_owned(), dir.join(DRAFT));
        let mut waits = false;
        let file = loop {
            let (files, dir, named) = (Arc::clone(&files), dir.clone(), partial.clone());
            let locked = blocking(move || {
                create_durably(&*files, &dir).map_err(BackupError::io(&dir))?;
                let Some(file) = locked(&*files, &named).map_err(BackupError::io(&named))? else {
                    return Ok(None);
                };
                // Its writes would wait for a reader, and with them the end of the engine.
                if file_type(&*file).is_some_and(|kind| kind.is_fifo()) {
                    return Err(BackupError::io(&named)(std::io::Error::other("it is a pipe; remove it")));
                }
                // The log of an interrupted backup goes before the draft that says whose it is.
                let drafted = if is_regular(&*file) { drafted(&*file, &named) } else { None };
                drafted.map_or(Ok(()), |number| remove_unfinished(&*files, &dir, number))?;
                emptied(&*file).map_err(BackupError::io(&named))?;
                Ok(Some(file))
            });
            if let Some(file) = locked.await? {
                break file;
            }
            // Said once, not at each look.
            if !std::mem::replace(&mut waits, true) {
                tracing::info!(file = %partial.display(), "waiting for another backup into the directory");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        };
        Ok(Self { file: Some(file), files, dir, partial, waiting: Vec::new(), bytes: 0 })
    }

    pub(super) async fn begin_again(&mut self) -> Result<(), BackupError> {
        self.waiting.clear();
        self.bytes = 0;
        let path = self.partial.clone();
        self.with_file(move |file| emptied(file).map_err(BackupError::io(&path))).await
    }

    pub(super) async fn put(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() < WRITE_BYTES { Ok(()) } else { self.write_out().await }
    }

    pub(super) async fn write_out(&mut self) -> Result<(), BackupError> {
        let (waiting, path) = (std::mem::take(&mut self.waiting), self.partial.clone());
        let at = self.bytes;
        self.bytes += waiting.len() as u64;
        let written = self.with_file(move |file| {
            file.write_at(at, &waiting).map_err(BackupError::io(&path))?;
            Ok(waiting)
        });
        self.waiting = written.await?;
        self.waiting.clear();
        Ok(())
    }

    /// Makes the file durable, has the log copied for the backup of this number, then renames the file
    /// durably, as the directory's file of this number. A dropped call continues in the background. If it
    /// fails, it removes what it has made.
    pub(super) async fn finish(
        mut self,
        number: u32,
        copy_log: Option<CopyLog>,
    ) -> Result<(PathBuf, u64), BackupError> {
        // In a task of its own, which keeps the file locked: a copy that ended after the lock would be in the
        // way of the next backup.
        let finishing = tokio::spawn(async move {
            let finished = self.name(number, copy_log).await;
            if finished.is_err() {
                self.abandon(Some(number)).await;
            }
            finished
        });
        finishing.await.unwrap_or(Err(BackupError::Runtime))
    }

    async fn name(&mut self, number: u32, copy_log: Option<CopyLog>) -> Result<(PathBuf, u64), BackupError> {
        self.write_out().await?;
        let (files, dir, partial) = (Arc::clone(&self.files), self.dir.clone(), self.partial.clone());
        let sync_names =
            move || files.directory(&dir).and_then(|at| at.sync()).map_err(BackupError::io(&dir));
        let synced = sync_names.clone();
        // Contents before the name: a crash must not leave a complete name on an incomplete file. And the
        // draft before the log, since it says for which backup the log is.
        self.with_file(move |file| file.sync().map_err(BackupError::io(&partial)).and_then(|()| synced()))
            .await?;
        if let Some(copy) = copy_log {
            let log = self.dir.join(log_name_of(number));
            copy(log.clone()).await.map_err(BackupError::io(&log))?;
        }
        let (files, partial, path) =
            (Arc::clone(&self.files), self.partial.clone(), self.dir.join(name_of(number)));
        let named = path.clone();
        self.with_file(move |_| {
            files.rename(&partial, &named).map_err(BackupError::io(&named))?;
            sync_names()
        })
        .await?;
        Ok((path, self.bytes))
    }

    /// Gives back the space of a backup that has failed, which others may need on a full disk; `number`: its
    /// log may have been copied.
    pub(super) async fn abandon(mut self, number: Option<u32>) {
        let (files, dir, partial) = (Arc::clone(&self.files), self.dir.clone(), self.partial.clone());
        let emptying = self.with_file(move |file| {
            // As long as its log is there the draft says whose it is.
            number.map_or(Ok(()), |number| remove_unfinished(&*files, &dir, number))?;
            // It may have its final name, which is perhaps not durable.
            let stat = file.stat().and_then(|stat| Ok((stat, files.stat(&partial)?)));
            let (opened, named) = stat.map_err(BackupError::io(&partial))?;
            let is_draft = named.is_some_and(|named| named.id == opened.id);
            if is_draft { emptied(file).map_err(BackupError::io(&partial)) } else { Ok(()) }
        });
        if let Err(error) = emptying.await {
            tracing::warn!(error = %Causes(&error), "a backup that failed still takes disk space; the next backup removes it");
        }
    }

    /// Works on the file, on a thread that may block. If this future is dropped meanwhile, the file closes
    /// there, after the work.
    async fn with_file<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&dyn DirFile) -> Result<T, BackupError> + Send + 'static,
    ) -> Result<T, BackupError> {
        let Some(file) = self.file.take() else { return Err(BackupError::Runtime) };
        let (file, result) = blocking(move || {
            let result = work(&*file);
            Ok((file, result))
        })
        .await?;
        self.file = Some(file);
        result
    }
}

/// Empties a file, which is locked: another backup may have been writing it.
fn emptied(file: &dyn DirFile) -> std::io::Result<()> {
    // A device is as it is.
    if !is_regular(file) {
        return Ok(());
    }
    file.set_len(0)?;
    // An earlier version left files that others may read.
    let system = file.as_file();
    system.map_or(Ok(()), |file| file.set_permissions(Permissions::from_mode(0o600)))
}

fn is_regular(file: &dyn DirFile) -> bool {
    file_type(file).is_none_or(|kind| kind.is_file())
}

/// What the system says of it; `None`: it is no file of the system.
fn file_type(file: &dyn DirFile) -> Option<FileType> {
    Some(file.as_file()?.metadata().ok()?.file_type())
}

/// The state of a backup directory: where its next backup begins.
struct Base {
    number: u32,
    /// The last backup, or why the next one is full.
    continues: Result<Last, &'static str>,
}

/// The backup that another one continues.
struct Last {
    id: String,
    upto: u64,
    had: Had,
}

/// The newest file of a directory.
struct Newest {
    head: Head,
    had: Result<Had, BackupError>,
}

impl Newest {
    fn read(path: &Path) -> Result<Self, BackupError> {
        let reader = Reader::open(path)?;
        let head = reader.head.clone();
        Ok(Self { head, had: reader.into_tail().map(|tail| Had::by(&tail)) })
    }
}

/// The pages that did not exist at some moment of a backup: free when it began, freed since, or used again
/// while the manifest still lists them as free.
struct Gone {
    freed: Arc<Freed>,
    free: Vec<(u32, u32, u32)>,
    reused: FxHashSet<PageId>,
}

impl Gone {
    fn contains(&self, page: PageId) -> bool {
        self.reused.contains(&page) || self.freed.contains(page)
    }
}

/// A backup whose records are written.
struct Made {
    id: String,
    base: Base,
    looked_at: u64,
    pages: u64,
    /// Up to there the log was durable when the spaces and the free pages were listed.
    log_end: Lsn,
    /// The pages need a log of which the backup has no copy.
    lacks_log: bool,
}

impl PageStore {
    /// Copies the store into a new file of the directory `dest` while the store is in use: all pages, or
    /// those written since the last backup there. Creates `dest` if necessary. Writes nothing to the store
    /// but dirty pages, by its syncs, and an entry in the manifest.
    ///
    /// Every page in the chain is whole and at least as new as before the call, or absent if it was freed
    /// since. Pages may date from different moments of the backup. Without concurrent writes the copy is
    /// exact, except that it may have newer contents of a page, which were discarded
    /// ([`PageStore::discard`]) since an earlier backup.
    /// [`Builder::restore`](crate::Builder::restore) restores the chain.
    ///
    /// **With a log**, redo over the restored store brings all pages to one moment, as after a crash. It
    /// needs the log from [`redo_from(log_end, Loss::Crash)`](PageStore::redo_from), called before the
    /// backup, up to at least the log's end after the backup's return. So (1) stop removing log, (2) call
    /// `backup`, (3) make the log durable up to its end, (4) copy what there is of it, (5) remove log again.
    /// Step 1 keeps everything from the previous `redo_from` on, which suffices. The pages in a backup are
    /// never ahead of the durable log. An incremental backup needs no older log than a full one: the log of
    /// its own call suffices. [`guide`](crate::guide#the-ready-made-log) has the whole program.
    ///
    /// `dest` gets one file per backup, `000001.backup` and so on, and `unfinished.partial` meanwhile. Other
    /// files and directories there are ignored, so log copies may have a directory of their own in it. When
    /// the call returns, the backup is durable: its file, its name and the directories made for it are
    /// synced.
    ///
    /// Even an incremental backup reads every page: it saves writes, not reads. Reads bypass the pool, so hot
    /// pages stay in memory. Hold no guards during the call: its syncs would wait for them. A backup waits
    /// for another one into the same directory. Cancel-safe: a dropped backup leaves `unfinished.partial`,
    /// which the next one overwrites, or ends in the background if it is complete but for its name. One that
    /// fails empties the file. If pages are lost with the SSD meanwhile, it begins again.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use pagetier::{PageStore, backup::BackupOptions};
    ///
    /// let report = store.backup("/backup/db", BackupOptions::new()).await?;
    /// println!("copied {} of {} pages to {}", report.pages, report.looked_at, report.path.display());
    ///
    /// // Later, on another machine:
    /// let builder = || PageStore::builder().directory("/var/lib/db").ssd_bytes(1 << 30);
    /// builder().restore("/backup/db", None, |progress| println!("{} pages", progress.pages)).await?;
    /// let store = builder().open().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BackupError`]: `dest` cannot be written or has another store's backups, a page cannot be read, or
    /// the store cannot be synced. The chain is unchanged.
    pub async fn backup(
        &self,
        dest: impl AsRef<Path>,
        mut options: BackupOptions,
    ) -> Result<BackupReport, BackupError> {
        self.shared.ending.here()?;
        let dir = std::path::absolute(dest.as_ref()).map_err(BackupError::io(dest.as_ref()))?;
        if let Some(own) = self.shared.config.held.clone() {
            let at = dir.clone();
            // The loss of the directory would take its backups along.
            let elsewhere = blocking(move || match RealDir::working().stat(&at) {
                Ok(Some(found)) if own.identity_of(".").ok().flatten() == Some(found.id) => {
                    Err(BackupError::OwnDirectory { path: at })
                }
                _ => Ok(()),
            });
            elsewhere.await?;
        }
        let mut draft = Draft::create(Arc::new(RealDir::working()), &dir).await?;
        let (made, settled) = match self.copy_whole(&dir, &mut draft, &options).await {
            Ok(copied) => copied,
            Err(error) => {
                draft.abandon(None).await;
                return Err(error);
            }
        };
        let Made { id, base, looked_at, pages, log_end, lacks_log } = made;
        let copy_log =
            options.copy_log.take().map(|copy| -> CopyLog { Box::new(move |to| copy(to, log_end)) });
        let (path, bytes) = draft.finish(base.number, copy_log).await?;
        if !settled {
            tracing::warn!(
                "the backup is complete, but a crash could bring back a version that was discarded before it: \
                 the next one will be full"
            );
        } else if let Err(error) = self.list_backup(id).await {
            let what =
                "the backup is complete, but the manifest could not record it: the next one will be full";
            tracing::warn!(error = %Causes(&error), "{what}");
        }
        let full_because = base.continues.err();
        Ok(BackupReport { path, number: base.number, full_because, looked_at, pages, bytes, lacks_log })
    }

    /// Writes a backup into `draft`. Also returns whether no discarded version can come back.
    async fn copy_whole(
        &self,
        dir: &Path,
        draft: &mut Draft,
        options: &BackupOptions,
    ) -> Result<(Made, bool), BackupError> {
        let made = loop {
            match self.copy_into(dir, draft, options).await? {
                Some(made) => break made,
                None => draft.begin_again().await?,
            }
        };
        // Before the file gets its name: once listed, the next backup builds on it (I30).
        Ok((made, self.finalize_discards().await?))
    }

    /// Writes a backup into `draft`. `None`: pages were lost meanwhile, and the draft is of no use.
    async fn copy_into(
        &self,
        dir: &Path,
        draft: &mut Draft,
        options: &BackupOptions,
    ) -> Result<Option<Made>, BackupError> {
        // Before the sync: a page that is saved from memory when its SSD copy is given up is dirty from
        // before the loss counts, so the sync writes it, or else the count differs at the end (I34).
        let (base, mut head) = self.begin(dir, options).await?;
        self.sync().await?;
        // The module's header explains this order.
        // Drawn first: a write that begins now has a larger stamp, so the next backup copies it if this one
        // misses it (I30).
        head.upto = self.shared.tier.fresh_stamp().bits();
        // Writes in flight have smaller stamps. If their pages were read before they end, the newest versions
        // would be missing from both backups (I30).
        self.shared.tier.writes_ended().await;
        // Pages that do not exist now count as free in this backup, even if their numbers are used meanwhile.
        let listed = self.spaces().list();
        let gone = Gone {
            freed: self.shared.volume.watch_freed(),
            free: self.shared.volume.free_pages(),
            reused: self.shared.volume.reused_pages(),
        };
        draft.put(&text(encode_head(&head), dir)?).await?;
        let last = base.continues.as_ref().ok().map(|last| &last.had);
        let copied = self.copy_since(&head, last, &listed, &gone, draft, options);
        let (looked_at, pages, absent) = copied.await?;
        // A crash could otherwise take a page back to before what the chain has, and the next backup would
        // skip it (I30).
        self.sync().await?;
        let (next_space, losses, spaces, free, log_end) = {
            let meta = self.shared.meta.lock().await;
            // Under the lock: a space that is created now must be below the next one, too.
            let (next_space, spaces) = (meta.manifest.next_space, self.spaces().list());
            // The log's end last: the records of what was dropped and freed precede it. And still under the
            // lock: those of a space that is created later follow it.
            let free = self.shared.volume.free_pages();
            (next_space, meta.manifest.losses, spaces, free, self.shared.gate.durable())
        };
        if head.losses != Some(losses) {
            tracing::warn!("pages were lost with the SSD while the store was backed up: beginning again");
            return Ok(None);
        }
        // Nor were pages beyond what was listed looked at: the chain may have a version of one from before a
        // `shrink` (I35).
        let beyond = |s: &SpaceInfo| {
            let had = listed.iter().find(|of| of.id == s.id).map_or(0, |of| of.pages);
            (s.id.0, had, s.pages.saturating_sub(had))
        };
        let beyond = spaces.iter().map(beyond).filter(|(.., count)| *count > 0).collect();
        let spaces = spaces.into_iter().map(|s| (s.id.0, s.name, s.pages)).collect();
        let free = united([gone.free, absent, free, beyond].concat());
        draft.put(&text(encode_tail(&Tail { pages, next_space, spaces, free }), dir)?).await?;
        let lacks_log = head.log.is_some() && !head.has_log;
        Ok(Some(Made { id: head.id, base, looked_at, pages, log_end, lacks_log }))
    }

    /// Finds where the backup begins, and drafts its head.
    async fn begin(&self, dir: &Path, options: &BackupOptions) -> Result<(Base, Head), BackupError> {
        let owned = dir.to_owned();
        let last = blocking(move || {
            let newest = numbers(&owned)?.last().copied();
            let last = newest.map(|number| Newest::read(&owned.join(name_of(number)))).transpose()?;
            // Of a backup that was removed by hand the log may remain, in the place of this one's.
            Ok((last, newest.max(newest_log(&owned)?).unwrap_or(0)))
        });
        let (last, used) = last.await?;
        let meta = self.shared.meta.lock().await;
        let base = self.base(dir, (last, used), options.full, &meta.manifest)?;
        let (after, since) =
            base.continues.as_ref().map_or((None, 0), |last| (Some(last.id.clone()), last.upto));
        let head = Head {
            id: id_text(new_id()),
            store: meta.manifest.store.clone(),
            ssd: meta.manifest.ssd.clone(),
            page_bytes: meta.manifest.page_bytes,
            number: base.number,
            after,
            since,
            upto: 0,
            losses: Some(meta.manifest.losses),
            // Before the sync: what it says of the log holds for every page that is read later.
            log: meta.manifest.log,
            has_log: options.copy_log.is_some(),
        };
        Ok((base, head))
    }

    /// Whether the store of `manifest` continues the `last` backup in `dir`, or begins a chain. Numbers up to
    /// `used` are in use.
    fn base(
        &self,
        dir: &Path,
        (last, used): (Option<Newest>, u32),
        full: bool,
        manifest: &Manifest,
    ) -> Result<Base, BackupError> {
        // A full backup gets the next number as well, so that the newest file is always the one to restore.
        let number = used.checked_add(1).ok_or_else(|| BackupError::NoChain {
            path: dir.to_owned(),
            why: "its numbers are used up; begin another directory".into(),
        })?;
        let Some(Newest { head, had }) = last else {
            return Ok(Base { number, continues: Err("it is the first in its directory") });
        };
        // Even a full backup would be taken for the newest one of the other store.
        if head.store != manifest.store {
            return Err(BackupError::OtherStore {
                path: dir.to_owned(),
                found: head.store,
                expected: manifest.store.clone(),
            });
        }
        let why = if full {
            Some("it was requested")
        } else if !manifest.backups.contains(&head.id) {
            Some(
                "the manifest does not list the last backup there: the store was reset, or has made many since",
            )
        } else if head.ssd != manifest.ssd {
            Some("the SSD was exchanged since the last backup there")
        } else if head.losses.is_none() {
            Some("an earlier version made the last backup there, which does not say what was lost before it")
        } else if head.losses != Some(manifest.losses) {
            // The chain may have versions that the store has lost (I34).
            Some("pages were lost with the SSD or the ring since the last backup there")
        } else {
            None
        };
        let continues = match (why, had) {
            (Some(why), _) => Err(why),
            (None, Ok(had)) => Ok(Last { id: head.id, upto: head.upto, had }),
            // It cannot be restored, nor could what continues it.
            (None, Err(BackupError::Damaged { .. })) => Err("the last backup there is damaged"),
            (None, Err(error)) => return Err(error),
        };
        Ok(Base { number, continues })
    }

    /// Copies the pages of the `listed` spaces with stamps above the head's `since`, and those that the
    /// `last` backup has not. Returns the number of pages examined, the number copied, and those of `gone`
    /// that have no version, as runs of one page.
    async fn copy_since(
        &self,
        head: &Head,
        last: Option<&Had>,
        listed: &[SpaceInfo],
        gone: &Gone,
        draft: &mut Draft,
        options: &BackupOptions,
    ) -> Result<(u64, u64, Vec<(u32, u32, u32)>), BackupError> {
        let total = listed.iter().map(|s| u64::from(s.pages)).sum();
        let mut pages = listed.iter().flat_map(|s| (0..s.pages).map(|no| PageId::new(s.id, no)));
        let (mut reads, mut done, mut copied) = (JoinSet::new(), 0, 0);
        let (mut record, mut absent) = (Vec::new(), Vec::new());
        let page_bytes = self.shared.page_size().bytes() as f64;
        let mut pace = Pace::new(options.bytes_per_second.map(|bytes| bytes as f64 / page_bytes));
        let (since, upto) = (Stamp::from_bits(head.since), Stamp::from_bits(head.upto));
        loop {
            // Several reads keep the disk busy, and few enough to leave requests of the engine their turn.
            while reads.len() < READS_MAX
                && let Some(page) = pages.next()
            {
                pace.wait().await;
                let tier = Arc::clone(&self.shared.tier);
                reads.spawn(async move { (page, tier.read_version(page).await) });
            }
            let Some(read) = reads.join_next().await else { break };
            let (page, read) = read.map_err(|_| BackupError::Runtime)?;
            done += 1;
            let image = self.judge(page, read)?;
            // The chain may have the page from before it was freed (I35).
            if image.is_none() && gone.contains(page) {
                absent.push((page.space.0, page.no, 1));
            }
            let stamp = image.as_ref().map(|image| Header::peek(image.as_slice()).stamp);
            // Free at the end of the last backup, so the chain may lack it, however old it is (I35).
            let missing = last.is_some_and(|last| !last.has(page));
            let stamp = stamp.map(|stamp| if missing { stamp.max(upto) } else { stamp });
            if let Some((image, stamp)) = image.zip(stamp.filter(|stamp| *stamp > since)) {
                record.clear();
                encode_page(image.as_slice(), stamp, &mut record);
                draft.put(&record).await?;
                copied += 1;
            }
            if let Some(report) =
                options.progress.as_ref().filter(|_| done % REPORT_PAGES == 0 || done == total)
            {
                report(BackupProgress { done, total, copied });
            }
        }
        Ok((done, copied, absent))
    }

    /// The image of `page` as read; `None` if there is none.
    fn judge(
        &self,
        page: PageId,
        read: Result<Option<IoBuf>, TierError>,
    ) -> Result<Option<IoBuf>, BackupError> {
        match read {
            Ok(image) => Ok(image),
            // It was freed, or its space was dropped in the meantime.
            Err(TierError::NoSuchPage { .. }) => Ok(None),
            Err(_) if self.shared.volume.pages(page.space).is_none() => Ok(None),
            Err(source) => Err(BackupError::Page { page, source: Error::Pool(PoolError::Tier(source)) }),
        }
    }

    /// Prevents crashes from bringing back versions that were discarded before the backup read their pages:
    /// the next backup would skip them. Returns whether none can come back.
    async fn finalize_discards(&self) -> Result<bool, BackupError> {
        // Runs in its own task: a checkpoint must not be dropped half-way.
        let finalized = self.shared.in_task(|shared| async move {
            let _operation = shared.ending.enter()?;
            Ok(shared.tier.finalize_discards().await)
        });
        Ok(finalized.await?)
    }

    /// Lists the backup in the manifest: only a listed backup is continued.
    async fn list_backup(&self, id: String) -> Result<(), BackupError> {
        let _operation = self.shared.ending.enter()?;
        let mut meta = self.shared.meta.lock().await;
        let list = |manifest: &mut Manifest| {
            manifest.backups.push(id);
            // Several, since a store may be backed up to more than one directory.
            let surplus = manifest.backups.len().saturating_sub(BACKUPS_LISTED);
            manifest.backups.drain(..surplus);
        };
        Ok(meta.change(&self.shared.volume, list).await?)
    }
}

fn text(encoded: serde_json::Result<Vec<u8>>, dir: &Path) -> Result<Vec<u8>, BackupError> {
    let text = encoded.map_err(|error| BackupError::io(dir)(error.into()))?;
    if text.len() > TEXT_BYTES_MAX as usize {
        // It would be a backup that cannot be restored.
        let error = std::io::Error::new(ErrorKind::FileTooLarge, "the list of its free pages is too long");
        return Err(BackupError::io(dir)(error));
    }
    Ok(text)
}
