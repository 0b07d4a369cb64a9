//! Options that are one of several: where the devices and the manifest are, what a creation may overwrite,
//! where costs come from.

use super::bytes;
use pagetier_devio::{Device, SharedDevice};
use pagetier_policy::Costs;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Where a device of the store is. Paths and devices convert into it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Place {
    /// In the store's directory, under the option's default name.
    #[default]
    Default,
    /// A file or block device.
    Path(PathBuf),
    /// A ready-made device; [`device`](crate::device) says how to write one.
    Device(SharedDevice),
}

macro_rules! from_paths {
    ($($path:ty),*) => {
        $(
            impl From<$path> for Place {
                fn from(path: $path) -> Self {
                    Self::Path(path.into())
                }
            }
        )*
    };
}

from_paths!(PathBuf, &PathBuf, &Path, String, &String, &str);

impl From<SharedDevice> for Place {
    fn from(device: SharedDevice) -> Self {
        Self::Device(device)
    }
}

impl<D: Device + 'static> From<Arc<D>> for Place {
    fn from(device: Arc<D>) -> Self {
        Self::Device(device)
    }
}

/// Where the store has its manifest, which says where everything else is. Set it at every open; a store
/// keeps its manifest where it was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ManifestPlace {
    /// In the directory.
    #[default]
    Directory,
    /// At the head of the HDD.
    Hdd(OnHdd),
}

impl ManifestPlace {
    /// The options of a manifest on the HDD, if that is where it is.
    pub(crate) const fn on_hdd(self) -> Option<OnHdd> {
        match self {
            Self::Hdd(options) => Some(options),
            Self::Directory => None,
        }
    }

    pub(crate) const fn is_on_hdd(self) -> bool {
        self.on_hdd().is_some()
    }
}

impl From<OnHdd> for ManifestPlace {
    fn from(options: OnHdd) -> Self {
        Self::Hdd(options)
    }
}

/// A manifest at the head of the HDD: a machine that has only the HDD of a store, and a blank SSD, can then
/// open it. The doublewrite ring is on the HDD, too, and takes every page that goes home. The directory,
/// which is created wherever the store is opened, has the lock, and by default the SSD's file; for another
/// machine it is of no use.
///
/// [`Create::Overwriting`] does not start such a store anew: blank the HDD's first MiB for that. **Not
/// promised:** that a read-only open of a ready-made or block device keeps a writing one out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OnHdd {
    /// The most that the manifest may take on the HDD, in bytes: a multiple of 64 KiB from 256 KiB to 1 GiB.
    /// A new store's extents begin behind twice as many. A run of neighbouring extents takes some 20 bytes; a
    /// manifest beyond the maximum is [`Error::Manifest`](crate::Error::Manifest) at the growth that would
    /// need it. An existing store keeps its own. Default: 16 MiB.
    #[serde(deserialize_with = "bytes::read")]
    pub bytes_max: u64,
    /// How long the store serves pages after it last made sure that no other machine has opened the HDD, in
    /// milliseconds; at least 100, or 0: for as long as no operation of the HDD is refused. See
    /// [`OnHdd::lease`]. Default: 10,000 on a device that knows of other owners
    /// ([`Device::claim`](crate::device::Device::claim)), 0 on others.
    pub lease_ms: Option<u64>,
}

impl Default for OnHdd {
    fn default() -> Self {
        Self { bytes_max: 16 << 20, lease_ms: None }
    }
}

impl OnHdd {
    /// Sets how long the store serves pages after it last made sure that no other machine has opened the HDD,
    /// which it does after a third of that time, by a read of 8 KiB. A former owner serves pages that may be
    /// older than the new owner's for at most so long. While the HDD does not answer in time, requests fail
    /// with [`Error::Fenced`](crate::Error::Fenced), in memory or not, and operations of the HDD wait; they
    /// continue once it confirms the owner. A request for a page in memory reads the system's clock. Zero:
    /// without limit. Default: 10 s on a device that knows of other owners
    /// ([`Device::claim`](crate::device::Device::claim)), none on others, such as files and block devices:
    /// set it for a network volume.
    ///
    /// It takes nothing from a former owner whose operations the volume still lets through: what was under
    /// way when it was stopped may be written when it resumes. A volume that refuses them is safe, such as an
    /// RBD image whose former owner is banned for as long as its machine may return.
    #[must_use]
    pub fn lease(self, length: Duration) -> Self {
        Self { lease_ms: Some(millis(length)), ..self }
    }
}

/// Whether to create a store that does not exist, and on what.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Create {
    /// Not at all: [`OpenError::NotFound`](crate::OpenError::NotFound).
    Never,
    /// Not at all, but an existing store's new SSD may hold data or another store's.
    NeverOverwritingSsd,
    /// On devices that are zero where file systems, arrays and partition tables keep their labels: the first
    /// and last MiB, and btrfs' inner copies.
    #[default]
    OnBlank,
    /// Even on devices that hold data or another store; an existing store's new SSD may hold such, too. A
    /// block device that is mounted or otherwise in use is always refused. Where the store's directory is
    /// missing, for example not mounted, it creates a new store over the old one's devices: for a store that
    /// exists, use [`Create::NeverOverwritingSsd`].
    Overwriting,
}

/// Where the device costs come from that the policies weigh. [`Policies::set_costs`](crate::Policies) changes
/// them in a running store.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum CostSource {
    /// What the store's calibration measured, or without one the 2013 paper's: 7.2, 4.96, 0.11 and 0.27 ms.
    #[default]
    Known,
    /// These; [`calibrate`](crate::calibrate) measures them.
    Given(Costs),
    /// A measurement ([`calibrate`](crate::calibrate)) when the store is created, of about this many
    /// milliseconds for each device. The store remembers the result; an existing store without one cannot be
    /// measured later ([`OpenError::BadOption`](crate::OpenError::BadOption)).
    CalibratedMs(u64),
    /// Measurements while the store runs, which the policies get once a second.
    #[serde(rename_all = "snake_case")]
    Online {
        /// A cost is the moving average over this many of a device's last page reads or writes
        /// ([`COST_POINTS`](crate::device::COST_POINTS) in the paper: Ou et al., section 3.2.2). The pages of
        /// a merged write share its time; operations longer than 65 ms are ignored. Each point takes 16 bytes
        /// of memory; the maximum is 2^24 points.
        points: usize,
        /// The costs until there are enough samples of a kind. Default: as [`CostSource::Known`].
        #[serde(default)]
        start: Option<Costs>,
    },
}

impl CostSource {
    /// Measurements of the last `points` reads and writes of each device; see [`CostSource::Online`].
    #[must_use]
    pub const fn online(points: usize) -> Self {
        Self::Online { points, start: None }
    }

    /// The costs that the option names, for the start.
    pub(crate) const fn named(self) -> Option<Costs> {
        match self {
            Self::Given(costs) => Some(costs),
            Self::Online { start, .. } => start,
            Self::Known | Self::CalibratedMs(_) => None,
        }
    }
}

impl From<Costs> for CostSource {
    fn from(costs: Costs) -> Self {
        Self::Given(costs)
    }
}

/// The duration in whole milliseconds, rounded up.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
