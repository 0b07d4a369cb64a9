//! Opening a file or block device: which backend serves it, whether direct I/O is in force, and why not.

use crate::{DeviceError, SharedDevice};
use std::path::Path;

/// Whether the page cache of the operating system is bypassed (O_DIRECT).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum DirectIo {
    /// It must be; where it cannot be, opening fails.
    Required,
    /// If the file system can; [`Opened::direct`] tells.
    #[default]
    Preferred,
    /// It is not.
    Disabled,
}

/// Which implementation serves the device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Backend {
    /// io_uring where it can be set up, threads otherwise; [`Opened::fallback`] tells why.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// A pool of threads.
    Threads,
}

/// How to open a file or block device.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Bypass of the page cache. Default: preferred.
    pub direct: DirectIo,
    /// The implementation. Default: automatic.
    pub backend: Backend,
    /// Create the file (mode 0600) when it is missing. Default: no.
    pub create: bool,
    /// Open for reading only. Default: no.
    pub read_only: bool,
    /// Operations handed to the kernel at the same time, 1 to 4096; more wait in order of class. Default: 128.
    pub queue_depth: u32,
    /// Threads of the thread-pool backend, at most; they are started as needed. Default: 16.
    pub threads: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            direct: DirectIo::default(),
            backend: Backend::default(),
            create: false,
            read_only: false,
            queue_depth: 128,
            threads: 16,
        }
    }
}

/// An opened device, and what came of the wishes.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The device.
    pub device: SharedDevice,
    /// The backend that runs: never [`Backend::Auto`].
    pub backend: Backend,
    /// Whether the page cache is bypassed.
    pub direct: bool,
    /// Whether it is a block device (not a regular file).
    pub block_device: bool,
    /// Why io_uring is not used though [`Backend::Auto`] was asked for: cause and remedy.
    pub fallback: Option<String>,
}

/// Opens a regular file or a block device.
///
/// # Errors
/// [`crate::DeviceErrorKind::Unusable`], naming the path and what to do.
pub fn open_file(path: &Path, _options: &OpenOptions) -> Result<Opened, DeviceError> {
    Err(DeviceError {
        device: path.display().to_string().into(),
        op: crate::IoOp::Open,
        offset: 0,
        len: 0,
        kind: crate::DeviceErrorKind::Unusable("not built yet".into()),
    })
}
