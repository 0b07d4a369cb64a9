//! Files, reached through the directory that has them.
//!
//! A path is looked up anew at each use. Between two uses the process may change its working directory, and a
//! directory may be renamed, replaced, mounted over, or reached through a symbolic link that has been
//! switched. So whatever keeps files for long looks their directory up once, and holds it ([`RealDir`]).
//!
//! Contents become durable by [`DirFile::sync`] alone, and names (of what was created, renamed or removed) by
//! [`Directory::sync`] alone. A test puts `SimFiles` in place of the system, which loses the rest when the
//! power is cut.

use crate::check_file_bytes;
use crate::process::owner::Owner;
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fmt::Debug;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How [`Directory::open`] opens a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// For reading; it exists.
    Read,
    /// For writing; it exists.
    Write,
    /// For writing; created, for its owner alone, if it does not exist.
    Create,
    /// As `Create`, and emptied.
    Replace,
}

/// A directory that stays the same one, whatever happens to its name. Paths lead from it, unless they are
/// absolute.
pub trait Directory: Debug + Send + Sync {
    /// Its path when it was opened: for messages.
    fn path(&self) -> &Path;

    /// Its descriptor, for what this trait does not offer. Default: a simulated one has none.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Opens a file.
    ///
    /// # Errors
    /// There is no such file, or the system's error.
    fn open(&self, file: &Path, access: Access) -> Result<Box<dyn DirFile>>;

    /// Opens a directory. Requires no permission to list its files.
    ///
    /// # Errors
    /// There is no such directory, or the system's error.
    fn directory(&self, path: &Path) -> Result<Arc<dyn Directory>>;

    /// Creates a directory.
    ///
    /// # Errors
    /// The name is taken, or the system's error.
    fn create_directory(&self, path: &Path) -> Result<()>;

    /// What has this name; `None`: nothing.
    ///
    /// # Errors
    /// The system's error.
    fn stat(&self, path: &Path) -> Result<Option<Stat>>;

    /// Whether anything has this name, a link that leads nowhere included.
    ///
    /// # Errors
    /// The system's error.
    fn has_name(&self, path: &Path) -> Result<bool>;

    /// The names in the directory, in any order.
    ///
    /// # Errors
    /// The system's error.
    fn names(&self) -> Result<Vec<OsString>>;

    /// Renames a file, which takes the place of another one, or a directory. Whole or not at all after a
    /// crash.
    ///
    /// # Errors
    /// The system's error: nothing has changed.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Removes a file's name.
    ///
    /// # Errors
    /// The system's error: nothing has changed.
    fn remove(&self, file: &Path) -> Result<()>;

    /// Removes a directory, which is empty.
    ///
    /// # Errors
    /// The system's error: nothing has changed.
    fn remove_directory(&self, path: &Path) -> Result<()>;

    /// Makes the names in the directory durable.
    ///
    /// # Errors
    /// The system's error. A later call may succeed without making durable what this one has not, unless a
    /// name in the directory has changed since.
    fn sync(&self) -> Result<()>;
}

/// An open file of a [`Directory`].
pub trait DirFile: Debug + Send + Sync {
    /// Reads at a position; returns the number of bytes, 0 at the end.
    ///
    /// # Errors
    /// The system's error.
    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize>;

    /// The bytes from a position to the end.
    ///
    /// # Errors
    /// The system's error.
    fn read_from(&self, at: u64) -> Result<Vec<u8>> {
        self.read_part(at, usize::MAX)
    }

    /// The same, but no more than `most` bytes.
    ///
    /// # Errors
    /// The system's error.
    fn read_part(&self, at: u64, most: usize) -> Result<Vec<u8>> {
        let (mut bytes, mut end) = (Vec::new(), 0);
        while end < most {
            // Grown as it is read: a length that the file claims is not trusted.
            bytes.resize((end + (64 << 10).max(end)).min(most), 0);
            match self.read_at(at + end as u64, &mut bytes[end..]) {
                Ok(0) => break,
                Ok(read) => end += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(end);
        Ok(bytes)
    }

    /// Writes all of `bytes` at a position. Positions are the caller's, because a forked process shares the
    /// one that a file has.
    ///
    /// # Errors
    /// The system's error. Any part may have been written.
    fn write_at(&self, at: u64, bytes: &[u8]) -> Result<()>;

    /// Cuts the file off, or extends it with zeroes. Space beyond the end is given up.
    ///
    /// # Errors
    /// The system's error.
    fn set_len(&self, bytes: u64) -> Result<()>;

    /// Gives the file room for its first `bytes`, its end unchanged.
    ///
    /// # Errors
    /// There is no room, or the file system sets none aside.
    fn allocate(&self, bytes: u64) -> Result<()>;

    /// Makes the contents, the length and the metadata durable, not the name.
    ///
    /// # Errors
    /// The system's error. A later call may succeed without making durable what this one has not: that must
    /// be written again.
    fn sync(&self) -> Result<()>;

    /// As [`DirFile::sync`], without metadata that reading does not need.
    ///
    /// # Errors
    /// As [`DirFile::sync`].
    fn sync_data(&self) -> Result<()> {
        self.sync()
    }

    /// Which file it is, and its size.
    ///
    /// # Errors
    /// The system's error.
    fn stat(&self) -> Result<Stat>;

    /// Locks the file until this value is dropped; returns false if another one has it locked. The lock
    /// belongs to this process: a forked one that drops its copy does not release it.
    ///
    /// # Errors
    /// The system's error, as where the file system has no locks.
    fn try_lock(&mut self) -> Result<bool>;

    /// The system's file, for what this trait does not offer; `None`: it is simulated.
    fn as_file(&self) -> Option<&File>;
}

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Which file it is.
    pub id: Identity,
    /// The length in bytes.
    pub len: u64,
    /// The bytes that it takes on the disk, with space set aside.
    pub allocated: u64,
}

impl Stat {
    fn of(stat: &rustix::fs::Stat) -> Self {
        let unsigned = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
        Self {
            id: Identity::of(stat),
            len: unsigned(stat.st_size),
            allocated: 512 * unsigned(stat.st_blocks),
        }
    }
}

/// A file or a block device, whatever its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Identity {
    /// File system and inode.
    File(u64, u64),
    /// The number of the device: several special files may lead to it.
    Block(u64),
}

impl Identity {
    /// The file that `stat` describes.
    #[must_use]
    pub fn of(stat: &rustix::fs::Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            // `/dev/sdb` and a link in `/dev/disk/by-id` are different inodes of one disk.
            FileType::BlockDevice => Self::Block(stat.st_rdev),
            _ => Self::File(stat.st_dev, stat.st_ino),
        }
    }
}

/// A directory of the system, held by its descriptor.
#[derive(Debug)]
pub struct RealDir {
    /// `None`: the working directory at each use, for absolute paths, and paths that are used once.
    fd: Option<OwnedFd>,
    path: PathBuf,
}

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl RealDir {
    /// Opens the directory at `path`. Requires no permission to list its files.
    ///
    /// # Errors
    /// There is no such directory, or the system's error.
    pub fn open(path: &Path) -> Result<Self> {
        Self::working().at(path)
    }

    /// The working directory at each use: for absolute paths, and paths that are used once.
    #[must_use]
    pub fn working() -> Self {
        Self { fd: None, path: PathBuf::new() }
    }

    fn at(&self, path: &Path) -> Result<Self> {
        let fd = rustix::fs::openat(self.base(), path, FOLDER, Mode::empty())?;
        Ok(Self { fd: Some(fd), path: self.path.join(path) })
    }

    fn base(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().map_or(CWD, AsFd::as_fd)
    }

    /// Opens the directory itself for reading: the descriptor that holds it can be neither flushed nor
    /// listed.
    fn readable(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(self.base(), ".", flags, Mode::empty())?)
    }
}

impl Directory for RealDir {
    fn path(&self) -> &Path {
        &self.path
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.base())
    }

    fn open(&self, file: &Path, access: Access) -> Result<Box<dyn DirFile>> {
        let flags = match access {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::RDWR,
            Access::Create => OFlags::RDWR | OFlags::CREATE,
            Access::Replace => OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC,
        };
        // For its owner alone: pages, records and the manifest may be confidential.
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = rustix::fs::openat(self.base(), file, flags | OFlags::CLOEXEC, mode)?;
        Ok(Box::new(RealFile { file: fd.into(), locked_by: None }))
    }

    fn directory(&self, path: &Path) -> Result<Arc<dyn Directory>> {
        Ok(Arc::new(self.at(path)?))
    }

    fn create_directory(&self, path: &Path) -> Result<()> {
        Ok(rustix::fs::mkdirat(self.base(), path, Mode::RWXU | Mode::RWXG | Mode::RWXO)?)
    }

    fn stat(&self, path: &Path) -> Result<Option<Stat>> {
        match rustix::fs::statat(self.base(), path, AtFlags::empty()) {
            Ok(stat) => Ok(Some(Stat::of(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn has_name(&self, path: &Path) -> Result<bool> {
        match rustix::fs::statat(self.base(), path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn names(&self) -> Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(self.readable()?)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(std::ffi::OsStr::from_bytes(name).to_owned());
            }
        }
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        Ok(rustix::fs::renameat(self.base(), from, self.base(), to)?)
    }

    fn remove(&self, file: &Path) -> Result<()> {
        Ok(rustix::fs::unlinkat(self.base(), file, AtFlags::empty())?)
    }

    fn remove_directory(&self, path: &Path) -> Result<()> {
        Ok(rustix::fs::unlinkat(self.base(), path, AtFlags::REMOVEDIR)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(rustix::fs::fsync(self.readable()?)?)
    }
}

/// A file of the system.
#[derive(Debug)]
struct RealFile {
    file: File,
    locked_by: Option<Owner>,
}

impl DirFile for RealFile {
    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        self.file.read_at(into, at)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> Result<()> {
        // The kernel would answer a write beyond the limit with a signal that ends the process.
        check_file_bytes(at + bytes.len() as u64).map_err(Error::other)?;
        match self.file.write_all_at(bytes, at) {
            // A pipe takes what comes in order.
            Err(error) if error.raw_os_error() == Some(Errno::SPIPE.raw_os_error()) => {
                std::io::Write::write_all(&mut &self.file, bytes)
            }
            written => written,
        }
    }

    fn set_len(&self, bytes: u64) -> Result<()> {
        check_file_bytes(bytes).map_err(Error::other)?;
        self.file.set_len(bytes)
    }

    fn allocate(&self, bytes: u64) -> Result<()> {
        check_file_bytes(bytes).map_err(Error::other)?;
        Ok(rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, bytes)?)
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_all()
    }

    fn sync_data(&self) -> Result<()> {
        self.file.sync_data()
    }

    fn stat(&self) -> Result<Stat> {
        Ok(Stat::of(&rustix::fs::fstat(&self.file)?))
    }

    fn try_lock(&mut self) -> Result<bool> {
        match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                self.locked_by = Some(Owner::here());
                Ok(true)
            }
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn as_file(&self) -> Option<&File> {
        Some(&self.file)
    }
}

impl Drop for RealFile {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that another thread starts shares it until it runs
        // its program.
        if self.locked_by.is_some_and(|owner| owner.is_here()) {
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        }
    }
}

/// Creates the directory `path`, which leads from `base`, and its missing parents durably. Returns those that
/// did not exist, the innermost last.
///
/// A synced file is lost with its directory if the directory's own name is not durable, and a directory that
/// can be seen after a kill or a failed sync is not necessarily durable. So (1) the parent of a new directory
/// is synced before anything is created in that directory: of the existing directories, only the innermost
/// may be volatile; (2) the next attempt syncs the parent of that one again.
///
/// # Errors
/// The system's error. Outer directories may have been created.
pub fn create_durably(base: &dyn Directory, path: &Path) -> Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    create_in(base, path, &mut made)?;
    Ok(made)
}

fn create_in(base: &dyn Directory, path: &Path, all: &mut Vec<PathBuf>) -> Result<()> {
    let here = Path::new(".");
    let Some(parent) = path.parent().map(|parent| if parent.as_os_str().is_empty() { here } else { parent })
    else {
        return Ok(());
    };
    let sync = || base.directory(parent)?.sync();
    if matches!(base.stat(path), Ok(Some(_))) {
        // It exists, but perhaps only in the kernel's cache: a process that was killed made it and did not
        // sync.
        return match sync() {
            // Another user's directory: this process could not have synced it.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
            synced => synced,
        };
    }
    create_in(base, parent, all)?;
    match base.create_directory(path) {
        // Another process was faster. It is not ours to remove.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => {
            made?;
            all.push(path.to_owned());
            return sync().inspect_err(|_| {
                // The next sync may succeed without writing what this one has not: the next attempt must find
                // no directory, and make the name anew.
                let _ = base.remove_directory(path);
            });
        }
    }
    sync()
}

/// The path beside `path` that has `suffix` at the end of its last name, and `path` without a slash at its
/// end, behind which a suffix would name a file in the directory. Both are absolute. `None`: it has no last
/// name.
///
/// # Errors
/// The working directory is gone.
pub fn beside(path: &Path, suffix: &str) -> Result<Option<(PathBuf, PathBuf)>> {
    let path: PathBuf = std::path::absolute(path)?.components().collect();
    let Some(name) = path.file_name() else { return Ok(None) };
    let mut name = name.to_owned();
    name.push(suffix);
    Ok(Some((path.with_file_name(name), path)))
}

impl Owner {
    /// Refuses what a process does that was forked from this one: it shares the files of its parent, which
    /// goes on to use them.
    ///
    /// # Errors
    /// [`DeviceErrorKind::Forked`](crate::DeviceErrorKind::Forked), as the source.
    pub fn check(&self) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(Error::other(self.refusal())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_that_are_missing_are_made_and_those_that_are_there_accepted() {
        let temporary = tempfile::tempdir().unwrap();
        let base = RealDir::working();
        let dir = temporary.path().join("a/b/c");
        let made = ["a", "a/b", "a/b/c"].map(|name| temporary.path().join(name));
        assert_eq!(create_durably(&base, &dir).unwrap(), made, "a refused open removes these");
        assert!(dir.is_dir());
        assert!(create_durably(&base, &dir).unwrap().is_empty());
        create_durably(&base, Path::new("/")).unwrap();
        let file = temporary.path().join("file");
        File::create(&file).unwrap();
        assert!(create_durably(&base, &file.join("below")).is_err());
    }

    /// The kernel refuses to flush a directory of `/proc`: names that are not durable are not taken for
    /// durable ones.
    #[test]
    fn names_that_cannot_be_made_durable_are_an_error() {
        let directory = tempfile::tempdir().unwrap();
        RealDir::open(directory.path()).unwrap().sync().unwrap();
        RealDir::open(Path::new("/proc")).unwrap().sync().unwrap_err();
    }

    #[test]
    fn a_dropped_lock_is_free_while_a_starting_child_process_shares_its_file() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = RealDir::open(temporary.path()).unwrap();
        let open = || dir.open(Path::new("lock"), Access::Create).unwrap();
        let (mut held, mut other) = (open(), open());
        assert!(held.try_lock().unwrap() && !other.try_lock().unwrap());
        // A child process shares open files until it runs its program.
        let shared = held.as_file().unwrap().try_clone().unwrap();
        drop(held);
        assert!(other.try_lock().unwrap());
        drop(shared);
    }

    #[test]
    fn a_name_beside_a_path_is_beside_it_also_with_a_slash_at_its_end() {
        let (partial, path) = beside(Path::new("/a/b/./"), ".partial").unwrap().unwrap();
        assert_eq!((partial, path), ("/a/b.partial".into(), "/a/b".into()));
        assert!(beside(Path::new("b/"), "").unwrap().unwrap().0.is_absolute());
        assert_eq!(beside(Path::new("/"), ".partial").unwrap(), None);
    }
}
