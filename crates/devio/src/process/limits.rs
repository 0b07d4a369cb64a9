//! The limits of this process that would otherwise end it, or read as something else.

use crate::DeviceErrorKind;
use rustix::process::{Resource, getrlimit};

/// The number of bytes that a file may have in this process; `None`: any.
///
/// The kernel answers a write or a growth beyond it with a signal that ends the process by default, and whose
/// handling belongs to the program, not to a library. So it is checked before a file grows.
#[must_use]
pub fn file_bytes_max() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// Refuses a file of `bytes` where the limit of this process does not allow it.
///
/// # Errors
/// [`DeviceErrorKind::FileSizeLimit`].
pub fn check_file_bytes(bytes: u64) -> Result<(), DeviceErrorKind> {
    match file_bytes_max() {
        Some(max_bytes) if bytes > max_bytes => Err(DeviceErrorKind::FileSizeLimit { max_bytes }),
        _ => Ok(()),
    }
}
