//! Opening a file or block device: selects the backend, decides on direct I/O, and explains each fallback.

use crate::check::Spot;
use crate::file::{FileDevice, RawFile};
use crate::limits::check_file_bytes;
use crate::threads::ThreadPool;
use crate::uring::Uring;
use crate::uring_reap::Reap;
use crate::{DeviceError, DeviceErrorKind, IoOp, Kept, SharedDevice};
use rustix::fs::{FileType, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// Whether to bypass the operating system's page cache (O_DIRECT).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DirectIo {
    /// Bypass it; opening fails where that is impossible.
    Required,
    /// Bypass it if the file system can; see [`Opened::direct`].
    #[default]
    Preferred,
    /// Use the page cache.
    Disabled,
}

/// The implementation that serves the device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// io_uring where it can be set up, threads otherwise; [`Opened::fallback`] says why.
    #[default]
    Auto,
    /// io_uring; opening fails without it.
    Uring,
    /// A pool of threads.
    Threads,
}

/// How to open a file or block device.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Whether to bypass the page cache. Default: preferred.
    pub direct: DirectIo,
    /// The implementation. Default: automatic.
    pub backend: Backend,
    /// Create the file (mode 0600) when it is missing. Default: no.
    pub create: bool,
    /// Open for reading only. Default: no.
    pub read_only: bool,
    /// The maximum number of operations that the kernel has at once, 1 to 4096; others wait in order of
    /// class. Default: 128.
    pub queue_depth: u32,
    /// Who reaps io_uring's completions. Default: a thread.
    pub reap: Reap,
    /// The maximum number of threads of the thread-pool backend, which starts them as needed. Default: 16.
    pub threads: u32,
    /// What the device keeps until every descriptor of it is closed, which a runtime's task may do some time
    /// after the device was dropped. Default: nothing.
    pub kept: Option<Kept>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            direct: DirectIo::default(),
            backend: Backend::default(),
            create: false,
            read_only: false,
            queue_depth: 128,
            reap: Reap::default(),
            threads: 16,
            kept: None,
        }
    }
}

/// An opened device, and which options took effect.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The device.
    pub device: SharedDevice,
    /// The backend in use: never [`Backend::Auto`].
    pub backend: Backend,
    /// Whether the page cache is bypassed.
    pub direct: bool,
    /// Whether it is a block device (not a regular file).
    pub block_device: bool,
    /// Why [`Backend::Auto`] did not select io_uring: cause and remedy.
    pub fallback: Option<String>,
}

/// The alignment of devices without direct I/O, in bytes.
const BUFFERED_ALIGNMENT: usize = 512;

/// The alignment for direct I/O if the kernel does not report one, in bytes.
const UNKNOWN_ALIGNMENT: usize = 4096;

/// The file system type of tmpfs in `statfs`.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Opens a regular file or a block device.
///
/// # Errors
/// [`DeviceErrorKind::Unusable`], which names the path and the remedy: the path is missing (and `create` is
/// off), is a directory or otherwise not a device, may not be opened, or does not support the required direct
/// I/O; or io_uring is required and not available.
pub fn open_file(path: &Path, options: &OpenOptions) -> Result<Opened, DeviceError> {
    let name: Arc<str> = path.display().to_string().into();
    open(path, &name, options).map_err(|why| {
        Spot { op: IoOp::Open, offset: 0, len: 0 }.error(&name, DeviceErrorKind::Unusable(why))
    })
}

fn open(path: &Path, name: &Arc<str>, options: &OpenOptions) -> Result<Opened, String> {
    let (fd, mut direct) = open_fd(path, options)?;
    let block_device = is_block_device(path, &fd)?;
    let mut alignment = BUFFERED_ALIGNMENT;
    if direct {
        match direct_alignment(&fd, block_device) {
            Some(found) => alignment = found,
            None if options.direct == DirectIo::Required => return Err(no_direct(path)),
            None => direct = false,
        }
    }
    let size = rustix::fs::seek(&fd, SeekFrom::End(0))
        .map_err(|errno| format!("{}: its size cannot be determined: {errno}", path.display()))?;
    if options.create && !block_device && size == 0 {
        // The file may have just been created: its name must be as durable as its contents.
        sync_parent(path)?;
    }
    if !options.read_only && !block_device {
        // A write to a file beyond the limit would end the process, even where the file exists already.
        check_file_bytes(size).map_err(|kind| format!("{}: it has {size} bytes: {kind}", path.display()))?;
    }
    let kept = options.kept.clone();
    let file = Arc::new(RawFile::new(fd, Arc::clone(name), alignment, block_device, size, kept));
    let (device, backend, fallback) = serve(file, options)?;
    Ok(Opened { device, backend, direct, block_device, fallback })
}

/// Makes the name `path` durable.
fn sync_parent(path: &Path) -> Result<(), String> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = std::fs::File::open(parent).and_then(|folder| folder.sync_all());
    synced.map_err(|error| format!("{}: its folder cannot be made durable: {error}", path.display()))
}

/// Opens the descriptor; says whether O_DIRECT is in force.
fn open_fd(path: &Path, options: &OpenOptions) -> Result<(OwnedFd, bool), String> {
    let mut flags = OFlags::CLOEXEC | if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if options.create && !options.read_only {
        flags |= OFlags::CREATE;
    }
    let try_open = |flags| loop {
        match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    };
    if options.direct != DirectIo::Disabled {
        match try_open(flags | OFlags::DIRECT) {
            Ok(fd) => return Ok((fd, true)),
            // A file system reports missing direct I/O this way.
            Err(Errno::INVAL) if options.direct == DirectIo::Required => return Err(no_direct(path)),
            Err(Errno::INVAL) => {}
            Err(errno) => return Err(cannot_open(path, options, errno)),
        }
    }
    try_open(flags).map(|fd| (fd, false)).map_err(|errno| cannot_open(path, options, errno))
}

fn cannot_open(path: &Path, options: &OpenOptions, errno: Errno) -> String {
    let path = path.display();
    let mode = if options.read_only { "read" } else { "read and written" };
    match errno {
        Errno::NOENT if options.create => format!("{path}: the folder does not exist; create it first"),
        Errno::NOENT => format!("{path}: does not exist; check the path, or create it first"),
        Errno::NOTDIR => format!("{path}: a part of the path is not a folder; check the path"),
        Errno::ISDIR => is_a_directory(&path),
        Errno::ACCESS | Errno::PERM => {
            format!("{path}: may not be {mode} by this user; check its owner and mode")
        }
        Errno::ROFS => format!("{path}: the file system is read-only; remount it, or use another one"),
        Errno::NXIO | Errno::NODEV => format!("{path}: there is no such device; check that it is attached"),
        Errno::BUSY => {
            format!("{path}: in use elsewhere (mounted, part of an array?); release it first")
        }
        Errno::TXTBSY => format!("{path}: is being executed or used as swap; use another file"),
        _ => format!("{path}: cannot be opened: {errno}"),
    }
}

fn is_a_directory(path: &std::path::Display<'_>) -> String {
    format!("{path}: is a directory; name a file in it, or a block device")
}

fn no_direct(path: &Path) -> String {
    format!(
        "{}: its file system has no direct I/O (O_DIRECT); use another one, such as ext4 or xfs, a block device, \
         or allow buffered I/O",
        path.display()
    )
}

fn is_block_device(path: &Path, fd: &OwnedFd) -> Result<bool, String> {
    let path = path.display();
    let stat = rustix::fs::fstat(fd).map_err(|errno| format!("{path}: cannot be examined: {errno}"))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(false),
        FileType::BlockDevice => Ok(true),
        FileType::Directory => Err(is_a_directory(&path)),
        _ => Err(format!("{path}: is neither a regular file nor a block device; name one")),
    }
}

/// The alignment for direct I/O; `None` when the file system accepts the flag but goes through the page
/// cache.
fn direct_alignment(fd: &OwnedFd, block_device: bool) -> Option<usize> {
    let asked = StatxFlags::DIOALIGN;
    if let Ok(stat) = rustix::fs::statx(fd, c"", rustix::fs::AtFlags::EMPTY_PATH, asked)
        && StatxFlags::from_bits_retain(stat.stx_mask).contains(asked)
    {
        let required = stat.stx_dio_mem_align.max(stat.stx_dio_offset_align) as usize;
        return (required > 0).then(|| required.next_power_of_two().max(BUFFERED_ALIGNMENT));
    }
    if block_device {
        let sector = rustix::fs::ioctl_blksszget(fd).unwrap_or(UNKNOWN_ALIGNMENT as u32) as usize;
        return Some(sector.next_power_of_two().max(BUFFERED_ALIGNMENT));
    }
    let kind = rustix::fs::fstatfs(fd).ok()?.f_type as u64;
    (kind != TMPFS_MAGIC).then_some(UNKNOWN_ALIGNMENT)
}

/// The device, its backend, and why it does not use io_uring although it was asked to.
type Served = (SharedDevice, Backend, Option<String>);

fn serve(file: Arc<RawFile>, options: &OpenOptions) -> Result<Served, String> {
    let threads = |file| Arc::new(FileDevice(ThreadPool::new(file, options.threads))) as SharedDevice;
    if options.backend == Backend::Threads {
        return Ok((threads(file), Backend::Threads, None));
    }
    let error = match Uring::new(&file, options) {
        Ok(uring) => return Ok((Arc::new(FileDevice(uring)), Backend::Uring, None)),
        Err(error) => error,
    };
    let why = why_no_uring(&error);
    if options.backend == Backend::Uring {
        return Err(format!("{}: {why}", file.meter.name));
    }
    tracing::warn!(device = %file.meter.name, cause = %why, "io_uring is not available; using a pool of threads");
    Ok((threads(file), Backend::Threads, Some(why)))
}

/// Describes cause and remedy.
fn why_no_uring(error: &io::Error) -> String {
    let remedy = match error.raw_os_error() {
        Some(libc::ENOSYS) => {
            "the kernel has no io_uring; use Linux 5.11 or later, or allow it in the container's seccomp profile"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "it is forbidden; allow it in the container's seccomp profile, or set kernel.io_uring_disabled=0 by sysctl"
        }
        Some(libc::ENOMEM) => {
            "the limit of locked memory is too low; raise it (ulimit -l, or LimitMEMLOCK= in the unit)"
        }
        Some(libc::EAGAIN) => "no thread can be started; raise the limit of threads (ulimit -u)",
        Some(libc::EMFILE | libc::ENFILE) => "too many open files; raise the limit (ulimit -n)",
        _ if error.kind() == io::ErrorKind::Unsupported => {
            "the kernel's io_uring is too old; use Linux 5.11 or later"
        }
        _ => "see the kernel's log",
    };
    format!("io_uring cannot be set up ({error}): {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_a_remedy() {
        let cases = [
            (libc::ENOSYS, "seccomp"),
            (libc::EPERM, "io_uring_disabled"),
            (libc::ENOMEM, "ulimit -l"),
            (libc::EMFILE, "ulimit -n"),
            (libc::EAGAIN, "ulimit -u"),
        ];
        for (errno, word) in cases {
            let why = why_no_uring(&io::Error::from_raw_os_error(errno));
            assert!(why.contains(word), "{why}");
        }
        assert!(why_no_uring(&io::ErrorKind::Unsupported.into()).contains("too old"));
    }
}
