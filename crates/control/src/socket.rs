//! The socket's file: its place, its mode, and when an old one may be replaced.
//!
//! The file is reached through a descriptor of the directory (`/proc/self/fd`), so that neither the length of
//! the path matters, of which the kernel takes 107 bytes, nor a directory that is renamed meanwhile.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use tokio::net::{UnixListener, UnixSocket, UnixStream};

/// The name of the socket in the store's directory.
pub const SOCKET: &str = "control";

/// Connections that the kernel holds until they are taken.
const BACKLOG: u32 = 16;

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// A file that is no socket has its name. It is left as it is.
    #[error("{path}: there is a file that is no socket; move it away", path = .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A living process listens there.
    #[error("{path}: process {pid} listens there", path = .path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
        /// The process; 0 if it is not visible from here, as one of another container.
        pid: u32,
    },
    /// The socket cannot be made.
    #[error("{path}: the control socket cannot be made", path = .path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The directory that a socket is in, by a descriptor.
#[derive(Debug)]
pub(crate) struct Place(OwnedFd);

impl Place {
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::openat(CWD, dir, flags, Mode::empty())?))
    }

    /// A short path to the socket, valid in this process while this exists.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", self.0.as_raw_fd()))
    }

    pub(crate) async fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect(self.path()).await
    }

    /// What has the socket's name; `None`: nothing.
    fn found(&self) -> io::Result<Option<rustix::fs::Stat>> {
        // Not through a link, which could lead to a socket elsewhere.
        match rustix::fs::statat(&self.0, SOCKET, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn remove(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, SOCKET, AtFlags::empty())?)
    }

    /// The process that listens at the socket, if it lives. The socket of a process that was killed stays as
    /// a file; connecting to it is refused.
    async fn listener(&self) -> io::Result<Option<u32>> {
        let stream = match self.connect().await {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            // So many wait that it takes no more: it lives.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Some(0)),
            Err(error) => return Err(error),
        };
        // A child that was forked keeps its parent's socket open and never answers. The kernel names the
        // process that called `listen`: if that is dead, nothing serves.
        let pid = stream.peer_cred()?.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
        Ok((pid == 0 || Path::new("/proc").join(pid.to_string()).exists()).then_some(pid))
    }
}

/// The file of a listening socket, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Bound {
    place: Place,
    inode: (u64, u64),
    /// The process that listens. One that was forked from it must not remove the file.
    pid: u32,
}

impl Drop for Bound {
    fn drop(&mut self) {
        let mine =
            || self.place.found().is_ok_and(|found| found.map(|s| (s.st_dev, s.st_ino)) == Some(self.inode));
        // Another process may have put its own in place: this store was closed, and its directory is opened.
        if self.pid == std::process::id() && mine() {
            let _ = self.place.remove();
        }
    }
}

/// Listens at the socket in `dir`, whose store the caller has open.
pub(crate) async fn bind(dir: &Path) -> Result<(UnixListener, Bound), ListenError> {
    let path = dir.join(SOCKET);
    let failed = |source| ListenError::Io { path: path.clone(), source };
    let place = Place::open(dir).map_err(failed)?;
    if let Some(found) = place.found().map_err(failed)? {
        if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
            return Err(ListenError::Foreign { path });
        }
        if let Some(pid) = place.listener().await.map_err(failed)? {
            return Err(ListenError::InUse { path, pid });
        }
        // Left by a process that was killed.
        place.remove().map_err(failed)?;
    }
    let made = || {
        let socket = UnixSocket::new_stream()?;
        // Before the file exists, which takes its mode from the socket: a mode that is set afterwards would
        // come too late for a client that was quick. The process's umask can only take away more.
        rustix::fs::fchmod(socket.as_fd(), Mode::RUSR | Mode::WUSR)?;
        socket.bind(place.path())?;
        let found = place.found()?.ok_or(io::ErrorKind::NotFound)?;
        Ok::<_, io::Error>((socket.listen(BACKLOG)?, (found.st_dev, found.st_ino)))
    };
    let (listener, inode) = made().map_err(failed)?;
    Ok((listener, Bound { place, inode, pid: std::process::id() }))
}
