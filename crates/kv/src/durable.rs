//! Files and directories whose names survive a power cut.

use crate::error::KvError;
use std::fs::File;
use std::path::Path;

/// Creates an empty file.
pub(crate) fn create_file(path: &Path) -> Result<(), KvError> {
    File::create(path).and_then(|file| file.sync_all()).map_err(KvError::io(path))?;
    sync_parent(path)
}

/// Makes the name of `path` durable.
pub(crate) fn sync_parent(path: &Path) -> Result<(), KvError> {
    // The parent of a bare file name is the empty path, which cannot be opened.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent).and_then(|dir| dir.sync_all()).map_err(KvError::io(parent))
}
