//! Directories that are held by descriptor, and paths that lead from them.
//!
//! The same path may name another store's directory later ([`pagetier_devio::files`] says how). So the store
//! looks its directory up once, when it is opened, and reaches every file in it through that (I40).

use crate::error::OpenError;
use pagetier_devio::files::{Access, DirFile, Directory, Identity, RealDir};
use pagetier_devio::{OpenOptions, Opened, open_file_at};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatFs};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory that stays the same one, whatever happens to its name.
#[derive(Debug)]
pub(crate) struct HeldDir {
    dir: Arc<dyn Directory>,
}

impl HeldDir {
    /// Opens the directory at `path`. Requires no permission to list its files.
    pub(crate) fn open(path: &Path) -> Result<Arc<Self>> {
        Ok(Self::on(Arc::new(RealDir::open(path)?)))
    }

    /// A directory that is open.
    pub(crate) fn on(dir: Arc<dyn Directory>) -> Arc<Self> {
        Arc::new(Self { dir })
    }

    /// The working directory at this moment.
    pub(crate) fn working() -> Result<Arc<Self>> {
        Self::open(Path::new("."))
    }

    /// Its path when it was opened.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Calls `act` with the directory's descriptor.
    fn with_fd<T>(&self, act: impl FnOnce(BorrowedFd<'_>) -> std::result::Result<T, Errno>) -> Result<T> {
        Ok(act(self.dir.fd().ok_or(ErrorKind::Unsupported)?)?)
    }

    /// Opens a file of the system, for what [`HeldDir::open_file`] does not offer.
    pub(crate) fn file(&self, name: impl AsRef<Path>, flags: OFlags) -> Result<File> {
        // For its owner alone: page contents and the manifest may be confidential.
        let mode = Mode::RUSR | Mode::WUSR;
        self.check_no_pipe(name.as_ref())?;
        let open = |fd: BorrowedFd<'_>| rustix::fs::openat(fd, name.as_ref(), flags | OFlags::CLOEXEC, mode);
        self.with_fd(open).map(File::from)
    }

    pub(crate) fn open_file(&self, name: impl AsRef<Path>, access: Access) -> Result<Box<dyn DirFile>> {
        self.check_no_pipe(name.as_ref())?;
        self.dir.open(name.as_ref(), access)
    }

    /// Refuses a pipe, whose open would wait for another process.
    fn check_no_pipe(&self, name: &Path) -> Result<()> {
        let found = self.with_fd(|fd| rustix::fs::statat(fd, name, AtFlags::empty()));
        match found.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::Fifo) => Err(Error::other(format!("{} is a pipe; remove it", name.display()))),
            // The open says what else is wrong.
            _ => Ok(()),
        }
    }

    /// Renames a file to another name in this directory.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.dir.rename(from.as_ref(), to.as_ref())
    }

    pub(crate) fn remove(&self, name: impl AsRef<Path>) -> Result<()> {
        self.dir.remove(name.as_ref())
    }

    /// Makes the names in the directory durable.
    pub(crate) fn sync(&self) -> Result<()> {
        self.dir.sync()
    }

    /// The size of the file `name`, in bytes.
    pub(crate) fn size_of(&self, name: impl AsRef<Path>) -> Result<u64> {
        self.dir.stat(name.as_ref())?.map(|stat| stat.len).ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// Which file `name` is; `None` if there is none.
    pub(crate) fn identity_of(&self, name: impl AsRef<Path>) -> Result<Option<Identity>> {
        Ok(self.dir.stat(name.as_ref())?.map(|stat| stat.id))
    }

    /// The file system that the directory is on.
    pub(crate) fn file_system(&self) -> Result<StatFs> {
        self.with_fd(|fd| rustix::fs::fstatfs(fd))
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
    /// A path of the embedder, relative to the directory that was the working directory at the open.
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
        let done = folder.with_fd(|fd| act(fd, &self.path));
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
        // Between the open and now, another process may have put a file of its own there, or this open
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
        HeldDir::open(path).unwrap()
    }

    /// An open that is refused takes back what it created, and no more than that.
    #[test]
    fn only_an_empty_file_that_is_still_the_same_one_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (at, path) = (At::within(&held(directory.path()), "hdd.vol"), directory.path().join("hdd.vol"));
        std::fs::write(&path, b"").unwrap();
        let created = at.identity().unwrap();
        // The open, or another process, has put the file to use.
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
}
