//! Copies of the embedder's log beside the backups, each in a directory with the number of its backup.
//!
//! A copy is complete, and has its name durably, before its backup gets a name: a backup that is there has
//! its log. Power may fail between the two names. The draft then says for which backup the copy was made, and
//! the next backup removes the copy before it empties the draft.
//!
//! So if a copy above the newest backup is not the draft's, its backup was removed by hand. What is newest
//! now is older than what there was, and must not pass for it. A copy of a lower number without its backup is
//! what an interrupted purge left, which removes the backups first. The next purge removes it.

use super::file::{Head, name_of, number_of, numbered, numbers, opened};
use super::locked::DRAFT;
use crate::error::BackupError;
use pagetier_devio::files::{DirFile, Directory};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The end of the name of a copy that is being made.
const PARTIAL: &str = ".partial";

/// The maximum length of a head: names and numbers.
const HEAD_BYTES_MAX: usize = 64 << 10;

pub(super) fn log_name_of(number: u32) -> String {
    format!("log-{number:06}")
}

fn log_number_of(name: &str) -> Option<u32> {
    let number = name.strip_prefix("log-")?.parse().ok()?;
    (number > 0 && name == log_name_of(number)).then_some(number)
}

/// The number of the newest copy in a directory.
pub(super) fn newest_log(dir: &Path) -> Result<Option<u32>, BackupError> {
    Ok(numbered(dir, log_number_of)?.last().copied())
}

/// Whether the copy that belongs to the backup `number` is there, with a part of the log.
pub(super) fn has_log(dir: &Path, number: u32) -> bool {
    let names = std::fs::read_dir(dir.join(log_name_of(number)));
    names.is_ok_and(|names| names.flatten().any(|name| name.file_name().as_bytes().ends_with(b".log")))
}

/// Why the newest backup in `dir` is not the newest that there was; `None`: it is.
pub(super) fn newest_removed(dir: &Path) -> Result<Option<(u32, BackupError)>, BackupError> {
    // In the order in which a backup makes them: of one that ends meanwhile, either the draft is found, or
    // the backup.
    let Some(number) = newest_log(dir)? else { return Ok(None) };
    let draft = dir.join(DRAFT);
    let head = opened(&draft).and_then(|mut file| Head::read(&mut file, &draft)).ok();
    let newest = numbers(dir)?.last().copied();
    if head.is_some_and(|head| head.number == number) || newest >= Some(number) {
        return Ok(None);
    }
    let log = log_name_of(number);
    let why = format!(
        "backup {number} is missing, and its log is still there: put {number:06}.backup back, or remove the \
         directory {log}, too; to restore an earlier backup, name its number"
    );
    Ok(Some((number, BackupError::NoChain { path: dir.to_owned(), why })))
}

/// The number of the backup that `draft` was for. `None`: it does not say so, or is no regular file.
pub(super) fn drafted(draft: &dyn DirFile, path: &Path) -> Option<u32> {
    let mut start = vec![0; HEAD_BYTES_MAX];
    let mut len = 0;
    while len < start.len() {
        match draft.read_at(len as u64, &mut start[len..]) {
            Ok(0) | Err(_) => break,
            Ok(read) => len += read,
        }
    }
    Head::read(&mut &start[..len], path).ok().map(|head| head.number)
}

/// Removes the copies that were made for the backup `number`, which has no name, durably.
pub(super) fn remove_unfinished(files: &dyn Directory, dir: &Path, number: u32) -> Result<(), BackupError> {
    let at = files.directory(dir).map_err(BackupError::io(dir))?;
    if at.has_name(Path::new(&name_of(number))).map_err(BackupError::io(dir))? {
        return Ok(());
    }
    let log = log_name_of(number);
    for name in [format!("{log}{PARTIAL}"), log] {
        if at.has_name(Path::new(&name)).map_err(BackupError::io(dir))? {
            remove_copy(&*at, Path::new(&name)).map_err(BackupError::io(&dir.join(name)))?;
        }
    }
    Ok(())
}

/// Removes the copies up to the newest backup whose backup is not there, durably, and what interrupted copies
/// left. No backup into the directory runs.
pub(super) fn remove_left(files: &dyn Directory, dir: &Path) -> Result<(), BackupError> {
    let at = files.directory(dir).map_err(BackupError::io(dir))?;
    let names = at.names().map_err(BackupError::io(dir))?;
    let backups: Vec<_> = names.iter().filter_map(|name| number_of(name.to_str()?)).collect();
    let newest = backups.iter().max();
    for name in names.iter().filter_map(|name| name.to_str()) {
        let whole = name.strip_suffix(PARTIAL);
        let Some(number) = log_number_of(whole.unwrap_or(name)) else { continue };
        let is_needed = whole.is_none() && backups.contains(&number);
        if Some(&number) <= newest && !is_needed {
            remove_copy(&*at, Path::new(name)).map_err(BackupError::io(&dir.join(name)))?;
        }
    }
    Ok(())
}

/// Removes the directory `name` if it has nothing but files of a log.
fn remove_copy(at: &dyn Directory, name: &Path) -> io::Result<()> {
    let copy = match at.directory(name) {
        // A file by such a name is no copy.
        Err(error) if error.kind() == ErrorKind::NotADirectory => return Ok(()),
        copy => copy?,
    };
    let names = copy.names()?;
    let is_of_log = |name: &[u8]| {
        let is_one = matches!(name, b"lock" | b"next.tmp" | b"reserve");
        is_one || name.ends_with(b".log") || name.starts_with(b"spare-")
    };
    if !names.iter().all(|name| is_of_log(name.as_bytes())) {
        tracing::warn!(directory = %copy.path().display(), "the directory has files that are not a log's; it is left in place");
        return Ok(());
    }
    for name in names {
        copy.remove(Path::new(&name))?;
    }
    at.remove_directory(name)?;
    at.sync()
}
