//! A simulated device at one moment, volatile writes and all: from one run, crashes at many moments can be
//! looked at later.

use super::cache::Cache;
use super::{Extent, FlushFailure, SimDevice, SimPower};
use std::sync::Arc;

/// What a device held at one moment. Cheap to take and to keep: it shares what the device does not change
/// afterwards.
#[derive(Debug)]
pub struct SimMoment {
    name: Arc<str>,
    cache: Cache,
    extent: Extent,
    flush_failure: FlushFailure,
    alignment: usize,
    size_max: u64,
}

impl SimDevice {
    /// This moment. The device goes on as if nothing had happened.
    #[must_use]
    pub fn moment(&self) -> SimMoment {
        let state = self.shared.state.lock();
        SimMoment {
            name: Arc::clone(&self.shared.name),
            cache: state.cache.fork(),
            extent: state.extent,
            flush_failure: state.flush_failure,
            alignment: self.alignment,
            size_max: self.size_max,
        }
    }
}

impl SimMoment {
    /// As [`SimDevice::after_power_cut`], for a cut at this moment.
    #[must_use]
    pub fn after_power_cut(&self, seed: u64, power: &SimPower) -> SimDevice {
        let mut cache = self.cache.after_power_cut(seed);
        let extent = self.extent.after_power_cut(seed);
        cache.truncate(extent.size);
        self.successor(cache, extent, seed, power)
    }

    /// As [`SimDevice::after_kill`], for a death of the process at this moment.
    #[must_use]
    pub fn after_kill(&self, seed: u64, power: &SimPower) -> SimDevice {
        self.successor(self.cache.after_kill(seed), self.extent, seed, power)
    }

    /// As [`SimDevice::fork`].
    #[must_use]
    pub fn fork(&self, seed: u64, power: &SimPower) -> SimDevice {
        self.successor(self.cache.fork(), self.extent, seed, power)
    }

    /// As [`SimDevice::truncated`].
    #[must_use]
    pub fn truncated(&self, bytes: u64, seed: u64, power: &SimPower) -> SimDevice {
        let mut cache = self.cache.fork();
        cache.truncate(bytes);
        self.successor(cache, Extent::durable(bytes.min(self.extent.size)), seed, power)
    }

    /// After a power cut that left of the volatile writes exactly those (whole) for which `landed` says so,
    /// told their places, up to [`SimMoment::unflushed`].
    #[must_use]
    pub fn after_landing(&self, landed: &dyn Fn(usize) -> bool, seed: u64, power: &SimPower) -> SimDevice {
        self.successor(self.cache.after_landing(landed), Extent::durable(self.extent.size), seed, power)
    }

    /// How many writes (or sectors of failed ones) were volatile or under way.
    #[must_use]
    pub fn unflushed(&self) -> usize {
        self.cache.unflushed()
    }

    /// The device's size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.extent.size
    }

    /// What reads saw.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        self.cache.read(offset, out);
    }

    fn successor(&self, cache: Cache, extent: Extent, seed: u64, power: &SimPower) -> SimDevice {
        let mut device = SimDevice::build(Arc::clone(&self.name), cache, extent, seed, power)
            .with_flush_failure(self.flush_failure);
        device.alignment = self.alignment;
        device.size_max = self.size_max;
        device
    }
}
