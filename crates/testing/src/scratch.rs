//! Folders for tests.

use tempfile::TempDir;

/// Less space than that is left for others.
const ROOM_MIN: u64 = 1 << 30;

/// A folder that is removed when dropped, in memory where the machine has a file system there: a test cannot
/// see whether the kernel has synced a file, but a sync takes milliseconds on a disk.
///
/// # Panics
/// If there is no place for temporary files.
#[must_use]
pub fn scratch() -> TempDir {
    let fits = rustix::fs::statvfs("/dev/shm").is_ok_and(|fs| fs.f_bavail * fs.f_frsize >= ROOM_MIN);
    let in_memory = fits.then(|| tempfile::tempdir_in("/dev/shm").ok()).flatten();
    in_memory.unwrap_or_else(|| tempfile::tempdir().expect("a place for temporary files"))
}
