//! Files that are locked as long as they are open, and named as long as they are locked.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// The file of a backup in progress: its lock excludes other backups, and purges.
pub(super) const DRAFT: &str = "unfinished.partial";

/// How often to check whether another holder has closed the file.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Opens the file at `path`, locked; creates it for its owner alone. `None`: it is locked, or was renamed or
/// removed just now.
pub(super) fn locked(path: &Path) -> std::io::Result<Option<File>> {
    // Not emptied: its holder may be writing it.
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        // The file system has no locks.
        Err(Errno::NOTSUP | Errno::NOSYS | Errno::NOLCK | Errno::INVAL) => {}
        Err(errno) => return Err(errno.into()),
    }
    // The file may have been renamed between the opening and the lock, as a finished backup is: the lock
    // would then be on a file that excludes no other backup.
    let opened = file.metadata()?;
    let named = match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        named => named?,
    };
    Ok(((named.dev(), named.ino()) == (opened.dev(), opened.ino())).then_some(file))
}
