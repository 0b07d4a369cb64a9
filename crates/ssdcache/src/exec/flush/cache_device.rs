//! The device that holds ring, journal, map and slots. It is exchanged as a whole when the SSD is taken out
//! of use, put back or replaced.

use crate::exec::flush::group::{Failures, GroupFlush};
use crate::format::layout::Layout;
use crate::protocol::flushes::SsdFlush;
use crate::remember::Flushed;
use pagetier_devio::SharedDevice;
use std::sync::Arc;
use tokio::runtime::Handle;

/// The SSD, or the ring's file in a store without one.
#[derive(Debug)]
pub(crate) struct CacheDevice {
    pub(crate) device: SharedDevice,
    pub(crate) layout: Layout,
    /// Whether the ring, and a store's whole device without an SSD, is a window of the HDD.
    pub(crate) ring_on_hdd: bool,
    /// Numbered separately for each device: only the device that failed a flush remembers the failure.
    pub(crate) flush: GroupFlush<SsdFlush>,
}

impl CacheDevice {
    pub(crate) fn new(
        device: SharedDevice,
        layout: Layout,
        ring_on_hdd: bool,
        failures: &Arc<Failures>,
        runtime: &Handle,
    ) -> Arc<Self> {
        let flush = GroupFlush::new(Arc::clone(&device), Flushed::Ssd, failures, runtime);
        Arc::new(Self { device, layout, ring_on_hdd, flush })
    }

    /// The same device without its failed flush.
    pub(crate) fn without_failure(&self) -> Arc<Self> {
        let flush = self.flush.without_failure();
        let Self { device, layout, ring_on_hdd, .. } = self;
        let (device, layout, ring_on_hdd) = (SharedDevice::clone(device), *layout, *ring_on_hdd);
        Arc::new(Self { device, layout, ring_on_hdd, flush })
    }
}
