//! Copies of a log, for backups and their restoration.

use crate::error::WalError;
use crate::log::Wal;
use crate::log::segments::{FIRST_LSN, Segments, with_prefix};
use crate::media::{FileMedia, Media};
use pagetier::Lsn;
use pagetier_devio::files::{Directory, RealDir, beside, create_durably};
use std::io::{self, ErrorKind};
use std::path::Path;
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
        // Before the flush: all segments up to its end could be gone after it.
        let (_hold, _) = self.hold();
        let end = self.end();
        self.flush(end).await?;
        self.copy_up_to(to, end).await
    }

    /// As [`Wal::copy_to`], without the records that follow `end`, which are not copied.
    pub(crate) async fn copy_up_to(&self, to: &Path, end: Lsn) -> Result<(), WalError> {
        self.check_owner()?;
        // No segment is removed during the copy.
        let (hold, _) = self.hold();
        let (wal, to) = (self.clone(), to.to_owned());
        let copying = move || {
            let starts = wal.segment_starts();
            // Also one that begins there, which may be the only one.
            let starts = starts.into_iter().filter(|start| *start <= end.0).collect();
            let format = wal.format();
            copy(&RealDir::working(), &to, (wal.id(), format), starts, |start| {
                wal.whole_segment(start, end)
            })?;
            drop(hold);
            Ok(())
        };
        tokio::task::spawn_blocking(copying).await.map_err(|_| WalError::Stopped)?
    }
}

/// Copies the log in directory `from`, which no store has open, to the new directory `to`, as when a backup
/// is restored. `to` appears under its name once the copy is durable; meanwhile it is `<to>.partial`. What
/// follows a segment's records in its file is not copied. Returns the log's identity. Blocks.
///
/// # Errors
/// `from` has no log, cannot be read or has a last segment that is damaged; `to` exists or cannot be written.
pub fn copy_log(from: &Path, to: &Path) -> Result<u64, WalError> {
    let read = RealDir::open(from).and_then(|dir| FileMedia::reading(Arc::new(dir)));
    let mut media = read.map_err(at(from))?;
    if media.list().map_err(at(from))?.is_empty() {
        return Err(at(from)(io::Error::new(ErrorKind::NotFound, "it has no segment of a log")));
    }
    let of_log = (media.id(), media.format(0));
    let (mut segments, _, end) = Segments::open(Box::new(media), FIRST_LSN)?;
    copy(&RealDir::working(), to, of_log, segments.starts(), |start| {
        segments.part(start, end).map(|(segment, records, _)| with_prefix(segment, &records))
    })?;
    Ok(of_log.0)
}

/// Makes a log of this identity, format and segments in the directory `to`, which has another name until it
/// is complete.
pub(crate) fn copy(
    base: &dyn Directory,
    to: &Path,
    (id, format): (u64, u32),
    starts: Vec<u64>,
    mut read: impl FnMut(u64) -> Result<Vec<u8>, WalError>,
) -> Result<(), WalError> {
    let taken = || at(to)(ErrorKind::AlreadyExists.into());
    let (partial, whole) = beside(to, ".partial").map_err(at(to))?.ok_or_else(taken)?;
    let above = whole.parent().unwrap_or(Path::new("/"));
    if base.has_name(&whole).map_err(at(to))? {
        return Err(taken());
    }
    // What an interrupted copy left is used again.
    create_durably(base, &partial).map_err(at(&partial))?;
    let dir = base.directory(&partial).map_err(at(&partial))?;
    let mut media = FileMedia::copy(dir, id).map_err(at(&partial))?;
    media.format(format);
    for start in starts {
        media.create(start, &read(start)?).map_err(at(&partial))?;
    }
    let above = base.directory(above).map_err(at(above))?;
    base.rename(&partial, &whole).map_err(at(to))?;
    above.sync().map_err(|error| {
        // A repetition must not find a copy that a crash may take away.
        let _ = base.rename(&whole, &partial);
        at(to)(error)
    })
}

pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> WalError {
    let path = path.to_owned();
    move |source| WalError::Io { path: path.clone(), source: Arc::new(source) }
}
