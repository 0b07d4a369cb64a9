//! What to do about an error: who can act on it, and how.

use super::{BackupError, Error, HotSetError, OpenError};
use pagetier_bufpool::{Exhausted, PoolError, TierError};
use pagetier_devio::{DeviceError, DeviceErrorKind};
use pagetier_page::PageId;
use pagetier_ssdcache::ReadmitError;
use std::io;

/// What to do about an error. See [`Error::advice`], [`OpenError::advice`] and [`BackupError::advice`]; the
/// [`guide`](crate::guide#what-to-do-about-each-error) treats each error in detail.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Advice {
    /// Repeat the call later: it may succeed once guards are dropped, the log gate works again, or another
    /// process has closed the store. Nothing was changed, except that a pool that could not shrink further
    /// keeps the size it reached.
    Retry,
    /// Free space on the device or in the directory, then repeat the call.
    FreeSpace,
    /// Close the store and open it again.
    Reopen,
    /// Change the option or the argument that the error names.
    FixConfiguration,
    /// A device failed, is missing, or is the wrong one: attach the right one, or replace the device.
    FixDevice,
    /// Data is damaged or too old: restore the page, or the store, from a backup or the log.
    Restore,
    /// The program asked for something impossible: fix the program.
    Bug,
}

impl Error {
    /// What to do about this error.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let temporary = tempfile::tempdir()?;
    /// # let builder = pagetier::PageStore::builder().directory(temporary.path()).ssd_bytes(4 << 20);
    /// use pagetier::{PageId, SpaceId, errors::Advice};
    ///
    /// let store = builder.open().await?;
    /// let error = store.get(PageId::new(SpaceId(9), 0)).await.unwrap_err();
    /// assert_eq!(error.advice(), Advice::Bug);
    /// store.shutdown().await?;
    /// assert_eq!(store.sync().await.unwrap_err().advice(), Advice::Reopen);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            Self::Closed | Self::ReadOnly | Self::Refusing { .. } | Self::Fenced => Advice::Reopen,
            Self::NoSuchSpace { .. }
            | Self::SpaceExists { .. }
            | Self::SpaceIdUsed { .. }
            | Self::NoSuchPage { .. }
            | Self::SpaceFull { .. }
            | Self::Forked { .. } => Advice::Bug,
            Self::BadCosts { .. } | Self::PageGap { .. } | Self::PoolSize(_) | Self::UnknownPolicy(_) => {
                Advice::FixConfiguration
            }
            Self::Manifest { source } => of_io(source, Advice::FixDevice),
            Self::Device(error) => of_device(error),
            Self::SsdOnlyCopies { .. } | Self::ForeignManifest { .. } => Advice::FixDevice,
            Self::Readmit(error) => Advice::from(error),
            Self::Attach(error) => error.advice(),
            Self::Pool(error) => of_pool(error),
        }
    }

    /// The page that the error concerns, if it concerns a single one.
    #[must_use]
    pub fn page(&self) -> Option<PageId> {
        match self {
            Self::NoSuchPage { page }
            | Self::PageGap { page, .. }
            | Self::Pool(
                PoolError::Tier(
                    TierError::NoSuchPage { page }
                    | TierError::Device { page, .. }
                    | TierError::Corrupt { page, .. },
                )
                | PoolError::Exhausted { page, .. }
                | PoolError::Deadlock { page }
                | PoolError::Log { page, .. },
            ) => Some(*page),
            _ => None,
        }
    }
}

impl OpenError {
    /// What to do about this error. [`Advice::Retry`] usually means that the store or a device is still in
    /// use elsewhere.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            Self::PageSize(_)
            | Self::PoolSize(_)
            | Self::SsdTooSmall(_)
            | Self::UnknownPolicy(_)
            | Self::BadOption { .. }
            | Self::NotADirectory { .. }
            | Self::NotFound { .. }
            | Self::OtherPageSize { .. }
            | Self::Foreign { .. }
            | Self::Striped { .. }
            | Self::SameDevice { .. }
            | Self::Format { .. } => Advice::FixConfiguration,
            Self::Directory { source, .. } => of_io(source, Advice::FixConfiguration),
            // These pass by themselves: the other process closes the store, or the kernel frees what a killed
            // one held.
            Self::Runtime { .. } | Self::AlreadyOpen { .. } | Self::DeviceInUse { .. } => Advice::Retry,
            Self::OtherStore { .. }
            | Self::SsdMissing { .. }
            | Self::HddMissing { .. }
            | Self::StaleDevice { .. }
            | Self::TooShort { .. }
            | Self::Log { .. }
            | Self::Ssd(_) => Advice::FixDevice,
            Self::BadManifest { .. } | Self::ManifestMissing { .. } | Self::StaleManifest { .. } => {
                Advice::Restore
            }
            Self::Device(error) => of_device(error),
            Self::Pool(error) => of_pool(error),
        }
    }
}

impl BackupError {
    /// What to do about this error. [`Advice::Restore`] of a damaged chain means another chain, or an earlier
    /// backup of this one.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            Self::Io { source, .. } => of_io(source, Advice::FixConfiguration),
            Self::Damaged { .. } => Advice::Restore,
            Self::Busy { .. } => Advice::Retry,
            Self::NoChain { .. }
            | Self::OtherStore { .. }
            | Self::OwnDirectory { .. }
            | Self::TwoStores { .. }
            | Self::NoSuchSpace { .. }
            | Self::NoSuchPage { .. }
            | Self::Exists { .. }
            | Self::InTheWay { .. }
            | Self::OtherPageSize { .. }
            | Self::NoDirectory => Advice::FixConfiguration,
            Self::Page { source, .. } | Self::Store(source) => source.advice(),
            Self::Open(error) => error.advice(),
            Self::Runtime => Advice::Reopen,
        }
    }
}

impl HotSetError {
    /// What to do about this error.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            Self::Io { source, .. } => of_io(source, Advice::FixConfiguration),
            Self::Malformed { .. } => Advice::FixConfiguration,
        }
    }
}

/// What to do about an SSD that was not readmitted.
impl From<&ReadmitError> for Advice {
    fn from(error: &ReadmitError) -> Self {
        match error {
            ReadmitError::Device(error) => of_device(error),
            ReadmitError::Refusing { .. } | ReadmitError::LogNeeded { .. } | ReadmitError::Stopped => {
                Self::Reopen
            }
            ReadmitError::Unrecorded { .. } => Self::Retry,
            _ => Self::FixDevice,
        }
    }
}

fn of_io(error: &io::Error, otherwise: Advice) -> Advice {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Advice::FreeSpace,
        _ => otherwise,
    }
}

fn of_device(error: &DeviceError) -> Advice {
    match error.kind {
        DeviceErrorKind::NoSpace => Advice::FreeSpace,
        DeviceErrorKind::Closed | DeviceErrorKind::Fenced => Advice::Reopen,
        DeviceErrorKind::NoThread(_) => Advice::Retry,
        DeviceErrorKind::Forked { .. } => Advice::Bug,
        DeviceErrorKind::Misaligned { .. }
        | DeviceErrorKind::FileSizeLimit { .. }
        | DeviceErrorKind::Unusable(_) => Advice::FixConfiguration,
        _ => Advice::FixDevice,
    }
}

fn of_tier(error: &TierError) -> Advice {
    match error {
        TierError::NoSuchPage { .. } => Advice::Bug,
        TierError::Device { source, .. } | TierError::Flush { source } => of_device(source),
        TierError::Corrupt { .. } => Advice::Restore,
        _ => Advice::Reopen,
    }
}

fn of_pool(error: &PoolError) -> Advice {
    match error {
        PoolError::Tier(error) => of_tier(error),
        PoolError::Exhausted { why, .. } | PoolError::Shrink { why, .. } => match &**why {
            Exhausted::Storage { source, .. } => of_tier(source),
            Exhausted::NotDriven { .. } => Advice::Bug,
            _ => Advice::Retry,
        },
        PoolError::Deadlock { .. } | PoolError::Forked { .. } => Advice::Bug,
        PoolError::Memory(_) => Advice::FixConfiguration,
        PoolError::Closed | PoolError::Fenced => Advice::Reopen,
        // The embedder's log failed: its own error says more.
        _ => Advice::Retry,
    }
}
