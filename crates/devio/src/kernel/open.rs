//! Opening a file or block device: selects the backend, decides on direct I/O, and explains each fallback.

use crate::duties::check::Spot;
use crate::kernel::file::{FileDevice, RawFile};
use crate::kernel::threads::ThreadPool;
use crate::kernel::uring::Uring;
use crate::process::limits::check_file_bytes;
use crate::{Backend, DeviceError, DeviceErrorKind, DirectIo, IoOp, OpenOptions, SharedDevice};
use rustix::fs::{CWD, FileType, IFlags, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// An opened device, and which options took effect.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The device, ready for operations.
    pub device: SharedDevice,
    /// The backend in use: never [`Backend::Auto`].
    pub backend: Backend,
    /// Whether the page cache is bypassed.
    pub direct: bool,
    /// Whether it is a block device (not a regular file).
    pub block_device: bool,
    /// Whether the file did not exist before.
    pub created: bool,
    /// Why [`Backend::Auto`] did not select io_uring: cause and remedy.
    pub fallback: Option<String>,
}

/// The alignment of devices without direct I/O, in bytes.
const BUFFERED_ALIGNMENT: usize = 512;

/// The alignment for direct I/O if the kernel does not report one, in bytes.
const UNKNOWN_ALIGNMENT: usize = 4096;

/// The file system types of tmpfs and btrfs in `statfs`.
const TMPFS_MAGIC: u64 = 0x0102_1994;
const XFS_MAGIC: u64 = 0x5846_5342;
const BTRFS_MAGIC: u64 = 0x9123_683e;

/// What to open: a path that leads from an open folder, and its name in errors.
#[derive(Clone, Copy)]
struct Spec<'a> {
    folder: BorrowedFd<'a>,
    path: &'a Path,
    name: &'a str,
}

impl fmt::Display for Spec<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Opens a regular file or a block device.
///
/// # Errors
/// [`DeviceErrorKind::Unusable`], which names the path and the remedy: the path is missing (and `create` is
/// off), is a directory or otherwise not a device, may not be opened, or does not support the required direct
/// I/O; or io_uring is required and not available.
pub fn open_file(path: &Path, options: &OpenOptions) -> Result<Opened, DeviceError> {
    open_file_at(CWD, path, &path.display().to_string(), options)
}

/// Opens a regular file or a block device at `path`, which leads from the open `folder` unless it is
/// absolute. The device is called `name`.
///
/// # Errors
/// As [`open_file`].
pub fn open_file_at(
    folder: impl AsFd,
    path: &Path,
    name: &str,
    options: &OpenOptions,
) -> Result<Opened, DeviceError> {
    let spec = Spec { folder: folder.as_fd(), path, name };
    open(spec, options).map_err(|why| {
        Spot { op: IoOp::Open, offset: 0, len: 0 }.error(&Arc::from(name), DeviceErrorKind::Unusable(why))
    })
}

/// Has btrfs overwrite the blocks of an empty file in place. Otherwise every overwrite needs free blocks for
/// a copy, which a full disk does not have. The file loses the file system's checksums, for which the callers
/// have their own. Does nothing on other file systems.
pub fn overwrite_in_place(file: impl AsFd) {
    if let Some(flags) = copied_on_write(&file)
        && let Err(error) = rustix::fs::ioctl_setflags(&file, flags | IFlags::NOCOW)
    {
        tracing::warn!(%error, "btrfs will copy blocks that are overwritten: that needs free space");
    }
}

/// The flags of a file on btrfs whose blocks are copied when they are overwritten.
fn copied_on_write(file: impl AsFd) -> Option<IFlags> {
    let is_btrfs = rustix::fs::fstatfs(&file).is_ok_and(|system| system.f_type as u64 == BTRFS_MAGIC);
    let flags = is_btrfs.then(|| rustix::fs::ioctl_getflags(&file).ok())?;
    flags.filter(|flags| !flags.contains(IFlags::NOCOW))
}

fn open(path: Spec<'_>, options: &OpenOptions) -> Result<Opened, String> {
    // Create the file by a call of its own. An open that may create does not say whether it did, and a store
    // that created its files may remove them after a failure.
    let created = options.create && !options.read_only && create(path);
    let (fd, mut direct) = open_fd(path, options)?;
    let block_device = is_block_device(path, &fd)?;
    // Only the open must not wait: io_uring would return operations on such a descriptor undone.
    rustix::fs::fcntl_getfl(&fd)
        .and_then(|flags| rustix::fs::fcntl_setfl(&fd, flags.difference(OFlags::NONBLOCK)))
        .map_err(|errno| format!("{path}: cannot be examined: {errno}"))?;
    let mut alignment = BUFFERED_ALIGNMENT;
    if direct {
        match direct_alignment(&fd, block_device) {
            Some(found) => alignment = found,
            None if options.direct == DirectIo::Required => return Err(no_direct(path)),
            None => direct = false,
        }
    }
    // A seek works for block devices, too, whose `stat` says 0.
    let size = rustix::fs::seek(&fd, SeekFrom::End(0))
        .map_err(|errno| format!("{path}: its size cannot be determined: {errno}"))?;
    if options.create && !block_device && size == 0 {
        overwrite_in_place(&fd);
        // The file may have just been created: its name must be as durable as its contents.
        sync_parent(path)?;
    } else if !block_device && !options.read_only && copied_on_write(&fd).is_some() {
        tracing::warn!(
            file = %path,
            "btrfs copies blocks of this file that are overwritten, which needs free space: copy it into an \
             empty file that was created with `chattr +C`"
        );
    }
    if !options.read_only && !block_device {
        // A write to a file beyond the limit would end the process, even where the file exists already.
        check_file_bytes(size).map_err(|kind| format!("{path}: it has {size} bytes: {kind}"))?;
    }
    let units = if direct { whole_units(&fd) } else { None };
    let (name, kept) = (Arc::from(path.name), options.kept.clone());
    let mut file = RawFile::new(fd, name, alignment, block_device, size, kept);
    file.units = units;
    let (device, backend, fallback) = serve(Arc::new(file), options)?;
    Ok(Opened { device, backend, direct, block_device, created, fallback })
}

/// Makes the name of `at` durable.
fn sync_parent(at: Spec<'_>) -> Result<(), String> {
    let parent = at.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let opened = rustix::fs::openat(at.folder, parent, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let synced = opened.map_err(io::Error::from).and_then(|folder| std::fs::File::from(folder).sync_all());
    synced.map_err(|error| format!("{at}: its folder cannot be made durable: {error}"))
}

/// Creates the file if it does not exist; returns whether it did. A failure is left to the open, which
/// explains it.
fn create(at: Spec<'_>) -> bool {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::openat(at.folder, at.path, flags, Mode::RUSR | Mode::WUSR).is_ok()
}

/// Opens the descriptor; says whether O_DIRECT is in force.
fn open_fd(path: Spec<'_>, options: &OpenOptions) -> Result<(OwnedFd, bool), String> {
    // Otherwise the open of a FIFO, or of a file with a lease, waits for another process, and a running
    // store with it.
    let mut flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
    flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if options.create && !options.read_only {
        flags |= OFlags::CREATE;
    }
    let try_open = |flags| loop {
        match rustix::fs::openat(path.folder, path.path, flags, Mode::RUSR | Mode::WUSR) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    };
    if options.direct != DirectIo::Disabled {
        // Ask the file itself: no list of file systems would stay right.
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

fn cannot_open(path: Spec<'_>, options: &OpenOptions, errno: Errno) -> String {
    let names_folder = path.path.as_os_str().as_encoded_bytes().ends_with(b"/");
    let mode = if options.read_only { "read" } else { "read and written" };
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::ISDIR if names_folder => {
            format!("{path}: a path that ends with a slash names a directory; name a file, or a block device")
        }
        Errno::NOENT if options.create => format!("{path}: the folder does not exist; create it first"),
        Errno::NOENT => format!("{path}: does not exist; check the path, or create it first"),
        Errno::NOTDIR => format!("{path}: a part of the path is not a folder; check the path"),
        Errno::ISDIR => is_a_directory(path),
        Errno::ACCESS | Errno::PERM => {
            format!("{path}: may not be {mode} by this user; check its owner and mode")
        }
        Errno::ROFS => format!("{path}: the file system is read-only; remount it, or use another one"),
        Errno::NXIO | Errno::NODEV => format!("{path}: there is no such device; check that it is attached"),
        Errno::BUSY => {
            format!("{path}: in use elsewhere (mounted, part of an array?); release it first")
        }
        Errno::AGAIN => format!("{path}: another program holds a lease on it; release it first"),
        Errno::TXTBSY => format!("{path}: is being executed or used as swap; use another file"),
        _ => format!("{path}: cannot be opened: {errno}"),
    }
}

fn is_a_directory(path: Spec<'_>) -> String {
    format!("{path}: is a directory; name a file in it, or a block device")
}

fn no_direct(path: Spec<'_>) -> String {
    format!(
        "{path}: its file system has no direct I/O (O_DIRECT); use another one, such as ext4 or xfs, a block device, \
         or allow buffered I/O"
    )
}

fn is_block_device(path: Spec<'_>, fd: &OwnedFd) -> Result<bool, String> {
    let stat = rustix::fs::fstat(fd).map_err(|errno| format!("{path}: cannot be examined: {errno}"))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(false),
        FileType::BlockDevice => Ok(true),
        FileType::Directory => Err(is_a_directory(path)),
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
        // Zero: the kernel says that this file has no direct I/O, for example because its data is
        // journalled.
        return (required > 0).then(|| required.next_power_of_two().max(BUFFERED_ALIGNMENT));
    }
    if block_device {
        // A kernel before 6.1 does not say: the sector size of a block device is exact, 4 KiB for a file
        // on the safe side.
        let sector = rustix::fs::ioctl_blksszget(fd).unwrap_or(UNKNOWN_ALIGNMENT as u32) as usize;
        return Some(sector.next_power_of_two().max(BUFFERED_ALIGNMENT));
    }
    let kind = rustix::fs::fstatfs(fd).ok()?.f_type as u64;
    // tmpfs accepts the flag from Linux 6.6 on, and has nothing to bypass.
    (kind != TMPFS_MAGIC).then_some(UNKNOWN_ALIGNMENT)
}

/// The smallest and the largest size that the system writes whole (RWF_ATOMIC), if it does.
fn whole_units(fd: &OwnedFd) -> Option<(usize, usize)> {
    let asked = StatxFlags::from_bits_retain(libc::STATX_WRITE_ATOMIC);
    let stat = rustix::fs::statx(fd, c"", rustix::fs::AtFlags::EMPTY_PATH, asked).ok()?;
    if !StatxFlags::from_bits_retain(stat.stx_mask).contains(asked) {
        return None;
    }
    let units =
        [stat.stx_atomic_write_unit_min, stat.stx_atomic_write_unit_max, stat.stx_atomic_write_unit_max_opt];
    let on_xfs = rustix::fs::fstatfs(fd).ok()?.f_type as u64 == XFS_MAGIC;
    units_offered(units.map(|unit| unit as usize), on_xfs)
}

/// The smallest and the largest unit to offer, given the smallest, the largest, and the largest that costs no
/// more than an ordinary write (0: not stated).
fn units_offered([min, max, optimal]: [usize; 3], on_xfs: bool) -> Option<(usize, usize)> {
    // Above the optimum xfs writes to other blocks and exchanges them, which costs more than a ring, and
    // needs free space. Where it states none, the disk keeps nothing whole.
    let max = if optimal > 0 || on_xfs { optimal } else { max };
    (min > 0 && max >= min).then_some((min, max))
}

/// The device, its backend, and why it does not use io_uring although it was asked to.
type Served = (SharedDevice, Backend, Option<String>);

fn serve(file: Arc<RawFile>, options: &OpenOptions) -> Result<Served, String> {
    let threads =
        |file| Arc::new(FileDevice(Arc::new(ThreadPool::new(file, options.threads)))) as SharedDevice;
    if options.backend == Backend::Threads {
        return Ok((threads(file), Backend::Threads, None));
    }
    let error = match Uring::new(&file, options) {
        Ok(uring) => return Ok((Arc::new(FileDevice(Arc::new(uring))), Backend::Uring, None)),
        Err(error) => error,
    };
    let why = why_no_uring(&error);
    if options.backend == Backend::Uring {
        return Err(format!("{}: {why}", file.meter.name));
    }
    // A warning: the operator should know why a fast SSD serves fewer operations than it could.
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
    fn units_are_offered_where_they_cost_no_more_than_another_write() {
        let nvme = units_offered([512, 131_072, 0], false);
        assert_eq!(nvme, Some((512, 131_072)), "a block device, or ext4 with bigalloc");
        assert_eq!(units_offered([4096, 4 << 20, 0], true), None, "xfs over a disk that keeps nothing whole");
        assert_eq!(units_offered([4096, 4 << 20, 16384], true), Some((4096, 16384)), "over one that does");
        assert_eq!(units_offered([0; 3], false), None);
    }

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
