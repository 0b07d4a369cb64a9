//! A simulated device at one moment, volatile writes included: crashes at many moments of one run can be
//! examined later.

use super::cache::Cache;
use super::{Extent, FlushFailure, SimDevice, SimPower};
use std::sync::Arc;

/// A device's contents at one moment. Cheap to take and keep: it shares unchanged parts with the device.
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
    /// Captures this moment without affecting the device.
    pub fn moment(&self) -> SimMoment {
        let state = self.shared.state.lock();
        SimMoment {
            name: Arc::clone(&self.shared.meter.name),
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
    pub fn after_power_cut(&self, seed: u64, power: &SimPower) -> SimDevice {
        let mut cache = self.cache.after_power_cut(seed);
        let extent = self.extent.after_power_cut(seed);
        cache.truncate(extent.size);
        self.successor(cache, extent, seed, power)
    }

    /// As [`SimDevice::after_kill`], for a death of the process at this moment.
    pub fn after_kill(&self, seed: u64, power: &SimPower) -> SimDevice {
        self.successor(self.cache.after_kill(seed), self.extent, seed, power)
    }

    /// As [`SimDevice::fork`].
    pub fn fork(&self, seed: u64, power: &SimPower) -> SimDevice {
        self.successor(self.cache.fork(), self.extent, seed, power)
    }

    /// As [`SimDevice::truncated`].
    pub fn truncated(&self, bytes: u64, seed: u64, power: &SimPower) -> SimDevice {
        let mut cache = self.cache.fork();
        cache.truncate(bytes);
        self.successor(cache, Extent::durable(bytes.min(self.extent.size)), seed, power)
    }

    /// After a power cut that left exactly those volatile writes (whole) for whose index, below
    /// [`SimMoment::unflushed`], `landed` returns true.
    pub fn after_landing(&self, landed: &dyn Fn(usize) -> bool, seed: u64, power: &SimPower) -> SimDevice {
        self.successor(self.cache.after_landing(landed), Extent::durable(self.extent.size), seed, power)
    }

    /// The number of writes (or sectors of failed ones) that were volatile or in flight.
    pub fn unflushed(&self) -> usize {
        self.cache.unflushed()
    }

    /// The device's size in bytes.
    pub fn size(&self) -> u64 {
        self.extent.size
    }

    /// Reads what the device's reads saw.
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
