//! The medium of a manifest's two areas: the HDD behind its superblock, or a file of the store's directory.

use super::file::ManifestFile;
use super::superblock::{AREA_UNIT, HEAD_BYTES};
use super::tail;
use pagetier_bufpool::FENCED;
use pagetier_devio::{
    Claim, DeviceError, DeviceErrorKind, Failures, IoBuf, IoBufs, IoClass, Joint, SharedDevice,
};
use std::io::{Error, ErrorKind, Result};
use std::path::PathBuf;
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub(crate) enum Medium {
    /// The HDD, which the store flushes, too, and the store's claim to it.
    Hdd(Arc<Joint>, Claim),
    /// Operations on it block, and never wait for a task.
    File(ManifestFile),
}

impl Medium {
    /// A device that has only to be read.
    pub(crate) fn to_read(device: &SharedDevice) -> Self {
        Self::Hdd(Joint::of(Arc::clone(device)), Claim::default())
    }

    /// The HDD, if it has the areas.
    pub(crate) fn hdd(&self) -> Option<&SharedDevice> {
        match self {
            Self::Hdd(joint, _) => Some(joint.device()),
            Self::File(_) => None,
        }
    }

    /// Where it is, for errors.
    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Self::Hdd(joint, _) => joint.device().name().into(),
            Self::File(file) => file.directory().path().to_owned(),
        }
    }

    /// Where the two copies of the header of an area are.
    pub(super) fn headers_at(&self, area: u64) -> u64 {
        let first = match self {
            Self::Hdd(..) => 64 << 10,
            Self::File(_) => tail::BLOCK as u64,
        };
        first + area * 2 * tail::BLOCK as u64
    }

    /// Where the first area begins.
    pub(super) fn areas_at(&self) -> u64 {
        match self {
            Self::Hdd(..) => HEAD_BYTES,
            Self::File(_) => AREA_UNIT,
        }
    }

    pub(super) fn size(&self) -> Result<u64> {
        match self {
            Self::Hdd(joint, _) => Ok(joint.device().size()),
            Self::File(file) => file.size(),
        }
    }

    /// Refuses to write over what another owner or another store may have written. Returns false if there is
    /// no file.
    pub(super) async fn is_ready(&self) -> Result<bool> {
        match self {
            Self::Hdd(_, claim) => {
                claim.confirmed().await;
                if claim.holds() { Ok(true) } else { Err(Error::other(FENCED)) }
            }
            Self::File(file) => file.is_ready(),
        }
    }

    pub(super) async fn read(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        match self {
            Self::Hdd(joint, _) => {
                let buf = IoBufs::from_iter([IoBuf::zeroed(len)]);
                let done = joint.device().read(at, buf, IoClass::Recovery).await;
                done.result.map_err(failed)?;
                Ok(done.bufs.iter().flat_map(|buf| buf.as_slice()).copied().collect())
            }
            Self::File(file) => file.read(at, len),
        }
    }

    /// Writes `bytes`, which the next flush makes durable.
    pub(super) async fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Hdd(joint, _) => {
                let buf = IoBufs::from_iter([IoBuf::copy_of(bytes)]);
                joint.device().write(at, buf, IoClass::Meta).await.result.map_err(failed)
            }
            Self::File(file) => file.write(at, bytes),
        }
    }

    /// The failed flushes so far, of all who flush it.
    pub(super) fn failures(&self) -> Option<Failures> {
        match self {
            Self::Hdd(joint, _) => Some(joint.failures()),
            // The file is the manifest's alone.
            Self::File(_) => None,
        }
    }

    /// Makes what was written durable. Fails if a flush has failed since `seen`.
    pub(super) async fn flush(&self, seen: Option<Failures>) -> Result<()> {
        match self {
            Self::Hdd(joint, _) => {
                let seen = seen.unwrap_or_else(|| joint.failures());
                joint.flush(seen, IoClass::Meta).await.map_err(failed)
            }
            Self::File(file) => file.sync(),
        }
    }

    /// Sees to it that it has room for `bytes`; a file was made with all that it needs.
    pub(super) fn grow(&self, bytes: u64) -> Result<()> {
        match self {
            Self::Hdd(joint, _) => joint.device().grow(bytes).map_err(failed),
            Self::File(_) => Ok(()),
        }
    }
}

fn failed(error: DeviceError) -> Error {
    let kind = match error.kind {
        DeviceErrorKind::NoSpace => ErrorKind::StorageFull,
        _ => ErrorKind::Other,
    };
    Error::new(kind, error)
}
