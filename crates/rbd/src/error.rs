//! Errors of connecting and opening, and librbd's codes as those of a device.

use libc::c_int;
use pagetier_devio::DeviceErrorKind;
use std::io;
use std::sync::Arc;

/// A cluster cannot be reached, or an image cannot be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RbdError {
    /// Not the name of an image.
    #[error("{0:?} names no image; the form is POOL/IMAGE or POOL/NAMESPACE/IMAGE, with @SNAPSHOT to read")]
    Name(String),
    /// The configuration cannot be read, or a setting in it is invalid.
    #[error("cannot read Ceph's configuration")]
    Configuration(#[source] io::Error),
    /// The monitors cannot be reached, or refuse this client.
    #[error("cannot connect to the Ceph cluster")]
    Connect(#[source] io::Error),
    /// There is no such pool, or this client may not use it.
    #[error("cannot use the pool {pool}")]
    Pool {
        /// The pool.
        pool: String,
        /// What the cluster said.
        source: io::Error,
    },
    /// There is no such image.
    #[error("there is no image {0}; create it first")]
    NotFound(String),
    /// Another client has the image open.
    #[error(
        "{image} is open already, by {owner}; a lock whose owner has crashed lapses after 30 s, and taking the \
         image over excludes an owner that is alive"
    )]
    AlreadyOpen {
        /// The image.
        image: String,
        /// What the owner said of itself, and its address.
        owner: String,
    },
    /// Another client has the image open, which was to be read.
    #[error("{image} is open, by {owner}; a snapshot of it can be read meanwhile")]
    InUse {
        /// The image.
        image: String,
        /// As above.
        owner: String,
    },
    /// A snapshot was to be opened as an owner does.
    #[error("{0} is a snapshot, which can only be read; a clone of it can be written")]
    Snapshot(String),
    /// The image has no exclusive lock, without which it cannot be guarded against a second owner.
    #[error("{0} lacks Ceph's feature exclusive-lock; enable it")]
    NoLock(String),
    /// An operation on the image failed.
    #[error("{image}: cannot {what}")]
    Image {
        /// The image.
        image: String,
        /// What was tried.
        what: &'static str,
        /// What the cluster said.
        source: io::Error,
    },
}

/// The error of a change of an image that was opened for reading.
pub(crate) fn read_only() -> DeviceErrorKind {
    DeviceErrorKind::Io(Arc::new(io::ErrorKind::ReadOnlyFilesystem.into()))
}

/// A result of librbd or librados: negative values are errors.
pub(crate) fn checked(code: c_int) -> Result<c_int, io::Error> {
    if code < 0 { Err(io::Error::from_raw_os_error(-code)) } else { Ok(code) }
}

/// The error of an operation that ended with the positive error number `errno`.
pub(crate) fn kind_of(errno: c_int) -> DeviceErrorKind {
    match errno {
        // ESHUTDOWN is Ceph's EBLOCKLISTED: the connection is banned. EROFS: the lock is another's.
        libc::ESHUTDOWN | libc::EROFS => DeviceErrorKind::Fenced,
        libc::ENOSPC | libc::EDQUOT => DeviceErrorKind::NoSpace,
        libc::EINVAL => {
            let why = format!(
                "{}; so the cluster says once the image has become shorter, or has lost its feature \
                 exclusive-lock, while it was open",
                io::Error::from_raw_os_error(libc::EINVAL)
            );
            DeviceErrorKind::Io(Arc::new(io::Error::new(io::ErrorKind::InvalidInput, why)))
        }
        // The image or its pool was removed.
        libc::ENOENT | libc::ENODEV | libc::ENXIO => DeviceErrorKind::Gone,
        errno => DeviceErrorKind::Io(Arc::new(io::Error::from_raw_os_error(errno))),
    }
}
