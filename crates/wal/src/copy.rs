//! Copies of a log, for backups and their restoration.

use crate::error::WalError;
use crate::log::Wal;
use crate::media::{FileMedia, Media, sync_directory};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Wal {
    /// Makes the log durable up to its end, then copies all that it holds to the new directory `to`, which
    /// opens like any log and has the same identity. `to` appears under its name once the copy is durable;
    /// meanwhile it is `<to>.partial`. Take a [`Wal::hold`] before the backup of the pages: the copy then
    /// has every change since. Not cancel-safe: a dropped future may leave either.
    ///
    /// # Errors
    /// `to` exists or cannot be written, or the log failed.
    pub async fn copy_to(&self, to: &Path) -> Result<(), WalError> {
        // No segment is removed during the copy.
        let (hold, _) = self.hold();
        self.flush(self.end()).await?;
        let (wal, to) = (self.clone(), to.to_owned());
        let copying = move || {
            complete(&to, |partial| {
                let mut media = FileMedia::copy(partial, wal.id()).map_err(at(partial))?;
                for start in wal.segment_starts() {
                    let bytes = wal.whole_segment(start)?;
                    media.create(start, &bytes).map_err(at(partial))?;
                }
                Ok(())
            })?;
            drop(hold);
            Ok(())
        };
        tokio::task::spawn_blocking(copying).await.map_err(|_| WalError::Stopped)?
    }
}

/// Copies the log in directory `from`, which no store has open, to the new directory `to`, as when a backup
/// is restored. `to` appears under its name once the copy is durable. Blocks.
///
/// # Errors
/// `from` has no log or cannot be read, `to` exists or cannot be written.
pub fn copy_log(from: &Path, to: &Path) -> Result<(), WalError> {
    complete(to, |partial| {
        let mut copied = 0;
        for entry in fs::read_dir(from).map_err(at(from))? {
            let file = entry.map_err(at(from))?.path();
            let Some(name) = file.file_name().filter(|_| file.extension() == Some(OsStr::new("log"))) else {
                continue;
            };
            let target = partial.join(name);
            fs::copy(&file, &target).and_then(|_| File::open(&target)?.sync_all()).map_err(at(&file))?;
            copied += 1;
        }
        let none = || at(from)(io::Error::new(ErrorKind::NotFound, "it has no segment of a log"));
        if copied == 0 { Err(none()) } else { sync_directory(partial).map_err(at(partial)) }
    })
}

/// Makes the directory `to` by `make` under another name, and renames it once it is complete.
fn complete(to: &Path, make: impl FnOnce(&Path) -> Result<(), WalError>) -> Result<(), WalError> {
    if to.exists() {
        return Err(at(to)(ErrorKind::AlreadyExists.into()));
    }
    let mut name = to.as_os_str().to_owned();
    name.push(".partial");
    let partial = PathBuf::from(name);
    match fs::remove_dir_all(&partial) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(at(&partial)(error)),
        _ => {}
    }
    fs::create_dir_all(&partial).map_err(at(&partial))?;
    make(&partial)?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::rename(&partial, to).and_then(|()| sync_directory(parent)).map_err(at(to))
}

fn at(path: &Path) -> impl Fn(io::Error) -> WalError {
    let path = path.to_owned();
    move |source| WalError::Io { path: path.clone(), source: Arc::new(source) }
}
