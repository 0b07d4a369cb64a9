//! Files that are locked as long as they are open, and named as long as they are locked.

use pagetier_devio::files::{Access, DirFile, Directory};
use rustix::io::Errno;
use std::path::Path;
use std::time::Duration;

/// The file of a backup in progress: its lock excludes other backups, and purges.
pub(super) const DRAFT: &str = "unfinished.partial";

/// How often to check whether another holder has closed the file.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Opens the file at `path`, locked; creates it for its owner alone. `None`: it is locked, or was renamed or
/// removed just now.
pub(super) fn locked(files: &dyn Directory, path: &Path) -> std::io::Result<Option<Box<dyn DirFile>>> {
    // Not emptied: its holder may be writing it.
    let mut file = files.open(path, Access::Create)?;
    match file.try_lock() {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(error) => match Errno::from_io_error(&error) {
            // The file system has no locks.
            Some(Errno::NOTSUP | Errno::NOSYS | Errno::NOLCK | Errno::INVAL) => {}
            _ => return Err(error),
        },
    }
    // The file may have been renamed between the open and the lock, as a finished backup is: the lock
    // would then be on a file that excludes no other backup.
    let opened = file.stat()?.id;
    Ok(files.stat(path)?.is_some_and(|named| named.id == opened).then_some(file))
}
