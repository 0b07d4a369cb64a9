//! Directories that are held by descriptor, and paths that lead from them.
//!
//! A path is looked up anew at each use. Between two uses the process may change its working directory, and
//! the store's directory may be renamed, replaced, mounted over, or reached through a symbolic link that has
//! been switched: the same path then names another store's directory. So the store looks its directory up
//! once, when it is opened, and reaches every file in it through the descriptor (I40).

use crate::error::OpenError;
use crate::seam::Seam;
use pagetier_devio::{OpenOptions, Opened, open_file_at};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, StatFs};
use rustix::io::Errno;
use std::fs::File;
use std::io::Result;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory that stays the same one, whatever happens to its name.
#[derive(Debug)]
pub(crate) struct HeldDir {
    fd: OwnedFd,
    /// Its path when it was opened: for messages.
    path: PathBuf,
    seam: Seam,
}

impl HeldDir {
    /// Opens the directory at `path`. Requires no permission to list its files.
    pub(crate) fn open(path: &Path, seam: Seam) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { fd: rustix::fs::open(path, FOLDER, Mode::empty())?, path: path.to_owned(), seam }))
    }

    /// The working directory at this moment.
    pub(crate) fn working(seam: Seam) -> Result<Arc<Self>> {
        Self::open(Path::new("."), seam)
    }

    /// Its path when it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Calls `act` with the directory's descriptor.
    fn with<T>(&self, act: impl FnOnce(BorrowedFd<'_>) -> std::result::Result<T, Errno>) -> Result<T> {
        match self.seam.looked_up_again(&self.path) {
            Some(again) => Ok(act(rustix::fs::open(again, FOLDER, Mode::empty())?.as_fd())?),
            None => Ok(act(self.fd.as_fd())?),
        }
    }

    pub(crate) fn file(&self, name: impl AsRef<Path>, flags: OFlags) -> Result<File> {
        // For its owner alone: page contents and the manifest may be confidential.
        let mode = Mode::RUSR | Mode::WUSR;
        let open = |fd: BorrowedFd<'_>| rustix::fs::openat(fd, name.as_ref(), flags | OFlags::CLOEXEC, mode);
        self.with(open).map(File::from)
    }

    /// Renames a file to another name in this directory.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.with(|fd| rustix::fs::renameat(fd, from, fd, to))
    }

    /// Exchanges the names of two files.
    pub(crate) fn exchange(&self, one: &str, other: &str) -> Result<()> {
        self.with(|fd| rustix::fs::renameat_with(fd, one, fd, other, RenameFlags::EXCHANGE))
    }

    pub(crate) fn remove(&self, name: impl AsRef<Path>) -> Result<()> {
        self.with(|fd| rustix::fs::unlinkat(fd, name.as_ref(), AtFlags::empty()))
    }

    /// Makes the names in the directory durable.
    pub(crate) fn sync(&self) -> Result<()> {
        // The directory is held by an O_PATH descriptor, which cannot be flushed: open it for reading.
        self.file(".", OFlags::RDONLY | OFlags::DIRECTORY)?.sync_all()
    }

    /// The size of the file `name`, in bytes.
    pub(crate) fn size_of(&self, name: impl AsRef<Path>) -> Result<u64> {
        let stat = self.with(|fd| rustix::fs::statat(fd, name.as_ref(), AtFlags::empty()))?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// Which file `name` is; `None` if there is none.
    pub(crate) fn identity_of(&self, name: impl AsRef<Path>) -> Result<Option<Identity>> {
        match self.with(|fd| rustix::fs::statat(fd, name.as_ref(), AtFlags::empty())) {
            Ok(stat) => Ok(Some(Identity::of(&stat))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The file system that the directory is on.
    pub(crate) fn file_system(&self) -> Result<StatFs> {
        self.with(|fd| rustix::fs::fstatfs(fd))
    }
}

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A file or a block device, whatever its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Identity {
    /// File system and inode.
    File(u64, u64),
    /// The number of the device: several special files may lead to it.
    Block(u64),
}

impl Identity {
    pub(crate) fn of(stat: &rustix::fs::Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            // `/dev/sdb` and a link in `/dev/disk/by-id` are different inodes of one disk.
            FileType::BlockDevice => Self::Block(stat.st_rdev),
            _ => Self::File(stat.st_dev, stat.st_ino),
        }
    }
}

/// The path of a device, and the directory that it leads from.
#[derive(Clone, Debug)]
pub(crate) struct At {
    /// `None`: the path is absolute.
    folder: Option<Arc<HeldDir>>,
    path: PathBuf,
    /// What messages call it.
    pub(crate) shown: PathBuf,
}

impl At {
    /// A path of the embedder, relative to the directory that was the working directory at the opening.
    pub(crate) fn named(path: PathBuf, working: Option<&Arc<HeldDir>>) -> Self {
        // An absolute path needs no directory, and must not fail if the working directory is gone.
        let folder = working.filter(|_| path.is_relative()).cloned();
        Self { folder, shown: path.clone(), path }
    }

    /// A file in the store's directory.
    pub(crate) fn within(directory: &Arc<HeldDir>, name: &str) -> Self {
        let shown = directory.path().join(name);
        Self { folder: Some(Arc::clone(directory)), path: name.into(), shown }
    }

    /// Calls `act` with the directory and the path that leads from it.
    fn with<T>(
        &self,
        act: impl FnOnce(BorrowedFd<'_>, &Path) -> std::result::Result<T, Errno>,
    ) -> std::result::Result<T, Errno> {
        let Some(folder) = &self.folder else { return act(CWD, &self.path) };
        let done = folder.with(|fd| act(fd, &self.path));
        done.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    pub(crate) fn open_device(&self, options: &OpenOptions) -> std::result::Result<Opened, OpenError> {
        let name = self.shown.display().to_string();
        // Absolute: `CWD` is ignored by the kernel.
        let Some(folder) = &self.folder else { return Ok(open_file_at(CWD, &self.path, &name, options)?) };
        let failed = |e| OpenError::directory(folder.path(), "cannot be opened", e);
        let folder = folder.file(".", OFlags::PATH | OFlags::DIRECTORY).map_err(failed)?;
        Ok(open_file_at(folder, &self.path, &name, options)?)
    }

    /// The file system that the file is on.
    pub(crate) fn file_system(&self) -> Result<StatFs> {
        Ok(rustix::fs::fstatfs(self.open(OFlags::PATH)?)?)
    }

    pub(crate) fn open(&self, flags: OFlags) -> std::result::Result<OwnedFd, Errno> {
        self.with(|fd, path| rustix::fs::openat(fd, path, flags | OFlags::CLOEXEC, Mode::empty()))
    }

    pub(crate) fn stat(&self) -> std::result::Result<rustix::fs::Stat, Errno> {
        self.with(|fd, path| rustix::fs::statat(fd, path, AtFlags::empty()))
    }

    /// Which file or device is there; `None` if there is none, or none that can be examined.
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.stat().ok().as_ref().map(Identity::of)
    }

    /// Removes the file, if it is still this one and empty.
    pub(crate) fn remove_empty(&self, created: Identity) {
        // Between the opening and now, another process may have put a file of its own there, or this opening
        // may have written to it. Neither may be removed.
        let empty = self.stat().is_ok_and(|stat| stat.st_size == 0 && Identity::of(&stat) == created);
        if empty {
            let _ = self.with(|fd, path| rustix::fs::unlinkat(fd, path, AtFlags::empty()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(path: &Path) -> Arc<HeldDir> {
        HeldDir::open(path, Seam::default()).unwrap()
    }

    /// An opening that is refused takes back what it created, and no more than that.
    #[test]
    fn only_an_empty_file_that_is_still_the_same_one_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (at, path) = (At::within(&held(directory.path()), "hdd.vol"), directory.path().join("hdd.vol"));
        std::fs::write(&path, b"").unwrap();
        let created = at.identity().unwrap();
        // The opening, or another process, has put the file to use.
        std::fs::write(&path, b"data").unwrap();
        at.remove_empty(created);
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
        // Another process has put a file of its own there; ours still exists, so the two differ for certain.
        std::fs::write(&path, b"").unwrap();
        std::fs::rename(&path, directory.path().join("ours")).unwrap();
        std::fs::write(&path, b"").unwrap();
        at.remove_empty(created);
        assert!(path.exists());
        std::fs::rename(directory.path().join("ours"), &path).unwrap();
        at.remove_empty(created);
        assert!(!path.exists());
    }

    /// The kernel refuses to flush a directory of `/proc`: names that are not durable are not taken for
    /// durable ones.
    #[test]
    fn names_that_cannot_be_made_durable_are_an_error() {
        let directory = tempfile::tempdir().unwrap();
        held(directory.path()).sync().unwrap();
        held(Path::new("/proc")).sync().unwrap_err();
    }
}
