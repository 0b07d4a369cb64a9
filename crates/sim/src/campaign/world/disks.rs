//! The devices of a store.

use pagetier_devio::SharedDevice;
use pagetier_testing::{SimDevice, SimPower};
use std::sync::Arc;

/// The devices of a store. The ring is on `ssd` as long as that is in use, or if the store never had an SSD.
pub(crate) struct Disks {
    pub(crate) hdd: SimDevice,
    pub(crate) ssd: SimDevice,
    pub(crate) ring: SimDevice,
    pub(crate) power: SimPower,
}

/// The same, as an open receives them.
#[derive(Clone)]
pub(crate) struct SharedDisks {
    pub(crate) hdd: SharedDevice,
    pub(crate) ssd: SharedDevice,
    pub(crate) ring: SharedDevice,
}

impl Disks {
    /// The devices once those other than the HDD were lost and replaced by blank ones.
    pub(crate) fn bereft(self, seed: u64) -> Self {
        let Self { hdd, power, .. } = self;
        let [ssd, ring] = ["ssd", "ring"].map(|name| SimDevice::new(name, 0, seed, &power));
        Self { hdd, ssd, ring, power }
    }

    /// The devices: HDD, SSD, ring.
    pub(crate) fn each(self) -> [SimDevice; 3] {
        [self.hdd, self.ssd, self.ring]
    }

    pub(crate) fn shared(self) -> SharedDisks {
        let Self { hdd, ssd, ring, .. } = self;
        SharedDisks { hdd: Arc::new(hdd), ssd: Arc::new(ssd), ring: Arc::new(ring) }
    }
}
