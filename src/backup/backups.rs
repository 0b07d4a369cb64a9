//! A directory of backups: lists and verifies its files, and removes the oldest.
//!
//! **A purge** must never leave an incremental backup without the ones that it continues. It keeps the newest
//! files and whatever they continue, and removes what is older, the newest first: a crash between two
//! removals leaves an older chain that is shorter, never one without its beginning. The directory is synced
//! after each, because a file system may otherwise make two removals durable in the other order. Before the
//! first, every file that stays is read to its end: a damaged backup is no reason to give up an older one.
//! The copies of the log go after all files, those of an interrupted purge included ([`logs`](super::logs)).

use super::file::{Head, Next, Reader, name_of, numbers};
use super::locked::{DRAFT, LOOK_EVERY, locked};
use super::logs::{has_log, log_name_of, newest_removed, remove_left};
use super::report::{RestoreProgress, blocking};
use crate::error::BackupError;
use pagetier_devio::Causes;
use pagetier_devio::files::{DirFile, Directory, RealDir};
use pagetier_page::LogMark;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// How long a purge waits for a backup into the directory to end. A backup may take hours, but one whose
/// process has just died ends soon.
const WAIT_MAX: Duration = Duration::from_secs(3);

/// A directory of backups, as [`PageStore::backup`](crate::PageStore::backup) makes it.
///
/// ```
/// # async fn example() -> Result<(), pagetier::backup::BackupError> {
/// use pagetier::backup::Backups;
///
/// let backups = Backups::at("/backup/db");
/// let all = backups.verify(|progress| println!("file {} of {}", progress.file, progress.files)).await?;
/// if all.iter().all(|backup| backup.is_restorable) {
///     let purged = backups.purge(7, |number| println!("removed {number}")).await?;
///     println!("{} backups left", purged.kept.len());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Backups {
    pub(super) dir: PathBuf,
}

/// One file of a directory of backups.
#[derive(Debug)]
#[non_exhaustive]
pub struct BackupFile {
    /// Its path.
    pub path: PathBuf,
    /// Its number in the directory.
    pub number: u32,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was last written, if the file system says so.
    pub modified: Option<SystemTime>,
    /// The id of the store that was backed up; `None`: the head of the file is damaged.
    pub store: Option<String>,
    /// The identity of the log that its pages need; `None`: none, or the head of the file is damaged.
    pub log: Option<u64>,
    /// Whether it is a full backup; `None`: the head of the file is damaged.
    pub is_full: Option<bool>,
    /// The number of its pages; `None`: it was not read to its end, or is damaged.
    pub pages: Option<u64>,
    /// What is wrong with it. A listing reads the heads alone.
    pub fault: Option<BackupError>,
    /// Whether it and every backup that it continues are there, as far as they were read, and the copy of the
    /// log that was made with it.
    pub is_restorable: bool,
}

/// The result of [`Backups::purge`].
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct PurgeReport {
    /// The numbers of the backups that stay, in order.
    pub kept: Vec<u32>,
    /// The numbers of those removed, in the order of their removal.
    pub removed: Vec<u32>,
    /// The numbers of older files that stay because they do not say that they are backups of this store.
    pub left: Vec<u32>,
}

impl Backups {
    /// The backups in the directory `dir`.
    pub fn at(dir: impl AsRef<Path>) -> Self {
        Self { dir: dir.as_ref().to_owned() }
    }

    /// Lists the backups, the oldest first. Reads the head of each file: [`Backups::verify`] reads them
    /// whole. Writes nothing. Cancel-safe.
    ///
    /// A backup that was made with its log (`pagetier-wal`) is at fault if the copy of the log is missing. If
    /// that copy is there, and the backup itself was removed, the list ends with it: what is the newest now
    /// is older than what there was.
    ///
    /// # Errors
    /// The directory has no backup, or cannot be read. A file that cannot be read is part of the list.
    pub async fn list(&self) -> Result<Vec<BackupFile>, BackupError> {
        let dir = self.dir.clone();
        blocking(move || with_logs(&dir, examined(&dir)?)).await
    }

    /// Lists the backups, the oldest first, after reading every file to its end: each record has a checksum.
    /// Restores nothing and writes nothing. `progress` is called after each file. Cancel-safe.
    ///
    /// # Errors
    /// As [`Backups::list`]; [`BackupError::TwoStores`]. A damaged file is part of the list.
    pub async fn verify(
        &self,
        progress: impl Fn(RestoreProgress) + Send,
    ) -> Result<Vec<BackupFile>, BackupError> {
        let dir = self.dir.clone();
        let mut files = blocking(move || examined(&dir)).await?;
        self.of_one_store(&files)?;
        let total = files.len();
        let mut pages = 0;
        for (index, (file, head)) in files.iter_mut().enumerate() {
            // A file after the other, so that a caller can stop in between.
            *file = read_whole(std::mem::replace(file, BackupFile::unread(PathBuf::new(), 0))).await?;
            if file.fault.is_some() {
                *head = None;
            }
            pages += file.pages.unwrap_or(0);
            progress(RestoreProgress { file: index + 1, files: total, pages });
        }
        note_restorable(&mut files);
        let dir = self.dir.clone();
        blocking(move || with_logs(&dir, files)).await
    }

    /// Removes the oldest backups: the newest `keep` stay, and the older ones that these continue. Calls
    /// `removed` with the number of each file that is gone. With `keep` 0 the newest stays, too, because the
    /// store's next backup continues it. Copies of the log go with their backups.
    ///
    /// Interrupted at any moment, by a cancellation or a crash, it leaves a directory in which every backup
    /// is as restorable as before. Excludes backups into the directory; a restoration of a backup that is
    /// being removed fails. Files that do not say that they are backups of this store stay where they are.
    ///
    /// # Errors
    /// [`BackupError::Busy`] while a backup into the directory runs; [`BackupError::TwoStores`]; a backup
    /// that would stay is damaged, or its log or one that it continues is missing, or the newest was removed
    /// by hand, but not its log: nothing was removed then. A file cannot be removed: those before it are
    /// gone.
    pub async fn purge(&self, keep: u32, removed: impl Fn(u32) + Send) -> Result<PurgeReport, BackupError> {
        let dir = self.dir.clone();
        // Before the lock, which makes a file: a directory without backups is not touched.
        blocking(move || examined(&dir)).await?;
        let draft = self.exclusive().await?;
        let purged = self.purge_alone(keep, removed).await;
        let dir = self.dir.clone();
        blocking(move || draft.end(&dir)).await?;
        purged
    }

    async fn purge_alone(&self, keep: u32, removed: impl Fn(u32) + Send) -> Result<PurgeReport, BackupError> {
        let dir = self.dir.clone();
        let examining = move || match newest_removed(&dir)? {
            // As little a reason to give up older ones.
            Some((_, removed)) => Err(removed),
            None => examined(&dir),
        };
        let mut older = blocking(examining).await?;
        self.of_one_store(&older)?;
        let newer = older.split_off(first_kept(&older, keep as usize, &self.dir)?);
        let mut kept = Vec::new();
        for (file, _) in newer {
            if older.is_empty() {
                kept.push(file.number);
                continue;
            }
            let file = read_whole(file).await?;
            if let Some(fault) = file.fault {
                return Err(fault);
            }
            kept.push(file.number);
        }
        let (mut gone, mut left) = (Vec::new(), Vec::new());
        for (file, head) in older.into_iter().rev() {
            // Only what proves to be this store's: a file by such a name may be anything.
            if head.is_none() {
                left.push(file.number);
                continue;
            }
            let dir = self.dir.clone();
            blocking(move || remove(&RealDir::working(), &dir, &file.path)).await?;
            gone.push(file.number);
            removed(file.number);
        }
        let dir = self.dir.clone();
        blocking(move || remove_left(&RealDir::working(), &dir)).await?;
        left.reverse();
        Ok(PurgeReport { kept, removed: gone, left })
    }

    /// Keeps backups out of the directory.
    async fn exclusive(&self) -> Result<Exclusive, BackupError> {
        let until = Instant::now() + WAIT_MAX;
        loop {
            let path = self.dir.join(DRAFT);
            let found =
                blocking(move || locked(&RealDir::working(), &path).map_err(BackupError::io(&path))).await?;
            if let Some(file) = found {
                return Ok(Exclusive(file));
            }
            if Instant::now() >= until {
                return Err(BackupError::Busy { path: self.dir.clone() });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn of_one_store(&self, files: &[(BackupFile, Option<Head>)]) -> Result<(), BackupError> {
        let mut stores = files.iter().filter_map(|(file, _)| file.store.as_ref());
        let Some(newest) = stores.next_back() else { return Ok(()) };
        match stores.find(|store| *store != newest) {
            Some(other) => Err(BackupError::TwoStores {
                path: self.dir.clone(),
                stores: [other.clone(), newest.clone()],
            }),
            None => Ok(()),
        }
    }
}

impl BackupFile {
    fn unread(path: PathBuf, number: u32) -> Self {
        Self {
            path,
            number,
            bytes: 0,
            modified: None,
            store: None,
            log: None,
            is_full: None,
            pages: None,
            fault: None,
            is_restorable: false,
        }
    }
}

/// The lock that excludes backups.
struct Exclusive(Box<dyn DirFile>);

impl Exclusive {
    /// Ends it. Removes the file if this made it: what an interrupted backup left has contents.
    fn end(self, dir: &Path) -> Result<(), BackupError> {
        let path = dir.join(DRAFT);
        if self.0.stat().is_ok_and(|stat| stat.len == 0) {
            // Still locked: a backup that waits for the lock finds that the file has no name, and makes
            // another one.
            std::fs::remove_file(&path).map_err(BackupError::io(&path))?;
        }
        drop(self.0);
        Ok(())
    }
}

/// Removes the file of a backup, durably: before an older one goes.
pub(super) fn remove(files: &dyn Directory, dir: &Path, path: &Path) -> Result<(), BackupError> {
    files.remove(path).map_err(BackupError::io(path))?;
    files.directory(dir).and_then(|dir| dir.sync()).map_err(BackupError::io(dir))
}

/// The files of a directory, the oldest first, with their heads. Fails if there is none.
fn examined(dir: &Path) -> Result<Vec<(BackupFile, Option<Head>)>, BackupError> {
    let mut files = Vec::new();
    for number in numbers(dir)? {
        let mut file = BackupFile::unread(dir.join(name_of(number)), number);
        let head = match Reader::open(&file.path) {
            Ok(reader) => Some(reader.head),
            Err(fault) => {
                file.fault = Some(fault);
                None
            }
        };
        if let Ok(meta) = std::fs::metadata(&file.path) {
            (file.bytes, file.modified) = (meta.len(), meta.modified().ok());
        }
        file.store = head.as_ref().map(|head| head.store.clone());
        file.log = head.as_ref().and_then(|head| Some(LogMark::from(head.log?).id));
        file.is_full = head.as_ref().map(|head| head.after.is_none());
        files.push((file, head));
    }
    if files.is_empty() {
        return Err(BackupError::NoChain { path: dir.to_owned(), why: "it has no backup".into() });
    }
    note_restorable(&mut files);
    Ok(files)
}

/// The files with what their logs are at fault for.
fn with_logs(dir: &Path, files: Vec<(BackupFile, Option<Head>)>) -> Result<Vec<BackupFile>, BackupError> {
    let of_log = |(mut file, head): (BackupFile, Option<Head>)| {
        if file.fault.is_none() && lacks_log(&file, head.as_ref()) {
            let log = dir.join(log_name_of(file.number));
            let why = "the log of the backup is missing: put this directory back, or restore another backup";
            file.fault = Some(BackupError::NoChain { path: log, why: why.into() });
        }
        file
    };
    let mut files: Vec<_> = files.into_iter().map(of_log).collect();
    if let Some((number, removed)) = newest_removed(dir)? {
        files.push(BackupFile {
            fault: Some(removed),
            ..BackupFile::unread(dir.join(name_of(number)), number)
        });
    }
    Ok(files)
}

/// Whether the copy of the log that was made with a backup is missing.
fn lacks_log(file: &BackupFile, head: Option<&Head>) -> bool {
    let dir = file.path.parent().unwrap_or(Path::new("."));
    head.is_some_and(|head| head.has_log) && !has_log(dir, file.number)
}

/// Notes which files are whole with all that they continue. A file without a head counts as damaged.
fn note_restorable(files: &mut [(BackupFile, Option<Head>)]) {
    let mut before: Option<String> = None;
    for (file, head) in files {
        let head = head.as_ref();
        // By id, not by number: a file of another chain may have filled a gap.
        let is_chained =
            head.is_some_and(|head| head.after.is_none() || (before.is_some() && head.after == before));
        // Those that continue it do not need its log.
        file.is_restorable = is_chained && !lacks_log(file, head);
        before = head.filter(|_| is_chained).map(|head| head.id.clone());
    }
}

/// Reads a file to its end.
async fn read_whole(mut file: BackupFile) -> Result<BackupFile, BackupError> {
    blocking(move || {
        if file.fault.is_none() {
            match pages_of(&file.path) {
                Ok(pages) => file.pages = Some(pages),
                Err(fault) => file.fault = Some(fault),
            }
        }
        Ok(file)
    })
    .await
}

/// The number of pages in a file, each of which is sound.
fn pages_of(path: &Path) -> Result<u64, BackupError> {
    let mut reader = Reader::open(path)?;
    loop {
        if let Next::Tail(tail) = reader.next()? {
            return Ok(tail.pages);
        }
    }
}

/// The index of the oldest file that a purge keeps: one of the newest `keep`, or what these continue.
fn first_kept(files: &[(BackupFile, Option<Head>)], keep: usize, dir: &Path) -> Result<usize, BackupError> {
    let mut first = files.len() - keep.clamp(1, files.len());
    if first == 0 {
        return Ok(0);
    }
    // Those between are chained to it, or begin chains of their own, or else are not restorable.
    if let Some((file, _)) = files[first..].iter().find(|(file, _)| !file.is_restorable) {
        let unknown = || "its log, or a backup that it continues, is missing or damaged".to_owned();
        let fault = file.fault.as_ref().map_or_else(unknown, |fault| Causes(fault).to_string());
        let why = format!("number {} would stay, but {fault}: nothing was removed", file.number);
        return Err(BackupError::NoChain { path: dir.to_owned(), why });
    }
    while files[first].1.as_ref().is_some_and(|head| head.after.is_some()) && first > 0 {
        first -= 1;
    }
    Ok(first)
}
